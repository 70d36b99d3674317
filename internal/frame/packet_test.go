package frame

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/capture"
	"oxpd/testdata/captures"
)

// Datagrams of these tests go from here to there.
var (
	src4, dst4 = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.2")
	src6, dst6 = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8:1::2")
)

func cat(parts ...[]byte) []byte { return slices.Concat(parts...) }

// v4 makes a datagram without options around a payload.
func v4(proto uint8, payload []byte) []byte {
	b := make([]byte, ipv4Size)
	b[0], b[8], b[9] = 0x45, 64, proto
	binary.BigEndian.PutUint16(b[2:], uint16(ipv4Size+len(payload)))
	copy(b[12:], src4.AsSlice())
	copy(b[16:], dst4.AsSlice())
	return append(b, payload...)
}

// v6 makes a datagram around a payload, of which next is the first header.
func v6(next uint8, payload []byte) []byte {
	b := make([]byte, ipv6Size)
	b[0], b[6], b[7] = 0x60, next, 64
	binary.BigEndian.PutUint16(b[4:], uint16(len(payload)))
	copy(b[8:], src6.AsSlice())
	copy(b[24:], dst6.AsSlice())
	return append(b, payload...)
}

// extension makes an extension header of 8 and more times 8 bytes in front of next.
func extension(next uint8, more int) []byte {
	b := make([]byte, (more+1)*extUnit)
	b[0], b[1] = next, uint8(more)
	return b
}

// fragment makes a fragment header; the low bit of field is more, the rest from bit 3
// on the offset.
func fragment(next uint8, field uint16) []byte {
	b := []byte{next, 0, 0, 0, 0, 0, 0, 1}
	binary.BigEndian.PutUint16(b[2:], field)
	return b
}

func tcp(flags uint8) []byte {
	b := make([]byte, 20)
	copy(b, ports(1000, 443))
	b[12], b[13] = 5<<4, flags
	return b
}

func udp() []byte { return append(ports(1000, 53), 0, 8, 0, 0) }

func ports(src, dst uint16) []byte {
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, src), dst)
}

// edit changes one byte of a copy.
func edit(b []byte, at int, v uint8) []byte {
	b = slices.Clone(b)
	b[at] = v
	return b
}

