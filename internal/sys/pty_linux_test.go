package sys

import (
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The runtime interrupts threads by signals as it likes, and a poll that does not wait
// says so: that is no failure.
func TestListeningUnderSignals(t *testing.T) {
	p, err := OpenPty()
	require.NoError(t, err)
	defer p.Close()
	far, err := p.Open(false)
	require.NoError(t, err)
	defer far.Close()
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
		there, err := p.Listening()
		if !there || err != nil {
			require.NoError(t, err)
			require.True(t, there)
		}
	}
}
