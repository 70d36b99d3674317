package loadtest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/internal/netlab"
	"oxpd/rpc/msg"
)

// soakEnv makes TestMTUChangesUnderLoad run for a duration such as 1m.
const soakEnv = "OXPD_SOAK"

const (
	loadTime  = 3 * time.Second
	tailTime  = 30 * time.Second // for what is under way at the end
	changeGap = 5 * time.Millisecond
	// Datagrams of each flow, one a gap: at an MTU of 72 the largest is 200 frames.
	datagramGap = 4 * time.Millisecond
	maxDatagram = board.MaxMTU - ipHeader - udpHeader
	minDatagram = 16

	ipHeader, udpHeader, tcpHeader, tcpTimestamps = 20, 8, 20, 12
)

// foreign are values that no port may have and that a kernel lets one set.
var foreign = []int{68, board.MinMTU - 1, board.MaxMTU + 1, 65521}

// TestMTUChangesUnderLoad changes the MTU of ports at random, by command and by
// netlink, to values that hold and to values that do not, while every port
// carries TCP and UDP both ways.
func TestMTUChangesUnderLoad(t *testing.T) {
	d, seed := loadTime, uint64(1)
	if s := os.Getenv(soakEnv); s != "" {
		var err error
		d, err = time.ParseDuration(s)
		require.NoError(t, err, soakEnv)
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("for %v, seed %d", d, seed)
	l := newLab(t)
	require.NoError(t, l.far.Sysctl("ipv4/tcp_mtu_probing", "1"))
	for _, ns := range []*netlab.NS{l.host, l.far} {
		// Little is under way when the time is over, it is not sent in pieces of 36
		// bytes, and no kernel remembers for ten minutes what did not fit for a moment.
		require.NoError(t, ns.Sysctl("ipv4/tcp_wmem", "4096 65536 262144"))
		require.NoError(t, ns.Sysctl("ipv4/tcp_mtu_probe_floor", "512"))
		require.NoError(t, ns.Sysctl("ipv4/route/mtu_expires", "1"))
		// A kernel counts its retries from the first segment sent again until nothing is
		// missing any more, which takes long here: it shall not give up meanwhile.
		require.NoError(t, ns.Sysctl("ipv4/tcp_retries2", "255"))
		if err := ns.Sysctl("ipv4/tcp_rto_max_ms", "1000"); !errors.Is(err, os.ErrNotExist) { // Linux 6.15
			require.NoError(t, err)
		}
	}

	var streams []*netlab.Stream
	for _, p := range board.All() {
		if p.Index%2 == 0 {
			l.setMTU(p, board.MaxMTU) // half of the connections are opened at 9,000
		}
		for _, reverse := range []bool{false, true} {
			s, err := netlab.Connect(l.ctx, l.host, l.far, farAddr(p), reverse)
			require.NoError(t, err)
			defer s.Close()
			streams = append(streams, s)
		}
	}
	var flows []*datagrams
	for _, p := range board.All() {
		flows = append(flows, newDatagrams(t, l.host, l.far, farAddr(p)), newDatagrams(t, l.far, l.host, hostAddr(p)))
	}
	run, stop := context.WithCancel(l.ctx)
	defer stop()
	var load sync.WaitGroup
	var carried, waiting atomic.Int64
	for i, f := range flows {
		load.Add(1)
		go func() {
			defer load.Done()
			f.send(run, rand.New(rand.NewPCG(seed, uint64(i))))
		}()
	}
	for _, s := range streams {
		load.Add(1)
		go func() {
			defer load.Done()
			// What is under way at the end is verified too. It may have to be sent again
			// first, after a pause that has grown: a sender that still waits then is not
			// wrong, bytes that differ end it at once.
			end, cancel := context.WithTimeout(l.ctx, d+tailTime)
			defer cancel()
			moved, err := s.SendFor(end, d)
			if errors.Is(err, context.DeadlineExceeded) {
				waiting.Add(1)
				return
			}
			assert.NoError(t, err)
			carried.Add(moved.Bytes)
		}()
	}
	changes, refused := l.change(d, rand.New(rand.NewPCG(seed, 1<<32)))
	stop()
	for _, p := range board.All() {
		l.wait(p.Name+": LIF and interface agree, on a value that may be", func() bool {
			m, err := l.client.MTU(l.ctx, p.Name)
			require.NoError(t, err)
			return m.LIF == m.Interface && board.CheckMTU(m.LIF) == nil
		})
	}
	for _, p := range board.All() {
		l.settle(p, board.MaxMTU)
	}
	load.Wait()
	var sent, received uint64
	for _, f := range flows {
		f.close()
		sent, received = sent+f.sent, received+f.received
		assert.Empty(t, f.bad)
	}
	r := l.books()
	for name, ns := range map[string]*netlab.NS{"host": l.host, "far": l.far} {
		// A byte that changes on the way reaches no socket: the kernel's checksums see it.
		assert.Zero(t, checksumErrors(t, ns), "checksum errors of the %s kernel", name)
	}
	assert.Positive(t, received)
	assert.Less(t, int(waiting.Load()), len(streams)/2)
	assert.Zero(t, r.stats.Device["rx_span_nobuf"])
	s, err := l.client.Status(l.ctx)
	require.NoError(t, err)
	assert.Equal(t, client.StateRunning, s.State)
	assert.NotContains(t, l.log.String(), "panic")
	t.Logf("%d changes and %d foreign values; %d MB of TCP, %d of %d connections in a long pause; %d of %d datagrams; frames to the host %d, refused by a LIF %d, from the host %d",
		changes, refused, carried.Load()>>20, waiting.Load(), len(streams), received, sent, r.stats.Device["rx_done"], r.card[msg.CntDropMTUExceeded], r.stats.Device["tx_posted"])
}

// checksumErrors is how many packets of IP, UDP and TCP the kernel of a namespace
// refused because their bytes were not those that were sent.
func checksumErrors(t *testing.T, ns *netlab.NS) (n uint64) {
	t.Helper()
	var text []byte
	require.NoError(t, ns.Do(func() (err error) {
		text, err = os.ReadFile("/proc/thread-self/net/snmp")
		return err
	}))
	lines := strings.Split(string(text), "\n")
	found := 0
	for i := 0; i+1 < len(lines); i += 2 { // names, then values
		names, values := strings.Fields(lines[i]), strings.Fields(lines[i+1])
		require.Len(t, values, len(names))
		for k, name := range names {
			proto := strings.TrimSuffix(names[0], ":")
			if name == "InCsumErrors" && (proto == "Tcp" || proto == "Udp") || name == "InHdrErrors" && proto == "Ip" {
				v, err := strconv.ParseUint(values[k], 10, 64)
				require.NoError(t, err)
				n += v
				found++
			}
		}
	}
	require.Equal(t, 3, found, "%s", text)
	return n
}

// change changes MTUs for a time, and until there was each kind, which may take longer
// on a busy machine. It returns how many it asked for, and how many of other values.
func (l *lab) change(d time.Duration, r *rand.Rand) (changes, refused int) {
	l.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end) || changes == 0 || refused == 0; {
		p, mtu := board.ByIndex(r.IntN(board.Ports)), board.MinMTU+r.IntN(board.MaxMTU-board.MinMTU+1)
		var err error
		switch way := r.IntN(8); {
		case way == 0:
			err = l.host.SetMTU(p.Name, foreign[r.IntN(len(foreign))])
			refused++
		case way < 4:
			err = l.host.SetMTU(p.Name, mtu)
			changes++
		default:
			// The owner may be busy putting another value back.
			if _, err = l.client.SetMTU(l.ctx, p.Name, mtu); strings.Contains(fmt.Sprint(err), "too many requests") {
				err = nil
			}
			changes++
		}
		require.NoError(l.t, err)
		time.Sleep(changeGap)
	}
	return changes, refused
}