func TestPacket(t *testing.T) {
	const (
		ip4    = HaveL2 | HaveIPv4 | HaveProto
		ip6    = HaveL2 | HaveIPv6
		known6 = ip6 | HaveProto
		hop    = protoHopByHop
		route  = protoRouting
		opts   = protoOptions
		frag   = protoFragment
	)
	plain4, plain6 := build(0, TypeIPv4), build(0, TypeIPv6)
	tagged := build(0, TypeVLAN, TypeIPv4)
	double := build(0, TypeQinQ, TypeVLAN, TypeIPv6)
	withOptions := edit(v4(ProtoUDP, cat(make([]byte, 8), udp())), 0, 0x47)
	for _, tc := range []struct {
		name string
		in   []byte
		want Packet // without Header and addresses
	}{
		{"one byte short of Ethernet", make([]byte, 13), Packet{}},
		{"ARP", build(46, TypeARP), Packet{Have: HaveL2}},
		{"802.3 length", build(46, 46), Packet{Have: HaveL2}},
		{"a tag that is not whole", cat(tagged, v4(ProtoUDP, udp()))[:17], Packet{}},
		{"three tags", cat(build(0, TypeVLAN, TypeVLAN, TypeVLAN, TypeIPv4), v4(ProtoUDP, udp())), Packet{Have: HaveL2, VLAN: [2]uint16{0, 1}}},

		{"IPv4: UDP", cat(plain4, v4(ProtoUDP, udp())), Packet{Have: ip4 | HavePorts, Proto: ProtoUDP, L4: 34, SrcPort: 1000, DstPort: 53}},
		{"IPv4: UDP with a tag", cat(tagged, v4(ProtoUDP, udp())), Packet{Have: ip4 | HavePorts, Proto: ProtoUDP, L4: 38, SrcPort: 1000, DstPort: 53}},
		{"IPv4: TCP", cat(plain4, v4(ProtoTCP, tcp(0x12))), Packet{Have: ip4 | HavePorts | HaveTCP, Proto: ProtoTCP, L4: 34, SrcPort: 1000, DstPort: 443, TCPFlags: 0x12}},
		{"IPv4: SCTP", cat(plain4, v4(ProtoSCTP, ports(1, 2))), Packet{Have: ip4 | HavePorts, Proto: ProtoSCTP, L4: 34, SrcPort: 1, DstPort: 2}},
		{"IPv4: ICMP", cat(plain4, v4(ProtoICMP, []byte{3, 4, 0, 0})), Packet{Have: ip4 | HaveICMP, Proto: ProtoICMP, L4: 34, ICMPType: 3, ICMPCode: 4}},
		{"IPv4: ICMPv6 is none", cat(plain4, v4(ProtoICMPv6, []byte{128, 0, 0, 0})), Packet{Have: ip4, Proto: ProtoICMPv6, L4: 34}},
		{"IPv4: GRE", cat(plain4, v4(ProtoGRE, make([]byte, 20))), Packet{Have: ip4, Proto: ProtoGRE, L4: 34}},
		{"IPv4: AH is the protocol", cat(plain4, v4(ProtoAH, make([]byte, 40))), Packet{Have: ip4, Proto: ProtoAH, L4: 34}},
		{"IPv4: 0 is no extension", cat(plain4, v4(0, make([]byte, 40))), Packet{Have: ip4, L4: 34}},
		{"IPv4: options", cat(plain4, withOptions), Packet{Have: ip4 | HavePorts, Proto: ProtoUDP, L4: 42, SrcPort: 1000, DstPort: 53}},
		{"IPv4: options that are not whole", cat(plain4, withOptions)[:41], Packet{Have: HaveL2}},
		{"IPv4: options and nothing else", cat(plain4, withOptions)[:42], Packet{Have: ip4, Proto: ProtoUDP, L4: 42}},
		{"IPv4: one byte short of a header", cat(plain4, v4(ProtoUDP, udp()))[:33], Packet{Have: HaveL2}},
		{"IPv4: a header and nothing else", cat(plain4, v4(ProtoUDP, udp()))[:34], Packet{Have: ip4, Proto: ProtoUDP, L4: 34}},
		{"IPv4: three bytes of UDP", cat(plain4, v4(ProtoUDP, udp()))[:37], Packet{Have: ip4, Proto: ProtoUDP, L4: 34}},
		{"IPv4: four bytes of UDP", cat(plain4, v4(ProtoUDP, udp()))[:38], Packet{Have: ip4 | HavePorts, Proto: ProtoUDP, L4: 34, SrcPort: 1000, DstPort: 53}},
		{"IPv4: TCP up to its flags", cat(plain4, v4(ProtoTCP, tcp(2)))[:47], Packet{Have: ip4 | HavePorts, Proto: ProtoTCP, L4: 34, SrcPort: 1000, DstPort: 443}},
		{"IPv4: TCP with its flags", cat(plain4, v4(ProtoTCP, tcp(2)))[:48], Packet{Have: ip4 | HavePorts | HaveTCP, Proto: ProtoTCP, L4: 34, SrcPort: 1000, DstPort: 443, TCPFlags: 2}},
		{"IPv4: one byte of ICMP", cat(plain4, v4(ProtoICMP, []byte{8})), Packet{Have: ip4, Proto: ProtoICMP, L4: 34}},
		{"IPv4: version 6", cat(plain4, edit(v4(ProtoUDP, udp()), 0, 0x65)), Packet{Have: HaveL2}},
		{"IPv4: header length 4", cat(plain4, edit(v4(ProtoUDP, udp()), 0, 0x44)), Packet{Have: HaveL2}},
		{"IPv4: header length 15 in 28 bytes", cat(plain4, edit(v4(ProtoUDP, udp()), 0, 0x4f)), Packet{Have: HaveL2}},
		{"IPv4: total length 0", cat(plain4, edit(v4(ProtoUDP, udp()), 3, 0)), Packet{Have: HaveL2}},
		{"IPv4: total length 19", cat(plain4, edit(v4(ProtoUDP, udp()), 3, 19)), Packet{Have: HaveL2}},
		{"IPv4: total length 20, padded", cat(plain4, edit(v4(ProtoUDP, udp()), 3, 20)), Packet{Have: ip4, Proto: ProtoUDP, L4: 34}},
		{"IPv4: total length 23, padded", cat(plain4, edit(v4(ProtoUDP, udp()), 3, 23)), Packet{Have: ip4, Proto: ProtoUDP, L4: 34}},
		{"IPv4: total length 33, padded", cat(plain4, edit(v4(ProtoTCP, tcp(2)), 3, 33)), Packet{Have: ip4 | HavePorts, Proto: ProtoTCP, L4: 34, SrcPort: 1000, DstPort: 443}},
		{"IPv4: total length behind the frame", cat(plain4, edit(v4(ProtoUDP, udp()), 2, 0xff)), Packet{Have: ip4 | HavePorts, Proto: ProtoUDP, L4: 34, SrcPort: 1000, DstPort: 53}},
		{"IPv4: not to be cut", cat(plain4, edit(v4(ProtoUDP, udp()), 6, 0x40)), Packet{Have: ip4 | HavePorts, Proto: ProtoUDP, L4: 34, SrcPort: 1000, DstPort: 53}},
		{"IPv4: the first part", cat(plain4, edit(v4(ProtoUDP, udp()), 6, 0x20)), Packet{Have: ip4 | HaveFrag | HavePorts, Proto: ProtoUDP, L4: 34, SrcPort: 1000, DstPort: 53}},
		{"IPv4: a part in the middle", cat(plain4, edit(edit(v4(ProtoUDP, udp()), 6, 0x20), 7, 1)), Packet{Have: ip4 | HaveFrag | HaveLater, Proto: ProtoUDP}},
		{"IPv4: the last part", cat(plain4, edit(v4(ProtoTCP, tcp(2)), 7, 1)), Packet{Have: ip4 | HaveFrag | HaveLater, Proto: ProtoTCP}},
		{"IPv4: the last part, far behind", cat(plain4, edit(v4(ProtoICMP, udp()), 6, 0x10)), Packet{Have: ip4 | HaveFrag | HaveLater, Proto: ProtoICMP}},

		{"IPv6: UDP", cat(plain6, v6(ProtoUDP, udp())), Packet{Have: known6 | HavePorts, Proto: ProtoUDP, L4: 54, SrcPort: 1000, DstPort: 53}},
		{"IPv6: two tags", cat(double, v6(ProtoTCP, tcp(0x10))), Packet{Have: known6 | HavePorts | HaveTCP, VLAN: [2]uint16{0, 1}, Proto: ProtoTCP, L4: 62, SrcPort: 1000, DstPort: 443, TCPFlags: 0x10}},
		{"IPv6: ICMPv6", cat(plain6, v6(ProtoICMPv6, []byte{135, 0, 0, 0})), Packet{Have: known6 | HaveICMP, Proto: ProtoICMPv6, L4: 54, ICMPType: 135}},
		{"IPv6: ICMP is none", cat(plain6, v6(ProtoICMP, []byte{8, 0, 0, 0})), Packet{Have: known6, Proto: ProtoICMP, L4: 54}},
		{"IPv6: no next header", cat(plain6, v6(59, nil)), Packet{Have: known6, Proto: 59, L4: 54}},
		{"IPv6: version 4", cat(plain6, edit(v6(ProtoUDP, udp()), 0, 0x40)), Packet{Have: HaveL2}},
		{"IPv6: one byte short of a header", cat(plain6, v6(ProtoUDP, udp()))[:53], Packet{Have: HaveL2}},
		{"IPv6: payload length 0, padded", cat(plain6, edit(v6(ProtoUDP, udp()), 5, 0)), Packet{Have: known6, Proto: ProtoUDP, L4: 54}},
		{"IPv6: payload length 3, padded", cat(plain6, edit(v6(ProtoUDP, udp()), 5, 3)), Packet{Have: known6, Proto: ProtoUDP, L4: 54}},
		{"IPv6: payload length behind the frame", cat(plain6, edit(v6(ProtoUDP, udp()), 4, 0xff)), Packet{Have: known6 | HavePorts, Proto: ProtoUDP, L4: 54, SrcPort: 1000, DstPort: 53}},
		{"IPv6: one of each extension", cat(plain6, v6(hop, cat(extension(opts, 1), extension(route, 0), extension(frag, 2), fragment(ProtoAH, 0), extension(ProtoUDP, 4)[:24], udp()))),
			Packet{Have: known6 | HavePorts, Proto: ProtoUDP, L4: 54 + 16 + 8 + 24 + 8 + 24, SrcPort: 1000, DstPort: 53}},
		{"IPv6: eight extensions", cat(plain6, v6(opts, cat(bytes.Repeat(extension(opts, 0), 7), extension(ProtoUDP, 0), udp()))), Packet{Have: known6 | HavePorts, Proto: ProtoUDP, L4: 54 + 64, SrcPort: 1000, DstPort: 53}},
		{"IPv6: nine extensions", cat(plain6, v6(opts, cat(bytes.Repeat(extension(opts, 0), 8), extension(ProtoUDP, 0), udp()))), Packet{Have: ip6}},
		{"IPv6: an extension behind the frame's end", cat(plain6, v6(opts, cat(extension(ProtoUDP, 9)[:16], udp()))), Packet{Have: ip6}},
		{"IPv6: an extension behind the datagram's end", cat(plain6, edit(v6(opts, cat(extension(ProtoUDP, 0), udp())), 5, 7)), Packet{Have: ip6}},
		{"IPv6: an extension up to the datagram's end", cat(plain6, edit(v6(opts, cat(extension(ProtoUDP, 0), udp())), 5, 8)), Packet{Have: known6, Proto: ProtoUDP, L4: 62}},
		{"IPv6: seven bytes of an extension", cat(plain6, v6(hop, extension(ProtoUDP, 0)[:7])), Packet{Have: ip6}},
		{"IPv6: eleven bytes of AH", cat(plain6, v6(ProtoAH, edit(extension(ProtoUDP, 1), 1, 1)[:11])), Packet{Have: ip6}},
		{"IPv6: twelve bytes of AH", cat(plain6, v6(ProtoAH, edit(extension(ProtoUDP, 1), 1, 1)[:12])), Packet{Have: known6, Proto: ProtoUDP, L4: 66}},
		{"IPv6: AH that says it has eight bytes", cat(plain6, v6(ProtoAH, cat(extension(ProtoUDP, 0), udp()))), Packet{Have: ip6}},
		{"IPv6: seven bytes of a fragment header", cat(plain6, v6(frag, fragment(ProtoUDP, 1)[:7])), Packet{Have: ip6}},
		{"IPv6: whole behind a fragment header", cat(plain6, v6(frag, cat(fragment(ProtoUDP, 0), udp()))), Packet{Have: known6 | HavePorts, Proto: ProtoUDP, L4: 62, SrcPort: 1000, DstPort: 53}},
		{"IPv6: reserved bits of a fragment header", cat(plain6, v6(frag, cat(fragment(ProtoUDP, 6), udp()))), Packet{Have: known6 | HavePorts, Proto: ProtoUDP, L4: 62, SrcPort: 1000, DstPort: 53}},
		{"IPv6: the first part", cat(plain6, v6(frag, cat(fragment(ProtoUDP, 1), udp()))), Packet{Have: known6 | HaveFrag | HavePorts, Proto: ProtoUDP, L4: 62, SrcPort: 1000, DstPort: 53}},
		{"IPv6: a later part", cat(plain6, v6(frag, cat(fragment(ProtoUDP, 8), udp()))), Packet{Have: known6 | HaveFrag | HaveLater, Proto: ProtoUDP}},
		{"IPv6: a later part of something behind an extension", cat(plain6, v6(frag, cat(fragment(opts, 8), udp()))), Packet{Have: ip6 | HaveFrag | HaveLater}},
		{"IPv6: the first part of something behind an extension", cat(plain6, v6(frag, cat(fragment(opts, 1), extension(ProtoUDP, 0), udp()))), Packet{Have: known6 | HaveFrag | HavePorts, Proto: ProtoUDP, L4: 70, SrcPort: 1000, DstPort: 53}},
		{"IPv6: ESP ends the walk", cat(plain6, v6(ProtoESP, make([]byte, 40))), Packet{Have: known6, Proto: ProtoESP, L4: 54}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := Packet{Have: 0xffff, Proto: 1, srcHi: 1, dstLo: 1}
			got.Parse(tc.in, len(tc.in))
			want := tc.want
			want.Header, _ = Parse(tc.in)
			switch {
			case want.Have&HaveIPv4 != 0:
				assert.Equal(t, []netip.Addr{src4, dst4}, []netip.Addr{got.Src(), got.Dst()})
			case want.Have&HaveIPv6 != 0:
				assert.Equal(t, []netip.Addr{src6, dst6}, []netip.Addr{got.Src(), got.Dst()})
			default:
				assert.Equal(t, []netip.Addr{{}, {}}, []netip.Addr{got.Src(), got.Dst()})
			}
			want.srcHi, want.srcLo = got.SrcWords()
			want.dstHi, want.dstLo = got.DstWords()
			assert.Equal(t, want, got)
		})
	}
}

