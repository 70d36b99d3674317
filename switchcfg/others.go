package switchcfg

import (
	"fmt"

	"oxpd/switchcfg/reg"
)

// Others are the fourteen bits of PortControl2 beside the frame size, of each port, as
// they were first read in a boot of the coprocessor, or as Switch.Write was told to make
// them. Whatever else is found there later, somebody else has written (switch.md 5). The
// zero value knows of no port. Not safe for concurrent use.
type Others struct {
	known [reg.Ports]bool
	bits  [reg.Ports]uint16
}

// first notes what was read of a port of which nothing was known.
func (o *Others) first(p Port, v uint16) {
	if !o.known[p] {
		o.set(p, v)
	}
}

// set notes what somebody has made of a port and stands for.
func (o *Others) set(p Port, v uint16) { o.known[p], o.bits[p] = true, others(v) }

// of is a port's value with the bits that it should have.
func (o *Others) of(p Port, v uint16) uint16 {
	if o.known[p] {
		return o.bits[p] | v&reg.JumboMask
	}
	return v
}

// others are the bits of a value beside the frame size.
func others(v uint16) uint16 { return v &^ reg.JumboMask }

// OthersError says that somebody else has changed bits of a port beside the frame size.
type OthersError struct {
	Port    Port
	Was, Is uint16 // of PortControl2, without the frame size
	Value   uint16 // of PortControl2, as read
	Want    uint16 // what it shall be: Was, with the frame size that was asked for
}

func (e *OthersError) Error() string {
	return fmt.Sprintf("register 0x%02x of %s reads 0x%04x: somebody else has changed its other bits, which were 0x%04x and are 0x%04x; it was not written, and %s",
		reg.PortControl2, e.Port, e.Value, e.Was, e.Is, repairs(Register{int(e.Port), reg.PortControl2}, e.Want))
}

// Hint says what the operator can do.
func (e *OthersError) Hint() string {
	return "or reboot the appliance: the coprocessor sets the switch anew; bits that are meant become the expected ones when they are written with --i-know"
}

// repairs names the command that writes a register.
func repairs(at Register, v uint16) string {
	device := DeviceName(at.Dev)
	if at.Dev < reg.Ports {
		device = Port(at.Dev).Short()
		if b, ok := Port(at.Dev).Board(); ok {
			device = b.Name
		}
	}
	return fmt.Sprintf("oxpd switch write %s %d 0x%04x --i-know repairs it", device, at.Reg, v)
}
