package octep

import (
	"context"
	"errors"
	"fmt"

	"oxpd/octep/csr"
)

// ErrNotDecoding says that memory decoding is off: nothing behind the BARs answers
// until somebody turns it on, which Look does not.
var ErrNotDecoding = errors.New("memory decoding is off")

// Look is Open for somebody who only looks. It writes nothing, to config space or
// to a BAR, and waits for nothing; the ring split is read and not judged
// (CheckRingInfo does that).
//
// On what it returns, CheckRingInfo, Ready, CheckFresh, FastPathUp, Facility with
// the window's loads, Barmap and Refusals write nothing either.
//
// Errors: *IdentityError, ErrNotDecoding, mmio.ErrGone.
func Look(ctx context.Context, dev Device, cfg Config) (*Endpoint, error) {
	e := &Endpoint{dev: dev, cfg: cfg.withDefaults()}
	e.guard = newGuard(dev.BAR2(), e.cfg.Logger)
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("octep: look at %s: %w", dev.Name(), err)
	}
	if err := e.identify(); err != nil {
		return nil, err
	}
	command, err := dev.ConfigRead(csr.CfgCommand, 2)
	if err != nil {
		return nil, fmt.Errorf("octep: read command register of %s: %w", dev.Name(), err)
	}
	if command&csr.CfgCommandMemory == 0 {
		return nil, fmt.Errorf("octep: look at %s: %w", dev.Name(), ErrNotDecoding)
	}
	var refused *RingInfoError
	if err := e.readRingInfo(); err != nil && !errors.As(err, &refused) {
		return nil, err
	}
	return e, nil
}

// CheckRingInfo judges the ring split that was found, as Open does.
//
// Error: *RingInfoError.
func (e *Endpoint) CheckRingInfo() error {
	_, err := checkRingInfo(e.rinfo)
	return err
}
