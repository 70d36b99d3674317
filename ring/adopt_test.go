package ring

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/dma"
	"oxpd/internal/mmio"
	"oxpd/octep/csr"
	"oxpd/ring/wire"
)

// holding is a provider that finds what it gave out once more.
type holding struct {
	dma.Provider
	regions map[string]*dma.Region
}

func newHolding(p dma.Provider) *holding { return &holding{p, map[string]*dma.Region{}} }

func (h *holding) Alloc(name string, size, align int) (*dma.Region, error) {
	r, err := h.Provider.Alloc(name, size, align)
	h.regions[name] = r
	return r, err
}

func (h *holding) Held(name string, size, _ int) (*dma.Region, error) {
	if r := h.regions[name]; r != nil && r.Size() == size {
		return r, nil
	}
	return nil, fmt.Errorf("dma: find %s: %w", name, dma.ErrNotHeld)
}

// readOnly fails the test on a store.
type readOnly struct {
	mmio.Space
	t testing.TB
}

func (s readOnly) Store32(off uint32, _ uint32) { s.t.Errorf("store to %s", csr.Name(off)) }
func (s readOnly) Store64(off uint32, _ uint64) { s.t.Errorf("store to %s", csr.Name(off)) }

// idle is rings on the simulated card after traffic both ways, for an adoption.
type idle struct {
	*bench
	mem *holding
	cfg Config
}

func newIdle(t *testing.T) *idle {
	i := &idle{}
	i.bench = newBenchOn(t, &keep{}, func(c *hwsim.Card) dma.Provider {
		i.mem = newHolding(dma.NewInProcess(c, c.TopDMA()))
		return i.mem
	})
	i.mtu(portF1, 9000)
	w := i.card.Wire(uint16(portF1.Tag))
	for n := range 40 {
		w.Send(udp(i.bench.mac(portF1), n, n, []int{60, 9014, 1514}[n%3]))
		require.True(t, i.rings.IQ().Post(uint16(portF1.Tag), udp([6]byte{2}, 1, n, 100)))
		i.card.Advance(20 * time.Microsecond)
		i.visitAll()
	}
	i.drain()
	i.cfg = i.rings.cfg
	return i
}

func TestAdoptTakesOverWhatIsAtRest(t *testing.T) {
	i := newIdle(t)
	before := i.rings.Stats()
	i.cfg.Watermark = 0x200 // of a configuration that was changed meanwhile
	r, found, err := Adopt(context.Background(), i.cfg)
	require.NoError(t, err)
	assert.Equal(t, Adoption{ClocksPerUS: 800, Watermark: wire.Watermark}, found)
	for q := range wire.OQs {
		old, o := i.rings.OQ(q), r.OQ(q)
		assert.Equal(t, []uint64{old.entries, old.taken, old.returned}, []uint64{o.entries, o.taken, o.returned})
		assert.Equal(t, old.read, o.read)
		assert.Equal(t, old.grant, o.grant)
	}
	assert.Equal(t, before.TxPosted, r.iq.total)
	old := i.rings
	i.rings = r
	i.atRest()
	i.rings = old
}

// What a process noted of a handshake that it did not end.
func TestAdoptTellsOfTheHandshake(t *testing.T) {
	i := newIdle(t)
	i.rings.NoteHandshake(3, 750)
	i.cfg = i.rings.cfg
	r, found, err := Adopt(context.Background(), i.cfg)
	require.NoError(t, err)
	assert.Equal(t, Adoption{ClocksPerUS: 750, Handshake: 3, Watermark: wire.Watermark}, found)
	require.NoError(t, r.SetClocks(found.ClocksPerUS))
	_, found, err = Adopt(context.Background(), i.cfg)
	require.NoError(t, err)
	assert.Equal(t, Adoption{ClocksPerUS: 750, Watermark: wire.Watermark}, found)
}

