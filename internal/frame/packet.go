package frame

import (
	"encoding/binary"
	"net/netip"
)

// Have says which headers of a frame are there whole.
type Have uint16

// What a Packet may have. A header of layer 2 or 3 counts when all of it lies in the
// bytes at hand and inside of what the headers before it promise; of layer 4 each
// field counts that does.
const (
	HaveL2    Have = 1 << iota // Ethernet header and its VLAN tags, up to MaxVLANs
	HaveIPv4                   // header with its options; the addresses
	HaveIPv6                   // fixed header; the addresses
	HaveProto                  // Proto is the protocol behind all IPv6 extension headers
	HaveFrag                   // part of a datagram that was cut
	HaveLater                  // a part that is not the first: nothing of layer 4 is in it
	HavePorts                  // SrcPort and DstPort of TCP, UDP or SCTP
	HaveTCP                    // TCPFlags
	HaveICMP                   // ICMPType and ICMPCode, of ICMP or of ICMPv6
)

// HaveIP is either family.
const HaveIP = HaveIPv4 | HaveIPv6

// Protocol numbers of IPv4 and IPv6 (IANA, Assigned Internet Protocol Numbers).
const (
	ProtoICMP   = 1
	ProtoTCP    = 6
	ProtoUDP    = 17
	ProtoGRE    = 47
	ProtoESP    = 50
	ProtoAH     = 51
	ProtoICMPv6 = 58
	ProtoSCTP   = 132

	protoHopByHop = 0
	protoRouting  = 43
	protoFragment = 44
	protoOptions  = 60
)

// MaxExtensions bounds the IPv6 extension headers that are walked. A longer
// chain has no protocol.
const MaxExtensions = 8

// Sizes in bytes.
const (
	ipv4Size = 20
	ipv6Size = 40
	extUnit  = 8 // an extension header's length is in these, without the first
	ahUnit   = 4 // an authentication header's, without the first two
	fragSize = 8
	vlanMask = 0x0fff
)

// Packet is the headers of one frame, as far as the bytes at hand go. A field
// means something only when Have says so.
type Packet struct {
	Header
	Have               Have
	VLAN               [MaxVLANs]uint16 // VLAN ids, outermost first, Header.VLANs of them
	L4                 int              // offset of layer 4, with HaveProto and without HaveLater
	SrcPort, DstPort   uint16
	Proto              uint8
	TCPFlags           uint8 // CWR ECE URG ACK PSH RST SYN FIN, as in the header
	ICMPType, ICMPCode uint8

	srcHi, srcLo, dstHi, dstLo uint64 // IPv6 as it is, IPv4 in the low half
}

// Src is the source address; the zero Addr without HaveIP.
func (p *Packet) Src() netip.Addr { return p.addr(p.srcHi, p.srcLo) }

// Dst is the destination address; the zero Addr without HaveIP.
func (p *Packet) Dst() netip.Addr { return p.addr(p.dstHi, p.dstLo) }

// SrcWords and DstWords are the addresses as two words in host order, IPv4 in the
// low half of the second: what a filter compares without making an Addr.
func (p *Packet) SrcWords() (hi, lo uint64) { return p.srcHi, p.srcLo }

// DstWords is SrcWords of the destination.
func (p *Packet) DstWords() (hi, lo uint64) { return p.dstHi, p.dstLo }

func (p *Packet) addr(hi, lo uint64) netip.Addr {
	switch {
	case p.Have&HaveIPv4 != 0:
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], uint32(lo))
		return netip.AddrFrom4(b)
	case p.Have&HaveIPv6 != 0:
		var b [16]byte
		binary.BigEndian.PutUint64(b[:], hi)
		binary.BigEndian.PutUint64(b[8:], lo)
		return netip.AddrFrom16(b)
	}
	return netip.Addr{}
}

// Parse overwrites p with the headers of a frame. first is the frame's beginning,
// frameBytes its whole length, which may be larger. Nothing beyond first is read,
// whatever the lengths in it say; a datagram that says it is shorter than what is
// there ends where it says. Parse allocates nothing and keeps nothing.
func (p *Packet) Parse(first []byte, frameBytes int) {
	// Most frames have no tag, IPv4 without options, and ports: they take half the time.
	// Each field is stored once and by itself, for what is stored wide and loaded narrow,
	// or the other way round, the CPU waits for.
	const (
		ip      = HeaderSize
		ports   = ip + ipv4Size
		size    = ports + 4
		flags   = ports + 13 // of TCP
		version = 0x45       // and header length
		frag    = 0x3fff     // more, and the offset
	)
	if len(first) < size || frameBytes < len(first) {
		p.parse(first, frameBytes)
		return
	}
	b := (*[size]byte)(first)
	proto, total := b[ip+9], int(binary.BigEndian.Uint16(b[ip+2:]))
	if binary.BigEndian.Uint16(b[12:]) != TypeIPv4 || b[ip] != version || binary.BigEndian.Uint16(b[ip+6:])&frag != 0 || total < size-ip || !hasPorts(proto) {
		p.parse(first, frameBytes)
		return
	}
	have, tcp := HaveL2|HaveIPv4|HaveProto|HavePorts, uint8(0)
	if proto == ProtoTCP && len(first) > flags && total > flags-ip {
		have |= HaveTCP
		tcp = first[flags]
	}
	p.EtherType, p.VLANs, p.L3, p.L4 = TypeIPv4, 0, ip, ports
	p.VLAN[0], p.VLAN[1] = 0, 0
	p.srcHi, p.srcLo = 0, uint64(binary.BigEndian.Uint32(b[ip+12:]))
	p.dstHi, p.dstLo = 0, uint64(binary.BigEndian.Uint32(b[ip+16:]))
	p.SrcPort, p.DstPort = binary.BigEndian.Uint16(b[ports:]), binary.BigEndian.Uint16(b[ports+2:])
	p.Proto, p.TCPFlags, p.ICMPType, p.ICMPCode = proto, tcp, 0, 0
	p.Have = have
}

