package console

import "golang.org/x/sys/unix"

// setArguments changes the first two arguments of the system call that a process is about
// to make. It finds them changed should the call fail, as a C caller's registers may be.
func setArguments(pid int, a, b uint64) error {
	var r unix.PtraceRegsAmd64
	if err := unix.PtraceGetRegsAmd64(pid, &r); err != nil {
		return err
	}
	r.Rdi, r.Rsi = a, b
	return unix.PtraceSetRegsAmd64(pid, &r)
}
