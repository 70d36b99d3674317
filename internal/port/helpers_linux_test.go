package port

import (
	"context"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/board"
	"oxpd/internal/clock"
	"oxpd/internal/frame"
	"oxpd/internal/sys"
)

// hang is a guard against tests that never end; nothing is measured with it.
const hang = time.Minute

// newNS makes a namespace in which nobody speaks unasked.
func newNS(t testing.TB) *sys.NetNS {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes network namespaces and TAP interfaces")
	}
	ns, err := sys.NewNetNS()
	require.NoError(t, err)
	t.Cleanup(func() { ns.Close() })
	require.NoError(t, ns.Do(func() error {
		for _, scope := range []string{"all", "default"} {
			err := os.WriteFile("/proc/sys/net/ipv6/conf/"+scope+"/disable_ipv6", []byte("1"), 0)
			if err != nil && !os.IsNotExist(err) {
				return err
			}
		}
		return nil
	}))
	return ns
}

// ip runs the command of that name inside the namespace.
func ip(t testing.TB, ns *sys.NetNS, args string) string {
	t.Helper()
	out, err := ipMay(ns, args)
	require.NoError(t, err, "ip %s: %s", args, out)
	return out
}

// ipMay is ip for what the kernel or the tool may not know.
func ipMay(ns *sys.NetNS, args string) (string, error) {
	var out []byte
	err := ns.Do(func() (err error) {
		out, err = exec.Command("ip", strings.Fields(args)...).CombinedOutput()
		return err
	})
	return string(out), err
}

// open makes a port of the board, PortF1 unless told, up and with carrier.
func open(t testing.TB, ns *sys.NetNS, names ...string) *Port {
	t.Helper()
	name := "oxp9"
	if len(names) > 0 {
		name = names[0]
	}
	bp, err := board.Parse(name)
	require.NoError(t, err)
	p, err := Open(Config{Port: bp, NetNS: ns.Path()})
	require.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	require.NoError(t, p.SetCarrier(true))
	require.NoError(t, p.SetUp(context.Background(), true))
	return p
}

// far is a packet socket on an interface: what Linux sees and sends there.
type far struct {
	t  testing.TB
	fd int
}

func listen(t testing.TB, ns *sys.NetNS, index int) *far {
	t.Helper()
	f := &far{t: t}
	const ethPAll = 0x0300 // ETH_P_ALL in network order
	require.NoError(t, ns.Do(func() (err error) {
		f.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		return err
	}))
	t.Cleanup(func() { unix.Close(f.fd) })
	const ignoreOutgoing = 23 // PACKET_IGNORE_OUTGOING
	require.NoError(t, unix.SetsockoptInt(f.fd, unix.SOL_PACKET, ignoreOutgoing, 1))
	require.NoError(t, unix.SetsockoptInt(f.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20))
	require.NoError(t, unix.SetsockoptTimeval(f.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: int64(hang / time.Second)}))
	require.NoError(t, unix.Bind(f.fd, &unix.SockaddrLinklayer{Protocol: ethPAll, Ifindex: index}))
	return f
}

func (f *far) send(b []byte) {
	f.t.Helper()
	_, err := unix.Write(f.fd, b)
	require.NoError(f.t, err)
}

func (f *far) next() []byte {
	f.t.Helper()
	b := make([]byte, 1<<16)
	n, err := unix.Read(f.fd, b)
	require.NoError(f.t, err)
	return b[:n]
}

// empty tells whether no frame is waiting.
func (f *far) empty() bool {
	_, _, err := unix.Recvfrom(f.fd, make([]byte, 1), unix.MSG_DONTWAIT|unix.MSG_PEEK)
	return err == unix.EAGAIN
}

// testType is an EtherType that no stack answers.
const testType = 0x88b5

// ether makes a frame of n bytes with VLAN tags, its payload numbered from seed.
func ether(n, vlans int, seed byte) []byte {
	b := make([]byte, max(n, frame.HeaderSize+vlans*frame.VLANSize))
	copy(b, []byte{0x02, 0, 0, 0, 0, 9, 0x02, 0, 0, 0, 0, 1})
	at := 12
	for range vlans {
		b[at], b[at+1] = frame.TypeVLAN>>8, frame.TypeVLAN&0xff
		b[at+3] = 7
		at += frame.VLANSize
	}
	b[at], b[at+1] = testType>>8, testType&0xff
	for i := at + 2; i < len(b); i++ {
		b[i] = seed + byte(i)
	}
	return b[:n]
}

