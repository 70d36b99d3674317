package worlds

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"oxpd/hwsim"
	"oxpd/internal/board"
	"oxpd/internal/dma"
	"oxpd/internal/simdev"
	"oxpd/lif"
	"oxpd/octep"
	"oxpd/octep/csr"
	"oxpd/ring"
	"oxpd/ring/wire"
	"oxpd/rpc"
	"oxpd/rpc/msg"
)

// world is a plan that runs: the simulated card in stepped time, the driver on it,
// and one goroutine that is everybody.
type world struct {
	plan
	books
	rnd drawer

	card *hwsim.Card
	dev  octep.Device
	driver
	mem     *memory
	workers []*worker
	poster  poster
	gate    filters
	inspect inspection

	tasks   tasks
	seq     int
	pending int      // of them that the world does not end without
	control bool     // an operation of the control plane is under way
	held    []func() // and these wait for its end
	steps   int

	joined [board.Ports]int // interfaces that are there: 0, or how often they are gone
}

// cycle is the least step of the card's time, rounded up.
const cycle = 2 * time.Nanosecond

// mostSteps ends a world that does not come to its end.
const mostSteps = 2_000_000

// worker is one server of the host's rings.
type worker struct {
	n    int
	w    *ring.Worker
	irq  chan struct{}
	why  ring.Wake
	away time.Duration // until
	next *task         // its turn
}

// task is something that is done at a time. Those of one time keep their order.
type task struct {
	at  time.Duration
	seq int
	fn  func()
}

type tasks []*task

func (t tasks) Len() int { return len(t) }
func (t tasks) Less(i, j int) bool {
	return t[i].at < t[j].at || t[i].at == t[j].at && t[i].seq < t[j].seq
}
func (t tasks) Swap(i, j int) { t[i], t[j] = t[j], t[i] }
func (t *tasks) Push(x any)   { *t = append(*t, x.(*task)) }
func (t *tasks) Pop() any {
	old := *t
	x := old[len(old)-1]
	*t = old[:len(old)-1]
	return x
}

func (w *world) push(t time.Duration, fn func()) *task {
	w.seq++
	x := &task{at: t, seq: w.seq, fn: fn}
	heap.Push(&w.tasks, x)
	return x
}

// at does something later that the world does not end without.
func (w *world) at(t time.Duration, fn func()) {
	w.pending++
	w.push(t, func() {
		w.pending--
		fn()
	})
}

func (w *world) after(d time.Duration, fn func()) { w.at(w.now()+d, fn) }

func (w *world) now() time.Duration { return w.card.Clock().Now() }

// wall is the time of a world as a date.
func (w *world) wall() time.Time { return time.Unix(0, 0).Add(w.now()) }

// live runs a plan to its end and returns the first rule that it broke, nil when it
// broke none.
func live(p plan, r *reuse) (w *world, broken *violation) {
	w = &world{plan: p, rnd: drawer{rand.New(rand.NewPCG(p.seed, 0x11fe))}}
	for i := range w.flows { // a plan may live more than once
		w.flows[i].frames, w.flows[i].last, w.flows[i].ring = nil, -1, -1
	}
	defer func() {
		switch x := recover().(type) {
		case nil:
		case *violation:
			broken = x
		default:
			broken = &violation{"panic", fmt.Sprintf("%v\n%s", x, debug.Stack()), 0}
		}
	}()
	w.books.init(w, r)
	w.build(r)
	w.begin()
	w.run(w.born + w.length)
	w.drain()
	w.judge()
	w.probe()
	w.end()
	return w, nil
}

// must stops a world for an error that no rule foresees.
func (w *world) must(what string, err error) {
	if err != nil {
		w.broke("no error", "%s: %v", what, err)
	}
}

// driver is what runs on a card.
type driver struct {
	rings   *ring.Rings
	channel *rpc.Channel
	lifs    *lif.Manager
}

