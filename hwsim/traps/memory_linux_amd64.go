package traps

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"oxpd/hwsim"
	"oxpd/internal/sys"
)

// memory is the program's hugepages, for the card by their physical addresses.
type memory struct {
	card  *hwsim.Card
	dir   string
	seen  unix.Timespec // change of the folder that pages is of
	pages map[uint64]page
}

// page is a file with one page, by the number of its inode.
type page struct {
	mem []byte
	bus uint64
}

// look maps what has come into the folder since it last did, and gives up what has gone.
func (m *memory) look() error {
	var st unix.Stat_t
	if err := unix.Stat(m.dir, &st); err != nil {
		return fmt.Errorf("look at %s: %w", m.dir, err)
	}
	if st.Mtim == m.seen {
		return nil
	}
	entries, err := os.ReadDir(m.dir)
	if err != nil {
		return err
	}
	there, whole := map[uint64]bool{}, true
	for _, e := range entries {
		inode, err := m.add(filepath.Join(m.dir, e.Name()))
		if err != nil {
			return err
		}
		whole = whole && inode != 0
		there[inode] = true
	}
	for inode, p := range m.pages {
		if !there[inode] {
			delete(m.pages, inode)
			if err := m.drop(p); err != nil {
				return err
			}
		}
	}
	if whole {
		m.seen = st.Mtim
	}
	return nil
}

// add maps a file unless it is mapped. It returns 0 for one that has no page yet, or is
// not there any more.
func (m *memory) add(path string) (inode uint64, err error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, fmt.Errorf("look at %s: %w", path, err)
	}
	if _, mapped := m.pages[st.Ino]; mapped || st.Size == 0 || st.Blocks == 0 {
		if mapped {
			return st.Ino, nil
		}
		return 0, nil
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, int(st.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return 0, fmt.Errorf("map %s: %w", path, err)
	}
	bus, err := physical(mem)
	if err == nil {
		err = m.card.MapDMA(bus, mem)
	}
	if err != nil {
		return 0, errors.Join(fmt.Errorf("map %s: %w", path, err), unix.Munmap(mem))
	}
	m.pages[st.Ino] = page{mem, bus}
	return st.Ino, nil
}

func (m *memory) drop(p page) error {
	return errors.Join(m.card.UnmapDMA(p.bus, len(p.mem)), unix.Munmap(p.mem))
}

// read reads what lies in one page.
func (m *memory) read(bus uint64, p []byte) bool {
	for _, have := range m.pages {
		if off := bus - have.bus; bus >= have.bus && off+uint64(len(p)) <= uint64(len(have.mem)) {
			copy(p, have.mem[off:])
			return true
		}
	}
	return false
}

// close gives everything up.
func (m *memory) close() error {
	var errs []error
	for _, p := range m.pages {
		errs = append(errs, m.drop(p))
	}
	clear(m.pages)
	return errors.Join(errs...)
}

// An entry of /proc/PID/pagemap (Linux, admin-guide/mm/pagemap.rst).
const (
	pagemapEntry   = 8
	pagemapFrame   = 1<<55 - 1
	pagemapPresent = 1 << 63
)

// physical is the address of a hugepage, whose frames follow each other.
func physical(mem []byte) (uint64, error) {
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	small := uint64(os.Getpagesize())
	var b [pagemapEntry]byte
	if _, err := f.ReadAt(b[:], int64(sys.AddressOf(mem)/small*pagemapEntry)); err != nil {
		return 0, fmt.Errorf("read page frames: %w", err)
	}
	e := binary.NativeEndian.Uint64(b[:])
	if e&pagemapPresent == 0 || e&pagemapFrame == 0 {
		return 0, fmt.Errorf("its page frame is hidden, or it has none (entry %#x): %w", e, ErrRefused)
	}
	return e & pagemapFrame * small, nil
}
