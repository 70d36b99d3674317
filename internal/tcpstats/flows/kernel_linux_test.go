package flows

import (
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/frame"
	"oxpd/internal/netlab"
	"oxpd/internal/sys"
	"oxpd/internal/tcpstats"
)

// wire is two namespaces, a local and a remote one, with a TAP each, and what carries
// frames between them, loses some, and shows them to a table as a port would.
type wire struct {
	table *Table
	ns    [2]*netlab.NS
	addr  [2]netip.Addr
}

// lossy says which frames are lost: one of n each way, 0 none. What is lost on its way to
// the remote end has gone by the table; what comes from there has not.
type lossy [2]int

func newWire(t *testing.T, lost lossy) *wire {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes network namespaces")
	}
	w := &wire{table: New(Config{MaxFlows: LeastFlows})}
	var taps [2]*os.File
	var macs [2]net.HardwareAddr
	for i := range w.ns {
		w.addr[i] = netip.AddrFrom4([4]byte{10, 9, 0, byte(i + 1)})
		ns, err := netlab.New()
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, ns.Close()) })
		w.ns[i] = ns
		var tap *sys.TAP
		require.NoError(t, ns.Do(func() (err error) { tap, err = sys.OpenTAP("w0"); return err }))
		taps[i] = tap.File()
		require.NoError(t, ns.Sysctl("ipv6/conf/w0/disable_ipv6", "1"))
		require.NoError(t, ns.SetUp("w0", true))
		require.NoError(t, ns.AddAddr("w0", netip.PrefixFrom(w.addr[i], 24)))
		l, err := ns.Link("w0")
		require.NoError(t, err)
		macs[i] = l.MAC
	}
	for i := range w.ns {
		require.NoError(t, w.ns[i].AddNeighbour("w0", w.addr[1-i], macs[1-i]))
	}
	var carriers sync.WaitGroup
	for from := range taps {
		carriers.Add(1)
		go func() {
			defer carriers.Done()
			rng, b, segments := rand.New(rand.NewPCG(7, uint64(from))), make([]byte, 1<<16), 0
			for {
				n, err := taps[from].Read(b)
				if err != nil {
					return
				}
				var head frame.Packet
				head.Parse(b[:n], n)
				// The first ones are the handshake: they get through.
				loses := false
				if segments++; segments > 4 && lost[from] != 0 {
					loses = rng.IntN(lost[from]) == 0
				}
				if from == local || !loses {
					w.table.Observe(time.Now().UnixNano(), 5, from == local, &head, b[:n], n)
				}
				if !loses {
					_, _ = taps[1-from].Write(b[:n])
				}
			}
		}()
	}
	t.Cleanup(func() {
		for _, tap := range taps {
			assert.NoError(t, tap.Close())
		}
		carriers.Wait()
	})
	return w
}

// connect opens a connection to the local end, and returns both ends of it. Their buffers are
// small: no more is under way than the interfaces have room for.
func (w *wire) connect(t *testing.T) (c [2]*net.TCPConn) {
	t.Helper()
	var l *net.TCPListener
	require.NoError(t, w.ns[local].Do(func() (err error) {
		l, err = net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(netip.AddrPortFrom(w.addr[local], 0)))
		return err
	}))
	defer l.Close()
	require.NoError(t, w.ns[remote].Do(func() (err error) {
		c[remote], err = net.DialTCP("tcp4", nil, l.Addr().(*net.TCPAddr))
		return err
	}))
	var err error
	c[local], err = l.AcceptTCP()
	require.NoError(t, err)
	for _, c := range c {
		require.NoError(t, c.SetReadBuffer(64<<10))
		require.NoError(t, c.SetWriteBuffer(256<<10))
		require.NoError(t, c.SetDeadline(time.Now().Add(2*time.Minute))) // a guard against hanging
		t.Cleanup(func() { c.Close() })
	}
	return c
}

