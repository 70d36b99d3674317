package vfiouser

import (
	"errors"
	"fmt"
	"math"

	"golang.org/x/sys/unix"

	"oxpd/internal/mmio"
	"oxpd/internal/vfu"
)

// bar is a BAR by message.
type bar struct {
	c      *conn
	region uint32
	size   uint64
}

func (b bar) Size() uint64                 { return b.size }
func (b bar) Load32(off uint32) uint32     { return uint32(b.c.load(b.region, 4, uint64(off))) }
func (b bar) Load64(off uint32) uint64     { return b.c.load(b.region, 8, uint64(off)) }
func (b bar) Store32(off uint32, v uint32) { b.c.store(b.region, 4, uint64(off), uint64(v)) }
func (b bar) Store64(off uint32, v uint64) { b.c.store(b.region, 8, uint64(off), v) }

// mappedArea is a part of a BAR that this process has mapped.
type mappedArea struct {
	vfu.Area
	mem  []byte
	regs *mmio.Mapped
}

// mappedBAR is a BAR of which parts are mapped.
type mappedBAR struct {
	bar
	areas []mappedArea
}

const pageSize = 4096

// mapAreas maps areas of a region from a descriptor, which stays the caller's.
func (b *mappedBAR) mapAreas(fd int, r vfu.Region, areas []vfu.Area) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("look at the memory of region %d: %w", r.Index, err)
	}
	for _, a := range areas {
		end := a.Offset + a.Size
		if a.Size == 0 || end < a.Size || end > r.Size || (a.Offset|a.Size|r.Offset)%pageSize != 0 || r.Offset > math.MaxInt64-r.Size {
			return fmt.Errorf("area of %#x bytes at %#x of region %d: %w", a.Size, a.Offset, r.Index, errProtocol)
		}
		if st.Mode&unix.S_IFMT == unix.S_IFREG && uint64(st.Size) < r.Offset+end {
			return fmt.Errorf("area of %#x bytes at %#x of region %d: its memory ends before it: %w", a.Size, a.Offset, r.Index, errProtocol)
		}
		mem, err := unix.Mmap(fd, int64(r.Offset+a.Offset), int(a.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return fmt.Errorf("map region %d: %w", r.Index, err)
		}
		regs, err := mmio.NewMapped(mem)
		if err != nil {
			return errors.Join(err, unix.Munmap(mem))
		}
		b.areas = append(b.areas, mappedArea{a, mem, regs})
	}
	return nil
}

func (b *mappedBAR) unmap() error {
	var errs []error
	for _, a := range b.areas {
		errs = append(errs, unix.Munmap(a.mem))
	}
	b.areas = nil
	return errors.Join(errs...)
}

// at returns the mapped registers of an offset and the offset there, nil for what
// goes by message.
func (b *mappedBAR) at(off, width uint32) (*mmio.Mapped, uint32) {
	for i := range b.areas {
		if a := &b.areas[i]; uint64(off) >= a.Offset && uint64(off)+uint64(width) <= a.Offset+a.Size {
			return a.regs, off - uint32(a.Offset)
		}
	}
	return nil, 0
}

func (b *mappedBAR) Load32(off uint32) uint32 {
	if m, at := b.at(off, 4); m != nil {
		return m.Load32(at)
	}
	return b.bar.Load32(off)
}

func (b *mappedBAR) Load64(off uint32) uint64 {
	if m, at := b.at(off, 8); m != nil {
		return m.Load64(at)
	}
	return b.bar.Load64(off)
}

func (b *mappedBAR) Store32(off uint32, v uint32) {
	if m, at := b.at(off, 4); m != nil {
		m.Store32(at, v)
		return
	}
	b.bar.Store32(off, v)
}

func (b *mappedBAR) Store64(off uint32, v uint64) {
	if m, at := b.at(off, 8); m != nil {
		m.Store64(at, v)
		return
	}
	b.bar.Store64(off, v)
}
