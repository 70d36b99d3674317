package hwsim

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/rpc/msg"
)

// The failure modes of datapath.md 7, each switched on by its name and met by a
// host that sees registers, its own memory, the wire and the card's counters. What
// oxpd does about a row is asserted with the package that does it.

const poisonWord = uint64(0xa5a5a5a5a5a5a5a5)

// arrive sends n frames of one flow into PortF1, numbered from a sequence number on,
// and waits until the card is done with them.
func (h *ringHost) arrive(sport uint16, from, n, frameBytes int) {
	h.t.Helper()
	for i := range n {
		h.wire(tagF1).Send(ipFrame(h.c, tagF1, frameBytes, sport, uint32(from+i)))
	}
	h.settled()
}

func (h *ringHost) inject(texts ...string) { inject(h.t.(*testing.T), h.c, texts...) }

// frameAt is the number of the frame in an entry.
func (h *ringHost) frameAt(q, i int) uint32 { return seqOf(h.bufs[q][i*hBufGap+hPrefix:]) }

func (h *ringHost) queueFull() uint64 { return h.c.Counter(msg.CntTXDropQueueFull) }

// OUT_CNTS grows, no message comes any more, TX_KN counts every packet; and when
// messages are delivered again there is no edge for what waits.
//
//oxpd:fault D1 symptom
func TestD1MessageEdgeLost(t *testing.T) {
	h := newRingHost(t, 1024).program(2032)
	fired := 0
	h.c.OnIRQ(16, func() { fired++ })
	h.st(0, rOutLevels, 4)
	sport := ringOf(h, 0)
	h.arrive(sport, 0, 4, 60)
	require.Equal(t, 1, fired)
	h.take(0, 4)
	h.inject("message-edge-lost")
	from := h.c.Counter(msg.CntTXKN)
	for n := 300; n <= 900; n += 300 {
		h.arrive(sport, n, 300, 60)
		assert.EqualValues(t, n, h.count(0), "OUT_CNTS grows")
		assert.EqualValues(t, n, h.c.Counter(msg.CntTXKN)-from)
		assert.Equal(t, 1, fired, "the vector is frozen")
	}
	require.NoError(t, h.c.ClearFault("D1"))
	h.arrive(sport, 900, 50, 60)
	h.advance(time.Second)
	assert.Equal(t, 1, fired, "above the level there is no edge")
	require.Len(t, h.take(0, 1024), 950)
	h.arrive(sport, 950, 4, 60)
	assert.Equal(t, 2, fired, "once all are taken there is")
}

// A latched status stops delivery; clearing it lets go on.
//
//oxpd:fault D2 symptom
func TestD2LatchedStatusStopsDelivery(t *testing.T) {
	h := newRingHost(t, 1024).program(2032)
	h.st(0, rOutLevels, 4)
	h.inject("status-latched")
	sport := ringOf(h, 0)
	h.arrive(sport, 0, 4, 60)
	require.EqualValues(t, 0x10, h.ld(0, rOutStatus), "latched at the level")
	h.arrive(sport, 4, 20, 60)
	assert.EqualValues(t, 4, h.count(0), "no further delivery")
	assert.EqualValues(t, poisonWord, h.length(0, 4))
	h.st32(0, rOutCnts, 4)
	h.arrive(sport, 24, 1, 60)
	assert.Zero(t, h.count(0), "taking what there is does not help")
	h.st(0, rOutStatus, 0x10)
	h.arrive(sport, 25, 3, 60)
	assert.EqualValues(t, 3, h.count(0))
	assert.EqualValues(t, 25, h.frameAt(0, 4))
}

// The count says one, the entry is empty; later it is there.
//
//oxpd:fault D3 symptom
func TestD3CountBeforeTheData(t *testing.T) {
	h := newRingHost(t, 1024).program(2032)
	h.inject("LateBy=5ms", "count-before-data")
	sport := ringOf(h, 0)
	h.wire(tagF1).Send(ipFrame(h.c, tagF1, 60, sport, 7))
	for i := 0; h.count(0) == 0; i++ {
		require.Less(t, i, 10000)
	}
	assert.EqualValues(t, poisonWord, h.length(0, 0), "counted, and empty")
	h.advance(4 * time.Millisecond)
	assert.EqualValues(t, poisonWord, h.length(0, 0))
	h.advance(2 * time.Millisecond)
	assert.EqualValues(t, 134, h.length(0, 0))
	assert.EqualValues(t, 7, h.frameAt(0, 0))
	assert.EqualValues(t, 1, h.count(0))
}

