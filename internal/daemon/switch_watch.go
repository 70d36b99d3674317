package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"oxpd/internal/board"
	"oxpd/internal/daemon/config"
	"oxpd/internal/mmio"
	"oxpd/switchcfg"
	"oxpd/switchcfg/reg"
)

// Waits of the daemon's own looks at the switch.
const (
	switchStageLimit = 30 * time.Second // by the wall clock: a silent console holds up the ports no longer
	switchLookLimit  = 2 * time.Minute
	switchRetry      = 10 * time.Second // after a look that failed; doubled each time, up to the watch
)

// firstSwitch makes the switch what the configuration wants before the ports are brought
// up: what it passes is raised before MTUs are. One that cannot be reached holds up no
// port for long, and is tried again. A simulated card's own console is read when they are
// up, unless jumbo is configured: its shell and program take seconds on a busy machine.
func (d *Daemon) firstSwitch(ctx context.Context) (string, error) {
	d.spawn(ctx, "switch", d.watchSwitch)
	if !d.config().Switch.Watched() {
		return d.unread(), nil
	}
	look, cancel := context.WithTimeout(ctx, switchStageLimit)
	defer cancel()
	err := d.keepSwitch(look)
	switch {
	case err != nil && ctx.Err() != nil:
		return "", ctx.Err()
	case errors.Is(err, mmio.ErrGone):
		return "", err
	}
	return d.switchLine(), nil
}

// switchLine is what is known of the switch now: the line of its stage, which nothing
// else renews.
func (d *Daemon) switchLine() string {
	d.mu.Lock()
	known, frame := d.life.modes != nil, [reg.Ports]int{}
	if known {
		frame = d.life.modes.frame
	}
	d.mu.Unlock()
	if known {
		return framesOf(func(p switchcfg.Port) int { return frame[p] })
	}
	if why := d.sw.lastLook(); why != "" && d.watched() {
		return "cannot be reached, tried again: " + why
	}
	return d.unread()
}

// laterSwitch has a switch read that the bring-up did not wait for.
func (d *Daemon) laterSwitch() {
	if !d.config().Switch.Watched() {
		d.sw.lookSoon()
	}
}

// watched tells whether the switch is looked at without being asked: the configuration
// says so, or the card is a simulated one with a console.
func (d *Daemon) watched() bool {
	if d.config().Switch.Watched() {
		return true
	}
	d.mu.Lock()
	l := d.life
	d.mu.Unlock()
	_, err := d.consolePath(l)
	return err == nil
}

// unread is why nothing is known of the switch, in a line.
func (d *Daemon) unread() string {
	d.mu.Lock()
	l, cfg := d.life, d.cfg
	d.mu.Unlock()
	_, simulated := l.dev.(consoled)
	_, err := d.consolePath(l)
	switch {
	case err == nil:
		return "not read yet, which is done in the background"
	case simulated:
		return "not read: " + err.Error()
	case cfg.Switch.Size != 0:
		return fmt.Sprintf("not read, as no console is configured; switch.size says %d bytes", cfg.Switch.Size)
	}
	return "not read: no console, and no size, is configured"
}

// watchSwitch looks at the switch again and again: something on the coprocessor may set
// it anew.
func (d *Daemon) watchSwitch(ctx context.Context) error {
	for failures := 0; ; {
		err := d.period(ctx, func(c config.Config) config.Duration {
			watch := time.Duration(c.Switch.Watch)
			switch {
			case d.sw.wanted():
				watch = 0
			case failures > 0:
				watch = min(watch, switchRetry<<min(failures-1, 10))
			}
			return config.Duration(watch)
		})
		if err != nil {
			return nil
		}
		if !d.watched() {
			continue
		}
		look, cancel := context.WithTimeout(ctx, switchLookLimit)
		err = d.keepSwitch(look)
		cancel()
		if err = gone(err); err != nil {
			return err
		}
		if failures++; d.sw.lastLook() == "" {
			failures = 0
		}
	}
}

// keepSwitch reads the switch, and sets the ports that are not as the configuration
// wants them.
func (d *Daemon) keepSwitch(ctx context.Context) error {
	d.mu.Lock()
	l, cfg := d.life, d.cfg
	d.mu.Unlock()
	err := d.useSwitch(ctx, l, func(ctx context.Context, s *switchcfg.Switch) error {
		if cfg.Switch.JumboSize() != 0 {
			return d.wantedSwitch(ctx, l, s, cfg)
		}
		st, err := s.Modes(ctx)
		if err == nil {
			d.knowState(l, st)
		}
		return err
	})
	if l.ctx.Err() == nil { // or it has ended for another reason
		d.looked(err)
	}
	return err
}

// wantedSwitch sets the ports that nobody has set by hand.
func (d *Daemon) wantedSwitch(ctx context.Context, l *life, s *switchcfg.Switch, cfg config.Config) error {
	mode, err := switchcfg.SizeMode(cfg.Switch.JumboSize())
	if err != nil {
		return err
	}
	plan := switchcfg.Plan{Mode: mode, Ports: d.wantedPorts(l, mode)}
	result, err := s.Jumbo(ctx, plan, nil)
	d.knowResult(l, result)
	d.logChanges(result)
	if trouble := reason(fmt.Sprint(err)); l.said.trouble != trouble {
		l.said.trouble = trouble
		d.logTroubles(plan, result)
	}
	changed, again := l.said.count(mode, result)
	if again > 0 {
		d.log.Warn("switch was not as configured any more, and is again", "ports", again)
	}
	if changed > 0 {
		d.limitsMoved()
	}
	return err
}

