package switchcfg

import (
	"context"
	"fmt"
	"time"

	"oxpd/switchcfg/reg"
)

// fakeClock advances when somebody sleeps.
type fakeClock struct {
	now   time.Duration
	slept func() // after each sleep
}

func (c *fakeClock) Now() time.Duration { return c.now }

func (c *fakeClock) Sleep(ctx context.Context, d time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c.now += d
	if c.slept != nil {
		c.slept()
	}
	return nil
}

// fakeBus is the switch behind two registers, as far as the tests here need it.
type fakeBus struct {
	clock *fakeClock
	regs  [32][32]uint16

	command, data uint16
	stale         uint16 // what data reads while a command runs
	busyUntil     time.Duration
	busyFor       time.Duration // each command
	dead          bool          // nothing answers
	err           error         // of every transaction

	// Faults; each may be nil.
	between func(b *fakeBus)                          // after the data and before the command of a write
	readAs  func(n, dev, r int, v uint16) uint16      // what read number n gives
	stores  func(n, dev, r int, old, v uint16) uint16 // what write number n leaves
	after   func(n int)                               // access number n is done

	looked func() // after a look at the command register

	looks    int // at the command register
	reads    int
	writes   []string // "sw1 0x08 0x2080"
	accesses int

	phy phyBus
}

// phyBus is what is behind Global2.
type phyBus struct {
	busyUntil time.Duration
	busyFor   time.Duration
	pages     [11]uint16
	c22       [11]map[int]map[int]uint16 // page, register
	c45       map[string]uint16
	address   [11]uint16
}

// newBus has the registers of switch.md 4 and 5, with other bits of register 8 that
// differ by port.
func newBus() *fakeBus {
	b := &fakeBus{clock: &fakeClock{}, busyFor: 30 * time.Microsecond}
	for p := range reg.Ports {
		b.regs[p][reg.Identifier] = 0x1930
		b.regs[p][reg.PortControl] = 0x007f
		b.regs[p][reg.PortVLANMap] = 0x0001
		b.regs[p][reg.PortControl2] = reg.Jumbo2048.Put(otherBits(p))
	}
	b.regs[0][reg.PortControl], b.regs[0][reg.PortVLANMap] = 0x017f, 0x07fe
	b.regs[0][reg.PortControl2] = reg.Jumbo10240.Put(otherBits(0))
	b.phy.c45 = map[string]uint16{}
	return b
}

func otherBits(p int) uint16 { return uint16(0x0080 | p<<8&0x0f00 | p&0xf | p<<13&0x8000) }

func (b *fakeBus) ReadMDIO(_ context.Context, phy, r int) (uint16, error) {
	switch {
	case b.err != nil:
		return 0, b.err
	case phy != reg.Address || b.dead:
		return reg.NoAnswer, nil
	case r == reg.SMICommand:
		b.looks++
		v := b.command &^ reg.Busy
		if b.clock.now < b.busyUntil {
			v |= reg.Busy
		}
		if b.looked != nil {
			b.looked()
		}
		return v, nil
	case r == reg.SMIData && b.clock.now < b.busyUntil:
		return b.stale, nil
	case r == reg.SMIData:
		return b.data, nil
	}
	return reg.NoAnswer, nil
}

func (b *fakeBus) WriteMDIO(_ context.Context, phy, r int, v uint16) error {
	if b.err != nil {
		return b.err
	}
	if phy != reg.Address || b.dead || b.clock.now < b.busyUntil {
		return nil // lost
	}
	if r == reg.SMIData {
		b.data = v
		return nil
	}
	if f := b.between; f != nil && v&0x0c00 == reg.OpWrite {
		b.between = nil
		f(b)
	}
	b.command, b.busyUntil, b.stale = v, b.clock.now+b.busyFor, b.data
	b.do(int(v>>5&0x1f), int(v&0x1f), v&0x0c00 == reg.OpWrite)
	return nil
}

// do is the access inside the switch.
func (b *fakeBus) do(dev, r int, write bool) {
	b.accesses++
	if write {
		b.writes = append(b.writes, fmt.Sprintf("%s 0x%02x 0x%04x", deviceShort(dev), r, b.data))
		v := b.data
		if b.stores != nil {
			v = b.stores(len(b.writes), dev, r, b.regs[dev][r], v)
		}
		b.regs[dev][r] = v
		if dev == reg.Global2 && r == reg.PHYCommand {
			b.phyCommand(v)
		}
	} else {
		b.reads++
		b.data = b.regs[dev][r]
		if dev == reg.Global2 && r == reg.PHYCommand && b.clock.now >= b.phy.busyUntil {
			b.data &^= reg.Busy
		}
		if b.readAs != nil {
			b.data = b.readAs(b.reads, dev, r, b.data)
		}
	}
	if b.after != nil {
		b.after(b.accesses)
	}
}

func (b *fakeBus) phyCommand(v uint16) {
	p := &b.phy
	p.busyUntil = b.clock.now + p.busyFor
	port, r := int(v>>5&0x1f), int(v&0x1f)
	data := &b.regs[reg.Global2][reg.PHYData]
	c45 := fmt.Sprintf("%d %d.%04x", port, r, p.address[port])
	switch {
	case v == reg.PHYReadCommand(port, r) && r == reg.PHYPage:
		*data = p.pages[port]
	case v == reg.PHYReadCommand(port, r):
		*data = p.c22[port][int(p.pages[port])][r]
	case v == reg.PHYWriteCommand(port, r) && r == reg.PHYPage:
		p.pages[port] = *data
	case v == reg.PHYWriteCommand(port, r):
		p.c22[port][int(p.pages[port])][r] = *data
	case v == reg.C45AddressCommand(port, r):
		p.address[port] = *data
	case v == reg.C45WriteCommand(port, r):
		p.c45[c45] = *data
	case v == reg.C45ReadCommand(port, r):
		*data = p.c45[c45]
	}
}

func deviceShort(dev int) string {
	if dev < reg.Ports {
		return Port(dev).Short()
	}
	return DeviceName(dev)
}

// smi is the bus as registers.
func (b *fakeBus) smi() *SMI { return NewSMI(b, b.clock) }

// modes are the frame sizes of all ports, and other whether any other bit of register 8
// has changed.
func (b *fakeBus) modes() (m [reg.Ports]reg.Jumbo, other bool) {
	for p := range m {
		m[p] = reg.JumboOf(b.regs[p][reg.PortControl2])
		other = other || b.regs[p][reg.PortControl2]&^reg.JumboMask != otherBits(p)&^reg.JumboMask
	}
	return m, other
}
