package vfio

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/dma"
	"oxpd/internal/vfu"
	"oxpd/octep/csr"
	"oxpd/octep/discover"
)

// kernelOnPaper answers as one does that has a card: config space is at the beginning of
// the function's file, and the BARs are nowhere.
func kernelOnPaper() *recorder {
	regions := map[uint32]uint64{vfu.RegionConfig: 4096, vfu.RegionBAR0: csr.BAR0Size, vfu.RegionBAR0 + 2: csr.BAR2Size}
	return &recorder{answer: map[uint]func([]byte) error{
		reqIOASAlloc: func(b []byte) error { le.PutUint32(b[8:], 5); return nil },
		reqIOASRanges: func(b []byte) error {
			le.PutUint32(b[8:], 1) // range, at an address in this process
			mem, err := os.OpenFile("/proc/self/mem", os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			defer mem.Close()
			_, err = mem.WriteAt(longs(nil, 0, 1<<32-1), int64(le.Uint64(b[16:])))
			return err
		},
		reqDeviceInfo: func(b []byte) error {
			copy(b, vfu.Device{ArgSize: vfu.DeviceSize, Flags: vfu.DevicePCI, Regions: 9, IRQs: 5}.Append(nil))
			return nil
		},
		reqIRQInfo: func(b []byte) error {
			copy(b, vfu.IRQ{ArgSize: vfu.IRQSize, Flags: vfu.IRQEventFD, Index: vfu.IRQMSIX, Count: csr.MSIXVectors}.Append(nil))
			return nil
		},
		reqRegionInfo: func(b []byte) error {
			index := le.Uint32(b[8:])
			r := vfu.Region{ArgSize: vfu.RegionSize, Flags: vfu.RegionRead | vfu.RegionWrite, Index: index, Size: regions[index]}
			if index != vfu.RegionConfig {
				r.Offset = 1 << 30
			}
			copy(b, r.Append(nil))
			return nil
		},
	}}
}

// shelf keeps descriptors as a service manager does.
type shelf map[string]int

func (s shelf) put(name string, fd int) (err error) {
	s[name], err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	return err
}

// take is for one adoption; the shelf keeps its own.
func (s shelf) take(name string) (int, bool) {
	fd, ok := s[name]
	if !ok {
		return -1, false
	}
	fd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	return fd, err == nil
}

func (s shelf) close() {
	for _, fd := range s {
		unix.Close(fd)
	}
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

// opened is a card on paper, opened by its cdev.
func opened(t *testing.T, p paper, k *recorder) *Device {
	t.Helper()
	config, err := os.ReadFile(p.card.File("config"))
	require.NoError(t, err)
	write(t, filepath.Join(p.dev, "vfio/devices/vfio3"), string(config))
	write(t, filepath.Join(p.dev, "iommu"), "")
	d := newDevice(p.card)
	d.kernel = k.ioctl
	require.NoError(t, d.open(function{p.card, p.dev, k.ioctl}, CdevForm))
	return d
}

// The second process opens nothing, and asks the kernel for nothing that changes
// anything; then each vector gets another eventfd.
func TestAdopt(t *testing.T) {
	p := onPaper(t)
	files := openFiles(t)
	k := kernelOnPaper()
	first := opened(t, p, k)
	kept := shelf{}
	require.NoError(t, first.Keep(kept.put))
	require.Len(t, kept, 4, "the cdev form has no group")
	assert.False(t, first.DMA().Keeps())
	first.SetKeeps(true)
	assert.True(t, first.DMA().Keeps())
	assert.Equal(t, Kept(), first.Stays())
	r, err := first.DMA().Alloc("ring", 8192, 4096)
	require.NoError(t, err)
	mem, _ := r.At(0, 8)
	mem[0] = 0x5a
	require.NoError(t, first.BindIRQ(16, func() {}))
	k.said = nil
	require.NoError(t, first.Close())
	assert.Empty(t, k.said, "a device that is kept is left as it is")
	_, err = function{p.card, p.dev, k.ioctl}.lock()
	assert.ErrorIs(t, err, discover.ErrBusy, "also while no process has it")

	d := newDevice(p.card)
	d.kernel = k.ioctl
	require.NoError(t, d.adopt(function{p.card, p.dev, k.ioctl}, kept.take))
	want := func(requests ...int) (all []string) {
		for _, r := range requests {
			all = append(all, fmt.Sprintf("%#x", r))
		}
		return all
	}
	assert.Equal(t, want(reqDeviceInfo, reqIRQInfo, reqRegionInfo, reqRegionInfo, reqRegionInfo, reqIOASRanges), k.requests())
	require.NoError(t, d.Keep(func(name string, _ int) error {
		t.Errorf("%s is put again, which takes it out for a moment", name)
		return nil
	}))
	held, err := d.DMA().(dma.Holder).Held("ring", 8192, 4096)
	require.NoError(t, err)
	assert.Equal(t, r.Bus(), held.Bus())
	mem, _ = held.At(0, 8)
	assert.EqualValues(t, 0x5a, mem[0])

	k.said = nil
	require.NoError(t, d.DMA().Free(held))
	assert.Equal(t, want(reqIOASUnmap), k.requests())
	assert.Contains(t, k.said[0], "1800000005000000", "in the address space of before")
	k.said = nil
	require.NoError(t, d.BindIRQ(16, func() {}))
	assert.Equal(t, want(reqSetIRQs, reqSetIRQs, reqSetIRQs), k.requests(), "the card on paper has forgotten MSI-X: off, all, this one")
	require.NoError(t, d.Close())
	kept.close()
	noMoreFiles(t, files, "no descriptor is left over")
}

func TestAdoptRefuses(t *testing.T) {
	adopt := func(p paper, c *discover.Card, kept shelf) error {
		d, err := Adopt(c, Options{Dev: p.dev}, kept.take)
		assert.Nil(t, d)
		var e *AdoptError
		require.ErrorAs(t, err, &e)
		assert.Contains(t, e.Hint(), "systemctl clean --what=fdstore oxpd")
		return err
	}
	for _, name := range Kept() {
		if name == KeptGroup {
			continue
		}
		t.Run("no "+name, func(t *testing.T) {
			p := onPaper(t)
			first, kept := opened(t, p, kernelOnPaper()), shelf{}
			require.NoError(t, first.Keep(kept.put))
			unix.Close(kept[name])
			delete(kept, name)
			files := openFiles(t)
			assert.ErrorContains(t, adopt(p, p.card, kept), "its "+name+" was not kept")
			noMoreFiles(t, files, "no descriptor is left over")
			kept.close()
			require.NoError(t, first.Close())
		})
	}
	p := onPaper(t)
	first, kept := opened(t, p, kernelOnPaper()), shelf{}
	require.NoError(t, first.Keep(kept.put))
	t.Run("another function", func(t *testing.T) {
		other := filepath.Join(p.dev, "vfio/devices/vfio3")
		require.NoError(t, os.Rename(other, other+".aside"))
		assert.ErrorIs(t, adopt(p, p.card, kept), os.ErrNotExist)
		write(t, other, "")
		assert.ErrorContains(t, adopt(p, p.card, kept), "what was kept is not of "+other)
		require.NoError(t, os.Rename(other+".aside", other))
	})
	t.Run("a group of another function", func(t *testing.T) {
		write(t, filepath.Join(p.dev, "vfio/7"), "")
		null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
		require.NoError(t, err)
		defer unix.Close(null)
		with := shelf{KeptGroup: null}
		for name, fd := range kept {
			with[name] = fd
		}
		assert.ErrorContains(t, adopt(p, p.card, with), "what was kept is not of "+filepath.Join(p.dev, "vfio/7"))
	})
	t.Run("something that is no function", func(t *testing.T) {
		assert.ErrorIs(t, adopt(p, p.card, kept), unix.ENOTTY)
	})
	t.Run("no IOMMU", func(t *testing.T) {
		c := *p.card
		c.IOMMU = nil
		assert.ErrorIs(t, adopt(p, &c, kept), ErrNoIOMMU)
	})
	kept.close()
	require.NoError(t, first.Close())
}
