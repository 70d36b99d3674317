package octep

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"oxpd/internal/board"
	"oxpd/internal/clock"
	"oxpd/internal/mmio"
	"oxpd/octep/csr"
	"oxpd/ring/wire"
)

// Stages of bring-up, as Config.Progress gets them.
const (
	StageIdentify  = "identify"  // ids, decoding, ring split
	StageReady     = "ready"     // the target's endpoint driver and its barmap
	StageHandshake = "handshake" // the offer and its answer
	StageFacility  = "facility"  // a window that appears late
)

// Clock is the time that waits are measured in.
type Clock interface {
	Now() time.Duration
	Sleep(ctx context.Context, d time.Duration) error
}

// Config is what an Endpoint is given. The zero value works: real time, no log,
// nobody told about progress, and the time-outs below.
type Config struct {
	Clock  Clock
	Logger *slog.Logger
	// Progress is called when the awaited thing changes, from the goroutine that
	// waits. It is never called while the coprocessor waits for an answer.
	Progress func(stage, awaiting string)
	// ReadyTimeout bounds WaitReady. 0 means 2 minutes: the target's kernel is up
	// 20 to 40 s after a reset.
	ReadyTimeout time.Duration
	// FacilityTimeout bounds WaitFacility. 0 means 5 minutes: rpc has been seen
	// about 4 minutes after the handshake.
	FacilityTimeout time.Duration
	// Offers is how often Handshake.Run offers, every 6 s. 0 means 12.
	Offers int
}

const (
	defaultReadyTimeout    = 2 * time.Minute
	defaultFacilityTimeout = 5 * time.Minute
	defaultOffers          = 12 // bringup.sh (endpoint.md 4.4)

	readyPoll    = 100 * time.Millisecond
	facilityPoll = 250 * time.Millisecond
)

func (c Config) withDefaults() Config {
	if c.Clock == nil {
		c.Clock = clock.NewReal()
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	if c.ReadyTimeout == 0 {
		c.ReadyTimeout = defaultReadyTimeout
	}
	if c.FacilityTimeout == 0 {
		c.FacilityTimeout = defaultFacilityTimeout
	}
	if c.Offers == 0 {
		c.Offers = defaultOffers
	}
	return c
}

// Errors that callers test for. mmio.ErrGone is the one for a card that reads
// all ones or has left config space.
var (
	// ErrNotReady says that WaitReady has not succeeded yet.
	ErrNotReady = errors.New("endpoint is not ready")
	// ErrTimeout is matched by every *WaitError.
	ErrTimeout = errors.New("timed out")
)

// WaitError is a wait that ended without what it waited for.
type WaitError struct {
	Stage    string        // StageReady and following
	Awaiting string        // what never came
	Waited   time.Duration // on the injected clock
}

func (e *WaitError) Error() string {
	return fmt.Sprintf("octep: %s: waited %v for %s", e.Stage, e.Waited, e.Awaiting)
}

// Is matches ErrTimeout.
func (e *WaitError) Is(target error) bool { return target == ErrTimeout }

// IdentityError is a PCI function that oxpd does not drive.
type IdentityError struct {
	Name           string
	Vendor, Device uint16
}

func (e *IdentityError) Error() string {
	what := "not a CN83XX endpoint"
	switch {
	case e.Vendor == board.Vendor && e.Device == board.DeviceVF:
		what = "a virtual function of the CN83XX endpoint"
	case e.Vendor == board.Vendor:
		what = "another device of the same vendor"
	}
	return fmt.Sprintf("octep: %s is %04x:%04x, %s; oxpd drives %04x:%04x",
		e.Name, e.Vendor, e.Device, what, board.Vendor, board.DevicePF)
}

// RingInfo is SDP_EPF_RINFO taken apart.
type RingInfo struct {
	SRN  int // first ring of the physical function
	TRS  int // rings in all
	RPVF int // rings of each virtual function
	NVFS int // virtual functions
}

// DecodeRingInfo splits the register. It judges nothing.
func DecodeRingInfo(v uint64) RingInfo {
	return RingInfo{
		SRN:  int(csr.RInfoSRN.Get(v)),
		TRS:  int(csr.RInfoTRS.Get(v)),
		RPVF: int(csr.RInfoRPVF.Get(v)),
		NVFS: int(csr.RInfoNVFS.Get(v)),
	}
}

// RingInfoError is a split of the rings that oxpd does not work with.
type RingInfoError struct {
	Value  uint64
	Info   RingInfo
	Reason string
}

func (e *RingInfoError) Error() string {
	return fmt.Sprintf("octep: %v=0x%016x (SRN %d, TRS %d, RPVF %d, NVFS %d): %s",
		csr.RInfo, e.Value, e.Info.SRN, e.Info.TRS, e.Info.RPVF, e.Info.NVFS, e.Reason)
}

// checkRingInfo accepts what was measured to work: no virtual functions, and the
// physical function's rings from 0 (endpoint.md 1, SR-IOV and RINFO).
func checkRingInfo(v uint64) (RingInfo, error) {
	i := DecodeRingInfo(v)
	reason := ""
	switch {
	case i.TRS == 0:
		reason = "the card has no rings"
	case i.NVFS != 0 || i.RPVF != 0:
		reason = "virtual functions own the first rings; remove them (sriov_numvfs 0) and reboot the coprocessor"
	case i.SRN != 0:
		reason = "the rings of the physical function do not start at 0"
	case i.TRS < wire.OQs:
		reason = fmt.Sprintf("fewer than the %d rings that the fast path sends to", wire.OQs)
	default:
		return i, nil
	}
	return i, &RingInfoError{Value: v, Info: i, Reason: reason}
}

// Endpoint is an opened card. Its methods are safe for concurrent use; the
// Device stays with the caller, who closes it.
type Endpoint struct {
	dev   Device
	cfg   Config
	rinfo uint64
	rings RingInfo
	guard *guard
	woken bool // Open turned memory decoding on

	mu     sync.Mutex // serialises reads of the barmap and progress
	table  csr.Barmap
	at     uint32 // where the barmap lies, once ready
	ready  bool
	offer  bool // CheckFresh saw a dead host's offer that nobody had answered
	stage  string
	expect string
}

// Open checks that dev is the card and makes it decode its BARs. It does not
// turn on bus mastering: the caller does, with SetBusMaster, once the card is
// found good and before the first ring is programmed. A refused device has its
// command register put back; who finds a reason to leave the card alone later
// calls PutBack.
//
// Errors: *IdentityError, *RingInfoError, mmio.ErrGone.
func Open(ctx context.Context, dev Device, cfg Config) (*Endpoint, error) {
	e := &Endpoint{dev: dev, cfg: cfg.withDefaults()}
	e.guard = newGuard(dev.BAR2(), e.cfg.Logger)
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("octep: open %s: %w", dev.Name(), err)
	}
	e.progress(StageIdentify, "config space of "+dev.Name())
	if err := e.identify(); err != nil {
		return nil, err
	}
	before, err := dev.ConfigRead(csr.CfgCommand, 2)
	if err != nil {
		return nil, fmt.Errorf("octep: read command register of %s: %w", dev.Name(), err)
	}
	if err := setCommand(dev, csr.CfgCommandMemory, true); err != nil {
		return nil, err
	}
	e.woken = before&csr.CfgCommandMemory == 0
	if err := e.readRingInfo(); err != nil {
		return nil, errors.Join(err, e.PutBack())
	}
	return e, nil
}

