package hwsim

import (
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sort"
)

// ErrDMARegion is what MapDMA and UnmapDMA return for a range that they refuse:
// empty, past the end of the address space, overlapping, or not mapped.
var ErrDMARegion = errors.New("bad DMA region")

// DMARegion is one range of bus addresses that the card may be sent to.
type DMARegion struct {
	Bus      uint64
	Size     uint64
	Mem      []byte // Size bytes; nil: the range is taken, and the card cannot reach what is behind it
	ReadOnly bool   // the card may not write
	// Foreign is memory of another process, which may take it away while it is
	// registered: the access then fails with a report, and not the process.
	Foreign bool
}

// last is the address of the region's last byte; the end may be 2^64.
func (r *DMARegion) last() uint64 { return r.Bus + r.Size - 1 }

// dmaTable is the card's only way to host memory: regions by bus address. A CPU
// address never helps here.
type dmaTable struct {
	regions []DMARegion // sorted by bus address, disjoint
	hit     int         // index of the last hit
	other   int         // index of the hit before it: a list and its buffers take turns
	top     uint64      // end of the highest range that was ever mapped
}

// MapDMA lets the card reach mem at a bus address. The memory stays the
// caller's; it must not move until UnmapDMA returned. A range that overlaps
// another is refused (ErrDMARegion).
func (c *Card) MapDMA(bus uint64, mem []byte) error {
	return c.MapRegion(DMARegion{Bus: bus, Size: uint64(len(mem)), Mem: mem})
}

// MapRegion is MapDMA for memory with conditions.
func (c *Card) MapRegion(r DMARegion) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &c.dma
	if r.Size == 0 || r.last() < r.Bus || r.Mem != nil && uint64(len(r.Mem)) != r.Size {
		return fmt.Errorf("hwsim: map %d bytes at %#x: %w", r.Size, r.Bus, ErrDMARegion)
	}
	i := sort.Search(len(t.regions), func(i int) bool { return t.regions[i].Bus >= r.Bus })
	if i > 0 && t.regions[i-1].last() >= r.Bus || i < len(t.regions) && t.regions[i].Bus <= r.last() {
		return fmt.Errorf("hwsim: map %d bytes at %#x: overlaps: %w", r.Size, r.Bus, ErrDMARegion)
	}
	t.regions = slices.Insert(t.regions, i, r)
	t.hit = i
	t.top = max(t.top, r.last()+min(1, ^r.last())) // stops at the last address
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
func (c *Card) UnmapDMA(bus uint64, size int) error { return c.UnmapRegion(bus, uint64(size)) }

// UnmapRegion is UnmapDMA for a region of any size.
func (c *Card) UnmapRegion(bus, size uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &c.dma
	for i := range t.regions {
		if t.regions[i].Bus == bus && t.regions[i].Size == size {
			t.regions = slices.Delete(t.regions, i, i+1)
			t.hit = 0
			return nil
		}
	}
	return fmt.Errorf("hwsim: unmap %d bytes at %#x: %w", size, bus, ErrDMARegion)
}

// find returns the index of the region that holds a bus address, -1 for none.
func (t *dmaTable) find(bus uint64) int {
	holds := func(i int) bool { return t.regions[i].Bus <= bus && bus <= t.regions[i].last() }
	if t.hit < len(t.regions) && holds(t.hit) {
		return t.hit
	}
	if t.other < len(t.regions) && holds(t.other) {
		t.hit, t.other = t.other, t.hit
		return t.hit
	}
	lo, hi := 0, len(t.regions)
	for lo < hi {
		mid := (lo + hi) / 2
		if t.regions[mid].last() >= bus {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	if lo == len(t.regions) || !holds(lo) {
		return -1
	}
	t.hit, t.other = lo, t.hit
	return lo
}

// refused says why the card may not access n bytes at a bus address, "" when it
// may: every byte lies in a region, and regions that follow each other count as
// one.
func (t *dmaTable) refused(bus uint64, n int, write bool) string {
	i := t.find(bus)
	if i < 0 {
		return ReportDMAOutside
	}
	for ; ; i++ {
		r := &t.regions[i]
		switch {
		case r.Mem == nil:
			return ReportDMANoMemory
		case write && r.ReadOnly:
			return ReportDMAReadOnly
		}
		here := r.last() - bus + 1 // 0 only for the whole address space, which is no memory
		if uint64(n) <= here {
			return ""
		}
		bus += here
		n -= int(here)
		if bus == 0 || i+1 == len(t.regions) || t.regions[i+1].Bus != bus {
			return ReportDMAOutside
		}
	}
}

// dmaAccess calls fn for each piece of n bytes of host memory: at counts the bytes
// before it. It reports and returns false, without a call, when the card may not
// go there: bus mastering off, or bytes outside every region.
func (c *Card) dmaAccess(what string, bus uint64, n int, write bool, fn func(m []byte, at int)) bool {
	why := ""
	if !c.cfg.busMaster() {
		why = ReportBusMasterOff
	} else {
		why = c.dma.refused(bus, n, write)
	}
	if why != "" {
		c.report(why, "%s of %d bytes at %#x%s", what, n, bus, toldBy(what))
		return false
	}
	for i, at := c.dma.find(bus), 0; at < n; i++ {
		r := &c.dma.regions[i]
		off := bus + uint64(at) - r.Bus
		m := r.Mem[off:min(uint64(len(r.Mem)), off+uint64(n-at))]
		if r.Foreign {
			if !survives(fn, m, at) {
				c.report(ReportDMALost, "%s of %d bytes at %#x%s", what, n, bus, toldBy(what))
				return false
			}
		} else {
			fn(m, at)
		}
		at += len(m)
	}
	return true
}

// toldBy says which register a ring's address came by.
func toldBy(what string) string {
	switch what {
	case "instruction fetch":
		return ", from IN_INSTR_BADDR"
	case "list fetch":
		return ", from OUT_SLIST_BADDR"
	}
	return ""
}

// survives calls fn and tells whether the memory was there: a file that somebody
// made shorter after it was mapped is a fault.
func survives(fn func(m []byte, at int), m []byte, at int) (ok bool) {
	before := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(before)
		if ok {
			return
		}
		why := recover()
		if _, fault := why.(interface{ Addr() uintptr }); !fault {
			panic(why)
		}
	}()
	fn(m, at)
	return true
}

// dmaRead fills p from host memory. It reports and returns false when the card
// may not read there.
func (c *Card) dmaRead(what string, bus uint64, p []byte) bool {
	return c.dmaAccess(what, bus, len(p), false, func(m []byte, at int) { copy(p[at:], m) })
}

// dmaWrite writes p to host memory. It reports and returns false when the card
// may not write there.
func (c *Card) dmaWrite(what string, bus uint64, p []byte) bool {
	return c.dmaAccess(what, bus, len(p), true, func(m []byte, at int) { copy(m, p[at:]) })
}
