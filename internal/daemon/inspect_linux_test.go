package daemon

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/divert/proto"
	"oxpd/hwsim"
	"oxpd/internal/daemon/client"
	"oxpd/internal/port"
	"oxpd/internal/simdev/simtest"

	divertclient "oxpd/divert/client"
)

// testEngine is an engine at the daemon's socket. What it decides is a function of the
// frame.
type testEngine struct {
	t    *testing.T
	e    *divertclient.Engine
	done chan error

	mu   sync.Mutex
	held []uint64 // ids without a verdict
}

// attach connects an engine. decide returns a code, and a frame to replace; 0 holds the
// frame for ever.
func (r *rig) attach(decide func(f *divertclient.Frame) (proto.Code, []byte)) *testEngine {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background()) // of the engine's life
	r.t.Cleanup(cancel)
	path := filepath.Join(filepath.Dir(r.client.Socket()), "inspect.sock")
	e, err := divertclient.Dial(ctx, path, divertclient.Options{Name: "test"})
	require.NoError(r.t, err)
	t := &testEngine{t: r.t, e: e, done: make(chan error, 1)}
	go func() { t.done <- t.run(decide) }()
	r.wait("engine at the queue", func() bool {
		d, err := r.client.Divert(context.Background(), "")
		return err == nil && d.Queues[0].State != client.QueueAbsent
	})
	return t
}

func (t *testEngine) run(decide func(f *divertclient.Frame) (proto.Code, []byte)) error {
	for {
		f, err := t.e.Next()
		if err != nil {
			return err
		}
		code, b := decide(&f)
		t.mu.Lock()
		if code == 0 {
			t.held = append(t.held, f.ID)
		}
		t.mu.Unlock()
		switch code {
		case proto.Accept:
			err = t.e.Accept(f.ID)
		case proto.Drop:
			err = t.e.Drop(f.ID)
		case proto.Replace:
			err = t.e.Replace(f.ID, b)
		case proto.AcceptFlow:
			err = t.e.AcceptFlow(f.ID)
		}
		if err != nil {
			return err
		}
	}
}

// close ends the engine.
func (t *testEngine) close() {
	t.t.Helper()
	_ = t.e.Close()
	err := <-t.done
	assert.Error(t.t, err)
}

// ours tells frames of these tests from the kernel's own.
func ours(b []byte) bool { return bytes.HasPrefix(b, frameOf(14)) }

// ear keeps what leaves the card by a port's wire.
type ear struct {
	mu  sync.Mutex
	all [][]byte
}

func (r *rig) hear(name string) *ear {
	e := &ear{}
	r.wire(name).SetReceiver(func(b []byte) {
		if ours(b) {
			e.mu.Lock()
			e.all = append(e.all, slices.Clone(b))
			e.mu.Unlock()
		}
	})
	return e
}

func (e *ear) frames() [][]byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.all)
}

func (e *ear) count() int { return len(e.frames()) }

// socket is a packet socket that hears what an interface gets.
type socket struct {
	t  *testing.T
	fd int
}

func (r *rig) listen(name string) *socket {
	r.t.Helper()
	s := &socket{t: r.t}
	index := 0
	const all = 0x0300 // ETH_P_ALL in network order
	require.NoError(r.t, r.ns.Do(func() error {
		i, err := net.InterfaceByName(name)
		if err != nil {
			return err
		}
		index = i.Index
		s.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		return err
	}))
	r.t.Cleanup(func() { unix.Close(s.fd) })
	const ignoreOutgoing = 23 // PACKET_IGNORE_OUTGOING
	require.NoError(r.t, unix.SetsockoptInt(s.fd, unix.SOL_PACKET, ignoreOutgoing, 1))
	require.NoError(r.t, unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20))
	require.NoError(r.t, unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: int64(hang / time.Second)}))
	require.NoError(r.t, unix.Bind(s.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: index}))
	return s
}

