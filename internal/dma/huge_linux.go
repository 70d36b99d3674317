package dma

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

func (h *Huge) path() string { return filepath.Join(h.o.Dir, h.o.Name) }

// Reclaim gives back the memory that an earlier process left, if there is any. The
// caller knows that the card cannot reach it any more.
func (h *Huge) Reclaim() error {
	if h.o.Dir == "" {
		return nil
	}
	if err := os.Remove(h.path()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("dma: reclaim memory: %w", err)
	}
	return nil
}

// open makes the file. Held: h.mu.
func (h *Huge) open() error {
	if h.file != nil {
		return nil
	}
	var st unix.Statfs_t
	if h.o.Dir == "" {
		return &HugeError{"", ErrNoHugetlbfs, MountCommand}
	}
	if err := unix.Statfs(h.o.Dir, &st); err != nil {
		return &HugeError{h.o.Dir, err, MountCommand}
	}
	if int64(st.Type) != unix.HUGETLBFS_MAGIC {
		return &HugeError{h.o.Dir, ErrNoHugetlbfs, MountCommand}
	}
	f, err := os.OpenFile(h.path(), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	switch {
	case errors.Is(err, fs.ErrExist):
		return &HugeError{h.path(), ErrLeft, "reboot the coprocessor, by a reboot of the host; the next start then takes the memory back"}
	case errors.Is(err, fs.ErrPermission):
		return &HugeError{h.o.Dir, err, "run it as root (sudo)"}
	case err != nil:
		return &HugeError{h.o.Dir, err, ""}
	}
	h.file, h.pack = f, packer{page: int(st.Bsize)}
	return nil
}

// addPage extends the file by a page and maps that. Held: h.mu.
func (h *Huge) addPage() (p hugePage, err error) {
	fd, at, size := int(h.file.Fd()), int64(len(h.pages)*h.pack.page), h.pack.page
	defer func() {
		if err != nil {
			err = errors.Join(err, os.NewSyscallError("ftruncate", unix.Ftruncate(fd, at)))
		}
	}()
	// Not by the first touch: a page that cannot be had would be a SIGBUS then.
	if err := unix.Fallocate(fd, 0, at, int64(size)); err != nil {
		return p, h.short(os.NewSyscallError("fallocate", err))
	}
	mem, err := unix.Mmap(fd, at, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return p, h.short(os.NewSyscallError("mmap", err))
	}
	if err := unix.Mlock(mem); err != nil {
		return p, errors.Join(&HugeError{h.o.Dir, os.NewSyscallError("mlock", err), "run it as root, or raise its limit of locked memory (ulimit -l)"}, unix.Munmap(mem))
	}
	bus, err := physical(mem)
	if err != nil {
		return p, errors.Join(&HugeError{h.o.Dir, err, "run it as root (sudo), outside of a user namespace"}, unix.Munmap(mem))
	}
	return hugePage{mem, bus}, nil
}

// short explains a page that the kernel did not give.
func (h *Huge) short(err error) error {
	if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.ENOMEM) {
		return &HugeError{h.o.Dir, err, ""}
	}
	have, need := len(h.pages), max(h.o.Pages, len(h.pages)+1)
	pool := fmt.Sprintf("/sys/kernel/mm/hugepages/hugepages-%dkB/", h.pack.page>>10)
	total, free := count(pool+"nr_hugepages"), count(pool+"free_hugepages")
	err = fmt.Errorf("%d pages of %d KiB are needed, %d are there: %w", need, h.pack.page>>10, have, err)
	return &HugeError{h.o.Dir, err, PagesCommand(h.pack.page, max(total-free, 0)+need-have)}
}

// count reads a number of sysfs, 0 when there is none.
func count(path string) int {
	b, _ := os.ReadFile(path) // only for a hint
	n, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	return n
}

// endIfUnused removes file and pages when nobody has a region. Held: h.mu.
func (h *Huge) endIfUnused() error {
	if len(h.out) > 0 || h.file == nil {
		return nil
	}
	var errs []error
	for _, p := range h.pages {
		errs = append(errs, unix.Munmap(p.mem))
	}
	errs = append(errs, os.Remove(h.path()), h.file.Close())
	h.pages, h.file, h.pack = nil, nil, packer{}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("dma: release hugepages: %w", err)
	}
	return nil
}

// physical asks the kernel where mapped memory lies.
func physical(mem []byte) (BusAddr, error) {
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return 0, fmt.Errorf("dma: read page frames: %w", err)
	}
	defer f.Close()
	page := os.Getpagesize()
	b := make([]byte, len(mem)/page*pagemapEntry)
	at := uintptr(unsafe.Pointer(unsafe.SliceData(mem))) / uintptr(page) * pagemapEntry
	if _, err := f.ReadAt(b, int64(at)); err != nil {
		return 0, fmt.Errorf("dma: read page frames: %w", err)
	}
	return decodePagemap(b, page)
}
