package dma

import (
	"errors"
	"fmt"
	"sync/atomic"
)

// FileMapper tells a device, or the IOMMU in front of it, which file's bytes lie at
// which bus address.
type FileMapper interface {
	// MapFile hands over bytes that are mapped here, and where they are from: a
	// descriptor, which stays the caller's, and where in the file they begin, in whole
	// pages.
	MapFile(bus uint64, mem []byte, fd int, off int64) error
	// UnmapFile takes exactly one of them away. Error: ErrStays.
	UnmapFile(bus uint64, size int) error
}

// ErrStays says that nothing was taken away: it is not there, or is an earlier process's
// and not this one's to take. That is none of this process's mistakes where the region
// was not its own; the address is not used again.
var ErrStays = errors.New("no map of this process is there")

// Kept provides memory that outlives its process, for a device that has a map of its own:
// pieces of one file in memory. When somebody else keeps the file's descriptor, and that
// which the device reaches it by, a later process opens it and finds the regions by their
// names (Holder), where the device goes on using them; otherwise the file ends with the
// process.
//
// The file begins with a table of its regions, so that nothing else has to be kept.
// A region is in the table before the device hears of it: the addresses of a process
// that died in between are not used again, and do no harm. The pages of what was freed
// are given back.
//
// Behind an IOMMU bus addresses are chosen from those that it has, below 4 GiB, and the
// page behind each region is nobody's. Otherwise they are above 4 GiB, and none is used
// twice.
type Kept struct {
	chosen
	dev   FileMapper
	fd    int
	table regionTable
	end   int64           // of the file
	iovas *iovas          // nil: no IOMMU
	taken map[int]bool    // entries of the table that are regions of this process
	made  map[uint64]bool // bus addresses that this process had the device map
	stays map[uint64]bool // bus addresses that are not given back
	keeps atomic.Bool
}

const (
	keptTable   = 256 << 10        // bytes
	magicOfKept = 0x31746b6470786f // "oxpdkt1"
)

// NewKept makes an empty file, for a device that knows no memory yet. allowed are the bus
// addresses of an IOMMU; nil: there is none.
func NewKept(dev FileMapper, allowed []Range) (*Kept, error) {
	fd, table, err := newKeptFile()
	if err != nil {
		return nil, fmt.Errorf("dma: make memory that is kept: %w", err)
	}
	k := newKept(dev, fd, table, allowed)
	k.end = keptTable
	k.table.begin(magicOfKept)
	return k, nil
}

// OpenKept goes on with the file of an earlier process, of which the device knows
// everything that is in the table. The descriptor is the provider's from then on, and
// the caller's with an error. Errors: ErrKept, the kernel's.
func OpenKept(dev FileMapper, fd int, allowed []Range) (*Kept, error) {
	table, end, err := openKeptFile(fd)
	if err != nil {
		return nil, fmt.Errorf("dma: open kept memory: %w", err)
	}
	k := newKept(dev, fd, table, allowed)
	k.end = end
	if err := k.check(); err != nil {
		return nil, fmt.Errorf("dma: open kept memory: %w", errors.Join(err, unmapPages(table)))
	}
	return k, nil
}

// KeptMark is the number that SetMark wrote into a file, 0 if it did not. The descriptor
// stays the caller's. Errors: ErrKept, the kernel's.
func KeptMark(fd int) (uint64, error) {
	table, _, err := openKeptFile(fd)
	if err != nil {
		return 0, fmt.Errorf("dma: read the mark of kept memory: %w", err)
	}
	mark, err := Load64(table[keptMark:]), regionTable(table).check(magicOfKept)
	if err := errors.Join(err, unmapPages(table)); err != nil {
		return 0, fmt.Errorf("dma: read the mark of kept memory: %w", err)
	}
	return mark, nil
}

func newKept(dev FileMapper, fd int, table []byte, allowed []Range) *Kept {
	k := &Kept{dev: dev, fd: fd, table: table, taken: map[int]bool{}, made: map[uint64]bool{}, stays: map[uint64]bool{}}
	k.chosen = chosen{
		next: chosenBase,
		make: func(name string, size int) ([]byte, func(bus uint64) error, error) {
			off := k.end
			mem, err := k.grow(name, size)
			return mem, func(bus uint64) error { return k.tell(keptRegion{name, off, int64(size), bus}, mem) }, err
		},
		forget: k.forget,
	}
	if allowed != nil {
		k.iovas = newIOVAs(allowed)
		k.chosen.take = func(size, align uint64) (uint64, error) { return k.iovas.take(size+pageSize, align) }
		k.chosen.give = k.give
	}
	return k
}

// give gives a bus address back, unless it stays. Held: k.mu.
func (k *Kept) give(bus, size uint64) {
	if !k.stays[bus] {
		k.iovas.give(bus, size+pageSize)
	}
}

// grow adds pages to the file for a region. Held: k.mu.
func (k *Kept) grow(name string, size int) ([]byte, error) {
	if err := k.table.room(name); err != nil {
		return nil, err
	}
	mem, err := growKeptFile(k.fd, k.end, size)
	if err == nil {
		k.end += int64(size)
	}
	return mem, err
}

