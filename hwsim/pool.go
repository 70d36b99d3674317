package hwsim

import "sync"

// packet is one frame on its way through the card, in memory of the card.
type packet struct {
	b    []byte // the bytes in use; the frame begins at off
	off  int    // bytes of private header in front of the frame
	mem  []byte // the whole buffer
	tag  uint16
	port int    // index of the front port
	due  uint64 // cycle of the packet's next step

	since uint64 // cycle from which the fast path has it
	id    uint64 // number in traces

	fromRing
	toRing
}

// fromRing is what a packet of the host has beside its frame: its instruction.
type fromRing struct {
	ring                int
	dptr, ih3, pki, irh uint64
}

// toRing is what a packet for a host ring has beside its frame.
type toRing struct {
	length uint64   // what the length word will say
	fast   uint16   // fast-path port, for the prefix
	bare   bool     // two words in front, and no prefix of the fast path
	cut    bool     // choice 22: it ends with its entries, and never gets a length word
	late   lateKind // a fault or choice 23 takes it apart in time
	n      int      // list entries that it is written to
	skip   int      // entries in front of them that are taken and left alone (SkipEntries)
	bufs   []uint64 // the entries that it has taken, skipped ones first
}

func (p *packet) frame() []byte { return p.b[p.off:] }

// Two sizes of buffer: nearly every frame fits the small one, every frame that
// the board passes the large one. Longer ones, which only a faulty driver makes,
// are allocated.
const (
	smallPacket = 2048
	largePacket = 10240
	poolKeep    = 4096 // packets kept of each size
)

// framePool recycles packets, last in first out so that they stay in the cache.
// It has its own lock: senders take from it without the card's.
type framePool struct {
	mu   sync.Mutex
	free [2][]*packet
}

func sizeClass(n int) (class, size int) {
	switch {
	case n <= smallPacket:
		return 0, smallPacket
	case n <= largePacket:
		return 1, largePacket
	}
	return -1, n
}

// get returns a packet with n bytes, their contents undefined.
func (p *framePool) get(n int) *packet {
	class, size := sizeClass(n)
	if class >= 0 {
		p.mu.Lock()
		if l := p.free[class]; len(l) > 0 {
			x := l[len(l)-1]
			p.free[class] = l[:len(l)-1]
			p.mu.Unlock()
			x.b, x.off, x.toRing = x.mem[:n], 0, toRing{bufs: x.bufs[:0]}
			return x
		}
		p.mu.Unlock()
	}
	mem := make([]byte, size)
	return &packet{mem: mem, b: mem[:n]}
}

// put takes a packet back.
func (p *framePool) put(x *packet) {
	class, size := sizeClass(len(x.mem))
	if class < 0 || size != len(x.mem) {
		return
	}
	p.mu.Lock()
	if len(p.free[class]) < poolKeep {
		p.free[class] = append(p.free[class], x)
	}
	p.mu.Unlock()
}
