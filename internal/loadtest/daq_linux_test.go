package loadtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/internal/divert/daqtest"
	"oxpd/internal/frame"
	"oxpd/internal/netlab"
)

const (
	// UDP destination ports of frames, by what the engine does with them.
	passPort, blockPort, changePort = 4000, 4001, 4002

	// inspectedLot is how many frames are in the engine at once: fewer than its rings take.
	inspectedLot = 32
	// inspectedBytes is what a stream moves through the engine each way.
	inspectedBytes = 4 << 20

	// drained is longer than oxpd takes frames of a larger MTU for, after that is lowered.
	drained = time.Second
)

// inspected is a port whose every frame goes through an engine that others made, between
// the two interfaces that oxpd made for it.
type inspected struct {
	*lab
	port            board.Port
	hostMAC, farMAC net.HardwareAddr
	atHost, atFar   *netlab.Packets
	program         daqtest.Program
	random          *rand.Rand
}

// newInspected makes one with an MTU. A frame waits for the engine for as long as it may,
// a minute: what is decided is decided by what comes back.
func newInspected(t *testing.T, mtu int) *inspected {
	t.Helper()
	t.Parallel()
	l := newLab(t, calmly)
	program, err := daqtest.Build(l.ctx, t.TempDir())
	if errors.Is(err, daqtest.ErrMissing) {
		t.Skip(err)
	}
	require.NoError(t, err)
	p := cage(t)
	i := &inspected{lab: l, port: p, program: program, random: rand.New(rand.NewPCG(8, uint64(mtu)))}
	host, err := l.host.Link(p.Name)
	require.NoError(t, err)
	far, err := l.far.Link(p.Label)
	require.NoError(t, err)
	i.hostMAC, i.farMAC = host.MAC, far.MAC
	l.settle(p, mtu)
	_, err = l.client.SetDivert(l.ctx, client.DivertSetting{Key: "stall-ms", Value: "60000"})
	require.NoError(t, err)
	_, err = l.client.SetDivertPort(l.ctx, p.Name, client.SetDivertPort{Frames: client.FramesAll, Engine: client.EngineTapPair})
	require.NoError(t, err)
	i.atHost, i.atFar = listen(t, l.host, p.Name), listen(t, l.far, p.Label)
	return i
}

// listen takes all frames that an interface receives.
func listen(t *testing.T, ns *netlab.NS, name string) *netlab.Packets {
	t.Helper()
	p, err := ns.Packets(name)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, p.Close()) })
	return p
}

// queue is the port's.
func (i *inspected) queue() client.DivertQueue {
	i.t.Helper()
	d, err := i.client.Divert(i.ctx, i.port.Name)
	require.NoError(i.t, err)
	for _, q := range d.Queues {
		if q.Name == i.port.Name {
			return q
		}
	}
	i.t.Fatalf("no queue of %s in %v", i.port.Name, d.Queues)
	panic("unreachable")
}

// engine starts one.
func (i *inspected) engine(o daqtest.Options) *daqtest.Engine {
	i.t.Helper()
	o.Wire, o.Host = i.port.Name+"w", i.port.Name+"h"
	e, err := i.program.Start(i.host, o)
	require.NoError(i.t, err)
	i.wait("an engine at the port", func() bool { return i.queue().State != client.QueueAbsent })
	return e
}

// way is one direction of frames through the port.
type way struct {
	name     string
	dst, src net.HardwareAddr
	send     func(b []byte)
	arrive   *netlab.Packets
	counters func(d *client.DivertPort) map[string]uint64
}

func (i *inspected) ways() []way {
	out, err := i.host.Packets(i.port.Name)
	require.NoError(i.t, err)
	i.t.Cleanup(func() { assert.NoError(i.t, out.Close()) })
	return []way{
		{"in", i.hostMAC, i.farMAC, func(b []byte) { i.inject(i.port, b) }, i.atHost, func(d *client.DivertPort) map[string]uint64 { return d.In }},
		{"out", i.farMAC, i.hostMAC, func(b []byte) { require.NoError(i.t, out.Send(b)) }, i.atFar, func(d *client.DivertPort) map[string]uint64 { return d.Out }},
	}
}

// datagram is a frame of a way, to a UDP port, whose payload is random.
func (i *inspected) datagram(w way, port uint16, size int) []byte {
	b := sourceFrame(w.dst, w.src, strange, size, 5000)
	udp := b[frame.HeaderSize+ipHeader:]
	udp[2], udp[3] = byte(port>>8), byte(port)
	for n := 8; n < len(udp); n++ {
		udp[n] = byte(i.random.Uint32())
	}
	return b
}

// counters reads what became of a way's frames, without the zeros.
func (i *inspected) counters(w way) map[string]uint64 {
	i.t.Helper()
	d, err := i.client.Divert(i.ctx, i.port.Name)
	require.NoError(i.t, err)
	got := map[string]uint64{}
	for name, n := range w.counters(&d.Ports[0]) {
		if n != 0 {
			got[name] = n
		}
	}
	return got
}

// through sends frames, a lot at a time, and returns those that arrive when all have been
// decided about and as many have arrived as are wanted.
func (i *inspected) through(w way, frames [][]byte, want int) (got [][]byte) {
	i.t.Helper()
	before := i.counters(w)["divert_seen"]
	for n, b := range frames {
		w.send(b)
		if n%inspectedLot == inspectedLot-1 || n == len(frames)-1 {
			i.wait("a lot decided", func() bool {
				c := i.counters(w)
				return c["divert_seen"] == before+uint64(n)+1 && c["divert_queued"] == 0
			})
		}
	}
	ctx, cancel := context.WithTimeout(i.ctx, hang)
	defer cancel()
	for len(got) < want {
		b, err := w.arrive.Next(ctx)
		require.NoError(i.t, err, "%s: %d of %d frames arrived", w.name, len(got), want)
		got = append(got, bytes.Clone(b))
	}
	return got
}

