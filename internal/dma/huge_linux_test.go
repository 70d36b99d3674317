package dma

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const (
	poolPath = "/proc/sys/vm/nr_hugepages"
	sizePath = "/sys/kernel/mm/hugepages/hugepages-2048kB/"
)

// newHuge is a provider whose pages are unmapped at the end of the test, as at that of
// a process.
func newHuge(t *testing.T, o HugeOptions) *Huge {
	h := NewHuge(o)
	t.Cleanup(func() { unmapAll(t, h.pages) })
	return h
}

func unmapAll(t *testing.T, pages []hugePage) {
	for _, p := range pages {
		assert.NoError(t, unix.Munmap(p.mem))
	}
}

// hugetlbfs mounts one for the test, and sees to it that the machine has n free pages
// of 2 MiB while it runs.
func hugetlbfs(t *testing.T, n int) (dir string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: sets the number of hugepages and mounts a hugetlbfs")
	}
	// One test of the machine at a time: another package's has the same pool.
	pool, err := os.Open(poolPath)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, pool.Close()) })
	require.NoError(t, unix.Flock(int(pool.Fd()), unix.LOCK_EX))
	before := count(poolPath)
	free, surplus := count(sizePath+"free_hugepages"), count(sizePath+"surplus_hugepages")
	set := func(pages int) { require.NoError(t, os.WriteFile(poolPath, []byte(strconv.Itoa(pages)), 0)) }
	set(before + surplus + max(n-free, 0))
	t.Cleanup(func() { set(before) })
	if count(sizePath+"free_hugepages") < n {
		t.Skip("the machine has no hugepages of 2 MiB")
	}
	dir = t.TempDir()
	if err := unix.Mount("hugetlbfs", dir, "hugetlbfs", 0, "pagesize=2M"); err != nil {
		t.Skip("no hugetlbfs: ", err)
	}
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

// frame asks the kernel anew where a byte lies.
func frame(t *testing.T, b []byte) BusAddr {
	t.Helper()
	f, err := os.Open("/proc/self/pagemap")
	require.NoError(t, err)
	defer f.Close()
	var e [8]byte
	_, err = f.ReadAt(e[:], int64(cpu(b)/4096*8))
	require.NoError(t, err)
	return BusAddr(binary.NativeEndian.Uint64(e[:])&(1<<55-1)*4096 + cpu(b)%4096)
}

func TestHuge(t *testing.T) {
	dir := hugetlbfs(t, 4)
	h := newHuge(t, HugeOptions{Dir: dir, Name: "oxpd-test", Pages: 3})
	assert.True(t, h.Keeps())
	var regions []*Region
	for _, n := range []Need{{1152, 4096}, {1024 * 1664, 4096}, {32 * 9344, 4096}, {1024 * 1664, 4096}, {4096, 4096}, {2 << 20, 2 << 20}, {100, 64}} {
		r, err := h.Alloc("piece", n.Size, n.Align)
		require.NoError(t, err)
		regions = append(regions, r)
		require.NoError(t, r.Check())
		mem, bus := r.At(0, r.Size())
		assert.Zero(t, uint64(bus)%uint64(n.Align))
		assert.Equal(t, make([]byte, n.Size), mem, "zeroed")
		assert.Equal(t, uint64(bus)>>21, (uint64(bus)+uint64(n.Size)-1)>>21, "in one hugepage")
		for off := 0; off < n.Size; off += 4096 {
			b, at := r.At(off, 1)
			require.Equal(t, frame(t, b), at, "the kernel says where byte %d lies", off)
		}
		for i := range mem {
			mem[i] = byte(len(regions))
		}
	}
	for i, r := range regions {
		mem, _ := r.At(0, r.Size())
		assert.EqualValues(t, i+1, mem[0], "no other region lies here")
		assert.EqualValues(t, i+1, mem[len(mem)-1])
	}
	fi, err := os.Stat(filepath.Join(dir, "oxpd-test"))
	require.NoError(t, err)
	assert.EqualValues(t, 3<<21, fi.Size(), "three pages in all")
	assert.Equal(t, os.FileMode(0o600), fi.Mode().Perm())

	_, err = h.Alloc("all slots", 256*9344, 4096)
	require.ErrorContains(t, err, "do not lie in one hugepage of 2097152 bytes")
	for _, n := range []Need{{0, 64}, {-1, 64}, {64, 32}, {64, 96}, {64, 4 << 20}} {
		_, err := h.Alloc("x", n.Size, n.Align)
		require.ErrorContains(t, err, "dma: alloc x")
	}
	require.Error(t, h.Free(NewRegion("foreign", make([]byte, 64), 0)))
	for _, r := range regions {
		require.FileExists(t, filepath.Join(dir, "oxpd-test"))
		require.NoError(t, h.Free(r))
		require.Error(t, h.Free(r), "twice")
	}
	assert.NoFileExists(t, filepath.Join(dir, "oxpd-test"), "the last region takes the file with it")
	require.NoError(t, h.Close())
}

