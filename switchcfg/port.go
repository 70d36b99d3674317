package switchcfg

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"oxpd/internal/board"
	"oxpd/switchcfg/reg"
)

// Port is a port of the switch, 0 to 10. It is never shown as a bare number: on the
// panel, 9 is another port.
type Port int

// Uplink is the port to the coprocessor, which frames of all others pass.
const Uplink Port = reg.Uplink

// AllPorts are the ports of the switch, the uplink first.
func AllPorts() (all [reg.Ports]Port) {
	for i := range all {
		all[i] = Port(i)
	}
	return all
}

// PanelPorts are those behind which a front port is.
func PanelPorts() []Port {
	all := AllPorts()
	return all[Uplink+1:]
}

// OfBoard is the switch's port of a front port, false when that is not behind it.
func OfBoard(p board.Port) (Port, bool) { return Port(p.SwitchPort), p.BehindSwitch() }

// Board is the front port behind p, false for the uplink.
func (p Port) Board() (board.Port, bool) {
	for _, b := range board.All() {
		if b.BehindSwitch() && b.SwitchPort == int(p) {
			return b, true
		}
	}
	return board.Port{}, false
}

// Short is "sw9", the name of the port as one of the switch.
func (p Port) Short() string { return shortPrefix + strconv.Itoa(int(p)) }

const shortPrefix = "sw"

// String is "oxp11 (PortF3, sw9)", or "sw0 (uplink)".
func (p Port) String() string {
	b, ok := p.Board()
	if !ok {
		return p.Short() + " (uplink)"
	}
	return fmt.Sprintf("%s (%s, %s)", b.Name, b.Label, p.Short())
}

// ParsePort finds a port of the switch by the name of its front port, any that package
// board knows, or as sw0 to sw10. A bare number is refused.
//
// Errors: *PortError.
func ParsePort(s string) (Port, error) {
	if n, ok := strings.CutPrefix(strings.ToLower(s), shortPrefix); ok {
		for _, p := range AllPorts() {
			if p.Short() == shortPrefix+n {
				return p, nil
			}
		}
		return 0, &PortError{Name: s, Err: errors.New("the switch has no such port")}
	}
	b, err := board.Parse(s)
	if err != nil {
		return 0, &PortError{Name: s, Err: errors.New("unknown")}
	}
	p, behind := OfBoard(b)
	if !behind {
		return 0, &PortError{Name: s, Err: fmt.Errorf("%s is not behind the switch", b)}
	}
	return p, nil
}

// PortError says that a name is no port of the switch.
type PortError struct {
	Name string
	Err  error
}

func (e *PortError) Error() string {
	return fmt.Sprintf("port %q of the switch: %v: want oxp1 to oxp8, oxp11, oxp12, Port1 to Port8, PortF3, PortF4, or sw0 (the uplink) to sw10", e.Name, e.Err)
}

// Unwrap returns why.
func (e *PortError) Unwrap() error { return e.Err }

// Register is one register of a device inside the switch.
type Register struct{ Dev, Reg int }

// String is "register 0x08 of oxp1 (Port1, sw1)".
func (r Register) String() string {
	return fmt.Sprintf("register 0x%02x of %s", r.Reg, DeviceName(r.Dev))
}

// deviceNames are those of devices that are no ports.
const (
	global1 = "global1"
	global2 = "global2"
)

// DeviceName names a device inside the switch as it is shown.
func DeviceName(dev int) string {
	switch {
	case dev == reg.Global1:
		return global1
	case dev == reg.Global2:
		return global2
	case dev >= 0 && dev < reg.Ports:
		return Port(dev).String()
	}
	return fmt.Sprintf("device 0x%02x", dev)
}

// ParseDevice finds a device inside the switch: a port, as ParsePort does, global1 or
// global2. Errors: *PortError.
func ParseDevice(s string) (dev int, err error) {
	switch strings.ToLower(s) {
	case global1:
		return reg.Global1, nil
	case global2:
		return reg.Global2, nil
	}
	p, err := ParsePort(s)
	return int(p), err
}

// ParseNumber reads a register number or a value: decimal, or hexadecimal with 0x. A
// helper on the coprocessor takes what it cannot read for -1, so nothing else passes.
//
// Errors: *NumberError.
func ParseNumber(what, s string, most int) (int, error) {
	digits, base := s, 10
	if h, ok := strings.CutPrefix(s, "0x"); ok {
		digits, base = h, 16
	}
	v, err := strconv.ParseUint(digits, base, 32)
	if err != nil || v > uint64(most) {
		return 0, &NumberError{What: what, Text: s, Most: most}
	}
	return int(v), nil
}

// NumberError refuses the text of a number.
type NumberError struct {
	What, Text string
	Most       int
}

func (e *NumberError) Error() string {
	return fmt.Sprintf("%s %q: want a number from 0 to %d, or from 0x0 to 0x%x", e.What, e.Text, e.Most, e.Most)
}

const (
	maxDevice   = 1<<5 - 1
	maxRegister = reg.PortRegisters - 1
)

// checkRegister refuses numbers that do not fit the command word.
func checkRegister(dev, r int) error {
	if dev < 0 || dev > maxDevice {
		return &RangeError{"device", dev, 0, maxDevice}
	}
	if r < 0 || r > maxRegister {
		return &RangeError{"register", r, 0, maxRegister}
	}
	return nil
}