// same compares frames without their order, which several rings do not keep.
func same(t *testing.T, want, got [][]byte) {
	t.Helper()
	slices.SortFunc(want, bytes.Compare)
	slices.SortFunc(got, bytes.Compare)
	require.True(t, slices.EqualFunc(want, got, bytes.Equal), "what arrived is not what was to arrive")
}

// Snort's acquisition library, which knows nothing of oxpd, passes, blocks and changes
// frames behind a port of the simulated card. Every one is in the counter where it belongs,
// at the engine and at oxpd, and arrives as the engine left it, or does not.
func TestUnmodifiedEngine(t *testing.T) {
	for _, mtu := range []int{1500, 9000} {
		t.Run(fmt.Sprintf("mtu=%d", mtu), func(t *testing.T) {
			i := newInspected(t, mtu)
			e := i.engine(daqtest.Options{Block: blockPort, Change: changePort, Buffer: 64})
			var blocked, changed uint64
			for _, w := range i.ways() {
				var sent, passed [][]byte
				want := map[string]uint64{}
				for n := range 6 * inspectedLot {
					size := mtu + frame.HeaderSize
					if n%2 == 1 {
						size = 60 + i.random.IntN(size-60)
					}
					port := uint16(passPort + n%3)
					b := i.datagram(w, port, size)
					sent = append(sent, b)
					want["divert_seen"]++
					switch port {
					case blockPort:
						want["divert_dropped"]++
					case changePort:
						want["divert_replaced"]++
						passed = append(passed, daqtest.Changed(b))
					default:
						want["divert_accepted"]++
						passed = append(passed, b)
					}
				}
				same(t, passed, i.through(w, sent, len(passed)))
				assert.Equal(t, want, i.counters(w), w.name)
				blocked += want["divert_dropped"]
				changed += want["divert_replaced"]
			}
			for _, reverse := range []bool{false, true} {
				s, err := netlab.Connect(i.ctx, i.far, i.host, hostAddr(i.port), reverse)
				require.NoError(t, err)
				ctx, cancel := context.WithTimeout(i.ctx, hang)
				_, err = s.Send(ctx, inspectedBytes)
				cancel()
				require.NoError(t, err, "a stream through the engine, reverse: %v", reverse)
				require.NoError(t, s.Close())
			}
			i.wait("no frame waits", func() bool { return i.queue().Queued == 0 })
			counts, err := e.Stop()
			require.NoError(t, err)
			assert.Equal(t, blocked, counts.Blocked)
			assert.Equal(t, changed, counts.Changed)
			i.wait("the engine is seen to be gone", func() bool { return i.queue().State == client.QueueAbsent })
		})
	}
}

// An engine that was started for frames of 1,518 bytes cuts those of a port at 9,000 and
// forwards what is left. None of that arrives, and each is counted.
func TestUnmodifiedEngineWithASmallSnaplen(t *testing.T) {
	i := newInspected(t, board.MaxMTU)
	e := i.engine(daqtest.Options{Snaplen: 1518})
	for _, w := range i.ways() {
		var sent, passed [][]byte
		for range inspectedLot {
			short, long := i.datagram(w, passPort, 1514), i.datagram(w, passPort, jumboFrame)
			sent, passed = append(sent, long, short), append(passed, short)
		}
		same(t, passed, i.through(w, sent, len(passed)))
		assert.Equal(t, map[string]uint64{"divert_seen": 2 * inspectedLot, "divert_accepted": inspectedLot, "divert_shortened": inspectedLot}, i.counters(w), w.name)
	}
	counts, err := e.Stop()
	require.NoError(t, err)
	assert.Equal(t, uint64(2*inspectedLot), counts.Cut)
	i.wait("the log says what to change", func() bool { return strings.Contains(i.log.String(), "raise the engine's snaplen to 9022 bytes") })
}

// A port's MTU is lowered while longer frames are in the engine. They are too long for the
// port when they come back, and the engine goes on with those that are not.
func TestUnmodifiedEngineLivesThroughALowerMTU(t *testing.T) {
	i := newInspected(t, board.MaxMTU)
	e := i.engine(daqtest.Options{})
	w := i.ways()[0]
	long := i.datagram(w, passPort, jumboFrame)
	same(t, [][]byte{long}, i.through(w, [][]byte{long}, 1))

	require.NoError(t, e.Signal(unix.SIGSTOP))
	for range inspectedLot {
		w.send(long)
	}
	i.wait("frames in the engine", func() bool { return i.counters(w)["divert_queued"] == inspectedLot })
	i.setMTU(i.port, board.DefaultMTU)
	time.Sleep(drained)
	require.NoError(t, e.Signal(unix.SIGCONT))
	i.wait("all decided", func() bool { return i.counters(w)["divert_queued"] == 0 })

	short := i.datagram(w, passPort, board.DefaultMTU+frame.HeaderSize)
	w.send(short)
	ctx, cancel := context.WithTimeout(i.ctx, hang)
	defer cancel()
	arrived := uint64(0)
	for {
		b, err := w.arrive.Next(ctx)
		require.NoError(t, err, "the short frame behind them")
		if bytes.Equal(short, b) {
			break
		}
		arrived++
	}
	assert.Equal(t, map[string]uint64{"divert_seen": inspectedLot + 2, "divert_accepted": inspectedLot + 2}, i.counters(w))
	port, _ := i.rest().stats.Port(i.port.Name)
	assert.Equal(t, uint64(inspectedLot), port.Counters["rx_toolong"]+arrived, "they came back")
	_, err := e.Stop()
	require.NoError(t, err)
}
