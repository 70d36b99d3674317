package divert

import (
	"encoding/binary"
	"hash/maphash"
	"time"

	"oxpd/internal/frame"
)

const (
	flightMost = 1 << 17 // remembered frames of a lane: those without a verdict, and late ones
	flightLife = 10      // stall times that a frame is remembered
)

// back is what came back from an engine that gives no verdicts.
type back uint8

const (
	backSame     back = iota // a frame as it left
	backReplaced             // one with other contents
	backShort                // one that was cut
	backCut                  // no frame that left, and shorter than its IP header says
	backInjected             // no frame that left
)

// What a frame that comes back is known by.
const (
	byAll  = iota // all of its bytes
	byHead        // its headers, without what an engine that changes a frame has to change
	manners
)

// flight is a frame that was written to one interface of a pair.
type flight struct {
	id   uint64
	at   time.Duration
	ties [manners]tie
	n    int32
	over bool // it came back
}

// tie is a hash, and a flight's place among those that have the same.
type tie struct{ hash, before, next uint64 } // numbers of flights, 0: none

// chain is the flights of one hash, oldest first.
type chain struct{ first, last uint64 }

// lane is one direction of a pair: what was written to the one interface and has not come
// back at the other. Not safe for concurrent use.
type lane struct {
	seed maphash.Seed
	ring []flight // by number, a power of two
	low  uint64   // the oldest number, from 1
	high uint64   // the next
	keys [manners]map[uint64]chain
}

func newLane() *lane {
	l := &lane{seed: maphash.MakeSeed(), ring: make([]flight, chunk), low: 1, high: 1}
	for m := range l.keys {
		l.keys[m] = map[uint64]chain{}
	}
	return l
}

func (l *lane) at(number uint64) *flight { return &l.ring[number&uint64(len(l.ring)-1)] }

// left notes a frame that is about to be written.
func (l *lane) left(id uint64, b []byte, now time.Duration) {
	if l.high-l.low == uint64(len(l.ring)) {
		l.grow()
	}
	f := l.at(l.high)
	*f = flight{id: id, at: now, n: int32(len(b))}
	f.ties[byAll].hash, f.ties[byHead].hash = maphash.Bytes(l.seed, b), headHash(l.seed, b)
	for m := range f.ties {
		l.chain(m, f, l.high)
	}
	l.high++
}

// chain puts a flight behind those of its hash.
func (l *lane) chain(m int, f *flight, number uint64) {
	k := &f.ties[m]
	c, ok := l.keys[m][k.hash]
	if ok {
		k.before = c.last
		l.at(c.last).ties[m].next = number
	} else {
		c.first = number
	}
	c.last = number
	l.keys[m][k.hash] = c
}

// unchain takes a flight out of those of its hashes.
func (l *lane) unchain(f *flight) {
	for m := range f.ties {
		k := f.ties[m]
		if k.before == 0 && k.next == 0 {
			delete(l.keys[m], k.hash)
			continue
		}
		c := l.keys[m][k.hash]
		if k.before == 0 {
			c.first = k.next
		} else {
			l.at(k.before).ties[m].next = k.next
		}
		if k.next == 0 {
			c.last = k.before
		} else {
			l.at(k.next).ties[m].before = k.before
		}
		l.keys[m][k.hash] = c
	}
}

// grow doubles the ring, or forgets the oldest when it is as large as it gets.
func (l *lane) grow() {
	if len(l.ring) == flightMost {
		l.forgetOne()
		return
	}
	ring := make([]flight, 2*len(l.ring))
	for n := l.low; n != l.high; n++ {
		ring[n&uint64(len(ring)-1)] = *l.at(n)
	}
	l.ring = ring
}

// forget drops what came back from the ring's end, and what is too old.
func (l *lane) forget(now, age time.Duration) {
	for l.low != l.high && (l.at(l.low).over || now-l.at(l.low).at >= age) {
		l.forgetOne()
	}
}

func (l *lane) forgetOne() {
	if f := l.at(l.low); !f.over {
		l.unchain(f)
	}
	l.low++
}

