package loadtest

import (
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
	"oxpd/internal/netlab"
	"oxpd/ring/wire"
	"oxpd/rpc/msg"
)

// What ip link does to a port is done to the card, with kernels at both ends.

// ip runs the command of that name in a namespace.
func (l *lab) ip(ns *netlab.NS, args string) {
	l.t.Helper()
	var out strings.Builder
	cmd := exec.Command("ip", strings.Fields(args)...)
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(l.t, ns.Start(cmd))
	require.NoError(l.t, cmd.Wait(), "ip %s: %s", args, &out)
}

// lif waits until a port's entry in the card is as cond wants it.
func (l *lab) lif(p board.Port, what string, cond func(msg.LIF) bool) {
	l.t.Helper()
	l.wait(p.Name+": "+what, func() bool {
		lif, present := l.card.LIF(uint32(p.LIF()))
		return present && cond(lif)
	})
}

func mode(fwd uint8) func(msg.LIF) bool { return func(l msg.LIF) bool { return l.Fwd == fwd } }
func mtu(n int) func(msg.LIF) bool      { return func(l msg.LIF) bool { return int(l.MTU) == n } }

func port(t *testing.T, name string) board.Port {
	t.Helper()
	p, err := board.Parse(name)
	require.NoError(t, err)
	return p
}

// TestBridgeOfTwoPorts: a Linux bridge of oxp1 and oxp2 joins the far sides of
// their wires, whose addresses are not the ports'.
func TestBridgeOfTwoPorts(t *testing.T) {
	t.Parallel()
	const amount = 2 << 20
	one, two := port(t, "oxp1"), port(t, "oxp2")
	l := setup{apart: []board.Port{one, two}}.start(t)
	addr := map[board.Port]netip.Addr{one: netip.MustParseAddr("10.67.0.1"), two: netip.MustParseAddr("10.67.0.2")}
	mac := map[board.Port][6]byte{}
	members := []board.Port{one, two}
	l.ip(l.host, "link add br0 type bridge")
	l.ip(l.host, "link set br0 up")
	for _, p := range members {
		require.NoError(t, l.farOf(p).AddAddr(p.Label, netip.PrefixFrom(addr[p], prefixBits)))
		l.ip(l.host, "link set "+p.Name+" master br0")
		l.lif(p, "L2", mode(msg.FwdL2))
		l.wait(p.Name+": every address admitted", func() bool { return l.card.AgentPort(p.Tag).Promisc })
		lif, _ := l.card.LIF(uint32(p.LIF()))
		mac[p] = lif.MAC
	}
	// each asks one member's far side to reach the other's, both ways.
	each := func(fn func(t *testing.T, from, to board.Port)) {
		t.Helper()
		for _, way := range [][2]board.Port{{one, two}, {two, one}} {
			fn(t, way[0], way[1])
		}
	}
	ping := func(data int) func(*testing.T, board.Port, board.Port) {
		return func(t *testing.T, from, to board.Port) {
			t.Helper()
			_, err := l.farOf(from).Ping(l.ctx, addr[to], data, answer)
			require.NoError(t, err, "%d bytes from %s to %s", data, from, to)
		}
	}
	transfer := func(mss int) func(*testing.T, board.Port, board.Port) {
		return func(t *testing.T, from, to board.Port) {
			t.Helper()
			s, err := netlab.Connect(l.ctx, l.farOf(from), l.farOf(to), addr[to], false)
			require.NoError(t, err)
			defer s.Close()
			sent, err := s.Send(l.ctx, amount)
			require.NoError(t, err)
			assert.EqualValues(t, amount, sent.Bytes)
			assert.Equal(t, mss, sent.MSS)
		}
	}
	const headers = ipHeader + tcpHeader + tcpTimestamps
	for _, p := range members {
		far, err := l.farOf(p).Link(p.Label)
		require.NoError(t, err)
		assert.NotEqual(t, mac[p], [6]byte(far.MAC))
		require.NoError(t, l.farOf(p).SetMTU(p.Label, board.DefaultMTU))
	}
	each(ping(smallPing))
	each(ping(board.DefaultMTU - ipHeader - icmpHeader))
	each(transfer(board.DefaultMTU - headers))
	l.books()

	// Members at 9,000: each LIF follows, and so does a bridge whose MTU nobody set.
	for _, p := range members {
		l.ip(l.host, "link set "+p.Name+" mtu 9000")
		l.lif(p, "an MTU of 9,000", mtu(board.MaxMTU))
		require.NoError(t, l.farOf(p).SetMTU(p.Label, board.MaxMTU))
	}
	each(ping(board.MaxMTU - ipHeader - icmpHeader))
	each(transfer(board.MaxMTU - headers))
	r := l.books()
	assert.Zero(t, r.card[msg.CntDropLIFNotMyMAC])
	for _, p := range members {
		assert.Zero(t, l.wire(p).Stats().Filtered, "%s", p)
	}

	// One leaves: it hears its own address alone, the other stays a member.
	l.ip(l.host, "link set oxp1 nomaster")
	l.lif(one, "L3", mode(msg.FwdL3))
	l.wait("oxp1: its own address alone", func() bool { return !l.card.AgentPort(one.Tag).Promisc })
	l.lif(two, "still L2", mode(msg.FwdL2))
	before := l.rest()
	l.inject(one, testFrame([]byte{2, 0x77, 0, 0, 0, 1}, []byte{2, 0x77, 0, 0, 0, 2}, 64, 1))
	l.wait("a foreign frame filtered", func() bool { return l.wire(one).Stats().Filtered == 1 })
	after := l.rest()
	assert.Equal(t, before.host[one.Name].Stats.RXPackets, after.host[one.Name].Stats.RXPackets)
	l.neighbours(one)
	_, err := l.host.Ping(l.ctx, farAddr(one), smallPing, answer)
	require.NoError(t, err, "oxp1 by itself")

	// And a bridge that is deleted lets the last one go.
	l.ip(l.host, "link delete br0")
	l.lif(two, "L3", mode(msg.FwdL3))
	l.neighbours(two)
	_, err = l.host.Ping(l.ctx, farAddr(two), smallPing, answer)
	require.NoError(t, err, "oxp2 by itself")
}

