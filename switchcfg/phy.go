package switchcfg

import (
	"context"
	"errors"
	"fmt"

	"oxpd/switchcfg/reg"
)

// PHYs is the PHYs and SERDES lanes inside the switch, which are reached through two
// registers of Global2 (switch.md 7). Not safe for concurrent use: one access is several
// of the registers below.
//
// An access that was begun is finished, or its page put back, even when its context ends
// in the middle.
type PHYs struct {
	regs  Registers
	clock Clock
}

// NewPHYs returns the PHYs of the switch whose registers are given.
func NewPHYs(regs Registers, clock Clock) *PHYs { return &PHYs{regs: regs, clock: clock} }

const (
	maxC45     = 1<<16 - 1
	maxPHYPage = 0xff
)

// Read returns a register of a copper port's PHY, on a page. The page that was selected
// before is selected after.
//
// Errors: *RangeError, *BusyError, *PageError, those of the registers and the context's.
func (p *PHYs) Read(ctx context.Context, port Port, page, r int) (v uint16, err error) {
	err = p.paged(ctx, port, page, r, func(ctx context.Context) error {
		v, err = p.readC22(ctx, port, r)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", phyRegister(port, page, r), err)
	}
	return v, nil
}

// Write sets a register of a copper port's PHY, on a page. Errors: as those of Read.
func (p *PHYs) Write(ctx context.Context, port Port, page, r int, v uint16) error {
	err := p.paged(ctx, port, page, r, func(ctx context.Context) error { return p.writeC22(ctx, port, r, v) })
	if err != nil {
		return fmt.Errorf("write %s: %w", phyRegister(port, page, r), err)
	}
	return nil
}

// ReadC45 returns a register of the SERDES lane of the uplink or of a cage.
//
// Errors: *RangeError, *BusyError, those of the registers and the context's.
func (p *PHYs) ReadC45(ctx context.Context, port Port, mmd, r int) (v uint16, err error) {
	err = p.addressed(ctx, port, mmd, r, func(ctx context.Context) error {
		if err := p.command(ctx, reg.C45ReadCommand(int(port), mmd)); err != nil {
			return err
		}
		v, err = p.regs.Read(ctx, reg.Global2, reg.PHYData)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", c45Register(port, mmd, r), err)
	}
	return v, nil
}

// WriteC45 sets a register of the SERDES lane of the uplink or of a cage. Errors: as
// those of ReadC45.
func (p *PHYs) WriteC45(ctx context.Context, port Port, mmd, r int, v uint16) error {
	err := p.addressed(ctx, port, mmd, r, func(ctx context.Context) error {
		if err := p.regs.Write(ctx, reg.Global2, reg.PHYData, v); err != nil {
			return err
		}
		return p.command(ctx, reg.C45WriteCommand(int(port), mmd))
	})
	if err != nil {
		return fmt.Errorf("write %s: %w", c45Register(port, mmd, r), err)
	}
	return nil
}

// PageError says that the page of a PHY was not put back: registers of page 0 read 0
// until it is.
type PageError struct {
	Port Port
	Page uint16 // that was selected before
	Err  error
}

func (e *PageError) Error() string {
	return fmt.Sprintf("page 0x%02x of the PHY of %s was not put back: %v", e.Page, e.Port, e.Err)
}

// Unwrap returns why.
func (e *PageError) Unwrap() error { return e.Err }

// Hint says what the operator can do.
func (e *PageError) Hint() string {
	return "the coprocessor's programs select the page that they need; repeat the command, or reboot the appliance when the port shows no PHY"
}

// paged selects a page around an access. The page register itself is on every page.
func (p *PHYs) paged(ctx context.Context, port Port, page, r int, access func(ctx context.Context) error) (err error) {
	switch {
	case port < reg.FirstPHY || port > reg.LastPHY:
		return &RangeError{"switch port with a PHY", int(port), reg.FirstPHY, reg.LastPHY}
	case page < 0 || page > maxPHYPage:
		return &RangeError{"page", page, 0, maxPHYPage}
	case r < 0 || r > maxRegister:
		return &RangeError{"register", r, 0, maxRegister}
	}
	if err := p.idle(ctx); err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx) // each access is bounded, and half of them is a PHY on a wrong page
	if r == reg.PHYPage {
		return access(ctx)
	}
	before, err := p.savePage(ctx, port)
	if err != nil {
		return fmt.Errorf("save the page: %w", err)
	}
	if int(before) != page {
		defer func() {
			if back := p.writeC22(ctx, port, reg.PHYPage, before); back != nil {
				err = errors.Join(err, &PageError{port, before, back})
			}
		}()
		if err := p.writeC22(ctx, port, reg.PHYPage, uint16(page)); err != nil {
			return fmt.Errorf("select the page: %w", err)
		}
	}
	return access(ctx)
}

// savePage reads the selected page twice, for it will be written back.
func (p *PHYs) savePage(ctx context.Context, port Port) (uint16, error) {
	first, err := p.readC22(ctx, port, reg.PHYPage)
	if err != nil {
		return 0, err
	}
	second, err := p.readC22(ctx, port, reg.PHYPage)
	if err != nil {
		return 0, err
	}
	if first != second || first > maxPHYPage {
		return 0, &UnstableError{At: phyRegister(port, int(first), reg.PHYPage), Values: []uint16{first, second}}
	}
	return first, nil
}

// addressed names the register of a SERDES lane and then does the access.
func (p *PHYs) addressed(ctx context.Context, port Port, mmd, r int, access func(ctx context.Context) error) error {
	switch {
	case port != Uplink && (port < reg.FirstCage || port > reg.LastCage):
		return &RangeError{"switch port with a SERDES lane, or the uplink 0:", int(port), reg.FirstCage, reg.LastCage}
	case mmd < 0 || mmd > maxDevice:
		return &RangeError{"MMD", mmd, 0, maxDevice}
	case r < 0 || r > maxC45:
		return &RangeError{"register", r, 0, maxC45}
	}
	if err := p.idle(ctx); err != nil {
		return err
	}
	ctx = context.WithoutCancel(ctx)
	if err := p.regs.Write(ctx, reg.Global2, reg.PHYData, uint16(r)); err != nil {
		return err
	}
	if err := p.command(ctx, reg.C45AddressCommand(int(port), mmd)); err != nil {
		return err
	}
	return access(ctx)
}

func (p *PHYs) readC22(ctx context.Context, port Port, r int) (uint16, error) {
	if err := p.command(ctx, reg.PHYReadCommand(int(port), r)); err != nil {
		return 0, err
	}
	return p.regs.Read(ctx, reg.Global2, reg.PHYData)
}

func (p *PHYs) writeC22(ctx context.Context, port Port, r int, v uint16) error {
	if err := p.regs.Write(ctx, reg.Global2, reg.PHYData, v); err != nil {
		return err
	}
	return p.command(ctx, reg.PHYWriteCommand(int(port), r))
}

// command gives Global2 a command and waits until it is done.
func (p *PHYs) command(ctx context.Context, word uint16) error {
	if err := p.regs.Write(ctx, reg.Global2, reg.PHYCommand, word); err != nil {
		return err
	}
	return p.idle(ctx)
}

// idle waits for the busy bit of the PHY commands, which is not the switch's own.
func (p *PHYs) idle(ctx context.Context) error {
	last, waited, err := waitIdle(ctx, p.clock, func() (uint16, error) { return p.regs.Read(ctx, reg.Global2, reg.PHYCommand) })
	if err == nil && last&reg.Busy != 0 {
		return &BusyError{What: "SMI PHY command register", Value: last, Waited: waited}
	}
	return err
}

func phyRegister(p Port, page, r int) string {
	return fmt.Sprintf("PHY register %d, page %d, of %s", r, page, p)
}

func c45Register(p Port, mmd, r int) string {
	return fmt.Sprintf("SERDES register %d.0x%04x of %s", mmd, r, p)
}
