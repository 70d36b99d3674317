package ring

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/board"
	"oxpd/internal/dma"
	"oxpd/internal/mmio"
	"oxpd/internal/simdev"
	"oxpd/internal/simdev/simtest"
	"oxpd/octep"
	"oxpd/octep/csr"
	"oxpd/ring/wire"
	"oxpd/rpc/msg"
)

// bench is the rings on the simulated card, with every port provisioned and no
// control plane.
type bench struct {
	t     testing.TB
	card  *hwsim.Card
	dev   octep.Device
	rings *Rings
	want  []string // names of the reports that the test expects
	torn  bool     // the rings are not in use any more: the invariants say nothing
}

type benchOption func(*hwsim.Options, *Config)

// spy is the card's BAR0 with somebody who is told of each store, before it, and of
// each access, after it.
type spy struct {
	mmio.Space
	card  *hwsim.Card
	store func(off uint32, v uint64)
	after func()
}

func spied(s *spy) benchOption { return func(_ *hwsim.Options, c *Config) { c.BAR0 = s } }

func (s *spy) put(off uint32, v uint64, do func()) {
	if s.store != nil {
		s.store(off, v)
	}
	do()
	s.done()
}

func (s *spy) done() {
	if s.after != nil {
		s.after()
	}
}

func (s *spy) Load32(off uint32) uint32 { defer s.done(); return s.Space.Load32(off) }
func (s *spy) Load64(off uint32) uint64 { defer s.done(); return s.Space.Load64(off) }
func (s *spy) Store32(off uint32, v uint32) {
	s.put(off, uint64(v), func() { s.Space.Store32(off, v) })
}
func (s *spy) Store64(off uint32, v uint64) { s.put(off, v, func() { s.Space.Store64(off, v) }) }

func newBench(t testing.TB, sink Sink, options ...benchOption) *bench {
	t.Helper()
	return newBenchOn(t, sink, nil, options...)
}

// newBenchOn is newBench with memory of the test's choice; nil is the device's.
func newBenchOn(t testing.TB, sink Sink, memory func(*hwsim.Card) dma.Provider, options ...benchOption) *bench {
	t.Helper()
	ho := hwsim.Options{Seed: 1}
	cfg := Config{Sink: sink}
	for _, o := range options {
		o(&ho, &cfg)
	}
	b := &bench{t: t, card: hwsim.New(ho)}
	b.dev = simdev.New(b.card)
	cmd, err := b.dev.ConfigRead(4, 2)
	require.NoError(t, err)
	require.NoError(t, b.dev.ConfigWrite(4, 2, cmd|6)) // memory decoding, bus mastering
	if s, ok := cfg.BAR0.(*spy); ok {
		s.Space, s.card = b.dev.BAR0(), b.card
	} else {
		cfg.BAR0 = b.dev.BAR0()
	}
	cfg.DMA, cfg.Clock = b.dev.DMA(), b.card.Clock()
	if memory != nil {
		cfg.DMA = memory(b.card)
	}
	b.rings, err = New(cfg)
	require.NoError(t, err)
	require.NoError(t, b.rings.Program(context.Background()))
	require.NoError(t, b.rings.SetClocks(800))
	b.card.Provision()
	t.Cleanup(b.close)
	return b
}

// close ends the card before the memory goes, as the daemon does.
func (b *bench) close() {
	if !b.torn {
		b.drain()
		b.check()
	}
	simtest.Clean(b.t, b.card, b.want...)
	assert.NoError(b.t, octep.SetBusMaster(b.dev, false))
	assert.NoError(b.t, b.dev.Close())
	assert.NoError(b.t, b.rings.Free())
}

// mac is the address of a port's LIF.
func (b *bench) mac(p board.Port) (mac [6]byte) {
	l, ok := b.card.LIF(uint32(p.LIF()))
	require.True(b.t, ok)
	return l.MAC
}

// mtu changes a LIF behind the driver's back.
func (b *bench) mtu(p board.Port, mtu int) {
	l, ok := b.card.LIF(uint32(p.LIF()))
	require.True(b.t, ok)
	l.MTU = uint16(mtu)
	b.card.SetLIF(uint32(p.LIF()), &l)
}

