package ring

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"
)

const (
	// SweepPeriod is the watchdog's: every ring is looked at, whatever the
	// interrupts say (datapath.md 3.9).
	SweepPeriod = 50 * time.Millisecond

	// slicePackets bounds what one ring gets before its worker looks at the next.
	slicePackets = 4 * passPackets

	// pollPeriod is the longest sleep of a worker without interrupts under load: a
	// ring of jumbo frames fills in 1.37 ms (datapath.md 6.4).
	pollPeriod = time.Millisecond

	// spins is how often a worker looks at memory in vain before it asks the
	// registers and goes to sleep.
	spins = 16
)

// Worker serves some of the output queues: all packets of a ring, hence of a
// flow, go through one worker and keep their order.
type Worker struct {
	queues []*OQ
	clock  Clock
	level  int
	beat   func()
	yield  func()
	pace   pacer
	slept  atomic.Int64 // ns

	nextSweep time.Duration
	visit     []int  // packets taken from each queue since it was last empty
	asked     []bool // queues that were promised a look at the next tick
}

// Workers spreads the output queues over n workers, 1 to 8.
func (r *Rings) Workers(n int) []*Worker {
	n = max(1, min(n, len(r.oqs)))
	ws := make([]*Worker, n)
	for i := range ws {
		ws[i] = &Worker{clock: r.cfg.Clock, level: r.cfg.PacketLevel, yield: runtime.Gosched}
	}
	for q, o := range r.oqs {
		w := ws[q%n]
		w.queues = append(w.queues, o)
		w.visit = append(w.visit, 0)
		w.asked = append(w.asked, false)
	}
	return ws
}

// Queues returns the numbers of the worker's output queues.
func (w *Worker) Queues() []int {
	qs := make([]int, len(w.queues))
	for i, o := range w.queues {
		qs[i] = o.n
	}
	return qs
}

// poll looks once at each queue in turn and takes up to a slice from each. sweep
// says that nothing but the watchdog's period made the worker look. tickDue says
// that some queue wants a look at the next tick.
func (w *Worker) poll(l look, sweep bool) (took int, tickDue bool, err error) {
	for i, o := range w.queues {
		n, again, err := o.service(slicePackets, l)
		if err != nil {
			return took, false, err
		}
		if sweep && n > 0 {
			if took == 0 {
				o.cnt.wdRuns.Add(1)
			}
			if !w.asked[i] {
				o.cnt.wdRescues.Add(1)
				if n >= max(32, 2*w.level) {
					o.cnt.wdStalls.Add(1)
				}
			}
		}
		w.asked[i] = again
		if n < slicePackets {
			w.visit[i] = 0
		} else if w.visit[i] += n; w.visit[i] >= VisitBound {
			w.visit[i] = 0
			o.cnt.bound.Add(1)
		}
		took += n
		tickDue = tickDue || again
	}
	return took, tickDue, nil
}

// Wake is why a worker takes a turn.
type Wake uint8

// Reasons for a turn.
const (
	WakeBusy  Wake = iota // the turn before took something, a message came, or polling
	WakeSweep             // the watchdog's period ran out without a message
)

// Step is one turn of Run without its sleep: it polls memory until nothing is
// left, then asks the registers of each queue that it took something from until
// its count is 0, so that the next packet sends a message; the other queues are
// armed since earlier. Once a sweep's period it asks those of every queue. sleep is how long the worker may stay away when no
// message comes: 0 after a turn that was busy to the end. It is what stepped
// tests drive; not safe for concurrent use.
func (w *Worker) Step(why Wake) (took int, sleep time.Duration, err error) {
	for idle := 0; idle < spins; {
		n, _, err := w.poll(quick, why == WakeSweep)
		if err != nil {
			return took, 0, err
		}
		took += n
		if n == 0 {
			idle++
			w.yield()
			continue
		}
		idle = 0
		why = WakeBusy
		if w.clock.Now() >= w.nextSweep {
			break // the other queues' registers are due
		}
	}
	last := settle
	if now := w.clock.Now(); why == WakeSweep || now >= w.nextSweep {
		last = thorough
		w.nextSweep = now + SweepPeriod
	}
	n, tickDue, err := w.poll(last, why == WakeSweep)
	if err != nil {
		return took, 0, err
	}
	took += n
	switch {
	case n > 0:
		return took, 0, nil
	case tickDue:
		return took, tick, nil
	}
	return took, SweepPeriod, nil
}

// Run serves the queues until ctx ends, which is no error, or the card is gone
// (mmio.ErrGone). irq wakes it: the Handler of each of its queues sends there. nil
// means that there are no interrupts: the worker then sleeps 1 ms at most under load,
// and up to 5 ms at rest.
func (w *Worker) Run(ctx context.Context, irq <-chan struct{}) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	why := WakeBusy
	for ctx.Err() == nil {
		took, sleep, err := w.Step(why)
		if err != nil {
			return err
		}
		if w.beat != nil {
			w.beat()
		}
		why = WakeBusy
		if irq == nil {
			sleep = w.pace.pause(w.clock.Now(), took, sleep)
		}
		if sleep == 0 {
			continue
		}
		timer.Reset(sleep)
		if w.away(ctx, irq, timer.C) && sleep == SweepPeriod {
			why = WakeSweep
		}
	}
	return nil
}

// away sleeps until a message comes or the time is over, and tells whether that was it.
func (w *Worker) away(ctx context.Context, irq <-chan struct{}, over <-chan time.Time) (ranOut bool) {
	from := w.clock.Now()
	select {
	case <-ctx.Done():
	case <-irq:
	case <-over:
		ranOut = true
	}
	w.slept.Add(int64(w.clock.Now() - from))
	return ranOut
}

// Slept returns how long Run has been asleep in all, by the rings' clock; a sleep, a
// sweep's period at most, is counted at its end. The rest of the time the worker looked
// at rings, handed frames on, or waited for a core. Safe for concurrent use.
func (w *Worker) Slept() time.Duration { return time.Duration(w.slept.Load()) }

// SetBeat registers a function that is called at least once every sweep period
// while the worker is alive. Call it before Run.
func (w *Worker) SetBeat(beat func()) { w.beat = beat }

// SetYield replaces what the worker does after each look at its rings in vain, which is to
// let other goroutines run. For one that is bound to a thread that would be a change of
// threads, dearer than many frames. Call it before Run.
func (w *Worker) SetYield(yield func()) { w.yield = yield }
