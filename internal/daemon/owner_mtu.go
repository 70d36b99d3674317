package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
)

// drainTime is how long frames that were let in under a larger MTU may still be
// on their way between a ring and the kernel: two sweeps of a worker.
const drainTime = 100 * time.Millisecond

// setMTU changes LIF and interface, in this order, or neither. What is pending
// stays so until a change succeeds. force sets also what the switch is known to drop.
func (o *owner) setMTU(ctx context.Context, mtu int, force bool) error {
	if err := board.CheckMTU(mtu); err != nil {
		return err
	}
	v, err := o.serving()
	if err != nil {
		return err
	}
	if err := o.allowed(mtu); err != nil && !force {
		return fmt.Errorf("set mtu: %w", err)
	}
	ctx, cancel := through(ctx)
	defer cancel()
	old := o.want.mtu
	if err := o.setLIF(ctx, v.iface, mtu); err != nil {
		v.iface.SetLimit(old)
		return fmt.Errorf("set mtu %d: %w", mtu, err)
	}
	if err := v.iface.SetMTU(ctx, mtu); err != nil {
		err = fmt.Errorf("set mtu of %s to %d, %d stands: the LIF took it and the interface did not: %w", o.port, mtu, old, err)
		if back := o.lifs.SetMTU(ctx, o.port, old); back != nil {
			if o.pending.mtu == 0 {
				o.pending.mtu = old
			}
			err = errors.Join(err, fmt.Errorf("put the LIF of %s back to %d, which is tried again: %w", o.port, old, back))
		}
		return &refusal{err, client.CodeRefused}
	}
	o.want.mtu, o.pending.mtu = mtu, 0
	o.update(func(v *view) { v.endNotice(&v.mtuBack) })
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
	if mtu == o.want.mtu {
		return nil
	}
	return o.limit().Check(o.port, mtu)
}

// warnSwitch logs what the MTU in force risks at the switch.
func (o *owner) warnSwitch() {
	if w := o.limit().Warning(o.port, o.want.mtu); w != "" {
		o.log.Warn("frames of this mtu may not pass the switch", "port", o.port.Name, "mtu", o.want.mtu, "why", w)
	}
}

// setLIF changes the LIF. The limit of frames is raised before it, and lowered
// well after it (settle), so that no frame that the LIF lets through is too long
// here.
func (o *owner) setLIF(ctx context.Context, i iface, mtu int) error {
	o.unsettled = true
	i.SetLimit(max(mtu, o.want.mtu))
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
		v.iface.SetLimit(o.want.mtu)
		o.unsettled = false
	}
}

// followMTU makes the LIF's MTU that of the interface, or puts the interface back.
// oxpd's own changes are recognised by their value, whenever the news of them
// arrives.
func (o *owner) followMTU(ctx context.Context, i iface, now int) error {
	old := o.want.mtu
	if now == old {
		return nil
	}
	err := board.CheckMTU(now)
	if err == nil {
		err = o.allowed(now)
	}
	if err == nil {
		err = o.setLIF(ctx, i, now)
	}
	if err == nil {
		o.want.mtu, o.pending.mtu = now, 0 // settle brings the limit down, if it is lower
		o.update(func(v *view) { v.endNotice(&v.mtuBack) })
		o.log.Info("mtu changed", "port", o.port.Name, "lif", uint32(o.port.LIF()), "old", old, "mtu", now, "by", "netlink")
		o.warnSwitch()
		return nil
	}
	o.log.Warn("mtu of the interface is put back", "port", o.port.Name, "lif", uint32(o.port.LIF()), "asked", now, "mtu", old, "err", err)
	err = fmt.Errorf("mtu %d, set at the interface of %s, was put back to %d: %w", now, o.port, old, err)
	o.update(func(v *view) { v.putBack, v.mtuBack = v.putBack+1, err.Error() })
	if back := i.SetMTU(ctx, old); back != nil {
		return errors.Join(err, fmt.Errorf("put mtu of %s back to %d: %w", o.port, old, back))
	}
	return err
}
