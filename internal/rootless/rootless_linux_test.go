package rootless

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const (
	hang     = time.Minute
	asHelper = "OXPD_ROOTLESS_TEST" // what the test program is to be instead
)

func TestMain(m *testing.M) {
	switch os.Getenv(asHelper) {
	case "privileged":
		fmt.Print(Privileged())
		return
	case "outer":
		status, err := Run(context.Background(), Options{Exe: "/bin/sh", Args: []string{"-c", "echo $$; sleep 1000"}, Out: os.Stdout, Err: os.Stderr})
		fmt.Println(status, err)
		return
	}
	os.Exit(m.Run())
}

// needNamespaces skips where the kernel lets nobody make them.
func needNamespaces(t *testing.T) {
	t.Helper()
	_, err := Run(context.Background(), Options{Exe: "/bin/true"})
	var why *Error
	if errors.As(err, &why) {
		t.Skip("needs a user namespace: " + why.Missing)
	}
	require.NoError(t, err)
}

func TestStatusIsHandedThrough(t *testing.T) {
	needNamespaces(t)
	for _, want := range []int{0, 1, 2, 77} {
		t.Run(strconv.Itoa(want), func(t *testing.T) {
			var out, talk bytes.Buffer
			status, err := Run(context.Background(), Options{Exe: "/bin/sh", Args: []string{"-c", fmt.Sprintf("id -u; echo talk >&2; exit %d", want)}, Out: &out, Err: &talk})
			require.NoError(t, err)
			assert.Equal(t, want, status)
			assert.Equal(t, "0\n", out.String())
			assert.Equal(t, "talk\n", talk.String())
		})
	}
}

func TestPrivilegedInside(t *testing.T) {
	needNamespaces(t)
	self, err := os.Executable()
	require.NoError(t, err)
	t.Setenv(asHelper, "privileged")
	var out bytes.Buffer
	status, err := Run(context.Background(), Options{Exe: self, Out: &out, Err: &out})
	require.NoError(t, err)
	assert.Zero(t, status)
	assert.Equal(t, "true", out.String())
}

func TestNotPrivilegedWithoutCapabilities(t *testing.T) {
	if os.Geteuid() != 0 {
		assert.False(t, Privileged())
		return
	}
	self, err := os.Open("/proc/self/exe")
	require.NoError(t, err)
	defer self.Close()
	cmd := exec.Command("/proc/self/fd/3")
	cmd.ExtraFiles = []*os.File{self}
	cmd.Env = append(os.Environ(), asHelper+"=privileged")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.Output()
	require.NoError(t, err)
	assert.Equal(t, "false", string(out))
}

// lines hands each thing that is written on.
type lines chan string

func (l lines) Write(b []byte) (int, error) {
	l <- string(b)
	return len(b), nil
}

func TestContextEndsTheProgram(t *testing.T) {
	needNamespaces(t)
	ctx, cancel := context.WithCancel(context.Background())
	out := make(lines, 10)
	go func() {
		<-out
		cancel()
	}()
	start := time.Now()
	status, err := Run(ctx, Options{Exe: "/bin/sh", Args: []string{"-c", `trap "exit 3" TERM; echo ready; while :; do sleep 0.05; done`}, Out: out})
	require.NoError(t, err)
	assert.Equal(t, 3, status, "the program's own answer to SIGTERM")
	assert.Less(t, time.Since(start), hang)
}

func TestKilledProgramIsAnError(t *testing.T) {
	needNamespaces(t)
	_, err := Run(context.Background(), Options{Exe: "/bin/sh", Args: []string{"-c", "kill -9 $$"}})
	require.Error(t, err)
	assert.Contains(t, err.Error(), "/bin/sh")
	assert.Contains(t, err.Error(), "signal: killed")
}

// TestKilledCaller: the kernel ends the program with its caller.
func TestKilledCaller(t *testing.T) {
	needNamespaces(t)
	self, err := os.Executable()
	require.NoError(t, err)
	outer := exec.Command(self)
	outer.Env = append(os.Environ(), asHelper+"=outer")
	out, err := outer.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, outer.Start())
	buf := make([]byte, 64)
	n, err := out.Read(buf)
	require.NoError(t, err)
	inner := "/proc/" + strings.TrimSpace(string(buf[:n])) + "/stat"
	require.FileExists(t, inner)
	require.NoError(t, outer.Process.Kill())
	_ = outer.Wait()
	assert.Eventually(t, func() bool {
		stat, err := os.ReadFile(inner)
		return err != nil || bytes.Contains(stat, []byte(") Z "))
	}, hang, 10*time.Millisecond, "the program is still there")
}

func TestOnceIsEnough(t *testing.T) {
	needNamespaces(t)
	t.Setenv(marker, "1")
	_, err := Run(context.Background(), Options{Exe: "/bin/true"})
	var why *Error
	require.ErrorAs(t, err, &why)
}

func TestWhyNot(t *testing.T) {
	for _, c := range []struct {
		name        string
		err         error
		sysctl      map[string]string
		missing, do string
	}{
		{"Debian's switch", unix.EPERM, map[string]string{debian: "0"}, debian + "=0", "sudo sysctl -w " + debian + "=1"},
		{"AppArmor", unix.EACCES, map[string]string{debian: "1", appArmor: "1"}, appArmor + "=1", "sudo sysctl -w " + appArmor + "=0"},
		{"a sandbox", unix.EPERM, map[string]string{debian: "1", appArmor: "0"}, "refuses", "sudo"},
		{"none allowed", unix.ENOSPC, map[string]string{mostUsers: "0"}, mostUsers + "=0", "sudo sysctl -w " + mostUsers + "=1000"},
		{"no mounts allowed", unix.ENOSPC, map[string]string{mostUsers: "9", mostMounts: "0", mostNets: "9"}, mostMounts + "=0", "sudo sysctl -w " + mostMounts + "=1000"},
		{"no networks allowed", unix.ENOSPC, map[string]string{mostUsers: "9", mostMounts: "9", mostNets: "0"}, mostNets + "=0", "sudo sysctl -w " + mostNets + "=1000"},
		{"all taken", unix.EUSERS, map[string]string{mostUsers: "7"}, mostUsers + "=7", "raise"},
		{"not in this kernel", unix.EINVAL, nil, "built without", "sudo"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := whyNot(&os.PathError{Op: "fork/exec", Path: "x", Err: c.err}, func(name string) string { return c.sysctl[name] })
			var why *Error
			require.ErrorAs(t, err, &why)
			assert.Contains(t, why.Missing, c.missing)
			assert.Contains(t, why.Do, c.do)
			assert.NotContains(t, err.Error(), "\n")
			assert.Contains(t, err.Error(), "run it with sudo")
		})
	}
	t.Run("something else", func(t *testing.T) {
		assert.ErrorIs(t, whyNot(unix.ENOMEM, func(string) string { return "" }), unix.ENOMEM)
	})
}

func TestTUNDevice(t *testing.T) {
	dir := t.TempDir()
	present := filepath.Join(dir, "tun")
	require.NoError(t, os.WriteFile(present, nil, 0o600))
	assert.NoError(t, openTUN(present))

	var why *Error
	require.ErrorAs(t, openTUN(filepath.Join(dir, "none")), &why)
	assert.Contains(t, why.Missing, "there is no")
	assert.Contains(t, why.Do, "modprobe tun")
	assert.Error(t, openTUN(dir))
}

func TestSysctl(t *testing.T) {
	assert.NotEmpty(t, sysctl("kernel.ostype"))
	assert.Empty(t, sysctl("kernel.no_such_setting"))
}
