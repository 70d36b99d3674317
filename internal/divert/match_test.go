package divert

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"oxpd/internal/frame"
)

// ether makes a frame of an EtherType, with tags.
func ether(kind uint16, packet []byte, tags ...uint16) []byte {
	b := []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2}
	for i, t := range tags {
		b = binary.BigEndian.AppendUint16(b, t)
		b = binary.BigEndian.AppendUint16(b, uint16(100+i))
	}
	return append(binary.BigEndian.AppendUint16(b, kind), packet...)
}

func ipv4(proto byte, l4 []byte) []byte {
	ip := make([]byte, ipv4Bytes)
	ip[0], ip[6], ip[8], ip[9] = 0x45, 0x40, 64, proto
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)+len(l4)))
	copy(ip[12:], []byte{10, 0, 0, 1, 10, 0, 0, 2})
	return append(ip, l4...)
}

func ipv6(proto byte, l4 []byte) []byte {
	ip := make([]byte, ipv6Bytes)
	ip[0], ip[6], ip[7], ip[23], ip[39] = 0x60, proto, 64, 1, 2
	binary.BigEndian.PutUint16(ip[4:], uint16(len(l4)))
	return append(ip, l4...)
}

// tcp is a segment of 100 bytes.
func tcp(seq byte) []byte {
	b := make([]byte, 20+100)
	copy(b, []byte{0x10, 0, 0x20, 0, 0, 0, 0, seq, 0, 0, 0, 9, 0x50, 0x10, 1, 0, 0xab, 0xcd})
	return b
}

// What an inline engine changes of a frame, it has to change more for: checksums. The
// frame is known for all that, and one that is only like it is not.
func TestFramesThatEnginesChange(t *testing.T) {
	tcp4, tcp6 := ether(frame.TypeIPv4, ipv4(frame.ProtoTCP, tcp(1))), ether(frame.TypeIPv6, ipv6(frame.ProtoTCP, tcp(1)))
	udp4 := ether(frame.TypeIPv4, ipv4(frame.ProtoUDP, tcp(1)[:50]))
	ping := ether(frame.TypeIPv4, ipv4(frame.ProtoICMP, []byte{8, 0, 1, 2, 0, 7, 0, 1, 'a', 'b'}))
	const ip, l4of4, l4of6 = frame.HeaderSize, frame.HeaderSize + ipv4Bytes, frame.HeaderSize + ipv6Bytes
	set := func(b []byte, at int, to ...byte) []byte {
		b = bytes.Clone(b)
		copy(b[at:], to)
		return b
	}
	for _, c := range []struct {
		name       string
		left, back []byte
		want       back
	}{
		{"the payload of TCP, and its checksum", tcp4, set(set(tcp4, l4of4+40, 'x'), l4of4+16, 1, 2), backReplaced},
		{"the payload of TCP over IPv6, and its checksum", tcp6, set(set(tcp6, l4of6+40, 'x'), l4of6+16, 1, 2), backReplaced},
		{"the window", tcp4, set(tcp4, l4of4+14, 9, 9, 1, 2), backReplaced},
		{"TTL and the header's checksum", tcp4, set(set(tcp4, ip+8, 63), ip+10, 1, 2), backReplaced},
		{"the hop limit", tcp6, set(tcp6, ip+7, 63), backReplaced},
		{"DSCP", tcp4, set(tcp4, ip+1, 0xb8), backReplaced},
		{"the payload of UDP, and its checksum", udp4, set(set(udp4, l4of4+8, 'x'), l4of4+6, 1, 2), backReplaced},
		{"the data of a ping, and its checksum", ping, set(set(ping, l4of4+8, 'x'), l4of4+2, 3, 4), backReplaced},
		{"the kind of the tag", ether(frame.TypeIPv4, ipv4(frame.ProtoTCP, tcp(1)), frame.TypeQinQ), ether(frame.TypeIPv4, ipv4(frame.ProtoTCP, tcp(1)), frame.TypeVLAN), backReplaced},
		{"what is no IP, behind its head", ether(0x88cc, make([]byte, 100)), ether(0x88cc, append(make([]byte, 99), 'x')), backReplaced},

		{"cut in the payload", tcp4, tcp4[:100], backShort},
		{"cut behind the part of TCP that is compared", tcp4, tcp4[:l4of4+tcpBytes], backShort},
		{"what is no IP, cut", ether(0x88cc, make([]byte, 100)), ether(0x88cc, make([]byte, 60)), backShort},
		{"cut in the ports", tcp4, tcp4[:l4of4+2], backCut},
		{"cut, and the engine cleared what it cut", tcp4, append(bytes.Clone(tcp4[:60]), make([]byte, 30)...), backShort},

		{"another segment", tcp4, ether(frame.TypeIPv4, ipv4(frame.ProtoTCP, tcp(2))), backInjected},
		{"another port", udp4, set(udp4, l4of4, 0x11), backInjected},
		{"a reset of the connection", tcp4, set(tcp4, l4of4+13, 0x04), backInjected},
		{"another address", tcp4, set(tcp4, ip+15, 9), backInjected},
		{"another ping", ping, set(ping, l4of4+7, 2), backInjected},
		{"the other direction", tcp4, set(tcp4, 0, tcp4[6:12]...), backInjected},
		{"nothing", tcp4, nil, backInjected},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLane()
			left(l, 1, c.left, 0)
			what, id := cameBack(l, c.back)
			assert.Equal(t, c.want, what)
			known := c.want == backReplaced || c.want == backShort
			assert.Equal(t, known, id == 1)
			emptied(t, l)
		})
	}
}

