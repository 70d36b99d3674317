package loadtest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/hwsim"
	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/internal/frame"
	"oxpd/internal/netlab"
	"oxpd/octep/csr"
	"oxpd/ring/wire"
	"oxpd/rpc/msg"
)

// Rows of the list of known bugs that concern a port which goes down and comes
// up again (docs/contributing/known-bugs.md).

// setUp sets a port's interface and waits until the card has followed it.
func (l *lab) setUp(p board.Port, up bool) {
	l.t.Helper()
	require.NoError(l.t, l.host.SetUp(p.Name, up))
	l.followed(p, up)
}

// followed waits until the far side of a port has a link, or has none.
func (l *lab) followed(p board.Port, up bool) {
	l.t.Helper()
	l.wait(fmt.Sprintf("link of %s at the far side: %t", p.Name, up), func() bool {
		link, err := l.host.Link(p.Name)
		require.NoError(l.t, err)
		return l.wire(p).Carries() == up && link.Carrier == (up && link.Up)
	})
}

// TestPortDownAndUpLeavesTheRingsAlone: RX-7 and DM-3. Frames arrive for a port
// that is on its way down, then for one that the card has lowered, again and again;
// nothing of the rings is set anew, every frame is in one counter, and no counter is
// less than it was. In the last rounds NetAgent refuses to lower the port, so all of
// them come through the rings to an interface that is down.
func TestPortDownAndUpLeavesTheRingsAlone(t *testing.T) {
	t.Parallel()
	const rounds, refused, each = 20, 3, 200
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
	tapDown := func() uint64 {
		s, _ := l.stats().Port(p.Name)
		return s.Counters["tap_down"]
	}
	l.card.ResetAccesses()
	for n := range rounds {
		before, at, down := l.stats(), lost(), tapDown()
		if n == rounds-refused {
			attr := msg.AttrState
			l.card.Faults(func(f *hwsim.Faults) { f.AgentRefuse = []hwsim.AgentRefusal{{Op: msg.OpSet, Sub: &attr, Port: &p.Tag}} })
		}
		lowered := n < rounds-refused
		require.NoError(t, l.host.SetUp(p.Name, false))
		for range each / 2 {
			l.inject(p, b)
		}
		l.followed(p, !lowered)
		for range each / 2 {
			l.inject(p, b)
		}
		l.wait("each frame in a counter", func() bool { return lost() == at+each })
		if lowered {
			assert.LessOrEqual(t, tapDown(), down+each/2, "a port that the card has lowered sends nothing on")
		} else {
			assert.Equal(t, down+each, tapDown())
		}
		l.setUp(p, true)
		was := received()
		l.inject(p, b)
		l.wait("the first frame after", func() bool { return received() == was+1 })
		after := l.stats()
		for _, name := range []string{p.Name, "oxp1"} {
			old, _ := before.Port(name)
			now, _ := after.Port(name)
			for counter, v := range old.Counters {
				assert.GreaterOrEqual(t, now.Counters[counter], v, "%s of %s", counter, name)
			}
		}
		assert.EqualValues(t, before.Device["rx_done"]+1+after.Sums.Addends["tap_down"]-before.Sums.Addends["tap_down"], after.Device["rx_done"])
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
// port goes down and up, interface and front port, so its queue is full at both
// moments.
func TestPortDownAndUpWhileTheRingIsFull(t *testing.T) {
	t.Parallel()
	rounds := 100
	if raceEnabled {
		rounds /= 4
	}
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
		l.setUp(p, false)
		l.setUp(p, true)
		l.card.Faults(func(f *hwsim.Faults) { f.StopFetch = false })
		l.wait("an empty queue", func() bool { s := l.stats(); return s.Device["tx_posted"] == l.card.RingState(0).InFinished })
		full := l.stats().Device["tx_iq_full"]
		l.wait("calm", l.card.Quiesced)
		was := out()
		// The kernel begins to send when its own worker has seen the carrier, up to a
		// second later, and what it is given before is gone without a count.
		l.wait("the next frame", func() bool { send(); return out() > was })
		assert.Equal(t, full, l.stats().Device["tx_iq_full"])
	}
}

// TestStopWithFramesThatTheCardHasNotFetched: TX-3. The end does not wait for a
// card that has stopped, and names what it leaves. The row's bound in simulated time is
// internal/daemon's.
func TestStopWithFramesThatTheCardHasNotFetched(t *testing.T) {
	t.Parallel()
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
	require.NoError(t, l.stop())
	assert.Regexp(t, `level=WARN .*\b100\b`, l.log.String())
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
	t.Run("the switch's cap", func(t *testing.T) {
		// Every part of the path but one lets 9,000 pass. What that one refuses moves no
		// counter of the coprocessor.
		l.card.SetSwitchFrame(hwsim.SwitchFrameFound)
		defer l.card.SetSwitchFrame(hwsim.SwitchFrameJumbo)
		const fits = hwsim.SwitchFrameFound - fcs - frame.HeaderSize - headers
		_, err := l.far.Ping(l.ctx, hostAddr(p), fits, answer)
		require.NoError(t, err)
		_, err = l.host.Ping(l.ctx, farAddr(p), fits, answer)
		require.NoError(t, err)
		before := l.rest()
		_, err = l.far.Ping(l.ctx, hostAddr(p), fits+1, lostAfter)
		require.ErrorIs(t, err, netlab.ErrNoReply)
		after := l.rest()
		assert.Equal(t, before.card[msg.CntRXWire], after.card[msg.CntRXWire])
		assert.Equal(t, before.card[msg.CntDropMTUExceeded], after.card[msg.CntDropMTUExceeded])
		_, err = l.host.Ping(l.ctx, farAddr(p), fits+1, lostAfter)
		require.ErrorIs(t, err, netlab.ErrNoReply)
		s := l.wire(p).Stats()
		assert.Equal(t, [2]uint64{1, 1}, [2]uint64{s.SwitchDropped, s.OutSwitchDropped})
	})
}

const (
	icmpHeader = 8
	fcs        = 4
)

// TestRunWithoutStandardDescriptors: TAP-4. Descriptors 0, 1 and 2 are closed
// when the program starts: none becomes a TAP, and no line of the log a frame.
func TestRunWithoutStandardDescriptors(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes network namespaces and TAP interfaces")
	}
	dir := t.TempDir()
	exe, file, socket := program(), filepath.Join(dir, "oxpd.yaml"), filepath.Join(dir, "oxpd.sock")
	host, far := newNS(t), newNS(t)
	p, err := board.Parse("F1")
	require.NoError(t, err)
	wires := fmt.Sprintf("sim:\n  wires:\n    %s: tap:%s@/proc/%d/fd/%d\n", p.Label, p.Label, os.Getpid(), far.File().Fd())
	require.NoError(t, os.WriteFile(file, []byte(wires), 0o600))
	cmd := exec.Command("sh", "-c", `exec "$0" "$@" <&- >&- 2>&-`, exe, "run", "--sim", "--debug", "--config", file, "--socket", socket)
	require.NoError(t, host.Start(cmd))
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	l := &lab{t: t, ctx: context.Background(), host: host, far: far, client: client.New(socket)}
	l.wait("running", func() bool {
		select {
		case err := <-ended:
			t.Fatalf("oxpd ended: %v", err)
		default:
		}
		s, err := l.client.Status(l.ctx)
		return err == nil && s.State == client.StateRunning
	})
	require.NoError(t, host.AddAddr(p.Name, netip.PrefixFrom(hostAddr(p), prefixBits)))
	require.NoError(t, far.AddAddr(p.Label, netip.PrefixFrom(farAddr(p), prefixBits)))
	require.NoError(t, far.SetUp(p.Label, true))
	const rounds = 5
	var seen []*netlab.Packets
	for name, ns := range map[string]*netlab.NS{p.Label: far, p.Name: host} {
		s, err := ns.Packets(name)
		require.NoError(t, err)
		seen = append(seen, s)
	}
	for n := range rounds {
		require.NoError(t, host.SetUp(p.Name, false))
		require.NoError(t, host.SetUp(p.Name, true))
		l.wait("a carrier", func() bool {
			link, err := host.Link(p.Name)
			require.NoError(t, err)
			return link.Carrier
		})
		l.setMTU(p, board.DefaultMTU-n) // which is logged
		l.wait("a ping", func() bool { _, err := host.Ping(l.ctx, farAddr(p), smallPing, lostAfter); return err == nil })
	}
	for _, s := range seen {
		frames := 0
		for {
			ctx, cancel := context.WithTimeout(l.ctx, lostAfter)
			b, err := s.Next(ctx)
			cancel()
			if errors.Is(err, unix.ENETDOWN) { // told once for each time that the interface was down
				continue
			}
			if err != nil {
				require.ErrorIs(t, err, context.DeadlineExceeded)
				break
			}
			frames++
			assert.NotContains(t, string(b), "level=")
		}
		assert.GreaterOrEqual(t, frames, rounds)
		require.NoError(t, s.Close())
	}
	t.Run("oxpd mtu warns of a lower one", func(t *testing.T) {
		var talk strings.Builder
		lower := exec.Command(exe, "--socket", socket, "mtu", p.Label, fmt.Sprint(board.MinMTU))
		lower.Stderr = &talk
		require.NoError(t, lower.Run(), talk.String())
		assert.Contains(t, talk.String(), "warning: peers of open connections")
	})
	_, err = l.client.Stop(l.ctx, false)
	require.NoError(t, err)
	select {
	case err := <-ended:
		require.NoError(t, err, "exit 0")
	case <-time.After(hang):
		t.Fatal("oxpd does not end")
	}
}
