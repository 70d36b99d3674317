package octep

import (
	"errors"
	"fmt"

	"oxpd/internal/mmio"
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

// ErrNoSoftware says that nothing runs on the coprocessor any more (endpoint.md 15, F2).
var ErrNoSoftware = errors.New("the coprocessor's software has gone")

// NoSoftwareError is a barmap that has gone while the registers stand: they are the
// block's, and the barmap is in memory that the coprocessor's kernel lends. It is
// ErrNoSoftware.
type NoSoftwareError struct{ At uint32 } // the barmap's place in BAR2

func (e *NoSoftwareError) Error() string {
	return fmt.Sprintf("octep: the barmap at BAR2+%#x reads all ones: %v", e.At, ErrNoSoftware)
}

// Is matches ErrNoSoftware.
func (e *NoSoftwareError) Is(target error) bool { return target == ErrNoSoftware }

// Hint is what an operator can do.
func (e *NoSoftwareError) Hint() string {
	return "only a reboot of the coprocessor helps; it may begin at any moment, and a byte on its console would stop its boot loader then"
}

// Booted tells whether the coprocessor's boot loader has certainly ended, so that a byte
// on its console stops nothing (design.md, rule 16): its endpoint driver, a module of its
// kernel, has written its magic, no exchange with a host is under way, and the barmap that
// the magic leads to is there. It loads two registers and one word of the barmap.
//
// Errors: *BootingError; *NoSoftwareError; *BarmapError for the pointer; mmio.ErrGone.
func (e *Endpoint) Booted() error {
	v, err := e.load(csr.SDPScratch)
	if err != nil {
		return err
	}
	state, at := DecodeScratch(v)
	if state != ScratchReady {
		return &BootingError{fmt.Sprintf("%v=0x%016x", csr.SDPScratch, v), fmt.Sprintf("0x%x in its lower half", uint32(csr.ScratchMagic))}
	}
	if v, err = e.load(csr.SLIScratch); err != nil {
		return err
	}
	if w := sortWord(v); w != wordIdle && w != wordStarted {
		return &BootingError{fmt.Sprintf("%v=0x%016x", csr.SLIScratch, v), "0, or the bitmap of started ports"}
	}
	return e.softwareThere(at)
}

// softwareThere looks whether the barmap is.
func (e *Endpoint) softwareThere(at uint32) error {
	if err := checkPointer(at); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.guard.allowTable(at)
	if e.guard.Load32(at+csr.BarmapVersion) != ^uint32(0) {
		return nil
	}
	if !Alive(e.dev) {
		return fmt.Errorf("octep: read barmap: vendor id of %s: %w", e.dev.Name(), mmio.ErrGone)
	}
	return &NoSoftwareError{at}
}