// A8: each source that is wrong by one is refused by its name, and nothing is written.
func TestAdoptRefusesWhatDoesNotAgree(t *testing.T) {
	i := newIdle(t)
	for range 3 {
		i.card.Wire(uint16(portF1.Tag)).Send(udp(i.bench.mac(portF1), 3, 1, 60))
	}
	i.card.Advance(time.Millisecond)
	waiting := 0 // the ring in which they wait
	for q := range wire.OQs {
		if i.card.RingState(q).Count == 3 {
			waiting = q
		}
	}
	records, _ := i.mem.regions["records"].At(0, recordsSize)
	pair := func(n int) []byte { return records[n*2*RecordSize:][:2*RecordSize] }
	reg := func(reg csr.RingReg, q int, change func(v uint64) uint64) func(Config) Config {
		return func(c Config) Config {
			c.BAR0 = &overlay{Space: c.BAR0, load: func(off uint32, v uint64) uint64 {
				if off == uint32(reg.Queue(q)) {
					return change(v)
				}
				return v
			}}
			return c
		}
	}
	plus := func(n int64) func(uint64) uint64 { return func(v uint64) uint64 { return v + uint64(n) } }
	memory := func(change func()) func(Config) Config {
		return func(c Config) Config { change(); return c }
	}
	// edit changes both copies of a record and seals them again.
	edit := func(n int, change func(b []byte)) func(Config) Config {
		return memory(func() {
			for k := range 2 {
				b := pair(n)[k*RecordSize:][:RecordSize]
				change(b)
				seal(b, b[recKind], b[recRing], binary.LittleEndian.Uint64(b[recSeq:]))
			}
		})
	}
	add32 := func(off int, n uint32) func(b []byte) {
		return func(b []byte) { binary.LittleEndian.PutUint32(b[off:], binary.LittleEndian.Uint32(b[off:])+n) }
	}
	add64 := func(off int, n uint64) func(b []byte) {
		return func(b []byte) { binary.LittleEndian.PutUint64(b[off:], binary.LittleEndian.Uint64(b[off:])+n) }
	}
	for _, tc := range []struct {
		name   string
		change func(Config) Config
		ring   int
		where  string
	}{
		{"input queue is off", reg(csr.InEnable, 0, plus(-1)), 0, "IN_ENABLE[0]"},
		{"output queue is off", reg(csr.OutEnable, 5, plus(-1)), 5, "OUT_ENABLE[5]"},
		{"read size", reg(csr.InControl, 0, plus(-csr.InControlRDSize3/3)), 0, "IN_CONTROL[0]"},
		{"instructions lie elsewhere", reg(csr.InInstrBaddr, 0, plus(1)), 0, "IN_INSTR_BADDR[0]"},
		{"instructions lie elsewhere, below", reg(csr.InInstrBaddr, 0, plus(-1)), 0, "IN_INSTR_BADDR[0]"},
		{"more instructions", reg(csr.InInstrRsize, 0, plus(1)), 0, "IN_INSTR_RSIZE[0]"},
		{"fewer instructions", reg(csr.InInstrRsize, 0, plus(-1)), 0, "IN_INSTR_RSIZE[0]"},
		{"larger buffers", reg(csr.OutControl, 2, plus(1)), 2, "OUT_CONTROL[2]"},
		{"smaller buffers", reg(csr.OutControl, 2, plus(-1)), 2, "OUT_CONTROL[2]"},
		{"list lies elsewhere", reg(csr.OutSlistBaddr, 7, plus(1)), 7, "OUT_SLIST_BADDR[7]"},
		{"list lies elsewhere, below", reg(csr.OutSlistBaddr, 7, plus(-1)), 7, "OUT_SLIST_BADDR[7]"},
		{"longer list", reg(csr.OutSlistRsize, 3, plus(1)), 3, "OUT_SLIST_RSIZE[3]"},
		{"shorter list", reg(csr.OutSlistRsize, 3, plus(-1)), 3, "OUT_SLIST_RSIZE[3]"},
		{"a packet more is counted", reg(csr.OutCnts, 4, plus(1)), 4, "OUT_CNTS[4]"},
		{"a packet fewer is counted", reg(csr.OutCnts, waiting, plus(-1)), waiting, fmt.Sprintf("OUT_CNTS[%d]", waiting)},
		{"a packet more is counted than waits", reg(csr.OutCnts, waiting, plus(1)), waiting, fmt.Sprintf("OUT_CNTS[%d]", waiting)},
		{"more packets are counted than fit", reg(csr.OutCnts, 4, plus(0xfffffff)), 4, "OUT_CNTS[4]"},
		{"a buffer more was returned", reg(csr.OutSlistDBell, 6, plus(1)), 6, "OUT_SLIST_DBELL[6]"},
		{"a buffer fewer was returned", reg(csr.OutSlistDBell, 6, plus(-1)), 6, "OUT_SLIST_DBELL[6]"},
		{"a batch more was fetched", reg(csr.OutSlistDBell, 6, plus(256<<32)), 6, "OUT_SLIST_DBELL[6]"},
		{"an entry more was fetched", reg(csr.OutSlistDBell, 6, plus(16<<32)), 6, "OUT_SLIST_DBELL[6]"},
		{"an entry more was fetched, and paid for", reg(csr.OutSlistDBell, 6, plus(16<<32-1)), 6, "OUT_SLIST_DBELL[6]"},
		{"fetched outside of the list", reg(csr.OutSlistDBell, 6, plus(1<<46)), 6, "OUT_SLIST_DBELL[6]"},
		{"an instruction more is announced", reg(csr.InInstrDBell, 0, plus(1)), 0, "IN_INSTR_DBELL[0]"},
		{"an instruction more was fetched", reg(csr.InInstrDBell, 0, plus(64<<32)), 0, "IN_INSTR_DBELL[0]"},
		{"an instruction fewer was fetched", reg(csr.InInstrDBell, 0, plus(-64<<32)), 0, "IN_INSTR_DBELL[0]"},
		{"fetched in the middle of an instruction", reg(csr.InInstrDBell, 0, plus(1<<32)), 0, "IN_INSTR_DBELL[0]"},
		{"an instruction more is finished", reg(csr.InCnts, 0, plus(1)), 0, "IN_CNTS[0]"},
		{"an instruction fewer is finished", reg(csr.InCnts, 0, plus(-1)), 0, "IN_CNTS[0]"},

		{"no header", memory(func() { clear(pair(recordHeader)) }), -1, "header"},
		{"a header of another version", memory(func() { pair(recordHeader)[recVersion]--; pair(recordHeader)[RecordSize+recVersion]-- }), -1, "header"},
		{"other buffers", edit(recordHeader, func(b []byte) { b[recBufStride]++ }), -1, "geometry"},
		{"a watermark that cannot be", edit(recordHeader, add32(recWatermark, 1)), -1, "watermark"},
		{"another watermark", edit(recordHeader, add32(recWatermark, 16)), 0, "OUT_SLIST_DBELL[0]"},
		{"slots lie elsewhere", edit(recordHeader, add32(recRegions, 1)), -1, "bus addresses"},
		{"no record of a queue", memory(func() { clear(pair(recordOQ + 3)) }), 3, "record of output queue 3"},
		{"the record of another queue", memory(func() { copy(pair(recordOQ+3), pair(recordOQ+4)) }), 3, "record of output queue 3"},
		{"no record of the input queue", memory(func() { clear(pair(recordIQ)) }), 0, "record of the input queue"},
		{"a record of another version", memory(func() { pair(recordIQ)[recVersion]++; pair(recordIQ)[RecordSize+recVersion]++ }), 0, "record of the input queue"},
		{"a mark of a record to come", memory(func() {
			rec := recorderAt(i.mem.regions["records"], recordOQ+1)
			rec.seq = i.rings.OQ(1).rec.seq + 1
			rec.mark(mark{entries: 1})
		}), 1, "record of output queue 1"},
		{"an entry more was read", edit(recordOQ+2, add64(recRead, 1)), 2, "record of output queue 2"},
		{"an entry more was read and returned", edit(recordOQ+2, func(b []byte) { add64(recRead, 1)(b); add64(recReturned, 1)(b) }), 2, "OUT_SLIST_DBELL[2]"},
		{"a lap more was read and returned", edit(recordOQ+2, func(b []byte) { add64(recRead, 17)(b); add64(recReturned, 17)(b) }), 2, "OUT_SLIST_DBELL[2]"},
		{"an instruction more was posted", edit(recordIQ, add64(recPosted, 1)), 0, "IN_INSTR_DBELL[0]"},
		{"an instruction more was finished", edit(recordIQ, add64(recFinished, 1)), 0, "IN_CNTS[0]"},
		{"an instruction fewer was finished", edit(recordIQ, add64(recFinished, ^uint64(0))), 0, "IN_CNTS[0]"},
		{"more are outstanding than fit", edit(recordIQ, add64(recPosted, 256)), 0, "record of the input queue"},
		{"another buffer in the list", memory(func() {
			e, _ := i.mem.regions["oq1 list"].At(77*wire.ListEntry, wire.ListEntry)
			e[1]++
		}), 1, "entry 77 of the buffer list"},
		{"a packet where the card has not been", memory(func() {
			o := i.rings.OQ((waiting + 1) % wire.OQs)
			state := i.card.RingState(o.n)
			for n := range uint32(state.Held) + 1 {
				b, _ := o.buffer(o.read + n)
				binary.BigEndian.PutUint64(b, 134)
			}
		}), (waiting + 1) % wire.OQs, "memory"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			snapshot := i.snapshot()
			cfg := tc.change(i.cfg)
			cfg.BAR0 = readOnly{cfg.BAR0, t}
			changed := i.snapshot()
			_, _, err := Adopt(context.Background(), cfg)
			var e *AdoptError
			require.ErrorAs(t, err, &e)
			t.Log(err)
			assert.Equal(t, tc.ring, e.Ring)
			assert.Contains(t, e.Where, tc.where)
			assert.Contains(t, e.Hint(), "reboot the coprocessor")
			assert.True(t, changed == i.snapshot(), "memory was written")
			i.restore(snapshot)
		})
	}
	_, _, err := Adopt(context.Background(), i.cfg)
	assert.NoError(t, err, "as it was, it is adopted")
}