// Datagrams of a sender that numbers none of them have one head. Each is known by all of
// its bytes, in whatever order they come back, and one that was changed is not one of those
// that were not.
func TestManyFramesOfOneHead(t *testing.T) {
	const frames = 5000
	l := newLane()
	made := func(i int) []byte {
		b := make([]byte, 50)
		binary.BigEndian.PutUint32(b[10:], uint32(i))
		return ether(frame.TypeIPv4, ipv4(frame.ProtoUDP, b))
	}
	for i := range frames {
		left(l, uint64(i), made(i), 0)
	}
	for i := frames - 1; i > 0; i-- {
		what, id := cameBack(l, made(i))
		assert.Equal(t, backSame, what)
		assert.Equal(t, uint64(i), id)
	}
	what, id := cameBack(l, made(frames)) // no such frame left: number 0 was changed
	assert.Equal(t, backReplaced, what)
	assert.Zero(t, id)
	what, _ = cameBack(l, made(0))
	assert.Equal(t, backInjected, what)
}

func TestLaneDoesNotAllocate(t *testing.T) {
	l := newLane()
	b := ether(frame.TypeIPv4, ipv4(frame.ProtoTCP, tcp(1)))
	changed := bytes.Clone(b)
	changed[len(b)-1] ^= 1
	assert.Zero(t, testing.AllocsPerRun(1000, func() {
		left(l, 1, b, 0)
		left(l, 2, b, 0)
		cameBack(l, b)
		cameBack(l, changed)
		left(l, 3, b, 0)
		l.decided()
		l.forget(time.Minute)
	}))
}

func FuzzLane(f *testing.F) {
	f.Add(ether(frame.TypeIPv4, ipv4(frame.ProtoTCP, tcp(1))), 60)
	f.Add(ether(frame.TypeIPv6, ipv6(frame.ProtoUDP, tcp(1)), frame.TypeVLAN), 4)
	f.Fuzz(func(t *testing.T, b []byte, keep int) {
		l := newLane()
		left(l, 1, b, 0)
		if keep >= 0 && keep < len(b) {
			if what, _ := cameBack(l, b[:keep]); what == backSame {
				t.Fatal("cut, and the same")
			}
		}
		left(l, 2, b, 0)
		if what, _ := cameBack(l, b); what != backSame {
			t.Fatal("the same, and not known")
		}
	})
}

// left has a frame leave.
func left(l *lane, id uint64, b []byte, now time.Duration) { l.left(id, len(b), l.look(b), now) }

// cameBack has one come back.
func cameBack(l *lane, b []byte) (what back, id uint64) {
	what, id, _ = l.back(b, l.whole(b))
	return what, id
}

// emptied checks that nothing of a lane's frames is left once all are forgotten.
func emptied(t *testing.T, l *lane) {
	for l.oldest() != nil {
		l.decided()
	}
	l.forget(time.Hour)
	for _, f := range []*flock{&l.out, &l.late} {
		assert.Equal(t, flock{keys: [manners]map[uint64]chain{{}, {}}}, *f)
	}
	assert.Len(t, l.spare, len(l.flights)-1)
}

func TestLane(t *testing.T) {
	l := newLane()
	a, b := udp(1, 200, 'a'), udp(1, 200, 'b') // one key, other contents
	for i := range uint64(3000) {              // past a growth
		left(l, i, udp(byte(i), 60, byte(i>>8)), 0)
	}
	left(l, 5001, a, 0)
	left(l, 5002, b, 0)
	left(l, 5003, a, 0)
	for _, want := range []struct {
		b    []byte
		what back
		id   uint64
	}{{b, backSame, 5002}, {a, backSame, 5001}, {a[:150], backShort, 5003}, {a[:150], backCut, 0}, {a, backInjected, 0}} {
		what, id := cameBack(l, want.b)
		assert.Equal(t, want.what, what)
		assert.Equal(t, want.id, id)
	}
	other := make([]byte, 200) // no IP header says how long it was
	left(l, 5004, other, 0)
	what, id := cameBack(l, other[:199])
	assert.Equal(t, backShort, what)
	assert.Equal(t, uint64(5004), id)
	emptied(t, l)
	assert.Less(t, len(l.flights), 4000, "places are used again")
}

// A frame that something was decided about is what comes back only when no other is it.
func TestLaneOfFramesWithoutADifference(t *testing.T) {
	l := newLane()
	b := udp(1, 200, 'a')
	changed := udp(1, 200, 'b')
	for id := range uint64(5) {
		left(l, 1+id, b, 0)
		if id < 2 {
			l.decided()
		}
	}
	for _, want := range []struct {
		b    []byte
		what back
		id   uint64
	}{{b, backSame, 3}, {changed, backReplaced, 4}, {b, backSame, 5}, {changed, backReplaced, 1}, {b, backSame, 2}, {b, backInjected, 0}} {
		what, id := cameBack(l, want.b)
		assert.Equal(t, want.what, what)
		assert.Equal(t, want.id, id)
	}
	emptied(t, l)
}

// What never comes back is remembered for a while, and only so much of it.
func TestLaneForgets(t *testing.T) {
	l := newLane()
	frame := func(i int) []byte {
		b := udp(1, 60, 0)
		binary.BigEndian.PutUint32(b[50:], uint32(i))
		return b
	}
	const most = lateMost + 10
	for i := range most {
		left(l, uint64(i+1), frame(i), time.Duration(i))
		l.decided()
	}
	assert.Equal(t, lateMost, l.late.n)
	what, _ := cameBack(l, frame(9))
	assert.Equal(t, backReplaced, what, "it is not known any more, others of its headers are")
	what, id := cameBack(l, frame(most-1))
	assert.Equal(t, backSame, what)
	assert.Equal(t, uint64(most), id)
	l.forget(most - 3)
	assert.Equal(t, 2, l.late.n)
	emptied(t, l)
}
