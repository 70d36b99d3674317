package hwsim

import (
	"math/rand/v2"

	"oxpd/internal/board"
	"oxpd/internal/frame"
	"oxpd/switchcfg/reg"
)

// Register values of a switch that has just started, and of ports that are up
// (switch.md 4, 9).
const (
	swID            = 0x1930
	swUplinkControl = 0x017f // DSA, forwarding
	swPanelControl  = 0x007c // disabled; the state bits come with NetAgent
	swUplinkMap     = 0x07fe // to every panel port
	swPanelMap      = 0x0001 // to the uplink

	swLinkBits  = 0x0c00 // of Port Status: link, full duplex
	swUplinkPS  = 0x034d // 10G, 10GBASE-R; the bits of a link come on top
	swCopperPS  = 0x000f // no speed without a link
	swCopperPSL = 0x0200 // 1000
	swCagePS    = 0x0249

	swStateMask = 3      // of Port Control
	swForward   = 3      //
	swFlood     = 0x000c // unknown addresses pass
	swFrameMode = 0x0300
	swDSA       = 0x0100

	swJumboShift = 12 // of Port Control 2
	swJumbo      = 3 << swJumboShift

	dsaBytes = 4
)

// swFrames are the frame sizes of the jumbo modes, FCS included. Mode 3 is
// reserved; here it passes what the least does.
var swFrames = [4]int{1522, 2048, 10240, 1522}

// swMode is the least mode that lets frames of n bytes pass.
func swMode(n int) uint16 {
	for m, size := range swFrames[:3] {
		if n <= size {
			return uint16(m)
		}
	}
	return 2
}

// ethSwitch is the 88E6193X behind the ten switch ports: its registers, and what
// follows from them for a frame. It lives under the card's lock; every method is
// called with it held.
//
//	MDIORead, MDIOWrite -> smi (switch_smi.go) -> read, write: ports, globals
//	                                              Global2 -> phys, lanes (switch_phy.go)
//	NetAgent            -> agentState
//	frames              -> limits, joined
//
// Port registers that are not named here are storage. What takes a port off the
// path: a state other than forwarding on it or on the uplink, floods of unknown
// addresses forbidden (this model's reading of the link that a blind write took
// down, switch.md 2), the uplink out of DSA mode, a VLAN map without the other. A VLAN
// map that names panel ports bridges them (bridge).
type ethSwitch struct {
	c *Card

	ports   [reg.Ports][reg.PortRegisters]uint16
	globals [2][reg.PortRegisters]uint16 // Global1, Global2
	phys    [reg.Ports]phy               // 1 to 8
	lanes   [reg.Ports]lane              // 0, 9, 10
	other   map[int]uint16               // registers of the 88X5113

	smi, mii command
	foreign  int  // commands that somebody else has run
	tainted  bool // the data register holds somebody else's
	wrong    int  // readings of the data register while SwitchWrongReads counts

	found [reg.Ports]uint16 // register 8 after a start: the field as found, the other bits drawn
	bits  [reg.Ports]uint16 // register 8 as its owners have left it, for all bits but the field
	pages [reg.Ports]uint16 // PHY page after a start, never 0
	short uint32            // SwitchUplink, as it was seen last

	// What a frame meets, kept with the registers so that it costs no decoding.
	limits [reg.Ports]int
	joined [reg.Ports]bool
	peers  [reg.Ports]uint16 // panel ports that frames of a panel port reach without the coprocessor
}

// seedSwitch separates the draws of the switch from those of the coprocessor.
const seedSwitch = 0x88e6193

func newSwitch(c *Card) *ethSwitch {
	s := &ethSwitch{c: c}
	s.smi = command{c: c, run: s.runSMI, stuck: &c.faults.SwitchStuckBusy, fault: fltSwitchStuckBusy}
	s.mii = command{c: c, run: s.runMII, stuck: &c.faults.SwitchPHYStuck, fault: fltSwitchPHYStuck}
	rng := rand.New(rand.NewPCG(uint64(c.o.Seed), seedSwitch))
	for p := range s.found {
		mode := swMode(c.o.SwitchFrame)
		if p == reg.Uplink {
			mode = 2
		}
		s.found[p] = uint16(rng.Uint32())&^swJumbo | mode<<swJumboShift
		s.pages[p] = uint16(1 + rng.IntN(20))
	}
	s.reset()
	return s
}