func TestPacketVLAN(t *testing.T) {
	b := build(46, TypeQinQ, TypeVLAN, TypeARP)
	binary.BigEndian.PutUint16(b[14:], 0xf000|100)
	binary.BigEndian.PutUint16(b[18:], 0x1000|4095)
	var p Packet
	p.Parse(b, len(b))
	assert.Equal(t, [MaxVLANs]uint16{100, 4095}, p.VLAN, "without priority")
}

// TestPacketOfAFrameThatEnds: what is at hand behind the frame's end does not count.
func TestPacketOfAFrameThatEnds(t *testing.T) {
	b := cat(build(0, TypeIPv4), v4(ProtoUDP, udp()))
	for _, tc := range []struct {
		name       string
		frameBytes int
		want       Have
	}{
		{"longer than what is at hand", 9000, HaveL2 | HaveIPv4 | HaveProto | HavePorts},
		{"in the ports", 37, HaveL2 | HaveIPv4 | HaveProto},
		{"in the IPv4 header", 33, HaveL2},
		{"in the Ethernet header", 3, HaveL2},
		{"nowhere", -1, HaveL2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var p Packet
			p.Parse(b, tc.frameBytes)
			assert.Equal(t, tc.want, p.Have)
		})
	}
}

func TestPacketParseAllocatesNothing(t *testing.T) {
	b := cat(build(0, TypeVLAN, TypeIPv6), v6(protoOptions, cat(extension(ProtoTCP, 0), tcp(2))))
	var p Packet
	assert.Zero(t, testing.AllocsPerRun(100, func() { p.Parse(b, len(b)) }))
	require.NotZero(t, p.Have&HaveTCP)
}

