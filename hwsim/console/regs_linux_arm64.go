package console

import (
	"debug/elf"

	"golang.org/x/sys/unix"
)

// generalRegisters is the name of the set that has the arguments.
const generalRegisters = int(elf.NT_PRSTATUS)

// setArguments changes the first two arguments of the system call that a process is about
// to make. It finds them changed should the call fail, as a C caller's registers may be.
func setArguments(pid int, a, b uint64) error {
	var r unix.PtraceRegsArm64
	if err := unix.PtraceGetRegSetArm64(pid, generalRegisters, &r); err != nil {
		return err
	}
	r.Regs[0], r.Regs[1] = a, b
	return unix.PtraceSetRegSetArm64(pid, generalRegisters, &r)
}
