package divert

import (
	"context"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/clock"
	"oxpd/internal/frame"
)

// wires is a file whose other end is far: what is written to one is read at the other,
// a frame a call, as of a TAP.
func wires(t *testing.T) (near, far *os.File) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	near, far = os.NewFile(uintptr(fds[0]), "near"), os.NewFile(uintptr(fds[1]), "far")
	t.Cleanup(func() { near.Close(); far.Close() })
	return near, far
}

type pairRig struct {
	*testing.T
	*Queue
	pair  *Pair
	out   *lockedGone
	there atomic.Bool
	far   [2]*os.File
}

func newPairRig(t *testing.T, set func(*Settings)) *pairRig {
	s := Defaults()
	s.Stall = 1500 * time.Millisecond
	if set != nil {
		set(&s)
	}
	r := &pairRig{T: t, out: &lockedGone{}}
	clk := clock.NewReal()
	r.Queue = NewQueue(QueueConfig{Name: "oxp1", Settings: s, Outlet: r.out, Limit: func(int) int { return 9000 }, Clock: clk, Pair: true})
	cfg := PairConfig{Queue: r.Queue, Attached: func() (bool, error) { return r.there.Load(), nil }, Clock: clk}
	for i := range cfg.Sides {
		cfg.Sides[i], r.far[i] = wires(t)
	}
	r.pair = NewPair(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- r.pair.Run(ctx) }()
	go func() { ended <- r.Queue.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		for range 2 {
			select {
			case err := <-ended:
				assert.NoError(t, err)
			case <-time.After(hang):
				t.Error("the pair does not end")
			}
		}
		for d := range Direction(Directions) {
			c := r.Counts(0, d)
			assert.Equal(t, c.Seen, c.Sum(), "%v: %+v", d, c)
			assert.Zero(t, c.Queued)
		}
	})
	return r
}

func (r *pairRig) offer(d Direction, b []byte) Fate {
	var head frame.Packet
	head.Parse(b, len(b))
	return r.Queue.Offer(r.cfg.Clock.Now(), &Offered{Dir: d, Pieces: [][]byte{b}, Bytes: len(b), Head: &head})
}

func (r *pairRig) eventually(what string, ok func() bool) {
	r.Helper()
	for end := time.Now().Add(hang); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			r.Fatalf("not so: %s: in %+v, out %+v, %+v, %+v", what, r.Counts(0, In), r.Counts(0, Out), r.pair.Stats(), r.Queue.Stats().Events)
		}
	}
}

// engine copies from each interface to the other what change makes of it, nil for
// nothing, until the test ends.
func (r *pairRig) engine(change func(b []byte) []byte) {
	for from := range r.far {
		go func() {
			b := make([]byte, pairBuf)
			for {
				n, err := r.far[from].Read(b)
				if err != nil {
					return
				}
				if out := change(b[:n]); out != nil {
					if _, err := r.far[1-from].Write(out); err != nil {
						return
					}
				}
			}
		}()
	}
	r.there.Store(true)
	r.eventually("attached", func() bool { return r.Queue.Stats().State != Absent })
}

func isProbe(b []byte) bool { return b[12] == probeType>>8 && b[13] == probeType&0xff }

// marked makes the engine decide by a frame's last byte.
func marked(b []byte) []byte {
	switch {
	case isProbe(b):
		return b
	case b[len(b)-1] == 'D':
		return nil
	case b[len(b)-1] == 'S':
		return b[:len(b)-100]
	case b[len(b)-1] == 'R':
		b[len(b)-2] = 1
	}
	return b
}

