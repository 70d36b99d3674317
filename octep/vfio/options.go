package vfio

import "errors"

// Store keeps descriptors while no process has them: internal/fdstore.
type Store interface {
	// Why is the reason that nothing is kept, "" when it is.
	Why() string
	// Came tells whether an earlier process left a descriptor of that name.
	Came(name string) bool
	// Take gives it to the caller, who closes it; the store has its own.
	Take(name string) (fd int, ok bool)
	// Put stores a descriptor, which stays the caller's.
	Put(name string, fd int) error
}

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
	// Store keeps the descriptors; nil: nothing does.
	Store Store
	// Dev is the root of device files; empty: /dev.
	Dev string
}

// why is the reason that nothing keeps descriptors.
func (o Options) why() string {
	if o.Store == nil {
		return "there is no descriptor store"
	}
	return o.Store.Why()
}
