package ring

import (
	"bytes"
	"context"
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/dma"
	"oxpd/internal/simdev"
	"oxpd/octep"
	"oxpd/octep/csr"
	"oxpd/ring/wire"
	"oxpd/rpc/msg"
)

// What the rings do about the failure modes of endpoint.md 15. The symptoms are
// asserted in hwsim, as a host meets them that brings them about.

// load is a register of the card, past the driver.
func (b *bench) load(reg csr.RingReg, q int) uint64 { return b.card.Load(0, uint64(reg.Queue(q)), 8) }

// flowOf finds a flow for each output queue, by the driver's counters.
func (b *bench) flowOf() map[int]int {
	b.t.Helper()
	w, flows := b.card.Wire(uint16(portF1.Tag)), map[int]int{}
	for flow := 0; flow < 300 && len(flows) < wire.OQs; flow++ {
		before := b.rings.Stats()
		w.Send(udp(b.mac(portF1), flow, 0, 60))
		b.drain()
		for q, s := range b.rings.Stats().Queues {
			if s.Done > before.Queues[q].Done {
				flows[q] = flow
			}
		}
	}
	require.Len(b.t, flows, wire.OQs, "flows for every queue")
	return flows
}

// host is a worker of all queues with its interrupts, in the card's time.
type host struct {
	*bench
	work *Worker
	irq  chan struct{}
}

func (b *bench) host() *host {
	h := &host{bench: b, work: b.rings.Workers(1)[0], irq: make(chan struct{}, 1)}
	for q := range wire.OQs {
		require.NoError(b.t, b.dev.BindIRQ(csr.MSIXRingVector+q, b.rings.OQ(q).Handler(h.irq)))
	}
	return h
}

// serve is Worker.Run until done, and fails when that takes longer than bound.
func (h *host) serve(bound time.Duration, done func() bool) {
	h.t.Helper()
	from, why := h.card.Clock().Now(), WakeBusy
	for !done() {
		_, sleep, err := h.work.Step(why)
		require.NoError(h.t, err)
		if done() {
			break
		}
		if why = WakeBusy; h.sleeps(sleep) && sleep == SweepPeriod {
			why = WakeSweep
		}
		require.LessOrEqual(h.t, h.card.Clock().Now()-from, bound)
	}
}

// sleeps tells whether the time ran out without a message.
func (h *host) sleeps(d time.Duration) bool {
	for end := h.card.Clock().Now() + d; h.card.Clock().Now() < end; h.card.Advance(10 * time.Microsecond) {
		select {
		case <-h.irq:
			return false
		default:
		}
	}
	return true
}

// The first grant is above the watermark, on every queue: a burst of a whole ring
// arrives without a loss even where nothing is delivered below it.
//
//oxpd:fault F7 behaviour
func TestF7FirstGrantIsAboveTheWatermark(t *testing.T) {
	for name, under := range map[string]hwsim.UnderWatermark{"one packet below it": hwsim.DeliverOne, "none below it": hwsim.DeliverNone} {
		t.Run(name, func(t *testing.T) {
			sink := &keep{}
			b := newBench(t, sink, func(o *hwsim.Options, _ *Config) { o.Choices.UnderWatermark = under })
			b.atRest()
			flows := b.flowOf()
			sink.frames = nil
			for q, flow := range flows {
				for i := range 900 {
					b.card.Wire(uint16(portF1.Tag)).Send(udp(b.mac(portF1), flow, i, 60))
				}
				b.card.Advance(20 * time.Millisecond)
				assert.EqualValues(t, 900, csr.CntsCount.Get(b.load(csr.OutCnts, q)), "queue %d", q)
			}
			b.drain()
			assert.Len(t, sink.frames, 900*wire.OQs)
			b.healthy()
		})
	}
}

