package console_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/hwsim"
	"oxpd/hwsim/console"
	"oxpd/switchcfg/reg"
)

// alive counts the processes of this machine whose command line has a text.
func alive(t *testing.T, text string) int {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	n := 0
	for _, l := range lines {
		if b, err := os.ReadFile(l); err == nil && bytes.Contains(b, []byte(text)) {
			n++
		}
	}
	return n
}

// children counts the processes that this one has to wait for.
func children(t *testing.T) int {
	t.Helper()
	lists, err := filepath.Glob("/proc/self/task/*/children")
	require.NoError(t, err)
	n := 0
	for _, l := range lists {
		if b, err := os.ReadFile(l); err == nil {
			n += len(strings.Fields(string(b)))
		}
	}
	return n
}

func descriptors(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(fds)
}

// begin starts processes in a shell that would outlive one: in the background, in a
// session of their own, without a parent. All of them have the name in their command line.
func (h *host) begin(name string) {
	h.t.Helper()
	h.run(fmt.Sprintf(`work='sleep 1000001; : %s'; { sh -c "$work" & }; { setsid sh -c "(sh -c '$work' &); $work" & }`, name))
	wait(h.t, func() bool { return alive(h.t, name) >= 3 }, func() string { return "the processes never ran" })
}

// TestNothingIsLeft: processes, descriptors, files.
func TestNothingIsLeft(t *testing.T) {
	needBusybox(t)
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	link := filepath.Join(t.TempDir(), "console")
	name := fmt.Sprintf("console-test-%d", os.Getpid())
	before := descriptors(t)
	for range 3 {
		c := &card{up: true}
		con, err := console.New(c, console.Options{Link: link})
		require.NoError(t, err)
		h := open(t, link)
		h.login()
		h.begin(name)
		c.happen(hwsim.BootOff)
		wait(t, func() bool { return alive(t, name) == 0 }, func() string { return "a restart must end what was begun" })
		c.happen(hwsim.BootLoader)
		c.happen(hwsim.BootKernel)
		h.login()
		h.begin(name)
		require.NoError(t, con.Close())
		assert.Zero(t, alive(t, name))
		h.close()
	}
	assert.Zero(t, children(t))
	assert.LessOrEqual(t, descriptors(t), before+2, "the runtime's own") // its poller
	left, err := os.ReadDir(tmp)
	require.NoError(t, err)
	assert.Empty(t, left)
	assert.NoFileExists(t, link)
}

// holder is a process of its own that has a console until its input ends.
func holder() {
	con, err := console.New(&card{up: true, words: map[[3]int]uint16{{0, reg.Address, 1}: 0x1930}}, console.Options{})
	if err != nil {
		fmt.Println("error:", err)
		return
	}
	fmt.Println(con.Path())
	_, _ = io.Copy(io.Discard, os.Stdin)
	if err := con.Close(); err != nil {
		fmt.Println("error:", err)
	}
	fmt.Println("closed")
}

// holdEnv asks the test's program to be a holder.
const holdEnv = "OXPD_TEST_HOLD_CONSOLE"

// hold starts a holder and returns it and its terminal.
func hold(t *testing.T, tmp string, change func(cmd *exec.Cmd)) (cmd *exec.Cmd, in io.Closer, out *bufio.Reader, path string) {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd = exec.Command(exe)
	cmd.Env = append(os.Environ(), holdEnv+"=1", "TMPDIR="+tmp)
	cmd.Stderr = os.Stderr
	if change != nil {
		change(cmd)
	}
	w, err := cmd.StdinPipe()
	require.NoError(t, err)
	r, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	out = bufio.NewReader(r)
	path, err = out.ReadString('\n')
	require.NoError(t, err)
	return cmd, w, out, strings.TrimSpace(path)
}

// TestKilled: a console whose process is killed leaves no process, and its folder to the
// next one.
func TestKilled(t *testing.T) {
	needBusybox(t)
	tmp := t.TempDir()
	name := fmt.Sprintf("console-test-killed-%d", os.Getpid())
	cmd, _, _, path := hold(t, tmp, nil)
	h := open(t, path)
	h.login()
	h.begin(name)
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait()
	wait(t, func() bool { return alive(t, name) == 0 }, func() string { return "the shell outlives its tracer" })
	h.close()
	left, err := os.ReadDir(tmp)
	require.NoError(t, err)
	require.Len(t, left, 1)

	t.Setenv("TMPDIR", tmp)
	_, _, h = start(t, console.Options{})
	h.login()
	now, err := os.ReadDir(tmp)
	require.NoError(t, err)
	require.Len(t, now, 1)
	assert.NotEqual(t, left[0].Name(), now[0].Name())
}

// TestPlainUser: no rights are needed, neither as a user nor as root of a user namespace.
func TestPlainUser(t *testing.T) {
	needBusybox(t)
	if os.Geteuid() != 0 {
		t.Skip("is not root, and so every other test has shown it")
	}
	const nobody = 65534
	nested := &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: nobody, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: nobody, Size: 1}},
		Credential:  &syscall.Credential{NoSetGroups: true},
	}
	for _, x := range []struct {
		name string
		attr *syscall.SysProcAttr
	}{
		{"user", &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}},
		{"root of a user namespace", nested},
	} {
		t.Run(x.name, func(t *testing.T) {
			tmp, err := os.MkdirTemp("/tmp", "console-test-*")
			require.NoError(t, err)
			defer os.RemoveAll(tmp)
			require.NoError(t, os.Chown(tmp, nobody, nobody))
			exe, err := os.ReadFile("/proc/self/exe")
			require.NoError(t, err)
			mine := filepath.Join(tmp, "test")
			require.NoError(t, os.WriteFile(mine, exe, 0o755))
			_, in, out, path := hold(t, tmp, func(cmd *exec.Cmd) { cmd.Path, cmd.Dir, cmd.SysProcAttr = mine, tmp, x.attr })
			h := open(t, path)
			h.login()
			h.upload("say", sayArguments())
			said, status := h.run("chmod +x say; ./say as a user; id -u >/dev/null")
			assert.Contains(t, said, "\r\nas\r\na\r\nuser\r\n")
			assert.Equal(t, "0", status)
			require.NoError(t, in.Close())
			end, err := out.ReadString('\n')
			require.NoError(t, err)
			assert.Equal(t, "closed\n", end)
			left, err := filepath.Glob(filepath.Join(tmp, "oxpd-console-*"))
			require.NoError(t, err)
			assert.Empty(t, left)
		})
	}
}
