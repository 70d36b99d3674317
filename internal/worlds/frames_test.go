package worlds

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"oxpd/internal/board"
)

// shape is what a flow's frames look like: what the fast path finds in them decides
// about ring and counter.
type shape uint8

const (
	shapeIPv4 shape = iota
	shapeVLAN       // IPv4 behind one tag
	shapeIPv6
	shapeOther // no IP
	shapes
)

// Lengths of the parts in front of a frame's mark.
const (
	etherBytes = 14
	vlanBytes  = 4
	ipv4Bytes  = 20
	ipv6Bytes  = 40
	udpBytes   = 8
	markBytes  = 8 // u32 flow, u32 number in it
	fcsBytes   = 4
	gapBytes   = 20 // preamble and gap on a cable
)

var shapeNames = [shapes]string{"IPv4", "VLAN", "IPv6", "no IP"}

// head is how many bytes there are in front of the mark.
func (s shape) head() int {
	return [shapes]int{
		etherBytes + ipv4Bytes + udpBytes, etherBytes + vlanBytes + ipv4Bytes + udpBytes, etherBytes + ipv6Bytes + udpBytes, etherBytes,
	}[s]
}

// least is the shortest frame that has room for the mark.
func (s shape) least() int { return max(60, s.head()+markBytes) }

// vlans is how many tags there are.
func (s shape) vlans() int {
	if s == shapeVLAN {
		return 1
	}
	return 0
}

// sizes are lengths at which something changes: the least, a buffer's end, two, the
// LIF's 1,500 and 9,000 with and without a tag.
var sizes = []int{60, 61, 64, 128, 576, 1513, 1514, 1515, 1518, 1519, 1520, 1521, 1522, 1523, 3121, 3122, 3123, 4724, 4725, 6326, 6327, 9013, 9014, 9015, 9018}

const (
	leastFrame   = 60
	longestFrame = 9018
)

// flow is frames of one shape between the host and one port, in one direction.
type flow struct {
	n       int
	out     bool // host to wire
	port    board.Port
	shape   shape
	dst     [6]byte
	foreign bool // unicast to somebody else
	sizes   []int

	// The books.
	frames []record
	last   int // number of the last one that was seen, -1 for none
	ring   int // that its packets were found in, -1 while none was
}

func (f *flow) String() string {
	way := "in at "
	if f.out {
		way = "out of "
	}
	foreign := ""
	if f.foreign {
		foreign = ", to a foreign address"
	}
	return fmt.Sprintf("flow %d %s%s, %s%s", f.n, way, f.port.Label, shapeNames[f.shape], foreign)
}

// pattern is what frames are filled from: two places of it that differ in any bit
// of their offset have nothing in common.
type pattern [64 << 10]byte

func newPattern() *pattern {
	p := new(pattern)
	r := rand.New(rand.NewPCG(1, 2))
	for i := 0; i < len(p); i += 8 {
		binary.LittleEndian.PutUint64(p[i:], r.Uint64())
	}
	return p
}

func (p *pattern) at(flow, n, size int) []byte {
	off := (flow*4099 + n*37) % (len(p) - longestFrame)
	return p[off : off+size]
}

// put writes frame n of a flow, size bytes, into b.
func (p *pattern) put(b []byte, f *flow, n, size int) []byte {
	b = b[:size]
	h := f.shape.head()
	clear(b[:h])
	copy(b, f.dst[:])
	copy(b[6:], []byte{2, 0, 0, 1, byte(f.n >> 8), byte(f.n)})
	be := binary.BigEndian
	l3 := b[12:]
	if f.shape == shapeVLAN {
		be.PutUint16(l3, 0x8100)
		be.PutUint16(l3[2:], uint16(f.n%3)) // 0 is a priority tag
		l3 = l3[4:]
	}
	switch f.shape {
	case shapeIPv4, shapeVLAN:
		be.PutUint16(l3, 0x0800)
		ip := l3[2:]
		ip[0], ip[8], ip[9] = 0x45, 64, 17
		be.PutUint16(ip[2:], uint16(len(ip)))
		be.PutUint32(ip[12:], 0x0a000000|uint32(f.n))
		be.PutUint32(ip[16:], 0x0a010001)
		be.PutUint16(ip[20:], uint16(1024+f.n))
		be.PutUint16(ip[22:], 5001)
		be.PutUint16(ip[24:], uint16(len(ip)-ipv4Bytes))
	case shapeIPv6:
		be.PutUint16(l3, 0x86dd)
		ip := l3[2:]
		ip[0], ip[6], ip[7] = 0x60, 17, 64
		be.PutUint16(ip[4:], uint16(len(ip)-ipv6Bytes))
		ip[8], ip[24] = 0xfd, 0xfd
		be.PutUint32(ip[20:], uint32(f.n))
		be.PutUint16(ip[40:], uint16(1024+f.n))
		be.PutUint16(ip[42:], 5001)
		be.PutUint16(ip[44:], uint16(len(ip)-ipv6Bytes))
	default:
		be.PutUint16(l3, 0x88b5) // for local experiments
	}
	be.PutUint32(b[h:], uint32(f.n))
	be.PutUint32(b[h+4:], uint32(n))
	copy(b[h+markBytes:], p.at(f.n, n, size))
	return b
}

// mark finds flow and number in a frame, or in the first part of one. ok is false
// for bytes that no flow of these worlds sends.
func mark(b []byte) (flow, n int, ok bool) {
	if len(b) < leastFrame {
		return 0, 0, false
	}
	be := binary.BigEndian
	s := shapeOther
	switch be.Uint16(b[12:]) {
	case 0x0800:
		s = shapeIPv4
	case 0x8100:
		s = shapeVLAN
	case 0x86dd:
		s = shapeIPv6
	}
	h := s.head()
	if len(b) < h+markBytes {
		return 0, 0, false
	}
	return int(be.Uint32(b[h:])), int(be.Uint32(b[h+4:])), true
}
