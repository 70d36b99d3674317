package hwsim

import "oxpd/switchcfg/reg"

// phy is a copper PHY inside the switch. Page 0 alone has registers; on any other
// all of them read 0, but the one that selects the page (switch.md 7).
type phy struct {
	page uint16
	regs [32]uint16
}

// lane is a SERDES lane: the registers of MMD 4 that somebody has written or a
// start has set.
type lane struct {
	regs map[uint16]uint16
	at   uint16 // register of the next access
}

const (
	phyUp    = 0x1140
	phyReset = 1 << 15
	phyAgain = 1 << 9 // restart of autonegotiation
	phyPages = 0xff
)

// laneRegs are the registers of a lane that matter: as they read when it is awake,
// and the bits each of which makes it sleep.
var laneRegs = [3]struct{ at, awake, sleep uint16 }{
	{reg.SERDESPower, 0x0058, 1 << 5},
	{reg.SERDESEnable, 0x0004, 1<<8 | 1<<9},
	{reg.SERDESControl, 0x1140, 1 << 11},
}

func hasPHY(p int) bool { return p >= 1 && p <= 8 }

func hasLane(p int) bool { return p == 0 || p == 9 || p == 10 }

// power switches the PHY or the lane of a port on or off.
func (s *ethSwitch) power(p int, on bool) {
	if hasPHY(p) {
		s.phys[p].regs[0] = phyUp
		if !on {
			s.phys[p].regs[0] |= reg.PHYPowerDown
		}
		return
	}
	l := &s.lanes[p]
	if l.regs == nil {
		l.regs = map[uint16]uint16{}
		for _, r := range laneRegs {
			l.regs[r.at] = r.awake
		}
	}
	for _, r := range laneRegs {
		l.regs[r.at] &^= r.sleep
		if !on {
			l.regs[r.at] |= r.sleep
		}
	}
}

// powered tells whether the port can have a link.
func (s *ethSwitch) powered(p int) bool {
	if hasPHY(p) {
		return s.phys[p].regs[0]&reg.PHYPowerDown == 0
	}
	for _, r := range laneRegs {
		if s.lanes[p].regs[r.at]&r.sleep != 0 {
			return false
		}
	}
	return true
}

// runMII is a command of Global2's pair: bit 12 mode, 11:10 operation, 9:5
// address, 4:0 register or MMD.
func (s *ethSwitch) runMII(w uint16) {
	m := &s.mii
	addr, r, op := int(w>>5&0x1f), int(w&0x1f), w>>10&3
	if w>>13&3 != 0 { // another function than the internal bus
		m.data = reg.NoAnswer
		return
	}
	if w>>12&1 != 0 {
		switch op {
		case 1:
			s.writePHY(addr, r, m.data)
		case 2:
			m.data = s.readPHY(addr, r)
		}
		return
	}
	if addr >= len(s.lanes) || !hasLane(addr) || r != reg.SERDESMMD {
		if op >= 2 {
			m.data = reg.NoAnswer
		}
		return
	}
	l := &s.lanes[addr]
	switch op {
	case 0:
		l.at = m.data
	case 1:
		s.writeLane(addr, l.at, m.data)
	case 2:
		m.data = l.regs[l.at]
		l.at++
	case 3:
		m.data = l.regs[l.at]
	}
}

func (s *ethSwitch) readPHY(addr, r int) uint16 {
	switch {
	case addr < reg.Ports && hasLane(addr):
		return 0 // a lane has no registers of clause 22
	case !hasPHY(addr):
		return reg.NoAnswer
	case r == reg.PHYPage:
		return s.phys[addr].page
	case s.phys[addr].page != 0:
		return 0
	}
	return s.phys[addr].regs[r]
}

func (s *ethSwitch) writePHY(addr, r int, v uint16) {
	if !hasPHY(addr) {
		return
	}
	f := &s.phys[addr]
	switch {
	case r == reg.PHYPage:
		f.page = v & phyPages
	case f.page != 0:
	case r == 0 && v&phyReset != 0:
		f.regs[0] = phyUp
		s.c.target.powerChanged(addr)
	case r == 0:
		f.regs[0] = v &^ phyAgain
		s.c.target.powerChanged(addr)
	default:
		f.regs[r] = v
	}
}

func (s *ethSwitch) writeLane(p int, r, v uint16) {
	if r == reg.SERDESPower {
		v &^= reg.SERDESReset
	}
	s.lanes[p].regs[r] = v
	if p != reg.Uplink {
		s.c.target.powerChanged(p)
	}
}
