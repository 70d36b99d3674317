package sys

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const hang = time.Minute // guard only

func newNS(t testing.TB) *NetNS {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes network namespaces and TAP interfaces")
	}
	ns, err := NewNetNS()
	require.NoError(t, err)
	t.Cleanup(func() { ns.Close() })
	return ns
}

// inode names the network namespace of the calling thread.
func inode(t testing.TB) string {
	t.Helper()
	s, err := os.Readlink(threadNetNS)
	require.NoError(t, err)
	return s
}

func TestNetNS(t *testing.T) {
	home := inode(t)
	a, b := newNS(t), newNS(t)
	names := map[string]bool{home: true}
	for _, ns := range []*NetNS{a, b} {
		require.NoError(t, ns.Do(func() error { names[inode(t)] = true; return nil }))
	}
	assert.Len(t, names, 3, "three different namespaces")

	t.Run("the caller stays at home", func(t *testing.T) { assert.Equal(t, home, inode(t)) })
	t.Run("the function's error is returned", func(t *testing.T) {
		want := errors.New("no")
		assert.Equal(t, want, a.Do(func() error { return want }))
	})
	t.Run("by path", func(t *testing.T) {
		var inside, direct string
		require.NoError(t, a.Do(func() error { direct = inode(t); return nil }))
		require.NoError(t, InNetNS(a.Path(), func() error { inside = inode(t); return nil }))
		assert.Equal(t, direct, inside)
	})
	t.Run("an empty path is here", func(t *testing.T) {
		require.NoError(t, InNetNS("", func() error { assert.Equal(t, home, inode(t)); return nil }))
	})
	t.Run("a path that does not exist", func(t *testing.T) {
		assert.ErrorIs(t, InNetNS("/run/netns/oxpd-no-such", func() error { return nil }), os.ErrNotExist)
	})
	t.Run("a path that is no namespace", func(t *testing.T) {
		called := false
		err := InNetNS("/dev/null", func() error { called = true; return nil })
		assert.ErrorIs(t, err, unix.EINVAL)
		assert.False(t, called)
	})
	t.Run("nested", func(t *testing.T) {
		require.NoError(t, a.Do(func() error {
			before := inode(t)
			err := b.Do(func() error { assert.NotEqual(t, before, inode(t)); return nil })
			assert.Equal(t, before, inode(t))
			return err
		}))
	})
	t.Run("a child process is inside", func(t *testing.T) {
		require.NoError(t, a.Do(func() error {
			out, err := exec.Command("readlink", "/proc/self/ns/net").Output()
			assert.Equal(t, inode(t)+"\n", string(out))
			return err
		}))
	})
	t.Run("a function that ends its goroutine", func(t *testing.T) {
		assert.ErrorIs(t, a.Do(func() error { runtime.Goexit(); return nil }), errExited)
		assert.Equal(t, home, inode(t))
	})
}

// TestNetNSThreads: DM-6. However many functions run at once in however many
// namespaces, everybody else stays at home.
func TestNetNSThreads(t *testing.T) {
	home := inode(t)
	ns := newNS(t)
	var away string
	require.NoError(t, ns.Do(func() error { away = inode(t); return nil }))
	var wg sync.WaitGroup
	for i := range 10_000 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if i%50 == 0 {
				assert.NoError(t, ns.Do(func() error { runtime.Gosched(); assert.Equal(t, away, inode(t)); return nil }))
				return
			}
			if i%10 == 0 {
				assert.Equal(t, home, inode(t))
			}
			runtime.Gosched()
		}()
	}
	wg.Wait()
}

// TestNetNSLeave: a thread that cannot be brought home ends.
func TestNetNSLeave(t *testing.T) {
	home := inode(t)
	ns := newNS(t)
	for range 20 {
		var tid, calls int
		err := enter(int(ns.f.Fd()), func(fd int) error {
			if calls++; calls == 2 {
				return unix.EPERM
			}
			return setNetNS(fd)
		}, func() error { tid = unix.Gettid(); return unix.ENOENT })
		require.ErrorIs(t, err, unix.EPERM)
		require.ErrorIs(t, err, unix.ENOENT, "the function's error is not lost")
		if tid == os.Getpid() {
			continue // the first thread does not end; it is parked for good
		}
		require.Eventually(t, func() bool {
			_, err := os.Stat("/proc/self/task/" + strconv.Itoa(tid))
			return errors.Is(err, os.ErrNotExist)
		}, hang, time.Millisecond, "thread ends")
	}
	for range 100 {
		assert.Equal(t, home, inode(t))
		runtime.Gosched()
	}
}

