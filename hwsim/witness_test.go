package hwsim

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The registers of the card as the hardware pages print them, transcribed by hand
// and compared by access alone: raw loads and stores of a BAR, of configuration
// space and of the MDIO bus. No number below comes from a layout package, so that
// a slip there, which driver and model would share, is seen here.

// access is what a page says a store does.
type access uint8

const (
	unsaid  access = iota // the page names the register and no more
	rw                    // what is written is read
	ro                    // nothing
	w1c                   // a one clears
	w1s                   // a one sets the status
	enaW1C                // a one clears the enable
	enaW1S                // a one sets the enable
	adds                  // doorbells
	subs                  // counts
	zeroes                // statistics: 0 clears
	rwIdle                // rw while IDLE
	rwSizes               // rw in sixteens, 0 reads back 16
)

// register is one row of a page's table.
type register struct {
	off    uint64 // in BAR0; of a ring's register that of ring 0, as printed
	name   string
	mode   access
	reset  uint64
	bits   uint64 // documented bits that a store changes
	narrow bool   // the page has 32-bit stores to it
}

// endpoint.md 5.1 to 5.3; datapath.md 1 for what it adds (IN_CNTS, 0 clears).
var ringRegisters = []register{
	{0x10000, "R_IN_CONTROL", rw, 0x0000000014000000, 3<<25 | 1<<24 | 1<<8 | 1<<6 | 1<<5 | 1<<3 | 1<<1 | 1<<0, false},
	{0x10010, "R_IN_ENABLE", rw, 0, 1, false},
	{0x10020, "R_IN_INSTR_BADDR", rwIdle, 0, 0xffffffffffffffff, false},
	{0x10030, "R_IN_INSTR_RSIZE", rw, 0, 0xfff, false},
	{0x10040, "R_IN_INSTR_DBELL", adds, 0, 0, true},
	{0x10050, "R_IN_CNTS", subs, 0x2000000000000000, 0, true}, // top bits as in R_OUT_CNTS
	{0x10060, "R_IN_INT_LEVELS", rw, 0, 0xffffffff, false},
	{0x10070, "R_IN_INT_STATUS", w1c, 0, 0, false},
	{0x10080, "R_IN_PKT_CNT", zeroes, 0, 0, false},
	{0x10090, "R_IN_BYTE_CNT", zeroes, 0, 0, false},
	{0x10100, "R_OUT_CNTS", subs, 0x2000000000000000, 0, true},
	{0x10110, "R_OUT_INT_LEVELS", rw, 0, 1<<63 | 0x3fffff<<32 | 0xffffffff, false},
	{0x10120, "R_OUT_SLIST_BADDR", rwIdle, 0, 0xffffffffffffffff, false},
	{0x10130, "R_OUT_SLIST_RSIZE", rwSizes, 16, 0x1ff0, false},
	{0x10140, "R_OUT_SLIST_DBELL", adds, 0, 0, true},
	{0x10150, "R_OUT_CONTROL", rw, 0x0000001000000000, 7<<32 | 7<<28 | 7<<24 | 1<<23 | 0x7f<<16 | 0xffff, false},
	{0x10160, "R_OUT_ENABLE", rw, 0, 1, false},
	{0x10170, "R_OUT_INT_STATUS", w1c, 0, 0, false},
	{0x10180, "R_OUT_PKT_CNT", zeroes, 0, 0, false},
	{0x10190, "R_OUT_BYTE_CNT", zeroes, 0, 0, false},
	{0x10200, "R_MBOX_RINT_STATUS", unsaid, 0, 0, false},
	{0x10210, "MBOX PF-to-VF data", unsaid, 0, 0, false},
	{0x10220, "MBOX PF-to-VF int", w1c, 0, 0, false},
	{0x10230, "MBOX VF-to-PF data", unsaid, 0, 0, false},
	{0x10300, "R_ALL_IN_STATUS", unsaid, 0, 0, false},
	{0x10400, "R_ERR_TYPE", w1c, 0, 0, false},
	{0x10500, "R_VF_NUM", rw, 0, 0x7f, false},
}

