package sys

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SyscallStop is where a traced process has stopped at a system call.
type SyscallStop struct {
	Entry bool   // about to make it; otherwise it has been made, or the process has not stopped at one
	SP    uint64 // stack pointer

	Nr   uint64    // of an entry
	Args [6]uint64 // of an entry
}

// struct ptrace_syscall_info.
const (
	infoOp   = 0  // u8: 0 none, 1 entry, 2 exit
	infoSP   = 16 // u64
	infoNr   = 24 // u64, of an entry
	infoArgs = 32 // six u64, of an entry
	infoSize = 88

	infoEntry = 1
)

// PtraceSyscallStop asks where a traced process that has stopped stands. Only the thread
// that traces it may ask. Linux 5.3 or later.
func PtraceSyscallStop(pid int) (SyscallStop, error) {
	var b [infoSize]byte
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(pid), infoSize, uintptr(unsafe.Pointer(&b[0])), 0, 0)
	if errno != 0 {
		return SyscallStop{}, fmt.Errorf("sys: ask for the system call of process %d: %w", pid, errno)
	}
	le := binary.NativeEndian
	s := SyscallStop{Entry: b[infoOp] == infoEntry, SP: le.Uint64(b[infoSP:])}
	if s.Entry {
		s.Nr = le.Uint64(b[infoNr:])
		for i := range s.Args {
			s.Args[i] = le.Uint64(b[infoArgs+8*i:])
		}
	}
	return s, nil
}

// PtraceSeize makes the calling thread the tracer of a process, with PTRACE_O_ options
// from the first moment on. The process is not stopped by it.
func PtraceSeize(pid int, options uintptr) error {
	if err := ptrace(unix.PTRACE_SEIZE, pid, 0, options); err != nil {
		return fmt.Errorf("sys: trace process %d: %w", pid, err)
	}
	return nil
}

// PtraceListen leaves a process that was seized, and that job control has stopped, as it
// is, until something wakes it.
func PtraceListen(pid int) error { return ptrace(unix.PTRACE_LISTEN, pid, 0, 0) }

// PtraceDetach lets a stopped process go, with a signal unless it is 0.
func PtraceDetach(pid int, signal unix.Signal) error {
	return ptrace(unix.PTRACE_DETACH, pid, 0, uintptr(signal))
}

func ptrace(request, pid int, addr, data uintptr) error {
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, uintptr(request), uintptr(pid), addr, data, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