// bringUp brings a card up as the daemon does: rings before the handshake, LIFs by rpc.
// Links are there at once, without NetAgent. control is the control plane's clock, once
// the handshake is over.
func (p *plan) bringUp(ctx context.Context, card *hwsim.Card, dev octep.Device, mem dma.Provider, control rpc.Clock, sink ring.Sink, judge ring.Judge) (d driver, err error) {
	clock := card.Clock()
	ep, err := octep.Open(ctx, dev, octep.Config{Clock: clock})
	if err != nil {
		return d, err
	}
	if err = ep.WaitReady(ctx); err != nil {
		return d, err
	}
	d.rings, err = ring.New(ring.Config{
		BAR0: dev.BAR0(), DMA: mem, Clock: clock, Sink: sink, Judge: judge, Watermark: p.conf.watermark,
		GatherFrames: p.conf.gather, GatherLarge: p.conf.large, PacketLevel: p.conf.level, LevelTime: p.conf.levelTime,
	})
	if err != nil {
		return d, err
	}
	if err = octep.SetBusMaster(dev, true); err != nil {
		return d, err
	}
	if err = d.rings.Program(ctx); err != nil {
		return d, err
	}
	clocks, err := ep.NewHandshake(nil).Run(ctx)
	if err != nil {
		return d, err
	}
	if err = d.rings.SetClocks(clocks); err != nil {
		return d, err
	}
	fac, err := ep.WaitFacility(ctx, csr.FacRPC)
	if err != nil {
		return d, err
	}
	card.Provision()
	alloc := func() (*dma.Region, error) { return mem.Alloc("rpc buffer", rpc.BufferBytes, msg.BufferAlign) }
	d.channel = rpc.New(fac, fac, nil, control, nil, rpc.Config{Alloc: alloc})
	if err = d.channel.Configure(ctx); err != nil {
		return d, err
	}
	d.lifs = lif.New(lif.Config{Table: d.channel, Clock: control})
	for i, x := range board.All() {
		l, _ := card.LIF(uint32(x.LIF()))
		if err = d.lifs.Provision(ctx, x, l.MAC); err != nil {
			return d, err
		}
		if err = d.lifs.SetMTU(ctx, x, p.mtus[i]); err != nil {
			return d, err
		}
	}
	return d, nil
}

// takeDown takes the memory back from the card.
func (d *driver) takeDown(dev octep.Device) error {
	if err := octep.SetBusMaster(dev, false); err != nil {
		return err
	}
	if err := dev.Close(); err != nil {
		return err
	}
	return d.rings.Free()
}

// build makes the world.
func (w *world) build(r *reuse) {
	w.plan.card.Windows = r.windows
	w.card = hwsim.New(w.plan.card)
	w.dev = simdev.New(w.card)
	w.mem = newMemory(w.card, r)
	w.gate.init(w)
	w.inspect.init(w)
	var err error
	w.driver, err = w.plan.bringUp(context.Background(), w.card, w.dev, w.mem, patient{w}, w, w)
	w.must("bring up", err)
	for _, p := range board.All() {
		l, _ := w.card.LIF(uint32(p.LIF()))
		w.macs[p.Index] = l.MAC
		w.card.Wire(uint16(p.Tag)).SetReceiver(func(b []byte) { w.left(p, b) })
	}
}

// patient is the control plane's clock: while it sleeps, everybody else lives on.
type patient struct{ w *world }

func (c patient) Now() time.Duration { return c.w.now() }

func (c patient) Sleep(ctx context.Context, d time.Duration) error {
	c.w.run(c.w.now() + d)
	return ctx.Err()
}

// begin puts everything that the plan says on the list.
func (w *world) begin() {
	w.born = w.now()
	w.card.Faults(func(f *hwsim.Faults) { *f = w.plan.faults })
	w.byChance(true)
	for i, x := range w.rings.Workers(w.host.workers) {
		k := &worker{n: i, w: x, irq: make(chan struct{}, 1)}
		w.workers = append(w.workers, k)
		if w.host.style == messages {
			for _, q := range x.Queues() {
				w.must("bind", w.dev.BindIRQ(csr.MSIXRingVector+q, w.rings.OQ(q).Handler(k.irq)))
			}
		}
		w.wake(k, w.born)
	}
	w.poster.world = w
	for _, e := range w.events {
		w.at(w.born+e.at, func() { w.happen(e) })
	}
}

// run lets time pass until a moment, with all that falls into it.
func (w *world) run(until time.Duration) {
	for {
		if w.steps++; w.steps > mostSteps {
			w.broke("ends", "nothing comes to an end")
		}
		now := w.now()
		for _, k := range w.workers {
			select {
			case <-k.irq:
				k.why = ring.WakeBusy
				w.wake(k, now+w.host.latency)
			default:
			}
		}
		if len(w.tasks) > 0 && w.tasks[0].at <= min(now, until) {
			heap.Pop(&w.tasks).(*task).fn()
			continue
		}
		if now >= until {
			return
		}
		next := min(until, now+w.host.grain)
		if len(w.tasks) > 0 {
			next = min(next, w.tasks[0].at)
		}
		w.card.Advance(max(next-now, cycle))
	}
}

// byChance switches the faults on that act at some of their opportunities, or all
// faults off that did not act all along.
func (w *world) byChance(on bool) {
	if !on {
		w.card.Faults(func(f *hwsim.Faults) { *f = w.plan.faults })
	}
	for _, s := range w.plan.chance {
		i, err := hwsim.ParseInjection(s)
		w.must("read a fault", err)
		if on {
			w.must("inject", w.card.Inject(i))
		}
		w.chanced(i.Name, on)
	}
}

