package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/internal/port"
	"oxpd/lif"
	"oxpd/rpc"
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
	SetPromisc(ctx context.Context, tag board.Tag, on bool) error
	SetAllMulti(ctx context.Context, tag board.Tag, on bool) error
	LinkUp(ctx context.Context, tag board.Tag) (bool, error)
	Hold(ctx context.Context) (release func(), err error) // nothing is asked of it until release
}

// lifs is the table of logical interfaces. Each method that changes an entry
// returns nil only after it was read back as wanted.
type lifs interface {
	Provision(ctx context.Context, p board.Port, mac [6]byte) error
	SetMTU(ctx context.Context, p board.Port, mtu int) error
	SetMAC(ctx context.Context, p board.Port, mac [6]byte) error
	SetMode(ctx context.Context, p board.Port, mode uint8) error
	Reconcile(ctx context.Context, p board.Port) (changed bool, err error)
	State(p board.Port) lif.State
}

// iface is the host's interface of a port.
type iface interface {
	Link() (port.Link, error)                  // as the kernel has it; port.ErrRemoved when it has none
	SetMTU(ctx context.Context, mtu int) error // of the interface, and the limit with it
	SetLimit(mtu int)                          // what frames are measured against, both ways
	SetMAC(mac [6]byte) error
	SetUp(ctx context.Context, up bool) error
	SetPromisc(ctx context.Context, on bool) error
	SetCarrier(up bool) error
}

// Pauses of a port that has been refused something.
const (
	retryFirst = 2 * time.Second // rpc-lif.md 8, step 6
	retryMax   = time.Minute
	queueSize  = 16 // requests waiting at one owner
	// changeLimit bounds, by the wall clock, a change that the end of the daemon does
	// not cut in two: its four commands take 8 s at most by themselves.
	changeLimit = 12 * time.Second
)

// What an owner may answer before a request has done anything.
var (
	errBusy     = errors.New("too many requests are waiting for this port")
	errNotUp    = errors.New("port is not up yet")
	errStopping = errors.New("the daemon is stopping")
)

// errUnderWay says that an asker went away from a request that has begun.
var errUnderWay = errors.New("it has begun and may still be done")

// mark is something for an owner to look at, when it comes to it. Marks that are
// set twice are one: what is looked at is the state of the card and the kernel. That
// does not show an interface that was set up and down again, and had been down before.
type mark uint8

const (
	markIface     mark = 1 << iota // the kernel says that the interface has changed, or gone
	markProvision                  // a waiting port's pause is over
	markReconcile                  // read the LIF back
	markRaised                     // the interface was up, whatever it is now
)

// request is one entry of an owner's queue. Somebody waits for its end.
type request struct {
	do    func(ctx context.Context) error
	reply chan error  // capacity 1
	taken atomic.Bool // by run, to do it, or by its asker, who withdraws it
}

// ownerConfig is what an owner is given.
type ownerConfig struct {
	port     board.Port
	agent    agent
	lifs     lifs
	clock    clock
	log      *slog.Logger
	settings portSettings           // of the configuration, as last read
	limit    func() lif.SwitchLimit // of the switch at the port, as known now
	// attach makes the interface, with its address and MTU and without carrier, and
	// puts it into the data path. detach takes it out again.
	attach func(ctx context.Context, p board.Port, mac [6]byte, mtu int) (iface, error)
	detach func(p board.Port, i iface)
	// rejoin puts an interface back into the data path that was there before the card
	// was lost. Error: port.ErrRemoved.
	rejoin func(i iface) error
	lost   func() // something of the port was found missing in the card; it must not wait
	// note writes down what a later process must know. nil: nothing is kept.
	note func(r portRecord)
}

// owner is the one owner of a port: of what NetAgent, the LIF and the interface
// have in common. Everything that changes them is a request in its queue or a
// mark, done one at a time by run.
type owner struct {
	ownerConfig
	reqs chan *request
	wake chan struct{} // capacity 1: there are marks

	// Of run's goroutine alone.
	want    wanted
	told    told
	own     [6]byte      // the card's own address, as first read
	ifUp    bool         // the interface was administratively up when last looked at
	wasUp   bool         // and was so at some time since
	losses  uint64       // lif.State.Lost when last looked at
	pending portSettings // what is to be done and has not succeeded yet
	pause   time.Duration
	// unsettled: frames are measured against more than want
	unsettled bool

	linkMu sync.Mutex // whoever sets the carrier
	mu     sync.Mutex
	ended  chan struct{} // closed once run has ended: what it has not taken it never will
	cause  error         // why it has
	late   []func()      // what was asked for while the card was away, or that found the queue full
	marks  mark
	view   view
}