// snapshot is all memory of the rings.
func (i *idle) snapshot() string {
	var b strings.Builder
	for _, r := range i.rings.regions {
		mem, _ := r.At(0, r.Size())
		b.Write(mem)
	}
	return b.String()
}

func (i *idle) restore(s string) {
	for _, r := range i.rings.regions {
		mem, _ := r.At(0, r.Size())
		s = s[copy(mem, s):]
	}
}

func TestAdoptWithoutAnythingToAdopt(t *testing.T) {
	i := newIdle(t)
	for name, tc := range map[string]struct {
		change func(*Config)
		want   error
	}{
		"memory that is not kept": {func(c *Config) { c.DMA = struct{ dma.Provider }{i.mem} }, dma.ErrNotHeld},
		"a region that is gone": {func(c *Config) {
			h := newHolding(i.mem)
			for name, r := range i.mem.regions {
				if name != "oq3 buffers" {
					h.regions[name] = r
				}
			}
			c.DMA = h
		}, dma.ErrNotHeld},
		"a card that has booted since": {func(c *Config) {
			c.BAR0 = &overlay{Space: c.BAR0, load: func(off uint32, v uint64) uint64 {
				if info, _, _ := csr.Lookup(off); info.Name == "IN_ENABLE" || info.Name == "OUT_ENABLE" {
					return 0
				}
				return v
			}}
		}, ErrNotLive},
		"a card that is gone": {func(c *Config) {
			c.BAR0 = &overlay{Space: c.BAR0, load: func(uint32, uint64) uint64 { return csr.AllOnes }}
		}, mmio.ErrGone},
		"a card that goes while the counts are looked at": {func(c *Config) {
			n := 0
			c.BAR0 = &overlay{Space: c.BAR0, load: func(_ uint32, v uint64) uint64 {
				if n++; n > 100 {
					return csr.AllOnes
				}
				return v
			}}
		}, mmio.ErrGone},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := i.cfg
			tc.change(&cfg)
			cfg.BAR0 = readOnly{cfg.BAR0, t}
			before := i.snapshot()
			_, _, err := Adopt(context.Background(), cfg)
			require.ErrorIs(t, err, tc.want)
			assert.True(t, before == i.snapshot(), "memory was written")
			t.Log(err)
		})
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, _, err := Adopt(ctx, i.cfg)
	assert.ErrorIs(t, err, context.Canceled)
}