// Entries that were taken and never written: a gap, with packets behind it.
//
//oxpd:fault D4 symptom
func TestD4Gap(t *testing.T) {
	h := newRingHost(t, 1024).program(2032)
	sport := ringOf(h, 0)
	h.arrive(sport, 0, 2, 60)
	h.inject("entry-never-written=0:3")
	h.arrive(sport, 2, 2, 60)
	h.advance(time.Second)
	for i, want := range []uint64{134, 134, poisonWord, poisonWord, poisonWord, 134, 134, poisonWord} {
		assert.Equal(t, want, h.length(0, i), "entry %d", i)
	}
	assert.EqualValues(t, 2, h.frameAt(0, 5), "the next packet stands behind the gap")
	assert.EqualValues(t, 4, h.count(0))
}

// The buffer is written and the count stays 0, for longer than two ticks.
//
//oxpd:fault D5 symptom
func TestD5CountNeverRaised(t *testing.T) {
	h := newRingHost(t, 1024).program(2032)
	h.inject("count-never-raised=0:2")
	sport := ringOf(h, 0)
	h.arrive(sport, 0, 2, 60)
	h.advance(time.Second)
	assert.Zero(t, h.count(0))
	assert.EqualValues(t, 134, h.length(0, 0))
	assert.EqualValues(t, 134, h.length(0, 1))
	assert.EqualValues(t, 2, h.ld(0, rOutPkt))
	h.arrive(sport, 2, 1, 60)
	assert.EqualValues(t, 1, h.count(0), "one for three buffers")
}

// The entry holds neither poison nor the length of a frame.
//
//oxpd:fault D6 symptom
//oxpd:fault D7 symptom
func TestD6D7LengthsThatNoFrameHas(t *testing.T) {
	h := newRingHost(t, 1024).program(2032)
	sport := ringOf(h, 0)
	h.inject("short-length=0:1")
	h.arrive(sport, 0, 2, 60)
	assert.EqualValues(t, 74, h.length(0, 0))
	assert.EqualValues(t, 134, h.length(0, 1))
	h.inject("nonsense-length=0:1")
	h.arrive(sport, 2, 2, 60)
	assert.EqualValues(t, 65536, h.length(0, 2))
	assert.EqualValues(t, 2, h.frameAt(0, 2), "of a packet that took one buffer")
	assert.EqualValues(t, 3, h.frameAt(0, 3))
	assert.EqualValues(t, 4, h.count(0))
}

// Statistics messages of 2, 3 and 10 buffers count once each. A host that takes one
// buffer for each count falls behind by one for each further buffer, for ever.
//
//oxpd:fault D9 symptom
func TestD9StatisticsMessagesOfSeveralBuffers(t *testing.T) {
	h := newRingHost(t, 1024).program(2032)
	sport := ringOf(h, 0)
	behind, seq := 0, 0
	naive := func() uint64 { // one counted, one buffer
		require.EqualValues(t, 1, h.count(0))
		i := h.read[0]
		l := h.length(0, i)
		h.poison(0, i)
		h.read[0]++
		h.st32(0, rOutDBell, 1)
		h.st32(0, rOutCnts, 1)
		return l
	}
	for _, buffers := range []string{"2", "3", "10"} {
		n := map[string]int{"2": 2, "3": 3, "10": 10}[buffers]
		h.inject("statistics-spans=" + buffers)
		h.settled()
		at := (h.read[0] + behind) * hBufGap
		assert.EqualValues(t, 0x00fe, binary.BigEndian.Uint16(h.bufs[0][at+16:]), "tag 254")
		naive()
		behind += n - 1
		for range 20 {
			h.arrive(sport, seq, 1, 60)
			assert.EqualValues(t, seq, h.frameAt(0, h.read[0]+behind), "written, and %d buffers ahead of where the host looks", behind)
			naive()
			seq++
		}
	}
	assert.Equal(t, 1+2+9, behind)
	assert.Zero(t, h.count(0), "the count says that all is taken")
	for i := range behind {
		assert.NotEqualValues(t, poisonWord, h.length(0, h.read[0]+i), "buffer %d is written and untaken", i)
	}
}

