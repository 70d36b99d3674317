package sysfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"oxpd/internal/dma"
	"oxpd/internal/mmio"
	"oxpd/octep"
	"oxpd/octep/csr"
	"oxpd/octep/discover"
)

// Device is a PCI function of this machine. Its methods are those of octep.Device.
type Device struct {
	address    string
	config     *os.File
	bar0, bar2 window
	dma        *dma.Huge

	ended  atomic.Bool
	mu     sync.Mutex
	closed bool
}

// window is a mapped BAR. One whose function the kernel removes faults, and reads all
// ones.
type window struct {
	mem []byte
	mmio.Space
}

// Open opens a card that discover has found, and keeps other processes from doing so
// until Close.
//
// Errors: *discover.BlockedError, discover.ErrBusy, *OpenError.
func Open(h discover.Host, c *discover.Card) (*Device, error) {
	if stops := c.Blocking(); len(stops) > 0 {
		return nil, &discover.BlockedError{Address: c.Address, Obstacles: stops}
	}
	m := h.Memory()
	return open(c, dma.NewHuge(dma.HugeOptions{Dir: m.Dir, Name: discover.MemoryName(c.Address), Pages: m.Need}), true)
}

// Look opens a card to look at it, also while another process drives it. What stands in
// the way of memory for the card is none of its business, and it has none.
//
// Errors: *discover.BlockedError, *OpenError.
func Look(h discover.Host, c *discover.Card) (*Device, error) {
	stops := slices.DeleteFunc(c.Blocking(), func(o discover.Obstacle) bool { return !o.Looking })
	if len(stops) > 0 {
		return nil, &discover.BlockedError{Address: c.Address, Obstacles: stops}
	}
	return open(c, dma.NewHuge(dma.HugeOptions{}), false)
}

// open opens the files; drive claims the card.
func open(c *discover.Card, memory *dma.Huge, drive bool) (d *Device, err error) {
	d = &Device{address: c.Address, dma: memory}
	defer func() {
		if err != nil {
			err = errors.Join(&OpenError{c.Address, err}, d.Close())
			d = nil
		}
	}()
	if d.config, err = os.OpenFile(c.File("config"), os.O_RDWR, 0); err != nil {
		return d, err
	}
	if drive {
		if err := discover.Lock(d.config); err != nil {
			return d, err
		}
	}
	if d.bar0, err = mapBAR(c.File("resource0"), csr.BAR0Size); err != nil {
		return d, err
	}
	d.bar2, err = mapBAR(c.File("resource2"), csr.BAR2Size)
	return d, err
}

// mapBAR maps a whole BAR. The file goes, the mapping stays.
func mapBAR(path string, size int64) (window, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return window{}, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return window{}, err
	}
	if fi.Size() < size {
		return window{}, fmt.Errorf("map %s: %d bytes, want %d", filepath.Base(path), fi.Size(), size)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return window{}, fmt.Errorf("map %s: %w", filepath.Base(path), err)
	}
	regs, err := mmio.NewMapped(mem)
	if err != nil {
		return window{}, errors.Join(err, unix.Munmap(mem))
	}
	return window{mem, mmio.Guard(regs)}, nil
}

func (w *window) unmap() error {
	if w.mem == nil {
		return nil
	}
	mem := w.mem
	w.mem, w.Space = nil, nil
	return os.NewSyscallError("munmap", unix.Munmap(mem))
}

// Name implements octep.Device: the PCI address.
func (d *Device) Name() string { return d.address }

// ConfigRead implements octep.Device. A function that the kernel has removed reads as
// one that does not answer.
func (d *Device) ConfigRead(off, width int) (uint32, error) {
	var b [4]byte
	if err := checkConfig(off, width); err != nil {
		return 0, err
	}
	n, err := unix.Pread(int(d.config.Fd()), b[:width], int64(off))
	if errors.Is(err, unix.ENODEV) {
		d.ended.Store(true)
		return 1<<(8*width) - 1, nil
	}
	if err == nil && n != width {
		err = fmt.Errorf("%d of %d bytes", n, width)
	}
	if err != nil {
		return 0, fmt.Errorf("sysfs: read config space of %s at %#x: %w", d.address, off, err)
	}
	return binary.LittleEndian.Uint32(b[:]), nil
}

// Ended tells whether the kernel has removed the function, as was met when config space
// was read. One that comes back has other files.
func (d *Device) Ended() bool { return d.ended.Load() }

// ConfigWrite implements octep.Device.
func (d *Device) ConfigWrite(off, width int, v uint32) error {
	var b [4]byte
	if err := checkConfig(off, width); err != nil {
		return err
	}
	binary.LittleEndian.PutUint32(b[:], v)
	n, err := unix.Pwrite(int(d.config.Fd()), b[:width], int64(off))
	if err == nil && n != width {
		err = fmt.Errorf("%d of %d bytes", n, width)
	}
	if err != nil {
		return fmt.Errorf("sysfs: write config space of %s at %#x: %w", d.address, off, err)
	}
	return nil
}

const configBytes = 4096

func checkConfig(off, width int) error {
	if width != 1 && width != 2 && width != 4 || off < 0 || off%width != 0 || off+width > configBytes {
		return fmt.Errorf("sysfs: config access of %d bytes at %#x", width, off)
	}
	return nil
}

// BAR0 implements octep.Device.
func (d *Device) BAR0() mmio.Space { return d.bar0.Space }

// BAR2 implements octep.Device.
func (d *Device) BAR2() mmio.Space { return d.bar2.Space }

// DMA implements octep.Device.
func (d *Device) DMA() dma.Provider { return d.dma }

// BindIRQ implements octep.Device. There are none: octep.ErrNoInterrupts, unless there
// is nothing to bind.
func (d *Device) BindIRQ(_ int, fn func()) error {
	if fn == nil {
		return nil
	}
	return octep.ErrNoInterrupts
}

// Close implements octep.Device.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	errs := []error{d.bar0.unmap(), d.bar2.unmap(), d.dma.Close()}
	if d.config != nil {
		errs = append(errs, d.config.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("sysfs: close %s: %w", d.address, err)
	}
	return nil
}