// endpoint.md 8.2: status, W1S, ENA_W1C, ENA_W1S.
var interruptGroups = []struct {
	name string
	off  [4]uint64
}{
	{"SDP MBOX", [4]uint64{0x20000, 0x20010, 0x20020, 0x20030}},
	{"SDP IRERR", [4]uint64{0x20080, 0x20090, 0x200a0, 0x200b0}},
	{"SDP ORERR", [4]uint64{0x20100, 0x20110, 0x20120, 0x20130}},
	{"SDP OEI", [4]uint64{0x20140, 0x20150, 0x20160, 0x20170}},
	{"SLI MISC", [4]uint64{0x28240, 0x28250, 0x28260, 0x28270}},
	{"SLI PP_VF", [4]uint64{0x282c0, 0x282d0, 0x282e0, 0x282f0}},
	{"SLI DMA_VF", [4]uint64{0x28400, 0x28410, 0x28420, 0x28430}},
	{"SLI DMA", [4]uint64{0x28500, 0x28510, 0x28540, 0x28550}},
}

// endpoint.md 1, 2.
var globalRegisters = []register{
	{0x20180, "SDP_SCRATCH(0)", rw, 0, 0xffffffffffffffff, false},
	{0x20190, "SDP_EPF_RINFO", rw, 0x0000000000400000, 0x7f<<48 | 0x1f<<32, false},
	{0x28100, "SLI_EPF_SCRATCH(0)", rw, 0, 0xffffffffffffffff, false},
	{0x2c000, "window write address", rw, 0, 0xffffffffffffffff, true},
	{0x2c010, "window read address", rw, 0, 0xffffffffffffffff, true},
	{0x2c020, "window write data", rw, 0, 0xffffffffffffffff, true},
	{0x2c030, "window write byte mask", rw, 0, 0xffffffffffffffff, true},
	{0x2c040, "window read data", ro, 0, 0, true},
	{0x2c050, "SLI_MAC_NUMBER", ro, 0, 0, false},
}

// globals are all registers outside of rings.
func globals() []register {
	list := append([]register(nil), globalRegisters...)
	for _, g := range interruptGroups {
		for i, mode := range []access{w1c, w1s, enaW1C, enaW1S} {
			list = append(list, register{g.off[i], fmt.Sprintf("%s + %d", g.name, i), mode, 0, 0xffffffffffffffff, false})
		}
	}
	return list
}

// witnessRings are the rings that a test takes for all 64: the first, one inside, the
// last that the fast path uses, the last.
var witnessRings = []int{0, 3, 7, 63}

// at is where a ring's register is: stride 0x20000 (endpoint.md 1).
func (r register) at(q int) uint64 { return r.off + uint64(q)*0x20000 }

// cold is a card whose coprocessor never comes up, so that nobody but the test writes
// its registers.
func cold(t *testing.T) *Card {
	return powered(t, func(o *Options) { o.Timeline.Kernel = time.Hour })
}

func TestWitnessResetValues(t *testing.T) {
	check := func(t *testing.T, c *Card) {
		for q := range 64 {
			for _, r := range ringRegisters {
				assert.Equal(t, r.reset, c.Load(0, r.at(q), 8), "ring %d %s", q, r.name)
			}
		}
		for _, r := range globals() {
			assert.Equal(t, r.reset, c.Load(0, r.off, 8), r.name)
		}
		assert.Empty(t, c.Reports(), "every register of the pages is there")
	}
	t.Run("after power-on", func(t *testing.T) { check(t, cold(t)) })
	t.Run("after a reset", func(t *testing.T) {
		c := cold(t)
		for _, q := range witnessRings {
			for _, r := range ringRegisters {
				c.Store(0, r.at(q), 8, 0x33)
			}
		}
		for _, r := range globals() {
			c.Store(0, r.off, 8, 0x33)
		}
		c.Reboot()
		c.ConfigWrite(4, 2, 6)
		c.ResetReports()
		check(t, c)
	})
}

