package dma

import "golang.org/x/sys/unix"

// mapPages returns zeroed anonymous pages, read in ahead of use.
func mapPages(size int) ([]byte, error) {
	return unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_PREFAULT_READ)
}

func unmapPages(mem []byte) error { return unix.Munmap(mem) }
