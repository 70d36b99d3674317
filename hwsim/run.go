package hwsim

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"oxpd/octep/csr"
)

// outFrame is a frame that left through a wire.
type outFrame struct {
	w *Wire
	p *packet
}

// outbox is what has to be done without the card's lock: frames for receivers,
// interrupts, and news for the console, each in order.
type outbox struct {
	frames  []outFrame
	spare   []outFrame
	irqs    []uint8
	ispare  []uint8
	ready   [csr.MSIXVectors]bool // vectors in irqs
	boots   []BootEvent           // for console
	console func(BootEvent)
	busy    bool // somebody is delivering
}

// irq notes a message. Messages of one vector that nobody has been told of yet
// are one.
func (o *outbox) irq(vector int) {
	if !o.ready[vector] {
		o.ready[vector] = true
		o.irqs = append(o.irqs, uint8(vector))
	}
}

// boot notes a moment of the coprocessor's life.
func (o *outbox) boot(e BootEvent) {
	if o.console != nil {
		o.boots = append(o.boots, e)
	}
}

func (o *outbox) empty() bool { return len(o.frames) == 0 && len(o.irqs) == 0 && len(o.boots) == 0 }

// deliver empties the outbox without the lock. Held: c.mu, also on return.
func (c *Card) deliver() {
	o := &c.out
	for !o.empty() && !o.busy {
		o.busy = true
		frames, irqs := o.frames, o.irqs
		o.frames, o.irqs = o.spare[:0], o.ispare[:0]
		boots, console := o.boots, o.console
		o.boots = nil
		var fns [csr.MSIXVectors]func()
		for i, v := range irqs {
			o.ready[v] = false
			if fns[i] = c.msix.fn[v]; fns[i] != nil {
				c.msix.told[v]++
			}
		}
		c.mu.Unlock()
		for i, f := range frames {
			f.w.deliver(f.p.frame())
			c.pool.put(f.p)
			frames[i] = outFrame{}
		}
		for i := range irqs {
			if fns[i] != nil {
				fns[i]()
			}
		}
		for _, e := range boots {
			if console != nil {
				console(e)
			}
		}
		c.mu.Lock()
		o.spare, o.ispare = frames, irqs
		o.busy = false
	}
}

// runner moves the card: by itself in free mode, on call in stepped mode.
type runner struct {
	stalled *sync.Cond // readers that a forbidden read (choice 14) or a reset (F29) stopped

	staged      atomic.Bool // a wire has frames that the card has not seen
	freeRunning atomic.Bool
	sleeping    atomic.Bool   // the card's goroutine waits
	sleepUntil  uint64        // the cycle that it waits for; 0 while it runs
	wake        chan struct{} // capacity 1
	quit        chan struct{}
	done        chan struct{}
	start       time.Time // wall clock of cycle startCycle
	startCycle  uint64
}

func (c *Card) initRunner() {
	c.stalled = sync.NewCond(&c.mu)
	c.wake = make(chan struct{}, 1)
	c.quit = make(chan struct{})
}

// run is stepped mode: everything that is due until a cycle, each event at its
// own time, with what has to be delivered delivered in between. Held: c.mu.
func (c *Card) run(until uint64) {
	for {
		c.takeStaged()
		e := c.agenda.due(until, until)
		switch {
		case e != nil:
			c.agenda.disarm(e)
			c.now = max(c.now, e.at)
			c.horizon = c.now
			e.fn()
		case c.out.empty() || c.out.busy:
			c.now = max(c.now, until)
			c.horizon = c.now
			return
		}
		c.deliver()
	}
}

// leave lets the card react to what was just done to it and releases c.mu.
func (c *Card) leave() {
	if c.mode == stepped {
		if !c.closed {
			c.run(c.now)
		}
		c.mu.Unlock()
		return
	}
	wake := c.wakeAt() < c.sleepUntil || !c.out.empty()
	c.mu.Unlock()
	if wake {
		c.wakeUp()
	}
}

// wakeAt is the wall clock's cycle at which a free card has something to do.
func (c *Card) wakeAt() uint64 {
	at := uint64(math.MaxUint64)
	if e := c.agenda.first(timely); e != nil {
		at = e.at
	}
	if e := c.agenda.first(flow); e != nil {
		at = min(at, e.at-min(e.at, c.lat.lead))
	}
	return at
}

