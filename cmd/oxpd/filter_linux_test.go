package main

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/daemon/client"
)

// TestFilterCommands, on a daemon, and what SIGHUP does to its filters.
func TestFilterCommands(t *testing.T) {
	t.Parallel()
	exe := program()
	dir := t.TempDir()
	socket, file := filepath.Join(dir, "oxpd.sock"), filepath.Join(dir, "oxpd.yaml")
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	write("boot.rules", "drop udp from any to any port 9\n")
	write("oxpd.yaml", "workers: 1\nports: {F1: {up: true}}\nfilters: [{name: boot, file: boot.rules, link: [F1 out]}]\n")
	p := runDaemon(t, exe, "--socket", socket, "--config", file)
	ask := func(args ...string) result { return oxpd(t, exe, append(args, "--socket", socket)...) }
	r := ask("status", "--wait", "1m")
	require.Equal(t, 0, r.code, "%+v", r)
	assert.Contains(t, r.out, "filters boot\n")
	filter := func(t *testing.T, args ...string) result {
		t.Helper()
		r := ask(append([]string{"filter"}, args...)...)
		require.Equal(t, 0, r.code, "%+v", r)
		return r
	}
	hits := func(t *testing.T, name string) []uint64 {
		t.Helper()
		v := new(client.FilterView)
		require.NoError(t, json.Unmarshal([]byte(filter(t, "show", name, "--json").out), v))
		var out []uint64
		for _, l := range v.List {
			out = append(out, l.Hits)
		}
		return out
	}
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
	require.Eventually(t, func() bool { return strings.Contains(ask("port", "oxp9").out, "UP") }, hang, 10*time.Millisecond)
	grows := func(t *testing.T, name string, rule int, want uint64) {
		t.Helper()
		require.Eventually(t, func() bool { return hits(t, name)[rule] == want }, hang, 5*time.Millisecond, "%v", want)
	}

	t.Run("the configuration's is in force", func(t *testing.T) {
		require.Eventually(t, func() bool { send(t, 9); return hits(t, "boot")[0] > 0 }, hang, 10*time.Millisecond)
		assert.Contains(t, ask("port", "oxp9").out, "filters out boot\n")
	})
	flood := write("flood.rules", "# a flood\ndrop udp from any to any port 10\ncount udp from any to any port 11\n")
	t.Run("loaded, linked, and it counts", func(t *testing.T) {
		assert.Equal(t, "flood: 2 rules; linked nowhere\n", filter(t, "load", "flood", flood).out)
		assert.Equal(t, "flood: linked oxp9 out\n", filter(t, "link", "flood", "F1", "out").out)
		send(t, 10)
		grows(t, "flood", 0, 1)
		assert.Equal(t, "# a flood\ndrop udp from any to any port 10\ncount udp from any to any port 11\n", filter(t, "show", "flood", "--source").out)
		assert.Contains(t, filter(t, "list").out, "oxp9 out: boot, then flood\n")
		assert.Contains(t, filter(t, "test", "flood", "--pcap", "../../testdata/captures/dns.pcap").out, "matched by no rule")
	})
	t.Run("rules that are wrong change nothing", func(t *testing.T) {
		bad := write("bad.rules", "drop udp from any to any port 11\n  drop udp fro any to any\n")
		r := ask("filter", "load", "flood", bad)
		assert.Equal(t, 2, r.code)
		assert.True(t, strings.HasPrefix(r.err, bad+":2:12: found \"fro\", expected "), r.err)
		assert.Contains(t, r.err, "\n    drop udp fro any to any\n             ^\n")
		send(t, 10)
		grows(t, "flood", 0, 2)
	})
	t.Run("replaced", func(t *testing.T) {
		again := write("flood.rules", "drop udp from any to any port 12\ndrop udp from any to any port 10\n")
		assert.Equal(t, "flood: 2 rules: 1 as before, with their counters, 1 new, 1 gone; linked oxp9 out\n", filter(t, "load", "flood", again).out)
		assert.Equal(t, []uint64{0, 2}, hits(t, "flood"))
	})
	t.Run("what is linked stays", func(t *testing.T) {
		r := ask("filter", "unload", "flood")
		assert.Equal(t, 1, r.code)
		assert.Contains(t, r.err, "oxpd: filter flood is linked at oxp9 out\nhint: oxpd filter unlink flood all")
		r = ask("filter", "show", "floot")
		assert.Equal(t, 1, r.code)
		assert.Contains(t, r.err, `filter "floot" is not loaded: there is boot, flood`)
	})
	hup := func(t *testing.T, until string) {
		t.Helper()
		seen := strings.Count(p.log.String(), until)
		require.NoError(t, p.cmd.Process.Signal(unix.SIGHUP))
		require.Eventually(t, func() bool { return strings.Count(p.log.String(), until) > seen }, hang, 10*time.Millisecond, until)
	}
	t.Run("a reload with rules that are wrong changes nothing", func(t *testing.T) {
		before := hits(t, "boot")
		boot := write("boot.rules", "drop\n")
		hup(t, file+":3: filters.0.file: "+boot+":1:")
		assert.Equal(t, before, hits(t, "boot"))
		r := ask("config", "check", file)
		assert.Equal(t, 2, r.code)
		assert.Contains(t, r.err, file+":3: filters.0.file: "+boot+":1:5: found the end of the line, expected ")
	})
	t.Run("one with others puts them into force, and leaves what commands have loaded", func(t *testing.T) {
		write("boot.rules", "drop udp from any to any port 13\n")
		hup(t, "configuration was read again")
		send(t, 13)
		grows(t, "boot", 0, 1)
		assert.Equal(t, []uint64{0, 2}, hits(t, "flood"))
	})
	t.Run("samples", func(t *testing.T) {
		filter(t, "load", "flood", write("flood.rules", "sample 1 udp from any to any port 14\n"))
		send(t, 14)
		grows(t, "flood", 0, 1)
		out := filepath.Join(dir, "samples.pcapng")
		filter(t, "samples", "flood", "--out", out)
		assert.Contains(t, filter(t, "test", "flood", "--pcap", out, "--direction", "out").out, "1 frame out at oxp1: 1 sample, 0 matched by no rule")
		assert.Equal(t, 2, ask("filter", "samples", "flood").code, "nowhere to write them")
		b, err := os.ReadFile(out)
		require.NoError(t, err)
		assert.Equal(t, string(b), filter(t, "samples", "--out", "-").out)
	})
	t.Run("unlinked and unloaded", func(t *testing.T) {
		assert.Equal(t, "flood: linked nowhere\n", filter(t, "unlink", "flood", "all").out)
		assert.NotContains(t, filter(t, "unload", "flood").out, "flood")
	})
}
