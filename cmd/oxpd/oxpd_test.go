package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/daemon/client"
	"oxpd/internal/sys"
)

// hang guards against hanging, by the wall clock.
const hang = 60 * time.Second

// build makes the program once for all tests and returns its path.
func build(t *testing.T) string {
	t.Helper()
	exe := filepath.Join(t.TempDir(), "oxpd")
	out, err := exec.Command("go", "build", "-o", exe, ".").CombinedOutput()
	require.NoError(t, err, string(out))
	return exe
}

// result is one finished invocation.
type result struct {
	code     int
	out, err string
}

// oxpd runs the program to its end.
func oxpd(t *testing.T, exe string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

func TestUsage(t *testing.T) {
	exe := build(t)
	dir := t.TempDir()
	none := filepath.Join(dir, "none.sock")
	bad := filepath.Join(dir, "bad.yaml")
	require.NoError(t, os.WriteFile(bad, []byte("workers: 1\nwatermrk: 16\n"), 0o600))
	good := filepath.Join(dir, "good.yaml")
	require.NoError(t, os.WriteFile(good, []byte("workers: 1\n"), 0o600))
	const mtuRange = "want 72 to 9000"
	for _, tc := range []struct {
		name string
		args []string
		code int
		err  string // on standard error
		out  string // on standard output
	}{
		{"no daemon names socket and command", []string{"status", "--socket", none}, 1, "hint: start it with: oxpd run --sim --socket " + none, ""},
		{"no daemon: ports", []string{"ports", "--socket", none}, 1, "no daemon answers on " + none, ""},
		{"no daemon: mtu", []string{"mtu", "oxp9", "--socket", none}, 1, none, ""},
		{"no daemon: set mtu", []string{"mtu", "oxp9", "9000", "--socket", none}, 1, none, ""},
		{"no daemon: stats", []string{"stats", "--json", "--socket", none}, 1, none, ""},
		{"no daemon: counters", []string{"counters", "--socket", none}, 1, none, ""},
		{"no daemon: stop", []string{"stop", "--socket", none}, 1, none, ""},
		{"mtu one below", []string{"mtu", "oxp9", "71", "--socket", none}, 2, "mtu 71 is out of range: " + mtuRange, ""},
		{"mtu one above", []string{"mtu", "oxp9", "9001", "--socket", none}, 2, "mtu 9001 is out of range: " + mtuRange, ""},
		{"mtu negative is a value", []string{"mtu", "oxp9", "-1", "--socket", none}, 2, "mtu -1 is out of range: " + mtuRange, ""},
		{"mtu negative before a flag", []string{"mtu", "oxp9", "-1", "--json"}, 2, "mtu -1 is out of range: " + mtuRange, ""},
		{"mtu no number", []string{"mtu", "oxp9", "abc", "--socket", none}, 2, `mtu "abc" is not a number: ` + mtuRange, ""},
		{"mtu beyond a word", []string{"mtu", "oxp9", "99999999999999999999"}, 2, "is not a number", ""},
		{"mtu of an unknown port", []string{"mtu", "oxp13"}, 2, `unknown port "oxp13"`, ""},
		{"mtu of an unknown port with a value", []string{"mtu", "eth0", "1500"}, 2, `unknown port "eth0"`, ""},
		{"stats of an unknown port", []string{"stats", "PortF5"}, 2, `unknown port "PortF5"`, ""},
		{"mtu without a port", []string{"mtu"}, 2, "hint: usage: oxpd mtu PORT [VALUE]", ""},
		{"mtu with too much", []string{"mtu", "oxp9", "1500", "1600"}, 2, "want at most 2", ""},
		{"unknown command", []string{"statsu"}, 2, `unknown command "statsu"`, ""},
		{"unknown flag", []string{"status", "--jsn"}, 2, "unknown flag: --jsn", ""},
		{"unknown command of config", []string{"config", "chck"}, 2, `unknown command "chck"`, ""},
		{"run without the simulated card", []string{"run"}, 1, "hint: oxpd run --sim", ""},
		{"probe without the simulated card", []string{"probe"}, 1, "this version opens no PCI device yet", ""},
		{"probe says what works", []string{"probe", "--json"}, 1, "hint: oxpd probe --sim looks at a simulated card", ""},
		{"probe of a moment without the simulated card", []string{"probe", "--after", "1s"}, 2, "--after says how a simulated card is: it needs --sim", ""},
		{"probe of an unknown host", []string{"probe", "--sim", "--host", "x"}, 2, `host "x": want absent, firmware, offer, rings, handshake`, ""},
		{"probe of an unknown timeline", []string{"probe", "--sim", "--timeline", "x"}, 2, `timeline "x": want real or compressed`, ""},
		{"probe before the reset", []string{"probe", "--sim", "--after", "-1s"}, 2, "after -1s: want 0 to 1h0m0s", ""},
		{"probe of a device", []string{"probe", "0000:01:00.0"}, 2, "oxpd: oxpd probe", ""},
		{"run with a bad file", []string{"run", "--sim", "--config", bad}, 2, bad + `:2: unknown key "watermrk"`, ""},
		{"run with no file", []string{"run", "--sim", "--config", filepath.Join(dir, "x.yaml")}, 1, "no such file", ""},
		{"config check refuses", []string{"config", "check", bad}, 2, bad + `:2: unknown key "watermrk"`, ""},
		{"config check accepts", []string{"config", "check", good}, 0, "accepted", ""},
		{"config show has every default", []string{"config", "show", good}, 0, "", "socket: /run/oxpd/oxpd.sock\nworkers: 1\nwatermark: 1024\ndma-bits: 36\nlink-poll: 1s\nreconcile: 1s\nsim:\n  timeline: compressed\n  seed: 1\n"},
		{"no command prints help", nil, 0, "", "Available Commands:"},
		{"version", []string{"version"}, 0, "", "oxpd " + version},
		{"version as JSON", []string{"version", "--json"}, 0, "", `"schema": 1`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := oxpd(t, exe, tc.args...)
			assert.Equal(t, tc.code, r.code, "exit status; %+v", r)
			assert.Contains(t, r.err, tc.err)
			assert.Contains(t, r.out, tc.out)
			if tc.code != 0 {
				assert.Empty(t, r.out, "talk goes to standard error")
				assert.True(t, strings.HasPrefix(r.err, "oxpd: "), r.err)
			}
		})
	}
}

