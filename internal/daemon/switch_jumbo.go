package daemon

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/lif"
	"oxpd/switchcfg"
	"oxpd/switchcfg/reg"
)

// errLargerMTU refuses to lower the switch under a LIF: the LIF comes first then, and
// the switch when it is raised (design.md, rule 12).
var errLargerMTU = errors.New("frames of the present mtu would be lost")

// setSwitch implements control.
func (d *Daemon) setSwitch(ctx context.Context, in client.SetSwitch, progress func(client.SwitchPort)) (client.SwitchRun, error) {
	plan, err := switchPlan(in)
	if err != nil {
		return client.SwitchRun{}, err
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	if err := d.beginRun(end); err != nil {
		return client.SwitchRun{}, err
	}
	defer d.endRun()

	run := client.SwitchRun{Schema: client.Schema, Frame: in.Frame, DryRun: in.DryRun}
	if run.Lowered, err = d.lowerFirst(ctx, plan, in.LowerMTU); err != nil {
		if len(run.Lowered) > 0 {
			run.Failure, err = describe(err), nil
		}
		return run, err
	}
	var result switchcfg.Result
	err = d.visitSwitch(ctx, "set the switch", func(ctx context.Context, l *life, s *switchcfg.Switch) (err error) {
		result, err = s.Jumbo(ctx, plan, func(r switchcfg.PortResult) { progress(runPort(r)) })
		if d.knowResult(l, result); !in.DryRun && len(result.Ports) > 0 {
			d.byHand(l, in.Frame, plan.Ports...)
		}
		return err
	})
	d.logRun(plan, result, err)
	d.limitsMoved()
	for _, r := range result.Ports {
		run.Ports = append(run.Ports, runPort(r))
	}
	if run.OK = err == nil; !run.OK {
		if len(run.Ports) == 0 && len(run.Lowered) == 0 {
			return run, err
		}
		run.Failure = describe(err)
	}
	run.Warnings = d.switchWarnings(plan)
	return run, nil
}

// switchPlan is what a client asks for. Errors: *refusal, *switchcfg.SizeError,
// *switchcfg.PortError.
func switchPlan(in client.SetSwitch) (switchcfg.Plan, error) {
	mode, err := switchcfg.SizeMode(in.Frame)
	if err != nil {
		return switchcfg.Plan{}, err
	}
	plan := switchcfg.Plan{Mode: mode, LeaveUplink: in.LeaveUplink, DryRun: in.DryRun}
	switch {
	case in.All && len(in.Ports) > 0:
		return plan, &refusal{errors.New("all ports of the switch, and single ones: want one of the two"), client.CodeUsage}
	case in.All:
		plan.Ports = switchcfg.PanelPorts()
	case len(in.Ports) == 0:
		return plan, &refusal{errors.New("no port of the switch: want all, or names"), client.CodeUsage}
	}
	for _, name := range in.Ports {
		p, err := switchcfg.ParsePort(name)
		if err != nil {
			return plan, err
		}
		if p == switchcfg.Uplink {
			return plan, &refusal{fmt.Errorf("%s is raised with the ports that need it, and never lowered: want a front port", p), client.CodeUsage}
		}
		plan.Ports = append(plan.Ports, p)
	}
	return plan, nil
}

// errRunning refuses a second run.
var errRunning = errors.New("the switch is being set by another command")

// beginRun makes a run one that can be interrupted.
func (d *Daemon) beginRun(end context.CancelFunc) error {
	d.sw.mu.Lock()
	defer d.sw.mu.Unlock()
	if d.sw.end != nil {
		return &hinted{&refusal{errRunning, client.CodeRefused}, "wait until it has ended: a few seconds"}
	}
	d.sw.end = end
	return nil
}

func (d *Daemon) endRun() {
	d.sw.mu.Lock()
	defer d.sw.mu.Unlock()
	d.sw.end, d.sw.ceil = nil, nil
}

// interruptSwitch implements control.
func (d *Daemon) interruptSwitch() {
	d.sw.mu.Lock()
	defer d.sw.mu.Unlock()
	if d.sw.end != nil {
		d.sw.end()
	}
}

// lowerFirst refuses a plan that lowers the switch under a LIF, or lowers the LIFs. From
// here to the end of the run no MTU is raised above what the plan leaves.
func (d *Daemon) lowerFirst(ctx context.Context, plan switchcfg.Plan, lower bool) (lowered []client.SwitchMTU, err error) {
	if plan.Mode == reg.Jumbo10240 {
		return nil, nil
	}
	limit, err := d.limitAfter(ctx, plan)
	if err != nil {
		return nil, err
	}
	c := &ceiling{ports: map[switchcfg.Port]bool{}, limit: limit}
	for _, p := range plan.Ports {
		c.ports[p] = true
	}
	if !plan.DryRun {
		d.sw.mu.Lock()
		d.sw.ceil = c
		d.sw.mu.Unlock()
	}
	lowered, err = d.lostBy(ctx, plan, limit)
	var over []string
	for _, m := range lowered {
		over = append(over, fmt.Sprintf("%s (%s) has mtu %d", m.IfName, m.Label, m.Before))
	}
	switch {
	case err != nil:
		return nil, err
	case len(over) == 0:
		return nil, nil
	case !lower:
		most, _ := limit.MTU(board.ByIndex(0))
		return nil, &hinted{
			&refusal{fmt.Errorf("lower the switch to frames of %d bytes, an mtu of %d: %w: %s", plan.Mode.FrameBytes(), most, errLargerMTU, strings.Join(over, ", ")), client.CodeRefused},
			fmt.Sprintf("--lower-mtu lowers them to %d first; nothing was changed", most),
		}
	case plan.DryRun:
		return lowered, nil
	}
	for i, m := range lowered {
		if err := d.lowerLIF(ctx, m); err != nil {
			return lowered[:i], fmt.Errorf("lower the mtu before the switch, which was not touched: %w", err)
		}
	}
	return lowered, nil
}

// lostBy are the MTUs above a limit of the ports that a plan lowers. Whether it does, the
// switch is asked anew: somebody else may have raised it. A port that passes no more than
// the plan wants loses nothing by it, whatever its MTU.
func (d *Daemon) lostBy(ctx context.Context, plan switchcfg.Plan, limit lif.SwitchLimit) (lost []client.SwitchMTU, err error) {
	var now *switchcfg.State // read when there is a port that needs it
	for _, p := range plan.Ports {
		m, err := d.above(ctx, p, limit)
		if err != nil {
			return nil, err
		}
		if m == nil {
			continue
		}
		if now == nil {
			st, err := d.readModes(ctx)
			if err != nil {
				return nil, err
			}
			now = &st
		}
		if now.Ports[p].Mode() > plan.Mode {
			lost = append(lost, *m)
		}
	}
	return lost, nil
}

// readModes reads the frame sizes, and notes them.
func (d *Daemon) readModes(ctx context.Context) (st switchcfg.State, err error) {
	err = d.visitSwitch(ctx, "read the switch", func(ctx context.Context, l *life, s *switchcfg.Switch) (err error) {
		if st, err = s.Modes(ctx); err == nil {
			d.knowState(l, st)
		}
		return err
	})
	return st, err
}

// limitAfter is what the switch will pass at the ports of a plan. What it needs to know
// of the uplink it reads, once in a boot of the coprocessor.
func (d *Daemon) limitAfter(ctx context.Context, plan switchcfg.Plan) (lif.SwitchLimit, error) {
	d.mu.Lock()
	known := d.life.modes != nil
	d.mu.Unlock()
	if !known {
		if _, err := d.readModes(ctx); err != nil {
			return lif.SwitchLimit{}, err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	limit := lif.SwitchLimit{Panel: plan.Mode.FrameBytes()}
	if m := d.life.modes; m != nil {
		limit.Uplink = m.frame[switchcfg.Uplink]
	}
	if !plan.LeaveUplink {
		limit.Uplink = max(limit.Uplink, switchcfg.UplinkMode(plan.Mode).FrameBytes())
	}
	return limit, nil
}

// above tells whether a port's MTU is above a limit, and what it would be lowered to. It
// asks in the port's queue: a change that is under way has ended by then.
func (d *Daemon) above(ctx context.Context, p switchcfg.Port, limit lif.SwitchLimit) (*client.SwitchMTU, error) {
	b, ok := p.Board()
	if !ok {
		return nil, nil
	}
	mtu := int(d.lifs.State(b).Have.MTU)
	if o, err := d.served(b); err == nil {
		err := o.ask(ctx, func(context.Context) error { mtu = max(mtu, o.want.mtu); return nil })
		if err != nil {
			return nil, fmt.Errorf("see the mtu of %s: %w", b, err)
		}
	}
	most, _ := limit.MTU(b)
	if mtu <= most {
		return nil, nil
	}
	return &client.SwitchMTU{IfName: b.Name, Label: b.Label, Before: mtu, MTU: most}, nil
}

// lowerLIF gives a port the MTU that it is to be lowered to.
func (d *Daemon) lowerLIF(ctx context.Context, m client.SwitchMTU) error {
	b, err := board.Parse(m.IfName)
	if err != nil {
		return err
	}
	o, err := d.served(b)
	if err != nil {
		return fmt.Errorf("set mtu of %s: %w", b, err)
	}
	return o.ask(ctx, func(ctx context.Context) error { return o.setMTU(ctx, m.MTU, false) })
}

// raiseFor raises the switch at a port for an MTU, and the uplink, unless it is known to
// pass its frames.
func (d *Daemon) raiseFor(ctx context.Context, p board.Port, mtu int) error {
	at, behind := switchcfg.OfBoard(p)
	if !behind || mtu <= reg.MTU(reg.Jumbo1522, reg.Jumbo1522) {
		return nil
	}
	if limit, from := d.switchLimit(p); from == client.SwitchRead && limit.Check(p, mtu) == nil {
		return nil
	}
	var result switchcfg.Result
	plan := switchcfg.Plan{Ports: []switchcfg.Port{at}}
	err := d.visitSwitch(ctx, "raise the switch", func(ctx context.Context, l *life, s *switchcfg.Switch) error {
		st, err := s.Modes(ctx)
		if err != nil {
			return err
		}
		plan.Mode = switchcfg.ModeFor(mtu)
		if have := st.Ports[at].Mode(); have != reg.JumboReserved {
			plan.Mode = max(plan.Mode, have)
		}
		result, err = s.Jumbo(ctx, plan, nil)
		d.knowState(l, st)
		d.knowResult(l, result)
		return err
	})
	d.logRun(plan, result, err)
	return err
}

// limitsMoved has what was refused for the switch's sake tried again.
func (d *Daemon) limitsMoved() {
	for _, o := range d.allOwners() {
		if o.port.BehindSwitch() {
			o.notice(markReconcile)
		}
	}
}

// switchWarnings name ports whose MTU is more than they pass now.
func (d *Daemon) switchWarnings(plan switchcfg.Plan) (out []string) {
	for _, p := range plan.Ports {
		b, _ := p.Board()
		limit, _ := d.switchLimit(b)
		if mtu := int(d.lifs.State(b).Have.MTU); limit.Check(b, mtu) != nil {
			out = append(out, limit.Warning(b, mtu))
		}
	}
	return out
}

// logRun says what a run has changed, and why it ended otherwise than asked.
func (d *Daemon) logRun(plan switchcfg.Plan, r switchcfg.Result, err error) {
	if plan.DryRun {
		return
	}
	d.logChanges(r)
	d.logTroubles(plan, r)
	if err != nil {
		d.log.Warn("switch is not as asked", "err", err)
	}
}

func (d *Daemon) logChanges(r switchcfg.Result) {
	for i := range r.Ports {
		if p := &r.Ports[i]; p.Outcome == switchcfg.Changed {
			d.log.Info("switch passes other frames", "port", p.Port.String(), "old", reg.JumboOf(p.Before).FrameBytes(), "frame", p.Mode().FrameBytes(), "tries", p.Tries)
		}
	}
}

func (d *Daemon) logTroubles(plan switchcfg.Plan, r switchcfg.Result) {
	for i := range r.Ports {
		if p := &r.Ports[i]; p.Err != nil {
			d.log.Warn("port of the switch is not as asked", "port", p.Port.String(), "frame", plan.Mode.FrameBytes(), "err", p.Err)
		}
	}
}

// runPort is a port of a run as clients see it.
func runPort(r switchcfg.PortResult) client.SwitchPort {
	q := switchPort(r.Port)
	q.Outcome = string(r.Outcome)
	if r.Known {
		q.Frame, q.Register = r.Mode().FrameBytes(), fmt.Sprintf("0x%04x", r.Now)
	}
	if r.Known || r.Tries > 0 {
		q.Before = reg.JumboOf(r.Before).FrameBytes()
	}
	if r.Err != nil {
		q.Error = r.Err.Error()
	}
	return q
}
