package hwsim

import (
	"encoding/binary"
	"fmt"

	"oxpd/octep/csr"
)

const allOnes = ^uint64(0)

// gicdSetSPI is the one register of BAR2's entry 15 that a host may write: the
// barmap's gicd_offset on this board (endpoint.md 3.1).
const gicdSetSPI = csr.BAR2Interrupt + 0x40

// Load reads 4 or 8 bytes of a BAR (0, 2 or 4), aligned. In stepped mode the
// request crosses the link, the value is taken after Latencies.Load, and comes back
// behind everything that the card has written before it. A card that is gone,
// decoding that is off and an access of another shape read all-ones; the latter two
// are reported.
func (c *Card) Load(bar int, off uint64, width int) uint64 {
	c.lock()
	for c.acts(fltResetStalls, c.faults.ResetStalls && c.gone() && !c.closed) {
		c.stalled.Wait()
	}
	start := c.now
	timed := c.mode == stepped && !c.closed && c.lat.load > 0
	if timed {
		c.run(c.hostAccess(c.now, 0, "load") + c.lat.load)
	}
	v := c.load(bar, off, width)
	if width == 4 {
		v &= 0xffffffff
	}
	if timed {
		c.run(c.send(&c.link.up, linkHost, c.now, width+tlpCompletion, "load") + c.lat.link)
	}
	c.traceAccess(UnitLoad, bar, off, width, v, start)
	c.leave()
	return v
}

// Store writes 4 or 8 bytes of a BAR, aligned. The register has its value at once.
// In stepped mode what the card does about it begins when the write has crossed the
// link, and the card's time moves by Latencies.Store, which is the driver's cost.
func (c *Card) Store(bar int, off uint64, width int, v uint64) {
	c.lock()
	start := c.now
	c.store(bar, off, width, v)
	if c.mode == stepped && !c.closed {
		if c.lat.store > 0 {
			c.hostAccess(c.now, width, "store")
		}
		c.run(c.now + c.lat.store)
	}
	c.traceAccess(UnitStore, bar, off, width, v, start)
	c.leave()
}

// placeOf names what lies at an offset of a BAR: the register, where there is one.
func placeOf(bar int, off uint64) string {
	if bar == 0 && off < csr.BAR0Size {
		return csr.Name(uint32(off))
	}
	return fmt.Sprintf("BAR%d+%#x", bar, off)
}

func (c *Card) accessOK(what string, bar int, off uint64, width int) bool {
	c.chance(perAccess)
	if c.acts(fltGone, c.faults.Gone) || c.gone() {
		return false
	}
	size := c.BARSize(bar)
	if width != 4 && width != 8 || off%uint64(width) != 0 || off+uint64(width) > size {
		c.report(ReportBadWidth, "%s of %d bytes at %s", what, width, placeOf(bar, off))
		return false
	}
	if !c.cfg.memory() {
		c.report(ReportDecodeOff, "%s of %d bytes at %s", what, width, placeOf(bar, off))
		return false
	}
	return c.cfg.assigned(bar)
}

func (c *Card) load(bar int, off uint64, width int) uint64 {
	if !c.accessOK("load", bar, off, width) {
		return allOnes
	}
	switch bar {
	case 0:
		return c.load0(uint32(off), width)
	case 2:
		return c.load2(uint32(off), width)
	default:
		c.acc.area[areaBAR4].load(width)
		return 0
	}
}

func (c *Card) store(bar int, off uint64, width int, v uint64) {
	if !c.accessOK("store", bar, off, width) {
		return
	}
	switch bar {
	case 0:
		c.store0(uint32(off), width, v)
	case 2:
		c.store2(uint32(off), width, v)
	default:
		c.acc.area[areaBAR4].store(width)
	}
}

