package switchcfg

import (
	"context"
	"fmt"

	"oxpd/switchcfg/reg"
)

// PortState is a port as it reads now.
type PortState struct {
	Port     Port
	Status   reg.Status
	Control  uint16 // reg.PortControl
	Control2 uint16 // reg.PortControl2
}

// Mode is the port's frame size.
func (s PortState) Mode() reg.Jumbo { return reg.JumboOf(s.Control2) }

// State is the switch as it reads now: all eleven ports, the uplink first.
type State struct {
	ID    reg.ID
	Ports [reg.Ports]PortState
}

// MTU is the largest MTU whose frames pass a panel port and the uplink, 0 when one of
// them has the reserved frame size.
func (s *State) MTU(p Port) int { return reg.MTU(s.Ports[p].Mode(), s.Ports[Uplink].Mode()) }

// Show reads the ports and writes nothing.
//
// Errors: *ProductError, *UnstableError, *UnreliableError, those of the registers and
// the context's.
func (s *Switch) Show(ctx context.Context) (State, error) {
	st, t, err := s.modes(ctx)
	if err != nil {
		return State{}, err
	}
	for i := range st.Ports {
		p := &st.Ports[i]
		status, err := t.shown(ctx, p.Port, reg.PortStatus)
		if err == nil {
			p.Control, err = t.shown(ctx, p.Port, reg.PortControl)
		}
		if err != nil {
			return State{}, fmt.Errorf("read the switch: %w", err)
		}
		p.Status = reg.Status(status)
	}
	return st, nil
}

// Modes reads the frame sizes alone, PortControl2, and writes nothing. Errors: as those
// of Show.
func (s *Switch) Modes(ctx context.Context) (State, error) {
	st, _, err := s.modes(ctx)
	return st, err
}

func (s *Switch) modes(ctx context.Context) (st State, t *trusted, err error) {
	t = &trusted{regs: s.regs}
	if st.ID, err = t.product(ctx); err != nil {
		return State{}, nil, err
	}
	for i := range st.Ports {
		p := &st.Ports[i]
		p.Port = Port(i)
		if p.Control2, err = t.port(ctx, p.Port, reg.PortControl2); err != nil {
			return State{}, nil, fmt.Errorf("read the switch: %w", err)
		}
		s.others.first(p.Port, p.Control2)
	}
	return st, t, nil
}

// Read returns one register of a device, read twice and equal. Registers that clear when
// they are read never are; the error has what they read.
//
// Errors: *RangeError, *UnstableError, those of the registers and the context's.
func (s *Switch) Read(ctx context.Context, at Register) (uint16, error) {
	if err := checkRegister(at.Dev, at.Reg); err != nil {
		return 0, err
	}
	t := trusted{regs: s.regs}
	v, err := t.equal(ctx, at)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", at, err)
	}
	return v, nil
}

// CheckWrite refuses a write that would take the ports down or join them behind the
// firewall's back, and a frame size that the silicon reserves. The error is a
// *ForbiddenError or a *RangeError.
func CheckWrite(at Register, v uint16) error {
	if err := checkRegister(at.Dev, at.Reg); err != nil {
		return err
	}
	if at.Dev >= reg.Ports {
		return nil
	}
	switch {
	case at.Reg == reg.PortVLANMap:
		return &ForbiddenError{at, "it keeps the front ports apart: the switch would forward between them, past the host"}
	case at.Reg == reg.PortControl && Port(at.Dev) == Uplink:
		return &ForbiddenError{at, "it makes the uplink the uplink: all ten ports would be lost"}
	case at.Reg == reg.PortControl2 && reg.JumboOf(v) == reg.JumboReserved:
		return &ForbiddenError{at, fmt.Sprintf("0x%04x has the reserved frame size, mode 3", v)}
	}
	return nil
}

// Write sets one register of a device, once, and reads it back twice. It returns what
// was there before, and after. Written to PortControl2, the bits beside the frame size are
// those that Jumbo expects from then on.
//
// Errors: those of CheckWrite and *ProductError, with nothing written; *VerifyError when
// it reads otherwise; *UnverifiedError; those of the registers and the context's.
func (s *Switch) Write(ctx context.Context, at Register, v uint16) (before, after uint16, err error) {
	if err := CheckWrite(at, v); err != nil {
		return 0, 0, err
	}
	t := trusted{regs: s.regs}
	if _, err := t.product(ctx); err != nil {
		return 0, 0, err
	}
	if before, err = t.equal(ctx, at); err != nil {
		return 0, 0, fmt.Errorf("read %s before it is written: %w", at, err)
	}
	ctx = context.WithoutCancel(ctx) // each access is bounded
	sent := s.regs.Write(ctx, at.Dev, at.Reg, v)
	if after, err = t.equal(ctx, at); err != nil {
		return before, 0, &UnverifiedError{At: at, Old: before, Want: v, Err: joined(sent, err)}
	}
	if after != v {
		return before, after, joined(sent, &VerifyError{At: at, Want: v, Got: after, Old: before, Tries: 1})
	}
	if at.Dev < reg.Ports && at.Reg == reg.PortControl2 {
		s.others.set(Port(at.Dev), v)
	}
	return before, after, nil
}
