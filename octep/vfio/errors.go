package vfio

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	"oxpd/octep/discover"
)

// OpenError is a card that cannot be had this way.
type OpenError struct {
	Address string
	Err     error
	Do      string // for Hint; empty: what the error itself suggests
}

func (e *OpenError) Error() string { return fmt.Sprintf("open card %s by vfio: %v", e.Address, e.Err) }

// Unwrap returns why.
func (e *OpenError) Unwrap() error { return e.Err }

// Hint is what an operator can do.
func (e *OpenError) Hint() string {
	switch {
	case e.Do != "":
		return e.Do
	case errors.Is(e.Err, discover.ErrBusy):
		return "stop it first: oxpd stop; one that a service manager keeps: systemctl clean --what=fdstore oxpd"
	case errors.Is(e.Err, syscall.EBUSY):
		return "another process has it: oxpd stop, or end that one"
	case errors.Is(e.Err, fs.ErrPermission):
		return "run it as root (sudo)"
	case errors.Is(e.Err, syscall.ENOMEM):
		return "the limit of locked memory is too low: ulimit -l unlimited, LimitMEMLOCK=infinity in a unit"
	}
	return ""
}

// Errors that tell what is not there.
var (
	// ErrNotBound says that another driver has the card, or none.
	ErrNotBound = errors.New("vfio-pci does not have it")
	// ErrNoIOMMU says that no IOMMU stands between the card and memory.
	ErrNoIOMMU = errors.New("it is in no IOMMU group")
	// ErrNotViable says that a kernel driver has another function of the group.
	ErrNotViable = errors.New("another function of its IOMMU group has a kernel driver")
	// ErrNotTheCard says that what was opened does not look like the card.
	ErrNotTheCard = errors.New("not the card")
)

// ResetError is a card that would, or might, be reset.
type ResetError struct {
	Address string
	Missing []discover.Condition
}

func (e *ResetError) Error() string {
	texts := make([]string, len(e.Missing))
	for i, c := range e.Missing {
		texts[i] = c.Text
	}
	return fmt.Sprintf("open card %s by vfio: what a reset does to a coprocessor that runs is on no record, and %s", e.Address, strings.Join(texts, "; "))
}

// Hint is every command that supplies something, in order.
func (e *ResetError) Hint() string {
	return discover.Commands(e.Missing) + "; or accept a reset: --i-accept-reset"
}