// udp is an Ethernet frame of n bytes: IPv4, UDP, flow in the ports, seq and a
// pattern as payload.
func udp(dst [6]byte, flow, seq, n int) []byte {
	f := make([]byte, n)
	copy(f, dst[:])
	copy(f[6:], []byte{2, 0, 0, 0, 1, byte(flow)})
	binary.BigEndian.PutUint16(f[12:], 0x0800)
	ip := f[14:]
	ip[0], ip[8], ip[9] = 0x45, 64, 17
	binary.BigEndian.PutUint16(ip[2:], uint16(n-14))
	copy(ip[12:], []byte{10, 0, byte(flow >> 8), byte(flow), 10, 0, 0, 1})
	binary.BigEndian.PutUint16(ip[20:], uint16(1024+flow))
	binary.BigEndian.PutUint16(ip[22:], 5001)
	binary.BigEndian.PutUint16(ip[24:], uint16(n-34))
	p := f[42:]
	for i := range p {
		p[i] = byte(i*7 + seq)
	}
	binary.BigEndian.PutUint32(p, uint32(flow))
	binary.BigEndian.PutUint32(p[4:], uint32(seq))
	return f
}

func flowSeq(f []byte) (flow, seq int) {
	return int(binary.BigEndian.Uint32(f[42:])), int(binary.BigEndian.Uint32(f[46:]))
}

// drain visits every queue until nothing comes any more in 5 ms of card time.
func (b *bench) drain() (took int) {
	b.t.Helper()
	for quiet := 0; quiet < 50; {
		n := b.visitAll()
		took += n
		if n > 0 {
			quiet = 0
			continue
		}
		quiet++
		b.card.Advance(100 * time.Microsecond)
	}
	b.rings.IQ().Settle()
	return took
}

func (b *bench) visitAll() (took int) {
	for q := range wire.OQs {
		n, err := b.rings.OQ(q).Visit(VisitBound)
		require.NoError(b.t, err)
		took += n
	}
	return took
}

// check holds driver and card against the invariants of datapath.md 4 in a
// quiet state, from what a host can see and from the card's own sums.
func (b *bench) check() {
	t := b.t
	t.Helper()
	require.NoError(t, b.card.CheckConservation())
	s := b.rings.Stats()
	for q, st := range s.Queues {
		o := b.rings.OQ(q)
		assert.Zero(t, csr.CntsCount.Get(o.regs.Load64(uint32(o.cnts))), "invariant 1, ring %d", q)
		assert.Equal(t, uint64(wire.Poison), o.word(o.read), "invariant 1, ring %d", q)
		assert.Equal(t, st.Returned+st.Carry, st.Done+st.SpanBufs+st.Skipped, "invariant 2, ring %d", q)

		bell := o.regs.Load64(uint32(o.bell))
		credit := int64(int32(csr.DBellCount.Get(bell)))
		g := int64(wire.Grant(wire.OQEntries, b.rings.cfg.Watermark))
		fetched := g + int64(st.Returned) - credit
		assert.Zero(t, fetched%wire.FetchBatch, "invariant 3, ring %d", q)
		assert.Equal(t, uint64(fetched)*wire.ListEntry%(wire.OQEntries*wire.ListEntry), csr.DBellPosition.Get(bell), "invariant 3, ring %d: position", q)
		assert.LessOrEqual(t, credit, g, "invariant 3, ring %d", q)
		assert.Equal(t, st.Done, st.Delivered+st.Untagged+st.Dropped+st.SpanNoBuf+st.Long, "invariant 4, ring %d", q)
	}
	assert.LessOrEqual(t, s.Spans, s.SpanBufs, "invariant 5")
	var messages uint64
	for q, st := range s.Queues {
		n := b.card.Messages(csr.MSIXRingVector + q)
		assert.Equal(t, n, st.IntrTaken, "invariant 9, ring %d", q)
		messages += n
	}
	assert.Equal(t, messages, s.IntrTaken, "invariant 9")
	assert.Equal(t, s.TxPosted, b.card.Counter(msg.CntRXKN), "invariant 6")
	assert.Equal(t, s.TxPosted, s.TxFinished, "invariant 6: all finished")
	assert.Equal(t, s.GatherSize, s.GatherFree, "gather buffers are back")
	assert.Equal(t, s.LargeSize, s.LargeFree, "gather buffers are back")
}