// wake gives a worker a turn, at the latest then.
func (w *world) wake(k *worker, at time.Duration) {
	at = max(at, k.away)
	if k.next != nil && k.next.at <= at && k.next.at >= k.away {
		return
	}
	x := w.push(at, nil)
	k.next = x
	x.fn = func() {
		if k.next == x {
			k.next = nil
			w.turn(k)
		}
	}
}

// turn is a worker's.
func (w *world) turn(k *worker) {
	if now := w.now(); now < k.away {
		w.wake(k, k.away)
		return
	}
	if w.host.style == visits {
		qs := k.w.Queues()
		_, err := w.rings.OQ(qs[w.rnd.IntN(len(qs))]).Visit(w.host.bound)
		w.must("visit", err)
		w.served()
		w.wake(k, w.now()+w.host.pause)
		return
	}
	why := k.why
	k.why = ring.WakeBusy
	_, sleep, err := k.w.Step(why)
	w.must("step", err)
	w.served()
	switch {
	case sleep == 0:
		sleep = w.host.pause
	case w.host.style == polling:
		sleep = min(sleep, w.host.pause)
	case sleep == ring.SweepPeriod:
		k.why = ring.WakeSweep
	}
	w.wake(k, w.now()+sleep)
}

// happen makes an event happen.
func (w *world) happen(e event) {
	switch e.kind {
	case evBurst:
		f := &w.flows[e.n]
		if f.out {
			w.poster.add(f, e.count, e.last)
		} else {
			w.send(f, e.count, e.last)
		}
	case evMTU:
		w.alone(func() { w.setMTU(board.ByIndex(e.n), e.count) })
	case evAway:
		if e.n < len(w.workers) {
			k := w.workers[e.n]
			k.away = max(k.away, w.now()+e.last)
		}
	case evCeiling:
		w.short(e.n, 1)
		w.rings.SetCeiling(e.n, e.count)
		w.after(e.last, func() {
			w.rings.SetCeiling(e.n, wire.Grant(wire.OQEntries, w.plan.conf.watermark))
			w.short(e.n, -1)
		})
	case evCable:
		w.cable(board.ByIndex(e.n), e.last)
	case evLeave:
		w.joined[e.n]++
		w.after(e.last, func() { w.joined[e.n]-- })
	case evControl:
		for range e.n {
			w.statistics(e.tag, w.rnd.from(60, e.count))
		}
	case evWipe:
		w.wipe(e.last)
	case evShort, evLong:
		w.malformed(e.n, e.count)
	case evFilter:
		w.gate.change(e.n, e.count)
	case evFault:
		w.fault(e, true)
		w.after(e.last, func() { w.fault(e, false) })
	}
}

// alone runs an operation of the control plane, after the one that is under way.
func (w *world) alone(op func()) {
	if w.control {
		w.held = append(w.held, op)
		return
	}
	w.control = true
	op()
	w.control = false
	if len(w.held) > 0 {
		next := w.held[0]
		w.held = w.held[1:]
		w.at(w.now(), func() { w.alone(next) })
	}
}

func (w *world) setMTU(p board.Port, mtu int) {
	from := w.now()
	err := w.lifs.SetMTU(context.Background(), p, mtu)
	w.changed(p, from, mtu, err)
	switch {
	case err == nil:
	case w.plan.wiped && (errors.Is(err, lif.ErrRefused) || errors.Is(err, lif.ErrMismatch)): // there is no LIF
	case w.was(fLIFRefuse) && errors.Is(err, lif.ErrRefused), w.was(fLIFNotStored) && errors.Is(err, lif.ErrMismatch):
	default:
		w.broke("an MTU that may be set is set", "%s to %d: %v", p.Label, mtu, err)
	}
}

// send puts frames of a flow on its wire, one every gap.
func (w *world) send(f *flow, n int, gap time.Duration) {
	for n > 0 {
		size := f.sizes[w.rnd.IntN(len(f.sizes))]
		b := w.sent(f, size)
		w.card.Wire(uint16(f.port.Tag)).Send(b)
		n--
		if gap > 0 && n > 0 {
			w.after(gap, func() { w.send(f, n, gap) })
			return
		}
	}
}

// wipe empties the LIF table behind the host's back, which looks at it later.
func (w *world) wipe(after time.Duration) {
	w.lifless = append(w.lifless, spell{w.now(), forever})
	s := len(w.lifless) - 1
	w.card.WipeLIFs()
	w.after(after, func() { w.reconcile(func() { w.lifless[s].to = w.now() }) })
}

// reconcile looks at every LIF until all are as they should be.
func (w *world) reconcile(done func()) {
	w.alone(func() {
		_, err := w.lifs.ReconcileAll(context.Background())
		w.must("reconcile", err)
		for _, p := range board.All() {
			if !w.lifs.State(p).Ready() { // a port that was refused pauses
				w.after(reconcileEvery, func() { w.reconcile(done) })
				return
			}
		}
		done()
	})
}

