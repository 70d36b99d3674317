package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/capture"
	"oxpd/internal/daemon/client"
	"oxpd/internal/replay"
)

const captures = "../../testdata/captures/"

func TestReplayOutput(t *testing.T) {
	good := replay.Report{
		Schema: 1, OK: true, File: "web.pcap", IfName: "oxp9", Label: "PortF1", MTU: 1500, Pace: replay.PaceHost,
		Packets: 40, Bytes: 61234, Longest: 9014, Sent: 38, Seconds: 0.25, Reached: 30, Unaltered: 30,
		Ends: []replay.End{
			{Place: replay.InCapture, Counter: "cut", Frames: 2, Why: "kept only in part"},
			{Place: replay.InFastPath, Counter: "FROM_WIRE_DROP_MTU_EXCEEDED", Frames: 8, Why: "too long"},
			{Place: replay.AtInterface, Counter: "rx_packets", Frames: 30, Why: "on the interface"},
		},
	}
	bad := good
	bad.OK, bad.Difference, bad.Unaltered, bad.Altered, bad.Unseen, bad.Out = false, 3, 25, 1, 4, "seen.pcapng"
	more := good
	more.OK, more.Difference = false, -2
	both(t, "replay", &good, printReplay)
	both(t, "replay-failed", &bad, printReplay)
	both(t, "replay-counted-twice", &more, printReplay)
}

func TestSimUsage(t *testing.T) {
	exe := program()
	dir := t.TempDir()
	text := filepath.Join(dir, "text")
	require.NoError(t, os.WriteFile(text, []byte("hello, world"), 0o600))
	b, err := os.ReadFile(captures + "dns.pcap")
	require.NoError(t, err)
	dns := filepath.Join(dir, "dns.pcap")
	require.NoError(t, os.WriteFile(dns, b, 0o600))
	for _, tc := range []struct {
		name string
		args []string
		code int
		err  string
	}{
		{"unknown command", []string{"sim", "play"}, 2, `unknown command "play" of oxpd sim`},
		{"no capture", []string{"sim", "replay", "--port", "oxp9"}, 2, "oxpd: sim replay: CAPTURE is missing"},
		{"two captures", []string{"sim", "replay", dns, dns, "--port", "oxp9"}, 2, "is one argument too many"},
		{"no port", []string{"sim", "replay", dns}, 2, "which port? --port is missing"},
		{"standard output is taken", []string{"sim", "replay", dns, "--port", "oxp9", "--out", "-"}, 2, "--out -: standard output has the report; name a file"},
		{"unknown port", []string{"sim", "replay", dns, "--port", "oxp13"}, 2, `unknown port "oxp13"`},
		{"unknown pace", []string{"sim", "replay", dns, "--port", "oxp9", "--pace", "fast"}, 2, `pace "fast": want host, capture or wire`},
		{"mtu one above", []string{"sim", "replay", dns, "--port", "oxp9", "--mtu", "9001"}, 2, "mtu 9001 is out of range: want 72 to 9000"},
		{"mtu 0 is a value", []string{"sim", "replay", dns, "--port", "oxp9", "--mtu", "0"}, 2, "mtu 0 is out of range: want 72 to 9000"},
		{"mtu negative", []string{"sim", "replay", dns, "--port", "oxp9", "--mtu", "-1"}, 2, "mtu -1 is out of range: want 72 to 9000"},
		{"no capture file", []string{"sim", "replay", text, "--port", "oxp9"}, 2, "no capture\nhint: give a pcap or pcapng file"},
		{"no such file", []string{"sim", "replay", filepath.Join(dir, "none"), "--port", "oxp9"}, 1, "no such file"},
		{"recording over the capture", []string{"sim", "replay", dns, "--port", "oxp9", "--out", dns}, 2, "would be overwritten"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := oxpd(t, exe, tc.args...)
			assert.Equal(t, tc.code, r.code, "exit status; %+v", r)
			assert.Contains(t, r.err, tc.err)
			assert.Empty(t, r.out, "talk goes to standard error")
		})
	}
	t.Run("alone it prints help", func(t *testing.T) {
		r := oxpd(t, exe, "sim")
		assert.Equal(t, 0, r.code)
		assert.Contains(t, r.out, "replay")
	})
}