// A grant for a watermark of 0x400 over one of 0x100 is 768 too big: the card laps
// the ring by as much and drops nothing before.
//
//oxpd:fault D11 symptom
func TestD11StockWatermarkLaps(t *testing.T) {
	h := newRingHost(t, 1024)
	h.inject("stock-watermark")
	h.program(2032)
	h.arrive(ringOf(h, 0), 0, 3000, 60)
	assert.EqualValues(t, 1024+768, h.count(0))
	assert.EqualValues(t, 1024, h.frameAt(0, 0), "the first were overwritten")
	assert.EqualValues(t, 3000-1792, h.queueFull(), "and only what came later is counted as lost")
}

// A watermark above the grant delivers nothing, whatever TX_KN says.
//
//oxpd:fault D12 symptom
func TestD12WatermarkAboveTheGrant(t *testing.T) {
	h := newRingHost(t, 1024, func(o *Options) { o.Choices.UnderWatermark = DeliverNone })
	h.inject("watermark-above-grant")
	h.program(2032)
	h.arrive(ringOf(h, 0), 0, 100, 60)
	h.advance(time.Second)
	assert.Zero(t, h.count(0))
	assert.EqualValues(t, poisonWord, h.length(0, 0))
	assert.EqualValues(t, 100, h.c.Counter(msg.CntTXKN), "TX_KN moves")
	assert.EqualValues(t, 100, h.queueFull())
}

// Credit that does not come back starves the ring after what it holds; with it the
// ring is as before.
//
//oxpd:fault D13 symptom
func TestD13WithheldCreditStarves(t *testing.T) {
	h := newRingHost(t, 1024).program(2032)
	sport := ringOf(h, 0)
	h.arrive(sport, 0, 1024, 60)
	h.inject("credit-withheld")
	require.Len(t, h.take(0, 1024), 1024)
	before := h.queueFull()
	for i := range 50 { // half a second
		h.arrive(sport, 2000+i, 1, 60)
		h.advance(10 * time.Millisecond)
	}
	got := h.count(0)
	assert.LessOrEqual(t, got, uint32(16), "no more than a batch in hand")
	assert.EqualValues(t, 50-got, h.queueFull()-before)
	assert.Less(t, h.credit(0), int32(1024), "the doorbell is under the watermark")
	require.NoError(t, h.c.ClearFault("credit-withheld"))
	h.arrive(sport, 3000, 50, 60)
	assert.EqualValues(t, got+50, h.count(0))
}

// A host that takes nothing for 100 ms at 120,000 frames a second finds a full ring,
// the oldest frames first, and the rest in one counter.
//
//oxpd:fault D14 symptom
func TestD14HostAway(t *testing.T) {
	const frames = 12_000
	h := newRingHost(t, 1024).program(2032)
	sport := ringOf(h, 0)
	for i := range frames {
		h.wire(tagF1).Send(ipFrame(h.c, tagF1, 200, sport, uint32(i)))
		h.advance(time.Second / 120_000)
	}
	h.settled()
	full := h.count(0)
	assert.True(t, full > 1024-16 && full <= 1024, "%d wait", full)
	assert.EqualValues(t, frames-full, h.queueFull())
	for i := range int(full) {
		require.EqualValues(t, i, h.frameAt(0, i), "in order")
	}
}

// With credit above the watermark a ring stays silent until one more write.
//
//oxpd:fault D15 symptom
func TestD15ResumeStuck(t *testing.T) {
	h := newRingHost(t, 1024).program(2032)
	sport := ringOf(h, 0)
	h.inject("resume-stuck")
	h.arrive(sport, 0, 1100, 60)
	require.Len(t, h.take(0, 200), 200)
	left := h.count(0)
	before := h.queueFull()
	h.arrive(sport, 2000, 20, 60)
	h.advance(time.Second)
	assert.GreaterOrEqual(t, h.credit(0), int32(1024), "credit above the watermark")
	assert.Equal(t, left, h.count(0), "and silence")
	assert.EqualValues(t, 20, h.queueFull()-before)
	h.st32(0, rOutDBell, 0)
	h.arrive(sport, 3000, 20, 60)
	assert.EqualValues(t, left+20, h.count(0), "a write of 0 revives it")
}

