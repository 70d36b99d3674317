package pfil

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/bpf"

	"oxpd/internal/frame"
	"oxpd/internal/pfil/cbpf"
	"oxpd/internal/pfil/pfiltest"
)

// difference is a reason for which a rule and a pcap expression of the same meaning
// do not take the same frames. Each is the rule's strictness, or what pcap cannot see.
type difference struct {
	name string
	// applies tells whether a frame is one of those. rule: it is the rule that takes it.
	applies func(d datagram, rule bool) bool
}

// datagram is what the differences are told by: it is read from the frame anew, with
// nothing of package frame but constants.
type datagram struct {
	etherType int // behind at most two tags; -1: not whole
	tags      int // that are whole
	b         []byte
	wire      int
}

// isExtension is of those that pcap does not look behind.
func isExtension(next byte) bool { return next == 0 || next == 43 || next == 51 || next == 60 }

func datagramOf(f pfiltest.Frame) datagram {
	d := datagram{etherType: -1, wire: f.Wire}
	for at := 12; len(f.Bytes) >= at+2; at += 4 {
		e := int(binary.BigEndian.Uint16(f.Bytes[at:]))
		if d.tags == 2 || e != frame.TypeVLAN && e != frame.TypeQinQ {
			d.etherType, d.b = e, f.Bytes[at+2:]
			break
		}
		d.tags++
	}
	return d
}

func (d datagram) at(i int) int { return int(binary.BigEndian.Uint16(d.b[i:])) }

// sound tells whether the header of layer 3 is one and whole.
func (d datagram) sound() bool {
	switch {
	case d.etherType == frame.TypeIPv4 && len(d.b) >= 20:
		header := int(d.b[0]&15) * 4
		return d.b[0]>>4 == 4 && header >= 20 && header <= len(d.b) && d.at(2) >= header
	case d.etherType == frame.TypeIPv6 && len(d.b) >= 40:
		return d.b[0]>>4 == 6
	}
	return false
}

// ends is where the datagram ends behind its header, by its own length.
func (d datagram) ends() int {
	if d.etherType == frame.TypeIPv4 {
		return d.at(2) - int(d.b[0]&15)*4
	}
	return d.at(4)
}

// differences are all that there are.
var (
	notSound = difference{
		"pcap believes the EtherType: a header of another version, with impossible lengths or cut does not keep it from matching",
		func(d datagram, rule bool) bool {
			return !rule && (d.etherType == frame.TypeIPv4 || d.etherType == frame.TypeIPv6) && !d.sound()
		},
	}
	extended = difference{
		"pcap looks at the first of IPv6's extension headers only",
		func(d datagram, rule bool) bool {
			return d.etherType == frame.TypeIPv6 && d.sound() && (isExtension(d.b[6]) || d.b[6] == 44 && len(d.b) > 40 && isExtension(d.b[40]))
		},
	}
	behindFragment = difference{
		"pcap looks for layer 4 not behind IPv6's fragment header",
		func(d datagram, rule bool) bool {
			return rule && d.etherType == frame.TypeIPv6 && d.b[6] == 44
		},
	}
	cutFragment = difference{
		"pcap reads of an IPv6 fragment header that is cut, or goes on behind the datagram's end",
		func(d datagram, rule bool) bool {
			return !rule && d.etherType == frame.TypeIPv6 && d.sound() && d.b[6] == 44 && (len(d.b) < 48 || d.ends() < 8)
		},
	}
	cutTag = difference{
		"pcap compares an outer tag when the inner one is cut: the Ethernet header is not whole",
		func(d datagram, rule bool) bool { return !rule && d.tags > 0 && d.etherType < 0 },
	}
)

// endsBefore is of a rule that needs so many bytes of layer 4.
func endsBefore(needs int) difference {
	return difference{
		"pcap reads fields behind the end that the datagram's own length gives it",
		func(d datagram, rule bool) bool { return !rule && d.sound() && d.ends() < needs },
	}
}

