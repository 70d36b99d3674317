package dma

import (
	"fmt"
	"sync"
)

// chosen is a provider that chooses bus addresses itself. They start above 4 GiB,
// are far from every CPU address, and have a hole behind each region, so that a sum
// that runs over the end hits nothing.
type chosen struct {
	// make returns zeroed pages and what tells the device about them, which is
	// called once.
	make   func(name string, size int) (mem []byte, tell func(bus uint64) error, err error)
	forget func(bus uint64, size int) error // the device's

	mu    sync.Mutex
	next  uint64
	pages map[*Region][]byte
}

const (
	chosenBase = 0x1_8000_0000 // the hardware pages' measurements used 33-bit addresses
	chosenHole = 1 << 20
	pageSize   = 4096
)

// Alloc implements Provider.
func (p *chosen) Alloc(name string, size, align int) (*Region, error) {
	if size <= 0 || align < 64 || align&(align-1) != 0 {
		return nil, fmt.Errorf("dma: alloc %s: %d bytes aligned to %d", name, size, align)
	}
	pages := (size + pageSize - 1) &^ (pageSize - 1)
	p.mu.Lock()
	defer p.mu.Unlock()
	mem, tell, err := p.make(name, pages)
	if err != nil {
		return nil, fmt.Errorf("dma: alloc %s: map %d bytes: %w", name, pages, err)
	}
	a := uint64(max(align, pageSize))
	bus := (p.next + a - 1) &^ (a - 1)
	if err := tell(bus); err != nil {
		_ = unmapPages(mem) // the error that matters is the device's
		return nil, fmt.Errorf("dma: alloc %s: %w", name, err)
	}
	p.next = bus + uint64(pages) + chosenHole
	r := NewRegion(name, mem[:size:size], BusAddr(bus))
	p.own(r, mem)
	return r, nil
}

// own notes a region and its whole pages. Held: p.mu.
func (p *chosen) own(r *Region, mem []byte) {
	if p.pages == nil {
		p.pages = map[*Region][]byte{}
	}
	p.pages[r] = mem
}

// Free implements Provider: the device loses the range first.
func (p *chosen) Free(r *Region) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	mem, ok := p.pages[r]
	if !ok {
		return fmt.Errorf("dma: free %s: not a region of this provider", r.name)
	}
	if err := p.forget(uint64(r.bus), len(mem)); err != nil {
		return fmt.Errorf("dma: free %s: %w", r.name, err) // still the device's, still ours to free
	}
	delete(p.pages, r)
	if err := unmapPages(mem); err != nil {
		return fmt.Errorf("dma: free %s: %w", r.name, err)
	}
	return nil
}

// Keeps implements Provider: the pages end with the process.
func (p *chosen) Keeps() bool { return false }