// next is the next frame of ours.
func (s *socket) next() []byte {
	s.t.Helper()
	b := make([]byte, 1<<16)
	for {
		n, err := unix.Read(s.fd, b)
		require.NoError(s.t, err)
		if ours(b[:n]) {
			return b[:n]
		}
	}
}

// padded are frames as the card sends them.
func padded(frames [][]byte) (out [][]byte) {
	for _, b := range frames {
		out = append(out, append(slices.Clone(b), make([]byte, max(0, 60-len(b)))...))
	}
	return out
}

// numbered is a frame of n bytes with a number in it.
func numbered(n int, number uint32) []byte {
	b := frameOf(n)
	binary.BigEndian.PutUint32(b[n-4:], number)
	return b
}

// portCounters are those of a port.
func (r *rig) counters(name string) map[string]uint64 {
	r.t.Helper()
	s, err := r.client.Stats(context.Background(), name)
	require.NoError(r.t, err)
	require.NoError(r.t, s.CheckInspected())
	return s.Ports[0].Counters
}

// A port whose every frame goes through an engine at the socket: what it accepts arrives,
// what it drops does not, what it replaces arrives changed, both ways; and the sums close.
func TestInspectedPort(t *testing.T) {
	t.Parallel()
	r := start(t, rigOptions{}).running()
	const name = "oxp9"
	r.mute(name)
	far := r.hear(name)
	r.mustIP("link", "set", name, "up")
	require.NoError(t, r.setMTU(name, 9000))
	near := r.listen(name)
	_, err := r.client.SetDivertPort(context.Background(), name, client.SetDivertPort{Frames: client.FramesAll})
	require.NoError(t, err)
	before := r.counters(name)

	e := r.attach(func(f *divertclient.Frame) (proto.Code, []byte) {
		number := binary.BigEndian.Uint32(f.Data[len(f.Data)-4:])
		if !ours(f.Data) {
			return proto.Accept, nil
		}
		if number%4 == 2 {
			return proto.Replace, numbered(len(f.Data)-6, number)
		}
		return []proto.Code{proto.Accept, proto.Drop, 0, proto.Accept}[number%4], nil
	})
	var want [][]byte
	var all [][]byte
	for i := range uint32(40) {
		n := []int{60, 1514, 9014}[i%3]
		all = append(all, numbered(n, i))
		switch i % 4 {
		case 0, 3:
			want = append(want, numbered(n, i))
		case 2:
			want = append(want, numbered(n-6, i))
		}
	}
	for _, b := range all {
		r.wire(name).Send(b)
	}
	for _, b := range want {
		assert.Equal(t, b, near.next(), "to the host")
	}
	r.send(name, all...)
	r.wait("what passed is on the wire", func() bool { return far.count() == len(want) })
	assert.Equal(t, padded(want), far.frames(), "to the wire")

	c := r.counters(name)
	for counter, n := range map[string]uint64{"divert_dropped": 20, "divert_replaced": 20, "rx_divert_lost": 10, "tx_divert_lost": 10, "divert_queued": 0, "divert_drop_absent": before["divert_drop_absent"]} {
		assert.Equal(t, n, c[counter], counter)
	}
	assert.EqualValues(t, 30, c["rx_packets"]-before["rx_packets"])
	e.close()
	r.wait("nobody is there", func() bool {
		d, err := r.client.Divert(context.Background(), name)
		require.NoError(t, err)
		return d.Queues[0].State == client.QueueAbsent
	})
	r.wire(name).Send(all[0])
	r.wait("dropped by on-absent", func() bool { return r.counters(name)["divert_drop_absent"] == before["divert_drop_absent"]+1 })
	_, err = r.client.SetDivert(context.Background(), client.DivertSetting{Key: "on-absent", Value: "pass"})
	require.NoError(t, err)
	r.wire(name).Send(all[0])
	assert.Equal(t, all[0], near.next())
}

