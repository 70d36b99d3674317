// Package vfu is the layout of vfio-user: the messages between whoever drives a
// PCI device and the process that is the device, over a stream socket. Constants
// and codecs, no sockets. QEMU's docs/interop/vfio-user.rst is the source.
//
//	message   0 id u16   2 command u16   4 size u32   8 flags u32   12 errno u32
//	          16 payload, size - 16 bytes
//
// Numbers are in the byte order of the machine, which is little-endian wherever
// this project runs. The size counts the header. A reply has the command's id, an
// error reply has no payload. Descriptors travel beside the header (SCM_RIGHTS).
//
// Decode takes a payload and refuses one of another length than the message has;
// what the numbers in it mean is for its reader to check.
//
// Left out: DMA by message, migration, dirty pages, several writes in one message,
// descriptors for parts of a region, the second socket.
package vfu
