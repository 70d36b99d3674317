package vfio

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"oxpd/internal/mmio"
)

// bar is a BAR, mapped where it may be.
type bar struct {
	mmio.Pieces
	mem [][]byte
}

// mapBAR maps what the kernel lets be mapped of a region.
func (d *Device) mapBAR(b *bar, index uint32, size uint64) error {
	r, areas, err := d.region(index, size)
	if err != nil {
		return err
	}
	b.Rest = file{d.fd, int64(r.Offset), size}
	for _, a := range areas {
		mem, err := unix.Mmap(d.fd, int64(r.Offset+a.Offset), int(a.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return fmt.Errorf("map %#x bytes at %#x of BAR%d: %w", a.Size, a.Offset, index, err)
		}
		regs, err := mmio.NewMapped(mem)
		if err != nil {
			return errors.Join(err, unix.Munmap(mem))
		}
		b.mem = append(b.mem, mem)
		b.Mapped = append(b.Mapped, mmio.Piece{Offset: a.Offset, Space: mmio.Guard(regs)})
	}
	return nil
}

func (b *bar) unmap() error {
	var errs []error
	for _, m := range b.mem {
		errs = append(errs, unix.Munmap(m))
	}
	b.mem, b.Mapped = nil, nil
	return errors.Join(errs...)
}

// file is a BAR by read and write. An access that the kernel refuses is one of a card
// that is not there: a load reads all ones.
type file struct {
	fd   int
	at   int64
	size uint64
}

// Size implements mmio.Space.
func (f file) Size() uint64 { return f.size }

// Load32 implements mmio.Space.
func (f file) Load32(off uint32) uint32 { return uint32(f.load(off, 4)) }

// Load64 implements mmio.Space.
func (f file) Load64(off uint32) uint64 { return f.load(off, 8) }

// Store32 implements mmio.Space.
func (f file) Store32(off uint32, v uint32) { f.store(off, 4, uint64(v)) }

// Store64 implements mmio.Space.
func (f file) Store64(off uint32, v uint64) { f.store(off, 8, v) }

func (f file) load(off uint32, width int) uint64 {
	var b [8]byte
	if !preadAll(f.fd, b[:width], f.at+int64(off)) {
		return ^uint64(0)
	}
	return binary.LittleEndian.Uint64(b[:])
}

func (f file) store(off uint32, width int, v uint64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], v)
	_, _ = unix.Pwrite(f.fd, b[:width], f.at+int64(off)) // the next load finds out
}

// preadAll reads all of b, or says no.
func preadAll(fd int, b []byte, at int64) bool {
	for {
		n, err := unix.Pread(fd, b, at)
		if err != unix.EINTR {
			return err == nil && n == len(b)
		}
	}
}