// Memory that the card knows outlives the process: the next one finds its file, is
// refused, and gets memory once it has been reclaimed.
func TestHugeKeepsMemory(t *testing.T) {
	dir := hugetlbfs(t, 2)
	o := HugeOptions{Dir: dir, Name: "oxpd-test", Pages: 1}
	first := newHuge(t, o)
	r, err := first.Alloc("ring", 4096, 64)
	require.NoError(t, err)
	mem, _ := r.At(0, 4096)
	mem[0] = 0x5a
	page := first.pages[0].mem
	require.NoError(t, first.Close())
	require.NoError(t, first.Close(), "twice")

	next := newHuge(t, o)
	_, err = next.Alloc("ring", 4096, 64)
	require.ErrorIs(t, err, ErrLeft)
	var he *HugeError
	require.ErrorAs(t, err, &he)
	assert.Contains(t, he.Hint(), "reboot the coprocessor")
	require.NoError(t, r.Check(), "the refused one has touched nothing")
	assert.EqualValues(t, 0x5a, mem[0])

	require.NoError(t, next.Reclaim())
	require.NoError(t, next.Reclaim(), "there is nothing any more")
	fresh, err := next.Alloc("ring", 4096, 64)
	require.NoError(t, err)
	assert.NotEqual(t, r.Bus(), fresh.Bus(), "the first process still has it mapped")
	require.NoError(t, next.Free(fresh))
	require.NoError(t, unix.Munmap(page))
}

func TestHugeThatCannotBeHad(t *testing.T) {
	dir := hugetlbfs(t, 1)
	pages := count(sizePath + "nr_hugepages")
	free := count(sizePath + "free_hugepages")
	const more = 3
	for _, tt := range []struct {
		name string
		o    HugeOptions
		is   error
		says string
		hint string
	}{
		{"no mount", HugeOptions{Name: "x"}, ErrNoHugetlbfs, "dma: hugepages: no hugetlbfs is mounted", "mount -t hugetlbfs"},
		{"no such folder", HugeOptions{Dir: filepath.Join(dir, "none"), Name: "x"}, os.ErrNotExist, "none: no such file", "mount -t hugetlbfs"},
		{"another file system", HugeOptions{Dir: "/proc", Name: "x"}, ErrNoHugetlbfs, "hugepages at /proc: ", "mount -t hugetlbfs"},
		{"too few pages", HugeOptions{Dir: dir, Name: "x", Pages: free + more}, unix.ENOSPC, strconv.Itoa(free+more) + " pages of 2048 KiB are needed, " + strconv.Itoa(free) + " are there",
			"sysctl -w vm.nr_hugepages=" + strconv.Itoa(pages+more)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHuge(t, tt.o)
			var err error
			for range free + 1 { // the last one is one too many
				if _, err = h.Alloc("r", 2<<20, 64); err != nil {
					break
				}
			}
			require.ErrorIs(t, err, tt.is)
			require.ErrorContains(t, err, tt.says)
			var hinter interface{ Hint() string }
			require.ErrorAs(t, err, &hinter)
			assert.Contains(t, hinter.Hint(), tt.hint)
			for r := range h.out {
				require.NoError(t, r.Check(), "what was there before is good")
				require.NoError(t, h.Free(r))
			}
			assert.NoFileExists(t, filepath.Join(dir, "x"))
		})
	}
}

