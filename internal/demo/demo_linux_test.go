package demo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/replay"
)

// hang guards what a test waits for.
const hang = time.Minute

// TestMain builds the program once for all tests, where everybody can read it.
func TestMain(m *testing.M) {
	if os.Getenv(asNobody) != "" {
		fmt.Fprintln(os.Stderr, becomeNobody())
		os.Exit(1)
	}
	dir, err := os.MkdirTemp("", "oxpd-demo-test-")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	exe := filepath.Join(dir, "oxpd")
	if out, err := exec.Command("go", "build", "-o", exe, "oxpd/cmd/oxpd").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build oxpd: %v\n%s", err, out)
		os.Exit(1)
	}
	if err := os.Setenv(exeEnv, exe); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// exeEnv names the program that TestMain has built.
const exeEnv = "OXPD_DEMO_TEST_EXE"

func exe() string { return os.Getenv(exeEnv) }

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes network namespaces")
	}
}

// TestDemo is the whole of it, in JSON.
func TestDemo(t *testing.T) {
	t.Parallel()
	needRoot(t)
	var out, talk bytes.Buffer
	code := Run(context.Background(), Options{JSON: true, Out: &out, Err: &talk, Exe: exe()})
	var doc Report
	require.NoError(t, json.Unmarshal(out.Bytes(), &doc), out.String())
	for _, c := range doc.Checks {
		assert.True(t, c.OK, "%s: %s: got %s, want %s", c.Part, c.Name, c.Got, c.Want)
	}
	for _, p := range doc.Ports {
		assert.True(t, p.OK, "%+v", p)
	}
	assert.Empty(t, talk.String())
	assert.Equal(t, exitOK, code)
	assert.True(t, doc.OK)
	assert.Equal(t, Schema, doc.Schema)
	assert.Len(t, doc.Ports, 12)
	assert.Len(t, doc.Rates, 4)
	for _, r := range doc.Rates {
		assert.Positive(t, r.Mbps)
	}

	want, err := os.ReadFile("testdata/checks.golden")
	require.NoError(t, err)
	var names strings.Builder
	for _, c := range doc.Checks {
		fmt.Fprintf(&names, "%s: %s\n", c.Part, c.Name)
	}
	if _, err := exec.LookPath("busybox"); err != nil { // the part that raises the switch is left out
		want = regexp.MustCompile("(?m)^raised: .*\n").ReplaceAll(want, nil)
	}
	assert.Equal(t, string(want), names.String(), "the checks of schema %d", Schema)
}

// until calls reached once, when text has been written.
type until struct {
	text    string
	reached func()
	seen    bytes.Buffer
}

func (u *until) Write(p []byte) (int, error) {
	u.seen.Write(p)
	if u.reached != nil && strings.Contains(u.seen.String(), u.text) {
		u.reached()
		u.reached = nil
	}
	return len(p), nil
}

// TestInterrupted ends the demo in each of its parts.
func TestInterrupted(t *testing.T) {
	needRoot(t)
	for _, c := range []struct{ name, at string }{
		{"while the daemon comes up", "oxpd demo:"},
		{"among the pings", "ping with 3,000"},
		{"while TCP runs", "TCP on"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			before := children(t, os.Getpid())
			var talk bytes.Buffer
			start := time.Now()
			code := Run(ctx, Options{Out: &until{text: c.at, reached: cancel}, Err: &talk, Exe: exe()})
			assert.Equal(t, exitFailed, code)
			assert.Equal(t, "oxpd demo: interrupted; nothing is left behind\n", talk.String())
			assert.Less(t, time.Since(start), hang)
			assert.Equal(t, before, children(t, os.Getpid()))
		})
	}
}