func TestNotRoot(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: becomes somebody else")
	}
	exe := build(t)
	dir, err := os.MkdirTemp("/tmp", "oxpd-test")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	require.NoError(t, os.Chmod(dir, 0o755))
	public := filepath.Join(dir, "oxpd")
	b, err := os.ReadFile(exe)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(public, b, 0o755))
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	require.NoError(t, err)
	defer l.Close()
	require.NoError(t, os.Chmod(filepath.Join(dir, "s"), 0o600))
	for _, args := range [][]string{{"status"}, {"run", "--sim"}} {
		cmd := exec.Command(public, append(args, "--socket", filepath.Join(dir, "s"))...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, _ := cmd.CombinedOutput()
		assert.Equal(t, 1, cmd.ProcessState.ExitCode())
		assert.Contains(t, string(out), "permission denied")
		assert.Contains(t, string(out), "hint: run it as root", "%v", args)
	}
}

// daemonProcess is `oxpd run` in a namespace of its own.
type daemonProcess struct {
	cmd  *exec.Cmd
	ns   *sys.NetNS
	log  *lockedBuffer
	done chan struct{}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func runDaemon(t *testing.T, exe string, args ...string) *daemonProcess {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: makes a network namespace and TAP interfaces")
	}
	ns, err := sys.NewNetNS()
	require.NoError(t, err)
	p := &daemonProcess{cmd: exec.Command(exe, append([]string{"run", "--sim"}, args...)...), ns: ns, log: &lockedBuffer{}, done: make(chan struct{})}
	p.cmd.Stderr = p.log
	require.NoError(t, ns.Do(p.cmd.Start))
	go func() { defer close(p.done); _ = p.cmd.Wait() }()
	t.Cleanup(func() {
		_ = p.cmd.Process.Signal(unix.SIGTERM)
		p.wait(t)
		assert.NoError(t, ns.Close())
		if t.Failed() {
			t.Logf("daemon's log:\n%s", p.log)
		}
	})
	return p
}

