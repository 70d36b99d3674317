package pfil

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// files are what the rules of these tests may name.
var files = map[string][]byte{
	"bad.txt":  []byte("192.0.2.1\n# a comment\n\n198.51.100.0/24 # behind\n2001:db8::/32\n"),
	"none.txt": nil,
	"all.bpf":  []byte("1\n6 0 0 262144\n"),
}

func parse(text string) (*Rules, error) {
	return Parse(Source{Name: "t.rules", Rules: []byte(text), Files: files})
}

// header declares what the rules of these tests may name.
const header = "set bad file bad.txt\nprogram all file all.bpf\n"

func TestRuleIsItsText(t *testing.T) {
	for _, tc := range []struct{ in, canonical string }{
		{"drop ip from 192.168.8.3 to any in", ""},
		{"drop udp from set bad to any port 53 in on oxp9", ""},
		{"pass tcp from any to 10.0.0.0/8 port 443,8443", ""},
		{"count ip6 from any to any frag", ""},
		{"sample 100 icmp from any to any", ""},
		{"  drop\tany   from any to any # all", "drop any from any to any"},
		{"drop any from any to any#all", "error"},
		{"drop ip from not 10.0.0.0/8 to not set bad", ""},
		{"drop tcp from 2001:DB8::1 port 1-3,2-9,11,10 to any", "drop tcp from 2001:db8::1 port 1-11 to any"},
		{"drop 47 from any to any", "drop gre from any to any"},
		{"drop 6 from any to any port 80", "drop tcp from any to any port 80"},
		{"drop 1 from any to any", ""},
		{"drop 0 from 10.1.2.3/32 to any", "drop 0 from 10.1.2.3 to any"},
		{"divert any from any to any on F1,oxp10,PortF1", "divert any from any to any on oxp9,oxp10"},
		{"pass any from any to any on oxp1,oxp2,oxp3,oxp4,oxp5,oxp6,oxp7,oxp8,oxp9,oxp10,oxp11,oxp12", "pass any from any to any"},
		{"drop any from any to any ethertype arp", "drop any from any to any ethertype 0x0806"},
		{"drop any from any to any ethertype 0x88b5 vlan none", ""},
		{"drop ip4 from any to any vlan 10,20-30 length 0-63,1519-65535", ""},
		{"drop icmp from any to any icmp-type echo-request,redirect", "drop icmp from any to any icmp-type 5,8"},
		{"drop icmp6 from any to any icmp-type packet-too-big,135", "drop icmp6 from any to any icmp-type 2,135"},
		{"drop tcp from any to any tcp-flags !ack,syn out", "drop tcp from any to any out tcp-flags syn,!ack"},
		{"drop program all in on oxp1 length 60", ""},
		{"count ip from 0.0.0.0/0 to any", ""},
	} {
		t.Run(tc.in, func(t *testing.T) {
			r, err := parse(header + tc.in)
			if tc.canonical == "error" {
				assert.Error(t, err)
				return
			}
			require.NoError(t, err)
			require.Len(t, r.Rules, 1)
			want := tc.canonical
			if want == "" {
				want = tc.in
			}
			assert.Equal(t, want, r.Rules[0].String())
			assert.Equal(t, 3, r.Rules[0].Line)
			again, err := parse(header + r.Rules[0].String())
			require.NoError(t, err)
			assert.Equal(t, r.Rules, again.Rules)
		})
	}
}

