// Package vfio reaches the card through vfio-pci, the kernel driver that hands a PCI
// function to user space behind an IOMMU. What Open returns is an octep.Device.
//
//	                 group form                       cdev form
//	IOMMU            /dev/vfio/vfio, type 1           /dev/iommu (iommufd)
//	function         /dev/vfio/GROUP ─▶ descriptor    /dev/vfio/devices/vfioN
//	config space     by pread and pwrite; the kernel keeps its hand on some of it
//	BAR0, BAR2       mapped where the kernel lets them be (sparse mmap capability),
//	                 elsewhere by pread and pwrite; what faults reads all ones
//	DMA              files in memory, each region one map, bus addresses below 4 GiB
//	interrupts       MSI-X, an eventfd a vector, one goroutine each
//
// # Why it is refused
//
// vfio-pci resets a function that can be reset when it is opened, resets its bus when
// it is closed and the function could not be reset, and sends it to sleep (D3hot) when
// nobody has it open. What any of these does to a coprocessor that runs is on no record
// (docs/guides/first-run.md, E1). So Open wants three things, each of which keeps one of
// them away, and names what is missing (*ResetError):
//
//	sleep       vfio-pci was loaded with disable_idle_d3=1
//	open        reset_method of the function is empty
//	close       a descriptor store keeps the descriptors, so that no close is the last
//
// Options.AcceptReset does without.
//
// # What the kernel does
//
// Memory decoding is on when the function is open. Bus mastering is off, and it is the
// caller's to turn on, last. When the last descriptor is closed the kernel clears it,
// and the maps end.
//
// A BAR that the kernel does not let be mapped is read with the accesses that the
// kernel makes of it, which are no wider than 32 bits on some: that is the page of the
// MSI-X table before Linux 4.16, where no register of the card lies.
//
// Left out: the card's own reset, which no driver code asks for; dirty page tracking;
// interrupts other than MSI-X; memory that outlives the process.
package vfio
