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
	detail, err := d.keepSwitch(look)
	switch {
	case err == nil:
		return detail, nil
	case ctx.Err() != nil:
		return "", ctx.Err()
	case errors.Is(err, mmio.ErrGone):
		return "", err
	}
	return "cannot be reached, tried again: " + err.Error(), nil
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
		return "not read yet: it is when the ports are up"
	case simulated:
		return "not read: " + err.Error()
	case cfg.Switch.Size != 0:
		return fmt.Sprintf("not read, as no console is configured: taken to pass %d bytes, which is", cfg.Switch.Size)
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
		_, err = d.keepSwitch(look)
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
// wants them. It returns what it found.
func (d *Daemon) keepSwitch(ctx context.Context) (detail string, err error) {
	d.mu.Lock()
	l, cfg := d.life, d.cfg
	d.mu.Unlock()
	err = d.useSwitch(ctx, l, func(ctx context.Context, s *switchcfg.Switch) error {
		if cfg.Switch.JumboSize() == 0 {
			st, err := s.Modes(ctx)
			if err == nil {
				d.knowState(l, st)
				detail = framesOf(func(p switchcfg.Port) int { return st.Ports[p].Mode().FrameBytes() })
			}
			return err
		}
		detail, err = d.wantedSwitch(ctx, l, s, cfg)
		return err
	})
	if l.ctx.Err() == nil { // or it has ended for another reason
		d.looked(err)
	}
	return detail, err
}

// wantedSwitch sets the ports that nobody has set by hand.
func (d *Daemon) wantedSwitch(ctx context.Context, l *life, s *switchcfg.Switch, cfg config.Config) (string, error) {
	mode, err := switchcfg.SizeMode(cfg.Switch.JumboSize())
	if err != nil {
		return "", err
	}
	plan := switchcfg.Plan{Mode: mode, Ports: d.wantedPorts(l, mode)}
	result, err := s.Jumbo(ctx, plan, nil)
	d.knowResult(l, result)
	d.logRun(plan, result, err)
	changed := 0
	for _, p := range result.Ports {
		if p.Outcome == switchcfg.Changed {
			changed++
		}
	}
	if changed > 0 && d.sw.looks() {
		d.log.Warn("switch was not as configured any more, and is again", "ports", changed)
	}
	if changed > 0 {
		d.limitsMoved()
	}
	if err != nil {
		return "", err
	}
	return framesOf(func(p switchcfg.Port) int { return result.Ports[p].Mode().FrameBytes() }), nil
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
		if mtu := int(d.lifs.State(b).Have.MTU); mtu > most {
			d.log.Warn("port of the switch is left as it is: its mtu is more than the configured size passes", "port", b.Name, "mtu", mtu, "most", most)
			continue
		}
		if !byHand[p] {
			ports = append(ports, p)
		}
	}
	return ports
}

// looked notes how a look went, and says it once.
func (d *Daemon) looked(err error) {
	d.sw.mu.Lock()
	before, text := d.sw.failed, ""
	if err != nil {
		text = err.Error()
	}
	d.sw.failed, d.sw.ever = text, d.sw.ever || err == nil
	d.sw.mu.Unlock()
	switch {
	case err != nil && reason(before) != reason(text):
		d.log.Warn("switch cannot be looked at, which is tried again", "err", err)
	case err == nil && before != "":
		d.log.Info("switch can be looked at again")
	}
}

// lastLook is why the last look failed.
func (s *switchState) lastLook() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// looks tells whether there was a look before.
func (s *switchState) looks() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ever
}

// switchWarning is what status says of a look that failed, "" when none did.
func (d *Daemon) switchWarning() string {
	if why := d.sw.lastLook(); why != "" {
		return "the switch cannot be looked at, which is tried again; its limits are those of the last look, if there was one: " + why
	}
	return ""
}

// framesOf says what the switch passes, in a line.
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
	var out []string
	for _, s := range sizes {
		out = append(out, fmt.Sprintf("%d bytes at %s", s, strings.Join(by[s], " ")))
	}
	if len(out) == 1 {
		out = []string{fmt.Sprintf("%d bytes at all ten ports", sizes[0])}
	}
	return strings.Join(append(out, fmt.Sprintf("%d at the uplink", frame(switchcfg.Uplink))), ", ")
}
