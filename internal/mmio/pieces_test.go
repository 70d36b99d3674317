package mmio

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestPieces(t *testing.T) {
	rest, all := mapped(t, 64)
	low, lowMem := mapped(t, 16)
	high, highMem := mapped(t, 8)
	p := &Pieces{Rest: rest, Mapped: []Piece{{0, low}, {32, high}}}
	assert.EqualValues(t, 64, p.Size())
	for _, tt := range []struct {
		name string
		off  uint32
		mem  []byte
		at   int
	}{
		{"the first byte of the first", 0, lowMem, 0},
		{"the last of the first", 8, lowMem, 8},
		{"behind the first", 16, all, 16},
		{"before the second", 24, all, 24},
		{"the second", 32, highMem, 0},
		{"behind the second", 40, all, 40},
		{"the end", 56, all, 56},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p.Store64(tt.off, 0x1122334455667788)
			assert.EqualValues(t, 0x1122334455667788, binary.NativeEndian.Uint64(tt.mem[tt.at:]))
			assert.EqualValues(t, 0x1122334455667788, p.Load64(tt.off))
			p.Store32(tt.off+4, 0x99)
			assert.EqualValues(t, 0x99, p.Load32(tt.off+4))
			assert.EqualValues(t, 0x9955667788, binary.NativeEndian.Uint64(tt.mem[tt.at:]))
		})
	}
	cut := &Pieces{Rest: rest, Mapped: []Piece{{8, &half{low}}}}
	cut.Store64(8, 5)
	assert.EqualValues(t, 5, rest.Load64(8), "an access that does not lie in a piece whole is none of it")
	cut.Store32(8, 7)
	assert.EqualValues(t, 7, low.Load32(0))
}

// half is a space of which only four bytes are there.
type half struct{ Space }

func (half) Size() uint64 { return 4 }
