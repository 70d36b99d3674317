package mmio

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A mapping behind the end of its file faults as a BAR does that was taken away.
func TestGuarded(t *testing.T) {
	page := os.Getpagesize()
	f, err := os.Create(filepath.Join(t.TempDir(), "bar"))
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, f.Truncate(int64(page)))
	mem, err := unix.Mmap(int(f.Fd()), 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	defer unix.Munmap(mem)
	m, err := NewMapped(mem)
	require.NoError(t, err)
	g := Guard(m)
	assert.EqualValues(t, page, g.Size())
	there := func() {
		g.Store64(8, 0x1122334455667788)
		g.Store32(16, 0x99aabbcc)
		assert.EqualValues(t, 0x1122334455667788, g.Load64(8))
		assert.EqualValues(t, 0x99aabbcc, g.Load32(16))
	}
	there()
	for range 3 {
		require.NoError(t, f.Truncate(0))
		assert.Equal(t, ^uint64(0), g.Load64(8), "lost")
		assert.Equal(t, ^uint32(0), g.Load32(16))
		g.Store64(8, 1)
		g.Store32(16, 1)
		require.NoError(t, f.Truncate(int64(page)))
		assert.Zero(t, g.Load64(8), "what was stored meanwhile went nowhere")
		there()
	}
	assert.False(t, debug.SetPanicOnFault(false), "a fault elsewhere ends the process, as ever")
	assert.Panics(t, func() { g.Load64(uint32(page)) }, "outside of the BAR is our mistake")
	assert.Panics(t, func() { g.Store32(2, 0) })
	assert.Zero(t, testing.AllocsPerRun(100, func() { g.Store64(8, g.Load64(16)) }))
}

func BenchmarkGuarded(b *testing.B) {
	m, err := NewMapped(make([]byte, 64))
	require.NoError(b, err)
	for name, s := range map[string]Space{"guard=no": m, "guard=yes": Guard(m)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				s.Store64(8, 1)
			}
		})
	}
}