// said is what the looks at the switch have found and logged. A life has it; whoever has
// the switch's turn uses it.
type said struct {
	trouble string // of the last run
	// asConfigured is the frame size that a port had by the last run that came to it, and
	// should have; 0: it had another, or none that is configured.
	asConfigured [reg.Ports]int
	left         [reg.Ports]int // MTU for the sake of which a port is left as it is, 0: none
}

// count counts the ports that a run has changed, and those of them that were as
// configured before: somebody else has set them meanwhile.
func (s *said) count(mode reg.Jumbo, r switchcfg.Result) (changed, again int) {
	for i := range r.Ports {
		p, had := &r.Ports[i], &s.asConfigured[r.Ports[i].Port]
		switch p.Outcome {
		case switchcfg.Changed:
			changed++
			if *had == mode.FrameBytes() {
				again++
			}
			*had = mode.FrameBytes()
		case switchcfg.Unchanged:
			*had = mode.FrameBytes()
		case switchcfg.Left, switchcfg.Failed:
			*had = 0
		}
	}
	return changed, again
}

// wantedPorts are those of the configuration, but for those that were set by hand, and
// those whose MTU is more than they would pass then: the switch is lowered after the LIF.
func (d *Daemon) wantedPorts(l *life, mode reg.Jumbo) (ports []switchcfg.Port) {
	d.mu.Lock()
	byHand := map[switchcfg.Port]bool{}
	if l.modes != nil {
		maps.Copy(byHand, l.modes.byHand)
	}
	d.mu.Unlock()
	most := reg.MTU(mode, reg.Jumbo10240)
	for _, p := range switchcfg.PanelPorts() {
		b, _ := p.Board()
		mtu, before := int(d.lifs.State(b).Have.MTU), l.said.left[p]
		if l.said.left[p] = 0; mtu > most {
			l.said.left[p] = mtu
		}
		if mtu > most && mtu != before {
			d.log.Warn("port of the switch is left as it is: its mtu is more than the configured size passes", "port", b.Name, "mtu", mtu, "most", most)
		}
		if mtu <= most && !byHand[p] {
			ports = append(ports, p)
		}
	}
	return ports
}

// looked notes how a look went, and says it once.
func (d *Daemon) looked(err error) {
	d.sw.mu.Lock()
	before, partly, text := d.sw.failed, d.sw.partly, ""
	if err != nil {
		text = err.Error()
	}
	d.sw.failed, d.sw.partly = text, readAll(err)
	now := d.sw.partly
	d.sw.mu.Unlock()
	switch {
	case err != nil && reason(before) == reason(text):
	case err != nil && now:
		d.log.Warn("switch is not as configured, which is tried again", "err", err)
	case err != nil:
		d.log.Warn("switch cannot be looked at, which is tried again", "err", err)
	case before != "" && partly:
		d.log.Info("switch is as configured")
	case before != "":
		d.log.Info("switch can be looked at again")
	}
}

// readAll tells whether every port was read in a look that failed: what failed is to set
// them.
func readAll(err error) bool {
	var in *switchcfg.IncompleteError
	if !errors.As(err, &in) {
		return false
	}
	for i := range in.Result.Ports {
		if p := &in.Result.Ports[i]; !p.Known && p.Tries == 0 {
			return false
		}
	}
	return true
}

// lastLook is why the last look failed.
func (s *switchState) lastLook() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// switchTroubles are what status warns of: a look that failed, and ports that are not as
// configured because somebody wanted it.
func (d *Daemon) switchTroubles() (out []string) {
	d.sw.mu.Lock()
	why, partly := d.sw.failed, d.sw.partly
	d.sw.mu.Unlock()
	switch {
	case why == "" || !d.watched():
	case partly:
		out = append(out, "the switch is not as configured, which is tried again: "+why)
	default:
		out = append(out, "the switch cannot be looked at, which is tried again; its limits are those of the last look, if there was one: "+why)
	}
	if ports := d.setOtherwise(); len(ports) > 0 {
		out = append(out, "switch.jumbo is not in force at "+strings.Join(ports, " ")+": a command has set the switch otherwise there, which stands until the coprocessor starts, "+
			"or a changed switch section of the configuration is read")
	}
	return out
}

// setOtherwise are the ports whose configured size a command has overridden.
func (d *Daemon) setOtherwise() (names []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.life.modes == nil || d.cfg.Switch.JumboSize() == 0 {
		return nil
	}
	for _, p := range switchcfg.PanelPorts() {
		if d.life.modes.byHand[p] {
			b, _ := p.Board()
			names = append(names, b.Name)
		}
	}
	return names
}

// framesOf says what the switch passes, in a line; 0 is not known.
func framesOf(frame func(p switchcfg.Port) int) string {
	by := map[int][]string{}
	var sizes []int
	for _, b := range board.All() {
		if p, ok := switchcfg.OfBoard(b); ok {
			if by[frame(p)] == nil {
				sizes = append(sizes, frame(p))
			}
			by[frame(p)] = append(by[frame(p)], b.Name)
		}
	}
	bytes := func(size int) string {
		if size == 0 {
			return "unknown"
		}
		return fmt.Sprintf("%d bytes", size)
	}
	var out []string
	for _, s := range sizes {
		out = append(out, fmt.Sprintf("%s at %s", bytes(s), strings.Join(by[s], " ")))
	}
	if len(out) == 1 {
		out = []string{bytes(sizes[0]) + " at all ten ports"}
	}
	return strings.Join(append(out, strings.TrimSuffix(bytes(frame(switchcfg.Uplink)), " bytes")+" at the uplink"), ", ")
}
