package port

import (
	"context"
	"encoding/binary"
	"testing"

	"github.com/mdlayher/netlink"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/sys"
)

// packetMembership asks the kernel for a mode of an interface as a capture does;
// it ends with the socket.
func packetMembership(t *testing.T, ns *sys.NetNS, index int, mode uint16) (end func()) {
	t.Helper()
	fd := -1
	require.NoError(t, ns.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		return err
	}))
	m := unix.PacketMreq{Ifindex: int32(index), Type: mode}
	require.NoError(t, unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &m))
	return func() { unix.Close(fd) }
}

// TestLink: what the usual tools do to an interface, read at once and, where the
// kernel has an event for it, watched.
func TestLink(t *testing.T) {
	ns := newNS(t)
	p := open(t, ns)
	var s seen
	watch(t, WatchConfig{NetNS: ns.Path(), Filter: func(i int) bool { return i == p.Index() }}, s.report)
	is := func(what string, cond func(Link) bool) {
		t.Helper()
		l, err := p.Link()
		require.NoError(t, err)
		assert.True(t, cond(l), "%s: %+v", what, l)
		eventually(t, what+", watched", func() bool { l, ok := s.link(p.Index()); return ok && cond(l) })
	}
	is("at first", func(l Link) bool {
		return l.Index == p.Index() && l.Name == "oxp9" && l.MTU == 1500 && l.Up && l.Carrier &&
			!l.Promisc && !l.AllMulti && l.Master == 0 && l.Bridge == "" && l.BridgeMTU == 0
	})
	ip(t, ns, "link set oxp9 promisc on")
	is("promiscuous", func(l Link) bool { return l.Promisc })
	ip(t, ns, "link set oxp9 promisc off")
	is("not promiscuous", func(l Link) bool { return !l.Promisc })
	require.NoError(t, p.SetPromisc(context.Background(), true))
	is("promiscuous by the port", func(l Link) bool { return l.Promisc && l.Up })
	require.NoError(t, p.SetPromisc(context.Background(), false))
	is("not promiscuous by the port", func(l Link) bool { return !l.Promisc && l.Up })
	ip(t, ns, "link set oxp9 allmulticast on")
	is("all-multicast", func(l Link) bool { return l.AllMulti && !l.Promisc })
	ip(t, ns, "link set oxp9 allmulticast off")
	is("not all-multicast", func(l Link) bool { return !l.AllMulti })

	stop := packetMembership(t, ns, p.Index(), unix.PACKET_MR_PROMISC)
	is("capture", func(l Link) bool { return l.Promisc })
	ip(t, ns, "link set oxp9 promisc on")
	ip(t, ns, "link set oxp9 promisc off")
	is("a capture goes on", func(l Link) bool { return l.Promisc })
	stop()
	is("end of the capture", func(l Link) bool { return !l.Promisc })

	require.NoError(t, p.SetUp(context.Background(), false))
	is("down", func(l Link) bool { return !l.Up })
	require.NoError(t, p.SetUp(context.Background(), true))
	is("up", func(l Link) bool { return l.Up })
	mac := [6]byte{2, 0, 0, 0, 0, 0x77}
	require.NoError(t, p.SetMAC(mac))
	is("address", func(l Link) bool { return l.MAC == mac })

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, p.SetUp(ctx, false), context.Canceled)
	is("still up", func(l Link) bool { return l.Up })

	ip(t, ns, "link delete oxp9")
	_, err := p.Link()
	require.ErrorIs(t, err, ErrRemoved)
	require.ErrorIs(t, p.SetUp(context.Background(), true), ErrRemoved)
	require.NoError(t, p.Close())
	_, err = p.Link()
	require.ErrorIs(t, err, ErrClosed)
}

// All-multicast by a socket shows in a count that kernels before 6.3 do not tell.
func TestLinkAllMultiBySocket(t *testing.T) {
	ns := newNS(t)
	p := open(t, ns)
	stop := packetMembership(t, ns, p.Index(), unix.PACKET_MR_ALLMULTI)
	defer stop()
	l, err := p.Link()
	require.NoError(t, err)
	if !l.AllMulti {
		t.Skip("this kernel does not tell (before 6.3)")
	}
	assert.False(t, l.Promisc)
}

// A macvlan asks for promiscuity without an event, on an interface without
// address filter: only Link shows it.
func TestLinkMacvlan(t *testing.T) {
	ns := newNS(t)
	p := open(t, ns)
	if out, err := ipMay(ns, "link add mv0 link oxp9 type macvlan mode bridge"); err != nil {
		t.Skipf("no macvlan in this kernel: %s", out)
	}
	ip(t, ns, "link set mv0 up")
	l, err := p.Link()
	require.NoError(t, err)
	assert.True(t, l.Promisc)
	ip(t, ns, "link delete mv0")
	l, err = p.Link()
	require.NoError(t, err)
	assert.False(t, l.Promisc)
}