// halved is of a rule that needs so many bytes of layer 4 although one of the fields
// there is enough for pcap: both ports, or type and code.
func halved(needs int) difference {
	return difference{
		"pcap compares a field when the one behind it is cut off",
		func(d datagram, rule bool) bool {
			if rule || !d.sound() {
				return false
			}
			header := 40
			if d.etherType == frame.TypeIPv4 {
				header = int(d.b[0]&15) * 4
			}
			return len(d.b) > header && len(d.b) < header+needs
		},
	}
}

// pair is a rule and a pcap expression of the same meaning. pcap looks behind a VLAN
// tag only when told, a rule behind two always: so the expression is asked for behind
// none, one and two.
type pair struct {
	rule, expression string
	differ           []difference
}

// behindTags is an expression for what is behind up to two tags. In pcap a `vlan`
// moves everything to its right by a tag.
func behindTags(expression string) string {
	const tagged = "(ether[%d:2] = 0x8100 or ether[%d:2] = 0x88a8)"
	one, two := fmt.Sprintf(tagged, 12, 12), fmt.Sprintf(tagged, 16, 16)
	return fmt.Sprintf("(%s) or (%s and vlan and (%s)) or (%s and %s and vlan and (%s))", expression, one, expression, one, two, expression)
}

const (
	outerTag = "(ether[12:2] = 0x8100 or ether[12:2] = 0x88a8)"
	bad      = "(src net 192.0.2.1/32 or src net 198.51.100.0/24 or src net 2001:db8::/32)" // bad.txt
)

