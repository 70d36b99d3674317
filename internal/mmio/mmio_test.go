package mmio

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type reg64 uint32

func (reg64) Is64() {}

type reg32 uint32

func (reg32) Is32() {}

func mapped(t *testing.T, size int) (*Mapped, []byte) {
	t.Helper()
	mem := make([]byte, size)
	m, err := NewMapped(mem)
	require.NoError(t, err)
	return m, mem
}

func TestMappedAccesses(t *testing.T) {
	m, mem := mapped(t, 64)
	assert.EqualValues(t, 64, m.Size())
	m.Store64(8, 0x1122334455667788)
	m.Store32(20, 0xdeadbeef)
	assert.Equal(t, uint64(0x1122334455667788), binary.NativeEndian.Uint64(mem[8:]))
	assert.Equal(t, uint32(0xdeadbeef), binary.NativeEndian.Uint32(mem[20:]))
	assert.Equal(t, uint64(0x1122334455667788), m.Load64(8))
	assert.Equal(t, uint32(0xdeadbeef), m.Load32(20))
	assert.Zero(t, m.Load32(16), "neighbours are untouched")
	assert.Zero(t, m.Load32(24))
	m.Store64(56, 1)
	m.Store32(60, 2)
	assert.Equal(t, uint32(1), m.Load32(56))
}

func TestMappedBounds(t *testing.T) {
	m, _ := mapped(t, 64)
	for _, tt := range []struct {
		name string
		off  uint32
		f    func(off uint32)
	}{
		{"load 32 past the end", 64, func(o uint32) { m.Load32(o) }},
		{"load 64 past the end", 64, func(o uint32) { m.Load64(o) }},
		{"load 64 across the end", 60, func(o uint32) { m.Load64(o) }},
		{"load 32 not aligned", 2, func(o uint32) { m.Load32(o) }},
		{"load 64 not aligned", 4, func(o uint32) { m.Load64(o) }},
		{"store 32 past the end", 64, func(o uint32) { m.Store32(o, 0) }},
		{"store 64 not aligned", 12, func(o uint32) { m.Store64(o, 0) }},
		{"offset that wraps", 0xfffffff8, func(o uint32) { m.Load64(o) }},
	} {
		t.Run(tt.name, func(t *testing.T) { assert.Panics(t, func() { tt.f(tt.off) }) })
	}
}

func TestNewMappedRefuses(t *testing.T) {
	mem := make([]byte, 64)
	for _, tt := range []struct {
		name string
		mem  []byte
	}{{"empty", nil}, {"not aligned", mem[4:60]}, {"odd size", mem[:60]}} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := NewMapped(tt.mem)
			assert.Error(t, err)
		})
	}
}

func TestTypedHelpers(t *testing.T) {
	m, _ := mapped(t, 64)
	Store64(m, reg64(16), 0xfffffffffffffffe)
	assert.Equal(t, uint64(0xfffffffffffffffe), Load64(m, reg64(16)))
	v, err := Checked64(m, reg64(16))
	require.NoError(t, err, "one bit short of all ones")
	assert.Equal(t, uint64(0xfffffffffffffffe), v)
	Store32(m, reg32(16), 0xffffffff)
	v, err = Checked64(m, reg64(16))
	require.ErrorIs(t, err, ErrGone)
	assert.Equal(t, ^uint64(0), v)
}

func TestBarrierReturns(t *testing.T) {
	m, _ := mapped(t, 8)
	m.Store32(0, 1)
	Barrier()
	m.Store32(4, 2)
	assert.Equal(t, uint64(2)<<32|1, m.Load64(0))
}

func BenchmarkBarrier(b *testing.B) {
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			Barrier()
		}
	})
}
