package loadtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/board"
	"oxpd/internal/daemon"
	"oxpd/internal/daemon/client"
	"oxpd/internal/daemon/config"
	"oxpd/internal/daemon/simcard"
	"oxpd/internal/netlab"
	"oxpd/internal/simdev"
	"oxpd/internal/simdev/simtest"
	"oxpd/octep"
	"oxpd/octep/csr"
	"oxpd/ring/wire"
	"oxpd/rpc/msg"
)

const (
	// hang bounds every wait by the wall clock: a guard, not a measurement.
	hang = 90 * time.Second
	poll = 5 * time.Millisecond
	// calm is how long nothing may have moved for the counters to be at rest.
	calm = 100 * time.Millisecond
	// answer is how long a ping may take that is not lost.
	answer = time.Minute
	// smallPing is ping's own default of data bytes.
	smallPing = 56
)

// lab is a daemon on a simulated card between two namespaces, or more: ports that
// shall reach each other through the host have far sides apart.
type lab struct {
	t         *testing.T
	ctx       context.Context
	host, far *netlab.NS
	apart     map[int]*netlab.NS // far sides that are not in far, by the port's index
	card      *hwsim.Card
	client    *client.Client
	log       *buffer
	injected  [board.Ports]atomic.Uint64 // frames that a test put on a wire itself
	cancel    context.CancelFunc
	ended     chan error
	stopped   bool
}

// buffer is a log that several goroutines write.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *buffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *buffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// newLab brings the twelve ports up, with addresses at both ends, each end's MAC
// known at the other, and no frames of their own accord. At the end of the test
// the books are closed and the daemon is stopped.
func newLab(t *testing.T, change ...func(*config.Config)) *lab {
	t.Helper()
	return setup{}.start(t, change...)
}

// setup is what a lab is besides its configuration.
type setup struct {
	apart []board.Port         // ports whose far side is in a namespace of its own
	card  func(*hwsim.Options) // nil: as it comes
	task  func(name string)    // daemon.Options.Task
	yield func()               // daemon.Options.Yield
}

// start is newLab of a setup.
func (s setup) start(t *testing.T, change ...func(*config.Config)) *lab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes network namespaces and TAP interfaces")
	}
	ctx, cancel := context.WithCancel(context.Background())
	l := &lab{t: t, ctx: ctx, cancel: cancel, ended: make(chan error, 1), log: &buffer{}}
	l.host, l.far, l.apart = newNS(t), newNS(t), map[int]*netlab.NS{}
	for _, p := range s.apart {
		l.apart[p.Index] = newNS(t)
	}

	cfg := config.Default()
	cfg.Socket = filepath.Join(t.TempDir(), "oxpd.sock")
	cfg.LinkPoll, cfg.Reconcile = config.Duration(20*time.Millisecond), config.Duration(20*time.Millisecond)
	cfg.Sim.Wires = map[string]string{}
	for _, p := range board.All() {
		cfg.Sim.Wires[p.Label] = fmt.Sprintf("tap:%s@%s", p.Label, path(l.farOf(p)))
	}
	for _, c := range change {
		c(&cfg)
	}
	require.NoError(t, cfg.Check())
	l.client = client.New(cfg.Socket)

	opened := make(chan *hwsim.Card, 1)
	d := daemon.New(daemon.Options{
		Config: cfg, Version: "test", Simulated: true, NetNS: path(l.host), Task: s.task, Yield: s.yield,
		Logger: slog.New(slog.NewTextHandler(l.log, nil)),
		Open: func(context.Context) (octep.Device, error) {
			b, err := simcard.NewBoard(cfg.Sim, nil, s.options)
			if err != nil {
				return nil, err
			}
			if err := b.OpenConsole(""); err != nil {
				l.t.Logf("the simulated coprocessor has no console: %v", err)
			}
			b.Card.Start()
			opened <- b.Card
			return &simcard.Device{Device: simdev.New(b.Card), Board: b}, nil
		},
	})
	go func() { l.ended <- d.Run(ctx) }()
	t.Cleanup(func() {
		if l.card != nil && !l.stopped && !t.Failed() {
			l.books()
		}
		if !l.stopped {
			assert.NoError(t, l.stop())
		}
		if t.Failed() {
			t.Logf("daemon's log:\n%s", l.log)
		}
	})
	select {
	case l.card = <-opened:
	case err := <-l.ended:
		l.ended <- err
		t.Fatalf("the daemon ended: %v", err)
	}
	l.wait("every port up", func() bool {
		s, err := l.client.Status(ctx)
		return err == nil && s.State == client.StateRunning && s.PortsUp == board.Ports
	})
	l.plug()
	return l
}

