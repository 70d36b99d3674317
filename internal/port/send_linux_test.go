package port

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
	"oxpd/internal/clock"
)

// taker is a filter that takes every other frame.
type taker struct{ taken [][]byte }

func (f *taker) Leave() {}
func (f *taker) Judge(_ board.Port, b []byte) Outcome {
	if b[len(b)-1]&1 == 0 {
		return Pass
	}
	f.taken = append(f.taken, append([]byte(nil), b...))
	return Take
}

func passed(frames ...[]byte) (out []Passed) {
	for _, b := range frames {
		out = append(out, Passed{Frame: b})
	}
	return out
}

// A frame that the filter takes takes no slot and is in no counter of the port, until
// Send brings it.
func TestFilterTakesAFrameAndSendsItLater(t *testing.T) {
	q := &queued{}
	for i := range 10 {
		q.frames = append(q.frames, marked(60+i, i%2 == 1))
	}
	p := newPort(Config{Port: board.ByIndex(3)}, q, nil)
	slots, f := newSlots(255), &taker{}
	tr := bare(slots, p)
	tr.filter = f
	require.NoError(t, tr.round(context.Background(), []int32{1}))
	require.Len(t, f.taken, 5)
	assert.Equal(t, 5, slots.committed)
	s := p.counters.Stats()
	assert.EqualValues(t, []int{5, 0}, []int{int(s.TxPackets), int(s.TxDrops)})

	tr.Send(context.Background(), p, passed(f.taken...))
	var want []sent
	for _, first := range []int{0, 1} {
		for i := first; i < 10; i += 2 {
			want = append(want, sent{uint16(p.port.Tag), marked(60+i, i%2 == 1)})
		}
	}
	assert.Equal(t, want, slots.all())
	assert.Equal(t, 10, slots.visible, "with a doorbell")
	s = p.counters.Stats()
	assert.EqualValues(t, []int{10, 0, 645}, []int{int(s.TxPackets), int(s.TxDrops), int(s.TxBytes)})
}

// What has come back is measured as if it had been read, against what holds now. The
// header's length is believed when it is known.
func TestSendMeasures(t *testing.T) {
	for _, tc := range []struct {
		name   string
		mtu    int
		bytes  int
		vlans  int
		header int
		want   string
	}{
		{"13 bytes", 1500, 13, 0, 0, "tx_malformed"},
		{"14 bytes", 1500, 14, 0, 0, "tx_packets"},
		{"MTU and header", 1500, 1514, 0, 0, "tx_packets"},
		{"one byte more", 1500, 1515, 0, 0, "tx_toolong"},
		{"eight more with two tags", 1500, 1522, 2, 0, "tx_packets"},
		{"eight more with two tags, read", 1500, 1522, 2, 22, "tx_packets"},
		{"eight more with a header that was read", 1500, 1522, 2, 14, "tx_toolong"},
		{"nine more with two tags", 1500, 1523, 2, 0, "tx_toolong"},
		{"as long as a slot", 65000, slotSize, 0, 0, "tx_toolong"},
		{"longer than a slot", 65000, slotSize + 1, 0, 0, "tx_toolong"},
		{"one byte less", 65000, slotSize - 1, 0, 0, "tx_packets"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPort(Config{Port: board.ByIndex(0)}, &queued{}, nil)
			p.SetLimit(tc.mtu)
			slots := newSlots(255)
			tr := bare(slots, p)
			tr.Send(context.Background(), p, []Passed{{ether(tc.bytes, tc.vlans, 0), tc.header}, {ether(60, 0, 0), 0}})
			assert.Equal(t, tc.want == "tx_packets", counter(p, "tx_drops") == 0)
			if tc.want == "tx_packets" {
				assert.EqualValues(t, 2, counter(p, tc.want))
			} else {
				assert.EqualValues(t, 1, counter(p, tc.want))
			}
			assert.EqualValues(t, counter(p, "tx_packets"), slots.count(), "slots used")
			assert.EqualValues(t, 2, p.counters.Stats().TxFrames())
		})
	}
}

func counter(p *Port, name string) (value uint64) {
	p.counters.Stats().Each(func(n string, v uint64) {
		if n == name {
			value = v
		}
	})
	return value
}

// What an engine lets go on when its port or the card has gone is counted.
func TestSendCountsWhatHasNoWay(t *testing.T) {
	p := newPort(Config{Port: board.ByIndex(0)}, &queued{}, nil)
	slots := newSlots(255)
	tr := bare(slots, p)
	p.Counters().Strand(3)
	p.Counters().Refuse(QueueShards)
	p.closed.Store(true)
	tr.Send(context.Background(), p, passed(ether(60, 0, 0), ether(60, 0, 1)))
	assert.Zero(t, slots.committed)
	assert.EqualValues(t, []uint64{3, 2, 5}, []uint64{counter(p, "tx_gone"), counter(p, "tx_closed"), counter(p, "tx_drops")})
	assert.EqualValues(t, 1, counter(p, "tap_down"))
}

