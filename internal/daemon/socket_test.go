package daemon

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/daemon/client"
)

func TestListen(t *testing.T) {
	t.Run("mode 0600", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "run", "oxpd.sock")
		s, err := listen(path)
		require.NoError(t, err)
		fi, err := os.Stat(path)
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(0o600), fi.Mode().Perm())
		require.NoError(t, s.release())
		assert.NoFileExists(t, path)
	})
	t.Run("second daemon is told socket and pid", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "oxpd.sock")
		s, err := listen(path)
		require.NoError(t, err)
		defer s.release()
		_, err = listen(path)
		var re *RunningError
		require.ErrorAs(t, err, &re)
		assert.Equal(t, RunningError{Socket: path, PID: os.Getpid()}, *re)
	})
	t.Run("lock alone is enough to be refused", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "oxpd.sock")
		s, err := listen(path)
		require.NoError(t, err)
		defer s.release()
		require.NoError(t, os.Remove(path)) // as between another daemon's lock and its socket
		_, err = listen(path)
		var re *RunningError
		require.ErrorAs(t, err, &re)
		assert.Equal(t, os.Getpid(), re.PID)
	})
	t.Run("listener without the lock is found by connecting", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "oxpd.sock")
		l, err := net.Listen("unix", path)
		require.NoError(t, err)
		defer l.Close()
		_, err = listen(path)
		var re *RunningError
		require.ErrorAs(t, err, &re)
		assert.Equal(t, os.Getpid(), re.PID)
	})
	t.Run("stale socket is replaced", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "oxpd.sock")
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		require.NoError(t, err)
		l.SetUnlinkOnClose(false)
		require.NoError(t, l.Close())
		require.FileExists(t, path)
		s, err := listen(path)
		require.NoError(t, err)
		require.NoError(t, s.release())
	})
	for _, n := range []int{client.MaxSocket - 5, client.MaxSocket} {
		t.Run(fmt.Sprintf("a path of %d bytes", n), func(t *testing.T) {
			dir, err := os.MkdirTemp("/tmp", "oxpd")
			require.NoError(t, err)
			defer os.RemoveAll(dir)
			path := dir + "/" + strings.Repeat("s", n-len(dir)-1)
			s, err := listen(path)
			require.NoError(t, err)
			c, err := net.Dial("unix", path)
			require.NoError(t, err)
			require.NoError(t, c.Close())
			require.NoError(t, s.release())
			assert.NoFileExists(t, path)
		})
	}
	t.Run("a path that is too long", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), strings.Repeat("s", client.MaxSocket))
		_, err := listen(path)
		require.ErrorContains(t, err, "listen on "+path+": ")
		require.ErrorContains(t, err, "at most 107")
		assert.NoFileExists(t, path+lockSuffix, "nothing is made on the way")
	})
	t.Run("behind a file", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "file")
		require.NoError(t, os.WriteFile(file, nil, 0o600))
		_, err := listen(file + "/oxpd.sock")
		var le *ListenError
		require.ErrorAs(t, err, &le)
		assert.EqualError(t, err, "listen on "+file+"/oxpd.sock: make its directory: mkdir "+file+": not a directory")
	})
	t.Run("a file in its place is kept", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "oxpd.sock")
		require.NoError(t, os.WriteFile(path, []byte("precious"), 0o600))
		_, err := listen(path)
		require.ErrorContains(t, err, "not a socket")
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		assert.Equal(t, "precious", string(b))
	})
	t.Run("a file of the lock's name is kept", func(t *testing.T) {
		for _, content := range []string{"[[package]]\n", "12 monkeys", strings.Repeat("1", maxPIDText), "-"} {
			path := filepath.Join(t.TempDir(), "Cargo")
			require.NoError(t, os.WriteFile(path+lockSuffix, []byte(content), 0o600))
			_, err := listen(path)
			require.EqualError(t, err, "listen on "+path+": its lock would be "+path+".lock, and that is no daemon's")
			b, err := os.ReadFile(path + lockSuffix)
			require.NoError(t, err)
			assert.Equal(t, content, string(b))
		}
	})
	t.Run("a lock that leads somewhere else is not followed", func(t *testing.T) {
		dir := t.TempDir()
		path, file := filepath.Join(dir, "s"), filepath.Join(dir, "file")
		require.NoError(t, os.Symlink(file, path+lockSuffix))
		_, err := listen(path)
		require.ErrorContains(t, err, "open its lock: ")
		assert.NoFileExists(t, file)
	})
	t.Run("a lock that is a pipe", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "s")
		require.NoError(t, unix.Mkfifo(path+lockSuffix, 0o600))
		_, err := listen(path)
		require.ErrorContains(t, err, "that is no daemon's")
	})
	t.Run("a client that looks at the lock is no daemon", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "s")
		f, err := os.Create(path + lockSuffix)
		require.NoError(t, err)
		require.NoError(t, unix.Flock(int(f.Fd()), unix.LOCK_SH))
		lock, err := os.OpenFile(f.Name(), os.O_RDWR, 0)
		require.NoError(t, err)
		defer lock.Close()
		time.AfterFunc(10*time.Millisecond, func() { f.Close() })
		require.NoError(t, lockFile(lock, hang))
	})
	t.Run("nobody else may connect at any moment", func(t *testing.T) {
		if runtime.GOOS != "linux" {
			t.Skip("the kernel gives a socket's mode to its file on Linux")
		}
		defer unix.Umask(unix.Umask(0))
		path := filepath.Join(t.TempDir(), "s")
		l, err := bind(path)
		require.NoError(t, err)
		defer l.Close()
		fi, err := os.Stat(path)
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(socketMode), fi.Mode().Perm())
	})
	t.Run("a file in the way of the new socket is kept", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "s")
		fresh := path + "." + strconv.Itoa(os.Getpid())
		require.NoError(t, os.WriteFile(fresh, []byte("precious"), 0o600))
		_, err := listen(path)
		require.Error(t, err)
		assert.FileExists(t, fresh)
	})
	t.Run("the lock is free after a refusal", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "oxpd.sock")
		require.NoError(t, os.WriteFile(path, nil, 0o600))
		_, err := listen(path)
		require.Error(t, err)
		require.NoError(t, os.Remove(path))
		s, err := listen(path)
		require.NoError(t, err)
		require.NoError(t, s.release())
	})
	t.Run("a successor's socket is not removed", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "oxpd.sock")
		s, err := listen(path)
		require.NoError(t, err)
		require.NoError(t, os.Remove(path))
		l, err := net.Listen("unix", path)
		require.NoError(t, err)
		defer l.Close()
		require.NoError(t, s.release())
		assert.FileExists(t, path)
	})
}
