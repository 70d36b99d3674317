// Package discover finds the card among the PCI functions that Linux shows in
// sysfs, says what stands in the way of driving it, and gives it to a kernel driver
// or takes it away from one.
//
//	/sys/bus/pci/devices/*            ids of every function, the rest of ours
//	  config                          command, capabilities, link (decoded here)
//	  driver, iommu_group, power_state, enable
//	/sys/kernel/security/lockdown     may BARs be mapped?
//	/sys/kernel/mm/hugepages, mounts  is there memory for the rings?
//	    │
//	    ▼
//	  Card ──▶ obstacles, each with the command that removes it
//
// Looking changes nothing and touches no BAR. Bind and Unbind write driver_override,
// unbind and drivers_probe of a function that is the card, and read the result back.
//
// Functions are read by u-root's pkg/pci, one at a time and only where the ids are
// the card's: its bus reader gives up at the first function of the machine that it
// cannot read.
//
// Left out: opening the card (octep/sysfs); hot-plug; systems other than Linux, which
// get errors.ErrUnsupported.
package discover
