// Package vfio reaches the card through vfio-pci, the kernel driver that hands a PCI
// function to user space behind an IOMMU. What Open returns is an octep.Device.
//
//	                 group form                       cdev form
//	IOMMU            /dev/vfio/vfio, type 1           /dev/iommu (iommufd)
//	function         /dev/vfio/GROUP ─▶ descriptor    /dev/vfio/devices/vfioN
//	config space     by pread and pwrite; the kernel keeps its hand on some of it
//	BAR0, BAR2       mapped where the kernel lets them be (sparse mmap capability),
//	                 elsewhere by pread and pwrite; what faults reads all ones
//	DMA              a file in memory, each region one map, bus addresses below 4 GiB
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
//	close       a descriptor store has room for the descriptors, so that no close is the last
//
// Options.AcceptReset does without.
//
// # What goes on
//
// Keep hands over the descriptors that make the card reachable: container and group, or
// iommufd; the function; the file that rings and buffers lie in; the lock that keeps
// others from unbinding the function. While somebody has them the kernel closes nothing:
// bus mastering stays on, the maps stay, with the pages in them, and what the card writes
// arrives. Adopt takes them in the next process. It opens nothing and maps no memory
// anew: it asks what function it is, maps the BARs into this process, finds regions by
// their names, and binds vectors to eventfds of its own, in the place of those that
// nobody reads any more. (Between the two, messages are lost; a ring that has something
// to say is found by the sweep.)
//
// They are to stay where they are kept also when oxpd is stopped for good (Device.Stays):
// the last close is a reset.
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
// Linux before 6.0 lets nobody but the process that made a map of type 1 take it away.
// What an adopted card does not need any more stays mapped there until the last descriptor
// is closed, at addresses that are not used again.
//
// Left out: the card's own reset, which no driver code asks for; dirty page tracking;
// interrupts other than MSI-X.
package vfio
