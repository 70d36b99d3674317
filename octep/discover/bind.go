package discover

import (
	"errors"
	"strings"
)

// VFIO is the kernel driver that hands a function to user space behind an IOMMU.
const VFIO = "vfio-pci"

// ErrBusy says that another process drives the card.
var ErrBusy = errors.New("another process drives the card")

// Condition is something that must be so.
type Condition struct {
	Text    string // what happens otherwise
	Command string // that makes it so
}

// Commands are those of conditions, in order.
func Commands(conditions []Condition) string {
	commands := make([]string, len(conditions))
	for i, c := range conditions {
		commands[i] = c.Command
	}
	return strings.Join(commands, "; then ")
}

// BindError is a driver that did not get the card, or did not let it go.
type BindError struct {
	Address string
	Want    string // driver; empty: none
	Got     string // driver that is bound now; empty: none
	Err     error  // nil: the kernel reported none
	Do      string // for Hint
}

func (e *BindError) Error() string {
	what := "unbind " + e.Address
	if e.Want != "" {
		what = "bind " + e.Address + " to " + e.Want
	}
	if e.Err != nil {
		return what + ": " + e.Err.Error()
	}
	if e.Got == "" {
		return what + ": no driver is bound afterwards"
	}
	return what + ": " + e.Got + " is bound afterwards"
}

// Unwrap returns what the kernel said.
func (e *BindError) Unwrap() error { return e.Err }

// Hint is what an operator can do.
func (e *BindError) Hint() string { return e.Do }

// ErrReset says that a driver may reset the card.
var ErrReset = errors.New("what a reset, or the sleep that this driver sends an idle function into, does to a coprocessor that runs is on no record")