func pairs() []pair {
	l3, l4, flags := []difference{notSound}, []difference{notSound, extended, behindFragment, endsBefore(4)}, []difference{notSound, extended, behindFragment, endsBefore(14)}
	proto := []difference{notSound, extended, cutFragment}
	tags := func(p pair) pair {
		p.expression = behindTags(p.expression)
		return p
	}
	return []pair{
		{"any from any to any length 60", "len = 60", nil},
		{"any from any to any length 0-63,1519-65535", "len <= 63 or len >= 1519", nil},
		{"any from any to any vlan none", "not " + outerTag, nil},
		{"any from any to any vlan 100", outerTag + " and ether[14:2] & 0xfff = 100", []difference{cutTag}},
		{"any from any to any vlan 1-50", outerTag + " and ether[14:2] & 0xfff >= 1 and ether[14:2] & 0xfff <= 50", []difference{cutTag}},
		tags(pair{"any from any to any ethertype arp", "ether proto 0x0806", nil}),
		tags(pair{"any from any to any ethertype 0x88cc", "ether proto 0x88cc", nil}),
		tags(pair{"any from any to any ethertype ip4", "ether proto 0x0800", nil}),
		tags(pair{"ip from any to any", "ip or ip6", l3}),
		tags(pair{"ip4 from any to any", "ip", l3}),
		tags(pair{"ip6 from any to any", "ip6", l3}),
		tags(pair{"ip from 192.0.2.1 to any", "ip src host 192.0.2.1", l3}),
		tags(pair{"any from 192.0.2.1 to any", "ip src host 192.0.2.1", l3}),
		tags(pair{"ip from not 192.0.2.1 to any", "(ip or ip6) and not ip src host 192.0.2.1", l3}),
		tags(pair{"ip from ::/0 to any", "ip6", l3}),
		tags(pair{"ip from any to 0.0.0.0/0", "ip", l3}),
		tags(pair{"ip from any to 2001:db8::/32", "dst net 2001:db8::/32", l3}),
		tags(pair{"ip from 2001:db8::1 to 2001:db8:1::2", "src host 2001:db8::1 and dst host 2001:db8:1::2", l3}),
		tags(pair{"ip from not 192.0.2.0/24 to any", "(ip or ip6) and not src net 192.0.2.0/24", l3}),
		tags(pair{"ip4 from any to not 198.51.100.7", "ip and not dst host 198.51.100.7", l3}),
		tags(pair{"ip from set bad to any", "(ip or ip6) and " + bad, l3}),
		tags(pair{"ip from not set bad to any", "(ip or ip6) and not " + bad, l3}),
		tags(pair{"udp from any to any", "udp", proto}),
		tags(pair{"tcp from any to any", "tcp", proto}),
		tags(pair{"sctp from any to any", "sctp", proto}),
		tags(pair{"icmp from any to any", "icmp", l3}),
		tags(pair{"icmp6 from any to any", "icmp6", proto}),
		tags(pair{"gre from any to any", "ip proto 47 or ip6 proto 47", proto}),
		tags(pair{"2 from any to any", "ip proto 2 or ip6 proto 2", proto}),
		tags(pair{"udp from any to any port 53", "udp dst port 53", l4}),
		tags(pair{"udp from any port 5353 to any", "udp src port 5353", []difference{notSound, extended, behindFragment, endsBefore(4), halved(4)}}),
		tags(pair{"udp from any port 5000-6000 to any port 53,67-68", "udp src portrange 5000-6000 and (udp dst port 53 or udp dst portrange 67-68)", l4}),
		tags(pair{"tcp from 192.0.2.0/24 to any port 443,8443", "src net 192.0.2.0/24 and tcp and (tcp dst port 443 or tcp dst port 8443)", []difference{notSound, endsBefore(4)}}),
		tags(pair{"sctp from any to any port 36412", "sctp dst port 36412", l4}),
		tags(pair{"ip4 from any to any frag", "ip and ip[6:2] & 0x3fff != 0", l3}),
		tags(pair{"ip6 from any to any frag", "ip6 and ip6[6] = 44 and ip6[42:2] & 0xfff9 != 0", proto}),
		tags(pair{"udp from any to any frag", "(udp and ip[6:2] & 0x3fff != 0) or (ip6[6] = 44 and ip6[40] = 17 and ip6[42:2] & 0xfff9 != 0)", proto}),
		tags(pair{"icmp from any to any icmp-type echo-request", "icmp[0] = 8", []difference{notSound, endsBefore(2), halved(2)}}),
		tags(pair{"icmp from any to any icmp-type unreachable,redirect", "icmp[0] = 3 or icmp[0] = 5", []difference{notSound, endsBefore(2), halved(2)}}),
		tags(pair{"icmp6 from any to any icmp-type 135-136", "ip6[6] = 58 and ip6[40] >= 135 and ip6[40] <= 136", []difference{notSound, extended, behindFragment, endsBefore(2), halved(2)}}),
		tags(pair{"tcp from any to any tcp-flags syn,!ack", "tcp[13] & 0x12 = 0x02 or (ip6[6] = 6 and ip6[53] & 0x12 = 0x02)", flags}),
		tags(pair{"tcp from any to any tcp-flags rst", "tcp[13] & 4 != 0 or (ip6[6] = 6 and ip6[53] & 4 != 0)", flags}),
		tags(pair{"udp from any to any length 60-90 vlan 100", outerTag + " and ether[14:2] & 0xfff = 100 and udp and len >= 60 and len <= 90", l3}),
	}
}

// expression is what a rule is compared with.
type expression struct {
	text    string
	program *cbpf.Program
	kernel  []int // bytes that the kernel keeps of each frame
}

func compileExpression(t *testing.T, k *pfiltest.Kernel, frames []pfiltest.Frame, text string) (e expression, ddd []byte) {
	t.Helper()
	ddd, err := pfiltest.Compile(text)
	require.NoError(t, err)
	e.text = text
	e.program, err = cbpf.Parse(ddd)
	require.NoError(t, err)
	var raw []bpf.RawInstruction
	for _, in := range e.program.Instructions() {
		raw = append(raw, bpf.RawInstruction{Op: in.Code, Jt: in.JT, Jf: in.JF, K: in.K})
	}
	e.kernel, err = k.Judge(raw, frames)
	require.NoError(t, err)
	return e, ddd
}

