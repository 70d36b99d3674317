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

// mapped is a BAR of which parts are mapped here.
type mapped struct {
	mmio.Pieces
	mem [][]byte
}

const pageSize = 4096

// mapAreas maps areas of a region from a descriptor, which stays the caller's.
func (b *mapped) mapAreas(fd int, r vfu.Region, areas []vfu.Area) error {
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
		b.mem = append(b.mem, mem)
		b.Mapped = append(b.Mapped, mmio.Piece{Offset: a.Offset, Space: regs})
	}
	return nil
}

func (b *mapped) unmap() error {
	var errs []error
	for _, m := range b.mem {
		errs = append(errs, unix.Munmap(m))
	}
	b.mem, b.Mapped = nil, nil
	return errors.Join(errs...)
}
