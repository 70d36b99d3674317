package frame

import "math/bits"

// TCP flags, as Packet.TCPFlags has them.
const (
	TCPFIN = 1 << iota
	TCPSYN
	TCPRST
	TCPPSH
	TCPACK
)

// Conn is what the frames of a connection have in common, in both directions. It is to be
// compared, and a key of maps.
type Conn struct {
	hi, lo [2]uint64 // addresses, the smaller first
	ports  [2]uint16
	vlan   uint16 // of the outermost tag and 1, 0 without
	family Have
	proto  uint8
}

// Conn is the connection of a packet. ok is false when it is of none: a fragment, whose
// later pieces have no ports, and what has no ports at all.
func (p *Packet) Conn() (c Conn, ok bool) {
	if p.Have&HavePorts == 0 || p.Have&HaveFrag != 0 {
		return Conn{}, false
	}
	c = Conn{
		hi: [2]uint64{p.srcHi, p.dstHi}, lo: [2]uint64{p.srcLo, p.dstLo}, ports: [2]uint16{p.SrcPort, p.DstPort},
		proto: p.Proto, family: p.Have & HaveIP,
	}
	if p.VLANs > 0 {
		c.vlan = p.VLAN[0] + 1
	}
	if c.backwards() {
		c.hi[0], c.hi[1] = c.hi[1], c.hi[0]
		c.lo[0], c.lo[1] = c.lo[1], c.lo[0]
		c.ports[0], c.ports[1] = c.ports[1], c.ports[0]
	}
	return c, true
}

// backwards tells whether the larger end is first.
func (c *Conn) backwards() bool {
	switch {
	case c.hi[0] != c.hi[1]:
		return c.hi[0] > c.hi[1]
	case c.lo[0] != c.lo[1]:
		return c.lo[0] > c.lo[1]
	}
	return c.ports[0] > c.ports[1]
}

// Hash mixes the connection with a seed, which nobody else knows: whoever chooses ports and
// addresses cannot choose where they fall.
func (c *Conn) Hash(seed uint64) uint64 {
	const odd = 0x9e3779b97f4a7c15
	h := fold(seed^c.lo[0], odd^c.lo[1]^seed)
	if c.hi[0]|c.hi[1] != 0 {
		h = fold(h^c.hi[0], odd^c.hi[1]^seed)
	}
	small := uint64(c.ports[0])<<48 | uint64(c.ports[1])<<32 | uint64(c.vlan)<<16 | uint64(c.family)<<8 | uint64(c.proto)
	return fold(h^small, odd^seed)
}

// fold is the product of two words, its halves in one.
func fold(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}
