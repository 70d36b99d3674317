package pfil

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"

	"oxpd/internal/frame"
)

// An index leads from what a frame has to the few rules that ask for it. It may give a
// rule too many, never one too few: each is checked whole.

// hashed is an index by an exact value, open addressed. The key is the hash itself:
// two values of one hash share a list.
type hashed struct {
	first   uint32 // smallest rule in it; noRule: empty
	shift   uint8
	buckets []bucket
	rules   []uint32 // the lists, one after the other
}

// bucket is a key and its list in hashed.rules; an empty list is a free one.
type bucket struct {
	key        uint64
	begin, end uint32
}

// newHashed makes an index of ascending lists.
func newHashed(lists map[uint64][]uint32) hashed {
	h := hashed{first: noRule}
	if len(lists) == 0 {
		return h
	}
	n := bits.Len(uint(len(lists))) + 1 // at most half full
	h.shift = uint8(64 - n)
	h.buckets = make([]bucket, 1<<n)
	keys := make([]uint64, 0, len(lists))
	for key := range lists {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for _, key := range keys {
		i := key >> h.shift
		for h.buckets[i].end != 0 {
			i = (i + 1) & uint64(len(h.buckets)-1)
		}
		begin := uint32(len(h.rules))
		h.rules = append(h.rules, lists[key]...)
		h.buckets[i] = bucket{key, begin, uint32(len(h.rules))}
		h.first = min(h.first, lists[key][0])
	}
	return h
}

// list is the rules under a key, ascending; nil when there are none.
func (h *hashed) list(key uint64) []uint32 {
	for i := key >> h.shift; ; i++ {
		s := &h.buckets[i&uint64(len(h.buckets)-1)]
		if s.end == 0 {
			return nil
		}
		if s.key == key {
			return h.rules[s.begin:s.end]
		}
	}
}

// Odd numbers that spread the bits of what they are multiplied with: 2^64 over the
// golden ratio, and a prime of xxHash.
const (
	spread  = 0x9e3779b97f4a7c15
	spread2 = 0xc2b2ae3d27d4eb4f
)

// hostKey is the key of an address as frame.Packet has it. The key of an IPv4 address
// is its alone.
func hostKey(hi, lo uint64) uint64 { return (lo ^ hi*spread2) * spread }

// portKey is the key of a port of a protocol.
func portKey(proto uint8, port uint16) uint64 { return (uint64(proto)<<16 | uint64(port)) * spread }

// noNode is the parent of a prefix that no other contains.
const noNode = ^uint32(0)

// prefixes is an index by address: the longest prefix that contains it, which leads to
// all others that do. Lists are not joined along that way, so that memory stays in
// proportion to the rules whatever contains what.
type prefixes struct {
	first uint32
	tops  [4]uint64           // the first bytes of addresses that a prefix contains, a bit each
	table *bart.Table[uint32] // the node of a prefix, by its number
	nodes []node
}

type node struct {
	parent uint32
	rules  []uint32 // ascending
}

func newPrefixes(lists map[netip.Prefix][]uint32) prefixes {
	t := prefixes{first: noRule}
	if len(lists) == 0 {
		return t
	}
	t.table = &bart.Table[uint32]{}
	order := make([]netip.Prefix, 0, len(lists))
	for p := range lists {
		order = append(order, p)
	}
	// Short ones first: what contains a prefix is there before it.
	slices.SortFunc(order, func(a, b netip.Prefix) int {
		if a.Bits() != b.Bits() {
			return a.Bits() - b.Bits()
		}
		return a.Addr().Compare(b.Addr())
	})
	for _, p := range order {
		parent, ok := t.table.LookupPrefix(p)
		if !ok {
			parent = noNode
		}
		t.table.Insert(p, uint32(len(t.nodes)))
		t.top(p)
		t.nodes = append(t.nodes, node{parent, lists[p]})
		t.first = min(t.first, lists[p][0])
	}
	return t
}

// top notes the first bytes of a prefix.
func (t *prefixes) top(p netip.Prefix) {
	first := int(p.Addr().AsSlice()[0])
	for b := first; b < first+(1<<max(8-p.Bits(), 0)); b++ {
		t.tops[b>>6] |= 1 << (b & 63)
	}
}

// longest is the node of the longest prefix that contains the address of a frame. Most
// addresses are told by their first byte, which costs less than asking the trie.
func (t *prefixes) longest(have frame.Have, hi, lo uint64) (node uint32, ok bool) {
	isV4, top := have&frame.HaveIPv4 != 0, uint8(hi>>56)
	if isV4 {
		top = uint8(lo >> 24)
	}
	if t.tops[top>>6]>>(top&63)&1 == 0 {
		return 0, false
	}
	if isV4 {
		return t.table.Lookup(netip.AddrFrom4([4]byte{top, byte(lo >> 16), byte(lo >> 8), byte(lo)}))
	}
	return t.table.Lookup(addr6(hi, lo))
}

// wordsOf is a prefix as frame.Packet has addresses.
func wordsOf(p netip.Prefix) words {
	if p.Addr().Is4() {
		b := p.Addr().As4()
		mask := ^uint64(0) << (32 - p.Bits())
		return words{lo: uint64(binary.BigEndian.Uint32(b[:])) & mask, maskHi: ^uint64(0), maskLo: mask}
	}
	b := p.Addr().As16()
	w := words{maskHi: ^uint64(0) << max(64-p.Bits(), 0), maskLo: ^uint64(0) << min(128-p.Bits(), 64)}
	w.hi, w.lo = binary.BigEndian.Uint64(b[:])&w.maskHi, binary.BigEndian.Uint64(b[8:])&w.maskLo
	return w
}

func addr6(hi, lo uint64) netip.Addr {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:], hi)
	binary.BigEndian.PutUint64(b[8:], lo)
	return netip.AddrFrom16(b)
}
