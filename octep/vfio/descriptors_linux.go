package vfio

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Names of descriptors in a store.
const (
	nameIOMMU  = "vfio-iommu" // container, or iommufd
	nameGroup  = "vfio-group"
	nameDevice = "vfio-device"
)

// descriptors are those of one opened function, beside the store that keeps them too.
type descriptors struct {
	store Store
	open  map[string]int
	order []string
}

// came tells whether an earlier process left a descriptor.
func (d *descriptors) came(name string) bool { return d.store != nil && d.store.Came(name) }

// get takes a descriptor out of the store, or else opens it and puts it there.
func (d *descriptors) get(name string, open func() (int, error)) (int, error) {
	if d.store != nil {
		if fd, ok := d.store.Take(name); ok {
			d.add(name, fd)
			return fd, nil
		}
	}
	fd, err := open()
	if err != nil {
		return -1, err
	}
	d.add(name, fd)
	if d.store != nil && d.store.Why() == "" {
		if err := d.store.Put(name, fd); err != nil {
			return -1, fmt.Errorf("keep a descriptor: %w", err)
		}
	}
	return fd, nil
}

func (d *descriptors) add(name string, fd int) {
	d.open[name] = fd
	d.order = append(d.order, name)
}

// close closes them, the last opened first. What a store keeps stays open there.
func (d *descriptors) close() error {
	var errs []error
	for i := len(d.order) - 1; i >= 0; i-- {
		errs = append(errs, unix.Close(d.open[d.order[i]]))
	}
	d.order = nil
	clear(d.open)
	return errors.Join(errs...)
}
