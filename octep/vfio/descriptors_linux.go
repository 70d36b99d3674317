package vfio

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"
)

// descriptors are those of one function, by their names, in the order in which they came.
type descriptors struct {
	open  map[string]int
	order []string
}

// get opens one.
func (d *descriptors) get(name string, open func() (int, error)) (int, error) {
	fd, err := open()
	if err != nil {
		return -1, err
	}
	d.add(name, fd)
	return fd, nil
}

func (d *descriptors) add(name string, fd int) {
	d.open[name] = fd
	d.order = append(d.order, name)
}

// drop forgets one, which somebody else closes from here on.
func (d *descriptors) drop(name string) {
	delete(d.open, name)
	d.order = slices.DeleteFunc(d.order, func(n string) bool { return n == name })
}

// close closes them, the last one first. What somebody else keeps stays open there.
func (d *descriptors) close() error {
	var errs []error
	for i := len(d.order) - 1; i >= 0; i-- {
		errs = append(errs, unix.Close(d.open[d.order[i]]))
	}
	d.order = nil
	clear(d.open)
	return errors.Join(errs...)
}
