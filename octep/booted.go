package octep

import (
	"errors"
	"fmt"

	"oxpd/octep/csr"
)

// ErrBooting says that the coprocessor is not known to have finished its boot.
var ErrBooting = errors.New("the coprocessor may be booting")

// BootingError is what Booted found. It is ErrBooting.
type BootingError struct {
	Witness string // the register and its value
	Wants   string // what it should be
}

func (e *BootingError) Error() string {
	return fmt.Sprintf("octep: %s, want %s: %v", e.Witness, e.Wants, ErrBooting)
}

// Is matches ErrBooting.
func (e *BootingError) Is(target error) bool { return target == ErrBooting }

// Hint is what an operator can do.
func (e *BootingError) Hint() string {
	return "wait until the coprocessor has booted: oxpd status shows how far it is; a byte on its console would stop its boot loader"
}

// Booted tells whether the coprocessor's boot loader has certainly ended, so that a byte
// on its console stops nothing (design.md, rule 16): its endpoint driver, a module of its
// kernel, has written its magic, and no exchange with a host is under way. It loads two
// registers.
//
// Errors: *BootingError; mmio.ErrGone.
func (e *Endpoint) Booted() error {
	v, err := e.load(csr.SDPScratch)
	if err != nil {
		return err
	}
	if state, _ := DecodeScratch(v); state != ScratchReady {
		return &BootingError{fmt.Sprintf("%v=0x%016x", csr.SDPScratch, v), fmt.Sprintf("0x%x in its lower half", uint32(csr.ScratchMagic))}
	}
	if v, err = e.load(csr.SLIScratch); err != nil {
		return err
	}
	if w := sortWord(v); w != wordIdle && w != wordStarted {
		return &BootingError{fmt.Sprintf("%v=0x%016x", csr.SLIScratch, v), "0, or the bitmap of started ports"}
	}
	return nil
}
