package ring

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/board"
	"oxpd/internal/frame"
	"oxpd/octep/csr"
	"oxpd/ring/wire"
)

// What becomes of a packet that the judge drops, and when the judge is asked.

// diary is a judge that keeps what it was asked, and drops what drop says.
type diary struct {
	t      testing.TB
	drop   func(first []byte, frameBytes int) bool
	inside [wire.OQs]bool
	walks  int
	asked  int
	packets, bytes,
	buffers uint64 // of what it dropped
}

func (d *diary) Leave(oq int) { d.inside[oq] = false }

// Judge checks what every judge may rely on. It leaves a mark in the head that the
// sink can hold against the frame.
func (d *diary) Judge(oq int, first []byte, frameBytes int, tag uint16, head *frame.Packet) Verdict {
	if !d.inside[oq] {
		d.inside[oq] = true
		d.walks++
	}
	require.Zero(d.t, head.Have, "the head of another packet")
	require.Len(d.t, first, min(frameBytes, wire.FirstPayload), "known bug RX-8: the first buffer's bytes, never the frame's length")
	d.asked++
	head.Have, head.SrcPort = frame.HaveL2, sumOf(first)
	switch {
	case tag == uint16(board.TagControl):
		return Unowned
	case d.drop == nil || !d.drop(first, frameBytes):
		return Pass
	}
	d.packets++
	d.bytes += uint64(frameBytes)
	d.buffers += uint64(wire.Buffers(frameBytes + wire.LenOverhead))
	return Drop
}

// sumOf tells one frame of a test from the others by how it begins.
func sumOf(b []byte) uint16 {
	return binary.BigEndian.Uint16(b[:2]) ^ binary.BigEndian.Uint16(b[10:12])<<3
}

// dropped compares the rings' counters with the diary's.
func (d *diary) dropped(s Stats) {
	d.t.Helper()
	assert.Equal(d.t, []uint64{d.packets, d.bytes, d.buffers}, []uint64{s.Dropped, s.DroppedBytes, s.Recycled}, "frames, bytes, buffers")
}

// Known bug DM-5: a dropped packet gives back every buffer in its pass and takes none.
func TestDroppedJumboFrameCostsNothing(t *testing.T) {
	lengths := 0
	h := newHand(t, func(c *Config) {
		c.Judge = JudgeFunc(func(first []byte, frameBytes int, _ uint16) Verdict {
			if len(first) != wire.FirstPayload || frameBytes != 9014 {
				lengths++
			}
			return Drop
		})
	})
	f, grant := h.bytes(9014), h.regs.credit
	for i := range 100_000 {
		at := h.at
		h.send(f)
		if n, err := h.o.Visit(VisitBound); n != 1 || err != nil {
			require.Fail(t, "not taken", "%d %v", n, err)
		}
		for e := at; e != h.at; e++ {
			if h.o.word(e) != wire.Poison {
				require.Fail(t, "not poisoned", "frame %d, buffer %d", i, e-at)
			}
		}
		if h.regs.credit != grant || h.regs.outCnts != 0 {
			require.Fail(t, "not returned", "frame %d: credit %d, count %d", i, h.regs.credit, h.regs.outCnts)
		}
	}
	h.rings.Census()
	s := h.rings.Stats()
	assert.Zero(t, lengths, "known bug RX-8")
	assert.Equal(t, []uint64{100_000, 600_000, 600_000, 901_400_000}, []uint64{s.Dropped, s.Recycled, s.Returned, s.DroppedBytes})
	assert.Zero(t, s.GatherHigh, "no gather buffer was ever taken")
	assert.Zero(t, s.Seen+s.Delivered+s.Carry)
	assert.Empty(t, h.sink.frames)
	h.check()
}