// patterns are what is stored into a register to see its bits: none, all, one after
// the other.
func patterns() []uint64 {
	list := []uint64{0, 0xffffffffffffffff}
	for b := range 64 {
		list = append(list, 1<<b)
	}
	return append(list, 0)
}

// IDLE is read-only, and 1 at rest in both halves of a ring (endpoint.md 5.1, 5.2).
func idleBit(off uint64) uint64 {
	switch off {
	case 0x10000:
		return 1 << 28
	case 0x10150:
		return 1 << 36
	}
	return 0
}

func TestWitnessWritableBits(t *testing.T) {
	storage := func(t *testing.T, c *Card, r register, at uint64) {
		fixed := idleBit(r.off)
		if r.off == 0x20190 {
			fixed = 0x400000 // TRS
		}
		for _, v := range patterns() {
			c.Store(0, at, 8, v)
			got := c.Load(0, at, 8)
			assert.Equal(t, v&r.bits, got&r.bits, "%s: documented bits after %#x", r.name, v)
			assert.Equal(t, fixed, got&fixed, "%s: bits that are 1 after %#x", r.name, v)
			if r.off == 0x20190 {
				assert.Equal(t, v&r.bits|fixed, got, "RINFO: SRN and TRS are read-only")
			}
		}
	}
	for _, r := range ringRegisters {
		if r.mode != rw && r.mode != rwIdle {
			continue
		}
		t.Run(r.name, func(t *testing.T) {
			for _, q := range witnessRings {
				c := cold(t)
				storage(t, c, r, r.at(q))
				assert.Equal(t, c.Load(0, r.at(1), 8), r.reset, "%s of another ring", r.name)
				if r.off != 0x10010 && r.off != 0x10160 {
					assert.Empty(t, c.Reports())
				}
			}
		})
	}
	for _, r := range globals() {
		if r.mode != rw {
			continue
		}
		t.Run(r.name, func(t *testing.T) {
			c := cold(t)
			storage(t, c, r, r.off)
			for _, x := range c.Reports() {
				assert.Equal(t, ReportScratch, x.Name)
				assert.EqualValues(t, 0x20180, r.off)
			}
		})
	}
}

// Writing 0 reads back 16; a multiple of 16 (endpoint.md 5.2).
func TestWitnessListSizes(t *testing.T) {
	c := cold(t)
	for _, n := range []uint64{16, 256, 512, 1024, 4096} {
		c.Store(0, 0x10130, 8, n)
		assert.Equal(t, n, c.Load(0, 0x10130, 8))
	}
	c.Store(0, 0x10130, 8, 0)
	assert.EqualValues(t, 16, c.Load(0, 0x10130, 8))
	assert.Empty(t, c.Reports())
	for _, n := range []uint64{1, 15, 17, 1000} {
		c.ResetReports()
		c.Store(0, 0x10130, 8, n)
		assert.EqualValues(t, 1, c.ReportCount(ReportRsize), "%d is refused by name", n)
	}
}

// A base address may be written while the half is IDLE, which an input ring with
// instructions is not (endpoint.md 5.1, 5.2; F26).
func TestWitnessBaseNeedsIdle(t *testing.T) {
	c := cold(t)
	c.Faults(func(f *Faults) { f.StopFetch = true; f.NeverIdle = 1 << 9 })
	c.Store(0, 0x10030, 8, 256)
	c.Store(0, 0x10010, 8, 1)
	c.Store(0, 0x10040, 4, 1)
	assert.Zero(t, c.Load(0, 0x10000, 8)&(1<<28), "an instruction waits")
	c.Store(0, 0x10020, 8, 0x123456000)
	assert.Zero(t, c.Load(0, 0x10020, 8))
	out := uint64(9 * 0x20000)
	assert.Zero(t, c.Load(0, 0x10150+out, 8)&(1<<36))
	c.Store(0, 0x10120+out, 8, 0x123456000)
	assert.Zero(t, c.Load(0, 0x10120+out, 8))
	for _, control := range []uint64{0x10000, 0x10150 + out} {
		c.Store(0, control, 8, 0xffffffffffffffff)
		assert.Zero(t, c.Load(0, control, 8)&idleBit(control&0x1ffff), "IDLE is read-only")
	}
	assert.EqualValues(t, 2, c.ReportCount(ReportBaddrBusy))
}

