package lif

import (
	"fmt"

	"oxpd/internal/board"
	"oxpd/switchcfg/reg"
)

// SwitchLimit is the longest frame that the switch passes, in bytes with its FCS,
// at each of the ten ports behind it (hardware/switch.md 5). 0: it is not known.
//
// The switch drops what is longer in either direction, and nothing counts it. So a
// change to an MTU that does not fit is refused when the limit is known, unless it
// is forced; what stands is never taken back for it.
type SwitchLimit int

// MTU is the largest MTU of a port whose frames all pass. It is not known without
// a limit, nor for a port that is not behind the switch.
func (l SwitchLimit) MTU(p board.Port) (mtu int, known bool) {
	if l == 0 || !p.BehindSwitch() {
		return 0, false
	}
	return int(l) - reg.Overhead, true
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
	if l != 0 || SwitchLimit(smallest).Check(p, mtu) == nil {
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
	return fmt.Sprintf("mtu %d of %s is more than the switch before it passes: %d, for frames of %d bytes with FCS", e.MTU, e.Port, most, e.Limit)
}

// Hint says what the operator can do.
func (e *SwitchError) Hint() string {
	return fmt.Sprintf("raise the switch's frame size first and say so in the configuration (switch: {size: %d}); oxpd mtu %s %d --force sets it all the same",
		reg.Jumbo10240.FrameBytes(), e.Port.Name, e.MTU)
}
