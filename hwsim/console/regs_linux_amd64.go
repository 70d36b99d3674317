package console

import "golang.org/x/sys/unix"

// registers are those of a system call that setArguments has changed.
type registers unix.PtraceRegsAmd64

// setArguments changes the first two arguments of the system call that a process is about
// to make, and returns what puts them back.
func setArguments(pid int, a, b uint64) (registers, error) {
	var r unix.PtraceRegsAmd64
	if err := unix.PtraceGetRegsAmd64(pid, &r); err != nil {
		return registers{}, err
	}
	old := registers(r)
	r.Rdi, r.Rsi = a, b
	return old, unix.PtraceSetRegsAmd64(pid, &r)
}

// restore puts the arguments back once the call has been made.
func (old *registers) restore(pid int) error {
	var r unix.PtraceRegsAmd64
	if err := unix.PtraceGetRegsAmd64(pid, &r); err != nil {
		return err
	}
	r.Rdi, r.Rsi = old.Rdi, old.Rsi
	return unix.PtraceSetRegsAmd64(pid, &r)
}