// healthy adds invariant 8, for tests without a fault.
func (b *bench) healthy() {
	b.t.Helper()
	b.check()
	s := b.rings.Stats()
	for name, v := range map[string]uint64{
		"oq_lapped": s.Lapped, "rx_resync": s.Resync, "rx_short": s.Short, "rx_long": s.Long, "oq_unseen": s.Unseen,
		"oq_behind": s.Behind, "rx_span_nobuf": s.SpanNoBuf, "rx_ghosts": s.Ghosts, "credit_capped": s.Capped,
	} {
		assert.Zero(b.t, v, "invariant 8: %s", name)
	}
	tx, queueFull := b.card.Counter(msg.CntTXKN), b.card.Counter(msg.CntTXDropQueueFull)
	assert.Equal(b.t, tx, s.Done+queueFull, "invariant 7")
}

var portF1, _ = board.Parse("F1")

// The published record: twelve pings of six sizes at 9,000.
//
//oxpd:fault R32 behaviour
func TestSimRecordOfTwelvePings(t *testing.T) {
	sink := &keep{}
	b := newBench(t, sink)
	b.mtu(portF1, 9000)
	w := b.card.Wire(uint16(portF1.Tag))
	var sent [][]byte
	for i, data := range []int{1480, 2000, 2500, 3000, 6000, 8972} {
		for j := range 2 {
			f := udp(b.mac(portF1), 1, 2*i+j, data+42)
			sent = append(sent, f)
			w.Send(f)
			b.drain()
		}
	}
	assert.Equal(t, sent, sink.frames)
	s := b.rings.Stats()
	assert.Equal(t, []uint64{12, 24, 9088}, []uint64{s.Spans, s.SpanBufs, s.SpanMax})

	w.Send(udp(b.mac(portF1), 1, 99, 9015))
	b.drain()
	assert.Equal(t, uint64(1), b.card.Counter(msg.CntDropMTUExceeded))
	assert.Len(t, sink.frames, 12)
	b.healthy()
}

// Every port's tag reaches its own wire, and no frame is posted with another.
//
//oxpd:fault F27 behaviour
func TestSimFramesBothWaysOnEveryPortAndSize(t *testing.T) {
	sink := &keep{}
	b := newBench(t, sink, func(o *hwsim.Options, _ *Config) { o.SwitchFrame = hwsim.SwitchFrameJumbo })
	for _, p := range board.All() {
		b.mtu(p, 9000)
		var out [][]byte
		b.card.Wire(uint16(p.Tag)).SetReceiver(func(f []byte) { out = append(out, append([]byte(nil), f...)) })
		sink.frames, sink.tags = nil, nil
		var in, posted [][]byte
		for i, n := range []int{60, 61, 1514, 1520, 1521, 1522, 3122, 3123, 9014} {
			f := udp(b.mac(p), i, i, n)
			b.card.Wire(uint16(p.Tag)).Send(f)
			in = append(in, f)
			g := udp([6]byte{2, 2, 2, 2, 2, 2}, i, i+100, n)
			require.True(t, b.rings.IQ().Post(uint16(p.Tag), g))
			posted = append(posted, g)
			b.drain()
		}
		require.Equal(t, in, sink.frames, "%s", p)
		require.Equal(t, posted, out, "%s", p)
		for _, tag := range sink.tags {
			require.Equal(t, uint16(p.Tag), tag)
		}
	}
	b.healthy()
	b.atRest()
}

// atRest: the doorbell of a full ring that nobody uses.
func (b *bench) atRest() {
	b.t.Helper()
	for q := range wire.OQs {
		o := b.rings.OQ(q)
		v := int32(csr.DBellCount.Get(o.regs.Load64(uint32(o.bell))))
		assert.True(b.t, v >= 2016 && v <= 2031, "ring %d rests at %d", q, v)
	}
}

