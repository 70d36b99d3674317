package simcard_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/board"
	"oxpd/internal/capture"
	"oxpd/internal/daemon"
	"oxpd/internal/daemon/client"
	"oxpd/internal/daemon/config"
	"oxpd/internal/daemon/simcard"
	"oxpd/internal/frame"
	"oxpd/internal/netlab"
	"oxpd/octep"
)

// hang bounds every wait by the wall clock.
const hang = 60 * time.Second

const captures = "../../../testdata/captures"

// rig is a daemon in this process with a simulated card, and the namespace of its
// interfaces, in which nobody speaks unasked.
type rig struct {
	t      *testing.T
	ns     *netlab.NS
	card   *simcard.Device
	client *client.Client
	log    *syncBuffer
	cancel context.CancelFunc
	ended  chan error
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// start brings a card with wires up. The ports that hold names have their cable
// out until plug.
func start(t *testing.T, wires map[string]string, hold ...string) *rig {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes network namespaces and TAP interfaces")
	}
	ns, err := netlab.New()
	require.NoError(t, err)
	for _, which := range []string{"all", "default"} {
		err := ns.Sysctl("ipv6/conf/"+which+"/disable_ipv6", "1")
		require.True(t, err == nil || errors.Is(err, os.ErrNotExist), err)
	}
	cfg := config.Default()
	cfg.Socket = filepath.Join(t.TempDir(), "oxpd.sock")
	cfg.LinkPoll = config.Duration(20 * time.Millisecond)
	cfg.Sim.Wires = wires
	require.NoError(t, cfg.Check())
	r := &rig{t: t, ns: ns, client: client.New(cfg.Socket), log: &syncBuffer{}, ended: make(chan error, 1)}
	log := slog.New(slog.NewTextHandler(r.log, nil))
	opened := make(chan struct{})
	d := daemon.New(daemon.Options{
		Config: cfg, Version: "test", Simulated: true, NetNS: netlab.FDPath(int(ns.File().Fd())), Logger: log,
		Open: func(context.Context) (octep.Device, error) {
			dev, err := simcard.Open(cfg.Sim, log)
			if err != nil {
				return nil, err
			}
			for _, h := range hold {
				dev.Card.Wire(uint16(portOf(t, h).Tag)).SetLink(false)
			}
			r.card = dev
			close(opened)
			return dev, nil
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() { r.ended <- d.Run(ctx) }()
	t.Cleanup(func() {
		r.stop()
		assert.Empty(t, r.card.Card.Reports(), "misuse of the card")
		assert.NoError(t, r.card.Card.CheckConservation(), "the card's own books")
		assert.NoError(t, ns.Close())
		if t.Failed() {
			t.Logf("log:\n%s", r.log)
		}
	})
	select {
	case <-opened:
	case <-time.After(hang):
		t.Fatal("the card is not opened")
	}
	r.wait("the bring-up", func() bool {
		s, err := r.client.Status(context.Background())
		return err == nil && s.State == client.StateRunning && s.PortsUp == board.Ports
	})
	return r
}

// stop ends the daemon, once.
func (r *rig) stop() {
	r.t.Helper()
	if r.ended == nil {
		return
	}
	r.cancel()
	select {
	case err := <-r.ended:
		assert.NoError(r.t, err)
	case <-time.After(hang):
		r.t.Fatal("the daemon does not end")
	}
	r.ended = nil
}

func (r *rig) wait(what string, ok func() bool) {
	r.t.Helper()
	require.Eventually(r.t, ok, hang, 5*time.Millisecond, what)
}

func portOf(t *testing.T, name string) board.Port {
	t.Helper()
	p, err := board.Parse(name)
	require.NoError(t, err)
	return p
}

// up gives a port its MTU and brings its interface up, with its cable in.
func (r *rig) up(name string, mtu int) {
	r.t.Helper()
	_, err := r.client.SetMTU(context.Background(), name, mtu)
	require.NoError(r.t, err)
	require.NoError(r.t, r.ns.SetUp(name, true))
}

// plug puts the cable of a port in.
func (r *rig) plug(name string) {
	r.card.Card.Wire(uint16(portOf(r.t, name).Tag)).SetLink(true)
}

// linked waits until a port has its link, for the card and for the kernel.
func (r *rig) linked(names ...string) {
	r.t.Helper()
	for _, name := range names {
		r.wait("the link of "+name, func() bool {
			l, err := r.ns.Link(name)
			return err == nil && l.Carrier && r.card.Card.Wire(uint16(portOf(r.t, name).Tag)).Carries()
		})
	}
}

func (r *rig) packets(name string) *netlab.Packets {
	r.t.Helper()
	p, err := r.ns.Packets(name)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { p.Close() })
	return p
}

// wire is the counters of a port's wire.
func (r *rig) wire(name string) map[string]uint64 {
	r.t.Helper()
	s, err := r.client.Stats(context.Background(), name)
	require.NoError(r.t, err)
	w, ok := s.Wire(name)
	require.True(r.t, ok)
	return w.Counters
}

// read reads a capture with gopacket's own code.
func read(t *testing.T, path string) (frames [][]byte) {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	var src gopacket.PacketDataSource
	if filepath.Ext(path) == ".pcapng" {
		src, err = pcapgo.NewNgReader(f, pcapgo.DefaultNgReaderOptions)
	} else {
		src, err = pcapgo.NewReader(f)
	}
	require.NoError(t, err)
	for {
		b, _, err := src.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return frames
		}
		require.NoError(t, err)
		frames = append(frames, b)
	}
}

// flow is what keeps frames in order: they end on one ring. A later fragment has
// no ports and is a flow of its own.
func flow(f []byte) string {
	p := gopacket.NewPacket(f, layers.LayerTypeEthernet, gopacket.Default)
	key := fmt.Sprint(p.LinkLayer().LinkFlow())
	if n := p.NetworkLayer(); n != nil {
		key = fmt.Sprint(n.NetworkFlow())
	}
	if t := p.TransportLayer(); t != nil {
		key += fmt.Sprint(t.TransportFlow())
	}
	return key
}

func flows(frames [][]byte) map[string][][]byte {
	m := map[string][][]byte{}
	for _, f := range frames {
		m[flow(f)] = append(m[flow(f)], f)
	}
	return m
}

// TestReplayReachesTheInterface: every frame, byte for byte and in order inside
// its flow, its outer tag read back from where the kernel keeps it.
func TestReplayReachesTheInterface(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(captures, "*.pcap*"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	// One card for all of them: a port each.
	wires := map[string]string{}
	var names []string
	for i, file := range files {
		name := board.ByIndex([]int{8, 9, 0, 1, 2, 3, 4, 5, 6, 7, 10, 11}[i]).Name
		names = append(names, name)
		wires[name] = "pcap:" + file + "@wire,rewrite-mac"
	}
	r := start(t, wires, names...)
	for _, name := range names {
		r.card.Card.SetSwitchFrame(10240) // as a switch in jumbo mode
		r.up(name, 9000)
	}
	for i, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			p := portOf(t, names[i])
			socket := r.packets(p.Name)
			lif, live := r.card.Card.LIF(uint32(p.LIF()))
			require.True(t, live)
			want := read(t, file)
			for _, f := range want {
				if f[0]&1 == 0 {
					copy(f, lif.MAC[:])
				}
			}
			r.plug(p.Name)
			ctx, cancel := context.WithTimeout(context.Background(), hang)
			defer cancel()
			var got [][]byte
			for range want {
				f, err := socket.Next(ctx)
				require.NoError(t, err, "%d of %d; %v", len(got), len(want), r.wire(p.Name))
				got = append(got, append([]byte(nil), f...))
			}
			assert.Equal(t, flows(want), flows(got))
			c := r.wire(p.Name)
			assert.EqualValues(t, len(want), c["replay_sent"])
			assert.EqualValues(t, len(want), c["in"])
			assert.EqualValues(t, len(want), c["passed"])
			assert.Zero(t, c["replay_cut"])
		})
	}
}

