package main

import (
	"bytes"
	"context"
	"fmt"
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

	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
)

// serveCard is oxpd sim serve; it has said that it is ready.
func serveCard(t *testing.T, exe string, args ...string) (*exec.Cmd, *lockedBuffer) {
	t.Helper()
	cmd := exec.Command(exe, append([]string{"sim", "serve"}, args...)...)
	log, out := &lockedBuffer{}, &lockedBuffer{}
	cmd.Stdout, cmd.Stderr = out, log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("the card's log:\n%s", log)
		}
	})
	require.Eventually(t, func() bool { return out.String() == "ready\n" }, hang, 5*time.Millisecond)
	return cmd, log
}

// arp is a request of somebody at 192.0.2.2 for 192.0.2.1.
func arp() []byte {
	b := bytes.Repeat([]byte{0xff}, 6)
	b = append(b, 2, 0, 0, 0, 0, 2, 0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 2, 192, 0, 2, 2)
	b = append(b, make([]byte, 6)...)
	b = append(b, 192, 0, 2, 1)
	return append(b, make([]byte, 60-len(b))...)
}

// TestServedCard: oxpd drives a card that is another process: frames both ways, the
// link of a wire that somebody leaves, a second client, the end of the driver and of
// the card.
func TestServedCard(t *testing.T) {
	t.Parallel()
	exe := program()
	dir := t.TempDir()
	card, wire, socket := filepath.Join(dir, "card.sock"), filepath.Join(dir, "f1.sock"), filepath.Join(dir, "oxpd.sock")
	served, log := serveCard(t, exe, "--vfio-user", card, "--wire", "F1=unix:"+wire, "--wire", "Port1=loop:Port2",
		"--wire", "Port3=pcap:,"+filepath.Join(dir, "port3.pcapng"))
	far, err := net.Dial("unixpacket", wire)
	require.NoError(t, err)
	defer far.Close()
	require.NoError(t, far.SetDeadline(time.Now().Add(hang)))

	p := startProcess(t, exe, "run", "--device", "vfio-user:"+card, "--socket", socket)
	c := client.New(socket)
	status := func() *client.Status {
		s, err := c.Status(context.Background())
		if err != nil {
			return &client.Status{}
		}
		return s
	}
	require.Eventually(t, func() bool { return status().State == client.StateRunning }, hang, 20*time.Millisecond)
	require.Eventually(t, func() bool { return strings.Contains(p.log.String(), `stage=links detail="4 up"`) }, hang, 20*time.Millisecond,
		"F1 and Port1 to Port3 have a link, the others none")
	s := status()
	assert.Equal(t, "vfio-user:"+card, s.Device.Name)
	assert.False(t, s.Device.Simulated, "nobody here can tell")
	assert.Equal(t, board.Assembly, s.Device.Assembly)

	require.NoError(t, p.ns.Do(func() error {
		for _, args := range []string{"link set oxp9 up", "addr add 192.0.2.1/24 dev oxp9"} {
			if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
				return fmt.Errorf("ip %s: %w: %s", args, err, out)
			}
		}
		return nil
	}))
	// The kernel behind oxp9 answers who asks at the other end of the wire.
	got := make([]byte, 10240)
	require.Eventually(t, func() bool {
		_, err := far.Write(arp())
		require.NoError(t, err)
		require.NoError(t, far.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
		for {
			n, err := far.Read(got)
			if err != nil {
				return false
			}
			if n >= 42 && bytes.Equal(got[12:22], []byte{0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 2}) {
				return bytes.Equal(got[28:32], []byte{192, 0, 2, 1})
			}
		}
	}, hang, time.Millisecond)

	r := apart(t, exe, "run", "--device", "vfio-user:"+card, "--socket", filepath.Join(dir, "second.sock"))
	assert.Equal(t, 1, r.code)
	assert.Contains(t, r.err, "a card takes one client at a time")
	assert.Equal(t, client.StateRunning, status().State)

	require.NoError(t, far.Close())
	require.Eventually(t, func() bool { return strings.Contains(p.log.String(), "port=oxp9 label=PortF1 link=down") }, hang, 20*time.Millisecond,
		"the link of a wire that nobody is connected to")

	// The card outlives its driver, and knows it: nothing adopts its rings.
	require.NoError(t, p.cmd.Process.Signal(unix.SIGTERM))
	assert.Equal(t, 0, p.wait(t), p.log)
	assert.Contains(t, p.log.String(), "reboot the coprocessor before the next start")
	r = apart(t, exe, "run", "--device", "vfio-user:"+card, "--socket", socket)
	assert.Equal(t, exitFinal, r.code, "starting it again does not help")
	assert.Contains(t, r.err, "reboot the coprocessor (power cycle")

	require.NoError(t, served.Process.Signal(unix.SIGTERM))
	assert.NoError(t, served.Wait())
	assert.NotContains(t, log.String(), "level=ERROR")
	assert.NotContains(t, log.String(), "misuse of the card")
	for _, f := range []string{card, wire} {
		assert.NoFileExists(t, f)
	}
	r = apart(t, exe, "run", "--device", "vfio-user:"+card, "--socket", socket)
	assert.Equal(t, 1, r.code)
	assert.Contains(t, r.err, "start the card with: oxpd sim serve --vfio-user "+card)
}

