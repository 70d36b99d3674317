package ring

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/board"
	"oxpd/octep/csr"
	"oxpd/ring/wire"
	"oxpd/rpc/msg"
)

// What the rings do about the failure modes of datapath.md 7, each switched on by
// its name. The symptoms are asserted in hwsim.

// inject puts faults of the card into force.
func (b *bench) inject(texts ...string) {
	b.t.Helper()
	for _, text := range texts {
		i, err := hwsim.ParseInjection(text)
		require.NoError(b.t, err)
		require.NoError(b.t, b.card.Inject(i))
	}
}

// burst sends n frames of one flow into PortF1, numbered from a sequence number on.
func (b *bench) burst(flow, from, n, frameBytes int) {
	for i := range n {
		b.card.Wire(uint16(portF1.Tag)).Send(udp(b.mac(portF1), flow, from+i, frameBytes))
	}
}

// inOrder fails unless the frames that were delivered are those of one flow from a
// sequence number on, none missing.
func (s *keep) inOrder(t *testing.T, from, n int) {
	t.Helper()
	require.Len(t, s.frames, n)
	for i, f := range s.frames {
		_, seq := flowSeq(f)
		require.Equal(t, from+i, seq)
	}
	s.frames, s.tags = nil, nil
}

// No message comes for what waits: the watchdog finds it within 50 ms and counts
// the rescue, and a stall where much had waited.
//
//oxpd:fault D1 behaviour
func TestD1WatchdogRescues(t *testing.T) {
	sink := &keep{}
	b := newBench(t, sink)
	flow := b.flowOf()[3]
	h := b.host()
	h.serve(SweepPeriod, func() bool { return b.rings.Stats().IntrTaken > 0 || b.card.Clock().Now() > 0 })
	sink.frames = nil
	b.inject("message-edge-lost")
	seq := 0
	for _, n := range []int{1, 200, 900} {
		before := b.rings.Stats()
		b.burst(flow, seq, n, 60)
		b.card.Advance(2 * time.Millisecond)
		require.EqualValues(t, n, csr.CntsCount.Get(b.load(csr.OutCnts, 3)), "all of it waits")
		// Asleep since before they came.
		_, _, err := h.work.Step(WakeSweep)
		require.NoError(t, err)
		h.serve(SweepPeriod+5*time.Millisecond, func() bool { return len(sink.frames) == n })
		after := b.rings.Stats()
		assert.Equal(t, before.IntrTaken, after.IntrTaken, "no message")
		assert.Greater(t, after.WdRescues, before.WdRescues)
		if n >= 200 {
			assert.Greater(t, after.WdStalls, before.WdStalls)
		}
		sink.inOrder(t, seq, n)
		seq += n
		b.drain()
	}
}

// A status that is latched stops delivery: what comes meanwhile is refused. Before a
// queue is left alone the status is clear, so that each time the next packet arrives.
//
//oxpd:fault D2 behaviour
func TestD2StatusIsClearWhenTheQueueIsLeft(t *testing.T) {
	sink := &keep{}
	b := newBench(t, sink)
	flow := b.flowOf()[3]
	h := b.host()
	sink.frames = nil
	b.inject("status-latched")
	got := 0
	for round := range 100 {
		b.burst(flow, 10*round, 10, 60)
		b.card.Advance(time.Millisecond)
		require.NotZero(t, b.load(csr.OutIntStatus, 3), "latched")
		h.serve(SweepPeriod+5*time.Millisecond, func() bool {
			return csr.CntsCount.Get(b.load(csr.OutCnts, 3)) == 0 && b.load(csr.OutIntStatus, 3) == 0
		})
		require.Greater(t, len(sink.frames), got, "round %d", round)
		_, seq := flowSeq(sink.frames[got])
		require.Equal(t, 10*round, seq, "the first that came")
		got = len(sink.frames)
	}
	assert.EqualValues(t, 1000-got, b.card.Counter(msg.CntTXDropQueueFull), "refused by the card, and nothing else is lost")
}