func TestErrorsOfRules(t *testing.T) {
	for _, tc := range []struct {
		line     string
		col      int
		found    string
		expected string // begins with
	}{
		{"deny ip from any to any", 1, `"deny"`, "a verdict (pass, drop, divert, sample, count), set or program"},
		{"drop", 5, "the end of the line", "a protocol (any, ip, ip4"},
		{"drop tpc from any to any", 6, `"tpc"`, "a protocol (any"},
		{"drop 256 from any to any", 6, `"256"`, "a protocol"},
		{"drop 06 from any to any", 6, `"06"`, "a protocol"},
		{"drop ip to any", 9, `"to"`, `"from"`},
		{"drop ip from any", 17, "the end of the line", `"to"`},
		{"drop ip from to any", 14, `"to"`, "any, set, an address"},
		{"drop ip from 10.0.0.1/8 to any", 14, `"10.0.0.1/8"`, "10.0.0.0/8: nothing may be set behind the prefix"},
		{"drop ip from 10.0.0.01 to any", 14, `"10.0.0.01"`, "any, set, an address"},
		{"drop ip from 10.0.0.0/33 to any", 14, `"10.0.0.0/33"`, "any, set, an address"},
		{"drop ip from 10.0.0.0/08 to any", 14, `"10.0.0.0/08"`, "any, set, an address"},
		{"drop ip from ::ffff:1.2.3.4 to any", 14, `"::ffff:1.2.3.4"`, "an IPv4 address as such"},
		{"drop ip from fe80::1%eth0 to any", 14, `"fe80::1%eth0"`, "any, set, an address"},
		{"drop ip from not any to any", 18, `"any"`, "an address, a prefix or a set after not"},
		{"drop ip4 from ::1 to any", 15, `"::1"`, "an address of the family that ip4 is of"},
		{"drop icmp6 from any to 10.0.0.1", 24, `"10.0.0.1"`, "an address of the family that icmp6 is of"},
		{"drop ip from ::1 to 10.0.0.1", 21, `"10.0.0.1"`, "an address of the same family"},
		{"drop ip from any to any port 80", 25, `"port"`, "tcp, udp or sctp"},
		{"drop udp from any to any port", 30, "the end of the line", "a port, a range or a list"},
		{"drop udp from any to any port 80,65536", 34, `"65536"`, "a port from 0 to 65535"},
		{"drop udp from any to any port 80,", 34, `""`, "a port from 0 to 65535"},
		{"drop udp from any to any port 9-1", 31, `"9-1"`, "the smaller number first: 1-9"},
		{"drop udp from any to any port -1", 31, `"-1"`, "a port"},
		{"drop udp from set worse to any", 19, `"worse"`, "a set that is declared: `set worse file PATH`"},
		{"drop program none", 14, `"none"`, "a program that is declared"},
		{"drop program", 13, "the end of the line", "the name of a program"},
		{"drop ip from any to any in out", 28, `"out"`, "in or out; neither of them"},
		{"drop ip from any to any in in", 28, `"in"`, "each option once"},
		{"drop ip from any to any on oxp13", 28, `"oxp13"`, "a port by interface name or label"},
		{"drop ip from any to any on oxp1,oxp0", 33, `"oxp0"`, "a port by interface name or label"},
		{"drop ip from any to any log", 25, `"log"`, "in, out, on, frag"},
		{"drop any from any to any frag", 26, `"frag"`, "ip, ip4, ip6 or a protocol before frag"},
		{"drop ip from any to any ethertype arp", 25, `"ethertype"`, "any as the protocol"},
		{"drop any from any to any ethertype vlan", 36, `"vlan"`, "an EtherType from 0x0001 to 0xffff, or one of ip4, arp, ip6"},
		{"drop " + strings.Repeat("y", 65), 6, `"` + strings.Repeat("y", 64) + `..."`, "a protocol"},
		{"drop any from any to any ethertype 0", 36, `"0"`, "an EtherType from 0x0001"},
		{"drop udp from any to any icmp-type 8", 26, `"icmp-type"`, "icmp or icmp6"},
		{"drop icmp from any to any icmp-type 256", 37, `"256"`, "a type from 0 to 255, or one of echo-reply"},
		{"drop udp from any to any tcp-flags syn", 26, `"tcp-flags"`, "tcp as the protocol"},
		{"drop tcp from any to any tcp-flags sin", 36, `"sin"`, "flags such as syn,!ack out of fin, syn"},
		{"drop tcp from any to any tcp-flags syn,!syn", 40, `"!syn"`, "a flag either set or not"},
		{"drop any from any to any vlan 4096", 31, `"4096"`, "none or a VLAN id from 0 to 4095"},
		{"drop any from any to any length 65536", 33, `"65536"`, "a length in bytes"},
		{"sample icmp from any to any", 8, `"icmp"`, "a number from 1 to"},
		{"sample 0 icmp from any to any", 8, `"0"`, "a number from 1 to"},
		{"set bad file other.txt", 5, `"bad"`, "another name"},
		{"set -x file other.txt", 5, `"-x"`, "a name of at most 64"},
		{"set other fil other.txt", 11, `"fil"`, `"file"`},
		{"set other file", 15, "the end of the line", "the path of a file"},
		{`set other file "a b`, 16, `"\"a b"`, `a closing "`},
		{"set other file \"e\x1b[31mv\"", 16, `"e\x1b[31mv"`, "the path of a file, of characters that can be shown"},
		{"set other file a b", 18, `"b"`, "the end of the line"},
		{"set other file gone.txt", 16, `"gone.txt"`, "a file that was read along with the rules"},
		{strings.Repeat("x", 4097), 4097, `"x"`, "a line of at most 4096 bytes"},
	} {
		t.Run(tc.line[:min(len(tc.line), 60)], func(t *testing.T) {
			r, err := parse(header + tc.line)
			assert.Nil(t, r)
			var e *Error
			require.ErrorAs(t, err, &e)
			assert.Equal(t, []any{"t.rules", 3, tc.col, tc.found}, []any{e.File, e.Line, e.Col, e.Found})
			assert.True(t, strings.HasPrefix(e.Expected, tc.expected), e.Expected)
			assert.True(t, strings.HasPrefix(err.Error(), fmt.Sprintf("t.rules:3:%d: found ", tc.col)), err)
		})
	}
}

