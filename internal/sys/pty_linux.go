package sys

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

const ptmxDevice = "/dev/ptmx"

// Pty is a pseudo terminal: the end that a program plays the line on. Its other end is
// a terminal, by the name Path or by Open. Read, Write and the calls about the other end
// may run concurrently, Close too: it ends them.
type Pty struct {
	f    *os.File // non-blocking, on the runtime's poller
	path string
}

// OpenPty makes a pseudo terminal. Nobody has its other end open; it begins with the
// settings of any terminal: lines, echo.
func OpenPty() (*Pty, error) {
	fd, err := unix.Open(ptmxDevice, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("sys: open %s: %w", ptmxDevice, err)
	}
	if fd, err = AboveStdio(fd); err != nil {
		return nil, err
	}
	n, err := unix.IoctlGetUint32(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("sys: make a pseudo terminal: %w", errors.Join(err, unix.Close(fd)))
	}
	return &Pty{os.NewFile(uintptr(fd), ptmxDevice), fmt.Sprintf("/dev/pts/%d", n)}, nil
}

// Path is the name of the other end.
func (p *Pty) Path() string { return p.path }

// Open opens the other end, whatever it is called where the process is. It does not
// become the process's controlling terminal. Reads of a file that is opened with
// nonblock wait in the runtime, and can be ended; a child process wants one without.
func (p *Pty) Open(nonblock bool) (*os.File, error) {
	flags := unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC
	if nonblock {
		flags |= unix.O_NONBLOCK
	}
	fd := -1
	err := p.control(func(master int) (err error) {
		fd, err = IoctlValue(master, unix.TIOCGPTPEER, uintptr(flags))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("sys: open %s: %w", p.path, err)
	}
	if fd, err = AboveStdio(fd); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), p.path), nil
}

// Listening tells whether somebody has the other end open. Before its first open and
// close it is always true.
func (p *Pty) Listening() (bool, error) {
	hup := false
	err := p.control(func(master int) error {
		fds := []unix.PollFd{{Fd: int32(master)}}
		_, err := unix.Poll(fds, 0)
		for errors.Is(err, unix.EINTR) { // also of a poll that does not wait, by a signal of the runtime
			_, err = unix.Poll(fds, 0)
		}
		hup = fds[0].Revents&unix.POLLHUP != 0
		return err
	})
	return !hup, err
}

// Termios are the settings of the other end, from either end's descriptor.
func (p *Pty) Termios() (t *unix.Termios, err error) {
	err = p.control(func(master int) error { t, err = unix.IoctlGetTermios(master, unix.TCGETS); return err })
	return t, err
}

// SetTermios changes the settings of the other end.
func (p *Pty) SetTermios(t *unix.Termios) error {
	return p.control(func(master int) error { return unix.IoctlSetTermios(master, unix.TCSETS, t) })
}

// control calls fn with the descriptor.
func (p *Pty) control(fn func(fd int) error) error {
	raw, err := p.f.SyscallConn()
	if err != nil {
		return err
	}
	if cerr := raw.Control(func(fd uintptr) { err = fn(int(fd)) }); cerr != nil {
		return cerr
	}
	return err
}

// File is the line's end, for reading and writing. A read fails with EIO while nobody
// has the other end open.
func (p *Pty) File() *os.File { return p.f }

// Close ends the terminal: whoever has the other end open is hung up.
func (p *Pty) Close() error { return p.f.Close() }
