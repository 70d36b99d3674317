package config

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
	"oxpd/internal/divert"
)

func TestDivert(t *testing.T) {
	t.Run("without the section", func(t *testing.T) {
		c, err := Parse("f", []byte("socket: /run/x/oxpd.sock\n"))
		require.NoError(t, err)
		assert.Equal(t, divert.Defaults(), c.Divert.Settings())
		assert.Equal(t, []string{"/run/x/inspect.sock"}, c.Listeners())
		for socket, want := range map[string]string{"/tmp/a.sock": "/tmp/a-inspect.sock", "/tmp/s": "/tmp/s-inspect.sock", "/tmp/oxpd": "/tmp/inspect.sock"} {
			assert.Equal(t, []string{want}, Config{Socket: socket}.Listeners(), "two daemons in one directory")
		}
		all, kind := c.Divert.Mode(board.ByIndex(8))
		assert.False(t, all)
		assert.Equal(t, divert.Socket, kind)
	})
	t.Run("all of it", func(t *testing.T) {
		c, err := Parse("f", []byte(`divert:
  queue-len: 8
  queue-bytes: 64kb
  buffer-size: 4M
  on-full: pass
  on-absent: pass
  on-stall: drop
  stall-ms: 250
  order: keep
  listeners: [/run/a.sock, b.sock]
  ports: {F1: {frames: all}, Port1: {frames: all, engine: tap-pair}, oxp2: {engine: tap-pair}}
`))
		require.NoError(t, err)
		assert.Equal(t, divert.Settings{
			QueueLen: 8, QueueBytes: 64 << 10, BufferSize: 4 << 20, OnFull: divert.Pass, OnAbsent: divert.Pass, Stall: 250 * time.Millisecond, Order: divert.Keep,
		}, c.Divert.Settings())
		assert.Equal(t, []string{"/run/a.sock", "b.sock"}, c.Listeners())
		assert.Empty(t, c.Risks())
		for _, tc := range []struct {
			port int
			mode string
		}{{0, "all by tap-pair"}, {1, "filter by tap-pair"}, {2, "filter by socket"}, {8, "all by socket"}} {
			assert.Equal(t, tc.mode, c.Divert.mode(board.ByIndex(tc.port)), "%d", tc.port)
		}
		b, err := c.YAML()
		require.NoError(t, err)
		assert.Contains(t, string(b), "  queue-len: 8\n  queue-bytes: 64kb\n  buffer-size: 4M\n  on-full: pass\n")
		again, err := Parse("again", b)
		require.NoError(t, err)
		assert.Equal(t, c, again)
	})
}

