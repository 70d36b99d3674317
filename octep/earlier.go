package octep

import (
	"errors"
	"fmt"

	"oxpd/internal/mmio"
	"oxpd/octep/csr"
)

// ErrEarlierRun says that this coprocessor boot has known a host before.
var ErrEarlierRun = errors.New("the coprocessor knows rings of an earlier run")

// EarlierRunError is what CheckFresh found. It is ErrEarlierRun.
type EarlierRunError struct {
	Witness string // the register and its value, or what else shows it
}

func (e *EarlierRunError) Error() string {
	return fmt.Sprintf("octep: look for an earlier run: %s: %v", e.Witness, ErrEarlierRun)
}

// Is matches ErrEarlierRun.
func (e *EarlierRunError) Is(target error) bool { return target == ErrEarlierRun }

// Hint is what an operator can do.
func (e *EarlierRunError) Hint() string {
	return "reboot the coprocessor (power cycle the appliance, or reboot the host), then start oxpd; " +
		"until then the card may write to memory that was that run's"
}

// CheckFresh looks for traces that a host left in this coprocessor boot: rings
// that are enabled, have an address or were set up, a handshake that is under way
// or finished, a fast path that runs. It only loads. Ask before SetBusMaster and
// before the first store to a ring: addresses that the card has latched are never
// replaced, and what lies there now may be somebody else's (design.md, rules 6
// and 7).
//
// The handshake register alone cannot tell: between the end of the handshake and
// the start of the fast path, minutes later, it reads 0 as after a reset
// (endpoint.md 4.5). The control registers of the rings stay set up even after a
// teardown, and only a reset of the coprocessor clears them.
//
// An offer that nobody has answered passes: Handshake.Run takes it over, also when
// the target has answered it by then.
//
// Errors: *EarlierRunError; *HandshakeError (in flight, foreign); mmio.ErrGone.
func (e *Endpoint) CheckFresh() error {
	for q := range min(e.rings.TRS, csr.Rings) {
		if err := e.checkRing(q); err != nil {
			return err
		}
	}
	v, err := e.load(csr.SLIScratch)
	if err != nil {
		return err
	}
	switch sortWord(v) {
	case wordIdle:
	case wordOffer: // nobody has answered it yet, and Handshake takes it over
		e.mu.Lock()
		e.offer = true
		e.mu.Unlock()
	case wordCompleted, wordStarted:
		return &EarlierRunError{fmt.Sprintf("%v=0x%016x", csr.SLIScratch, v)}
	case wordForeign:
		return &HandshakeError{Err: ErrHandshakeForeign, Value: v}
	default:
		return &HandshakeError{Err: ErrHandshakeInFlight, Value: v}
	}
	if v, err = e.load(csr.SDPScratch); err != nil {
		return err
	}
	if state, _ := DecodeScratch(v); state == ScratchOverwritten {
		return &EarlierRunError{fmt.Sprintf("%v=0x%016x", csr.SDPScratch, v)}
	}
	// A target that is not ready yet has no fast path, and a barmap that cannot be
	// read is WaitReady's to refuse.
	if _, err := e.Ready(); errors.Is(err, mmio.ErrGone) {
		return err
	}
	if e.FastPathUp() {
		return &EarlierRunError{"the fast path runs"}
	}
	return nil
}

// checkRing looks at both halves of a ring. The control registers are judged by
// bits that read 0 after a reset, on all 64 rings, and 1 once a host has set the
// ring up (endpoint.md 5.1, 5.2). The sizes say nothing: what they read after a
// reset is not on record, and OUT_SLIST_RSIZE reads 16 once 0 was written.
func (e *Endpoint) checkRing(q int) error {
	for _, look := range []struct {
		reg  csr.RingReg
		bits uint64
	}{
		{csr.InEnable, 1},
		{csr.OutEnable, 1},
		{csr.InInstrBaddr, ^uint64(0)},
		{csr.OutSlistBaddr, ^uint64(0)},
		{csr.InControl, csr.InControlESR | csr.InControlIs64B},
		{csr.OutControl, csr.OutControlESP | csr.OutControlSizes},
	} {
		v, err := e.load(look.reg.Queue(q))
		if err != nil {
			return err
		}
		if v&look.bits != 0 {
			return &EarlierRunError{fmt.Sprintf("%v=0x%016x", look.reg.Queue(q), v)}
		}
	}
	return nil
}
