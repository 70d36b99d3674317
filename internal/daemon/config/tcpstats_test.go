package config

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/tcpstats/flows"
	"oxpd/internal/tcpstats/serve"
)

func TestTCPStats(t *testing.T) {
	t.Run("without the section", func(t *testing.T) {
		c, err := Parse("f", []byte("socket: /run/x/oxpd.sock\n"))
		require.NoError(t, err)
		assert.Equal(t, serve.DefaultLimits(), c.TCPStats.Limits())
		assert.False(t, c.TCPStats.Flow)
		assert.Equal(t, flows.DefaultFlows, c.TCPStats.FlowMax)
		assert.Equal(t, flows.DefaultIdle, time.Duration(c.TCPStats.FlowIdle))
		assert.Empty(t, c.TCPStats.Profiles)
		assert.Equal(t, "/run/x/tcpstats.sock", c.StatsSocket())
		for socket, want := range map[string]string{"/tmp/a.sock": "/tmp/a-tcpstats.sock", "/tmp/s": "/tmp/s-tcpstats.sock", "/tmp/oxpd": "/tmp/tcpstats.sock"} {
			assert.Equal(t, want, Config{Socket: socket}.StatsSocket(), "two daemons in one directory")
		}
	})
	t.Run("all of it", func(t *testing.T) {
		c, err := Parse("f", []byte(`tcpstats:
  socket: /run/s.sock
  group: "100"
  max-open-fds: 3
  max-concurrent-readers: 4
  max-read-duration-ms: 0
  min-read-interval-ms: 250
  flow: true
  flow-max: 1024
  flow-idle: 10s
  profiles: {web: 'LOCAL_PORT=443', all_9: ''}
`))
		require.NoError(t, err)
		assert.Equal(t, serve.Limits{MaxOpen: 3, MaxReaders: 4, MinInterval: 250 * time.Millisecond}, c.TCPStats.Limits())
		assert.Equal(t, []StatsSetting{
			{"max_open_fds", "3"}, {"max_concurrent_readers", "4"}, {"max_read_duration_ms", "0"}, {"min_read_interval_ms", "250"},
			{"flow", "on"}, {"flow_max", "1024"}, {"flow_idle", "10s"},
		}, c.TCPStats.List())
		assert.Equal(t, "/run/s.sock", c.StatsSocket())
		assert.Equal(t, "100", c.TCPStats.Group)
		b, err := c.YAML()
		require.NoError(t, err)
		again, err := Parse("again", b)
		require.NoError(t, err)
		assert.Equal(t, c, again)
	})
}