// A firmware with a lower watermark than oxpd was told makes the same grant too
// large, and the card laps a ring that nobody serves. What was overwritten is lost
// and counted as a lap; within 20 ms of being served again everything arrives.
//
//oxpd:fault F8 behaviour
//oxpd:fault D11 behaviour
func TestF8LappedRingGoesOn(t *testing.T) {
	sink := &keep{}
	b := newBench(t, sink, func(o *hwsim.Options, _ *Config) { o.Watermark = 0x100 })
	b.want = append(b.want, hwsim.ReportCreditAbove)
	flow := b.flowOf()[0]
	w := b.card.Wire(uint16(portF1.Tag))
	for i := range 3000 {
		w.Send(udp(b.mac(portF1), flow, i, 60))
	}
	b.card.Advance(50 * time.Millisecond)
	require.Greater(t, csr.CntsCount.Get(b.load(csr.OutCnts, 0)), uint64(wire.OQEntries), "lapped")

	b.host().serve(20*time.Millisecond, func() bool { return csr.CntsCount.Get(b.load(csr.OutCnts, 0)) == 0 })
	assert.Positive(t, b.rings.Stats().Lapped)
	sink.frames = nil
	for i := range 500 {
		w.Send(udp(b.mac(portF1), flow, i, 60))
		if i%100 == 99 {
			b.drain()
		}
	}
	require.Len(t, sink.frames, 500)
	for i, f := range sink.frames {
		_, seq := flowSeq(f)
		require.Equal(t, i, seq, "in order")
	}
}

// The drain value goes to a doorbell only while its ring is off.
//
//oxpd:fault F9 behaviour
func TestF9DrainComesBeforeTheEnable(t *testing.T) {
	s, enabled, drains := &spy{}, map[int]bool{}, 0
	s.store = func(off uint32, v uint64) {
		for q := range wire.OQs {
			switch off {
			case uint32(csr.OutEnable.Queue(q)):
				enabled[q] = v&1 != 0
			case uint32(csr.OutSlistDBell.Queue(q).Low()):
				if uint32(v) == csr.DBellDrain {
					drains++
					assert.False(t, enabled[q], "queue %d", q)
				}
			}
		}
	}
	b := newBench(t, &keep{}, spied(s), func(o *hwsim.Options, _ *Config) { o.Choices.DrainIsGrant = true })
	assert.GreaterOrEqual(t, drains, wire.OQs)
	assert.Len(t, enabled, wire.OQs)
	b.atRest()
	assert.Zero(t, b.card.ReportCount(hwsim.ReportDrainEnabled))
}

// All eight output queues are armed, so flows of every hash arrive.
//
//oxpd:fault F10 behaviour
func TestF10AllEightQueuesAreArmed(t *testing.T) {
	sink := &keep{}
	b := newBench(t, sink)
	for q := range wire.OQs {
		assert.EqualValues(t, 1, b.load(csr.OutEnable, q), "queue %d", q)
	}
	for flow := range 256 {
		b.card.Wire(uint16(portF1.Tag)).Send(udp(b.mac(portF1), flow, 0, 60))
	}
	b.drain()
	assert.Len(t, sink.frames, 256)
	for q, s := range b.rings.Stats().Queues {
		assert.Positive(t, s.Done, "queue %d", q)
	}
	b.healthy()
}

// Frames are posted on ring 0 and nowhere else.
//
//oxpd:fault F11 behaviour
func TestF11OnlyRingZeroIsPosted(t *testing.T) {
	b := newBench(t, &keep{})
	left := 0
	b.card.Wire(uint16(portF1.Tag)).SetReceiver(func([]byte) { left++ })
	b.card.ResetAccesses()
	for i := range 600 {
		require.True(t, b.rings.IQ().Post(uint16(portF1.Tag), udp([6]byte{2}, 1, i, 60)))
		b.card.Advance(10 * time.Microsecond)
	}
	b.drain()
	assert.Equal(t, 600, left)
	accesses := b.card.Accesses()
	assert.Positive(t, accesses["IN_INSTR_DBELL[0]"].Writes)
	for q := 1; q < csr.Rings; q++ {
		assert.Zero(t, b.load(csr.InEnable, q), "ring %d", q)
		assert.Zero(t, accesses[csr.InInstrDBell.Queue(q).String()].Writes, "ring %d", q)
	}
}

