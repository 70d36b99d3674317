// Package sysfs reaches the card through the files that Linux shows of a PCI
// function, without a driver in the kernel:
//
//	/sys/bus/pci/devices/ADDRESS/
//	  config       config space, one access a read or write; locked by whoever drives the card
//	  resource0    BAR0, mapped: registers at their width (internal/mmio)
//	  resource2    BAR2, mapped: facility windows and the doorbell word; octep guards it
//	hugetlbfs      memory by physical address (internal/dma.Huge), kept when the process ends
//
// There is no interrupt this way: whoever serves the rings polls. There is no IOMMU
// either, and Open refuses where one translates: physical addresses would be wrong.
//
// Open writes nothing and touches no BAR; a look at the card (oxpd probe) opens it too.
// A card that leaves the bus reads all ones in config space. One that the kernel was told
// to remove while it is driven does so too, also where it was mapped, and does not come
// back: what the kernel finds at the next look at the bus is another function to it.
//
// Left out: interrupts, reset, and systems other than Linux.
package sysfs
