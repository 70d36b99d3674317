package main

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/daemon/client"
)

// engineProgram is a running `oxpd inspect`.
type engineProgram struct {
	t         *testing.T
	cmd       *exec.Cmd
	out, errs bytes.Buffer
}

func startEngine(t *testing.T, exe string, args ...string) *engineProgram {
	t.Helper()
	e := &engineProgram{t: t, cmd: exec.Command(exe, append([]string{"inspect"}, args...)...)}
	e.cmd.Stdout, e.cmd.Stderr = &e.out, &e.errs
	require.NoError(t, e.cmd.Start())
	t.Cleanup(func() { _ = e.cmd.Process.Kill() })
	return e
}

// interrupt ends it as its user would, and returns what it said.
func (e *engineProgram) interrupt() string {
	e.t.Helper()
	require.NoError(e.t, e.cmd.Process.Signal(unix.SIGINT))
	require.NoError(e.t, e.cmd.Wait(), e.errs.String())
	return e.out.String()
}

// TestDivertCommands, on a daemon, with oxpd's own engine, and what SIGHUP does.
func TestDivertCommands(t *testing.T) {
	t.Parallel()
	exe := program()
	dir := t.TempDir()
	socket, file, listener := filepath.Join(dir, "oxpd.sock"), filepath.Join(dir, "oxpd.yaml"), filepath.Join(dir, "inspect.sock")
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	const base = "workers: 1\nports: {F1: {up: true}}\n"
	write("oxpd.yaml", base+"divert: {queue-len: 100, buffer-size: 65535, ports: {F1: {frames: all}}}\n")
	p := runDaemon(t, exe, "--socket", socket, "--config", file)
	ask := func(args ...string) result { return oxpd(t, exe, append(args, "--socket", socket)...) }
	r := ask("status", "--wait", "1m")
	require.Equal(t, 0, r.code, "%+v", r)
	divert := func(t *testing.T, args ...string) result {
		t.Helper()
		r := ask(append([]string{"divert"}, args...)...)
		require.Equal(t, 0, r.code, "%+v", r)
		return r
	}
	view := func(t *testing.T) *client.Divert {
		t.Helper()
		d := new(client.Divert)
		require.NoError(t, json.Unmarshal([]byte(divert(t, "show", "F1", "--json").out), d))
		return d
	}
	count := func(t *testing.T, name string) uint64 { t.Helper(); return view(t).Ports[0].Out["divert_"+name] }
	send := func(t *testing.T, port uint16) {
		t.Helper()
		require.NoError(t, p.ns.Do(func() error {
			i, err := net.InterfaceByName("oxp9")
			if err != nil {
				return err
			}
			fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			f := append([]byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 198, 51, 100, 2, 0, 7, byte(port >> 8), byte(port)}, make([]byte, 22)...)
			return unix.Sendto(fd, f, 0, &unix.SockaddrLinklayer{Ifindex: i.Index, Halen: 6})
		}))
	}
	// grows sends a frame, and again when it has not left the interface by then.
	grows := func(t *testing.T, name string, port uint16) {
		t.Helper()
		before := count(t, name)
		require.Eventually(t, func() bool {
			send(t, port)
			return count(t, name) > before
		}, hang, 20*time.Millisecond, "%s", name)
	}
	require.Eventually(t, func() bool { return strings.Contains(ask("port", "oxp9").out, "UP") }, hang, 10*time.Millisecond)

	t.Run("the configuration's is in force, and what it has wrong is said", func(t *testing.T) {
		out := divert(t, "show").out
		assert.Contains(t, out, "queue-len 100, queue-bytes 4mb, buffer-size the kernel's default\n")
		assert.Contains(t, out, "warning: divert.buffer-size 65535: want 64kb to 64mb")
		assert.Contains(t, out, "warning: "+listener+": no engine is attached: frames of oxp9 are dropped\n")
		assert.Contains(t, p.log.String(), "divert.buffer-size 65535")
		assert.Contains(t, ask("status").out, "engines "+listener+": absent, 0 queued\n")
		assert.Contains(t, ask("port", "F1").out, "all frames are inspected by the engines at the listeners\n")
		assert.Contains(t, ask("config", "check", file).err, "warning: divert.buffer-size 65535")
		grows(t, "drop_absent", 9)
	})
	t.Run("an engine decides", func(t *testing.T) {
		rules := write("engine.rules", "drop udp from any to any port 9\npass ip from any to any\n")
		e := startEngine(t, exe, "--rules", rules, "--socket", socket)
		require.Eventually(t, func() bool { return view(t).Queues[0].State != client.QueueAbsent }, hang, 10*time.Millisecond)
		assert.Equal(t, "oxpd inspect", view(t).Queues[0].Engine)
		assert.Equal(t, e.cmd.Process.Pid, view(t).Queues[0].PID)
		grows(t, "dropped", 9)
		grows(t, "accepted", 10)
		require.Eventually(t, func() bool {
			return strings.Contains(ask("status").out, "engines "+listener+": idle (oxpd inspect), 0 queued\n")
		}, hang, 10*time.Millisecond)
		second := oxpd(t, exe, "inspect", "--rules", rules, "--socket", socket)
		assert.Equal(t, 1, second.code)
		assert.Contains(t, second.err, `oxpd ended the connection: engine "oxpd inspect"`)
		assert.NotContains(t, second.err, "on-absent", "it had no frames")
		assert.Regexp(t, `^[1-9][0-9]* frames, .* dropped\n$`, e.interrupt())
		require.Eventually(t, func() bool { return view(t).Queues[0].State == client.QueueAbsent }, hang, 10*time.Millisecond)
	})
	t.Run("set, all or none", func(t *testing.T) {
		assert.Equal(t, "queue-len 100, queue-bytes 64kb, buffer-size 128kb\non-full drop, on-absent pass, on-stall drop after 1000 ms, order any\n",
			divert(t, "set", "on-absent=pass", "queue-bytes=65536", "buffer-size=128k").out)
		grows(t, "pass_absent", 9)
		r := ask("divert", "set", "on-absent=drop", "buffer-size=67108865")
		assert.Equal(t, 2, r.code)
		assert.Contains(t, r.err, "oxpd: buffer-size 67108865: want 64kb to 64mb")
		grows(t, "pass_absent", 9)
	})
	t.Run("a port's frames", func(t *testing.T) {
		assert.Equal(t, "oxp9 (PortF1): frames that a filter diverts are inspected by the engines at the listeners\n", divert(t, "port", "F1", "filter").out)
		before := count(t, "seen")
		send(t, 9)
		assert.Equal(t, before, count(t, "seen"))
		require.Equal(t, 0, ask("filter", "load", "d", write("divert.rules", "divert udp from any to any port 11\n")).code)
		require.Equal(t, 0, ask("filter", "link", "d", "F1", "out").code)
		grows(t, "pass_absent", 11)
	})
	t.Run("a reload puts into force what has changed in the file", func(t *testing.T) {
		write("oxpd.yaml", base+"divert: {queue-len: 200, ports: {F1: {frames: all}}}\n")
		require.NoError(t, p.cmd.Process.Signal(unix.SIGHUP))
		require.Eventually(t, func() bool { return strings.Contains(p.log.String(), "configuration was read again") }, hang, 10*time.Millisecond)
		d := view(t)
		assert.Equal(t, 200, d.Settings.QueueLen)
		assert.Equal(t, "pass", d.Settings.OnAbsent, "set by command, and unchanged in the file")
		assert.Equal(t, client.FramesFilter, d.Ports[0].Frames, "likewise")
		assert.Empty(t, d.Warnings)
	})
	t.Run("and the sum closes", func(t *testing.T) {
		c := view(t).Ports[0].Out
		var sum uint64
		for name, n := range c {
			if name != "divert_seen" && name != "divert_reordered" && name != "divert_injected" {
				sum += n
			}
		}
		assert.Equal(t, c["divert_seen"], sum)
		assert.NotZero(t, sum)
	})
}
