package dma

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// everywhere but where x86 has its interrupts.
var everywhere = []Range{{0, 0xfedfffff}, {0xfef00000, ^uint64(0)}}

func TestIOVAs(t *testing.T) {
	for _, tt := range []struct {
		name    string
		allowed []Range
		free    []Range
	}{
		{"everywhere", everywhere, []Range{{1 << 20, 0xfedfffff}, {0xfef00000, 1<<32 - 1}}},
		{"nothing", nil, nil},
		{"below the first MiB", []Range{{0, 1<<20 - 1}}, nil},
		{"above 4 GiB", []Range{{1 << 32, ^uint64(0)}}, nil},
		{"up to 4 GiB and a bit", []Range{{1<<32 - 4096, 1 << 33}}, []Range{{1<<32 - 4096, 1<<32 - 1}}},
		{"no whole page", []Range{{0x200001, 0x201ffe}}, nil},
		{"one page and parts of two", []Range{{0x200001, 0x202001}}, []Range{{0x201000, 0x201fff}}},
		{"out of order, overlapping, touching", []Range{{0x300000, 0x3fffff}, {0x200000, 0x2fffff}, {0x380000, 0x47ffff}}, []Range{{0x200000, 0x47ffff}}},
		{"the last before the first", []Range{{0x300000, 0x200000}}, nil},
		{"a last of 0", []Range{{0, 0}}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) { assert.Equal(t, tt.free, newIOVAs(tt.allowed).free) })
	}
	a := newIOVAs([]Range{{0x100000, 0x103fff}})
	_, err := a.take(0x5000, 4096)
	require.ErrorIs(t, err, ErrNoAddress)
	at, err := a.take(0x4000, 4096)
	require.NoError(t, err)
	assert.EqualValues(t, 0x100000, at, "all of it")
	_, err = a.take(4096, 4096)
	require.ErrorIs(t, err, ErrNoAddress)
	a.give(at, 0x4000)
	_, err = a.take(4096, 1<<21)
	require.ErrorIs(t, err, ErrNoAddress, "nothing is so aligned")

	assert.True(t, a.reserve(0x101000, 0x1000))
	assert.Equal(t, []Range{{0x100000, 0x100fff}, {0x102000, 0x103fff}}, a.free)
	for name, r := range map[string]Range{ // first, and size
		"taken": {0x101000, 0x1000}, "partly": {0x100000, 0x2000}, "beyond": {0x103000, 0x2000}, "nowhere": {0x200000, 0x1000},
		"over the end": {0x103000, ^uint64(0) - 0xfff}, "half a page": {0x102800, 0x1000}, "of half a page": {0x102000, 0x800}, "nothing": {0x102000, 0},
	} {
		assert.False(t, a.reserve(r.First, r.Last), name)
	}
	assert.Equal(t, []Range{{0x100000, 0x100fff}, {0x102000, 0x103fff}}, a.free)
}

// Whatever is taken and given in whatever order, no two have an address in common, and
// all is there again at the end.
func TestIOVAsInAnyOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	a := newIOVAs([]Range{{0x100000, 0x1fffff}, {0x400000, 0x4fffff}})
	whole := append([]Range(nil), a.free...)
	taken := map[uint64]uint64{}
	for range 5000 {
		if size := uint64(1+rng.IntN(20)) * pageSize; rng.IntN(2) == 0 {
			align := uint64(pageSize) << rng.IntN(5)
			at, err := a.take(size, align)
			if err != nil {
				require.ErrorIs(t, err, ErrNoAddress)
				continue
			}
			require.Zero(t, at%align)
			for b, n := range taken {
				require.False(t, at < b+n && b < at+size, "%#x+%#x and %#x+%#x", at, size, b, n)
			}
			taken[at] = size
			continue
		}
		for at, size := range taken {
			a.give(at, size)
			delete(taken, at)
			break
		}
	}
	for at, size := range taken {
		a.give(at, size)
	}
	assert.Equal(t, whole, a.free)
}
