package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/lif"
	"oxpd/switchcfg"
	"oxpd/switchcfg/reg"
)

// SwitchWay is an open way to the switch: the coprocessor's console, and a program there.
type SwitchWay interface {
	switchcfg.Registers
	// Prepare sees to the program. NetAgent is kept away from here on.
	Prepare(ctx context.Context) error
	Close() error
}

// consoled is a device that has the coprocessor's console itself: a simulated one.
type consoled interface {
	// Console is the path of the terminal, "" when it has none.
	Console() string
}

// What there may be instead of a switch.
var (
	errNoConsole   = errors.New("there is no console of the coprocessor")
	errSwitchEarly = errors.New("the bring-up has not come to NetAgent, which must be kept away meanwhile")
)

// consoleHint says what makes a way to the switch.
const consoleHint = "name the terminal that the coprocessor's console is at in the configuration, such as switch: {console: /dev/ttyS2}, and start oxpd with it; " +
	"docs/guides/jumbo.md says how to find it"

// switchState is what the daemon knows of the switch and does with it.
type switchState struct {
	turn chan struct{} // holds one token: the right to a run

	mu     sync.Mutex
	end    context.CancelFunc // of the run that a client asked for; nil: there is none
	ceil   *ceiling           // of a run that lowers the switch
	failed string             // why the last look failed, "" when it did not
	partly bool               // it has read all ports, and failed to set some
	soon   bool               // a look is wanted now
}

func newSwitchState() *switchState {
	s := &switchState{turn: make(chan struct{}, 1)}
	s.turn <- struct{}{}
	return s
}

// lookSoon has the switch looked at without waiting for the watch.
func (s *switchState) lookSoon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.soon = true
}

// wanted tells whether a look is wanted now.
func (s *switchState) wanted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	soon := s.soon
	s.soon = false
	return soon
}

// ceiling keeps MTUs from being raised above what the switch is about to pass.
type ceiling struct {
	ports map[switchcfg.Port]bool
	limit lif.SwitchLimit
}

// modes is the frame sizes of one boot of the coprocessor, as last read. A life has them,
// guarded by Daemon.mu.
type modes struct {
	frame [reg.Ports]int
	// byHand are the ports that somebody has set: what the configuration says of them
	// holds again when it says something else, or the coprocessor has started anew.
	byHand map[switchcfg.Port]bool
}

// switchLimit is what is known of the switch at a port, and where it is known from.
func (d *Daemon) switchLimit(p board.Port) (limit lif.SwitchLimit, from string) {
	at, behind := switchcfg.OfBoard(p)
	if !behind {
		return lif.SwitchLimit{}, client.SwitchNone
	}
	from = client.SwitchUnknown
	d.mu.Lock()
	m, cfg := d.life.modes, d.cfg
	if m != nil && m.frame[at] != 0 {
		limit, from = lif.SwitchLimit{Panel: m.frame[at], Uplink: m.frame[switchcfg.Uplink]}, client.SwitchRead
	}
	d.mu.Unlock()
	if m == nil && cfg.Switch.Jumbo == "" && cfg.SwitchLimit() != (lif.SwitchLimit{}) {
		limit, from = cfg.SwitchLimit(), client.SwitchConfig
	}
	d.sw.mu.Lock()
	defer d.sw.mu.Unlock()
	if c := d.sw.ceil; c != nil && c.ports[at] && (limit.Panel == 0 || c.limit.Panel < limit.Panel) {
		limit = c.limit
	}
	return limit, from
}

// limitOf is switchLimit for an owner.
func (d *Daemon) limitOf(p board.Port) func() lif.SwitchLimit {
	return func() lif.SwitchLimit {
		limit, _ := d.switchLimit(p)
		return limit
	}
}

// know takes what was read of the switch.
func (d *Daemon) know(l *life, frames func(p switchcfg.Port) (bytes int, known bool)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if l.modes == nil {
		l.modes = &modes{byHand: map[switchcfg.Port]bool{}}
	}
	for _, p := range switchcfg.AllPorts() {
		if bytes, known := frames(p); known {
			l.modes.frame[p] = bytes
		}
	}
}

