package pfil

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
	"oxpd/internal/frame"
)

// made describes one frame.
type made struct {
	src, dst   string // "": an ARP frame
	proto      byte
	srcPort    uint16
	dstPort    uint16
	flags      byte
	icmpType   byte
	frag       uint16 // IPv4's word
	vlans      []uint16
	cut        int // bytes cut off the end of what is at hand
	frameBytes int // 0: as many as were made
}

func (m made) bytes() []byte {
	b := make([]byte, 12, 100)
	for _, id := range m.vlans {
		b = binary.BigEndian.AppendUint16(append(b, 0x81, 0), id)
	}
	if m.src == "" {
		b = append(append(b, 8, 6), make([]byte, 28)...)
		return b[:len(b)-m.cut]
	}
	src, dst := netip.MustParseAddr(m.src), netip.MustParseAddr(m.dst)
	l4 := binary.BigEndian.AppendUint16(nil, m.srcPort)
	l4 = append(binary.BigEndian.AppendUint16(l4, m.dstPort), make([]byte, 16)...)
	l4[13] = m.flags
	if m.proto == frame.ProtoICMP || m.proto == frame.ProtoICMPv6 {
		l4[0] = m.icmpType
	}
	if src.Is4() {
		b = binary.BigEndian.AppendUint16(append(b, 8, 0, 0x45, 0), uint16(20+len(l4)))
		b = binary.BigEndian.AppendUint16(append(b, 0, 0), m.frag)
		b = append(b, 64, m.proto, 0, 0)
	} else {
		b = binary.BigEndian.AppendUint16(append(b, 0x86, 0xdd, 0x60, 0, 0, 0), uint16(len(l4)))
		b = append(b, m.proto, 64)
	}
	b = append(append(append(b, src.AsSlice()...), dst.AsSlice()...), l4...)
	return b[:len(b)-m.cut]
}

func (m made) seen(dir Direction, port int) *seen {
	b := m.bytes()
	return seeFrame(dir, port, b, max(len(b), m.frameBytes))
}