// A signal of the runtime's own at the wrong moment is no reason to be without a page.
func TestSystemCallThatASignalEnds(t *testing.T) {
	for _, want := range []error{nil, unix.ENOSPC} {
		calls := 0
		err := uninterrupted(func() error {
			if calls++; calls < 3 {
				return os.NewSyscallError("fallocate", unix.EINTR)
			}
			return want
		})
		assert.Equal(t, want, err)
		assert.Equal(t, 3, calls)
	}
}

// later is what a process that has ended leaves to the next one.
func later(t *testing.T, h *Huge) *Huge {
	t.Helper()
	pages := h.pages
	t.Cleanup(func() { unmapAll(t, pages) })
	require.NoError(t, h.Close())
	return newHuge(t, h.o)
}

func TestHugeMemoryIsFoundByName(t *testing.T) {
	dir := hugetlbfs(t, 4)
	first := newHuge(t, HugeOptions{Dir: dir, Name: "x", Pages: 3})
	_, err := first.Held("records", 64, 64)
	require.ErrorIs(t, err, ErrNotHeld, "there is no file")
	want := map[string]*Region{}
	for name, n := range map[string]Need{"records": {1152, 4096}, "buffers": {1024 * 1664, 4096}, "more buffers": {1024 * 1664, 4096}, "list": {16384, 4096}} {
		r, err := first.Alloc(name, n.Size, n.Align)
		require.NoError(t, err)
		mem, _ := r.At(0, n.Size)
		copy(mem[n.Size-16:], name)
		want[name] = r
	}
	freed, err := first.Alloc("rpc command", 4096, 4096)
	require.NoError(t, err)
	require.NoError(t, first.Free(freed))
	_, err = first.Held("records", 1152, 4096)
	require.ErrorIs(t, err, ErrNotHeld, "its own are no earlier process's")

	next := later(t, first)
	var h Holder = Limit(next, 64).(Holder)
	for _, n := range []struct {
		name        string
		size, align int
	}{{"other", 64, 64}, {"list", 16385, 4096}, {"list", 16384, 1 << 40}, {"list", 16384, 0}, {"rpc command", 4096, 4096}, {"", 4096, 4096}} {
		_, err := h.Held(n.name, n.size, n.align)
		require.ErrorIs(t, err, ErrNotHeld, "%v", n)
	}
	for name, was := range want {
		r, err := h.Held(name, was.Size(), 4096)
		require.NoError(t, err)
		assert.Equal(t, was.Bus(), r.Bus())
		require.NoError(t, r.Check())
		mem, _ := r.At(0, r.Size())
		assert.Equal(t, name, string(mem[r.Size()-16:][:len(name)]), "what lay in it")
		assert.Equal(t, r.Bus(), frame(t, mem))
		_, err = h.Held(name, was.Size(), 4096)
		require.ErrorIs(t, err, ErrNotHeld, "it was given")
	}
	require.ErrorContains(t, next.Reclaim(), "in use")
	more, err := next.Alloc("rpc command", 4096, 4096)
	require.NoError(t, err)
	for _, r := range want {
		assert.True(t, more.Bus()+4096 <= r.Bus() || r.Bus()+BusAddr(r.Size()) <= more.Bus(), "beside all of them")
	}
	require.NoError(t, next.Free(more))

	third := later(t, next)
	r, err := third.Held("records", 1152, 4096)
	require.NoError(t, err)
	require.NoError(t, third.Free(r))
	assert.FileExists(t, filepath.Join(dir, "x"), "the card may know the others")
	require.NoError(t, third.Reclaim())
	assert.NoFileExists(t, filepath.Join(dir, "x"))
}

