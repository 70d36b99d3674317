package vfio

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"oxpd/internal/board"
	"oxpd/internal/dma"
	"oxpd/internal/mmio"
	"oxpd/internal/sys"
	"oxpd/internal/vfu"
	"oxpd/octep/csr"
	"oxpd/octep/discover"
)

// Device is a PCI function of this machine behind vfio-pci. Its methods are those of
// octep.Device.
type Device struct {
	kernel
	address string
	fds     descriptors
	fd      int   // of the function
	config  int64 // where config space lies in it
	adopted bool  // by descriptors that somebody else has

	bar0, bar2 bar
	dma        *dma.Kept // nil before it was made

	mu     sync.Mutex
	closed bool
	msix   bool // the kernel has set up all vectors
	irqs   sys.Vectors
}

// Open opens a card that discover has found and vfio-pci has, and keeps other processes
// from doing so, and from unbinding it, until Close. It touches no BAR and leaves bus
// mastering as it is. It keeps nothing: that is for Keep, at once.
//
// Errors: *ResetError, before anything is opened; *OpenError.
func Open(ctx context.Context, h discover.Host, c *discover.Card, o Options) (*Device, error) {
	fail := func(err error, do string) (*Device, error) { return nil, &OpenError{c.Address, err, do} }
	switch err := ctx.Err(); {
	case err != nil:
		return fail(err, "")
	case c.Driver == "":
		return fail(ErrNotBound, "oxpd bind --device "+c.Address)
	case c.Driver != discover.VFIO:
		return fail(fmt.Errorf("%w: %s has", ErrNotBound, c.Driver), "oxpd bind --device "+c.Address)
	case c.IOMMU == nil:
		return fail(ErrNoIOMMU, "turn the IOMMU on: in the firmware, and by intel_iommu=on on the kernel's command line; or use access: sysfs")
	}
	if m := missing(h, c, o); len(m) > 0 && !o.AcceptReset {
		return nil, &ResetError{c.Address, m}
	}
	d := newDevice(c)
	if err := d.open(function{c, o.dev(), sys.Ioctl}, o.Form); err != nil {
		return fail(errors.Join(err, d.Close()), "")
	}
	return d, nil
}

func newDevice(c *discover.Card) *Device {
	return &Device{kernel: sys.Ioctl, address: c.Address, fds: descriptors{open: map[string]int{}}, irqs: sys.Vectors{}}
}

// open opens the files and looks whether what is there is a card's shape.
func (d *Device) open(f function, form Form) (err error) {
	if form == AnyForm {
		form = f.form()
	}
	if _, err := d.fds.get(KeptLock, f.lock); err != nil {
		return err
	}
	var space iommu
	if form == CdevForm {
		d.fd, space, err = f.openCdevForm(&d.fds)
	} else {
		d.fd, space, err = f.openGroupForm(&d.fds)
	}
	if err != nil {
		return err
	}
	if err := d.look(); err != nil {
		return err
	}
	ranges, err := space.addresses()
	if err != nil {
		return err
	}
	if d.dma, err = dma.NewKept(space, ranges); err != nil {
		return err
	}
	if s, ok := space.(ioas); ok {
		d.dma.SetMark(uint64(s.id))
	}
	return nil
}

