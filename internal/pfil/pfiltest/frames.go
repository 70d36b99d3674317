package pfiltest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"

	"oxpd/internal/capture"
	"oxpd/internal/frame"
	"oxpd/testdata/captures"
)

// Frame is a frame as a filter gets it.
type Frame struct {
	From  string // where it comes from, for messages
	Bytes []byte // at hand
	Wire  int    // length of the whole frame, at least that of Bytes
}

// String is the frame for a message: enough to make it again.
func (f Frame) String() string {
	const most = 160
	b, more := f.Bytes, ""
	if len(b) > most {
		b, more = b[:most], "..."
	}
	return fmt.Sprintf("%s, %d of %d bytes: %x%s", f.From, len(f.Bytes), f.Wire, b, more)
}

// perCapture bounds the frames that are taken of each capture.
const perCapture = 24

// Frames makes frames of every kind. The same seed gives the same frames.
func Frames(seed uint64) ([]Frame, error) {
	base, err := captured()
	if err != nil {
		return nil, err
	}
	base = append(base, Made()...)
	r := rand.New(rand.NewPCG(seed, 1))
	out := append([]Frame(nil), base...)
	for _, f := range base {
		out = append(out, cut(r, f), cut(r, f), lying(r, f), lying(r, f), cut(r, lying(r, f)))
	}
	for _, f := range Made() {
		out = append(out, liars(f)...)
	}
	for i := range 200 {
		out = append(out, random(r, i))
	}
	return out, nil
}

// captured are the beginnings of the captures, and the last frames of each.
func captured() ([]Frame, error) {
	names, err := captures.Names()
	if err != nil {
		return nil, err
	}
	var out []Frame
	for _, name := range names {
		file, err := captures.Read(name)
		if err != nil {
			return nil, err
		}
		r, err := capture.NewReader(bytes.NewReader(file), name)
		if err != nil {
			return nil, err
		}
		for i := 0; i < perCapture; i++ {
			rec, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, err
			}
			out = append(out, Frame{fmt.Sprintf("%s frame %d", name, i+1), bytes.Clone(rec.Frame), rec.WireBytes})
		}
	}
	return out, nil
}

// cut leaves a beginning of the frame; three times of four it ends among the headers.
func cut(r *rand.Rand, f Frame) Frame {
	n := r.IntN(len(f.Bytes) + 1)
	if r.IntN(4) > 0 {
		n = r.IntN(min(len(f.Bytes), 90) + 1)
	}
	return Frame{f.From + ", cut", f.Bytes[:n:n], f.Wire}
}

// lying changes up to three bytes among the headers, those of lengths, types and
// fragments before others.
func lying(r *rand.Rand, f Frame) Frame {
	b := bytes.Clone(f.Bytes)
	liars := []int{12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 23, 24, 25, 27, 47, 54, 55, 56, 57}
	for range 1 + r.IntN(3) {
		at := r.IntN(80)
		if r.IntN(4) > 0 {
			at = liars[r.IntN(len(liars))]
		}
		if at >= len(b) {
			continue
		}
		switch r.IntN(4) {
		case 0:
			b[at] = byte(r.Uint32())
		case 1:
			b[at] ^= 1 << r.IntN(8)
		case 2:
			b[at] = []byte{0, 1, 4, 6, 17, 43, 44, 51, 58, 60, 132, 0x40, 0x45, 0x4f, 0x60, 0xff}[r.IntN(16)]
		case 3:
			b[at]++
		}
	}
	return Frame{f.From + ", lying", b, f.Wire}
}

// liars are an untagged datagram of another version, of a header length that cannot
// be, two that say they end two bytes behind their header and with it, and two of
// which one and two bytes behind the header are at hand.
func liars(f Frame) (out []Frame) {
	lie := func(what string, at int, v ...byte) {
		b := bytes.Clone(f.Bytes)
		copy(b[at:], v)
		out = append(out, Frame{f.From + ", " + what, b, f.Wire})
	}
	const l3 = frame.HeaderSize
	cut := func(n int) {
		out = append(out, Frame{f.From + ", cut in layer 4", f.Bytes[:n:n], f.Wire})
	}
	switch binary.BigEndian.Uint16(f.Bytes[l3-2:]) {
	case frame.TypeIPv4:
		header := f.Bytes[l3] & 15
		lie("version 5", l3, 0x50|header)
		lie("header of 16 bytes", l3, 0x44)
		lie("longer by 2 than its header", l3+2, 0, header*4+2)
		lie("as long as its header", l3+2, 0, header*4)
		cut(l3 + int(header)*4 + 1)
		cut(l3 + int(header)*4 + 2)
	case frame.TypeIPv6:
		lie("version 4", l3, 0x40)
		lie("payload of 2 bytes", l3+4, 0, 2)
		lie("payload of no bytes", l3+4, 0, 0)
		cut(l3 + ipv6Size + 1)
		cut(l3 + ipv6Size + 2)
	}
	return out
}