// reconcileEvery is how often the host looks at LIFs.
const reconcileEvery = 200 * time.Millisecond

// statistics has the fast path write a packet of its own to ring 0.
func (w *world) statistics(tag board.Tag, size int) {
	if w.card.DeliverRaw(0, uint16(tag), make([]byte, size), uint64(size)+wire.LenOverhead) {
		w.messageSent(size)
	} else {
		w.messagesRefused++
	}
}

// malformed has the fast path write a packet with a length word that no packet has. It
// takes one buffer.
func (w *world) malformed(q, length int) {
	if !w.card.DeliverRaw(q, uint16(board.TagControl), make([]byte, leastFrame), uint64(length)) {
		w.messagesRefused++
		return
	}
	if length > wire.MaxLength {
		w.longs++
	} else {
		w.tooShort++
	}
	// The ring stands still over a short, and its buffer is in no book.
	w.short(q, 1)
	w.short(q, -1)
}

func (w *world) cable(p board.Port, d time.Duration) {
	w.cableOut(p)
	w.card.Wire(uint16(p.Tag)).SetLink(false)
	w.after(d, func() {
		if w.cableBack(p) {
			w.card.Wire(uint16(p.Tag)).SetLink(true)
		}
	})
}

// fault switches a passing fault. Two of a kind at a time end together.
func (w *world) fault(e event, on bool) {
	q := e.count % wire.OQs
	w.acts(e.n, q, on)
	w.card.Faults(func(f *hwsim.Faults) { passing[e.n].set(f, q, e.count, on) })
}

// poster is the host's sender: one queue in front of the card's, frame by frame or in
// batches under one doorbell.
type poster struct {
	*world
	waiting []posting
	busy    bool
}

type posting struct {
	f   *flow
	n   int
	gap time.Duration
}

func (p *poster) add(f *flow, n int, gap time.Duration) {
	p.waiting = append(p.waiting, posting{f, n, gap})
	if !p.busy {
		p.busy = true
		p.post()
	}
}

// post sends what it can now and comes back for the rest.
func (p *poster) post() {
	for len(p.waiting) > 0 {
		x := &p.waiting[0]
		took := 0
		if p.host.batch > 0 {
			took = p.fill(x.f, min(x.n, p.host.batch))
			if took == 0 { // what does not fit waits where it is
				p.after(p.host.latency, p.post)
				return
			}
		} else {
			p.one(x.f)
			took = 1
		}
		gap := x.gap
		if x.n -= took; x.n == 0 {
			p.waiting = p.waiting[1:]
		}
		if gap > 0 {
			p.after(time.Duration(took)*gap, p.post)
			return
		}
	}
	p.busy = false
}

func (p *poster) one(f *flow) {
	size := f.sizes[p.rnd.IntN(len(f.sizes))]
	if p.host.watch {
		p.look()
	}
	b := p.posted(f, size)
	if !p.gate.leaves(f, b) {
		p.barred(f)
		return
	}
	if !p.rings.IQ().Post(uint16(f.port.Tag), b) {
		p.refused(f)
	}
}

// fill posts up to n frames of a flow under one doorbell.
func (p *poster) fill(f *flow, n int) (took int) {
	q := p.rings.IQ()
	q.Lock()
	defer q.Unlock()
	q.Reap()
	for ; took < n; took++ {
		b := q.Reserve()
		if b == nil {
			p.mayBeFull()
			break
		}
		size := f.sizes[p.rnd.IntN(len(f.sizes))]
		n := copy(b, p.posted(f, size))
		if !p.gate.leaves(f, b[:n]) {
			p.barred(f)
			continue
		}
		q.Commit(uint16(f.port.Tag), n)
	}
	q.Flush()
	return took
}

// drain ends all that is under way: faults off but those that act all along, nothing
// new, the host goes on serving, and time passes in larger steps.
func (w *world) drain() {
	w.byChance(false)
	w.host.bound, w.host.pause, w.host.grain = wire.OQEntries, 100*time.Microsecond, 100*time.Microsecond
	quiet := func() bool {
		return len(w.held) == 0 && !w.control && !w.poster.busy && w.pending == 0 && w.card.Quiesced()
	}
	for n := 0; !quiet(); n++ {
		if n == 3000 {
			w.broke("drains", "something is still under way nine seconds after the last event")
		}
		w.run(w.now() + 3*time.Millisecond)
	}
	w.run(w.now() + 2*ring.SweepPeriod + 10*time.Millisecond)
	w.rings.IQ().Settle()
	w.drained = w.now()
}

// end takes the memory back from the card.
func (w *world) end() {
	w.must("take down", w.takeDown(w.dev))
	w.card.Close()
}