// view is what others may see of an owner.
type view struct {
	up       bool
	awaiting string
	err      error   // of the last attempt, or of the last change that failed
	own      [6]byte // the card's own address
	haveMAC  bool    // own and want are known
	want     wanted
	told     told
	agentMAC [6]byte // as last read from NetAgent
	iface    iface   // nil until it exists
	link     string
	raisedAt time.Duration // when NetAgent last raised the port
	lowered  bool          // NetAgent was told to lower it
	retryAt  time.Duration
	drift    uint64 // LIF found different from what was wanted
	forgot   uint64 // NetAgent found to have forgotten what it was told
	putBack  uint64 // changes of the interface that were taken back
	admin    bool   // the interface is administratively up
	kernel   kernelView
	linkErr  error // of the last look at the link
	// mtuBack and macBack say which change was taken back, and why, until one succeeds
	mtuBack, macBack string
}

func (v view) linkUp() bool { return v.link == client.LinkUp }

func newOwner(c ownerConfig) *owner {
	o := &owner{
		ownerConfig: c, reqs: make(chan *request, queueSize), wake: make(chan struct{}, 1), ended: make(chan struct{}),
		want: wanted{up: true, mtu: board.DefaultMTU}, pending: c.settings, pause: retryFirst,
	}
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

// run does what is marked and asked for until ctx ends. A request that has begun
// is finished with ctx, not with its asker's context; those that have not begun
// by then never do, and their askers learn it from ended.
func (o *owner) run(ctx context.Context) {
	defer func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.cause = context.Cause(ctx)
		close(o.ended)
	}()
	for {
		var r *request
		select {
		case <-ctx.Done():
			return
		case <-o.wake:
		case r = <-o.reqs:
		}
		o.heed(ctx)
		if r != nil {
			o.serve(ctx, r)
		}
		o.settle(ctx)
	}
}

// heed does what is marked.
func (o *owner) heed(ctx context.Context) {
	o.mu.Lock()
	m, late := o.marks, o.late
	o.marks, o.late = 0, nil
	o.mu.Unlock()
	for _, do := range late {
		do()
	}
	o.wasUp = o.wasUp || m&markRaised != 0
	if m&markIface != 0 {
		if err := o.follow(ctx, false); err != nil {
			o.update(func(v *view) { v.err = err })
		}
	}
	if m&markProvision != 0 && o.due(o.clock.Now()) {
		_ = o.provision(ctx) // the view has its error
	}
	if m&markReconcile != 0 {
		_ = o.reconcile(ctx) // the same
	}
	o.publish()
}

// publish shows what others may see of run's own state.
func (o *owner) publish() {
	o.update(func(v *view) { v.want, v.told, v.own = o.want, o.told, o.own })
	if o.note != nil && o.snapshot().haveMAC {
		r := portRecord{Own: hwAddr(o.own), Up: o.want.up, Iface: upDown(o.ifUp)}
		if o.pending == (portSettings{}) {
			r.Settings = o.settings.String()
		}
		o.note(r)
	}
}

// serve does one request, unless its asker has gone or the daemon ends.
func (o *owner) serve(ctx context.Context, r *request) {
	if ctx.Err() == nil && r.taken.CompareAndSwap(false, true) {
		err := r.do(ctx)
		o.publish()
		r.reply <- err
	}
}

