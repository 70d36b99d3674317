// Package reg is the registers of the 88E6193X switch that oxpd needs: the
// multi-chip access words, the port registers and the jumbo field
// (hardware/switch.md 2, 4, 5). Constants and codecs only.
package reg

// Where the switch is, seen from the coprocessor.
const (
	Bus     = 0 // MDIO bus
	Address = 2 // SMI address, clause 22

	Ports  = 11 // 0 uplink, 1 to 8 RJ45, 9 and 10 cages
	Uplink = 0

	Product     = 0x193
	ProductMask = 0xfff0 // of the Identifier register
)

// Multi-chip access: the two registers that the chip answers at its address.
const (
	SMICommand = 0
	SMIData    = 1

	Busy    = 1 << 15
	Clause2 = 1 << 12 // mode: clause 22
	OpRead  = 2 << 10
	OpWrite = 1 << 10

	devShift = 5
)

// Devices inside the chip, besides the port numbers.
const (
	Global1 = 0x1b
	Global2 = 0x1c
)

// ReadCommand is the command word that reads register r of device dev.
func ReadCommand(dev, r int) uint16 { return Busy | Clause2 | OpRead | uint16(dev<<devShift|r) }

// WriteCommand is the command word that writes it.
func WriteCommand(dev, r int) uint16 { return Busy | Clause2 | OpWrite | uint16(dev<<devShift|r) }

// Registers of a port.
const (
	PortStatus   = 0x00
	PortMAC      = 0x01
	Identifier   = 0x03 // 0x1930
	PortControl  = 0x04
	PortVLANMap  = 0x06 // never changed: it keeps panel ports apart
	PortControl2 = 0x08
)

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
