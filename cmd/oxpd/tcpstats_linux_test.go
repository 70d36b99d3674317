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
	"oxpd/internal/tcpstats"
)

// TestTCPStatsCommands, on a daemon, and what SIGHUP does to its settings and profiles.
func TestTCPStatsCommands(t *testing.T) {
	t.Parallel()
	exe := program()
	dir := t.TempDir()
	socket, file, records := filepath.Join(dir, "oxpd.sock"), filepath.Join(dir, "oxpd.yaml"), filepath.Join(dir, "records")
	write := func(text string) {
		require.NoError(t, os.WriteFile(file, []byte("workers: 1\nports: {F1: {up: true}}\ntcpstats: {socket: "+filepath.Join(dir, "s")+", "+text+"}\n"), 0o600))
	}
	write("max-open-fds: 3, profiles: {boot: local_port=5001}")
	p := runDaemon(t, exe, "--socket", socket, "--config", file)
	ask := func(args ...string) result { return oxpd(t, exe, append(args, "--socket", socket)...) }
	r := ask("status", "--wait", "1m")
	require.Equal(t, 0, r.code, "%+v", r)
	stats := func(t *testing.T, args ...string) result {
		t.Helper()
		r := ask(append([]string{"tcpstats"}, args...)...)
		require.Equal(t, 0, r.code, "%+v", r)
		return r
	}
	view := func(t *testing.T) *client.TCPStats {
		t.Helper()
		v := new(client.TCPStats)
		require.NoError(t, json.Unmarshal([]byte(stats(t, "show", "--json").out), v))
		return v
	}
	setting := func(t *testing.T, key string) string {
		t.Helper()
		for _, s := range view(t).Settings {
			if s.Key == key {
				return s.Value
			}
		}
		return ""
	}
	var l net.Listener
	require.NoError(t, p.ns.Do(func() error {
		if err := linkUp("lo"); err != nil {
			return err
		}
		var err error
		l, err = net.Listen("tcp4", "127.0.0.1:5001")
		return err
	}))
	defer l.Close()
	var near net.Conn
	require.NoError(t, p.ns.Do(func() (err error) { near, err = net.Dial("tcp4", "127.0.0.1:5001"); return err }))
	defer near.Close()

	t.Run("the sockets of the daemon's namespace, at the socket that the configuration names", func(t *testing.T) {
		r := stats(t)
		assert.Equal(t, 4, strings.Count(r.out, "\n"), r.out)
		r = stats(t, "local_port=5001", "exclude=listen")
		assert.Equal(t, 2, strings.Count(r.out, "\n"), r.out)
		assert.Regexp(t, `established +127\.0\.0\.1:5001 +127\.0\.0\.1:[0-9]+ +- +[0-9.]+[µm]?s `, r.out)
		assert.Contains(t, stats(t, "--profile", "boot", "--json").out, `"state":"listen"`)
		assert.Empty(t, strings.Split(stats(t, "via=F1").out, "\n")[1], "none of them goes by a port")
	})
	t.Run("binary, and back", func(t *testing.T) {
		r := stats(t, "--format", "binary", "fields=all", "remote_port=5001")
		require.NoError(t, os.WriteFile(records, []byte(r.out), 0o600))
		d := oxpd(t, exe, "tcpstats", "decode", "--json", records)
		assert.Equal(t, 0, d.code)
		assert.Contains(t, d.out, `"remote_port":5001,`)
		assert.Contains(t, d.out, `"algorithm":"`)
	})
	t.Run("differences", func(t *testing.T) {
		go func() {
			for range 50 {
				if _, err := near.Write(make([]byte, 1000)); err != nil {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
		}()
		r := stats(t, "remote_port=5001", "--interval", "50ms", "--count", "2", "--json")
		assert.Equal(t, 6, strings.Count(r.out, "\n"), "a head, a record and an end, twice")
	})
	t.Run("set, all or none", func(t *testing.T) {
		assert.Contains(t, stats(t, "set", "max_read_duration_ms=100", "flow=on").out, "max_read_duration_ms     100\n")
		assert.Equal(t, "on", setting(t, "flow"))
		r := ask("tcpstats", "set", "max_concurrent_readers=9", "max_open_fds=0")
		assert.Equal(t, 2, r.code)
		assert.Contains(t, r.err, "oxpd: max_open_fds is 0: want 1 to 1024")
		assert.Equal(t, "32", setting(t, "max_concurrent_readers"))
		assert.Equal(t, 1, strings.Count(stats(t, "source=flow").out, "\n"), "nothing has crossed a port")
	})
	t.Run("profiles", func(t *testing.T) {
		assert.Equal(t, "boot: local_port=5001\nweb: local_port=443 exclude=listen\n", stats(t, "profile", "set", "web", "LOCAL_PORT=443", "exclude=listen").out)
		assert.Equal(t, "web: local_port=443 exclude=listen\n", stats(t, "profile", "rm", "boot").out)
		r := ask("tcpstats", "profile", "rm", "boot")
		assert.Equal(t, 1, r.code)
		assert.Contains(t, r.err, `there is no profile "boot"`)
	})
	t.Run("a reload puts into force what has changed in the file", func(t *testing.T) {
		write("max-open-fds: 4, group: '77', profiles: {boot: local_port=5001, more: ''}")
		require.NoError(t, p.cmd.Process.Signal(unix.SIGHUP))
		require.Eventually(t, func() bool { return strings.Contains(p.log.String(), "configuration was read again") }, hang, 10*time.Millisecond)
		assert.Equal(t, "4", setting(t, "max_open_fds"))
		assert.Equal(t, "100", setting(t, "max_read_duration_ms"), "set by command, and unchanged in the file")
		assert.Equal(t, "more: \nweb: local_port=443 exclude=listen\n", stats(t, "profile", "list").out)
		assert.Contains(t, p.log.String(), "tcpstats.group", "needs a restart")
	})
	t.Run("and the books are closed", func(t *testing.T) {
		v := view(t)
		sum := v.Counters["emitted"] + v.Counters["aborted"]
		for _, why := range tcpstats.Skips() {
			sum += v.Counters["skipped_"+why.String()]
		}
		assert.Equal(t, v.Counters["visited"], sum)
		assert.NotZero(t, sum)
		assert.Contains(t, stats(t, "show").out, "socket                   "+filepath.Join(dir, "s")+"\n")
	})
}

// linkUp raises an interface of the namespace at hand.
func linkUp(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr)
}
