package vfu

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type codec interface {
	Decode([]byte) error
	append([]byte) []byte
}

func (h *Header) append(b []byte) []byte { return h.Append(b) }
func (h *Hello) append(b []byte) []byte  { return h.Append(b) }
func (m *Map) append(b []byte) []byte    { return m.Append(b) }
func (m *Unmap) append(b []byte) []byte  { return m.Append(b) }
func (d *Device) append(b []byte) []byte { return d.Append(b) }
func (r *Region) append(b []byte) []byte { return r.Append(b) }
func (i *IRQ) append(b []byte) []byte    { return i.Append(b) }
func (s *IRQSet) append(b []byte) []byte { return s.Append(b) }
func (a *Access) append(b []byte) []byte { return a.Append(b) }

func all() []codec {
	return []codec{&Header{}, &Hello{}, &Map{}, &Unmap{}, &Device{}, &Region{}, &IRQ{}, &IRQSet{}, &Access{}}
}

// TestLayout writes each message out as docs/interop/vfio-user.rst has its table.
func TestLayout(t *testing.T) {
	for _, c := range []struct {
		name string
		m    codec
		hex  string
	}{
		{"header", &Header{0x1122, WriteAt, 0x33445566, FlagNoReply, 0x778899aa}, "2211 0a00 66554433 10000000 aa998877"},
		{"version", &Hello{0, 1, Capabilities{8, 1 << 20, 65535, 4096}},
			"0000 0100" + hex.EncodeToString([]byte(`{"capabilities":{"max_msg_fds":8,"max_data_xfer_size":1048576,"max_dma_maps":65535,"pgsizes":4096}}`)) + "00"},
		{"map", &Map{32, MapRead | MapWrite, 0x1000, 0xfffffffffffff000, 0x2000}, "20000000 03000000 0010000000000000 00f0ffffffffffff 0020000000000000"},
		{"unmap", &Unmap{24, UnmapAll, 0x1122334455667788, 1}, "18000000 02000000 8877665544332211 0100000000000000"},
		{"device", &Device{16, DeviceReset | DevicePCI, Regions, IRQs}, "10000000 03000000 09000000 05000000"},
		{"region", &Region{64, RegionRead | RegionWrite | RegionMap | RegionCaps, 2, 32, 64 << 20, 0x1000},
			"40000000 0f000000 02000000 20000000 0000000400000000 0010000000000000"},
		{"irq", &IRQ{16, IRQEventFD, IRQMSIX, 80}, "10000000 01000000 02000000 50000000"},
		{"irq set", &IRQSet{23, IRQBool | IRQTrigger, IRQMSIX, 16, 3, []byte{1, 0, 1}}, "17000000 22000000 02000000 10000000 03000000 010001"},
		{"access", &Access{0x20190, 0, 8, []byte{1, 2, 3, 4, 5, 6, 7, 8}}, "9001020000000000 00000000 08000000 0102030405060708"},
	} {
		t.Run(c.name, func(t *testing.T) {
			want, err := hex.DecodeString(strings.ReplaceAll(c.hex, " ", ""))
			require.NoError(t, err)
			assert.Equal(t, want, c.m.append(nil))
			require.NoError(t, c.m.Decode(want))
			assert.Equal(t, want, c.m.append(nil), "what was decoded is written the same")
			assert.ErrorIs(t, c.m.Decode(want[:3]), ErrMalformed)
		})
	}
}

