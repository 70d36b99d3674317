package hwsim

import (
	"encoding/binary"

	"oxpd/internal/board"
	"oxpd/octep/csr"
)

// Configuration space (endpoint.md 1). Places that no record gives (MSI-X,
// extended capabilities) are this model's choice: software walks the list.
const (
	cfgSubsys  = 0x2c
	cfgCapPtr  = 0x34
	cfgPM      = 0x40 // power management
	cfgPMCtl   = cfgPM + 0x04
	cfgPCIe    = 0x70 // on record
	cfgDevCap  = cfgPCIe + 0x04
	cfgDevCtl  = cfgPCIe + 0x08
	cfgLinkCap = cfgPCIe + 0x0c
	cfgLinkCtl = cfgPCIe + 0x10
	cfgMSIX    = 0xb0
	cfgExt     = 0x100 // VSEC 0x0002, VSEC 0x0001, SR-IOV
	cfgVSEC1   = 0x200
	cfgSRIOV   = 0x240
	cfgFilter  = 0x720 // filter mask register

	cfgSize = 4096

	cmdWritable = csr.CfgCommandMemory | csr.CfgCommandBusMaster | 1<<6 | 1<<8 | 1<<10 // parity, SERR, INTx disable

	devCtlFLR       = 1 << 15
	devCapFLR       = 1 << 28
	msixEnable      = 1 << 15
	msixMaskAll     = 1 << 14
	pmVersion       = 3
	pmStateMask     = 3      // D0 to D3hot
	pmNoSoftReset   = 1 << 3 // registers survive D3hot
	barType64       = 0x4
	capPM           = 0x01
	capPCIe         = 0x10
	capMSIX         = 0x11
	extVSEC         = 0x000b
	extSRIOV        = 0x0010
	sriovCtlEnable  = 1 << 0
	revision        = 1
	sriovTotalVFs   = 64
	pcieEndpointV2  = 0x0002
	linkX8Gen3      = 8<<4 | 3
	statusCapList   = 1 << 4
	cfgSubsysVendor = board.Vendor
)

// configSpace is the 4 KiB of configuration space with its write masks.
type configSpace struct {
	b    [cfgSize]byte
	mask [cfgSize]byte // writable bits
	vf   bool          // that of a virtual function, as its driver is shown it: with ids and a command register of its own
}

func (s *configSpace) put(off int, v, writable uint64, width int) {
	for i := 0; i < width; i++ {
		s.b[off+i], s.mask[off+i] = byte(v>>(8*i)), byte(writable>>(8*i))
	}
}

func (s *configSpace) putBAR(n int, addr, size uint64) {
	s.put(csr.CfgBAR0+4*n, addr|barType64, ^(size - 1), 8)
}

// powerOn fills in the values after a power-on reset, with the BAR addresses
// that the appliance's firmware gave (endpoint.md 1).
func (s *configSpace) powerOn() {
	*s = configSpace{vf: s.vf}
	device, class := uint64(board.DevicePF), uint64(csr.PCIClass)
	if s.vf {
		device, class = board.DeviceVF, vfClass
	}
	s.put(csr.CfgVendor, board.Vendor, 0, 2)
	s.put(csr.CfgDevice, device, 0, 2)
	s.put(csr.CfgCommand, 0, cmdWritable, 2)
	s.put(csr.CfgStatus, statusCapList, 0, 2)
	s.put(csr.CfgRevision, revision|class<<8, 0, 4)
	s.put(0x0c, 0, 0xff, 1) // cache line size
	s.putBAR(0, 0xf0000000, csr.BAR0Size)
	s.put(cfgSubsys, cfgSubsysVendor|device<<16, 0, 4)
	s.put(cfgCapPtr, cfgPM, 0, 1)
	s.put(0x3c, 0, 0xff, 1) // interrupt line

	s.put(cfgPM, capPM|cfgPCIe<<8|pmVersion<<16, 0, 4)
	s.put(cfgPMCtl, pmNoSoftReset, pmStateMask, 2)
	s.put(cfgPCIe, capPCIe|pcieEndpointV2<<16, 0, 4)
	s.put(cfgDevCap, devCapFLR, 0, 4)
	s.put(cfgDevCtl, 0x2810, 0x7fff, 2)
	s.put(cfgLinkCap, linkX8Gen3, 0, 4)
	s.put(cfgLinkCtl, 0, 0x0fff, 2)
	s.put(cfgLinkCtl+2, linkX8Gen3, 0, 2) // link status
	if !s.vf {
		s.powerOnPF()
	}
}

