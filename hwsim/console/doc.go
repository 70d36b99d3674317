// Package console is the serial console of the simulated coprocessor (rpc-lif.md 10,
// switch.md 8 and 9): a pseudo terminal on which its boot loader and its kernel speak,
// and then a login and a real shell, busybox as Debian has it. It is what a driver must
// meet that reaches the switch behind the ports by a program on the coprocessor.
//
//	host's program           this package                                  the shell's world
//	  /dev/pts/N  <-- line: 115,200 baud, faults --> terminal <-- login, sh --> /bin/mvsw (aarch64)
//	  (Path, Link)              |                                              |  execve, by ptrace:
//	                            v                                              v  /lib/a64 sim a64 /bin/mvsw
//	                   boot text, ConsoleByte                               /dev/mvmdio-uio
//	                            |                                              |  unix socket
//	                            +------------------> Card <--------------------+
//
// # Life
//
// The card tells of the coprocessor's life. A start ends the shell with everything that
// was begun in it and shows the boot loader's text; a byte that arrives before the kernel
// runs is Card.ConsoleByte, which stops that boot. Then comes the kernel's log, the
// prompt of a login, and for root, without a password, a shell.
//
// What the real banner, prompt and log say is on no record; the texts here are invented.
//
// # World
//
// The shell is process 1 of namespaces of its own (user, processes, mounts, network,
// names) and its root is a folder in the temporary directory, so it reaches nothing of
// this machine, and no rights are needed. There is /root, which outlives a restart, and
// /tmp, which does not: it is a RAM file system there. The environment is that of a login.
// Programs of the machine's own kind run by themselves; one for aarch64 is run by this
// program (Options.Interpreter) with the interpreter of hwsim/a64: the shell and all its
// children are traced, a filter of system calls stops them at each execve and nowhere
// else, and that of such a file becomes one of the interpreter.
// The device of the MDIO bus is a unix socket of that name, which only the interpreter's
// programs know how to use; one message is one read or write with the driver's struct.
//
// # Limits
//
// Linux on amd64 and arm64, 5.6 or later; elsewhere New says so. A program of another
// kind that a script's #! line names is not seen. What nobody listens to is lost; a
// listener that does not read for a second loses the same. Suspended jobs (^Z) work.
package console
