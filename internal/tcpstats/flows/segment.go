package flows

import (
	"encoding/binary"

	"oxpd/internal/frame"
)

// Offsets in a TCP header, and its options (RFC 9293, RFC 7323).
const (
	tcpSeq    = 4
	tcpAck    = 8
	tcpOffset = 12 // of the data, in the high half, in words
	tcpWindow = 14
	tcpSize   = 20

	tcpECE = 1 << 6 // of the flags
	tcpCWR = 1 << 7

	optEnd    = 0
	optNop    = 1
	optMSS    = 2
	optWScale = 3
	optSACK   = 4
	optTime   = 8

	maxWScale = 14 // RFC 7323 2.3

	ip4Length = 2 // u16
	ip6Length = 4 // u16
	ip6Size   = 40
)

// segment is one TCP segment.
type segment struct {
	now      int64
	seq, ack uint32
	bytes    uint32 // of payload
	window   uint32 // as it is in the header
	flags    uint8
	out      bool

	// Of a SYN.
	mss                   uint16 // 0: not said
	wscale                uint8
	hasWScale, sack, time bool
}

// read reads the TCP header of a frame whose headers are known. ok is false when it is
// not whole, or contradicts itself.
func (s *segment) read(head *frame.Packet, first []byte, frameBytes int) bool {
	l3, l4 := head.L3, head.L4
	if len(first) < l4+tcpSize {
		return false
	}
	end := 0
	if head.Have&frame.HaveIPv4 != 0 {
		end = l3 + int(binary.BigEndian.Uint16(first[l3+ip4Length:]))
	} else {
		end = l3 + ip6Size + int(binary.BigEndian.Uint16(first[l3+ip6Length:]))
	}
	tcp := first[l4:]
	data := l4 + int(tcp[tcpOffset]>>4)*4
	if data < l4+tcpSize || end < data || end > frameBytes {
		return false
	}
	s.seq, s.ack = binary.BigEndian.Uint32(tcp[tcpSeq:]), binary.BigEndian.Uint32(tcp[tcpAck:])
	s.window = uint32(binary.BigEndian.Uint16(tcp[tcpWindow:]))
	s.flags = head.TCPFlags
	s.bytes = uint32(end - data)
	if s.flags&frame.TCPSYN != 0 {
		s.options(first[l4+tcpSize : min(data, len(first))])
	}
	return true
}

// options reads those of a SYN. What is malformed ends them.
func (s *segment) options(b []byte) {
	for len(b) > 0 && b[0] != optEnd {
		if b[0] == optNop {
			b = b[1:]
			continue
		}
		if len(b) < 2 || b[1] < 2 || int(b[1]) > len(b) {
			return
		}
		switch o := b[:b[1]]; {
		case o[0] == optMSS && len(o) == 4:
			s.mss = binary.BigEndian.Uint16(o[2:])
		case o[0] == optWScale && len(o) == 3:
			s.wscale, s.hasWScale = min(o[2], maxWScale), true
		case o[0] == optSACK && len(o) == 2:
			s.sack = true
		case o[0] == optTime && len(o) == 10:
			s.time = true
		}
		b = b[b[1]:]
	}
}

// ecn tells whether a SYN asks for explicit congestion notification, or the answer to one
// takes it (RFC 3168 6.1.1).
func (s *segment) ecn() bool {
	want := uint8(tcpECE | tcpCWR)
	if s.flags&frame.TCPACK != 0 {
		want = tcpECE
	}
	return s.flags&(tcpECE|tcpCWR) == want
}

// length is how much of the sequence space a segment takes.
func (s *segment) length() uint32 {
	n := s.bytes
	if s.flags&frame.TCPSYN != 0 {
		n++
	}
	if s.flags&frame.TCPFIN != 0 {
		n++
	}
	return n
}

// after tells whether a sequence number is behind another (RFC 1982).
func after(a, b uint32) bool { return int32(a-b) > 0 }