// Instructions that are fetched slowly: the doorbell's low half says how many wait.
//
//oxpd:fault D16 symptom
func TestD16SlowFetch(t *testing.T) {
	h := newRingHost(t, 16).program(1024)
	h.inject("slow-fetch=50ms")
	for i := range hSlots - 1 {
		h.send(tagF1, ipFrame(h.c, tagF1, 60, 1, uint32(i)))
	}
	assert.EqualValues(t, 255, uint32(h.ld(0, rInDBell)))
	assert.Zero(t, uint32(h.ld(0, rInCnts)))
	h.advance(110 * time.Millisecond)
	assert.InDelta(t, 253, uint32(h.ld(0, rInDBell)), 1, "one in 50 ms")
	require.NoError(t, h.c.ClearFault("all"))
	h.advance(100 * time.Millisecond)
	assert.Zero(t, uint32(h.ld(0, rInDBell)))
}

// Data is read long after the instruction: a slot that is written again meanwhile
// goes out as it is then, and one with a tag of nobody is an error on the wire.
//
//oxpd:fault D17 symptom
func TestD17LateDataRead(t *testing.T) {
	h := newRingHost(t, 16).program(1024)
	h.inject("late-data-read")
	got := h.out(tagF1)
	fetched := func() {
		h.t.Helper()
		for i := 0; uint32(h.ld(0, rInDBell)) != 0; i++ {
			require.Less(t, i, 10000)
		}
		require.Zero(t, uint32(h.ld(0, rInCnts)), "fetched and not read")
	}
	h.send(tagF1, ipFrame(h.c, tagF1, 60, 1, 1))
	fetched()
	copy(h.slots[hPriv:], ipFrame(h.c, tagF1, 60, 1, 99))
	h.settled()
	require.Len(t, *got, 1)
	assert.EqualValues(t, 99, seqOf((*got)[0]), "another frame than was posted")

	h.st32(0, rInCnts, 1)
	h.send(tagF1, ipFrame(h.c, tagF1, 60, 1, 2))
	fetched()
	binary.BigEndian.PutUint16(h.slots[hStride:], 0x7777)
	h.settled()
	assert.Len(t, *got, 1)
	assert.EqualValues(t, 1, h.c.Counter(msg.CntTXWireErr))
}

// Instructions that count in another stride than the slots: what was posted does not
// leave, and what leaves is of other slots.
//
//oxpd:fault D18 symptom
func TestD18StrideMismatch(t *testing.T) {
	const wrong = hStride - 64
	h := newRingHost(t, 16).program(1024)
	got := h.out(tagF1)
	for i := range 200 {
		at, before := h.fill(tagF1, ipFrame(h.c, tagF1, 60, 1, uint32(i))), len(*got)
		binary.LittleEndian.PutUint64(h.instr[at*hInstr:], busSlots+uint64(at*wrong))
		h.st32(0, rInDBell, 1)
		h.settled()
		h.st32(0, rInCnts, 1)
		if out := (*got)[before:]; i > 0 && len(out) > 0 {
			assert.NotEqual(t, ipFrame(h.c, tagF1, 60, 1, uint32(i)), out[0], "frame %d does not leave", i)
		}
	}
	// 146 slots of the one stride are 145 of the other.
	assert.Contains(t, *got, ipFrame(h.c, tagF1, 60, 1, 145), "a frame of another slot leaves instead, again")
	assert.EqualValues(t, 200, h.ld(0, rInPkt), "and the card fetches as if all were well")
}