// Each thing that a rule can ask for, and its negation.
func TestMatchOfEachOption(t *testing.T) {
	udp4 := made{src: "10.1.2.3", dst: "10.9.9.9", proto: 17, srcPort: 1000, dstPort: 53}
	udp6 := made{src: "2001:db8::1", dst: "2001:db8::2", proto: 17, srcPort: 1000, dstPort: 53}
	syn := made{src: "10.1.2.3", dst: "10.9.9.9", proto: 6, srcPort: 1000, dstPort: 443, flags: 0x02}
	synAck := made{src: "10.1.2.3", dst: "10.9.9.9", proto: 6, srcPort: 443, dstPort: 1000, flags: 0x12}
	ping := made{src: "10.1.2.3", dst: "10.9.9.9", proto: 1, icmpType: 8}
	ping6 := made{src: "2001:db8::1", dst: "2001:db8::2", proto: 58, icmpType: 128}
	first := made{src: "10.1.2.3", dst: "10.9.9.9", proto: 17, srcPort: 1000, dstPort: 53, frag: 0x2000}
	later := made{src: "10.1.2.3", dst: "10.9.9.9", proto: 17, srcPort: 1000, dstPort: 53, frag: 0x0010}
	listed := made{src: "192.0.2.1", dst: "198.51.100.77", proto: 17, srcPort: 1, dstPort: 2}
	mapped := made{src: "::ffff:10.1.2.3", dst: "2001:db8::2", proto: 17, srcPort: 1000, dstPort: 53}
	low6 := made{src: "::a01:203", dst: "2001:db8::2", proto: 17, srcPort: 1000, dstPort: 53}
	arp := made{}
	tag := func(m made, ids ...uint16) made { m.vlans = ids; return m }
	long := func(m made, n int) made { m.frameBytes = n; return m }
	cut := func(m made, n int) made { m.cut = n; return m }
	all := []made{udp4, udp6, syn, synAck, ping, ping6, first, later, listed, mapped, low6, arp}
	for _, tc := range []struct {
		rule    string
		matches []made
		not     []made
	}{
		{"any from any to any", append(all, cut(udp4, 40), cut(arp, 42)), nil},
		{"ip from any to any", []made{udp4, udp6, later, tag(udp4, 1)}, []made{arp, cut(udp4, 25), cut(udp6, 35)}},
		{"ip4 from any to any", []made{udp4, later}, []made{arp, udp6, mapped}},
		{"ip6 from any to any", []made{udp6, mapped}, []made{arp, udp4}},
		{"udp from any to any", []made{udp4, udp6, later, cut(udp4, 20)}, []made{syn, arp}},
		{"tcp from any to any", []made{syn, synAck}, []made{udp4, arp}},
		{"icmp from any to any", []made{ping}, []made{ping6, udp4}},
		{"icmp6 from any to any", []made{ping6}, []made{ping, udp6}},
		{"0 from any to any", nil, all},
		{"ip from 10.1.2.3 to any", []made{udp4, syn}, []made{udp6, listed, mapped, low6, arp}},
		{"ip from not 10.1.2.3 to any", []made{udp6, listed, mapped, low6}, []made{udp4, syn, arp}},
		{"any from not 10.1.2.3 to any", []made{udp6, listed}, []made{udp4, arp}},
		{"ip4 from not 10.1.2.3 to any", []made{listed}, []made{udp4, udp6, arp}},
		{"ip from any to 10.9.9.9", []made{udp4, syn}, []made{udp6, listed}},
		{"ip from any to not 10.9.9.9", []made{udp6, listed}, []made{udp4, arp}},
		{"ip from 10.0.0.0/8 to any", []made{udp4}, []made{listed, udp6, mapped, low6}},
		{"ip from not 10.0.0.0/8 to any", []made{listed, udp6, mapped, low6}, []made{udp4, arp}},
		{"ip from 10.1.2.2/31 to any", []made{udp4}, []made{listed}},
		{"ip from 0.0.0.0/0 to any", []made{udp4, listed}, []made{udp6, mapped, arp}},
		{"ip from not 0.0.0.0/0 to any", []made{udp6, mapped}, []made{udp4, arp}},
		{"ip from ::/0 to any", []made{udp6, mapped}, []made{udp4, arp}},
		{"ip from ::a01:203 to any", []made{low6}, []made{udp4, mapped}},
		{"ip from 2001:db8::/127 to any", []made{udp6}, []made{udp4, low6}},
		{"ip from any to 2001:db8::/32", []made{udp6, mapped}, []made{udp4, listed}},
		{"ip from set bad to any", []made{listed, udp6}, []made{udp4, mapped, arp}},
		{"ip from not set bad to any", []made{udp4, mapped}, []made{listed, udp6, arp}},
		{"ip from any to set bad", []made{listed, udp6}, []made{udp4}},
		{"ip from set none to any", nil, all},
		{"ip from not set none to any", []made{udp4, udp6, listed}, []made{arp}},
		{"udp from any to any port 53", []made{udp4, udp6, first}, []made{later, listed, syn, cut(udp4, 18)}},
		{"udp from any port 1000 to any", []made{udp4, udp6}, []made{later, listed}},
		{"udp from any to any port 1-52,54-99", nil, []made{udp4, udp6, syn}},
		{"udp from any to any port 1-3,53", []made{udp4, listed}, []made{syn}},
		{"udp from any port 0-65535 to any", []made{udp4}, []made{later, syn}},
		{"tcp from any to any tcp-flags syn", []made{syn, synAck}, []made{udp4, cut(syn, 7)}},
		{"tcp from any to any tcp-flags syn,!ack", []made{syn}, []made{synAck}},
		{"tcp from any to any tcp-flags !ack", []made{syn}, []made{synAck, cut(syn, 7)}},
		{"icmp from any to any icmp-type echo-request", []made{ping}, []made{ping6, cut(ping, 19)}},
		{"icmp from any to any icmp-type 0-7,9-255", nil, []made{ping}},
		{"icmp6 from any to any icmp-type 128", []made{ping6}, []made{ping}},
		{"ip from any to any frag", []made{first, later}, []made{udp4, udp6}},
		{"any from any to any ethertype arp", []made{arp, tag(arp, 3)}, []made{udp4, cut(arp, 29)}},
		{"any from any to any ethertype ip6", []made{udp6, tag(udp6, 3, 4)}, []made{udp4}},
		{"any from any to any vlan none", []made{udp4, arp}, []made{tag(udp4, 1), tag(arp, 0), cut(arp, 29)}},
		{"ip from any to any vlan 3", []made{tag(udp4, 3), tag(udp4, 3, 7)}, []made{udp4, tag(udp4, 7, 3), tag(arp, 3)}},
		{"ip from any to any vlan 0-2,9", []made{tag(udp4, 0), tag(udp4, 9)}, []made{udp4, tag(udp4, 3)}},
		{"any from any to any length 60", []made{long(udp4, 60), long(arp, 60)}, []made{udp4, long(udp4, 61)}},
		{"any from any to any length 0-52,100-65535", []made{long(udp4, 9014), arp}, []made{long(udp4, 99), long(udp4, 65536)}},
		{"any from any to any length 1519-65535", []made{long(udp4, 9014)}, []made{udp4, long(udp4, 65536+1600)}},
		{"program all", all, nil},
		{"program all length 60", []made{long(arp, 60)}, []made{arp}},
	} {
		t.Run(tc.rule, func(t *testing.T) {
			rs, err := parse(header + "set none file none.txt\ndrop " + tc.rule)
			require.NoError(t, err)
			p, err := Compile(rs)
			require.NoError(t, err)
			for i, m := range tc.matches {
				assert.Equal(t, 0, agree(t, rs, p, m.seen(In, 3)), "frame %d that matches: %+v", i, m)
			}
			for i, m := range tc.not {
				assert.Equal(t, -1, agree(t, rs, p, m.seen(In, 3)), "frame %d that does not match: %+v", i, m)
			}
		})
	}
}