// random is bytes without a sense, but for an EtherType in half of them.
func random(r *rand.Rand, i int) Frame {
	b := make([]byte, r.IntN(200))
	for j := range b {
		b[j] = byte(r.Uint32())
	}
	if types := []uint16{frame.TypeIPv4, frame.TypeIPv6, frame.TypeARP, frame.TypeVLAN, frame.TypeQinQ}; len(b) > 14 && i%2 == 0 {
		binary.BigEndian.PutUint16(b[12:], types[r.IntN(len(types))])
	}
	return Frame{fmt.Sprintf("random %d", i), b, len(b) + r.IntN(2)*r.IntN(9000)}
}

// Sizes and places of the headers that Made builds, in bytes.
const (
	ipv4Size = 20
	ipv6Size = 40
)

// Made are frames that captures do not have: each protocol of both families, with
// options, extension headers, tags, fragments.
func Made() []Frame {
	var out []Frame
	add := func(from string, b []byte) {
		for len(b) < 60 {
			b = append(b, 0)
		}
		out = append(out, Frame{from, b, len(b)})
	}
	udp := l4(5353, 53, 0, 8, 16)
	tcp := func(flags byte) []byte { b := l4(40000, 443, 0x5000|uint16(flags), 20, 6); return b }
	for _, p := range []struct {
		name   string
		proto  uint8
		header []byte
	}{
		{"udp", frame.ProtoUDP, udp}, {"tcp syn", frame.ProtoTCP, tcp(0x02)}, {"tcp syn ack", frame.ProtoTCP, tcp(0x12)},
		{"tcp rst", frame.ProtoTCP, tcp(0x04)}, {"tcp fin ack", frame.ProtoTCP, tcp(0x11)}, {"sctp", frame.ProtoSCTP, l4(36412, 36412, 0, 12, 4)},
		{"echo request", frame.ProtoICMP, []byte{8, 0, 0, 0, 0, 1, 0, 1}}, {"unreachable", frame.ProtoICMP, []byte{3, 4, 0, 0, 0, 0, 5, 220}},
		{"echo request 6", frame.ProtoICMPv6, []byte{128, 0, 0, 0, 0, 1, 0, 1}}, {"neighbor solicitation", frame.ProtoICMPv6, []byte{135, 0, 0, 0, 0, 0, 0, 0}},
		{"gre", frame.ProtoGRE, []byte{0, 0, 8, 0}}, {"esp", frame.ProtoESP, make([]byte, 16)}, {"igmp", 2, []byte{0x16, 0, 0, 0, 224, 0, 0, 251}},
	} {
		v4, v6 := ipv4(p.proto, 0, nil, p.header), ipv6(p.proto, p.header)
		add("made ip4 "+p.name, ether(frame.TypeIPv4, v4))
		add("made ip4 with options "+p.name, ether(frame.TypeIPv4, ipv4(p.proto, 0, make([]byte, 40), p.header)))
		add("made ip4 first fragment "+p.name, ether(frame.TypeIPv4, ipv4(p.proto, 0x2000, nil, p.header)))
		add("made ip4 later fragment "+p.name, ether(frame.TypeIPv4, ipv4(p.proto, 0x00b9, nil, p.header)))
		add("made ip6 "+p.name, ether(frame.TypeIPv6, v6))
		add("made ip6 hop-by-hop "+p.name, ether(frame.TypeIPv6, ipv6(0, extension(p.proto, 0, p.header))))
		add("made ip6 destination options of 24 bytes "+p.name, ether(frame.TypeIPv6, ipv6(60, extension(p.proto, 2, p.header))))
		add("made ip6 first fragment "+p.name, ether(frame.TypeIPv6, ipv6(44, fragment(p.proto, 1, p.header))))
		add("made ip6 later fragment "+p.name, ether(frame.TypeIPv6, ipv6(44, fragment(p.proto, 0x05a8, p.header))))
		add("made ip6 hop-by-hop, first fragment "+p.name, ether(frame.TypeIPv6, ipv6(0, extension(44, 0, fragment(p.proto, 1, p.header)))))
		add("made ip6 fragment of one "+p.name, ether(frame.TypeIPv6, ipv6(44, fragment(p.proto, 0, p.header))))
		add("made ip6 authentication header "+p.name, ether(frame.TypeIPv6, ipv6(51, append([]byte{p.proto, 4, 22: 0, 23: 0}, p.header...))))
		add("made vlan 100 ip4 "+p.name, ether(frame.TypeVLAN, tag(100, frame.TypeIPv4, v4)))
		add("made vlan 5 ip6 "+p.name, ether(frame.TypeVLAN, tag(5, frame.TypeIPv6, v6)))
		add("made qinq 7, 100 ip4 "+p.name, ether(frame.TypeQinQ, tag(7, frame.TypeVLAN, tag(100, frame.TypeIPv4, v4))))
	}
	chain := udp
	for range frame.MaxExtensions {
		chain = extension(60, 0, chain)
	}
	chain[len(chain)-len(udp)-8] = frame.ProtoUDP
	add("made ip6 most extension headers", ether(frame.TypeIPv6, ipv6(60, chain)))
	add("made ip6 too many extension headers", ether(frame.TypeIPv6, ipv6(60, extension(60, 0, chain))))
	add("made three tags", ether(frame.TypeQinQ, tag(7, frame.TypeVLAN, tag(100, frame.TypeVLAN, tag(5, frame.TypeIPv4, ipv4(17, 0, nil, udp))))))
	add("made tag 0x9100", ether(0x9100, tag(7, frame.TypeIPv4, ipv4(17, 0, nil, udp))))
	like := ipv6(frame.ProtoUDP, udp)
	copy(like[8:], []byte{12: 192, 13: 0, 14: 2, 15: 1})
	add("made ip6 from ::c000:201, which has the bits of 192.0.2.1", ether(frame.TypeIPv6, like))
	arp := []byte{0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1, 192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 192, 0, 2, 2}
	add("made arp", ether(frame.TypeARP, arp))
	add("made length 38, stp", ether(38, append([]byte{0x42, 0x42, 3}, make([]byte, 35)...)))
	add("made length 46, raw ipx", ether(46, append([]byte{0xff, 0xff}, make([]byte, 44)...)))
	add("made lldp", ether(0x88cc, make([]byte, 46)))
	return out
}

