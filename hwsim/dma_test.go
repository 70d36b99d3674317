package hwsim

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// mastering is a card that may reach memory.
func mastering(t *testing.T) *Card {
	c := New(Options{Timeline: Compressed()})
	atEnd(t, c, c.Close)
	c.ConfigWrite(0x04, 2, 0x0006)
	return c
}

func counting(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

// A map may end with the address space; the sum of address and size is then 0.
func TestRegionAtTheEndOfTheAddressSpace(t *testing.T) {
	const bus, size = 0xfffffffffffff000, 0x1000
	c := mastering(t)
	mem := make([]byte, size)
	require.NoError(t, c.MapDMA(bus, mem))
	assert.ErrorIs(t, c.MapDMA(bus, mem), ErrDMARegion, "it is there")
	assert.ErrorIs(t, c.MapDMA(bus+0x800, mem[:0x800]), ErrDMARegion)

	require.True(t, c.dmaWrite("write", bus+size-1, []byte{0x5a}))
	assert.EqualValues(t, 0x5a, mem[size-1])
	assert.False(t, c.dmaWrite("write", bus+size-1, []byte{1, 2}), "the next byte is at 0")
	assert.EqualValues(t, 0x5a, mem[size-1], "and nothing of it is written")
	require.NoError(t, c.MapDMA(0, make([]byte, size)))
	assert.False(t, c.dmaWrite("write", bus+size-1, []byte{1, 2}), "not even when memory lies there")
	assert.EqualValues(t, 2, c.ReportCount(ReportDMAOutside))

	assert.ErrorIs(t, c.UnmapDMA(bus, size-1), ErrDMARegion, "not that region")
	require.NoError(t, c.UnmapDMA(bus, size))
	assert.False(t, c.dmaWrite("write", bus, []byte{1}))
	require.NoError(t, c.MapDMA(bus, mem), "nothing is left of it")
}

func TestRegionsThatAreRefused(t *testing.T) {
	c := mastering(t)
	require.NoError(t, c.MapDMA(0x10000, make([]byte, 0x2000)))
	for name, r := range map[string]DMARegion{
		"empty":                     {Bus: 0x1000},
		"past the end":              {Bus: 0xfffffffffffff000, Size: 0x2000},
		"memory of another size":    {Bus: 0x1000, Size: 0x1000, Mem: make([]byte, 0x800)},
		"the same":                  {Bus: 0x10000, Size: 0x2000},
		"its begin":                 {Bus: 0xf000, Size: 0x1001},
		"its last byte":             {Bus: 0x11fff, Size: 0x1000},
		"inside":                    {Bus: 0x10800, Size: 0x100},
		"around":                    {Bus: 0, Size: 0x100000},
		"the whole of 2^64 but one": {Bus: 0, Size: ^uint64(0)},
	} {
		t.Run(name, func(t *testing.T) { assert.ErrorIs(t, c.MapRegion(r), ErrDMARegion) })
	}
	require.NoError(t, c.MapDMA(0xf000, make([]byte, 0x1000)), "up to it")
	require.NoError(t, c.MapDMA(0x12000, make([]byte, 0x1000)), "behind it")
}

// Regions that follow each other are one for an access, each byte in its own.
func TestAccessAcrossRegions(t *testing.T) {
	c := mastering(t)
	parts := [][]byte{make([]byte, 0x1000), make([]byte, 0x800), make([]byte, 0x1000)}
	bus := uint64(0x2_0000_0000)
	for _, p := range parts {
		require.NoError(t, c.MapDMA(bus, p))
		bus += uint64(len(p))
	}
	data := counting(0x1000)
	require.True(t, c.dmaWrite("write", 0x2_0000_0c00, data))
	assert.Equal(t, data, bytes.Join([][]byte{parts[0][0xc00:], parts[1], parts[2][:0x400]}, nil))
	assert.Zero(t, parts[2][0x400])
	got := make([]byte, len(data))
	require.True(t, c.dmaRead("read", 0x2_0000_0c00, got))
	assert.Equal(t, data, got)

	assert.False(t, c.dmaWrite("write", 0x2_0000_1900, make([]byte, 0x1000)), "over the end of the last")
	assert.Equal(t, data, bytes.Join([][]byte{parts[0][0xc00:], parts[1], parts[2][:0x400]}, nil), "nothing is written")
	require.NoError(t, c.UnmapDMA(0x2_0000_1000, 0x800))
	assert.False(t, c.dmaRead("read", 0x2_0000_0c00, got), "with a hole in it")
	assert.EqualValues(t, 2, c.ReportCount(ReportDMAOutside))
}

func TestRegionsWithConditions(t *testing.T) {
	c := mastering(t)
	rom := []byte("read only, of this many bytes...")
	require.NoError(t, c.MapRegion(DMARegion{Bus: 0x1000, Size: uint64(len(rom)), Mem: rom, ReadOnly: true}))
	require.NoError(t, c.MapRegion(DMARegion{Bus: 0x1_0000_0000, Size: 1 << 50}))

	b := make([]byte, 4)
	assert.True(t, c.dmaRead("read", 0x1000, b))
	assert.Equal(t, "read", string(b))
	assert.False(t, c.dmaWrite("write", 0x1000, b))
	assert.EqualValues(t, 1, c.ReportCount(ReportDMAReadOnly))
	assert.False(t, c.dmaRead("read", 0x1_0000_1000, b))
	assert.False(t, c.dmaWrite("write", 0x1_0000_1000, b))
	assert.EqualValues(t, 2, c.ReportCount(ReportDMANoMemory))
	require.NoError(t, c.UnmapRegion(0x1_0000_0000, 1<<50))
}

// Memory that its owner takes away under the card ends an access, not the process.
func TestForeignMemoryThatGoes(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "memory"))
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, f.Truncate(8192))
	mem, err := unix.Mmap(int(f.Fd()), 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	defer func() { _ = unix.Munmap(mem) }()

	c := mastering(t)
	require.NoError(t, c.MapRegion(DMARegion{Bus: 0x1000, Size: 8192, Mem: mem, Foreign: true}))
	require.True(t, c.dmaWrite("write", 0x1000, counting(8192)))
	require.NoError(t, f.Truncate(4096))
	assert.False(t, c.dmaWrite("write", 0x1000, counting(8192)))
	assert.False(t, c.dmaRead("read", 0x2000, make([]byte, 8)))
	assert.EqualValues(t, 2, c.ReportCount(ReportDMALost))
	b := make([]byte, 4096)
	require.True(t, c.dmaRead("read", 0x1000, b), "what is left goes on")
	assert.Equal(t, counting(4096), b)
	assert.Panics(t, func() { survives(func([]byte, int) { panic("a mistake of the model's") }, mem, 0) })
}

