package vfiouser

import (
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A client that is there has not left because the runtime interrupts a poll by a signal.
func TestLeftUnderSignals(t *testing.T) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(ends[1])
	f := os.NewFile(uintptr(ends[0]), "")
	conn, err := net.FileConn(f)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	defer conn.Close()
	c := newSession(nil, conn.(*net.UnixConn))
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const signals = 20_000
	var sent atomic.Int64
	thread, stop, stopped := unix.Gettid(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Tgkill(unix.Getpid(), thread, unix.SIGURG) // the runtime's own
				sent.Add(1)
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	for sent.Load() < signals {
		if c.left() {
			require.Fail(t, "it is there")
		}
	}
}
