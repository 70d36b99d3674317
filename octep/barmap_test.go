package octep

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/octep/csr"
)

// readHex reads a vector: hexadecimal bytes, # starts a comment.
func readHex(t testing.TB, name string) (b []byte) {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		line, _, _ := strings.Cut(s.Text(), "#")
		v, err := hex.DecodeString(strings.Join(strings.Fields(line), ""))
		require.NoError(t, err)
		b = append(b, v...)
	}
	return b
}

func TestBarmapGolden(t *testing.T) {
	raw := readHex(t, "testdata/barmap.hex")
	var m csr.Barmap
	require.NoError(t, m.Decode(raw))
	assert.Equal(t, measured(), m)
	assert.Equal(t, raw, m.Append(nil))
	assert.NoError(t, checkBarmap(&m, 0x02000000))
}

func TestCheckBarmap(t *testing.T) {
	const at = 0x02000000
	tests := []struct {
		name   string
		change func(m *csr.Barmap)
		field  string // of the *BarmapError; "" is accepted
	}{
		{"as measured", func(m *csr.Barmap) {}, ""},
		{"doorbells of the published device tree", func(m *csr.Barmap) {
			for i := range 4 {
				m.Facility[i].Doorbell -= 152 - 47
			}
		}, ""},
		{"all absent", func(m *csr.Barmap) { m.Facility = [5]csr.Facility{} }, ""},
		{"size 0 hides a mad record", func(m *csr.Barmap) {
			m.Facility[2] = csr.Facility{Offset: ^uint32(0), Doorbell: ^uint32(0), Doorbells: ^uint32(0)}
		}, ""},
		{"window up to the interrupt entry", func(m *csr.Barmap) { m.Facility[4] = csr.Facility{Offset: 0x03b00000, Size: 0x100000} }, ""},
		{"window without doorbells", func(m *csr.Barmap) { m.Facility[1].Doorbell, m.Facility[1].Doorbells = 0, 0 }, ""},
		{"gicd_offset at the start of entry 15", func(m *csr.Barmap) { m.GICD = 0x03c00000 }, ""},
		{"gicd_offset in the last word of BAR2", func(m *csr.Barmap) { m.GICD = 0x03fffffc }, ""},
		{"gicd_offset in entry 14, windows below", func(m *csr.Barmap) { m.GICD = 0x03800040 }, ""},

		{"window one byte into the interrupt entry", func(m *csr.Barmap) { m.Facility[4] = csr.Facility{Offset: 0x03b00000, Size: 0x100001} }, "size"},
		{"window at the interrupt word", func(m *csr.Barmap) { m.Facility[3].Offset = 0x03c00040 }, "size"},
		{"window past BAR2", func(m *csr.Barmap) { m.Facility[3].Offset = 0x04000000 }, "size"},
		{"offset and size wrap 32 bits", func(m *csr.Barmap) { m.Facility[3].Offset, m.Facility[3].Size = 0xfffffff8, 0x10 }, "size"},
		{"size of all ones", func(m *csr.Barmap) { m.Facility[3].Size = ^uint32(0) }, "size"},
		{"window above a gicd_offset in entry 14", func(m *csr.Barmap) {
			m.GICD = 0x03800040
			m.Facility[4] = csr.Facility{Offset: 0x03b00000, Size: 0x1000}
		}, "size"},
		{"offset not aligned", func(m *csr.Barmap) { m.Facility[3].Offset += 4 }, "offset"},
		{"window over another", func(m *csr.Barmap) { m.Facility[3].Offset = m.Facility[2].Offset + 0xffff8 }, "offset"},
		{"window over the barmap", func(m *csr.Barmap) { m.Facility[0] = csr.Facility{}; m.Facility[3].Offset = at }, "offset"},
		{"doorbell 0 of 1", func(m *csr.Barmap) { m.Facility[3].Doorbell = 0 }, "doorbell"},
		{"doorbell one below the shared interrupts", func(m *csr.Barmap) { m.Facility[3].Doorbell = 31 }, "doorbell"},
		{"last doorbell one past the shared interrupts", func(m *csr.Barmap) { m.Facility[3].Doorbell = 1016 }, "doorbell"},
		{"doorbell count wraps", func(m *csr.Barmap) { m.Facility[3].Doorbells = ^uint32(0) }, "doorbell"},
		{"doorbell of another facility", func(m *csr.Barmap) { m.Facility[3].Doorbell = 150 }, "doorbell"},
		{"gicd_offset 0", func(m *csr.Barmap) { m.GICD = 0 }, "gicd_offset"},
		{"gicd_offset not aligned", func(m *csr.Barmap) { m.GICD = 0x03c00042 }, "gicd_offset"},
		{"gicd_offset at the end of BAR2", func(m *csr.Barmap) { m.GICD = 0x04000000 }, "gicd_offset"},
		{"gicd_offset of all ones", func(m *csr.Barmap) { m.GICD = ^uint32(0) }, "gicd_offset"},
		{"gicd_offset among the windows", func(m *csr.Barmap) { m.GICD = 0x02300040 }, "gicd_offset"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := measured()
			tt.change(&m)
			err := checkBarmap(&m, at)
			if tt.field == "" {
				require.NoError(t, err)
				return
			}
			var bad *BarmapError
			require.ErrorAs(t, err, &bad)
			assert.Equal(t, tt.field, bad.Field)
			assert.Contains(t, err.Error(), "octep: read barmap: "+bad.Facility)
		})
	}
}