// powerOnPF adds what the physical function alone has.
func (s *configSpace) powerOnPF() {
	s.putBAR(2, 0xec000000, csr.BAR2Size)
	s.putBAR(4, 0xf4800000, csr.BAR4Size)

	s.b[cfgPCIe+1] = cfgMSIX // the next capability
	s.put(cfgMSIX, capMSIX|(csr.MSIXVectors-1)<<16, (msixEnable|msixMaskAll)<<16, 4)
	s.put(cfgMSIX+4, csr.MSIXTable, 0, 4) // BAR0
	s.put(cfgMSIX+8, csr.MSIXPBA, 0, 4)

	s.put(cfgExt, extVSEC|1<<16|cfgVSEC1<<20, 0, 4)
	s.put(cfgExt+4, 0x0002|4<<16|256<<20, 0, 4)
	s.put(cfgVSEC1, extVSEC|1<<16|cfgSRIOV<<20, 0, 4)
	s.put(cfgVSEC1+4, 0x0001|1<<16|56<<20, 0, 4)
	s.put(cfgSRIOV, extSRIOV|1<<16, 0, 4)
	s.put(cfgSRIOV+0x08, 0, 0, 2) // control: VFs are not modelled
	s.put(cfgSRIOV+0x0c, sriovTotalVFs|sriovTotalVFs<<16, 0, 4)
	s.put(cfgSRIOV+0x10, 0, 0xffff, 2) // NumVFs
	s.put(cfgSRIOV+0x1a, board.DeviceVF, 0, 2)
	s.put(cfgSRIOV+0x1c, 0x553, 0, 4) // supported page sizes
	s.put(cfgSRIOV+0x20, 1, 0xffffffff, 4)

	s.put(cfgFilter, 0, 0xffffffff, 4)
}

// loseAddresses leaves the base addresses as a reset does, before anybody gives some.
func (s *configSpace) loseAddresses() {
	for n := 0; n < 6; n += 2 {
		s.b[csr.CfgBAR0+4*n] &= 0xf
		clear(s.b[csr.CfgBAR0+4*n+1 : csr.CfgBAR0+4*n+8])
	}
}

// assigned tells whether a BAR has an address.
func (s *configSpace) assigned(bar int) bool {
	return binary.LittleEndian.Uint64(s.b[csr.CfgBAR0+4*bar:])&^0xf != 0
}

// functionReset keeps what PCIe says survives: BAR addresses.
func (s *configSpace) functionReset() {
	var bars [24]byte
	copy(bars[:], s.b[csr.CfgBAR0:])
	s.powerOn()
	copy(s.b[csr.CfgBAR0:], bars[:])
}

// softReset says in config space whether leaving D3hot is a reset.
func (s *configSpace) softReset(resets bool) {
	s.b[cfgPMCtl] |= pmNoSoftReset
	if resets {
		s.b[cfgPMCtl] &^= pmNoSoftReset
	}
}

// awake tells whether the function is in D0. In D3hot it answers config space and
// nothing else.
func (s *configSpace) awake() bool { return s.b[cfgPMCtl]&pmStateMask == 0 }

func (s *configSpace) busMaster() bool {
	return s.awake() && s.b[csr.CfgCommand]&csr.CfgCommandBusMaster != 0
}

// maxPayload is how many bytes a packet on the link carries at most, as a power of two.
func (s *configSpace) maxPayload() uint { return 7 + uint(s.b[cfgDevCtl]>>5) }

// maxReadRequest is how many bytes one request asks for at most, as a power of two.
func (s *configSpace) maxReadRequest() uint { return 7 + uint(s.b[cfgDevCtl+1]>>4&7) }

func (s *configSpace) memory() bool {
	return s.awake() && s.b[csr.CfgCommand]&csr.CfgCommandMemory != 0
}
func (s *configSpace) msixOn() bool {
	ctl := binary.LittleEndian.Uint16(s.b[cfgMSIX+2:])
	return ctl&msixEnable != 0 && ctl&msixMaskAll == 0
}

// ConfigRead reads 1, 2 or 4 bytes of configuration space, aligned. A card that
// is gone, and an access of another shape (reported), read all-ones.
func (c *Card) ConfigRead(off, width int) uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.configOK("read", off, width) {
		return ^uint32(0)
	}
	var v uint32
	for i := width - 1; i >= 0; i-- {
		v = v<<8 | uint32(c.cfg.b[off+i])
	}
	return v
}

// ConfigWrite writes 1, 2 or 4 bytes; bits that are not writable keep their value.
func (c *Card) ConfigWrite(off, width int, v uint32) {
	c.lock()
	if c.configOK("write", off, width) {
		if c.stopsMastering(off, width, v) {
			// Its answer comes behind what the card has written, and after what it has asked for.
			c.finishLink()
		}
		flr, slept := false, !c.cfg.awake()
		for i := 0; i < width; i++ {
			b, m := byte(v>>(8*i)), c.cfg.mask[off+i]
			c.cfg.b[off+i] = c.cfg.b[off+i]&^m | b&m
			switch off + i {
			case cfgDevCtl + 1:
				flr = b&(devCtlFLR>>8) != 0
			case cfgSRIOV + 0x08:
				if b&sriovCtlEnable != 0 && !c.cfg.vf {
					c.report(ReportSRIOV, "SR-IOV control at %#x: VF enable written; virtual functions are not modelled", cfgSRIOV+0x08)
				}
			}
		}
		if flr || slept && c.acts(fltWakeResets, c.faults.WakeResets && c.cfg.awake()) {
			c.functionReset()
		}
		c.msixPending()
		c.kickRings()
	}
	c.leave()
}

// stopsMastering tells whether a config write turns bus mastering off.
func (c *Card) stopsMastering(off, width int, v uint32) bool {
	at := csr.CfgCommand - off
	return at >= 0 && at < width && c.cfg.busMaster() && v>>(8*at)&csr.CfgCommandBusMaster == 0
}

func (c *Card) configOK(what string, off, width int) bool {
	if c.gone() {
		return false
	}
	if width != 1 && width != 2 && width != 4 || off < 0 || off%width != 0 || off+width > cfgSize {
		c.report(ReportBadWidth, "config %s of %d bytes at %#x", what, width, off)
		return false
	}
	return true
}