// settle sets an MTU that stays, and waits until LIF and interface have it.
func (l *lab) settle(p board.Port, mtu int) {
	l.t.Helper()
	l.wait(fmt.Sprintf("%s at %d", p, mtu), func() bool {
		if _, err := l.client.SetMTU(l.ctx, p.Name, mtu); err != nil {
			return false
		}
		m, err := l.client.MTU(l.ctx, p.Name)
		require.NoError(l.t, err)
		lif, present := l.card.LIF(uint32(p.LIF()))
		return present && int(lif.MTU) == mtu && m.LIF == mtu && m.Interface == mtu
	})
}

// datagrams is a flow of UDP datagrams of random sizes. The sender's kernel cuts
// them as the MTU wants; what arrives is compared with what its number says.
type datagrams struct {
	out, in  net.Conn
	sent     uint64
	received uint64   // after close
	bad      []string // after close
	ended    chan struct{}
}

func newDatagrams(t *testing.T, from, to *netlab.NS, addr netip.Addr) *datagrams {
	t.Helper()
	d := &datagrams{ended: make(chan struct{})}
	var in *net.UDPConn
	require.NoError(t, to.Do(func() (err error) {
		in, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
		return err
	}))
	require.NoError(t, from.Do(func() (err error) {
		d.out, err = net.DialUDP("udp4", nil, in.LocalAddr().(*net.UDPAddr))
		return err
	}))
	raw, err := d.out.(*net.UDPConn).SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DONT)
	}))
	require.NoError(t, err)
	d.in = in
	go d.receive()
	return d
}

