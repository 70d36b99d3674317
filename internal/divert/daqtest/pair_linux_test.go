package daqtest

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/clock"
	"oxpd/internal/divert"
	"oxpd/internal/frame"
	"oxpd/internal/netlab"
	"oxpd/internal/port"
)

const (
	wireSide, hostSide = "oxp1w", "oxp1h"
	testPort           = 0
)

// outlet keeps what passes, by direction.
type outlet struct {
	mu     sync.Mutex
	frames [divert.Directions][][]byte
}

func (o *outlet) Release(frames []divert.Released) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, f := range frames {
		o.frames[f.Dir] = append(o.frames[f.Dir], bytes.Clone(f.Frame))
	}
}

// take returns what has passed since the last call.
func (o *outlet) take(d divert.Direction) [][]byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	frames := o.frames[d]
	o.frames[d] = nil
	return frames
}

// pairRig is a port's pair of interfaces in a namespace, and its queue.
type pairRig struct {
	*testing.T
	ns    *netlab.NS
	sides *port.Inline
	queue *divert.Queue
	pair  *divert.Pair
	out   *outlet
	clock *clock.Real
}

func newPairRig(t *testing.T, mtu int, set func(*divert.Settings)) *pairRig {
	t.Helper()
	ns, err := netlab.New()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, ns.Close()) })
	r := &pairRig{T: t, ns: ns, out: new(outlet), clock: clock.NewReal()}
	r.sides, err = port.OpenInline(port.InlineConfig{Names: [2]string{wireSide, hostSide}, NetNS: netlab.FDPath(int(ns.File().Fd()))})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, r.sides.Close()) })
	s := divert.Defaults()
	set(&s)
	require.NoError(t, s.Check())
	r.queue = divert.NewQueue(divert.QueueConfig{
		Name: "oxp1", Settings: s, Outlet: r.out, Limit: func(int) int { return mtu }, Clock: r.clock, Pair: true,
	})
	r.pair = divert.NewPair(divert.PairConfig{Port: testPort, Queue: r.queue, Sides: r.sides.Files(), Attached: r.sides.Attached, Clock: r.clock})
	r.run()
	return r
}

// run carries frames until the end of the test, when each must be in one counter.
func (r *pairRig) run() {
	ctx, cancel := context.WithCancel(context.Background())
	parts := []func(context.Context) error{r.pair.Run, r.queue.Run, r.sides.Watch}
	ended := make(chan error, len(parts))
	for _, part := range parts {
		go func() { ended <- part(ctx) }()
	}
	r.Cleanup(func() {
		cancel()
		for range parts {
			assert.NoError(r, <-ended)
		}
		for d := range divert.Direction(divert.Directions) {
			c := r.queue.Counts(testPort, d)
			assert.Equal(r, c.Seen, c.Sum(), "%v: %+v", d, c)
			assert.Zero(r, c.Queued)
		}
	})
}

// engine starts one and waits until the queue has frames for it.
func (r *pairRig) engine(p Program, o Options) *Engine {
	r.Helper()
	o.Wire, o.Host = wireSide, hostSide
	e, err := p.Start(r.ns, o)
	require.NoError(r, err)
	r.eventually("the engine is seen", func() bool { return r.queue.Stats().State != divert.Absent })
	return e
}

func (r *pairRig) offer(d divert.Direction, b []byte) divert.Fate {
	var head frame.Packet
	head.Parse(b, len(b))
	return r.queue.Offer(r.clock.Now(), &divert.Offered{Port: testPort, Dir: d, Pieces: [][]byte{b}, Bytes: len(b), Head: &head})
}

func (r *pairRig) eventually(what string, ok func() bool) {
	r.Helper()
	for end := time.Now().Add(hang); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			r.Fatalf("never: %s: in %+v, out %+v, %+v", what, r.queue.Counts(testPort, divert.In), r.queue.Counts(testPort, divert.Out), r.pair.Stats())
		}
	}
}

// decided waits until no frame is without a verdict.
func (r *pairRig) decided() {
	r.Helper()
	r.eventually("all is decided", func() bool { return r.queue.Stats().Frames == 0 })
}

// patient has a frame wait for its engine longer than a test takes: what is decided
// is decided by what comes back.
func patient(s *divert.Settings) { s.Stall = divert.MaxStall }

// TestPairOfAnUnmodifiedEngine has an engine that others made decide about the frames of
// a port, of which oxpd learns by what comes back, and by its probes between them.
func TestPairOfAnUnmodifiedEngine(t *testing.T) {
	program := build(t)
	for _, mtu := range []int{1500, 9000} {
		t.Run(fmt.Sprintf("mtu=%d", mtu), func(t *testing.T) {
			r := newPairRig(t, mtu, patient)
			e := r.engine(program, Options{Block: blockPort, Change: changePort})
			random := rand.New(rand.NewPCG(8, uint64(mtu)))
			var all Counts
			for _, d := range []divert.Direction{divert.In, divert.Out} {
				var want divert.Counts
				var passed [][]byte
				for i := range 4 * lot {
					size := mtu + ethernet
					if i%2 == 1 {
						size = 60 + random.IntN(size-60)
					}
					port := uint16(passPort + random.IntN(3))
					f := udp(random, port, size)
					switch port {
					case blockPort:
						want.Dropped++
					case changePort:
						want.Replaced++
						passed = append(passed, Changed(f))
					default:
						want.Accepted++
						passed = append(passed, f)
					}
					want.Seen++
					require.Equal(t, divert.Taken, r.offer(d, f))
					if i%lot == lot-1 {
						r.decided()
					}
				}
				assert.Equal(t, want, r.queue.Counts(testPort, d))
				require.True(t, slices.EqualFunc(passed, r.out.take(d), bytes.Equal), "frames that passed, or their order")
				all.Received, all.Passed = all.Received+want.Seen, all.Passed+want.Accepted
				all.Blocked, all.Changed = all.Blocked+want.Dropped, all.Changed+want.Replaced
			}
			r.eventually("every probe is back", func() bool { s := r.pair.Stats(); return s.Probes == s.ProbesBack })
			got, err := e.Stop()
			require.NoError(t, err)
			probes := r.pair.Stats().ProbesBack
			assert.NotZero(t, probes)
			all.Received, all.Passed = all.Received+probes, all.Passed+probes
			assert.Equal(t, all, got, "what the engine counted, %d probes among it", probes)
		})
	}
}

