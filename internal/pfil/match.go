package pfil

import (
	"math"

	"oxpd/internal/frame"
	"oxpd/internal/pfil/cbpf"
)

// noRule is behind the number of every rule.
const noRule = math.MaxUint32

// traits is what a rule asks most often, in one word, so that one comparison is enough:
// frame.Have in the low 16 bits, and above it the numbers that it vouches for.
type traits uint64

// Where the numbers are.
const (
	protoAt     = 16
	flagsAt     = 24
	etherTypeAt = 32
)

// hasIP is the trait of either family: a bit that frame.Packet does not use.
const hasIP traits = 1 << 15

func traitsOf(p *frame.Packet) traits {
	t := traits(p.Have) | traits(p.Proto)<<protoAt | traits(p.TCPFlags)<<flagsAt | traits(p.EtherType)<<etherTypeAt
	if p.Have&frame.HaveIP != 0 {
		t |= hasIP
	}
	return t
}

// facts is one frame while its rule is looked for.
type facts struct {
	traits     traits
	src, dst   uint64 // the low words of the addresses
	hook       uint32 // one bit: the port and direction
	frameBytes uint32
	pkt        *frame.Packet
	first      []byte
}

// Match returns the number of the first rule that matches a frame, counted from 0 in
// the order of Rules, or -1. dir is In or Out, port a board.Port.Index; first is the
// frame's beginning, frameBytes its whole length, pkt their headers, parsed already.
// Match keeps none of them and allocates nothing. Safe for concurrent use.
func (p *Program) Match(dir Direction, port int, first []byte, frameBytes int, pkt *frame.Packet) int {
	hook := hookOf(port, dir)
	return p.views[hook].match(p, hook, first, frameBytes, pkt)
}

// match is Match in one view of p.
func (v *view) match(p *Program, hook int, first []byte, frameBytes int, pkt *frame.Packet) int {
	t := traitsOf(pkt)
	_, src := pkt.SrcWords()
	_, dst := pkt.DstWords()
	if v.indexed {
		return p.search(v, t, hook, src, dst, first, frameBytes, pkt)
	}
	for i := range v.remainder {
		if c := &v.remainder[i]; c.maybe(t, src, dst) && (c.plain || c.rest(t, hook, src, dst, first, frameBytes, pkt)) {
			return int(c.rule)
		}
	}
	return -1
}

// search is Match in a view that has indexes.
func (p *Program) search(v *view, t traits, hook int, src, dst uint64, first []byte, frameBytes int, pkt *frame.Packet) int {
	var f facts
	f.set(t, hook, src, dst, first, frameBytes, pkt)
	best := p.indexed(v, &f)
	for i := range v.remainder {
		c := &v.remainder[i]
		if c.rule >= best {
			break
		}
		if c.maybe(t, src, dst) && (c.plain || c.match(&f)) {
			best = c.rule
			break
		}
	}
	if best == noRule {
		return -1
	}
	return int(best)
}

// rest is match where no facts have been put together.
//
//go:noinline
func (c *check) rest(t traits, hook int, src, dst uint64, first []byte, frameBytes int, pkt *frame.Packet) bool {
	var f facts
	f.set(t, hook, src, dst, first, frameBytes, pkt)
	return c.match(&f)
}

// set fills f field by field: a literal would be made elsewhere and copied in larger
// pieces than it was written in, which the CPU waits for.
func (f *facts) set(t traits, hook int, src, dst uint64, first []byte, frameBytes int, pkt *frame.Packet) {
	f.traits, f.src, f.dst, f.hook, f.frameBytes = t, src, dst, 1<<hook, uint32(frameBytes)
	f.pkt, f.first = pkt, first
}

// indexed asks the indexes of a view that can have a better rule than the best so far.
func (p *Program) indexed(v *view, f *facts) uint32 {
	best := uint32(noRule)
	if f.traits&hasIP != 0 {
		if v.srcHosts.first < best {
			if l := v.srcHosts.list(hostKey(f.pkt.SrcWords())); l != nil {
				best = p.walk(l, best, f)
			}
		}
		if v.dstHosts.first < best {
			if l := v.dstHosts.list(hostKey(f.pkt.DstWords())); l != nil {
				best = p.walk(l, best, f)
			}
		}
		if v.srcPrefixes.first < best {
			hi, lo := f.pkt.SrcWords()
			if n, ok := v.srcPrefixes.longest(f.pkt.Have, hi, lo); ok {
				best = p.chain(&v.srcPrefixes, n, best, f)
			}
		}
		if v.dstPrefixes.first < best {
			hi, lo := f.pkt.DstWords()
			if n, ok := v.dstPrefixes.longest(f.pkt.Have, hi, lo); ok {
				best = p.chain(&v.dstPrefixes, n, best, f)
			}
		}
	}
	if f.pkt.Have&frame.HavePorts != 0 {
		if v.srcPorts.first < best {
			if l := v.srcPorts.list(portKey(f.pkt.Proto, f.pkt.SrcPort)); l != nil {
				best = p.walk(l, best, f)
			}
		}
		if v.dstPorts.first < best {
			if l := v.dstPorts.list(portKey(f.pkt.Proto, f.pkt.DstPort)); l != nil {
				best = p.walk(l, best, f)
			}
		}
	}
	return best
}