// reset is a start of the switch, which a start of the coprocessor brings.
func (s *ethSwitch) reset() {
	s.smi.reset()
	s.mii.reset()
	s.tainted = false
	s.bits = s.found
	s.globals = [2][reg.PortRegisters]uint16{}
	s.other = map[int]uint16{}
	for p := range s.ports {
		r := &s.ports[p]
		*r = [reg.PortRegisters]uint16{reg.PortControl: swPanelControl, reg.PortVLANMap: swPanelMap, reg.PortControl2: s.found[p]}
		s.phys[p] = phy{page: s.pages[p]}
		s.lanes[p] = lane{}
		s.power(p, false)
	}
	s.ports[reg.Uplink][reg.PortControl], s.ports[reg.Uplink][reg.PortVLANMap] = swUplinkControl, swUplinkMap
	s.power(reg.Uplink, true)
	s.derive()
}

// derive works out what the registers mean for frames.
func (s *ethSwitch) derive() {
	passes := func(p int) bool {
		v := s.ports[p][reg.PortControl]
		return v&swStateMask == swForward && v&swFlood == swFlood
	}
	up := passes(reg.Uplink) && s.ports[reg.Uplink][reg.PortControl]&swFrameMode == swDSA
	for p := range s.ports {
		s.limits[p] = swFrames[s.ports[p][reg.PortControl2]>>swJumboShift&3]
		s.peers[p] = 0
		for q := range s.ports {
			if p != reg.Uplink && q != reg.Uplink && q != p && passes(p) && passes(q) {
				s.peers[p] |= s.ports[p][reg.PortVLANMap] & (1 << q)
			}
		}
		s.joined[p] = up && passes(p) && s.ports[p][reg.PortVLANMap]&1 != 0 && s.ports[reg.Uplink][reg.PortVLANMap]>>p&1 != 0
	}
}

// cutsIn tells whether a frame of n bytes with FCS that came in at panel port p
// is too long for that port or for the uplink, on which it has its DSA tag
// (choices 29, 30).
func (s *ethSwitch) cutsIn(p, n int) bool {
	return n > s.limits[p] || !s.c.o.Choices.IngressLimitOnly && n+s.dsa() > s.limits[reg.Uplink]
}

// cutsOut is the same of a frame that is to leave at panel port p.
func (s *ethSwitch) cutsOut(p, n int) bool {
	return n+s.dsa() > s.limits[reg.Uplink] || !s.c.o.Choices.IngressLimitOnly && n > s.limits[p]
}

// bridge is a frame that comes in at a panel port whose VLAN map names other panel
// ports (switch.md 4): it leaves there too, past coprocessor and host. The switch's
// address table is not modelled: every frame is one for an unknown address. The packet
// stays the caller's.
func (c *Card) bridge(w *Wire, p *packet) {
	s, n := c.sw, len(p.b)+fcsBytes
	peers := s.peers[w.port.SwitchPort]
	if peers == 0 || c.gone() || !c.ports[w.port.Index].link || len(p.b) < frame.HeaderSize || n > s.limits[w.port.SwitchPort] {
		return
	}
	through := c.now + uint64(n+gapBytes)*w.perByte>>byteFraction + c.lat.sw
	for _, out := range c.wires {
		q := out.port.SwitchPort
		if !out.port.BehindSwitch() || peers>>q&1 == 0 || !c.ports[out.port.Index].link || n > s.limits[q] && !c.o.Choices.IngressLimitOnly {
			continue
		}
		out.stats.Bridged++
		twin := c.pool.get(len(p.b))
		copy(twin.b, p.b)
		twin.id, twin.port = p.id, out.port.Index
		c.switchOut.enter(twin, through)
	}
}

// dsa is what the uplink's limit counts of the DSA tag.
func (s *ethSwitch) dsa() int {
	if s.c.o.Choices.DSAUncounted {
		return 0
	}
	return dsaBytes
}

// agentState is NetAgent's SET state of a panel port: both halves, Port Control
// and the PHY (switch.md 7). That it wakes the lane of a cage, and puts it to
// sleep, is on no record; what the host has to do for a cage is nothing here.
func (s *ethSwitch) agentState(p int, up bool) {
	r := &s.ports[p]
	r[reg.PortControl] &^= swStateMask
	if up {
		r[reg.PortControl] |= swForward
	}
	s.power(p, up)
	if s.c.acts(fltSwitchRewrite, s.c.faults.SwitchRewrite) {
		r[reg.PortControl2] = s.found[p]
	}
	s.derive()
}

// status is Port Status, from the link model.
func (s *ethSwitch) status(p int) uint16 {
	var v uint16
	link := s.c.target.uplink.link
	switch {
	case p == reg.Uplink:
		v = swUplinkPS
	default:
		link = s.c.target.behind(p).link
		v = swCagePS
		if hasPHY(p) {
			v = swCopperPS
			if link {
				v |= swCopperPSL
			}
		}
	}
	if link {
		v |= swLinkBits
	}
	return v
}