// options are those of the card.
func (s setup) options(o *hwsim.Options) {
	o.SwitchFrame = hwsim.SwitchFrameJumbo
	if s.card != nil {
		s.card(o)
	}
}

// stop ends the daemon and waits for its end.
func (l *lab) stop() error {
	l.stopped = true
	l.cancel()
	select {
	case err := <-l.ended:
		return err
	case <-time.After(hang):
		return errors.New("the daemon does not end")
	}
}

// newNS is a namespace whose interfaces send nothing by themselves.
func newNS(t *testing.T) *netlab.NS {
	t.Helper()
	ns, err := netlab.New()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, ns.Close()) })
	for _, which := range []string{"all", "default"} {
		if err := ns.Sysctl("ipv6/conf/"+which+"/disable_ipv6", "1"); !errors.Is(err, os.ErrNotExist) {
			require.NoError(t, err)
		}
	}
	return ns
}

// farOf is the namespace of a port's far side.
func (l *lab) farOf(p board.Port) *netlab.NS {
	if ns, ok := l.apart[p.Index]; ok {
		return ns
	}
	return l.far
}

func path(ns *netlab.NS) string { return netlab.FDPath(int(ns.File().Fd())) }

func hostAddr(p board.Port) netip.Addr { return netip.AddrFrom4([4]byte{10, 66, byte(p.Index + 1), 1}) }
func farAddr(p board.Port) netip.Addr  { return netip.AddrFrom4([4]byte{10, 66, byte(p.Index + 1), 2}) }

const prefixBits = 24

// plug gives both ends of every wire an address and makes them neighbours.
func (l *lab) plug() {
	l.t.Helper()
	for _, p := range board.All() {
		require.NoError(l.t, l.host.AddAddr(p.Name, netip.PrefixFrom(hostAddr(p), prefixBits)))
		require.NoError(l.t, l.farOf(p).AddAddr(p.Label, netip.PrefixFrom(farAddr(p), prefixBits)))
		require.NoError(l.t, l.host.SetUp(p.Name, true))
		require.NoError(l.t, l.farOf(p).SetUp(p.Label, true))
		l.neighbours(p)
	}
	l.wait("a carrier on every port", func() bool {
		ports, err := l.client.Ports(l.ctx)
		require.NoError(l.t, err)
		for _, p := range ports.Ports {
			if p.OperState != client.OperUp {
				return false
			}
		}
		return true
	})
}

// neighbours makes the two ends of a wire known to each other: the kernel
// forgets them when an interface goes down.
func (l *lab) neighbours(p board.Port) {
	l.t.Helper()
	h, err := l.host.Link(p.Name)
	require.NoError(l.t, err)
	f, err := l.farOf(p).Link(p.Label)
	require.NoError(l.t, err)
	require.NoError(l.t, l.host.AddNeighbour(p.Name, farAddr(p), f.MAC))
	require.NoError(l.t, l.farOf(p).AddNeighbour(p.Label, hostAddr(p), h.MAC))
}

// wait polls until something holds.
func (l *lab) wait(what string, cond func() bool) {
	l.t.Helper()
	for deadline := time.Now().Add(hang); !cond(); time.Sleep(poll) {
		if time.Now().After(deadline) {
			l.t.Fatalf("never: %s", what)
		}
	}
}

func (l *lab) setMTU(p board.Port, mtu int) {
	l.t.Helper()
	_, err := l.client.SetMTU(l.ctx, p.Name, mtu)
	require.NoError(l.t, err)
}

func (l *lab) stats() *client.Stats {
	l.t.Helper()
	s, err := l.client.Stats(l.ctx, "")
	require.NoError(l.t, err)
	return s
}

func (l *lab) wire(p board.Port) *hwsim.Wire { return l.card.Wire(uint16(p.Tag)) }

// inject puts frames on a wire behind the back of the far kernel.
func (l *lab) inject(p board.Port, b []byte) {
	l.wire(p).Send(b)
	l.injected[p.Index].Add(1)
}

