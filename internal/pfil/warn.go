package pfil

import (
	"fmt"
	"net/netip"
	"slices"

	"oxpd/internal/frame"
)

// warn notes what is most likely not meant.
func (p *parser) warn() {
	used := map[use]bool{}
	for _, u := range p.uses {
		used[use{what: u.what, name: u.name}] = true
	}
	for i := range p.out.Sets {
		if s := &p.out.Sets[i]; !used[use{what: "set", name: s.Name}] {
			p.warning(s.Line, "no rule names set %s", s.Name)
		}
	}
	for i := range p.out.Programs {
		if b := &p.out.Programs[i]; !used[use{what: "program", name: b.Name}] {
			p.warning(b.Line, "no rule names program %s", b.Name)
		}
	}
	shadows := shadows{rules: p.out.Rules, groups: map[string]*group{}}
	for j := range p.out.Rules {
		r := &p.out.Rules[j]
		if i := shadows.add(j); i >= 0 {
			p.warning(r.Line, "this rule never matches: the rule of line %d takes all of its frames (%s)", p.out.Rules[i].Line, &p.out.Rules[i])
		} else if r.EtherType != 0 && r.EtherType != frame.TypeIPv4 && r.EtherType != frame.TypeIPv6 && !(r.Src.Any() && r.Dst.Any()) {
			p.warning(r.Line, "this rule never matches: frames of EtherType 0x%04x have no addresses", r.EtherType)
		}
	}
}

func (p *parser) warning(line int, format string, args ...any) {
	if len(p.out.Warnings) < maxWarnings {
		p.out.Warnings = append(p.out.Warnings, fmt.Sprintf("%s:%d: ", p.src.Name, line)+fmt.Sprintf(format, args...))
	}
}

// Limits of the search for rules that never match. It is exact among the first
// maxPairs rules. Behind them a rule is found that an equal one goes before, one with
// a shorter prefix, or one of the first maxWide without addresses.
const (
	maxPairs = 1000
	maxWide  = 64
)

// shadows finds to each rule an earlier one that covers it.
type shadows struct {
	rules  []Rule
	groups map[string]*group
	wide   []int
}

// group is rules that differ in verdict and prefixes alone.
type group struct {
	first map[[2]netip.Prefix]int // rule by its prefixes
	bits  [2][]int                // lengths of prefixes, of sources and of destinations
}

// add looks for a rule that covers rule j, -1: none is found. Rules are added in
// their order.
func (s *shadows) add(j int) int {
	r := &s.rules[j]
	g, ends := s.group(r)
	for _, i := range s.wide {
		if covers(&s.rules[i], r) {
			return i
		}
	}
	if i := g.find(r, ends); i >= 0 {
		return i
	}
	if j < maxPairs {
		for i := range s.rules[:j] {
			if covers(&s.rules[i], r) {
				return i
			}
		}
	}
	g.first[ends] = j
	for side, p := range ends {
		if p.IsValid() && !slices.Contains(g.bits[side], p.Bits()) {
			g.bits[side] = append(g.bits[side], p.Bits())
		}
	}
	if r.Src.Any() && r.Dst.Any() && len(s.wide) < maxWide {
		s.wide = append(s.wide, j)
	}
	return -1
}

func (s *shadows) group(r *Rule) (*group, [2]netip.Prefix) {
	ends := [2]netip.Prefix{r.Src.Prefix, r.Dst.Prefix}
	bare := *r
	bare.Verdict, bare.Every, bare.Src.Prefix, bare.Dst.Prefix = Pass, 0, netip.Prefix{}, netip.Prefix{}
	text := bare.String()
	g := s.groups[text]
	if g == nil {
		g = &group{first: map[[2]netip.Prefix]int{}}
		s.groups[text] = g
	}
	return g, ends
}

// find looks for a rule with the same ends, or with one of them larger.
func (g *group) find(r *Rule, ends [2]netip.Prefix) int {
	if i, ok := g.first[ends]; ok {
		return i
	}
	for side, not := range [2]bool{r.Src.Not, r.Dst.Not} {
		p := ends[side]
		if not || !p.IsValid() {
			continue
		}
		larger := ends
		larger[side] = netip.Prefix{}
		if i, ok := g.first[larger]; ok {
			return i
		}
		for _, bits := range g.bits[side] {
			if bits >= p.Bits() {
				continue
			}
			larger[side] = netip.PrefixFrom(p.Addr(), bits).Masked()
			if i, ok := g.first[larger]; ok {
				return i
			}
		}
	}
	return -1
}

// covers tells whether a matches every frame that b matches, as far as their words
// say. Sets are compared by name, programs too.
func covers(a, b *Rule) bool {
	if a.Dir&b.Dir != b.Dir || !portsCover(a.Ports, b.Ports) || a.Frag && !b.Frag {
		return false
	}
	if !rangesCover(a.Lengths, b.Lengths) || !rangesCover(a.VLANs, b.VLANs) {
		return false
	}
	if a.Program != "" {
		return a.Program == b.Program
	}
	if a.needsNothing() {
		return true
	}
	if b.Program != "" {
		return false
	}
	return familyCovers(a, b) && (!a.HasNum || b.HasNum && a.Proto == b.Proto) &&
		endCovers(&a.Src, &b.Src) && endCovers(&a.Dst, &b.Dst) &&
		rangesCover(a.ICMPTypes, b.ICMPTypes) &&
		a.FlagsSet&^b.FlagsSet == 0 && a.FlagsClear&^b.FlagsClear == 0 &&
		(a.EtherType == 0 || a.EtherType == b.EtherType)
}

// needsNothing tells whether a rule's match takes any frame.
func (r *Rule) needsNothing() bool {
	return r.Program == "" && r.Family == AnyFrame && r.EtherType == 0 && r.Src.Any() && r.Dst.Any()
}

func portsCover(a, b uint16) bool {
	if b == 0 {
		b = portMask
	}
	return a == 0 || a&b == b
}

func familyCovers(a, b *Rule) bool {
	switch a.Family {
	case AnyFrame:
		return true
	case IP:
		return b.Family != AnyFrame
	case IPv4, IPv6:
		return a.Family == b.Family
	}
	return false
}

func endCovers(a, b *End) bool {
	if !rangesCover(a.Ports, b.Ports) {
		return false
	}
	switch {
	case a.Any():
		return true
	case b.Any():
		return false
	case a.Set != "" || b.Set != "":
		return a.Set == b.Set && a.Not == b.Not
	case !a.Not && !b.Not:
		return prefixCovers(a.Prefix, b.Prefix)
	case a.Not && b.Not:
		return prefixCovers(b.Prefix, a.Prefix)
	case a.Not:
		return !a.Prefix.Overlaps(b.Prefix)
	}
	return false
}

func prefixCovers(a, b netip.Prefix) bool { return a.Bits() <= b.Bits() && a.Contains(b.Addr()) }

// rangesCover compares lists in order; an empty one takes everything.
func rangesCover(a, b []Range) bool {
	if len(a) == 0 {
		return true
	}
	if len(b) == 0 {
		return false
	}
	for _, r := range b {
		in := false
		for _, q := range a {
			in = in || q.Lo <= r.Lo && r.Hi <= q.Hi
		}
		if !in {
			return false
		}
	}
	return true
}
