package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"oxpd/internal/daemon/client"
	"oxpd/internal/dma"
	"oxpd/internal/mmio"
	"oxpd/internal/port"
	"oxpd/octep"
	"oxpd/ring"
	"oxpd/rpc"
	"oxpd/rpc/msg"
	"oxpd/switchcfg"
)

// life is everything that belongs to one boot of the coprocessor. The bring-up makes
// it. A card that is lost takes it along, and the next one begins with the wait for the
// card: rings are programmed once in a boot (design.md, rule 6), and what this boot
// was told the next one does not know. Interfaces, owners, counters and the control
// socket are the daemon's and stay.
//
// Fields below visit are guarded by Daemon.mu.
type life struct {
	ctx   context.Context // of everything that uses the card
	end   context.CancelCauseFunc
	tasks sync.WaitGroup // everything that runs while the card is up
	rush  atomic.Bool    // all ports are being looked at, because one was found lost
	lost  chan error     // capacity 1: the card has gone, or something that cannot go on
	visit *gate          // control requests that use the card beside the tasks

	pulse    pulse
	busy     busyMeter
	dev      octep.Device // nil before it was opened
	card     *octep.Fence // the same, as far as this life reaches it
	ep       *octep.Endpoint
	rings    *ring.Rings
	taken    *adoption // the rings are the process before's; nil: they are this one's
	tx       *port.Transmitter
	agent    agent
	channel  *rpc.Channel
	platform msg.Platform
	clocks   uint64
	workers  int
	uplink   error            // of the last attempt to raise the switch uplink
	modes    *modes           // of the switch; nil before it was read
	others   switchcfg.Others // of the switch; whoever has its turn has them
	said     said             // of the switch, likewise
	flow     flow             // of the frames, by the card's counters
	regions  []*dma.Region    // of the rpc channel
	master   bool             // bus mastering was turned on
	armed    bool             // the card was told about rings
	unknown  int              // frames posted and not finished when the card was lost
	stuck    bool             // a request did not come back from the card: its memory stays
}

// newLife prepares one; Run's ctx only asks for the end, so it is not a parent.
func newLife() *life {
	l := &life{visit: newGate(), lost: make(chan error, 1)}
	l.ctx, l.end = context.WithCancelCause(context.Background())
	return l
}

// Times of a card that is away.
const (
	// goneTick is how often its config space is asked whether it is back. A reset of
	// the coprocessor takes 20 to 40 s until its kernel is up (endpoint.md 13).
	goneTick = 250 * time.Millisecond
	// backLooks is how many looks in a row must find it: a link that trains may come
	// and go.
	backLooks = 2
)

// errCardGone is the cause of the end of a life that a loss has ended.
var errCardGone = fmt.Errorf("the card was lost: %w", mmio.ErrGone)

// isLoss tells whether the end of a life is the loss of the card. One that has left
// config space makes everything fail, and not all of that is mmio.ErrGone.
func (d *Daemon) isLoss(err error) bool {
	d.mu.Lock()
	dev := d.dev
	d.mu.Unlock()
	return dev != nil && (errors.Is(err, mmio.ErrGone) || !octep.Alive(dev))
}

// renew ends a life whose card was lost, and begins the next one. The carriers go
// first. When it returns nothing of the old life runs, and nothing touches a BAR.
func (d *Daemon) renew(up <-chan error, why error) <-chan error {
	d.mu.Lock()
	old := d.life
	d.state = client.StateGone
	d.timesLost++
	d.mu.Unlock()
	old.end(errCardGone)
	if old.card != nil {
		old.card.Shut()
	}
	d.carrierOff()
	if up != nil {
		<-up
	}
	old.stuck = !d.quiet()
	d.carrierOff() // a look that had begun may have raised one again
	d.leaveCard(old)

	d.track.restart()
	d.mu.Lock()
	d.past = append(d.past, old)
	d.life = newLife()
	d.mu.Unlock()
	d.log.Error("card is lost and waited for; interfaces stay, without carrier", "dev", d.dev.Name(), "tx_unknown", old.unknown, "err", why)
	return d.begin()
}

