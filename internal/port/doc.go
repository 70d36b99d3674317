// Package port gives each front port its interface of the host: a TAP named by
// the board table.
//
//	ring's workers --Receive(shard)--> write(2) --> oxpN --> Linux
//	ring's IQ slots <--Transmitter--- read(2) <--- oxpN <--- Linux
//	rtnetlink link events --Watch--> the owner of MTU and addresses
//
// Receive hands one frame to the kernel with one system call and moves exactly
// one counter. The Transmitter is one goroutine for all ports; it reads each
// frame where the card will fetch it, rings one doorbell per burst and stops
// reading while the card's queue is full: the frames then wait in the TAP's own
// queue, and what overflows there is the kernel's count, tap_kernel_dropped.
//
// The MTU belongs to the port's LIF (design.md rule 11). This package has no
// say in it: it has the limit that the owner sets (SetLimit), the interface's
// MTU (SetMTU), and reports what others did to the interface (Watch).
//
// A TAP carries bare frames: no packet information, no virtio-net header; the
// kernel finishes checksums and cuts segments before a frame gets here.
// Coalescing and segmentation are not in this package yet.
package port
