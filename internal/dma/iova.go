package dma

import (
	"errors"
	"fmt"
	"slices"
)

// Range is bus addresses, from the first to the last inclusive: one that ends with
// the address space has a last and no end.
type Range struct{ First, Last uint64 }

// ErrNoAddress says that no bus addresses are left for a region.
var ErrNoAddress = errors.New("no bus addresses are left below 4 GiB")

// Bus addresses that an IOMMU translates are chosen from the second MiB on, so that
// none is 0, and below 4 GiB, where every card reaches them.
const (
	iovaFirst = 1 << 20
	iovaLast  = 1<<32 - 1
)

// iovas are the bus addresses that nobody has. They are whole pages.
type iovas struct{ free []Range }

// newIOVAs takes what is allowed, as far as it is chosen from. Ranges that overlap
// are one.
func newIOVAs(allowed []Range) *iovas {
	a := &iovas{}
	for _, r := range allowed {
		first := (max(r.First, iovaFirst) + pageSize - 1) &^ (pageSize - 1)
		last := min(r.Last, iovaLast)
		if last < pageSize-1 {
			continue
		}
		last = (last+1)&^(pageSize-1) - 1
		if first < last {
			a.free = append(a.free, Range{first, last})
		}
	}
	a.tidy()
	return a
}

// tidy sorts, and joins what touches.
func (a *iovas) tidy() {
	slices.SortFunc(a.free, func(x, y Range) int {
		if x.First < y.First {
			return -1
		}
		return 1
	})
	var joined []Range
	for _, r := range a.free {
		if n := len(joined); n > 0 && r.First <= joined[n-1].Last+1 {
			joined[n-1].Last = max(joined[n-1].Last, r.Last)
			continue
		}
		joined = append(joined, r)
	}
	a.free = joined
}

// take takes size bytes, a number of pages, aligned to a power of two, at the lowest
// address there is. Error: ErrNoAddress.
func (a *iovas) take(size, align uint64) (uint64, error) {
	for i, r := range a.free {
		at := (r.First + align - 1) &^ (align - 1)
		if at > r.Last || r.Last-at < size-1 {
			continue
		}
		a.cut(i, at, size)
		return at, nil
	}
	return 0, fmt.Errorf("%d bytes aligned to %d: %w", size, align, ErrNoAddress)
}

// reserve takes size bytes at an address, and tells whether they were whole pages and free.
func (a *iovas) reserve(at, size uint64) bool {
	if at%pageSize != 0 || size == 0 || size%pageSize != 0 {
		return false
	}
	for i, r := range a.free {
		if at >= r.First && at <= r.Last && r.Last-at >= size-1 {
			a.cut(i, at, size)
			return true
		}
	}
	return false
}

// cut takes size bytes out of the middle of a free range.
func (a *iovas) cut(i int, at, size uint64) {
	r := a.free[i]
	rest := []Range{}
	if at > r.First {
		rest = append(rest, Range{r.First, at - 1})
	}
	if at+size-1 < r.Last {
		rest = append(rest, Range{at + size, r.Last})
	}
	a.free = slices.Replace(a.free, i, i+1, rest...)
}

// give gives back what take took.
func (a *iovas) give(at, size uint64) {
	a.free = append(a.free, Range{at, at + size - 1})
	a.tidy()
}
