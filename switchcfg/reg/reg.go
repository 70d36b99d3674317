// Package reg is the registers of the 88E6193X switch that oxpd needs: the
// multi-chip access words, the port registers and the jumbo field, the way to PHYs
// and SERDES lanes (phy.go), and the request of the coprocessor's MDIO device
// (uio.go) (hardware/switch.md 2 to 5, 7). Constants and codecs only.
//
//	MDIO bus 0, address 2      registers 0 command, 1 data
//	  device 0 to 10           ports: 0 uplink, 1 to 8 RJ45, 9 and 10 cages
//	  device 0x1b, 0x1c        Global1, Global2
//	    Global2 0x18, 0x19     command, data
//	      PHY 1 to 8           clause 22, paged by register 22
//	      PHY 0, 9, 10         SERDES lanes, clause 45, MMD 4
package reg

// Where the switch is, seen from the coprocessor.
const (
	Bus     = 0 // MDIO bus
	Address = 2 // SMI address, clause 22

	Ports     = 11 // 0 uplink, 1 to 8 RJ45, 9 and 10 cages
	Uplink    = 0
	FirstPHY  = 1 // RJ45 ports have a PHY inside the switch
	LastPHY   = 8
	FirstCage = 9 // cages, and the uplink, have a SERDES lane
	LastCage  = 10

	Product      = 0x193
	ProductMask  = 0xfff0 // of the Identifier register
	ProductShift = 4      // below it: the revision

	// NoAnswer is what a read gives when nothing answers. It looks like a command
	// register that is busy.
	NoAnswer = 0xffff
)

// Multi-chip access: the two registers that the chip answers at its address.
const (
	SMICommand = 0
	SMIData    = 1

	Busy     = 1 << 15
	Clause22 = 1 << 12 // mode: clause 22
	OpRead   = 2 << 10
	OpWrite  = 1 << 10

	devShift = 5
)

// Devices inside the chip, besides the port numbers.
const (
	Global1 = 0x1b
	Global2 = 0x1c
)

// ReadCommand is the command word that reads register r of device dev.
func ReadCommand(dev, r int) uint16 { return Busy | Clause22 | OpRead | uint16(dev<<devShift|r) }

// WriteCommand is the command word that writes it.
func WriteCommand(dev, r int) uint16 { return Busy | Clause22 | OpWrite | uint16(dev<<devShift|r) }

// Registers of a port.
const (
	PortStatus   = 0x00 // Status
	PortMAC      = 0x01 // forced link and speed; left alone
	Identifier   = 0x03 // ID; 0x1930
	PortControl  = 0x04 // State and frame mode
	PortVLANMap  = 0x06 // never changed: it keeps panel ports apart
	PortControl2 = 0x08 // Jumbo

	PortRegisters = 32
)

// ID is the Identifier register: product and revision.
type ID uint16

// Product is the product number, 12 bits.
func (v ID) Product() int { return int(v & ProductMask >> ProductShift) }

// Revision is that of the silicon, 4 bits.
func (v ID) Revision() int { return int(v &^ ProductMask) }

// Status is the PortStatus register (switch.md 4).
type Status uint16

// Fields of Status.
const (
	StatusLink   Status = 1 << 11
	StatusDuplex Status = 1 << 10 // full

	statusSpeedShift        = 8
	statusSpeedMask  Status = 3 << statusSpeedShift

	CModeMask     Status = 0xf
	CMode1000X    Status = 0x9 // 1000BASE-X
	CMode10GR     Status = 0xd // 10GBASE-R
	CModeInternal Status = 0xf // internal PHY
)

// Link tells whether the port has a link.
func (v Status) Link() bool { return v&StatusLink != 0 }

// FullDuplex tells the duplex, which means nothing without a link.
func (v Status) FullDuplex() bool { return v&StatusDuplex != 0 }

// Speed is the two-bit field: 0 10, 1 100, 2 1000 Mbit/s, 3 more.
func (v Status) Speed() int { return int(v & statusSpeedMask >> statusSpeedShift) }

// CMode is what is behind the port, one of the constants.
func (v Status) CMode() Status { return v & CModeMask }

// State is the field of PortControl, bits 1:0, that says what the port passes.
type State uint8

// States of a port.
const (
	StateDisabled   State = 0
	StateBlocking   State = 1
	StateLearning   State = 2
	StateForwarding State = 3

	StateMask = 3
)

// StateOf extracts the field.
func StateOf(v uint16) State { return State(v & StateMask) }

// Put replaces the field alone.
func (s State) Put(v uint16) uint16 { return v&^StateMask | uint16(s)&StateMask }

// ControlForwarding is PortControl of a panel port that is up. It is written as it
// stands where a cage is woken, and nowhere else.
const ControlForwarding = 0x007f

// Jumbo is the mode field of PortControl2, bits 13:12.
type Jumbo uint8

// Modes. 3 is reserved: reported, never written.
const (
	Jumbo1522     Jumbo = 0
	Jumbo2048     Jumbo = 1
	Jumbo10240    Jumbo = 2
	JumboReserved Jumbo = 3

	jumboShift = 12
	JumboMask  = 3 << jumboShift
)

// JumboOf extracts the field.
func JumboOf(v uint16) Jumbo { return Jumbo(v & JumboMask >> jumboShift) }

// Put replaces the field alone; all other bits stay as they were read.
func (j Jumbo) Put(v uint16) uint16 { return v&^JumboMask | uint16(j)<<jumboShift&JumboMask }

// Overhead is what the switch counts of a frame besides layer 3: the Ethernet header
// and the FCS, bytes.
const Overhead = 14 + 4

// FrameBytes is the longest frame with FCS that the mode lets through, 0 for
// the reserved one.
func (j Jumbo) FrameBytes() int { return [...]int{1522, 2048, 10240, 0}[j&3] }

// Overheads of a frame at the switch, in bytes.
const (
	FCS    = 4
	DSATag = 4 // on the uplink
)

// MTU is the largest layer 3 packet that a panel port and the uplink both pass, whose
// frames have four bytes more on the uplink; 0 when a mode is the reserved one.
func MTU(panel, uplink Jumbo) int {
	return max(0, min(panel.FrameBytes()-Overhead, uplink.FrameBytes()-Overhead-DSATag))
}
