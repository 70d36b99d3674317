package dma

import (
	"fmt"
	"sync"
)

// chosen is a provider that chooses bus addresses itself. Without take they start above
// 4 GiB, are far from every CPU address, have a hole behind each region, so that a sum
// that runs over the end hits nothing, and none is used again.
type chosen struct {
	take func(size, align uint64) (bus uint64, err error) // nil: next
	give func(bus, size uint64)                           // back, what take took

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
	bus, err := p.address(uint64(pages), uint64(max(align, pageSize)))
	if err == nil {
		if err = tell(bus); err != nil {
			p.back(bus, uint64(pages))
		}
	}
	if err != nil {
		_ = unmapPages(mem) // the error that matters is the other one
		return nil, fmt.Errorf("dma: alloc %s: %w", name, err)
	}
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

// address chooses one. Held: p.mu.
func (p *chosen) address(size, align uint64) (uint64, error) {
	if p.take != nil {
		return p.take(size, align)
	}
	bus := (p.next + align - 1) &^ (align - 1)
	p.next = bus + size + chosenHole
	return bus, nil
}

// back gives an address back that the device does not know. Held: p.mu.
func (p *chosen) back(bus, size uint64) {
	if p.give != nil {
		p.give(bus, size)
	}
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
	p.back(uint64(r.bus), uint64(len(mem)))
	delete(p.pages, r)
	if err := unmapPages(mem); err != nil {
		return fmt.Errorf("dma: free %s: %w", r.name, err)
	}
	return nil
}

// Keeps implements Provider: the pages end with the process.
func (p *chosen) Keeps() bool { return false }