// TestPairCatchesTheSnaplen is the trap of an engine that was started for frames of 1,518
// bytes behind a port of 9,000: what it cuts goes nowhere, and is counted.
func TestPairCatchesTheSnaplen(t *testing.T) {
	program := build(t)
	r := newPairRig(t, 9000, patient)
	e := r.engine(program, Options{Snaplen: 1518})
	random := rand.New(rand.NewPCG(1518, 0))
	for _, d := range []divert.Direction{divert.In, divert.Out} {
		var passed [][]byte
		for range lot {
			short, long := udp(random, passPort, 1514), udp(random, passPort, 9014)
			require.Equal(t, divert.Taken, r.offer(d, short))
			require.Equal(t, divert.Taken, r.offer(d, long))
			passed = append(passed, short)
		}
		r.decided()
		assert.Equal(t, divert.Counts{Seen: 2 * lot, Accepted: lot, Shortened: lot}, r.queue.Counts(testPort, d))
		require.True(t, slices.EqualFunc(passed, r.out.take(d), bytes.Equal), "frames that passed, or their order")
	}
	got, err := e.Stop()
	require.NoError(t, err)
	assert.Equal(t, uint64(2*lot), got.Cut, "what the engine knows of it")
	assert.Zero(t, got.Blocked)
}

// TestPairWithTags has frames as long as a port takes them, with its two tags: each would
// end a direction of the engine if the interfaces' MTU was the port's.
func TestPairWithTags(t *testing.T) {
	program := build(t)
	r := newPairRig(t, 9000, patient)
	r.engine(program, Options{})
	f := udp(rand.New(rand.NewPCG(8021, 0)), passPort, 9014)
	const q, ad = unix.ETH_P_8021Q, unix.ETH_P_8021AD
	for _, d := range []divert.Direction{divert.In, divert.Out} {
		for _, c := range []struct{ sent, back []byte }{
			{f, f},
			{tagged(f, q), tagged(f, q)},
			{tagged(f, q, q), tagged(f, q, q)},
			{tagged(f, ad, q), tagged(f, q, q)}, // the engine's own doing
			{f, f},
		} {
			require.Equal(t, divert.Taken, r.offer(d, c.sent))
			r.decided()
			got := r.out.take(d)
			require.Len(t, got, 1)
			assert.True(t, bytes.Equal(c.back, got[0]))
		}
		assert.Equal(t, divert.Counts{Seen: 5, Accepted: 4, Replaced: 1}, r.queue.Counts(testPort, d))
	}
}

// TestPairWhoseEngineEnds applies the policies to an engine that is stopped, goes on, is
// killed and comes again.
func TestPairWhoseEngineEnds(t *testing.T) {
	program := build(t)
	r := newPairRig(t, 1500, func(s *divert.Settings) { s.Stall, s.OnStall, s.OnAbsent = time.Second, divert.Pass, divert.Pass })
	random := rand.New(rand.NewPCG(9, 0))
	offer := func() divert.Fate { return r.offer(divert.In, udp(random, passPort, 1514)) }
	counts := func() divert.Counts { return r.queue.Counts(testPort, divert.In) }
	works := func() {
		t.Helper()
		before := counts().Accepted
		r.eventually("the engine works", func() bool { offer(); return counts().Accepted > before && r.pair.Stats().ProbesReturn })
		r.decided()
	}
	absent := func() {
		t.Helper()
		r.eventually("no engine is seen", func() bool { return r.queue.Stats().State == divert.Absent })
		before := counts()
		assert.Equal(t, divert.Passed, offer())
		before.Seen++
		before.PassAbsent++
		assert.Equal(t, before, counts())
	}
	absent()
	e := r.engine(program, Options{})
	works()

	require.NoError(t, e.Signal(unix.SIGSTOP))
	offer()
	r.eventually("the stopped engine is seen", func() bool { return r.queue.Stats().State == divert.Stalled })
	r.eventually("frames pass it by", func() bool { offer(); return counts().PassStall > 0 })
	require.NoError(t, e.Signal(unix.SIGCONT))
	r.eventually("the engine is seen again", func() bool { return r.queue.Stats().State != divert.Stalled })
	works()

	require.NoError(t, e.Kill())
	absent()
	r.engine(program, Options{})
	works()
	c := counts()
	assert.Zero(t, c.DropStall+c.DropAbsent)
}