// What an engine has when oxpd ends goes by the policy for one that is not there, before
// the interfaces and the rings go; and the engine is told.
func TestEngineAtTheEnd(t *testing.T) {
	for _, policy := range []string{"pass", "drop"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			r := start(t, rigOptions{}).running()
			const name = "oxp10"
			r.mute(name)
			far := r.hear(name)
			r.mustIP("link", "set", name, "up")
			_, err := r.client.SetDivertPort(context.Background(), name, client.SetDivertPort{Frames: client.FramesAll})
			require.NoError(t, err)
			_, err = r.client.SetDivert(context.Background(), client.DivertSetting{Key: "on-absent", Value: policy}, client.DivertSetting{Key: "stall-ms", Value: "60000"})
			require.NoError(t, err)
			e := r.attach(func(f *divertclient.Frame) (proto.Code, []byte) {
				if !ours(f.Data) {
					return proto.Accept, nil
				}
				return 0, nil
			})
			for i := range uint32(5) {
				r.wire(name).Send(numbered(100, i))
				r.send(name, numbered(200, i))
			}
			held := func() int { e.mu.Lock(); defer e.mu.Unlock(); return len(e.held) }
			r.wait("the engine has them", func() bool { return held() == 10 })
			c := r.counters(name)
			assert.EqualValues(t, []uint64{5, 5}, []uint64{c["rx_divert_queued"], c["tx_divert_queued"]})

			r.cancel()
			require.NoError(t, r.end())
			err = <-e.done
			var why *divertclient.RefusedError
			require.True(t, errors.As(err, &why), "%v", err)
			s := r.d.stats(nil)
			require.NoError(t, s.CheckInspected())
			require.NoError(t, s.Sums.Check())
			p, _ := s.Port(name)
			assert.Zero(t, p.Counters["divert_queued"])
			if policy == "pass" {
				assert.EqualValues(t, 10, p.Counters["divert_pass_absent"])
				assert.Equal(t, 5, far.count(), "the card has sent what was given to it")
				return
			}
			assert.EqualValues(t, 10, p.Counters["divert_drop_absent"])
			assert.Zero(t, far.count())
		})
	}
}

// holding attaches an engine that never decides about frames of ours.
func (r *rig) holding() *testEngine {
	return r.attach(func(f *divertclient.Frame) (proto.Code, []byte) {
		if ours(f.Data) {
			return 0, nil
		}
		return proto.Accept, nil
	})
}

func (t *testEngine) holds() []uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.held)
}

// acceptAll decides about what is held.
func (t *testEngine) acceptAll() {
	t.t.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, id := range t.held {
		require.NoError(t.t, t.e.Accept(id))
	}
	require.NoError(t.t, t.e.Flush())
	t.held = nil
}

// inspectAll has every frame of a port inspected, and an engine given time.
func (r *rig) inspectAll(name string) {
	r.t.Helper()
	_, err := r.client.SetDivertPort(context.Background(), name, client.SetDivertPort{Frames: client.FramesAll})
	require.NoError(r.t, err)
	_, err = r.client.SetDivert(context.Background(), client.DivertSetting{Key: "stall-ms", Value: "60000"})
	require.NoError(r.t, err)
}

// The card is lost, and comes back, while an engine has frames: those for the host
// arrive, those for the card that was lost are counted as gone, and what comes later is
// inspected by the same engine.
func TestEngineOutlivesTheCard(t *testing.T) {
	t.Parallel()
	card := sharedCard(t, hwsim.Compressed())
	r := start(t, rigOptions{shared: card}).running()
	const name = "oxp9"
	r.mute(name)
	far := r.hear(name)
	r.mustIP("link", "set", name, "up")
	near := r.listen(name)
	r.inspectAll(name)
	e := r.holding()
	r.wire(name).Send(numbered(100, 1))
	r.send(name, numbered(100, 2), numbered(100, 3))
	r.wait("the engine has them", func() bool { return len(e.holds()) == 3 })
	r.away()
	e.acceptAll()
	assert.Equal(t, numbered(100, 1), near.next())
	r.wait("what has no card is counted", func() bool { return r.counters(name)["tx_drops"] == 2 })
	assert.EqualValues(t, 2, r.counters(name)["tx_gone"])
	card.Reboot()
	r.wait("running", func() bool { return r.state() == client.StateRunning })
	r.wait("link", func() bool { return r.port(name).OperState == client.OperUp })
	r.wire(name).Send(numbered(100, 4))
	r.send(name, numbered(100, 5))
	r.wait("the engine has them", func() bool { return len(e.holds()) == 2 })
	e.acceptAll()
	assert.Equal(t, numbered(100, 4), near.next())
	r.wait("on the wire", func() bool { return far.count() == 1 })
	assert.Equal(t, numbered(100, 5), far.frames()[0])
}

