package vfiouser

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"oxpd/hwsim"
	"oxpd/octep/csr"
)

// Memory is the part of BAR2 that a client may map, shared with it by descriptor:
// entries 0 to 7, where a card answers all-ones, and the facility windows.
type Memory struct {
	file *os.File
	mem  []byte
}

// NewMemory makes the memory, which ends with Close. On systems without memory
// files errors.ErrUnsupported.
func NewMemory() (*Memory, error) { return newMemory(mappable) }

// Windows is what hwsim.Options.Windows has to be.
func (m *Memory) Windows() []byte {
	return m.mem[csr.BAR2Facilities:][:hwsim.WindowBytes]
}

// fill lets entries 0 to 7 read all-ones again, whatever somebody stored there.
func (m *Memory) fill() {
	b := m.mem[:csr.BAR2Facilities]
	b[0] = 0xff
	for n := 1; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}

// Close takes the memory away; the card that has its windows there must be closed.
func (m *Memory) Close() error {
	return errors.Join(unix.Munmap(m.mem), m.file.Close())
}
