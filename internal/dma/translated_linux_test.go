package dma

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// translator is an IOMMU that takes exact maps alone.
type translator struct {
	maps   map[uint64]int
	refuse error
}

func (m *translator) MapMemory(bus uint64, mem []byte) error {
	if m.refuse != nil {
		return m.refuse
	}
	for at, n := range m.maps {
		if bus < at+uint64(n) && at < bus+uint64(len(mem)) {
			return errors.New("overlaps")
		}
	}
	m.maps[bus] = len(mem)
	return nil
}

func (m *translator) UnmapMemory(bus uint64, size int) error {
	if m.maps[bus] != size {
		return errors.New("is no map")
	}
	delete(m.maps, bus)
	return nil
}

// everywhere but where x86 has its interrupts.
var everywhere = []Range{{0, 0xfedfffff}, {0xfef00000, ^uint64(0)}}

func TestTranslated(t *testing.T) {
	iommu := &translator{maps: map[uint64]int{}}
	p := NewTranslated(iommu, everywhere)
	a, err := p.Alloc("a", 100, 64)
	require.NoError(t, err)
	assert.EqualValues(t, 1<<20, a.Bus(), "never 0")
	assert.Equal(t, 4096, iommu.maps[1<<20], "whole pages")
	b, err := p.Alloc("b", 4097, 1<<16)
	require.NoError(t, err)
	assert.EqualValues(t, 1<<20+1<<16, b.Bus())
	c, err := p.Alloc("c", 4096, 64)
	require.NoError(t, err)
	assert.EqualValues(t, 1<<20+2*4096, c.Bus(), "a page behind a is nobody's")
	mem, _ := b.At(4096, 1)
	assert.Equal(t, []byte{0}, mem)
	assert.False(t, p.Keeps())
	require.NoError(t, p.Free(a))
	again, err := p.Alloc("d", 1, 64)
	require.NoError(t, err)
	assert.EqualValues(t, 1<<20, again.Bus(), "what is free is used again")

	iommu.refuse = errors.New("no more maps")
	before := len(iommu.maps)
	_, err = p.Alloc("e", 1, 64)
	require.ErrorIs(t, err, iommu.refuse)
	iommu.refuse = nil
	e, err := p.Alloc("e", 1, 64)
	require.NoError(t, err)
	assert.EqualValues(t, 1<<20+4*4096, e.Bus(), "a refused one costs no address")
	assert.Len(t, iommu.maps, before+1)
	for _, r := range []*Region{b, c, again, e} {
		require.NoError(t, p.Free(r))
	}
	assert.Empty(t, iommu.maps)
	assert.Error(t, p.Free(e), "twice")
}

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