// PutBack turns memory decoding off again if Open turned it on: for a card that is
// left alone, before it was told anything. The BARs are not touched afterwards. A
// card that has gone has nothing to be put back.
func (e *Endpoint) PutBack() error {
	if !e.woken {
		return nil
	}
	if err := setCommand(e.dev, csr.CfgCommandMemory, false); err != nil && !errors.Is(err, mmio.ErrGone) {
		return err
	}
	return nil
}

func (e *Endpoint) identify() error {
	vendor, err := e.dev.ConfigRead(csr.CfgVendor, 2)
	if err != nil {
		return fmt.Errorf("octep: read vendor id of %s: %w", e.dev.Name(), err)
	}
	if vendor == csr.CfgVendorNone {
		return fmt.Errorf("octep: read vendor id of %s: %w", e.dev.Name(), mmio.ErrGone)
	}
	device, err := e.dev.ConfigRead(csr.CfgDevice, 2)
	if err != nil {
		return fmt.Errorf("octep: read device id of %s: %w", e.dev.Name(), err)
	}
	if device == csr.CfgVendorNone { // it left between the two reads
		return fmt.Errorf("octep: read device id of %s: %w", e.dev.Name(), mmio.ErrGone)
	}
	if vendor != board.Vendor || device != board.DevicePF {
		return &IdentityError{Name: e.dev.Name(), Vendor: uint16(vendor), Device: uint16(device)}
	}
	return nil
}

func (e *Endpoint) readRingInfo() error {
	v, err := e.load(csr.RInfo)
	if err != nil {
		return err
	}
	e.rinfo = v
	e.rings, err = checkRingInfo(v)
	return err
}

// RingInfo returns the ring split that Open found.
func (e *Endpoint) RingInfo() RingInfo { return e.rings }

// Refusals returns how many accesses to BAR2 the allow-list has refused, and the
// last of them. Any is a defect of ours.
func (e *Endpoint) Refusals() (uint64, Refusal) { return e.guard.refusals() }

// load reads a global register of BAR0 that never holds all ones. Config space is
// asked first: a load from an endpoint in reset may never come back.
func (e *Endpoint) load(r csr.Reg64) (uint64, error) {
	if !Alive(e.dev) {
		return csr.AllOnes, fmt.Errorf("octep: read %v: vendor id of %s: %w", r, e.dev.Name(), mmio.ErrGone)
	}
	v, err := mmio.Checked64(e.dev.BAR0(), r)
	if err != nil {
		return v, fmt.Errorf("octep: read %v: %w", r, err)
	}
	return v, nil
}

// progress reports a change of what is awaited.
func (e *Endpoint) progress(stage, awaiting string) {
	e.mu.Lock()
	same := e.stage == stage && e.expect == awaiting
	e.stage, e.expect = stage, awaiting
	e.mu.Unlock()
	if same {
		return
	}
	e.cfg.Logger.Debug("bring-up", "dev", e.dev.Name(), "stage", stage, "awaiting", awaiting)
	if e.cfg.Progress != nil {
		e.cfg.Progress(stage, awaiting)
	}
}

// Watch returns mmio.ErrGone as soon as the card has left config space, or does not
// decode memory any more because it was reset between two looks; otherwise the
// context's error. It reads two config words every interval and touches no BAR.
func Watch(ctx context.Context, d Device, clk Clock, every time.Duration) error {
	for {
		if !Reachable(d) {
			if Alive(d) {
				return fmt.Errorf("octep: %s does not decode memory any more, it was reset: %w", d.Name(), mmio.ErrGone)
			}
			return fmt.Errorf("octep: vendor id of %s: %w", d.Name(), mmio.ErrGone)
		}
		if err := clk.Sleep(ctx, every); err != nil {
			return err
		}
	}
}