//oxpd:fault D8 behaviour
func TestSimLongRunCrossesTheRingsEndManyTimes(t *testing.T) {
	sums := map[int]uint64{}
	got := 0
	sink := &keep{}
	b := newBench(t, sink)
	b.mtu(portF1, 9000)
	w := b.card.Wire(uint16(portF1.Tag))
	sizes := []int{60, 9014, 1514, 3123, 64, 1522, 9014}
	const frames = 20_000
	for i := range frames {
		f := udp(b.mac(portF1), i%16, i, sizes[i%len(sizes)])
		h := fnv.New64a()
		_, _ = h.Write(f)
		sums[i] = h.Sum64()
		w.Send(f)
		if i%16 == 15 {
			b.card.Advance(120 * time.Microsecond)
			b.visitAll()
		}
		for _, f := range sink.frames {
			_, seq := flowSeq(f)
			h := fnv.New64a()
			_, _ = h.Write(f)
			require.Equal(t, sums[seq], h.Sum64(), "frame %d", seq)
			delete(sums, seq)
			got++
		}
		sink.frames, sink.tags = sink.frames[:0], nil
	}
	b.drain()
	assert.Equal(t, frames, got+len(sink.frames))
	b.healthy()
	b.atRest()
}

// datapath.md 7, row 14: the host is away for 100 ms at 120,000 frames a second.
//
//oxpd:fault D14 behaviour
//oxpd:fault R34 behaviour
func TestSimHostAwayLosesTheRestAndNothingElse(t *testing.T) {
	sink := &keep{}
	b := newBench(t, sink)
	w := b.card.Wire(uint16(portF1.Tag))
	for i := range 12_000 {
		w.Send(udp(b.mac(portF1), 5, i, 200))
		b.card.Advance(time.Second / 120_000)
	}
	b.card.Advance(time.Millisecond)
	b.drain()
	assert.InDelta(t, 1009, len(sink.frames), 16)
	for i, f := range sink.frames {
		_, seq := flowSeq(f)
		require.Equal(t, i, seq, "in order from the first")
	}
	assert.Equal(t, uint64(12_000-len(sink.frames)), b.card.Counter(msg.CntTXDropQueueFull))
	b.healthy()
	w.Send(udp(b.mac(portF1), 5, 1, 200))
	assert.Equal(t, 1, b.drain(), "the ring goes on")
	b.atRest()
}

//oxpd:fault D28 behaviour
func TestSimOneFloodedRingHurtsNoOther(t *testing.T) {
	sink := &keep{}
	b := newBench(t, sink)
	w := b.card.Wire(uint16(portF1.Tag))
	// Flows are sorted by the ring that they take, read from the driver's counters.
	byRing := map[int]int{}
	for flow := 0; flow < 200 && len(byRing) < wire.OQs; flow++ {
		before := b.rings.Stats()
		w.Send(udp(b.mac(portF1), flow, 0, 60))
		b.drain()
		after := b.rings.Stats()
		for q := range after.Queues {
			if after.Queues[q].Done > before.Queues[q].Done {
				byRing[q] = flow
			}
		}
	}
	require.Len(t, byRing, wire.OQs, "flows for every ring")
	sink.frames = nil
	for i := range 2000 {
		w.Send(udp(b.mac(portF1), byRing[3], i, 60))
		b.card.Advance(10 * time.Microsecond)
		if i%200 == 0 {
			for q, flow := range byRing {
				if q != 3 {
					w.Send(udp(b.mac(portF1), flow, i, 60))
				}
			}
			b.card.Advance(100 * time.Microsecond)
			for q := range wire.OQs {
				if q != 3 { // nobody serves the flooded ring
					_, err := b.rings.OQ(q).Visit(VisitBound)
					require.NoError(t, err)
				}
			}
		}
	}
	b.drain()
	per := map[int]int{}
	for _, f := range sink.frames {
		flow, _ := flowSeq(f)
		per[flow]++
	}
	for q, flow := range byRing {
		if q != 3 {
			assert.Equal(t, 10, per[flow], "ring %d", q)
		}
	}
	assert.Equal(t, uint64(2000-per[byRing[3]]), b.card.Counter(msg.CntTXDropQueueFull))
	b.healthy()
}

