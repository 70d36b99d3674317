package dma

import "golang.org/x/sys/unix"

// mapPages returns zeroed anonymous pages that are present already: the device
// must not wait for a page fault.
func mapPages(size int) ([]byte, error) {
	return unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
}

func unmapPages(mem []byte) error { return unix.Munmap(mem) }
