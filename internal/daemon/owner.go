package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/lif"
)

// clock is the time that everything here is measured in.
type clock interface {
	Now() time.Duration
	Sleep(ctx context.Context, d time.Duration) error
}

// agent is NetAgent as a port's owner and the link poller need it.
type agent interface {
	SetState(ctx context.Context, tag board.Tag, up bool) error
	MAC(ctx context.Context, tag board.Tag) ([6]byte, error)
	SetMAC(ctx context.Context, tag board.Tag, mac [6]byte) error
	LinkUp(ctx context.Context, tag board.Tag) (bool, error)
}

// lifs is the table of logical interfaces. Each method that changes an entry
// returns nil only after it was read back as wanted.
type lifs interface {
	Provision(ctx context.Context, p board.Port, mac [6]byte) error
	SetMTU(ctx context.Context, p board.Port, mtu int) error
	Reconcile(ctx context.Context, p board.Port) (changed bool, err error)
	State(p board.Port) lif.State
}

// iface is the host's interface of a port.
type iface interface {
	SetMTU(ctx context.Context, mtu int) error // of the interface, and the limit with it
	MTU() (int, error)                         // as the kernel has it
	SetLimit(mtu int)                          // what frames are measured against, both ways
	SetCarrier(up bool) error
}

// Pauses of a port that has been refused something.
const (
	retryFirst = 2 * time.Second // rpc-lif.md 8, step 6
	retryMax   = time.Minute
	// drainTime is how long frames that were let in under a larger MTU may still be
	// on their way between a ring and the kernel: two sweeps of a worker.
	drainTime = 100 * time.Millisecond
	queueSize = 16 // requests waiting at one owner
)

// errBusy says that an owner's queue is full.
var errBusy = errors.New("too many requests are waiting for this port")

// errNotUp says that a port has no interface yet.
var errNotUp = errors.New("port is not up yet")

type requestKind uint8

const (
	reqProvision requestKind = iota // bring the port up, or try again
	reqMTU                          // somebody asks for an MTU
	reqIface                        // the kernel says that the interface has changed
	reqGone                         // the kernel says that there is no such interface any more
	reqReconcile                    // read the LIF back
)

// request is one entry of an owner's queue.
type request struct {
	ctx   context.Context // the asker's: what nobody waits for any more is not begun
	kind  requestKind
	mtu   int
	reply chan<- error // capacity 1, or nil
}

// ownerConfig is what an owner is given.
type ownerConfig struct {
	port  board.Port
	agent agent
	lifs  lifs
	clock clock
	log   *slog.Logger
	mtu   int // of the configuration; 0: as the LIF has it
	// attach makes the interface, with its address and MTU and without carrier, and
	// puts it into the data path. detach takes it out again.
	attach func(ctx context.Context, p board.Port, mac [6]byte, mtu int) (iface, error)
	detach func(p board.Port, i iface)
}

// owner is the one owner of a port: of its LIF, its interface, and the MTU that
// both have. Everything that changes them is a request in its queue, done one at
// a time by run.
type owner struct {
	ownerConfig
	reqs chan request

	// Of run's goroutine alone.
	want    int // MTU in force on LIF and interface
	pending int // MTU from the configuration that is not in force yet; 0 none
	pause   time.Duration
	// unsettled: frames are measured against more than want
	unsettled bool

	mu   sync.Mutex
	view view
}

// view is what others may see of an owner.
type view struct {
	up       bool
	awaiting string
	err      error // of the last attempt
	mac      [6]byte
	haveMAC  bool
	iface    iface // nil until it exists
	link     string
	retryAt  time.Duration
	drift    uint64 // LIF found different from what was wanted
	putBack  uint64 // MTU changes of the interface that were taken back
	admin    bool   // the interface is administratively up
	linkErr  error  // of the last look at the link
	kernel   kernelView
}

func (v view) linkUp() bool { return v.link == client.LinkUp }

func newOwner(c ownerConfig) *owner {
	o := &owner{ownerConfig: c, reqs: make(chan request, queueSize), want: board.DefaultMTU, pause: retryFirst}
	o.pending = c.mtu
	o.view = view{awaiting: "bring-up", link: client.LinkUnknown}
	return o
}

// snapshot copies the view.
func (o *owner) snapshot() view {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.view
}

func (o *owner) update(fn func(v *view)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	fn(&o.view)
}

// run does the requests until ctx ends. A request that has begun is finished
// with ctx, not with its asker's context.
func (o *owner) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-o.reqs:
			err := r.ctx.Err()
			if err == nil {
				err = o.do(ctx, r)
			}
			if r.reply != nil {
				r.reply <- err
			}
			o.settle(ctx)
		}
	}
}

