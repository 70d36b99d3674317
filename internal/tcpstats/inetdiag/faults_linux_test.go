package inetdiag

import (
	"context"
	"encoding/binary"
	"io"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/tcpstats"
)

// kernel is what answers a cursor in the kernel's place.
type kernel struct {
	t  *testing.T
	fd int
}

// faulty makes a cursor that has asked, and whoever answers it.
func faulty(t *testing.T) (*cursor, kernel) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(pair[1]) })
	f := tcpstats.Default()
	f.Fields = tcpstats.AllGroups
	c := &cursor{fd: pair[0], matcher: f.Matcher(), fields: f.Fields, under: true, reply: reply{seq: 1}, room: new([datagramBytes]byte), rooms: new(sync.Pool)}
	c.record.Reset(tcpstats.Host)
	limit := unix.NsecToTimeval((100 * time.Millisecond).Nanoseconds())
	require.NoError(t, unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit))
	return c, kernel{t, pair[1]}
}

func (k kernel) says(datagrams ...[]byte) {
	k.t.Helper()
	for _, d := range datagrams {
		require.NoError(k.t, unix.Send(k.fd, d, 0))
	}
}

// sockets are messages of n sockets.
func sockets(n int) (b []byte) {
	for i := range n {
		b = append(b, message(tcpDiagGetSock, 0, 1, told(uint16(i), 80, info(280)))...)
	}
	return b
}

// end is the end of a dump, with an error number or 0.
func end(errno syscall.Errno) []byte {
	return message(msgDone, 0, 1, binary.NativeEndian.AppendUint32(nil, uint32(-int32(errno))))
}

// all calls Next until it has nothing more, or fails.
func all(c *cursor) (records int, err error) {
	buf := make([]byte, 0, tcpstats.ChunkBytes)
	for {
		b, n, err := c.Next(context.Background(), buf)
		records += n
		if err == io.EOF {
			return records, nil
		}
		if err != nil {
			return records, err
		}
		var r tcpstats.Record
		for range n {
			size, err := r.Decode(b)
			if err != nil {
				return records, err
			}
			b = b[size:]
		}
	}
}

