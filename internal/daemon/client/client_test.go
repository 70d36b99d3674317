package client

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCheckSocket(t *testing.T) {
	for name, tc := range map[string]struct{ path, want string }{
		"the default":      {DefaultSocket, ""},
		"107 bytes":        {"/" + strings.Repeat("s", 106), ""},
		"108 bytes":        {"/" + strings.Repeat("s", 107), "108 bytes long: the path of a socket has at most 107"},
		"nothing":          {"", "empty: want a path"},
		"a directory":      {"/run/oxpd/", "ends in /"},
		"a zero in a path": {"/run/\x00/s", "zero byte"},
	} {
		t.Run(name, func(t *testing.T) {
			err := CheckSocket(tc.path)
			if tc.want == "" {
				require.NoError(t, err)
				return
			}
			assert.ErrorContains(t, err, tc.want)
		})
	}
}

// hang bounds a wait by the wall clock: a guard, not a measurement.
const hang = time.Minute

// holdLock is what a daemon does beside its socket.
func holdLock(t *testing.T, socket string, pid int) *os.File {
	t.Helper()
	f, err := os.Create(socket + LockSuffix)
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	_, err = f.WriteString(strconv.Itoa(pid) + "\n")
	require.NoError(t, err)
	require.NoError(t, syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB))
	return f
}

// TestNobody says of each path why no daemon answers there.
func TestNobody(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	held := filepath.Join(dir, "held")
	holdLock(t, held, 4711)
	free := filepath.Join(dir, "free")
	require.NoError(t, os.WriteFile(free+LockSuffix, []byte("4711\n"), 0o600))
	for _, tc := range []struct {
		name, path, err, hint string
		none                  bool // is ErrNoDaemon
	}{
		{"nothing there", filepath.Join(dir, "none"), "no daemon answers on " + filepath.Join(dir, "none") + ": connect: no such file or directory", "", true},
		{"a lock that nobody holds", free, "no daemon answers on " + free + ": ", "", true},
		{"a live daemon without its socket", held, "no daemon answers on " + held + ", but a daemon (pid 4711) holds " + held + ".lock", "kill 4711", true},
		{"a file", file, "open " + file + ": is a file and no socket", "--socket wants", false},
		{"a directory", dir, "open " + dir + ": is a directory and no socket", "--socket wants", false},
		{"behind a file", file + "/s", "open " + file + "/s: not a directory", "--socket wants", false},
		{"too long", "/" + strings.Repeat("s", 107), "at most 107", "--socket wants", false},
		{"a name too long", "/" + strings.Repeat("s", 300), "at most 107", "--socket wants", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := New(tc.path).Status(context.Background())
			require.ErrorContains(t, err, tc.err)
			assert.LessOrEqual(t, strings.Count(err.Error(), tc.path+": "), 1, "the path, once: %v", err)
			if tc.none {
				assert.ErrorIs(t, err, ErrNoDaemon)
			} else {
				assert.NotErrorIs(t, err, ErrNoDaemon)
			}
			if h, ok := err.(interface{ Hint() string }); ok || tc.hint != "" {
				require.True(t, ok, "%T", err)
				assert.Contains(t, h.Hint(), tc.hint)
			}
		})
	}
}

// TestDaemonThatHasItsLockFirst: a client that comes between lock and socket
// waits the moment that it takes.
func TestDaemonThatHasItsLockFirst(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	holdLock(t, path, os.Getpid())
	listening := make(chan net.Listener, 1)
	go func() {
		time.Sleep(2 * dialPoll) // nothing depends on how long
		l, err := net.Listen("unix", path)
		if err != nil {
			close(listening)
			return
		}
		listening <- l
	}()
	c := New(path)
	c.held = hang
	conn, err := c.dial(context.Background())
	if l := <-listening; l != nil {
		defer l.Close()
	}
	require.NoError(t, err)
	require.NoError(t, conn.Close())
}

// TestSilence: whoever has the socket and does not answer is named.
func TestSilence(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	defer l.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second) // for a connect, which takes no time, on a busy machine
	defer cancel()
	_, err = New(path).Status(ctx)
	var silent *SilentError
	require.ErrorAs(t, err, &silent)
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	assert.Equal(t, os.Getpid(), silent.PID)
	assert.ErrorContains(t, err, "(pid "+strconv.Itoa(os.Getpid())+") on "+path)
	assert.Contains(t, silent.Hint(), "kill -CONT "+strconv.Itoa(os.Getpid()))
}

// TestFullBacklog: the kernel refuses at once; a daemon that catches up is waited
// for.
func TestFullBacklog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	require.NoError(t, err)
	defer syscall.Close(fd)
	require.NoError(t, syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}))
	require.NoError(t, syscall.Listen(fd, 0))
	c := New(path)
	var open []net.Conn
	defer func() {
		for _, conn := range open {
			conn.Close()
		}
	}()
	for {
		conn, err := net.Dial("unix", path)
		if err != nil {
			require.ErrorIs(t, err, syscall.EAGAIN)
			break
		}
		open = append(open, conn)
	}
	t.Run("and stays full", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), 3*dialTimeout)
		defer cancel()
		_, err := c.Status(ctx)
		require.ErrorIs(t, err, syscall.EAGAIN)
		assert.ErrorContains(t, err, "more connections wait")
		assert.NotErrorIs(t, err, ErrNoDaemon)
	})
	t.Run("and is emptied", func(t *testing.T) {
		go func() {
			time.Sleep(3 * dialPoll) // nothing depends on how long
			if nfd, _, err := syscall.Accept(fd); err == nil {
				syscall.Close(nfd)
			}
		}()
		conn, err := c.dial(context.Background())
		require.NoError(t, err)
		open = append(open, conn)
	})
}

// A request that is answered with another place was not followed: by 301 a DELETE would
// become a GET, which does nothing and succeeds.
func TestRedirectIsNoAnswer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	mux := http.NewServeMux()
	mux.Handle("DELETE /", http.RedirectHandler("/v1/tcpstats", http.StatusMovedPermanently))
	mux.HandleFunc("GET /", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) })
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: hang}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close(); <-done })
	c := New(path)
	_, err = c.TCPStats(context.Background())
	require.NoError(t, err)
	_, err = c.RemoveTCPStatsProfile(context.Background(), "web")
	require.ErrorContains(t, err, "301 Moved Permanently")
}