func TestErrorsOfFiles(t *testing.T) {
	for _, tc := range []struct {
		name, set, program, want string
	}{
		{"set: host bits", "10.0.0.0/8\n  10.0.0.1/8\n", "", `dir/bad.txt:2:3: found "10.0.0.1/8", expected 10.0.0.0/8: nothing may be set behind the prefix`},
		{"set: two on a line", "10.0.0.1 10.0.0.2", "", `dir/bad.txt:1:1: found "10.0.0.1 10.0.0.2", expected an address such as`},
		{"set: a name", "example.org", "", `dir/bad.txt:1:1: found "example.org", expected an address such as`},
		{"program: no number", "", "x", `dir/all.bpf:1:1: found "x", expected a number of instructions`},
		{"program: falls off its end", "", "1\n0 0 0 1\n", `dir/all.bpf:2:1: found the end of the program, expected a return as its last instruction`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := map[string][]byte{"bad.txt": []byte(tc.set), "all.bpf": files["all.bpf"]}
			if tc.program != "" {
				f["all.bpf"] = []byte(tc.program)
			}
			_, err := Parse(Source{Name: "dir/t.rules", Rules: []byte(header), Files: f})
			require.Error(t, err)
			assert.True(t, strings.HasPrefix(err.Error(), tc.want), err)
		})
	}
}

func TestEveryErrorIsTold(t *testing.T) {
	_, err := parse("drop\npass ip from any to any\nx\n" + strings.Repeat("y\n", 50))
	var joined interface{ Unwrap() []error }
	require.ErrorAs(t, err, &joined)
	assert.Len(t, joined.Unwrap(), maxErrors)
	var last *Error
	require.ErrorAs(t, joined.Unwrap()[maxErrors-1], &last)
	assert.Equal(t, 3+maxErrors-2, last.Line)
}

func TestSetIsRead(t *testing.T) {
	r, err := parse(header + "drop ip from set bad to any\ndrop program all")
	require.NoError(t, err)
	require.Len(t, r.Sets, 1)
	assert.Equal(t, []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("2001:db8::/32")}, r.Sets[0].Prefixes)
	assert.Equal(t, 1, r.Programs[0].Program.Len())
	assert.Empty(t, r.Warnings)
}

