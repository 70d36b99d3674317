package inside

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/dma"
	"oxpd/internal/mmio"
	"oxpd/octep"
	"oxpd/octep/csr"
	"oxpd/octep/discover"
	"oxpd/octep/vfio"
)

var _ octep.Device = (*vfio.Device)(nil)

// write writes a file of sysfs.
func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(text), 0))
}

// bound gives the card to vfio-pci until the end of the test, which finds the registers
// at their power-on values.
func bound(t *testing.T) (h discover.Host, address string) {
	t.Helper()
	dir := card(t)
	if !behindIOMMU(dir) {
		t.Skip("there is no IOMMU in this guest")
	}
	h = discover.System(nil)
	address = filepath.Base(dir)
	flr(t, dir)
	write(t, filepath.Join(dir, "reset_method"), "\n")
	require.Empty(t, read(t, dir, "reset_method"))
	_, _, err := h.Bind(address, discover.VFIO, false)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, _, err := h.Unbind(address)
		assert.NoError(t, err)
		flr(t, dir)
	})
	return h, address
}

// flr resets the function, and with it the coprocessor.
func flr(t *testing.T, dir string) {
	t.Helper()
	write(t, filepath.Join(dir, "reset_method"), "flr")
	write(t, filepath.Join(dir, "reset"), "1")
}

// store is a descriptor store of this process.
type store map[string]int

func (s store) Why() string { return "" }

func (s store) Most() int { return 64 }

func (s store) take(name string) (int, bool) {
	fd, ok := s[name]
	if !ok {
		return -1, false
	}
	fd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	return fd, err == nil
}

func (s store) put(name string, fd int) (err error) {
	s[name], err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	return err
}

func (s store) close() {
	for name, fd := range s {
		_ = unix.Close(fd)
		delete(s, name)
	}
}

func find(t *testing.T, h discover.Host, address string) *discover.Card {
	t.Helper()
	c, err := h.Card(address)
	require.NoError(t, err)
	return c
}

// TestVFIORefuses: what may reset the card is named, each with its command, before
// anything is opened.
func TestVFIORefuses(t *testing.T) {
	h, address := bound(t)
	ctx := context.Background()
	refused := func(o vfio.Options) *vfio.ResetError {
		t.Helper()
		d, err := vfio.Open(ctx, h, find(t, h, address), o)
		require.Error(t, err)
		assert.Nil(t, d)
		var r *vfio.ResetError
		require.ErrorAs(t, err, &r)
		return r
	}
	r := refused(vfio.Options{})
	require.Len(t, r.Missing, 1, "the module was loaded with its parameter, and no reset is left")
	assert.Contains(t, r.Missing[0].Text, "there is no descriptor store")
	write(t, filepath.Join("/sys/bus/pci/devices", address, "reset_method"), "flr")
	s := store{}
	r = refused(vfio.Options{Store: s})
	require.Len(t, r.Missing, 1)
	assert.Contains(t, r.Missing[0].Text, "(reset_method: flr)")
	assert.Contains(t, r.Hint(), "echo > /sys/bus/pci/devices/"+address+"/reset_method; or accept a reset: --i-accept-reset")
	assert.Empty(t, s)
}

