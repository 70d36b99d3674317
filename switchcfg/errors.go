package switchcfg

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"oxpd/switchcfg/reg"
)

// ErrForbidden refuses a write that oxpd never does.
var ErrForbidden = errors.New("never written")

// RangeError refuses a number that names no register: a helper on the coprocessor would
// mask it to another one.
type RangeError struct {
	What   string
	Value  int
	Lo, Hi int
}

func (e *RangeError) Error() string {
	return fmt.Sprintf("%s %d is out of range: want %d to %d", e.What, e.Value, e.Lo, e.Hi)
}

// Hint says what the operator can do.
func (e *RangeError) Hint() string { return "hardware/switch.md 4 and 7 have the registers" }

// NoAnswerError says that nothing answers where the switch should be: every bit reads 1,
// the busy bit among them.
type NoAnswerError struct{ Waited time.Duration }

func (e *NoAnswerError) Error() string {
	return fmt.Sprintf("nothing answers at MDIO bus %d address %d: it reads 0x%04x, for %v", reg.Bus, reg.Address, reg.NoAnswer, e.Waited)
}

// Hint says what the operator can do.
func (e *NoAnswerError) Hint() string {
	return "nothing was written; this is not the board that oxpd knows, or the switch is held in reset: oxpd status shows the board"
}

// BusyError says that a busy bit was never cleared.
type BusyError struct {
	What   string // which of the two
	Value  uint16 // as last read
	Waited time.Duration
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("%s stayed busy: it reads 0x%04x after %v", e.What, e.Value, e.Waited)
}

// Hint says what the operator can do.
func (e *BusyError) Hint() string {
	return "another program on the coprocessor may use the switch without pause: repeat the command; when it stays, reboot the appliance"
}

// ProductError says that it is another switch: what is the frame size on this one is
// something else there.
type ProductError struct{ ID reg.ID }

func (e *ProductError) Error() string {
	return fmt.Sprintf("switch is not the one that oxpd knows: identifier 0x%04x, product 0x%03x, want product 0x%03x", uint16(e.ID), e.ID.Product(), reg.Product)
}

// Hint says what the operator can do.
func (e *ProductError) Hint() string {
	return "nothing was written, and nothing will be on this switch"
}

// UnstableError says that a register does not read the same twice, or not as something
// that it can hold.
type UnstableError struct {
	At     string   // the register
	Values []uint16 // as they came, the last of them
}

func (e *UnstableError) Error() string {
	return fmt.Sprintf("%s does not read the same twice: %s", e.At, words(e.Values))
}

// Hint says what the operator can do.
func (e *UnstableError) Hint() string { return hintUnreliable }

const hintUnreliable = "something else uses the switch, or the way to it garbles what it says: repeat the command when the coprocessor is quiet, and see " +
	"that nothing else has its console open"

// UnreliableError says that too much of what was read was wrong for anything to be
// written.
type UnreliableError struct {
	Misses, Reads int
	Last          error
}

func (e *UnreliableError) Error() string {
	return fmt.Sprintf("%d of %d reads of the switch were wrong, too many to write anything: %v", e.Misses, e.Reads, e.Last)
}

// Unwrap returns what was seen last.
func (e *UnreliableError) Unwrap() error { return e.Last }

// Hint says what the operator can do.
func (e *UnreliableError) Hint() string { return hintUnreliable }

// IdentityError is one read of a port's identifier that is not the product's.
type IdentityError struct {
	At    Register
	Value uint16
}

func (e *IdentityError) Error() string {
	return fmt.Sprintf("%s is 0x%04x, want product 0x%03x", e.At, e.Value, reg.Product)
}

// ReservedError says that a port has the frame size that the silicon reserves.
type ReservedError struct {
	Port  Port
	Value uint16 // of PortControl2
}

func (e *ReservedError) Error() string {
	return fmt.Sprintf("%s has the reserved frame size, mode 3 (0x%04x): what it means is not known", e.Port, e.Value)
}

// Hint says what the operator can do.
func (e *ReservedError) Hint() string {
	return "the port was left as it is; reboot the appliance: the coprocessor sets the switch anew"
}

// VerifyError says that a value did not stick.
type VerifyError struct {
	At        Register
	Want, Got uint16
	Old       uint16 // before the first write
	Tries     int
}

func (e *VerifyError) Error() string {
	stands := "something else stands"
	if e.Got == e.Old {
		stands = "the old value stands"
	}
	return fmt.Sprintf("%s was set to 0x%04x and reads 0x%04x, written %s: %s", e.At, e.Want, e.Got, times(e.Tries), stands)
}