// load2 reads BAR2: windows once the target has mapped them, all-ones below
// them (choice 15), and what hangs a real host elsewhere (choice 14).
func (c *Card) load2(off uint32, width int) uint64 {
	switch {
	case off < csr.BAR2Facilities:
		c.acc.area[areaBAR2].load(width)
		return allOnes
	case off < csr.BAR2FacEnd:
		c.acc.area[areaControl+area((off-csr.BAR2Facilities)>>20)].load(width)
		if !c.target.decodes(off - csr.BAR2Facilities) {
			return allOnes
		}
		if width == 4 {
			return uint64(binary.LittleEndian.Uint32(c.win[off-csr.BAR2Facilities:]))
		}
		return binary.LittleEndian.Uint64(c.win[off-csr.BAR2Facilities:])
	}
	c.acc.area[areaForbidden].load(width)
	c.report(ReportForbiddenRead, "load of %d bytes at BAR2+%#x", width, off)
	if c.o.Choices.StallForbidden {
		for !c.closed {
			c.stalled.Wait()
		}
	}
	return allOnes
}

func (c *Card) store2(off uint32, width int, v uint64) {
	switch {
	case off < csr.BAR2Facilities:
		c.acc.area[areaBAR2].store(width)
	case off < csr.BAR2FacEnd:
		c.acc.area[areaControl+area((off-csr.BAR2Facilities)>>20)].store(width)
		if !c.target.decodes(off - csr.BAR2Facilities) {
			return
		}
		if width == 4 {
			binary.LittleEndian.PutUint32(c.win[off-csr.BAR2Facilities:], uint32(v))
			return
		}
		binary.LittleEndian.PutUint64(c.win[off-csr.BAR2Facilities:], v)
	case off == gicdSetSPI && width == 4:
		c.acc.area[areaDoorbell].store(width)
		c.doorbells[uint32(v)]++
		c.target.doorbell(uint32(v))
	default:
		c.acc.area[areaForbidden].store(width)
		c.report(ReportForbiddenPut, "store of %d bytes at BAR2+%#x", width, off)
	}
}

// load0 reads BAR0. A 32-bit load takes that half of the register.
func (c *Card) load0(off uint32, width int) uint64 {
	if c.inMSIX(off) {
		c.acc.area[areaMSIX].load(width)
		v := uint64(c.msixLoad32(off))
		if width == 8 {
			v |= uint64(c.msixLoad32(off+4)) << 32
		}
		return v
	}
	v, ok := c.loadReg(off&^7, width)
	if !ok {
		c.acc.area[areaBAR0].load(width)
		c.report(ReportUnmappedBAR, "load of %d bytes at %s", width, placeOf(0, uint64(off)))
		return 0
	}
	if width == 4 {
		return v >> (off & 4 * 8) & 0xffffffff
	}
	return v
}

// loadReg reads a whole register.
func (c *Card) loadReg(reg uint32, width int) (uint64, bool) {
	if at := reg & blockMask; at >= blockBase {
		i, q := c.acc.find(at-blockBase), int(reg>>blockShift)
		if i < 0 || q >= c.o.rings() {
			return 0, false
		}
		c.acc.ring[q][i].load(width)
		return c.rings[q].load(c, csr.RingReg(at-blockBase)), true
	}
	i, ok := c.acc.globalAt[reg]
	if !ok || c.o.Function == VF {
		return 0, false
	}
	c.acc.global[i].load(width)
	switch info := &csr.GlobalTable[i]; {
	case reg == uint32(csr.SDPScratch):
		return c.sdpScratch, true
	case reg == uint32(csr.SLIScratch):
		return c.sliScratch, true
	case reg == uint32(csr.RInfo):
		if c.acts(fltRInfoNoRings, c.faults.RInfoNoRings) {
			return csr.RInfoTRS.Put(c.rinfo, 0), true
		}
		return c.rinfo, true
	case info.Access == csr.W1S: // reads as the status it sets
		return c.plain[c.acc.groupOf[reg]], true
	case info.Access == csr.EnaW1C || info.Access == csr.EnaW1S:
		return c.plain[enableOf(c.acc.groupOf[reg])], true
	}
	return c.plain[reg], true
}