// More processes than the table has room for go on with one buffer of the first.
func TestHugeOfManyProcesses(t *testing.T) {
	dir := hugetlbfs(t, 1)
	h := newHuge(t, HugeOptions{Dir: dir, Name: "x", Pages: 1})
	first, err := h.Alloc("rpc command", 4160, 4096)
	require.NoError(t, err)
	for range hugeTable/keptEntry + 100 {
		next := NewHuge(h.o)
		pages := h.pages
		require.NoError(t, h.Close())
		all, err := HeldAll(Limit(next, 64), "rpc command", 4160, 4096)
		require.NoError(t, err)
		require.Len(t, all, 1)
		require.Equal(t, first.Bus(), all[0].Bus())
		require.Equal(t, 1, next.table().count())
		unmapAll(t, pages)
		h = next
	}
	pages := h.pages
	require.NoError(t, h.Close())
	unmapAll(t, pages)
	require.NoError(t, h.Reclaim())
}

// Memory of a process that runs is nobody else's, and as soon as it has ended the next one's.
func TestHugeOfAProcessThatRuns(t *testing.T) {
	dir := hugetlbfs(t, 2)
	first := newHuge(t, HugeOptions{Dir: dir, Name: "x"})
	_, err := first.Alloc("records", 64, 64)
	require.NoError(t, err)
	other := newHuge(t, first.o)
	refused := func() {
		t.Helper()
		_, err := other.Held("records", 64, 64)
		require.ErrorIs(t, err, ErrRuns)
		var huge *HugeError
		require.ErrorAs(t, err, &huge)
		assert.Equal(t, filepath.Join(dir, "x"), huge.Where)
		_, err = other.Alloc("records", 64, 64)
		require.ErrorIs(t, err, ErrLeft)
		require.ErrorIs(t, other.Reclaim(), ErrRuns)
		assert.FileExists(t, filepath.Join(dir, "x"))
	}
	refused()
	next := later(t, first)
	_, err = next.Held("records", 64, 64)
	require.NoError(t, err)
	refused()
	third := later(t, next)
	r, err := third.Held("records", 64, 64)
	require.NoError(t, err)
	require.NoError(t, third.Free(r))
	require.NoError(t, third.Reclaim())
}

// A region that cannot be had in the file of an earlier process takes nothing with it.
func TestHugeShortInAFileThatWasLeft(t *testing.T) {
	dir := hugetlbfs(t, 1)
	first := newHuge(t, HugeOptions{Dir: dir, Name: "x"})
	_, err := first.Alloc("ring", 4096, 64)
	require.NoError(t, err)
	next := later(t, first)
	_, err = next.Held("other", 64, 64)
	require.ErrorIs(t, err, ErrNotHeld)
	for range 2 + count(sizePath+"free_hugepages") {
		if _, err = next.Alloc("large", 2<<20, 64); err != nil {
			break
		}
	}
	require.ErrorIs(t, err, unix.ENOSPC)
	_, err = next.Held("ring", 4096, 64)
	require.NoError(t, err)
	assert.FileExists(t, filepath.Join(dir, "x"))
}

