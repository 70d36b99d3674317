package vfiouser

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"oxpd/internal/board"
	"oxpd/internal/dma"
	"oxpd/internal/mmio"
	"oxpd/internal/sys"
	"oxpd/internal/vfu"
	"oxpd/octep/csr"
)

// Scheme is in front of the path in the name of such a device.
const Scheme = "vfio-user:"

// OpenError is a socket behind which there is no card to be had.
type OpenError struct {
	Path string
	Err  error
}

func (e *OpenError) Error() string { return fmt.Sprintf("open card at %s: %v", e.Path, e.Err) }

// Unwrap returns why.
func (e *OpenError) Unwrap() error { return e.Err }

// Hint is what an operator can do.
func (e *OpenError) Hint() string {
	switch {
	case errors.Is(e.Err, os.ErrNotExist), errors.Is(e.Err, unix.ECONNREFUSED):
		return "start the card with: oxpd sim serve --vfio-user " + e.Path
	case errors.Is(e.Err, mmio.ErrGone):
		return "a card takes one client at a time: end the other one, or see what oxpd sim serve says"
	}
	return "see what oxpd sim serve says"
}

// Device is a card in another process. Its methods are those of octep.Device.
type Device struct {
	path string
	conn *conn
	bar2 mapped
	dma  *dma.Kept

	adopted bool // by descriptors that somebody else has

	mu   sync.Mutex
	irqs sys.Vectors
}

// Open connects to a server. It touches nothing of the card.
//
// Error: *OpenError.
func Open(ctx context.Context, path string) (*Device, error) {
	d, err := open(ctx, path)
	if err != nil {
		return nil, &OpenError{path, err}
	}
	return d, nil
}

func open(ctx context.Context, path string) (*Device, error) {
	dialer := net.Dialer{Timeout: answerLimit}
	sock, err := dialer.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	d := newDevice(path, sock.(*net.UnixConn))
	// A server that is silent does not outlast the context.
	stop := context.AfterFunc(ctx, func() { _ = sock.Close() })
	defer stop()
	if err = d.greet(); err == nil {
		err = d.attach()
	}
	if err == nil {
		d.dma, err = dma.NewKept(mapper{d.conn}, nil)
	}
	if err != nil {
		return nil, errors.Join(err, ctx.Err(), d.Close())
	}
	return d, nil
}

func newDevice(path string, sock *net.UnixConn) *Device {
	d := &Device{path: path, conn: newConn(sock), irqs: sys.Vectors{}}
	d.bar2.Rest = bar{d.conn, vfu.RegionBAR0 + 2, csr.BAR2Size}
	return d
}

// greet agrees on the protocol.
func (d *Device) greet() error {
	own := vfu.DefaultCapabilities()
	reply, _, err := d.conn.call(vfu.Version, vfu.Hello{Capabilities: own}.Append(nil))
	if err != nil {
		return err
	}
	var h vfu.Hello
	if err := h.Decode(reply); err != nil {
		return err
	}
	if h.Major != 0 || h.MaxTransfer < 8 || h.PageSizes&uint64(own.PageSizes) == 0 {
		return fmt.Errorf("version %d.%d, transfers of %d bytes, pages of %#x: %w", h.Major, h.Minor, h.MaxTransfer, h.PageSizes, errProtocol)
	}
	return nil
}

// attach looks whether what is there is a card's shape.
func (d *Device) attach() error {
	var info vfu.Device
	if err := d.ask(vfu.GetInfo, vfu.Device{ArgSize: vfu.DeviceSize}.Append(nil), info.Decode); err != nil {
		return err
	}
	if info.Flags&vfu.DevicePCI == 0 || info.Regions < vfu.RegionConfig+1 || info.IRQs < vfu.IRQMSIX+1 {
		return fmt.Errorf("no PCI device: flags %#x, %d regions, %d kinds of interrupts", info.Flags, info.Regions, info.IRQs)
	}
	if v, err := d.ConfigRead(csr.CfgVendor, 4); err == nil && v == board.DeviceVF<<16|board.Vendor {
		return fmt.Errorf("not the card: %04x:%04x is a virtual function of it; oxpd sim serve shows the card without --function vf", board.Vendor, board.DeviceVF)
	}
	var irqs vfu.IRQ
	if err := d.ask(vfu.IRQInfo, vfu.IRQ{ArgSize: vfu.IRQSize, Index: vfu.IRQMSIX}.Append(nil), irqs.Decode); err != nil {
		return err
	}
	if irqs.Count != csr.MSIXVectors || irqs.Flags&vfu.IRQEventFD == 0 {
		return fmt.Errorf("not the card: %d MSI-X vectors, want %d", irqs.Count, csr.MSIXVectors)
	}
	for _, r := range []struct {
		index uint32
		size  uint64
	}{{vfu.RegionBAR0, csr.BAR0Size}, {vfu.RegionBAR0 + 2, csr.BAR2Size}, {vfu.RegionConfig, 4096}} {
		if err := d.region(r.index, r.size); err != nil {
			return err
		}
	}
	return nil
}

func (d *Device) ask(cmd vfu.Command, payload []byte, decode func([]byte) error) error {
	reply, fd, err := d.conn.call(cmd, payload)
	closeFD(fd)
	if err != nil {
		return err
	}
	return decode(reply)
}

