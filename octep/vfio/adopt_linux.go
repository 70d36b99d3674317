package vfio

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"oxpd/internal/dma"
	"oxpd/internal/sys"
	"oxpd/octep/discover"
)

// Keep hands the descriptors that a later process needs to put, under their names.
// They stay the device's. One that was adopted has none to hand: they are where it took
// them from, and to put them there again is to take them out for a moment, in which the
// death of this process would be the last close.
func (d *Device) Keep(put func(name string, fd int) error) error {
	if d.adopted {
		return nil
	}
	for _, name := range Kept() {
		fd, ok := d.fds.open[name]
		if name == KeptMemory {
			fd, ok = d.dma.File(), true
		}
		if !ok {
			continue // the cdev form has no group
		}
		if err := put(name, fd); err != nil {
			return err
		}
	}
	return nil
}

// SetKeeps says whether somebody else has the descriptors: then memory and its maps
// outlive this process, and Close takes nothing from the card.
func (d *Device) SetKeeps(keeps bool) { d.dma.SetKeeps(keeps) }

// Stays are the names of the descriptors that are to stay with whoever has them also when
// oxpd is stopped for good: the kernel resets the bus when the last one is closed.
func (d *Device) Stays() []string { return Kept() }

// Adopt goes on with the card that an earlier process opened, by the descriptors that it
// kept, which take hands over: they are the device's from then on. The kernel notices
// nothing: no file is opened, nothing is reset, the maps and bus mastering stay as they
// are. Memory that the card knows is found by its name (dma.Holder), and vectors are
// bound anew, each to another eventfd.
//
// Of o only Dev counts: a card that is open stays so, whatever would have kept it from
// being opened. Error: *AdoptError.
func Adopt(c *discover.Card, o Options, take func(name string) (fd int, ok bool)) (*Device, error) {
	d := newDevice(c)
	if err := d.adopt(function{c, o.dev(), sys.Ioctl}, take); err != nil {
		return nil, &AdoptError{c.Address, errors.Join(err, d.Close())}
	}
	return d, nil
}

func (d *Device) adopt(f function, take func(name string) (int, bool)) error {
	if f.card.IOMMU == nil {
		return ErrNoIOMMU
	}
	for _, name := range Kept() {
		if fd, ok := take(name); ok {
			d.fds.add(name, fd)
		}
	}
	if err := f.sameFunction(&d.fds); err != nil {
		return err
	}
	d.fd = d.fds.open[KeptDevice]
	if err := d.look(); err != nil {
		return err
	}
	// Whatever the kernel was asked for was all vectors at once; BindIRQ sees whether the
	// card still has them.
	d.msix, d.adopted = true, true
	return d.adoptMemory(f.kernel)
}

// sameFunction checks that the descriptors are there, and those of the card that is meant.
func (f function) sameFunction(d *descriptors) error {
	path, file := f.group(), KeptGroup
	if _, ok := d.open[KeptGroup]; !ok {
		path, file = f.cdev(), KeptDevice
	}
	for _, name := range []string{KeptLock, KeptIOMMU, KeptMemory, KeptDevice} {
		if _, ok := d.open[name]; !ok {
			return fmt.Errorf("its %s was not kept", name)
		}
	}
	var kept, now unix.Stat_t
	if err := unix.Stat(path, &now); err != nil {
		return fmt.Errorf("look whether %s is what was kept: %w", path, err)
	}
	if err := unix.Fstat(d.open[file], &kept); err != nil {
		return fmt.Errorf("look what was kept: %w", err)
	}
	if kept.Mode&unix.S_IFMT != now.Mode&unix.S_IFMT || kept.Rdev != now.Rdev || now.Rdev == 0 && kept.Ino != now.Ino {
		return fmt.Errorf("what was kept is not of %s, but of another function", path)
	}
	return nil
}

// adoptMemory opens the memory, of which the IOMMU knows everything.
func (d *Device) adoptMemory(k kernel) error {
	fd := d.fds.open[KeptMemory]
	var space iommu = container{k, d.fds.open[KeptIOMMU]}
	if _, ok := d.fds.open[KeptGroup]; !ok {
		// Its id is in the file. Ranges are asked of it, so that it is there or an error.
		id, err := dma.KeptMark(fd)
		if err != nil {
			return err
		}
		space = ioas{k, d.fds.open[KeptIOMMU], uint32(id)}
	}
	ranges, err := space.addresses()
	if err != nil {
		return err
	}
	if d.dma, err = dma.OpenKept(space, fd, ranges); err != nil {
		return err
	}
	d.fds.drop(KeptMemory) // it is the memory's
	return nil
}
