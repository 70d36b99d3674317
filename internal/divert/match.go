package divert

import (
	"encoding/binary"
	"hash/maphash"
	"time"

	"oxpd/internal/frame"
)

// lateMost is how many frames of a lane are remembered that something was decided about
// before they came back.
const lateMost = 1 << 16

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

// noFlight is the index of none.
const noFlight = 0

// flight is a frame that was written to one interface of a pair, and has not come back.
type flight struct {
	id           uint64
	number       uint64 // in the order in which they left
	at           time.Duration
	ties         [manners]tie
	before, next int32 // in its flock
	n            int32
}

// tie is a hash, and a flight's place among those of its flock that have the same.
type tie struct {
	hash         uint64
	before, next int32
}

// chain is the flights of one hash, oldest first.
type chain struct{ first, last int32 }

// flock is flights in the order in which they came to it.
type flock struct {
	first, last int32
	n           int
	keys        [manners]map[uint64]chain
}

// lane is one direction of a pair: what was written to the one interface and has not come
// back at the other. A frame that something was decided about is late, and what comes back
// is that one only when no other is the same: of frames without a difference, which ARP
// and those who ask again send, the engine's loss of one is not laid to all that follow.
// Not safe for concurrent use but for look and whole.
type lane struct {
	seed    maphash.Seed
	flights []flight // the first is none
	spare   []int32
	number  uint64 // of the one that leaves next, from 1
	out     flock  // without a verdict
	late    flock
}

func newLane() *lane {
	l := &lane{seed: maphash.MakeSeed(), flights: make([]flight, 1, chunk), number: 1}
	for m := range manners {
		l.out.keys[m], l.late.keys[m] = map[uint64]chain{}, map[uint64]chain{}
	}
	return l
}

// look is a frame's hashes.
type look [manners]uint64

// look looks at a frame that is about to be written.
func (l *lane) look(b []byte) look { return look{byAll: l.whole(b), byHead: headHash(l.seed, b)} }

// whole is the hash of all of a frame.
func (l *lane) whole(b []byte) uint64 { return maphash.Bytes(l.seed, b) }

// left notes a frame of so many bytes that is about to be written.
func (l *lane) left(id uint64, n int, looks look, now time.Duration) {
	i := l.free()
	f := &l.flights[i]
	*f = flight{id: id, number: l.number, at: now, n: int32(n)}
	for m := range f.ties {
		f.ties[m].hash = looks[m]
	}
	l.number++
	l.join(&l.out, i)
}

// free is the index of a flight that is in no flock.
func (l *lane) free() int32 {
	if n := len(l.spare); n > 0 {
		i := l.spare[n-1]
		l.spare = l.spare[:n-1]
		return i
	}
	l.flights = append(l.flights, flight{})
	return int32(len(l.flights) - 1)
}

// join puts a flight behind those of a flock.
func (l *lane) join(to *flock, i int32) {
	f := &l.flights[i]
	f.before, f.next = to.last, noFlight
	if to.last == noFlight {
		to.first = i
	} else {
		l.flights[to.last].next = i
	}
	to.last = i
	to.n++
	for m := range f.ties {
		k := &f.ties[m]
		c := to.keys[m][k.hash]
		k.before, k.next = c.last, noFlight
		if c.last == noFlight {
			c.first = i
		} else {
			l.flights[c.last].ties[m].next = i
		}
		c.last = i
		to.keys[m][k.hash] = c
	}
}

// part takes a flight out of its flock.
func (l *lane) part(from *flock, i int32) {
	f := &l.flights[i]
	if f.before == noFlight {
		from.first = f.next
	} else {
		l.flights[f.before].next = f.next
	}
	if f.next == noFlight {
		from.last = f.before
	} else {
		l.flights[f.next].before = f.before
	}
	from.n--
	for m := range f.ties {
		l.untie(from.keys[m], m, &f.ties[m])
	}
}

// untie takes a flight out of those of one hash.
func (l *lane) untie(keys map[uint64]chain, m int, k *tie) {
	if k.before == noFlight && k.next == noFlight {
		delete(keys, k.hash)
		return
	}
	c := keys[k.hash]
	if k.before == noFlight {
		c.first = k.next
	} else {
		l.flights[k.before].ties[m].next = k.next
	}
	if k.next == noFlight {
		c.last = k.before
	} else {
		l.flights[k.next].ties[m].before = k.before
	}
	keys[k.hash] = c
}

// oldest is the flight that has been without a verdict longest, nil for none.
func (l *lane) oldest() *flight {
	if l.out.first == noFlight {
		return nil
	}
	return &l.flights[l.out.first]
}

// decided says of the oldest that something was decided about it.
func (l *lane) decided() {
	i := l.out.first
	l.part(&l.out, i)
	if l.late.n == lateMost {
		l.forgetOne()
	}
	l.join(&l.late, i)
}

// forget drops the late ones that left before a time.
func (l *lane) forget(before time.Duration) {
	for l.late.first != noFlight && l.flights[l.late.first].at < before {
		l.forgetOne()
	}
}

func (l *lane) forgetOne() {
	l.took(&l.late, l.late.first)
}

// back finds the frame that came back as b: one that is the same, otherwise one of the
// same headers, the oldest of several. A late one has the id that it had. whole is that
// of b; number is 0 for no frame that left.
func (l *lane) back(b []byte, whole uint64) (what back, id, number uint64) {
	from, i := l.find(byAll, whole)
	what = backSame
	if i == noFlight {
		from, i = l.find(byHead, headHash(l.seed, b))
		what = changed(b, l.flights[i].n)
	}
	switch {
	case i == noFlight && cut(b):
		return backCut, 0, 0
	case i == noFlight:
		return backInjected, 0, 0
	}
	f := &l.flights[i]
	id, number = f.id, f.number
	l.took(from, i)
	return what, id, number
}

// changed is what a frame is that left with n bytes and the same headers.
func changed(b []byte, n int32) back {
	if len(b) < int(n) {
		return backShort
	}
	return backReplaced
}

// find is the oldest flight of a hash, and where it is.
func (l *lane) find(manner int, hash uint64) (from *flock, i int32) {
	if c, ok := l.out.keys[manner][hash]; ok {
		return &l.out, c.first
	}
	return &l.late, l.late.keys[manner][hash].first
}

// took takes a flight out for good.
func (l *lane) took(from *flock, i int32) {
	l.part(from, i)
	l.spare = append(l.spare, i)
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
		return ipv6Bytes+int(binary.BigEndian.Uint16(ip[4:])) > len(ip)
	}
	return false
}