// region checks the size of a region and maps what can be mapped of BAR2.
func (d *Device) region(index uint32, size uint64) error {
	reply, fd, err := d.conn.call(vfu.RegionInfo, vfu.Region{ArgSize: maxReply, Index: index}.Append(nil))
	defer func() { closeFD(fd) }()
	if err != nil {
		return err
	}
	var r vfu.Region
	if err := r.Decode(reply); err != nil {
		return err
	}
	const both = vfu.RegionRead | vfu.RegionWrite
	if r.Size != size || r.Flags&both != both {
		return fmt.Errorf("not the card: region %d of %#x bytes, flags %#x, want %#x bytes", index, r.Size, r.Flags, size)
	}
	if index != vfu.RegionBAR0+2 || r.Flags&vfu.RegionMap == 0 || fd < 0 {
		return nil
	}
	areas, sparse, err := r.DecodeAreas(reply)
	if err != nil {
		return err
	}
	if !sparse {
		areas = []vfu.Area{{Size: r.Size}}
	}
	return d.bar2.mapAreas(fd, r, areas)
}

// Ended tells whether the connection has: the card is not reached by this device any
// more, whatever becomes of it.
func (d *Device) Ended() bool { return d.conn.ended() }

// Name implements octep.Device.
func (d *Device) Name() string { return Scheme + d.path }

// BAR0 implements octep.Device.
func (d *Device) BAR0() mmio.Space { return bar{d.conn, vfu.RegionBAR0, csr.BAR0Size} }

// BAR2 implements octep.Device.
func (d *Device) BAR2() mmio.Space { return &d.bar2.Pieces }

// DMA implements octep.Device. The memory ends with this process, unless it is kept.
func (d *Device) DMA() dma.Provider { return d.dma }

func badWidth(width int) bool { return width != 1 && width != 2 && width != 4 }

// ConfigRead implements octep.Device: all ones also when the server has gone.
func (d *Device) ConfigRead(off, width int) (uint32, error) {
	if badWidth(width) {
		return 0, fmt.Errorf("vfiouser: read config space: width %d", width)
	}
	return uint32(d.conn.load(vfu.RegionConfig, uint32(width), uint64(off))), nil
}

// ConfigWrite implements octep.Device.
func (d *Device) ConfigWrite(off, width int, v uint32) error {
	if badWidth(width) {
		return fmt.Errorf("vfiouser: write config space: width %d", width)
	}
	d.conn.store(vfu.RegionConfig, uint32(width), uint64(off), uint64(v))
	return nil
}

// BindIRQ implements octep.Device. fn runs on the vector's own goroutine; it is not
// called any more when an unbinding has returned.
func (d *Device) BindIRQ(vector int, fn func()) error {
	if vector < 0 || vector >= csr.MSIXVectors {
		return fmt.Errorf("vfiouser: bind vector %d: the card has %d", vector, csr.MSIXVectors)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	err := d.irqs.Bind(vector, fn, func(eventfd int) error {
		if eventfd >= 0 {
			return d.setIRQ(vector, eventfd)
		}
		if err := d.setIRQ(vector); !errors.Is(err, mmio.ErrGone) {
			return err
		}
		return nil // a server that has gone tells nobody
	})
	if err != nil {
		return fmt.Errorf("vfiouser: bind vector %d: %w", vector, err)
	}
	return nil
}

// setIRQ has the server tell a vector's messages by a descriptor, or nobody.
func (d *Device) setIRQ(vector int, fds ...int) error {
	s := vfu.IRQSet{ArgSize: vfu.IRQSetSize, Flags: vfu.IRQFD | vfu.IRQTrigger, Index: vfu.IRQMSIX, Start: uint32(vector), Count: 1}
	_, _, err := d.conn.call(vfu.SetIRQs, s.Append(nil), fds...)
	return err
}

// Close implements octep.Device: the server takes back what it had of this process,
// and the card goes on.
func (d *Device) Close() error {
	d.conn.close()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.irqs.Close()
	err := d.bar2.unmap()
	if d.dma != nil {
		err = errors.Join(err, d.dma.Close())
	}
	return err
}

// mapper tells the server about memory of this process.
type mapper struct{ c *conn }

// MapFile implements dma.FileMapper.
func (m mapper) MapFile(bus uint64, mem []byte, fd int, off int64) error {
	to := vfu.Map{ArgSize: vfu.MapSize, Flags: vfu.MapRead | vfu.MapWrite, Offset: uint64(off), Address: bus, Size: uint64(len(mem))}
	_, _, err := m.c.call(vfu.MapDMA, to.Append(nil), fd)
	return err
}

// UnmapFile implements dma.FileMapper. A server that has gone reaches nothing.
func (m mapper) UnmapFile(bus uint64, size int) error {
	_, _, err := m.c.call(vfu.UnmapDMA, vfu.Unmap{ArgSize: vfu.UnmapSize, Address: bus, Size: uint64(size)}.Append(nil))
	switch {
	case errors.Is(err, mmio.ErrGone):
		return nil
	case errors.Is(err, unix.ENOENT):
		return errors.Join(err, dma.ErrStays)
	}
	return err
}
