package dma

import (
	"errors"

	"golang.org/x/sys/unix"
)

// mapShared returns zeroed pages of a new file in memory, present already, and the
// file.
func mapShared(name string, size int) ([]byte, int, error) {
	fd, err := unix.MemfdCreate("oxpd-"+name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, -1, err
	}
	err = unix.Ftruncate(fd, int64(size))
	var mem []byte
	if err == nil {
		mem, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	}
	if err != nil {
		return nil, -1, errors.Join(err, unix.Close(fd))
	}
	return mem, fd, nil
}

func closeFD(fd int) { _ = unix.Close(fd) }
