package reg

// Registers of Global2 that lead to PHYs and SERDES lanes (switch.md 7).
const (
	PHYCommand = 0x18 // bit 15 Busy, of its own
	PHYData    = 0x19
)

// Operations of clause 45 in PHYCommand; the mode bit is 0.
const (
	opC45Address = 0 << 10
	opC45Write   = 1 << 10
	opC45Read    = 3 << 10
)

// PHYReadCommand is the word for PHYCommand that reads register r of a PHY in
// clause 22.
func PHYReadCommand(phy, r int) uint16 { return ReadCommand(phy, r) }

// PHYWriteCommand writes what PHYData holds.
func PHYWriteCommand(phy, r int) uint16 { return WriteCommand(phy, r) }

// C45AddressCommand takes the register number in PHYData for the accesses that
// follow.
func C45AddressCommand(phy, mmd int) uint16 {
	return Busy | opC45Address | uint16(phy<<devShift|mmd)
}

// C45ReadCommand reads the register that was addressed.
func C45ReadCommand(phy, mmd int) uint16 { return Busy | opC45Read | uint16(phy<<devShift|mmd) }

// C45WriteCommand writes it.
func C45WriteCommand(phy, mmd int) uint16 { return Busy | opC45Write | uint16(phy<<devShift|mmd) }

// Registers of a PHY, clause 22. On a page but 0 all of them read 0.
const (
	PHYControl = 0
	PHYPage    = 22 // selects the page; to be restored

	PHYPowerDown = 1 << 11 // of PHYControl
	PHYHealthy   = 0x1140  // PHYControl: autonegotiation, 1000, full duplex; 0 is a port without autonegotiation
)

// Registers of a SERDES lane, clause 45 in SERDESMMD, in the order in which a
// cage is woken or put to sleep.
const (
	SERDESMMD = 4

	SERDESPower   = 0xf002
	SERDESEnable  = 0xf003
	SERDESControl = 0x2000
)

// Bits of the three.
const (
	SERDESReset     = 1 << 15     // of SERDESPower: clears itself; set by waking and by sleep
	SERDESSleep     = 1 << 5      // of SERDESPower
	SERDESOff       = 1<<8 | 1<<9 // of SERDESEnable
	SERDESPowerDown = 1 << 11     // of SERDESControl
)

// What the three read on a cage that is awake.
const (
	SERDESPowerAwake   = 0x0058
	SERDESEnableAwake  = 0x0004
	SERDESControlAwake = 0x1140
)