// look checks the shape of the function and maps its BARs.
func (d *Device) look() error {
	info := vfu.Device{ArgSize: vfu.DeviceSize}
	b := info.Append(nil)
	if err := d.call(d.fd, "look at the function", reqDeviceInfo, b); err != nil {
		return err
	}
	if err := info.Decode(b); err != nil {
		return err
	}
	if info.Flags&vfu.DevicePCI == 0 || info.Regions <= vfu.RegionConfig || info.IRQs <= vfu.IRQMSIX {
		return fmt.Errorf("flags %#x, %d regions, %d kinds of interrupts: %w", info.Flags, info.Regions, info.IRQs, ErrNotTheCard)
	}
	irqs := vfu.IRQ{ArgSize: vfu.IRQSize, Index: vfu.IRQMSIX}
	b = irqs.Append(nil)
	if err := d.call(d.fd, "look at the interrupts", reqIRQInfo, b); err != nil {
		return err
	}
	if err := irqs.Decode(b); err != nil {
		return err
	}
	if irqs.Count != csr.MSIXVectors || irqs.Flags&vfu.IRQEventFD == 0 {
		return fmt.Errorf("%d MSI-X vectors, want %d: %w", irqs.Count, csr.MSIXVectors, ErrNotTheCard)
	}
	config, _, err := d.region(vfu.RegionConfig, leastConfig)
	if err != nil {
		return err
	}
	d.config = int64(config.Offset)
	if v, err := d.ConfigRead(csr.CfgVendor, 4); err != nil || v != board.DevicePF<<16|board.Vendor {
		return errors.Join(err, fmt.Errorf("ids %#x: %w", v, ErrNotTheCard))
	}
	if err := d.mapBAR(&d.bar0, vfu.RegionBAR0, csr.BAR0Size); err != nil {
		return err
	}
	return d.mapBAR(&d.bar2, vfu.RegionBAR0+2, csr.BAR2Size)
}

// region asks for one and checks that it is as large as the card's.
func (d *Device) region(index uint32, size uint64) (vfu.Region, []vfu.Area, error) {
	b, err := d.grown(d.fd, fmt.Sprintf("look at region %d", index), reqRegionInfo, vfu.RegionSize, index)
	if err != nil {
		return vfu.Region{}, nil, err
	}
	r, areas, err := decodeRegion(b)
	if err != nil {
		return r, nil, err
	}
	const both = vfu.RegionRead | vfu.RegionWrite
	if r.Size < size || r.Flags&both != both {
		return r, nil, fmt.Errorf("region %d of %#x bytes, flags %#x, want %#x bytes: %w", index, r.Size, r.Flags, size, ErrNotTheCard)
	}
	return r, areas, nil
}

// Name implements octep.Device: the PCI address.
func (d *Device) Name() string { return d.address }

// BAR0 implements octep.Device.
func (d *Device) BAR0() mmio.Space { return &d.bar0.Pieces }

// BAR2 implements octep.Device.
func (d *Device) BAR2() mmio.Space { return &d.bar2.Pieces }

// DMA implements octep.Device. The memory ends with this process, unless it is kept.
func (d *Device) DMA() dma.Provider { return d.dma }

// Sizes of config space: the least that a function has, and that of PCI Express.
const (
	leastConfig = 256
	configBytes = 4096
)

func checkConfig(off, width int) error {
	if width != 1 && width != 2 && width != 4 || off < 0 || off%width != 0 || off+width > configBytes {
		return fmt.Errorf("vfio: config access of %d bytes at %#x", width, off)
	}
	return nil
}

// ConfigRead implements octep.Device. A function that the kernel cannot reach reads all
// ones. The ids are the kernel's own copy (Linux, init_pci_cap_basic_perm), which
// outlives the card: they are given while its class and revision answer.
func (d *Device) ConfigRead(off, width int) (uint32, error) {
	if err := checkConfig(off, width); err != nil {
		return 0, err
	}
	var b, class [4]byte
	copied := off < csr.CfgCommand
	if !preadAll(d.fd, b[:width], d.config+int64(off)) ||
		copied && (!preadAll(d.fd, class[:], d.config+csr.CfgRevision) || le.Uint32(class[:]) == ^uint32(0)) {
		return 1<<(8*width) - 1, nil
	}
	return le.Uint32(b[:]), nil
}

// ConfigWrite implements octep.Device.
func (d *Device) ConfigWrite(off, width int, v uint32) error {
	if err := checkConfig(off, width); err != nil {
		return err
	}
	var b [4]byte
	le.PutUint32(b[:], v)
	n, err := unix.Pwrite(d.fd, b[:width], d.config+int64(off))
	if err == nil && n != width {
		err = fmt.Errorf("%d of %d bytes", n, width)
	}
	if err != nil {
		return fmt.Errorf("vfio: write config space of %s at %#x: %w", d.address, off, err)
	}
	return nil
}