// oracle reads a frame's headers with gopacket's code, layer by layer. gopacket has
// another opinion on fragments and on datagrams that say they have no length; there
// it is not asked.
func oracle(b []byte) Packet {
	var p Packet
	var eth layers.Ethernet
	if eth.DecodeFromBytes(b, gopacket.NilDecodeFeedback) != nil {
		return Packet{}
	}
	p.EtherType, p.L3 = binary.BigEndian.Uint16(b[12:]), HeaderSize
	rest := b[HeaderSize:]
	for p.VLANs < MaxVLANs && (p.EtherType == TypeVLAN || p.EtherType == TypeQinQ) {
		var tag layers.Dot1Q
		if tag.DecodeFromBytes(rest, gopacket.NilDecodeFeedback) != nil {
			return Packet{}
		}
		p.VLAN[p.VLANs] = tag.VLANIdentifier
		p.VLANs++
		p.L3 += VLANSize
		p.EtherType, rest = uint16(tag.Type), tag.Payload
	}
	p.Have = HaveL2
	switch {
	case p.EtherType == TypeIPv4 && len(rest) > 3 && rest[0]>>4 == 4 && (rest[2] != 0 || rest[3] != 0):
		p.oracle4(rest)
	case p.EtherType == TypeIPv6 && len(rest) > 6 && rest[0]>>4 == 6:
		p.oracle6(rest)
	}
	return p
}

