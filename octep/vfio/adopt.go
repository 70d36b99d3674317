package vfio

import "fmt"

// Names of the descriptors by which a later process goes on with the card.
const (
	KeptLock   = "vfio lock"   // config space in sysfs, locked: nobody takes the driver away
	KeptIOMMU  = "vfio iommu"  // container, or iommufd
	KeptGroup  = "vfio group"  // of the group form alone
	KeptMemory = "vfio memory" // the file that rings and buffers lie in
	KeptDevice = "vfio device" // the function
)

// Kept are all of them, in the order in which they are handed over. The device is the last:
// where it is, the others are.
func Kept() []string { return []string{KeptLock, KeptIOMMU, KeptGroup, KeptMemory, KeptDevice} }

// AdoptError is a card of an earlier process that cannot be gone on with.
type AdoptError struct {
	Address string
	Err     error
}

func (e *AdoptError) Error() string {
	return fmt.Sprintf("go on with card %s by vfio: %v", e.Address, e.Err)
}

// Unwrap returns why.
func (e *AdoptError) Unwrap() error { return e.Err }

// Hint is what an operator can do.
func (e *AdoptError) Hint() string {
	return "reboot the coprocessor, have the service manager forget the descriptors (systemctl clean --what=fdstore oxpd), start oxpd again"
}
