package ring

import (
	"context"
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/mmio"
	"oxpd/octep/csr"
	"oxpd/ring/wire"
)

func (h *hand) post(n int) (posted int) {
	q := h.rings.iq
	q.Lock()
	defer q.Unlock()
	for ; posted < n; posted++ {
		b := q.Reserve()
		if b == nil {
			break
		}
		b[0] = byte(posted)
		q.Commit(1, 60)
	}
	q.Flush()
	return posted
}

//oxpd:fault D18 behaviour
func TestInstructionAndSlotComeFromOneStride(t *testing.T) {
	h := newHand(t)
	q := h.rings.iq
	for i := range 2*wire.IQSlots + 3 {
		frame := h.bytes(60 + i%100)
		require.True(t, q.Post(0x8a00, frame[:20], frame[20:]))
		in, _ := q.instr.At(i%wire.IQSlots*wire.InstrSize, wire.InstrSize)
		var d wire.Instruction
		require.NoError(t, d.Decode(in))
		piece := q.slots[i%wire.IQSlots/32]
		off := d.Dptr - uint64(piece.Bus())
		require.Equal(t, uint64(i%32*9344), off)
		slot, _ := piece.At(int(off), wire.SlotStride)
		require.Equal(t, []byte{0x8a, 0, 1}, slot[:3])
		require.Equal(t, frame, slot[66:66+len(frame)])
		h.regs.inCnts++
	}
}

// A card that fetches and reads at the doorbell finds all of it: the instruction, the
// private header, the frame.
func TestDoorbellFindsTheInstructionWritten(t *testing.T) {
	h := newHand(t)
	q := h.rings.iq
	var frame []byte
	bells := 0
	h.regs.onStore = func(name string) {
		if name != "IN_INSTR_DBELL" {
			return
		}
		in, _ := q.instr.At(bells%wire.IQSlots*wire.InstrSize, wire.InstrSize)
		var d wire.Instruction
		require.NoError(t, d.Decode(in))
		require.Equal(t, 28+66+len(frame), int(d.Tlen), "instruction %d", bells)
		slot, bus := q.slot(uint32(bells))
		require.Equal(t, uint64(bus), d.Dptr)
		require.Equal(t, frame, slot[66:66+len(frame)])
		bells++
	}
	for i := range wire.IQSlots + 3 {
		frame = h.bytes(60 + i)
		require.True(t, q.Post(0x8a00, frame))
		h.regs.inCnts++
	}
	require.Equal(t, wire.IQSlots+3, bells)
}

func TestShortFrameIsPaddedWithZeros(t *testing.T) {
	h := newHand(t)
	q := h.rings.iq
	slot, _ := q.slot(0)
	for i := range slot {
		slot[i] = 0xee // an earlier frame's bytes
	}
	require.True(t, q.Post(1, []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}))
	want := make([]byte, 60)
	for i := range 14 {
		want[i] = byte(i + 1)
	}
	assert.Equal(t, want, slot[66:126])
	assert.Equal(t, byte(0xee), slot[126], "the frame area behind the pad is not touched")
	in, _ := q.instr.At(0, wire.InstrSize)
	assert.Equal(t, uint16(154), binary.LittleEndian.Uint16(in[8:]))
}

func TestOneDoorbellForABurst(t *testing.T) {
	h := newHand(t)
	assert.Equal(t, 32, h.post(32))
	assert.Equal(t, 7, h.post(7))
	assert.Equal(t, []string{"IN_INSTR_DBELL", "IN_INSTR_DBELL"}, h.regs.log)
	assert.Equal(t, []uint64{32, 7}, h.regs.bells)
	h.rings.iq.Flush()
	assert.Len(t, h.regs.log, 2, "nothing new, no doorbell")
}

func TestFullRingKeepsOneSlotFreeAndDropsNothing(t *testing.T) {
	h := newHand(t)
	assert.Equal(t, 255, h.post(300))
	assert.Equal(t, 0, h.post(1))
	assert.Zero(t, h.rings.Stats().TxFull, "the reader stops, nothing is dropped")
	assert.False(t, h.rings.iq.Post(1, h.bytes(60)), "here the frame has nowhere to stay")
	assert.Equal(t, uint64(1), h.rings.Stats().TxFull)
	h.regs.inCnts = 10
	assert.Equal(t, 10, h.post(300), "slots are freed by IN_CNTS")
	assert.Equal(t, 255, h.rings.iq.Settle())
	s := h.rings.Stats()
	assert.Equal(t, []uint64{265, 10}, []uint64{s.TxPosted, s.TxFinished})
}

// Known bug DM-4: the count wraps, and starts anywhere.
func TestFinishedCountWraps(t *testing.T) {
	h := newHand(t)
	q := h.rings.iq
	q.last = 1<<32 - 3
	h.regs.inCnts = 1<<32 - 3
	h.post(10)
	h.regs.inCnts = uint64(uint32(h.regs.inCnts + 10))
	assert.Zero(t, q.Settle())
	assert.Equal(t, uint64(10), h.rings.Stats().TxFinished)
}

