package dma

import (
	"errors"

	"golang.org/x/sys/unix"
)

// sharedPages returns zeroed pages of a file in memory, present already. Unlike private
// ones a child that was forked cannot make them others than those that the IOMMU has.
func sharedPages(name string, size int) ([]byte, error) {
	fd, err := unix.MemfdCreate("oxpd-"+name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	err = unix.Ftruncate(fd, int64(size))
	var mem []byte
	if err == nil {
		mem, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	}
	return mem, errors.Join(err, unix.Close(fd)) // the mapping has it
}