// IN_CNTS is written back between a record and the death: the record does not know.
func TestAdoptAfterTheCountWasWrittenBack(t *testing.T) {
	i := newIdle(t)
	real := i.rings.iq.last
	for name, tc := range map[string]struct{ before, now uint32 }{
		"not yet":              {cntsFold - 20, cntsFold - 20},
		"since the record":     {cntsFold - 20, 0x80000003 - cntsFold},
		"before the record":    {3, 3},
		"and counted on since": {cntsFold + 5, 9},
	} {
		t.Run(name, func(t *testing.T) {
			q := i.rings.iq
			q.last = tc.before
			// The record is older than the last instructions by the difference.
			behind := uint64((tc.now - tc.before) & (cntsFold - 1))
			q.done -= behind
			q.record()
			cfg := i.cfg
			cfg.BAR0 = &overlay{Space: i.cfg.BAR0, load: func(off uint32, v uint64) uint64 {
				if off == uint32(csr.InCnts.Queue(0)) {
					return v&^csr.CntsCount.Mask() | uint64(tc.now)
				}
				return v
			}}
			r, found, err := Adopt(context.Background(), cfg)
			q.done += behind
			q.last = real
			require.NoError(t, err)
			assert.Zero(t, found.TxUnfinished)
			assert.Equal(t, q.done, r.iq.done)
			assert.Equal(t, tc.now, r.iq.last)
			q.rec.seq = r.iq.rec.seq
		})
	}
}