// Hint says what the operator can do.
func (e *VerifyError) Hint() string {
	if e.Got == e.Old {
		return "the switch did not take it: repeat the command; when it stays, reboot the appliance"
	}
	return fmt.Sprintf("somebody else wrote it, or in between; it was 0x%04x: %s, and so does a reboot of the appliance", e.Old, repairs(e.At, e.Want))
}

// UnverifiedError says that a write was sent and could not be read back: the port is as
// it was or as it shall be.
type UnverifiedError struct {
	At        Register
	Old, Want uint16
	Err       error
}

func (e *UnverifiedError) Error() string {
	return fmt.Sprintf("%s was written and could not be read back, it is 0x%04x or 0x%04x: %v", e.At, e.Old, e.Want, e.Err)
}

// Unwrap returns why it could not be read.
func (e *UnverifiedError) Unwrap() error { return e.Err }

// Hint says what the operator can do.
func (e *UnverifiedError) Hint() string {
	return "oxpd switch show reads it; the command may be repeated"
}

// ChangedError says that PortControl2 of a port reads otherwise at the end than it should: somebody else
// has changed it meanwhile.
type ChangedError struct {
	At        Register
	Want, Got uint16
}

func (e *ChangedError) Error() string {
	return fmt.Sprintf("%s was changed by somebody else: it reads 0x%04x, want 0x%04x", e.At, e.Got, e.Want)
}

// Hint says what the operator can do.
func (e *ChangedError) Hint() string {
	if others(e.Got) != others(e.Want) {
		return "other bits than the frame size are not as they were: " + repairs(e.At, e.Want)
	}
	return "oxpd switch show reads it again; the command may be repeated; the coprocessor's own programs may set the switch"
}

// ForbiddenError refuses a write. It is ErrForbidden.
type ForbiddenError struct {
	At  Register
	Why string
}

func (e *ForbiddenError) Error() string {
	return fmt.Sprintf("%s is %v: %s", e.At, ErrForbidden, e.Why)
}

// Unwrap makes the error ErrForbidden.
func (e *ForbiddenError) Unwrap() error { return ErrForbidden }

// Hint says what the operator can do.
func (e *ForbiddenError) Hint() string { return "nothing was written; no option allows it" }

// SizeError refuses a frame size that the switch does not have.
type SizeError struct{ Bytes int }

func (e *SizeError) Error() string {
	return fmt.Sprintf("frame size %d is none of the switch's: want %d, %d or %d", e.Bytes,
		reg.Jumbo1522.FrameBytes(), reg.Jumbo2048.FrameBytes(), reg.Jumbo10240.FrameBytes())
}

// Hint says what the operator can do.
func (e *SizeError) Hint() string {
	return "the size is that of a whole frame with its checksum: 18 more than the MTU, and 22 on the uplink"
}

// IncompleteError says that ports are not as asked. Result has them one by one.
type IncompleteError struct {
	Result Result
	Err    error // why the run ended before its time; nil when it did not
}

func (e *IncompleteError) Error() string {
	var not, waiting, unread []string
	for _, r := range e.Result.Ports {
		switch {
		case r.Outcome == NotBegun && !r.Known:
			unread = append(unread, r.Port.Short())
		case r.Outcome == NotBegun:
			waiting = append(waiting, r.Port.Short())
		case !r.OK():
			not = append(not, fmt.Sprintf("%s: %s", r.Port, r.Say()))
		}
	}
	n := len(not) + len(waiting)
	if len(waiting) > 0 {
		not = append(not, "not begun and as they were: "+strings.Join(waiting, ", "))
	}
	var what []string
	if e.Err != nil {
		what = append(what, e.Err.Error())
	}
	if n > 0 {
		what = append(what, fmt.Sprintf("%d of %d ports of the switch are not as asked: %s", n, len(e.Result.Ports), strings.Join(not, "; ")))
	}
	if len(unread) > 0 {
		what = append(what, "not read, and as they were: "+strings.Join(unread, ", "))
	}
	return strings.Join(what, "; ")
}

// Unwrap returns every cause.
func (e *IncompleteError) Unwrap() []error {
	var errs []error
	if e.Err != nil {
		errs = append(errs, e.Err)
	}
	for _, r := range e.Result.Ports {
		if r.Err != nil {
			errs = append(errs, r.Err)
		}
	}
	return errs
}

func words(values []uint16) string {
	var b strings.Builder
	for i, v := range values {
		if i > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "0x%04x", v)
	}
	return b.String()
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}
