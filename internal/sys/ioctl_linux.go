package sys

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Ioctl makes an ioctl whose argument is the layout of a C structure, which the kernel
// may write, and returns what the call returns. Addresses inside of arg must be those
// of memory that the Go runtime does not own (AddressOf).
func Ioctl(fd int, request uint, arg []byte) (int, error) {
	if len(arg) == 0 {
		return 0, fmt.Errorf("sys: ioctl %#x: %w", request, unix.EINVAL)
	}
	r, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(unsafe.Pointer(unsafe.SliceData(arg))))
	runtime.KeepAlive(arg)
	if errno != 0 {
		return int(r), errno
	}
	return int(r), nil
}

// IoctlValue is Ioctl for a request whose argument is a number.
func IoctlValue(fd int, request uint, arg uintptr) (int, error) {
	r, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), arg)
	if errno != 0 {
		return int(r), errno
	}
	return int(r), nil
}

// AddressOf is where mapped memory lies in this process, for the kernel. The memory
// must not be of the Go heap.
func AddressOf(mem []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))) }