// ask puts a request into the queue and waits until it is done, or until ctx
// ends: a request that has not begun then never will, and of one that has the
// error is errUnderWay as well as the context's.
func (o *owner) ask(ctx context.Context, do func(ctx context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	r := &request{do: do, reply: make(chan error, 1)}
	o.mu.Lock()
	ended := o.ended
	o.mu.Unlock()
	select {
	case o.reqs <- r:
	default:
		return &hinted{fmt.Errorf("%s: %w", o.port, errBusy), "ask again in a moment; a card that answers late is in oxpd status"}
	}
	select {
	case err := <-r.reply:
		return err
	case <-ended:
		r.taken.CompareAndSwap(false, true) // nor may a run after this one do it
	case <-ctx.Done():
		if r.taken.CompareAndSwap(false, true) {
			return ctx.Err()
		}
	}
	select {
	case err := <-r.reply: // at the same moment
		return err
	default:
	}
	if ctx.Err() == nil {
		return o.whyEnded()
	}
	return &hinted{fmt.Errorf("%s: %w: %w", o.port, ctx.Err(), errUnderWay), "see later what stands: oxpd mtu " + o.port.Name}
}

// whyEnded is what somebody learns whose request comes too late for run.
func (o *owner) whyEnded() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if errors.Is(o.cause, errCardGone) {
		return fmt.Errorf("%s: %w", o.port, o.cause)
	}
	return &refusal{fmt.Errorf("%s: %w", o.port, errStopping), client.CodeNotReady}
}

// serves tells whether requests are taken.
func (o *owner) serves() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	select {
	case <-o.ended:
		return false
	default:
		return true
	}
}

// notice sets a mark. It never waits, and a mark is never lost.
func (o *owner) notice(m mark) {
	o.mu.Lock()
	o.marks |= m
	o.mu.Unlock()
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// through is the context of a change that begins now: it is finished, or put
// back, even when the daemon is told to stop in the middle of it.
func through(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), changeLimit)
}

// provision brings the port up: MAC from the card, LIF with read-back,
// interface. It may be called until it succeeds; each step is idempotent.
func (o *owner) provision(ctx context.Context) error {
	if o.snapshot().up {
		return nil
	}
	awaited, err := o.provisionSteps(ctx)
	if err != nil {
		o.lookForLoss(err)
		err = fmt.Errorf("%s: %w", o.port, err)
		pause := o.pause
		var paused *lif.PausedError
		switch {
		case errors.As(err, &paused):
			pause = paused.Left // nothing was sent: go with the LIF's own pause
		case errors.Is(err, rpc.ErrStalled), errors.Is(err, rpc.ErrNotConfigured):
			pause = retryFirst // nothing was sent, and that is not this port's fault
		default:
			o.pause = min(2*o.pause, retryMax)
		}
		o.update(func(v *view) { v.awaiting, v.err, v.retryAt = awaited, err, o.clock.Now()+pause })
		o.log.Warn("port is waiting", "port", o.port.Name, "lif", uint32(o.port.LIF()), "awaiting", awaited, "again", pause, "err", err)
		return err
	}
	o.pause = retryFirst
	o.update(func(v *view) { v.up, v.awaiting, v.err = true, "", nil })
	o.log.Info("port is up", "port", o.port.Name, "label", o.port.Label, "lif", uint32(o.port.LIF()), "mtu", o.want.mtu)
	if err := errors.Join(o.applyPending(ctx), o.follow(ctx, true)); err != nil {
		o.update(func(v *view) { v.err = err })
	}
	o.publish()
	return nil
}

// provisionSteps returns what was awaited when it failed.
func (o *owner) provisionSteps(ctx context.Context) (awaited string, err error) {
	if awaited, err := o.raise(ctx); err != nil {
		return awaited, err
	}
	if err := o.lifs.Provision(ctx, o.port, o.want.mac); err != nil {
		return "the LIF to read back as wanted", err
	}
	s := o.lifs.State(o.port)
	o.want.mtu, o.losses = int(s.Want.MTU), s.Lost // of a live entry, when there was one
	if err := o.interfaced(ctx); err != nil {
		return "the interface to be made", err
	}
	return "", nil
}

// raise has NetAgent raise the port and name its address. A port that was lowered
// before its card was lost stays so: it hears all of that when it is raised.
func (o *owner) raise(ctx context.Context) (awaited string, err error) {
	if o.snapshot().haveMAC && !o.want.up {
		return "", nil
	}
	tag := o.port.Tag
	if err := o.agent.SetState(ctx, tag, true); err != nil {
		return "NetAgent to raise the port", err
	}
	mac, err := o.agent.MAC(ctx, tag)
	if err != nil {
		return "the card to name the port's MAC address", err
	}
	again := o.snapshot().haveMAC
	if !again {
		// Raised for the first time in the coprocessor's life, it has no filters.
		o.own, o.want.mac, o.told.sure = mac, mac, true
	}
	o.told.up = true
	o.update(func(v *view) {
		v.own, v.want.mac, v.agentMAC, v.haveMAC, v.lowered = o.own, o.want.mac, mac, true, false
		if again { // the bring-up reads all links at its end
			v.raisedAt = o.clock.Now()
		}
	})
	if o.port.BehindSwitch() || mac != o.want.mac {
		if err := o.agent.SetMAC(ctx, tag, o.want.mac); err != nil {
			return "NetAgent to open the switch's address filter", err
		}
	}
	return "", nil
}