// tell lists a region and then maps it for the device. Held: k.mu.
func (k *Kept) tell(r keptRegion, mem []byte) error {
	n := k.table.count()
	k.table.append(r)
	k.taken[n] = true
	err := k.dev.MapFile(r.bus, mem, k.fd, r.off)
	if err != nil {
		Store64(k.table[keptCount:], uint64(n)) // nobody has it
		return err
	}
	k.made[r.bus] = true
	return nil
}

// forget has the device lose a region, and gives its pages back. One that stays is in
// the table for ever: its address is not free for a later process either. Held: k.mu.
func (k *Kept) forget(bus uint64, size int) error {
	switch err := k.dev.UnmapFile(bus, size); {
	case errors.Is(err, ErrStays) && !k.made[bus]:
		k.stays[bus] = true
	case err != nil:
		return err
	}
	delete(k.made, bus)
	for i := range k.table.count() {
		e := k.table.entry(i)
		if e.name == "" || e.bus != bus {
			continue
		}
		if !k.stays[bus] {
			k.table.drop(i)
		}
		if err := emptyKeptFile(k.fd, e.off, e.size); err != nil {
			return fmt.Errorf("give its pages back: %w", err)
		}
	}
	return nil
}

// Reclaim gives back what an earlier process left and this one has not taken: the device
// is known to know nothing of it any more.
func (k *Kept) Reclaim() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	var errs []error
	for i := range k.table.count() {
		e := k.table.entry(i)
		if e.name == "" || k.taken[i] || k.stays[e.bus] {
			continue
		}
		if err := k.forget(e.bus, int(e.size)); err != nil {
			errs = append(errs, fmt.Errorf("dma: reclaim %s: %w", e.name, err))
			continue
		}
		k.back(e.bus, uint64(e.size))
	}
	return errors.Join(errs...)
}

// SetMark writes a number of the device's into the file, for a later process.
func (k *Kept) SetMark(v uint64) { Store64(k.table[keptMark:], v) }

// File is the descriptor of the file, which stays the provider's.
func (k *Kept) File() int { return k.fd }

// SetKeeps says whether somebody else has the file, and what the device reaches it by.
func (k *Kept) SetKeeps(keeps bool) { k.keeps.Store(keeps) }

// Keeps implements Provider.
func (k *Kept) Keeps() bool { return k.keeps.Load() }

// Held implements Holder. Of regions of one name it is the youngest: a process that
// died before it told the card anything may have left others. A region is given once,
// and to nobody after Alloc has given it.
func (k *Kept) Held(name string, size, align int) (*Region, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := k.table.count() - 1; i >= 0; i-- {
		e := k.table.entry(i)
		if e.name != name || k.taken[i] || k.stays[e.bus] || size <= 0 || e.size != (keptRegion{size: int64(size)}).pages() || align <= 0 || e.bus%uint64(align) != 0 {
			continue
		}
		mem, err := mapKeptFile(k.fd, e.off, int(e.size))
		if err != nil {
			return nil, fmt.Errorf("dma: map kept %s: %w", name, err)
		}
		k.taken[i] = true
		r := NewRegion(name, mem[:size:size], BusAddr(e.bus))
		k.own(r, mem)
		return r, nil
	}
	return nil, fmt.Errorf("dma: find %s of %d bytes: %w", name, size, ErrNotHeld)
}

// Close gives the descriptor back, once. Nothing else may be called any more;
// mappings stay until the process ends.
func (k *Kept) Close() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.table == nil {
		return nil
	}
	table := k.table
	k.table = nil
	return errors.Join(unmapPages(table), closeKeptFile(k.fd))
}

// check judges what an earlier process left, and puts the next address behind it all.
func (k *Kept) check() error {
	if err := k.table.check(magicOfKept); err != nil {
		return err
	}
	at := int64(keptTable)
	for i := range k.table.count() {
		e := k.table.entry(i)
		switch {
		case e.size <= 0 || e.size%pageSize != 0 || e.off < at || e.off%pageSize != 0 || e.size > k.end-e.off:
			return fmt.Errorf("%w: region %q of %d bytes at %d in a file of %d", ErrKept, e.name, e.size, e.off, k.end)
		case k.iovas != nil:
			if err := k.reserve(e); err != nil {
				return err
			}
		case e.bus < k.next || e.bus%pageSize != 0 || e.bus+uint64(e.size)+chosenHole < e.bus:
			return fmt.Errorf("%w: region %q at bus address %#x", ErrKept, e.name, e.bus)
		}
		if at = e.off + e.size; k.iovas == nil {
			k.next = e.bus + uint64(e.size) + chosenHole
		}
	}
	return nil
}

// reserve takes the bus address of a region that an earlier process had.
func (k *Kept) reserve(e keptRegion) error {
	if e.name == "" {
		return nil // its address is another's, or nobody's
	}
	if !k.iovas.reserve(e.bus, uint64(e.size)+pageSize) {
		return fmt.Errorf("%w: region %q of %d bytes at bus address %#x, which the IOMMU does not take or another region has", ErrKept, e.name, e.size, e.bus)
	}
	return nil
}