// The count is ahead of the memory: nothing is taken, the index does not move, the
// next tick is asked for, and the packet is delivered when it is there.
//
//oxpd:fault D3 behaviour
func TestD3NothingIsTakenBeforeItIsThere(t *testing.T) {
	sink := &keep{}
	b := newBench(t, sink)
	b.mtu(portF1, 9000)
	flow := b.flowOf()[3]
	sink.frames = nil
	b.inject("LateBy=900us", "count-before-data")
	for i, n := range []int{60, 9014, 1522} {
		before := b.rings.Stats()
		b.burst(flow, i, 1, n)
		for csr.CntsCount.Get(b.load(csr.OutCnts, 3)) == 0 {
			b.card.Advance(time.Microsecond)
		}
		index := b.rings.OQ(3).read
		work := b.rings.Workers(1)[0]
		_, sleep, err := work.Step(WakeSweep)
		require.NoError(t, err)
		assert.Equal(t, tick, sleep, "the next tick, not the next sweep")
		assert.Equal(t, index, b.rings.OQ(3).read)
		assert.Empty(t, sink.frames)
		b.drain()
		after := b.rings.Stats()
		assert.Greater(t, after.Unseen, before.Unseen)
		assert.Equal(t, before.Skipped, after.Skipped)
		sink.inOrder(t, i, 1)
	}
}

// A gap is stepped over after two ticks, once, and its buffers are credited.
//
//oxpd:fault D4 behaviour
func TestD4GapIsSteppedOver(t *testing.T) {
	sink := &keep{}
	b := newBench(t, sink)
	flow := b.flowOf()[3]
	h := b.host()
	sink.frames = nil
	for round, n := range []string{"1", "7", "40"} {
		before := b.rings.Stats()
		b.inject("entry-never-written=3:" + n)
		b.burst(flow, 100*round, 5, 60)
		h.serve(twoTicks+5*tick, func() bool { return len(sink.frames) == 5 })
		sink.inOrder(t, 100*round, 5)
		b.drain()
		after := b.rings.Stats()
		assert.EqualValues(t, 1, after.Resync-before.Resync)
		assert.EqualValues(t, []uint64{1, 7, 40}[round], after.Skipped-before.Skipped)
		assert.Zero(t, csr.CntsCount.Get(b.load(csr.OutCnts, 3)))
		b.check()
	}
	b.atRest()
}

// Packets that are never counted are delivered, late and in order.
//
//oxpd:fault D5 behaviour
func TestD5UncountedPacketsArriveLate(t *testing.T) {
	sink := &keep{}
	b := newBench(t, sink)
	flow := b.flowOf()[3]
	h := b.host()
	sink.frames = nil
	b.inject("count-never-raised=3:3")
	b.burst(flow, 0, 3, 60)
	h.serve(2*SweepPeriod+5*time.Millisecond, func() bool { return len(sink.frames) == 3 })
	assert.EqualValues(t, 3, b.rings.Stats().Behind)
	b.burst(flow, 3, 100, 60)
	h.serve(SweepPeriod+5*time.Millisecond, func() bool { return len(sink.frames) == 103 })
	sink.inOrder(t, 0, 103)
	b.drain()
	b.check()
}

// A length that no frame has costs its buffer and nothing else: a short one after two
// ticks, a nonsense one at once.
//
//oxpd:fault D6 behaviour
//oxpd:fault D7 behaviour
func TestD6D7LengthCostsOneBuffer(t *testing.T) {
	for name, moves := range map[string]func(s Stats) uint64{
		"short-length":    func(s Stats) uint64 { return s.Short },
		"nonsense-length": func(s Stats) uint64 { return s.Long },
	} {
		t.Run(name, func(t *testing.T) {
			sink := &keep{}
			b := newBench(t, sink)
			flow := b.flowOf()[3]
			h := b.host()
			sink.frames = nil
			before := b.rings.Stats()
			b.inject(name + "=3:1")
			b.burst(flow, 0, 6, 60)
			h.serve(SweepPeriod+5*time.Millisecond, func() bool { return len(sink.frames) == 5 })
			sink.inOrder(t, 1, 5)
			b.drain()
			after := b.rings.Stats()
			assert.EqualValues(t, 1, moves(after)-moves(before), "its counter")
			assert.Equal(t, before.SpanBufs, after.SpanBufs, "one buffer")
			b.check() // the credit of it is back
			b.atRest()
		})
	}
}

