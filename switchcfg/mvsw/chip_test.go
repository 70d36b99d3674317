package mvsw

import (
	"fmt"
	"syscall"
)

// transactionsMax is more than any command needs.
const transactionsMax = 100_000

// chip is a model of what answers at bus 0 address 2, one MDIO transaction at a
// time, as /dev/mvmdio-uio does it (switch.md 2, 3, 7).
type chip struct {
	command, data uint16
	regs          map[[2]int]uint16
	phys          map[[3]int]uint16 // PHY, page, register
	pages         map[int]uint16
	mmds          map[[3]int]uint16 // port, MMD, register
	mmdAddress    uint16

	sizeResult   bool         // the appliance's module: read and write return 16
	busyPolls    int          // looks at the command register that see a command as busy
	busyFor      int          // what is left of them
	phyBusyPolls int          // the same of the PHY unit
	phyBusyFor   int          // what is left of them; its data is wrong until then
	stuck        bool         // the switch's busy bit never clears
	phyStuck     bool         // that of the PHY unit never does
	absent       bool         // nothing answers: all-ones
	failAt       int          // the transaction that fails, counted from 1
	failure      int          // what it returns
	transactions int          // so far
	trace        []string     // writes of registers inside, in order
	denied       bool         // the device cannot be opened
	onRead       func([2]int) // called before a register inside is read: device and number
}

func newChip() *chip {
	c := &chip{regs: map[[2]int]uint16{}, phys: map[[3]int]uint16{}, pages: map[int]uint16{}, mmds: map[[3]int]uint16{}}
	for port := range 11 {
		c.regs[[2]int{port, 3}] = 0x1930
		c.regs[[2]int{port, 4}] = 0x007c
		c.regs[[2]int{port, 6}] = 0x0001
		c.regs[[2]int{port, 8}] = 0x1080 | uint16(port)
	}
	c.regs[[2]int{0, 0}], c.regs[[2]int{0, 4}], c.regs[[2]int{0, 6}], c.regs[[2]int{0, 8}] = 0x0f4d, 0x017f, 0x07fe, 0x2080
	for phy := 1; phy <= 8; phy++ {
		c.regs[[2]int{phy, 0}] = 0x000f
		c.phys[[3]int{phy, 0, 0}] = 0x1940 // off
		c.phys[[3]int{phy, 3, 16}] = 0x1017
		c.pages[phy] = 5
	}
	for port := 9; port <= 10; port++ {
		c.regs[[2]int{port, 0}] = 0x0249
		c.mmds[[3]int{port, 4, 0xf002}] = 0x0078
		c.mmds[[3]int{port, 4, 0xf003}] = 0x0304
		c.mmds[[3]int{port, 4, 0x2000}] = 0x1940
	}
	return c
}

// transact does one transaction and returns what the driver's read or write does.
func (c *chip) transact(write bool, bus, phy, reg int32, data uint16) (uint16, int) {
	c.transactions++
	if c.transactions == c.failAt {
		return 0, c.failure
	}
	result := 0
	if c.sizeResult {
		result = 16
	}
	switch {
	case bus != 0:
		return 0, -int(syscall.EINVAL)
	case c.absent || phy != 2 || reg > 1:
		return 0xffff, result
	case write && reg == 1:
		c.data = data
	case write:
		c.begin(data)
	case reg == 1:
		return c.data, result
	default:
		return c.look(), result
	}
	return data, result
}

// look is a read of the command register.
func (c *chip) look() uint16 {
	if c.stuck || c.busyFor > 0 {
		c.busyFor--
		return c.command | 0x8000
	}
	return c.command &^ 0x8000
}

// begin starts a command. One that comes while another runs is lost.
func (c *chip) begin(command uint16) {
	if command&0x8000 == 0 || c.stuck || c.busyFor > 0 {
		return
	}
	c.command, c.busyFor = command, c.busyPolls
	if command&0x1000 == 0 {
		return // clause 45 means nothing here
	}
	at := [2]int{int(command >> 5 & 31), int(command & 31)}
	switch command >> 10 & 3 {
	case 1:
		c.write(at, c.data)
	case 2:
		c.data = c.read(at)
	}
}

func (c *chip) read(at [2]int) uint16 {
	if c.onRead != nil {
		c.onRead(at)
	}
	switch at {
	case [2]int{0x1c, 0x18}:
		c.phyBusyFor--
		if c.phyStuck || c.phyBusyFor >= 0 {
			return c.regs[at] | 0x8000
		}
		return c.regs[at] &^ 0x8000
	case [2]int{0x1c, 0x19}:
		if c.phyBusyFor > 0 {
			return 0
		}
	}
	return c.regs[at]
}

func (c *chip) write(at [2]int, v uint16) {
	if at[0] != 0x1c {
		c.trace = append(c.trace, fmt.Sprintf("port %d register %d = %#04x", at[0], at[1], v))
	}
	c.regs[at] = v
	if at == [2]int{0x1c, 0x18} && v&0x8000 != 0 && c.phyBusyFor <= 0 {
		c.phyBusyFor = c.phyBusyPolls
		c.phyCommand(v)
	}
}

func (c *chip) phyCommand(v uint16) {
	dev, reg := int(v>>5&31), int(v&31)
	data := c.regs[[2]int{0x1c, 0x19}]
	at := [3]int{dev, int(c.pages[dev]), reg}
	if v&0x1000 == 0 {
		at = [3]int{dev, reg, int(c.mmdAddress)}
	}
	switch v & 0x1c00 {
	case 0x1800: // clause 22 read
		if data = c.phys[at]; reg == 22 {
			data = c.pages[dev]
		}
	case 0x1400:
		c.trace = append(c.trace, fmt.Sprintf("phy %d page %d register %d = %#04x", dev, c.pages[dev], reg, data))
		if c.phys[at] = data; reg == 22 {
			c.pages[dev] = data
		}
	case 0x0000: // clause 45 address
		c.mmdAddress = data
	case 0x0400:
		c.trace = append(c.trace, fmt.Sprintf("port %d mmd %d register %#04x = %#04x", dev, reg, c.mmdAddress, data))
		c.mmds[at] = data
	case 0x0c00:
		data = c.mmds[at]
	}
	c.regs[[2]int{0x1c, 0x19}] = data
}