func TestTCPStatsRefused(t *testing.T) {
	var many []string
	for i := range serve.MaxProfiles + 1 {
		many = append(many, fmt.Sprintf("p%d: ''", i))
	}
	for _, tc := range []struct{ name, text, want string }{
		{"no client", "max-open-fds: 0", `f:2: tcpstats.max-open-fds: is 0: want 1 to 1024`},
		{"a client too many", "max-open-fds: 1025", `f:2: tcpstats.max-open-fds: is 1025: want 1 to 1024`},
		{"no reader", "max-concurrent-readers: 0", `f:2: tcpstats.max-concurrent-readers: is 0: want 1 to 1024`},
		{"a reader too many", "max-concurrent-readers: 1025", `f:2: tcpstats.max-concurrent-readers: is 1025`},
		{"less than no time", "max-read-duration-ms: -1", `f:2: tcpstats.max-read-duration-ms: is -1: want 0 to 3600000`},
		{"too long", "max-read-duration-ms: 3600001", `f:2: tcpstats.max-read-duration-ms: is 3600001`},
		{"beyond every duration", "max-read-duration-ms: 9223372036854775807", `f:2: tcpstats.max-read-duration-ms: is 3600001: want`},
		{"an interval of less than nothing", "min-read-interval-ms: -1", `f:2: tcpstats.min-read-interval-ms: is -1`},
		{"an interval too long", "min-read-interval-ms: 3600001", `f:2: tcpstats.min-read-interval-ms: is 3600001`},
		{"too few flows", "flow-max: 1023", `f:2: tcpstats.flow-max: is 1023: want 1024 to 1048576`},
		{"too many flows", "flow-max: 1048577", `f:2: tcpstats.flow-max: is 1048577`},
		{"idle too soon", "flow-idle: 9s", `f:2: tcpstats.flow-idle: is 9s: want 10s to 24h0m0s`},
		{"idle too late", "flow-idle: 25h", `f:2: tcpstats.flow-idle: is 25h0m0s`},
		{"no duration", "flow-idle: soon", `f:2: "soon" is not a duration`},
		{"half a client", "max-open-fds: 1.5", `f:2: "1.5" has the wrong type: want a whole number`},
		{"no truth", "flow: 7", `f:2: "7" has the wrong type`},
		{"the control socket's path", "socket: /run/oxpd/./oxpd.sock", `f:2: tcpstats.socket: /run/oxpd/./oxpd.sock is the control socket already`},
		{"its lock's", "socket: /run/oxpd/oxpd.sock.lock", `f:2: tcpstats.socket: /run/oxpd/oxpd.sock.lock is the lock of the control socket already`},
		{"the path of inspection", "socket: /run/oxpd/inspect.sock", `f:2: tcpstats.socket: /run/oxpd/inspect.sock is the listener of divert already`},
		{"a listener", "socket: /run/x\ndivert: {listeners: [/run/y, /run/x]}", `f:3: divert.listeners.1: /run/x is the socket of TCP statistics already`},
		{"a listener in its place", "flow: false\ndivert: {listeners: [/run/oxpd/tcpstats.sock]}", `f:3: divert.listeners.0: /run/oxpd/tcpstats.sock is the socket of TCP statistics already`},
		{"a directory", "socket: /run/", `f:2: tcpstats.socket: ends in /`},
		{"a path too long", "socket: /" + strings.Repeat("s", 107), `f:2: tcpstats.socket: 108 bytes long`},
		{"no name", "profiles: {'': ''}", `f:2: tcpstats.profiles.: profile name ""`},
		{"a name of other characters", "profiles:\n    a: ''\n    B: ''", `f:4: tcpstats.profiles.B: profile name "B": want a to z, 0 to 9 and _`},
		{"a name too long", "profiles: {" + strings.Repeat("a", 33) + ": ''}", `the name has 33 characters, more than 32`},
		{"a filter", "profiles: {web: 'local_port=0'}", `f:2: tcpstats.profiles.web: `},
		{"too many profiles", "profiles: {" + strings.Join(many, ", ") + "}", `f:2: tcpstats.profiles: 17 are too many: want 16 at most`},
		{"unknown key", "flows: true", `f:2: unknown key "flows"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Parse("f", []byte("tcpstats:\n  "+tc.text+"\n"))
			require.ErrorContains(t, err, tc.want)
		})
	}
	for _, text := range []string{
		"max-open-fds: 1024", "max-concurrent-readers: 1024", "max-read-duration-ms: 3600000", "min-read-interval-ms: 3600000", "flow-max: 1048576", "flow-idle: 24h",
		"socket: /run/oxpd/oxpd.sock2", "socket: /run/x\ndivert: {listeners: [/run/y, /run/oxpd/tcpstats.sock]}",
		"profiles: {" + strings.Join(many[1:], ", ") + "}", "profiles: {" + strings.Repeat("a", 32) + ": ''}",
	} {
		_, err := Parse("f", []byte("tcpstats:\n  "+text+"\n"))
		assert.NoError(t, err, text)
	}
}

// Each setting by its word: what it changes, and what it refuses without a change.
func TestTCPStatsWith(t *testing.T) {
	d := defaultTCPStats()
	for _, tc := range []struct {
		set  StatsSetting
		want func(*TCPStats)
	}{
		{StatsSetting{"max_open_fds", "1"}, func(s *TCPStats) { s.MaxOpenFDs = 1 }},
		{StatsSetting{"max_concurrent_readers", "1024"}, func(s *TCPStats) { s.MaxConcurrentReaders = 1024 }},
		{StatsSetting{"max_read_duration_ms", "0"}, func(s *TCPStats) { s.MaxReadDurationMS = 0 }},
		{StatsSetting{"min_read_interval_ms", "7"}, func(s *TCPStats) { s.MinReadIntervalMS = 7 }},
		{StatsSetting{"flow", "on"}, func(s *TCPStats) { s.Flow = true }},
		{StatsSetting{"flow", "off"}, func(s *TCPStats) {}},
		{StatsSetting{"flow_max", "4096"}, func(s *TCPStats) { s.FlowMax = 4096 }},
		{StatsSetting{"flow_idle", "1m30s"}, func(s *TCPStats) { s.FlowIdle = Duration(90 * time.Second) }},
	} {
		t.Run(tc.set.Key+"="+tc.set.Value, func(t *testing.T) {
			want := d
			tc.want(&want)
			got, err := d.With(tc.set)
			require.NoError(t, err)
			assert.Equal(t, want, got)
			assert.Contains(t, got.List(), tc.set)
		})
	}
	for _, tc := range []struct {
		set  StatsSetting
		want string
	}{
		{StatsSetting{"max_open_fds", "0"}, "max_open_fds is 0: want 1 to 1024"},
		{StatsSetting{"max_open_fds", "99999999999999999999"}, `max_open_fds is "99999999999999999999": want a whole number`},
		{StatsSetting{"max_open_fds", ""}, `max_open_fds is "": want a whole number`},
		{StatsSetting{"max_concurrent_readers", "x"}, `max_concurrent_readers is "x": want a whole number`},
		{StatsSetting{"max_read_duration_ms", "-1"}, "max_read_duration_ms is -1: want 0 to 3600000"},
		{StatsSetting{"min_read_interval_ms", "1.5"}, `min_read_interval_ms is "1.5": want a whole number`},
		{StatsSetting{"flow", "yes"}, `flow is "yes": want on or off`},
		{StatsSetting{"flow_max", "12"}, "flow_max is 12: want 1024 to 1048576"},
		{StatsSetting{"flow_idle", "300"}, `flow_idle is "300": want a duration, such as 300s`},
		{StatsSetting{"flow_idle", "1s"}, "flow_idle is 1s: want 10s to 24h0m0s"},
		{StatsSetting{"max-open-fds", "3"}, `no setting "max-open-fds": want max_open_fds, max_concurrent_readers,`},
		{StatsSetting{"", "3"}, `no setting "": want`},
	} {
		t.Run(tc.set.Key+"="+tc.set.Value+" refused", func(t *testing.T) {
			got, err := d.With(tc.set)
			require.ErrorContains(t, err, tc.want)
			assert.Equal(t, d, got)
		})
	}
}

func TestReloadOfTCPStats(t *testing.T) {
	parse := func(text string) Config {
		c, err := Parse("f", []byte("tcpstats: {"+text+"}\n"))
		require.NoError(t, err)
		return c
	}
	running := parse("max-open-fds: 3, profiles: {a: ipv4_only, b: ipv6_only}")
	file := parse("max-open-fds: 4, flow: true, socket: /run/other.sock, group: '5', profiles: {b: ipv4_only, c: ''}")
	now, live, fixed := running.Reload(file)
	assert.Equal(t, []Change{
		{"tcpstats.max-open-fds", "3", "4"}, {"tcpstats.flow", "off", "on"},
		{"tcpstats.profiles.a", "ipv4_only", ""}, {"tcpstats.profiles.b", "ipv6_only", "ipv4_only"},
	}, live)
	assert.Equal(t, []Change{{"tcpstats.socket", "/run/oxpd/tcpstats.sock", "/run/other.sock"}, {"tcpstats.group", "", "5"}}, fixed)
	assert.Equal(t, 4, now.TCPStats.MaxOpenFDs)
	assert.Equal(t, map[string]string{"b": "ipv4_only", "c": ""}, now.TCPStats.Profiles)
	assert.Empty(t, now.TCPStats.Socket, "it stays where it is")
	assert.Empty(t, now.TCPStats.Group)
}
