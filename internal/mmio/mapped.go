package mmio

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// Mapped is a BAR that the CPU has mapped. The memory belongs to the caller,
// who keeps it mapped for as long as the Mapped is used.
//
// Loads are sync/atomic loads. Stores are one plain move behind a call that is
// never inlined: on amd64 an atomic store is an XCHG, which reads the register
// as well, and two plain stores to one address in one function may be merged,
// which swallows a doorbell.
type Mapped struct {
	mem []byte
}

// NewMapped wraps the mapping of a whole BAR. It must be aligned to 8 bytes.
func NewMapped(mem []byte) (*Mapped, error) {
	if len(mem) == 0 || uintptr(unsafe.Pointer(unsafe.SliceData(mem)))&7 != 0 || len(mem)&7 != 0 {
		return nil, fmt.Errorf("mmio: mapping of %d bytes is empty or not aligned to 8", len(mem))
	}
	return &Mapped{mem: mem}, nil
}

// Size returns the mapped bytes.
func (m *Mapped) Size() uint64 { return uint64(len(m.mem)) }

// at checks bounds and alignment. Both are a broken invariant of ours: offsets
// are constants or were checked against an advertised window.
func (m *Mapped) at(off, width uint32) unsafe.Pointer {
	if off%width != 0 || uint64(off)+uint64(width) > uint64(len(m.mem)) {
		panic(fmt.Sprintf("mmio: access of %d bytes at %#x in a BAR of %#x", width, off, len(m.mem)))
	}
	return unsafe.Pointer(&m.mem[off])
}

// contains tells whether a CPU address is one of the mapping.
func (m *Mapped) contains(addr uintptr) bool {
	start := uintptr(unsafe.Pointer(unsafe.SliceData(m.mem)))
	return addr >= start && addr-start < uintptr(len(m.mem))
}

// Load32 reads 32 bits.
func (m *Mapped) Load32(off uint32) uint32 { return atomic.LoadUint32((*uint32)(m.at(off, 4))) }

// Load64 reads 64 bits.
func (m *Mapped) Load64(off uint32) uint64 { return atomic.LoadUint64((*uint64)(m.at(off, 8))) }

// Store32 writes 32 bits with one move.
func (m *Mapped) Store32(off uint32, v uint32) { store32((*uint32)(m.at(off, 4)), v) }

// Store64 writes 64 bits with one move.
func (m *Mapped) Store64(off uint32, v uint64) { store64((*uint64)(m.at(off, 8)), v) }

//go:noinline
func store32(p *uint32, v uint32) { *p = v }

//go:noinline
func store64(p *uint64, v uint64) { *p = v }
