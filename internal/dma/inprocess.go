package dma

import (
	"fmt"
	"sync"
)

// Mapper tells a device in this process which memory lies at which bus address.
type Mapper interface {
	MapDMA(bus uint64, mem []byte) error
	UnmapDMA(bus uint64, size int) error
}

// InProcess provides anonymous pages and bus addresses of its own choosing to a
// device in this process. Bus addresses start above 4 GiB, are far from every
// CPU address, and have a hole behind each region, so that a sum that runs over
// the end hits nothing.
type InProcess struct {
	dev Mapper

	mu    sync.Mutex
	next  uint64
	pages map[*Region][]byte
}

const (
	inProcessBase = 0x1_8000_0000 // the hardware pages' measurements used 33-bit addresses
	inProcessHole = 1 << 20
	pageSize      = 4096
)

// NewInProcess returns a provider for dev whose bus addresses begin above 4 GiB
// and above above, the end of what dev was ever told about: no address of an
// earlier provider is used again.
func NewInProcess(dev Mapper, above uint64) *InProcess {
	return &InProcess{dev: dev, next: max(inProcessBase, above+inProcessHole), pages: map[*Region][]byte{}}
}

// Alloc implements Provider.
func (p *InProcess) Alloc(name string, size, align int) (*Region, error) {
	if size <= 0 || align < 64 || align&(align-1) != 0 {
		return nil, fmt.Errorf("dma: alloc %s: %d bytes aligned to %d", name, size, align)
	}
	pages := (size + pageSize - 1) &^ (pageSize - 1)
	mem, err := mapPages(pages)
	if err != nil {
		return nil, fmt.Errorf("dma: alloc %s: map %d bytes: %w", name, pages, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	a := uint64(max(align, pageSize))
	bus := (p.next + a - 1) &^ (a - 1)
	if err := p.dev.MapDMA(bus, mem); err != nil {
		_ = unmapPages(mem) // the error that matters is the device's
		return nil, fmt.Errorf("dma: alloc %s: %w", name, err)
	}
	p.next = bus + uint64(pages) + inProcessHole
	r := NewRegion(name, mem[:size:size], BusAddr(bus))
	p.pages[r] = mem
	return r, nil
}

// Free implements Provider: the device loses the range first.
func (p *InProcess) Free(r *Region) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	mem, ok := p.pages[r]
	if !ok {
		return fmt.Errorf("dma: free %s: not a region of this provider", r.name)
	}
	if err := p.dev.UnmapDMA(uint64(r.bus), len(mem)); err != nil {
		return fmt.Errorf("dma: free %s: %w", r.name, err) // still the device's, still ours to free
	}
	delete(p.pages, r)
	if err := unmapPages(mem); err != nil {
		return fmt.Errorf("dma: free %s: %w", r.name, err)
	}
	return nil
}

// Keeps implements Provider: anonymous pages end with the process.
func (p *InProcess) Keeps() bool { return false }
