package daemon

import (
	"math"
	"sync"
	"time"

	"oxpd/internal/daemon/client"
)

// busyMeter measures how busy each worker is: the share of the time that it is not
// asleep. A worker tells how long it has slept, so that nobody asks the kernel, and a
// frame costs nothing. Safe for concurrent use.
type busyMeter struct {
	mu   sync.Mutex
	at   time.Duration // the present interval began
	of   []sleeper
	last []client.WorkerBusy
}

// sleeper is a worker.
type sleeper struct {
	rings []int
	slept func() time.Duration // in all
	then  time.Duration        // when the interval began
}

// busyLeast is the shortest interval that says something: a sleep is counted at its end,
// and takes up to 50 ms.
const busyLeast = time.Second

// watch adds a worker, which has not begun.
func (m *busyMeter) watch(rings []int, slept func() time.Duration, now time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.at = now
	m.of = append(m.of, sleeper{rings: rings, slept: slept})
}

// sample ends an interval and begins the next one.
func (m *busyMeter) sample(now time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	took := now - m.at
	if took < busyLeast {
		return
	}
	m.at, m.last = now, nil
	for i := range m.of {
		w := &m.of[i]
		slept := w.slept()
		awake := max(0, took-(slept-w.then))
		w.then = slept
		m.last = append(m.last, client.WorkerBusy{Rings: w.rings, Percent: tenths(100 * awake.Seconds() / took.Seconds()), Seconds: tenths(took.Seconds())})
	}
}

// show is the last whole interval; nil before there was one.
func (m *busyMeter) show() []client.WorkerBusy {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last
}

func tenths(v float64) float64 { return math.Round(10*v) / 10 }
