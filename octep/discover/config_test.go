package discover

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// space is config space of the card with 4,096 bytes: power management at 0x40, PCI
// Express at 0x70 (endpoint.md 1), MSI-X of 80 vectors at 0xb0; SR-IOV and a vendor's
// capability behind.
func space(edit func(b []byte)) []byte {
	b := make([]byte, 4096)
	le := binary.LittleEndian
	le.PutUint16(b[0:], 0x177d)
	le.PutUint16(b[2:], 0xa300)
	le.PutUint16(b[4:], 0x0006)
	le.PutUint16(b[6:], 0x0010)
	le.PutUint32(b[8:], 0x0b800001)
	b[0x34] = 0x40
	copy(b[0x40:], []byte{0x01, 0x70, 0x03, 0x00, 0x08, 0x00})
	copy(b[0x70:], []byte{0x10, 0xb0, 0x02, 0x00})
	le.PutUint32(b[0x7c:], 0x83)
	le.PutUint16(b[0x82:], 0x1083)
	copy(b[0xb0:], []byte{0x11, 0x00, 0x4f, 0x00})
	le.PutUint32(b[0x100:], 0x14000000|1<<16|0x0010)
	le.PutUint32(b[0x140:], 1<<16|0x000b)
	if edit != nil {
		edit(b)
	}
	return b
}

func TestDecodeConfig(t *testing.T) {
	c, err := DecodeConfig(space(nil))
	require.NoError(t, err)
	assert.Equal(t, &Config{
		Vendor: 0x177d, Device: 0xa300, Command: 6, Class: 0x0b8000, Revision: 1, Power: "D0",
		Link: &Link{8, 8, 8, 8}, MSIX: &MSIX{Vectors: 80},
		Capabilities: []Capability{
			{"0x40", "0x01", "power management", false}, {"0x70", "0x10", "PCI Express", false}, {"0xb0", "0x11", "MSI-X", false},
			{"0x100", "0x0010", "SR-IOV", true}, {"0x140", "0x000b", "vendor specific", true},
		},
	}, c)
}

func TestDecodeConfigOfOtherStates(t *testing.T) {
	le := binary.LittleEndian
	for _, tt := range []struct {
		name string
		b    []byte
		look func(t *testing.T, c *Config)
	}{
		{"held in reset", space(func(b []byte) {
			for i := range b {
				b[i] = 0xff
			}
		}), func(t *testing.T, c *Config) {
			assert.True(t, c.Gone)
			assert.Empty(t, c.Capabilities)
		}},
		{"shown to somebody who is not root", space(nil)[:64], func(t *testing.T, c *Config) {
			assert.True(t, c.Partial)
			assert.Empty(t, c.Capabilities)
		}},
		{"without the extended part", space(nil)[:256], func(t *testing.T, c *Config) { assert.Len(t, c.Capabilities, 3) }},
		{"no capabilities, by its status", space(func(b []byte) { b[6] = 0 })[:256], func(t *testing.T, c *Config) { assert.Empty(t, c.Capabilities) }},
		{"asleep", space(func(b []byte) { b[0x44] = 3 }), func(t *testing.T, c *Config) { assert.Equal(t, "D3hot", c.Power) }},
		{"a narrow link", space(func(b []byte) { le.PutUint16(b[0x82:], 0x1041) }), func(t *testing.T, c *Config) { assert.Equal(t, &Link{2.5, 4, 8, 8}, c.Link) }},
		{"MSI-X on", space(func(b []byte) { b[0xb3] = 0x80 }), func(t *testing.T, c *Config) { assert.Equal(t, &MSIX{80, true}, c.MSIX) }},
		{"a list that comes round", space(func(b []byte) { b[0xb1] = 0x40 }), func(t *testing.T, c *Config) { assert.Len(t, c.Capabilities, 5) }},
		{"a list into the header", space(func(b []byte) { b[0x41] = 0x10 }), func(t *testing.T, c *Config) { assert.Len(t, c.Capabilities, 3) }},
		{"an extended list that comes round", space(func(b []byte) { le.PutUint32(b[0x140:], 0x10010000|0xb) }), func(t *testing.T, c *Config) { assert.Len(t, c.Capabilities, 5) }},
		{"a capability cut off by the end", space(func(b []byte) { b[0xb1] = 0xfc; b[0xfc] = 0x10 }), func(t *testing.T, c *Config) { assert.Len(t, c.Capabilities, 6) }},
		{"a speed that nobody knows", space(func(b []byte) { b[0x82] = 0x8f }), func(t *testing.T, c *Config) { assert.Zero(t, c.Link.GTps) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := DecodeConfig(tt.b)
			require.NoError(t, err)
			tt.look(t, c)
		})
	}
	for _, tt := range []struct {
		name string
		b    []byte
	}{{"nothing", nil}, {"63 bytes", space(nil)[:63]}, {"a bridge", space(func(b []byte) { b[0x0e] = 0x81 })}} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := DecodeConfig(tt.b)
			require.ErrorIs(t, err, ErrConfig)
		})
	}
}

func FuzzDecodeConfig(f *testing.F) {
	f.Add(space(nil))
	f.Add(space(func(b []byte) { b[0xb1] = 0xfd; b[0xfc] = 0x11 })[:256])
	f.Add(space(func(b []byte) { b[0xb2], b[0xb3] = 0xff, 0xff }))
	f.Add(make([]byte, 64))
	f.Add(make([]byte, 63))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := DecodeConfig(b)
		if err != nil {
			assert.ErrorIs(t, err, ErrConfig)
			return
		}
		assert.LessOrEqual(t, len(c.Capabilities), (confSize+extendedSize)/4)
		if c.MSIX != nil {
			assert.LessOrEqual(t, c.MSIX.Vectors, 2048)
		}
	})
}
