package loadtest

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/board"
	"oxpd/internal/netlab"
	"oxpd/octep/csr"
	"oxpd/ring/wire"
)

// Rows of the list of known bugs that concern a port which goes down and comes
// up again (docs/contributing/known-bugs.md).

// setUp sets a port's interface and waits until frames pass again.
func (l *lab) setUp(p board.Port, up bool) {
	l.t.Helper()
	require.NoError(l.t, l.host.SetUp(p.Name, up))
	if up {
		l.wait(p.Name+" carries frames", func() bool {
			link, err := l.host.Link(p.Name)
			require.NoError(l.t, err)
			return link.Carrier && l.wire(p).Carries()
		})
	}
}

// TestPortDownAndUpLeavesTheRingsAlone: RX-7 and DM-3. Frames arrive for a port
// that is down, again and again; nothing of the rings is set anew, every frame is
// in one counter, and no counter is less than it was.
func TestPortDownAndUpLeavesTheRingsAlone(t *testing.T) {
	const rounds, each = 20, 200
	l := newLab(t)
	p, err := board.Parse("F1")
	require.NoError(t, err)
	link, err := l.host.Link(p.Name)
	require.NoError(t, err)
	b := testFrame(link.MAC, []byte{2, 0, 0, 0, 1, 1}, 64, 1)
	received := func() uint64 {
		s, _ := l.stats().Port(p.Name)
		return s.Counters["rx_packets"]
	}
	lost := func() uint64 {
		s := l.stats()
		port, _ := s.Port(p.Name)
		wire, _ := s.Wire(p.Name)
		return port.Counters["tap_down"] + wire.Counters["link_down"]
	}
	l.card.ResetAccesses()
	for range rounds {
		before, at := l.rest(), lost()
		l.setUp(p, false)
		for range each {
			l.inject(p, b)
		}
		l.wait("each frame in a counter", func() bool { return lost() == at+each })
		l.setUp(p, true)
		was := received()
		l.inject(p, b)
		l.wait("the first frame after", func() bool { return received() == was+1 })
		after := l.stats()
		for _, name := range []string{p.Name, "oxp1"} {
			old, _ := before.stats.Port(name)
			now, _ := after.Port(name)
			for counter, v := range old.Counters {
				assert.GreaterOrEqual(t, now.Counters[counter], v, "%s of %s", counter, name)
			}
		}
		assert.EqualValues(t, before.stats.Device["rx_done"]+1+after.Sums.Addends["tap_down"]-before.stats.Sums.Addends["tap_down"], after.Device["rx_done"])
	}
	for name, a := range l.card.Accesses() {
		for _, set := range []string{"BADDR", "RSIZE", "ENABLE"} {
			if strings.Contains(name, set) {
				assert.Zero(t, a.Writes, "%s is written", name)
			}
		}
	}
	for q := range wire.OQs {
		assert.True(t, l.card.RingState(q).Enabled)
	}
}

// TestPortDownAndUpWhileTheRingIsFull: TX-6. The card fetches nothing while the
// port goes down and up, so its queue is full at both moments.
func TestPortDownAndUpWhileTheRingIsFull(t *testing.T) {
	const rounds = 100
	l := newLab(t)
	p, err := board.Parse("F1")
	require.NoError(t, err)
	link, err := l.host.Link(p.Name)
	require.NoError(t, err)
	socket, err := l.host.Packets(p.Name)
	require.NoError(t, err)
	defer func() { assert.NoError(t, socket.Close()) }()
	b := testFrame([]byte{2, 0, 0, 0, 1, 1}, link.MAC, 64, 1)
	send := func() {
		if err := socket.Send(b); err != nil { // ENETDOWN is told once, to the next who sends
			require.NoError(t, socket.Send(b))
		}
	}
	out := func() uint64 { return l.wire(p).Stats().Out }
	for range rounds {
		l.card.Faults(func(f *hwsim.Faults) { f.StopFetch = true })
		for range wire.IQSlots + 32 {
			send()
		}
		l.wait("a full queue", func() bool { s := l.card.RingState(0); return int(s.InPosted)+s.InFlying == wire.IQSlots-1 })
		require.NoError(t, l.host.SetUp(p.Name, false))
		require.NoError(t, l.host.SetUp(p.Name, true))
		l.card.Faults(func(f *hwsim.Faults) { f.StopFetch = false })
		l.setUp(p, true)
		l.wait("an empty queue", func() bool { s := l.stats(); return s.Device["tx_posted"] == l.card.RingState(0).InFinished })
		full := l.stats().Device["tx_iq_full"]
		l.wait("calm", l.card.Quiesced)
		was := out()
		send()
		l.wait("the next frame", func() bool { return out() > was })
		assert.Equal(t, full, l.stats().Device["tx_iq_full"])
	}
}

// TestStopWithFramesThatTheCardHasNotFetched: TX-3. The end does not wait for a
// card that has stopped, and names what it leaves.
func TestStopWithFramesThatTheCardHasNotFetched(t *testing.T) {
	const left = 100
	l := newLab(t)
	p, err := board.Parse("F1")
	require.NoError(t, err)
	link, err := l.host.Link(p.Name)
	require.NoError(t, err)
	socket, err := l.host.Packets(p.Name)
	require.NoError(t, err)
	defer func() { assert.NoError(t, socket.Close()) }()
	l.rest()
	l.card.Faults(func(f *hwsim.Faults) { f.StopFetch = true })
	for range left {
		require.NoError(t, socket.Send(testFrame([]byte{2, 0, 0, 0, 1, 1}, link.MAC, 64, 1)))
	}
	l.wait("frames in the queue", func() bool { return l.card.RingState(0).InPosted == left })
	start := time.Now()
	require.NoError(t, l.stop())
	assert.Less(t, time.Since(start), 5*time.Second, "the row's own bound")
	assert.Contains(t, l.log.String(), "frames=100")
	assert.Zero(t, l.card.ConfigRead(csr.CfgCommand, 2)&csr.CfgCommandBusMaster)
	assert.Empty(t, l.card.Reports(), "no memory went before bus mastering was off")
}

// TestPingsAtEveryEdge: the largest frame that an MTU allows passes both ways,
// and one byte more does not reach the host's kernel.
func TestPingsAtEveryEdge(t *testing.T) {
	l := newLab(t)
	p, err := board.Parse("Port1")
	require.NoError(t, err)
	const headers = ipHeader + icmpHeader
	for _, mtu := range []int{board.MinMTU, board.DefaultMTU, 2026, board.MaxMTU} {
		l.settle(p, mtu)
		_, err := l.far.Ping(l.ctx, hostAddr(p), mtu-headers, answer)
		require.NoError(t, err, "at %d", mtu)
		_, err = l.host.Ping(l.ctx, farAddr(p), mtu-headers, answer)
		require.NoError(t, err, "at %d", mtu)
		_, err = l.far.Ping(l.ctx, hostAddr(p), mtu-headers+1, lostAfter)
		require.ErrorIs(t, err, netlab.ErrNoReply, "at %d", mtu)
	}
}

const icmpHeader = 8