func TestWitnessReadOnly(t *testing.T) {
	for _, r := range globals() {
		if r.mode != ro {
			continue
		}
		c := cold(t)
		for _, v := range patterns() {
			c.Store(0, r.off, 8, v)
			assert.Equal(t, r.reset, c.Load(0, r.off, 8), r.name)
		}
		assert.NotZero(t, c.ReportCount(ReportReadOnly), r.name)
	}
}

// A group's four registers are one status and one set of enables, by bit and apart
// from every other group (endpoint.md 8.2).
func TestWitnessInterruptGroups(t *testing.T) {
	const value = 0xa5c3_0f96_5a3c_f069
	for i, g := range interruptGroups {
		t.Run(g.name, func(t *testing.T) {
			c := cold(t)
			load := func(n int) uint64 { return c.Load(0, g.off[n], 8) }
			c.Store(0, g.off[0], 8, 0xffffffffffffffff)
			assert.Zero(t, load(0), "a one to the status sets nothing")
			c.Store(0, g.off[1], 8, value)
			assert.EqualValues(t, uint64(value), load(0), "W1S sets")
			c.Store(0, g.off[1], 8, 0)
			assert.EqualValues(t, uint64(value), load(0), "a zero changes nothing")
			assert.Zero(t, load(3), "the enables are other bits")
			for b := range 64 {
				c.Store(0, g.off[1], 8, 0xffffffffffffffff)
				c.Store(0, g.off[0], 8, 1<<b)
				require.Equal(t, ^uint64(1<<b), load(0), "W1C clears bit %d alone", b)
			}
			c.Store(0, g.off[0], 8, 0)
			assert.NotZero(t, load(0))
			c.Store(0, g.off[0], 8, 0xffffffffffffffff)
			for b := range 64 {
				c.Store(0, g.off[3], 8, 0xffffffffffffffff)
				c.Store(0, g.off[2], 8, 1<<b)
				require.Equal(t, ^uint64(1<<b), load(3), "ENA_W1C clears bit %d alone", b)
			}
			assert.Equal(t, load(3), load(2))
			assert.Zero(t, load(0), "the status is other bits")
			for j, other := range interruptGroups {
				if j != i {
					assert.Zero(t, c.Load(0, other.off[0], 8)|c.Load(0, other.off[3], 8), other.name)
				}
			}
			assert.Empty(t, c.Reports())
		})
	}
}

// Statistics are read, and cleared by a 0 (endpoint.md 5.1, 5.2; datapath.md 1);
// W1C registers that nothing has latched stay 0 whatever is written.
func TestWitnessNothingLatched(t *testing.T) {
	for _, r := range ringRegisters {
		if r.mode != w1c && r.mode != zeroes {
			continue
		}
		c := cold(t)
		for _, v := range patterns() {
			c.Store(0, r.at(5), 8, v)
			assert.Zero(t, c.Load(0, r.at(5), 8), "%s after %#x", r.name, v)
		}
		assert.Empty(t, c.Reports(), r.name)
	}
}

