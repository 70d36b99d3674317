package pfil

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"oxpd/internal/frame"
)

// mixedRules is the text of rules of every shape that an index or the remainder is
// home to. No frame of floods matches one.
func mixedRules(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, []string{
			"drop ip from 198.51.%[1]d.%[2]d to any\n",
			"drop udp from 203.%[1]d.%[2]d.0/24 to any\n",
			"drop tcp from any to any port %[3]d\n",
			"drop ip from any to 192.0.%[1]d.%[2]d\n",
			"drop ip6 from 2001:db8:%[2]d::/48 to any\n",
			"drop udp from any port %[3]d to any\n",
			"drop tcp from 172.16.%[2]d.0/24 to any port 1024-65535\n",
			"drop ip from 198.51.%[1]d.%[2]d to 192.0.2.0/24 frag\n",
			"drop udp from any to 198.%[1]d.%[2]d.0/24\n",
			"drop tcp from any to any port %[3]d tcp-flags syn,!ack\n",
		}[i%10], i/256%256, i%256, 1024+i)
	}
	return b.String()
}

// randomPrefixes are prefixes as block lists have them, mostly long; v6 of them IPv6.
func randomPrefixes(r *rand.Rand, n int, v6 float64) []netip.Prefix {
	ps := make([]netip.Prefix, n)
	for i := range ps {
		if r.Float64() < v6 {
			ps[i], _ = addr6(0x20010000_00000000|r.Uint64N(1<<40)<<8, r.Uint64()).Prefix(32 + r.IntN(33))
			continue
		}
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], r.Uint32N(0xdf000000))
		bits := 24 + r.IntN(9)
		if r.IntN(10) == 0 {
			bits -= 8
		}
		ps[i], _ = netip.AddrFrom4(b).Prefix(bits)
	}
	return ps
}

func hosts(ps []netip.Prefix) []netip.Prefix {
	for i := range ps {
		ps[i] = netip.PrefixFrom(ps[i].Addr(), ps[i].Addr().BitLen())
	}
	return ps
}

// udpFrame is a frame of the smallest size.
func udpFrame(src, dst netip.Addr, srcPort, dstPort uint16) []byte {
	b := append(make([]byte, 12, 60), 8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, frame.ProtoUDP, 0, 0)
	b = append(append(b, src.AsSlice()...), dst.AsSlice()...)
	b = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, srcPort), dstPort)
	return b[:60]
}

// flood is frames from one source, random is frames from everywhere.
func flood(n int) [][]byte {
	frames := make([][]byte, n)
	for i := range frames {
		frames[i] = udpFrame(netip.MustParseAddr("192.168.8.3"), netip.MustParseAddr("10.9.8.7"), 9, 9)
	}
	return frames
}

func anywhere(n int) [][]byte {
	r := rand.New(rand.NewPCG(1, 2))
	frames := make([][]byte, n)
	for i := range frames {
		var src [4]byte
		binary.BigEndian.PutUint32(src[:], r.Uint32N(0xdf000000))
		frames[i] = udpFrame(netip.AddrFrom4(src), netip.MustParseAddr("10.9.8.7"), uint16(r.Uint32()), 9)
	}
	return frames
}

const floodRule = "drop ip from 192.168.8.3 to any\n"

// BenchmarkMatch is the whole cost of a verdict on one frame: its headers are read,
// its rule is found. The last rule matches the flood.
func BenchmarkMatch(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	set := func(ps []netip.Prefix, rule string) *Rules {
		rs, err := parse(header + rule)
		require.NoError(b, err)
		rs.Sets[0].Prefixes = ps
		return rs
	}
	text := func(s string) *Rules {
		rs, err := parse(s + floodRule)
		require.NoError(b, err)
		return rs
	}
	for _, bc := range []struct {
		name   string
		rules  *Rules
		frames [][]byte
	}{
		{"rules=0", &Rules{}, flood(1024)},
		{"rules=1", text(""), flood(1024)},
		{"rules=16", text(mixedRules(15)), flood(1024)},
		{"rules=17", text(mixedRules(16)), flood(1024)},
		{"rules=100", text(mixedRules(99)), flood(1024)},
		{"rules=100/frames=anywhere", text(mixedRules(99)), anywhere(1024)},
		{"rules=10000/frames=anywhere", text(mixedRules(9999)), anywhere(1024)},
		{"prefixes=100000", set(randomPrefixes(r, 100_000, 0), "drop udp from set bad to any"), flood(1024)},
		{"prefixes=100000/frames=anywhere", set(randomPrefixes(r, 100_000, 0), "drop udp from set bad to any"), anywhere(8192)},
		{"prefixes=1000000/frames=anywhere", set(randomPrefixes(r, 1_000_000, 0.2), "drop udp from set bad to any"), anywhere(8192)},
		{"hosts=100000/frames=anywhere", set(hosts(randomPrefixes(r, 100_000, 0)), "drop udp from set bad to any"), anywhere(8192)},
		{"bpf", text("program udp file all.bpf\ndrop program udp\n"), flood(1024)},
	} {
		b.Run(bc.name, func(b *testing.B) {
			p, err := Compile(bc.rules)
			require.NoError(b, err)
			var pkt frame.Packet
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				f := bc.frames[i&(len(bc.frames)-1)]
				pkt.Parse(f, len(f))
				p.Match(In, 0, f, len(f), &pkt)
			}
		})
	}
}

// BenchmarkHeaders is the part of BenchmarkMatch that is not the filter's.
func BenchmarkHeaders(b *testing.B) {
	frames := flood(1024)
	var pkt frame.Packet
	for i := range b.N {
		f := frames[i&1023]
		pkt.Parse(f, len(f))
	}
}
