package vfio

import (
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/dma"
	"oxpd/internal/sys"
	"oxpd/octep/discover"
)

// recorder is a kernel that writes down what it is asked and answers as it was told.
type recorder struct {
	said   []string
	answer map[uint]func(arg []byte) error
}

func (r *recorder) ioctl(_ int, request uint, arg []byte) (int, error) {
	r.said = append(r.said, fmt.Sprintf("%#x %s", request, hex.EncodeToString(arg)))
	if f := r.answer[request]; f != nil {
		return 0, f(arg)
	}
	return 0, nil
}

// requests are what it was asked for, without the words.
func (r *recorder) requests() (all []string) {
	for _, s := range r.said {
		request, _, _ := strings.Cut(s, " ")
		all = append(all, request)
	}
	return all
}

// paper is a card in files, as sysfs and /dev have it, with group and cdev.
type paper struct {
	dev  string
	card *discover.Card
	host discover.Host
}

func onPaper(t *testing.T) paper {
	t.Helper()
	dev, sysfs := t.TempDir(), t.TempDir()
	dir := filepath.Join(sysfs, "bus/pci/devices/0000:01:00.0")
	config := string(append([]byte{0x7d, 0x17, 0, 0xa3}, make([]byte, 252)...))
	for path, text := range map[string]string{
		filepath.Join(dir, "vendor"):             "0x177d\n",
		filepath.Join(dir, "device"):             "0xa300\n",
		filepath.Join(dir, "class"):              "0x0b8000\n",
		filepath.Join(dir, "irq"):                "0\n",
		filepath.Join(dir, "resource"):           "0x00000000f0000000 0x00000000f07fffff 0x0000000000140204\n",
		filepath.Join(dir, "config"):             config,
		filepath.Join(dir, "vfio-dev/vfio3/dev"): "",
	} {
		write(t, path, text)
	}
	group := filepath.Join(sysfs, "kernel/iommu_groups/7")
	require.NoError(t, os.MkdirAll(group, 0o755))
	require.NoError(t, os.Symlink(group, filepath.Join(dir, "iommu_group")))
	h := discover.Host{Sys: sysfs, Proc: t.TempDir(), Root: true}
	c, err := h.Card("0000:01:00.0")
	require.NoError(t, err)
	return paper{dev, c, h}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
}

// The cdev form word for word as linux/vfio.h and linux/iommufd.h have it. A kernel that
// has it is met in a guest (internal/guest).
func TestCdevForm(t *testing.T) {
	p := onPaper(t)
	k := &recorder{answer: map[uint]func([]byte) error{
		reqIOASAlloc: func(b []byte) error { le.PutUint32(b[8:], 5); return nil },
	}}
	f := function{p.card, p.dev, k.ioctl}
	assert.Empty(t, f.cdev(), "a kernel without either file")
	assert.Equal(t, GroupForm, f.form())
	write(t, filepath.Join(p.dev, "vfio/devices/vfio3"), "")
	assert.Empty(t, f.cdev(), "a kernel without iommufd")
	write(t, filepath.Join(p.dev, "iommu"), "")
	assert.Equal(t, filepath.Join(p.dev, "vfio/devices/vfio3"), f.cdev())
	assert.Equal(t, CdevForm, f.form(), "there is no group")

	d := &descriptors{open: map[string]int{}}
	_, space, err := f.openCdevForm(d)
	require.NoError(t, err)
	fd := d.open[KeptIOMMU]
	assert.Equal(t, []string{
		fmt.Sprintf("0x3b76 1000000000000000%s00000000", hex.EncodeToString(words(uint32(fd)))),
		"0x3b81 0c0000000000000000000000",
		"0x3b77 0c0000000000000005000000",
	}, k.said, "bound, then an address space, then attached to it")
	k.said = nil

	mem, err := unix.Mmap(-1, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	defer func() { assert.NoError(t, unix.Munmap(mem)) }()
	at := hex.EncodeToString(longs(nil, sys.AddressOf(mem)))
	require.NoError(t, space.MapFile(0x100000, mem, -1, 0))
	require.NoError(t, space.UnmapFile(0x100000, 8192))
	assert.Equal(t, []string{
		"0x3b85 28000000070000000500000000000000" + at + "0020000000000000" + "0000100000000000",
		"0x3b86 1800000005000000" + "0000100000000000" + "0020000000000000",
	}, k.said)

	k.answer[reqIOASUnmap] = func(b []byte) error { le.PutUint64(b[16:], 4096); return nil }
	assert.ErrorIs(t, space.UnmapFile(0x100000, 8192), errLayout, "half of it")
	k.answer[reqIOASUnmap] = func([]byte) error { return unix.ENOENT }
	assert.ErrorIs(t, space.UnmapFile(0x100000, 8192), dma.ErrStays, "none")

	k.answer[reqIOASRanges] = func(b []byte) error { le.PutUint32(b[8:], 0); return nil }
	ranges, err := space.addresses()
	require.NoError(t, err)
	assert.Equal(t, []dma.Range{}, ranges)
	k.answer[reqIOASRanges] = func(b []byte) error { le.PutUint32(b[8:], pageSize/rangeSize+1); return nil }
	_, err = space.addresses()
	assert.ErrorIs(t, err, errLayout)
	require.NoError(t, d.close())
}

// A kernel before 6.0 says that it took nothing away, for what another process mapped.
func TestContainerUnmap(t *testing.T) {
	taken := uint64(0)
	k := &recorder{answer: map[uint]func([]byte) error{
		reqUnmap: func(b []byte) error { le.PutUint64(b[16:], taken); return nil },
	}}
	c := container{k.ioctl, 3}
	assert.ErrorIs(t, c.UnmapFile(0x100000, 8192), dma.ErrStays)
	taken = 4096
	assert.ErrorIs(t, c.UnmapFile(0x100000, 8192), errLayout)
	taken = 8192
	assert.NoError(t, c.UnmapFile(0x100000, 8192))
}

// Who refuses is asked before anything is opened.
func TestOpenRefuses(t *testing.T) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	h := discover.Host{Sys: t.TempDir(), Root: true}
	for _, tt := range []struct {
		name string
		ctx  context.Context
		card discover.Card
		err  error
		hint string
	}{
		{"a context that has ended", ended, discover.Card{}, context.Canceled, ""},
		{"no driver", context.Background(), discover.Card{Address: "0000:01:00.0"}, ErrNotBound, "oxpd bind --device 0000:01:00.0"},
		{"another driver", context.Background(), discover.Card{Address: "0000:01:00.0", Driver: "octeon_ep"}, ErrNotBound, "oxpd bind --device 0000:01:00.0"},
		{"no IOMMU", context.Background(), discover.Card{Driver: discover.VFIO}, ErrNoIOMMU, "intel_iommu=on"},
		{"no such files", context.Background(), discover.Card{Driver: discover.VFIO, IOMMU: &discover.IOMMU{Group: "9"}}, os.ErrNotExist, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d, err := Open(tt.ctx, h, &tt.card, Options{AcceptReset: true, Dev: t.TempDir()})
			require.ErrorIs(t, err, tt.err)
			assert.Nil(t, d)
			var e *OpenError
			require.ErrorAs(t, err, &e)
			assert.Contains(t, e.Hint(), tt.hint)
		})
	}
	for errno, hint := range map[error]string{unix.EBUSY: "oxpd stop", unix.EACCES: "sudo", unix.ENOMEM: "ulimit -l"} {
		assert.Contains(t, (&OpenError{"a", errno, ""}).Hint(), hint)
	}
}
