package vfio

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/dma"
	"oxpd/internal/vfu"
)

func bytesOf(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	require.NoError(t, err)
	return b
}

// An answer as linux/vfio.h writes it: what is mapped how often (3), then the ranges (1).
const type1Answer = "6c000000 03000000 00f0ffff ffffffff 18000000 00000000 " +
	"0300 0100 28000000 ff000000 00000000 " +
	"0100 0100 00000000 02000000 00000000 0000000000000000 ffffdffe00000000 0000f0fe00000000 ffffffffffffff00"

func TestRanges(t *testing.T) {
	good := bytesOf(t, type1Answer)
	ranges, ok, err := decodeRanges(good)
	require.NoError(t, err)
	assert.True(t, ok)
	assert.Equal(t, []dma.Range{{First: 0, Last: 0xfedfffff}, {First: 0xfef00000, Last: 0xffffffffffffff}}, ranges)

	edit := func(at int, b ...byte) []byte {
		m := append([]byte(nil), good...)
		copy(m[at:], b)
		return m
	}
	for name, b := range map[string][]byte{
		"a kernel without capabilities": edit(4, 1),
		"none in the list":              edit(16, 0),
		"another one only":              edit(40, 9),
	} {
		t.Run(name, func(t *testing.T) {
			ranges, ok, err := decodeRanges(b)
			require.NoError(t, err)
			assert.False(t, ok)
			assert.Empty(t, ranges)
		})
	}
	for name, b := range map[string][]byte{
		"nothing":                   {},
		"cut in the fixed part":     good[:23],
		"cut in the ranges":         good[:len(good)-1],
		"cut in a header":           good[:44],
		"the first in the front":    edit(16, 8),
		"the next behind the end":   edit(28, 0xff, 0xff, 0xff, 0xff),
		"a circle":                  edit(28, 24),
		"more than there are":       edit(48, 3),
		"four billion":              edit(48, 0xff, 0xff, 0xff, 0xff),
		"only a header at the end":  append(edit(40, 0xff)[:40:40], 1, 0, 1, 0, 0, 0, 0, 0),
		"the first behind the end":  edit(16, 0xff, 0xff, 0xff, 0xff),
		"the first half at the end": edit(16, byte(len(good)-4)),
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := decodeRanges(b)
			assert.ErrorIs(t, err, errLayout)
		})
	}
}

// FuzzAnswers: whatever lengths and offsets an answer has, the decoders stay inside of it.
func FuzzAnswers(f *testing.F) {
	f.Add(bytesOf(f, type1Answer))
	f.Add(vfu.AppendAreas(vfu.Region{Flags: vfu.RegionMap | vfu.RegionCaps, CapOffset: vfu.RegionSize, Size: 1 << 20}.Append(nil), vfu.Area{Size: 4096}, vfu.Area{Offset: 8192, Size: 1 << 19}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if ranges, ok, err := decodeRanges(b); err == nil && ok && len(ranges) > len(b)/rangeSize {
			t.Fatalf("%d ranges in %d bytes", len(ranges), len(b))
		}
		r, areas, err := decodeRegion(b)
		if err != nil {
			return
		}
		for _, a := range areas {
			if a.Size == 0 || a.Offset+a.Size < a.Size || a.Offset+a.Size > r.Size {
				t.Fatalf("area %+v of a region of %#x", a, r.Size)
			}
		}
	})
}

func TestRegionAreas(t *testing.T) {
	whole := vfu.Region{Flags: vfu.RegionRead | vfu.RegionWrite | vfu.RegionMap, Size: 0x800000, Offset: 2 << 40}
	sparse := whole
	sparse.Flags |= vfu.RegionCaps
	sparse.CapOffset = vfu.RegionSize
	for _, tt := range []struct {
		name  string
		r     vfu.Region
		areas []vfu.Area // in the capability; nil: no capability
		want  []vfu.Area
		bad   bool
	}{
		{"the whole region", whole, nil, []vfu.Area{{Size: 0x800000}}, false},
		{"not to be mapped", vfu.Region{Flags: 3, Size: 4096}, nil, nil, false},
		{"two areas", sparse, []vfu.Area{{Offset: 0x1000, Size: 0x1000}, {Offset: 0x4000, Size: 0x7fc000}}, []vfu.Area{{Offset: 0x1000, Size: 0x1000}, {Offset: 0x4000, Size: 0x7fc000}}, false},
		{"a list of none", sparse, []vfu.Area{}, nil, false},
		{"an area of nothing", sparse, []vfu.Area{{Offset: 0x1000}}, nil, true},
		{"behind the end", sparse, []vfu.Area{{Offset: 0x7ff000, Size: 0x2000}}, nil, true},
		{"a sum that wraps", sparse, []vfu.Area{{Offset: 0x1000, Size: ^uint64(0xfff)}}, nil, true},
		{"no page", sparse, []vfu.Area{{Offset: 0x1001, Size: 0x1000}}, nil, true},
		{"half a page", sparse, []vfu.Area{{Size: 0x800}}, nil, true},
		{"an offset that does not fit", vfu.Region{Flags: whole.Flags, Size: 0x1000, Offset: 1<<63 - 0x1000 + 1}, nil, nil, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := tt.r.Append(nil)
			if tt.areas != nil {
				b = vfu.AppendAreas(b, tt.areas...)
			}
			_, got, err := decodeRegion(b)
			if tt.bad {
				require.ErrorIs(t, err, errLayout)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, tt.want, got)
		})
	}
	_, _, err := decodeRegion(make([]byte, vfu.RegionSize-1))
	assert.ErrorIs(t, err, vfu.ErrMalformed)
}