// info is what the kernel knows of a connection.
func info(t *testing.T, c *net.TCPConn) (i *unix.TCPInfo) {
	t.Helper()
	raw, err := c.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) { i, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }))
	require.NoError(t, err)
	return i
}

// TestAgainstTheKernel: what the frames show is what the ends count, with and without loss.
func TestAgainstTheKernel(t *testing.T) {
	for name, c := range map[string]struct {
		lost  lossy
		ecn   bool
		bytes [2]int // that each end sends
	}{
		"no loss":                     {lossy{}, false, [2]int{4 << 20, 3 << 20}},
		"loss towards the remote end": {lossy{local: 50}, true, [2]int{2 << 20, 1 << 20}},
		"loss of acknowledgements":    {lossy{remote: 4}, false, [2]int{1 << 20, 2 << 20}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWire(t, c.lost)
			if c.ecn {
				require.NoError(t, w.ns[remote].Sysctl("ipv4/tcp_ecn", "1"))
			}
			conn := w.connect(t)
			var got sync.WaitGroup
			for i := range conn {
				got.Add(1)
				go func() {
					defer got.Done()
					n, err := io.CopyN(io.Discard, conn[i], int64(c.bytes[1-i]))
					assert.NoError(t, err)
					assert.EqualValues(t, c.bytes[1-i], n)
				}()
			}
			for i := range conn {
				got.Add(1)
				go func() {
					defer got.Done()
					_, err := conn[i].Write(make([]byte, c.bytes[i]))
					assert.NoError(t, err)
				}()
			}
			got.Wait()
			// The last acknowledgements may still be on their way.
			var r tcpstats.Record
			var l, peer *unix.TCPInfo
			same := func() bool {
				l, peer = info(t, conn[local]), info(t, conn[remote])
				records, _ := all(t, w.table, "fields=all")
				if len(records) != 1 {
					return false
				}
				r = records[0]
				return l.Unacked == 0 && peer.Unacked == 0 && uint64(r.Get32(tcpstats.FieldRetrans)) == uint64(l.Total_retrans) &&
					r.Get64(tcpstats.FieldDataSegsOut) == uint64(l.Data_segs_out)
			}
			assert.Eventually(t, same, 20*time.Second, 10*time.Millisecond)
			v := func(f tcpstats.Field) uint64 { v, _ := r.Uint(f); return v }
			for f, want := range map[tcpstats.Field]uint64{
				tcpstats.FieldRetrans: uint64(l.Total_retrans), tcpstats.FieldDataSegsOut: uint64(l.Data_segs_out), tcpstats.FieldBytesSent: l.Bytes_sent,
				tcpstats.FieldBytesRetrans: l.Bytes_retrans, tcpstats.FieldBytesReceived: uint64(c.bytes[remote]), tcpstats.FieldSndWnd: uint64(l.Snd_wnd), tcpstats.FieldRcvWnd: uint64(peer.Snd_wnd),
				tcpstats.FieldPeerMSS: 1460, tcpstats.FieldAdvMSS: 1460, tcpstats.FieldState: uint64(tcpstats.Established), tcpstats.FieldPort: 5,
				tcpstats.FieldOptions: uint64(l.Options & 15), tcpstats.FieldDirection: tcpstats.DirectionIn,
				tcpstats.FieldLocalPort: uint64(conn[local].LocalAddr().(*net.TCPAddr).Port),
			} {
				assert.Equal(t, want, v(f), nameOf(f))
			}
			assert.NotZero(t, v(tcpstats.FieldOptions))
			ecn, there := r.Uint(tcpstats.FieldECN)
			assert.True(t, there)
			assert.Equal(t, c.ecn, ecn == 1)
			for f, mss := range map[tcpstats.Field]uint32{tcpstats.FieldMaxSegOut: l.Snd_mss, tcpstats.FieldMaxSegIn: peer.Snd_mss} {
				if c.lost == (lossy{}) {
					assert.Equal(t, uint64(mss), v(f), nameOf(f))
				} // else what reports gaps in its options has less room
				assert.LessOrEqual(t, v(f), uint64(1460-12), nameOf(f))
				assert.GreaterOrEqual(t, v(f), uint64(1460-40), nameOf(f))
			}
			assert.Equal(t, uint64(c.bytes[local]), v(tcpstats.FieldBytesAcked))
			if c.lost[remote] == 0 {
				assert.Equal(t, uint64(peer.Total_retrans), v(tcpstats.FieldRetransIn)+v(tcpstats.FieldOutOfOrder))
				assert.Equal(t, uint64(peer.Data_segs_out), v(tcpstats.FieldDataSegsIn))
			}
			if c.lost[local] != 0 {
				assert.NotZero(t, v(tcpstats.FieldRetrans))
				assert.NotZero(t, v(tcpstats.FieldDupAcks))
			}
			if c.lost[remote] != 0 {
				// What was lost before it came by, and was the last of its flight, comes by once.
				assert.NotZero(t, peer.Total_retrans)
				assert.LessOrEqual(t, v(tcpstats.FieldRetransIn)+v(tcpstats.FieldOutOfOrder), uint64(peer.Total_retrans))
				assert.Greater(t, 2*(v(tcpstats.FieldRetransIn)+v(tcpstats.FieldOutOfOrder)), uint64(peer.Total_retrans))
			}
			assert.Zero(t, w.table.Stats().Strays)

			// The end of it, as the kernel sees it.
			require.NoError(t, conn[remote].CloseWrite())
			assert.Eventually(t, func() bool {
				records, _ := all(t, w.table, "include_state=close_wait")
				return len(records) == 1 && info(t, conn[local]).State == unix.BPF_TCP_CLOSE_WAIT
			}, 20*time.Second, 10*time.Millisecond)
			require.NoError(t, conn[local].CloseWrite())
			assert.Eventually(t, func() bool {
				records, _ := all(t, w.table, "include_state=closed")
				return len(records) == 1
			}, 20*time.Second, 10*time.Millisecond)
		})
	}
}