// Whatever way a packet of several buffers comes to be taken, dropping it costs its
// buffers, and those around it arrive.
func TestSpanIsDroppedWhereverItLies(t *testing.T) {
	type step func(h *hand, f []byte)
	counted := func(h *hand, f []byte) { h.send(f) }
	uncounted := func(h *hand, f []byte) { h.write(f) }
	for name, tc := range map[string]struct {
		start  uint32
		before func(h *hand) // what lies in front
		put    step
		visits func(h *hand)
	}{
		"over the ring's end":              {start: 1021, put: counted},
		"where the index wraps":            {start: 1<<32 - 3, put: counted},
		"uncounted":                        {put: uncounted, visits: wait},
		"uncounted, over the ring's end":   {start: 1020, put: uncounted, visits: wait},
		"behind a gap":                     {before: gapOf(3), put: counted, visits: wait},
		"behind a gap over the ring's end": {start: 1022, before: gapOf(3), put: counted, visits: wait},
		"behind a short":                   {before: func(h *hand) { h.length(h.at, 74); gapOf(1)(h) }, put: counted, visits: wait},
		"a packet at a time": {put: counted, visits: func(h *hand) {
			for range 9 {
				_, err := h.o.Visit(1)
				require.NoError(h.t, err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			d := &diary{t: t, drop: func(_ []byte, n int) bool { return n%2 == 1 }}
			h := newHand(t, func(c *Config) { c.Judge = d })
			h.start(tc.start)
			if tc.before != nil {
				tc.before(h)
			}
			var want [][]byte
			for _, n := range []int{9013, 60, 61, 3123, 9014, 9215, 16383, 1521, 62} {
				f := h.bytes(n)
				tc.put(h, f)
				if n%2 == 0 {
					want = append(want, f)
				}
			}
			if tc.visits != nil {
				tc.visits(h)
			} else {
				h.visit()
			}
			assert.Equal(t, want, h.sink.frames, "the others arrive, in order")
			assert.EqualValues(t, 6, d.packets)
			assert.Equal(t, 9, d.asked, "each once")
			d.dropped(h.rings.Stats())
			h.o.entries -= uint64(tc.start)
			if h.regs.outCnts > 0 { // of those that were taken uncounted
				t.Fatal("a count is left")
			}
			h.check()
		})
	}
}

// gapOf leaves n counted entries out.
func gapOf(n int) func(h *hand) {
	return func(h *hand) {
		h.at += uint32(n)
		h.regs.credit -= int32(n)
		h.regs.outCnts += uint64(n)
	}
}

// wait visits until two ticks have passed, and then until nothing comes.
func wait(h *hand) {
	assert.Zero(h.t, h.visit())
	h.clock.now += twoTicks
	for quiet := 0; quiet < 2; quiet++ {
		for h.visit() > 0 {
			quiet = 0
		}
	}
}

// The judge is left once a walk, when the last packet of it has been delivered.
func TestJudgeIsLeftOncePerWalk(t *testing.T) {
	d := &diary{t: t}
	h := newHand(t, func(c *Config) { c.Judge, c.GatherFrames = d, 1 })
	h.sink.each = func(Frame) { assert.True(t, d.inside[0], "delivered inside of the walk") }
	h.visit()
	assert.Zero(t, d.walks, "nothing was counted")
	for range 5 {
		h.send(h.bytes(9014)) // a delivery each: there is one gather buffer
	}
	h.send(h.bytes(60))
	assert.Equal(t, 6, h.visit())
	assert.Equal(t, 1, d.walks)
	assert.False(t, d.inside[0])
	h.check()
}

// The head that a judge parsed stays with its frame, whatever is dropped around it and
// whenever a delivery falls into the middle of a walk.
func TestHeadStaysWithItsFrame(t *testing.T) {
	for _, gather := range []int{1, 2, 7, 16} {
		t.Run(fmt.Sprintf("%d gather buffers", gather), func(t *testing.T) {
			d := &diary{t: t, drop: func(_ []byte, n int) bool { return n%2 == 1 }}
			h := newHand(t, func(c *Config) { c.Judge, c.GatherFrames = d, gather })
			h.sink.each = func(f Frame) {
				require.Equal(t, frame.HaveL2, f.Head.Have)
				require.Equal(t, sumOf(f.Pieces[0]), f.Head.SrcPort, "frame %d", len(h.sink.frames))
			}
			for i := range 60 {
				h.send(h.bytes([]int{60, 9014, 61, 3000, 62, 9013, 3002}[i%7]))
			}
			for h.visit() > 0 {
			}
			assert.Len(t, h.sink.frames, 60-9-8)
			d.dropped(h.rings.Stats())
			h.check()
		})
	}
}

func TestDroppingAllocatesNothing(t *testing.T) {
	h := newHand(t, func(c *Config) {
		c.Judge = JudgeFunc(func(first []byte, n int, _ uint16) Verdict { return Drop })
	})
	small, large := h.bytes(60), h.bytes(9014)
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		for range 8 {
			h.send(small)
			h.send(large)
		}
		if n, err := h.o.Visit(VisitBound); n != 16 || err != nil {
			panic("not taken")
		}
	}))
	h.check()
}