// TestNewAddress: unicast to the address that ip link set arrives, unicast to the
// old one is stopped by the port's own filter, at a switch port and at a MAC.
func TestNewAddress(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	for _, name := range []string{"oxp1", "oxp9"} {
		p := port(t, name)
		link, err := l.host.Link(p.Name)
		require.NoError(t, err)
		old, next := link.MAC, net.HardwareAddr{2, 0x55, 0, 0, 0, byte(p.Index)}
		source := []byte{2, 0, 0, 0, 1, 1}
		l.ip(l.host, "link set "+p.Name+" address "+next.String())
		l.lif(p, "its new address", func(f msg.LIF) bool { return f.MAC == [6]byte(next) })
		l.wait(p.Name+": the filter's new address", func() bool { return l.card.AgentPort(p.Tag).MAC == [6]byte(next) })
		before := l.rest()
		received := func() uint64 {
			s, _ := l.stats().Port(p.Name)
			return s.Counters["rx_packets"]
		}
		at, filtered := received(), l.wire(p).Stats().Filtered
		l.inject(p, testFrame(old, source, 64, 1))
		l.wait("the old address filtered", func() bool { return l.wire(p).Stats().Filtered == filtered+1 })
		l.inject(p, testFrame(next, source, 64, 1))
		l.wait("the new address received", func() bool { return received() == at+1 })
		after := l.rest()
		assert.Equal(t, before.card[msg.CntDropLIFNotMyMAC], after.card[msg.CntDropLIFNotMyMAC])
		assert.Equal(t, before.host[p.Name].Stats.RXPackets+1, after.host[p.Name].Stats.RXPackets)
		l.neighbours(p)
		_, err = l.far.Ping(l.ctx, hostAddr(p), smallPing, answer)
		require.NoError(t, err)
		now, err := l.host.Link(p.Name)
		require.NoError(t, err)
		assert.Equal(t, next, now.MAC, "nobody puts it back")
	}
}

