package sysfs

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/dma"
	"oxpd/internal/mmio"
	"oxpd/octep"
	"oxpd/octep/csr"
	"oxpd/octep/discover"
)

var _ octep.Device = (*Device)(nil)

const addr = "0000:01:00.0"

// tree is a machine with the card, whose BARs are files. No driver, no IOMMU.
func tree(t *testing.T) (h discover.Host, dir string) {
	t.Helper()
	root := t.TempDir()
	dir = filepath.Join(root, "sys/bus/pci/devices", addr)
	config := make([]byte, 4096)
	le := binary.LittleEndian
	le.PutUint16(config[0:], 0x177d)
	le.PutUint16(config[2:], 0xa300)
	le.PutUint32(config[8:], 0x0b800001)
	resource := strings.Repeat("0x0000000000000000 0x0000000000000000 0x0000000000000000\n", 13)
	lines := strings.SplitAfter(resource, "\n")
	lines[0] = "0x00000000f0000000 0x00000000f07fffff 0x0000000000140204\n"
	lines[2] = "0x00000000ec000000 0x00000000efffffff 0x0000000000140204\n"
	for name, text := range map[string]string{
		"vendor": "0x177d\n", "device": "0xa300\n", "class": "0x0b8000\n", "irq": "0\n", "resource": strings.Join(lines, ""), "config": string(config),
		"resource0": "", "resource2": "",
	} {
		write(t, filepath.Join(dir, name), text)
	}
	require.NoError(t, os.Truncate(filepath.Join(dir, "resource0"), csr.BAR0Size))
	require.NoError(t, os.Truncate(filepath.Join(dir, "resource2"), csr.BAR2Size))
	write(t, filepath.Join(root, "proc/mounts"), "none /dev/hugepages hugetlbfs rw,pagesize=2M 0 0\n")
	return discover.Host{Sys: filepath.Join(root, "sys"), Proc: filepath.Join(root, "proc"), Root: true}, dir
}

func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
}

func card(t *testing.T, h discover.Host) *discover.Card {
	t.Helper()
	c, err := h.Find("")
	require.NoError(t, err)
	return c
}

func content(t *testing.T, dir, name string, off, n int) []byte {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, name))
	require.NoError(t, err)
	defer f.Close()
	b := make([]byte, n)
	_, err = f.ReadAt(b, int64(off))
	require.NoError(t, err)
	return b
}

func TestDevice(t *testing.T) {
	h, dir := tree(t)
	d, err := Open(h, card(t, h))
	require.NoError(t, err)
	assert.Equal(t, addr, d.Name())
	assert.True(t, octep.Alive(d))
	assert.EqualValues(t, csr.BAR0Size, d.BAR0().Size())
	assert.EqualValues(t, csr.BAR2Size, d.BAR2().Size())
	assert.True(t, d.DMA().Keeps())
	for _, name := range []string{"config", "resource0", "resource2"} {
		for off := 16; off < 4096; off += 8 {
			require.Equal(t, make([]byte, 8), content(t, dir, name, off, 8), "opening writes nothing: %s", name)
		}
	}

	mmio.Store64(d.BAR0(), csr.InIntLevels.Queue(63), 0x1122334455667788)
	assert.EqualValues(t, 0x1122334455667788, mmio.Load64(d.BAR0(), csr.InIntLevels.Queue(63)))
	assert.EqualValues(t, 0x1122334455667788, binary.NativeEndian.Uint64(content(t, dir, "resource0", int(csr.InIntLevels.Queue(63)), 8)))
	d.BAR2().Store32(0x03c00040, 153)
	assert.Equal(t, []byte{153, 0, 0, 0}, content(t, dir, "resource2", 0x03c00040, 4))

	require.NoError(t, octep.SetBusMaster(d, true))
	assert.Equal(t, []byte{0x7d, 0x17, 0x00, 0xa3, 4, 0, 0, 0}, content(t, dir, "config", 0, 8), "two bytes of the command register")
	for width, want := range map[int]uint32{1: 0x7d, 2: 0x177d, 4: 0xa300177d} {
		v, err := d.ConfigRead(0, width)
		require.NoError(t, err)
		assert.Equal(t, want, v)
	}
	for _, tt := range []struct{ off, width int }{{0, 0}, {0, 3}, {0, 8}, {1, 2}, {-4, 4}, {4096, 1}, {4094, 4}} {
		_, err := d.ConfigRead(tt.off, tt.width)
		assert.Error(t, err, "%v", tt)
		assert.Error(t, d.ConfigWrite(tt.off, tt.width, 0), "%v", tt)
	}

	require.ErrorIs(t, d.BindIRQ(16, func() {}), octep.ErrNoInterrupts)
	require.NoError(t, d.BindIRQ(16, nil), "there is nothing to unbind")
	require.NoError(t, d.Close())
	require.NoError(t, d.Close(), "twice")
}

