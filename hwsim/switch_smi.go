package hwsim

import (
	"errors"
	"fmt"

	"oxpd/switchcfg/reg"
)

// Addresses on the coprocessor's MDIO bus 0 (switch.md 1).
const (
	addr88X5113 = 7 // clause 45, the PHY of F1 and F2: registers not on record, storage that reads 0

	mdioMax = 32 // of addresses and of registers in clause 22
)

// ErrKernelDown says that the coprocessor's kernel does not run, and so nobody
// there can use the MDIO bus.
var ErrKernelDown = errors.New("the coprocessor's kernel does not run")

// command is a command register with a busy bit, and the data register beside it.
// A word with the bit starts a command, which has run when it reads 0 again; what
// is written while it is set is lost.
type command struct {
	c     *Card
	run   func(word uint16)
	stuck *bool // a fault: nothing is run
	fault faultID

	word    uint16 // without the bit
	data    uint16
	pending bool
	polls   int    // reads of the register that find the bit set
	until   uint64 // cycle before which it is set
}

func (x *command) reset() { x.word, x.data, x.pending = 0, 0, false }

// settle runs a command whose time has come.
func (x *command) settle() {
	if x.pending && x.polls <= 0 && x.c.now >= x.until && !x.c.acts(x.fault, *x.stuck) {
		x.pending = false
		x.run(x.word)
	}
}

// read is a look at the command register, readData one at the other.
func (x *command) read() uint16 {
	x.settle()
	if !x.pending {
		return x.word
	}
	x.polls--
	return x.word | reg.Busy
}

func (x *command) readData() uint16 {
	x.settle()
	return x.data
}

// write is a store to the command register.
func (x *command) write(v uint16) {
	x.settle()
	if x.pending {
		x.c.report(ReportSwitchBusy, "command %#04x while %#04x is not done: lost", v, x.word)
		return
	}
	x.word = v &^ reg.Busy
	if v&reg.Busy == 0 {
		return
	}
	x.pending, x.polls, x.until = true, x.c.o.SwitchPolls, x.c.now+cyclesOf(x.c.o.SwitchBusy)
	x.settle()
}

// runSMI is a command of the front end: bit 12 mode, 11:10 operation, 9:5
// device, 4:0 register. There is no device of clause 45 behind it.
func (s *ethSwitch) runSMI(w uint16) {
	dev, r, op := int(w>>5&0x1f), int(w&0x1f), w>>10&3
	switch {
	case w>>12&1 == 0 && op >= 2:
		s.smi.data = reg.NoAnswer
	case w>>12&1 == 0:
	case op == 1:
		s.write(dev, r, s.smi.data)
	case op == 2:
		s.smi.data = s.read(dev, r)
		if n := &s.c.faults.SwitchForeignRead; s.c.acts(fltSwitchForeignRead, *n > 0) {
			*n--
			s.intrude()
		}
	}
}

// intrude is a command of the coprocessor's own software from start to end: it
// reads one register of one port after the other, no two in turn alike.
func (s *ethSwitch) intrude() {
	p := s.foreign / 2 % reg.Ports
	r := []int{reg.PortStatus, reg.PortControl}[s.foreign%2]
	s.foreign++
	s.smi.word = 1<<12 | 2<<10 | uint16(p<<5|r)
	s.smi.data = s.read(p, r)
	s.tainted = true
}

// mdioRead is a transaction with the switch's address.
func (s *ethSwitch) mdioRead(r int) uint16 {
	f := &s.c.faults
	switch {
	case s.c.acts(fltSwitchSilent, f.SwitchSilent):
	case r == reg.SMICommand:
		return s.smi.read()
	case r == reg.SMIData:
		v := s.smi.readData()
		if f.SwitchWrongReads > 0 {
			if s.wrong++; s.c.acts(fltSwitchWrongReads, s.wrong%f.SwitchWrongReads == 0) {
				return []uint16{0x007f, 0x0000}[s.wrong/f.SwitchWrongReads%2] // as seen
			}
		}
		return v
	}
	return reg.NoAnswer
}

func (s *ethSwitch) mdioWrite(r int, v uint16) {
	f := &s.c.faults
	switch {
	case s.c.acts(fltSwitchSilent, f.SwitchSilent):
	case r == reg.SMICommand:
		if s.c.acts(fltSwitchForeignBusy, f.SwitchForeignBusy > 0 && v&reg.Busy != 0) {
			f.SwitchForeignBusy--
			s.intrude()
			return
		}
		s.smi.write(v)
	case r == reg.SMIData:
		s.smi.data, s.tainted = v, false
		if s.c.acts(fltSwitchForeignData, f.SwitchForeignData > 0) {
			f.SwitchForeignData--
			s.intrude()
		}
	}
}

// MDIORead is one read transaction on an MDIO bus of the coprocessor, as its
// kernel does it for /dev/mvmdio-uio: in clause 22, or in clause 45 with bit 30 of
// r set. An address at which nothing answers reads 0xffff. It fails with
// ErrKernelDown while the coprocessor's kernel does not run, and for numbers that
// the device refuses. In stepped mode the card's time moves by Latencies.MDIO.
func (c *Card) MDIORead(bus, phy, r int) (uint16, error) {
	c.lock()
	defer c.leave()
	if err := c.mdio("read", bus, phy, r); err != nil {
		return 0, err
	}
	switch {
	case bus == reg.Bus && phy == reg.Address && r&reg.Clause45 == 0:
		return c.sw.mdioRead(r), nil
	case bus == reg.Bus && phy == addr88X5113 && r&reg.Clause45 != 0:
		return c.sw.other[r], nil
	}
	return reg.NoAnswer, nil
}

// MDIOWrite is one write transaction; see MDIORead. What nobody answers is lost.
func (c *Card) MDIOWrite(bus, phy, r int, v uint16) error {
	c.lock()
	defer c.leave()
	if err := c.mdio("write", bus, phy, r); err != nil {
		return err
	}
	switch {
	case bus == reg.Bus && phy == reg.Address && r&reg.Clause45 == 0:
		c.sw.mdioWrite(r, v)
	case bus == reg.Bus && phy == addr88X5113 && r&reg.Clause45 != 0:
		c.sw.other[r] = v
	}
	return nil
}

// mdio is what every transaction begins with. Held: c.mu.
func (c *Card) mdio(what string, bus, phy, r int) error {
	var err error
	switch {
	case !c.target.mapped:
		err = ErrKernelDown
	case bus < 0 || bus >= reg.Buses:
		err = fmt.Errorf("want a bus of 0 to %d", reg.Buses-1)
	case phy < 0 || phy >= mdioMax:
		err = fmt.Errorf("want an address of 0 to %d", mdioMax-1)
	case r < 0 || r&reg.Clause45 == 0 && r >= mdioMax:
		err = fmt.Errorf("want a register of 0 to %d, or bit 30", mdioMax-1)
	}
	if err != nil {
		return fmt.Errorf("hwsim: MDIO %s of bus %d address %d register %#x: %w", what, bus, phy, r, err)
	}
	if c.mode == stepped && !c.closed {
		c.run(c.now + c.lat.mdio)
	}
	return nil
}