// TestVFIO: the card behind an IOMMU, in both forms.
func TestVFIO(t *testing.T) {
	for _, form := range []vfio.Form{vfio.GroupForm, vfio.CdevForm} {
		t.Run(string(form), func(t *testing.T) {
			h, address := bound(t)
			ctx := context.Background()
			if _, err := os.Stat("/dev/iommu"); form == vfio.CdevForm && err != nil {
				_, err := vfio.Open(ctx, h, find(t, h, address), vfio.Options{Form: form, AcceptReset: true})
				require.ErrorContains(t, err, "the kernel has no /dev/vfio/devices entry for it, or no /dev/iommu")
				return
			}
			s := store{}
			defer s.close()
			d, err := vfio.Open(ctx, h, find(t, h, address), vfio.Options{Form: form, Store: s})
			require.NoError(t, err)
			defer func() { assert.NoError(t, d.Close()) }()

			t.Run("registers", func(t *testing.T) { registers(t, d) })
			t.Run("one process has it", func(t *testing.T) {
				_, err := vfio.Open(ctx, h, find(t, h, address), vfio.Options{Form: form, AcceptReset: true})
				var o *vfio.OpenError
				require.ErrorAs(t, err, &o)
				assert.ErrorIs(t, err, discover.ErrBusy)
				assert.Contains(t, o.Hint(), "oxpd stop")
			})
			t.Run("memory", func(t *testing.T) { memory(t, d) })
			t.Run("decoding goes away", func(t *testing.T) { decodingOff(t, d) })
			t.Run("interrupts", func(t *testing.T) {
				for v := range csr.MSIXVectors {
					require.NoError(t, d.BindIRQ(v, func() {}))
				}
				require.NoError(t, d.BindIRQ(79, nil))
				require.NoError(t, d.BindIRQ(79, nil), "nobody is bound")
				require.NoError(t, d.BindIRQ(79, func() {}))
				assert.Error(t, d.BindIRQ(80, func() {}))
			})
			t.Run("a wrong address", func(t *testing.T) { wrongAddress(t, d) })
			t.Run("nobody takes its driver away", func(t *testing.T) {
				_, _, err := h.Unbind(address)
				assert.ErrorIs(t, err, discover.ErrBusy, "the kernel would wait for the descriptors")
			})
			t.Run("the next process goes on with it", func(t *testing.T) {
				mmio.Store64(d.BAR0(), csr.InIntLevels.Queue(9), 0x77)
				r, err := d.DMA().Alloc("kept", 8192, 4096)
				require.NoError(t, err)
				mem, _ := r.At(0, 8)
				copy(mem, "was here")
				require.NoError(t, octep.SetBusMaster(d, true))
				require.NoError(t, d.Keep(s.put))
				d.SetKeeps(true)
				require.NoError(t, d.Close())
				assert.True(t, busMaster(t, card(t)))

				d, err = vfio.Adopt(find(t, h, address), vfio.Options{}, s.take)
				require.NoError(t, err)
				v, err := d.ConfigRead(csr.CfgCommand, 2)
				require.NoError(t, err)
				assert.NotZero(t, v&csr.CfgCommandBusMaster)
				assert.EqualValues(t, 0x77, mmio.Load64(d.BAR0(), csr.InIntLevels.Queue(9)), "it was not reset")
				held, err := d.DMA().(dma.Holder).Held("kept", 8192, 4096)
				require.NoError(t, err)
				assert.Equal(t, r.Bus(), held.Bus())
				mem, _ = held.At(0, 8)
				assert.Equal(t, "was here", string(mem))
				require.NoError(t, d.DMA().Free(held), "exactly what is mapped")
				for v := range csr.MSIXVectors {
					require.NoError(t, d.BindIRQ(v, func() {}))
				}
				memory(t, d)
				require.NoError(t, octep.SetBusMaster(d, false))
			})
		})
	}
}

// up waits until the target is.
func up(t *testing.T, d octep.Device) {
	t.Helper()
	require.Eventually(t, func() bool {
		return mmio.Load64(d.BAR0(), csr.SDPScratch) == csr.BAR2Facilities<<32|csr.ScratchMagic
	}, 60*time.Second, 10*time.Millisecond)
}

func registers(t *testing.T, d *vfio.Device) {
	up(t, d)
	assert.True(t, octep.Reachable(d))
	v, err := d.ConfigRead(csr.CfgCommand, 2)
	require.NoError(t, err)
	assert.Zero(t, v&csr.CfgCommandBusMaster, "bus mastering is the last thing, and not the kernel's")
	assert.EqualValues(t, csr.BAR0Size, d.BAR0().Size())
	assert.EqualValues(t, csr.BAR2Size, d.BAR2().Size())
	assert.EqualValues(t, csr.RInfoReset, mmio.Load64(d.BAR0(), csr.RInfo))
	mmio.Store64(d.BAR0(), csr.InIntLevels.Queue(63), 0x55)
	assert.EqualValues(t, 0x55, mmio.Load64(d.BAR0(), csr.InIntLevels.Queue(63)))
	assert.EqualValues(t, csr.BarmapVersion02, d.BAR2().Load32(csr.BAR2Facilities))
	assert.Equal(t, ^uint64(0), d.BAR2().Load64(0), "an entry that the target never maps")
	for width, want := range map[int]uint32{1: 0x7d, 2: 0x177d, 4: 0xa300177d} {
		v, err := d.ConfigRead(0, width)
		require.NoError(t, err)
		assert.Equal(t, want, v)
	}
	for _, bad := range []struct{ off, width int }{{0, 3}, {1, 2}, {-4, 4}, {4096, 1}} {
		_, err := d.ConfigRead(bad.off, bad.width)
		assert.Error(t, err, "%v", bad)
		assert.Error(t, d.ConfigWrite(bad.off, bad.width, 0), "%v", bad)
	}
}

