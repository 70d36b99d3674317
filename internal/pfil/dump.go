package pfil

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"

	"oxpd/internal/board"
)

// Dump writes what a program is made of: for each place that frames are judged at,
// which rules are asked there and where each has its home, by the lines of the rule
// file; then the sets with their sizes and the programs, disassembled.
func (p *Program) Dump(w io.Writer) error {
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "rules %d, sets %d, programs %d\n", len(p.rules), len(p.sets), len(p.programs))
	var told []*view
	for _, v := range p.views {
		if !slices.Contains(told, v) {
			told = append(told, v)
			p.dumpView(b, v)
		}
	}
	for _, name := range sortedNames(p.sets) {
		p.sets[name].dump(b, name)
	}
	for _, name := range sortedNames(p.programs) {
		fmt.Fprintf(b, "\nprogram %s: instructions %d\n", name, p.programs[name].Len())
		for _, line := range strings.Split(strings.TrimRight(p.programs[name].String(), "\n"), "\n") {
			fmt.Fprintf(b, "  %s\n", line)
		}
	}
	if err := b.Flush(); err != nil {
		return fmt.Errorf("write the program: %w", err)
	}
	return nil
}

func sortedNames[T any](m map[string]T) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (p *Program) dumpView(b *bufio.Writer, v *view) {
	fmt.Fprintf(b, "\n%s: rules %d\n", p.places(v), len(v.rules))
	for h := range atRemainder + 1 {
		in := 0
		for _, at := range v.homes {
			if at == h {
				in++
			}
		}
		if in == 0 {
			continue
		}
		fmt.Fprintf(b, "  %s: rules %d%s\n", h, in, v.size(h))
		for i, n := range v.rules {
			if v.homes[i] == h {
				fmt.Fprintf(b, "    line %-5d %s\n", p.rules[n].Line, &p.rules[n])
			}
		}
	}
}

// size is what an index is asked with, and how many answers it knows.
func (v *view) size(h home) string {
	switch h {
	case atSrcHost:
		return v.srcHosts.size()
	case atDstHost:
		return v.dstHosts.size()
	case atSrcPort:
		return v.srcPorts.size()
	case atDstPort:
		return v.dstPorts.size()
	case atSrcPrefix:
		return v.srcPrefixes.size()
	case atDstPrefix:
		return v.dstPrefixes.size()
	}
	return ", one after the other"
}

func (h *hashed) size() string {
	keys, most := 0, 0
	for _, s := range h.buckets {
		if n := int(s.end - s.begin); n > 0 {
			keys++
			most = max(most, n)
		}
	}
	return fmt.Sprintf(", hash of %d keys in %d slots, at most %d rules under one", keys, len(h.buckets), most)
}

func (t *prefixes) size() string {
	most := 0
	for i := range t.nodes {
		n := 0
		for at := uint32(i); at != noNode; at = t.nodes[at].parent {
			n += len(t.nodes[at].rules)
		}
		most = max(most, n)
	}
	return fmt.Sprintf(", trie of %d prefixes, at most %d rules for one address", len(t.nodes), most)
}

// places names the ports and directions of a view: "in on oxp1,oxp2; out".
func (p *Program) places(v *view) string {
	var words []string
	for _, dir := range []Direction{In, Out} {
		var ports uint16
		for port := range board.Ports {
			if p.views[hookOf(port, dir)] == v {
				ports |= 1 << port
			}
		}
		switch ports {
		case 0:
		case portMask:
			words = append(words, dir.String())
		default:
			words = append(words, dir.String()+" on "+portNames(ports))
		}
	}
	return strings.Join(words, "; ")
}

func (s *addrSet) dump(b *bufio.Writer, name string) {
	v6 := len(s.list)
	how := "list"
	if s.trie != nil {
		v6, how = s.trie.Size6(), "trie"
	}
	fmt.Fprintf(b, "\nset %s: prefixes %d, IPv4 %d in %d ranges, IPv6 %d", name, s.given, s.given4, (len(s.v4.at)+1)/2, v6)
	if v6 > 0 {
		fmt.Fprintf(b, " in a %s", how)
	}
	fmt.Fprintln(b)
}
