package netlab

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Scratch is a directory for a configuration file or a socket. It is a
// filesystem in memory that is mounted nowhere: it has no name in the file tree
// and is gone with the last descriptor of it.
type Scratch struct {
	dir  *os.File
	temp string // with a kernel that lacks such mounts: a directory to remove
}

// NewScratch makes an empty directory. On a kernel older than 5.2 it is an
// ordinary one under os.TempDir, which a killed process leaves behind.
func NewScratch() (*Scratch, error) {
	fd, err := detachedTmpfs()
	if err == nil {
		return &Scratch{dir: os.NewFile(uintptr(fd), "scratch")}, nil
	}
	if !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EPERM) {
		return nil, fmt.Errorf("netlab: make a scratch directory: %w", err)
	}
	temp, err := os.MkdirTemp("", "oxpd-")
	if err != nil {
		return nil, fmt.Errorf("netlab: make a scratch directory: %w", err)
	}
	dir, err := os.Open(temp)
	if err != nil {
		return nil, fmt.Errorf("netlab: open the scratch directory: %w", errors.Join(err, os.Remove(temp)))
	}
	return &Scratch{dir: dir, temp: temp}, nil
}

func detachedTmpfs() (int, error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, err
	}
	return unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
}

// File is the directory's descriptor, for a child's ExtraFiles. It belongs to s.
func (s *Scratch) File() *os.File { return s.dir }

// Path is a file of the directory as this process names it.
func (s *Scratch) Path(name string) string { return FDPath(int(s.dir.Fd())) + "/" + name }

// Close lets go of the directory.
func (s *Scratch) Close() error {
	err := s.dir.Close()
	if s.temp != "" {
		err = errors.Join(err, os.RemoveAll(s.temp))
	}
	return err
}

// FDPath is the path under which a process finds its own descriptor.
func FDPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// firstExtra is the number that a child gives the first of its ExtraFiles.
const firstExtra = 3

// ChildFDPath is the path under which a child finds ExtraFiles[i].
func ChildFDPath(i int) string { return FDPath(firstExtra + i) }