func (d *Daemon) knowState(l *life, st switchcfg.State) {
	d.know(l, func(p switchcfg.Port) (int, bool) { return st.Ports[p].Mode().FrameBytes(), true })
}

// knowResult takes what a run left behind. A port that may be either is not known.
func (d *Daemon) knowResult(l *life, r switchcfg.Result) {
	if len(r.Ports) == 0 {
		return
	}
	d.know(l, func(p switchcfg.Port) (int, bool) {
		if q := &r.Ports[p]; q.Known {
			return q.Mode().FrameBytes(), true
		}
		return 0, r.Ports[p].Tries > 0
	})
}

// useSwitch opens the way to the switch and has something done with it, alone. NetAgent
// is asked nothing meanwhile: its programs use the switch by the same two registers.
// ctx belongs to a part of l's, or to a request that has been let in.
//
// Errors: errNoConsole, errSwitchEarly, those of octep.Endpoint.Booted, those of the way and of do.
func (d *Daemon) useSwitch(ctx context.Context, l *life, do func(ctx context.Context, s *switchcfg.Switch) error) (err error) {
	d.mu.Lock()
	agent, ep := l.agent, l.ep
	d.mu.Unlock()
	if agent == nil || ep == nil {
		return &refusal{errSwitchEarly, client.CodeNotReady}
	}
	path, err := d.consolePath(l)
	if err != nil {
		return err
	}
	select {
	case <-d.sw.turn:
	case <-ctx.Done():
		return fmt.Errorf("wait for the switch, which is being used: %w", ctx.Err())
	}
	defer func() { d.sw.turn <- struct{}{} }()
	way, err := d.o.OpenSwitch(ctx, path, ep.Booted)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, way.Close()) }()
	release, err := agent.Hold(ctx)
	if err != nil {
		return err
	}
	defer release()
	if err := way.Prepare(ctx); err != nil {
		return err
	}
	return do(ctx, switchcfg.NewKnown(way, &l.others))
}

// consolePath is where the coprocessor's console is. A simulated card has its own, and
// no other is touched for it.
func (d *Daemon) consolePath(l *life) (string, error) {
	if d.o.OpenSwitch == nil {
		return "", fmt.Errorf("reach the switch: %w", errors.ErrUnsupported)
	}
	if dev, ok := l.dev.(consoled); ok {
		if path := dev.Console(); path != "" {
			return path, nil
		}
		return "", &hinted{
			&refusal{fmt.Errorf("reach the switch: %w: the simulated card could not make its own", errNoConsole), client.CodeNotReady},
			"its log says why, at the start of oxpd; it needs busybox",
		}
	}
	path := d.config().Switch.Console
	if path == "" {
		return "", &hinted{&refusal{fmt.Errorf("reach the switch: %w", errNoConsole), client.CodeNotReady}, consoleHint}
	}
	return path, nil
}

