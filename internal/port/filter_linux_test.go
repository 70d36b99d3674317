package port

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/board"
	"oxpd/internal/clock"
	"oxpd/internal/frame"
)

// sieve is a filter that drops frames whose last byte is odd, and keeps what it saw.
type sieve struct {
	t      testing.TB
	inside bool
	turns  int
	asked  []int // lengths
	ports  map[string]int
}

func (s *sieve) Leave() { s.inside = false }

func (s *sieve) Judge(p board.Port, b []byte) Outcome {
	if !s.inside {
		s.inside = true
		s.turns++
	}
	s.asked = append(s.asked, len(b))
	s.ports[p.Name]++
	if b[len(b)-1]&1 == 1 {
		return Drop
	}
	return Pass
}

// marked is a frame that the sieve drops, or not.
func marked(n int, drop bool) []byte {
	b := ether(n, 0, 0)
	b[n-1] &^= 1
	if drop {
		b[n-1] |= 1
	}
	return b
}

// A frame that the filter drops takes no slot: the next one is read into the same, and
// what is posted is what passed. A frame that must not be posted anyway is not judged.
func TestFilterDropsBeforeASlotIsTaken(t *testing.T) {
	q := &queued{}
	var want []sent
	bytes := 0
	add := func(n int, drop bool) {
		q.frames = append(q.frames, marked(n, drop))
		if drop {
			bytes += n
		} else {
			want = append(want, sent{uint16(board.ByIndex(3).Tag), marked(n, false)})
		}
	}
	for i := range 300 {
		add(60+i, i%3 != 0)
	}
	q.frames = append(q.frames, marked(13, true), marked(1515, true)) // malformed, too long
	p := newPort(Config{Port: board.ByIndex(3)}, q, nil)
	slots, s := newSlots(512), &sieve{t: t, ports: map[string]int{}}
	tr := bare(slots, p)
	tr.filter = s
	for range 10 {
		require.NoError(t, tr.round(context.Background(), []int32{1}))
		assert.False(t, s.inside, "no turn is left open")
	}

	assert.Equal(t, want, slots.all(), "bytes and order of what passed")
	assert.Equal(t, 100, slots.committed)
	st := p.counters.Stats()
	assert.EqualValues(t, []int{100, 200, bytes, 1, 1}, []int{int(st.TxPackets), int(st.TxPfilDropped), int(st.TxPfilDroppedBytes), int(st.TxMalformed), int(st.TxTooLong)})
	assert.EqualValues(t, 202, st.TxDrops)
	assert.EqualValues(t, 302, st.TxFrames(), "each has one end")
	assert.Len(t, s.asked, 300)
	assert.Equal(t, map[string]int{board.ByIndex(3).Name: 300}, s.ports)
	assert.Equal(t, 10, s.turns, "a burst a turn")
}

// A queue of the card that is full holds no turn open while its slots are waited for.
func TestFilterIsLeftWhileTheQueueIsFull(t *testing.T) {
	q := &queued{}
	for range 10 {
		q.frames = append(q.frames, marked(60, false), marked(60, true))
	}
	p := newPort(Config{Port: board.ByIndex(0)}, q, nil)
	slots, s := newSlots(4), &sieve{t: t, ports: map[string]int{}}
	tr := bare(slots, p)
	tr.filter = s
	tr.clock = &stepping{during: func() {
		assert.False(t, s.inside, "asleep inside of a turn")
		slots.take(4)
	}}
	require.NoError(t, tr.round(context.Background(), []int32{1}))
	assert.Equal(t, 10, slots.committed)
	assert.EqualValues(t, 10, p.counters.Stats().TxPfilDropped)
}

// A port of which everything is dropped leaves the others their turn, and rings no
// doorbell.
func TestFilterDropsAllOfOnePort(t *testing.T) {
	one, other := &queued{}, &queued{}
	for range 10 * burst {
		one.frames = append(one.frames, marked(60, true))
	}
	other.frames = [][]byte{marked(60, false)}
	a, b := newPort(Config{Port: board.ByIndex(0)}, one, nil), newPort(Config{Port: board.ByIndex(1)}, other, nil)
	slots := newSlots(255)
	tr := bare(slots, a, b)
	tr.filter = &sieve{t: t, ports: map[string]int{}}
	require.NoError(t, tr.round(context.Background(), []int32{1}))
	assert.Zero(t, slots.flushes)
	require.NoError(t, tr.round(context.Background(), []int32{1, 2}))
	assert.Equal(t, 1, slots.flushes)
	assert.Equal(t, 1, slots.visible)
	assert.Len(t, one.frames, 8*burst)
	assert.EqualValues(t, 2*burst, a.counters.Stats().TxPfilDropped)
	assert.Zero(t, b.counters.Stats().TxPfilDropped)
}

// evens is a filter that costs nothing.
type evens struct{ n int }

func (e *evens) Judge(board.Port, []byte) Outcome { e.n++; return []Outcome{Drop, Pass}[e.n&1] }
func (*evens) Leave()                             {}

func TestFilteringAllocatesNothing(t *testing.T) {
	ns := newNS(t)
	p := open(t, ns)
	linux := listen(t, ns, p.Index())
	slots := newSlots(255)
	slots.auto, slots.keep = true, false
	tr, err := NewTransmitter([]*Port{p}, slots, &evens{}, clock.NewReal(), nil)
	require.NoError(t, err)
	defer tr.Close()
	b, ids := ether(1514, 0, 0), make([]int32, 64)
	assert.Zero(t, testing.AllocsPerRun(200, func() {
		for range burst {
			if _, err := unix.Write(linux.fd, b); err != nil {
				panic(err)
			}
		}
		n, err := tr.poll.wait(ids)
		if err != nil || tr.round(context.Background(), ids[:n]) != nil {
			panic("round")
		}
	}))
	s := p.Stats()
	assert.EqualValues(t, []uint64{201 * burst / 2, 201 * burst / 2}, []uint64{s.TxPackets, s.TxPfilDropped})
}

// The length of a header that somebody has read is taken as it is: nothing is parsed
// again. Without one, the frame's own bytes say it.
func TestReceiveBelievesTheHeaderThatWasRead(t *testing.T) {
	for name, tc := range map[string]struct {
		vlans, header int
		want          Disposition
	}{
		"nobody has, no tag":      {0, 0, TooLong},
		"nobody has, two tags":    {2, 0, Delivered},
		"untagged":                {2, frame.HeaderSize, TooLong},
		"one tag":                 {2, frame.HeaderSize + frame.VLANSize, TooLong},
		"two tags":                {2, frame.HeaderSize + 2*frame.VLANSize, Delivered},
		"two tags, by the reader": {0, frame.HeaderSize + 2*frame.VLANSize, Delivered},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPort(Config{Port: board.ByIndex(8)}, &counting{}, nil)
			assert.Equal(t, tc.want, p.Receive(0, one(ether(board.DefaultMTU+frame.HeaderSize+2*frame.VLANSize, tc.vlans, 0)), tc.header))
		})
	}
}