func (o *owner) do(ctx context.Context, r request) error {
	switch r.kind {
	case reqProvision:
		return o.provision(ctx)
	case reqMTU:
		return o.setMTU(ctx, r.mtu)
	case reqIface:
		return o.ifaceChanged(ctx)
	case reqGone:
		return o.ifaceGone()
	default:
		return o.reconcile(ctx)
	}
}

// ask puts a request into the queue and waits until it is done, or until ctx
// ends: then a request that has not begun never will.
func (o *owner) ask(ctx context.Context, kind requestKind, mtu int) error {
	reply := make(chan error, 1)
	select {
	case o.reqs <- request{ctx: ctx, kind: kind, mtu: mtu, reply: reply}:
	case <-ctx.Done():
		return ctx.Err()
	default:
		return &hinted{fmt.Errorf("%s: %w", o.port, errBusy), "ask again in a moment; a card that answers late is in oxpd status"}
	}
	select {
	case err := <-reply:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// nudge puts a request into the queue that nobody waits for. A full queue is
// left alone: the next tick or event comes.
func (o *owner) nudge(ctx context.Context, kind requestKind) {
	select {
	case o.reqs <- request{ctx: ctx, kind: kind}:
	default:
	}
}

// provision brings the port up: MAC from the card, LIF with read-back,
// interface. It may be called until it succeeds; each step is idempotent.
func (o *owner) provision(ctx context.Context) error {
	if o.snapshot().up {
		return nil
	}
	awaited, err := o.provisionSteps(ctx)
	if err != nil {
		err = fmt.Errorf("%s: %w", o.port, err)
		pause := o.pause
		var paused *lif.PausedError
		if errors.As(err, &paused) {
			pause = paused.Left // nothing was sent: go with the LIF's own pause
		} else {
			o.pause = min(2*o.pause, retryMax)
		}
		o.update(func(v *view) { v.awaiting, v.err, v.retryAt = awaited, err, o.clock.Now()+pause })
		o.log.Warn("port is waiting", "port", o.port.Name, "lif", uint32(o.port.LIF()), "awaiting", awaited, "again", pause, "err", err)
		return err
	}
	o.pause = retryFirst
	o.update(func(v *view) { v.up, v.awaiting, v.err = true, "", nil })
	o.log.Info("port is up", "port", o.port.Name, "label", o.port.Label, "lif", uint32(o.port.LIF()), "mtu", o.want)
	o.applyPending(ctx)
	return nil
}

// provisionSteps returns what was awaited when it failed.
func (o *owner) provisionSteps(ctx context.Context) (awaited string, err error) {
	tag := o.port.Tag
	if err := o.agent.SetState(ctx, tag, true); err != nil {
		return "NetAgent to raise the port", err
	}
	mac, err := o.agent.MAC(ctx, tag)
	if err != nil {
		return "the card to name the port's MAC address", err
	}
	o.update(func(v *view) { v.mac, v.haveMAC = mac, true })
	if o.port.BehindSwitch() {
		if err := o.agent.SetMAC(ctx, tag, mac); err != nil {
			return "NetAgent to open the switch's address filter", err
		}
	}
	if err := o.lifs.Provision(ctx, o.port, mac); err != nil {
		return "the LIF to read back as wanted", err
	}
	o.want = int(o.lifs.State(o.port).Want.MTU) // of a live entry, when there was one
	i, err := o.attach(ctx, o.port, mac, o.want)
	if err != nil {
		return "the interface to be made", err
	}
	o.update(func(v *view) { v.iface = i })
	return "", nil
}

// ifaceGone takes an interface that somebody removed out of the data path; the
// port waits, and is made again.
func (o *owner) ifaceGone() error {
	v := o.snapshot()
	if v.iface == nil {
		return nil
	}
	o.detach(o.port, v.iface)
	o.update(func(v *view) {
		v.up, v.iface, v.link = false, nil, client.LinkUnknown
		v.awaiting, v.retryAt = "the interface to be made again: somebody removed it, or moved it to another network namespace", 0
	})
	o.log.Warn("interface was removed, or moved to another network namespace; it is made again", "port", o.port.Name)
	return nil
}

// applyPending sets the MTU that the configuration, or a change that could not
// be taken back, left to be done.
func (o *owner) applyPending(ctx context.Context) {
	mtu := o.pending
	if mtu == 0 {
		return
	}
	err := o.setMTU(ctx, mtu)
	if err != nil {
		o.pending = mtu
		o.log.Warn("mtu is tried again", "port", o.port.Name, "mtu", mtu, "err", err)
	}
	o.update(func(v *view) { v.err = err })
}

// setMTU changes LIF and interface, in this order, or neither.
func (o *owner) setMTU(ctx context.Context, mtu int) error {
	if err := board.CheckMTU(mtu); err != nil {
		return err
	}
	v := o.snapshot()
	if !v.up {
		return &refusal{fmt.Errorf("%s: %w: it waits for %s", o.port, errNotUp, v.awaiting), client.CodeNotReady}
	}
	o.pending = 0
	old := o.want
	if err := o.setLIF(ctx, v.iface, mtu); err != nil {
		v.iface.SetLimit(old)
		return fmt.Errorf("set mtu %d: %w", mtu, err)
	}
	if err := v.iface.SetMTU(ctx, mtu); err != nil {
		err = fmt.Errorf("set mtu of %s to %d, %d stands: the LIF took it and the interface did not: %w", o.port, mtu, old, err)
		if back := o.lifs.SetMTU(ctx, o.port, old); back != nil {
			o.pending = old
			err = errors.Join(err, fmt.Errorf("put the LIF of %s back to %d, which is tried again: %w", o.port, old, back))
		}
		return &refusal{err, client.CodeRefused}
	}
	o.want = mtu
	if mtu == old {
		o.log.Debug("mtu is what it was", "port", o.port.Name, "lif", uint32(o.port.LIF()), "mtu", mtu)
		return nil
	}
	o.log.Info("mtu changed", "port", o.port.Name, "lif", uint32(o.port.LIF()), "old", old, "mtu", mtu)
	return nil
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
// changes are recognised by their value, whenever the news of them arrives.
func (o *owner) ifaceChanged(ctx context.Context) error {
	v := o.snapshot()
	if !v.up {
		return nil
	}
	now, err := v.iface.MTU()
	if err != nil {
		return fmt.Errorf("read mtu of %s: %w", o.port, err)
	}
	if now == o.want {
		return nil
	}
	old := o.want
	if err = board.CheckMTU(now); err == nil {
		err = o.setLIF(ctx, v.iface, now)
	}
	if err == nil {
		o.want, o.pending = now, 0 // settle brings the limit down, if it is lower
		o.log.Info("mtu changed", "port", o.port.Name, "lif", uint32(o.port.LIF()), "old", old, "mtu", now, "by", "netlink")
		return nil
	}
	o.log.Warn("mtu of the interface is put back", "port", o.port.Name, "lif", uint32(o.port.LIF()), "asked", now, "mtu", old, "err", err)
	o.update(func(v *view) { v.putBack++ })
	if back := v.iface.SetMTU(ctx, old); back != nil {
		return errors.Join(err, fmt.Errorf("put mtu of %s back to %d: %w", o.port, old, back))
	}
	return err
}

// reconcile reads the LIF back and repairs it, and the interface's MTU after a
// missed event.
func (o *owner) reconcile(ctx context.Context) error {
	v := o.snapshot()
	if !v.up {
		return nil
	}
	changed, err := o.lifs.Reconcile(ctx, o.port)
	if errors.Is(err, lif.ErrPaused) {
		return nil // nothing was sent; what went wrong before is still shown
	}
	if changed {
		o.update(func(v *view) { v.drift++ })
		o.log.Warn("lif repaired", "port", o.port.Name, "lif", uint32(o.port.LIF()), "err", err)
	}
	o.update(func(v *view) { v.err = err })
	if err != nil {
		return err
	}
	o.applyPending(ctx)
	return o.ifaceChanged(ctx)
}

// due tells whether a waiting port is to be tried again.
func (o *owner) due(now time.Duration) bool {
	v := o.snapshot()
	return !v.up && now >= v.retryAt
}

// setLink notes what the card says of the link and gives the kernel its carrier.
func (o *owner) setLink(up bool) error {
	v := o.snapshot()
	if v.iface == nil {
		return nil
	}
	link := client.LinkDown
	if up {
		link = client.LinkUp
	}
	if v.link == link {
		return nil
	}
	if err := v.iface.SetCarrier(up); err != nil {
		return fmt.Errorf("set carrier of %s: %w", o.port, err)
	}
	o.update(func(v *view) { v.link = link })
	o.log.Info("link", "port", o.port.Name, "label", o.port.Label, "link", link)
	return nil
}

// linkRead notes how the last look at the link went. One that failed leaves
// link and carrier as they were.
func (o *owner) linkRead(err error) {
	o.update(func(v *view) { v.linkErr = err })
}
