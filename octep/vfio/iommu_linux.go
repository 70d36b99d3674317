package vfio

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"oxpd/internal/dma"
	"oxpd/internal/sys"
	"oxpd/internal/vfu"
	"oxpd/octep/discover"
)

// iommu is the address space of the card, in one of the two forms.
type iommu interface {
	dma.FileMapper
	// addresses are those that it takes maps at.
	addresses() ([]dma.Range, error)
}

// call makes an ioctl whose result is only that it succeeded.
func (k kernel) call(fd int, what string, request uint, arg []byte) error {
	if _, err := k(fd, request, arg); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// container is the group form's.
type container struct {
	kernel
	fd int
}

// MapFile implements dma.FileMapper. What counts is where the bytes are mapped here.
func (c container) MapFile(bus uint64, mem []byte, _ int, _ int64) error {
	m := vfu.Map{ArgSize: vfu.MapSize, Flags: vfu.MapRead | vfu.MapWrite, Offset: sys.AddressOf(mem), Address: bus, Size: uint64(len(mem))}
	return c.call(c.fd, "map memory", reqMap, m.Append(nil))
}

// UnmapFile implements dma.FileMapper. Linux before 6.0 takes no map away that another
// process made, and says that it was nothing.
func (c container) UnmapFile(bus uint64, size int) error {
	arg := vfu.Unmap{ArgSize: vfu.UnmapSize, Address: bus, Size: uint64(size)}.Append(nil)
	if err := c.call(c.fd, "unmap memory", reqUnmap, arg); err != nil {
		return err
	}
	return exactly(le.Uint64(arg[16:]), size)
}

// exactly compares what was unmapped with what was to be.
func exactly(done uint64, size int) error {
	switch done {
	case uint64(size):
		return nil
	case 0:
		return fmt.Errorf("unmap memory: nothing was mapped: %w", dma.ErrStays)
	default:
		return fmt.Errorf("unmap memory: %d bytes were mapped, want %d: %w", done, size, errLayout)
	}
}

func (c container) addresses() ([]dma.Range, error) {
	b, err := c.grown(c.fd, "ask the IOMMU for its addresses", reqIOMMUInfo, type1InfoSize, 0)
	if err != nil {
		return nil, err
	}
	ranges, said, err := decodeRanges(b)
	if err == nil && !said {
		ranges = lowAddresses[:]
	}
	return ranges, err
}

// maxAnswer bounds an answer in bytes. Those of known kernels have a few hundred.
const maxAnswer = 1 << 16

// grown makes a request whose answer says in its first word how long it is, with as much
// room as it takes. index is the third word.
func (k kernel) grown(fd int, what string, request uint, fixed int, index uint32) ([]byte, error) {
	for size := max(fixed, 256); ; {
		b := make([]byte, size)
		le.PutUint32(b, uint32(size))
		le.PutUint32(b[8:], index)
		if err := k.call(fd, what, request, b); err != nil {
			return nil, err
		}
		need := int(le.Uint32(b))
		switch {
		case need <= size && need >= fixed:
			return b[:need], nil
		case need > maxAnswer || need < fixed:
			return nil, fmt.Errorf("%s: answer of %d bytes: %w", what, need, errLayout)
		}
		size = need
	}
}

// ioas is an address space of iommufd, the cdev form's.
type ioas struct {
	kernel
	fd int
	id uint32
}

// newIOAS makes an address space.
func newIOAS(k kernel, fd int) (ioas, error) {
	arg := words(12, 0, 0)
	if err := k.call(fd, "make an address space", reqIOASAlloc, arg); err != nil {
		return ioas{}, err
	}
	return ioas{k, fd, le.Uint32(arg[8:])}, nil
}

// MapFile implements dma.FileMapper. What counts is where the bytes are mapped here.
func (s ioas) MapFile(bus uint64, mem []byte, _ int, _ int64) error {
	arg := longs(words(40, ioasFixed|ioasReadable|ioasWritable, s.id, 0), sys.AddressOf(mem), uint64(len(mem)), bus)
	return s.call(s.fd, "map memory", reqIOASMap, arg)
}

// UnmapFile implements dma.FileMapper.
func (s ioas) UnmapFile(bus uint64, size int) error {
	arg := longs(words(24, s.id), bus, uint64(size))
	err := s.call(s.fd, "unmap memory", reqIOASUnmap, arg)
	switch {
	case errors.Is(err, unix.ENOENT):
		return errors.Join(err, dma.ErrStays)
	case err != nil:
		return err
	}
	return exactly(le.Uint64(arg[16:]), size)
}

// addresses asks with room for what a page holds: memory that the kernel may write and
// whose address it is told.
func (s ioas) addresses() ([]dma.Range, error) {
	page, err := unix.Mmap(-1, 0, pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	defer unix.Munmap(page)
	arg := longs(words(32, s.id, pageSize/rangeSize, 0), sys.AddressOf(page), 0)
	if err := s.call(s.fd, "ask the IOMMU for its addresses", reqIOASRanges, arg); err != nil {
		return nil, err
	}
	n := le.Uint32(arg[8:])
	if n > pageSize/rangeSize {
		return nil, fmt.Errorf("ask the IOMMU for its addresses: %d ranges: %w", n, errLayout)
	}
	return pairs(page, int(n)), nil
}

// openGroup makes a container and puts the card's group into it. It returns the
// group's descriptor too.
func (f function) openGroup(d *descriptors) (iommu, int, error) {
	number := f.card.IOMMU.Group
	cfd, err := d.get(KeptIOMMU, func() (int, error) { return openFile(f.container()) })
	if err != nil {
		return nil, -1, err
	}
	if v, err := sys.IoctlValue(cfd, reqAPIVersion, 0); err != nil || v != 0 {
		return nil, -1, fmt.Errorf("vfio of version %d, want 0: %w", v, errors.Join(err, errLayout))
	}
	gfd, err := d.get(KeptGroup, func() (int, error) { return openFile(f.group()) })
	if err != nil {
		return nil, -1, err
	}
	status := words(8, 0)
	if err := f.call(gfd, "look at group "+number, reqGroupStatus, status); err != nil {
		return nil, -1, err
	}
	flags := le.Uint32(status[4:])
	if flags&groupViable == 0 {
		return nil, -1, fmt.Errorf("group %s: %w", number, ErrNotViable)
	}
	if err := f.call(gfd, "put group "+number+" into a container", reqGroupContainer, words(uint32(cfd))); err != nil {
		return nil, -1, err
	}
	if _, err := sys.IoctlValue(cfd, reqSetIOMMU, extType1v2); err != nil {
		return nil, -1, fmt.Errorf("set the type of IOMMU: %w", err)
	}
	return container{f.kernel, cfd}, gfd, nil
}

// openGroupForm opens the function through its group.
func (f function) openGroupForm(d *descriptors) (device int, _ iommu, err error) {
	space, gfd, err := f.openGroup(d)
	if err != nil {
		return -1, nil, err
	}
	device, err = d.get(KeptDevice, func() (int, error) {
		fd, err := f.kernel(gfd, reqGroupDevice, append([]byte(f.card.Address), 0))
		if err != nil {
			return -1, fmt.Errorf("open it through group %s: %w", f.card.IOMMU.Group, err)
		}
		return sys.AboveStdio(fd)
	})
	return device, space, err
}

// openCdevForm opens the function by its own device file, and gives it an address space.
func (f function) openCdevForm(d *descriptors) (device int, _ iommu, err error) {
	path := f.cdev()
	if path == "" {
		return -1, nil, errNoCdev
	}
	fd, err := d.get(KeptIOMMU, func() (int, error) { return openFile(f.iommufd()) })
	if err != nil {
		return -1, nil, err
	}
	if device, err = d.get(KeptDevice, func() (int, error) { return openFile(path) }); err != nil {
		return -1, nil, err
	}
	if err := f.call(device, "bind it to iommufd", reqBindIOMMUFD, words(16, 0, uint32(fd), 0)); err != nil {
		return -1, nil, err
	}
	space, err := newIOAS(f.kernel, fd)
	if err != nil {
		return -1, nil, err
	}
	return device, space, f.call(device, "attach it to an address space", reqAttachIOMMUFD, words(12, 0, space.id))
}

// lock claims the function by its config space in sysfs, which nobody unbinds from its
// driver then (discover.Lock): the kernel would wait there until no descriptor is left.
func (f function) lock() (int, error) {
	config, err := os.Open(f.card.File("config"))
	if err != nil {
		return -1, err
	}
	defer config.Close() // what counts is the copy
	if err := discover.Lock(config); err != nil {
		return -1, err
	}
	return unix.FcntlInt(config.Fd(), unix.F_DUPFD_CLOEXEC, 3)
}

func openFile(path string) (int, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return sys.AboveStdio(fd)
}
