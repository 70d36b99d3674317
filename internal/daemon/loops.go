package daemon

import (
	"context"
	"errors"
	"time"

	"oxpd/internal/board"
	"oxpd/internal/daemon/config"
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

// trainTime is how long a port that was just raised is expected to have no link:
// it needs one to two seconds (rpc-lif.md 7.2).
const trainTime = 10 * time.Second

// pollLinks reads one link every tick (rpc-lif.md 7.2: not twelve at once). Every
// other turn belongs to a port that was raised lately and has no link yet, if there
// is one: somebody waits for it.
func (d *Daemon) pollLinks(ctx context.Context) error {
	next, raised := 0, 0
	for odd := false; ; odd = !odd {
		if err := d.period(ctx, func(c config.Config) config.Duration { return c.LinkPoll }); err != nil {
			return nil
		}
		o := d.owners[next]
		if r := d.training(raised); odd && r != nil {
			o, raised = r, r.port.Index+1
		} else {
			next = (next + 1) % len(d.owners)
		}
		if err := gone(d.look(ctx, o)); err != nil {
			return err
		}
	}
}

// period waits for a time of the configuration, in steps, so that another one is
// heeded soon.
func (d *Daemon) period(ctx context.Context, of func(c config.Config) config.Duration) error {
	for began := d.clock.Now(); ; {
		left := time.Duration(of(d.config())) - (d.clock.Now() - began)
		if left <= 0 {
			return ctx.Err()
		}
		if err := d.clock.Sleep(ctx, min(left, waitingTick)); err != nil {
			return err
		}
	}
}

// training finds a port, from index first on, that was raised lately and has no
// link yet. One that came up with the bring-up waits for its turn.
func (d *Daemon) training(first int) *owner {
	for i := range d.owners {
		o := d.owners[(first+i)%len(d.owners)]
		v := o.snapshot()
		if v.raisedAt != 0 && !v.lowered && !v.linkUp() && d.clock.Now()-v.raisedAt < trainTime {
			return o
		}
	}
	return nil
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
		case err != nil && reason(err.Error()) != refused:
			refused = reason(err.Error())
			d.log.Warn("rpc channel stays closed", "err", err)
		case opened:
			refused = ""
			d.log.Info("rpc channel is open again")
		}
	}
}

// reconcile keeps everything as it is wanted, for ever.
func (d *Daemon) reconcile(ctx context.Context) error {
	r := rounds{last: d.clock.Now()}
	for {
		if err := d.clock.Sleep(ctx, min(waitingTick, time.Duration(d.config().Reconcile))); err != nil {
			return nil
		}
		if err := gone(d.turn(ctx, &r)); err != nil {
			return err
		}
	}
}

// Looks at all ports after one was found lost (rpc-lif.md 5.6): quickly until one of
// them finds nothing missing, and then, should it go on, each port in its turn.
const (
	quickPause = 2 * time.Second
	quickTries = 45
)

// rounds is where the reconciler stands.
type rounds struct {
	next   int           // the port whose turn comes
	last   time.Duration // when the one before had its
	losses uint64        // when all ports were looked at last
	again  time.Duration // when that is looked into
	tries  int           // such looks in a row
}

// turn marks what is to be looked at now: one port every period, those whose pause
// after a failed try is over, and all of them again after one was found lost
// (foundLost), until a look at all finds no more.
func (d *Daemon) turn(ctx context.Context, r *rounds) (err error) {
	now := d.clock.Now()
	for _, o := range d.owners {
		if o.due(now) {
			o.notice(markProvision)
		}
		if at := d.lifs.State(o.port).RetryAt; at != 0 && now >= at {
			o.notice(markReconcile)
		}
	}
	uplink := false
	if d.rush.Load() && now >= r.again {
		uplink = d.lookAgain(now, r)
	}
	if now-r.last >= time.Duration(d.config().Reconcile) {
		r.last = now
		d.owners[r.next].notice(markReconcile)
		r.next = (r.next + 1) % len(d.owners)
		uplink = uplink || r.next == 0 && d.uplinkErr() != nil
	}
	if uplink {
		return d.raiseUplink(ctx)
	}
	return nil
}

// lookAgain ends a rush in which nothing more was found lost, and otherwise looks at
// all ports once more, which it tells.
func (d *Daemon) lookAgain(now time.Duration, r *rounds) bool {
	// The end comes before the count: whoever finds a loss that is not counted here
	// begins a rush again, and is not taken for part of this one.
	d.rush.Store(false)
	losses := d.losses()
	if losses == r.losses {
		r.again, r.tries = 0, 0
		return false
	}
	d.rush.Store(true)
	r.losses, r.again = losses, now+quickPause
	if r.tries++; r.tries > quickTries {
		// What goes on being lost is put right in its turn, until every port has had one
		// in which nothing was.
		r.again = now + (board.Ports+1)*time.Duration(d.config().Reconcile)
		return false
	}
	d.lookAtAll()
	return true
}

// foundLost is told by an owner that something of its port is missing in the card: a
// LIF, or the address at NetAgent. The fast path has started anew then, and nothing
// of before is there: all ports are looked at, at once (rpc-lif.md 5.6). Those that
// find the same add nothing to that.
func (d *Daemon) foundLost() {
	if d.rush.CompareAndSwap(false, true) {
		d.lookAtAll()
	}
}

func (d *Daemon) lookAtAll() {
	for _, o := range d.allOwners() {
		o.notice(markReconcile)
	}
}

// losses is how often something was found lost in the card, ever.
func (d *Daemon) losses() (n uint64) {
	for _, o := range d.owners {
		n += d.lifs.State(o.port).Lost + o.snapshot().forgot
	}
	return n
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
			what := markIface
			if l.Raised {
				what |= markRaised
			}
			o.notice(what)
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
