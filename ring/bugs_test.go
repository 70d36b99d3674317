package ring

import (
	"encoding/binary"
	"math/bits"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/frame"
	"oxpd/octep/csr"
	"oxpd/ring/wire"
	"oxpd/rpc/msg"
)

// Rows of the list of known bugs, with the input and the proof that each asks
// for (docs/contributing/known-bugs.md).

// ringOf sends one frame of a flow and returns the ring that took it.
func (b *bench) ringOf(flow int) (ring int) {
	b.t.Helper()
	before := b.rings.Stats()
	b.card.Wire(uint16(portF1.Tag)).Send(udp(b.mac(portF1), flow, 0, 60))
	require.Equal(b.t, 1, b.drain())
	for q, s := range b.rings.Stats().Queues {
		if s.Done > before.Queues[q].Done {
			return q
		}
	}
	b.t.Fatal("no ring took it")
	return 0
}

// RX-1: slot 17 holds the head of a span in the first lap, and in the second a
// packet whose count comes before its bytes.
func TestSimLateFrameWhereASpanBegan(t *testing.T) {
	const slot, flow = 17, 7
	sink := &keep{}
	b := newBench(t, sink)
	b.mtu(portF1, 9000)
	w := b.card.Wire(uint16(portF1.Tag))
	send := func(seq, n int) []byte {
		f := udp(b.mac(portF1), flow, seq, n)
		w.Send(f)
		return f
	}
	o := b.rings.OQ(b.ringOf(flow))
	for o.read < slot {
		send(1, 60)
		require.Equal(t, 1, b.drain())
	}
	send(2, 9014)
	require.Equal(t, 1, b.drain())
	require.EqualValues(t, slot+6, o.read)
	for o.read < slot+wire.OQEntries {
		send(3, 60)
		require.Equal(t, 1, b.drain())
	}
	before := b.rings.Stats()
	sink.frames = nil
	const late = 50 * time.Microsecond
	b.card.Faults(func(f *hwsim.Faults) { f.LateData, f.LateBy = hwsim.AllRings, late })
	want := send(4, 60)
	for visits := 0; len(sink.frames) == 0; visits++ {
		require.Less(t, visits, 1000)
		b.card.Advance(late / 10)
		b.visitAll()
		if len(sink.frames) == 0 {
			require.EqualValues(t, slot+wire.OQEntries, o.read, "nothing is taken before it is there")
		}
	}
	b.drain()
	assert.Equal(t, [][]byte{want}, sink.frames, "once")
	assert.EqualValues(t, slot+wire.OQEntries+1, o.read, "no buffer behind it")
	after := b.rings.Stats()
	assert.Equal(t, before.Spans, after.Spans)
	assert.Greater(t, after.Unseen, before.Unseen)
	b.check()
}

// RX-1, the other half: each buffer of a span is empty when its credit goes back.
func TestEveryBufferOfASpanIsPoisonedBeforeItsCredit(t *testing.T) {
	h := newHand(t)
	h.start(17)
	h.send(h.bytes(9014))
	looked := 0
	h.regs.onStore = func(name string) {
		if name == "OUT_SLIST_DBELL" {
			for i := uint32(17); i < 23; i++ {
				assert.Equal(t, uint64(wire.Poison), h.o.word(i), "entry %d", i)
				looked++
			}
		}
	}
	assert.Equal(t, 1, h.visit())
	assert.Equal(t, 6, looked)
	h.o.entries -= 17
	h.check()
}

// RX-3: packets that wait for credit are written inside the store that returns
// it. A poison that comes after the credit erases them.
func TestSimPacketsWrittenInsideTheCreditStore(t *testing.T) {
	const waiting = 2000
	sink := &keep{}
	b := newBench(t, sink, func(o *hwsim.Options, _ *Config) {
		o.Latencies = hwsim.NoTime()
	})
	b.card.Faults(func(f *hwsim.Faults) { f.WaitForCredit = waiting })
	w := b.card.Wire(uint16(portF1.Tag))
	const frames = wire.OQEntries + waiting
	for i := range frames {
		w.Send(udp(b.mac(portF1), 5, i, 60))
		b.card.Advance(time.Microsecond)
	}
	require.Empty(t, sink.frames)
	b.drain()
	require.Len(t, sink.frames, frames)
	for i, f := range sink.frames {
		_, seq := flowSeq(f)
		require.Equal(t, i, seq)
	}
	assert.Zero(t, b.rings.Stats().Unseen)
	b.check()
}

// RX-4: of 32 packets the fifth finds no gather buffer.
func TestFifthOf32FindsNoGatherBuffer(t *testing.T) {
	h := newHand(t, func(c *Config) { c.GatherFrames = 1 })
	held := h.rings.pool.get(9000)
	var want [][]byte
	for i := range 32 {
		n := 60
		if i == 4 {
			n = 9014
		}
		f := h.bytes(n)
		if h.send(f); i != 4 {
			want = append(want, f)
		}
	}
	read, credit := h.o.read, h.regs.credit
	assert.Equal(t, 32, h.visit())
	assert.Equal(t, want, h.sink.frames, "31 in order")
	assert.Equal(t, uint32(37), h.o.read-read)
	assert.Equal(t, int32(37), h.regs.credit-credit)
	assert.Zero(t, h.regs.outCnts, "32 acknowledged")
	assert.Equal(t, uint64(1), h.rings.Stats().SpanNoBuf)
	h.rings.pool.put(held)
	h.check()
}