// reading is every counter between the two kernels.
type reading struct {
	stats     *client.Stats
	host, far map[string]netlab.Link
	card      [msg.CountersSys]uint64
}

func (l *lab) read() reading {
	l.t.Helper()
	r := reading{host: map[string]netlab.Link{}, far: map[string]netlab.Link{}}
	type side struct {
		ns *netlab.NS
		to map[string]netlab.Link
	}
	sides := []side{{l.host, r.host}, {l.far, r.far}}
	for _, ns := range l.apart {
		sides = append(sides, side{ns, r.far})
	}
	for _, side := range sides {
		links, err := side.ns.Links()
		require.NoError(l.t, err)
		for _, link := range links {
			side.to[link.Name] = link
		}
	}
	r.stats = l.stats()
	for i := range r.card {
		r.card[i] = l.card.Counter(i)
	}
	return r
}

// moving is what a frame under way will still change.
func (r *reading) moving() string {
	return fmt.Sprint(r.stats.Ports, r.stats.Wires, r.stats.Device["rx_done"], r.host, r.far, r.card)
}

// rest reads all counters once nothing moves any more.
func (l *lab) rest() (r reading) {
	l.t.Helper()
	last := ""
	l.wait("counters at rest", func() bool {
		r = l.read()
		now := r.moving()
		if now == last && l.card.Quiesced() {
			return true
		}
		last = now
		time.Sleep(calm)
		return false
	})
	return r
}

// ringFull is how many packets found a ring of the host full: the part of
// TX_DROP_QUEUE_FULL that no port facing a wire has counted (datapath.md 5.2).
func (l *lab) ringFull() uint64 {
	full := l.card.Counter(msg.CntTXDropQueueFull)
	for port := range lastWirePort + 1 {
		full -= l.card.PortCounter(msg.CounterPortTXQueueFull, port)
	}
	return full
}

// lastWirePort is the last of the fast path's ports that faces a wire
// (rpc-lif.md 6.2).
const lastWirePort = 2

// hostBooks follows every frame between the host's kernel and the rings. They hold
// also when the card has been away.
func (l *lab) hostBooks(r *reading) {
	t := l.t
	t.Helper()
	assert.NoError(t, r.stats.Sums.Check())
	assert.NoError(t, r.stats.CheckInspected())
	var posted uint64
	for _, p := range board.All() {
		port, _ := r.stats.Port(p.Name)
		c, host := port.Counters, r.host[p.Name].Stats
		assert.Equal(t, c["rx_packets"], host.RXPackets, "%s: frames received by the host", p)
		assert.Equal(t, host.TXPackets+host.TXDropped, c["tx_packets"]+c["tx_drops"]+c["tap_kernel_dropped"], "%s: frames from the host", p)
		posted += c["tx_packets"]
	}
	d := r.stats.Device
	assert.Equal(t, posted, d["tx_posted"]+d["tx_iq_full"], "frames of the ports in the input queue")
}

// books follows every frame from kernel to kernel and returns what was read. The
// card's own sums are the model's: CheckConservation.
func (l *lab) books() reading {
	t := l.t
	t.Helper()
	r := l.rest()
	simtest.Clean(t, l.card)
	assert.NoError(t, l.card.CheckConservation())
	l.hostBooks(&r)
	for _, p := range board.All() {
		wire, _ := r.stats.Wire(p.Name)
		w, far := wire.Counters, r.far[p.Label].Stats
		assert.Equal(t, far.TXPackets+l.injected[p.Index].Load(), w["in"], "%s: frames from the far side", p)
		assert.Equal(t, w["out"]-w["out_refused"], far.RXPackets, "%s: frames received by the far side", p)
	}
	d := r.stats.Device
	assert.Equal(t, d["tx_posted"], r.card[msg.CntRXKN], "frames posted, frames seen by the card")
	assert.Equal(t, r.card[msg.CntTXKN], d["rx_done"]+l.ringFull(), "packets for the host")
	var messages uint64
	for q := range wire.OQs {
		messages += l.card.Messages(csr.MSIXRingVector + q)
	}
	assert.Equal(t, messages, d["intr_taken"], "messages of the card, interrupts of the rings")
	return r
}