// ether makes a frame of n bytes with an EtherType that no stack answers behind
// its tags.
func ether(n int, seed byte, tags ...uint16) []byte {
	b := make([]byte, n)
	copy(b, []byte{0x02, 0, 0, 0, 0, 9, 0x02, 0, 0, 0, 0, 1})
	at := 12
	for i, tag := range tags {
		b[at], b[at+1], b[at+3] = byte(tag>>8), byte(tag), byte(100+i)
		at += frame.VLANSize
	}
	b[at], b[at+1] = 0x88, 0xb5
	for i := at + 2; i < n; i++ {
		b[i] = seed + byte(i)
	}
	return b
}

// TestRecordingHasWhatTheInterfaceSends: up to the line that the kernel draws for
// packet sockets (netlab.Packets.Send says why), padded to 60 bytes, in order.
func TestRecordingHasWhatTheInterfaceSends(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out.pcapng")
	r := start(t, map[string]string{"F1": "pcap:," + out})
	const name = "oxp9"
	var want [][]byte
	for _, mtu := range []int{1500, 9000} {
		r.up(name, mtu)
		r.linked(name)
		socket := r.packets(name)
		for i, tc := range []struct {
			frame []byte
			fits  bool
		}{
			{ether(14, 1), true},
			{ether(59, 2), true},
			{ether(60, 3), true},
			{ether(mtu, 4), true},
			{ether(mtu+14, 5), true},
			{ether(mtu+15, 6), false},
			{ether(18, 7, 0x8100), true},
			{ether(mtu+14, 8, 0x8100), true},
			{ether(mtu+18, 9, 0x8100), true},
			{ether(mtu+19, 10, 0x8100), false},
			{ether(mtu+18, 11, 0x8100, 0x8100), true}, // two tags share the four bytes
			{ether(mtu+19, 12, 0x8100, 0x8100), false},
			{ether(mtu+14, 13, 0x88a8, 0x8100), true},
			{ether(mtu+15, 14, 0x88a8, 0x8100), false},
			{ether(mtu+18, 15, 0x88a8), false},
		} {
			err := socket.Send(tc.frame)
			if !tc.fits {
				assert.ErrorIs(t, err, unix.EMSGSIZE, "frame %d at %d", i, mtu)
				continue
			}
			require.NoError(t, err, "frame %d at %d", i, mtu)
			f := append([]byte(nil), tc.frame...)
			want = append(want, append(f, make([]byte, max(0, frame.MinSize-len(f)))...))
		}
	}
	r.wait("every frame in the recording", func() bool { return r.wire(name)["recorded"] >= uint64(len(want)) })
	c := r.wire(name)
	assert.Zero(t, c["out_refused"])
	assert.EqualValues(t, len(want), c["out"])
	r.stop() // what SIGTERM does
	got := read(t, out)
	require.Equal(t, len(want), len(got))
	for i := range want {
		assert.True(t, bytes.Equal(want[i], got[i]), "frame %d: %d bytes % x..., want %d bytes % x...", i, len(got[i]), got[i][:20], len(want[i]), want[i][:20])
	}
}

