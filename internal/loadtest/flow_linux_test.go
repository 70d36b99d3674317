package loadtest

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
	"oxpd/internal/cputime"
	"oxpd/ring/wire"
)

const (
	// flowBurst is how many frames a flow sends between two looks at its ring.
	flowBurst = 16
	// flowPause is how long it stays away when its ring has no room.
	flowPause = 20 * time.Microsecond
)

// flow sends copies of one frame into one ring as fast as the driver takes them, and no
// faster: as many are under way as three quarters of the ring's buffers take. None is lost
// before the driver has judged it, so what became of each is the driver's doing, and can be
// counted to the frame. One run at a time.
type flow struct {
	l     *lab
	port  board.Port
	frame []byte
	ring  int
	burst uint64
	gap   time.Duration // after each burst: 0 for a flood

	sent uint64 // by the run
	base uint64 // packets of the ring before it
}

// newFlow makes a flow of frames of a size from an address that nobody has. Its ring is
// none of those that others take.
func (l *lab) newFlow(p board.Port, from netip.Addr, size int, others ...*flow) *flow {
	l.t.Helper()
	host, err := l.host.Link(p.Name)
	require.NoError(l.t, err)
	far, err := l.farOf(p).Link(p.Label)
	require.NoError(l.t, err)
	f := &flow{l: l, port: p, burst: flowBurst}
	for source := uint16(1); ; source++ {
		require.Less(l.t, source, uint16(1000), "no source port has a ring of its own")
		f.frame = sourceFrame(host.MAC, far.MAC, from, size, source)
		f.ring = l.ringOf(func() { l.inject(p, f.frame) })
		taken := false
		for _, o := range others {
			taken = taken || o.ring == f.ring
		}
		if !taken {
			break
		}
	}
	l.rest()
	return f
}

// buffers is how many of the ring's buffers a frame takes.
func (f *flow) buffers() uint64 { return uint64(wire.Buffers(len(f.frame) + wire.LenOverhead)) }

// underWay is how many frames the driver has not taken, and how many of those lie in
// the ring for it.
func (f *flow) underWay() (all, written uint64) {
	s := f.l.card.RingState(f.ring)
	return f.sent - (s.Packets - uint64(s.Count) - f.base), uint64(s.Count)
}

// ran is what one run of a flow was like.
type ran struct {
	frames uint64
	took   time.Duration
	cpu    time.Duration // of the sender
	// How long the sender stood still while more than half of what was under way lay in
	// the ring, and the other times.
	driverLate, cardLate time.Duration
}

// limit says which side kept the flow from being faster.
func (r ran) limit() string {
	switch {
	case r.driverLate+r.cardLate < r.took/4:
		return "sender"
	case r.driverLate > r.cardLate:
		return "driver"
	}
	return "card"
}

// run sends n frames, or until ctx ends, and waits until the driver has taken the last.
// The ring is at rest before. It takes the calling goroutine's thread for itself.
func (f *flow) run(ctx context.Context, n uint64) (r ran) {
	t := f.l.t
	f.sent, f.base = 0, f.l.card.RingState(f.ring).Packets
	th := cputime.Bind()
	used, err := th.Used()
	assert.NoError(t, err)
	room := 3 * wire.OQEntries / 4 / f.buffers()
	start := time.Now()
	moved := start // when the driver took something last
	last := uint64(0)
	for {
		all, written := f.underWay()
		ended := f.sent >= n || ctx.Err() != nil
		if ended && all == 0 {
			break
		}
		if now := time.Now(); all != last {
			last, moved = all, now
		} else if now.Sub(moved) > hang {
			assert.Fail(t, "the driver takes nothing", "%d frames under way", all)
			break
		}
		if ended || all+f.burst > room {
			from := time.Now()
			time.Sleep(flowPause)
			if waited := time.Since(from); !ended && 2*written > all {
				r.driverLate += waited
			} else if !ended {
				r.cardLate += waited
			}
			continue
		}
		for range min(f.burst, n-f.sent) {
			f.l.inject(f.port, f.frame)
			f.sent++
		}
		if f.gap > 0 {
			time.Sleep(f.gap)
		}
	}
	r.frames, r.took = f.sent, time.Since(start)
	after, err := th.Used()
	assert.NoError(t, err)
	r.cpu = after - used
	return r
}

// start is run in a goroutine of its own. stop ends it and returns what it was like.
func (f *flow) start(n uint64) (stop func() ran) {
	ctx, cancel := context.WithCancel(f.l.ctx)
	done := make(chan ran, 1)
	go func() { done <- f.run(ctx, n) }()
	return func() ran {
		cancel()
		return <-done
	}
}

// whole waits for a run of n frames in a goroutine of its own.
func (f *flow) whole(n uint64) ran {
	done := make(chan ran, 1)
	go func() { done <- f.run(f.l.ctx, n) }()
	return <-done
}

// What a flow is late by.
func TestLimitOfAFlow(t *testing.T) {
	for _, tc := range []struct {
		name string
		ran  ran
		want string
	}{
		{"it never waited", ran{took: time.Second}, "sender"},
		{"it waited seldom", ran{took: time.Second, driverLate: 200 * time.Millisecond}, "sender"},
		{"the ring was full", ran{took: time.Second, driverLate: 300 * time.Millisecond, cardLate: 200 * time.Millisecond}, "driver"},
		{"the ring was empty", ran{took: time.Second, driverLate: 200 * time.Millisecond, cardLate: 300 * time.Millisecond}, "card"},
	} {
		t.Run(tc.name, func(t *testing.T) { assert.Equal(t, tc.want, tc.ran.limit()) })
	}
}
