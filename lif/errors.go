package lif

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"oxpd/internal/board"
	"oxpd/rpc/msg"
)

// Errors that callers branch on.
var (
	// ErrNotProvisioned says that Provision was never called for the port.
	ErrNotProvisioned = errors.New("port is not provisioned")
	// ErrBadMAC refuses an address that would make the port deaf (all zero) or is a
	// group address.
	ErrBadMAC = errors.New("not a station's MAC address")
	// ErrMACInUse refuses the address of another port.
	ErrMACInUse = errors.New("another port has that MAC address")
	// ErrBadMode refuses a forwarding mode other than L2 and L3: 0 would free the entry.
	ErrBadMode = errors.New("not a forwarding mode that oxpd sets")
	// ErrPaused says that nothing was sent because the port was refused lately.
	ErrPaused = errors.New("waiting before the next try")
	// ErrRefused says that the fast path refused a command with rc 1.
	ErrRefused = errors.New("refused by the fast path")
	// ErrMismatch says that a command was accepted and the entry reads otherwise.
	ErrMismatch = errors.New("read-back differs")
)

// Error says what was tried on which LIF, why it failed, and what stands now.
// It unwraps to ErrRefused, ErrMismatch, or the table's own error.
type Error struct {
	Op   string // "create", "update", "bind tag", "set mtu", "set mac", "set mode", "read", "read back"
	Port board.Port
	Want msg.LIF
	Have msg.LIF // as last read; meaningless unless Present
	// Present tells whether the entry existed at the last read.
	Present bool
	// Field is the one that SetMTU, SetMAC or SetMode was to change, else 0; it stays
	// as Stays has it.
	Field msg.LIFMask
	Stays msg.LIF
	Err   error
}

func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "lif: %s of %s, LIF %d: %v", e.Op, e.Port, e.Port.LIF(), e.Err)
	if errors.Is(e.Err, ErrMismatch) {
		fmt.Fprintf(&b, ": %s", difference(e.Want, e.Have, e.Present))
	}
	switch e.Field {
	case msg.MaskMTU:
		fmt.Fprintf(&b, "; the mtu stays %d", e.Stays.MTU)
	case msg.MaskMAC:
		fmt.Fprintf(&b, "; the mac stays %x", e.Stays.MAC)
	case msg.MaskFwd:
		fmt.Fprintf(&b, "; the mode stays %s", modeName(e.Stays.Fwd))
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Hint says what the operator can do.
func (e *Error) Hint() string {
	switch {
	case errors.Is(e.Err, ErrRefused) && !e.Present:
		return "the entry is missing in the coprocessor; oxpd creates it again by itself; repeat the command then"
	case errors.Is(e.Err, ErrRefused):
		return "the coprocessor refused it and says no more; repeat it later, and see oxpd status whether the fast path runs"
	case errors.Is(e.Err, ErrMismatch):
		return "the coprocessor accepted the command and kept another value; its fast path may be restarting, oxpd restores the entry; repeat the command then"
	default:
		return "the command channel failed; oxpd reopens it by itself; see oxpd status and repeat the command"
	}
}

// PausedError says when a refused port is tried again. It is ErrPaused.
type PausedError struct {
	Port  board.Port
	Left  time.Duration
	Cause error // what went wrong last
}

func (e *PausedError) Error() string {
	return fmt.Sprintf("lif: %s: %v, %v left, after: %v", e.Port, ErrPaused, e.Left.Round(time.Millisecond), e.Cause)
}

// Unwrap makes the error ErrPaused and shows the cause.
func (e *PausedError) Unwrap() []error { return []error{ErrPaused, e.Cause} }

// difference lists the fields in which two entries differ.
func difference(want, have msg.LIF, present bool) string {
	if !present {
		return "the entry is absent"
	}
	var d []string
	add := func(name string, want, have any) { d = append(d, fmt.Sprintf("%s is %v, want %v", name, have, want)) }
	mask := diff(want, have)
	if mask&msg.MaskMAC != 0 {
		add("mac", fmt.Sprintf("%x", want.MAC), fmt.Sprintf("%x", have.MAC))
	}
	if mask&msg.MaskMTU != 0 {
		add("mtu", want.MTU, have.MTU)
	}
	if mask&msg.MaskFwd != 0 {
		add("mode", modeName(want.Fwd), modeName(have.Fwd))
	}
	if mask&msg.MaskAdmin != 0 {
		add("admin_disabled", want.AdminDisabled, have.AdminDisabled)
	}
	if mask&msg.MaskOffload != 0 {
		add("offload_disabled", want.OffloadDisabled, have.OffloadDisabled)
	}
	if mask&msg.MaskRepresentor != 0 {
		add("representor", want.Representor, have.Representor)
	}
	if want.DF != have.DF {
		add("df", want.DF, have.DF)
	}
	return strings.Join(d, ", ")
}

func modeName(fwd uint8) string {
	switch fwd {
	case msg.FwdL2:
		return "L2"
	case msg.FwdL3:
		return "L3"
	case msg.FwdBoth:
		return "L2 and L3"
	}
	return "free"
}

// diff returns the mask of the fields in which two entries differ. DF has no bit
// in it.
func diff(want, have msg.LIF) (mask msg.LIFMask) {
	for _, f := range []struct {
		bit    msg.LIFMask
		differ bool
	}{
		{msg.MaskMAC, want.MAC != have.MAC},
		{msg.MaskMTU, want.MTU != have.MTU},
		{msg.MaskFwd, want.Fwd != have.Fwd},
		{msg.MaskAdmin, want.AdminDisabled != have.AdminDisabled},
		{msg.MaskOffload, want.OffloadDisabled != have.OffloadDisabled},
		{msg.MaskRepresentor, want.Representor != have.Representor},
	} {
		if f.differ {
			mask |= f.bit
		}
	}
	return mask
}