func TestWarnings(t *testing.T) {
	for _, tc := range []struct {
		name, rules, want string
	}{
		{"an unused set", "set x file none.txt\npass any from any to any", "t.rules:1: no rule names set x"},
		{"an unused program", "program x file all.bpf\npass any from any to any", "t.rules:1: no rule names program x"},
		{"twice the same", "drop ip from 10.0.0.1 to any\ncount ip from 10.0.0.1 to any", "t.rules:2: this rule never matches: the rule of line 1"},
		{"behind everything", "count any from any to any\ndrop tcp from any to any port 80", "t.rules:2: this rule never matches"},
		{"behind a larger prefix", "pass ip from 10.0.0.0/8 to any\ndrop tcp from 10.1.0.0/16 to any", "t.rules:2: this rule never matches"},
		{"behind a smaller prefix", "pass ip from 10.1.0.0/16 to any\ndrop tcp from 10.0.0.0/8 to any", ""},
		{"behind another direction", "pass any from any to any in\ndrop any from any to any", ""},
		{"behind one port", "pass any from any to any on oxp1\ndrop any from any to any on oxp1,oxp2", ""},
		{"behind both ports", "pass any from any to any on oxp1,oxp2\ndrop any from any to any on oxp2", "t.rules:2: this rule never matches"},
		{"behind not the prefix", "pass ip from not 10.0.0.0/8 to any\ndrop ip from 10.0.0.0/9 to any", ""},
		{"behind not another prefix", "pass ip from not 10.0.0.0/8 to any\ndrop ip from 11.0.0.0/9 to any", "t.rules:2: this rule never matches"},
		{"behind fewer flags", "pass tcp from any to any tcp-flags syn\ndrop tcp from any to any tcp-flags syn,ack", "t.rules:2: this rule never matches"},
		{"behind more flags", "pass tcp from any to any tcp-flags syn,ack\ndrop tcp from any to any tcp-flags syn", ""},
		{"behind some ports", "pass tcp from any to any port 1-100\ndrop tcp from any to any port 50-101", ""},
		{"behind frag", "pass ip from any to any frag\ndrop ip from any to any", ""},
		{"behind a family", "pass ip4 from any to any\ndrop ip from any to any", ""},
		{"behind some of its prefix", "pass ip from not 10.0.0.0/9 to any\ndrop ip from not 10.0.0.0/8 to any", "t.rules:2: this rule never matches"},
		{"behind a larger prefix on the other side", "pass ip from 10.0.0.1 to 10.0.0.0/8\ndrop ip from 10.0.0.1 to 10.1.0.0/16", "t.rules:2: this rule never matches"},
		{"behind a host of its prefix", "pass ip from 10.0.0.1 to any\ndrop ip from 10.0.0.0/8 to any", ""},
		{"behind the same without its ends", "pass udp from any to any port 53 in\ndrop udp from 10.0.0.1 to any port 53 in", "t.rules:2: this rule never matches"},
		{"behind another set", "pass ip from set x to any\ndrop ip from set y to any\nset x file bad.txt\nset y file bad.txt", ""},
		{"behind the same set", "pass ip from set x to any\ndrop ip from set x to 10.0.0.1\nset x file bad.txt", "t.rules:2: this rule never matches"},
		{"behind what is not in the set", "pass ip from not set x to any\ndrop ip from set x to any\nset x file bad.txt", ""},
		{"addresses in ARP", "drop any from 10.0.0.1 to any ethertype arp", "t.rules:1: this rule never matches: frames of EtherType 0x0806 have no addresses"},
		{"addresses in IPv4", "drop any from 10.0.0.1 to any ethertype ip4", ""},
		{"behind both families", "pass ip from any to any\ndrop ip6 from any to any", "t.rules:2: this rule never matches"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := parse(tc.rules)
			require.NoError(t, err)
			if tc.want == "" {
				assert.Empty(t, r.Warnings)
				return
			}
			require.Len(t, r.Warnings, 1)
			assert.True(t, strings.HasPrefix(r.Warnings[0], tc.want), r.Warnings[0])
		})
	}
}