func (p *daemonProcess) wait(t *testing.T) int {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(hang):
		_ = p.cmd.Process.Kill()
		t.Fatal("the daemon does not end")
	}
	return p.cmd.ProcessState.ExitCode()
}

func TestDaemon(t *testing.T) {
	exe := build(t)
	socket := filepath.Join(t.TempDir(), "oxpd.sock")
	p := runDaemon(t, exe, "--socket", socket)
	c := client.New(socket)
	ask := func(args ...string) result { return oxpd(t, exe, append(args, "--socket", socket)...) }
	require.Eventually(t, func() bool {
		s, err := c.Status(context.Background())
		return err == nil && s.State == client.StateRunning
	}, hang, 20*time.Millisecond)

	t.Run("reading commands print a document", func(t *testing.T) {
		for _, args := range [][]string{{"status"}, {"ports"}, {"mtu", "F1"}, {"stats"}, {"stats", "Port3"}, {"counters"}} {
			r := ask(args...)
			assert.Equal(t, 0, r.code, "%v: %+v", args, r)
			assert.NotEmpty(t, r.out)
			assert.Empty(t, r.err)
			r = ask(append(args, "--json")...)
			assert.Equal(t, 0, r.code, "%v", args)
			var doc struct{ Schema int }
			require.NoError(t, json.Unmarshal([]byte(r.out), &doc), "%v", args)
			assert.Equal(t, client.Schema, doc.Schema, "%v", args)
		}
	})
	t.Run("counters has 182 names", func(t *testing.T) {
		r := ask("counters", "--all")
		assert.Len(t, regexp.MustCompile(`(?m)^\d+ +[A-Z0-9_]+ +\d+$`).FindAllString(r.out, -1), 182)
	})
	t.Run("mtu changes", func(t *testing.T) {
		r := ask("mtu", "PortF1", "9000")
		assert.Equal(t, result{out: "oxp9 (PortF1)\nlif        9000\ninterface  9000\nswitch     none\neffective  9000\n"}, r)
	})
	t.Run("second daemon is told socket and pid", func(t *testing.T) {
		r := oxpd(t, exe, "run", "--sim", "--socket", socket)
		assert.Equal(t, 1, r.code)
		assert.Contains(t, r.err, fmt.Sprintf("another daemon (pid %d) listens on %s", p.cmd.Process.Pid, socket))
		assert.Contains(t, r.err, "hint: ")
	})
	t.Run("stop", func(t *testing.T) {
		r := ask("stop")
		assert.Equal(t, 0, r.code, "%+v", r)
		assert.Contains(t, r.err, "reboot the coprocessor")
		assert.Equal(t, 0, p.wait(t))
	})
	t.Run("the socket is gone", func(t *testing.T) {
		assert.NoFileExists(t, socket)
		assert.Equal(t, 1, ask("status").code)
	})
}

func TestDaemonAfterKill(t *testing.T) {
	exe := build(t)
	socket := filepath.Join(t.TempDir(), "oxpd.sock")
	p := runDaemon(t, exe, "--socket", socket)
	up := func() bool { return oxpd(t, exe, "status", "--socket", socket).code == 0 }
	require.Eventually(t, up, hang, 20*time.Millisecond)
	require.NoError(t, p.cmd.Process.Kill())
	p.wait(t)
	require.FileExists(t, socket)
	assert.Equal(t, 1, oxpd(t, exe, "status", "--socket", socket).code)
	q := runDaemon(t, exe, "--socket", socket)
	require.Eventually(t, up, hang, 20*time.Millisecond, "a stale socket is replaced")
	for range 2 {
		require.NoError(t, q.cmd.Process.Signal(unix.SIGTERM))
	}
	assert.Equal(t, 0, q.wait(t), "SIGTERM twice is one stop sequence")
	assert.Equal(t, 1, strings.Count(q.log.String(), "msg=stopping"))
}