// lock takes c.mu for whoever is about to do something to the card, with the
// card's time up to date.
func (c *Card) lock() {
	c.mu.Lock()
	c.follow()
}

// settle is leave for callers that do not hold the lock.
func (c *Card) settle() {
	c.lock()
	c.leave()
}

func (c *Card) wakeUp() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Advance moves a stepped card by d: it processes every event of that time, in
// order, and calls receivers and interrupt functions at their moments. In free
// mode, where time moves by itself, it does nothing.
func (c *Card) Advance(d time.Duration) {
	c.mu.Lock()
	if c.mode == stepped && !c.closed {
		c.run(c.now + cyclesOf(d))
	}
	c.mu.Unlock()
}

// Now returns the card's time in cycles. Functional.
func (c *Card) Now() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.follow()
	return c.now
}

// follow brings the time of a free card up to the wall clock, and how far its data
// path may go. Held: c.mu.
func (c *Card) follow() {
	if c.mode == free {
		c.now = max(c.now, c.startCycle+cyclesOf(time.Since(c.start)))
		c.horizon = c.now + c.lat.ahead
	}
}

// Start lets the card run by itself: one goroutine follows the wall clock until
// Close. It sleeps while nothing is due. Latencies shorter than
// Latencies.FreeAhead cost no waiting; bandwidths hold over times longer than it.
// While frames are under way it wakes twice in that time.
func (c *Card) Start() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mode == free || c.closed {
		return
	}
	c.finishLink() // a count goes before its packet on the link, and reads will take no time
	c.mode = free
	c.start, c.startCycle = time.Now(), c.now
	c.done = make(chan struct{})
	c.freeRunning.Store(true)
	go c.loop()
}

// Close stops the card: its goroutine has ended when it returns, and nothing
// moves any more.
func (c *Card) Close() {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	c.closed = true
	done := c.done
	c.target.stop()
	c.stalled.Broadcast()
	c.mu.Unlock()
	close(c.quit)
	if done != nil {
		<-done
	}
}

// loopBatch bounds the events that are processed under one hold of the lock.
const loopBatch = 16

func (c *Card) loop() {
	defer close(c.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	fine := newAlarm(c.wakeUp)
	defer fine.close()
	slack := durationOf(c.lat.ahead - c.lat.lead)
	for {
		c.mu.Lock()
		c.sleepUntil = 0
		c.follow()
		c.takeStaged()
		idle := true
		for n := 0; n < loopBatch && !c.closed; n++ {
			e := c.agenda.due(c.now, c.horizon)
			if e == nil {
				break
			}
			idle = false
			c.agenda.disarm(e)
			e.fn()
		}
		if !c.out.empty() {
			idle = false
			c.deliver()
		}
		closed := c.closed
		wait := time.Duration(math.MaxInt64)
		flowing := false
		if idle {
			flowing = c.agenda.first(flow) != nil
			c.sleepUntil = c.wakeAt()
			if c.sleepUntil != math.MaxUint64 {
				wait = durationOf(c.sleepUntil-min(c.sleepUntil, c.now)) + 1
			}
			c.sleeping.Store(true)
		}
		c.mu.Unlock()
		if closed {
			return
		}
		if !idle {
			continue
		}
		if !c.staged.Load() {
			// While all threads are busy nobody polls for the alarm; the timer stands
			// behind it, and what waits is then still in time.
			if flowing && fine.set(wait) {
				wait += slack
			}
			timer.Reset(wait)
			select {
			case <-c.wake:
			case <-timer.C:
			case <-c.quit:
				return
			}
		}
		c.sleeping.Store(false)
	}
}

// Clock is the card's time for drivers under test. It satisfies their Clock
// interfaces.
type Clock struct{ c *Card }

// Clock returns the card's time. In stepped mode Sleep advances the card; in
// free mode it waits.
func (c *Card) Clock() *Clock { return &Clock{c} }

// Now returns the time since New.
func (k *Clock) Now() time.Duration { return durationOf(k.c.Now()) }

// Sleep lets d pass and returns nil, or the context's error when that has ended.
func (k *Clock) Sleep(ctx context.Context, d time.Duration) error {
	if err := ctx.Err(); err != nil || d <= 0 {
		return err
	}
	if !k.c.freeRunning.Load() {
		k.c.Advance(d)
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
