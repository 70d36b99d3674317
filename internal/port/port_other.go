//go:build !linux

package port

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// openTAP returns errors.ErrUnsupported.
func openTAP(name, _ string) (tap, int, link, error) {
	return nil, 0, nil, fmt.Errorf("port: open %s: %w", name, errors.ErrUnsupported)
}

// adoptTAP returns errors.ErrUnsupported.
func adoptTAP(name, _ string, _, _ int) (tap, link, error) {
	return nil, nil, fmt.Errorf("port: adopt %s: %w", name, errors.ErrUnsupported)
}

func newPoller() (poller, error) { return nil, errors.ErrUnsupported }

// Watch returns errors.ErrUnsupported.
func Watch(context.Context, WatchConfig, func(Link)) error {
	return fmt.Errorf("port: watch links: %w", errors.ErrUnsupported)
}

// OpenWire returns errors.ErrUnsupported.
func OpenWire(name, _ string, _ int) (*Wire, error) {
	return nil, fmt.Errorf("port: open wire %s: %w", name, errors.ErrUnsupported)
}

func interrupted(error) bool { return false }
func again(error) bool       { return false }
func gone(error) bool        { return false }
func short(error) bool       { return false }
func removed(error) bool     { return false }

// Inline is two TAP interfaces, which only Linux has in this form.
type Inline struct{}

// OpenInline returns errors.ErrUnsupported.
func OpenInline(InlineConfig) (*Inline, error) { return nil, errors.ErrUnsupported }

// Files are none.
func (*Inline) Files() [2]*os.File { return [2]*os.File{} }

// Watch returns errors.ErrUnsupported.
func (*Inline) Watch(context.Context) error { return errors.ErrUnsupported }

// Attached returns errors.ErrUnsupported.
func (*Inline) Attached() (bool, error) { return false, errors.ErrUnsupported }

// Close returns errors.ErrUnsupported.
func (*Inline) Close() error { return errors.ErrUnsupported }