// losing is a sink that cannot deliver the last frame of each burst, as a TAP
// whose queue is full.
type losing struct{ delivered, lost int }

func (s *losing) Deliver(_ int, frames []Frame) {
	s.delivered += len(frames) - 1
	s.lost++
}

// RX-6: what becomes of a frame behind the ring is nothing to the ring: each pass
// writes its credit and its acknowledgement.
func TestSimLastFrameOfEachPassIsLostBehindTheRing(t *testing.T) {
	const passes, burst = 1000, 8
	sink := &losing{}
	b := newBench(t, sink)
	w := b.card.Wire(uint16(portF1.Tag))
	o := b.rings.OQ(b.ringOf(3))
	*sink = losing{}
	for i := range passes {
		for range burst {
			w.Send(udp(b.mac(portF1), 3, i, 60))
		}
		b.card.Advance(time.Millisecond)
		before := b.rings.Stats().Queues[o.n].Returned
		require.Equal(t, burst, b.visitAll())
		require.Equal(t, before+burst, b.rings.Stats().Queues[o.n].Returned)
		require.Zero(t, csr.CntsCount.Get(o.regs.Load64(uint32(o.cnts))))
	}
	assert.Equal(t, losing{delivered: passes * (burst - 1), lost: passes}, *sink)
	b.healthy()
	b.atRest()
}

// RX-9: a full ring is taken while only part of its credit may go back, and then
// nothing comes: turns that find nothing give the rest.
func TestSimCreditOfAVeryLargeBurstGoesBackInSilence(t *testing.T) {
	const flow = 5
	sink := &keep{}
	b := newBench(t, sink)
	w := b.card.Wire(uint16(portF1.Tag))
	o := b.rings.OQ(b.ringOf(flow))
	b.card.Advance(SweepPeriod)
	for i := range 12_000 { // 100 ms at 120,000 a second, and nobody looks
		w.Send(udp(b.mac(portF1), flow, i, 200))
		b.card.Advance(time.Second / 120_000)
	}
	b.card.Advance(time.Millisecond)
	b.rings.SetCeiling(o.n, 1200)
	took, err := o.Visit(VisitBound)
	require.NoError(t, err)
	assert.InDelta(t, 1009, took, 16)
	require.Positive(t, b.rings.Stats().Carry, "part of the credit had to stay")
	b.rings.SetCeiling(o.n, wire.Grant(wire.OQEntries, wire.Watermark))

	work := b.rings.Workers(1)[0]
	sweep := func() (took int) {
		b.card.Advance(SweepPeriod)
		took, _, err := work.Step(WakeSweep)
		require.NoError(t, err)
		return took
	}
	assert.Zero(t, sweep())
	assert.Zero(t, b.rings.Stats().Carry)
	b.atRest()
	sink.frames = nil
	want := udp(b.mac(portF1), flow, 99, 200)
	w.Send(want)
	assert.Equal(t, 1, sweep())
	assert.Equal(t, [][]byte{want}, sink.frames)
	b.drain()
	b.check()
}

// RX-10: frames made of the ring's own bus addresses, in both byte orders, in
// every buffer, for ten laps.
func TestSimFramesOfBusAddressesLeaveTheListAlone(t *testing.T) {
	const flow = 2
	sink := &keep{}
	b := newBench(t, sink)
	b.mtu(portF1, 9000)
	w := b.card.Wire(uint16(portF1.Tag))
	o := b.rings.OQ(b.ringOf(flow))
	list, _ := o.list.At(0, o.list.Size())
	published := append([]byte(nil), list...)
	want := udp(b.mac(portF1), flow, 0, 9014)
	for at := 50; at+16 <= len(want); at += 16 { // behind flow and number
		bus := uint64(o.bufs.Bus()) + uint64(at/16%wire.OQEntries)*wire.BufStride
		binary.LittleEndian.PutUint64(want[at:], bus)
		binary.LittleEndian.PutUint64(want[at+8:], bits.ReverseBytes64(bus))
	}
	got := 0
	for seq := 0; o.read < 10*wire.OQEntries; seq++ {
		binary.BigEndian.PutUint32(want[46:], uint32(seq))
		w.Send(want)
		b.card.Advance(50 * time.Microsecond)
		sink.frames = sink.frames[:0]
		require.Equal(t, 1, b.visitAll())
		require.Equal(t, [][]byte{want}, sink.frames, "frame %d", seq)
		got++
	}
	assert.Positive(t, got)
	assert.Equal(t, published, list)
	b.drain()
	b.healthy()
}

