package board

import (
	"bufio"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// row is one port as the pages have it.
type row struct {
	name, label            string
	tag, iface, lif        int
	switchPort, mbps, path int
}

func pages(t *testing.T) []row {
	t.Helper()
	f, err := os.Open("testdata/ports.txt")
	require.NoError(t, err)
	defer f.Close()
	var rows []row
	for s := bufio.NewScanner(f); s.Scan(); {
		line := s.Text()
		if strings.HasPrefix(line, "#") {
			continue
		}
		w := strings.Fields(line)
		require.Len(t, w, 8, line)
		n := make([]int, len(w))
		for i := 2; i < len(w); i++ {
			if w[i] == "-" {
				continue
			}
			v, err := strconv.ParseInt(w[i], 0, 32)
			require.NoError(t, err, line)
			n[i] = int(v)
		}
		rows = append(rows, row{w[0], w[1], n[2], n[3], n[4], n[5], n[6], n[7]})
	}
	return rows
}

func TestTable(t *testing.T) {
	rows := pages(t)
	require.Len(t, rows, Ports)
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			p, err := Parse(r.name)
			require.NoError(t, err)
			assert.Equal(t, r, row{p.Name, p.Label, int(p.Tag), int(p.Iface), int(p.LIF()), p.SwitchPort, p.SpeedMbps, p.FastPath})
			assert.Equal(t, r.switchPort != 0, p.BehindSwitch())

			byTag, ok := ByTag(Tag(r.tag))
			assert.True(t, ok)
			assert.Equal(t, p, byTag)
			assert.Equal(t, p, ByIndex(p.Index))
			assert.Equal(t, p, All()[p.Index])
			assert.Equal(t, r.name, "oxp"+strconv.Itoa(p.Index+1))
			assert.Equal(t, r.name+" ("+r.label+")", p.String())
		})
	}
}

// TestSwitchRule: endpoint.md 10, the rule that the two direct cages do not follow.
func TestSwitchRule(t *testing.T) {
	direct := 0
	for _, p := range All() {
		if !p.BehindSwitch() {
			direct++
			continue
		}
		assert.Equal(t, Tag(0x8000|p.SwitchPort<<8), p.Tag, p.Name)
		assert.EqualValues(t, p.SwitchPort-1, p.Iface, p.Name)
	}
	assert.Equal(t, 2, direct)
}

func TestByTagUnknown(t *testing.T) {
	for _, tag := range []Tag{0, 3, TagUplink, TagControl, 0x8b00, 0x8120, 0x0100, 0xfc10, 0xffff} {
		t.Run(tag.String(), func(t *testing.T) {
			_, ok := ByTag(tag)
			assert.False(t, ok)
		})
	}
}

func TestTagString(t *testing.T) {
	assert.Equal(t, "0x0001", Tag(1).String())
	assert.Equal(t, "0x8a00", Tag(0x8a00).String())
}

func TestParse(t *testing.T) {
	for _, tc := range []struct{ name, in, want string }{
		{"interface", "oxp9", "oxp9"},
		{"interface of two digits", "oxp12", "oxp12"},
		{"interface in capitals", "OXP9", "oxp9"},
		{"label", "PortF1", "oxp9"},
		{"label in small letters", "portf4", "oxp12"},
		{"label of a copper port", "Port8", "oxp8"},
		{"short label", "F2", "oxp10"},
		{"short label in small letters", "f3", "oxp11"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, err := Parse(tc.in)
			require.NoError(t, err)
			assert.Equal(t, tc.want, p.Name)
		})
	}
	for name, in := range map[string]string{
		"empty":                     "",
		"one past the last":         "oxp13",
		"zero":                      "oxp0",
		"leading zero":              "oxp01",
		"label past the last":       "PortF5",
		"label 9, which is F1":      "Port9",
		"short label past the last": "F5",
		"a copper port's number":    "1",
		"prefix alone":              "oxp",
		"label prefix alone":        "Port",
		"a blank in front":          " oxp9",
		"tag":                       "0x8100",
		"other interface":           "eth0",
	} {
		t.Run("unknown: "+name, func(t *testing.T) {
			_, err := Parse(in)
			var unknown *UnknownPortError
			require.ErrorAs(t, err, &unknown)
			assert.Equal(t, in, unknown.Name)
			assert.Contains(t, err.Error(), strconv.Quote(in))
			assert.Contains(t, err.Error(), "F1 to F4")
		})
	}
}

// FuzzParse: a name that is accepted leads to the port that has it.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"oxp1", "PortF1", "f4", "", "Port", "oxp13", "ſ1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := Parse(s)
		if err != nil {
			return
		}
		if !strings.EqualFold(s, p.Name) && !strings.EqualFold(s, p.Label) && !strings.EqualFold("Port"+s, p.Label) {
			t.Errorf("%q is %v", s, p)
		}
	})
}

func TestCheckMTU(t *testing.T) {
	for _, mtu := range []int{MinMTU, MinMTU + 1, DefaultMTU, MaxMTU - 1, MaxMTU} {
		assert.NoError(t, CheckMTU(mtu), mtu)
	}
	for _, mtu := range []int{MinMTU - 1, MaxMTU + 1, 0, -1, 1 << 40} {
		var e *MTURangeError
		require.ErrorAs(t, CheckMTU(mtu), &e)
		assert.Equal(t, mtu, e.MTU)
		assert.Contains(t, e.Error(), "72 to 9000")
	}
	assert.Equal(t, [...]int{72, 9000, 1500}, [...]int{MinMTU, MaxMTU, DefaultMTU}, "datapath.md 5.3")
}

// TestTableIsACopy: nobody can change the board.
func TestTableIsACopy(t *testing.T) {
	all := All()
	all[0].Tag = 0
	assert.NotEqual(t, all[0], ByIndex(0))
}