func (p *Packet) setAddrs(src, dst []byte) {
	words := func(b []byte) (hi, lo uint64) {
		if len(b) == 4 {
			return 0, uint64(binary.BigEndian.Uint32(b))
		}
		return binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])
	}
	p.srcHi, p.srcLo = words(src)
	p.dstHi, p.dstLo = words(dst)
}

func (p *Packet) oracle4(b []byte) {
	var ip layers.IPv4
	if ip.DecodeFromBytes(withoutOptions(b), gopacket.NilDecodeFeedback) != nil {
		return
	}
	p.Have |= HaveIPv4 | HaveProto
	p.Proto = uint8(ip.Protocol)
	p.setAddrs(ip.SrcIP, ip.DstIP)
	if ip.Flags&layers.IPv4MoreFragments != 0 || ip.FragOffset != 0 {
		p.Have |= HaveFrag
	}
	if ip.FragOffset != 0 {
		p.Have |= HaveLater
		return
	}
	p.oracleL4(ip.Payload, p.L3+int(ip.IHL)*4)
}

// withoutOptions is an IPv4 datagram whose options are all padding: gopacket reads
// them, and refuses the datagram for what is wrong in them.
func withoutOptions(b []byte) []byte {
	b = slices.Clone(b)
	for i := ipv4Size; i < min(int(b[0]&15)*4, len(b)); i++ {
		b[i] = 1
	}
	return b
}