func TestTAP(t *testing.T) {
	ns := newNS(t)
	require.NoError(t, ns.Do(func() error {
		tap, err := OpenTAP("oxpdtest0")
		require.NoError(t, err)
		assert.Equal(t, "oxpdtest0", tap.Name())

		name, flags, err := tap.Mode()
		require.NoError(t, err)
		assert.Equal(t, "oxpdtest0", name)
		assert.EqualValues(t, tapFlags, flags&tapModes)
		assert.Zero(t, flags&unix.IFF_PERSIST)
		on, size, err := tap.VNetHeader()
		require.NoError(t, err)
		assert.False(t, on)
		assert.Equal(t, 10, size, "what the kernel would use")

		_, err = OpenTAP("oxpdtest0")
		assert.ErrorIs(t, err, ErrExists)

		_, err = tap.Read(make([]byte, 100))
		assert.Equal(t, unix.EAGAIN, err, "does not wait")
		_, err = tap.Write(make([]byte, 60))
		assert.Equal(t, unix.EIO, err, "interface down")
		assert.NoError(t, tap.SetCarrier(false))

		out, err := exec.Command("ip", "link", "set", "oxpdtest0", "up").CombinedOutput()
		require.NoError(t, err, "%s", out)
		for n, want := range map[int]error{0: unix.EINVAL, 1: unix.EINVAL, 13: unix.EINVAL, 14: nil, 60: nil, 9018: nil} {
			got, err := tap.Write(make([]byte, n))
			assert.Equal(t, want, err, "TAP-3: write of %d", n)
			if want == nil {
				assert.Equal(t, n, got)
			}
		}
		n, err := tap.Writev([][]byte{make([]byte, 14), make([]byte, 50)})
		assert.NoError(t, err)
		assert.Equal(t, 64, n)

		out, err = exec.Command("ip", "link", "delete", "oxpdtest0").CombinedOutput()
		require.NoError(t, err, "%s", out)
		_, err = tap.Write(make([]byte, 60))
		assert.Equal(t, unix.EBADFD, err)
		assert.ErrorIs(t, tap.SetCarrier(true), unix.EBADFD)
		_, _, err = tap.Mode()
		assert.ErrorIs(t, err, unix.EBADFD)

		require.NoError(t, tap.Close())
		assert.ErrorIs(t, tap.Close(), unix.EBADF)

		again, err := OpenTAP("oxpdtest0")
		require.NoError(t, err)
		require.NoError(t, again.Close())
		_, err = net.InterfaceByName("oxpdtest0")
		assert.Error(t, err, "closing removes it")
		return nil
	}))
}

func TestTAPNames(t *testing.T) {
	ns := newNS(t)
	for name, bad := range map[string]string{"too long": "a23456789012345x", "slash": "a/b", "dot": "."} {
		t.Run(name, func(t *testing.T) {
			assert.ErrorIs(t, ns.Do(func() error { _, err := OpenTAP(bad); return err }), unix.EINVAL)
		})
	}
	t.Run("a pattern is a name that the kernel would change", func(t *testing.T) {
		assert.Error(t, ns.Do(func() error { _, err := OpenTAP("tap%d"); return err }))
		require.NoError(t, ns.Do(func() error {
			_, err := net.InterfaceByName("tap0")
			assert.Error(t, err, "nothing is left behind")
			return nil
		}))
	})
}

func TestAboveStdio(t *testing.T) {
	f, err := os.Open("/dev/null")
	require.NoError(t, err)
	defer f.Close()
	fd, err := AboveStdio(int(f.Fd()))
	require.NoError(t, err)
	assert.Equal(t, int(f.Fd()), fd, "stays")

	saved, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 100)
	require.NoError(t, err)
	defer unix.Close(saved)
	require.NoError(t, unix.Dup2(fd, 0))
	high, err := AboveStdio(0)
	require.NoError(t, err)
	assert.Greater(t, high, 2)
	_, err = unix.FcntlInt(0, unix.F_GETFD, 0)
	assert.ErrorIs(t, err, unix.EBADF, "and the low one is closed")
	flags, err := unix.FcntlInt(uintptr(high), unix.F_GETFD, 0)
	require.NoError(t, err)
	assert.NotZero(t, flags&unix.FD_CLOEXEC)
	unix.Close(high)
	require.NoError(t, unix.Dup2(saved, 0))
}
