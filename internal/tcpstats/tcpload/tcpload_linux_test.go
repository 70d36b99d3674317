package tcpload

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/netlab"
)

func TestMain(m *testing.M) {
	if Child() {
		return
	}
	os.Exit(m.Run())
}

// sockets counts a namespace's TCP sockets of a state, by the listening port at either end,
// as /proc/net/tcp has them: not by what tcpstats reads.
func sockets(t *testing.T, ns *netlab.NS, state string) (atListener, atOther map[int]int) {
	t.Helper()
	var text []byte
	require.NoError(t, ns.Do(func() (err error) { text, err = os.ReadFile("/proc/thread-self/net/tcp"); return err }))
	port := func(end string) int {
		_, hex, _ := strings.Cut(end, ":")
		n, err := strconv.ParseUint(hex, 16, 16)
		require.NoError(t, err)
		return int(n)
	}
	atListener, atOther = map[int]int{}, map[int]int{}
	for _, line := range bytes.Split(text, []byte("\n"))[1:] {
		words := strings.Fields(string(line))
		if len(words) < 4 || words[3] != state {
			continue
		}
		local, remote := port(words[1]), port(words[2])
		if local < firstEphemeral {
			atListener[local]++
		} else {
			atOther[remote]++
		}
	}
	return atListener, atOther
}

const (
	established = "01"
	listening   = "0A"
)

func namespace(t *testing.T) *netlab.NS {
	t.Helper()
	ns, err := netlab.New()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ns.Close()) })
	return ns
}

func TestConnections(t *testing.T) {
	ns := namespace(t)
	l, err := start(ns, 250, 100) // three processes
	require.NoError(t, err)
	want := map[int]int{firstPort: 100, firstPort + 1: 100, firstPort + 2: 50}
	near, far := sockets(t, ns, established)
	assert.Equal(t, want, near)
	assert.Equal(t, want, far)
	assert.Equal(t, []int{firstPort, firstPort + 1, firstPort + 2}, l.Ports())
	near, _ = sockets(t, ns, listening)
	assert.Len(t, near, 3)
	var processes []string
	for _, c := range l.children {
		processes = append(processes, filepath.Join("/proc", strconv.Itoa(c.cmd.Process.Pid)))
		assert.DirExists(t, processes[len(processes)-1])
	}

	require.NoError(t, l.Close())
	for _, p := range processes {
		assert.NoDirExists(t, p)
	}
	near, far = sockets(t, ns, established)
	assert.Empty(t, near)
	assert.Empty(t, far)
	near, _ = sockets(t, ns, listening)
	assert.Empty(t, near)
	assert.NoError(t, l.Close(), "again")
}

// TestRefused: the error of a process that cannot connect is told, and so is that one ended.
func TestRefused(t *testing.T) {
	ns := namespace(t)
	l := new(Load)
	require.NoError(t, l.child(ns, 0, 3)) // to a listener that is not there
	assert.ErrorContains(t, l.await(), "could not connect: connection refused")
	require.NoError(t, l.Close())

	require.NoError(t, ns.Do(func() error { return l.listen(firstPort) }))
	require.NoError(t, l.child(ns, 0, 1<<30)) // it is at it for long enough
	require.NoError(t, l.children[0].cmd.Process.Kill())
	assert.ErrorIs(t, l.await(), io.EOF)
	assert.ErrorContains(t, l.Close(), "killed")
}

// TestPartsFitTheLimit: a process is asked for no more connections than it may have
// descriptors, nor than its address has ports.
func TestPartsFitTheLimit(t *testing.T) {
	for limit, want := range map[uint64]int{1024: 1024 - spare, 20_000: 20_000 - spare, 1 << 20: maxPart, 1<<64 - 1: maxPart, spare: 0, 3: 0} {
		got, err := part(limit)
		assert.Equal(t, want, got, limit)
		assert.Equal(t, want == 0, err != nil, limit)
	}
	ephemeral := lastEphemeral - firstEphemeral + 1
	assert.LessOrEqual(t, maxPart, min(ephemeral, backlog))
}

// TestRateOfConnecting makes 100,000 connections. OXPD_BENCH=1, or make bench.
func TestRateOfConnecting(t *testing.T) {
	if os.Getenv("OXPD_BENCH") == "" {
		t.Skip("a measurement: OXPD_BENCH=1, or make bench")
	}
	const n = 100_000
	ns := namespace(t)
	began := time.Now()
	l, err := Start(ns, n)
	require.NoError(t, err)
	took := time.Since(began)
	near, far := sockets(t, ns, established)
	sum := func(m map[int]int) (all int) {
		for _, k := range m {
			all += k
		}
		return all
	}
	assert.Equal(t, n, sum(near))
	assert.Equal(t, n, sum(far))
	began = time.Now()
	require.NoError(t, l.Close())
	t.Logf("%d connections of %d processes in %v, ended in %v", n, len(near), took, time.Since(began))
	assert.Less(t, took, time.Minute)
}