// Rows of datapath.md 7 that a fault brings about.
func TestSimFaultsOfTheOutputBlock(t *testing.T) {
	for _, tc := range []struct {
		name   string
		fault  func(f *hwsim.Faults)
		lost   int
		moves  func(s Stats) uint64
		mended func(f *hwsim.Faults)
	}{
		{"count before the packet is visible", func(f *hwsim.Faults) { f.LateData, f.LateBy = hwsim.AllRings, 50*time.Microsecond }, 0,
			func(s Stats) uint64 { return s.Unseen }, nil},
		{"tail of a span after the length word", func(f *hwsim.Faults) { f.LateTail, f.LateBy = hwsim.AllRings, 50*time.Microsecond }, 0, nil, nil},
		{"packet before the count", func(f *hwsim.Faults) { f.LateCount, f.LateBy = hwsim.AllRings, 50*time.Microsecond }, 0, nil, nil},
		{"packets never counted", func(f *hwsim.Faults) {
			for q := range wire.OQs {
				f.LoseCounts[q] = 3
			}
		}, 0, func(s Stats) uint64 { return s.Behind }, nil},
		{"entries never written", func(f *hwsim.Faults) {
			for q := range wire.OQs {
				f.SkipEntries[q] = 2
			}
		}, 0, func(s Stats) uint64 { return s.Resync }, nil},
		{"status latched", func(f *hwsim.Faults) { f.StatusStops = hwsim.AllRings }, 0, nil, nil},
		{"resume stuck until another doorbell", func(f *hwsim.Faults) { f.StuckResume = hwsim.AllRings }, 0, nil, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			sink := &keep{}
			b := newBench(t, sink)
			b.mtu(portF1, 9000)
			b.card.Faults(tc.fault)
			w := b.card.Wire(uint16(portF1.Tag))
			sizes := []int{60, 9014, 1514}
			const frames = 600
			sent := map[string]bool{}
			for i := range frames {
				f := udp(b.mac(portF1), i%8, i, sizes[i%3])
				sent[string(f)] = true
				w.Send(f)
				b.card.Advance(20 * time.Microsecond)
				if i%3 == 0 {
					b.visitAll()
				}
			}
			b.drain()
			last := map[int]int{}
			for _, f := range sink.frames {
				flow, seq := flowSeq(f)
				require.True(t, sent[string(f)], "frame %d arrives once and unchanged", seq)
				delete(sent, string(f))
				if before, ok := last[flow]; ok {
					require.Greater(t, seq, before, "order of flow %d", flow)
				}
				last[flow] = seq
			}
			assert.Len(t, sent, tc.lost)
			if tc.moves != nil {
				assert.Positive(t, tc.moves(b.rings.Stats()))
			}
			b.check()
		})
	}
}

func TestSimLengthWordsThatNoFrameHas(t *testing.T) {
	for name, tc := range map[string]struct {
		l     uint64
		moves func(Stats) uint64
	}{
		"0 after a count":         {0, func(s Stats) uint64 { return s.Unseen }},
		"74":                      {74, func(s Stats) uint64 { return s.Short }},
		"65,536":                  {65536, func(s Stats) uint64 { return s.Long }},
		"as long as the ring":     {1024*1602 - 8, func(s Stats) uint64 { return s.Long }},
		"longer than the ring":    {1024 * 1602, func(s Stats) uint64 { return s.Long }},
		"a word of all ones":      {^uint64(0), func(s Stats) uint64 { return s.Long }},
		"larger than any buffer":  {20000, func(s Stats) uint64 { return s.SpanNoBuf }},
		"the largest that counts": {65535, func(s Stats) uint64 { return s.SpanNoBuf }},
	} {
		t.Run(name, func(t *testing.T) {
			sink := &keep{}
			b := newBench(t, sink)
			payload := make([]byte, 60)
			if tc.l > 10000 && tc.l <= 65535 {
				payload = make([]byte, tc.l-wire.LenOverhead)
			}
			b.card.DeliverRaw(0, uint16(portF1.Tag), payload, tc.l)
			for range 100 {
				b.visitAll()
				b.card.Advance(time.Millisecond)
			}
			assert.Equal(t, uint64(1), min(tc.moves(b.rings.Stats()), 1), "its counter")
			assert.Empty(t, sink.frames)
			w := b.card.Wire(uint16(portF1.Tag))
			for i := range 64 {
				w.Send(udp(b.mac(portF1), i, i, 60))
			}
			b.drain()
			assert.Len(t, sink.frames, 64, "every ring goes on")
		})
	}
}