// TestReplayAndRecord at one port: the host's answer to what was replayed.
func TestReplayAndRecord(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out.pcapng")
	in := filepath.Join(captures, "ipv4.pcap")
	// The kernel answers once it has its carrier, which is one round of the link
	// poll behind the card's link: twelve times 20 ms.
	r := start(t, map[string]string{"oxp1": "pcap:" + in + "," + out + "@rewrite-mac,start=2s"}, "oxp1")
	r.up("oxp1", 1500)
	r.ip("addr add 192.0.2.2/24 dev oxp1") // the second machine of the capture
	r.plug("oxp1")
	r.linked("oxp1")
	r.wait("the end of the replay", func() bool { return strings.Contains(r.log.String(), "replay is over") })
	asked := 0
	for _, f := range read(t, in) {
		p := gopacket.NewPacket(f, layers.LayerTypeEthernet, gopacket.Default)
		if l, ok := p.Layer(layers.LayerTypeICMPv4).(*layers.ICMPv4); ok && l.TypeCode.Type() == layers.ICMPv4TypeEchoRequest {
			asked++
		}
	}
	require.Positive(t, asked)
	answers := func() (n int) {
		// Read while it is written: only whole blocks are there.
		f, err := capture.Open(context.Background(), out)
		require.NoError(t, err)
		defer f.Close()
		for {
			rec, err := f.Next()
			if err != nil {
				return n
			}
			p := gopacket.NewPacket(rec.Frame, layers.LayerTypeEthernet, gopacket.Default)
			if l, ok := p.Layer(layers.LayerTypeICMPv4).(*layers.ICMPv4); ok && l.TypeCode.Type() == layers.ICMPv4TypeEchoReply {
				n++
			}
		}
	}
	r.wait("every answer in the recording, while the daemon runs", func() bool { return answers() == asked })
}

