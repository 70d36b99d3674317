//go:build !amd64 && !arm64

package mmio

import "sync/atomic"

// Barrier orders the writes to memory before it ahead of the stores to a BAR
// after it, as far as sync/atomic does on this architecture.
func Barrier() {
	var fence atomic.Uint32
	fence.Add(0)
}