// Whatever a frame is, it carries rlenssz 81, and the fast path lives.
//
//oxpd:fault F12 behaviour
//oxpd:fault D20 behaviour
func TestF12FramesThatAreNoIP(t *testing.T) {
	b := newBench(t, &keep{})
	var out [][]byte
	b.card.Wire(uint16(portF1.Tag)).SetReceiver(func(f []byte) { out = append(out, bytes.Clone(f)) })
	var sent [][]byte
	for _, kind := range []uint16{0x0806, 0x88cc, 0x8100, 0x86dd, 0x0800, 0xefef, 0x0000, 0x0003, 0x05dc, 0xffff, 0x8899} {
		for _, n := range []int{14, 15, 46, 60, 1514, 9014} {
			f := make([]byte, n)
			binary.BigEndian.PutUint16(f[12:], kind)
			require.True(t, b.rings.IQ().Post(uint16(portF1.Tag), f))
			sent = append(sent, append(f, make([]byte, max(0, 60-n))...))
		}
		b.drain()
	}
	assert.Equal(t, sent, out)
	require.True(t, b.rings.IQ().Post(uint16(portF1.Tag), udp([6]byte{2}, 1, 1, 60)))
	b.drain()
	assert.Len(t, out, len(sent)+1, "and goes on")
}

// The header in front of a frame is written whole each time, whatever stood in the
// slot: no old byte sends a frame to encryption.
//
//oxpd:fault F13 behaviour
//oxpd:fault D19 behaviour
func TestF13HeaderIsWrittenWhole(t *testing.T) {
	b := newBench(t, &keep{})
	left := 0
	b.card.Wire(uint16(portF1.Tag)).SetReceiver(func([]byte) { left++ })
	const frames = 3 * wire.IQSlots
	for i := range frames {
		slot, _ := b.rings.IQ().slot(uint32(i))
		for k := range slot {
			slot[k] = byte(0xc0 + k)
		}
		require.True(t, b.rings.IQ().Post(uint16(portF1.Tag), udp([6]byte{2}, 1, i, 60)))
		require.Equal(t, byte(1), slot[wire.PrivMeta])
		require.Equal(t, make([]byte, wire.PrivSize-wire.PrivMeta-1), slot[wire.PrivMeta+1:wire.PrivSize], "frame %d", i)
		b.card.Advance(10 * time.Microsecond)
	}
	b.drain()
	assert.Equal(t, frames, left)
	assert.Zero(t, b.card.Counter(msg.CntFromKNToIPsecEncr))
}

// No message comes for what waits, ever: the sweep finds it within its 50 ms.
//
//oxpd:fault F19 behaviour
func TestF19SweepFindsWhatNoMessageAnnounces(t *testing.T) {
	sink := &keep{}
	b := newBench(t, sink)
	b.card.Faults(func(f *hwsim.Faults) { f.LoseMessages = hwsim.AllRings })
	h := b.host()
	for round := range 20 {
		sink.frames = nil
		for i := range 2000 {
			b.card.Wire(uint16(portF1.Tag)).Send(udp(b.mac(portF1), i%64, i, 60))
		}
		b.card.Advance(5 * time.Millisecond) // all of it is in memory
		h.serve(60*time.Millisecond, func() bool { return len(sink.frames) == 2000 })
		for range round { // whatever the phase of the sweep
			b.card.Advance(3 * time.Millisecond)
			_, _, err := h.work.Step(WakeBusy)
			require.NoError(t, err)
		}
	}
}

