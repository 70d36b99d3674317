package dma

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// far is a device that maps the files it is handed, no address twice.
type far struct {
	maps   map[uint64][]byte
	refuse error
	stays  bool // what is to be taken away
}

func (d *far) MapFile(bus uint64, mem []byte, fd int, off int64) error {
	if d.refuse != nil {
		return d.refuse
	}
	for at, m := range d.maps {
		if bus < at+uint64(len(m)) && at < bus+uint64(len(mem)) {
			return errors.New("overlaps")
		}
	}
	mem, err := unix.Mmap(fd, off, len(mem), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
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
	if d.stays {
		return ErrStays
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

// noMoreFiles waits until no more files are open than before. Those of tests before may be
// closed meanwhile: less is none of this one's business.
func noMoreFiles(t *testing.T, before int, what string) {
	t.Helper()
	assert.Eventually(t, func() bool { return openFiles(t) <= before }, time.Minute, time.Millisecond, what)
}

func TestKept(t *testing.T) {
	d := &far{maps: map[uint64][]byte{}}
	before := openFiles(t)
	p, err := NewKept(d, nil)
	require.NoError(t, err)
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

	d.refuse = errors.New("no")
	_, err = p.Alloc("c", 4096, 64)
	assert.ErrorIs(t, err, d.refuse)
	assert.ErrorIs(t, p.Free(a), d.refuse)
	d.refuse = nil
	require.NoError(t, p.Free(a))
	require.NoError(t, p.Free(b))
	assert.Empty(t, d.maps)
	assert.Error(t, p.Free(a), "twice")
	require.NoError(t, p.Close())
	noMoreFiles(t, before, "no file stays open")
}

// nextProcess is the file as a later process gets it.
func nextProcess(t *testing.T, k *Kept) int {
	t.Helper()
	fd, err := unix.FcntlInt(uintptr(k.File()), unix.F_DUPFD_CLOEXEC, 3)
	require.NoError(t, err)
	return fd
}

func TestKeptMemoryIsFoundByName(t *testing.T) {
	d := &far{maps: map[uint64][]byte{}}
	k, err := NewKept(d, nil)
	require.NoError(t, err)
	assert.False(t, k.Keeps(), "nobody has said that somebody else has the file")
	k.SetKeeps(true)
	assert.True(t, k.Keeps())
	want := map[string]*Region{}
	for name, size := range map[string]int{"records": 1152, "slots": 3 << 20, "list": 4096} {
		r, err := k.Alloc(name, size, 4096)
		require.NoError(t, err)
		mem, _ := r.At(0, r.Size())
		copy(mem[size-8:], name)
		want[name] = r
	}
	told := len(d.maps)

	fd := nextProcess(t, k)
	require.NoError(t, k.Close())
	later, err := OpenKept(d, fd, nil)
	require.NoError(t, err)
	var h Holder = later
	for name, was := range want {
		_, err := h.Held(name, was.Size()+4096, 4096)
		assert.ErrorIs(t, err, ErrNotHeld, "of another size")
		_, err = h.Held(name, was.Size(), 1<<40)
		assert.ErrorIs(t, err, ErrNotHeld, "aligned otherwise")
		r, err := h.Held(name, was.Size(), 4096)
		require.NoError(t, err)
		assert.Equal(t, was.Bus(), r.Bus())
		mem, _ := r.At(0, r.Size())
		assert.Equal(t, name, strings.TrimRight(string(mem[was.Size()-8:]), "\x00"), "what lay in it")
		mem[0] = 0x77
		assert.EqualValues(t, 0x77, d.maps[uint64(r.Bus())][0], "the device sees the same memory")
		_, err = h.Held(name, was.Size(), 4096)
		assert.ErrorIs(t, err, ErrNotHeld, "it was given")
	}
	_, err = h.Held("other", 64, 64)
	assert.ErrorIs(t, err, ErrNotHeld)
	assert.Len(t, d.maps, told, "the device was told nothing again")

	more, err := later.Alloc("records", 9000, 64)
	require.NoError(t, err, "the device knows none of its addresses")
	for _, r := range want {
		assert.Greater(t, more.Bus(), r.Bus()+BusAddr(r.Size()))
	}
	mem, _ := more.At(0, 64)
	assert.Equal(t, make([]byte, 64), mem, "it is new")
	require.NoError(t, later.Free(more))
	assert.NotContains(t, d.maps, uint64(more.Bus()))
	mine, err := later.Alloc("mine", 4096, 64)
	require.NoError(t, err)
	_, err = h.Held("mine", 4096, 64)
	assert.ErrorIs(t, err, ErrNotHeld, "its own are no earlier process's")
	third, err := OpenKept(d, nextProcess(t, later), nil)
	require.NoError(t, err)
	again, err := third.Held("mine", 4096, 64)
	require.NoError(t, err)
	assert.Equal(t, mine.Bus(), again.Bus())
	_, err = third.Held("records", 9000, 64)
	assert.ErrorIs(t, err, ErrNotHeld, "it was freed")
	r, err := third.Held("records", 1152, 4096)
	require.NoError(t, err)
	assert.Equal(t, want["records"].Bus(), r.Bus())
	require.NoError(t, third.Close())
	require.NoError(t, later.Close())
}

func TestKeptGivesTheYoungest(t *testing.T) {
	d := &far{maps: map[uint64][]byte{}}
	k, err := NewKept(d, nil)
	require.NoError(t, err)
	_, err = k.Alloc("records", 4096, 64)
	require.NoError(t, err)
	young, err := k.Alloc("records", 4096, 64)
	require.NoError(t, err)
	later, err := OpenKept(d, nextProcess(t, k), nil)
	require.NoError(t, err)
	r, err := later.Held("records", 4096, 64)
	require.NoError(t, err)
	assert.Equal(t, young.Bus(), r.Bus())

	third, err := OpenKept(d, nextProcess(t, later), nil)
	require.NoError(t, err)
	all, err := HeldAll(Limit(third, 64), "records", 4096, 64)
	require.NoError(t, err)
	assert.Len(t, all, 2)
	all, err = HeldAll(third, "others", 4096, 64)
	require.NoError(t, err)
	assert.Empty(t, all)
	all, err = HeldAll(&InProcess{}, "records", 4096, 64)
	require.NoError(t, err)
	assert.Empty(t, all, "it has nothing of an earlier process")
}

// A process that dies between the table and the device, and a device that refuses.
func TestKeptAddressesAreNotUsedTwice(t *testing.T) {
	d := &far{maps: map[uint64][]byte{}}
	k, err := NewKept(d, nil)
	require.NoError(t, err)
	d.refuse = errors.New("no")
	_, err = k.Alloc("refused", 4096, 64)
	require.ErrorIs(t, err, d.refuse)
	d.refuse = nil
	first, err := k.Alloc("first", 4096, 64)
	require.NoError(t, err)
	k.table.append(keptRegion{"never told", k.end - pageSize, pageSize, uint64(first.Bus()) + 2<<20})
	k.table[keptHead+1*keptEntry+keptOffset+1] += 0x10 // behind the one before
	require.NoError(t, unix.Ftruncate(k.File(), k.end+pageSize))
	later, err := OpenKept(d, nextProcess(t, k), nil)
	require.NoError(t, err)
	next, err := later.Alloc("next", 4096, 64)
	require.NoError(t, err)
	assert.Greater(t, next.Bus(), first.Bus()+2<<20)
	_, err = later.Held("refused", 4096, 64)
	assert.ErrorIs(t, err, ErrNotHeld)
	_, err = k.Alloc(strings.Repeat("n", keptNameSize+1), 64, 64)
	assert.ErrorContains(t, err, "name of 41 bytes")
}

func TestKeptTableIsBounded(t *testing.T) {
	d := &far{maps: map[uint64][]byte{}}
	k, err := NewKept(d, nil)
	require.NoError(t, err)
	Store64(k.table[keptCount:], uint64(k.table.most()))
	_, err = k.Alloc("one more", 64, 64)
	assert.ErrorContains(t, err, fmt.Sprintf("has %d regions", uint64(k.table.most())))
}

func TestOpenKeptRefuses(t *testing.T) {
	for _, tc := range []struct {
		name   string
		damage func(b []byte)
	}{
		{"another magic", func(b []byte) { b[keptMagic] ^= 1 }},
		{"more regions than the table has", func(b []byte) { binary.LittleEndian.PutUint64(b[keptCount:], ^uint64(0)) }},
		{"a region that is not there", func(b []byte) { binary.LittleEndian.PutUint64(b[keptCount:], 3) }},
		{"a region past the end", func(b []byte) { binary.LittleEndian.PutUint64(b[keptHead+keptEntry+keptSize:], 1<<30) }},
		{"regions over each other", func(b []byte) { binary.LittleEndian.PutUint64(b[keptHead+keptEntry+keptOffset:], keptTable) }},
		{"a region over the table", func(b []byte) { binary.LittleEndian.PutUint64(b[keptHead+keptOffset:], 4096) }},
		{"half a page", func(b []byte) { binary.LittleEndian.PutUint64(b[keptHead+keptSize:], 100) }},
		{"addresses over each other", func(b []byte) { copy(b[keptHead+keptEntry+keptBus:], b[keptHead+keptBus:][:8]) }},
		{"an address past the end", func(b []byte) { binary.LittleEndian.PutUint64(b[keptHead+keptEntry+keptBus:], ^uint64(4095)) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := &far{maps: map[uint64][]byte{}}
			k, err := NewKept(d, nil)
			require.NoError(t, err)
			for _, name := range []string{"a", "b"} {
				_, err := k.Alloc(name, 4096, 64)
				require.NoError(t, err)
			}
			tc.damage(k.table)
			fd := nextProcess(t, k)
			_, err = OpenKept(d, fd, nil)
			assert.ErrorIs(t, err, ErrKept)
			_, err = KeptMark(fd)
			assert.Equal(t, strings.HasPrefix(tc.name, "another") || strings.HasPrefix(tc.name, "more"), err != nil, "what it looks at")
			require.NoError(t, unix.Close(fd), "it is still the caller's")
		})
	}
	t.Run("a short file", func(t *testing.T) {
		fd, err := unix.MemfdCreate("short", 0)
		require.NoError(t, err)
		_, err = OpenKept(&far{}, fd, nil)
		assert.ErrorIs(t, err, ErrKept)
		require.NoError(t, unix.Close(fd))
	})
}

// allocated is how much of a file is there.
func allocated(t *testing.T, k *Kept) int64 {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(k.File(), &st))
	return st.Blocks * 512
}

func TestKeptBehindAnIOMMU(t *testing.T) {
	iommu := &far{maps: map[uint64][]byte{}}
	p, err := NewKept(iommu, everywhere)
	require.NoError(t, err)
	a, err := p.Alloc("a", 100, 64)
	require.NoError(t, err)
	assert.EqualValues(t, 1<<20, a.Bus(), "never 0")
	assert.Len(t, iommu.maps[1<<20], 4096, "whole pages")
	b, err := p.Alloc("b", 4097, 1<<16)
	require.NoError(t, err)
	assert.EqualValues(t, 1<<20+1<<16, b.Bus())
	c, err := p.Alloc("c", 4096, 64)
	require.NoError(t, err)
	assert.EqualValues(t, 1<<20+2*4096, c.Bus(), "a page behind a is nobody's")

	full := allocated(t, p)
	require.NoError(t, p.Free(a))
	assert.Equal(t, full-4096, allocated(t, p), "its page is given back")
	again, err := p.Alloc("d", 1, 64)
	require.NoError(t, err)
	assert.EqualValues(t, 1<<20, again.Bus(), "what is free is used again")

	iommu.refuse = errors.New("no more maps")
	_, err = p.Alloc("e", 1, 64)
	require.ErrorIs(t, err, iommu.refuse)
	iommu.refuse = nil
	e, err := p.Alloc("e", 1, 64)
	require.NoError(t, err)
	assert.EqualValues(t, 1<<20+4*4096, e.Bus(), "a refused one costs no address")
	for _, r := range []*Region{b, c, again, e} {
		require.NoError(t, p.Free(r))
	}
	assert.Empty(t, iommu.maps)
	assert.Error(t, p.Free(e), "twice")
	require.NoError(t, p.Close())
}

// The next process uses no address that the card knows, and all others.
func TestKeptBehindAnIOMMULater(t *testing.T) {
	iommu := &far{maps: map[uint64][]byte{}}
	p, err := NewKept(iommu, everywhere)
	require.NoError(t, err)
	alloc := func(k *Kept, name string) *Region {
		t.Helper()
		r, err := k.Alloc(name, 4096, 64)
		require.NoError(t, err)
		return r
	}
	a, b, c := alloc(p, "a"), alloc(p, "b"), alloc(p, "c")
	mark := func() uint64 {
		t.Helper()
		n, err := KeptMark(p.File())
		require.NoError(t, err)
		return n
	}
	assert.Zero(t, mark())
	p.SetMark(7)
	assert.EqualValues(t, 7, mark())
	require.NoError(t, p.Free(b))

	later, err := OpenKept(iommu, nextProcess(t, p), everywhere)
	require.NoError(t, err)
	same, err := later.Held("a", 4096, 64)
	require.NoError(t, err)
	assert.Equal(t, a.Bus(), same.Bus())
	d := alloc(later, "d")
	assert.Equal(t, b.Bus(), d.Bus(), "b was freed")
	e := alloc(later, "e")
	assert.Greater(t, e.Bus(), c.Bus())

	require.NoError(t, later.Reclaim())
	assert.Len(t, iommu.maps, 3, "c, which nobody has taken, is gone")
	assert.NotContains(t, iommu.maps, uint64(c.Bus()))
	assert.Equal(t, c.Bus(), alloc(later, "c").Bus())
	require.NoError(t, later.Free(same))
	assert.NotContains(t, iommu.maps, uint64(a.Bus()))

	_, err = OpenKept(iommu, nextProcess(t, later), []Range{{1 << 20, 1<<20 + 4095}})
	assert.ErrorIs(t, err, ErrKept, "addresses that the IOMMU does not take")
}

// A kernel may not let anybody else than who made it take a map away.
func TestKeptMapsThatStay(t *testing.T) {
	iommu := &far{maps: map[uint64][]byte{}}
	p, err := NewKept(iommu, everywhere)
	require.NoError(t, err)
	a, err := p.Alloc("a", 4096, 64)
	require.NoError(t, err)
	b, err := p.Alloc("b", 4096, 64)
	require.NoError(t, err)

	later, err := OpenKept(iommu, nextProcess(t, p), everywhere)
	require.NoError(t, err)
	held, err := later.Held("a", 4096, 64)
	require.NoError(t, err)
	iommu.stays = true
	own, err := later.Alloc("own", 4096, 64)
	require.NoError(t, err)
	require.ErrorIs(t, later.Free(own), ErrStays, "that is a mistake of somebody's")
	require.NoError(t, later.Free(held))
	require.NoError(t, later.Reclaim())
	require.NoError(t, later.Reclaim(), "again")
	iommu.stays = false
	require.NoError(t, later.Free(own))
	_, err = later.Held("b", 4096, 64)
	assert.ErrorIs(t, err, ErrNotHeld, "its pages were given back")
	for _, k := range []*Kept{later, func() *Kept {
		k, err := OpenKept(iommu, nextProcess(t, later), everywhere)
		require.NoError(t, err)
		return k
	}()} {
		c, err := k.Alloc("c", 4096, 64)
		require.NoError(t, err)
		assert.Greater(t, c.Bus(), max(a.Bus(), b.Bus()), "their addresses are not used again")
		require.NoError(t, k.Free(c))
	}
	require.NoError(t, later.Reclaim(), "and are asked for no more")
	assert.Len(t, iommu.maps, 2)
}
