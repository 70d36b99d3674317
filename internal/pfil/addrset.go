package pfil

import (
	"math/bits"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"

	"oxpd/internal/frame"
)

// addrSet is a set of addresses that does not change. IPv4 is a list of edges, which
// is both smaller and faster to ask than a trie of the same prefixes; IPv6, whose
// prefixes crowd in few corners of a large space, is bart's trie.
type addrSet struct {
	v4   edges
	list []words    // IPv6, of a small set
	trie *bart.Lite // IPv6, of a larger one

	given, given4 int // prefixes, and those of IPv4, each as often as it was given
}

// smallSet is up to how many IPv6 prefixes are looked at one by one.
const smallSet = 8

func newAddrSet(ps []netip.Prefix) *addrSet {
	s := &addrSet{v4: newEdges(ps), given: len(ps)}
	for _, p := range ps {
		if p.Addr().Is4() {
			s.given4++
		}
	}
	if s.given-s.given4 > smallSet {
		s.trie = &bart.Lite{}
	}
	for _, p := range ps {
		switch {
		case p.Addr().Is4():
		case s.trie != nil:
			s.trie.Insert(p)
		default:
			s.list = append(s.list, wordsOf(p))
		}
	}
	return s
}

// has tells whether the address of a frame, which has one, is in the set.
func (s *addrSet) has(have frame.Have, hi, lo uint64) bool {
	if have&frame.HaveIPv4 != 0 {
		return s.v4.has(uint32(lo))
	}
	if s.trie != nil {
		return s.trie.Contains(addr6(hi, lo))
	}
	for i := range s.list {
		if s.list[i].has(hi, lo) {
			return true
		}
	}
	return false
}

// edges is a set of IPv4 addresses: where, going up from 0.0.0.0, it is entered and
// left, in turn. An address is in the set when an odd number of edges is not above it.
type edges struct {
	at    []uint32 // ascending
	below []uint32 // how many edges are below i << shift, for each i
	shift uint8
}

// maxIndexBits bounds the index of edges to 4 MiB.
const maxIndexBits = 20

func newEdges(ps []netip.Prefix) edges {
	type span struct{ lo, hi uint32 }
	var spans []span
	for _, p := range ps {
		if p.Addr().Is4() {
			w := wordsOf(p)
			spans = append(spans, span{uint32(w.lo), uint32(w.lo | ^w.maskLo)})
		}
	}
	slices.SortFunc(spans, func(a, b span) int { return int(int64(a.lo) - int64(b.lo)) })
	var e edges
	for i := 0; i < len(spans); {
		s := spans[i]
		for i++; i < len(spans) && uint64(spans[i].lo) <= uint64(s.hi)+1; i++ {
			s.hi = max(s.hi, spans[i].hi)
		}
		e.at = append(e.at, s.lo)
		if s.hi+1 != 0 { // the end of the last address is nowhere
			e.at = append(e.at, s.hi+1)
		}
	}
	e.at = slices.Clip(e.at)
	e.index()
	return e
}

// index makes about one bucket an edge.
func (e *edges) index() {
	n := min(bits.Len(uint(len(e.at))), maxIndexBits)
	e.shift = uint8(32 - n)
	e.below = make([]uint32, 1<<n+1)
	k := 0
	for i := range e.below {
		for k < len(e.at) && uint64(e.at[k]) < uint64(i)<<e.shift {
			k++
		}
		e.below[i] = uint32(k)
	}
}

func (e *edges) has(a uint32) bool {
	i := uint64(a) >> e.shift
	lo, hi := e.below[i], e.below[i+1]
	for hi-lo > 8 {
		if mid := (lo + hi) / 2; e.at[mid] <= a {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	for lo < hi && e.at[lo] <= a {
		lo++
	}
	return lo&1 != 0
}
