package sys

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestEvents(t *testing.T) {
	told := make(chan struct{})
	var after atomic.Bool
	e, err := NewEvents(func() {
		if after.Load() {
			t.Error("told after Close")
		}
		told <- struct{}{}
	})
	require.NoError(t, err)
	one := []byte{1, 0, 0, 0, 0, 0, 0, 0}
	for range 3 {
		_, err = unix.Write(e.FD(), one)
		require.NoError(t, err)
		select {
		case <-told:
		case <-time.After(hang):
			t.Fatal("nobody is told")
		}
	}
	e.Close()
	after.Store(true)
}

func TestIoctl(t *testing.T) {
	var p [2]int
	require.NoError(t, unix.Pipe2(p[:], unix.O_CLOEXEC))
	defer unix.Close(p[0])
	defer unix.Close(p[1])
	_, err := unix.Write(p[1], []byte("abc"))
	require.NoError(t, err)
	n := make([]byte, 4)
	_, err = Ioctl(p[0], unix.TIOCINQ, n)
	require.NoError(t, err)
	assert.Equal(t, []byte{3, 0, 0, 0}, n, "the kernel writes what is in the argument")
	_, err = Ioctl(p[0], 0x3b64, n)
	assert.ErrorIs(t, err, unix.ENOTTY)
	_, err = Ioctl(p[0], unix.TIOCINQ, nil)
	assert.ErrorIs(t, err, unix.EINVAL)
	_, err = IoctlValue(p[0], 0x3b64, 0)
	assert.ErrorIs(t, err, unix.ENOTTY)
	mem, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	defer unix.Munmap(mem)
	assert.NotZero(t, AddressOf(mem))
	assert.Zero(t, AddressOf(mem)%4096)
}
