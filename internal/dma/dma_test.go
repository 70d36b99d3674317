package dma

import (
	"bytes"
	"encoding/binary"
	"errors"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// table is a device that knows its regions.
type table struct {
	mu      sync.Mutex
	regions map[uint64][]byte
	refuse  error
}

func (d *table) MapDMA(bus uint64, mem []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refuse != nil {
		return d.refuse
	}
	d.regions[bus] = mem
	return nil
}

func (d *table) UnmapDMA(bus uint64, size int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.regions[bus]) != size {
		return errors.New("not mapped")
	}
	if d.refuse != nil {
		return d.refuse
	}
	delete(d.regions, bus)
	return nil
}

func newTable() *table { return &table{regions: map[uint64][]byte{}} }

func cpu(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

func TestRegionGivesBothViewsOfOnePiece(t *testing.T) {
	r := NewRegion("r", make([]byte, 256), 0x1_8000_0000)
	mem, bus := r.At(64, 32)
	assert.Len(t, mem, 32)
	assert.Equal(t, 32, cap(mem), "an append must not run into the neighbour")
	assert.Equal(t, BusAddr(0x1_8000_0040), bus)
	all, _ := r.At(0, 256)
	mem[0] = 0x5a
	assert.EqualValues(t, 0x5a, all[64])
	assert.Equal(t, "r", r.Name())
	assert.Equal(t, 256, r.Size())
	assert.Equal(t, BusAddr(0x1_8000_0000), r.Bus())
}

func TestRegionBounds(t *testing.T) {
	r := NewRegion("r", make([]byte, 256), 0)
	maxInt := int(^uint(0) >> 1)
	for _, tt := range []struct {
		name   string
		off, n int
		ok     bool
	}{
		{"all", 0, 256, true},
		{"nothing at the end", 256, 0, true},
		{"last byte", 255, 1, true},
		{"one past", 255, 2, false},
		{"negative offset", -1, 1, false},
		{"negative length", 0, -1, false},
		{"sum that wraps", 8, maxInt, false},
		{"offset beyond", maxInt, 1, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := func() { r.At(tt.off, tt.n) }
			if tt.ok {
				assert.NotPanics(t, f)
			} else {
				assert.Panics(t, f)
			}
		})
	}
}

func TestInProcessAlloc(t *testing.T) {
	d := newTable()
	p := NewInProcess(d, 0)
	type piece struct{ start, end uint64 }
	var pieces []piece
	for _, tt := range []struct {
		name        string
		size, align int
	}{
		{"smallest", 1, 64},
		{"instruction ring", 256 * 64, 4096},
		{"buffers of a ring", 1024 * 1664, 64},
		{"aligned to 64 KiB", 4096, 65536},
		{"aligned to 2 MiB", 100, 2 << 20},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := p.Alloc(tt.name, tt.size, tt.align)
			require.NoError(t, err)
			mem, bus := r.At(0, tt.size)
			assert.Zero(t, uint64(bus)%uint64(tt.align))
			assert.Zero(t, cpu(mem)%64)
			assert.NotEqual(t, cpu(mem), uint64(bus), "never a CPU address")
			assert.Equal(t, make([]byte, tt.size), mem, "zeroed")
			assert.GreaterOrEqual(t, uint64(bus), uint64(1)<<32)
			mem[tt.size-1] = 0xc3
			assert.EqualValues(t, 0xc3, d.regions[uint64(bus)][tt.size-1], "the device sees the same memory")
			end := uint64(bus) + uint64(len(d.regions[uint64(bus)]))
			for _, o := range pieces {
				assert.True(t, end < o.start || o.end < uint64(bus), "a hole between regions")
			}
			pieces = append(pieces, piece{uint64(bus), end})
		})
	}
	assert.False(t, p.Keeps())
}

func TestInProcessRefuses(t *testing.T) {
	p := NewInProcess(newTable(), 0)
	for _, tt := range []struct {
		name        string
		size, align int
	}{
		{"no size", 0, 64}, {"negative size", -1, 64}, {"alignment below a buffer's", 64, 32},
		{"alignment no power of two", 64, 96}, {"negative alignment", 64, -64},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := p.Alloc("x", tt.size, tt.align)
			require.ErrorContains(t, err, "dma: alloc x")
		})
	}
	t.Run("device refuses the range", func(t *testing.T) {
		d := newTable()
		d.refuse = errors.New("full")
		p := NewInProcess(d, 0)
		_, err := p.Alloc("x", 64, 64)
		require.ErrorIs(t, err, d.refuse)
		assert.Empty(t, p.pages)
	})
}

func TestInProcessFree(t *testing.T) {
	d := newTable()
	p := NewInProcess(d, 0)
	r, err := p.Alloc("r", 5000, 64)
	require.NoError(t, err)
	first := r.Bus()
	require.NoError(t, p.Free(r))
	assert.Empty(t, d.regions, "the device has lost the range")
	require.ErrorContains(t, p.Free(r), "dma: free r: not a region", "twice")
	require.Error(t, p.Free(NewRegion("foreign", make([]byte, 64), 0)))
	r, err = p.Alloc("r", 5000, 64)
	require.NoError(t, err)
	assert.NotEqual(t, first, r.Bus(), "an address is not used again, so that a late write hits nothing")

	t.Run("device keeps the range: the memory stays mapped", func(t *testing.T) {
		d.refuse = errors.New("busy")
		mem, _ := r.At(0, 8)
		require.ErrorIs(t, p.Free(r), d.refuse)
		mem[0] = 1
		d.refuse = nil
		require.NoError(t, p.Free(r), "can be tried again")
	})
}

func TestInProcessConcurrently(t *testing.T) {
	d := newTable()
	p := NewInProcess(d, 0)
	var wg sync.WaitGroup
	for range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range 20 {
				r, err := p.Alloc("r", 4096, 64)
				if assert.NoError(t, err) {
					assert.NoError(t, p.Free(r))
				}
			}
		}()
	}
	wg.Wait()
	assert.Empty(t, d.regions)
}

func TestLoadsAndStoresAreNative(t *testing.T) {
	b := make([]byte, 16)
	Store64(b[8:], 0x1122334455667788)
	assert.Equal(t, uint64(0x1122334455667788), binary.NativeEndian.Uint64(b[8:]))
	assert.Equal(t, uint64(0x1122334455667788), Load64(b[8:]))
	binary.NativeEndian.PutUint32(b[4:], 0xdeadbeef)
	assert.Equal(t, uint32(0xdeadbeef), Load32(b[4:]))
	assert.Equal(t, make([]byte, 4), b[:4])
	assert.Panics(t, func() { Load64(b[:7]) })
	assert.Panics(t, func() { Store64(b[:7], 0) })
	assert.Panics(t, func() { Load32(b[:3]) })
	assert.False(t, bytes.Equal(b, make([]byte, 16)))
}

func TestInProcessStaysAboveWhatTheDeviceWasToldBefore(t *testing.T) {
	const told = 0x3_0000_0000
	p := NewInProcess(newTable(), told)
	r, err := p.Alloc("fresh", 4096, 64)
	require.NoError(t, err)
	assert.Greater(t, uint64(r.Bus()), uint64(told))
	require.NoError(t, p.Free(r))
}
