package pfil

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
	"oxpd/internal/frame"
)

// The plain evaluation: each rule in turn, from its AST, by netip and without anything
// of the compiled form. It is what the compiled form is held against.

type seen struct {
	dir        Direction
	port       int
	first      []byte
	frameBytes int
	pkt        frame.Packet
}

func seeFrame(dir Direction, port int, first []byte, frameBytes int) *seen {
	s := &seen{dir: dir, port: port, first: first, frameBytes: frameBytes}
	s.pkt.Parse(first, frameBytes)
	return s
}

func (s *seen) has(h frame.Have) bool { return s.pkt.Have&h != 0 }

// plainMatch is the number of the first rule that matches, or -1.
func plainMatch(rs *Rules, s *seen) int {
	return slices.IndexFunc(rs.Rules, func(r Rule) bool { return plainRule(rs, &r, s) })
}

func plainRule(rs *Rules, r *Rule, s *seen) bool {
	if r.Dir&s.dir == 0 || r.Ports != 0 && r.Ports>>s.port&1 == 0 || len(r.Lengths) > 0 && !plainIn(r.Lengths, s.frameBytes) {
		return false
	}
	if len(r.VLANs) > 0 {
		none := r.VLANs[0].Lo == VLANNone
		if !s.has(frame.HaveL2) || none != (s.pkt.VLANs == 0) || !none && !plainIn(r.VLANs, int(s.pkt.VLAN[0])) {
			return false
		}
	}
	if r.Program != "" {
		i := slices.IndexFunc(rs.Programs, func(b BPF) bool { return b.Name == r.Program })
		return rs.Programs[i].Program.Run(s.first, s.frameBytes) != 0
	}
	is := map[Family]bool{
		AnyFrame: true, IPv4: s.has(frame.HaveIPv4), IPv6: s.has(frame.HaveIPv6), IP: s.has(frame.HaveIPv4) || s.has(frame.HaveIPv6),
	}
	if !is[r.Family] || r.HasNum && !(s.has(frame.HaveProto) && s.pkt.Proto == r.Proto) || r.Frag && !s.has(frame.HaveFrag) {
		return false
	}
	if r.EtherType != 0 && !(s.has(frame.HaveL2) && s.pkt.EtherType == r.EtherType) {
		return false
	}
	if len(r.ICMPTypes) > 0 && !(s.has(frame.HaveICMP) && plainIn(r.ICMPTypes, int(s.pkt.ICMPType))) {
		return false
	}
	if r.FlagsSet|r.FlagsClear != 0 && !(s.has(frame.HaveTCP) && s.pkt.TCPFlags&r.FlagsSet == r.FlagsSet && s.pkt.TCPFlags&r.FlagsClear == 0) {
		return false
	}
	return plainEnd(rs, &r.Src, s, s.pkt.Src(), s.pkt.SrcPort) && plainEnd(rs, &r.Dst, s, s.pkt.Dst(), s.pkt.DstPort)
}

func plainEnd(rs *Rules, e *End, s *seen, a netip.Addr, port uint16) bool {
	if len(e.Ports) > 0 && !(s.has(frame.HavePorts) && plainIn(e.Ports, int(port))) {
		return false
	}
	if e.Any() {
		return true
	}
	ps := []netip.Prefix{e.Prefix}
	if e.Set != "" {
		ps = rs.Sets[slices.IndexFunc(rs.Sets, func(s Set) bool { return s.Name == e.Set })].Prefixes
	}
	in := slices.ContainsFunc(ps, func(p netip.Prefix) bool { return p.Contains(a) })
	return a.IsValid() && in != e.Not
}

func plainIn(rs []Range, v int) bool {
	return slices.ContainsFunc(rs, func(r Range) bool { return int(r.Lo) <= v && v <= int(r.Hi) })
}

// agree holds the compiled form against the plain one for one frame.
func agree(t *testing.T, rs *Rules, p *Program, s *seen) int {
	t.Helper()
	want := plainMatch(rs, s)
	got := p.Match(s.dir, s.port, s.first, s.frameBytes, &s.pkt)
	if got != want {
		require.Failf(t, "not what the plain evaluation says", "got rule %s\nwant %s\nframe %x of %d bytes at port %d %v",
			ruleText(rs, got), ruleText(rs, want), s.first, s.frameBytes, s.port, s.dir)
	}
	return got
}

func ruleText(rs *Rules, n int) string {
	if n < 0 {
		return "none"
	}
	return fmt.Sprintf("%d: %s", n, &rs.Rules[n])
}

