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
		if err := d.clock.Sleep(ctx, time.Duration(d.config().LinkPoll)); err != nil {
			return nil
		}
		if err := gone(d.look(ctx, d.owners[i])); err != nil {
			return err
		}
	}
}

// keepChannel opens a stalled rpc channel anew, for ever. It is a loop of its own:
// opening takes up to 3 s, and what does not need the channel goes on.
func (d *Daemon) keepChannel(ctx context.Context) error {
	refused := ""
	for {
		if err := d.clock.Sleep(ctx, waitingTick); err != nil {
			return nil
		}
		opened, err := d.table.heal(ctx)
		switch {
		case gone(err) != nil:
			return err
		case ctx.Err() != nil:
			return nil
		case err != nil && err.Error() != refused:
			refused = err.Error()
			d.log.Warn("rpc channel stays closed", "err", err)
		case opened:
			refused = ""
			d.log.Info("rpc channel is open again")
		}
	}
}

// reconcile keeps everything as it is wanted, for ever: one LIF is read back
// every period, and waiting ports are tried again when their pause is over.
func (d *Daemon) reconcile(ctx context.Context) error {
	next, due := 0, d.clock.Now()+time.Duration(d.config().Reconcile)
	for {
		if err := d.clock.Sleep(ctx, min(waitingTick, time.Duration(d.config().Reconcile))); err != nil {
			return nil
		}
		for _, o := range d.owners {
			if o.due(d.clock.Now()) {
				o.notice(markProvision)
			}
		}
		if d.clock.Now() < due {
			continue
		}
		due = d.clock.Now() + time.Duration(d.config().Reconcile)
		d.owners[next].notice(markReconcile)
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
	byIndex := func(index int) (*owner, *port.Port) {
		for _, o := range d.owners {
			if p, ok := o.snapshot().iface.(*port.Port); ok && p.Index() == index {
				return o, p
			}
		}
		return nil, nil
	}
	cfg := port.WatchConfig{NetNS: d.o.NetNS, Filter: func(index int) bool { o, _ := byIndex(index); return o != nil }}
	for {
		err := port.Watch(ctx, cfg, func(l port.Link) {
			o, p := byIndex(l.Index)
			if o == nil {
				return
			}
			p.Note(l)
			o.setKernel(p, l)
			o.notice(markIface)
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