// TX-2: the caller's frame is gone the moment Post returns, and the card reads
// its slot a millisecond later.
func TestSimPostedFrameIsTheRingsOwn(t *testing.T) {
	b := newBench(t, &keep{})
	b.card.Faults(func(f *hwsim.Faults) { f.ReadDelay = time.Millisecond })
	var out [][]byte
	b.card.Wire(uint16(portF1.Tag)).SetReceiver(func(f []byte) { out = append(out, append([]byte(nil), f...)) })
	var want [][]byte
	bytes := 0
	buf := make([]byte, 9014)
	for i, n := range []int{14, 60, 61, 1514, 9014} {
		f := buf[:n]
		copy(f, udp([6]byte{2}, 1, i, 9014))
		want = append(want, append(append([]byte(nil), f...), make([]byte, max(frame.MinSize-n, 0))...))
		bytes += max(n, frame.MinSize)
		require.True(t, b.rings.IQ().Post(uint16(portF1.Tag), f[:n/2], f[n/2:]))
		for i := range buf {
			buf[i] = 0xee
		}
	}
	require.Empty(t, out)
	b.card.Advance(10 * time.Millisecond)
	b.drain()
	assert.Equal(t, want, out)
	assert.EqualValues(t, bytes, b.rings.Stats().TxBytes)
	assert.Zero(t, b.card.Counter(msg.CntTXWireErr))
	b.healthy()
}

// TAP-10: no number of pieces, and no length, follows from how much may be under
// way: with every setting at its smallest long frames still pass.
func TestSimSmallestSettingsCarryLongFrames(t *testing.T) {
	sink := &keep{}
	b := newBench(t, sink, func(o *hwsim.Options, c *Config) {
		o.Watermark, c.Watermark = wire.FetchBatch, wire.FetchBatch
		o.Queues = hwsim.Queues{InFlight: 1, EgressCage: 1, EgressSwitch: 1, Wire: 1}
		c.GatherFrames, c.GatherLarge = 1, 1
	})
	b.mtu(portF1, 9000)
	w := b.card.Wire(uint16(portF1.Tag))
	var out, in, posted [][]byte
	w.SetReceiver(func(f []byte) { out = append(out, append([]byte(nil), f...)) })
	for i := range 500 {
		f, g := udp(b.mac(portF1), i, i, 9014), udp([6]byte{2}, i, i, 9014)
		in, posted = append(in, f), append(posted, g)
		w.Send(f)
		require.True(t, b.rings.IQ().Post(uint16(portF1.Tag), g))
		b.card.Advance(50 * time.Microsecond)
		for q := range wire.OQs {
			_, err := b.rings.OQ(q).Visit(1)
			require.NoError(t, err)
		}
	}
	b.drain()
	assert.Equal(t, in, sink.frames)
	assert.Equal(t, posted, out)
	b.healthy()
}

// endless refills its ring with every frame that it takes from there, until it
// has taken limit.
type endless struct {
	b           *bench
	ring, limit int
	frame       []byte
	taken       int
	others      []int // frames of the flood before each other frame
}

func (s *endless) Deliver(oq int, frames []Frame) {
	if oq != s.ring {
		s.others = append(s.others, s.taken)
		return
	}
	s.taken += len(frames)
	for range frames {
		if s.taken < s.limit {
			s.b.card.Wire(uint16(portF1.Tag)).Send(s.frame)
		}
	}
	s.b.card.Advance(100 * time.Microsecond)
}

// One worker serves every ring: one that is never empty gets a slice, then the
// others have their turn, at once and in every turn.
func TestSimFloodedRingLeavesTheOthersTheirTurn(t *testing.T) {
	sink := &endless{ring: -1}
	b := newBench(t, sink)
	sink.b = b
	flooded, other := 0, 0
	ring := b.ringOf(flooded)
	for b.ringOf(other) == ring {
		other++
	}
	w := b.card.Wire(uint16(portF1.Tag))
	*sink = endless{b: b, ring: ring, limit: 40 * slicePackets, frame: udp(b.mac(portF1), flooded, 0, 60)}
	work := b.rings.Workers(1)[0]
	for range 2 * passPackets {
		w.Send(sink.frame)
	}
	w.Send(udp(b.mac(portF1), other, 1, 60))
	b.card.Advance(time.Millisecond)
	_, _, err := work.Step(WakeBusy)
	require.NoError(t, err)
	b.drain()
	require.Len(t, sink.others, 1)
	assert.LessOrEqual(t, sink.others[0], slicePackets+passPackets)
	assert.GreaterOrEqual(t, sink.taken, sink.limit, "the flood went on")
	b.healthy()
}

// CTL-12: registers of a ring that are 64 bits wide are touched 64 bits wide.
func TestSimWideRegistersAreTouchedWhole(t *testing.T) {
	b := newBench(t, &keep{})
	seen := map[string]bool{}
	for name, a := range b.card.Accesses() {
		for _, wide := range []string{"IN_CONTROL", "OUT_CONTROL", "IN_INSTR_BADDR", "OUT_SLIST_BADDR", "IN_INT_LEVELS", "OUT_INT_LEVELS", "IN_ENABLE", "OUT_ENABLE"} {
			if reg, _, _ := strings.Cut(name, "["); reg == wide {
				seen[wide] = true
				assert.Zero(t, a.Reads32+a.Writes32, name)
			}
		}
	}
	assert.Len(t, seen, 8)
}
