package console

import "fmt"

// Why a console cannot be used. Each is the Kind of an Error.
const (
	// NotTerminal: the path is none of a terminal.
	NotTerminal Kind = iota + 1
	// KernelConsole: the host's own kernel writes there, or it cannot be told.
	KernelConsole
	// InUse: another process has it open.
	InUse
	// Exclusive: somebody has claimed it with TIOCEXCL.
	Exclusive
	// Locked: somebody holds its flock.
	Locked
	// BadMode: it does not take the settings, and might echo.
	BadMode
	// NotReady: the gate is closed, nothing was written.
	NotReady
	// Gone: the device hung up, or does not exist any more.
	Gone
	// Stuck: it takes no bytes.
	Stuck
	// Silent: nothing at all came back.
	Silent
	// NoShell: something came back, but no shell answered.
	NoShell
	// LoginRefused: root is not let in without a password.
	LoginRefused
	// BadLine: the command cannot be sent as one line. Nothing was written.
	BadLine
	// Damaged: the command did not arrive as it was sent, and was not run.
	Damaged
	// Unanswered: the command was sent, and that it began did not come back.
	Unanswered
	// Unfinished: the command began, and its end did not come back.
	Unfinished
	// Flooded: more came back than any command says.
	Flooded
)

// Kind is why a console cannot be used, or what went wrong with a command. It is an
// error itself, so that errors.Is(err, console.Silent) holds for an Error.
type Kind int

// Error implements error.
func (k Kind) Error() string { return k.text().is }

// Final says that another try at once is of no use.
func (k Kind) Final() bool { return k != Damaged && k != Unanswered && k != Unfinished && k != Flooded }

// text is what a Kind says, and what to do about it.
type text struct{ is, hint string }

func (k Kind) text() text {
	switch k {
	case NotTerminal:
		return text{"not a terminal", "name the serial port that leads to the coprocessor; it is never looked for"}
	case KernelConsole:
		return text{"a console of this host's own kernel", "every kernel message would be typed into the coprocessor: name the port that leads to the coprocessor, " +
			"or take the console= option of this port from the kernel's command line"}
	case InUse:
		return text{"another process has it open", "two readers get half of the text each: end that process first"}
	case Exclusive:
		return text{"somebody has claimed it for himself (TIOCEXCL)", "end the program that uses the port; setserial or a terminal program may have left the claim behind"}
	case Locked:
		return text{"somebody holds its lock (flock)", "another oxpd or a terminal program uses it: wait for it, or end it"}
	case BadMode:
		return text{"it does not take the settings that keep it from echoing", "the driver of this port is not one of a serial line; nothing was written"}
	case NotReady:
		return text{"the coprocessor is not ready for a byte on its console", "nothing was written; repeat the command when oxpd status shows the coprocessor as running"}
	case Gone:
		return text{"it has hung up", "see that the port still exists, then repeat the command"}
	case Stuck:
		return text{"it takes no bytes", "see that nothing has stopped the line (flow control, an emulated port without a listener)"}
	case Silent:
		return text{"nothing comes back", "the console may be silent for a whole boot: repeat the command later; else see that this is the port that leads to the coprocessor"}
	case NoShell:
		return text{"no shell answers", "look at the console with a terminal program at 115,200 baud; something may be running there"}
	case LoginRefused:
		return text{"root is not let in without a password", "take the password from root on the coprocessor, or log in there first and leave the shell open"}
	case BadLine:
		return text{"this is no line for the console", "one line of printable ASCII is taken"}
	case Damaged:
		return text{"the command did not arrive as it was sent, and was not run", "the line loses or changes bytes: see that nothing else has the console open, and that its speed is 115,200 baud"}
	case Unanswered:
		return text{"that the command began did not come back", "whether it was done is not known: look before it is repeated; see that nothing else has the console open"}
	case Unfinished:
		return text{"the end of the command did not come back", "whether it was done is not known: look before it is repeated"}
	case Flooded:
		return text{"more comes back than any command says", "something else writes to the console: look at it with a terminal program"}
	}
	return text{fmt.Sprintf("console error %d", int(k)), ""}
}

// Error is a console that cannot be used, or a command that went wrong.
type Error struct {
	Device string
	Kind   Kind
	Detail string // who, what or how long; may be empty
	Err    error  // the cause, may be nil
}

// Error names the device, the kind, the detail and the cause.
func (e *Error) Error() string {
	s := fmt.Sprintf("console %s: %v", e.Device, e.Kind)
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	if e.Err != nil {
		s += fmt.Sprintf(": %v", e.Err)
	}
	return s
}

// Unwrap returns the Kind and the cause.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}

// Hint says what the operator can do.
func (e *Error) Hint() string { return e.Kind.text().hint }

// Final says that another try at once is of no use.
func (e *Error) Final() bool { return e.Kind.Final() }