// cut divides a frame at the given offsets.
func cut(b []byte, at ...int) [][]byte {
	var pieces [][]byte
	last := 0
	for _, a := range at {
		pieces = append(pieces, b[last:a])
		last = a
	}
	return append(pieces, b[last:])
}

func one(b []byte) [][]byte { return [][]byte{b} }

// fakeSlots is a transmit queue in memory. capacity is how many frames may be
// outstanding; auto takes them at once.
type fakeSlots struct {
	sync.Mutex
	size     int
	capacity int
	auto     bool
	keep     bool // keep the frames

	slot      []byte
	committed int // of which
	visible   int
	flushes   int
	reaps     int
	finished  int // by the card, to be found by Reap
	out       int // outstanding
	frames    []sent
	burst     int // largest
	sinceBell int
}

type sent struct {
	tag   uint16
	frame []byte
}

const slotSize = 9278 // datapath.md 2.4: frame area of a slot

func newSlots(capacity int) *fakeSlots {
	return &fakeSlots{size: slotSize, capacity: capacity, keep: true}
}

func (s *fakeSlots) Reserve() []byte {
	if s.out == s.capacity {
		return nil
	}
	if s.slot == nil {
		s.slot = make([]byte, s.size)
	}
	return s.slot
}

func (s *fakeSlots) Commit(tag uint16, n int) {
	s.committed++
	s.out++
	s.sinceBell++
	s.burst = max(s.burst, s.sinceBell)
	if s.keep {
		s.frames = append(s.frames, sent{tag, append([]byte(nil), s.slot[:n]...)})
	}
}

func (s *fakeSlots) Flush() {
	s.flushes++
	s.sinceBell = 0
	s.visible = s.committed
	if s.auto {
		s.finished = s.out
	}
}

func (s *fakeSlots) Reap() {
	s.reaps++
	s.out -= s.finished
	s.finished = 0
}

// take lets the card finish n frames, if it has so many.
func (s *fakeSlots) take(n int) {
	s.Lock()
	defer s.Unlock()
	s.finished = min(s.finished+n, s.out)
}

// rounds is how often the transmitter has looked for readable ports, with or
// without a frame.
func (s *fakeSlots) rounds() int {
	s.Lock()
	defer s.Unlock()
	return s.reaps
}

func (s *fakeSlots) count() int {
	s.Lock()
	defer s.Unlock()
	return s.visible
}

func (s *fakeSlots) all() []sent {
	s.Lock()
	defer s.Unlock()
	return append([]sent(nil), s.frames...)
}

// running is a transmitter at work.
type running struct {
	*Transmitter
	stop func()
}

// transmit starts a transmitter and stops it at the end of the test.
func transmit(t testing.TB, slots Slots, ports ...*Port) *running {
	t.Helper()
	tr, err := NewTransmitter(ports, slots, nil, clock.NewReal(), nil)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- tr.Run(ctx) }()
	var once sync.Once
	r := &running{Transmitter: tr, stop: func() {
		once.Do(func() {
			cancel()
			select {
			case err := <-done:
				require.ErrorIs(t, err, context.Canceled)
			case <-time.After(hang):
				t.Error("transmitter does not stop")
			}
		})
	}}
	t.Cleanup(func() {
		r.stop()
		tr.Close()
	})
	return r
}

func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	require.Eventually(t, cond, hang, time.Millisecond, what)
}

func interfaceExists(t testing.TB, ns *sys.NetNS, name string) bool {
	t.Helper()
	err := ns.Do(func() error { _, err := net.InterfaceByName(name); return err })
	return err == nil
}

// query asks the kernel about the namespace's interfaces.
func query(t testing.TB, ns *sys.NetNS) kernelLinks {
	t.Helper()
	var q kernelLinks
	require.NoError(t, ns.Do(func() (err error) { q.conn, err = dialRoute(0); return err }))
	t.Cleanup(func() { q.conn.Close() })
	return q
}