func (p *Packet) oracle6(b []byte) {
	next, payload := b[6], int(binary.BigEndian.Uint16(b[4:]))
	b = edit(edit(b, 6, uint8(layers.IPProtocolNoNextHeader)), 5, max(b[5], 1)) // hop-by-hop options and length 0 mean more to gopacket
	var ip layers.IPv6
	if ip.DecodeFromBytes(b, gopacket.NilDecodeFeedback) != nil {
		return
	}
	p.Have |= HaveIPv6
	p.setAddrs(ip.SrcIP, ip.DstIP)
	rest, at := ip.Payload[:min(len(ip.Payload), payload)], p.L3+ipv6Size
	for n := 0; isExtension(next); n++ {
		if n == MaxExtensions {
			return
		}
		was := len(rest)
		switch layers.IPProtocol(next) {
		case layers.IPProtocolAH:
			ah, ok := gopacket.NewPacket(rest, layers.LayerTypeIPSecAH, gopacket.Lazy).Layer(layers.LayerTypeIPSecAH).(*layers.IPSecAH)
			if !ok {
				return
			}
			next, rest = uint8(ah.NextHeader), ah.Payload
		case layers.IPProtocolIPv6Fragment:
			part, ok := gopacket.NewPacket(rest, layers.LayerTypeIPv6Fragment, gopacket.Lazy).Layer(layers.LayerTypeIPv6Fragment).(*layers.IPv6Fragment)
			if !ok {
				return
			}
			next, rest = uint8(part.NextHeader), part.Payload
			if part.MoreFragments || part.FragmentOffset != 0 {
				p.Have |= HaveFrag
			}
			if part.FragmentOffset != 0 {
				p.Have |= HaveLater
				if !isExtension(next) {
					p.Have |= HaveProto
					p.Proto = next
				}
				return
			}
		default:
			var ext layers.IPv6ExtensionSkipper
			if ext.DecodeFromBytes(rest, gopacket.NilDecodeFeedback) != nil {
				return
			}
			next, rest = uint8(ext.NextHeader), ext.Payload
		}
		at += was - len(rest)
	}
	p.Have |= HaveProto
	p.Proto = next
	p.oracleL4(rest, at)
}

