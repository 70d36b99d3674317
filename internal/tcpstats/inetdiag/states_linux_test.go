package inetdiag

import (
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/netlab"
	"oxpd/internal/tcpstats"
)

// everyState makes a socket, at least, of each state in a namespace, and of each kind:
// IPv4, IPv6 and IPv4 by an IPv6 socket.
func everyState(t *testing.T, ns *netlab.NS) {
	t.Helper()
	for _, addr := range []string{"127.0.0.1:1000", "[::1]:1001"} {
		l := listen(t, ns, "tcp", addr)
		dial(t, ns, l) // established, both ends

		out, in := dial(t, ns, l) // fin_wait_2 and close_wait
		require.NoError(t, out.(*net.TCPConn).CloseWrite())
		_ = in

		out, in = dial(t, ns, l) // time_wait
		require.NoError(t, out.Close())
		readEnd(t, in)
		require.NoError(t, in.Close())

		out, _ = dial(t, ns, l) // fin_wait_1: what is before its FIN does not get through
		fill(t, out)
		require.NoError(t, out.(*net.TCPConn).CloseWrite())

		// last_ack, where the other end has closed first, and what this one sent does not get
		// through.
		out, in = dial(t, ns, l)
		require.NoError(t, in.(*net.TCPConn).CloseWrite())
		readEnd(t, out)
		fill(t, out)
		require.NoError(t, out.(*net.TCPConn).CloseWrite())

		// closing: the other end's FIN comes, and this one's does not get through.
		out, in = dial(t, ns, l)
		fill(t, out)
		require.NoError(t, out.(*net.TCPConn).CloseWrite())
		require.NoError(t, in.(*net.TCPConn).CloseWrite())
	}
	l := listen(t, ns, "tcp", "[::]:1002")
	var mapped net.Conn
	require.NoError(t, ns.Do(func() (err error) { mapped, err = net.Dial("tcp", "127.0.0.1:1002"); return err }))
	in, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { mapped.Close(); in.Close() })
	run(t, ns, "tuntap add dev t0 mode tap")
	run(t, ns, "link set t0 up")
	run(t, ns, "addr add 10.9.0.1/24 dev t0")
	synSent(t, ns, "10.9.0.2:80")
	bind(t, ns)
	// syn_received: the listener waits for data before it takes the third segment.
	d := listen(t, ns, "tcp4", "127.0.0.1:1004")
	raw, err := d.(*net.TCPListener).SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		require.NoError(t, unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, 60))
	}))
	var quiet net.Conn
	require.NoError(t, ns.Do(func() (err error) { quiet, err = net.Dial("tcp", "127.0.0.1:1004"); return err }))
	t.Cleanup(func() { quiet.Close() })
}

// bind makes a socket that is bound and neither listens nor is connected.
func bind(t *testing.T, ns *netlab.NS) {
	t.Helper()
	require.NoError(t, ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		t.Cleanup(func() { unix.Close(fd) })
		return unix.Bind(fd, &unix.SockaddrInet4{Port: 1003, Addr: [4]byte{127, 0, 0, 1}})
	}))
}

// readEnd reads until the other end has closed.
func readEnd(t *testing.T, c net.Conn) {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
	n, err := c.Read(make([]byte, 1))
	assert.Zero(t, n)
	assert.Error(t, err)
}

