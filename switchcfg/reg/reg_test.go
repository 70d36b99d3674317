package reg

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// Worked examples of switch.md 2.
func TestCommandWords(t *testing.T) {
	assert.Equal(t, uint16(0x9828), ReadCommand(1, PortControl2))
	assert.Equal(t, uint16(0x9428), WriteCommand(1, PortControl2))
	assert.Equal(t, uint16(0x9948), ReadCommand(10, 8))
	assert.Equal(t, uint16(0x9b98), ReadCommand(Global2, 0x18))
}

func TestJumboFieldTouchesNoOtherBit(t *testing.T) {
	for _, old := range []uint16{0, 0xffff, 0x1080, 0xcfff, 0x3000} {
		for j := Jumbo1522; j <= Jumbo10240; j++ {
			v := j.Put(old)
			assert.Equal(t, j, JumboOf(v))
			assert.Equal(t, old&^JumboMask, v&^JumboMask)
		}
	}
	assert.Equal(t, uint16(0x2080), Jumbo10240.Put(0x1080))
	assert.Equal(t, []int{1522, 2048, 10240, 0}, []int{Jumbo1522.FrameBytes(), Jumbo2048.FrameBytes(), Jumbo10240.FrameBytes(), JumboReserved.FrameBytes()})
}

// The table of switch.md 7, with phy and register for its variables.
func TestPHYCommandWords(t *testing.T) {
	for _, c := range []struct {
		name      string
		got, want uint16
	}{
		{"clause 22 read", PHYReadCommand(3, 22), 0x9800 | 3<<5 | 22},
		{"clause 22 write", PHYWriteCommand(8, 0), 0x9400 | 8<<5},
		{"clause 45 address", C45AddressCommand(9, 4), 0x8000 | 9<<5 | 4},
		{"clause 45 write", C45WriteCommand(10, 4), 0x8400 | 10<<5 | 4},
		{"clause 45 read", C45ReadCommand(0, 4), 0x8c00 | 4},
	} {
		assert.Equal(t, c.want, c.got, c.name)
	}
}

// The values that were seen, switch.md 4.
func TestFieldsOfRegistersAsSeen(t *testing.T) {
	for _, c := range []struct {
		name         string
		v            Status
		link, duplex bool
		speed        int
		cmode        Status
	}{
		{"uplink", 0x0f4d, true, true, 3, CMode10GR},
		{"copper with link", 0x0e0f, true, true, 2, CModeInternal},
		{"copper without", 0x000f, false, false, 0, CModeInternal},
		{"cage without link", 0x0249, false, false, 2, CMode1000X},
		{"cage with link", 0x0e49, true, true, 2, CMode1000X},
	} {
		assert.Equal(t, []any{c.link, c.duplex, c.speed, c.cmode}, []any{c.v.Link(), c.v.FullDuplex(), c.v.Speed(), c.v.CMode()}, c.name)
	}
	for v, want := range map[uint16]State{0x017f: StateForwarding, 0x007f: StateForwarding, 0x007c: StateDisabled} {
		assert.Equal(t, want, StateOf(v), "%#x", v)
	}
	assert.Equal(t, uint16(0x007f), StateForwarding.Put(0x007c))
	assert.Equal(t, uint16(0x017c), StateDisabled.Put(0x017f))
	assert.Equal(t, []int{Product, 0}, []int{ID(0x1930).Product(), ID(0x1930).Revision()})
	assert.Equal(t, 0xf, ID(0x193f).Revision())
}

func TestRequest(t *testing.T) {
	r := Request{Bus: 0, Phy: 2, Reg: 1, Data: 0x9828}
	b := []byte{0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0x28, 0x98, 0, 0}
	assert.Equal(t, b, r.Append(nil))
	var got Request
	assert.True(t, got.Decode(b))
	assert.Equal(t, r, got)
	assert.False(t, got.Decode(b[:RequestSize-1]))
	assert.True(t, got.Decode([]byte{0xff, 0xff, 0xff, 0xff, 7, 0, 0, 0, 0, 0, 0, 0x40, 0, 0, 1, 2}))
	assert.Equal(t, Request{Bus: -1, Phy: 7, Reg: Clause45, Padding: 0x0201}, got)
}

// The rows of SW-1, before the cap of a LIF.
func TestMTU(t *testing.T) {
	for _, tc := range []struct {
		panel, uplink Jumbo
		want          int
	}{
		{Jumbo1522, Jumbo1522, 1500}, {Jumbo2048, Jumbo2048, 2026}, {Jumbo2048, Jumbo10240, 2030}, {Jumbo10240, Jumbo2048, 2026}, {Jumbo10240, Jumbo10240, 10218},
		{JumboReserved, Jumbo10240, 0}, {Jumbo10240, JumboReserved, 0},
	} {
		assert.Equal(t, tc.want, MTU(tc.panel, tc.uplink), "%d %d", tc.panel, tc.uplink)
	}
}