// TestDownAndUpUnderTraffic: datagrams go both ways through two ports of which
// one goes down and up all the time. What was sent while it was down is counted
// where it ended, what arrived is right, and the other port loses nothing.
func TestDownAndUpUnderTraffic(t *testing.T) {
	t.Parallel()
	const rounds = 15
	l := newLab(t)
	flapping, steady := port(t, "oxp1"), port(t, "oxp9")
	ctx, stop := context.WithCancel(l.ctx)
	defer stop()
	var flows []*datagrams
	var wg sync.WaitGroup
	for i, p := range []board.Port{flapping, steady} {
		require.NoError(t, l.far.SetMTU(p.Label, board.DefaultMTU))
		for k, d := range []*datagrams{newDatagrams(t, l.host, l.far, farAddr(p)), newDatagrams(t, l.far, l.host, hostAddr(p))} {
			flows = append(flows, d)
			wg.Add(1)
			go func() {
				defer wg.Done()
				d.send(ctx, rand.New(rand.NewPCG(uint64(i), uint64(k))))
			}()
		}
	}
	for range rounds {
		l.ip(l.host, "link set oxp1 down")
		l.wait("the far side sees it", func() bool { return !l.wire(flapping).Carries() })
		was := l.wire(flapping).Stats().LinkDown
		l.wait("frames that find no link", func() bool { return l.wire(flapping).Stats().LinkDown > was })
		l.setUp(flapping, true)
		l.neighbours(flapping)
		passed := l.wire(flapping).Stats().Passed
		l.wait("frames again", func() bool { return l.wire(flapping).Stats().Passed > passed })
	}
	stop()
	wg.Wait()
	r := l.books()
	for _, d := range flows {
		d.close()
		assert.Empty(t, d.bad)
		assert.NotZero(t, d.received)
	}
	for _, d := range flows[2:] {
		assert.Equal(t, d.sent, d.received, "the port that stayed up")
	}
	w, _ := r.stats.Wire(flapping.Name)
	assert.GreaterOrEqual(t, w.Counters["link_down"], uint64(rounds))
	for q := range wire.OQs {
		assert.True(t, l.card.RingState(q).Enabled, "ring %d", q)
	}
	t.Logf("%d times down: %d frames from the far side and %d from the host found no link, %d more went to no interface",
		rounds, w.Counters["link_down"], w.Counters["out_link_down"], r.stats.Sums.Addends["tap_down"])
}

// TestNetAgentRestarts: the mailbox is blank for a while, then every port is down,
// deaf and without address; a member of a bridge, a port with another address and a
// port that nobody touched are all as before again. So is a mailbox that a dead
// process left held.
func TestNetAgentRestarts(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	member, renamed, plain := port(t, "oxp1"), port(t, "oxp2"), port(t, "oxp9")
	next := net.HardwareAddr{2, 0x55, 0, 0, 0, 2}
	l.ip(l.host, "link add br0 type bridge")
	l.ip(l.host, "link set oxp1 master br0")
	l.ip(l.host, "link set oxp2 address "+next.String())
	whole := func() bool {
		m, r := l.card.AgentPort(member.Tag), l.card.AgentPort(renamed.Tag)
		for _, p := range board.All() {
			link, err := l.host.Link(p.Name)
			require.NoError(t, err)
			if !l.wire(p).Carries() || link.Carrier != link.Up {
				return false
			}
		}
		return m.Promisc && r.MAC == [6]byte(next) && !r.Promisc
	}
	l.wait("all set up", whole)
	l.wait("the address taken", func() bool {
		ports, err := l.client.Ports(l.ctx)
		require.NoError(t, err)
		return ports.Ports[renamed.Index].Address == next.String()
	})
	l.neighbours(renamed)
	pings := func() {
		t.Helper()
		for _, p := range []board.Port{renamed, plain} {
			l.wait("a ping through "+p.Name, func() bool {
				_, err := l.far.Ping(l.ctx, hostAddr(p), smallPing, lostAfter)
				return err == nil
			})
		}
	}
	pings()
	l.card.RestartAgent()
	require.False(t, whole())
	l.wait("all set up again", whole)
	pings()

	l.wait("a mailbox that nobody holds", l.card.StrandAgent)
	l.ip(l.host, "link set oxp1 nomaster")
	l.wait("the port to be followed", func() bool { return !l.card.AgentPort(member.Tag).Promisc })
	pings()
}