// fill sends until nothing goes any more: nobody reads at the other end.
func fill(t *testing.T, c net.Conn) {
	t.Helper()
	require.NoError(t, c.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
	for {
		if _, err := c.Write(make([]byte, 1<<20)); err != nil {
			return
		}
	}
}

// ssStates are the words of ss.
var ssStates = map[string]tcpstats.State{
	"LISTEN": tcpstats.Listen, "SYN-SENT": tcpstats.SynSent, "SYN-RECV": tcpstats.SynReceived, "ESTAB": tcpstats.Established, "CLOSE-WAIT": tcpstats.CloseWait,
	"FIN-WAIT-1": tcpstats.FinWait1, "FIN-WAIT-2": tcpstats.FinWait2, "CLOSING": tcpstats.Closing, "LAST-ACK": tcpstats.LastAck, "TIME-WAIT": tcpstats.TimeWait,
	"UNCONN": tcpstats.Closed,
}

// ssFields are fields by the name that ss has for them.
var ssFields = map[string]tcpstats.Field{
	"ino": tcpstats.FieldInode, "mss": tcpstats.FieldSndMSS, "pmtu": tcpstats.FieldPMTU, "rcvmss": tcpstats.FieldRcvMSS, "advmss": tcpstats.FieldAdvMSS,
	"cwnd": tcpstats.FieldCWnd, "ssthresh": tcpstats.FieldSSThresh, "bytes_sent": tcpstats.FieldBytesSent, "bytes_acked": tcpstats.FieldBytesAcked,
	"bytes_received": tcpstats.FieldBytesReceived, "segs_out": tcpstats.FieldSegsOut, "segs_in": tcpstats.FieldSegsIn, "data_segs_out": tcpstats.FieldDataSegsOut,
	"data_segs_in": tcpstats.FieldDataSegsIn, "delivered": tcpstats.FieldDelivered, "rcv_space": tcpstats.FieldRcvSpace, "rcv_ssthresh": tcpstats.FieldRcvSSThresh,
	"unacked": tcpstats.FieldUnacked, "notsent": tcpstats.FieldNotSent, "snd_wnd": tcpstats.FieldSndWnd, "uid": tcpstats.FieldUID,
}

// listed is a socket as ss, or a record, has it.
type listed struct {
	state         tcpstats.State
	local, remote string // the ends, as ss writes them
	values        map[string]uint64
}

// ss lists a namespace's sockets, by cookie, or by both ends when they have none.
func ss(t *testing.T, ns *netlab.NS, words string) map[string]listed {
	t.Helper()
	var out []byte
	require.NoError(t, ns.Do(func() (err error) {
		out, err = exec.Command("ss", append([]string{"-tanHieO"}, strings.Fields(words)...)...).Output()
		return err
	}))
	all := map[string]listed{}
	for _, text := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		words := strings.Fields(text)
		if len(words) < 5 {
			continue
		}
		s, ok := ssStates[words[0]]
		require.True(t, ok, text)
		l := listed{state: s, local: words[3], remote: words[4], values: map[string]uint64{}}
		key := l.local + " " + l.remote
		for _, w := range words[5:] {
			k, v, _ := strings.Cut(w, ":")
			if k == "sk" {
				key = v
			}
			// Of a listener tcp_info means nothing, and records have none of it.
			if n, err := strconv.ParseUint(v, 10, 64); err == nil && ssFields[k] != 0 && (s != tcpstats.Listen || k == "ino") {
				l.values[k] = n
			}
		}
		all[key] = l
	}
	return all
}

// asSS is a record as ss has it, and its key.
func asSS(r *tcpstats.Record) (string, listed) {
	end := func(addr, port tcpstats.Field) string {
		a := r.Addr(addr)
		flags, _ := r.Uint(tcpstats.FieldFlags)
		n, ok := r.Uint(port)
		if !ok {
			a, _ = netip.AddrFromSlice(make([]byte, r.Addr(tcpstats.FieldLocalAddr).BitLen()/8))
		}
		word := strconv.FormatUint(n, 10)
		if n == 0 {
			word = "*"
		}
		switch {
		case flags&tcpstats.FlagMapped != 0:
			return fmt.Sprintf("[::ffff:%v]:%s", a, word)
		case a.Is6() && a.IsUnspecified() && a == r.Addr(tcpstats.FieldLocalAddr):
			return "*:" + word // it takes IPv4 too
		case a.Is6():
			return fmt.Sprintf("[%v]:%s", a, word)
		}
		return fmt.Sprintf("%v:%s", a, word)
	}
	state, _ := r.Uint(tcpstats.FieldState)
	l := listed{state: tcpstats.State(state), values: map[string]uint64{}}
	l.local, l.remote = end(tcpstats.FieldLocalAddr, tcpstats.FieldLocalPort), end(tcpstats.FieldRemoteAddr, tcpstats.FieldRemotePort)
	for name, f := range ssFields {
		if v, ok := r.Uint(f); ok {
			l.values[name] = v
		}
	}
	key := l.local + " " + l.remote
	if v, ok := r.Uint(tcpstats.FieldCookie); ok {
		key = strconv.FormatUint(v, 16)
	}
	return key, l
}

