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
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.out) > 0 {
		return errors.New("dma: reclaim memory: regions of it are in use")
	}
	h.left = false
	if h.file != nil {
		return h.endIfUnused()
	}
	if h.o.Dir == "" {
		return nil
	}
	if err := h.remove(); err != nil {
		return fmt.Errorf("dma: reclaim memory: %w", err)
	}
	return nil
}

// remove removes the file of a process that has ended, if there is one.
func (h *Huge) remove() error {
	f, err := os.Open(h.path())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if err := lock(f); err != nil {
		return err
	}
	return os.Remove(h.path())
}

// mount checks where the file lies and returns the size of its pages.
func (h *Huge) mount() (pageBytes int, err error) {
	var st unix.Statfs_t
	if h.o.Dir == "" {
		return 0, &HugeError{"", ErrNoHugetlbfs, MountCommand}
	}
	if err := unix.Statfs(h.o.Dir, &st); err != nil {
		return 0, &HugeError{h.o.Dir, err, MountCommand}
	}
	if int64(st.Type) != unix.HUGETLBFS_MAGIC {
		return 0, &HugeError{h.o.Dir, ErrNoHugetlbfs, MountCommand}
	}
	return int(st.Bsize), nil
}

// reopen goes on with the file of an earlier process. Held: h.mu.
func (h *Huge) reopen() (err error) {
	page, err := h.mount()
	if err != nil {
		return err
	}
	f, err := os.OpenFile(h.path(), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return ErrNotHeld
	}
	if err != nil {
		return &HugeError{h.path(), err, ""}
	}
	if err := lock(f); err != nil {
		return errors.Join(err, f.Close())
	}
	h.file, h.pack, h.left = f, packer{page: page}, true
	defer func() {
		if err != nil {
			err = errors.Join(&HugeError{h.path(), err, "reboot the coprocessor, by a reboot of the host; the next start then takes the memory back"}, h.forget())
		}
	}()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	if fi.Size() == 0 || fi.Size()%int64(page) != 0 {
		return fmt.Errorf("%w: %d bytes in pages of %d", ErrKept, fi.Size(), page)
	}
	for at := int64(0); at < fi.Size(); at += int64(page) {
		p, err := mapHuge(f, at, page)
		if err != nil {
			return err
		}
		h.pages = append(h.pages, p)
	}
	return h.judge()
}

// forget unmaps the pages and closes the file, and leaves it where it is. Held: h.mu.
func (h *Huge) forget() error {
	var errs []error
	for _, p := range h.pages {
		errs = append(errs, unix.Munmap(p.mem))
	}
	errs = append(errs, h.file.Close())
	h.pages, h.file, h.pack, h.left = nil, nil, packer{}, false
	return errors.Join(errs...)
}

// open makes the file. Held: h.mu.
func (h *Huge) open() error {
	if h.file != nil {
		return nil
	}
	page, err := h.mount()
	if err != nil {
		return err
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
	if err := lock(f); err != nil {
		return errors.Join(err, f.Close())
	}
	h.file, h.pack = f, packer{page: page}
	return nil
}

// lock keeps a file to this process. The card's own lock is one of its file in sysfs,
// which a network namespace with a sysfs of its own does not see.
func lock(f *os.File) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return &HugeError{f.Name(), ErrRuns, "an oxpd drives the card, perhaps in another network namespace: stop that one first (oxpd stop)"}
	}
	return os.NewSyscallError("flock", err)
}

func unlock(f *os.File) error {
	return os.NewSyscallError("flock", unix.Flock(int(f.Fd()), unix.LOCK_UN))
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
	if err := uninterrupted(func() error { return unix.Fallocate(fd, 0, at, int64(size)) }); err != nil {
		return p, h.short(os.NewSyscallError("fallocate", err))
	}
	p, err = mapHuge(h.file, at, size)
	var explained *HugeError
	if err != nil && !errors.As(err, &explained) {
		err = h.short(err)
	}
	return p, err
}

// uninterrupted makes a system call again that a signal ended, of which the runtime sends
// itself some for its own purposes. hugetlbfs looks for signals before each page, and does
// not begin anew by itself.
func uninterrupted(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// mapHuge maps and locks a page of a file, and asks where it lies.
func mapHuge(f *os.File, at int64, size int) (hugePage, error) {
	mem, err := unix.Mmap(int(f.Fd()), at, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return hugePage{}, os.NewSyscallError("mmap", err)
	}
	if err := unix.Mlock(mem); err != nil {
		err = &HugeError{f.Name(), os.NewSyscallError("mlock", err), "run it as root, or raise its limit of locked memory (ulimit -l)"}
		return hugePage{}, errors.Join(err, unix.Munmap(mem))
	}
	bus, err := physical(mem)
	if err != nil {
		return hugePage{}, errors.Join(&HugeError{f.Name(), err, "run it as root (sudo), outside of a user namespace"}, unix.Munmap(mem))
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

// endIfUnused removes file and pages when nobody has a region, unless an earlier
// process left them: the card may know regions that nobody has asked for. Held: h.mu.
func (h *Huge) endIfUnused() error {
	if len(h.out) > 0 || h.file == nil || h.left {
		return nil
	}
	if err := errors.Join(os.Remove(h.path()), h.forget()); err != nil {
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