// A rule is asked at the ports and in the directions that it names.
func TestMatchAtEachHook(t *testing.T) {
	for _, tc := range []struct {
		options string
		at      func(port int, dir Direction) bool
	}{
		{"", func(int, Direction) bool { return true }},
		{"in", func(_ int, d Direction) bool { return d == In }},
		{"out", func(_ int, d Direction) bool { return d == Out }},
		{"on oxp1", func(port int, _ Direction) bool { return port == 0 }},
		{"in on oxp1,F4", func(port int, d Direction) bool { return d == In && (port == 0 || port == 11) }},
		{"out on F2", func(port int, d Direction) bool { return d == Out && port == 9 }},
	} {
		for _, others := range []int{0, 100, splitRules} {
			t.Run(fmt.Sprintf("%s with %d others", tc.options, others), func(t *testing.T) {
				rs, err := parse(mixedRules(others) + "drop ip from any to any " + tc.options)
				require.NoError(t, err)
				p, err := Compile(rs)
				require.NoError(t, err)
				views := map[*view]bool{}
				for _, v := range p.views {
					views[v] = true
				}
				assert.LessOrEqual(t, len(views), 2, "places with the same rules share a view")
				if len(rs.Rules) > splitRules {
					assert.Same(t, p.views[0], p.views[hookOf(5, In)], "of very many rules there is one view a direction")
				}
				for port := range board.Ports {
					for _, dir := range []Direction{In, Out} {
						want := -1
						if tc.at(port, dir) {
							want = others
						}
						s := made{src: "10.1.2.3", dst: "10.9.9.9", proto: 47}.seen(dir, port)
						assert.Equal(t, want, p.Match(dir, port, s.first, s.frameBytes, &s.pkt), "port %d %v", port, dir)
					}
				}
			})
		}
	}
}

// Rules that crowd under few keys, or contain each other, are told apart as ever.
func TestMatchOfCrowdedRules(t *testing.T) {
	many := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			b.WriteString(strings.ReplaceAll(format, "#", fmt.Sprint(i)) + "\n")
		}
		return b.String()
	}
	nested := func(first, last int) string {
		var b strings.Builder
		for i := first; i != last; i += (last - first) / max(last-first, first-last) {
			p := netip.PrefixFrom(netip.MustParseAddr("10.1.2.3"), i).Masked()
			fmt.Fprintf(&b, "drop udp from %s to any length %d-65535\n", p, 40+i)
		}
		return b.String()
	}
	for _, tc := range []struct {
		name  string
		rules string
		homes []home
	}{
		{"all under one source", many(200, "drop ip from 10.0.0.1 to any length #"), []home{atSrcHost}},
		{"all under one port", many(200, "drop udp from any to any port 53 length #"), []home{atDstPort}},
		{"all under one prefix", many(200, "drop ip from any to 10.0.0.0/8 length #"), []home{atDstPrefix}},
		{"one source, each its port", many(200, "drop udp from 10.0.0.1 to any port #"), []home{atDstPort}},
		{"one port, each its source", many(200, "drop udp from 10.0.0.# to any port 53"), []home{atSrcHost}},
		{"duplicate prefixes", many(100, "drop ip from 10.0.0.0/24 to any length #\ndrop ip from 10.0.0.0/16 to any length #"), []home{atSrcPrefix}},
		{"nested, the short first", nested(1, 32), []home{atSrcPrefix}},
		{"nested, the long first", nested(31, 0), []home{atSrcPrefix}},
		{"no key at all", many(200, "drop ip from any to any length #"), []home{atRemainder}},
		{"negated ends", many(100, "drop udp from not 10.0.0.1 to any length #\ndrop udp from any to not 10.0.0.0/8 length #"), []home{atRemainder}},
		{"all of a family", many(100, "drop ip from 0.0.0.0/0 to any length #\ndrop ip from any to ::/0 length #"), []home{atRemainder}},
		{"wide port ranges", many(100, "drop udp from any to any port 1-1000 length #"), []home{atRemainder}},
		{"narrow port ranges", many(100, "drop udp from any to any port 51-54 length #"), []home{atDstPort}},
		{"one index too small to be worth it", many(20, "drop udp from any to any port #") + "drop ip from 10.0.0.1 to any\n", []home{atDstPort, atRemainder}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rs, err := parse(tc.rules)
			require.NoError(t, err)
			p, err := Compile(rs)
			require.NoError(t, err)
			var homes []home
			for h := range indexes + 1 {
				for _, at := range p.views[0].homes {
					if at == h {
						homes = append(homes, h)
						break
					}
				}
			}
			assert.Equal(t, tc.homes, homes)
			r := rand.New(rand.NewPCG(3, 5))
			hit := false
			for range 2000 {
				m := made{src: pick(r, []string{"10.0.0.1", "10.0.0.7", "10.1.2.3", "10.1.2.2", "10.1.0.1", "11.0.0.1"}),
					dst: pick(r, []string{"10.0.0.1", "192.0.2.1"}), proto: pick(r, []byte{6, 17}), srcPort: uint16(r.IntN(60)), dstPort: uint16(50 + r.IntN(6)), frameBytes: r.IntN(210)}
				hit = agree(t, rs, p, m.seen(In, 0)) >= 0 || hit
			}
			assert.True(t, hit, "no frame met a rule")
		})
	}
}

