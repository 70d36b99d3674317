package daemon

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/hwsim/console"
	"oxpd/internal/daemon/config"
	"oxpd/internal/sys"
	"oxpd/octep"
)

func TestClaimPorts(t *testing.T) {
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	t.Run("two namespaces have two daemons", func(t *testing.T) {
		for range 2 {
			c, err := claimPorts(newNetNS(t).Path(), "/run/a", quiet)
			require.NoError(t, err)
			defer c.release()
		}
	})
	t.Run("the second one is told process and socket", func(t *testing.T) {
		ns := newNetNS(t)
		c, err := claimPorts(ns.Path(), "/run/a", quiet)
		require.NoError(t, err)
		for range 2 {
			_, err = claimPorts(ns.Path(), "/run/b", quiet)
			var taken *TakenError
			require.ErrorAs(t, err, &taken)
			assert.Equal(t, TakenError{PID: os.Getpid(), Socket: "/run/a"}, *taken)
		}
		require.NoError(t, c.release())
		c, err = claimPorts(ns.Path(), "/run/b", quiet)
		require.NoError(t, err, "the ports are free again")
		require.NoError(t, c.release())
	})
	t.Run("a socket without its directory is told with it", func(t *testing.T) {
		ns := newNetNS(t)
		c, err := claimPorts(ns.Path(), "s", quiet)
		require.NoError(t, err)
		defer c.release()
		_, err = claimPorts(ns.Path(), "/run/b", quiet)
		var taken *TakenError
		require.ErrorAs(t, err, &taken)
		dir, err := os.Getwd()
		require.NoError(t, err)
		assert.Equal(t, filepath.Join(dir, "s"), taken.Socket)
	})
	t.Run("one that hangs is named by its process", func(t *testing.T) {
		ns := newNetNS(t)
		squat(t, ns, unix.SOMAXCONN)
		_, err := claimPorts(ns.Path(), "/run/b", quiet)
		var taken *TakenError
		require.ErrorAs(t, err, &taken)
		assert.Equal(t, TakenError{PID: os.Getpid()}, *taken)
	})
	t.Run("a backlog that is full is no daemon's", func(t *testing.T) {
		ns := newNetNS(t)
		squat(t, ns, 0)
		require.NoError(t, ns.Do(func() error {
			c, err := net.Dial("unix", claimName)
			if err == nil {
				t.Cleanup(func() { c.Close() })
			}
			return err
		}))
		c, err := claimPorts(ns.Path(), "/run/b", quiet)
		require.NoError(t, err)
		require.NoError(t, c.release())
	})
	t.Run("somebody without privileges keeps nobody out", func(t *testing.T) {
		ns := newNetNS(t)
		exe, err := os.Executable()
		require.NoError(t, err)
		file, err := os.Open(exe) // its directory is root's
		require.NoError(t, err)
		defer file.Close()
		cmd := exec.Command("/proc/self/fd/3")
		cmd.ExtraFiles = []*os.File{file}
		cmd.Dir = "/"
		cmd.Env = append(os.Environ(), asSquatter+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, ns.Do(cmd.Start))
		defer func() { _ = in.Close(); _ = cmd.Wait() }()
		_, err = out.Read(make([]byte, 1))
		require.NoError(t, err, "it has the name")
		log := &syncBuffer{}
		c, err := claimPorts(ns.Path(), "/run/b", slog.New(slog.NewTextHandler(log, nil)))
		require.NoError(t, err)
		assert.Contains(t, log.String(), "uid=65534")
		require.NoError(t, c.release())
	})
}

// squat has the name and answers nobody.
func squat(t *testing.T, ns *sys.NetNS, backlog int) {
	t.Helper()
	require.NoError(t, ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		t.Cleanup(func() { unix.Close(fd) })
		if err := unix.Bind(fd, &unix.SockaddrUnix{Name: claimName}); err != nil {
			return err
		}
		return unix.Listen(fd, backlog)
	}))
}

// asSquatter makes this test binary the process of somebody without privileges.
const asSquatter = "OXPD_TEST_SQUATTER"

// sideBySide is how many tests run at a time where the command line does not say: they
// mostly wait, for the kernel and for the daemon's own pauses.
const sideBySide = "6"

// TestMain is also the interpreter of programs on the simulated coprocessor.
func TestMain(m *testing.M) {
	if status, called := console.Called(os.Args[1:]); called {
		os.Exit(status)
	}
	if os.Getenv(asSquatter) == "" {
		if err := flag.Set("test.parallel", sideBySide); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(m.Run())
	}
	if err := squatter(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// squatter has the name until its parent ends.
func squatter() error {
	l, err := net.Listen("unix", claimName)
	if err != nil {
		return err
	}
	defer l.Close()
	_, _ = os.Stdout.WriteString("!")
	_, _ = os.Stdin.Read(make([]byte, 1)) // until its parent ends
	return nil
}

// A second daemon with another socket in one namespace ends before it has opened
// the card, and leaves its own socket's place as it was.
func TestSecondDaemonInANamespace(t *testing.T) {
	t.Parallel()
	first := start(t, rigOptions{}).running()
	cfg := config.Default()
	cfg.Socket = filepath.Join(t.TempDir(), "other.sock")
	second := New(Options{Config: cfg, NetNS: first.ns.Path(), Open: func(context.Context) (octep.Device, error) {
		t.Error("the card is opened")
		return nil, context.Canceled
	}})
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	err := second.Run(ctx)
	var taken *TakenError
	require.ErrorAs(t, err, &taken)
	assert.Equal(t, TakenError{PID: os.Getpid(), Socket: first.d.cfg.Socket}, *taken)
	assert.NoFileExists(t, cfg.Socket)
	assert.Contains(t, taken.Hint(), "oxpd stop --socket "+first.d.cfg.Socket)
	first.running()
}
