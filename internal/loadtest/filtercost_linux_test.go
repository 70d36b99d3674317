package loadtest

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/board"
	"oxpd/internal/cputime"
)

const (
	// costRounds is how often each way to drop has its turn, of costTurn.
	costRounds = 7
	costTurn   = 400 * time.Millisecond

	// ringShare is the most CPU time that dropping on the ring may take of what dropping
	// behind the interface takes.
	ringShare = 1.0 / 5

	// iflibGain is what the hook in FreeBSD's iflib brought in frames a second, on
	// hardware: 7.84 to 11.40 million.
	iflibGain = 1.45
)

// driverThreads are the threads of the daemon's data path: its workers and its
// transmitter, which make every system call for a frame.
type driverThreads struct {
	mu  sync.Mutex
	all []cputime.Thread
}

// task is daemon.Options.Task.
func (d *driverThreads) task(name string) {
	if !strings.HasPrefix(name, "worker ") && name != "transmitter" {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = append(d.all, cputime.Bind())
}

// costs is CPU time since some moment.
type costs struct{ driver, process, softirq time.Duration }

func (d *driverThreads) read(t *testing.T) (c costs) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, th := range d.all {
		used, err := th.Used()
		require.NoError(t, err)
		c.driver += used
	}
	var err error
	c.process, err = cputime.Process()
	require.NoError(t, err)
	c.softirq, err = cputime.Softirq()
	require.NoError(t, err)
	return c
}

// dropWay is a way to drop a flood, and what its turns cost.
type dropWay struct {
	name    string
	on, off func()
	dropped func() uint64 // while it is on

	perFrame, perSecond []float64 // ns of the driver; frames
	driver, rest        []float64 // shares of a core: the driver; the card with everything else, but for the sender
	limits              []string
	softirq             time.Duration
}

func middle[T float64 | string](v []T) T {
	v = slices.Clone(v)
	slices.Sort(v)
	return v[len(v)/2]
}

// turn floods for a while and returns how many frames it was.
func (w *dropWay) turn(t *testing.T, threads *driverThreads, flood *flow) uint64 {
	t.Helper()
	before := threads.read(t)
	ctx, cancel := context.WithTimeout(flood.l.ctx, costTurn)
	defer cancel()
	done := make(chan ran, 1)
	go func() { done <- flood.run(ctx, forever) }()
	r := <-done
	after := threads.read(t)
	require.NotZero(t, r.frames)
	driver, process := after.driver-before.driver, after.process-before.process
	w.perFrame = append(w.perFrame, float64(driver)/float64(r.frames))
	w.perSecond = append(w.perSecond, float64(r.frames)/r.took.Seconds())
	w.driver = append(w.driver, driver.Seconds()/r.took.Seconds())
	w.rest = append(w.rest, (process-driver-r.cpu).Seconds()/r.took.Seconds())
	limit := r.limit()
	if limit == "driver" && driver < r.took/2 {
		limit = "cores" // the ring waited for the driver, which was idle or waited for one
	}
	w.limits = append(w.limits, limit)
	w.softirq += after.softirq - before.softirq
	return r.frames
}

// What it costs the driver to have a flood dropped by a rule on the ring, beside the same
// rule in the kernel's table raw behind the interface: at most a fifth, in CPU time of
// the driver's threads with everything that the kernel does in their system calls. In turns,
// the median of each. A flow on another ring loses nothing meanwhile.
func TestCostOfTheFloodByPlace(t *testing.T) {
	if os.Getenv("OXPD_BENCH") == "" {
		t.Skip("a measurement: make bench")
	}
	for _, size := range []int{64, jumboFrame} {
		t.Run(fmt.Sprintf("frame=%d", size), func(t *testing.T) {
			threads := &driverThreads{}
			l := setup{
				task: threads.task, yield: func() {},
				card: func(o *hwsim.Options) { o.Rates.Cage = 100_000_000_000 }, // the CPU is the limit, not the cage
			}.start(t, calmly)
			kernel := newXT(t, l.host)
			p := cage(t)
			l.settle(p, board.MaxMTU)
			flood := l.newFlow(p, strange, size)
			other := l.newFlow(p, allowed, 64, flood)
			other.burst, other.gap = 1, allowedGap
			l.loadFilter()
			counter := func(name string) uint64 {
				c, _ := l.stats().Port(p.Name)
				return c.Counters[name]
			}
			first := uint64(0)
			ring := &dropWay{
				name: "a rule on the ring",
				on:   func() { first = counter("pfil_dropped"); l.link(p) },
				off:  func() { l.unlink(p) }, dropped: func() uint64 { return counter("pfil_dropped") - first },
			}
			raw := &dropWay{name: "a rule in xt raw PREROUTING", on: func() { kernel.drop(strange) }, off: kernel.clear, dropped: kernel.dropped}
			for range costRounds {
				for _, w := range []*dropWay{ring, raw} {
					passed := counter("rx_packets")
					w.on()
					stop := other.start(forever)
					frames := w.turn(t, threads, flood)
					beside := stop().frames
					require.Equal(t, frames, w.dropped(), "%s: every frame was dropped there", w.name)
					w.off()
					if w == raw {
						passed += frames // they reach the interface
					}
					require.Equal(t, beside, counter("rx_packets")-passed, "%s: frames of the flow beside the flood", w.name)
				}
			}
			for _, w := range []*dropWay{ring, raw} {
				t.Logf("frame=%d %-27s %6.0f ns of the driver a frame; %8.0f frames/s, limit: %s (driver %.0f%% of a core, card and runtime %.0f%%); ksoftirqd %v in all",
					size, w.name, middle(w.perFrame), middle(w.perSecond), middle(w.limits), 100*middle(w.driver), 100*middle(w.rest), w.softirq)
			}
			share := middle(ring.perFrame) / middle(raw.perFrame)
			t.Logf("frame=%d on the ring it costs 1/%.1f, at most 1/%.0f; frames/s %.2f times (iflib's hook: %.2f)", size, 1/share, 1/ringShare, middle(ring.perSecond)/middle(raw.perSecond), iflibGain)
			assert.LessOrEqual(t, share, ringShare, "the driver's CPU time a dropped frame, on the ring beside behind the interface")
			assert.Zero(t, l.ringFull(), "no ring was full")
		})
	}
}
