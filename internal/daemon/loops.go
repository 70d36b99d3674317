package daemon

import (
	"context"
	"errors"
	"time"

	"oxpd/internal/mmio"
	"oxpd/internal/port"
)

// waitingTick is how often waiting ports are looked at for one whose pause is over.
const waitingTick = 250 * time.Millisecond

// gone keeps only the error that ends everything: the others have been logged
// and are tried again.
func gone(err error) error {
	if errors.Is(err, mmio.ErrGone) {
		return err
	}
	return nil
}

// look reads one link and gives the interface its carrier.
func (d *Daemon) look(ctx context.Context, o *owner) error {
	if !o.snapshot().up {
		return nil
	}
	up, err := d.agent.LinkUp(ctx, o.port.Tag)
	if err == nil {
		err = o.setLink(up)
	}
	o.linkRead(err)
	return err
}

// pollLinks reads one link every tick (rpc-lif.md 7.2: not twelve at once).
func (d *Daemon) pollLinks(ctx context.Context) error {
	for i := 0; ; i = (i + 1) % len(d.owners) {
		if err := d.clock.Sleep(ctx, time.Duration(d.cfg.LinkPoll)); err != nil {
			return nil
		}
		if err := gone(d.look(ctx, d.owners[i])); err != nil {
			return err
		}
	}
}

// reconcile keeps everything as it is wanted, for ever: one LIF is read back
// every period, waiting ports are tried again when their pause is over, and a
// stalled rpc channel is opened anew.
func (d *Daemon) reconcile(ctx context.Context) error {
	next, due := 0, d.clock.Now()+time.Duration(d.cfg.Reconcile)
	for {
		if err := d.clock.Sleep(ctx, min(waitingTick, time.Duration(d.cfg.Reconcile))); err != nil {
			return nil
		}
		if err := d.table.heal(ctx); err != nil {
			d.log.Warn("rpc channel is opened again", "err", err)
			if gone(err) != nil {
				return err
			}
			continue
		}
		for _, o := range d.owners {
			if o.due(d.clock.Now()) {
				o.nudge(ctx, reqProvision)
			}
		}
		if d.clock.Now() < due {
			continue
		}
		due = d.clock.Now() + time.Duration(d.cfg.Reconcile)
		d.owners[next].nudge(ctx, reqReconcile)
		if next = (next + 1) % len(d.owners); next == 0 && d.uplinkErr() != nil {
			if err := gone(d.raiseUplink(ctx)); err != nil {
				return err
			}
		}
	}
}

func (d *Daemon) uplinkErr() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.uplink
}

// watchLinks follows the interfaces in the kernel. Its state is read when it is
// reported, so old news does no harm.
func (d *Daemon) watchLinks(ctx context.Context) error {
	byIndex := func(index int) *owner {
		for _, o := range d.owners {
			if p, ok := o.snapshot().iface.(*port.Port); ok && p.Index() == index {
				return o
			}
		}
		return nil
	}
	cfg := port.WatchConfig{NetNS: d.o.NetNS, Filter: func(index int) bool { return byIndex(index) != nil }}
	for {
		err := port.Watch(ctx, cfg, func(l port.Link) {
			o := byIndex(l.Index)
			switch {
			case o == nil:
			case l.Gone:
				o.nudge(ctx, reqGone)
			default:
				o.setKernel(o.snapshot().iface, l)
				o.nudge(ctx, reqIface)
			}
		})
		if ctx.Err() != nil {
			return nil
		}
		d.log.Warn("link watcher starts again", "err", err)
		if d.clock.Sleep(ctx, retryPause) != nil {
			return nil
		}
	}
}