// TestWindowAgainstTheKernel: an end that does not read closes its window, and opens it.
func TestWindowAgainstTheKernel(t *testing.T) {
	w := newWire(t, lossy{})
	conn := w.connect(t)
	sent := make(chan error, 1)
	const bytes = 4 << 20
	go func() {
		_, err := conn[local].Write(make([]byte, bytes))
		sent <- err
	}()
	field := func(f tcpstats.Field) (v uint64) {
		records, _ := all(t, w.table, "fields=all")
		if len(records) == 1 {
			v, _ = records[0].Uint(f)
		}
		return v
	}
	require.Eventually(t, func() bool { return field(tcpstats.FieldZeroWindows) == 1 }, 20*time.Second, 10*time.Millisecond)
	assert.Zero(t, field(tcpstats.FieldSndWnd))
	assert.Zero(t, info(t, conn[local]).Snd_wnd)
	before := field(tcpstats.FieldRetrans)
	require.Eventually(t, func() bool { return info(t, conn[local]).Probes > 0 }, 20*time.Second, time.Millisecond, "it asks")
	assert.Equal(t, before, field(tcpstats.FieldRetrans), "what asks for a window is not sent again")
	n, err := io.CopyN(io.Discard, conn[remote], bytes)
	require.NoError(t, err)
	assert.EqualValues(t, bytes, n)
	require.NoError(t, <-sent)
	require.Eventually(t, func() bool { return field(tcpstats.FieldBytesAcked) == bytes }, 20*time.Second, 10*time.Millisecond)
	assert.NotZero(t, field(tcpstats.FieldSndWnd))
	assert.EqualValues(t, info(t, conn[local]).Snd_wnd, field(tcpstats.FieldSndWnd))
	assert.NotZero(t, field(tcpstats.FieldZeroWindows))
}