// compare has a rule and an expression judge frames. Where they differ one of the
// differences must apply; counts are how often each did.
func compare(t *testing.T, rule string, e expression, ddd []byte, frames []pfiltest.Frame, differ []difference, counts map[string]int) (taken int) {
	t.Helper()
	alone := compileRules(t, header+"drop "+rule, files)
	before, behind := crowd(0), crowd(crowded)
	among := compileRules(t, header+before+"drop "+rule+"\n"+behind, files)
	byProgram := compileRules(t, "program p file p.bpf\ndrop program p", map[string][]byte{"p.bpf": ddd})
	for i, f := range frames {
		var head frame.Packet
		head.Parse(f.Bytes, f.Wire)
		got := alone.Match(In, 0, f.Bytes, f.Wire, &head) == 0
		require.Equal(t, got, among.Match(In, 0, f.Bytes, f.Wire, &head) == crowded, "alone and among other rules: %v", f)
		pcap := e.program.Run(f.Bytes, f.Wire) != 0
		require.Equal(t, pcap, byProgram.Match(In, 0, f.Bytes, f.Wire, &head) == 0, "a rule with the program and its machine: %v", f)
		if len(f.Bytes) > 0 {
			require.Equal(t, e.kernel[i] > 0, pcap, "the kernel and this machine: %v", f)
		}
		if got {
			taken++
		}
		if got == pcap {
			continue
		}
		d := datagramOf(f)
		why := slices.IndexFunc(differ, func(x difference) bool { return x.applies(d, got) })
		if why < 0 {
			t.Fatalf("%q takes it: %v, %q: %v, and no difference says why\n%v\n%+v", rule, got, e.text, pcap, f, d)
		}
		counts[differ[why].name]++
	}
	return taken
}

// crowded is how many rules crowd has: enough for the indexes to be used.
const crowded = 64

// crowd is rules from first on that match no frame.
func crowd(first int) string {
	var b strings.Builder
	for i := first; i < first+crowded; i++ {
		fmt.Fprintf(&b, "drop %s from 203.0.113.%d to 203.0.113.%d/32\n", []string{"ip", "udp", "ip4", "any"}[i%4], i, i+1)
	}
	return b.String()
}

func compileRules(t *testing.T, text string, files map[string][]byte) *Program {
	t.Helper()
	rules, err := Parse(Source{Name: "t.rules", Rules: []byte(text), Files: files})
	require.NoError(t, err)
	p, err := Compile(rules)
	require.NoError(t, err)
	return p
}

func judges(t *testing.T, seed uint64) (*pfiltest.Kernel, []pfiltest.Frame) {
	t.Helper()
	if !pfiltest.HasTCPDump() {
		t.Skip("needs tcpdump, which `make test` installs")
	}
	frames, err := pfiltest.Frames(seed)
	require.NoError(t, err)
	k, err := pfiltest.NewKernel()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, k.Close()) })
	return k, frames
}

// TestRulesAndExpressions: each rule takes the frames that a pcap expression of its
// meaning takes, but for the differences that its row names, each of which is seen.
func TestRulesAndExpressions(t *testing.T) {
	k, frames := judges(t, 21)
	for _, p := range pairs() {
		t.Run(p.rule, func(t *testing.T) {
			e, ddd := compileExpression(t, k, frames, p.expression)
			counts := map[string]int{}
			taken := compare(t, p.rule, e, ddd, frames, p.differ, counts)
			assert.Positive(t, taken, "no frame is taken: it proves little")
			assert.Less(t, taken, len(frames))
			for _, d := range p.differ {
				assert.Positive(t, counts[d.name], "is no difference of this rule: %s", d.name)
			}
		})
	}
}

