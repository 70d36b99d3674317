package console

import (
	"debug/elf"

	"golang.org/x/sys/unix"
)

// generalRegisters is the name of the set that has the arguments.
const generalRegisters = int(elf.NT_PRSTATUS)

// registers are those of a system call that setArguments has changed.
type registers unix.PtraceRegsArm64

// setArguments changes the first two arguments of the system call that a process is about
// to make, and returns what puts them back.
func setArguments(pid int, a, b uint64) (registers, error) {
	var r unix.PtraceRegsArm64
	if err := unix.PtraceGetRegSetArm64(pid, generalRegisters, &r); err != nil {
		return registers{}, err
	}
	old := registers(r)
	r.Regs[0], r.Regs[1] = a, b
	return old, unix.PtraceSetRegSetArm64(pid, generalRegisters, &r)
}

// restore puts the second argument back once the call has been made; the first one's
// register has the result.
func (old *registers) restore(pid int) error {
	var r unix.PtraceRegsArm64
	if err := unix.PtraceGetRegSetArm64(pid, generalRegisters, &r); err != nil {
		return err
	}
	r.Regs[1] = old.Regs[1]
	return unix.PtraceSetRegSetArm64(pid, generalRegisters, &r)
}
