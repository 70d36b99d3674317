package hwsim

import (
	"errors"
	"fmt"
	"sort"
)

// ErrDMARegion is what MapDMA and UnmapDMA return for a range that they refuse:
// empty, past the end of the address space, overlapping, or not mapped.
var ErrDMARegion = errors.New("bad DMA region")

// dmaRegion is one range of host memory that the card may touch.
type dmaRegion struct {
	bus uint64
	mem []byte
}

func (r *dmaRegion) end() uint64 { return r.bus + uint64(len(r.mem)) }

// dmaTable is the card's only way to host memory: regions by bus address. A CPU
// address never helps here.
type dmaTable struct {
	regions []dmaRegion // sorted by bus address, disjoint
	last    int         // index of the last hit
	top     uint64      // end of the highest range that was ever mapped
}

// MapDMA lets the card reach mem at a bus address. The memory stays the
// caller's; it must not move until UnmapDMA returned. A range that overlaps
// another is refused (ErrDMARegion).
func (c *Card) MapDMA(bus uint64, mem []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &c.dma
	end := bus + uint64(len(mem))
	if len(mem) == 0 || end < bus {
		return fmt.Errorf("hwsim: map %d bytes at %#x: %w", len(mem), bus, ErrDMARegion)
	}
	i := sort.Search(len(t.regions), func(i int) bool { return t.regions[i].bus >= bus })
	if i > 0 && t.regions[i-1].end() > bus || i < len(t.regions) && t.regions[i].bus < end {
		return fmt.Errorf("hwsim: map %d bytes at %#x: overlaps: %w", len(mem), bus, ErrDMARegion)
	}
	t.regions = append(t.regions, dmaRegion{})
	copy(t.regions[i+1:], t.regions[i:])
	t.regions[i] = dmaRegion{bus: bus, mem: mem}
	t.last = i
	t.top = max(t.top, end)
	return nil
}

// TopDMA returns the end of the highest range of bus addresses that was ever
// mapped, for a provider that wants fresh ones: a card that was left with
// addresses of an earlier one must not find memory there. Functional.
func (c *Card) TopDMA() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dma.top
}

// UnmapDMA takes a region back, whole. When it returns, the card touches that
// memory no more; an access that it tries later is reported.
func (c *Card) UnmapDMA(bus uint64, size int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &c.dma
	for i := range t.regions {
		if t.regions[i].bus == bus && len(t.regions[i].mem) == size {
			t.regions = append(t.regions[:i], t.regions[i+1:]...)
			t.last = 0
			return nil
		}
	}
	return fmt.Errorf("hwsim: unmap %d bytes at %#x: %w", size, bus, ErrDMARegion)
}

// find returns n bytes of host memory at a bus address, or nil when they do not
// lie in one region.
func (t *dmaTable) find(bus uint64, n int) []byte {
	if t.last < len(t.regions) {
		if r := &t.regions[t.last]; bus >= r.bus && bus < r.end() {
			return r.cut(bus, n)
		}
	}
	lo, hi := 0, len(t.regions)
	for lo < hi {
		mid := (lo + hi) / 2
		if t.regions[mid].end() > bus {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	if lo == len(t.regions) || bus < t.regions[lo].bus {
		return nil
	}
	t.last = lo
	return t.regions[lo].cut(bus, n)
}

func (r *dmaRegion) cut(bus uint64, n int) []byte {
	off := bus - r.bus
	if uint64(n) > uint64(len(r.mem))-off {
		return nil
	}
	return r.mem[off : off+uint64(n) : off+uint64(n)]
}

// dmaSlice is host memory for one access of the card, or nil after a report:
// bus mastering off, or bytes outside every region.
func (c *Card) dmaSlice(what string, bus uint64, n int) []byte {
	if !c.cfg.busMaster() {
		c.report(ReportBusMasterOff, "%s of %d bytes at %#x", what, n, bus)
		return nil
	}
	m := c.dma.find(bus, n)
	if m == nil {
		c.report(ReportDMAOutside, "%s of %d bytes at %#x", what, n, bus)
	}
	return m
}

// dmaRead fills p from host memory. It reports and returns false when the card
// may not read there.
func (c *Card) dmaRead(bus uint64, p []byte) bool {
	m := c.dmaSlice("read", bus, len(p))
	if m == nil {
		return false
	}
	copy(p, m)
	return true
}

// dmaWrite writes p to host memory. It reports and returns false when the card
// may not write there.
func (c *Card) dmaWrite(bus uint64, p []byte) bool {
	m := c.dmaSlice("write", bus, len(p))
	if m == nil {
		return false
	}
	copy(m, p)
	return true
}
