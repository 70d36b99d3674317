package octep

import (
	"sync/atomic"

	"oxpd/internal/mmio"
)

// Fence is a device whose BARs can be shut: from then on its loads read all ones, as
// those of a card that has gone do, its stores do nothing, and the card sees neither.
// Whoever uses the card through a fence leaves it alone once it is shut, however late
// he comes; a card that comes back is reached through another one.
//
// An access that has begun when Shut is called may still be made. Config space, memory
// and interrupts are the device's own. Safe for concurrent use.
type Fence struct {
	Device
	shut atomic.Bool
}

// NewFence puts a fence around a device, whose BARs stay open for others.
func NewFence(d Device) *Fence { return &Fence{Device: d} }

// Shut shuts both BARs, for good.
func (f *Fence) Shut() { f.shut.Store(true) }

// BAR0 implements Device.
func (f *Fence) BAR0() mmio.Space { return &fenced{f.Device.BAR0(), &f.shut} }

// BAR2 implements Device.
func (f *Fence) BAR2() mmio.Space { return &fenced{f.Device.BAR2(), &f.shut} }

// fenced is a BAR behind a fence.
type fenced struct {
	space mmio.Space
	shut  *atomic.Bool
}

func (b *fenced) Size() uint64 { return b.space.Size() }

func (b *fenced) Load32(off uint32) uint32 {
	if b.shut.Load() {
		return ^uint32(0)
	}
	return b.space.Load32(off)
}

func (b *fenced) Load64(off uint32) uint64 {
	if b.shut.Load() {
		return ^uint64(0)
	}
	return b.space.Load64(off)
}

func (b *fenced) Store32(off uint32, v uint32) {
	if !b.shut.Load() {
		b.space.Store32(off, v)
	}
}

func (b *fenced) Store64(off uint32, v uint64) {
	if !b.shut.Load() {
		b.space.Store64(off, v)
	}
}
