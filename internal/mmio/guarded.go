package mmio

import "runtime/debug"

// Guarded is a Mapped whose mapping the kernel may take away and give back: when the
// function loses its memory decoding, sleeps or leaves the bus, an access faults. A
// load then reads all ones, as it does from hardware that has gone, and a store is
// lost; without the guard the process ends with SIGBUS (Linux, vfio_pci_mmap_fault).
//
// The guard costs some nanoseconds an access and nothing else.
type Guarded struct{ m *Mapped }

// Guard wraps a mapping.
func Guard(m *Mapped) Guarded { return Guarded{m} }

// Size returns the mapped bytes.
func (g Guarded) Size() uint64 { return g.m.Size() }

// Load32 reads 32 bits.
func (g Guarded) Load32(off uint32) (v uint32) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if g.faulted(recover()) {
			v = ^uint32(0)
		}
	}()
	return g.m.Load32(off)
}

// Load64 reads 64 bits.
func (g Guarded) Load64(off uint32) (v uint64) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if g.faulted(recover()) {
			v = ^uint64(0)
		}
	}()
	return g.m.Load64(off)
}

// Store32 writes 32 bits with one move.
func (g Guarded) Store32(off uint32, v uint32) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { g.faulted(recover()) }()
	g.m.Store32(off, v)
}

// Store64 writes 64 bits with one move.
func (g Guarded) Store64(off uint32, v uint64) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { g.faulted(recover()) }()
	g.m.Store64(off, v)
}

// faulted tells whether a panic is a fault of the mapping. One that is something else
// goes on.
func (g Guarded) faulted(cause any) bool {
	if cause == nil {
		return false
	}
	if f, ok := cause.(interface{ Addr() uintptr }); ok && g.m.contains(f.Addr()) {
		return true
	}
	panic(cause)
}