// What happens to a bridge reaches those who watch its members alone.
func TestBridgeOfAMember(t *testing.T) {
	ns := newNS(t)
	p, other := open(t, ns), open(t, ns, "oxp1")
	var s seen
	watch(t, WatchConfig{NetNS: ns.Path(), Filter: func(i int) bool { return i == p.Index() || i == other.Index() }}, s.report)
	both := func(what string, cond func(Link) bool) {
		t.Helper()
		for _, p := range []*Port{p, other} {
			l, err := p.Link()
			require.NoError(t, err)
			assert.True(t, cond(l), "%s: %+v", what, l)
			eventually(t, what+", watched", func() bool { l, ok := s.link(p.Index()); return ok && cond(l) })
		}
	}
	both("at first", func(l Link) bool { return l.Master == 0 && l.Bridge == "" })
	ip(t, ns, "link add br0 type bridge")
	ip(t, ns, "link set br0 mtu 1400")
	ip(t, ns, "link set br0 up")
	ip(t, ns, "link set oxp9 master br0")
	ip(t, ns, "link set oxp1 master br0")
	both("members", func(l Link) bool {
		return l.Master != 0 && l.Bridge == "br0" && l.BridgeMTU == 1400 && l.Promisc && l.MTU == 1500
	})
	ip(t, ns, "link set br0 mtu 1300")
	both("MTU of the bridge", func(l Link) bool { return l.BridgeMTU == 1300 })
	ip(t, ns, "link set br0 mtu 1500")
	both("and back", func(l Link) bool { return l.BridgeMTU == 1500 })
	ip(t, ns, "link set br0 down")
	ip(t, ns, "link set br0 name lan")
	both("name of the bridge", func(l Link) bool { return l.Bridge == "lan" })
	ip(t, ns, "link delete lan")
	both("no bridge", func(l Link) bool {
		return l.Master == 0 && l.Bridge == "" && l.BridgeMTU == 0 && !l.Promisc
	})

	// The same state as a list gives it, to a watch that begins now.
	ip(t, ns, "link add br1 type bridge")
	ip(t, ns, "link set br1 mtu 1350")
	ip(t, ns, "link set oxp9 master br1")
	var late seen
	watch(t, WatchConfig{NetNS: ns.Path()}, late.report)
	eventually(t, "listed", func() bool {
		l, ok := late.link(p.Index())
		return ok && l.Bridge == "br1" && l.BridgeMTU == 1350 && l.Promisc
	})
}

// A master that is no bridge is a master without a name here.
func TestOtherMasters(t *testing.T) {
	l := Link{Index: 5, Master: 8}
	l.joinBridge(linkMessage{Link: Link{Index: 8, Name: "bond0", MTU: 1500}})
	assert.Equal(t, Link{Index: 5, Master: 8}, l)
	for _, kind := range []string{"vrf table 10", "bond"} {
		t.Run(kind, func(t *testing.T) {
			ns := newNS(t)
			p := open(t, ns)
			if out, err := ipMay(ns, "link add m0 type "+kind); err != nil {
				t.Skipf("not in this kernel: %s", out)
			}
			require.NoError(t, p.SetUp(context.Background(), false)) // a bond takes no other
			ip(t, ns, "link set oxp9 master m0")
			l, err := p.Link()
			require.NoError(t, err)
			assert.NotZero(t, l.Master)
			assert.Equal(t, "", l.Bridge)
			assert.Zero(t, l.BridgeMTU)
		})
	}
}

func TestMasterThatHasGone(t *testing.T) {
	l := Link{Index: 5, Master: 1 << 20}
	require.NoError(t, readMaster(query(t, newNS(t)).conn, &l))
	assert.Equal(t, Link{Index: 5, Master: 1 << 20}, l)
}

// linkBytes builds a message as the kernel lays it out.
func linkBytes(t testing.TB, index int32, flags uint32, attrs func(*netlink.AttributeEncoder)) []byte {
	t.Helper()
	b := make([]byte, ifinfoSize)
	binary.NativeEndian.PutUint32(b[ifinfoIndex:], uint32(index))
	binary.NativeEndian.PutUint32(b[ifinfoFlags:], flags)
	ae := netlink.NewAttributeEncoder()
	attrs(ae)
	a, err := ae.Encode()
	require.NoError(t, err)
	return append(b, a...)
}

