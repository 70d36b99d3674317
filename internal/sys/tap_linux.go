package sys

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

const (
	tunDevice = "/dev/net/tun"
	firstFD   = 3 // below are standard input, output and error

	tapFlags = unix.IFF_TAP | unix.IFF_NO_PI
	// tapModes are the flags that change what a frame looks like on the descriptor.
	tapModes = unix.IFF_TUN | unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR
)

var (
	// ErrExists says that an interface of the wanted name exists already.
	ErrExists = errors.New("interface exists already")
	// ErrNotTAP says that a descriptor is not that of a TAP as OpenTAP makes it.
	ErrNotTAP = errors.New("not the descriptor of such a TAP")
)

// TAP is a TAP interface and its bare, non-blocking descriptor. The interface
// exists as long as the descriptor. Read, Write and Writev may run
// concurrently; the caller keeps Close away from all of them.
type TAP struct {
	fd   int
	name string
}

// OpenTAP creates the interface name in the network namespace of the calling
// thread: down, carrier on, frames bare. Errors: ErrExists, those of open and
// ioctl (EPERM without CAP_NET_ADMIN).
func OpenTAP(name string) (*TAP, error) {
	req, err := unix.NewIfreq(name)
	if err != nil {
		return nil, fmt.Errorf("sys: create TAP %q: %w", name, err)
	}
	fd, err := unix.Open(tunDevice, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("sys: open %s: %w", tunDevice, err)
	}
	if fd, err = AboveStdio(fd); err != nil {
		return nil, err
	}
	t := &TAP{fd: fd, name: name}
	if err := t.attach(req); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return t, nil
}

// AdoptTAP is the TAP of a descriptor that another process made by OpenTAP. The
// descriptor is the TAP's from then on; with an error it stays the caller's. One that
// was made without IFF_NO_PI cannot be told: TUNGETIFF shows that flag always.
// Errors: ErrNotTAP, also when the interface has gone.
func AdoptTAP(fd int) (*TAP, error) {
	t := &TAP{fd: fd, name: fmt.Sprintf("descriptor %d", fd)}
	name, flags, err := t.Mode()
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrNotTAP, err)
	case flags&(tapModes|unix.IFF_MULTI_QUEUE) != tapFlags:
		return nil, fmt.Errorf("sys: adopt TAP %s: %w: flags %#x, want mode %#x", name, ErrNotTAP, flags, tapFlags)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("sys: adopt TAP %s: %w", name, err)
	}
	t.name = name
	return t, nil
}

// attach makes the interface and reads back what it became. IFF_TUN_EXCL
// refuses an interface that exists, whatever its kind and its settings are.
func (t *TAP) attach(req *unix.Ifreq) error {
	req.SetUint16(tapFlags | unix.IFF_TUN_EXCL)
	switch err := unix.IoctlIfreq(t.fd, unix.TUNSETIFF, req); {
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("sys: create TAP %s: %w", t.name, ErrExists)
	case err != nil:
		return fmt.Errorf("sys: create TAP %s: %w", t.name, err)
	}
	name, flags, err := t.Mode()
	if err != nil {
		return err
	}
	if name != t.name || flags&tapModes != tapFlags {
		return fmt.Errorf("sys: create TAP %s: kernel made %q with flags %#x, want mode %#x", t.name, name, flags, tapFlags)
	}
	return nil
}

// AboveStdio moves a descriptor out of 0 to 2 and returns where it is. On an
// error the descriptor is closed.
func AboveStdio(fd int) (int, error) {
	if fd >= firstFD {
		return fd, nil
	}
	high, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, firstFD)
	unix.Close(fd)
	if err != nil {
		return -1, fmt.Errorf("sys: move descriptor %d above standard error: %w", fd, err)
	}
	return high, nil
}

// Name is the name that the interface was created, or adopted, under.
func (t *TAP) Name() string { return t.name }

// FD is the descriptor.
func (t *TAP) FD() int { return t.fd }

// Mode asks the kernel for the interface's present name and flags (TUNGETIFF).
func (t *TAP) Mode() (name string, flags uint16, err error) {
	req, err := unix.NewIfreq("")
	if err != nil {
		return "", 0, fmt.Errorf("sys: read mode of TAP %s: %w", t.name, err)
	}
	if err := unix.IoctlIfreq(t.fd, unix.TUNGETIFF, req); err != nil {
		return "", 0, fmt.Errorf("sys: read mode of TAP %s: %w", t.name, err)
	}
	return req.Name(), req.Uint16(), nil
}

// VNetHeader tells whether each frame has a virtio-net header in front, and the
// size in bytes that it has or would have.
func (t *TAP) VNetHeader() (on bool, size int, err error) {
	_, flags, err := t.Mode()
	if err != nil {
		return false, 0, err
	}
	size, err = unix.IoctlGetInt(t.fd, unix.TUNGETVNETHDRSZ)
	if err != nil {
		return false, 0, fmt.Errorf("sys: read header size of TAP %s: %w", t.name, err)
	}
	return flags&unix.IFF_VNET_HDR != 0, size, nil
}

// SetCarrier says whether the link is up. Errors: EBADFD when the interface has gone.
func (t *TAP) SetCarrier(up bool) error {
	v := 0
	if up {
		v = 1
	}
	if err := unix.IoctlSetPointerInt(t.fd, unix.TUNSETCARRIER, v); err != nil {
		return fmt.Errorf("sys: set carrier of TAP %s: %w", t.name, err)
	}
	return nil
}

// Read takes one frame that the kernel sends. EAGAIN: there is none. A frame
// longer than b is cut without an error, so a full b means "too long".
func (t *TAP) Read(b []byte) (int, error) { return unix.Read(t.fd, b) }

// Write hands one frame to the kernel. EIO: the interface is down. EBADFD: it
// has gone. EINVAL: shorter than an Ethernet header.
func (t *TAP) Write(b []byte) (int, error) { return unix.Write(t.fd, b) }

// Writev is Write of a frame in pieces. More than eight pieces allocate.
func (t *TAP) Writev(pieces [][]byte) (int, error) { return unix.Writev(t.fd, pieces) }

// File hands the descriptor over to a file on the runtime's poller: Read and
// Write then wait. The TAP must not be used afterwards.
func (t *TAP) File() *os.File { return os.NewFile(uintptr(t.fd), t.name) }

// Close closes the descriptor, and with it removes the interface.
func (t *TAP) Close() error {
	if err := unix.Close(t.fd); err != nil {
		return fmt.Errorf("sys: close TAP %s: %w", t.name, err)
	}
	return nil
}