// A front end that is told who listens: the table is storage, and what nobody
// listens to waits in the pending bits (choice 16).
func TestHostVectors(t *testing.T) {
	h := newRingHost(t, 1024, func(o *Options) { o.HostVectors = true })
	h.program(hGrant)
	h.c.Provision()
	h.c.ConfigWrite(0xb2, 2, 1<<15)
	h.c.Store(0, 16*16+12, 4, 0) // unmasked in the table: says nothing
	pending := func() uint64 { return h.c.Load(0, 0x4000, 8) }
	deliver := func() {
		require.True(t, h.c.DeliverRaw(0, 1, make([]byte, 60), 8+74))
		h.settled()
		h.st32(0, rOutCnts, 1)
	}
	h.st(0, rOutLevels, 1)
	deliver()
	assert.EqualValues(t, 1<<16, pending(), "latched")

	irqs := 0
	h.c.OnIRQ(16, func() { irqs++ })
	assert.Equal(t, 1, irqs, "and sent to whom it may concern")
	assert.Zero(t, pending())
	h.c.Store(0, 16*16+12, 4, 1) // masked in the table: says nothing
	deliver()
	assert.Equal(t, 2, irqs)

	h.c.OnIRQ(16, nil)
	deliver()
	assert.Equal(t, 2, irqs, "silent")
	assert.EqualValues(t, 1<<16, pending())
	assert.EqualValues(t, 1, h.c.Load(0, 16*16+12, 4), "the table is what was stored")
}

func TestFunctionReset(t *testing.T) {
	h := newRingHost(t, 1024)
	h.program(hGrant)
	h.c.FunctionReset()
	assert.Zero(t, h.c.ConfigRead(4, 2), "bus mastering and decoding are off")
	h.c.ConfigWrite(4, 2, 6)
	assert.Zero(t, h.ld(0, rOutEnable))
	assert.EqualValues(t, 16, h.ld(0, rOutRsize))
}

// The facility windows in memory of the caller: the target's stores are seen there.
func TestWindowsOfTheCaller(t *testing.T) {
	mem := make([]byte, WindowBytes)
	h := newRingHost(t, 1024, func(o *Options) { o.Windows = mem })
	assert.EqualValues(t, 0xff, mem[WindowBytes-1], "not mapped by the target yet")
	h.c.Provision()
	assert.Equal(t, []byte{2, 0, 0, 0}, mem[:4], "the barmap's version")
	mem[0x200400] = 0x77
	assert.EqualValues(t, 0x77, h.c.Load(2, 0x02200400, 4), "a store of a host that has mapped it")
}
