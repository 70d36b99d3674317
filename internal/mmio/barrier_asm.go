//go:build amd64 || arm64

package mmio

// Barrier orders the writes to memory before it ahead of the stores to a BAR
// after it, for the CPU, the compiler and the device. It shares no memory between
// callers, so workers do not slow each other down.
//
// On amd64 it is a locked addition to the stack, a full fence. On arm64 it is a
// DMB for the outer shareable domain, which is where the device is: Go's atomics
// order the inner one only, and without the LSE extension not even two stores
// around an addition.
func Barrier()
