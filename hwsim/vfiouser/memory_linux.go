package vfiouser

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// newMemory makes a file in memory that nobody can make shorter under the card.
func newMemory(size int) (*Memory, error) {
	fd, err := unix.MemfdCreate("oxpd-bar2", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("vfiouser: make memory of BAR2: %w", err)
	}
	f := os.NewFile(uintptr(fd), "oxpd-bar2")
	var mem []byte
	err = f.Truncate(int64(size))
	if err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err == nil {
		mem, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("vfiouser: make memory of BAR2: %w", err), f.Close())
	}
	m := &Memory{f, mem}
	m.fill()
	return m, nil
}