// Each register reads in two halves, too; a 32-bit store reaches its own half, where
// the page has such stores without a word, and elsewhere reported: doorbells, credit,
// counts and the window registers (endpoint.md 1, 5).
func TestWitnessHalves(t *testing.T) {
	c := cold(t)
	all := globals()
	for _, r := range ringRegisters {
		for _, q := range witnessRings {
			r.off = r.at(q)
			all = append(all, r)
		}
	}
	for i, r := range all {
		if r.mode == rw {
			c.Store(0, r.off, 8, 0x1234567890abcdef^uint64(i))
		}
		v := c.Load(0, r.off, 8)
		assert.Equal(t, v&0xffffffff, c.Load(0, r.off, 4), "%s: low half", r.name)
		assert.Equal(t, v>>32, c.Load(0, r.off+4, 4), "%s: high half", r.name)
	}
	for _, r := range append(globals(), ringRegisters...) {
		if r.mode != rw || r.off == 0x28100 {
			continue
		}
		t.Run(r.name, func(t *testing.T) {
			c := cold(t)
			c.Store(0, r.off, 8, 0)
			c.Store(0, r.off, 4, 0xffffffff)
			low := c.Load(0, r.off, 8)
			assert.Equal(t, r.bits&0xffffffff, low&r.bits)
			c.Store(0, r.off+4, 4, 0xffffffff)
			assert.Equal(t, r.bits, c.Load(0, r.off, 8)&r.bits)
			c.Store(0, r.off, 4, 0)
			assert.Equal(t, r.bits&^0xffffffff, c.Load(0, r.off, 8)&r.bits)
			if r.narrow {
				assert.Empty(t, c.Reports())
			}
		})
	}
	for _, r := range ringRegisters {
		c := cold(t)
		c.Store(0, 0x10030, 8, 256)
		c.Store(0, r.off, 4, 0)
		switch r.mode {
		case adds, subs:
			assert.Empty(t, c.Reports(), "%s is written in 32 bits by everybody", r.name)
		case rwIdle:
			assert.NotZero(t, c.ReportCount(ReportNarrowStore), "half of an address: %s", r.name)
		}
	}
	for _, off := range []uint64{0x10000, 0x10010, 0x10030, 0x10130, 0x10150, 0x10160, 0x20180, 0x20190, 0x28100} {
		c := cold(t)
		c.Store(0, off, 4, 0)
		assert.EqualValues(t, 1, c.ReportCount(ReportNarrowStore), "%#x is 64 bits wide", off)
	}
}

// No register but those of the pages: every other word of four slots of BAR0 reads 0
// and is reported, and a store to it changes nothing.
func TestWitnessNothingElse(t *testing.T) {
	known := map[uint64]bool{}
	for _, r := range globals() {
		known[r.off] = true
	}
	for q := range 64 {
		for _, r := range ringRegisters {
			known[r.at(q)] = true
		}
	}
	msix := func(off uint64) bool { return off < 0x500 || off >= 0x4000 && off < 0x4010 }
	c := cold(t)
	for _, q := range []uint64{0, 1, 2, 63} {
		for off := q * 0x20000; off < (q+1)*0x20000; off += 8 {
			before := c.ReportCount(ReportUnmappedBAR)
			v := c.Load(0, off, 8)
			there := c.ReportCount(ReportUnmappedBAR) == before
			require.Equal(t, known[off] || msix(off), there, "BAR0+%#x", off)
			if !there {
				require.Zero(t, v)
			}
		}
	}
	c.ResetReports()
	c.Store(0, 0x20040, 8, 0xffffffffffffffff)
	c.Store(0, 0x10048, 8, 0xffffffffffffffff)
	assert.EqualValues(t, 2, c.ReportCount(ReportUnmappedBAR))
	assert.Zero(t, c.Load(0, 0x10040, 8))
}

