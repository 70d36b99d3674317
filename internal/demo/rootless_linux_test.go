package demo

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// asNobody makes the test program become nobody on a machine of the value's kind,
// and then what its arguments say.
const asNobody = "OXPD_DEMO_TEST_AS_NOBODY"

// Kinds of machines.
const (
	usual     = "usual"      // /dev/net/tun is everybody's
	tunOfRoot = "tun-root"   // it is root's alone
	noTUN     = "no-tun"     // there is none
	noUsers   = "no-users"   // no user namespace may be made
	switchOff = "switch-off" // the last step to it
)

const nobodyID = 65534

// machines are the modes of /dev/net/tun.
var machines = map[string]uint32{usual: 0o666, tunOfRoot: 0o600, noUsers: 0o666}

// becomeNobody runs as root with mounts of its own, which it changes. It returns
// why it could not.
func becomeNobody() error {
	kind := os.Getenv(asNobody)
	switch kind {
	case switchOff: // in a user namespace already, whose own limit this is
		if err := os.WriteFile("/proc/sys/user/max_user_namespaces", []byte("0"), 0); err != nil {
			return err
		}
	default:
		if err := devices(machines[kind]); err != nil {
			return err
		}
	}
	if kind == noUsers {
		return limited()
	}
	if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(nobodyID), syscall.Setuid(nobodyID)); err != nil {
		return err
	}
	if err := os.Unsetenv(asNobody); err != nil {
		return err
	}
	return syscall.Exec(os.Args[1], os.Args[1:], os.Environ())
}

// devices puts another directory over /dev/net, with a tun of a mode unless that is 0.
func devices(mode uint32) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("none", "/dev/net", "tmpfs", 0, "mode=0755"); err != nil {
		return fmt.Errorf("mount over /dev/net: %w", err)
	}
	if mode == 0 {
		return nil
	}
	if err := unix.Mknod("/dev/net/tun", unix.S_IFCHR, int(unix.Mkdev(10, 200))); err != nil {
		return fmt.Errorf("make the device: %w", err)
	}
	return os.Chmod("/dev/net/tun", os.FileMode(mode))
}

// limited goes on in a user namespace whose limits are its own. It returns only
// with an error.
func limited() error {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), asNobody+"="+switchOff)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	ids := []syscall.SysProcIDMap{{Size: 1}, {ContainerID: nobodyID, HostID: nobodyID, Size: 1}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true}
	err := cmd.Run()
	if cmd.ProcessState == nil {
		return err
	}
	os.Exit(cmd.ProcessState.ExitCode())
	return nil
}

// unprivileged is a command of the program that a user runs who is nobody, on a machine
// of a kind.
func unprivileged(t *testing.T, exe, kind string, args ...string) *exec.Cmd {
	t.Helper()
	needRoot(t) // to become somebody else
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self, append([]string{exe}, args...)...)
	cmd.Env = append(os.Environ(), asNobody+"="+kind)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	return cmd
}

// programs lists the processes that run a program.
func programs(t *testing.T, exe string) (pids []string) {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/exe")
	require.NoError(t, err)
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && to == exe {
			pids = append(pids, l)
		}
	}
	return pids
}

// TestNobody is the whole of it in a user namespace. Its program has a name of its own,
// which tells its processes from those of a test beside it.
func TestNobody(t *testing.T) {
	t.Parallel()
	exe := exe()
	own := filepath.Join(filepath.Dir(exe), "nobodys-oxpd")
	require.NoError(t, os.Link(exe, own))
	cmd := unprivileged(t, own, usual, "demo", "--json")
	var out, talk bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &talk
	assert.NoError(t, cmd.Run())
	assert.Empty(t, talk.String())
	var doc Report
	require.NoError(t, json.Unmarshal(out.Bytes(), &doc), out.String())
	assert.True(t, doc.OK)
	for _, c := range doc.Checks {
		assert.True(t, c.OK, "%s: %s: got %s, want %s", c.Part, c.Name, c.Got, c.Want)
	}
	assert.Eventually(t, func() bool { return len(programs(t, own)) == 0 }, hang, 10*time.Millisecond, "somebody is still there")
}

// TestNobodyWithout is a user where something is missing.
func TestNobodyWithout(t *testing.T) {
	for _, c := range []struct{ kind, missing, do string }{
		{tunOfRoot, "/dev/net/tun is for root alone", "sudo chmod 0666 /dev/net/tun"},
		{noTUN, "there is no /dev/net/tun", "sudo modprobe tun"},
		{noUsers, "user.max_user_namespaces=0", "sudo sysctl -w user.max_user_namespaces=1000"},
	} {
		t.Run(c.kind, func(t *testing.T) {
			for _, args := range [][]string{{"demo"}, {"sim", "replay", "/dev/null", "--port", "F1"}} {
				cmd := unprivileged(t, exe(), c.kind, args...)
				var out, talk bytes.Buffer
				cmd.Stdout, cmd.Stderr = &out, &talk
				err := cmd.Run()
				var exit *exec.ExitError
				require.ErrorAs(t, err, &exit)
				assert.Equal(t, exitFailed, exit.ExitCode())
				assert.Equal(t, 1, strings.Count(talk.String(), "\n"), talk.String())
				assert.Contains(t, talk.String(), c.missing)
				assert.Contains(t, talk.String(), c.do)
				assert.Empty(t, out.String())
			}
		})
	}
}

// TestNobodyInterrupted ends the demo of a user in each way that it can be ended.
func TestNobodyInterrupted(t *testing.T) {
	for _, c := range []struct {
		name   string
		signal unix.Signal
		group  bool // as a terminal does it
		talk   string
	}{
		{"SIGTERM", unix.SIGTERM, false, "oxpd demo: interrupted; nothing is left behind\n"},
		{"SIGINT from a terminal", unix.SIGINT, true, "oxpd demo: interrupted; nothing is left behind\n"},
		{"SIGKILL", unix.SIGKILL, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := unprivileged(t, exe(), usual, "demo")
			cmd.SysProcAttr.Setpgid = true
			var talk bytes.Buffer
			cmd.Stderr = &talk
			cmd.WaitDelay = hang
			out, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			pid := cmd.Process.Pid
			if c.group {
				pid = -pid
			}
			u := &until{text: "ping with 3,000", reached: func() { assert.NoError(t, unix.Kill(pid, c.signal)) }}
			_, _ = io.Copy(u, out)
			_ = cmd.Wait()
			assert.Nil(t, u.reached, "it never came so far: %s", u.seen.String())
			if c.signal != unix.SIGKILL {
				assert.Equal(t, exitFailed, cmd.ProcessState.ExitCode())
			}
			assert.Equal(t, c.talk, talk.String())
			assert.Eventually(t, func() bool { return len(programs(t, exe())) == 0 }, hang, 10*time.Millisecond, "somebody is still there")
		})
	}
}
