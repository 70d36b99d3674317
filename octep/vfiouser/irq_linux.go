package vfiouser

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// newIRQ makes an eventfd, whose number is for the server.
func newIRQ(fn func()) (*irq, int, error) {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return nil, -1, fmt.Errorf("make an eventfd: %w", err)
	}
	return watch(os.NewFile(uintptr(fd), "eventfd"), fn), fd, nil
}
