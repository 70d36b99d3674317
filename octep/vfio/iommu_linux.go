package vfio

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"oxpd/internal/dma"
	"oxpd/internal/sys"
	"oxpd/internal/vfu"
)

// iommu is the address space of the card, in one of the two forms.
type iommu interface {
	dma.Translator
	// addresses are those that it takes maps at.
	addresses() ([]dma.Range, error)
	// clear takes every map away, also those of an earlier process.
	clear() error
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

// MapMemory implements dma.Translator.
func (c container) MapMemory(bus uint64, mem []byte) error {
	m := vfu.Map{ArgSize: vfu.MapSize, Flags: vfu.MapRead | vfu.MapWrite, Offset: sys.AddressOf(mem), Address: bus, Size: uint64(len(mem))}
	return c.call(c.fd, "map memory", reqMap, m.Append(nil))
}

// UnmapMemory implements dma.Translator.
func (c container) UnmapMemory(bus uint64, size int) error {
	arg := vfu.Unmap{ArgSize: vfu.UnmapSize, Address: bus, Size: uint64(size)}.Append(nil)
	if err := c.call(c.fd, "unmap memory", reqUnmap, arg); err != nil {
		return err
	}
	return exactly(le.Uint64(arg[16:]), size)
}

// exactly compares what was unmapped with what was to be.
func exactly(done uint64, size int) error {
	if done != uint64(size) {
		return fmt.Errorf("unmap memory: %d bytes were mapped, want %d: %w", done, size, errLayout)
	}
	return nil
}

func (c container) clear() error {
	return c.call(c.fd, "unmap all memory", reqUnmap, vfu.Unmap{ArgSize: vfu.UnmapSize, Flags: vfu.UnmapAll}.Append(nil))
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

// MapMemory implements dma.Translator.
func (s ioas) MapMemory(bus uint64, mem []byte) error {
	arg := longs(words(40, ioasFixed|ioasReadable|ioasWritable, s.id, 0), sys.AddressOf(mem), uint64(len(mem)), bus)
	return s.call(s.fd, "map memory", reqIOASMap, arg)
}

// UnmapMemory implements dma.Translator.
func (s ioas) UnmapMemory(bus uint64, size int) error {
	arg := longs(words(24, s.id), bus, uint64(size))
	if err := s.call(s.fd, "unmap memory", reqIOASUnmap, arg); err != nil {
		return err
	}
	return exactly(le.Uint64(arg[16:]), size)
}

func (s ioas) clear() error {
	err := s.call(s.fd, "unmap all memory", reqIOASUnmap, longs(words(24, s.id), 0, ^uint64(0)))
	if errors.Is(err, unix.ENOENT) {
		return nil // there is none
	}
	return err
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

// fresh is an address space that may still have maps of an earlier process, which go
// before the first of this one comes.
type fresh struct {
	iommu
	once sync.Once
	err  error
}

// MapMemory implements dma.Translator.
func (f *fresh) MapMemory(bus uint64, mem []byte) error {
	if f.once.Do(func() { f.err = f.clear() }); f.err != nil {
		return f.err
	}
	return f.iommu.MapMemory(bus, mem)
}

// openGroup makes a container and puts the card's group into it. It returns the
// group's descriptor too.
func (f function) openGroup(d *descriptors) (iommu, int, error) {
	number := f.card.IOMMU.Group
	cfd, err := d.get(nameIOMMU, func() (int, error) { return openFile(f.container()) })
	if err != nil {
		return nil, -1, err
	}
	if v, err := sys.IoctlValue(cfd, reqAPIVersion, 0); err != nil || v != 0 {
		return nil, -1, fmt.Errorf("vfio of version %d, want 0: %w", v, errors.Join(err, errLayout))
	}
	gfd, err := d.get(nameGroup, func() (int, error) { return openFile(f.group()) })
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
	if flags&groupContainerSet == 0 {
		if err := f.call(gfd, "put group "+number+" into a container", reqGroupContainer, words(uint32(cfd))); err != nil {
			return nil, -1, err
		}
		if _, err := sys.IoctlValue(cfd, reqSetIOMMU, extType1v2); err != nil {
			return nil, -1, fmt.Errorf("set the type of IOMMU: %w", err)
		}
	}
	return container{f.kernel, cfd}, gfd, nil
}

// openGroupForm opens the function through its group.
func (f function) openGroupForm(d *descriptors) (device int, _ iommu, err error) {
	space, gfd, err := f.openGroup(d)
	if err != nil {
		return -1, nil, err
	}
	device, err = d.get(nameDevice, func() (int, error) {
		fd, err := f.kernel(gfd, reqGroupDevice, append([]byte(f.card.Address), 0))
		if err != nil {
			return -1, fmt.Errorf("open it through group %s: %w", f.card.IOMMU.Group, err)
		}
		return sys.AboveStdio(fd)
	})
	return device, space, err
}

// openCdevForm opens the function by its own device file. One that came from a store
// is bound already; its address space is replaced.
func (f function) openCdevForm(d *descriptors) (device int, _ iommu, err error) {
	path := f.cdev()
	if path == "" {
		return -1, nil, errNoCdev
	}
	came := d.came(nameDevice)
	fd, err := d.get(nameIOMMU, func() (int, error) { return openFile(f.iommufd()) })
	if err != nil {
		return -1, nil, err
	}
	if device, err = d.get(nameDevice, func() (int, error) { return openFile(path) }); err != nil {
		return -1, nil, err
	}
	if !came {
		if err := f.call(device, "bind it to iommufd", reqBindIOMMUFD, words(16, 0, uint32(fd), 0)); err != nil {
			return -1, nil, err
		}
	}
	space, err := newIOAS(f.kernel, fd)
	if err != nil {
		return -1, nil, err
	}
	return device, space, f.call(device, "attach it to an address space", reqAttachIOMMUFD, words(12, 0, space.id))
}

func openFile(path string) (int, error) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return sys.AboveStdio(fd)
}