// memory takes and gives back: every map is exact, or the kernel refuses the next.
func memory(t *testing.T, d *vfio.Device) {
	before, err := d.DMA().Alloc("before", 4096, 4096)
	require.NoError(t, err)
	for range 3 {
		a, err := d.DMA().Alloc("a", 3<<20, 64)
		require.NoError(t, err)
		b, err := d.DMA().Alloc("b", 100, 1<<16)
		require.NoError(t, err)
		assert.Less(t, uint64(a.Bus())+uint64(a.Size()), uint64(1)<<32)
		assert.Zero(t, b.Bus()%(1<<16))
		require.NoError(t, d.DMA().Free(a))
		require.NoError(t, d.DMA().Free(b))
		assert.Error(t, d.DMA().Free(a))
	}
	require.NoError(t, d.DMA().Free(before))
}

// decodingOff: the kernel takes mappings away while memory decoding is off, and an
// access would be a SIGBUS (VF-9).
func decodingOff(t *testing.T, d *vfio.Device) {
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				mmio.Store64(d.BAR0(), csr.InIntLevels.Queue(1), 1)
				_ = d.BAR2().Load32(csr.BAR2Facilities)
			}
		}
	}()
	for range 10 {
		require.EqualValues(t, csr.RInfoReset, mmio.Load64(d.BAR0(), csr.RInfo))
		require.NoError(t, d.ConfigWrite(csr.CfgCommand, 2, 0))
		_, err := mmio.Checked64(d.BAR0(), csr.RInfo)
		require.ErrorIs(t, err, mmio.ErrGone)
		assert.Equal(t, ^uint32(0), d.BAR2().Load32(csr.BAR2Facilities))
		assert.True(t, octep.Alive(d))
		assert.False(t, octep.Reachable(d))
		require.NoError(t, d.ConfigWrite(csr.CfgCommand, 2, csr.CfgCommandMemory))
	}
	close(stop)
	<-done
	assert.EqualValues(t, csr.BarmapVersion02, d.BAR2().Load32(csr.BAR2Facilities))
}

// wrongAddress has the card fetch instructions of an address that the IOMMU does not
// have, and of one that it had: each is a report of the model, which the host counts.
func wrongAddress(t *testing.T, d *vfio.Device) {
	r, err := d.DMA().Alloc("ring", 64<<10, 4096)
	require.NoError(t, err)
	had := uint64(r.Bus())
	require.NoError(t, d.DMA().Free(r))
	require.NoError(t, octep.SetBusMaster(d, true))
	for q, bus := range map[int]uint64{20: 0x7654_3000, 21: had} {
		mmio.Store64(d.BAR0(), csr.InInstrBaddr.Queue(q), bus)
		mmio.Store64(d.BAR0(), csr.InInstrRsize.Queue(q), 256)
		mmio.Store64(d.BAR0(), csr.InControl.Queue(q), csr.InControlProgram)
		mmio.Store64(d.BAR0(), csr.InEnable.Queue(q), 1)
		mmio.Store64(d.BAR0(), csr.InInstrDBell.Queue(q), 1)
		require.Eventually(t, func() bool {
			return mmio.Load64(d.BAR0(), csr.InInstrDBell.Queue(q))&0xffffffff == 0
		}, 60*time.Second, 10*time.Millisecond, "the card has fetched")
		mmio.Store64(d.BAR0(), csr.InEnable.Queue(q), 0)
	}
	require.NoError(t, octep.SetBusMaster(d, false))
}
