package pfil

import (
	"fmt"
	"net/netip"
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
	rules := p.out.Rules[:min(len(p.out.Rules), maxShadowing)]
	for j := range rules {
		for i := range rules[:j] {
			if covers(&rules[i], &rules[j]) {
				p.warning(rules[j].Line, "this rule never matches: the rule of line %d takes all of its frames (%s)", rules[i].Line, &rules[i])
				break
			}
		}
	}
}

func (p *parser) warning(line int, format string, args ...any) {
	if len(p.out.Warnings) < maxWarnings {
		p.out.Warnings = append(p.out.Warnings, fmt.Sprintf("%s:%d: ", p.src.Name, line)+fmt.Sprintf(format, args...))
	}
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