// An interface goes, and its MTU comes down, while an engine has frames of it: each is
// counted where it ends.
func TestPortChangesWhileAnEngineHasItsFrames(t *testing.T) {
	t.Parallel()
	r := start(t, rigOptions{}).running()
	const name = "oxp9"
	r.mute(name)
	r.hear(name)
	r.mustIP("link", "set", name, "up")
	require.NoError(t, r.setMTU(name, 9000))
	r.inspectAll(name)
	e := r.holding()
	send := func(n int) {
		r.wire(name).Send(numbered(n, 1))
		r.send(name, numbered(n, 2))
		r.wait("the engine has them", func() bool { return len(e.holds()) == 2 })
	}
	send(9014)
	require.NoError(t, r.setMTU(name, 1500))
	limit := r.d.owners[8].snapshot().iface.(*port.Port).Limit
	r.wait("the limit to come down", func() bool { return limit() == 1500 })
	e.acceptAll()
	r.wait("both are too long now", func() bool { c := r.counters(name); return c["rx_toolong"] == 1 && c["tx_toolong"] == 1 })

	send(100)
	index := r.port(name).IfIndex
	r.mustIP("link", "delete", name)
	r.wait("made again", func() bool { p := r.port(name); return p.State == client.PortUp && p.IfIndex != index })
	before := r.counters(name)
	e.acceptAll()
	r.wait("they have met the new interface", func() bool {
		c := r.counters(name)
		return c["rx_packets"]+c["tap_down"] > before["rx_packets"]+before["tap_down"] && c["tx_packets"]+c["tx_closed"] > before["tx_packets"]+before["tx_closed"]
	})
}

// The end of oxpd under traffic both ways, with an engine that answers: everything is
// counted, and the card is not touched by a verdict that comes late.
func TestStopUnderInspection(t *testing.T) {
	t.Parallel()
	r := start(t, rigOptions{}).running()
	const name = "oxp9"
	r.mute(name)
	r.mustIP("link", "set", name, "up")
	r.inspectAll(name)
	e := r.attach(func(*divertclient.Frame) (proto.Code, []byte) { return proto.Accept, nil })
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Add(2)
	go func() {
		defer wg.Done()
		for w := r.card.Wire(1); ; {
			select {
			case <-stop:
				return
			default:
				if w.Backlog() < 64 {
					w.Send(frameOf(1514))
				}
			}
		}
	}()
	index := r.port(name).IfIndex
	go func() {
		defer wg.Done()
		for {
			select {
			case <-stop:
				return
			default:
				_ = r.sendAt(index, frameOf(1514), frameOf(60)) // until the interface has gone
			}
		}
	}()
	r.wait("traffic", func() bool { c := r.counters(name); return c["rx_packets"] > 500 && c["tx_packets"] > 500 })
	r.cancel()
	require.NoError(t, r.end())
	close(stop)
	wg.Wait()
	assert.Error(t, <-e.done)
	r.faulty = true
	simtest.Clean(t, r.card, hwsim.ReportBusMasterOff)
	s := r.d.stats(nil)
	p, _ := s.Port(name)
	assert.Zero(t, p.Counters["divert_queued"])
	assert.Equal(t, s.Device["tx_posted"], p.Counters["tx_packets"])
}
