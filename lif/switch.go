package lif

import (
	"fmt"

	"oxpd/internal/board"
	"oxpd/switchcfg/reg"
)

// SwitchLimit is the longest frame that the switch passes, in bytes with its FCS, at
// one of the ten ports behind it and at its uplink, which all of them share
// (hardware/switch.md 5). 0: it is not known.
//
// The switch drops what is longer in either direction, and nothing counts it. So a
// change to an MTU that does not fit is refused when the limit is known, unless it
// is forced; what stands is never taken back for it.
type SwitchLimit struct{ Panel, Uplink int }

// MTU is the largest MTU of a port whose frames all pass: the smallest limit of the way
// holds, and on the uplink a frame has four bytes more. It is not known without a limit
// of the port, nor for one that is not behind the switch.
func (l SwitchLimit) MTU(p board.Port) (mtu int, known bool) {
	if l.Panel == 0 || !p.BehindSwitch() {
		return 0, false
	}
	mtu = l.Panel - reg.Overhead
	if l.uplinkFirst() {
		mtu = l.Uplink - reg.Overhead - reg.DSATag
	}
	return mtu, true
}

// uplinkFirst tells whether the uplink is the smaller one of the two.
func (l SwitchLimit) uplinkFirst() bool { return l.Uplink != 0 && l.Uplink-reg.DSATag < l.Panel }

// frames says what the limit is of.
func (l SwitchLimit) frames() string {
	if l.uplinkFirst() {
		return fmt.Sprintf("frames of %d bytes with FCS at its uplink", l.Uplink)
	}
	return fmt.Sprintf("frames of %d bytes with FCS", l.Panel)
}

// Check refuses an MTU whose frames the switch is known to drop. The error is a
// *SwitchError.
func (l SwitchLimit) Check(p board.Port, mtu int) error {
	if most, known := l.MTU(p); known && mtu > most {
		return &SwitchError{Port: p, MTU: mtu, Limit: l}
	}
	return nil
}

// Warning says what an MTU that is in force risks, "" when nothing: the switch is
// known to drop such frames, or its limit is unknown and not each of its modes
// passes them.
func (l SwitchLimit) Warning(p board.Port, mtu int) string {
	if err := l.Check(p, mtu); err != nil {
		return fmt.Sprintf("%v: longer frames vanish in the switch, and no counter moves", err)
	}
	smallest := reg.Jumbo1522.FrameBytes()
	if l.Panel != 0 || (SwitchLimit{Panel: smallest}).Check(p, mtu) == nil {
		return ""
	}
	return fmt.Sprintf("the limit of the switch before %s is unknown: frames above %d bytes with FCS, and above %d as the board was found, may vanish in it, "+
		"and no counter moves", p, smallest, reg.Jumbo2048.FrameBytes())
}

// SwitchError says that an MTU is more than the switch passes.
type SwitchError struct {
	Port  board.Port
	MTU   int
	Limit SwitchLimit
}

func (e *SwitchError) Error() string {
	most, _ := e.Limit.MTU(e.Port)
	return fmt.Sprintf("mtu %d of %s is more than the switch before it passes: %d, for %s", e.MTU, e.Port, most, e.Limit.frames())
}

// Hint says what the operator can do.
func (e *SwitchError) Hint() string {
	return fmt.Sprintf("oxpd mtu %s %d --switch raises the frame size of the switch at that port first, oxpd switch jumbo --all at all ten; --force sets the mtu all the same",
		e.Port.Name, e.MTU)
}
