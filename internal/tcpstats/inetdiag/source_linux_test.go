package inetdiag

import (
	"context"
	"io"
	"net"
	"net/netip"
	"os"
	"path"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/netlab"
	"oxpd/internal/tcpstats"
)

// namespace makes one and the path that names it.
func namespace(t *testing.T) (*netlab.NS, string) {
	t.Helper()
	ns, err := netlab.New()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ns.Close()) })
	return ns, path.Join("/proc", strconv.Itoa(os.Getpid()), "fd", strconv.Itoa(int(ns.File().Fd())))
}

// read reads everything that a filter matches.
func read(t *testing.T, s tcpstats.Source, text string, plain bool) ([]tcpstats.Record, tcpstats.Walked) {
	t.Helper()
	f, err := tcpstats.Parse(text)
	require.NoError(t, err)
	c, err := s.Open(context.Background(), &tcpstats.Query{Filter: f, NoPushDown: plain})
	require.NoError(t, err)
	var all []tcpstats.Record
	for {
		b, n, err := c.Next(context.Background(), make([]byte, 0, tcpstats.ChunkBytes))
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		for range n {
			var r tcpstats.Record
			size, err := r.Decode(b)
			require.NoError(t, err)
			b, all = b[size:], append(all, r)
		}
		require.Empty(t, b)
	}
	require.NoError(t, c.Close())
	return all, c.Walked()
}

func listen(t *testing.T, ns *netlab.NS, network, addr string) net.Listener {
	t.Helper()
	var l net.Listener
	require.NoError(t, ns.Do(func() (err error) { l, err = net.Listen(network, addr); return err }))
	t.Cleanup(func() { l.Close() })
	return l
}

func dial(t *testing.T, ns *netlab.NS, l net.Listener) (net.Conn, net.Conn) {
	t.Helper()
	var out net.Conn
	require.NoError(t, ns.Do(func() (err error) { out, err = net.Dial("tcp", l.Addr().String()); return err }))
	in, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { out.Close(); in.Close() })
	return out, in
}

func TestDump(t *testing.T) {
	ns, p := namespace(t)
	s := New(Config{NetNS: p})
	l := listen(t, ns, "tcp4", "127.0.0.1:8080")
	dial(t, ns, l)
	all, w := read(t, s, "fields=all", false)
	require.Len(t, all, 3)
	require.EqualValues(t, 3, w.Visited)
	all, w = read(t, s, "local_port=8080,1,2 include_state=established fields=all", false)
	require.Len(t, all, 1)
	require.EqualValues(t, 1, w.Visited)
	mss, ok := all[0].Uint(tcpstats.FieldSndMSS)
	require.True(t, ok)
	require.Greater(t, mss, uint64(1000))
	require.Equal(t, "127.0.0.1", all[0].Addr(tcpstats.FieldRemoteAddr).String())
	_, w = read(t, s, "local_port=8080,1,2 include_state=established fields=all", true)
	require.EqualValues(t, 3, w.Visited)
}

func netIndex(name string) (int, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return 0, err
	}
	return i.Index, nil
}

// synSent begins a connection that nobody answers, and that lasts: by default the kernel gives
// it up after the three seconds that it asks for a neighbour.
func synSent(t *testing.T, ns *netlab.NS, to string) {
	t.Helper()
	links, err := ns.Links()
	require.NoError(t, err)
	for _, l := range links {
		require.NoError(t, ns.Sysctl("ipv4/neigh/"+l.Name+"/mcast_solicit", "1000"))
		require.NoError(t, ns.Sysctl("ipv6/neigh/"+l.Name+"/mcast_solicit", "1000"))
	}
	addr := netip.MustParseAddrPort(to)
	require.NoError(t, ns.Do(func() error {
		var (
			sa     unix.Sockaddr = &unix.SockaddrInet4{Port: int(addr.Port()), Addr: v4(addr)}
			family               = unix.AF_INET
		)
		if addr.Addr().Is6() {
			sa, family = &unix.SockaddrInet6{Port: int(addr.Port()), Addr: addr.Addr().As16()}, unix.AF_INET6
		}
		fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		t.Cleanup(func() { unix.Close(fd) })
		if err := unix.Connect(fd, sa); err != unix.EINPROGRESS {
			return err
		}
		return nil
	}))
}

func v4(a netip.AddrPort) (b [4]byte) {
	if a.Addr().Is4() {
		b = a.Addr().As4()
	}
	return b
}