// TestServedVF: a virtual function is nothing that oxpd drives, and is told so.
func TestServedVF(t *testing.T) {
	t.Parallel()
	exe := program()
	dir := t.TempDir()
	card := filepath.Join(dir, "vf.sock")
	served, log := serveCard(t, exe, "--vfio-user", card, "--function", "vf")
	r := apart(t, exe, "run", "--device", "vfio-user:"+card, "--socket", filepath.Join(dir, "oxpd.sock"))
	assert.Equal(t, 1, r.code)
	assert.Contains(t, r.err, "not the card: 177d:a303 is a virtual function of it; oxpd sim serve shows the card without --function vf")
	require.NoError(t, served.Process.Signal(unix.SIGTERM))
	assert.NoError(t, served.Wait())
	assert.NotContains(t, log.String(), "misuse of the card")
	assert.NoFileExists(t, card)
}

// TestServedCardDies: a card whose process is killed is a card that is lost.
func TestServedCardDies(t *testing.T) {
	t.Parallel()
	exe := program()
	dir := t.TempDir()
	card, socket := filepath.Join(dir, "card.sock"), filepath.Join(dir, "oxpd.sock")
	served, _ := serveCard(t, exe, "--vfio-user", card)
	p := startProcess(t, exe, "run", "--device", "vfio-user:"+card, "--socket", socket)
	c := client.New(socket)
	state := func() client.State {
		s, err := c.Status(context.Background())
		if err != nil {
			return ""
		}
		return s.State
	}
	require.Eventually(t, func() bool { return state() == client.StateRunning }, hang, 20*time.Millisecond)
	require.NoError(t, served.Process.Kill())
	require.Eventually(t, func() bool { return state() == client.StateGone }, hang, 20*time.Millisecond)
	said := func() int { return strings.Count(p.log.String(), "card is lost and waited for") }
	require.Eventually(t, func() bool { return said() == 1 }, hang, 20*time.Millisecond, "said once the loss is over with")
	s, err := c.Status(context.Background())
	require.NoError(t, err)
	assert.Contains(t, strings.Join(s.Warnings, "\n"), "the card is lost")
	ports := func() (index []int) {
		all, err := c.Ports(context.Background())
		require.NoError(t, err)
		for _, q := range all.Ports {
			index = append(index, q.IfIndex)
		}
		return index
	}
	before := ports()
	assert.NotContains(t, before, 0)

	// Another card at the same place is brought up, under the same interfaces.
	served, _ = serveCard(t, exe, "--vfio-user", card)
	require.Eventually(t, func() bool { return state() == client.StateRunning }, hang, 20*time.Millisecond)
	assert.Equal(t, before, ports())
	require.NoError(t, served.Process.Kill())
	require.Eventually(t, func() bool { return state() == client.StateGone }, hang, 20*time.Millisecond)
	require.NoError(t, p.cmd.Process.Signal(unix.SIGTERM))
	p.wait(t)

	// The socket that it left is taken over, by a card of another kind.
	require.FileExists(t, card)
	_, _ = serveCard(t, exe, "--vfio-user", card, "--fault", "Assembly=AMDA0999-0001")
	r := apart(t, exe, "run", "--device", "vfio-user:"+card, "--socket", socket)
	assert.Equal(t, 1, r.code)
	assert.Contains(t, r.err, `assembly is "AMDA0999-0001"`)
	fi, err := os.Stat(card)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), fi.Mode().Perm())
}