// A card that fetches nothing fills the ring to its last free slot and no
// further; what was posted leaves in order, once, when it fetches again.
//
//oxpd:fault F22 behaviour
func TestF22FullRingIsNotOverrun(t *testing.T) {
	b := newBench(t, &keep{})
	var seqs []int
	b.card.Wire(uint16(portF1.Tag)).SetReceiver(func(f []byte) {
		_, seq := flowSeq(f)
		seqs = append(seqs, seq)
	})
	seq := 0
	for range 5 {
		b.card.Faults(func(f *hwsim.Faults) { f.StopFetch = true })
		for b.rings.IQ().Post(uint16(portF1.Tag), udp([6]byte{2}, 1, seq, 60)) {
			seq++
		}
		assert.EqualValues(t, wire.IQSlots-1, csr.DBellCount.Get(b.load(csr.InInstrDBell, 0)))
		b.card.Advance(time.Second)
		require.False(t, b.rings.IQ().Post(uint16(portF1.Tag), udp([6]byte{2}, 1, seq, 60)), "a second later, too")
		b.card.Faults(func(f *hwsim.Faults) { f.StopFetch = false })
		b.card.Advance(10 * time.Millisecond)
		b.drain()
	}
	require.Len(t, seqs, seq)
	for i, s := range seqs {
		require.Equal(t, i, s)
	}
}

// measured is the device's memory, which notes what was asked for.
type measured struct {
	dma.Provider
	size map[dma.BusAddr]int
}

func (m measured) Alloc(name string, size, align int) (*dma.Region, error) {
	r, err := m.Provider.Alloc(name, size, align)
	if err == nil {
		m.size[r.Bus()] = size
	}
	return r, err
}

// The sizes that the card is told are those of the memory behind the addresses,
// and through a whole lap of every ring it goes nowhere else.
//
//oxpd:fault F23 behaviour
//oxpd:fault D26 behaviour
func TestF23SizesAreThoseOfTheMemory(t *testing.T) {
	sink, m := &keep{}, measured{size: map[dma.BusAddr]int{}}
	b := newBenchOn(t, sink, func(c *hwsim.Card) dma.Provider {
		m.Provider = dma.NewInProcess(c, c.TopDMA())
		return m
	})
	require.Equal(t, m.size[dma.BusAddr(b.load(csr.InInstrBaddr, 0))], int(b.load(csr.InInstrRsize, 0))*wire.InstrSize)
	for q := range wire.OQs {
		assert.Equal(t, m.size[dma.BusAddr(b.load(csr.OutSlistBaddr, q))], int(b.load(csr.OutSlistRsize, q))*wire.ListEntry, "queue %d", q)
	}
	for q, flow := range b.flowOf() {
		for i := range 1100 {
			b.card.Wire(uint16(portF1.Tag)).Send(udp(b.mac(portF1), flow, i, 60))
			if i%100 == 99 {
				b.drain()
			}
		}
		assert.Greater(t, b.rings.Stats().Queues[q].Done, uint64(wire.OQEntries))
	}
	b.healthy() // and the card had nothing to report
}

// The programmed control registers are those of the appliance (endpoint.md 5.1, 5.2).
//
//oxpd:fault F25 behaviour
func TestF25OrderBitsAsOnTheAppliance(t *testing.T) {
	b := newBench(t, &keep{})
	assert.EqualValues(t, 0x17000002, b.load(csr.InControl, 0))
	for q := range wire.OQs {
		assert.EqualValues(t, 0x1004000642, b.load(csr.OutControl, q), "queue %d", q)
	}
}