func TestCountIsWrittenBackAboveHalf(t *testing.T) {
	h := newHand(t)
	q := h.rings.iq
	q.last, h.regs.inCnts = 1<<31-5, 1<<31-5
	h.post(10)
	h.regs.log = nil
	h.regs.inCnts += 10
	q.Settle()
	assert.Equal(t, []string{"IN_CNTS"}, h.regs.log)
	assert.EqualValues(t, 5, h.regs.inCnts, "2^31 and no more: the rest says what was finished")
	h.post(3)
	h.regs.inCnts += 3
	q.Settle()
	assert.Equal(t, uint64(13), h.rings.Stats().TxFinished)
}

func TestCountBeyondWhatWasPostedFreesNothing(t *testing.T) {
	h := newHand(t)
	h.post(5)
	h.regs.inCnts = 6
	assert.Equal(t, 5, h.rings.iq.Settle())
	s := h.rings.Stats()
	assert.Equal(t, []uint64{0, 1}, []uint64{s.TxFinished, s.TxBadCount})
}

func TestReapReadsNothingWhileThereIsRoom(t *testing.T) {
	h := newHand(t)
	h.post(reapAbove - 1)
	h.regs.inCnts = 7
	before := h.regs.reads
	h.rings.iq.Reap()
	assert.Equal(t, before, h.regs.reads)
	h.post(1)
	h.rings.iq.Reap()
	assert.Equal(t, uint64(7), h.rings.Stats().TxFinished)
}

func TestStopEndsPosting(t *testing.T) {
	h := newHand(t)
	h.rings.Stop()
	assert.Zero(t, h.post(1))
	assert.Empty(t, h.regs.log)
}

func TestPostingAllocatesNothing(t *testing.T) {
	h := newHand(t)
	frame := h.bytes(9014)
	h.regs.log = make([]string, 0, 1<<20)
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		h.regs.inCnts = uint64(h.rings.iq.posted)
		q := h.rings.iq
		q.Lock()
		for range 32 {
			copy(q.Reserve(), frame)
			q.Commit(1, len(frame))
		}
		q.Flush()
		q.Unlock()
	}))
}

func TestRecordFollowsEveryBurstAndPass(t *testing.T) {
	h := newHand(t)
	h.post(7)
	rec, err := NewestRecord(h.rings.iq.rec.mem)
	require.NoError(t, err)
	assert.Equal(t, []uint64{KindIQ, 0, 7}, []uint64{uint64(rec.Kind), uint64(rec.Ring), rec.Posted})
	h.send(h.bytes(9014))
	h.send(h.bytes(60))
	h.visit()
	rec, err = NewestRecord(h.o.rec.mem)
	require.NoError(t, err)
	assert.Equal(t, Record{Kind: KindOQ, Seq: rec.Seq, Read: 7, Taken: 2, Returned: 7}, rec)
}

// program runs Program on fresh rings with registers that a test has prepared.
func program(t *testing.T, regs *handRegs, space mmio.Space) (*Rings, *handClock, error) {
	t.Helper()
	clock := &handClock{}
	h := newHand(t)
	cfg := h.rings.cfg
	cfg.BAR0, cfg.Clock = space, clock
	r, err := New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, r.Free()) })
	_ = regs
	return r, clock, r.Program(context.Background())
}

// overlay answers some registers itself.
type overlay struct {
	mmio.Space
	load  func(off uint32, v uint64) uint64
	store func(off uint32, v uint64) bool // false swallows the store
}

func (o *overlay) Load64(off uint32) uint64 {
	v := o.Space.Load64(off)
	if o.load != nil {
		v = o.load(off, v)
	}
	return v
}
func (o *overlay) Store64(off uint32, v uint64) {
	if o.store == nil || o.store(off, v) {
		o.Space.Store64(off, v)
	}
}

func TestProgrammedRegistersOfRingZero(t *testing.T) {
	regs := &handRegs{other: map[uint32]uint64{}}
	r, _, err := program(t, regs, regs)
	require.NoError(t, err)
	for reg, want := range map[csr.RingReg]uint64{
		csr.InInstrBaddr: uint64(r.iq.instr.Bus()), csr.InInstrRsize: 256, csr.InIntLevels: 0xffffffff, csr.InEnable: 1,
		csr.OutSlistBaddr: uint64(r.oqs[0].list.Bus()), csr.OutSlistRsize: 1024, csr.OutEnable: 1, csr.OutIntLevels: 1,
	} {
		assert.Equal(t, want, regs.other[uint32(reg.Queue(0))], "%s", reg.Queue(0))
	}
	assert.Equal(t, uint64(0x1004000642), regs.Load64(uint32(csr.OutControl.Queue(7))), "the live value of the record")
	assert.Equal(t, uint64(csr.InControlProgram), regs.other[uint32(csr.InControl.Queue(0))])
	assert.Equal(t, int32(2032), regs.credit)
	for q := 1; q < wire.OQs; q++ {
		assert.Zero(t, regs.other[uint32(csr.InEnable.Queue(q))], "only ring 0 transmits")
		assert.Equal(t, uint64(1), regs.other[uint32(csr.OutEnable.Queue(q))])
	}
	require.NoError(t, r.SetClocks(800))
	assert.Equal(t, uint64(39)<<32|1, regs.other[uint32(csr.OutIntLevels.Queue(3))])

	require.NoError(t, r.Teardown())
	for q := range wire.OQs {
		assert.Zero(t, regs.other[uint32(csr.OutEnable.Queue(q))])
		assert.Zero(t, regs.other[uint32(csr.OutSlistBaddr.Queue(q))])
	}
	require.NoError(t, r.Teardown(), "twice is once")
}