// TestFaults: whatever comes in place of a dump, Next tells it, Close reads the rest of the
// dump and ends, and the books are right.
func TestFaults(t *testing.T) {
	short := binary.NativeEndian.AppendUint32(nil, 8)
	for _, c := range []struct {
		name         string
		datagrams    [][]byte
		records      int    // that are got before the fault
		visited      uint64 // in the end
		truncated    uint64
		inconsistent bool
		want         error
		says         string
	}{
		{name: "none", datagrams: [][]byte{sockets(50), sockets(3), end(0)}, records: 53, visited: 53},
		{name: "the end in the last datagram", datagrams: [][]byte{append(sockets(5), end(0)...)}, records: 5, visited: 5},
		{name: "what follows the end", datagrams: [][]byte{append(append(sockets(5), end(0)...), sockets(2)...), sockets(9)}, records: 5, visited: 5},
		{name: "no socket", datagrams: [][]byte{end(0)}},
		{name: "a datagram without a socket", datagrams: [][]byte{message(msgNoop, 0, 1, nil), sockets(2), end(0)}, records: 2, visited: 2},
		{name: "another's answer", datagrams: [][]byte{message(tcpDiagGetSock, 0, 2, told(1, 2)), message(msgDone, 0, 9, make([]byte, 4)), sockets(2), end(0)}, records: 2, visited: 2},
		{name: "a change meanwhile", datagrams: [][]byte{sockets(2), message(tcpDiagGetSock, flagDumpIntr, 1, told(1, 2)), end(0)}, records: 3, visited: 3, inconsistent: true},
		{name: "a change meanwhile, of which the end tells", datagrams: [][]byte{sockets(2), message(msgDone, flagDumpIntr, 1, make([]byte, 4))}, records: 2, visited: 2, inconsistent: true},
		{name: "truncated", datagrams: [][]byte{sockets(2), sockets(datagramBytes / 100), sockets(4), end(0)}, records: 2, visited: 6, truncated: 1, want: ErrTruncated},
		{name: "a message longer than its datagram", datagrams: [][]byte{sockets(2), sockets(1)[:100], sockets(4), end(0)}, records: 2, visited: 6, want: ErrReply, says: "where 100 are left"},
		{name: "a message shorter than its header", datagrams: [][]byte{sockets(2), append(short, make([]byte, 60)...), sockets(4), end(0)}, records: 2, visited: 6, want: ErrReply, says: "a message of 8 bytes"},
		{name: "half a header", datagrams: [][]byte{append(sockets(2), 1, 2, 3, 4), sockets(4), end(0)}, records: 2, visited: 6, want: ErrReply, says: "4 bytes behind"},
		{name: "half a socket", datagrams: [][]byte{message(tcpDiagGetSock, 0, 1, make([]byte, diagSize-4)), sockets(4), end(0)}, visited: 4, want: ErrReply, says: "want 72"},
		{name: "another message", datagrams: [][]byte{sockets(2), message(99, 0, 1, make([]byte, 80)), sockets(4), end(0)}, records: 2, visited: 6, want: ErrReply, says: "type 99"},
		{name: "data was lost", datagrams: [][]byte{sockets(2), message(msgOverrun, 0, 1, nil), sockets(4), end(0)}, records: 2, visited: 6, want: ErrReply, says: "lost"},
		{name: "an end without its number", datagrams: [][]byte{sockets(2), message(msgDone, 0, 1, nil)}, records: 2, visited: 2, want: ErrReply, says: "an end in 0 bytes"},
		{name: "an end that failed", datagrams: [][]byte{sockets(2), end(unix.ENOBUFS)}, records: 2, visited: 2, want: unix.ENOBUFS, says: "refuses"},
		{name: "a refusal", datagrams: [][]byte{message(msgError, 0, 1, binary.NativeEndian.AppendUint32(nil, ^uint32(unix.EINVAL)+1))}, want: unix.EINVAL, says: "refuses"},
		{name: "nothing at all", want: os.ErrDeadlineExceeded, says: "did not answer"},
		{name: "no end", datagrams: [][]byte{sockets(2)}, records: 2, visited: 2, want: os.ErrDeadlineExceeded},
		{name: "an empty datagram", datagrams: [][]byte{sockets(2), {}}, records: 2, visited: 2, want: io.ErrUnexpectedEOF},
	} {
		t.Run(c.name, func(t *testing.T) {
			cur, k := faulty(t)
			k.says(c.datagrams...)
			records, err := all(cur)
			assert.Equal(t, c.records, records)
			if c.want == nil {
				assert.NoError(t, err)
			} else {
				assert.ErrorIs(t, err, c.want)
				assert.ErrorContains(t, err, "inetdiag: ")
				assert.ErrorContains(t, err, c.says)
			}
			closed := make(chan error, 1)
			go func() { closed <- cur.Close() }()
			select {
			case err := <-closed:
				assert.NoError(t, err)
			case <-time.After(10 * time.Second):
				t.Fatal("Close does not end")
			}
			w := cur.Walked()
			assert.Equal(t, c.visited, w.Visited)
			assert.EqualValues(t, c.records, w.Appended)
			assert.Zero(t, w.SkippedAll())
			assert.Equal(t, c.truncated, w.Truncated)
			assert.Equal(t, c.inconsistent, w.Inconsistent)
		})
	}
}

// TestSignals: a wait for the kernel that a signal ends begins again. The runtime sends some
// of its own.
func TestSignals(t *testing.T) {
	c, k := faulty(t)
	limit := unix.NsecToTimeval((10 * time.Second).Nanoseconds())
	require.NoError(t, unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit))
	thread := make(chan int)
	type result struct {
		records int
		err     error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		thread <- unix.Gettid()
		n, err := all(c)
		done <- result{n, err}
	}()
	tid := <-thread
	for range 20 {
		require.NoError(t, unix.Tgkill(os.Getpid(), tid, unix.SIGURG))
		time.Sleep(time.Millisecond)
	}
	k.says(sockets(2), end(0))
	got := <-done
	assert.NoError(t, got.err)
	assert.Equal(t, 2, got.records)
	require.NoError(t, c.Close())
}

// TestNextAllocatesNothing: neither for a datagram nor for a record.
func TestNextAllocatesNothing(t *testing.T) {
	c, k := faulty(t)
	buf := make([]byte, 0, tcpstats.ChunkBytes)
	datagram := sockets(60)
	allocated := testing.AllocsPerRun(100, func() {
		k.says(datagram)
		_, n, err := c.Next(context.Background(), buf)
		if n != 60 || err != nil {
			t.Fatal(n, err)
		}
	})
	assert.LessOrEqual(t, allocated, 1.0, "that of the test's own list of datagrams")
	k.says(end(0))
	require.NoError(t, c.Close())
	assert.EqualValues(t, 101*60, c.walked.Visited)
}