// Doorbells of rings that are not enabled: a write adds, 0xffffffff drains
// (endpoint.md 5.1, 5.5; datapath.md 1).
func TestWitnessDoorbellsAtRest(t *testing.T) {
	for _, r := range ringRegisters {
		if r.mode != adds {
			continue
		}
		for _, width := range []int{4, 8} {
			c := cold(t)
			c.Store(0, 0x10030+2*0x20000, 8, 256)
			ring := func(v uint64) uint64 {
				c.Store(0, r.at(2), width, v)
				return c.Load(0, r.at(2), 8)
			}
			assert.EqualValues(t, 5, ring(5), r.name)
			assert.EqualValues(t, 12, ring(7), r.name)
			assert.EqualValues(t, 12, ring(0), r.name)
			assert.EqualValues(t, 0, ring(0xffffffff), "%s: drained", r.name)
			assert.Empty(t, c.Reports())
		}
	}
}

// The input ring under traffic: 38 instructions in a ring of 256 read
// 0x0000098000000000 (endpoint.md 5.1), IN_BYTE_CNT is the sum of tlen, counts are
// subtracted from, and the position is modulo the ring.
func TestWitnessInputRing(t *testing.T) {
	const (
		dbell, cnts, packets, bytes, enable = 0x10040, 0x10050, 0x10080, 0x10090, 0x10010
		frameBytes                          = 60
		tlen                                = 28 + 66 + frameBytes
		flag                                = uint64(0x2000000000000000)
	)
	h := newRingHost(t, 1024).program(2032)
	ld := func(off uint64) uint64 { return h.c.Load(0, off, 8) }
	send := func(n int) {
		for range n {
			h.fill(tagF1, ipFrame(h.c, tagF1, frameBytes, 1, 0))
		}
		h.c.Store(0, dbell, 4, uint64(n))
		h.settled()
	}
	send(38)
	assert.EqualValues(t, 0x0000098000000000, ld(dbell))
	assert.EqualValues(t, 38, uint32(ld(cnts)))
	assert.EqualValues(t, flag, ld(cnts)&^0xffffffff, "upper bits are flags")
	assert.EqualValues(t, 38, ld(packets))
	assert.EqualValues(t, 38*tlen, ld(bytes))

	h.c.Store(0, cnts, 4, 30)
	assert.EqualValues(t, 8, uint32(ld(cnts)), "a write subtracts")
	h.c.Store(0, cnts, 8, 8)
	assert.EqualValues(t, flag, ld(cnts))
	h.c.Store(0, packets, 8, 5)
	h.c.Store(0, bytes, 8, 5)
	assert.EqualValues(t, 38, ld(packets), "only 0 clears")
	assert.EqualValues(t, 38*tlen, ld(bytes))
	h.c.Store(0, packets, 8, 0)
	assert.EqualValues(t, 38*tlen, ld(bytes), "each for itself")
	h.c.Store(0, bytes, 8, 0)
	assert.Zero(t, ld(packets)|ld(bytes))

	send(200)
	assert.EqualValues(t, uint64(238*64)<<32, ld(dbell))
	send(50)
	assert.EqualValues(t, uint64((288-256)*64)<<32, ld(dbell), "modulo the ring")
	assert.EqualValues(t, 250, ld(packets))
	h.clean()

	h.c.Store(0, enable, 8, 0)
	h.c.Store(0, dbell, 4, 7)
	assert.EqualValues(t, uint64(32*64)<<32|7, ld(dbell), "a disabled ring fetches nothing")
	h.c.Store(0, dbell, 4, 0xffffffff)
	assert.EqualValues(t, uint64(32*64)<<32, ld(dbell), "a drain leaves the high half")
	h.clean()
}