// interfaced puts the port's interface into the data path: the one that was there
// before the card was lost, as it is, or a new one.
func (o *owner) interfaced(ctx context.Context) error {
	if i := o.snapshot().iface; i != nil {
		err := o.rejoin(i)
		if !errors.Is(err, port.ErrRemoved) {
			return err
		}
		o.ifaceGone() // meanwhile
	}
	i, err := o.attach(ctx, o.port, o.want.mac, o.want.mtu)
	if err != nil {
		return err
	}
	o.ifUp, o.wasUp = false, false // a new interface is down, and that is nobody's request
	o.update(func(v *view) { v.iface = i })
	return nil
}

// cardLost notes that the card has gone with all that it was told; run has ended. The
// interface stays as it is, without carrier. What is wanted stands.
func (o *owner) cardLost() {
	o.told, o.pause = told{}, retryFirst
	o.update(func(v *view) {
		v.up, v.awaiting, v.err, v.retryAt = false, "the card to come back", nil, 0
		v.told, v.agentMAC, v.linkErr, v.raisedAt, v.lowered = told{}, [6]byte{}, nil, 0, false
	})
}

// cardBack makes a port whose card was lost ready to be provisioned anew: run may begin
// again, over another agent.
func (o *owner) cardBack(a agent) {
	o.agent, o.losses = a, o.lifs.State(o.port).Lost
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, do := range o.late {
		do()
	}
	o.late = nil
	o.ended, o.cause, o.marks = make(chan struct{}), nil, 0
	o.view.awaiting = "bring-up"
}

// ifaceGone takes an interface that somebody removed out of the data path; the
// port waits, and is made again.
func (o *owner) ifaceGone() {
	o.detach(o.port, o.snapshot().iface)
	o.forNewInterface()
	o.update(func(v *view) {
		v.up, v.iface, v.link, v.admin, v.err = false, nil, client.LinkUnknown, false, nil
		v.awaiting, v.retryAt = "the interface to be made again: somebody removed it, or moved it to another network namespace", 0
	})
	o.log.Warn("interface was removed, or moved to another network namespace; it is made again", "port", o.port.Name)
}

// due tells whether a waiting port is to be tried again.
func (o *owner) due(now time.Duration) bool {
	v := o.snapshot()
	return !v.up && now >= v.retryAt
}

// setLink notes what the card says of the link and gives the kernel its carrier.
// A port that was lowered has none, whatever was read on the way there.
func (o *owner) setLink(up bool) error {
	link, changed, err := o.carry(up)
	if changed {
		o.log.Info("link", "port", o.port.Name, "label", o.port.Label, "link", link)
	}
	return err
}

// carry is setLink without a word; it tells what the link is now, if that is another
// one than before.
func (o *owner) carry(up bool) (link string, changed bool, err error) {
	o.linkMu.Lock()
	defer o.linkMu.Unlock()
	v := o.snapshot()
	if v.iface == nil {
		return "", false, nil
	}
	link = client.LinkDown
	if up && !v.lowered {
		link = client.LinkUp
	}
	if v.link == link {
		return link, false, nil
	}
	if err := v.iface.SetCarrier(link == client.LinkUp); err != nil {
		return link, false, fmt.Errorf("set carrier of %s: %w", o.port, err)
	}
	o.update(func(now *view) {
		if now.iface == v.iface { // and not one that was made in the meantime, without carrier
			now.link = link
		}
	})
	return link, true, nil
}

// linkRead notes how the last look at the link went. One that failed leaves
// link and carrier as they were.
func (o *owner) linkRead(err error) {
	o.update(func(v *view) { v.linkErr = err })
}