// back finds the frame that came back as b: one that is the same, otherwise one of the
// same headers, the oldest of several.
func (l *lane) back(b []byte) (what back, id uint64) {
	if c, ok := l.keys[byAll][maphash.Bytes(l.seed, b)]; ok {
		return backSame, l.took(c)
	}
	c, ok := l.keys[byHead][headHash(l.seed, b)]
	switch {
	case !ok && cut(b):
		return backCut, 0
	case !ok:
		return backInjected, 0
	case len(b) < int(l.at(c.first).n):
		return backShort, l.took(c)
	}
	return backReplaced, l.took(c)
}

// took takes the oldest of a chain as one that came back.
func (l *lane) took(c chain) (id uint64) {
	f := l.at(c.first)
	f.over = true
	l.unchain(f)
	return f.id
}

// Of a frame's headers: what headHash makes a hash of.
const (
	addressBytes = 12
	typeBytes    = 2
	otherBytes   = 48 // of what is not IP

	ipv4Bytes, ipv6Bytes = 20, 40
	tcpBytes, udpBytes   = 14, 6 // up to the window, up to the checksum
	otherL4Bytes         = 8
	headMost             = addressBytes + typeBytes + 60 + tcpBytes
)

// headHash is a hash of a frame's headers, of which engines change some fields: tags and
// their kind, DSCP, TTL, checksums, windows. A cut leaves it as it is, down to the headers
// themselves.
func headHash(seed maphash.Seed, b []byte) uint64 {
	h, ok := frame.Parse(b)
	if !ok {
		return maphash.Bytes(seed, b)
	}
	var room [headMost]byte
	n := copy(room[:addressBytes], b)
	n += copy(room[n:], b[h.L3-typeBytes:])
	head := room[:n]
	ip := head[addressBytes+typeBytes:]
	switch {
	case h.EtherType == frame.TypeIPv4 && len(ip) >= ipv4Bytes:
		ip[1], ip[8], ip[10], ip[11] = 0, 0, 0, 0 // DSCP, TTL, checksum
		return maphash.Bytes(seed, head[:l4End(head, ip, 4*int(ip[0]&0xf), ip[9])])
	case h.EtherType == frame.TypeIPv6 && len(ip) >= ipv6Bytes:
		clear(ip[:4]) // traffic class, flow label
		ip[7] = 0     // hop limit
		return maphash.Bytes(seed, head[:l4End(head, ip, ipv6Bytes, ip[6])])
	}
	return maphash.Bytes(seed, head[:min(len(head), addressBytes+typeBytes+otherBytes)])
}

// l4End is where the part of layer 4 ends that engines leave alone. Checksums in it are
// cleared.
func l4End(head, ip []byte, header int, proto uint8) int {
	l4 := ip[min(header, len(ip)):]
	size := otherL4Bytes
	switch proto {
	case frame.ProtoTCP:
		size = tcpBytes
	case frame.ProtoUDP:
		size = udpBytes
	case frame.ProtoICMP, frame.ProtoICMPv6:
		if len(l4) >= 4 {
			l4[2], l4[3] = 0, 0
		}
	}
	return len(head) - len(l4) + min(size, len(l4))
}

// cut tells whether a frame is shorter than its IP header says.
func cut(b []byte) bool {
	h, ok := frame.Parse(b)
	if !ok || len(b) < h.L3+6 {
		return false
	}
	ip := b[h.L3:]
	switch h.EtherType {
	case frame.TypeIPv4:
		return int(binary.BigEndian.Uint16(ip[2:])) > len(ip)
	case frame.TypeIPv6:
		return int(binary.BigEndian.Uint16(ip[4:]))+40 > len(ip)
	}
	return false
}

// oldest is when the oldest flight that is not back was written; ok is false without one.
// Flights before number from are left out.
func (l *lane) oldest(from uint64) (at time.Duration, ok bool) {
	for n := max(from, l.low); n != l.high; n++ {
		if f := l.at(n); !f.over {
			return f.at, true
		}
	}
	return 0, false
}
