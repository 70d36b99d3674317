package divert

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSettingsByKey(t *testing.T) {
	d := Defaults()
	for _, tc := range []struct {
		key, value string
		want       func(s *Settings)
		shown      string // "": as written
	}{
		{"queue-len", "8", func(s *Settings) { s.QueueLen = 8 }, ""},
		{"queue-bytes", "65536", func(s *Settings) { s.QueueBytes = 64 << 10 }, "64kb"},
		{"queue-bytes", "4gb", func(s *Settings) { s.QueueBytes = 4 << 30 }, ""},
		{"queue-bytes", "20001", func(s *Settings) { s.QueueBytes = 20001 }, ""},
		{"buffer-size", "0", func(*Settings) {}, ""},
		{"buffer-size", "64K", func(s *Settings) { s.BufferSize = 64 << 10 }, "64kb"},
		{"buffer-size", "67108864", func(s *Settings) { s.BufferSize = 64 << 20 }, "64mb"},
		{"on-full", "pass", func(s *Settings) { s.OnFull = Pass }, ""},
		{"on-absent", "pass", func(s *Settings) { s.OnAbsent = Pass }, ""},
		{"on-stall", "pass", func(s *Settings) { s.OnStall = Pass }, ""},
		{"stall-ms", "10", func(s *Settings) { s.Stall = 10 * time.Millisecond }, ""},
		{"order", "keep", func(s *Settings) { s.Order = Keep }, ""},
	} {
		t.Run(tc.key+"="+tc.value, func(t *testing.T) {
			want := d
			tc.want(&want)
			got, err := d.With(Setting{tc.key, tc.value})
			require.NoError(t, err)
			assert.Equal(t, want, got)
			if tc.shown == "" {
				tc.shown = tc.value
			}
			assert.Contains(t, got.List(), Setting{tc.key, tc.shown})
		})
	}
	t.Run("what is listed is taken", func(t *testing.T) {
		all := Settings{QueueLen: 7, QueueBytes: 20001, BufferSize: 1 << 20, OnFull: Pass, OnAbsent: Pass, OnStall: Pass, Stall: time.Minute, Order: Keep}
		got := d
		var names []string
		for _, v := range all.List() {
			var err error
			got, err = got.With(v)
			require.NoError(t, err)
			names = append(names, v.Key)
		}
		assert.Equal(t, all, got)
		assert.Equal(t, Keys(), names)
	})
}

func TestSettingsRefusedByKey(t *testing.T) {
	for _, tc := range []struct{ key, value, want string }{
		{"queue-length", "8", `no setting is called "queue-length": want queue-len, queue-bytes, buffer-size, on-full, on-absent, on-stall, stall-ms, order`},
		{"", "8", `no setting is called ""`},
		{"queue-len", "0", "queue-len 0: want 1 to 1048576 frames"},
		{"queue-len", "1048577", "queue-len 1048577: want 1 to 1048576 frames"},
		{"queue-len", "8kb", `queue-len: "8kb": want 1 to 1048576 frames`},
		{"queue-len", "99999999999999999999", `queue-len: "99999999999999999999": want`},
		{"queue-bytes", "1", "queue-bytes 1: want 16384 to"},
		{"queue-bytes", "", `queue-bytes: size "": want`},
		{"buffer-size", "65535", "buffer-size 65535: want 64kb to 64mb"},
		{"buffer-size", "67108865", "buffer-size 67108865: want 64kb to 64mb"},
		{"buffer-size", "4294967296", "buffer-size 4294967296: want"},
		{"buffer-size", "-64kb", `buffer-size: size "-64kb": want`},
		{"on-full", "Pass", `on-full: found "Pass", want drop or pass`},
		{"on-absent", "", `on-absent: found "", want drop or pass`},
		{"on-stall", "keep", `on-stall: found "keep", want drop or pass`},
		{"stall-ms", "9", "stall-ms 9: want 10 to 60000"},
		{"stall-ms", "1s", `stall-ms: "1s": want 10 to 60000`},
		{"order", "none", `order: found "none", want any or keep`},
	} {
		t.Run(tc.key+"="+tc.value, func(t *testing.T) {
			before := Settings{QueueLen: 9, QueueBytes: 1 << 20, Stall: time.Second, OnFull: Pass}
			got, err := before.With(Setting{tc.key, tc.value})
			require.ErrorContains(t, err, tc.want)
			assert.Equal(t, before, got)
		})
	}
}
