package dma

import (
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// far is a device that maps the files it is handed.
type far struct {
	maps   map[uint64][]byte
	refuse error
}

func (d *far) MapFile(bus uint64, size, fd int, off int64) error {
	if d.refuse != nil {
		return d.refuse
	}
	mem, err := unix.Mmap(fd, off, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	d.maps[bus] = mem
	return err
}

func (d *far) UnmapFile(bus uint64, size int) error {
	if len(d.maps[bus]) != size {
		return errors.New("not mapped")
	}
	if d.refuse != nil {
		return d.refuse
	}
	err := unix.Munmap(d.maps[bus])
	delete(d.maps, bus)
	return err
}

func openFiles(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(all)
}

func TestShared(t *testing.T) {
	d := &far{maps: map[uint64][]byte{}}
	p := NewShared(d)
	before := openFiles(t)
	a, err := p.Alloc("a", 5000, 64)
	require.NoError(t, err)
	b, err := p.Alloc("b", 100, 2<<20)
	require.NoError(t, err)
	mem, bus := a.At(4999, 1)
	mem[0] = 0x5a
	assert.EqualValues(t, 0x5a, d.maps[uint64(a.Bus())][4999], "the device sees the same memory")
	assert.Equal(t, a.Bus()+4999, bus)
	assert.Len(t, d.maps[uint64(a.Bus())], 8192, "whole pages")
	assert.Zero(t, uint64(b.Bus())%(2<<20))
	assert.Greater(t, uint64(b.Bus()), uint64(a.Bus())+8192, "a hole between them")
	assert.False(t, p.Keeps())
	assert.Equal(t, before, openFiles(t), "no file stays open")

	d.refuse = errors.New("no")
	_, err = p.Alloc("c", 4096, 64)
	assert.ErrorIs(t, err, d.refuse)
	assert.ErrorIs(t, p.Free(a), d.refuse)
	assert.Equal(t, before, openFiles(t))
	d.refuse = nil
	require.NoError(t, p.Free(a))
	require.NoError(t, p.Free(b))
	assert.Empty(t, d.maps)
	assert.Error(t, p.Free(a), "twice")
}