// Few of everything, so that random rules and frames meet.
var (
	someHosts    = []string{"10.0.0.1", "10.0.0.2", "10.0.1.1", "10.1.0.1", "192.0.2.1", "255.255.255.255", "0.0.0.0", "2001:db8::1", "2001:db8::2", "2001:db8:0:1::1", "::a00:1", "::ffff:10.0.0.1", "::"}
	somePrefixes = []string{"10.0.0.0/8", "10.0.0.0/16", "10.0.0.0/24", "10.0.0.0/30", "10.0.0.0/31", "192.0.2.0/24", "0.0.0.0/0", "128.0.0.0/1",
		"2001:db8::/32", "2001:db8::/64", "2001:db8::/126", "2000::/3", "::/0", "::/96", "::a00:0/120", "2001:db8:0:1::/65"}
	somePorts  = []string{"53", "80", "443", "53,80", "1-1023", "1024-65535", "0-65535", "79-81,443", "53,443-444"}
	someProtos = []string{"any", "ip", "ip4", "ip6", "tcp", "udp", "sctp", "icmp", "icmp6", "gre", "47", "0", "6"}
	someNums   = []int{53, 80, 443, 444, 1024, 0, 65535}
)

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

// randomRules is the text of rules over the sets a and b and the program p.
func randomRules(r *rand.Rand, n int) string {
	var b strings.Builder
	b.WriteString("set a file a\nset b file b\nset none file none\nprogram p file p\nprogram q file q\n")
	for range n {
		b.WriteString(randomRule(r) + "\n")
	}
	return b.String()
}

func randomRule(r *rand.Rand) string {
	words := []string{pick(r, []string{"pass", "drop", "count", "divert", "sample 7"})}
	if r.IntN(20) == 0 {
		words = append(words, "program "+pick(r, []string{"p", "q"}))
	} else {
		proto := pick(r, someProtos)
		words = append(words, proto, "from", randomEnd(r, proto), "to", randomEnd(r, proto))
		words = append(words, protoOption(r, proto)...)
	}
	for _, o := range []string{
		pick(r, []string{"in", "out"}), "on " + pick(r, []string{"oxp1", "oxp2", "oxp1,F2", "F4"}),
		"length " + pick(r, []string{"60", "0-63", "64-1518", "60,9000-65535", "1-59,61-70"}), "vlan " + pick(r, []string{"none", "1", "0-5", "1,3"}),
	} {
		if r.IntN(6) == 0 {
			words = append(words, o)
		}
	}
	return strings.Join(words, " ")
}

func randomEnd(r *rand.Rand, proto string) string {
	who := pick(r, []string{"any", "any", "set a", "set b", "set none", pick(r, someHosts), pick(r, someHosts), pick(r, someHosts), pick(r, somePrefixes), pick(r, somePrefixes)})
	if who != "any" && r.IntN(6) == 0 {
		who = "not " + who
	}
	if strings.Contains("tcp udp sctp 6", proto) && r.IntN(2) == 0 {
		who += " port " + pick(r, somePorts)
	}
	return who
}

func protoOption(r *rand.Rand, proto string) []string {
	if r.IntN(2) == 0 {
		return nil
	}
	switch proto {
	case "any":
		return []string{"ethertype " + pick(r, []string{"arp", "ip4", "ip6", "0x88b5", "0x8100"})}
	case "tcp":
		return []string{"tcp-flags " + pick(r, []string{"syn", "syn,!ack", "!fin", "ack"})}
	case "icmp", "icmp6":
		return []string{"icmp-type " + pick(r, []string{"echo-request", "0-127", "3,128"})}
	case "ip", "ip4", "ip6":
		return []string{"frag"}
	}
	return nil
}

// parseRandom parses random rules. Lines that contradict themselves, an address of the
// wrong family, are left out.
func parseRandom(t testing.TB, r *rand.Rand, n int) *Rules {
	text := randomRules(r, n)
	src := Source{Name: "r", Files: map[string][]byte{"a": []byte(randomSet(r, 5)), "b": []byte(randomSet(r, 40)), "none": nil,
		"p": []byte("4\n40 0 0 12\n21 0 1 2048\n6 0 0 1\n6 0 0 0\n"), "q": []byte("4\n128 0 0 0\n53 0 1 64\n6 0 0 1\n6 0 0 0\n")}}
	var good []string
	head := strings.Join(strings.SplitAfter(text, "\n")[:5], "")
	for _, line := range strings.Split(strings.TrimSpace(text), "\n")[5:] {
		src.Rules = []byte(head + line)
		if _, err := Parse(src); err == nil {
			good = append(good, line)
		}
	}
	src.Rules = []byte(head + strings.Join(good, "\n"))
	rs, err := Parse(src)
	require.NoError(t, err)
	return rs
}

