// Package traps shows a simulated virtual function to a program of this machine that
// drives a PCI device from user space, by igb_uio: DPDK. The program is not changed and
// knows nothing of it.
//
//	program, under ptrace                        this process, one thread
//	scan of PCI devices ───────────────────────▶ a folder of files (tree)
//	/sys/class/uio, /dev/uio0 ─────────────────▶ a mount namespace of its own
//	mmap of resource0, an empty file
//	load or store ──▶ SIGBUS ──────────────────▶ decode the MOV, Card.Load or Card.Store,
//	goes on behind it ◀─ register, RIP ───────── let the card work
//	hugepages, files in HugeDir ◀── mapped too ─ DMA by physical address
//
// Every access arrives at its width and in order, and the program stands still while it is
// made: what the card does as its effect is done when the next instruction runs. The card
// stays in stepped mode, so a run is as slow as the machine, and no different for it.
//
// Only plain MOVs of 4 and 8 bytes between a register and memory, and from an immediate,
// are known; that is what a compiler makes of an access to a volatile word. Any other
// instruction ends the run with its bytes in the error.
//
// Namespace, folder, pages and program end with the thread, whatever ends that.
//
// Left out: functions with interrupts (the device file never becomes readable), other
// BARs than BAR0, IOVA modes other than physical addresses, writes to configuration space. It takes root and Linux on amd64; elsewhere Start
// returns errors.ErrUnsupported.
package traps