// Statistics messages of many sizes fall between the frames of a whole lap: each
// takes its buffers, one count, and gives its credit back.
//
//oxpd:fault D9 behaviour
func TestD9StatisticsMessagesAmongFrames(t *testing.T) {
	sink := &keep{}
	b := newBench(t, sink, func(_ *hwsim.Options, c *Config) {
		c.Judge = JudgeFunc(func(_ []byte, _ int, tag uint16) Verdict {
			if tag == uint16(board.TagControl) {
				return Unowned
			}
			return Pass
		})
	})
	flow := b.flowOf()[0]
	sink.frames = nil
	buffers := 0
	for i := range 600 {
		n := []int{2, 3, 10}[i%3]
		b.inject("statistics-spans=" + []string{"2", "3", "10"}[i%3])
		buffers += n - 1
		b.burst(flow, i, 1, 60)
		b.card.Advance(50 * time.Microsecond)
		if i%5 == 4 {
			b.visitAll()
		}
	}
	b.drain()
	sink.inOrder(t, 0, 600)
	s := b.rings.Stats()
	assert.Equal(t, []uint64{600, 600, uint64(buffers)}, []uint64{s.Untagged, s.Spans, s.SpanBufs})
	b.check()
	b.atRest()
}

// Credit that was held back works when it is let go: within a watchdog's period the
// ring carries again, and no credit is lost or doubled.
//
//oxpd:fault D13 behaviour
func TestD13WithheldCreditComesBack(t *testing.T) {
	sink := &keep{}
	b := newBench(t, sink)
	flow := b.flowOf()[3]
	h := b.host()
	seq := 0
	for range 5 {
		b.inject("credit-withheld")
		b.burst(flow, seq, 1200, 60)
		b.card.Advance(20 * time.Millisecond)
		h.serve(SweepPeriod+20*time.Millisecond, func() bool { return csr.CntsCount.Get(b.load(csr.OutCnts, 3)) == 0 })
		b.burst(flow, seq+2000, 100, 60)
		b.card.Advance(time.Millisecond)
		require.LessOrEqual(t, csr.CntsCount.Get(b.load(csr.OutCnts, 3)), uint64(wire.FetchBatch), "starved")
		require.NoError(t, b.card.ClearFault("credit-withheld"))
		h.serve(SweepPeriod+20*time.Millisecond, func() bool { return csr.CntsCount.Get(b.load(csr.OutCnts, 3)) == 0 })
		seq += 10_000
		sink.frames = nil
		b.burst(flow, seq, 100, 60)
		h.serve(SweepPeriod, func() bool { return len(sink.frames) == 100 })
		sink.inOrder(t, seq, 100)
	}
	b.drain()
	b.check()
	b.atRest()
}

// A ring that stays silent with credit above the watermark is revived by the next
// credit that a pass returns, or by the empty write of a pass that has none.
//
//oxpd:fault D15 behaviour
func TestD15StuckRingIsRevived(t *testing.T) {
	sink := &keep{}
	b := newBench(t, sink)
	flow := b.flowOf()[3]
	h := b.host()
	b.inject("resume-stuck")
	for round := range 5 {
		b.burst(flow, 0, 1200, 60) // beyond what the ring holds: it falls under the watermark
		b.card.Advance(20 * time.Millisecond)
		h.serve(SweepPeriod+20*time.Millisecond, func() bool { return csr.CntsCount.Get(b.load(csr.OutCnts, 3)) == 0 })
		sink.frames = nil
		b.burst(flow, 5000*round, 200, 60)
		h.serve(SweepPeriod+5*time.Millisecond, func() bool { return len(sink.frames) == 200 })
		sink.inOrder(t, 5000*round, 200)
	}
	b.drain()
	b.check()
}

// Instructions that are fetched slowly fill the ring: frames are refused and counted,
// and what was posted leaves once, in order, unharmed.
//
//oxpd:fault D16 behaviour
func TestD16SlowFetchRefusesAndOverwritesNothing(t *testing.T) {
	b := newBench(t, &keep{})
	var seqs []int
	b.card.Wire(uint16(portF1.Tag)).SetReceiver(func(f []byte) {
		_, seq := flowSeq(f)
		seqs = append(seqs, seq)
	})
	b.inject("slow-fetch=50us")
	var posted []int
	refused := uint64(0)
	for i := range 3000 {
		if b.rings.IQ().Post(uint16(portF1.Tag), udp([6]byte{2}, 1, i, 60)) {
			posted = append(posted, i)
		} else {
			refused++
		}
		b.card.Advance(10 * time.Microsecond)
	}
	assert.InDelta(t, wire.IQSlots-1, csr.DBellCount.Get(b.load(csr.InInstrDBell, 0)), 3, "full, and not over")
	assert.Positive(t, refused)
	assert.Equal(t, refused, b.rings.Stats().TxFull)
	b.card.Advance(time.Second)
	b.drain()
	assert.Equal(t, posted, seqs)
	assert.Zero(t, b.card.ReportCount(hwsim.ReportINOverrun)+b.card.ReportCount(hwsim.ReportINSlotReuse))
}

