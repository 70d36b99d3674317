package divert

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
	"oxpd/internal/frame"
)

// handClock stands until a test moves it.
type handClock struct{ now time.Duration }

func (c *handClock) Now() time.Duration { return c.now }
func (c *handClock) Sleep(ctx context.Context, d time.Duration) error {
	c.now += d
	return ctx.Err()
}

// gone is an outlet that keeps what went on.
type gone struct{ frames [][]byte }

func (g *gone) Release(frames []Released) {
	for _, f := range frames {
		g.frames = append(g.frames, bytes.Clone(f.Frame))
	}
}

type rig struct {
	*testing.T
	*Queue
	clock *handClock
	out   *gone
}

func newRig(t *testing.T, change func(*Settings)) *rig {
	s := Defaults()
	if change != nil {
		change(&s)
	}
	r := &rig{T: t, clock: &handClock{now: time.Hour}, out: &gone{}}
	r.Queue = NewQueue(QueueConfig{Name: "test", Settings: s, Outlet: r.out, Limit: func(int) int { return 1500 }, Clock: r.clock})
	t.Cleanup(r.sums)
	return r
}

// sums checks that each frame is in exactly one counter.
func (r *rig) sums() {
	for p := range board.Ports {
		for d := range Direction(Directions) {
			c := r.Counts(p, d)
			assert.Equal(r.T, c.Seen, c.Sum(), "port %d %v: %+v", p, d, c)
		}
	}
}

// udp is a frame of a flow, n bytes long, with mark in its last byte.
func udp(flow byte, n int, mark byte) []byte {
	b := make([]byte, n)
	copy(b[12:], []byte{8, 0, 0x45, 0, byte((n - 14) >> 8), byte(n - 14), 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0x10, flow, 0x20, 0})
	b[n-1] = mark
	return b
}

func (r *rig) offer(b []byte) Fate {
	var head frame.Packet
	head.Parse(b, len(b))
	return r.Queue.Offer(r.clock.now, &Offered{Pieces: [][]byte{b[:20], b[20:]}, Bytes: len(b), Head: &head})
}

func (r *rig) take(most int) []uint64 {
	dst := make([]Ticket, most)
	n := r.Take(dst)
	ids := make([]uint64, n)
	for i := range ids {
		ids[i] = dst[i].ID
	}
	r.Sent(dst[:n], n)
	return ids
}

func TestVerdicts(t *testing.T) {
	r := newRig(t, nil)
	r.Attach()
	for i := range byte(4) {
		require.Equal(t, Taken, r.offer(udp(i, 100, i)))
	}
	ids := r.take(10)
	require.Len(t, ids, 4)
	other := udp(9, 60, 0x99)
	r.Settle([]Verdict{{ID: ids[0], Code: CodeDrop}, {ID: ids[1], Code: CodeAccept}, {ID: ids[2], Code: CodeReplace, Frame: other}, {ID: ids[3], Code: CodeReplace, Frame: make([]byte, 1515)}})
	require.Len(t, r.out.frames, 2)
	assert.Equal(t, udp(1, 100, 1), r.out.frames[0])
	assert.Equal(t, other, r.out.frames[1])
	assert.Equal(t, Counts{Seen: 4, Accepted: 1, Dropped: 1, Replaced: 1, Oversize: 1}, r.Counts(0, In))
	r.Settle([]Verdict{{ID: ids[0], Code: CodeAccept}, {ID: 12345 << slotBits, Code: CodeAccept}})
	assert.Len(t, r.out.frames, 2)
	s := r.Stats()
	assert.Equal(t, uint64(1), s.Events.Late)
	assert.Equal(t, uint64(1), s.Events.Unknown)
	assert.Equal(t, Idle, s.State)
	assert.Equal(t, 4, s.MaxFrames)
	assert.Equal(t, int64(4*(100+EntryOverhead)), s.MaxBytes)
}