// A22 without the frames that are sent on: a burst that is dropped costs what one that
// is delivered does.
func TestSimRegisterBudgetOfADroppedBurst(t *testing.T) {
	cost := func(v Verdict) (accesses uint64) {
		b := newBench(t, &keep{}, func(_ *hwsim.Options, c *Config) {
			c.Judge = JudgeFunc(func([]byte, int, uint16) Verdict { return v })
		})
		w, work := b.card.Wire(uint16(portF1.Tag)), b.rings.Workers(1)[0]
		for range 200 {
			for i := range 32 {
				w.Send(udp(b.mac(portF1), 7, i, 60))
			}
			b.card.Advance(200 * time.Microsecond)
			n, _, err := work.Step(WakeBusy)
			require.NoError(t, err)
			require.Equal(t, 32, n)
		}
		for _, a := range b.card.Accesses() {
			accesses += a.Reads + a.Writes
		}
		b.drain()
		b.healthy()
		return accesses
	}
	assert.Equal(t, cost(Pass), cost(Drop))
}

// Frames of every kind are dropped under each fault that changes how packets come to
// be taken: each is counted once with its bytes and buffers, and the flow beside them
// on the same ring loses nothing.
//
//oxpd:fault D3 behaviour
//oxpd:fault D4 behaviour
//oxpd:fault D5 behaviour
//oxpd:fault D9 behaviour
func TestSimDroppedFramesUnderFaults(t *testing.T) {
	const ring = 3
	late := 30 * time.Microsecond
	for name, tc := range map[string]struct {
		option func(o *hwsim.Options)
		fault  func(f *hwsim.Faults)
		inject string // each round
	}{
		"none":                               {},
		"count before data":                  {fault: func(f *hwsim.Faults) { f.LateData, f.LateBy = hwsim.AllRings, late }},
		"data before count":                  {fault: func(f *hwsim.Faults) { f.LateCount, f.LateBy = hwsim.AllRings, late }},
		"length word late":                   {fault: func(f *hwsim.Faults) { f.LateLength, f.LateBy = hwsim.AllRings, late }},
		"tail after the length word":         {fault: func(f *hwsim.Faults) { f.LateTail, f.LateBy = hwsim.AllRings, late }},
		"entries never written":              {inject: "entry-never-written=3:5"},
		"counts never raised":                {inject: "count-never-raised=3:4"},
		"credit held":                        {fault: func(f *hwsim.Faults) { f.HoldCredit = hwsim.AllRings }},
		"descriptors fetched for the packet": {option: func(o *hwsim.Options) { o.Choices.LazyFetch = true }},
		"one packet below the watermark":     {option: func(o *hwsim.Options) { o.Choices.UnderWatermark = hwsim.DeliverOne }},
		"statistics messages between":        {inject: "statistics-spans=3"},
	} {
		t.Run(name, func(t *testing.T) {
			sink, d := &keep{}, &diary{t: t}
			b := newBench(t, sink, func(o *hwsim.Options, c *Config) {
				c.Judge = d
				if tc.option != nil {
					tc.option(o)
				}
			})
			b.mtu(portF1, 9000)
			unwanted := b.flowOf()[ring]
			wanted := b.besides(ring, unwanted)
			d.drop = func(first []byte, _ int) bool { return first[11] == byte(unwanted) }
			sink.frames = nil
			if tc.fault != nil {
				b.card.Faults(tc.fault)
			}
			sent := 0
			for round := range 60 {
				if tc.inject != "" {
					b.inject(tc.inject)
				}
				b.burst(wanted, 2*round, 1, 60)
				for _, n := range []int{60, 1514, 1520, 1521, 3122, 3123, 9014} {
					b.burst(unwanted, sent, 1, n)
					sent++
				}
				b.burst(wanted, 2*round+1, 1, 9014)
				b.card.Advance(100 * time.Microsecond)
				b.visitAll()
				b.card.Faults(func(f *hwsim.Faults) { f.HoldCredit = 0 })
				b.card.Advance(100 * time.Microsecond)
				b.visitAll()
				if tc.inject != "" {
					b.drain() // a gap lasts two ticks, and the ring has room for few
				}
			}
			b.drain()
			for _, f := range sink.frames {
				require.Equal(t, byte(wanted), f[11], "the flow of what came")
			}
			sink.inOrder(t, 0, 120)
			assert.EqualValues(t, sent, d.packets)
			d.dropped(b.rings.Stats())
			assert.Zero(t, csr.CntsCount.Get(b.load(csr.OutCnts, ring)))
			b.check()
		})
	}
}

// besides finds another flow of a ring.
func (b *bench) besides(ring, flow int) int {
	b.t.Helper()
	for other := range 300 {
		if other == flow {
			continue
		}
		before := b.rings.Stats().Queues[ring].Done
		b.burst(other, 0, 1, 60)
		b.drain()
		if b.rings.Stats().Queues[ring].Done > before {
			return other
		}
	}
	require.Fail(b.t, "no other flow")
	return 0
}
