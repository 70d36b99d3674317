package inetdiag

import (
	"context"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
	"oxpd/internal/netlab"
	"oxpd/internal/tcpstats"
)

// TestNamespaces: each read sees the sockets, and asks the routes, of its source's namespace,
// whatever goroutine it comes from, after more than 10,000 switches of goroutines, and no
// other one's; that of this process among them (DM-6).
func TestNamespaces(t *testing.T) {
	here := listenHere(t)
	const readers, reads, switches = 8, 40, 40
	var sources [2]*Source
	for i := range sources {
		ns, p := namespace(t)
		run(t, ns, "tuntap add dev p0 mode tap")
		run(t, ns, "addr add 10.1.0.1/24 dev p0")
		run(t, ns, "link set p0 up")
		var ports [board.Ports]int
		ports[i] = indexOf(t, ns, "p0")
		sources[i] = New(Config{NetNS: p, Ports: func() [board.Ports]int { return ports }})
		synSent(t, ns, "10.1.0.2:80")
		for range i + 1 {
			addSocket(t, ns)
		}
	}
	var all sync.WaitGroup
	for r := range readers {
		all.Add(1)
		go func() {
			defer all.Done()
			buf := make([]byte, 0, tcpstats.ChunkBytes)
			for n := range reads {
				which := (r + n) % len(sources)
				listeners, via := 0, -1
				for _, rec := range readInto(t, sources[which], buf) {
					if port, ok := rec.Uint(tcpstats.FieldPort); ok {
						via = int(port)
					}
					if state, _ := rec.Uint(tcpstats.FieldState); tcpstats.State(state) == tcpstats.Listen {
						listeners++
						port, _ := rec.Uint(tcpstats.FieldLocalPort)
						assert.NotEqual(t, uint64(here), port, "a socket of this process's namespace")
					}
				}
				assert.Equal(t, which+1, listeners, "of namespace %d", which)
				assert.Equal(t, which, via, "the port of namespace %d", which)
				for range switches {
					runtime.Gosched()
				}
			}
		}()
	}
	all.Wait()
}

// listenHere makes a listener in the namespace of this process, and returns its port.
func listenHere(t *testing.T) int {
	t.Helper()
	return portOf(t, nil)
}

// addSocket makes a listener in a namespace.
func addSocket(t *testing.T, ns *netlab.NS) { portOf(t, ns) }

// readInto reads all, each with its port.
func readInto(t *testing.T, s *Source, buf []byte) (all []tcpstats.Record) {
	f, err := tcpstats.Parse("via=any")
	if !assert.NoError(t, err) {
		return nil
	}
	c, err := s.Open(context.Background(), &tcpstats.Query{Filter: f})
	if !assert.NoError(t, err) {
		return nil
	}
	defer c.Close()
	for {
		b, n, err := c.Next(context.Background(), buf)
		if err == io.EOF || !assert.NoError(t, err) {
			return all
		}
		for range n {
			var r tcpstats.Record
			size, err := r.Decode(b)
			if !assert.NoError(t, err) {
				return all
			}
			b, all = b[size:], append(all, r)
		}
	}
}

// portOf makes a listener, in this process's namespace when ns is nil.
func portOf(t *testing.T, ns *netlab.NS) int {
	t.Helper()
	if ns != nil {
		return listen(t, ns, "tcp4", "127.0.0.1:0").Addr().(*net.TCPAddr).Port
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l.Addr().(*net.TCPAddr).Port
}
