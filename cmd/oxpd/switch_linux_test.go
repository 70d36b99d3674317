package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
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
	"oxpd/internal/sys"
)

// switchHang guards a command about the switch: some hundred programs on the simulated
// coprocessor.
const switchHang = 3 * time.Minute

// TestSwitch is what its user sees, on a simulated card with a shell behind its console.
func TestSwitch(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("busybox"); err != nil {
		t.Skip("busybox is not installed: the shell of the simulated coprocessor")
	}
	exe := program()
	socket := filepath.Join(t.TempDir(), "oxpd.sock")
	// A line that is slow leaves time for an interruption on any machine.
	p := runDaemon(t, exe, "--socket", socket, "--fault", "ConsoleByteTime=300us")
	c := client.New(socket)
	require.Eventually(t, func() bool {
		s, err := c.Status(context.Background())
		return err == nil && s.State == client.StateRunning
	}, hang, 20*time.Millisecond)
	ask := func(args ...string) result {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), switchHang)
		defer cancel()
		cmd := exec.CommandContext(ctx, exe, append(args, "--socket", socket)...)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		_ = cmd.Run() // its status is looked at
		return result{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
	}

	t.Run("a port by its label, as JSON", func(t *testing.T) {
		r := ask("switch", "jumbo", "--port", "F3", "--json")
		require.Equal(t, 0, r.code, "%+v", r)
		assert.Empty(t, r.err)
		var doc client.SwitchRun
		require.NoError(t, json.Unmarshal([]byte(r.out), &doc))
		assert.True(t, doc.OK)
		require.Len(t, doc.Ports, 11)
		assert.Equal(t, []any{"oxp11", client.SwitchChanged, 2048, 10240}, []any{doc.Ports[9].IfName, doc.Ports[9].Outcome, doc.Ports[9].Before, doc.Ports[9].Frame})
	})
	t.Run("interrupted: progress, and each port old or new", func(t *testing.T) {
		pty, err := sys.OpenPty()
		require.NoError(t, err)
		defer pty.Close()
		tty, err := pty.Open(false)
		require.NoError(t, err)
		cmd := exec.Command(exe, "switch", "jumbo", "--all", "--socket", socket)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, tty
		require.NoError(t, cmd.Start())
		require.NoError(t, tty.Close())
		guard := time.AfterFunc(switchHang, func() { _ = cmd.Process.Kill() })
		defer guard.Stop()
		var said strings.Builder
		for lines := bufio.NewScanner(pty.File()); lines.Scan(); { // until the last end of the terminal is closed
			said.WriteString(lines.Text() + "\n")
			if strings.HasPrefix(lines.Text(), "oxp2 (Port2, sw2): 10240 bytes, was 2048") {
				require.NoError(t, cmd.Process.Signal(unix.SIGINT))
			}
		}
		_ = cmd.Wait() // its status is looked at
		assert.Equal(t, 1, cmd.ProcessState.ExitCode(), "%s", said.String())
		assert.Contains(t, said.String(), "interrupted: the port that was begun is finished")
		assert.Contains(t, said.String(), "not begun and as they were: ")
		assert.Regexp(t, `(?m)^oxp1 +Port1 +sw1 +2048 +10240 +changed$`, out.String())
		assert.Regexp(t, `(?m)^oxp12 +PortF4 +sw10 +2048 +2048 +not begun$`, out.String())
	})
	t.Run("an mtu with the switch", func(t *testing.T) {
		r := ask("mtu", "oxp12", "9000")
		assert.Equal(t, 1, r.code)
		assert.Contains(t, r.err, "hint: oxpd mtu oxp12 9000 --switch")
		r = ask("mtu", "oxp12", "9000", "--switch")
		assert.Equal(t, 0, r.code, "%+v", r)
		assert.Contains(t, r.out, "effective  9000")
	})
	t.Run("lowered under it", func(t *testing.T) {
		r := ask("switch", "restore")
		assert.Equal(t, 1, r.code)
		assert.Contains(t, r.err, "oxp12 (PortF4) has mtu 9000\nhint: --lower-mtu lowers them to 2030 first; nothing was changed")
		assert.Empty(t, r.out)
	})
	t.Run("a run whose table cannot be written", func(t *testing.T) {
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Skip("needs /dev/full: " + err.Error())
		}
		defer full.Close()
		cmd := exec.Command(exe, "switch", "jumbo", "--port", "F3", "--socket", socket)
		var errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = full, &errs
		_ = cmd.Run() // its status is looked at
		assert.Equal(t, 1, cmd.ProcessState.ExitCode())
		assert.Equal(t, "oxpd: write standard output: no space left on device\n", errs.String(), "nobody has interrupted anything")
	})
	t.Run("a register", func(t *testing.T) {
		assert.Equal(t, result{out: "0x1930\n"}, ask("switch", "read", "sw9", "3"))
	})
	assert.Equal(t, 0, ask("stop").code)
	assert.Equal(t, 0, p.wait(t))
}
