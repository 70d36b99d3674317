// Package console runs commands in a shell of the coprocessor, over the serial
// line between it and the host (hardware/rpc-lif.md 10). It is the only way to the
// switch, and a line on which a single byte at the wrong time stops the
// coprocessor's boot loader.
//
//	Open:  gate -> device -> no echo, raw -> ours alone
//	Run:   gate -> shell (log in, find the prompt) -> command between two markers
//
// # No byte before its time
//
// Options.Ready is the gate: it says whether the coprocessor's kernel runs and its
// handshake is done or begun. It is asked before the device is opened and before
// every single write, and what it refuses is not written.
//
// # The local echo
//
// A terminal that is opened echoes what it receives, until it is told not to; what
// it echoes is a byte on the line. On Linux the settings of a serial port outlive
// its last close, but the first open after a boot of the host finds ECHO on and 9,600
// baud, and nothing can set them without opening the port. So the time between
// open and the new settings, a few system calls, cannot be made nothing: it is put
// behind the gate, where an echoed byte meets a shell and not the boot loader.
// Within it the device is opened without waiting for a carrier and without becoming
// anybody's controlling terminal, nothing is read, and what arrived is
// thrown away. Close leaves the settings as they are, raw and without echo, for
// whoever comes next. Whether the settings were taken is read back.
//
// # Alone
//
// Two readers of a serial line get half of the text each. A device is refused when it is
// a kernel console, when a process has it open (by /proc/*/fd, which needs root),
// when it has TIOCEXCL, and when its flock is held. Then oxpd holds the flock and
// TIOCEXCL; neither keeps root out, so when answers do not come, the processes are
// looked at again.
//
// # Commands
//
//	a='echo OXP3fa94c""17e0b2_B; mvsw 0 2 read 1 8; echo OXP3fa94c""17e0b2_E$?_' b='... the same ...';
//	if [ "$a" = "$b" ]; then eval "$a"; else echo OXP3fa94c""17e0b2_X; fi
//
// all in one line. The command is there twice, and is run when the shell finds the two to be
// the same: a byte that is lost or changed on the way must not make another register or
// another value of one. What did not run is sent again, three times in all.
//
// The markers of the output, OXP3fa94c17e0b2_B and OXP3fa94c17e0b2_E0_, do not
// stand in what was sent, so an echo is none, wherever the shell breaks its lines.
// They are fresh each time, so that the late end of another command is none either. What
// is between them is the output; kernel messages among it are the caller's to
// know, and what is lost of it, too. The output of one command is at most 256 KiB, and each
// wait has an end.
//
// A shell is found by its answer to such a command alone; prompts, whose text is on no
// record, are only hints of when to send it. A half-typed line is erased, not entered
// (^U); what runs there is interrupted from the second try on (^C). The shell's own echo is
// off from then on, which spares the line half of its bytes, until Close.
//
// # What it leaves out
//
// Flow control (the line has none), any other user than root, a password. Other systems
// than Linux: errors.ErrUnsupported.
package console
