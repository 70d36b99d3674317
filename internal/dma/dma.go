// Package dma hands out memory that the card may touch: a Region has one CPU
// mapping and one bus address, and both views of a piece of it come out of one
// call, so that they cannot drift apart (design.md, rule 2).
//
// DMA memory is never Go heap. A region that the card has been told about
// outlives whoever allocated it (rule 7): Free is for memory that the card can
// no longer reach.
package dma

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"
)

// BusAddr is an address as the device sees it. It is never a CPU address.
type BusAddr uint64

// Region is one range that is contiguous for the device.
type Region struct {
	name string
	mem  []byte
	bus  BusAddr

	check func() error // nil: the address cannot change
}

// NewRegion describes memory that a provider has made reachable at bus.
func NewRegion(name string, mem []byte, bus BusAddr) *Region {
	return &Region{name: name, mem: mem, bus: bus}
}

// NewChecked is NewRegion for memory that may move; check tells whether it has.
func NewChecked(name string, mem []byte, bus BusAddr, check func() error) *Region {
	return &Region{name: name, mem: mem, bus: bus, check: check}
}

// Name is what the provider was asked for, for logs.
func (r *Region) Name() string { return r.name }

// Size returns the region's bytes.
func (r *Region) Size() int { return len(r.mem) }

// Bus returns the address of the region's first byte.
func (r *Region) Bus() BusAddr { return r.bus }

// Check asks the provider again whether the region lies where Bus says, which is worth
// its time right before the card is told. Memory that has moved is ErrMoved.
func (r *Region) Check() error {
	if r.check == nil {
		return nil
	}
	return r.check()
}

// At returns n bytes at off twice: as memory for the CPU, its capacity cut to
// n, and as the address for the device. It panics outside the region.
func (r *Region) At(off, n int) ([]byte, BusAddr) {
	if off < 0 || n < 0 || off > len(r.mem)-n {
		panic(fmt.Sprintf("dma: %d bytes at %d outside region %s of %d", n, off, r.name, len(r.mem)))
	}
	return r.mem[off : off+n : off+n], r.bus + BusAddr(off)
}

// Provider allocates regions. Implementations are safe for concurrent use.
type Provider interface {
	// Alloc returns zeroed memory, contiguous for the device and aligned to
	// align, a power of two of at least 64, on the bus. More than 2 MiB in one piece
	// is not to be had everywhere: who needs more asks for pieces.
	Alloc(name string, size, align int) (*Region, error)
	// Free takes back a region that the card can no longer reach.
	Free(*Region) error
	// Keeps tells whether regions stay intact and reachable for the card when
	// this process ends. If not, bus mastering is cleared before they go.
	Keeps() bool
}

// Holder is a provider that still has regions which an earlier process allocated and
// the card goes on using. They are found by their names, at the bus addresses that
// the card knows, with what lies in them untouched.
type Holder interface {
	// Held returns the region that was allocated under name with this size and
	// alignment. Errors: ErrNotHeld.
	Held(name string, size, align int) (*Region, error)
}

// HeldAll returns all regions of one name that a provider still has from earlier
// processes, in no order; none when it is no Holder. Errors: those of Held but ErrNotHeld.
func HeldAll(p Provider, name string, size, align int) (all []*Region, err error) {
	h, ok := p.(Holder)
	for ok {
		r, err := h.Held(name, size, align)
		if errors.Is(err, ErrNotHeld) {
			break
		}
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

// ErrNotHeld says that a provider has no region of that name, size and alignment from
// an earlier process.
var ErrNotHeld = errors.New("no such memory of an earlier process")

// Load64 reads eight bytes that the device may be writing, in one load and in
// memory order of the CPU; b is aligned to 8. The caller reads once into a
// local, checks, then uses (rule 14).
func Load64(b []byte) uint64 {
	_ = b[7]
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(&b[0])))
}

// Store64 writes eight bytes that the device may be reading, in one store.
func Store64(b []byte, v uint64) {
	_ = b[7]
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&b[0])), v)
}

// Load32 is Load64 for four bytes, aligned to 4.
func Load32(b []byte) uint32 {
	_ = b[3]
	return atomic.LoadUint32((*uint32)(unsafe.Pointer(&b[0])))
}