func randomSet(r *rand.Rand, n int) string {
	var b strings.Builder
	for range n {
		switch s := pick(r, append(someHosts, somePrefixes...)); {
		case strings.Contains(s, "ffff"), strings.HasSuffix(s, "/0"): // refused; everything
		case r.IntN(2) == 0:
			b.WriteString(s + "\n")
		default: // something near
			a := netip.MustParsePrefix(append(somePrefixes, "10.0.0.1/32")[r.IntN(len(somePrefixes)+1)]).Addr()
			p, err := a.Prefix(r.IntN(a.BitLen()) + 1)
			if err == nil {
				b.WriteString(p.String() + "\n")
			}
		}
	}
	return b.String()
}

// randomFrame is a frame of the few addresses and ports, possibly damaged: truncated,
// with lengths that lie, with bytes that are anything.
func randomFrame(r *rand.Rand) (first []byte, frameBytes int) {
	b := make([]byte, 12, 200)
	for range pick(r, []int{0, 0, 0, 1, 2, 3}) {
		b = append(b, 0x81, 0, 0x20, byte(r.IntN(6)))
	}
	src, dst := netip.MustParseAddr(pick(r, someHosts)), netip.MustParseAddr(pick(r, someHosts))
	for src.Is4() != dst.Is4() {
		dst = netip.MustParseAddr(pick(r, someHosts))
	}
	proto := pick(r, []byte{frame.ProtoTCP, frame.ProtoUDP, frame.ProtoICMP, frame.ProtoICMPv6, frame.ProtoSCTP, frame.ProtoGRE, 0, 44})
	l4 := randomL4(r)
	switch {
	case r.IntN(10) == 0:
		b = append(b, pick(r, [][]byte{{8, 6}, {0x88, 0xb5}, {0, 46}, {0x81, 0}})...)
	case src.Is4():
		b = append(b, 8, 0, 0x45, 0)
		b = binary.BigEndian.AppendUint16(b, uint16(20+len(l4)))
		b = append(b, 0, 0)
		b = binary.BigEndian.AppendUint16(b, pick(r, []uint16{0, 0, 0x4000, 0x2000, 0x2010, 0x0010}))
		b = append(b, 64, proto, 0, 0)
	default:
		b = append(b, 0x86, 0xdd, 0x60, 0, 0, 0)
		b = binary.BigEndian.AppendUint16(b, uint16(8+len(l4)))
		b = append(b, pick(r, []byte{proto, 60}), 64)
		l4 = append([]byte{proto, 0, 0, 0, 0, 0, 0, 0}, l4...)
	}
	b = append(append(append(b, src.AsSlice()...), dst.AsSlice()...), l4...)
	frameBytes = max(len(b), pick(r, []int{0, 60, 64, 1500, 9014}))
	switch r.IntN(8) {
	case 0:
		b = b[:r.IntN(len(b)+1)]
	case 1:
		b[r.IntN(len(b))] = byte(r.Uint32())
	}
	return b, frameBytes
}

func randomL4(r *rand.Rand) []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(pick(r, someNums)))
	b = binary.BigEndian.AppendUint16(b, uint16(pick(r, someNums)))
	b = append(b, make([]byte, 16)...)
	b[13] = pick(r, []byte{2, 0x12, 0x10, 1})
	if r.IntN(3) == 0 {
		b[0] = pick(r, []byte{0, 3, 8, 128})
	}
	return b
}

// First match wins over all indexes: for random rules that overlap much, the compiled
// form names the rule that the plain evaluation names.
func TestMatchIsThePlainEvaluation(t *testing.T) {
	for _, n := range []int{1, 5, linearRules, linearRules + 1, 60, 400} {
		t.Run(fmt.Sprintf("rules=%d", n), func(t *testing.T) {
			r := rand.New(rand.NewPCG(7, uint64(n)))
			hit := map[int]bool{}
			for range 8 {
				rs := parseRandom(t, r, n)
				p, err := Compile(rs)
				require.NoError(t, err)
				for range 1500 {
					first, frameBytes := randomFrame(r)
					hit[agree(t, rs, p, seeFrame(pick(r, []Direction{In, Out}), r.IntN(board.Ports), first, frameBytes))] = true
				}
			}
			assert.Greater(t, len(hit), min(n, 20)/2, "the frames are to meet many of the rules")
		})
	}
}
