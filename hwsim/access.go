package hwsim

import (
	"fmt"

	"oxpd/octep/csr"
)

// AccessCount is how often one register was accessed. Reads and Writes are all
// accesses, Reads32 and Writes32 those of them that were 32 bits wide.
type AccessCount struct {
	Reads, Writes     uint64
	Reads32, Writes32 uint64
}

// Add returns the sum of two counts.
func (a AccessCount) Add(b AccessCount) AccessCount {
	return AccessCount{a.Reads + b.Reads, a.Writes + b.Writes, a.Reads32 + b.Reads32, a.Writes32 + b.Writes32}
}

func (a *AccessCount) load(width int) {
	a.Reads++
	if width == 4 {
		a.Reads32++
	}
}

func (a *AccessCount) store(width int) {
	a.Writes++
	if width == 4 {
		a.Writes32++
	}
}

// area is a part of the BARs that is not a named register.
type area int

const (
	areaMSIX area = iota
	areaBAR0
	areaBAR2 // entries 0 to 7
	areaControl
	areaMgmt
	areaNWA
	areaRPC
	areaDoorbell
	areaForbidden
	areaBAR4
	areas
)

var areaNames = [areas]string{"MSIX_TABLE", "BAR0_UNMAPPED", "BAR2_UNMAPPED", "BAR2_CONTROL", "BAR2_MGMT_NETDEV", "BAR2_NW_AGENT", "BAR2_RPC", "BAR2_DOORBELL", "BAR2_FORBIDDEN", "BAR4"}

// Geometry of a ring's block inside its 128 KiB of BAR0.
const (
	blockShift = 17
	blockMask  = 1<<blockShift - 1
	blockBase  = 0x10000
	blockRegs  = 0x510 / 8
)

// accounts finds the register of an offset and counts its accesses.
type accounts struct {
	ringAt   [blockRegs]int8   // index in csr.RingTable by (offset in block) / 8, -1 for none
	globalAt map[uint32]int    // index in csr.GlobalTable by offset
	groupOf  map[uint32]uint32 // status register of a W1C/W1S/ENA group by offset of a member
	ring     [csr.Rings][]AccessCount
	global   []AccessCount
	area     [areas]AccessCount
}

func (a *accounts) init() {
	for i := range a.ringAt {
		a.ringAt[i] = -1
	}
	for i, r := range csr.RingTable {
		a.ringAt[r.Offset/8] = int8(i)
	}
	a.globalAt, a.groupOf = map[uint32]int{}, map[uint32]uint32{}
	var status uint32
	for i, r := range csr.GlobalTable {
		a.globalAt[r.Offset] = i
		if r.Access == csr.W1C {
			status = r.Offset
		}
		a.groupOf[r.Offset] = status
	}
	for q := range a.ring {
		a.ring[q] = make([]AccessCount, len(csr.RingTable))
	}
	a.global = make([]AccessCount, len(csr.GlobalTable))
}

// Accesses returns the counts by register: OUT_CNTS[3] for a ring's register, its
// bare name for a global one, BAR2_RPC and the like for windows. Registers that
// were never touched are left out. Functional.
func (c *Card) Accesses() map[string]AccessCount {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := map[string]AccessCount{}
	put := func(name string, n AccessCount) {
		if n != (AccessCount{}) {
			m[name] = n
		}
	}
	for q := range c.acc.ring {
		for i, n := range c.acc.ring[q] {
			if n != (AccessCount{}) {
				put(fmt.Sprintf("%s[%d]", csr.RingTable[i].Name, q), n)
			}
		}
	}
	for i, n := range c.acc.global {
		put(csr.GlobalTable[i].Name, n)
	}
	for i, n := range c.acc.area {
		put(areaNames[i], n)
	}
	return m
}

// ResetAccesses starts the counts of Accesses and Doorbells anew. Functional.
func (c *Card) ResetAccesses() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for q := range c.acc.ring {
		clear(c.acc.ring[q])
	}
	clear(c.acc.global)
	c.acc.area = [areas]AccessCount{}
	clear(c.doorbells)
}
