package dma

import (
	"errors"
	"fmt"
	"os"
	"sync"
)

// HugeOptions say where a Huge provider takes memory from.
type HugeOptions struct {
	// Dir is where a hugetlbfs is mounted; empty: it is not.
	Dir string
	// Name of the file that holds the memory, unique to the card.
	Name string
	// Pages is how many pages will be needed in all. Only for the hint of an error.
	Pages int
}

// Huge provides hugepages by their physical address, from /proc/self/pagemap: for a
// card that reaches memory without an IOMMU that translates. A region lies in one
// page, so nothing in it crosses into memory that is no neighbour on the bus; what is
// larger is refused, and has to be asked for in pieces.
//
// The pages are those of one named file, made by the first Alloc and removed when the
// last region is freed. It outlives the process, however that ends, and the memory
// with it: a card that goes on writing hits nobody (design.md, rule 7). A file that
// an earlier process left is never touched by Alloc, which refuses; Reclaim removes it
// once the card is known to have forgotten its addresses.
type Huge struct {
	o HugeOptions

	mu    sync.Mutex
	file  *os.File
	pack  packer
	pages []hugePage
	out   map[*Region]bool
}

// hugePage is a page of the file.
type hugePage struct {
	mem []byte
	bus BusAddr
}

// NewHuge returns a provider that has nothing yet and touches nothing.
func NewHuge(o HugeOptions) *Huge { return &Huge{o: o, out: map[*Region]bool{}} }

// ErrLeft says that memory of an earlier run is still there.
var ErrLeft = errors.New("memory of an earlier run is kept, and the card may still reach it")

// HugeError is memory that cannot be had, with what to do about it.
type HugeError struct {
	Where string // mount or file
	Err   error
	Do    string // for Hint
}

func (e *HugeError) Error() string {
	if e.Where == "" {
		return fmt.Sprintf("dma: hugepages: %v", e.Err)
	}
	return fmt.Sprintf("dma: hugepages at %s: %v", e.Where, e.Err)
}

// Unwrap returns why.
func (e *HugeError) Unwrap() error { return e.Err }

// Hint is what an operator can do.
func (e *HugeError) Hint() string { return e.Do }

// ErrNoHugetlbfs says that no hugetlbfs is mounted where the provider looks.
var ErrNoHugetlbfs = errors.New("no hugetlbfs is mounted")

// MountCommand mounts a hugetlbfs where every distribution has it.
const MountCommand = "mkdir -p /dev/hugepages && mount -t hugetlbfs hugetlbfs /dev/hugepages"

// PagesCommand sets the number of hugepages of a size in bytes.
func PagesCommand(pageBytes, pages int) string {
	if pageBytes == 2<<20 {
		return fmt.Sprintf("sysctl -w vm.nr_hugepages=%d", pages)
	}
	return fmt.Sprintf("echo %d > /sys/kernel/mm/hugepages/hugepages-%dkB/nr_hugepages", pages, pageBytes>>10)
}

// Alloc implements Provider.
//
// Errors: *HugeError, around ErrNoHugetlbfs, ErrLeft, ErrHidden, fs.ErrPermission or
// what the kernel says when it has no page.
func (h *Huge) Alloc(name string, size, align int) (*Region, error) {
	if size <= 0 || align < 64 || align&(align-1) != 0 {
		return nil, fmt.Errorf("dma: alloc %s: %d bytes aligned to %d", name, size, align)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.open(); err != nil {
		return nil, fmt.Errorf("dma: alloc %s: %w", name, err)
	}
	r, err := h.region(name, Need{size, align})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("dma: alloc %s: %w", name, err), h.endIfUnused())
	}
	return r, nil
}

// region takes a region out of the pages, and one more page if it must. Held: h.mu.
func (h *Huge) region(name string, n Need) (*Region, error) {
	if n.Size > h.pack.page || n.Align > h.pack.page {
		return nil, fmt.Errorf("%d bytes aligned to %d do not lie in one hugepage of %d bytes", n.Size, n.Align, h.pack.page)
	}
	i, off := h.pack.place(n)
	if i == len(h.pages) {
		p, err := h.addPage()
		if err != nil {
			return nil, err
		}
		h.pages = append(h.pages, p)
	}
	h.pack.take(i, off, n.Size)
	p := h.pages[i]
	r := NewChecked(name, p.mem[off:off+n.Size:off+n.Size], p.bus+BusAddr(off), func() error {
		now, err := physical(p.mem)
		if err == nil && now != p.bus {
			err = fmt.Errorf("was at %#x, is at %#x: %w", uint64(p.bus), uint64(now), ErrMoved)
		}
		if err != nil {
			return fmt.Errorf("dma: check %s: %w", name, err)
		}
		return nil
	})
	h.out[r] = true
	return r, nil
}

// Free implements Provider. The last region's takes the file and all pages with it.
func (h *Huge) Free(r *Region) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.out[r] {
		return fmt.Errorf("dma: free %s: not a region of this provider", r.name)
	}
	delete(h.out, r)
	return h.endIfUnused()
}

// Keeps implements Provider: the file holds the memory.
func (h *Huge) Keeps() bool { return true }

// Close forgets the file. What it holds stays, if there is a region that was not
// freed: the file, and the mapping until the process ends.
func (h *Huge) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.file == nil {
		return nil
	}
	err := h.file.Close()
	h.file = nil
	return err
}