// hasPorts tells whether a protocol begins with two ports.
func hasPorts(proto uint8) bool {
	return proto == ProtoUDP || proto == ProtoTCP || proto == ProtoSCTP
}

// parse is Parse for every frame.
func (p *Packet) parse(first []byte, frameBytes int) {
	*p = Packet{}
	h, ok := Parse(first)
	if !ok {
		return
	}
	p.Header = h
	have := HaveL2 // stored once, for each change in memory waits for the one before
	for i := range h.VLANs {
		p.VLAN[i] = binary.BigEndian.Uint16(first[HeaderSize+i*VLANSize:]) & vlanMask
	}
	if frameBytes < len(first) {
		first = first[:max(frameBytes, h.L3)]
	}
	switch b := first[h.L3:]; h.EtherType {
	case TypeIPv4:
		have |= p.ipv4(b)
	case TypeIPv6:
		have |= p.ipv6(b)
	}
	p.Have = have
}

// ipv4 reads a datagram that begins b, and returns what there is of it.
func (p *Packet) ipv4(b []byte) (have Have) {
	if len(b) < ipv4Size || b[0]>>4 != 4 {
		return 0
	}
	header, total := int(b[0]&15)*4, int(binary.BigEndian.Uint16(b[2:]))
	if header < ipv4Size || header > len(b) || total < header {
		return 0
	}
	have = HaveIPv4 | HaveProto
	p.srcLo = uint64(binary.BigEndian.Uint32(b[12:]))
	p.dstLo = uint64(binary.BigEndian.Uint32(b[16:]))
	p.Proto = b[9]
	const more, offset = 0x2000, 0x1fff
	if frag := binary.BigEndian.Uint16(b[6:]); frag&(more|offset) != 0 {
		have |= HaveFrag
		if frag&offset != 0 {
			have |= HaveLater
			return have
		}
	}
	return have | p.transport(b[:min(total, len(b))], header, have)
}

// ipv6 reads a datagram that begins b and walks its extension headers.
func (p *Packet) ipv6(b []byte) (have Have) {
	if len(b) < ipv6Size || b[0]>>4 != 6 {
		return 0
	}
	have = HaveIPv6
	p.srcHi, p.srcLo = binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint64(b[16:])
	p.dstHi, p.dstLo = binary.BigEndian.Uint64(b[24:]), binary.BigEndian.Uint64(b[32:])
	next, at := b[6], ipv6Size
	b = b[:min(ipv6Size+int(binary.BigEndian.Uint16(b[4:])), len(b))]
	for range MaxExtensions {
		size := 0
		switch next {
		case protoHopByHop, protoRouting, protoOptions:
			if len(b) < at+extUnit {
				return have
			}
			size = (int(b[at+1]) + 1) * extUnit
		case ProtoAH:
			if len(b) < at+extUnit || b[at+1] == 0 { // 0: shorter than its own fixed part
				return have
			}
			size = (int(b[at+1]) + 2) * ahUnit
		case protoFragment:
			if len(b) < at+fragSize {
				return have
			}
			size = fragSize
			const more, offset = 0x0001, 0xfff8
			if frag := binary.BigEndian.Uint16(b[at+2:]); frag&(more|offset) != 0 {
				have |= HaveFrag
				if frag&offset != 0 {
					// What is behind belongs to the first part. Its number is known,
					// and is the protocol unless it is one more extension header.
					have |= HaveLater
					if !isExtension(b[at]) {
						have |= HaveProto
						p.Proto = b[at]
					}
					return have
				}
			}
		}
		if size == 0 {
			break
		}
		if len(b) < at+size {
			return have
		}
		next = b[at]
		at += size
	}
	if isExtension(next) {
		return have // more than MaxExtensions
	}
	have |= HaveProto
	p.Proto = next
	return have | p.transport(b, at, have)
}

// isExtension tells whether a next header is one that is walked.
func isExtension(next uint8) bool {
	switch next {
	case protoHopByHop, protoRouting, protoOptions, ProtoAH, protoFragment:
		return true
	}
	return false
}

// transport reads what is at offset l4 of the datagram b, of whose header there is ip.
func (p *Packet) transport(b []byte, l4 int, ip Have) (have Have) {
	p.L4 = p.L3 + l4
	b = b[l4:]
	switch p.Proto {
	case ProtoTCP, ProtoUDP, ProtoSCTP:
		if len(b) < 4 {
			return 0
		}
		have = HavePorts
		p.SrcPort, p.DstPort = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
		const flags = 13
		if p.Proto == ProtoTCP && len(b) > flags {
			have |= HaveTCP
			p.TCPFlags = b[flags]
		}
	case ProtoICMP, ProtoICMPv6:
		if len(b) < 2 {
			return 0
		}
		if isV4 := ip&HaveIPv4 != 0; isV4 == (p.Proto == ProtoICMP) {
			have = HaveICMP
			p.ICMPType, p.ICMPCode = b[0], b[1]
		}
	}
	return have
}
