package dma

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Errors of reading where memory lies.
var (
	// ErrHidden says that the kernel gives page frame number 0 for every page, as it
	// does for a process without CAP_SYS_ADMIN in the first user namespace.
	ErrHidden = errors.New("the kernel hides page frame numbers from this process (CAP_SYS_ADMIN is missing)")
	// ErrMoved says that memory does not lie where it did when its address was taken.
	ErrMoved = errors.New("memory has moved")
	// ErrNotPresent says that a page is not in memory: the device would write past it.
	ErrNotPresent = errors.New("page is not in memory")
)

// An entry of /proc/PID/pagemap, 64 bits in the byte order of the CPU (Linux,
// Documentation/admin-guide/mm/pagemap.rst).
const (
	pagemapEntry   = 8
	pagemapFrame   = 1<<55 - 1 // page frame number
	pagemapSwapped = 1 << 62
	pagemapPresent = 1 << 63
)

// decodePagemap returns the physical address of memory that the entries in b
// describe, one for each page of pageBytes: all present, one behind the other, and
// the first aligned to the size of all.
//
// Errors: ErrNotPresent, ErrHidden, and one for pages that are no neighbours.
func decodePagemap(b []byte, pageBytes int) (BusAddr, error) {
	if len(b) == 0 || len(b)%pagemapEntry != 0 {
		return 0, fmt.Errorf("dma: %d bytes are no pagemap entries", len(b))
	}
	var first uint64
	n := uint64(len(b) / pagemapEntry)
	for i := range n {
		e := binary.NativeEndian.Uint64(b[i*pagemapEntry:])
		frame := e & pagemapFrame
		switch {
		case e&pagemapPresent == 0 || e&pagemapSwapped != 0:
			return 0, fmt.Errorf("dma: page %d: %w", i, ErrNotPresent)
		case frame == 0:
			return 0, fmt.Errorf("dma: page %d: %w", i, ErrHidden)
		case i == 0:
			first = frame
		case frame != first+i:
			return 0, fmt.Errorf("dma: page %d has frame %#x: not contiguous with frame %#x of page 0", i, frame, first)
		}
	}
	if first%n != 0 {
		return 0, fmt.Errorf("dma: %d pages at frame %#x are not aligned to their size", n, first)
	}
	if first > ^uint64(0)/uint64(pageBytes) {
		return 0, fmt.Errorf("dma: frame %#x lies behind the end of 64 bits", first)
	}
	return BusAddr(first * uint64(pageBytes)), nil
}