// TestWarningsOfManyRules: behind the rules that are compared with each other, the
// plain cases are found all the same.
func TestWarningsOfManyRules(t *testing.T) {
	var many strings.Builder
	many.WriteString("drop tcp from any to any port 22-23 in\npass ip from 172.16.0.0/12 to any\npass ip from not 172.16.0.0/12 to any out\n")
	for i := range 5 * maxPairs {
		fmt.Fprintf(&many, "drop ip from 10.%d.%d.0/24 to 192.0.2.%d\n", i>>8, i&255, i%200)
	}
	cases := []struct{ name, last, by string }{
		{"the same", "pass ip from 10.0.7.0/24 to 192.0.2.7", "line 11 "},
		{"a larger source", "drop ip from 10.0.7.8 to 192.0.2.7", "line 11 "},
		{"a larger source, of another length", "drop ip from 172.17.0.1 to any", "line 2 "},
		{"any destination", "drop ip from 172.16.0.0/12 to 192.0.2.7", "line 2 "},
		{"a larger source of not", "drop ip from not 172.17.0.0/16 to any out", ""},
		{"no addresses", "drop tcp from 10.1.1.1 to any port 22 in", "line 1 "},
		{"none", "drop ip from 10.0.7.8 to 192.0.2.8", ""},
	}
	first := strings.Count(many.String(), "\n") + 1
	for _, tc := range cases {
		many.WriteString(tc.last + "\n")
	}
	r, err := parse(many.String())
	require.NoError(t, err)
	for i, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			for _, w := range r.Warnings {
				if strings.HasPrefix(w, fmt.Sprintf("t.rules:%d: this rule never matches", first+i)) {
					got = append(got, w)
				}
			}
			if tc.by == "" {
				assert.Empty(t, got)
				return
			}
			require.Len(t, got, 1)
			assert.Contains(t, got[0], tc.by)
		})
	}
}

// TestSetOfAMillion: a set of the size that the filter is for is read whole, and what
// is too much is told once.
func TestSetOfAMillion(t *testing.T) {
	text := manyPrefixes(1_000_000)
	begin := time.Now()
	out, errs := parseSet("big", text, MaxPrefixes, maxErrors)
	t.Logf("1,000,000 prefixes, %d bytes: %v", len(text), time.Since(begin))
	assert.Empty(t, errs)
	require.Len(t, out, 1_000_000)
	assert.Equal(t, []netip.Prefix{netip.MustParsePrefix("1.0.0.0/32"), netip.MustParsePrefix("2001:db8:0:1::/64")}, out[:2])

	out, errs = parseSet("big", text, 998, maxErrors)
	assert.Len(t, out, 998)
	require.Len(t, errs, 1)
	assert.EqualError(t, errs[0], `big:999:1: found "1.0.3.230", expected no more than 4194304 prefixes in all sets`)
}

// manyPrefixes makes a set: hosts of IPv4, and every second line a network of IPv6.
func manyPrefixes(n int) []byte {
	var b []byte
	for i := range n {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{1, byte(i >> 16), byte(i >> 8), byte(i)}), 32)
		if i%2 != 0 {
			p = netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 1, 0x0d, 0xb8, 0, byte(i >> 16), byte(i >> 8), byte(i)}), 64)
			b = append(p.AppendTo(b), '\n')
			continue
		}
		b = append(p.Addr().AppendTo(b), '\n')
	}
	return b
}

// TestSetsTogether: the bound of prefixes is one for all sets.
func TestSetsTogether(t *testing.T) {
	for _, tc := range []struct{ name, rules, want string }{
		{"as many as there may be", "set a file three\nset b file two", ""},
		{"one more", "set a file three\nset b file three", `three:3:1: found "3::", expected no more than 4194304 prefixes in all sets`},
		{"one file twice", "set a file two\nset b file two\nset c file two", `two:2:1: found "2::", expected no more than 4194304 prefixes in all sets`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newParser(Source{Name: "t.rules", Rules: []byte(tc.rules), Files: map[string][]byte{"two": []byte("1::\n2::\n"), "three": []byte("1::\n2::\n3::\n")}})
			p.lines()
			p.contents(5)
			if tc.want == "" {
				assert.Empty(t, p.errs)
				return
			}
			require.Len(t, p.errs, 1)
			assert.EqualError(t, p.errs[0], tc.want)
		})
	}
}