func everyAttribute(ae *netlink.AttributeEncoder) {
	ae.String(unix.IFLA_IFNAME, "br0")
	ae.Bytes(unix.IFLA_ADDRESS, []byte{2, 0, 0, 0, 0, 7})
	ae.Uint32(unix.IFLA_MTU, 9000)
	ae.Uint32(unix.IFLA_MASTER, 8)
	ae.Uint8(unix.IFLA_CARRIER, 1)
	ae.Uint32(unix.IFLA_PROMISCUITY, 2)
	ae.Uint32(unix.IFLA_ALLMULTI, 1)
	stats := make([]byte, 200)
	binary.NativeEndian.PutUint64(stats[56:], 77)
	ae.Bytes(unix.IFLA_STATS64, stats)
	ae.Nested(unix.IFLA_LINKINFO, func(n *netlink.AttributeEncoder) error {
		n.String(unix.IFLA_INFO_KIND, "bridge")
		return nil
	})
}

func TestDecodeLink(t *testing.T) {
	one := func(fn func(*netlink.AttributeEncoder)) []byte { return linkBytes(t, 5, 0, fn) }
	for _, tc := range []struct {
		name string
		b    []byte
		want linkMessage
	}{
		{"every attribute", linkBytes(t, 5, unix.IFF_UP, everyAttribute), linkMessage{Link{
			Index: 5, Name: "br0", MTU: 9000, MAC: [6]byte{2, 0, 0, 0, 0, 7}, Up: true, Carrier: true,
			Promisc: true, AllMulti: true, Master: 8, dropped: kernelCount{77, true}}, true}},
		{"none", one(func(*netlink.AttributeEncoder) {}), linkMessage{Link: Link{Index: 5}}},
		{"promiscuous by flag", linkBytes(t, 5, unix.IFF_PROMISC, func(ae *netlink.AttributeEncoder) {
			ae.Uint32(unix.IFLA_PROMISCUITY, 0)
		}), linkMessage{Link: Link{Index: 5, Promisc: true}}},
		{"all-multicast by flag", linkBytes(t, 5, unix.IFF_ALLMULTI, func(ae *netlink.AttributeEncoder) {
			ae.Uint32(unix.IFLA_ALLMULTI, 0)
		}), linkMessage{Link: Link{Index: 5, AllMulti: true}}},
		{"promiscuous by count", one(func(ae *netlink.AttributeEncoder) {
			ae.Uint32(unix.IFLA_PROMISCUITY, 1)
		}), linkMessage{Link: Link{Index: 5, Promisc: true}}},
		{"another kind", one(func(ae *netlink.AttributeEncoder) {
			ae.Nested(unix.IFLA_LINKINFO, func(n *netlink.AttributeEncoder) error {
				n.String(unix.IFLA_INFO_KIND, "bond")
				n.String(unix.IFLA_INFO_SLAVE_KIND, "bridge")
				return nil
			})
		}), linkMessage{Link: Link{Index: 5}}},
		{"older, shorter statistics", one(func(ae *netlink.AttributeEncoder) {
			ae.Bytes(unix.IFLA_STATS64, make([]byte, 56))
		}), linkMessage{Link: Link{Index: 5}}},
		{"long hardware address", one(func(ae *netlink.AttributeEncoder) {
			ae.Bytes(unix.IFLA_ADDRESS, []byte{1, 2, 3, 4, 5, 6, 7, 8, 9})
		}), linkMessage{Link: Link{Index: 5, MAC: [6]byte{1, 2, 3, 4, 5, 6}}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := decodeLink(tc.b)
			require.NoError(t, err)
			assert.Equal(t, tc.want, got)
		})
	}
	for name, b := range map[string][]byte{
		"nothing":               nil,
		"one byte short":        make([]byte, ifinfoSize-1),
		"attribute past end":    append(make([]byte, ifinfoSize), 0xff, 0, 4, 0, 0, 0, 0, 0),
		"MTU of two bytes":      one(func(ae *netlink.AttributeEncoder) { ae.Uint16(unix.IFLA_MTU, 1500) }),
		"kind that is cut off":  one(func(ae *netlink.AttributeEncoder) { ae.Bytes(unix.IFLA_LINKINFO, []byte{0xff, 0, 1, 0, 0}) }),
		"carrier of four bytes": one(func(ae *netlink.AttributeEncoder) { ae.Uint32(unix.IFLA_CARRIER, 1) }),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := decodeLink(b)
			require.Error(t, err)
		})
	}
}

func FuzzDecodeLink(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, ifinfoSize))
	whole := linkBytes(f, 5, unix.IFF_UP, everyAttribute)
	f.Add(whole)
	f.Add(whole[:len(whole)-3])
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decodeLink(b)
		if err != nil {
			return
		}
		if m.Bridge != "" || m.BridgeMTU != 0 || m.Gone {
			t.Errorf("not in a message: %+v", m)
		}
		if len(m.Name) > len(b) {
			t.Errorf("name of %d bytes in %d", len(m.Name), len(b))
		}
	})
}