// No base address is written before its ring is idle: programming ends after the
// page's bound, names the register, and enables nothing.
//
//oxpd:fault F26 behaviour
func TestF26ProgrammingWaitsForIdle(t *testing.T) {
	for name, tc := range map[string]struct {
		busy  hwsim.RingMask
		bound time.Duration
	}{
		"ring 0, the main one": {1 << 0, 10 * time.Millisecond},
		"ring 5":               {1 << 5, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			card := hwsim.New(hwsim.Options{Seed: 1})
			dev := simdev.New(card)
			require.NoError(t, dev.ConfigWrite(csr.CfgCommand, 2, csr.CfgCommandMemory|csr.CfgCommandBusMaster))
			card.Faults(func(f *hwsim.Faults) { f.NeverIdle = tc.busy })
			cfg := Config{BAR0: dev.BAR0(), DMA: dev.DMA(), Clock: card.Clock(), Sink: &keep{}}
			r, err := New(cfg)
			require.NoError(t, err)
			from := card.Clock().Now()
			err = r.Program(context.Background())
			var re *RegisterError
			require.ErrorAs(t, err, &re)
			assert.InDelta(t, tc.bound.Seconds(), (card.Clock().Now() - from).Seconds(), tc.bound.Seconds()/2)
			for q := range wire.OQs {
				assert.Zero(t, card.Load(0, uint64(csr.OutEnable.Queue(q)), 8)|card.Load(0, uint64(csr.InEnable.Queue(q)), 8))
			}
			require.NoError(t, r.Free())

			card.Faults(func(f *hwsim.Faults) { f.NeverIdle = 0 })
			r, err = New(cfg)
			require.NoError(t, err)
			require.NoError(t, r.Program(context.Background()), "idle: it works")
			assert.Empty(t, card.Reports())
			require.NoError(t, octep.SetBusMaster(dev, false))
			require.NoError(t, r.Free())
		})
	}
}

// The fast path takes nothing while instructions are still fetched: the ring does
// not jam, no slot is lost, and frames leave again when it lives.
//
//oxpd:fault F28 behaviour
func TestF28WedgedFastPathJamsNothing(t *testing.T) {
	b := newBench(t, &keep{})
	left := 0
	b.card.Wire(uint16(portF1.Tag)).SetReceiver(func([]byte) { left++ })
	post := func(n int) {
		for i := range n {
			require.True(t, b.rings.IQ().Post(uint16(portF1.Tag), udp([6]byte{2}, 1, i, 60)))
			b.card.Advance(10 * time.Microsecond)
		}
		b.drain()
	}
	b.card.Faults(func(f *hwsim.Faults) { f.FastPathDead = true })
	post(3 * wire.IQSlots)
	assert.Zero(t, left)
	assert.Zero(t, b.rings.Stats().TxFull)
	b.card.Faults(func(f *hwsim.Faults) { f.FastPathDead = false })
	post(3 * wire.IQSlots)
	assert.Equal(t, 3*wire.IQSlots, left)
	b.torn = true // what the fast path never took is not in its counter
}

// Entries that the card took and never wrote, anywhere in the ring: the packets
// behind them arrive two ticks later, in order, and the count goes to 0.
//
//oxpd:fault F30 behaviour
func TestF30StuckIndexMovesOnAfterTwoTicks(t *testing.T) {
	sink := &keep{}
	b := newBench(t, sink)
	flow := b.flowOf()[0]
	h := b.host()
	w := b.card.Wire(uint16(portF1.Tag))
	seq := 0
	for round := range 80 { // beyond the ring's end
		sink.frames = nil
		b.card.Faults(func(f *hwsim.Faults) { f.SkipEntries[0] = 1 + round%3 })
		for range 20 {
			w.Send(udp(b.mac(portF1), flow, seq, 60))
			seq++
		}
		h.serve(twoTicks+3*tick, func() bool { return len(sink.frames) == 20 })
		for i, f := range sink.frames {
			_, got := flowSeq(f)
			require.Equal(t, seq-20+i, got, "round %d: order", round)
		}
	}
	b.drain()
	assert.Zero(t, csr.CntsCount.Get(b.load(csr.OutCnts, 0)))
	assert.Positive(t, b.rings.Stats().Resync)
	b.check()
}