func BenchmarkSet(b *testing.B) {
	text := manyPrefixes(100_000)
	b.ReportAllocs()
	b.SetBytes(int64(len(text)))
	for range b.N {
		parseSet("big", text, MaxPrefixes, maxErrors)
	}
}

func TestTooManyRules(t *testing.T) {
	_, err := parse(strings.Repeat("pass any from any to any\n", MaxRules+1))
	var e *Error
	require.ErrorAs(t, err, &e)
	assert.Equal(t, []any{MaxRules + 1, "no more than 65536 rules"}, []any{e.Line, e.Expected})
}

// FuzzParse: whatever is read, errors say where in the text, and a rule is its text.
func FuzzParse(f *testing.F) {
	f.Add("drop ip from 192.168.8.3 to any in")
	f.Add(header + "drop udp from set bad to any port 53 in on oxp9\ndrop program all vlan none")
	f.Add("drop tcp from not 10.0.0.0/8 port 1,2-3 to any tcp-flags syn,!ack length 60 # x")
	f.Add(`set "a" file "b c"`)
	f.Fuzz(func(t *testing.T, text string) {
		r, err := parse(text)
		lines := strings.Split(text, "\n")
		for _, err := range unjoin(err) {
			var e *Error
			require.ErrorAs(t, err, &e)
			if e.File != "t.rules" {
				continue
			}
			requireInside(t, lines, e)
		}
		if err != nil {
			return
		}
		decls := ""
		for i := range r.Sets {
			decls += fmt.Sprintf("set %s file %q\n", r.Sets[i].Name, r.Sets[i].Path)
		}
		for i := range r.Programs {
			decls += fmt.Sprintf("program %s file %q\n", r.Programs[i].Name, r.Programs[i].Path)
		}
		for i := range r.Rules {
			want := r.Rules[i]
			again, err := parse(decls + want.String())
			require.NoError(t, err, want.String())
			require.Len(t, again.Rules, 1)
			want.Line = again.Rules[0].Line
			require.Equal(t, want, again.Rules[0])
		}
	})
}

func unjoin(err error) []error {
	if err == nil {
		return nil
	}
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) {
		return joined.Unwrap()
	}
	return []error{err}
}

// FuzzSet: every prefix that is read has nothing set behind it and is read again from
// its text, each line is one prefix, one error, or nothing, and errors say where in the
// text.
func FuzzSet(f *testing.F) {
	f.Add("10.0.0.0/8\n::1 # x\n\n")
	f.Add("10.0.0.1/8")
	f.Add("\t10.0.0.1\r\n#\n ::ffff:1.2.3.4")
	f.Fuzz(func(t *testing.T, text string) {
		out, errs := parseSet("s", []byte(text), 10, maxErrors)
		var again strings.Builder
		for _, p := range out {
			require.Equal(t, p.Masked(), p)
			fmt.Fprintln(&again, p)
		}
		same, none := parseSet("s", []byte(again.String()), 10, maxErrors)
		require.Empty(t, none)
		require.Equal(t, out, same)
		lines := strings.Split(text, "\n")
		require.LessOrEqual(t, len(out)+len(errs), len(lines))
		require.LessOrEqual(t, len(out), 10)
		for _, err := range errs {
			var e *Error
			require.ErrorAs(t, err, &e)
			requireInside(t, lines, e)
		}
	})
}

// requireInside wants an error to be at a place of the text.
func requireInside(t *testing.T, lines []string, e *Error) {
	t.Helper()
	require.Positive(t, e.Line)
	require.Positive(t, e.Col)
	require.LessOrEqual(t, e.Line, len(lines))
	require.LessOrEqual(t, e.Col, len(lines[e.Line-1])+1)
	require.NotEmpty(t, e.Found)
	require.NotEmpty(t, e.Expected)
}