// adoptRegs are the registers of live rings as an adoption reads them; stores go
// nowhere.
type adoptRegs map[uint32]uint64

func (r adoptRegs) Size() uint64                 { return csr.BAR0Size }
func (r adoptRegs) Load32(off uint32) uint32     { return uint32(r[off]) }
func (r adoptRegs) Load64(off uint32) uint64     { return r[off] }
func (r adoptRegs) Store32(uint32, uint32)       {}
func (r adoptRegs) Store64(off uint32, _ uint64) {}

// FuzzAdopt changes registers and memory at will: it is refused or adopted, and the
// rings that come out of it can be used.
func FuzzAdopt(f *testing.F) {
	mem := newHolding(dma.NewInProcess(nowhere{}, 0))
	clock := &handClock{}
	regs := adoptRegs{}
	cfg := Config{BAR0: &handRegs{other: map[uint32]uint64{}}, DMA: mem, Clock: clock, Sink: &discard{}, GatherFrames: 1, GatherLarge: 1}
	rings, err := New(cfg)
	require.NoError(f, err)
	require.NoError(f, rings.Program(context.Background()))
	require.NoError(f, rings.SetClocks(800))
	base := map[uint32]uint64{
		uint32(csr.InEnable.Queue(0)): 1, uint32(csr.InControl.Queue(0)): csr.InControlProgram | csr.InControlIdle,
		uint32(csr.InInstrBaddr.Queue(0)): uint64(rings.iq.instr.Bus()), uint32(csr.InInstrRsize.Queue(0)): wire.IQSlots,
		uint32(csr.InInstrDBell.Queue(0)): 0, uint32(csr.InCnts.Queue(0)): csr.OutCntsIdle,
	}
	for q, o := range rings.oqs {
		base[uint32(csr.OutEnable.Queue(q))] = 1
		base[uint32(csr.OutControl.Queue(q))] = csr.OutControlIdle | csr.OutControlESP | wire.BufSize
		base[uint32(csr.OutSlistBaddr.Queue(q))] = uint64(o.list.Bus())
		base[uint32(csr.OutSlistRsize.Queue(q))] = wire.OQEntries
		base[uint32(csr.OutCnts.Queue(q))] = csr.OutCntsIdle
		base[uint32(csr.OutSlistDBell.Queue(q))] = uint64(2016) | 256<<32
	}
	moving := []uint32{uint32(csr.InInstrDBell.Queue(0)), uint32(csr.InCnts.Queue(0)), uint32(csr.OutCnts.Queue(0)), uint32(csr.OutSlistDBell.Queue(0))}
	records, _ := mem.regions["records"].At(0, recordsSize)
	pristine := append([]byte(nil), records...)
	cfg.BAR0 = regs

	add := func(edits ...[3]uint64) {
		var b []byte
		for _, e := range edits {
			b = append(b, byte(e[0]))
			b = binary.LittleEndian.AppendUint16(b, uint16(e[1]))
			b = binary.LittleEndian.AppendUint64(b, e[2])
		}
		f.Add(b)
	}
	add()                                                                                   // at rest: this one is adopted, as are the next four
	add([3]uint64{0, 2, csr.OutCntsIdle + 1}, [3]uint64{3, 0, 134})                         // a packet waits
	add([3]uint64{0, 2, csr.OutCntsIdle + 1}, [3]uint64{2, 2, 1 | 1<<11 | 1<<32})           // taken, neither credited nor acknowledged
	add([3]uint64{0, 0, 3}, [3]uint64{2, 1, 3<<11 | 1<<32})                                 // a burst that was announced
	add([3]uint64{1, 2*128 + recRead, 1 << 40}, [3]uint64{1, 2*128 + recReturned, 1 << 40}) // another position
	f.Fuzz(func(t *testing.T, edits []byte) {
		clear(regs)
		for off, v := range base {
			regs[off] = v
		}
		copy(records, pristine)
		o := rings.oqs[0]
		for i := range uint32(wire.OQEntries) {
			o.poison(i)
		}
		for ; len(edits) >= 11; edits = edits[11:] {
			at, v := int(binary.LittleEndian.Uint16(edits[1:])), binary.LittleEndian.Uint64(edits[3:])
			switch edits[0] % 4 {
			case 0:
				regs[moving[at%len(moving)]] = v
			case 1: // a record, sealed again
				at &= 2047 &^ 7
				binary.LittleEndian.PutUint64(records[at:], v)
				b := records[at/RecordSize*RecordSize:][:RecordSize]
				seal(b, b[recKind], b[recRing], binary.LittleEndian.Uint64(b[recSeq:]))
			case 2:
				binary.LittleEndian.PutUint64(records[recordMarks+at%10*markStride:], v)
			case 3:
				b, _ := o.buffer(uint32(at))
				binary.BigEndian.PutUint64(b, v)
			}
		}
		r, _, err := Adopt(context.Background(), cfg)
		if err != nil {
			var e *AdoptError
			if !errors.As(err, &e) && !errors.Is(err, mmio.ErrGone) {
				t.Fatalf("refused without a reason: %v", err)
			}
			return
		}
		r.iq.Post(1, make([]byte, 60))
		_, _ = r.OQ(0).Visit(64)
	})
}