// Egress that is full: what the fast path took for the wire and did not send is in
// QUEUE_FULL, and what does leave is not later than before.
//
//oxpd:fault D21 symptom
func TestD21EgressFull(t *testing.T) {
	h := newRingHost(t, 16).program(1024)
	var left []time.Duration
	h.wire(tagF1).SetReceiver(func([]byte) { left = append(left, h.c.Clock().Now()) })
	one := func() time.Duration { // from the doorbell to the wire, 0 if it does not come
		before, from := len(left), h.c.Clock().Now()
		h.send(tagF1, ipFrame(h.c, tagF1, 1514, 1, 1))
		h.settled()
		h.st32(0, rInCnts, 1)
		if len(left) == before {
			return 0
		}
		return left[before] - from
	}
	usual := one()
	require.Positive(t, usual)
	h.inject("egress-full%0.5")
	lost := 0
	for range 100 {
		took := one()
		if took == 0 {
			lost++
			continue
		}
		assert.InDelta(t, float64(usual), float64(took), float64(usual)/2, "latency is flat")
	}
	assert.InDelta(t, 50, lost, 25)
	full := h.queueFull()
	assert.EqualValues(t, lost, full)
	assert.Equal(t, full, h.c.Counter(msg.CntFromKNToWire)-h.c.Counter(msg.CntTXWire))
}

// Frames that are longer than the LIF lets pass: MTU_EXCEEDED, one each, and
// nothing in a ring.
//
//oxpd:fault D22 symptom
func TestD22LIFMTULower(t *testing.T) {
	h := newRingHost(t, 1024).program(2032)
	sport := ringOf(h, 0)
	h.inject("lif-mtu-lower=576")
	h.arrive(sport, 0, 10, 591)
	assert.EqualValues(t, 10, h.c.Counter(msg.CntDropMTUExceeded))
	assert.Zero(t, h.count(0))
	assert.EqualValues(t, poisonWord, h.length(0, 0))
	h.arrive(sport, 10, 1, 590)
	assert.EqualValues(t, 1, h.count(0))
}

// A LIF in L3 drops what is for somebody else: LIF_NOT_MY_MAC, one each.
//
//oxpd:fault D24 symptom
func TestD24L3DropsWhatABridgeWants(t *testing.T) {
	h := newRingHost(t, 1024, func(o *Options) { o.Choices.ForeignMACToLIF = true }).program(2032)
	sport := ringOf(h, 0)
	foreign := func(n int) {
		for i := range n {
			f := ipFrame(h.c, tagF1, 60, sport, uint32(i))
			copy(f, []byte{2, 0, 0, 0, 0, 0x55})
			h.wire(tagF1).Send(f)
		}
		h.settled()
	}
	index := uint32(h.wire(tagF1).port.LIF())
	l, ok := h.c.LIF(index)
	require.True(t, ok)
	l.Fwd = msg.FwdL2
	h.c.SetLIF(index, &l)
	foreign(3)
	require.EqualValues(t, 3, h.count(0), "in L2 they pass")
	h.inject("lif-l3-bridged")
	foreign(7)
	assert.EqualValues(t, 7, h.c.Counter(msg.CntDropLIFNotMyMAC))
	assert.EqualValues(t, 3, h.count(0))
}

// A frame with a tag that no port has is in the ring like any other, and only its
// prefix says whose it is.
//
//oxpd:fault D25 symptom
func TestD25FrameOfNoPort(t *testing.T) {
	h := newRingHost(t, 1024).program(2032)
	h.inject("frame-of-no-port", "frame-of-no-port=0x7777")
	h.settled()
	assert.EqualValues(t, 2, h.count(0))
	for i, tag := range []uint16{254, 0x7777} {
		assert.Equal(t, tag, binary.BigEndian.Uint16(h.bufs[0][i*hBufGap+16:]))
		assert.EqualValues(t, 134, h.length(0, i))
	}
	assert.Zero(t, h.c.Counter(msg.CntTXKN))
}

// A flood of one flow fills one ring; the seven others have nothing, and room.
//
//oxpd:fault D28 symptom
func TestD28FloodOfOneTuple(t *testing.T) {
	h := newRingHost(t, 1024).program(2032)
	h.arrive(ringOf(h, 3), 0, 2000, 60)
	for q := range hOQs {
		if q == 3 {
			assert.Greater(t, h.count(q), uint32(1024-16), "full")
			continue
		}
		assert.Zero(t, h.count(q), "ring %d is idle", q)
		assert.GreaterOrEqual(t, h.credit(q), int32(2016), "ring %d", q)
	}
	assert.EqualValues(t, 2000-h.count(3), h.queueFull())
	h.arrive(ringOf(h, 5), 0, 100, 60)
	assert.EqualValues(t, 100, h.count(5), "and takes what comes")
}