// Statistics messages of several buffers between frames (datapath.md 7, row 9).
func TestSimControlMessagesBetweenFrames(t *testing.T) {
	sink := &keep{}
	b := newBench(t, sink, func(_ *hwsim.Options, c *Config) {
		c.Judge = JudgeFunc(func(_ []byte, _ int, tag uint16) Verdict {
			if tag == uint16(board.TagControl) {
				return Unowned
			}
			return Pass
		})
	})
	w := b.card.Wire(uint16(portF1.Tag))
	n := 0
	for i := range 300 {
		l := []uint64{1898, 3114, 14956}[i%3]
		b.card.DeliverRaw(0, uint16(board.TagControl), make([]byte, l-wire.LenOverhead), l)
		w.Send(udp(b.mac(portF1), i, i, 60))
		b.card.Advance(50 * time.Microsecond)
		if i%4 == 3 {
			n += b.visitAll()
		}
	}
	b.drain()
	assert.Len(t, sink.frames, 300)
	s := b.rings.Stats()
	assert.Equal(t, []uint64{300, 300, 100 * (1 + 1 + 9)}, []uint64{s.Untagged, s.Spans, s.SpanBufs})
	assert.Zero(t, s.GatherHigh+s.LargeHigh, "nothing is gathered for nobody")
	b.check()
}

// datapath.md 7, row 17: the data of an instruction is read long after it was
// fetched; a slot that was reused by the doorbell would go out as another frame.
//
//oxpd:fault F21 behaviour
//oxpd:fault D17 behaviour
func TestSimSlotIsNotReusedBeforeItWasRead(t *testing.T) {
	b := newBench(t, &keep{})
	b.card.Faults(func(f *hwsim.Faults) { f.ReadDelay = 300 * time.Microsecond })
	var seqs []int
	b.card.Wire(uint16(portF1.Tag)).SetReceiver(func(f []byte) {
		_, seq := flowSeq(f)
		seqs = append(seqs, seq)
	})
	q := b.rings.IQ()
	const frames = 3000
	for seq := 0; seq < frames; {
		q.Lock()
		for range 32 {
			buf := q.Reserve()
			if buf == nil || seq == frames {
				break
			}
			n := copy(buf, udp([6]byte{2}, 1, seq, 100))
			q.Commit(uint16(portF1.Tag), n)
			seq++
		}
		q.Flush()
		q.Unlock()
		b.card.Advance(20 * time.Microsecond)
	}
	b.card.Advance(10 * time.Millisecond)
	b.drain()
	require.Len(t, seqs, frames)
	for i, seq := range seqs {
		require.Equal(t, i, seq)
	}
	assert.Zero(t, b.card.Counter(msg.CntTXWireErr))
	b.healthy()
}

// A22: what a burst of 32 received and sent on costs in register accesses,
// through the turn that a worker takes for each, going to sleep included.
func TestSimRegisterBudget(t *testing.T) {
	echo := &echo{}
	b := newBench(t, echo)
	echo.iq = b.rings.IQ()
	w := b.card.Wire(uint16(portF1.Tag))
	work := b.rings.Workers(1)[0]
	burst := func() {
		for i := range 32 {
			w.Send(udp(b.mac(portF1), 7, i, 60))
		}
		b.card.Advance(200 * time.Microsecond)
		n, _, err := work.Step(WakeBusy)
		require.NoError(t, err)
		require.Equal(t, 32, n)
	}
	burst()
	b.card.Advance(200 * time.Microsecond)
	b.card.ResetAccesses()
	const bursts = 1000 // 0.4 s of card time: eight sweeps are inside
	for range bursts {
		burst()
	}
	total := uint64(0)
	for name, a := range b.card.Accesses() {
		total += a.Reads + a.Writes
		t.Logf("%-20s %d reads, %d writes", name, a.Reads, a.Writes)
	}
	assert.LessOrEqual(t, total, uint64(8*bursts))
	t.Logf("%.2f accesses a burst, %.3f a packet", float64(total)/bursts, float64(total)/(32*bursts))
	b.drain()
	b.healthy()
}

// echo sends every frame back out of the port it came from.
type echo struct {
	iq *IQ
	n  int
}

func (e *echo) Deliver(_ int, frames []Frame) {
	e.iq.Lock()
	defer e.iq.Unlock()
	e.iq.Reap()
	for i := range frames {
		buf := e.iq.Reserve()
		if buf == nil {
			continue
		}
		n := 0
		for _, p := range frames[i].Pieces {
			n += copy(buf[n:], p)
		}
		e.iq.Commit(frames[i].Tag, n)
		e.n++
	}
	e.iq.Flush()
}

