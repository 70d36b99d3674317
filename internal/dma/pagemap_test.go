package dma

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// entries are those of /proc/self/pagemap, as a kernel writes them.
func entries(v ...uint64) (b []byte) {
	for _, e := range v {
		b = binary.NativeEndian.AppendUint64(b, e)
	}
	return b
}

func TestDecodePagemap(t *testing.T) {
	const present, swapped, shared, softDirty = 1 << 63, 1 << 62, 1 << 61, 1 << 55
	for _, tt := range []struct {
		name string
		b    []byte
		page int
		want BusAddr
		is   error
		says string // of an error without a sentinel
	}{
		{"one page", entries(present | 0x12345), 4096, 0x12345000, nil, ""},
		{"neighbours, aligned to all of them", entries(present|0x200, present|0x201, present|0x202, present|0x203), 4096, 0x200000, nil, ""},
		{"bits beside the frame number", entries(present | shared | softDirty | 0x200), 4096, 0x200000, nil, ""},
		{"above 4 GiB", entries(present | 0x180000), 4096, 0x1_8000_0000, nil, ""},
		{"base pages of 64 KiB", entries(present|0x20, present|0x21), 65536, 0x200000, nil, ""},
		{"frame numbers hidden", entries(present, present), 4096, 0, ErrHidden, ""},
		{"second one hidden", entries(present|0x200, present), 4096, 0, ErrHidden, ""},
		{"not present", entries(0x200), 4096, 0, ErrNotPresent, ""},
		{"swapped out", entries(present | swapped | 0x200), 4096, 0, ErrNotPresent, ""},
		{"no neighbours", entries(present|0x200, present|0x202), 4096, 0, nil, "not contiguous"},
		{"backwards", entries(present|0x201, present|0x200), 4096, 0, nil, "not contiguous"},
		{"neighbours, not aligned", entries(present|0x201, present|0x202), 4096, 0, nil, "not aligned"},
		{"behind the end of 64 bits", entries(present | 1<<54), 4096, 0, nil, "end of 64 bits"},
		{"nothing", nil, 4096, 0, nil, "no pagemap entries"},
		{"half an entry", make([]byte, 12), 4096, 0, nil, "no pagemap entries"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := decodePagemap(tt.b, tt.page)
			switch {
			case tt.is != nil:
				require.ErrorIs(t, err, tt.is)
			case tt.says != "":
				require.ErrorContains(t, err, tt.says)
			default:
				require.NoError(t, err)
			}
			assert.Equal(t, tt.want, got)
		})
	}
}

func FuzzDecodePagemap(f *testing.F) {
	f.Add(entries(1<<63|0x200, 1<<63|0x201))
	f.Add(entries(1<<63, 0))
	f.Add([]byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, b []byte) {
		const page = 4096
		got, err := decodePagemap(b, page)
		if err != nil {
			return
		}
		// What is accepted is rebuilt from the address alone.
		for i := range uint64(len(b) / 8) {
			e := binary.NativeEndian.Uint64(b[8*i:])
			assert.Equal(t, uint64(got)/page+i, e&(1<<55-1))
			assert.Equal(t, uint64(2), e>>62, "present, and in memory")
		}
		assert.NotZero(t, got)
		assert.Zero(t, uint64(got)%(uint64(len(b)/8)*page))
	})
}

func TestPages(t *testing.T) {
	const page = 2 << 20
	for _, tt := range []struct {
		name  string
		needs []Need
		want  int
	}{
		{"nothing", nil, 0},
		{"one byte, beside the table", []Need{{1, 64}}, 1},
		{"what the table leaves of a page", []Need{{page - 65536, 64}}, 1},
		{"a byte more", []Need{{page - 65535, 64}}, 2},
		{"two halves", []Need{{page / 2, 64}, {page / 2, 64}}, 2},
		{"a hole that a later one fits", []Need{{page, 64}, {page / 2, 64}}, 2},
		{"a hole that alignment takes away", []Need{{64, 64}, {page / 2, page / 2}, {64, 64}, {page - 65536 - 64, 64}}, 2},
		{"larger than a page", []Need{{1, 64}, {2*page + 1, 64}}, 4},
	} {
		t.Run(tt.name, func(t *testing.T) { assert.Equal(t, tt.want, Pages(tt.needs, page)) })
	}
}