func TestHugeRefusesADamagedFile(t *testing.T) {
	le := binary.LittleEndian
	entry := func(b []byte) []byte { return b[keptHead:] }
	for _, tt := range []struct {
		name   string
		damage func(b []byte)
		is     error
	}{
		{"not its table", func(b []byte) { b[0]++ }, ErrKept},
		{"more regions than fit", func(b []byte) { le.PutUint64(b[keptCount:], ^uint64(0)) }, ErrKept},
		{"a region that is not there", func(b []byte) { le.PutUint64(b[keptCount:], 2) }, ErrKept},
		{"a region over the table", func(b []byte) { le.PutUint64(entry(b)[keptOffset:], 4096) }, ErrKept},
		{"a region behind the end", func(b []byte) { le.PutUint64(entry(b)[keptOffset:], 4<<20) }, ErrKept},
		{"a region across two pages", func(b []byte) { le.PutUint64(entry(b)[keptOffset:], 2<<20-64) }, ErrKept},
		{"a region before the beginning", func(b []byte) { le.PutUint64(entry(b)[keptOffset:], 1<<63) }, ErrKept},
		{"of no size", func(b []byte) { le.PutUint64(entry(b)[keptSize:], 0) }, ErrKept},
		{"of a size that wraps", func(b []byte) { le.PutUint64(entry(b)[keptSize:], 1<<63-1) }, ErrKept},
		{"memory that lies elsewhere now", func(b []byte) { le.PutUint64(entry(b)[keptBus:], 0x1_8000_0000) }, ErrMoved},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := hugetlbfs(t, 2)
			first := newHuge(t, HugeOptions{Dir: dir, Name: "x"})
			_, err := first.Alloc("ring", 4096, 64)
			require.NoError(t, err)
			tt.damage(first.pages[0].mem)
			next := later(t, first)
			_, err = next.Held("ring", 4096, 64)
			require.ErrorIs(t, err, tt.is)
			var he *HugeError
			require.ErrorAs(t, err, &he)
			assert.Contains(t, he.Hint(), "reboot the coprocessor")
			assert.FileExists(t, filepath.Join(dir, "x"), "it is left where it is")
			_, err = next.Alloc("ring", 4096, 64)
			require.ErrorIs(t, err, ErrLeft)
			require.NoError(t, next.Reclaim())
		})
	}
}

// A process without CAP_SYS_ADMIN sees frame number 0 for every page: it is refused,
// and gives no such address to anybody.
func TestHugeWithoutTheCapability(t *testing.T) {
	dir := hugetlbfs(t, 1)
	runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	require.NoError(t, unix.Capget(&hdr, &caps[0]))
	less := caps
	less[0].Effective &^= 1 << unix.CAP_SYS_ADMIN
	require.NoError(t, unix.Capset(&hdr, &less[0]))
	h := newHuge(t, HugeOptions{Dir: dir, Name: "x"})
	_, err := h.Alloc("r", 4096, 64)
	require.NoError(t, unix.Capset(&hdr, &caps[0]))
	require.ErrorIs(t, err, ErrHidden)
	var he *HugeError
	require.ErrorAs(t, err, &he)
	assert.Contains(t, he.Hint(), "root")
	assert.NoFileExists(t, filepath.Join(dir, "x"))
}

// Pages that moved between the allocation and the moment at which the card is told.
func TestHugeThatMoved(t *testing.T) {
	dir := hugetlbfs(t, 2)
	h := newHuge(t, HugeOptions{Dir: dir, Name: "x"})
	r, err := h.Alloc("oq3 list", 4096, 64)
	require.NoError(t, err)
	other := newHuge(t, HugeOptions{Dir: dir, Name: "y"})
	o, err := other.Alloc("o", 4096, 64)
	require.NoError(t, err)
	mem := h.pages[0].mem
	// The other page takes the place of the first, as a migration would.
	moveTo(t, mem, other.file)
	err = r.Check()
	require.ErrorIs(t, err, ErrMoved)
	assert.ErrorContains(t, err, "dma: check oq3 list: was at 0x")
	require.NoError(t, h.Free(r))
	require.NoError(t, other.Free(o))
}

// moveTo maps the first page of a file where mem is.
func moveTo(t *testing.T, mem []byte, f *os.File) {
	t.Helper()
	_, _, errno := unix.Syscall6(unix.SYS_MMAP, uintptr(cpu(mem)), uintptr(len(mem)), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_POPULATE|unix.MAP_FIXED, f.Fd(), 0)
	require.Zero(t, errno)
}

func TestLimitOnHuge(t *testing.T) {
	dir := hugetlbfs(t, 1)
	l := Limit(newHuge(t, HugeOptions{Dir: dir, Name: "x"}), 20)
	_, err := l.Alloc("r", 4096, 64)
	var e *WidthError
	require.ErrorAs(t, err, &e)
	assert.NoFileExists(t, filepath.Join(dir, "x"), "a refused region is given back")
	assert.ErrorContains(t, err, "dma-bits is 20")
}