func TestSimReplay(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("needs root: makes a network namespace and TAP interfaces")
	}
	exe := program()
	out := filepath.Join(t.TempDir(), "seen.pcapng")
	r := oxpd(t, exe, "sim", "replay", captures+"jumbo.pcapng", "--port", "F1", "--rewrite-mac", "--out", out)
	assert.Equal(t, 0, r.code, "frames that the LIF refuses are a result, not a failure; %+v", r)
	assert.Empty(t, r.err)
	assert.Contains(t, r.out, "FROM_WIRE_DROP_MTU_EXCEEDED")
	s, err := capture.Check(out)
	require.NoError(t, err)
	assert.Equal(t, 1514, s.Longest)

	r = oxpd(t, exe, "sim", "replay", captures+"jumbo.pcapng", "--port", "F1", "--rewrite-mac", "--mtu", "9000", "--json")
	assert.Equal(t, 0, r.code, "%+v", r)
	var doc replay.Report
	require.NoError(t, json.Unmarshal([]byte(r.out), &doc))
	assert.True(t, doc.OK)
	assert.EqualValues(t, doc.Packets, doc.Unaltered)
	assert.Equal(t, 9014, doc.Longest)
}

// TestRecordingSurvives: a recording has every frame after SIGTERM, and is a
// capture up to its last second after SIGKILL.
func TestRecordingSurvives(t *testing.T) {
	t.Parallel()
	exe := program()
	for _, tc := range []struct {
		name   string
		signal unix.Signal
	}{{"SIGTERM", unix.SIGTERM}, {"SIGKILL", unix.SIGKILL}} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			socket, out, file := filepath.Join(dir, "oxpd.sock"), filepath.Join(dir, "out.pcapng"), filepath.Join(dir, "oxpd.yaml")
			require.NoError(t, os.WriteFile(file, []byte("sim: {wires: {F1: 'pcap:,"+out+"'}}\n"), 0o600))
			p := runDaemon(t, exe, "--socket", socket, "--config", file)
			c := client.New(socket)
			recorded := func() uint64 {
				s, err := c.Stats(context.Background(), "oxp9")
				if err != nil {
					return 0
				}
				w, _ := s.Wire("oxp9")
				return w.Counters["recorded"]
			}
			ip := func(args ...string) {
				require.NoError(t, p.ns.Do(func() error {
					o, err := exec.Command("ip", args...).CombinedOutput()
					if err != nil {
						return fmt.Errorf("ip %v: %w: %s", args, err, o)
					}
					return nil
				}))
			}
			require.Eventually(t, func() bool {
				s, err := c.Status(context.Background())
				return err == nil && s.State == client.StateRunning
			}, hang, 20*time.Millisecond)
			// Datagrams to somebody who is not there.
			ip("link", "set", "oxp9", "up")
			ip("addr", "add", "192.0.2.1/24", "dev", "oxp9")
			ip("neigh", "add", "192.0.2.2", "lladdr", "02:00:00:00:00:02", "dev", "oxp9")
			require.Eventually(t, func() bool {
				_ = p.ns.Do(func() error {
					fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
					if err != nil {
						return err
					}
					defer unix.Close(fd)
					return unix.Sendto(fd, make([]byte, 100), 0, &unix.SockaddrInet4{Port: 9, Addr: [4]byte{192, 0, 2, 2}})
				})
				return recorded() >= 3
			}, hang, 5*time.Millisecond)
			if tc.signal == unix.SIGKILL {
				require.Eventually(t, func() bool {
					s, err := capture.Check(out)
					return err == nil && s.Packets >= 3
				}, hang, 20*time.Millisecond, "frames are in the file while the daemon runs")
			}
			require.NoError(t, p.cmd.Process.Signal(tc.signal))
			p.wait(t)
			s, err := capture.Check(out)
			require.NoError(t, err)
			assert.GreaterOrEqual(t, s.Packets, 3)
			if tc.signal == unix.SIGTERM {
				m := regexp.MustCompile(`msg="recording is closed".* frames=(\d+)`).FindStringSubmatch(p.log.String())
				require.NotNil(t, m, p.log.String())
				assert.Equal(t, m[1], strconv.Itoa(s.Packets), "every frame that was recorded is in the file")
			}
		})
	}
}