func TestCheckBarmapVersion(t *testing.T) {
	for _, v := range []uint32{0, 1, 3, 0x00010002, 0x00020000, 0x02000000, 0xfffffffe} {
		m := measured()
		m.Version = v
		var ve *VersionError
		require.ErrorAs(t, checkBarmap(&m, 0x02000000), &ve, "%#x", v)
		assert.Equal(t, v, ve.Version)
	}
	assert.EqualError(t, &VersionError{Version: 0x00010003}, "octep: read barmap: version 1.3; only 0.2 is known")

	m := measured()
	m.Version = ^uint32(0)
	assert.ErrorIs(t, checkBarmap(&m, 0x02000000), errTableBlank)
}

func TestCheckPointer(t *testing.T) {
	tests := []struct {
		name string
		at   uint32
		ok   bool
	}{
		{"as measured", 0x02000000, true},
		{"never mapped, harmless", 0, true},
		{"last that fits below the forbidden part", 0x02400000 - 0x5c, true},
		{"one word further", 0x02400000 - 0x58, false},
		{"not aligned", 0x02000002, false},
		{"coprocessor RAM", 0x02400000, false},
		{"interrupt controller (CTL-2)", 0x03c00000, false},
		{"last word of BAR2 (CTL-2)", 0x03fffffc, false},
		{"past BAR2 (CTL-2)", 0x04000000, false},
		{"table wraps 32 bits", 0xffffffb0, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := checkPointer(tt.at)
			if tt.ok {
				assert.NoError(t, err)
				return
			}
			var bad *BarmapError
			require.ErrorAs(t, err, &bad)
			assert.Equal(t, "pointer", bad.Field)
		})
	}
}

// FuzzBarmap: whatever the table says, an accepted one lets nothing through at or
// above the interrupt controller, and no doorbell outside the shared interrupts.
func FuzzBarmap(f *testing.F) {
	f.Add(readHex(f, "testdata/barmap.hex"), uint32(0x02000000), uint32(0x02300000))
	f.Add(bytes.Repeat([]byte{0xff}, csr.BarmapSize), uint32(0), uint32(0x03c00040))
	f.Add([]byte{2, 0, 0}, uint32(0x02000000), uint32(0))
	f.Fuzz(func(t *testing.T, raw []byte, at, probe uint32) {
		var m csr.Barmap
		if err := m.Decode(raw); err != nil {
			require.ErrorIs(t, err, csr.ErrShort)
			return
		}
		again := csr.Barmap{}
		require.NoError(t, again.Decode(m.Append(nil)))
		require.Equal(t, m, again)
		if checkBarmap(&m, at) != nil {
			return
		}
		raw0 := newFakeBAR(csr.BAR2Size, 0)
		g := newGuard(raw0, Config{}.withDefaults().Logger)
		g.allow(at, &m)
		for _, off := range []uint32{probe, probe &^ 7, m.GICD, m.GICD &^ 7, 0x03c00000, 0x03fffff8, at, m.Facility[0].Offset + m.Facility[0].Size} {
			g.Load32(off)
			g.Load64(off)
			g.Store32(off, 1)
			g.Store64(off, 1)
		}
		for _, a := range raw0.log {
			require.Less(t, uint64(a.off)+uint64(a.width), uint64(csr.BAR2Interrupt)+1, "%+v", a)
			require.Less(t, a.off, m.GICD)
		}
		raw0.log = nil
		if g.ring(probe) {
			require.True(t, probe >= 32 && probe <= 1019)
			require.Equal(t, []access{{true, m.GICD, 4, uint64(probe)}}, raw0.log)
		} else {
			require.Empty(t, raw0.log)
		}
	})
}
