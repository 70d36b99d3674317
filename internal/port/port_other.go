//go:build !linux

package port

import (
	"context"
	"errors"
	"fmt"
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