func TestBounds(t *testing.T) {
	for name, c := range map[string]struct {
		set   func(*Settings)
		fits  int
		after Counts
	}{
		"frames, drop": {func(s *Settings) { s.QueueLen = 3 }, 3, Counts{Seen: 4, Queued: 3, DropFull: 1}},
		"frames, pass": {func(s *Settings) { s.QueueLen, s.OnFull = 3, Pass }, 3, Counts{Seen: 4, Queued: 3, PassFull: 1, Reordered: 1}},
		"frames, keep": {func(s *Settings) { s.QueueLen, s.OnFull, s.Order = 3, Pass, Keep }, 3, Counts{Seen: 4, Queued: 3, DropFull: 1}},
		"bytes":        {func(s *Settings) { s.QueueBytes = 16 << 10 }, 10, Counts{Seen: 11, Queued: 10, DropFull: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, c.set)
			r.Attach()
			for range c.fits {
				require.Equal(t, Taken, r.offer(udp(1, 1514, 0)))
			}
			assert.NotEqual(t, Taken, r.offer(udp(1, 1514, 0)))
			assert.Equal(t, c.after, r.Counts(0, In))
		})
	}
}

func TestStall(t *testing.T) {
	r := newRig(t, func(s *Settings) { s.OnStall = Pass })
	r.Attach()
	r.clock.now += time.Hour
	r.Expire()
	assert.Equal(t, Idle, r.Stats().State, "an engine without frames is not stalled")
	for i := range byte(3) {
		require.Equal(t, Taken, r.offer(udp(1, 100, i)))
	}
	ids := r.take(2)
	r.clock.now += time.Second - 1
	r.Expire()
	assert.Equal(t, Busy, r.Stats().State)
	r.clock.now++
	r.Expire()
	require.Equal(t, Stalled, r.Stats().State)
	require.Len(t, r.out.frames, 3)
	for i, f := range r.out.frames {
		assert.Equal(t, byte(i), f[99], "in order")
	}
	assert.Equal(t, Passed, r.offer(udp(1, 100, 3)))
	r.clock.now += time.Second
	assert.Equal(t, Taken, r.offer(udp(1, 100, 4)), "one frame is tried")
	assert.Equal(t, Passed, r.offer(udp(1, 100, 5)))
	r.Settle([]Verdict{{ID: ids[0], Code: CodeDrop}})
	assert.Equal(t, Busy, r.Stats().State)
	assert.Equal(t, Counts{Seen: 6, PassStall: 5, Queued: 1, Reordered: 1}, r.Counts(0, In))
}

func TestSkippedID(t *testing.T) {
	r := newRig(t, nil)
	r.Attach()
	r.offer(udp(1, 100, 0))
	for i := range byte(30) {
		r.offer(udp(1, 100, i))
		ids := r.take(2)
		r.clock.now += 100 * time.Millisecond
		r.Settle([]Verdict{{ID: ids[len(ids)-1], Code: CodeAccept}})
		r.Expire()
	}
	assert.Equal(t, Counts{Seen: 31, Accepted: 30, DropStall: 1}, r.Counts(0, In))
	assert.Equal(t, uint64(0), r.Stats().Events.Stalls)
}

func TestSlowEngineIsNotStalled(t *testing.T) {
	r := newRig(t, nil)
	r.Attach()
	for range 100 {
		r.offer(udp(1, 100, 0))
	}
	for range 100 {
		r.clock.now += 900 * time.Millisecond
		r.Expire()
		r.Settle([]Verdict{{ID: r.take(1)[0], Code: CodeAccept}})
	}
	assert.Equal(t, Counts{Seen: 100, Accepted: 100}, r.Counts(0, In))
}

