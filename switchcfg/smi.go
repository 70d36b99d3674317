package switchcfg

import (
	"context"
	"fmt"
	"time"

	"oxpd/switchcfg/reg"
)

// MDIO is the coprocessor's MDIO bus 0, one transaction a call (clause 22).
type MDIO interface {
	ReadMDIO(ctx context.Context, phy, reg int) (uint16, error)
	WriteMDIO(ctx context.Context, phy, reg int, v uint16) error
}

// Registers reads and writes registers of the devices inside the switch. Each call is
// bounded by itself. A write that returns nil was sent; whether it has stuck only a
// read can tell. An error that has a method Final() bool which returns true is not
// tried again.
type Registers interface {
	Read(ctx context.Context, dev, reg int) (uint16, error)
	Write(ctx context.Context, dev, reg int, v uint16) error
}

// Clock is the time that waits are measured in.
type Clock interface {
	Now() time.Duration
	Sleep(ctx context.Context, d time.Duration) error
}

// Waits for a busy bit. An access takes some 20 us and nobody holds the bit for long:
// the reference gives up after 1,000 looks, Linux after 16 (switch.md 2).
const (
	busyLimit = 100 * time.Millisecond
	busyPoll  = 100 * time.Microsecond
)

// SMI is the switch's registers over an MDIO bus: multi-chip access through the two
// registers that the chip answers. Safe for concurrent use; one access runs at a time.
type SMI struct {
	bus   MDIO
	clock Clock
	turn  chan struct{} // holds one token: the right to an access
}

// NewSMI returns the registers of the switch on bus.
func NewSMI(bus MDIO, clock Clock) *SMI {
	s := &SMI{bus: bus, clock: clock, turn: make(chan struct{}, 1)}
	s.turn <- struct{}{}
	return s
}

// Read returns register r of a device: wait, command, wait, data.
//
// Errors: *RangeError with nothing sent, *NoAnswerError, *BusyError, the bus's and the
// context's.
func (s *SMI) Read(ctx context.Context, dev, r int) (v uint16, err error) {
	err = s.access(ctx, "read", dev, r, func() error {
		if err := s.bus.WriteMDIO(ctx, reg.Address, reg.SMICommand, reg.ReadCommand(dev, r)); err != nil {
			return err
		}
		if err := s.idle(ctx); err != nil {
			return err
		}
		v, err = s.bus.ReadMDIO(ctx, reg.Address, reg.SMIData)
		return err
	})
	if err != nil {
		return 0, err
	}
	return v, nil
}

// Write sets register r of a device: wait, data, command, wait. When the context ends
// between data and command, nothing was written.
//
// Errors: as those of Read. After an error the register may have been written.
func (s *SMI) Write(ctx context.Context, dev, r int, v uint16) error {
	return s.access(ctx, "write", dev, r, func() error {
		if err := s.bus.WriteMDIO(ctx, reg.Address, reg.SMIData, v); err != nil {
			return err
		}
		if err := s.bus.WriteMDIO(ctx, reg.Address, reg.SMICommand, reg.WriteCommand(dev, r)); err != nil {
			return err
		}
		return s.idle(ctx)
	})
}

// access runs the rest of an access when its numbers are right, nobody else is inside
// and the switch is idle.
func (s *SMI) access(ctx context.Context, op string, dev, r int, rest func() error) error {
	if err := checkRegister(dev, r); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-s.turn:
	case <-ctx.Done():
		return fmt.Errorf("wait for the switch: %w", ctx.Err())
	}
	defer func() { s.turn <- struct{}{} }()
	err := s.idle(ctx)
	if err == nil {
		err = rest()
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", op, Register{dev, r}, err)
	}
	return nil
}

// idle waits for the switch's own busy bit.
func (s *SMI) idle(ctx context.Context) error {
	last, waited, err := waitIdle(ctx, s.clock, func() (uint16, error) { return s.bus.ReadMDIO(ctx, reg.Address, reg.SMICommand) })
	switch {
	case err != nil:
		return err
	case last == reg.NoAnswer:
		return &NoAnswerError{Waited: waited}
	case last&reg.Busy != 0:
		return &BusyError{What: "switch command register", Value: last, Waited: waited}
	}
	return nil
}

// waitIdle looks until the busy bit is clear and returns what it saw last. It looks once
// more after the deadline: whoever was stopped between two looks has waited enough, and
// has not seen it.
func waitIdle(ctx context.Context, clock Clock, look func() (uint16, error)) (last uint16, waited time.Duration, err error) {
	for start := clock.Now(); ; {
		waited = clock.Now() - start
		if last, err = look(); err != nil || last&reg.Busy == 0 || waited >= busyLimit {
			return last, waited, err
		}
		if err := clock.Sleep(ctx, busyPoll); err != nil {
			return last, waited, err
		}
	}
}
