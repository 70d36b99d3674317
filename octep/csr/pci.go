package csr

// PCIClass is the class code: co-processor, base class in bits 23:16
// (endpoint.md 1). The ids are in internal/board.
const PCIClass = 0x0b8000

// Offsets in config space, fixed by the PCI specification, and their widths.
const (
	CfgVendor   = 0x00 // 16 bits; 0xffff: held in reset or link down
	CfgDevice   = 0x02 // 16 bits
	CfgCommand  = 0x04 // 16 bits, CfgCommandMemory and following
	CfgStatus   = 0x06 // 16 bits
	CfgRevision = 0x08 // 8 bits
	CfgClass    = 0x09 // 24 bits: interface, subclass, base class
	CfgBAR0     = 0x10 // three BARs of 64 bits at 0x10, 0x18 and 0x20

	CfgPCIe   = 0x70 // 8 bits: id of the PCI Express capability (endpoint.md 1)
	CfgDevCtl = 0x78 // 16 bits: device control, in that capability

	CfgPCIeID     = 0x10   // what CfgPCIe reads
	CfgVendorNone = 0xffff // what CfgVendor reads when nothing answers
)

// Bits of CfgCommand.
const (
	CfgCommandMemory    = 1 << 1  // the BARs decode
	CfgCommandBusMaster = 1 << 2  // the card may reach host memory
	CfgCommandNoINTx    = 1 << 10 // the card raises no legacy interrupt
)

// CfgDevCtlReset is the bit of CfgDevCtl that asks for a function level reset. Nobody
// sets it (endpoint.md 17.1).
const CfgDevCtlReset = 1 << 15

// BAR4Size is the size of the third BAR, which nobody uses. BAR0Size and
// BAR2Size are with what lies in them.
const BAR4Size = 1 << 20
