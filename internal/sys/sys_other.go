//go:build !linux

package sys

import (
	"errors"
	"fmt"
	"os"
)

var (
	// ErrExists says that an interface of the wanted name exists already.
	ErrExists = errors.New("interface exists already")
	// ErrNotTAP says that a descriptor is not that of a TAP as OpenTAP makes it.
	ErrNotTAP = errors.New("not the descriptor of such a TAP")
)

func unsupported(what string) error { return fmt.Errorf("sys: %s: %w", what, errors.ErrUnsupported) }

// NetNS is a network namespace, which only Linux has.
type NetNS struct{}

// OpenNetNS returns errors.ErrUnsupported.
func OpenNetNS(string) (*NetNS, error) { return nil, unsupported("open network namespace") }

// NewNetNS returns errors.ErrUnsupported.
func NewNetNS() (*NetNS, error) { return nil, unsupported("make network namespace") }

// Path returns the empty string.
func (*NetNS) Path() string { return "" }

// Do returns errors.ErrUnsupported.
func (*NetNS) Do(func() error) error { return unsupported("enter network namespace") }

// Close returns nil.
func (*NetNS) Close() error { return nil }

// InNetNS runs fn when path is empty and otherwise returns errors.ErrUnsupported.
func InNetNS(path string, fn func() error) error {
	if path == "" {
		return fn()
	}
	return unsupported("enter network namespace")
}

// TAP is a TAP interface, which only Linux has in this form.
type TAP struct{}

// OpenTAP returns errors.ErrUnsupported.
func OpenTAP(string) (*TAP, error) { return nil, unsupported("create TAP") }

// AdoptTAP returns errors.ErrUnsupported.
func AdoptTAP(int) (*TAP, error) { return nil, unsupported("adopt TAP") }

// Name returns the empty string.
func (*TAP) Name() string { return "" }

// FD returns -1.
func (*TAP) FD() int { return -1 }

// Mode returns errors.ErrUnsupported.
func (*TAP) Mode() (string, uint16, error) { return "", 0, unsupported("read mode of TAP") }

// VNetHeader returns errors.ErrUnsupported.
func (*TAP) VNetHeader() (bool, int, error) { return false, 0, unsupported("read header size of TAP") }

// SetCarrier returns errors.ErrUnsupported.
func (*TAP) SetCarrier(bool) error { return unsupported("set carrier") }

// Read returns errors.ErrUnsupported.
func (*TAP) Read([]byte) (int, error) { return 0, errors.ErrUnsupported }

// Write returns errors.ErrUnsupported.
func (*TAP) Write([]byte) (int, error) { return 0, errors.ErrUnsupported }

// Writev returns errors.ErrUnsupported.
func (*TAP) Writev([][]byte) (int, error) { return 0, errors.ErrUnsupported }

// File returns nil.
func (*TAP) File() *os.File { return nil }

// Close returns nil.
func (*TAP) Close() error { return nil }

// Events is an eventfd, which only Linux has.
type Events struct{}

// NewEvents returns errors.ErrUnsupported.
func NewEvents(func()) (*Events, error) { return nil, unsupported("make an eventfd") }

// FD returns -1.
func (*Events) FD() int { return -1 }

// Close does nothing.
func (*Events) Close() {}

// Ioctl returns errors.ErrUnsupported.
func Ioctl(int, uint, []byte) (int, error) { return 0, unsupported("ioctl") }

// IoctlValue returns errors.ErrUnsupported.
func IoctlValue(int, uint, uintptr) (int, error) { return 0, unsupported("ioctl") }

// AddressOf returns 0.
func AddressOf([]byte) uint64 { return 0 }
