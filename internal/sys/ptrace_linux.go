package sys

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SyscallStop is a system call that a traced process is about to make.
type SyscallStop struct {
	SP   uint64 // stack pointer
	Nr   uint64
	Args [6]uint64
}

// struct ptrace_syscall_info.
const (
	infoOp   = 0  // u8: 0 none, 1 entry, 2 exit, 3 seccomp
	infoSP   = 16 // u64
	infoNr   = 24 // u64
	infoArgs = 32 // six u64
	infoSize = 88

	infoSeccomp = 3
)

// PtraceSyscallStop asks for the system call at which a traced process has stopped by
// PTRACE_EVENT_SECCOMP. Only the thread that traces it may ask. Linux 5.3 or later.
func PtraceSyscallStop(pid int) (SyscallStop, error) {
	var b [infoSize]byte
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(pid), infoSize, uintptr(unsafe.Pointer(&b[0])), 0, 0)
	if errno != 0 {
		return SyscallStop{}, fmt.Errorf("sys: ask for the system call of process %d: %w", pid, errno)
	}
	if b[infoOp] != infoSeccomp {
		return SyscallStop{}, fmt.Errorf("sys: ask for the system call of process %d: it is not about to make one", pid)
	}
	ne := binary.NativeEndian
	s := SyscallStop{SP: ne.Uint64(b[infoSP:]), Nr: ne.Uint64(b[infoNr:])}
	for i := range s.Args {
		s.Args[i] = ne.Uint64(b[infoArgs+8*i:])
	}
	return s, nil
}

// struct seccomp_data.
const (
	dataNr   = 0 // u32
	dataArch = 4 // u32
)

// TraceExec has the calling thread stop before each execve by PTRACE_EVENT_SECCOMP, for
// good, with all that it starts. Without a tracer the call fails then (ENOSYS).
func TraceExec() error {
	arch, ok := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	if !ok {
		return fmt.Errorf("sys: filter system calls: %w", errors.ErrUnsupported)
	}
	const (
		load  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		ret   = unix.BPF_RET | unix.BPF_K
	)
	filter := [...]unix.SockFilter{
		{Code: load, K: dataArch},
		{Code: equal, K: arch, Jf: 3},
		{Code: load, K: dataNr},
		{Code: equal, K: unix.SYS_EXECVE, Jf: 1},
		{Code: ret, K: unix.SECCOMP_RET_TRACE},
		{Code: ret, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("sys: give up new privileges: %w", err)
	}
	_, _, errno := unix.Syscall6(unix.SYS_PRCTL, unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0, 0)
	if errno != 0 {
		return fmt.Errorf("sys: filter system calls: %w", errno)
	}
	return nil
}

// PtraceSeize makes the calling thread the tracer of a process, with PTRACE_O_ options
// from the first moment on. The process is not stopped by it.
func PtraceSeize(pid int, options uintptr) error {
	if err := ptrace(unix.PTRACE_SEIZE, pid, 0, options); err != nil {
		return fmt.Errorf("sys: trace process %d: %w", pid, err)
	}
	return nil
}

// siginfo_t of a fault.
const (
	siginfoAddr = 16 // u64
	siginfoSize = 128
)

// PtraceFault is the address of the fault, in its memory, at whose signal a traced thread
// has stopped. Only the thread that traces it may ask.
func PtraceFault(tid int) (uint64, error) {
	var b [siginfoSize]byte
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GETSIGINFO, uintptr(tid), 0, uintptr(unsafe.Pointer(&b[0])), 0, 0)
	if errno != 0 {
		return 0, fmt.Errorf("sys: ask for the fault of thread %d: %w", tid, errno)
	}
	return binary.NativeEndian.Uint64(b[siginfoAddr:]), nil
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
