package sys

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Receive waits for a datagram, fills b, which is not empty, with it and returns its whole
// length, which is larger when b was too small. It is recv(2) with MSG_TRUNC, and
// allocates nothing.
func Receive(fd int, b []byte) (int, error) {
	n, _, errno := unix.Syscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_TRUNC, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