func (r *rig) ip(args string) {
	r.t.Helper()
	require.NoError(r.t, r.ns.Do(func() error {
		out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("ip %s: %w: %s", args, err, out)
		}
		return nil
	}))
}

// write makes a capture of frames with times.
func write(t *testing.T, frames [][]byte, times ...time.Time) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "in.pcapng")
	rec, err := capture.Create(path, "lab")
	require.NoError(t, err)
	for i, f := range frames {
		at := time.Unix(1, 0)
		if i < len(times) {
			at = times[i]
		}
		require.NoError(t, rec.Record(at, f))
	}
	require.NoError(t, rec.Close())
	return path
}

// TestPace: the capture's own time passes between its frames, and none at the
// wire's pace. A clock of the wall can be late but never early.
func TestPace(t *testing.T) {
	const gap = 700 * time.Millisecond
	threeFrames := func(gap time.Duration) string {
		return write(t, [][]byte{ether(60, 1), ether(60, 2), ether(60, 3)}, time.Unix(5, 0), time.Unix(5, 0).Add(gap), time.Unix(4, 0))
	}
	r := start(t, map[string]string{
		"oxp9":  "pcap:" + threeFrames(gap) + "@rewrite-mac",
		"oxp10": "pcap:" + threeFrames(time.Hour) + "@wire,rewrite-mac,start=" + gap.String(), // which comes at once
	}, "oxp9", "oxp10")
	for _, tc := range []struct {
		name          string
		first, second time.Duration // at least: from the link to each frame
	}{{"oxp9", 0, gap}, {"oxp10", gap, gap}} {
		t.Run(tc.name, func(t *testing.T) {
			r.up(tc.name, 1500)
			socket := r.packets(tc.name)
			ctx, cancel := context.WithTimeout(context.Background(), hang)
			defer cancel()
			var at [4]time.Time
			at[0] = time.Now()
			r.plug(tc.name)
			for i := 1; i < len(at); i++ {
				f, err := socket.Next(ctx)
				require.NoError(t, err)
				assert.Equal(t, ether(60, byte(i))[12:], f[12:], "in the order of the file")
				at[i] = time.Now()
			}
			assert.GreaterOrEqual(t, at[1].Sub(at[0]), tc.first)
			assert.GreaterOrEqual(t, at[2].Sub(at[0]), tc.second)
		})
	}
}

// TestForeignAddresses are for the port's filter, unless they are rewritten.
func TestForeignAddresses(t *testing.T) {
	in := write(t, [][]byte{ether(60, 1), ether(60, 2)})
	r := start(t, map[string]string{"oxp9": "pcap:" + in})
	r.wait("both at the filter", func() bool { return r.wire("oxp9")["filtered"] == 2 })
	assert.EqualValues(t, 2, r.wire("oxp9")["in"])
}

