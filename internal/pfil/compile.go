package pfil

import (
	"fmt"
	"math"

	"oxpd/internal/board"
	"oxpd/internal/frame"
	"oxpd/internal/pfil/cbpf"
)

// Program is compiled rules. It never changes and may be used by many at once.
type Program struct {
	rules    []Rule
	sets     map[string]*addrSet
	programs map[string]*cbpf.Program
	checks   []check      // one a rule
	views    [hooks]*view // what a frame at a port and in a direction is asked; many may be one
}

// hooks is how many places a frame can be judged at.
const hooks = directions * board.Ports

// hookOf numbers the places. dir is In or Out.
func hookOf(port int, dir Direction) int { return port*directions + int(dir) - int(In) }

// splitRules is up to how many rules each port has a view of its own; more of them have
// one view a direction, and their checks tell the ports apart.
const splitRules = 4096

// Compile makes a program of rules. It keeps r, which must not be changed any more.
// The error names a set or program that a rule needs and r lacks: Parse leaves none.
func Compile(r *Rules) (*Program, error) {
	p := &Program{rules: r.Rules, sets: map[string]*addrSet{}, programs: map[string]*cbpf.Program{}}
	for i := range r.Sets {
		p.sets[r.Sets[i].Name] = newAddrSet(r.Sets[i].Prefixes)
	}
	for i := range r.Programs {
		p.programs[r.Programs[i].Name] = r.Programs[i].Program
	}
	p.checks = make([]check, len(r.Rules))
	for i := range r.Rules {
		var err error
		if p.checks[i], err = p.check(&r.Rules[i]); err != nil {
			return nil, fmt.Errorf("compile line %d: %w", r.Rules[i].Line, err)
		}
		p.checks[i].rule = uint32(i)
		p.checks[i].plain = len(r.Rules) <= splitRules && p.checks[i].isPlain()
	}
	p.split()
	return p, nil
}

// Rules are the rules of the program, in their order: not to be changed.
func (p *Program) Rules() []Rule { return p.rules }

// split makes the views. Hooks that the same rules apply to share one.
func (p *Program) split() {
	views := map[string]*view{}
	for hook := range hooks {
		mask := uint32(1) << hook
		if len(p.rules) > splitRules {
			mask = hookMask(0, Direction(hook%2)+In)
		}
		var rules []uint32
		var key []byte
		for i := range p.checks {
			if p.checks[i].hooks&mask != 0 {
				rules = append(rules, uint32(i))
				key = append(key, byte(i), byte(i>>8), byte(i>>16))
			}
		}
		v := views[string(key)]
		if v == nil {
			v = p.newView(rules)
			views[string(key)] = v
		}
		p.views[hook] = v
	}
}

// hookMask is the bits of ports, 0 for all, in the directions of dir.
func hookMask(ports uint16, dir Direction) uint32 {
	if ports == 0 {
		ports = portMask
	}
	var m uint32
	for port := range board.Ports {
		if ports>>port&1 != 0 {
			m |= uint32(dir) << hookOf(port, In)
		}
	}
	return m
}

// check is what a rule asks for.
func (p *Program) check(r *Rule) (check, error) {
	c := check{hooks: hookMask(r.Ports, r.Dir), srcPortSpan: math.MaxUint16, dstPortSpan: math.MaxUint16, bytesSpan: math.MaxUint32}
	m := more{icmp: r.ICMPTypes, vlans: r.VLANs}
	switch r.Family {
	case AnyFrame:
	case IP:
		c.need(hasIP)
	case IPv4:
		c.need(traits(frame.HaveIPv4))
	case IPv6:
		c.need(traits(frame.HaveIPv6))
	default:
		return check{}, fmt.Errorf("family %d is none", r.Family)
	}
	if r.HasNum {
		c.number(frame.HaveProto, uint16(r.Proto), 0xff, protoAt)
	}
	if r.EtherType != 0 {
		c.number(frame.HaveL2, r.EtherType, 0xffff, etherTypeAt)
	}
	if r.FlagsSet|r.FlagsClear != 0 {
		c.number(frame.HaveTCP, uint16(r.FlagsSet), uint16(r.FlagsSet|r.FlagsClear), flagsAt)
	}
	if r.Frag {
		c.need(traits(frame.HaveFrag))
	}
	if len(r.ICMPTypes) > 0 {
		c.need(traits(frame.HaveICMP))
	}
	if len(r.VLANs) > 0 {
		c.need(traits(frame.HaveL2))
	}
	if len(r.Src.Ports)+len(r.Dst.Ports) > 0 {
		c.need(traits(frame.HavePorts))
		c.srcPort, c.srcPortSpan, m.srcPorts = portSpan(r.Src.Ports)
		c.dstPort, c.dstPortSpan, m.dstPorts = portSpan(r.Dst.Ports)
	}
	if len(r.Lengths) > 0 {
		lo, span, list := portSpan(r.Lengths)
		c.bytes, c.bytesSpan, m.bytes = uint32(lo), uint32(span), list
	}
	if err := p.ends(&c, &m, r); err != nil {
		return check{}, err
	}
	if r.Program != "" {
		if m.program = p.programs[r.Program]; m.program == nil {
			return check{}, fmt.Errorf("no program %s", r.Program)
		}
	}
	if m.needed() {
		c.more = &m
	}
	return c, nil
}

// ends adds the two ends' addresses.
func (p *Program) ends(c *check, m *more, r *Rule) error {
	for _, e := range []struct {
		end   *End
		words *words
		more  *endCheck
	}{{&r.Src, &c.src, &m.src}, {&r.Dst, &c.dst, &m.dst}} {
		if e.end.Any() {
			continue
		}
		c.need(hasIP)
		switch {
		case e.end.Set != "":
			set := p.sets[e.end.Set]
			if set == nil {
				return fmt.Errorf("no set %s", e.end.Set)
			}
			*e.more = endCheck{not: e.end.Not, set: set}
		case e.end.Not:
			*e.more = endCheck{not: true, family: familyOf(e.end), prefix: wordsOf(e.end.Prefix)}
		default:
			c.need(traits(familyOf(e.end)))
			*e.words = wordsOf(e.end.Prefix)
		}
	}
	return nil
}

// familyOf is what a frame has whose address can be in an end's prefix.
func familyOf(e *End) frame.Have {
	if e.Prefix.Addr().Is4() {
		return frame.HaveIPv4
	}
	return frame.HaveIPv6
}

// portSpan is the numbers from the smallest of ascending ranges to the largest; list
// is the ranges where that is not all there is to say.
func portSpan(rs []Range) (lo, span uint16, list []Range) {
	if len(rs) == 0 {
		return 0, math.MaxUint16, nil
	}
	lo = rs[0].Lo
	span = rs[len(rs)-1].Hi - lo
	if len(rs) > 1 {
		list = rs
	}
	return lo, span, list
}

// needed tells whether there is anything to ask.
func (m *more) needed() bool {
	return m.src.not || m.src.set != nil || m.dst.not || m.dst.set != nil || m.program != nil ||
		m.srcPorts != nil || m.dstPorts != nil || m.bytes != nil || m.icmp != nil || m.vlans != nil
}
