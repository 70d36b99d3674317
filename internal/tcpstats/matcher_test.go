package tcpstats

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// plainly is Ask as the page says it: each test by itself, on addresses and not on words.
func plainly(f *Filter, local, remote netip.AddrPort, family Families, s State) Skip {
	in := func(p netip.Prefix, a netip.Addr) bool {
		switch {
		case !p.IsValid():
			return true
		case p.Addr().Is4():
			return p.Contains(a.Unmap())
		}
		return p.Contains(netip.AddrFrom16(a.As16())) // an IPv6 socket's, mapped or not
	}
	port := func(p Ports, n uint16) bool {
		for _, q := range p.List() {
			if q == n {
				return true
			}
		}
		return p.Len() == 0
	}
	four := f.Family == IPv4 || f.Local.IsValid() && f.Local.Addr().Is4() || f.Remote.IsValid() && f.Remote.Addr().Is4()
	admits := true
	mappedAsked := func(p netip.Prefix) bool { return p.IsValid() && p.Addr().Is4In6() && p.Bits() >= 96 }
	six := func(p netip.Prefix) bool { return p.IsValid() && p.Addr().Is6() }
	switch {
	case four:
		admits = family != FamilyIPv6
	case six(f.Local) || six(f.Remote):
		for _, p := range []netip.Prefix{f.Local, f.Remote} {
			if mappedAsked(p) {
				admits = admits && family == FamilyMapped
			} else if six(p) {
				admits = admits && family == FamilyIPv6
			}
		}
	case f.Family == IPv6:
		admits = family == FamilyIPv6
	}
	switch {
	case !admits:
		return SkipFamily
	case f.States>>s&1 == 0:
		return SkipState
	case !port(f.LocalPorts, local.Port()) || !port(f.RemotePorts, remote.Port()):
		return SkipPort
	case !in(f.Local, local.Addr()) || !in(f.Remote, remote.Addr()):
		return SkipAddr
	}
	return Match
}

// ends are two ends as a source gives them.
func endsOf(local, remote netip.AddrPort, family Families, s State) Ends {
	l, r := wordsOf(netip.PrefixFrom(netip.AddrFrom16(local.Addr().As16()), 128)), wordsOf(netip.PrefixFrom(netip.AddrFrom16(remote.Addr().As16()), 128))
	return Ends{LocalHi: l.hi, LocalLo: l.lo, RemoteHi: r.hi, RemoteLo: r.lo, LocalPort: local.Port(), RemotePort: remote.Port(), State: s, Family: family}
}

// TestMatcherIsThePlainEvaluation asks filters of every kind about sockets of every kind.
func TestMatcherIsThePlainEvaluation(t *testing.T) {
	texts := []string{
		"", "ipv4_only", "ipv6_only", "local_port=1,2", "remote_port=3 local_port=1", "exclude=listen,time_wait", "include_state=established", "exclude=closed,listen,syn_sent,syn_received,established,close_wait,fin_wait_1,closing,last_ack,fin_wait_2,time_wait",
		"local_addr=10.0.0.0/8", "remote_addr=10.0.0.1", "local_addr=0.0.0.0/0", "remote_addr=10.0.0.0/31 local_addr=10.0.0.0/30", "local_addr=2001:db8::/32", "local_addr=::/0", "remote_addr=2001:db8::1", "local_addr=2001:db8::/33 remote_addr=2001:db8::/127",
		"local_addr=::ffff:a00:1", "local_addr=::ffff:0:0/96", "local_addr=::ffff:0:0/96 remote_addr=2001:db8::/32", "remote_addr=::ffff:a00:0/120", "local_addr=::/64", "ipv6_only local_addr=::ffff:a00:1",
		"local_port=1 include_state=established,listen local_addr=10.0.0.0/24 ipv4_only",
	}
	four := []string{"10.0.0.1", "10.0.0.2", "10.0.1.1", "192.0.2.1", "0.0.0.0", "255.255.255.255"}
	six := []string{"2001:db8::1", "2001:db8:8000::1", "2001:db9::1", "::", "::1", "::ffff:0:0:1"}
	rng := rand.New(rand.NewPCG(1, 2))
	seen := map[Skip]int{}
	for range 100_000 {
		f, err := Parse(texts[rng.IntN(len(texts))])
		require.NoError(t, err)
		family := Families(1) << rng.IntN(3)
		pick := func() netip.AddrPort {
			var a netip.Addr
			switch family {
			case FamilyIPv6:
				a = netip.MustParseAddr(six[rng.IntN(len(six))])
			default:
				a = netip.MustParseAddr(four[rng.IntN(len(four))])
			}
			if family == FamilyMapped {
				a = netip.AddrFrom16(a.As16())
			}
			return netip.AddrPortFrom(a, uint16(rng.IntN(4)))
		}
		local, remote, s := pick(), pick(), State(rng.IntN(stateCount))
		m, e := f.Matcher(), endsOf(local, remote, family, s)
		want := plainly(&f, local, remote, family, s)
		seen[want]++
		require.Equal(t, want, m.Ask(&e), "%q, %v to %v, family %d, %v", f.String(), local, remote, family, s)
	}
	for _, why := range []Skip{Match, SkipFamily, SkipState, SkipPort, SkipAddr} {
		assert.Greater(t, seen[why], 1000, why.String())
	}
}

func TestSkipsHaveTheOrderOfThePage(t *testing.T) {
	f, err := Parse("ipv4_only include_state=listen local_port=1 local_addr=10.0.0.0/8")
	require.NoError(t, err)
	m := f.Matcher()
	e := endsOf(netip.MustParseAddrPort("192.0.2.1:9"), netip.MustParseAddrPort("192.0.2.1:9"), FamilyIPv6, Established)
	assert.Equal(t, SkipFamily, m.Ask(&e))
	e.Family = FamilyIPv4
	assert.Equal(t, SkipState, m.Ask(&e))
	e.State = Listen
	assert.Equal(t, SkipPort, m.Ask(&e))
	e.LocalPort = 1
	assert.Equal(t, SkipAddr, m.Ask(&e))
	e.LocalLo = MappedWord | 10<<24
	assert.Equal(t, Match, m.Ask(&e))
}