// visitSwitch is useSwitch for a request of a client. It ends when the life does.
func (d *Daemon) visitSwitch(ctx context.Context, what string, do func(ctx context.Context, l *life, s *switchcfg.Switch) error) error {
	d.mu.Lock()
	l, state := d.life, d.state
	d.mu.Unlock()
	ended := func() error {
		if state == client.StateGone {
			return &hinted{fmt.Errorf("%s: %w", what, errCardGone), goneHint}
		}
		return &refusal{fmt.Errorf("%s: the daemon is %s", what, state), client.CodeNotReady}
	}
	if state != client.StateRunning && state != client.StateBringUp {
		return ended()
	}
	visit, leave, ok := l.visit.enter(ctx)
	if !ok {
		d.mu.Lock()
		state = d.state
		d.mu.Unlock()
		return ended()
	}
	defer leave()
	if err := d.useSwitch(visit, l, func(ctx context.Context, s *switchcfg.Switch) error { return do(ctx, l, s) }); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// showSwitch implements control.
func (d *Daemon) showSwitch(ctx context.Context) (client.Switch, error) {
	var st switchcfg.State
	err := d.visitSwitch(ctx, "read the switch", func(ctx context.Context, l *life, s *switchcfg.Switch) (err error) {
		if st, err = s.Show(ctx); err == nil {
			d.knowState(l, st)
		}
		return err
	})
	if err != nil {
		return client.Switch{}, err
	}
	out := client.Switch{Schema: client.Schema, Product: fmt.Sprintf("0x%03x", st.ID.Product()), Revision: st.ID.Revision()}
	for i := range st.Ports {
		p := &st.Ports[i]
		q := switchPort(p.Port)
		q.Frame, q.Register = p.Mode().FrameBytes(), fmt.Sprintf("0x%04x", p.Control2)
		q.MTU = reg.MTU(p.Mode(), st.Ports[switchcfg.Uplink].Mode())
		q.Link, q.State = client.LinkDown, switchStates[reg.StateOf(p.Control)]
		if p.Status.Link() {
			q.Link, q.Speed = client.LinkUp, switchSpeeds[p.Status.Speed()]
		}
		out.Ports = append(out.Ports, q)
	}
	return out, nil
}

// Words and numbers of the fields of a port (switch.md 4).
var (
	switchStates = map[reg.State]string{
		reg.StateDisabled: "disabled", reg.StateBlocking: "blocking", reg.StateLearning: "learning", reg.StateForwarding: "forwarding",
	}
	switchSpeeds = [...]int{10, 100, 1000, 10000}
)

// switchPort names a port of the switch.
func switchPort(p switchcfg.Port) client.SwitchPort {
	q := client.SwitchPort{Port: p.Short()}
	if b, ok := p.Board(); ok {
		q.IfName, q.Label = b.Name, b.Label
	}
	return q
}

// switchRegister implements control.
func (d *Daemon) switchRegister(ctx context.Context, at switchcfg.Register) (client.SwitchRegister, error) {
	var v uint16
	err := d.visitSwitch(ctx, "read the switch", func(ctx context.Context, _ *life, s *switchcfg.Switch) (err error) {
		v, err = s.Read(ctx, at)
		return err
	})
	return registerView(at, v), err
}

// writeSwitch implements control.
func (d *Daemon) writeSwitch(ctx context.Context, at switchcfg.Register, v uint16) (client.SwitchRegister, error) {
	if err := switchcfg.CheckWrite(at, v); err != nil {
		return client.SwitchRegister{}, err
	}
	var before, after uint16
	err := d.visitSwitch(ctx, "write the switch", func(ctx context.Context, l *life, s *switchcfg.Switch) (err error) {
		before, after, err = s.Write(ctx, at, v)
		d.log.Warn("register of the switch was written", "register", at.String(), "old", before, "asked", v, "now", after, "err", err)
		if st, e := s.Modes(ctx); e == nil {
			d.knowState(l, st)
			if at.Reg == reg.PortControl2 && at.Dev < reg.Ports {
				d.byHand(l, reg.JumboOf(v).FrameBytes(), switchcfg.Port(at.Dev))
			}
		}
		return err
	})
	out := registerView(at, after)
	out.Before = fmt.Sprintf("0x%04x", before)
	return out, err
}

// byHand notes that somebody has set ports to a frame size. Where it is not the one of
// the configuration, that is not put into force for them any more.
func (d *Daemon) byHand(l *life, frame int, ports ...switchcfg.Port) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range ports {
		l.modes.byHand[p] = frame != d.cfg.Switch.JumboSize()
	}
}

func registerView(at switchcfg.Register, v uint16) client.SwitchRegister {
	out := client.SwitchRegister{Schema: client.Schema, Register: at.Reg, Value: fmt.Sprintf("0x%04x", v)}
	switch at.Dev {
	case reg.Global1, reg.Global2:
		out.Device = switchcfg.DeviceName(at.Dev)
	default:
		p := switchPort(switchcfg.Port(at.Dev))
		out.Device, out.IfName, out.Label = p.Port, p.IfName, p.Label
	}
	return out
}