// A queue that is full for a while is waited for; once it has been full for 20 ms the
// frames are dropped, and later ones at once until there is room.
func TestSendWaitsForAFullQueue(t *testing.T) {
	p := newPort(Config{Port: board.ByIndex(0)}, &queued{}, nil)
	slots := newSlots(4)
	tr := bare(slots, p)
	var frames [][]byte
	for i := range 10 {
		frames = append(frames, ether(60, 0, byte(i)))
	}
	moves := &stepping{during: func() { slots.take(1) }}
	tr.clock = moves
	tr.Send(context.Background(), p, passed(frames...))
	assert.EqualValues(t, 10, counter(p, "tx_packets"))
	assert.Zero(t, counter(p, "tx_drops"))
	var all time.Duration
	for _, d := range moves.sleeps {
		all += d
	}
	assert.Len(t, moves.sleeps, 6, "the card finishes one in each")
	assert.Equal(t, 6*fullWait, all)

	still := &stepping{}
	tr.clock = still
	tr.Send(context.Background(), p, passed(frames[:3]...))
	all = 0
	for _, d := range still.sleeps {
		all += d
	}
	assert.GreaterOrEqual(t, all, sendPatience)
	assert.Less(t, all, sendPatience+fullWaitMax)
	assert.EqualValues(t, 3, counter(p, "tx_ring_full"))
	n := len(still.sleeps)
	for range 5 {
		tr.Send(context.Background(), p, passed(frames[:2]...))
	}
	assert.Len(t, still.sleeps, n, "it stands still: nobody waits again")
	assert.EqualValues(t, 13, counter(p, "tx_ring_full"))

	slots.take(4)
	tr.clock = moves
	tr.Send(context.Background(), p, passed(frames...))
	assert.EqualValues(t, 20, counter(p, "tx_packets"), "there is room: it is waited for again")
	assert.EqualValues(t, 13, counter(p, "tx_drops"))
}

// A context that ends ends the wait.
func TestSendIsInterrupted(t *testing.T) {
	p := newPort(Config{Port: board.ByIndex(0)}, &queued{}, nil)
	tr := bare(newSlots(0), p)
	tr.clock = clock.NewReal()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	tr.Send(ctx, p, passed(ether(60, 0, 0)))
	assert.EqualValues(t, 1, counter(p, "tx_ring_full"))
}

// Frames that come back go between those that are read, from several engines at once;
// each is posted and counted once.
func TestSendBesideTheTransmitter(t *testing.T) {
	const each, engines = 2000, 3
	ns := newNS(t)
	p, other := open(t, ns), open(t, ns, "oxp1")
	linux := listen(t, ns, p.Index())
	slots := newSlots(255)
	slots.auto, slots.keep = true, false
	transmitter := transmit(t, slots, p, other)
	var done sync.WaitGroup
	for e := range engines {
		done.Add(1)
		go func() {
			defer done.Done()
			to := []*Port{p, other, p}[e]
			for i := range each / 4 {
				transmitter.Send(context.Background(), to, passed(ether(60, 0, byte(i)), ether(61, 0, 0), ether(62, 0, 0), ether(63, 0, 0)))
			}
		}()
	}
	for i := range each {
		linux.send(ether(60, 0, byte(i)))
	}
	done.Wait()
	eventually(t, "what was read is posted", func() bool { s := p.Stats(); return s.TxPackets+s.TapKernelDropped == 3*each })
	eventually(t, "all is visible", func() bool { return uint64(slots.count()) == p.Stats().TxPackets+each })
	assert.EqualValues(t, each, other.Stats().TxPackets)
	assert.Zero(t, p.Stats().TxDrops+other.Stats().TxDrops)
}

func TestSendAllocatesNothing(t *testing.T) {
	p := newPort(Config{Port: board.ByIndex(0)}, &queued{}, nil)
	slots := newSlots(255)
	slots.auto, slots.keep = true, false
	tr := bare(slots, p)
	frames := passed(ether(60, 0, 0), ether(1514, 0, 0))
	assert.Zero(t, testing.AllocsPerRun(200, func() { tr.Send(context.Background(), p, frames) }))
}

// Fits says what Receive would find, before anybody has to decide about a frame.
func TestFitsSaysWhatReceiveWouldDo(t *testing.T) {
	p := newPort(Config{Port: board.ByIndex(0)}, &counting{}, nil)
	for _, n := range []int{0, 13, 14, 1514, 1515, 1518, 1519, 1522, 1523} {
		for vlans := range 3 {
			b := one(ether(n, vlans, 0))
			fits := p.Fits(b, n, 0)
			d := p.Receive(QueueShards, b, 0)
			assert.Equal(t, fits, d == Delivered, "%d bytes, %d tags: %v", n, vlans, d)
		}
	}
}