func TestVersionText(t *testing.T) {
	def := DefaultCapabilities()
	for _, c := range []struct {
		name, text string
		want       Capabilities
		bad        bool
	}{
		{"no text", "", def, false},
		{"only its end", "\x00", def, false},
		{"nothing said", "{}\x00", def, false},
		{"one number", `{"capabilities":{"max_msg_fds":8}}` + "\x00", Capabilities{8, def.MaxTransfer, def.MaxMaps, def.PageSizes}, false},
		{"what nobody here knows", `{"capabilities":{"write_multiple":true,"migration":{"pgsize":4096}},"x":[]}` + "\x00", def, false},
		{"no end", `{"capabilities":{}}`, def, true},
		{"no JSON", "hello\x00", def, true},
		{"a number below 0", `{"capabilities":{"max_msg_fds":-1}}` + "\x00", def, true},
		{"a fraction", `{"capabilities":{"max_msg_fds":1.5}}` + "\x00", def, true},
		{"text for a number", `{"capabilities":{"max_data_xfer_size":"1"}}` + "\x00", def, true},
		{"behind its end", "{}\x00{}\x00", def, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var h Hello
			err := h.Decode(append([]byte{0, 0, 7, 0}, c.text...))
			if c.bad {
				assert.ErrorIs(t, err, ErrMalformed)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, Hello{0, 7, c.want}, h)
		})
	}
}

func TestAreas(t *testing.T) {
	want := []Area{{0, 0x2400000}, {0x3000000, 0x1000}}
	r := Region{Flags: RegionCaps, CapOffset: RegionSize}
	good := AppendAreas(r.Append(nil), want...)
	require.Len(t, good, RegionSize+AreasSize(2))
	got, ok, err := r.DecodeAreas(good)
	require.NoError(t, err)
	assert.True(t, ok)
	assert.Equal(t, want, got)

	other := append(r.Append(nil), 9, 0, 1, 0, RegionSize+8, 0, 0, 0) // some other capability in front
	got, ok, err = r.DecodeAreas(AppendAreas(other, want...))
	require.NoError(t, err)
	assert.True(t, ok)
	assert.Equal(t, want, got)

	_, ok, err = (&Region{}).DecodeAreas(good)
	assert.False(t, ok, "no capabilities")
	assert.NoError(t, err)
	_, ok, err = (&Region{Flags: RegionCaps}).DecodeAreas(good)
	assert.False(t, ok, "none in the list")
	assert.NoError(t, err)

	edit := func(at int, b ...byte) []byte {
		m := append([]byte(nil), good...)
		copy(m[at:], b)
		return m
	}
	for name, c := range map[string]struct {
		offset uint32
		b      []byte
	}{
		"inside of the fixed part":  {8, good},
		"behind the end":            {uint32(len(good)), good},
		"cut short":                 {RegionSize, good[:RegionSize+12]},
		"more areas than there are": {RegionSize, edit(RegionSize+8, 3)},
		"four billion areas":        {RegionSize, edit(RegionSize+8, 0xff, 0xff, 0xff, 0xff)},
		"a circle":                  {RegionSize, edit(RegionSize, 9, 0, 1, 0, RegionSize)},
		"the next behind the end":   {RegionSize, edit(RegionSize, 9, 0, 1, 0, 0xff, 0xff, 0xff, 0xff)},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := (&Region{Flags: RegionCaps, CapOffset: c.offset}).DecodeAreas(c.b)
			assert.ErrorIs(t, err, ErrMalformed)
		})
	}
}

// FuzzDecode: no payload makes a decoder fail otherwise than by its error, and what
// is written again and decoded is the same.
func FuzzDecode(f *testing.F) {
	for _, m := range all() {
		f.Add(m.append(nil))
	}
	f.Add(AppendAreas(Region{Flags: RegionCaps, CapOffset: RegionSize}.Append(nil), Area{1, 2}))
	f.Add([]byte("\x00\x00\x01\x00" + `{"capabilities":{"max_msg_fds":8}}` + "\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		again := all()
		for i, m := range all() {
			if err := m.Decode(b); err != nil {
				require.ErrorIs(t, err, ErrMalformed)
				continue
			}
			written := m.append(nil)
			require.NoError(t, again[i].Decode(written))
			require.Equal(t, written, again[i].append(nil))
			if r, ok := m.(*Region); ok {
				areas, _, err := r.DecodeAreas(b)
				require.LessOrEqual(t, len(areas)*areaSize, len(b))
				if err != nil {
					require.ErrorIs(t, err, ErrMalformed)
				}
			}
		}
	})
}