// oracleL4 reads layer 4. gopacket wants whole headers: bytes that are missing are
// made up, and what lies in them is not counted.
func (p *Packet) oracleL4(b []byte, at int) {
	p.L4 = at
	have := len(b)
	b = append(slices.Clone(b[:min(have, 20)]), make([]byte, 20)...)
	isV4 := p.Have&HaveIPv4 != 0
	switch proto := layers.IPProtocol(p.Proto); {
	case proto == layers.IPProtocolTCP && have >= 4:
		var tcp layers.TCP
		b[12] = 5 << 4 // no options
		if tcp.DecodeFromBytes(b, gopacket.NilDecodeFeedback) != nil {
			return
		}
		p.Have |= HavePorts
		p.SrcPort, p.DstPort = uint16(tcp.SrcPort), uint16(tcp.DstPort)
		if have < 14 {
			return
		}
		p.Have |= HaveTCP
		for i, set := range []bool{tcp.FIN, tcp.SYN, tcp.RST, tcp.PSH, tcp.ACK, tcp.URG, tcp.ECE, tcp.CWR} {
			if set {
				p.TCPFlags |= 1 << i
			}
		}
	case proto == layers.IPProtocolUDP && have >= 4:
		var udp layers.UDP
		copy(b[4:], []byte{0, 8})
		if udp.DecodeFromBytes(b, gopacket.NilDecodeFeedback) != nil {
			return
		}
		p.Have |= HavePorts
		p.SrcPort, p.DstPort = uint16(udp.SrcPort), uint16(udp.DstPort)
	case proto == layers.IPProtocolSCTP && have >= 4:
		sctp, ok := gopacket.NewPacket(b, layers.LayerTypeSCTP, gopacket.Lazy).Layer(layers.LayerTypeSCTP).(*layers.SCTP)
		if !ok {
			return
		}
		p.Have |= HavePorts
		p.SrcPort, p.DstPort = uint16(sctp.SrcPort), uint16(sctp.DstPort)
	case proto == layers.IPProtocolICMPv4 && isV4 && have >= 2:
		var icmp layers.ICMPv4
		if icmp.DecodeFromBytes(b, gopacket.NilDecodeFeedback) == nil {
			p.Have |= HaveICMP
			p.ICMPType, p.ICMPCode = icmp.TypeCode.Type(), icmp.TypeCode.Code()
		}
	case proto == layers.IPProtocolICMPv6 && !isV4 && have >= 2:
		var icmp layers.ICMPv6
		if icmp.DecodeFromBytes(b, gopacket.NilDecodeFeedback) == nil {
			p.Have |= HaveICMP
			p.ICMPType, p.ICMPCode = icmp.TypeCode.Type(), icmp.TypeCode.Code()
		}
	}
}

// agrees compares Parse with gopacket's reading of the same bytes.
func agrees(t *testing.T, b []byte) {
	t.Helper()
	var got Packet
	got.Parse(b, len(b))
	if want := oracle(b); got != want {
		require.Equal(t, want, got, "% x", b)
	}
}

// TestPacketAsGopacket reads the captures, cut everywhere, and random frames with
// bytes that lie.
func TestPacketAsGopacket(t *testing.T) {
	t.Run("captures", func(t *testing.T) {
		names, err := captures.Names()
		require.NoError(t, err)
		frames := 0
		for _, name := range names {
			raw, err := captures.Read(name)
			require.NoError(t, err)
			r, err := capture.NewReader(bytes.NewReader(raw), name)
			require.NoError(t, err)
			for {
				rec, err := r.Next()
				if errors.Is(err, io.EOF) {
					break
				}
				require.NoError(t, err)
				frames++
				for cut := range min(len(rec.Frame), 128) {
					agrees(t, rec.Frame[:cut])
				}
				agrees(t, rec.Frame)
			}
		}
		assert.NotZero(t, frames)
	})
	t.Run("random", func(t *testing.T) {
		rnd := rand.New(rand.NewPCG(7, 1))
		var seen Have
		for range 20_000 {
			b := randomFrame(rnd)
			for range rnd.IntN(3) {
				b[rnd.IntN(len(b))] = uint8(rnd.Uint32())
			}
			b = b[:len(b)-rnd.IntN(2)*rnd.IntN(len(b))]
			agrees(t, b)
			var p Packet
			p.Parse(b, len(b))
			seen |= p.Have
		}
		assert.Equal(t, HaveICMP<<1-1, seen, "the frames have everything")
	})
}

