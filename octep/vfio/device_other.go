//go:build !linux

package vfio

import (
	"context"
	"errors"

	"oxpd/internal/dma"
	"oxpd/internal/mmio"
	"oxpd/octep/discover"
)

// Device is a PCI function behind vfio-pci, which only Linux has.
type Device struct{}

// Open works on Linux alone.
func Open(_ context.Context, _ discover.Host, c *discover.Card, _ Options) (*Device, error) {
	return nil, &OpenError{c.Address, errors.ErrUnsupported, ""}
}

// Adopt works on Linux alone.
func Adopt(c *discover.Card, _ Options, _ func(name string) (fd int, ok bool)) (*Device, error) {
	return nil, &AdoptError{c.Address, errors.ErrUnsupported}
}

// Keep hands over nothing.
func (*Device) Keep(func(name string, fd int) error) error { return errors.ErrUnsupported }

// SetKeeps changes nothing.
func (*Device) SetKeeps(bool) {}

// Stays are none.
func (*Device) Stays() []string { return nil }

// Name implements octep.Device.
func (*Device) Name() string { return "" }

// ConfigRead implements octep.Device.
func (*Device) ConfigRead(int, int) (uint32, error) { return 0, errors.ErrUnsupported }

// ConfigWrite implements octep.Device.
func (*Device) ConfigWrite(int, int, uint32) error { return errors.ErrUnsupported }

// BAR0 implements octep.Device.
func (*Device) BAR0() mmio.Space { return nil }

// BAR2 implements octep.Device.
func (*Device) BAR2() mmio.Space { return nil }

// DMA implements octep.Device.
func (*Device) DMA() dma.Provider { return nil }

// BindIRQ implements octep.Device.
func (*Device) BindIRQ(int, func()) error { return errors.ErrUnsupported }

// Close implements octep.Device.
func (*Device) Close() error { return nil }