// A set is its prefixes, however many they are, whatever contains or repeats what.
func TestSetHasItsPrefixes(t *testing.T) {
	for _, tc := range []struct {
		name  string
		edges int
		in    []string
		is    []string
		not   []string
	}{
		{"nothing", 0, nil, nil, []string{"0.0.0.0", "255.255.255.255", "::"}},
		{"the first and the last address", 3, []string{"0.0.0.0", "255.255.255.255"}, []string{"0.0.0.0", "255.255.255.255"}, []string{"0.0.0.1", "255.255.255.254", "::"}},
		{"everything of IPv4", 1, []string{"0.0.0.0/0"}, []string{"0.0.0.0", "10.0.0.1", "255.255.255.255"}, []string{"::", "::ffff:10.0.0.1", "::a00:1"}},
		{"everything of IPv4 in halves", 1, []string{"128.0.0.0/1", "0.0.0.0/1"}, []string{"0.0.0.0", "127.255.255.255", "128.0.0.0", "255.255.255.255"}, []string{"::"}},
		{"everything of IPv6", 0, []string{"::/0"}, []string{"::", "::ffff:10.0.0.1"}, []string{"0.0.0.0", "10.0.0.1"}},
		{"neighbours", 2, []string{"10.0.0.0/25", "10.0.0.128/25", "10.0.1.0/24"}, []string{"10.0.0.0", "10.0.0.127", "10.0.0.128", "10.0.1.255"}, []string{"9.255.255.255", "10.0.2.0"}},
		{"one in another, and twice", 2, []string{"10.0.0.0/8", "10.1.0.0/16", "10.1.0.0/16", "10.1.2.3"}, []string{"10.0.0.0", "10.1.2.3", "10.1.2.4", "10.255.255.255"}, []string{"11.0.0.0", "9.255.255.255"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var ps []netip.Prefix
			for _, text := range tc.in {
				p, want := parsePrefix(text)
				require.Empty(t, want)
				ps = append(ps, p)
			}
			s := newAddrSet(ps)
			assert.Len(t, s.v4.at, tc.edges)
			for _, a := range tc.is {
				assert.True(t, setHas(s, netip.MustParseAddr(a)), a)
			}
			for _, a := range tc.not {
				assert.False(t, setHas(s, netip.MustParseAddr(a)), a)
			}
		})
	}
}

func setHas(s *addrSet, a netip.Addr) bool {
	w := wordsOf(netip.PrefixFrom(a, a.BitLen()))
	if a.Is4() {
		return s.has(frame.HaveIPv4, w.hi, w.lo)
	}
	return s.has(frame.HaveIPv6, w.hi, w.lo)
}