// randomFrame makes a frame that is most likely well formed.
func randomFrame(rnd *rand.Rand) []byte {
	protos := []uint8{ProtoICMP, ProtoTCP, ProtoUDP, ProtoSCTP, ProtoICMPv6, ProtoGRE, ProtoAH, protoHopByHop, protoFragment}
	payload := make([]byte, rnd.IntN(40))
	for i := range payload {
		payload[i] = uint8(rnd.Uint32())
	}
	proto := protos[rnd.IntN(len(protos))]
	datagram := v4(proto, payload)
	types := []uint16{TypeVLAN, TypeQinQ, TypeIPv4}[rnd.IntN(3):]
	switch {
	case rnd.IntN(2) == 0:
		types = append(slices.Clone(types[:len(types)-1]), TypeIPv6)
		for range rnd.IntN(MaxExtensions + 2) {
			var head []byte
			switch next := proto; rnd.IntN(5) {
			case 0:
				proto, head = protoHopByHop, extension(next, rnd.IntN(3))
			case 1:
				proto, head = protoRouting, extension(next, rnd.IntN(3))
			case 2:
				proto, head = protoOptions, extension(next, rnd.IntN(3))
			case 3:
				proto, head = ProtoAH, edit(make([]byte, 16), 1, 2)
				head[0] = next
			default:
				proto, head = protoFragment, fragment(next, uint16(rnd.IntN(10)))
			}
			payload = cat(head, payload)
		}
		datagram = v6(proto, payload)
	case rnd.IntN(2) == 0:
		datagram = v4(proto, cat(make([]byte, 4*rnd.IntN(3)), payload))
		datagram[0] += uint8(rnd.IntN(3))
		datagram[6] = uint8(rnd.IntN(4)) << 5
	}
	return cat(build(0, types...), datagram, make([]byte, rnd.IntN(20)))
}

// FuzzPacket: whatever arrives is read as gopacket reads it, and a shorter beginning
// of the same frame has nothing that the longer one has not.
func FuzzPacket(f *testing.F) {
	rnd := rand.New(rand.NewPCG(7, 2))
	for range 20 {
		b := randomFrame(rnd)
		f.Add(b, len(b))
	}
	f.Add(cat(build(0, TypeIPv6), v6(protoFragment, fragment(protoOptions, 8))), 9000)
	f.Fuzz(func(t *testing.T, b []byte, frameBytes int) {
		agrees(t, b)
		var whole Packet
		whole.Parse(b, len(b))
		cut := min(max(frameBytes, 0), len(b))
		var part Packet
		part.Parse(b[:cut], frameBytes)
		require.Zero(t, part.Have&^whole.Have)
		if part.Have == whole.Have {
			require.Equal(t, whole, part)
		}
	})
}

func BenchmarkPacketParse(b *testing.B) {
	for _, bc := range []struct {
		name string
		in   []byte
	}{
		{"frame=udp4", cat(build(0, TypeIPv4), v4(ProtoUDP, udp()))},
		{"frame=tcp4", cat(build(0, TypeIPv4), v4(ProtoTCP, tcp(2)))},
		{"frame=vlan,tcp6", cat(build(0, TypeVLAN, TypeIPv6), v6(ProtoTCP, tcp(2)))},
		{"frame=udp6,extensions=2", cat(build(0, TypeIPv6), v6(protoOptions, cat(extension(protoFragment, 0), fragment(ProtoUDP, 0), udp())))},
		{"frame=arp", build(46, TypeARP)},
	} {
		b.Run(bc.name, func(b *testing.B) {
			b.ReportAllocs()
			var p Packet
			for range b.N {
				p.Parse(bc.in, len(bc.in))
			}
		})
	}
}