// BindIRQ implements octep.Device. fn runs on the vector's own goroutine; it is not
// called any more when an unbinding has returned.
func (d *Device) BindIRQ(vector int, fn func()) error {
	if vector < 0 || vector >= csr.MSIXVectors {
		return fmt.Errorf("vfio: bind vector %d: the card has %d", vector, csr.MSIXVectors)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	err := d.irqs.Bind(vector, fn, func(eventfd int) error {
		if eventfd >= 0 {
			if err := d.allIRQs(); err != nil {
				return err
			}
		}
		return d.setIRQs(vector, eventfd)
	})
	if err != nil {
		return fmt.Errorf("vfio: bind vector %d: %w", vector, err)
	}
	return nil
}

// allIRQs has the kernel set up every vector, with nobody to tell: not every kernel adds
// any to those that it has set up. A card that was reset has forgotten that its
// interrupts were on, of which the kernel learns nothing: they are set up again.
// Held: d.mu.
func (d *Device) allIRQs() error {
	if d.msix {
		if on, err := d.msixOn(); on || err != nil {
			return err
		}
		if err := d.noIRQs(); err != nil {
			return err
		}
	}
	var nobody [csr.MSIXVectors]int
	for i := range nobody {
		nobody[i] = -1
	}
	if err := d.setIRQs(0, nobody[:]...); err != nil {
		return err
	}
	d.msix = true
	for v, e := range d.irqs {
		if err := d.setIRQs(v, e.FD()); err != nil {
			return err
		}
	}
	return nil
}

// noIRQs has the kernel turn MSI-X off.
func (d *Device) noIRQs() error {
	d.msix = false
	none := vfu.IRQSet{ArgSize: vfu.IRQSetSize, Flags: vfu.IRQNone | vfu.IRQTrigger, Index: vfu.IRQMSIX}
	return d.call(d.fd, "unbind all vectors", reqSetIRQs, none.Append(nil))
}

// Places in the list of capabilities (PCI specification).
const (
	cfgCapList = 0x34 // offset of the first
	capMSIX    = 0x11
	mostCaps   = 48 // that fit behind the header
	msixEnable = 1 << 15
)

// msixOn tells whether the card has MSI-X turned on.
func (d *Device) msixOn() (bool, error) {
	at, err := d.ConfigRead(cfgCapList, 1)
	for range mostCaps {
		if err != nil || at < 0x40 || at%4 != 0 {
			break
		}
		var v uint32
		if v, err = d.ConfigRead(int(at), 4); v&0xff == capMSIX {
			return v>>16&msixEnable != 0, err
		}
		at = v >> 8 & 0xff
	}
	return false, err
}

// setIRQs has the kernel tell the messages of vectors by eventfds, -1 for nobody.
func (d *Device) setIRQs(first int, fds ...int) error {
	s := vfu.IRQSet{Flags: vfu.IRQFD | vfu.IRQTrigger, Index: vfu.IRQMSIX, Start: uint32(first), Count: uint32(len(fds))}
	for _, fd := range fds {
		s.Data = le.AppendUint32(s.Data, uint32(fd))
	}
	s.ArgSize = uint32(vfu.IRQSetSize + len(s.Data))
	n, err := d.kernel(d.fd, reqSetIRQs, s.Append(nil))
	if err == nil && n > 0 {
		err = fmt.Errorf("the kernel has room for %d vectors", n)
	}
	if err != nil {
		return fmt.Errorf("vfio: set %d vectors from %d on: %w", len(fds), first, err)
	}
	return nil
}

// Close implements octep.Device. When nobody keeps the descriptors the kernel clears bus
// mastering, ends the maps, and may reset the card.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	var errs []error
	kept := d.dma != nil && d.dma.Keeps()
	if d.msix && !kept {
		errs = append(errs, d.noIRQs())
	}
	d.irqs.Close()
	errs = append(errs, d.bar0.unmap(), d.bar2.unmap(), d.fds.close())
	if d.dma != nil {
		errs = append(errs, d.dma.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("vfio: close %s: %w", d.address, err)
	}
	return nil
}