func TestDivertRefused(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"no frame", "queue-len: 0", `f:2: divert.queue-len: 0: want 1 to 1048576 frames`},
		{"a frame too many", "queue-len: 1048577", `f:2: divert.queue-len: 1048577: want 1 to 1048576 frames`},
		{"beyond a word", "queue-len: 99999999999999999999", `f:2: `},
		{"half a frame", "queue-len: 1.5", `f:2: "1.5" has the wrong type: want a whole number`},
		{"a word for a number", "queue-len: many", `f:2: "many" has the wrong type: want a number`},
		{"no room for one frame", "queue-bytes: 1kb", `f:2: divert.queue-bytes: 1024: want 16384 to 4294967296 (16kb to 4gb)`},
		{"no size", "queue-bytes: 4mib", `f:2: "4mib" is not a size: want 4mb, 64kb or a number of bytes`},
		{"beyond every size", "queue-bytes: 9999999999gb", `f:2: "9999999999gb" is not a size`},
		{"no policy", "on-full: block", `f:2: divert.on-full: found "block", want drop or pass`},
		{"no policy, absent", "on-absent: ''", `f:2: divert.on-absent: found "", want drop or pass`},
		{"no policy, stall", "on-stall: on", `f:2: divert.on-stall: found "on", want drop or pass`},
		{"too soon", "stall-ms: 9", `f:2: divert.stall-ms: 9: want 10 to 60000`},
		{"too late", "stall-ms: 60001", `f:2: divert.stall-ms: 60001: want 10 to 60000`},
		{"no order", "order: some", `f:2: divert.order: found "some", want any or keep`},
		{"no path", "listeners: ['']", `f:2: divert.listeners.0: empty: want a path`},
		{"one path twice", "listeners:\n    - /run/a\n    - /run/./a", `f:4: divert.listeners.1: /run/./a is divert.listeners.0 already`},
		{"the control socket's path", "listeners: [/run/oxpd/oxpd.sock]", `f:2: divert.listeners.0: /run/oxpd/oxpd.sock is the control socket already`},
		{"its lock's", "listeners: [/run/oxpd/oxpd.sock.lock]", `f:2: divert.listeners.0: /run/oxpd/oxpd.sock.lock is the lock of the control socket already`},
		{"no list", "listeners: /run/a", `f:2: "/run/a" has the wrong type: want a list`},
		{"no port", "ports: {oxp13: {frames: all}}", `f:2: divert.ports.oxp13: unknown port "oxp13"`},
		{"a port twice", "ports:\n    F1: {frames: all}\n    oxp9: {}", `f:4: divert.ports.oxp9: is `},
		{"no such frames", "ports:\n    F1:\n      frames: some", `f:4: divert.ports.F1.frames: "some": want filter or all`},
		{"no such engine", "ports: {F1: {engine: nfq}}", `f:2: divert.ports.F1.engine: found "nfq", want socket or tap-pair`},
		{"unknown key", "que-len: 1", `f:2: unknown key "que-len"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Parse("f", []byte("divert:\n  "+tc.text+"\n"))
			require.ErrorContains(t, err, tc.want)
		})
	}
}

// A size of the engines' sockets is never a reason not to start.
func TestBufferSizeIsNeverRefused(t *testing.T) {
	for _, tc := range []struct {
		text, risk string
		want       int64
	}{
		{text: "0"},
		{text: ""},
		{text: "64kb", want: 64 << 10},
		{text: "65536", want: 64 << 10},
		{text: "64mb", want: 64 << 20},
		{text: "64M", want: 64 << 20},
		{text: "65535", risk: "buffer-size 65535: want 64kb to 64mb"},
		{text: "67108865", risk: "buffer-size 67108865: want 64kb to 64mb"},
		{text: "2gb", risk: "buffer-size 2147483648: want"},
		{text: "4294967297", risk: "buffer-size 4294967297: want"},
		{text: "-1", risk: `buffer-size: size "-1": want`},
		{text: "70000.5", risk: `buffer-size: size "70000.5": want`},
		{text: "99999999999999999999", risk: `buffer-size: size "99999999999999999999": want`},
		{text: "large", risk: `buffer-size: size "large": want`},
		{text: "[64kb]", risk: `buffer-size: size "a list": want`},
		{text: "{a: 1.5}", risk: `buffer-size: size "keys with values": want`},
	} {
		t.Run(tc.text, func(t *testing.T) {
			c, err := Parse("f", []byte("divert:\n  queue-len: 7\n  buffer-size: "+tc.text+"\n"))
			require.NoError(t, err)
			s := c.Divert.Settings()
			assert.Equal(t, tc.want, s.BufferSize)
			assert.Equal(t, 7, s.QueueLen)
			if tc.risk == "" {
				assert.Empty(t, c.Risks())
				return
			}
			require.Len(t, c.Risks(), 1)
			assert.Contains(t, c.Risks()[0], "divert."+tc.risk)
			assert.Contains(t, c.Risks()[0], "the kernel's default is taken")
		})
	}
}

func TestDivertChanged(t *testing.T) {
	parse := func(text string) *Divert {
		c, err := Parse("f", []byte("divert: {"+text+"}\n"))
		require.NoError(t, err)
		return &c.Divert
	}
	was := parse("queue-len: 8, queue-bytes: 65536, on-full: pass")
	assert.Empty(t, was.Changed(parse("on-full: pass, queue-bytes: 64kb, queue-len: 8")), "written otherwise")
	assert.Equal(t, []divert.Setting{{Key: "queue-len", Value: "1024"}, {Key: "on-full", Value: "drop"}, {Key: "order", Value: "keep"}},
		was.Changed(parse("queue-bytes: 64k, order: keep")))
	assert.Empty(t, was.Changed(parse("buffer-size: 1, on-full: pass, queue-bytes: 64kb, queue-len: 8")), "a value that cannot be is the default")
}