func TestPairDecides(t *testing.T) {
	r := newPairRig(t, func(s *Settings) { s.Stall = MaxStall })
	assert.Equal(t, Lost, r.offer(In, udp(1, 100, 'A')))
	r.engine(marked)
	for _, d := range []Direction{In, Out} {
		for i, mark := range []byte("ADSRA") {
			require.Equal(t, Taken, r.offer(d, udp(byte(i), 1000, mark)))
		}
	}
	// The dropped ones need no stall-ms: the probe behind them comes back.
	r.eventually("decided", func() bool { return r.Queue.Stats().Frames == 0 })
	assert.Equal(t, Counts{Seen: 6, Accepted: 2, Dropped: 1, Shortened: 1, Replaced: 1, DropAbsent: 1}, r.Counts(0, In))
	assert.Equal(t, Counts{Seen: 5, Accepted: 2, Dropped: 1, Shortened: 1, Replaced: 1}, r.Counts(0, Out))
	assert.Equal(t, 6, r.out.len())
	assert.True(t, r.pair.Stats().ProbesReturn)

	_, err := r.far[WireSide].Write(udp(7, 60, 'X')) // the engine's own
	require.NoError(t, err)
	r.eventually("injected", func() bool { return r.Counts(0, Out).Injected == 1 })
	_, err = r.far[HostSide].Write(udp(7, 1000, 'X')[:500])
	require.NoError(t, err)
	r.eventually("cut", func() bool { return r.pair.Stats().Cut == 1 })

	r.there.Store(false)
	r.eventually("absent", func() bool { return r.Queue.Stats().State == Absent })
}

// INS-4: the last frames of a burst need no further ones to come back.
func TestPairBurstsComeBackWhole(t *testing.T) {
	r := newPairRig(t, func(s *Settings) { s.Stall = MaxStall })
	r.engine(marked)
	all := 0
	for _, n := range []int{33, 1, 31} {
		for i := range n {
			require.Equal(t, Taken, r.offer(Direction(i%Directions), udp(byte(i), 1000, 'A')))
		}
		all += n
		r.eventually("all are back", func() bool { return r.out.len() == all })
	}
	assert.Equal(t, uint64(all), r.Counts(0, In).Accepted+r.Counts(0, Out).Accepted)
}

func TestPairWithoutProbes(t *testing.T) {
	r := newPairRig(t, nil)
	r.engine(func(b []byte) []byte {
		if isProbe(b) {
			return nil
		}
		return marked(b)
	})
	r.offer(In, udp(1, 100, 'D'))
	r.offer(In, udp(1, 100, 'A'))
	r.eventually("decided", func() bool { return r.Queue.Stats().Frames == 0 })
	assert.Equal(t, Counts{Seen: 2, Accepted: 1, Dropped: 1}, r.Counts(0, In))
	assert.Zero(t, r.Queue.Stats().Events.Stalls)
}

func TestPairStalls(t *testing.T) {
	var stopped atomic.Bool
	r := newPairRig(t, func(s *Settings) { s.OnStall = Pass })
	r.engine(func(b []byte) []byte {
		if stopped.Load() {
			return nil
		}
		return b
	})
	r.offer(In, udp(1, 100, 'A'))
	r.eventually("accepted", func() bool { return r.Counts(0, In).Accepted == 1 && r.pair.Stats().ProbesReturn })
	stopped.Store(true)
	r.offer(In, udp(1, 100, 'B'))
	r.eventually("stalled", func() bool { return r.Queue.Stats().State == Stalled })
	r.eventually("passes", func() bool { r.offer(In, udp(1, 100, 'C')); return r.Counts(0, In).PassStall > 0 })
	stopped.Store(false)
	r.eventually("works again", func() bool { return r.Queue.Stats().State == Idle })
	assert.Equal(t, uint64(1), r.Queue.Stats().Events.Stalls)
}

// The last frames of a burst come back without any that follow, and without probes.
func TestPairLeavesNothingBehind(t *testing.T) {
	r := newPairRig(t, func(s *Settings) { s.Stall = MaxStall })
	r.engine(func(b []byte) []byte {
		if isProbe(b) {
			return nil
		}
		return b
	})
	want := 0
	for _, burst := range []int{1, pairBatch - 1, pairBatch, pairBatch + 1, pairReads + 1} {
		for i := range burst {
			require.Equal(t, Taken, r.offer(Direction(i%Directions), udp(byte(i), 200, byte(burst))))
		}
		want += burst
		r.eventually("all of a burst is back", func() bool { return r.out.len() == want })
	}
	assert.Zero(t, r.Queue.Stats().Events.Late)
}