// The output ring under traffic (endpoint.md 5.2, 5.5, 8.1; datapath.md 3.6, 3.7):
// credit is signed and counts buffers in sixteens, the position is 16 bytes an entry
// modulo the list, OUT_CNTS counts packets, the status latches 0x10, the message is
// vector 16 + n.
func TestWitnessOutputRing(t *testing.T) {
	const (
		cnts, levels, dbell, status, packets, bytes = 0x10100, 0x10110, 0x10140, 0x10170, 0x10180, 0x10190
		all, pba                                    = 0x10300, 0x4000
		flag                                        = uint64(0x2000000000000000)
		jumbo, jumboLength                          = 9014, 9088 // six buffers
		small, smallLength                          = 60, 134
	)
	h := newRingHost(t, 64)
	wm, limit := 1024, 64+1024-16
	h.program(uint32(limit))
	setMTU(t, h.c, tagF1, 9000)
	const q = 2
	at := func(off uint64) uint64 { return off + q*0x20000 }
	ld := func(off uint64) uint64 { return h.c.Load(0, at(off), 8) }
	ring := func() (credit int32, position uint64) { v := ld(dbell); return int32(uint32(v)), v >> 32 }
	wire := func(bytes, n int) {
		for range n {
			h.wire(tagF1).Send(ipFrame(h.c, tagF1, bytes, ringOf(h, q), 0))
		}
		h.settled()
	}
	h.advance(time.Millisecond)
	credit, position := ring()
	assert.EqualValues(t, limit-16, credit, "one batch is fetched at the first grant")
	assert.EqualValues(t, 256, position)

	h.c.Store(0, at(levels), 8, 3)
	wire(small, 2)
	assert.EqualValues(t, flag|2, ld(cnts))
	assert.Zero(t, ld(status), "below the level")
	wire(jumbo, 1)
	assert.EqualValues(t, flag|1<<62|3, ld(cnts), "packets, not buffers; bit 62 is OUT_INT")
	assert.EqualValues(t, 0x10, ld(status))
	assert.EqualValues(t, 1<<q, ld(all), "R_ALL_IN_STATUS: a bit per signalling ring")
	assert.EqualValues(t, 1<<q, h.c.Load(0, 0x10300, 8), "whichever ring's block it is read in")
	assert.EqualValues(t, 1<<(16+q), h.c.Load(0, pba, 8), "the message of a masked vector is pending")
	assert.EqualValues(t, 3, ld(packets))
	assert.EqualValues(t, 2*smallLength+jumboLength, ld(bytes))
	credit, position = ring()
	assert.EqualValues(t, limit-16, credit, "eight buffers are of the batch in hand")
	assert.EqualValues(t, 256, position)

	h.c.Store(0, at(status), 8, 0x0f)
	assert.EqualValues(t, 0x10, ld(status), "a one to another bit")
	h.c.Store(0, at(status), 8, 0x10)
	assert.Zero(t, ld(status)|ld(all))
	assert.EqualValues(t, flag|3, ld(cnts))
	h.c.Store(0, at(cnts), 4, 1)
	assert.EqualValues(t, flag|2, ld(cnts), "a write subtracts")
	h.c.Store(0, at(cnts), 8, 1<<59)
	assert.EqualValues(t, flag|1<<62|2, ld(cnts), "RESEND looks again, and reads 0")
	h.c.Store(0, at(status), 8, 0x10)
	h.c.Store(0, at(cnts), 8, 2)
	assert.EqualValues(t, flag, ld(cnts))

	wire(jumbo, 2)
	credit, position = ring()
	assert.EqualValues(t, limit-32, credit, "20 buffers are two batches")
	assert.EqualValues(t, 512, position)
	h.c.Store(0, at(dbell), 4, 20)
	credit, _ = ring()
	assert.EqualValues(t, limit-12, credit, "one unit is one buffer")
	wire(jumbo, 7)
	credit, position = ring()
	assert.EqualValues(t, limit+20-4*16, credit, "62 buffers are four batches")
	assert.EqualValues(t, (4*256)%(64*16), position, "modulo the list")
	assert.GreaterOrEqual(t, int(credit), wm-16)

	for _, r := range []uint64{packets, bytes} {
		before := ld(r)
		h.c.Store(0, at(r), 8, 1)
		assert.Equal(t, before, ld(r), "only 0 clears")
		h.c.Store(0, at(r), 8, 0)
		assert.Zero(t, ld(r))
	}
	h.clean()
}