// TestRandomRulesAndExpressions makes rules and expressions of the same parts.
func TestRandomRulesAndExpressions(t *testing.T) {
	k, frames := judges(t, 22)
	r, taken := rand.New(rand.NewPCG(9, 9)), 0
	for range 60 {
		rule, text := randomPair(r)
		e, ddd := compileExpression(t, k, frames, behindTags(text))
		if compare(t, rule, e, ddd, frames, []difference{notSound, extended, behindFragment, cutFragment, endsBefore(4), halved(4)}, map[string]int{}) > 0 {
			taken++
		}
	}
	assert.Greater(t, taken, 20, "rules that take a frame")
}

// part is words of a rule and what they are in pcap, %s standing for src or dst.
type part struct{ rule, pcap string }

func randomPair(r *rand.Rand) (rule, expression string) {
	pick := func(parts ...part) part { return parts[r.IntN(len(parts))] }
	proto := pick(part{"ip", "(ip or ip6)"}, part{"ip4", "ip"}, part{"ip6", "ip6"}, part{"tcp", "tcp"}, part{"udp", "udp"}, part{"sctp", "sctp"},
		part{"icmp", "icmp"}, part{"icmp6", "icmp6"}, part{"esp", "(ip proto 50 or ip6 proto 50)"})
	words, all := []string{proto.rule}, []string{proto.pcap}
	v4 := []part{{"192.0.2.1", "host 192.0.2.1"}, {"192.0.2.0/24", "net 192.0.2.0/24"}, {"192.0.0.0/9", "net 192.0.0.0/9"}, {"198.51.100.7", "host 198.51.100.7"}, {"0.0.0.0/0", "ip"}}
	v6 := []part{{"2001:db8::/32", "net 2001:db8::/32"}, {"2001:db8::1", "host 2001:db8::1"}, {"2001:db8:1::/48", "net 2001:db8:1::/48"}, {"2000::/3", "net 2000::/3"}, {"::/0", "ip6"}}
	addresses := v4
	if proto.rule == "ip6" || proto.rule == "icmp6" || proto.rule != "ip4" && proto.rule != "icmp" && r.IntN(2) == 0 {
		addresses = v6
	}
	for _, end := range []struct{ word, pcap string }{{"from", "src"}, {"to", "dst"}} {
		words = append(words, end.word)
		a := pick(addresses...)
		// Whole families have no src in pcap.
		if a.pcap != "ip" && a.pcap != "ip6" {
			a.pcap = end.pcap + " " + a.pcap
		}
		switch r.IntN(4) {
		case 0, 1:
			words = append(words, "any")
		case 2:
			words, all = append(words, a.rule), append(all, a.pcap)
		case 3:
			if a.pcap == "ip" || a.pcap == "ip6" {
				a = part{addresses[1].rule, end.pcap + " " + addresses[1].pcap} // not every address is none
			}
			words, all = append(words, "not", a.rule), append(all, "not "+a.pcap)
		}
		if (proto.rule == "tcp" || proto.rule == "udp" || proto.rule == "sctp") && r.IntN(3) > 0 {
			p := pick(part{"53", "port 53"}, part{"443", "port 443"}, part{"1-1023", "portrange 1-1023"}, part{"1024-65535", "portrange 1024-65535"}, part{"0-65535", "portrange 0-65535"})
			words, all = append(words, "port", p.rule), append(all, proto.rule+" "+end.pcap+" "+p.pcap)
		}
	}
	if r.IntN(3) == 0 {
		p := pick(part{"60-100", "(len >= 60 and len <= 100)"}, part{"0-63,1519-65535", "(len <= 63 or len >= 1519)"})
		words, all = append(words, "length", p.rule), append(all, p.pcap)
	}
	if proto.rule == "icmp" && r.IntN(2) == 0 {
		words, all = append(words, "icmp-type 0,8"), append(all, "(icmp[0] = 0 or icmp[0] = 8)")
	}
	return strings.Join(words, " "), strings.Join(all, " and ")
}