// Known bug RX-5: a packet that arrives at any moment between the last look and
// going to sleep is announced by its message, not found by the sweep.
func TestSimNoArrivalIsMissedOnTheWayToSleep(t *testing.T) {
	b := newBench(t, &keep{})
	irq := make(chan struct{}, 1)
	for q := range wire.OQs {
		require.NoError(t, b.dev.BindIRQ(csr.MSIXRingVector+q, b.rings.OQ(q).Handler(irq)))
	}
	work := b.rings.Workers(1)[0]
	w := b.card.Wire(uint16(portF1.Tag))
	for i := range 400 {
		w.Send(udp(b.mac(portF1), 7, i, 60))
		b.card.Advance(time.Duration(i) * 100 * time.Nanosecond) // it is somewhere on its way
		got := 0
		why := WakeBusy
		for got == 0 {
			n, sleep, err := work.Step(why)
			require.NoError(t, err)
			if got += n; got > 0 {
				break
			}
			for waited := time.Duration(0); ; waited += time.Microsecond {
				require.Less(t, waited, sleep, "offset %d: only the sweep would find it", i)
				select {
				case <-irq:
					why = WakeBusy
				default:
					b.card.Advance(time.Microsecond)
					continue
				}
				break
			}
		}
		b.drain()
		select {
		case <-irq:
		default:
		}
	}
	assert.Zero(t, b.rings.Stats().WdRescues)
	b.healthy()
}

// flows checks order and bytes per flow; frames of one flow come from one worker.
type flows struct {
	mu   sync.Mutex
	next map[int]int
	ring map[int]int
	bad  []string
	got  int
}

func (s *flows) Deliver(oq int, frames []Frame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range frames {
		var b []byte
		for _, p := range f.Pieces {
			b = append(b, p...)
		}
		flow, seq := flowSeq(b)
		var mac [6]byte
		copy(mac[:], b)
		switch want := udp(mac, flow, seq, len(b)); {
		case string(want) != string(b):
			s.bad = append(s.bad, fmt.Sprintf("flow %d frame %d: bytes changed", flow, seq))
		case seq < s.next[flow]:
			s.bad = append(s.bad, fmt.Sprintf("flow %d frame %d after %d", flow, seq, s.next[flow]))
		}
		if r, ok := s.ring[flow]; ok && r != oq {
			s.bad = append(s.bad, fmt.Sprintf("flow %d on rings %d and %d", flow, r, oq))
		}
		s.ring[flow], s.next[flow] = oq, seq+1
		s.got++
	}
}

// Live: workers with interrupts, card and wire in goroutines of their own.
func TestSimFreeRunningTrafficWithTwoWorkers(t *testing.T) {
	sink := &flows{next: map[int]int{}, ring: map[int]int{}}
	b := newBench(t, sink)
	b.mtu(portF1, 9000)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, work := range b.rings.Workers(2) {
		irq := make(chan struct{}, 1)
		for _, q := range work.Queues() {
			require.NoError(t, b.dev.BindIRQ(csr.MSIXRingVector+q, b.rings.OQ(q).Handler(irq)))
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			assert.NoError(t, work.Run(ctx, irq))
		}()
	}
	b.card.Start()
	w := b.card.Wire(uint16(portF1.Tag))
	sizes := []int{60, 9014, 1514, 1522}
	const frames = 30_000
	mac := b.mac(portF1)
	for i := range frames {
		w.Send(udp(mac, i%24, i/24, sizes[i%4]))
		if i%64 == 63 {
			time.Sleep(100 * time.Microsecond) // pacing of the offered load, not a bound
		}
	}
	require.Eventually(t, b.card.Quiesced, time.Minute, time.Millisecond)
	require.Eventually(t, func() bool {
		st := b.rings.Stats()
		return st.Done+b.card.Counter(msg.CntTXDropQueueFull) == b.card.Counter(msg.CntTXKN)
	}, 20*time.Second, time.Millisecond)
	cancel()
	wg.Wait()
	sink.mu.Lock()
	defer sink.mu.Unlock()
	assert.Empty(t, sink.bad)
	assert.Equal(t, frames, sink.got+int(b.card.Counter(msg.CntTXDropQueueFull))+int(w.Stats().Overrun))
	for q, st := range b.rings.Stats().Queues {
		assert.Equal(t, st.Done > 0, st.IntrTaken > 0, "ring %d: its packets sent messages", q)
	}
	b.healthy()
}