// TestCutPackets are counted and told of, and never sent.
func TestCutPackets(t *testing.T) {
	in := filepath.Join(t.TempDir(), "cut.pcap")
	b := []byte{0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 60, 0, 0, 0, 1, 0, 0, 0}
	for i, was := range []byte{60, 200, 60, 61} {
		b = append(append(b, 1, 0, 0, 0, byte(i), 0, 0, 0, 60, 0, 0, 0, was, 0, 0, 0), ether(60, byte(i))...)
	}
	require.NoError(t, os.WriteFile(in, b, 0o600))
	r := start(t, map[string]string{"oxp9": "pcap:" + in + "@wire,rewrite-mac"})
	r.wait("the end of the replay", func() bool { return strings.Contains(r.log.String(), "replay is over") })
	c := r.wire("oxp9")
	assert.EqualValues(t, 2, c["replay_sent"])
	assert.EqualValues(t, 2, c["replay_cut"])
	assert.EqualValues(t, 2, c["in"])
	assert.Contains(t, r.log.String(), "cut=2 packets=4")
}

// TestLongFrames are the card's to refuse, whatever a wire can carry.
func TestLongFrames(t *testing.T) {
	in := write(t, [][]byte{ether(9205, 1), ether(10240, 2), ether(10241, 3), ether(60000, 4)})
	r := start(t, map[string]string{"oxp9": "pcap:" + in + "@wire,rewrite-mac", "oxp1": "pcap:" + in + "@wire,rewrite-mac"})
	r.wait("all refused", func() bool { return r.wire("oxp9")["oversize"] == 4 && r.wire("oxp1")["switch_dropped"] == 4 })
}

// TestOpenRefuses: a capture that cannot be replayed whole is refused before
// anything is on a wire, and nothing is overwritten.
func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	good, err := os.ReadFile(filepath.Join(captures, "dns.pcap"))
	require.NoError(t, err)
	file := func(name string, b []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, b, 0o600))
		return path
	}
	cooked := append([]byte(nil), good...)
	cooked[20] = 113
	kept := file("kept.pcap", good)
	link := filepath.Join(dir, "link.pcap")
	require.NoError(t, os.Link(kept, link))
	for _, tc := range []struct{ name, wire, want string }{
		{"no such file", "pcap:" + dir + "/none", "no such file"},
		{"a folder", "pcap:" + dir, "is a directory"},
		{"truncated", "pcap:" + file("short.pcap", good[:len(good)-1]), "after 3 packets: the file ends inside a packet"},
		{"another link type", "pcap:" + file("cooked.pcap", cooked), "link type 113: want 1, Ethernet"},
		{"no capture", "pcap:" + file("text", []byte("hello, world")), "no capture"},
		{"recording into no folder", "pcap:" + kept + "," + dir + "/none/out", "no such file"},
		{"recording over the capture by another name", "pcap:" + kept + "," + link, "would be overwritten while it is read"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := config.Default().Sim
			cfg.Wires = map[string]string{"F1": tc.wire}
			_, err := simcard.Open(cfg, nil)
			require.ErrorContains(t, err, "simcard: wire of oxp9 (PortF1): ")
			assert.ErrorContains(t, err, tc.want)
		})
	}
	after, err := os.ReadFile(kept)
	require.NoError(t, err)
	assert.Equal(t, good, after)
}

// TestStopDuringReplay: a replay that waits for a year does not hold up the end.
func TestStopDuringReplay(t *testing.T) {
	in := write(t, [][]byte{ether(60, 1), ether(60, 2)}, time.Unix(0, 0), time.Unix(31_000_000, 0))
	r := start(t, map[string]string{"oxp9": "pcap:" + in, "oxp10": "pcap:" + in + "@start=1h", "oxp1": "pcap:" + in}, "oxp1")
	r.wait("the first frame", func() bool { return r.wire("oxp9")["in"] == 1 })
	r.stop() // which has a guard
}

