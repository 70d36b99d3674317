package vfio

import (
	"os"
	"path/filepath"

	"oxpd/octep/discover"
)

// kernel makes an ioctl with a structure: sys.Ioctl.
type kernel func(fd int, request uint, arg []byte) (int, error)

// function is a PCI function as vfio reaches it.
type function struct {
	card *discover.Card
	dev  string // root of device files
	kernel
}

// group is the device file of the card's IOMMU group.
func (f function) group() string { return filepath.Join(f.dev, "vfio", f.card.IOMMU.Group) }

func (f function) container() string { return filepath.Join(f.dev, "vfio/vfio") }

func (f function) iommufd() string { return filepath.Join(f.dev, "iommu") }

// cdev is the character device of the card, "" when the kernel has none, or no
// /dev/iommu to go with it.
func (f function) cdev() string {
	entries, err := os.ReadDir(f.card.File("vfio-dev"))
	if err != nil || len(entries) != 1 {
		return ""
	}
	path := filepath.Join(f.dev, "vfio/devices", entries[0].Name())
	if !exists(path) || !exists(f.iommufd()) {
		return ""
	}
	return path
}

// form is the one that the kernel has.
func (f function) form() Form {
	if !exists(f.group()) && f.cdev() != "" {
		return CdevForm
	}
	return GroupForm // whose error says what is not there
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// missing returns which of the conditions are not met under which opening the card and
// closing it leaves the coprocessor alone.
func missing(h discover.Host, c *discover.Card, o Options) []discover.Condition {
	conditions := h.Resets(c)
	if why := o.why(); why != "" {
		conditions = append(conditions, discover.Condition{
			Text:    "vfio-pci resets the bus when the last descriptor is closed, and nothing keeps one: " + why,
			Command: "start oxpd by a systemd unit with FileDescriptorStoreMax= and FileDescriptorStorePreserve=yes",
		})
	}
	return conditions
}