// Rule 7: after a stop the card goes on writing. It finds the memory still
// there, and reaches none of it once bus mastering is off, before it is freed.
func TestSimMemoryOutlivesTheRings(t *testing.T) {
	for name, end := range map[string]func(r *Rings) error{
		"stopped":   func(r *Rings) error { r.Stop(); return nil },
		"torn down": func(r *Rings) error { return r.Teardown() },
		"disabled alone": func(r *Rings) error { // credit is left, and the card does not care
			for q := range wire.OQs {
				r.store(csr.OutEnable, q, 0)
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, &keep{}, func(o *hwsim.Options, _ *Config) { o.Choices.DisabledWrites = true })
			b.torn = true
			w := b.card.Wire(uint16(portF1.Tag))
			burst := func() {
				for i := range 100 {
					w.Send(udp(b.mac(portF1), i, i, 60))
				}
				b.card.Advance(10 * time.Millisecond)
			}
			require.NoError(t, end(b.rings))
			burst()
			assert.Empty(t, b.card.Reports(), "the memory is still the card's")
			require.NoError(t, octep.SetBusMaster(b.dev, false))
			burst()
			if name != "torn down" { // drained doorbells leave nothing to write to
				assert.Positive(t, b.card.ReportCount(hwsim.ReportBusMasterOff), "the card goes on trying")
			}
			b.want = append(b.want, hwsim.ReportBusMasterOff)
		})
	}
}

// hardware/ERRATA.md: the rings are right under every alternative that concerns
// them. Frames are offered slowly enough that none may be lost.
func TestSimEveryAlternativeOfTheChoices(t *testing.T) {
	for name, set := range map[string]func(c *hwsim.Choices){
		"1: one packet under the watermark":        func(c *hwsim.Choices) { c.UnderWatermark = hwsim.DeliverOne },
		"1: none under the watermark":              func(c *hwsim.Choices) { c.UnderWatermark = hwsim.DeliverNone },
		"2: descriptors fetched lazily":            func(c *hwsim.Choices) { c.LazyFetch = true },
		"3: latched status stops delivery":         func(c *hwsim.Choices) { c.StatusStops = true },
		"4: drain value is a huge grant":           func(c *hwsim.Choices) { c.DrainIsGrant = true },
		"5: RESEND only at the level":              func(c *hwsim.Choices) { c.ResendAtLevel = true },
		"6: time part 0 fires at once":             func(c *hwsim.Choices) { c.TimerZeroFires = true },
		"7: byte count with the length word":       func(c *hwsim.Choices) { c.ByteCntWithHead = true },
		"20: IN_CNTS wraps":                        func(c *hwsim.Choices) { c.InCntsWraps = true },
		"22: a packet may be cut for want of room": func(c *hwsim.Choices) { c.CutMidway = true },
		"23: length word before the tail":          func(c *hwsim.Choices) { c.LengthFirst = true },
		"27: a disabled ring writes on":            func(c *hwsim.Choices) { c.DisabledWrites = true },
	} {
		t.Run(name, func(t *testing.T) {
			sink := &flows{next: map[int]int{}, ring: map[int]int{}}
			b := newBench(t, sink, func(o *hwsim.Options, _ *Config) { set(&o.Choices) })
			b.mtu(portF1, 9000)
			irq := make(chan struct{}, 1)
			for q := range wire.OQs {
				require.NoError(t, b.dev.BindIRQ(csr.MSIXRingVector+q, b.rings.OQ(q).Handler(irq)))
			}
			work := b.rings.Workers(1)[0]
			w := b.card.Wire(uint16(portF1.Tag))
			sizes := []int{60, 9014, 1514, 3123}
			const frames = 3000
			for i := range frames {
				w.Send(udp(b.mac(portF1), i%12, i/12, sizes[i%4]))
				require.True(t, b.rings.IQ().Post(uint16(portF1.Tag), udp([6]byte{2}, 1, i, sizes[i%4])))
				b.card.Advance(20 * time.Microsecond)
				_, _, err := work.Step(WakeBusy)
				require.NoError(t, err)
			}
			b.drain()
			assert.Empty(t, sink.bad)
			assert.Equal(t, frames, sink.got)
			assert.Zero(t, b.card.Counter(msg.CntTXDropQueueFull))
			b.check()
		})
	}
}