// read is an access of a register of a device inside.
func (s *ethSwitch) read(dev, r int) uint16 {
	switch {
	case dev < reg.Ports && r == reg.PortStatus:
		return s.status(dev)
	case dev < reg.Ports && r == reg.Identifier:
		if id := s.c.faults.SwitchID; s.c.acts(fltSwitchID, id != 0) {
			return uint16(id)
		}
		return swID
	case dev < reg.Ports:
		return s.ports[dev][r]
	case dev == reg.Global2 && r == reg.PHYCommand:
		return s.mii.read()
	case dev == reg.Global2 && r == reg.PHYData:
		return s.mii.readData()
	case dev == reg.Global1 || dev == reg.Global2:
		return s.globals[dev-reg.Global1][r]
	}
	return reg.NoAnswer
}

// write is the other one. What is written to Port Status and Identifier is never
// read.
func (s *ethSwitch) write(dev, r int, v uint16) {
	switch {
	case dev < reg.Ports:
		s.writePort(dev, r, v)
	case dev == reg.Global2 && r == reg.PHYCommand:
		s.mii.write(v)
	case dev == reg.Global2 && r == reg.PHYData:
		s.mii.data = v
	case dev == reg.Global1 || dev == reg.Global2:
		s.c.report(ReportSwitchGlobal, "device %#x register %#x = %#04x", dev, r, v)
		s.globals[dev-reg.Global1][r] = v
	}
}

func (s *ethSwitch) writePort(p, r int, v uint16) {
	switch r {
	case reg.PortControl2:
		if (s.bits[p]^v)&^swJumbo != 0 && !s.tainted {
			s.c.report(ReportSwitchBits, "port %d register 8 = %#04x: of bits other than 13:12 it had %#04x", p, v, s.bits[p]&^swJumbo)
		}
		if v&swJumbo == swJumbo {
			s.c.report(ReportSwitchReserved, "port %d register 8 = %#04x: jumbo mode 3", p, v)
		}
		if n := &s.c.faults.SwitchNoStick[p]; s.c.acts(fltSwitchNoStick, *n != 0) {
			if *n > 0 {
				*n--
			}
			return
		}
	case reg.PortVLANMap:
		s.c.report(ReportSwitchMap, "port %d register 6 = %#04x", p, v)
	case reg.PortControl:
		if p == reg.Uplink {
			s.c.report(ReportSwitchUplink, "port 0 register 4 = %#04x", v)
		}
	}
	s.ports[p][r] = v
	s.derive()
}

// faultsChanged lets SwitchUplink take effect.
func (s *ethSwitch) faultsChanged() {
	n := s.c.faults.SwitchUplink
	if n == s.short {
		return
	}
	s.short = n
	mode := uint16(2)
	if n != 0 {
		mode = swMode(int(n))
	}
	s.setMode(&s.found[reg.Uplink], mode)
	s.setMode(&s.ports[reg.Uplink][reg.PortControl2], mode)
	s.derive()
}

func (s *ethSwitch) setMode(r *uint16, mode uint16) { *r = *r&^swJumbo | mode<<swJumboShift }

// behind is the front port at a panel port of the switch.
func (t *target) behind(swPort int) *portState {
	for i := range t.c.ports {
		if board.ByIndex(i).SwitchPort == swPort {
			return &t.c.ports[i]
		}
	}
	return nil
}

// SetSwitchFrame sets the jumbo field of the ten panel ports of the switch to the
// least mode that lets frames of n bytes with FCS pass: what the driver's command
// does. It lasts until the coprocessor starts anew. Functional.
func (c *Card) SetSwitchFrame(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for p := range c.sw.ports {
		if p != reg.Uplink {
			c.sw.setMode(&c.sw.ports[p][reg.PortControl2], swMode(n))
		}
	}
	c.sw.derive()
}

// SwitchRegister is a register of device dev inside the switch. Functional: it
// takes no time and no command.
func (c *Card) SwitchRegister(dev, r int) uint16 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sw.read(dev, r)
}

// SetSwitchRegister writes a register of a port of the switch as somebody else
// does, the coprocessor's own software for one. Functional.
func (c *Card) SetSwitchRegister(port, r int, v uint16) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sw.ports[port][r] = v
	if r == reg.PortControl2 {
		c.sw.bits[port] = v
	}
	c.sw.derive()
}
