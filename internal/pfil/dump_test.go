package pfil

import (
	"bytes"
	"errors"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write testdata anew")

// What the dump says is looked at by eye when it changes: go test -run Dump -update.
func TestDump(t *testing.T) {
	var v6 []netip.Prefix
	for i := range byte(20) {
		v6 = append(v6, netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, i}), 16))
	}
	for _, tc := range []struct {
		name, rules string
		prefixes    []netip.Prefix // beside the three of the set
	}{
		{"few", header + "drop ip from set bad to any in on oxp9\npass program all out\ncount any from any to any\n", nil},
		{"many", header + mixedRules(60) + "drop udp from 203.0.0.0/12 to any\ndrop ip from set bad to any out\n", v6},
		{"none", "", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rs, err := parse(tc.rules)
			require.NoError(t, err)
			for i := range rs.Sets {
				rs.Sets[i].Prefixes = append(rs.Sets[i].Prefixes, tc.prefixes...)
			}
			p, err := Compile(rs)
			require.NoError(t, err)
			var b bytes.Buffer
			require.NoError(t, p.Dump(&b))
			path := filepath.Join("testdata", "dump_"+tc.name+".txt")
			if *update {
				require.NoError(t, os.WriteFile(path, b.Bytes(), 0o644))
			}
			want, err := os.ReadFile(path)
			require.NoError(t, err)
			assert.Equal(t, string(want), b.String())
		})
	}
}

type full struct{}

var errFull = errors.New("no space left")

func (full) Write([]byte) (int, error) { return 0, errFull }

func TestDumpTellsWhenItCannotWrite(t *testing.T) {
	p, err := Compile(&Rules{})
	require.NoError(t, err)
	assert.ErrorIs(t, p.Dump(full{}), errFull)
}
