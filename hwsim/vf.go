package hwsim

import (
	"oxpd/internal/frame"
	"oxpd/octep/csr"
	"oxpd/ring/wire"
)

// Function says which function of the chip a card shows.
type Function uint8

const (
	PF Function = iota // the physical function, with everything that is behind it
	VF                 // one virtual function: its rings, and a loopback behind them
)

// Of a virtual function the pages give the registers of its rings, their number and
// BAR0 (endpoint.md 1, 5). What nobody has recorded (other BARs, interrupts, extended
// capabilities) it does not have here.
const (
	vfClass     = 0x020000 // with which DPDK 22.11 was seen to take one; the chip's own is not on record
	vfRings     = 1        // as under SFOS
	vfWatermark = 0x100    // of the stock firmware, which that driver expects
	vfNumber    = 1        // VF_NUM counts from 1
	vfHead      = 16       // length word and response word: no prefix of the fast path
)

// rings is how many rings the function has, numbered from 0.
func (o *Options) rings() int {
	if o.Function == VF {
		return o.VFRings
	}
	return csr.Rings
}

// BARSize returns the size of a BAR in bytes, 0 for one that the function does not
// have.
func (c *Card) BARSize(bar int) uint64 {
	switch {
	case bar == 0:
		return csr.BAR0Size
	case c.o.Function == VF:
		return 0
	case bar == 2:
		return csr.BAR2Size
	case bar == 4:
		return csr.BAR4Size
	}
	return 0
}

// Vectors returns how many MSI-X vectors the function has.
func (c *Card) Vectors() int {
	if c.o.Function == VF {
		return 0
	}
	return csr.MSIXVectors
}

// loopBack is what lies behind a virtual function: a frame comes back on the ring
// that it was sent by, without a private header on the way out, with two words in
// front on the way in, and in no time of its own. It takes the packet. The
// instruction's irh and rptr mean nothing here.
func (c *Card) loopBack(p *packet, at uint64) {
	t := &c.tally
	switch {
	case c.fpDead || c.acts(fltFastPathDead, c.faults.FastPathDead):
		t.deadIn++
		c.pool.put(p)
	case len(p.b) < frame.HeaderSize:
		c.report(ReportInstruction, "ring %d: %d bytes at dptr hold no frame", p.ring, len(p.b))
		t.noFrame++
		c.pool.put(p)
	default:
		t.looped++
		p.bare, p.length = true, uint64(vfHead-wire.LenWord+len(p.frame()))
		c.toHost(p.ring, p, at)
	}
}