// The credit comes after the enable, the drain before it.
func TestOrderOfEnabling(t *testing.T) {
	regs := &handRegs{other: map[uint32]uint64{}}
	_, _, err := program(t, regs, regs)
	require.NoError(t, err)
	last := regs.log[len(regs.log)-6:]
	assert.Equal(t, []string{"IN_INSTR_DBELL", "IN_ENABLE", "OUT_SLIST_DBELL", "OUT_ENABLE", "OUT_SLIST_DBELL"}, last[1:])
}

// Known bug CTL-4: a base address that is ignored at first.
func TestIgnoredAddressIsWrittenAgain(t *testing.T) {
	base := uint32(csr.OutSlistBaddr.Queue(5))
	for name, tc := range map[string]struct {
		ignored int
		fails   bool
	}{"three times": {3, false}, "always": {1 << 30, true}} {
		t.Run(name, func(t *testing.T) {
			regs := &handRegs{other: map[uint32]uint64{}}
			left := tc.ignored
			_, _, err := program(t, regs, &overlay{Space: regs, store: func(off uint32, v uint64) bool {
				if off == base && v != 0 && left > 0 {
					left--
					return false
				}
				return true
			}})
			if !tc.fails {
				require.NoError(t, err)
				return
			}
			var re *RegisterError
			require.ErrorAs(t, err, &re)
			assert.Equal(t, 5, re.Ring)
			assert.Contains(t, err.Error(), "OUT_SLIST_BADDR[5]")
			for q := range wire.OQs {
				assert.Zero(t, regs.other[uint32(csr.OutEnable.Queue(q))], "no ring is enabled")
				assert.Zero(t, regs.other[uint32(csr.InEnable.Queue(q))], "no ring is enabled")
			}
		})
	}
}

func TestProgrammingEndsWhen(t *testing.T) {
	t.Run("a ring never becomes idle", func(t *testing.T) {
		regs := &handRegs{other: map[uint32]uint64{}}
		_, clock, err := program(t, regs, &overlay{Space: regs, load: func(off uint32, v uint64) uint64 {
			if off == uint32(csr.OutControl.Queue(3)) {
				return v &^ csr.OutControlIdle
			}
			return v
		}})
		var re *RegisterError
		require.ErrorAs(t, err, &re)
		assert.Equal(t, 3, re.Ring)
		assert.InDelta(t, time.Second, clock.now, float64(100*time.Millisecond))
	})
	t.Run("the card is gone", func(t *testing.T) {
		regs := &handRegs{other: map[uint32]uint64{}, gone: true}
		_, _, err := program(t, regs, regs)
		assert.ErrorIs(t, err, mmio.ErrGone)
		assert.Empty(t, regs.log)
	})
	t.Run("the rings are live", func(t *testing.T) {
		regs := &handRegs{other: map[uint32]uint64{uint32(csr.OutEnable.Queue(6)): 1}}
		_, _, err := program(t, regs, regs)
		assert.ErrorIs(t, err, ErrLive)
		assert.Empty(t, regs.log)
	})
	t.Run("somebody asks it to", func(t *testing.T) {
		h := newHand(t)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		r, err := New(Config{BAR0: &overlay{Space: h.regs, load: func(off uint32, v uint64) uint64 { return 0 }}, DMA: h.rings.cfg.DMA, Clock: h.clock, Sink: h.sink})
		require.NoError(t, err)
		defer func() { assert.NoError(t, r.Free()) }()
		assert.ErrorIs(t, r.Program(ctx), context.Canceled)
	})
	t.Run("it was done before", func(t *testing.T) {
		h := newHand(t)
		assert.Error(t, h.rings.Program(context.Background()))
	})
}

func TestConfigIsRefusedWhen(t *testing.T) {
	h := newHand(t)
	good := h.rings.cfg
	for name, change := range map[string]func(*Config){
		"there is no BAR":                  func(c *Config) { c.BAR0 = nil },
		"there is no sink":                 func(c *Config) { c.Sink = nil },
		"the watermark is not in sixteens": func(c *Config) { c.Watermark = 1000 },
		"the watermark is negative":        func(c *Config) { c.Watermark = -16 },
	} {
		cfg := good
		change(&cfg)
		_, err := New(cfg)
		assert.Error(t, err, name)
	}
}