// enableOf is the key in plain of an interrupt group's enables.
func enableOf(status uint32) uint32 { return status | 1 }

func (a *accounts) find(at uint32) int {
	if at/8 >= blockRegs {
		return -1
	}
	return int(a.ringAt[at/8])
}

// store0 writes BAR0.
func (c *Card) store0(off uint32, width int, v uint64) {
	if c.inMSIX(off) {
		c.acc.area[areaMSIX].store(width)
		c.msixStore32(off, uint32(v))
		if width == 8 {
			c.msixStore32(off+4, uint32(v>>32))
		}
		return
	}
	reg := off &^ 7
	if at := reg & blockMask; at >= blockBase {
		if i, q := c.acc.find(at-blockBase), int(reg>>blockShift); i >= 0 && q < c.o.rings() {
			c.acc.ring[q][i].store(width)
			c.storeRing(q, csr.RingReg(at-blockBase), off&4 != 0, width, v)
			return
		}
	} else if i, ok := c.acc.globalAt[reg]; ok && c.o.Function == PF {
		c.acc.global[i].store(width)
		c.storeGlobal(reg, csr.GlobalTable[i].Access, off, width, v)
		return
	}
	c.acc.area[areaBAR0].store(width)
	c.report(ReportUnmappedBAR, "store of %d bytes at %s", width, placeOf(0, uint64(off)))
}

// merge puts a 32-bit store into its half of a register.
func merge(old, v uint64, width int, high bool) uint64 {
	switch {
	case width == 8:
		return v
	case high:
		return old&0xffffffff | v<<32
	default:
		return old&^0xffffffff | v&0xffffffff
	}
}

func (c *Card) storeGlobal(reg uint32, access csr.Access, off uint32, width int, v uint64) {
	group := c.acc.groupOf[reg]
	bits := merge(0, v, width, off&4 != 0)
	switch access {
	case csr.W1C:
		c.plain[reg] &^= bits
		return
	case csr.W1S:
		c.plain[group] |= bits
		return
	case csr.EnaW1C:
		c.plain[enableOf(group)] &^= bits
		return
	case csr.EnaW1S:
		c.plain[enableOf(group)] |= bits
		return
	case csr.RO:
		c.report(ReportReadOnly, "%s = %#x", csr.Name(off), v)
		return
	}
	narrow := width == 4
	switch csr.Reg64(reg) {
	case csr.SDPScratch:
		c.sdpScratch = merge(c.sdpScratch, v, width, off&4 != 0)
		if c.sdpScratch != scratchUp {
			c.report(ReportScratch, "%s = %#x", csr.Name(off), v)
		}
	case csr.SLIScratch:
		c.sliScratch = merge(c.sliScratch, v, width, off&4 != 0)
		c.target.scratchWritten()
	case csr.RInfo:
		v = merge(c.rinfo, v, width, off&4 != 0)
		writable := csr.RInfoRPVF.Mask() | csr.RInfoNVFS.Mask()
		if c.o.Choices.RInfoSetOnly {
			v |= c.rinfo
		}
		c.rinfo = c.rinfo&^writable | v&writable
	default: // the window registers, usable as two halves
		c.plain[reg] = merge(c.plain[reg], v, width, off&4 != 0)
		narrow = false
	}
	if narrow {
		c.report(ReportNarrowStore, "%s = %#x", csr.Name(off), v)
	}
}

// resetRegisters brings BAR0 to its reset values. Held: c.mu.
func (c *Card) resetRegisters() {
	c.sdpScratch, c.sliScratch, c.rinfo = 0, 0, csr.RInfoReset
	c.plain = map[uint32]uint64{}
	c.msix.powerOn()
	for q := range c.rings {
		c.rings[q].powerOn(q)
		if c.o.Function == VF {
			*c.rings[q].storage(csr.VFNum) = vfNumber
		}
	}
}