// Frames that the coprocessor drops for a full egress are posted once, and never
// again: slots come back, nothing is refused.
//
//oxpd:fault D21 behaviour
func TestD21FullEgressIsNotRetried(t *testing.T) {
	b := newBench(t, &keep{})
	left := 0
	b.card.Wire(uint16(portF1.Tag)).SetReceiver(func([]byte) { left++ })
	b.inject("egress-full%0.5")
	const frames = 4 * wire.IQSlots
	for i := range frames {
		require.True(t, b.rings.IQ().Post(uint16(portF1.Tag), udp([6]byte{2}, 1, i, 60)))
		b.card.Advance(10 * time.Microsecond)
	}
	b.drain()
	s := b.rings.Stats()
	assert.EqualValues(t, frames, s.TxPosted)
	assert.EqualValues(t, frames, s.TxFinished)
	assert.EqualValues(t, frames, b.card.Counter(msg.CntRXKN), "each once")
	assert.Zero(t, s.TxFull)
	assert.InDelta(t, frames/2, left, frames/8)
	assert.EqualValues(t, frames-left, b.card.Counter(msg.CntTXDropQueueFull))
}

// Frames that no port owns are in rx_untagged and nowhere else.
//
//oxpd:fault D25 behaviour
func TestD25FramesOfNoPortAreCounted(t *testing.T) {
	sink := &keep{}
	b := newBench(t, sink, func(_ *hwsim.Options, c *Config) {
		c.Judge = JudgeFunc(func(_ []byte, _ int, tag uint16) Verdict {
			if _, known := board.ByTag(board.Tag(tag)); !known {
				return Unowned
			}
			return Pass
		})
	})
	flow := b.flowOf()[0]
	sink.frames = nil
	before := b.rings.Stats()
	for i := range 100 {
		b.inject("frame-of-no-port", "frame-of-no-port=0x7777")
		b.burst(flow, i, 1, 60)
		b.card.Advance(50 * time.Microsecond)
	}
	b.drain()
	sink.inOrder(t, 0, 100)
	after := b.rings.Stats()
	assert.EqualValues(t, 200, after.Untagged-before.Untagged)
	assert.EqualValues(t, 100, after.Delivered-before.Delivered)
	assert.EqualValues(t, 300, after.Done-before.Done)
	b.check()
}

// Long frames that no gather buffer is free for are dropped and counted; registers and
// memory of the ring are as after any other packets, and short frames between arrive.
//
//oxpd:fault D10 symptom
//oxpd:fault D10 behaviour
func TestD10RingIsIntactWithoutGatherBuffers(t *testing.T) {
	sink := &keep{}
	b := newBench(t, sink, func(_ *hwsim.Options, c *Config) { c.GatherFrames, c.GatherLarge = 1, 1 })
	b.mtu(portF1, 9000)
	flow := b.flowOf()[3]
	sink.frames = nil
	small, large := b.rings.pool.get(9000), b.rings.pool.get(16000)
	for i := range 200 {
		b.burst(flow, 1000+i, 1, 9014)
		b.burst(flow, i, 1, 60)
		b.card.Advance(50 * time.Microsecond)
		b.visitAll()
	}
	b.drain()
	sink.inOrder(t, 0, 200)
	s := b.rings.Stats()
	assert.EqualValues(t, 200, s.SpanNoBuf)
	assert.EqualValues(t, 200*5, s.SpanBufs)
	assert.Zero(t, csr.CntsCount.Get(b.load(csr.OutCnts, 3)))
	assert.Zero(t, b.card.Counter(msg.CntTXDropQueueFull))
	b.atRest()
	b.rings.pool.put(small)
	b.rings.pool.put(large)
	b.burst(flow, 0, 1, 9014)
	b.drain()
	assert.Len(t, sink.frames, 1, "with a buffer it arrives")
	b.check()
}
