package console

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"oxpd/hwsim/a64"
	"oxpd/internal/sys"
	"oxpd/switchcfg/reg"
)

// Execute runs the aarch64 program of the file argv[0] in place of the coprocessor's
// kernel: in this process's root, with its standard descriptors. It returns the program's
// exit status, also with an error. For the one argument --shell it is the shell of a
// console instead, whose calls of such programs are to be seen.
func Execute(argv []string) (status int, err error) {
	if argv[0] == shellArg {
		return statusNotRun, shell()
	}
	image, err := os.ReadFile(argv[0])
	if err != nil {
		return statusNotRun, err
	}
	status, err = a64.Run(image, argv, newSystem())
	switch {
	case errors.Is(err, a64.ErrImage):
		status = statusNotRun
	case err != nil:
		status = statusFault
	}
	return status, err
}

// shell becomes the shell.
func shell() error {
	runtime.LockOSThread() // the filter is the thread's, and goes on with what it becomes
	if err := sys.TraceExec(); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	return syscall.Exec(insideShell, []string{insideShell, "-l"}, os.Environ())
}

// system is what a program of the coprocessor sees of its kernel: the files of this
// process's root, the standard descriptors, and the MDIO device. It serves one program.
type system struct {
	open map[int]*net.UnixConn // the MDIO device, by descriptor
	next int
}

func newSystem() *system { return &system{open: map[int]*net.UnixConn{}, next: firstDevice} }

// firstDevice is beyond every descriptor of the kernel's.
const firstDevice = 1 << 20

// Open opens a file and returns its descriptor, or a negative errno.
func (s *system) Open(path string, flags int) int64 {
	if path != reg.Device {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o666)
		if err != nil {
			return errno(err)
		}
		return int64(fd)
	}
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return errno(err)
	}
	fd := s.next
	s.next++
	s.open[fd] = c
	return int64(fd)
}

// Read reads from a descriptor and returns how much, or a negative errno. The MDIO
// device wants its request in p.
func (s *system) Read(fd int, p []byte) int64 { return s.move(fd, p, askRead, unix.Read) }

// Write writes to a descriptor and returns how much, or a negative errno.
func (s *system) Write(fd int, p []byte) int64 { return s.move(fd, p, askWrite, unix.Write) }

func (s *system) move(fd int, p []byte, ask byte, plain func(fd int, p []byte) (int, error)) int64 {
	c, device := s.open[fd]
	if !device {
		n, err := plain(fd, p)
		if err != nil {
			return errno(err)
		}
		return int64(n)
	}
	if len(p) < reg.RequestSize {
		return -int64(unix.EINVAL)
	}
	if _, err := c.Write(append([]byte{ask}, p[:reg.RequestSize]...)); err != nil {
		return errno(err)
	}
	var answer [answerSize + 1]byte
	if n, err := c.Read(answer[:]); err != nil || n != answerSize {
		return -int64(unix.EIO)
	}
	copy(p, answer[answerHead:answerSize])
	return int64(int32(binary.NativeEndian.Uint32(answer[:])))
}

// Close closes a descriptor and returns 0, or a negative errno.
func (s *system) Close(fd int) int64 {
	var err error
	if c, device := s.open[fd]; device {
		delete(s.open, fd)
		err = c.Close()
	} else {
		err = unix.Close(fd)
	}
	if err != nil {
		return errno(err)
	}
	return 0
}

// errno is an error as a system call returns it.
func errno(err error) int64 {
	var e unix.Errno
	if errors.As(err, &e) {
		return -int64(e)
	}
	return -int64(unix.EIO)
}