// leaveCard takes what outlives a life out of it. The memory stays with it, as long as
// the card may reach it.
func (d *Daemon) leaveCard(l *life) {
	d.table.use(nil)
	d.lifs.Forget()
	for _, o := range d.allOwners() {
		o.cardLost()
	}
	d.mu.Lock()
	taps := make([]*port.Port, 0, len(d.taps))
	for p := range d.taps {
		taps = append(taps, p)
	}
	d.mu.Unlock()
	d.fan.sendBy(nil)
	for _, p := range taps {
		d.fan.leave(p)
		if err := p.Discard(); err != nil && !errors.Is(err, port.ErrRemoved) {
			d.log.Warn("frames stay in the queue of an interface", "port", p.Board().Name, "err", err)
		}
	}
	if l.rings != nil {
		l.unknown = l.rings.Abandon()
	}
	if l.tx != nil {
		if err := l.tx.Close(); err != nil {
			d.log.Warn("close transmitter", "err", err)
		}
	}
}

// awaitCard waits until a card that was lost answers config space again. It asks for
// the vendor id and nothing else.
func (d *Daemon) awaitCard(ctx context.Context) error {
	d.track.await(stageDevice, "the card to come back: its vendor id reads ffff")
	for seen := 0; seen < backLooks; {
		if err := d.clock.Sleep(ctx, goneTick); err != nil {
			return err
		}
		if e, ok := d.dev.(ender); ok && e.Ended() {
			d.reopen(ctx)
		}
		if seen++; !octep.Alive(d.dev) {
			seen = 0
		}
	}
	d.mu.Lock()
	if d.state == client.StateGone { // and not stopping
		d.state = client.StateBringUp
	}
	d.mu.Unlock()
	d.log.Info("card is back", "dev", d.dev.Name())
	return nil
}

// ender is a way to the card that may end for good: the process that the card is, or
// the kernel's node of it, has gone. One that comes back is found by opening it anew.
type ender interface{ Ended() bool }

// reopen tries to. The device of before stays with the lives that used it, which free
// their memory there.
func (d *Daemon) reopen(ctx context.Context) {
	dev, err := d.o.Open(ctx)
	if err != nil {
		d.track.refused(stageDevice, err)
		return
	}
	d.mu.Lock()
	d.dev, d.saved = dev, nil
	d.mu.Unlock()
	d.keep.keepCard(dev)
}

// restore gives a card that was reset its addresses again. There is nothing to restore
// before the first life has found it.
func (d *Daemon) restore() error {
	if d.saved == nil {
		return nil
	}
	changed, err := d.saved.Restore(d.dev)
	if changed {
		d.log.Info("config space of the card is as before the loss", "dev", d.dev.Name())
	}
	return err
}

// releasePast gives back the memory of the lives before, once the card is known to be
// fresh: its registers hold no address of them, and no coprocessor software that could
// have latched one runs. Bus mastering is off while memory goes all the same (design.md,
// rule 7): a reset clears it, and somebody may have turned it on since.
func (d *Daemon) releasePast() error {
	d.mu.Lock()
	past := d.past
	d.mu.Unlock()
	if len(past) == 0 {
		return nil
	}
	if err := octep.SetBusMaster(d.dev, false); err != nil {
		return fmt.Errorf("release the memory of before the loss: %w", err)
	}
	var errs []error
	var stay []*life
	for _, l := range past {
		l.armed = false
		if l.stuck = !l.visit.close(0); l.stuck { // who is still inside may touch it
			stay = append(stay, l)
			continue
		}
		errs = append(errs, l.release())
	}
	for _, dev := range devices(past) {
		if dev != d.dev && !slices.Contains(devices(stay), dev) {
			errs = append(errs, dev.Close())
		}
	}
	d.mu.Lock()
	d.past = stay
	d.mu.Unlock()
	return errors.Join(errs...)
}

// devices are those that lives have used, each once.
func devices(lives []*life) (all []octep.Device) {
	for _, l := range lives {
		if l.dev != nil && !slices.Contains(all, l.dev) {
			all = append(all, l.dev)
		}
	}
	return all
}

// release gives back the memory that the card cannot reach any more.
func (l *life) release() error {
	var errs []error
	if l.rings != nil {
		errs = append(errs, l.rings.Free())
	}
	for _, r := range l.regions {
		if err := l.dev.DMA().Free(r); err != nil {
			errs = append(errs, fmt.Errorf("free %s: %w", r.Name(), err))
		}
	}
	l.regions = nil
	return errors.Join(errs...)
}