// TestKilled is the end that no program can answer.
func TestKilled(t *testing.T) {
	needRoot(t)
	cmd := exec.Command(exe(), "demo")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(out)
	for lines.Scan() && !strings.HasPrefix(lines.Text(), "Jumbo") {
	}
	var daemons []string // and not the commands that ask it
	for _, pid := range children(t, cmd.Process.Pid) {
		if line, err := os.ReadFile("/proc/" + pid + "/cmdline"); err == nil && bytes.Contains(line, []byte("\x00run\x00")) {
			daemons = append(daemons, pid)
		}
	}
	require.Len(t, daemons, 1)
	spaces := namespaces(t, daemons[0])
	require.NoError(t, cmd.Process.Kill())
	_, _ = io.Copy(io.Discard, out)
	_ = cmd.Wait()
	assert.Eventually(t, func() bool {
		stat, err := os.ReadFile("/proc/" + daemons[0] + "/stat")
		return err != nil || strings.Contains(string(stat), ") Z ")
	}, hang, 10*time.Millisecond, "the daemon is still there")
	assert.Eventually(t, func() bool {
		for _, s := range namespaces(t, "[0-9]*") {
			if s == spaces[0] {
				return false
			}
		}
		return true
	}, hang, 10*time.Millisecond, "somebody is still in the host namespace")
}

func TestNoSuchProgram(t *testing.T) {
	needRoot(t)
	var out, talk bytes.Buffer
	code := Run(context.Background(), Options{JSON: true, Out: &out, Err: &talk, Exe: "/no/such/program"})
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, talk.String(), "/no/such/program")
	assert.Contains(t, out.String(), `"ok": false`)
}

func TestDaemonThatEnds(t *testing.T) {
	needRoot(t)
	script := filepath.Join(t.TempDir(), "oxpd")
	require.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\necho no card here >&2\nexit 3\n"), 0o700))
	var out, talk bytes.Buffer
	code := Run(context.Background(), Options{Out: &out, Err: &talk, Exe: script})
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, talk.String(), "exit status 3")
	assert.Contains(t, talk.String(), "no card here")
}

func TestReplayedLines(t *testing.T) {
	for _, c := range []struct {
		name string
		r    replay.Report
		want string
	}{
		{
			"all came as they were sent", replay.Report{File: "/x/a.pcap", Packets: 1200, Unaltered: 1200, Longest: 9014},
			"  ok    a.pcap: longest frame 9,014                   1,200 of 1,200 frames byte for byte\n",
		},
		{
			"one was filtered", replay.Report{File: "a.pcap", Packets: 2, Unaltered: 1, Longest: 60},
			"  FAIL  a.pcap: longest frame 60                      1 of 2 frames byte for byte, want 2 of 2 frames byte for byte\n",
		},
		{
			"all, and another one", replay.Report{File: "a.pcap", Packets: 2, Unaltered: 2, Altered: 1, Longest: 60},
			"  FAIL  a.pcap: longest frame 60                      2 of 2 frames byte for byte, 1 altered, 0 not seen, 0 in no counter, want 2 of 2 frames byte for byte\n",
		},
		{
			"a counter too many", replay.Report{File: "a.pcap", Packets: 2, Unaltered: 2, Difference: -1, Longest: 60},
			"  FAIL  a.pcap: longest frame 60                      2 of 2 frames byte for byte, 0 altered, 0 not seen, -1 in no counter, want 2 of 2 frames byte for byte\n",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			(&reporter{start: now(), out: &out}).replayed(&c.r)
			assert.Equal(t, c.want, out.String())
		})
	}
}

func TestTail(t *testing.T) {
	var log tail
	assert.Equal(t, "it said nothing", log.text())
	for i := range 2000 {
		fmt.Fprintf(&log, "line %d\n", i)
	}
	assert.LessOrEqual(t, len(log.b), logKept)
	assert.True(t, strings.HasSuffix(log.text(), "line 1999"))
}

// children lists the processes that a process has started.
func children(t *testing.T, pid int) []string {
	t.Helper()
	paths, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/[0-9]*/children", pid))
	require.NoError(t, err)
	var all []string
	for _, p := range paths {
		if b, err := os.ReadFile(p); err == nil {
			all = append(all, strings.Fields(string(b))...)
		}
	}
	return all
}

// namespaces are those of all threads of the processes that a pattern names.
func namespaces(t *testing.T, pid string) []string {
	t.Helper()
	paths, err := filepath.Glob("/proc/" + pid + "/task/[0-9]*/ns/net")
	require.NoError(t, err)
	var all []string
	for _, p := range paths {
		if s, err := os.Readlink(p); err == nil {
			all = append(all, s)
		}
	}
	return all
}
