package inetdiag

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
	"oxpd/internal/netlab"
	"oxpd/internal/tcpstats"
)

// run runs ip in a namespace.
func run(t *testing.T, ns *netlab.NS, words string) {
	t.Helper()
	require.NoError(t, ns.Do(func() error {
		out, err := exec.Command("ip", strings.Fields(words)...).CombinedOutput()
		if err != nil {
			t.Logf("ip %s: %s", words, out)
		}
		return err
	}))
}

// indexOf is the kernel's index of an interface.
func indexOf(t *testing.T, ns *netlab.NS, name string) (index int) {
	t.Helper()
	var err error
	require.NoError(t, ns.Do(func() error { index, err = netIndex(name); return err }))
	return index
}

func TestVia(t *testing.T) {
	ns, p := namespace(t)
	for _, words := range []string{
		"tuntap add dev p0 mode tap", "tuntap add dev p1 mode tap", "tuntap add dev p2 mode tap", "link add link p0 name p0.7 type macvlan",
		"link add name br0 type bridge", "link set p1 master br0", "link set p2 master br0",
		"addr add 10.1.0.1/24 dev p0", "addr add 10.7.0.1/24 dev p0.7", "addr add 10.2.0.1/24 dev br0", "addr add 2001:db8::1/64 dev p0 nodad",
		"link set p0 up", "link set p0.7 up", "link set p1 up", "link set p2 up", "link set br0 up", "route add 192.0.2.0/24 via 10.1.0.9",
	} {
		run(t, ns, words)
	}
	var ports [board.Ports]int
	ports[8], ports[9], ports[10] = indexOf(t, ns, "p0"), indexOf(t, ns, "p1"), indexOf(t, ns, "p2")
	s := New(Config{NetNS: p, Ports: func() [board.Ports]int { return ports }})
	for _, to := range []string{"10.1.0.2:1", "10.7.0.2:2", "10.2.0.2:3", "192.0.2.1:4", "[2001:db8::2]:5"} {
		synSent(t, ns, to)
	}
	l := listen(t, ns, "tcp4", "127.0.0.1:0")
	dial(t, ns, l)
	got := func(text string) map[uint64]int {
		t.Helper()
		all, w := read(t, s, text+" exclude=listen", false)
		assert.Equal(t, w.Visited, w.Appended+w.SkippedAll())
		out := map[uint64]int{}
		for i := range all {
			remote, _ := all[i].Uint(tcpstats.FieldRemotePort)
			if remote > 5 {
				remote = 0 // of the loopback
			}
			out[remote] = -1
			if port, ok := all[i].Uint(tcpstats.FieldPort); ok {
				out[remote] = int(port)
			}
		}
		return out
	}
	assert.Equal(t, map[uint64]int{1: 8, 2: 8, 4: 8, 5: 8}, got("via=oxp9"))
	assert.Equal(t, map[uint64]int{3: -1}, got("via=oxp10"), "a bridge has several ports")
	assert.Equal(t, map[uint64]int{3: -1}, got("via=oxp11"))
	assert.Empty(t, got("via=oxp1"))
	assert.Equal(t, map[uint64]int{0: -1, 1: 8, 2: 8, 3: -1, 4: 8, 5: 8}, got("via=any"))
	assert.Equal(t, map[uint64]int{0: -1, 1: -1, 2: -1, 3: -1, 4: -1, 5: -1}, got(""))
}

// TestWaysAreSpread: a thousand pairs of addresses that are close to each other have about as
// many slots as a thousand that are drawn at random. Those that share one ask the kernel for
// each of their sockets.
func TestWaysAreSpread(t *testing.T) {
	const n = 1024
	v4 := func(i uint64) uint64 { return tcpstats.MappedWord | 0x0a000000 | i }
	for name, key := range map[string]func(i uint64) wayKey{
		"local addresses of a /22":  func(i uint64) wayKey { return wayKey{localLo: v4(i), remoteLo: v4(1 << 20)} },
		"local addresses of a /14":  func(i uint64) wayKey { return wayKey{localLo: v4(i << 8), remoteLo: v4(1)} },
		"remote addresses of a /22": func(i uint64) wayKey { return wayKey{localLo: v4(1 << 20), remoteLo: v4(i)} },
		"remote addresses of a /14": func(i uint64) wayKey { return wayKey{localLo: v4(1), remoteLo: v4(i << 8)} },
		"addresses of both ends":    func(i uint64) wayKey { return wayKey{localLo: v4(i % 32), remoteLo: v4(i / 32)} },
		"hosts of IPv6":             func(i uint64) wayKey { return wayKey{localHi: 1, localLo: 1, remoteHi: 1, remoteLo: i, six: true} },
		"networks of IPv6":          func(i uint64) wayKey { return wayKey{localHi: 1, localLo: 1, remoteHi: i, remoteLo: 1, six: true} },
		"own networks of IPv6": func(i uint64) wayKey {
			return wayKey{localHi: i << 16, localLo: 1, remoteHi: 1, remoteLo: 1, six: true}
		},
		"marks":      func(i uint64) wayKey { return wayKey{localLo: v4(1), remoteLo: v4(2), mark: uint32(i)} },
		"interfaces": func(i uint64) wayKey { return wayKey{localLo: v4(1), remoteLo: v4(2), bound: uint32(i)} },
	} {
		used := map[uint64]bool{}
		for i := range uint64(n) {
			k := key(i)
			used[k.slot()] = true
		}
		// 1024 at random take 906 of 4096, give or take 10.
		assert.Greater(t, len(used), 840, name)
	}
}

// FuzzRoutes: whatever rtnetlink says is understood or refused.
func FuzzRoutes(f *testing.F) {
	f.Add(message(24, 0, 7, append(make([]byte, rtmSize), attribute(rtaOIF, []byte{3, 0, 0, 0})...)))
	f.Add(message(16, 0, 7, append(make([]byte, ifiSize), attribute(iflaMaster, []byte{3, 0, 0, 0})...)))
	f.Add(message(msgDone, 0, 7, make([]byte, 4)))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _, _ = routeAnswer(b, 7)
		links := map[int]netLink{}
		_, _ = linksIn(b, 7, links)
		portsOf(links, [board.Ports]int{1, 2, 3})
	})
}
