package dma

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// regionTable lists the regions of a file at its beginning, for a later process. It is
// written by one process at a time; an entry is whole before it is counted.
type regionTable []byte

// Layout of the table, little-endian: a head, then an entry for each region.
const (
	keptMagic    = 0  // u64
	keptCount    = 8  // u64, entries that are whole
	keptMark     = 16 // u64, the device's
	keptHead     = keptEntry
	keptName     = 0 // padded with zeros; all zeros: it was freed
	keptNameSize = 40
	keptOffset   = 40 // u64, in the file
	keptSize     = 48 // u64, bytes
	keptBus      = 56 // u64
	keptEntry    = 64
)

// ErrKept says that a file is none of a provider whose memory is kept, or damaged.
var ErrKept = errors.New("not a file of kept memory")

// keptRegion is an entry of the table.
type keptRegion struct {
	name      string
	off, size int64
	bus       uint64
}

func (r keptRegion) pages() int64 { return (r.size + pageSize - 1) &^ (pageSize - 1) }

// begin makes a zeroed table an empty one.
func (t regionTable) begin(magic uint64) { Store64(t[keptMagic:], magic) }

// check tells whether this is a table at all. What its entries say is not judged.
func (t regionTable) check(magic uint64) error {
	if got := Load64(t[keptMagic:]); got != magic {
		return fmt.Errorf("%w: it begins with %#x", ErrKept, got)
	}
	if n := Load64(t[keptCount:]); n > uint64(t.most()) {
		return fmt.Errorf("%w: %d regions", ErrKept, n)
	}
	return nil
}

func (t regionTable) most() int { return len(t)/keptEntry - 1 }

func (t regionTable) count() int { return int(Load64(t[keptCount:])) }

// room tells whether a region of that name can be appended.
func (t regionTable) room(name string) error {
	if name == "" || len(name) > keptNameSize {
		return fmt.Errorf("a name of %d bytes, room for %d", len(name), keptNameSize)
	}
	if t.count() >= t.most() {
		return fmt.Errorf("the table has %d regions, and no room", t.most())
	}
	return nil
}

func (t regionTable) entry(i int) keptRegion {
	e := t[keptHead+i*keptEntry:]
	name := e[keptName:keptNameSize]
	n := 0
	for n < len(name) && name[n] != 0 {
		n++
	}
	le := binary.LittleEndian
	return keptRegion{string(name[:n]), int64(le.Uint64(e[keptOffset:])), int64(le.Uint64(e[keptSize:])), le.Uint64(e[keptBus:])}
}

// append writes an entry, and then counts it.
func (t regionTable) append(r keptRegion) {
	i := t.count()
	e := t[keptHead+i*keptEntry:]
	clear(e[keptName:keptNameSize])
	copy(e[keptName:keptNameSize], r.name)
	le := binary.LittleEndian
	le.PutUint64(e[keptOffset:], uint64(r.off))
	le.PutUint64(e[keptSize:], uint64(r.size))
	le.PutUint64(e[keptBus:], r.bus)
	Store64(t[keptCount:], uint64(i+1))
}

// drop takes the name off a region that nobody has any more.
func (t regionTable) drop(i int) { clear(t[keptHead+i*keptEntry:][keptName:keptNameSize]) }