// A grant of 2 reads back as 0xfffffff2 (endpoint.md 5.5).
func TestWitnessSignedCredit(t *testing.T) {
	h := newRingHost(t, 1024)
	h.programOut(0)
	h.c.Store(0, 0x10140, 4, 2)
	h.advance(time.Millisecond)
	assert.EqualValues(t, uint64(256)<<32|0xfffffff2, h.c.Load(0, 0x10140, 8))
	h.clean()
}

// The window registers and the scratch register take what the vendor writes
// (endpoint.md 1, 2.1).
func TestWitnessVendorNote(t *testing.T) {
	h := newMiniHost(t)
	require.True(t, h.wait(time.Second, h.c.KernelUp))
	assert.EqualValues(t, 0x02000000abcdabcd, h.c.Load(0, 0x20180, 8))
	h.c.Store(0, 0x20180, 8, 0x11223344)
	assert.EqualValues(t, 0x11223344, h.c.Load(0, 0x20180, 8), "F24: the pointer is hidden until restored")
	h.c.Store(0, 0x20180, 8, 0x02000000abcdabcd)
	assert.EqualValues(t, 0x02000000abcdabcd, h.c.Load(0, 0x20180, 8))
	assert.Len(t, h.c.Reports(), 1)
	assert.EqualValues(t, 1, h.c.ReportCount(ReportScratch), "and putting it back is none")
}

// endpoint.md 8.1: 80 messages of 16 bytes, pending bits at 0x4000.
func TestWitnessMSIX(t *testing.T) {
	c := cold(t)
	for v := range uint64(80) {
		assert.EqualValues(t, 1, c.Load(0, 16*v+12, 4)&1, "vector %d is masked at reset", v)
		assert.Zero(t, c.Load(0, 16*v, 8))
	}
	for v := range uint64(80) {
		c.Store(0, 16*v, 8, 0xfee00000|v<<32)
		c.Store(0, 16*v+8, 4, 0x4000+v)
		c.Store(0, 16*v+12, 4, 0)
	}
	for v := range uint64(80) {
		assert.EqualValues(t, 0xfee00000|v<<32, c.Load(0, 16*v, 8), "address of vector %d", v)
		assert.EqualValues(t, 0x4000+v, c.Load(0, 16*v+8, 8), "data, and not masked")
	}
	c.Store(0, 0x4000, 8, 0xffffffffffffffff)
	c.Store(0, 0x4008, 4, 0xffffffff)
	assert.Zero(t, c.Load(0, 0x4000, 8)|c.Load(0, 0x4008, 8), "pending bits are read-only")
	assert.Empty(t, c.Reports())
	assert.Zero(t, c.Load(0, 0x500, 8))
	assert.EqualValues(t, 1, c.ReportCount(ReportUnmappedBAR), "80 entries and no more")
}

// A VF sees the ring blocks at the same offsets, ring 0 based, its number of rings in
// IN_CONTROL, and nothing else (endpoint.md 1).
func TestWitnessVirtualFunction(t *testing.T) {
	for _, rings := range []int{1, 2, 4, 8} {
		c := powered(t, func(o *Options) { o.Function, o.VFRings = VF, rings })
		assert.EqualValues(t, 0xa303177d, c.ConfigRead(0, 4))
		for q := range rings {
			for _, r := range ringRegisters {
				want := r.reset
				switch r.off {
				case 0x10000:
					want |= uint64(rings) << 48
				case 0x10500:
					want = 1 // 0 is the PF
				}
				assert.Equal(t, want, c.Load(0, r.at(q), 8), "%d rings: ring %d %s", rings, q, r.name)
			}
		}
		assert.Empty(t, c.Reports())
		c.Load(0, 0x10000+uint64(rings)*0x20000, 8)
		c.Load(0, 0x20190, 8)
		c.Load(0, 0, 4)
		assert.EqualValues(t, 3, c.ReportCount(ReportUnmappedBAR))
	}
}
