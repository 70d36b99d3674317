//go:build !linux

package console

import (
	"errors"
	"fmt"
)

// Console needs Linux: pseudo terminals, namespaces and ptrace as they are there.
type Console struct{}

// New returns errors.ErrUnsupported.
func New(Card, Options) (*Console, error) {
	return nil, fmt.Errorf("console: %w", errors.ErrUnsupported)
}

// Path returns the empty string.
func (*Console) Path() string { return "" }

// Close returns nil.
func (*Console) Close() error { return nil }

// Execute returns errors.ErrUnsupported.
func Execute([]string) (int, error) {
	return statusNotRun, fmt.Errorf("console: %w", errors.ErrUnsupported)
}
