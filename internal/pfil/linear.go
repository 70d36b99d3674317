package pfil

import (
	"encoding/binary"
	"net/netip"

	"github.com/gaissmai/bart"

	"oxpd/internal/frame"
	"oxpd/internal/pfil/cbpf"
)

// Program is rules that can be matched. It is never changed.
type Program struct {
	rules []Rule
	steps []check
}

// check is a rule as it is compared with a frame.
type check struct {
	dir      Direction
	ports    uint16
	need     frame.Have
	anyIP    bool // either family
	frag     bool
	hasProto bool
	proto    uint8
	src, dst side

	etherType            uint16
	flagsSet, flagsClear uint8
	lengths, vlans       []Range
	icmpTypes            []Range
	program              *cbpf.Program
}

type side struct {
	any         bool
	not         bool
	v4          bool
	set         *bart.Lite
	maskHi, hi  uint64
	maskLo, lo  uint64
	portsGiven  bool
	single      Range
	moreThanOne []Range
}

// Compile makes a program of rules. The rules are the program's from then on.
func Compile(r *Rules) (*Program, error) {
	sets, programs := map[string]*bart.Lite{}, map[string]*cbpf.Program{}
	for i := range r.Sets {
		t := new(bart.Lite)
		for _, p := range r.Sets[i].Prefixes {
			t.Insert(p)
		}
		sets[r.Sets[i].Name] = t
	}
	for i := range r.Programs {
		programs[r.Programs[i].Name] = r.Programs[i].Program
	}
	p := &Program{rules: r.Rules, steps: make([]check, len(r.Rules))}
	for i := range r.Rules {
		p.steps[i] = newCheck(&r.Rules[i], sets, programs)
	}
	return p, nil
}

// Rules are the program's own: not to be changed.
func (p *Program) Rules() []Rule { return p.rules }

func newCheck(r *Rule, sets map[string]*bart.Lite, programs map[string]*cbpf.Program) check {
	c := check{
		dir: r.Dir, ports: r.Ports, frag: r.Frag, hasProto: r.HasNum, proto: r.Proto, etherType: r.EtherType,
		flagsSet: r.FlagsSet, flagsClear: r.FlagsClear, lengths: r.Lengths, vlans: r.VLANs, icmpTypes: r.ICMPTypes,
		src: newSide(&r.Src, sets), dst: newSide(&r.Dst, sets), program: programs[r.Program],
	}
	if c.ports == 0 {
		c.ports = portMask
	}
	switch r.Family {
	case AnyFrame:
		c.anyIP = !c.src.any || !c.dst.any
	case IP:
		c.anyIP = true
	case IPv4:
		c.need |= frame.HaveIPv4
	case IPv6:
		c.need |= frame.HaveIPv6
	}
	if r.HasNum {
		c.need |= frame.HaveProto
	}
	if r.Frag {
		c.need |= frame.HaveFrag
	}
	if c.src.portsGiven || c.dst.portsGiven {
		c.need |= frame.HavePorts
	}
	if len(r.ICMPTypes) > 0 {
		c.need |= frame.HaveICMP
	}
	if r.FlagsSet|r.FlagsClear != 0 {
		c.need |= frame.HaveTCP
	}
	if len(r.VLANs) > 0 || r.EtherType != 0 {
		c.need |= frame.HaveL2
	}
	return c
}

func newSide(e *End, sets map[string]*bart.Lite) side {
	s := side{any: e.Any(), not: e.Not, portsGiven: len(e.Ports) > 0}
	if e.Set != "" {
		s.set = sets[e.Set]
	}
	if s.portsGiven {
		s.single, s.moreThanOne = e.Ports[0], e.Ports[1:]
	}
	if e.Prefix.IsValid() {
		s.v4 = e.Prefix.Addr().Is4()
		s.maskHi, s.maskLo = maskWords(e.Prefix)
		s.hi, s.lo = addrWords(e.Prefix.Addr())
	}
	return s
}

// addrWords is an address as frame.Packet has it.
func addrWords(a netip.Addr) (hi, lo uint64) {
	if a.Is4() {
		b := a.As4()
		return 0, uint64(binary.BigEndian.Uint32(b[:]))
	}
	b := a.As16()
	return binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
}

func maskWords(p netip.Prefix) (hi, lo uint64) {
	if p.Addr().Is4() {
		return 0, uint64(^uint32(0) << (32 - p.Bits()))
	}
	n := p.Bits()
	if n <= 64 {
		return ^uint64(0) << (64 - n), 0
	}
	return ^uint64(0), ^uint64(0) << (128 - n)
}

// Match is the first rule that matches a frame that goes one way at a port, -1 for
// none. pkt is the frame's headers. It allocates nothing.
func (p *Program) Match(dir Direction, port int, first []byte, frameBytes int, pkt *frame.Packet) int {
	for i := range p.steps {
		if p.steps[i].matches(dir, port, first, frameBytes, pkt) {
			return i
		}
	}
	return -1
}

func (c *check) matches(dir Direction, port int, first []byte, frameBytes int, pkt *frame.Packet) bool {
	if c.dir&dir == 0 || c.ports>>port&1 == 0 || pkt.Have&c.need != c.need {
		return false
	}
	if c.anyIP && pkt.Have&frame.HaveIP == 0 || c.hasProto && pkt.Proto != c.proto {
		return false
	}
	if hi, lo := pkt.SrcWords(); !c.src.any && !c.src.holds(pkt, hi, lo, true) {
		return false
	}
	if hi, lo := pkt.DstWords(); !c.dst.any && !c.dst.holds(pkt, hi, lo, false) {
		return false
	}
	if c.src.portsGiven && !c.src.hasPort(pkt.SrcPort) || c.dst.portsGiven && !c.dst.hasPort(pkt.DstPort) {
		return false
	}
	if c.etherType != 0 && pkt.EtherType != c.etherType || pkt.TCPFlags&c.flagsSet != c.flagsSet || pkt.TCPFlags&c.flagsClear != 0 {
		return false
	}
	if c.lengths != nil && !in(c.lengths, uint16(frameBytes)) || c.icmpTypes != nil && !in(c.icmpTypes, uint16(pkt.ICMPType)) {
		return false
	}
	if c.vlans != nil {
		id := uint16(VLANNone)
		if pkt.VLANs > 0 {
			id = pkt.VLAN[0]
		}
		if !in(c.vlans, id) {
			return false
		}
	}
	return c.program == nil || c.program.Run(first, frameBytes) != 0
}

func (s *side) holds(pkt *frame.Packet, hi, lo uint64, src bool) bool {
	if s.set != nil {
		if src {
			return s.set.Contains(pkt.Src()) != s.not
		}
		return s.set.Contains(pkt.Dst()) != s.not
	}
	same := s.v4 == (pkt.Have&frame.HaveIPv4 != 0) && hi&s.maskHi == s.hi && lo&s.maskLo == s.lo
	return same != s.not
}

func (s *side) hasPort(p uint16) bool { return s.single.Has(p) || in(s.moreThanOne, p) }

func in(rs []Range, v uint16) bool {
	for _, r := range rs {
		if r.Has(v) {
			return true
		}
	}
	return false
}