func TestDetach(t *testing.T) {
	r := newRig(t, nil)
	assert.Equal(t, Lost, r.offer(udp(1, 100, 0)))
	r.Attach()
	for range 500 {
		r.offer(udp(1, 100, 0))
	}
	dst := make([]Ticket, 32)
	require.Equal(t, 32, r.Take(dst))
	r.Detach()
	r.Sent(dst, 3)
	assert.Equal(t, Counts{Seen: 501, DropAbsent: 501}, r.Counts(0, In))
	assert.Equal(t, 0, r.Stats().Frames)
	assert.Equal(t, len(r.chunks)*chunk, len(r.spare))
}

func TestPutBack(t *testing.T) {
	r := newRig(t, nil)
	r.Attach()
	for i := range byte(5) {
		r.offer(udp(1, 100, i))
	}
	dst := make([]Ticket, 4)
	require.Equal(t, 4, r.Take(dst))
	first := dst[0].ID
	r.Sent(dst, 1)
	ids := r.take(10)
	require.Len(t, ids, 4)
	r.Settle([]Verdict{{ID: first, Code: CodeAccept}, {ID: ids[0], Code: CodeAccept}, {ID: ids[3], Code: CodeAccept}})
	require.Len(t, r.out.frames, 3)
	assert.Equal(t, []byte{0, 1, 4}, []byte{r.out.frames[0][99], r.out.frames[1][99], r.out.frames[2][99]})
}

func TestAcceptFlow(t *testing.T) {
	r := newRig(t, nil)
	r.Attach()
	r.offer(udp(1, 100, 0))
	r.Settle([]Verdict{{ID: r.take(1)[0], Code: CodeAcceptFlow}})
	assert.Equal(t, Passed, r.offer(udp(1, 100, 1)))
	assert.Equal(t, Taken, r.offer(udp(2, 100, 1)), "another connection")
	r.clock.now += flowIdle
	assert.Equal(t, Taken, r.offer(udp(1, 100, 2)), "idle for too long")
	assert.Equal(t, Counts{Seen: 4, Accepted: 1, FlowPassed: 1, Queued: 2}, r.Counts(0, In))
}

func TestDelays(t *testing.T) {
	for _, d := range []time.Duration{0, 1, 7, 8, 9, 15, 16, 100, 12345, time.Second, time.Hour} {
		end := bucketEnd(delayBucket(d))
		if d < time.Minute {
			assert.GreaterOrEqual(t, end, d)
			assert.LessOrEqual(t, float64(end), float64(d)*1.125)
		}
	}
	var h delays
	for i := range 1000 {
		h.add(time.Duration(i) * time.Millisecond)
	}
	assert.InEpsilon(t, 500*time.Millisecond, h.quantile(0.5), 0.13)
	assert.InEpsilon(t, 990*time.Millisecond, h.quantile(0.99), 0.13)
}

func TestParseSize(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "64kb": 65536, "64k": 65536, "64KB": 65536, "65535": 65535, "64mb": 67108864, "4gb": 4 << 30, "2147483648": 1 << 31, "9223372036854775807": 1<<63 - 1} {
		n, err := ParseSize(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, n, text)
	}
	for _, text := range []string{"", "kb", "-1", "+1", "1x", "64kbb", "1.5mb", "9007199254740992gb", "18446744073709551616", " 1"} {
		_, err := ParseSize(text)
		assert.Error(t, err, text)
	}
	for n, ok := range map[int64]bool{0: true, 65535: false, 65536: true, 67108864: true, 67108865: false, 1<<32 + 65536: false, -65536: false} {
		assert.Equal(t, ok, CheckBufferSize(n) == nil, n)
	}
}

// The number of an id can be guessed, its frame not.
func TestGuessedID(t *testing.T) {
	r := newRig(t, nil)
	r.Attach()
	r.offer(udp(1, 100, 0))
	id := r.take(1)[0]
	r.offer(udp(1, 100, 1))
	next := id + 1<<slotBits
	for slot := range uint64(4) {
		r.Settle([]Verdict{{ID: next&^slotMask | slot, Code: CodeAccept}})
	}
	assert.Empty(t, r.out.frames)
	assert.NotZero(t, r.Stats().Events.Unknown)
}
