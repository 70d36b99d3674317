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
// with it: a card that goes on writing hits nobody (design.md, rule 7). It begins with
// a table of its regions.
//
// What an earlier process left is used in one of two ways. Reclaim removes the file,
// once the card is known to have forgotten its addresses. Held goes on with it: its
// regions are found by their names, where the card knows them (Holder), Alloc adds to
// them, and the file is not removed any more but by a later Reclaim. Alloc alone
// refuses a file that is there. One whose process still runs nobody else gets: it is
// locked until Close, or the end of the process.
type Huge struct {
	o HugeOptions

	mu    sync.Mutex
	file  *os.File
	left  bool // the file is an earlier process's
	pack  packer
	pages []hugePage
	out   map[*Region]int // their entries in the table
}

const (
	hugeTable   = 64 << 10
	magicOfHuge = 0x31656770_6f78 // "xopge1"
)

// hugePage is a page of the file.
type hugePage struct {
	mem []byte
	bus BusAddr
}

// NewHuge returns a provider that has nothing yet and touches nothing.
func NewHuge(o HugeOptions) *Huge { return &Huge{o: o, out: map[*Region]int{}} }

// ErrLeft says that memory of an earlier run is still there.
var ErrLeft = errors.New("memory of an earlier run is kept, and the card may still reach it")

// ErrRuns says that the process which made the memory, or goes on with it, still runs.
var ErrRuns = errors.New("another process uses this memory")

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
	if len(h.pages) == 0 {
		if err := h.firstPage(); err != nil {
			return nil, err
		}
	}
	if err := h.table().room(name); err != nil {
		return nil, err
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
	e := h.table().count()
	h.table().append(keptRegion{name, int64(i*h.pack.page + off), int64(n.Size), uint64(h.pages[i].bus) + uint64(off)})
	return h.give(e), nil
}

// firstPage has the table at its beginning. Held: h.mu.
func (h *Huge) firstPage() error {
	p, err := h.addPage()
	if err != nil {
		return err
	}
	h.pages = append(h.pages, p)
	h.pack.take(0, 0, hugeTable)
	h.table().begin(magicOfHuge)
	return nil
}

// table lists the regions of the file. Held: h.mu, and there is a page.
func (h *Huge) table() regionTable { return h.pages[0].mem[:hugeTable] }

// give makes the region of an entry. Held: h.mu.
func (h *Huge) give(entry int) *Region {
	e := h.table().entry(entry)
	p, off := h.pages[e.off/int64(h.pack.page)], e.off%int64(h.pack.page)
	end := off + e.size
	r := NewChecked(e.name, p.mem[off:end:end], BusAddr(e.bus), func() error {
		now, err := physical(p.mem)
		if err == nil && now != p.bus {
			err = fmt.Errorf("was at %#x, is at %#x: %w", uint64(p.bus), uint64(now), ErrMoved)
		}
		if err != nil {
			return fmt.Errorf("dma: check %s: %w", e.name, err)
		}
		return nil
	})
	h.out[r] = entry
	return r
}

// Held implements Holder: a region of an earlier process is given once. The first call
// opens its file and judges all of it.
//
// Errors: ErrNotHeld; ErrKept for a file that is damaged, ErrMoved for memory that does
// not lie any more where the card knows it, ErrRuns, *HugeError.
func (h *Huge) Held(name string, size, align int) (*Region, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.file == nil {
		if err := h.reopen(); err != nil {
			return nil, fmt.Errorf("dma: find %s: %w", name, err)
		}
	}
	if h.left && name != "" && align > 0 {
		for i := range h.table().count() {
			if e := h.table().entry(i); e.name == name && e.size == int64(size) && e.bus%uint64(align) == 0 && !h.given(i) {
				return h.give(i), nil
			}
		}
	}
	return nil, fmt.Errorf("dma: find %s of %d bytes: %w", name, size, ErrNotHeld)
}

// given tells whether somebody has the region of an entry. Held: h.mu.
func (h *Huge) given(entry int) bool {
	for _, i := range h.out {
		if i == entry {
			return true
		}
	}
	return false
}

// judge checks the table of an earlier process against the pages, and notes what is
// taken of each. Held: h.mu.
func (h *Huge) judge() error {
	if err := h.table().check(magicOfHuge); err != nil {
		return err
	}
	page := int64(h.pack.page)
	h.pack.used = make([]int, len(h.pages))
	h.pack.used[0] = hugeTable
	for i := range h.table().count() {
		e := h.table().entry(i)
		if e.size <= 0 || e.size > page || e.off < hugeTable || e.off/page >= int64(len(h.pages)) || e.off%page+e.size > page {
			return fmt.Errorf("%w: region %q of %d bytes at %d in %d pages", ErrKept, e.name, e.size, e.off, len(h.pages))
		}
		at, off := e.off/page, e.off%page
		if now := uint64(h.pages[at].bus) + uint64(off); e.bus != now {
			return fmt.Errorf("region %q was at %#x, is at %#x: %w", e.name, e.bus, now, ErrMoved)
		}
		h.pack.used[at] = max(h.pack.used[at], int(off+e.size))
	}
	return nil
}

// Free implements Provider. The last region's takes the file and all pages with it.
func (h *Huge) Free(r *Region) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	entry, ok := h.out[r]
	if !ok {
		return fmt.Errorf("dma: free %s: not a region of this provider", r.name)
	}
	delete(h.out, r)
	h.table().drop(entry)
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
	// The mapping has the file, and would keep it locked.
	err := errors.Join(unlock(h.file), h.file.Close())
	h.file, h.pages, h.pack, h.out, h.left = nil, nil, packer{}, map[*Region]int{}, false
	return err
}
