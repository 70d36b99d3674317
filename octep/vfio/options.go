package vfio

import (
	"errors"
	"fmt"
)

// Store keeps descriptors while no process has them: internal/fdstore.
type Store interface {
	// Why is the reason that nothing is kept, "" when it is.
	Why() string
	// Most is how many descriptors it can hold.
	Most() int
}

// places are those of a store that hold all of oxpd: five of the card, the state, and
// twelve interfaces. A store with fewer is given up on the way, and closes what it has.
const places = 5 + 1 + 12

// Form is the way into the kernel.
type Form string

// Forms of vfio.
const (
	AnyForm   Form = ""      // the group's, or the cdev's where the kernel has no groups
	GroupForm Form = "group" // /dev/vfio/GROUP
	CdevForm  Form = "cdev"  // /dev/vfio/devices/vfioN and /dev/iommu
)

// errNoCdev says that the kernel has no character device for the function.
var errNoCdev = errors.New("the kernel has no /dev/vfio/devices entry for it, or no /dev/iommu")

// Options say how a card is opened.
type Options struct {
	Form Form
	// AcceptReset opens the card also where that, or closing it, may reset it.
	AcceptReset bool
	// Store will be given the descriptors (Device.Keep); nil: nobody will.
	Store Store
	// Dev is the root of device files; empty: /dev.
	Dev string
}

func (o Options) dev() string {
	if o.Dev == "" {
		return "/dev"
	}
	return o.Dev
}

// why is the reason that nothing keeps descriptors, "" when something does.
func (o Options) why() string {
	switch {
	case o.Store == nil:
		return "there is no descriptor store"
	case o.Store.Why() != "":
		return o.Store.Why()
	case o.Store.Most() < places:
		return fmt.Sprintf("the descriptor store has %d places, and oxpd needs %d", o.Store.Most(), places)
	}
	return ""
}
