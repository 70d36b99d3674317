// Package sys is thin wrappers of system calls that golang.org/x/sys lacks or
// spells too low: TAP devices (tun/tap ioctls, non-blocking frames on a bare
// descriptor) and network namespaces.
//
// A TAP here is one frame per read and per write, without the four bytes of
// packet information and without a virtio-net header, and what the kernel
// granted is read back (TUNGETIFF). Descriptors 0 to 2 are never used: a log
// line written to a "standard error" that is a TAP would be a frame.
//
// A namespace is entered on a locked thread of its own goroutine. A thread that
// cannot be brought home again is never returned to the scheduler: it ends
// with the goroutine.
//
// Events is an eventfd that somebody listens to; Ioctl takes the layout of a C structure.
//
// Pty is a pseudo terminal from the side that plays the line. The Ptrace functions are
// requests that x/sys lacks.
//
// ListenUnix makes a unix socket where a dead process may have left one.
//
// Left out: multi-queue TAPs, vhost, eBPF filters, namespaces other than the
// network's. Systems other than Linux get errors.ErrUnsupported.
package sys