// TestLoop: two ports of one machine with a cable between them. Each address is
// reached by way of the cable and not inside the kernel.
func TestLoop(t *testing.T) {
	r := start(t, map[string]string{"oxp1": "loop:oxp2", "F1": "loop:F2", "F2": "loop:F1"})
	r.ip("rule add pref 10 iif lo to 198.51.100.2 lookup 101")
	r.ip("rule add pref 10 iif lo to 198.51.100.1 lookup 102")
	r.ip("rule add pref 10 iif lo to 203.0.113.10 lookup 109")
	r.ip("rule add pref 10 iif lo to 203.0.113.9 lookup 110")
	r.ip("rule add pref 20 lookup local")
	r.ip("rule del pref 0")
	for _, c := range []string{"conf/all", "conf/default"} {
		require.NoError(t, r.ns.Sysctl("ipv4/"+c+"/rp_filter", "0"))
		require.NoError(t, r.ns.Sysctl("ipv4/"+c+"/accept_local", "1"))
	}
	ends := []struct {
		name, addr, peer, table string
	}{
		{"oxp1", "198.51.100.1", "198.51.100.2", "101"}, {"oxp2", "198.51.100.2", "198.51.100.1", "102"},
		{"oxp9", "203.0.113.9", "203.0.113.10", "109"}, {"oxp10", "203.0.113.10", "203.0.113.9", "110"},
	}
	for _, e := range ends {
		require.NoError(t, r.ns.SetUp(e.name, true))
		r.ip("addr add " + e.addr + "/32 dev " + e.name)
		r.ip("route add " + e.peer + "/32 dev " + e.name + " src " + e.addr + " table " + e.table)
	}
	r.linked("oxp1", "oxp2", "oxp9", "oxp10")
	for _, tc := range []struct {
		name     string
		from, to int // MTU of the two
		a, b     int // ends
		data     int
		answered bool
		exceeded uint64 // by the LIF of the other end
	}{
		{"small", 1500, 1500, 0, 1, 56, true, 0},
		{"the largest", 1500, 1500, 0, 1, 1472, true, 0},
		{"one more than the other end takes", 1501, 1500, 0, 1, 1473, false, 1},
		{"the other way", 1500, 1500, 1, 0, 1472, true, 0},
		{"jumbo", 9000, 9000, 2, 3, 8972, true, 0},
		{"jumbo, one more than the other end takes", 9000, 8999, 2, 3, 8972, false, 1},
		{"jumbo, the other way", 9000, 9000, 3, 2, 8972, true, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, b := ends[tc.a], ends[tc.b]
			r.up(a.name, tc.from)
			r.up(b.name, tc.to)
			before := r.counters("FROM_WIRE_DROP_MTU_EXCEEDED")
			passed := r.wire(b.name)["passed"]
			timeout := hang
			if !tc.answered {
				timeout = 200 * time.Millisecond
			}
			_, err := r.ns.Ping(context.Background(), netip.MustParseAddr(a.peer), tc.data, timeout)
			if tc.answered {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, netlab.ErrNoReply)
			}
			assert.Equal(t, tc.exceeded, r.counters("FROM_WIRE_DROP_MTU_EXCEEDED")-before)
			assert.Greater(t, r.wire(b.name)["passed"], passed, "it went through the cable")
		})
	}
	for _, e := range ends {
		c := r.wire(e.name)
		assert.Zero(t, c["link_down"]+c["overrun"]+c["filtered"]+c["switch_dropped"], "%s: %v", e.name, c)
		assert.Equal(t, c["in"], c["passed"])
	}
}

func (r *rig) counters(name string) uint64 {
	r.t.Helper()
	c, err := r.client.Counters(context.Background())
	require.NoError(r.t, err)
	return c.Get(name)
}