// One process drives the card; any number look at it.
func TestOneDrives(t *testing.T) {
	h, _ := tree(t)
	c := card(t, h)
	first, err := Open(h, c)
	require.NoError(t, err)
	_, err = Open(h, c)
	require.ErrorIs(t, err, discover.ErrBusy)
	var oe *OpenError
	require.ErrorAs(t, err, &oe)
	assert.Equal(t, "stop it first: oxpd stop", oe.Hint())
	look, err := Look(h, c)
	require.NoError(t, err)
	_, err = look.DMA().Alloc("ring", 64, 64)
	require.ErrorIs(t, err, dma.ErrNoHugetlbfs, "a look has no memory")
	require.NoError(t, look.Close())
	require.NoError(t, first.Close())
	again, err := Open(h, c)
	require.NoError(t, err)
	require.NoError(t, again.Close())
}

func TestOpenRefuses(t *testing.T) {
	for _, tt := range []struct {
		name string
		make func(t *testing.T, h *discover.Host, dir string)
		says string
		hint string
		look bool // is refused too
	}{
		{"a driver has it", func(t *testing.T, _ *discover.Host, dir string) {
			require.NoError(t, os.Symlink("../../drivers/octeon_ep", filepath.Join(dir, "driver")))
		}, "the kernel's driver octeon_ep has the card", "oxpd unbind --device " + addr, false},
		{"an IOMMU translates", func(t *testing.T, _ *discover.Host, dir string) {
			write(t, filepath.Join(dir, "iommu_group/type"), "DMA\n")
		}, "physical addresses would be wrong",
			"echo identity > ", false},
		{"no hugepages", func(_ *testing.T, h *discover.Host, _ string) { h.Needs = []dma.Need{{Size: 1, Align: 64}} }, "1 hugepages of 2048 KiB are needed", "vm.nr_hugepages=1", false},
		{"not root", func(_ *testing.T, h *discover.Host, _ string) { h.Root = false }, "not root", "sudo", true},
		{"no BAR0", func(t *testing.T, _ *discover.Host, dir string) {
			require.NoError(t, os.Remove(filepath.Join(dir, "resource0")))
		}, "resource0: no such file", "oxpd devices", true},
		{"half of BAR2", func(t *testing.T, _ *discover.Host, dir string) {
			require.NoError(t, os.Truncate(filepath.Join(dir, "resource2"), csr.BAR2Size/2))
		}, "map resource2: 33554432 bytes, want 67108864", "", true},
		{"a BAR that cannot be mapped", func(t *testing.T, _ *discover.Host, dir string) {
			require.NoError(t, os.Remove(filepath.Join(dir, "resource0")))
			require.NoError(t, os.Mkdir(filepath.Join(dir, "resource0"), 0o755))
		}, "open card " + addr + ": open ", "", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h, dir := tree(t)
			tt.make(t, &h, dir)
			c := card(t, h)
			d, err := Open(h, c)
			require.ErrorContains(t, err, tt.says)
			assert.Nil(t, d)
			var hinter interface{ Hint() string }
			require.ErrorAs(t, err, &hinter)
			assert.Contains(t, hinter.Hint(), tt.hint)

			l, err := Look(h, c)
			if tt.look {
				require.ErrorContains(t, err, tt.says)
				assert.Nil(t, l)
				return
			}
			require.NoError(t, err)
			require.NoError(t, l.Close())
		})
	}
}

// A card that has left the bus, as its config space shows it.
func TestGone(t *testing.T) {
	h, dir := tree(t)
	d, err := Open(h, card(t, h))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, d.Close()) })
	f, err := os.OpenFile(filepath.Join(dir, "config"), os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, 0)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	assert.False(t, octep.Alive(d))
	require.ErrorIs(t, octep.SetBusMaster(d, true), mmio.ErrGone)
	for _, name := range []string{"resource0", "resource2"} { // what the kernel does to a mapping of a function that it removes
		require.NoError(t, os.Truncate(filepath.Join(dir, name), 0))
	}
	assert.Equal(t, ^uint64(0), mmio.Load64(d.BAR0(), csr.RInfo))
	d.BAR0().Store64(uint32(csr.InIntLevels.Queue(1)), 1)
	assert.Equal(t, ^uint32(0), d.BAR2().Load32(csr.BAR2Facilities))
	require.NoError(t, os.Truncate(filepath.Join(dir, "config"), 0))
	_, err = d.ConfigRead(0, 2)
	require.ErrorContains(t, err, "sysfs: read config space of "+addr+" at 0x0: 0 of 2 bytes")
	assert.False(t, octep.Alive(d))
}
