package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/internal/port"
)

// drainTime is how long frames that were let in under a larger MTU may still be
// on their way between a ring and the kernel: two sweeps of a worker.
const drainTime = 100 * time.Millisecond

// applyPending sets the MTU that the configuration, or a change that could not
// be taken back, left to be done.
func (o *owner) applyPending(ctx context.Context) error {
	mtu := o.pending
	if mtu == 0 || ctx.Err() != nil {
		return nil
	}
	err := o.setMTU(ctx, mtu, false)
	if err != nil {
		o.log.Warn("mtu is tried again", "port", o.port.Name, "mtu", mtu, "err", err)
	}
	return err
}

// setMTU changes LIF and interface, in this order, or neither. What is pending
// stays so until a change succeeds. force sets also what the switch is known to drop.
func (o *owner) setMTU(ctx context.Context, mtu int, force bool) error {
	if err := board.CheckMTU(mtu); err != nil {
		return err
	}
	v := o.snapshot()
	if !v.up {
		return &refusal{fmt.Errorf("%s: %w: it waits for %s", o.port, errNotUp, v.awaiting), client.CodeNotReady}
	}
	if err := o.allowed(mtu); err != nil && !force {
		return fmt.Errorf("set mtu: %w", err)
	}
	ctx, cancel := through(ctx)
	defer cancel()
	old := o.want
	if err := o.setLIF(ctx, v.iface, mtu); err != nil {
		v.iface.SetLimit(old)
		return fmt.Errorf("set mtu %d: %w", mtu, err)
	}
	if err := v.iface.SetMTU(ctx, mtu); err != nil {
		err = fmt.Errorf("set mtu of %s to %d, %d stands: the LIF took it and the interface did not: %w", o.port, mtu, old, err)
		if back := o.lifs.SetMTU(ctx, o.port, old); back != nil {
			if o.pending == 0 {
				o.pending = old
			}
			err = errors.Join(err, fmt.Errorf("put the LIF of %s back to %d, which is tried again: %w", o.port, old, back))
		}
		return &refusal{err, client.CodeRefused}
	}
	o.want, o.pending = mtu, 0
	if mtu == old {
		o.log.Debug("mtu is what it was", "port", o.port.Name, "lif", uint32(o.port.LIF()), "mtu", mtu)
		return nil
	}
	o.log.Info("mtu changed", "port", o.port.Name, "lif", uint32(o.port.LIF()), "old", old, "mtu", mtu)
	o.warnSwitch()
	return nil
}

// allowed refuses a change to an MTU that the switch is known not to pass. What
// stands is no change: it was forced, or the limit came down later.
func (o *owner) allowed(mtu int) error {
	if mtu == o.want {
		return nil
	}
	return o.limit().Check(o.port, mtu)
}

// warnSwitch logs what the MTU in force risks at the switch.
func (o *owner) warnSwitch() {
	if w := o.limit().Warning(o.port, o.want); w != "" {
		o.log.Warn("mtu and the switch", "port", o.port.Name, "mtu", o.want, "why", w)
	}
}

// setLIF changes the LIF. The limit of frames is raised before it, and lowered
// well after it (settle), so that no frame that the LIF lets through is too long
// here.
func (o *owner) setLIF(ctx context.Context, i iface, mtu int) error {
	o.unsettled = true
	i.SetLimit(max(mtu, o.want))
	return o.lifs.SetMTU(ctx, o.port, mtu)
}

// settle lowers the limit of frames to the MTU once none of an earlier, larger
// one can be on its way. The asker has been answered by then.
func (o *owner) settle(ctx context.Context) {
	v := o.snapshot()
	if v.iface == nil || !o.unsettled {
		return
	}
	if o.clock.Sleep(ctx, drainTime) == nil {
		v.iface.SetLimit(o.want)
		o.unsettled = false
	}
}

// ifaceChanged looks at the interface after somebody has changed it. oxpd's own
// changes are recognised by their value, whenever the news of them arrives, and a
// removed interface by the kernel's answer.
func (o *owner) ifaceChanged(ctx context.Context) error {
	v := o.snapshot()
	if !v.up || ctx.Err() != nil {
		return nil
	}
	ctx, cancel := through(ctx)
	defer cancel()
	now, err := v.iface.MTU()
	if errors.Is(err, port.ErrRemoved) {
		o.ifaceGone()
		return nil
	}
	if err != nil {
		return fmt.Errorf("read mtu of %s: %w", o.port, err)
	}
	if now == o.want {
		return nil
	}
	old := o.want
	if err = board.CheckMTU(now); err == nil {
		err = o.allowed(now)
	}
	if err == nil {
		err = o.setLIF(ctx, v.iface, now)
	}
	if err == nil {
		o.want, o.pending = now, 0 // settle brings the limit down, if it is lower
		o.log.Info("mtu changed", "port", o.port.Name, "lif", uint32(o.port.LIF()), "old", old, "mtu", now, "by", "netlink")
		o.warnSwitch()
		return nil
	}
	o.log.Warn("mtu of the interface is put back", "port", o.port.Name, "lif", uint32(o.port.LIF()), "asked", now, "mtu", old, "err", err)
	o.update(func(v *view) { v.putBack++ })
	err = fmt.Errorf("mtu %d, set at the interface of %s, was put back to %d: %w", now, o.port, old, err)
	if back := v.iface.SetMTU(ctx, old); back != nil {
		return errors.Join(err, fmt.Errorf("put mtu of %s back to %d: %w", o.port, old, back))
	}
	return err
}