// walk returns the first rule of an ascending list that matches, or best where none
// below it does.
func (p *Program) walk(list []uint32, best uint32, f *facts) uint32 {
	for _, n := range list {
		if n >= best {
			break
		}
		if c := &p.checks[n]; c.maybe(f.traits, f.src, f.dst) && (c.plain || c.match(f)) {
			return n
		}
	}
	return best
}

// chain walks the lists of a prefix and of all that contain it.
func (p *Program) chain(t *prefixes, node uint32, best uint32, f *facts) uint32 {
	for node != noNode {
		n := &t.nodes[node]
		best = p.walk(n.rules, best, f)
		node = n.parent
	}
	return best
}

// check is all that a rule asks for. What it does not ask for is set so that every
// frame has it, which saves asking whether to ask.
type check struct {
	traits, mask traits // of the bits in mask, those in traits and no others
	src, dst     words
	hooks        uint32 // one bit for each port and direction
	rule         uint32 // its number

	srcPort, srcPortSpan uint16 // the ports from the smallest to the largest asked for
	dstPort, dstPortSpan uint16
	bytes, bytesSpan     uint32

	more *more // what few rules ask for

	plain bool // maybe is all that it asks for
}

// isPlain tells whether maybe says all, at the hooks that the check is asked at.
func (c *check) isPlain() bool {
	high := func(w *words) bool { // the high word is asked for, and not 0 as that of every IPv4 address
		return w.maskHi != 0 && (w.hi != 0 || c.traits&c.mask&traits(frame.HaveIPv4) == 0)
	}
	return !high(&c.src) && !high(&c.dst) && c.srcPortSpan == math.MaxUint16 && c.dstPortSpan == math.MaxUint16 &&
		c.bytesSpan == math.MaxUint32 && c.more == nil
}

// need asks for a trait that a frame has or has not.
func (c *check) need(t traits) {
	c.traits |= t
	c.mask |= t
}

// number asks for a number that some trait vouches for: the bits of mask.
func (c *check) number(vouch frame.Have, v, mask uint16, at int) {
	c.need(traits(vouch))
	c.traits |= traits(v) << at
	c.mask |= traits(mask) << at
}

// words is a prefix over the addresses of frame.Packet.
type words struct{ lo, maskLo, hi, maskHi uint64 }

func (w *words) has(hi, lo uint64) bool {
	return (hi^w.hi)&w.maskHi|(lo^w.lo)&w.maskLo == 0
}

// maybe is what nearly every rule fails on that does not match, in one comparison.
func (c *check) maybe(t traits, srcLo, dstLo uint64) bool {
	return uint64((t^c.traits)&c.mask)|(srcLo^c.src.lo)&c.src.maskLo|(dstLo^c.dst.lo)&c.dst.maskLo == 0
}

// match is the rest of the check.
func (c *check) match(f *facts) bool {
	p := f.pkt
	return f.hook&c.hooks != 0 && c.src.has(p.SrcWords()) && c.dst.has(p.DstWords()) &&
		p.DstPort-c.dstPort <= c.dstPortSpan && p.SrcPort-c.srcPort <= c.srcPortSpan &&
		f.frameBytes-c.bytes <= c.bytesSpan && (c.more == nil || c.more.match(f))
}

// more is the part of a check that takes lists, sets or a program.
type more struct {
	src, dst           endCheck
	srcPorts, dstPorts []Range
	bytes, icmp, vlans []Range
	program            *cbpf.Program
}

// endCheck is a set, or an end that is negated. The zero value takes every address.
type endCheck struct {
	not    bool
	family frame.Have // of prefix
	prefix words
	set    *addrSet
}

func (m *more) match(f *facts) bool {
	p := f.pkt
	srcHi, srcLo := p.SrcWords()
	dstHi, dstLo := p.DstWords()
	return inRanges(m.srcPorts, p.SrcPort) && inRanges(m.dstPorts, p.DstPort) &&
		inRanges(m.icmp, uint16(p.ICMPType)) && inRanges(m.vlans, outermost(p)) &&
		inRanges(m.bytes, uint16(f.frameBytes)) && // no more than 16 bits: it is in the span
		m.src.match(p.Have, srcHi, srcLo) && m.dst.match(p.Have, dstHi, dstLo) &&
		(m.program == nil || m.program.Run(f.first, int(f.frameBytes)) != 0)
}

// match is asked about frames that have addresses.
func (e *endCheck) match(have frame.Have, hi, lo uint64) bool {
	switch {
	case e.set != nil:
		return e.set.has(have, hi, lo) != e.not
	case e.not:
		return have&e.family == 0 || !e.prefix.has(hi, lo)
	}
	return true
}

// outermost is the VLAN id of a frame's first tag.
func outermost(p *frame.Packet) uint16 {
	if p.VLANs == 0 {
		return VLANNone
	}
	return p.VLAN[0]
}

// inRanges tells whether v is in one of the ranges; none are all.
func inRanges(rs []Range, v uint16) bool {
	for _, r := range rs {
		if r.Has(v) {
			return true
		}
	}
	return len(rs) == 0
}