// Large random sets, asked at the edges of their prefixes, where a mistake would be.
func TestSetAtItsEdges(t *testing.T) {
	for _, n := range []int{1, smallSet, smallSet + 1, 300} {
		t.Run(fmt.Sprintf("prefixes=%d", n), func(t *testing.T) {
			r := rand.New(rand.NewPCG(11, uint64(n)))
			ps := randomPrefixes(r, n, 0.5)
			for i := range n / 4 { // crowded
				ps[i] = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 6), byte(i << 2)}), 32-i&1)
			}
			s := newAddrSet(ps)
			for _, p := range ps {
				w := wordsOf(p)
				last := addr6(w.hi|^w.maskHi, w.lo|^w.maskLo)
				if p.Addr().Is4() {
					b := last.As16()
					last = netip.AddrFrom4([4]byte(b[12:]))
				}
				for _, a := range []netip.Addr{p.Masked().Addr(), p.Masked().Addr().Prev(), last, last.Next()} {
					if a.IsValid() {
						want := false
						for _, q := range ps {
							want = want || q.Contains(a)
						}
						require.Equal(t, want, setHas(s, a), "%s at an edge of %s", a, p)
					}
				}
			}
		})
	}
}

// A million prefixes are compiled in seconds. The bound is a guard, five times what a
// slow core takes.
func TestMillionPrefixes(t *testing.T) {
	if testing.Short() {
		t.Skip("a million prefixes take a second")
	}
	rs, err := parse(header + "drop ip from set bad to any")
	require.NoError(t, err)
	r := rand.New(rand.NewPCG(1, 2))
	rs.Sets[0].Prefixes = randomPrefixes(r, 1_000_000, 0.2)
	begin := time.Now()
	p, err := Compile(rs)
	require.NoError(t, err)
	took := time.Since(begin)
	assert.Less(t, took, 30*time.Second)
	t.Logf("1,000,000 prefixes, a fifth of them IPv6: %v", took)
	for range 1000 {
		q := rs.Sets[0].Prefixes[r.IntN(1_000_000)]
		dst := "10.0.0.1"
		if q.Addr().Is6() {
			dst = "2001:db8::1"
		}
		s := made{src: q.Addr().String(), dst: dst, proto: 17}.seen(In, 0)
		require.Equal(t, 0, p.Match(In, 0, s.first, s.frameBytes, &s.pkt), q)
	}
}

func TestMatchAllocatesNothing(t *testing.T) {
	rs := parseRandom(t, rand.New(rand.NewPCG(1, 2)), 200)
	p, err := Compile(rs)
	require.NoError(t, err)
	r := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		first, frameBytes := randomFrame(r)
		s := seeFrame(In, 0, first, frameBytes)
		assert.Zero(t, testing.AllocsPerRun(10, func() { p.Match(In, 0, s.first, s.frameBytes, &s.pkt) }))
	}
}

func TestCompileNamesWhatIsMissing(t *testing.T) {
	for _, tc := range []struct {
		name string
		rule Rule
		want string
	}{
		{"set", Rule{Line: 3, Dir: Both, Src: End{Set: "x"}}, "compile line 3: no set x"},
		{"program", Rule{Line: 4, Dir: Both, Program: "x"}, "compile line 4: no program x"},
		{"family", Rule{Line: 5, Dir: Both, Family: 9}, "compile line 5: family 9 is none"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Compile(&Rules{Rules: []Rule{tc.rule}})
			assert.EqualError(t, err, tc.want)
		})
	}
}

// FuzzMatch: whatever the rules and the frame, the compiled form names the rule that
// the plain evaluation names. The rules are repeated beside others, so that they are
// walked one after the other and found by indexes.
func FuzzMatch(f *testing.F) {
	udp := made{src: "10.1.2.3", dst: "192.0.2.1", proto: 17, srcPort: 1000, dstPort: 53}.bytes()
	f.Add("drop ip from 10.1.2.3 to any", udp, uint16(60), uint8(0))
	f.Add("drop udp from set bad to any port 53 in on oxp9\npass program all", udp, uint16(9014), uint8(16))
	f.Add("count ip from not 10.0.0.0/8 to set bad\ndrop udp from 10.1.2.0/24 port 1-3,1000 to any", udp, uint16(0), uint8(1))
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 8 {
		first, frameBytes := randomFrame(r)
		f.Add(randomRule(r)+"\n"+randomRule(r), first, uint16(frameBytes), uint8(i))
	}
	f.Fuzz(func(t *testing.T, text string, first []byte, frameBytes uint16, hook uint8) {
		for _, more := range []string{"", "\n" + mixedRules(40), "\n" + text + "\n" + mixedRules(20)} {
			rs, err := parse(header + text + more)
			if err != nil || len(rs.Rules) > 1000 {
				return
			}
			p, err := Compile(rs)
			require.NoError(t, err)
			agree(t, rs, p, seeFrame(In+Direction(hook&1), int(hook>>1)%board.Ports, first, int(frameBytes)))
		}
	})
}
