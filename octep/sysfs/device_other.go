//go:build !linux

package sysfs

import (
	"errors"

	"oxpd/octep"
	"oxpd/octep/discover"
)

// Device is a PCI function, on Linux alone.
type Device struct{ octep.Device }

// Open works on Linux alone.
func Open(_ discover.Host, c *discover.Card) (*Device, error) {
	return nil, &OpenError{c.Address, errors.ErrUnsupported}
}

// Look works on Linux alone.
func Look(_ discover.Host, c *discover.Card) (*Device, error) {
	return nil, &OpenError{c.Address, errors.ErrUnsupported}
}
