package divert

import (
	"encoding/binary"
	"hash/maphash"
	"time"

	"oxpd/internal/frame"
)

const (
	keyBytes   = 64      // of a frame that its key is made of
	chainLooks = 64      // frames of one key that are compared
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

// flight is a frame that was written to one interface of a pair.
type flight struct {
	id   uint64
	key  uint64
	full uint64 // hash of all of it
	at   time.Duration
	next uint64 // number of the next one of the same key, 0: none
	n    int32
	over bool // it came back
}

// chain is the flights of one key, oldest first.
type chain struct{ first, last uint64 }

// lane is one direction of a pair: what was written to the one interface and has not come
// back at the other. Frames are known by their contents: the key is a hash of their
// beginning, which a cut does not change. Not safe for concurrent use.
type lane struct {
	seed maphash.Seed
	ring []flight // by number, a power of two
	low  uint64   // the oldest number, from 1
	high uint64   // the next
	keys map[uint64]chain
}

func newLane() *lane {
	return &lane{seed: maphash.MakeSeed(), ring: make([]flight, chunk), low: 1, high: 1, keys: map[uint64]chain{}}
}

func (l *lane) at(number uint64) *flight { return &l.ring[number&uint64(len(l.ring)-1)] }

// left notes a frame that is about to be written.
func (l *lane) left(id uint64, b []byte, now time.Duration) {
	if l.high-l.low == uint64(len(l.ring)) {
		l.grow()
	}
	key := maphash.Bytes(l.seed, b[:min(len(b), keyBytes)])
	*l.at(l.high) = flight{id: id, key: key, full: maphash.Bytes(l.seed, b), at: now, n: int32(len(b))}
	c, ok := l.keys[key]
	if ok {
		l.at(c.last).next = l.high
	} else {
		c.first = l.high
	}
	c.last = l.high
	l.keys[key] = c
	l.high++
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
		l.unchain(f.key, l.low)
	}
	l.low++
}

// unchain takes a flight out of those of its key.
func (l *lane) unchain(key, number uint64) {
	c := l.keys[key]
	before := uint64(0)
	for n := c.first; n != number; n = l.at(n).next {
		before = n
	}
	next := l.at(number).next
	switch {
	case before != 0:
		l.at(before).next = next
	default:
		c.first = next
	}
	if c.last == number {
		c.last = before
	}
	if c.first == 0 {
		delete(l.keys, key)
		return
	}
	l.keys[key] = c
}

// back finds the frame that came back as b: of several with one beginning the one that
// is the same, otherwise the oldest.
func (l *lane) back(b []byte) (what back, id uint64) {
	key := maphash.Bytes(l.seed, b[:min(len(b), keyBytes)])
	c, ok := l.keys[key]
	if !ok {
		if cut(b) {
			return backCut, 0
		}
		return backInjected, 0
	}
	full, found := maphash.Bytes(l.seed, b), c.first
	for n, looks := c.first, 0; n != 0 && looks < chainLooks; n, looks = l.at(n).next, looks+1 {
		if f := l.at(n); f.full == full && int(f.n) == len(b) {
			found = n
			break
		}
	}
	f := l.at(found)
	f.over = true
	l.unchain(key, found)
	switch {
	case int(f.n) > len(b):
		return backShort, f.id
	case cut(b) && f.full != full:
		return backShort, f.id
	case f.full == full && int(f.n) == len(b):
		return backSame, f.id
	}
	return backReplaced, f.id
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
