package console

import (
	"context"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"oxpd/internal/sys"
)

// Open opens the serial port at path, which nothing looks for: it is what the
// operator wrote down. It asks the gate first, writes nothing, and leaves a port
// that it refuses as it was.
//
// Errors: *Error, of the kinds NotTerminal, KernelConsole, InUse, Exclusive, Locked,
// BadMode, NotReady, Gone.
func Open(ctx context.Context, path string, o Options) (*Console, error) {
	return open(ctx, host{proc: "/proc", sys: "/sys"}, path, o)
}

func open(ctx context.Context, h host, path string, o Options) (*Console, error) {
	c := attach(path, nil, o.filled())
	d, err := h.device(path)
	if err != nil {
		return nil, c.refuse(err)
	}
	if err := h.mayUse(d); err != nil {
		return nil, c.refuse(err)
	}
	if err := c.gate(ctx); err != nil {
		return nil, err
	}
	t := &tty{host: h, device: d}
	if err := t.open(path); err != nil {
		return nil, c.refuse(err)
	}
	c.line = t
	return c, nil
}

// refusal is a Kind and who or what is the reason.
type refusal struct {
	kind   Kind
	detail string
	err    error
}

func (r *refusal) Error() string { return r.kind.Error() + ": " + r.detail }

// refuse makes an Error of a refusal.
func (c *Console) refuse(err error) error {
	var r *refusal
	if errors.As(err, &r) {
		return c.fail(r.kind, r.detail, r.err)
	}
	return c.fail(Gone, "", err)
}

// tty is an open serial port of our own.
type tty struct {
	host   host
	device device
	fd     int
}

// open makes the port ours and quiet. From the open to setRaw what arrives is
// echoed, when nobody has set this port since the host's boot: nothing stands between them
// that is not needed to know whether the port may be set.
func (t *tty) open(path string) error {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EBUSY) {
		return &refusal{Exclusive, "", nil} // TIOCEXCL, for who is not root
	}
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	// A line of the log on a "standard error" that is the console would be typed into it.
	if fd, err = sys.AboveStdio(fd); err != nil {
		return fmt.Errorf("open: %w", err)
	}
	t.fd = fd
	err = t.claim()
	if err != nil {
		_ = unix.Close(fd) // the error that matters is this one
	}
	return err
}

func (t *tty) claim() error {
	// The path may lead elsewhere than a moment ago.
	if d, err := deviceOf(t.fd); err != nil || d != t.device {
		return &refusal{NotTerminal, "another device has come into its place", err}
	}
	exclusive, err := unix.IoctlGetInt(t.fd, unix.TIOCGEXCL)
	if err != nil {
		return &refusal{NotTerminal, "", err}
	}
	if exclusive != 0 {
		return &refusal{Exclusive, "", nil}
	}
	err = unix.Flock(t.fd, unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return &refusal{Locked, "", nil}
	}
	if err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	before, err := t.setRaw()
	if err != nil {
		return err
	}
	if err := unix.IoctlSetInt(t.fd, unix.TIOCEXCL, 0); err != nil {
		return fmt.Errorf("claim it (TIOCEXCL): %w", err)
	}
	// Who came between the first look and now.
	if who := t.Others(); who != "" {
		t.release()
		_ = unix.IoctlSetTermios(t.fd, unix.TCSETS, before) // theirs again
		return &refusal{InUse, who, nil}
	}
	return nil
}

// raw is how the line is set: 115,200 8N1, no echo, no flow control, nothing
// translated, no signal characters, no carrier awaited, and no hang-up at the last
// close.
func raw(old unix.Termios) unix.Termios {
	t := old
	t.Iflag, t.Oflag, t.Lflag = 0, 0, 0
	t.Cflag = unix.CS8 | unix.CREAD | unix.CLOCAL | unix.B115200
	t.Ispeed, t.Ospeed = unix.B115200, unix.B115200
	t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0 // so that no data is EAGAIN, and 0 bytes a hang-up
	return t
}

// setRaw sets the line, throws away what has arrived, and reads the settings back.
func (t *tty) setRaw() (before *unix.Termios, err error) {
	before, err = unix.IoctlGetTermios(t.fd, unix.TCGETS)
	if err != nil {
		return nil, &refusal{NotTerminal, "", err}
	}
	want := raw(*before)
	if err := unix.IoctlSetTermios(t.fd, unix.TCSETS, &want); err != nil {
		return nil, &refusal{BadMode, "", err}
	}
	if err := unix.IoctlSetInt(t.fd, unix.TCFLSH, unix.TCIFLUSH); err != nil {
		return nil, fmt.Errorf("throw away what has arrived: %w", err)
	}
	got, err := unix.IoctlGetTermios(t.fd, unix.TCGETS)
	if err != nil {
		return nil, fmt.Errorf("read the settings back: %w", err)
	}
	if got.Iflag != want.Iflag || got.Oflag != want.Oflag || got.Lflag != want.Lflag {
		return nil, &refusal{BadMode, fmt.Sprintf("input %#x, output %#x, local %#x, none of which is 0", got.Iflag, got.Oflag, got.Lflag), nil}
	}
	return before, nil
}

// Read implements line.
func (t *tty) Read(p []byte) (int, error) {
	n, err := unix.Read(t.fd, p)
	switch {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		return 0, nil
	case err != nil:
		return 0, err
	case n == 0:
		return 0, io.ErrUnexpectedEOF // a hang-up
	}
	return n, nil
}

// Write implements line.
func (t *tty) Write(p []byte) (int, error) {
	n, err := unix.Write(t.fd, p)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
		return 0, nil
	}
	return max(n, 0), err
}

// Others implements line.
func (t *tty) Others() string { return t.host.others(t.device) }

// release undoes TIOCEXCL and the lock, which outlive our descriptor while others are
// open: TIOCEXCL anybody's, the lock a copy that a child has until it is another program.
func (t *tty) release() {
	_ = unix.IoctlSetInt(t.fd, unix.TIOCNXCL, 0)
	_ = unix.Flock(t.fd, unix.LOCK_UN)
}

// Close implements line. What the line has not taken is thrown away: the kernel
// would wait for it.
func (t *tty) Close() error {
	_ = unix.IoctlSetInt(t.fd, unix.TCFLSH, unix.TCOFLUSH) // a port that is gone has nothing to throw away
	t.release()
	return unix.Close(t.fd)
}
