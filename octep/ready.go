package octep

import (
	"context"
	"errors"
	"fmt"
	"time"

	"oxpd/internal/mmio"
	"oxpd/octep/csr"
)

// Scratch is what SDP_SCRATCH says about the target (endpoint.md 2.1).
type Scratch uint8

// States of SDP_SCRATCH.
const (
	ScratchBooting     Scratch = iota // anything but the magic: the target is still booting
	ScratchReady                      // magic: the upper half points to the barmap
	ScratchOverwritten                // another host driver's note hides the pointer
	ScratchGone                       // all ones: nothing decodes
)

// String is what is awaited in that state.
func (s Scratch) String() string {
	switch s {
	case ScratchReady:
		return "nothing: the target's endpoint driver is up"
	case ScratchOverwritten:
		return "a coprocessor reboot: another driver wrote 0x11223344 over the barmap pointer"
	case ScratchGone:
		return "the endpoint to decode"
	default:
		return "the target's endpoint driver (magic in SDP_SCRATCH)"
	}
}

// DecodeScratch splits the register into its state and, when ready, the
// unchecked offset of the barmap in BAR2.
func DecodeScratch(v uint64) (Scratch, uint32) {
	switch lo := csr.ScratchLo.Get(v); {
	case v == csr.AllOnes:
		return ScratchGone, 0
	case lo == csr.ScratchMagic:
		return ScratchReady, uint32(csr.ScratchHi.Get(v))
	case lo == csr.ScratchQueuesUp:
		return ScratchOverwritten, 0
	default:
		return ScratchBooting, 0
	}
}

// badTablePatience is how long a record of the barmap may look wrong before the
// table is refused: the target writes it word by word and announces nothing.
const badTablePatience = 2 * time.Second

// WaitReady waits until the target's endpoint driver is up and the barmap is
// readable and sound. It does not wait for any facility.
//
// Errors: mmio.ErrGone, *VersionError and a *BarmapError for the pointer at once,
// *BarmapError for a record when it stays wrong, *WaitError, the context's error.
func (e *Endpoint) WaitReady(ctx context.Context) error {
	start := e.cfg.Clock.Now()
	badSince := time.Duration(-1)
	for {
		awaiting, err := e.Ready()
		now := e.cfg.Clock.Now()
		var bad *BarmapError
		switch {
		case err == nil && awaiting == "":
			e.cfg.Logger.Info("endpoint ready", "dev", e.dev.Name(), "barmap", fmt.Sprintf("%#x", e.at))
			return nil
		case err == nil:
			badSince = -1
		case errors.As(err, &bad) && bad.Facility != "":
			if badSince < 0 {
				badSince = now
			}
			if now-badSince >= badTablePatience {
				return err
			}
			awaiting = "a sound barmap (" + bad.reason() + ")"
		default:
			return err
		}
		e.progress(StageReady, awaiting)
		if now-start >= e.cfg.ReadyTimeout {
			return &WaitError{Stage: StageReady, Awaiting: awaiting, Waited: now - start}
		}
		if err := e.cfg.Clock.Sleep(ctx, readyPoll); err != nil {
			return fmt.Errorf("octep: wait for %s: %w", awaiting, err)
		}
	}
}

// Ready looks once and waits for nothing. It returns what is still missing, or ""
// when the target's endpoint driver is up and the barmap sound. It only loads.
//
// Errors: mmio.ErrGone, *VersionError, *BarmapError; one about a record may be a
// table that is being written.
func (e *Endpoint) Ready() (awaiting string, err error) {
	v, err := e.load(csr.SDPScratch)
	if err != nil {
		return "", err
	}
	state, at := DecodeScratch(v)
	if state != ScratchReady {
		return state.String(), nil
	}
	if err := checkPointer(at); err != nil {
		return "", err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	err = e.readTable(at)
	if errors.Is(err, errTableBlank) {
		return fmt.Sprintf("the barmap at BAR2+%#x (reads all ones)", at), nil
	}
	if err != nil {
		return "", err
	}
	e.at, e.ready = at, true
	return "", nil
}

// Facility looks for a facility (csr.FacRPC and following) in the barmap as it is
// now. The window stays usable for as long as the barmap advertises it.
//
// Errors: ErrFacilityAbsent, ErrNotReady, *VersionError, *BarmapError, mmio.ErrGone.
func (e *Endpoint) Facility(n int) (*Facility, error) {
	if n < 0 || n >= csr.BarmapFacilities {
		return nil, fmt.Errorf("octep: facility %d: %w", n, ErrFacilityAbsent)
	}
	name := csr.FacilityNames[n]
	if !Alive(e.dev) {
		return nil, fmt.Errorf("octep: look for facility %s: vendor id of %s: %w", name, e.dev.Name(), mmio.ErrGone)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.ready {
		return nil, fmt.Errorf("octep: look for facility %s: %w", name, ErrNotReady)
	}
	if err := e.readTable(e.at); errors.Is(err, errTableBlank) {
		return nil, fmt.Errorf("octep: look for facility %s: barmap reads all ones: %w", name, ErrFacilityAbsent)
	} else if err != nil {
		return nil, err
	}
	rec := e.table.Facility[n]
	if rec.Size == 0 {
		return nil, fmt.Errorf("octep: facility %s: %w", name, ErrFacilityAbsent)
	}
	return &Facility{guard: e.guard, name: name, rec: rec}, nil
}

// WaitFacility is Facility, patient for Config.FacilityTimeout with a window that
// is not there yet or a barmap that is being written.
//
// Errors: *WaitError, *VersionError, mmio.ErrGone, ErrNotReady, the context's error.
func (e *Endpoint) WaitFacility(ctx context.Context, n int) (*Facility, error) {
	start := e.cfg.Clock.Now()
	for {
		f, err := e.Facility(n)
		if err == nil {
			return f, nil
		}
		var bad *BarmapError
		if n < 0 || n >= csr.BarmapFacilities || !errors.Is(err, ErrFacilityAbsent) && !errors.As(err, &bad) {
			return nil, err
		}
		awaiting := "facility " + csr.FacilityNames[n] + " in the barmap"
		if bad != nil {
			awaiting += " (" + bad.reason() + ")"
		}
		e.progress(StageFacility, awaiting)
		if waited := e.cfg.Clock.Now() - start; waited >= e.cfg.FacilityTimeout {
			return nil, &WaitError{Stage: StageFacility, Awaiting: awaiting, Waited: waited}
		}
		if err := e.cfg.Clock.Sleep(ctx, facilityPoll); err != nil {
			return nil, fmt.Errorf("octep: wait for %s: %w", awaiting, err)
		}
	}
}

// Barmap returns the table as it was last read, for diagnostics.
func (e *Endpoint) Barmap() csr.Barmap {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.table
}