// same compares what ss gives with what was read before and after: what ss shows of a socket
// must be there, and its numbers between those.
func same(t *testing.T, ss map[string]listed, before, after []tcpstats.Record) {
	t.Helper()
	index := func(records []tcpstats.Record) map[string]listed {
		out := map[string]listed{}
		for i := range records {
			key, l := asSS(&records[i])
			_, twice := out[key]
			assert.False(t, twice, "%v is there twice", l)
			out[key] = l
		}
		return out
	}
	first, last := index(before), index(after)
	assert.Len(t, last, len(first))
	for key, want := range ss {
		l, ok := first[key]
		m, there := last[key]
		if !assert.True(t, ok && there, "%s %v is not there", key, want) {
			continue
		}
		assert.Equal(t, want.state, l.state, "%v", want)
		assert.Equal(t, want.local, l.local, "%v", want)
		assert.Equal(t, want.remote, l.remote, "%v", want)
		for name, v := range want.values {
			x, y := l.values[name], m.values[name]
			assert.True(t, min(x, y) <= v && v <= max(x, y), "%s is %d, before it was %d and then %d: %v", name, v, x, y, want)
		}
		delete(first, key)
	}
	for _, l := range first {
		assert.Fail(t, "ss does not have it", "%v", l)
	}
}

// TestStates compares with ss, which asks the same kernel and is written by others.
func TestStates(t *testing.T) {
	if _, err := exec.LookPath("ss"); err != nil {
		t.Skip("ss is not there: make test installs iproute2")
	}
	ns, p := namespace(t)
	everyState(t, ns)
	s := New(Config{NetNS: p})
	states := map[tcpstats.State]int{}
	records, w := read(t, s, "fields=all", false)
	for i := range records {
		v, _ := records[i].Uint(tcpstats.FieldState)
		states[tcpstats.State(v)]++
		other := tcpstats.State(v) != tcpstats.Listen && tcpstats.State(v) != tcpstats.Closed
		assert.Equal(t, other, records[i].Has(tcpstats.FieldRemoteAddr), "%v has another end", tcpstats.State(v))
		assert.Equal(t, other, records[i].Has(tcpstats.FieldRemotePort))
		assert.Equal(t, tcpstats.State(v) == tcpstats.Listen, records[i].Has(tcpstats.FieldAcceptQueue))
	}
	for v := tcpstats.Closed; v <= tcpstats.TimeWait; v++ {
		assert.NotZero(t, states[v], "no socket is %v", v)
	}
	assert.EqualValues(t, len(records), w.Visited)
	for text, words := range map[string]string{
		"fields=all exclude=closed":                         "",
		"fields=all exclude=closed ipv6_only":               "-6 not src ::ffff:0:0/96",
		"fields=all include_state=established,listen":       "state established state listening",
		"fields=all include_state=time_wait,listen":         "state time-wait state listening",
		"fields=all exclude=closed local_port=1000,1002":    "( sport = 1000 or sport = 1002 )",
		"fields=all exclude=closed remote_port=1001":        "( dport = 1001 )",
		"fields=all exclude=closed remote_addr=10.9.0.0/24": "dst 10.9.0.0/24",
		"fields=all exclude=closed local_addr=127.0.0.1":    "src 127.0.0.1",
		"fields=all exclude=closed local_addr=::1":          "src [::1]",
	} {
		t.Run(text, func(t *testing.T) {
			for _, plain := range []bool{false, true} {
				before, _ := read(t, s, text, plain)
				want := ss(t, ns, words)
				require.NotEmpty(t, want)
				after, w := read(t, s, text, plain)
				same(t, want, before, after)
				assert.Equal(t, w.Visited, w.Appended+w.SkippedAll())
				if plain {
					assert.EqualValues(t, len(records), w.Visited)
					assert.Zero(t, w.PushedDown)
				} else {
					assert.Zero(t, w.SkippedAll(), "the kernel leaves out what does not match")
				}
			}
		})
	}
}
