// Package mmio is the one way to a BAR: every load and every store of device
// registers goes through a Space, at the width that its caller states.
//
// Two kinds of Space exist: Mapped, memory of a real BAR, perhaps Guarded against
// its loss, and whatever a simulated card answers. The typed helpers Load64, Store64 and Store32 keep a
// 64-bit register from being touched 32 bits wide and the other way round:
// octep/csr marks its offsets with Is64 or Is32.
//
// Order. A Space performs accesses in program order. Writes to DMA memory made
// before a store to a Space are visible to the device before that store is;
// Barrier states it where it matters, in front of a doorbell.
package mmio

import "errors"

// ErrGone says that a load came back as all ones where no register holds them:
// the card has left the bus, is held in reset, or does not decode. Callers stop
// touching the BAR and look at config space; they do not retry.
var ErrGone = errors.New("card is gone (read all ones)")

// Space is the registers of one BAR. Offsets are bytes from its start, aligned
// to the width. Safe for concurrent use.
type Space interface {
	Load32(off uint32) uint32
	Load64(off uint32) uint64
	Store32(off uint32, v uint32)
	Store64(off uint32, v uint64)
	Size() uint64
}

// Reg64 is the offset type of a register that is accessed 64 bits wide.
type Reg64 interface {
	~uint32
	Is64()
}

// Reg32 is the offset type of a 32-bit access.
type Reg32 interface {
	~uint32
	Is32()
}

// Load64 reads a register.
func Load64[R Reg64](s Space, r R) uint64 { return s.Load64(uint32(r)) }

// Store64 writes a register.
func Store64[R Reg64](s Space, r R, v uint64) { s.Store64(uint32(r), v) }

// Store32 writes the 32-bit form of a doorbell or count.
func Store32[R Reg32](s Space, r R, v uint32) { s.Store32(uint32(r), v) }

// Checked64 reads a register that never holds all ones, and returns ErrGone for them.
func Checked64[R Reg64](s Space, r R) (uint64, error) {
	v := s.Load64(uint32(r))
	if v == ^uint64(0) {
		return v, ErrGone
	}
	return v, nil
}
