package rpc

import (
	"errors"
	"fmt"
	"time"

	"oxpd/rpc/msg"
)

// Errors that callers branch on. A refusal by the target is a *msg.RCError, a
// card that has left the bus mmio.ErrGone.
var (
	// ErrNotAllowed refuses a command number that oxpd never sends.
	ErrNotAllowed = errors.New("command is not on the allow-list")
	// ErrNotConfigured says that Configure has not succeeded yet.
	ErrNotConfigured = errors.New("channel is not configured")
	// ErrTimeout says that the target did not answer in time.
	ErrTimeout = errors.New("no answer in time")
	// ErrStalled says that an earlier command got no answer: its buffer is with the
	// card, and only Reopen gets the channel going again.
	ErrStalled = errors.New("channel is stalled")
	// ErrNotReady says that the target has not initialised its window.
	ErrNotReady = errors.New("window is blank: the fast path has not started")
	// ErrPending says that an earlier configuration is not acknowledged. A second
	// one on top could be taken as applied without having been.
	ErrPending = errors.New("an earlier configuration is not acknowledged")
	// ErrOneDoorbell refuses a facility on which an undeclared high ring would
	// wedge the target (rpc-lif.md 3.1).
	ErrOneDoorbell = errors.New("facility has one doorbell: the target would spin on its undeclared high ring")
	// ErrMalformed says that the target's answer contradicts itself. Where that is
	// the count of finished commands, the channel is stalled.
	ErrMalformed = errors.New("malformed answer")
)

// errNoAlloc says that there is no other buffer than those that the card has.
var errNoAlloc = errors.New("no allocator for another buffer")

// TimeoutError says what was waited for and what the window showed at the end.
// It is ErrTimeout.
type TimeoutError struct {
	What   string        // a command's name, or "configuration"
	Waited time.Duration // by the injected clock
	Posted uint64        // commands posted since the configuration
	Done   uint64        // commands that the target has finished
	Config uint64        // the config word as last read
}

func (e *TimeoutError) Error() string {
	return fmt.Sprintf("%s: %v after %v (posted %d, done %d, config word 0x%016x)",
		e.What, ErrTimeout, e.Waited, e.Posted, e.Done, e.Config)
}

// Unwrap makes the error ErrTimeout.
func (e *TimeoutError) Unwrap() error { return ErrTimeout }

// StalledError refuses a command on a stalled channel. It is ErrStalled.
type StalledError struct {
	Command msg.Command   // the one that was left with the card
	Since   time.Duration // by the injected clock
	Cause   error
}

func (e *StalledError) Error() string {
	return fmt.Sprintf("%v since %s at %v (%v): its buffer stays with the card until the channel is reopened",
		ErrStalled, e.Command, e.Since, e.Cause)
}

// Unwrap makes the error ErrStalled and shows the cause.
func (e *StalledError) Unwrap() []error { return []error{ErrStalled, e.Cause} }

// BoardError says that the coprocessor describes another board.
type BoardError struct {
	Field string
	Want  string
	Got   string
}

func (e *BoardError) Error() string {
	return fmt.Sprintf("%s is %q, want %q: not the board that oxpd drives", e.Field, e.Got, e.Want)
}