func ether(etherType uint16, payload []byte) []byte {
	b := []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1}
	return append(binary.BigEndian.AppendUint16(b, etherType), payload...)
}

// tag is what follows the EtherType of a VLAN tag.
func tag(id, etherType uint16, payload []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, 3<<13|id)
	return append(binary.BigEndian.AppendUint16(b, etherType), payload...)
}

func ipv4(proto uint8, frag uint16, options, payload []byte) []byte {
	b := make([]byte, ipv4Size, ipv4Size+len(options)+len(payload))
	b[0] = 0x40 | byte((ipv4Size+len(options))/4)
	binary.BigEndian.PutUint16(b[2:], uint16(cap(b)))
	binary.BigEndian.PutUint16(b[6:], frag)
	b[8], b[9] = 64, proto
	copy(b[12:], []byte{192, 0, 2, 1, 198, 51, 100, 7})
	return append(append(b, options...), payload...)
}

func ipv6(next uint8, payload []byte) []byte {
	b := make([]byte, ipv6Size, ipv6Size+len(payload))
	b[0] = 0x60
	binary.BigEndian.PutUint16(b[4:], uint16(len(payload)))
	b[6], b[7] = next, 64
	copy(b[8:], []byte{0x20, 0x01, 0x0d, 0xb8, 15: 1})
	copy(b[24:], []byte{0x20, 0x01, 0x0d, 0xb8, 0, 1, 15: 2})
	return append(b, payload...)
}

// extension is an IPv6 extension header of 8 bytes and units times 8 more.
func extension(next, units uint8, payload []byte) []byte {
	b := make([]byte, (int(units)+1)*8)
	b[0], b[1] = next, units
	return append(b, payload...)
}

func fragment(next uint8, offset uint16, payload []byte) []byte {
	b := make([]byte, 8)
	b[0] = next
	binary.BigEndian.PutUint16(b[2:], offset)
	return append(b, payload...)
}

// l4 is a header of size bytes with ports, then data bytes. word is what a TCP header
// has at offset 12: its length and its flags.
func l4(src, dst, word uint16, size, data int) []byte {
	b := make([]byte, size+data)
	binary.BigEndian.PutUint16(b, src)
	binary.BigEndian.PutUint16(b[2:], dst)
	if word != 0 {
		binary.BigEndian.PutUint16(b[12:], word)
	} else {
		binary.BigEndian.PutUint16(b[4:], uint16(len(b)))
	}
	return b
}
