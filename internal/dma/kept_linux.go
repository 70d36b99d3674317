package dma

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// newKeptFile makes a file with a zeroed table.
func newKeptFile() (int, []byte, error) {
	fd, err := unix.MemfdCreate("oxpd-memory", unix.MFD_CLOEXEC)
	if err != nil {
		return -1, nil, err
	}
	table, err := growKeptFile(fd, 0, keptTable)
	if err != nil {
		return -1, nil, errors.Join(err, unix.Close(fd))
	}
	return fd, table, nil
}

// openKeptFile maps the table and returns the file's length.
func openKeptFile(fd int) ([]byte, int64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, 0, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size < keptTable || st.Size%pageSize != 0 {
		return nil, 0, fmt.Errorf("%w: %d bytes", ErrKept, st.Size)
	}
	table, err := mapKeptFile(fd, 0, keptTable)
	return table, st.Size, err
}

// growKeptFile adds zeroed pages, which are present already, and maps them.
func growKeptFile(fd int, off int64, size int) ([]byte, error) {
	if err := unix.Ftruncate(fd, off+int64(size)); err != nil {
		return nil, err
	}
	return mapKeptFile(fd, off, size)
}

func mapKeptFile(fd int, off int64, size int) ([]byte, error) {
	return unix.Mmap(fd, off, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
}

// emptyKeptFile gives pages back; what is read there from then on is zeros.
func emptyKeptFile(fd int, off, size int64) error {
	return uninterrupted(func() error { return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, size) })
}

func closeKeptFile(fd int) error { return unix.Close(fd) }
