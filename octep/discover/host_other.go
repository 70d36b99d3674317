//go:build !linux

package discover

import (
	"errors"
	"fmt"

	"oxpd/internal/dma"
)

// System is the machine that the process runs on.
func System(needs []dma.Need) Host { return Host{Needs: needs} }

// Memory is not known here.
func (h Host) Memory() Memory { return Memory{} }

func (h Host) text(...string) string   { return "" }
func (h Host) kept(Memory, string) int { return 0 }

// Cards finds cards on Linux alone.
func (h Host) Cards() ([]Card, error) {
	return nil, fmt.Errorf("look for cards: %w", errors.ErrUnsupported)
}

// Card reads a function on Linux alone.
func (h Host) Card(address string) (*Card, error) {
	return nil, fmt.Errorf("look at %s: %w", address, errors.ErrUnsupported)
}

// Bind changes drivers on Linux alone.
func (h Host) Bind(string, string, bool) (*Card, bool, error) {
	return nil, false, errors.ErrUnsupported
}

// Unbind changes drivers on Linux alone.
func (h Host) Unbind(string) (*Card, bool, error) { return nil, false, errors.ErrUnsupported }

// Resets knows nothing outside of Linux.
func (h Host) Resets(*Card) []Condition { return nil }
