package dma

import (
	"errors"
	"fmt"
	"sync/atomic"
)

// FileMapper tells a device in another process which file's bytes lie at which bus
// address.
type FileMapper interface {
	// MapFile hands a descriptor over, which stays the caller's; off is where in the
	// file the bytes begin, in whole pages.
	MapFile(bus uint64, size, fd int, off int64) error
	UnmapFile(bus uint64, size int) error
}

// Kept provides memory that a device in another process maps too: pieces of one file
// in memory. When somebody else keeps the file's descriptor, a later process opens it
// and finds the regions by their names (Holder), where the device goes on using them;
// otherwise the file ends with the process.
//
// The file begins with a table of its regions, so that nothing else has to be kept.
// A region is in the table before the device hears of it: the addresses of a process
// that died in between are not used again, and do no harm. Memory that was freed stays
// in the file until that ends, and its address is not used again either.
type Kept struct {
	chosen
	fd    int
	table regionTable
	end   int64 // of the file
	taken map[int]bool
	keeps atomic.Bool
}

const (
	keptTable   = 256 << 10        // bytes
	magicOfKept = 0x31746b6470786f // "oxpdkt1"
)

// NewKept makes an empty file, for a device that knows no memory yet.
func NewKept(dev FileMapper) (*Kept, error) {
	fd, table, err := newKeptFile()
	if err != nil {
		return nil, fmt.Errorf("dma: make memory that is kept: %w", err)
	}
	k := newKept(dev, fd, table)
	k.end = keptTable
	k.table.begin(magicOfKept)
	return k, nil
}

// OpenKept goes on with the file of an earlier process, of which the device knows
// everything that is in the table. The descriptor is the provider's from then on, and
// the caller's with an error. Errors: ErrKept, the kernel's.
func OpenKept(dev FileMapper, fd int) (*Kept, error) {
	table, end, err := openKeptFile(fd)
	if err != nil {
		return nil, fmt.Errorf("dma: open kept memory: %w", err)
	}
	k := newKept(dev, fd, table)
	k.end = end
	if err := k.check(); err != nil {
		return nil, fmt.Errorf("dma: open kept memory: %w", errors.Join(err, unmapPages(table)))
	}
	return k, nil
}

func newKept(dev FileMapper, fd int, table []byte) *Kept {
	k := &Kept{fd: fd, table: table, taken: map[int]bool{}}
	k.chosen = chosen{
		next: chosenBase,
		make: func(name string, size int) ([]byte, func(bus uint64) error, error) {
			off := k.end
			mem, err := k.grow(name, size)
			return mem, func(bus uint64) error { return k.tell(dev, keptRegion{name, off, int64(size), bus}) }, err
		},
		forget: func(bus uint64, size int) error {
			err := dev.UnmapFile(bus, size)
			if err == nil {
				k.table.strike(bus)
			}
			return err
		},
	}
	return k
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
func (k *Kept) tell(dev FileMapper, r keptRegion) error {
	n := k.table.count()
	k.table.append(r)
	k.taken[n] = true
	err := dev.MapFile(r.bus, int(r.size), k.fd, r.off)
	if err != nil {
		Store64(k.table[keptCount:], uint64(n)) // nobody has it
	}
	return err
}

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
		if e.name != name || k.taken[i] || size <= 0 || e.size != (keptRegion{size: int64(size)}).pages() || align <= 0 || e.bus%uint64(align) != 0 {
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
		case e.bus < k.next || e.bus%pageSize != 0 || e.bus+uint64(e.size)+chosenHole < e.bus:
			return fmt.Errorf("%w: region %q at bus address %#x", ErrKept, e.name, e.bus)
		}
		at, k.next = e.off+e.size, e.bus+uint64(e.size)+chosenHole
	}
	return nil
}