// fill makes datagram number n.
func fill(b []byte, n uint64) {
	binary.BigEndian.PutUint64(b, n)
	for i := range b[8:] {
		b[8+i] = byte(i*7) ^ byte(n) ^ byte(i>>8)
	}
}

func (d *datagrams) send(ctx context.Context, r *rand.Rand) {
	b := make([]byte, maxDatagram)
	for ; ctx.Err() == nil; time.Sleep(datagramGap) {
		b := b[:minDatagram+r.IntN(maxDatagram-minDatagram+1)]
		fill(b, d.sent)
		if _, err := d.out.Write(b); err == nil { // a full queue of the interface is an error too
			d.sent++
		}
	}
}

func (d *datagrams) receive() {
	defer close(d.ended)
	b, want := make([]byte, 1<<16), make([]byte, 1<<16)
	for {
		n, err := d.in.Read(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		d.received++
		if n < minDatagram {
			d.bad = append(d.bad, fmt.Sprintf("%d bytes", n))
			continue
		}
		number := binary.BigEndian.Uint64(b)
		fill(want[:n], number)
		if string(want[:n]) != string(b[:n]) {
			d.bad = append(d.bad, fmt.Sprintf("datagram %d of %d bytes", number, n))
		}
	}
}

func (d *datagrams) close() {
	_ = d.out.Close()
	_ = d.in.Close()
	<-d.ended
}

// TestConnectionOpenedAt9000LivesThroughALowerMTU: its peer goes on sending
// frames of 9,014 bytes, which the LIF refuses and counts, each of them, until
// the peer's own probing finds what passes.
func TestConnectionOpenedAt9000LivesThroughALowerMTU(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	p, err := board.Parse("F1")
	require.NoError(t, err)
	const amount = 4 << 20
	require.NoError(t, l.far.Sysctl("ipv4/tcp_mtu_probing", "1"))
	require.NoError(t, l.far.Sysctl("ipv4/tcp_retries1", "1")) // probing begins after so many timeouts
	l.settle(p, board.MaxMTU)
	s, err := netlab.Connect(l.ctx, l.host, l.far, farAddr(p), true)
	require.NoError(t, err)
	defer s.Close()
	const headers = ipHeader + tcpHeader + tcpTimestamps
	before, err := s.Send(l.ctx, amount)
	require.NoError(t, err)
	assert.Equal(t, board.MaxMTU-headers, before.MSS)
	start := l.books()
	assert.Zero(t, start.card[msg.CntDropMTUExceeded])

	raised, err := l.client.SetMTU(l.ctx, p.Name, board.MaxMTU)
	require.NoError(t, err)
	assert.Empty(t, raised.Warnings)
	lowered, err := l.client.SetMTU(l.ctx, p.Name, board.DefaultMTU)
	require.NoError(t, err)
	require.Len(t, lowered.Warnings, 1)
	assert.Contains(t, lowered.Warnings[0], "frames for an MTU of 9000")
	after, err := s.Send(l.ctx, amount)
	require.NoError(t, err)
	assert.LessOrEqual(t, after.MSS, board.DefaultMTU-headers)
	end := l.books()
	refused := end.card[msg.CntDropMTUExceeded]
	assert.Positive(t, refused)
	sent := end.far[p.Label].Stats.TXPackets - start.far[p.Label].Stats.TXPackets
	got := end.host[p.Name].Stats.RXPackets - start.host[p.Name].Stats.RXPackets
	assert.Equal(t, sent, got+refused, "what did not arrive was refused by the LIF and counted")
	t.Logf("MSS %d, then %d; %d frames refused; the second %d MB took %v", before.MSS, after.MSS, refused, amount>>20, after.Elapsed.Round(time.Millisecond))
}
