package worlds

import (
	"encoding/binary"
	"fmt"

	"oxpd/hwsim"
	"oxpd/internal/dma"
	"oxpd/octep/csr"
	"oxpd/ring/wire"
)

// reuse is what one world leaves for the next one on the same goroutine: memory that
// costs more to make than to clear.
type reuse struct {
	windows []byte
	arena   []byte
	frame   []byte // that is on its way into the world
	check   []byte // that one is compared with
	pattern *pattern
}

func newReuse(p *pattern) *reuse {
	return &reuse{windows: make([]byte, hwsim.WindowBytes), arena: make([]byte, 20<<20), frame: make([]byte, longestFrame), check: make([]byte, longestFrame), pattern: p}
}

// memory is the host's memory for the card: pieces of one arena, at bus addresses that
// are drawn in no order and have nothing on either side.
type memory struct {
	card  *hwsim.Card
	arena []byte
	used  int
	next  uint64
	own   map[*dma.Region]bool
	all   []*dma.Region
}

const (
	busBase = 0x1_8000_0000
	busHole = 1 << 20
)

func newMemory(card *hwsim.Card, r *reuse) *memory {
	return &memory{card: card, arena: r.arena, next: busBase, own: map[*dma.Region]bool{}}
}

// Alloc implements dma.Provider.
func (m *memory) Alloc(name string, size, align int) (*dma.Region, error) {
	m.used = (m.used + 4095) &^ 4095
	if m.used+size > len(m.arena) {
		return nil, fmt.Errorf("the arena of %d bytes is used up", len(m.arena))
	}
	mem := m.arena[m.used : m.used+size : m.used+size]
	m.used += size
	clear(mem)
	bus := (m.next + uint64(align) - 1) &^ (uint64(align) - 1)
	m.next = bus + uint64(size) + busHole
	if err := m.card.MapDMA(bus, mem); err != nil {
		return nil, err
	}
	r := dma.NewRegion(name, mem, dma.BusAddr(bus))
	m.own[r] = true
	m.all = append(m.all, r)
	return r, nil
}

// Free implements dma.Provider.
func (m *memory) Free(r *dma.Region) error {
	if !m.own[r] {
		return fmt.Errorf("%s is not this provider's", r.Name())
	}
	delete(m.own, r)
	return m.card.UnmapDMA(uint64(r.Bus()), r.Size())
}

// Keeps implements dma.Provider.
func (m *memory) Keeps() bool { return true }

// bytes are n bytes at a bus address, nil when no region holds them.
func (m *memory) bytes(bus uint64, n int) []byte {
	for _, r := range m.all {
		if at := bus - uint64(r.Bus()); bus >= uint64(r.Bus()) && at+uint64(n) <= uint64(r.Size()) {
			b, _ := r.At(int(at), n)
			return b
		}
	}
	return nil
}

// lists reads, of every output ring, where its buffers are: from the registers and
// from memory, as the card does.
func (w *world) lists() (all [wire.OQs][]uint64) {
	for q := range all {
		base := w.dev.BAR0().Load64(uint32(csr.OutSlistBaddr.Queue(q)))
		size := int(w.dev.BAR0().Load64(uint32(csr.OutSlistRsize.Queue(q))))
		list := w.mem.bytes(base, size*wire.ListEntry)
		if list == nil {
			w.broke("memory", "ring %d: its list of %d entries at %#x is outside every region", q, size, base)
		}
		for i := range size {
			all[q] = append(all[q], binary.LittleEndian.Uint64(list[i*wire.ListEntry:]))
		}
	}
	return all
}

// empty checks that no buffer of a ring at rest looks like a packet, and that none lies
// over another one's.
func (w *world) empty() {
	seen := map[uint64]bool{}
	for q, list := range w.lists() {
		for i, bus := range list {
			b := w.mem.bytes(bus, wire.BufSize)
			if b == nil || seen[bus] {
				w.broke("memory", "ring %d: buffer %d at %#x is outside every region, or another one's too", q, i, bus)
			}
			seen[bus] = true
			if v := binary.LittleEndian.Uint64(b); v != 0 && v != wire.Poison && !w.plan.card.Choices.CutMidway {
				w.broke("rest", "ring %d: buffer %d begins with %#x while nothing is under way", q, i, v)
			}
		}
	}
}
