// Package csr is the register map of the endpoint's BAR0: typed offsets,
// fields, access modes and reset values, and no access to any of them
// (hardware/endpoint.md 1, 2, 4, 5, 8; hardware/datapath.md 1).
//
//	0x000000            MSI-X table, 80 entries of 16 bytes
//	0x004000            MSI-X pending bits
//	0x010000 + n*0x20000  block of ring n, n = 0..63
//	0x020000..0x020190  global SDP registers
//	0x028100..0x028550  global SLI registers
//	0x02c000..0x02c050  SLI window and MAC number
//
// A Reg64 cannot be handed to a 32-bit accessor, nor a Reg32 to a 64-bit one:
// doorbells and acknowledgements are 32-bit stores, everything else is 64 bits
// wide (a 32-bit read-modify-write of OUT_CONTROL loses IDLE). Registers of a
// ring are RingReg and give an offset only together with a ring number.
package csr

import "fmt"

// Geometry of BAR0.
const (
	BAR0Size   = 8 << 20
	Rings      = 64
	ringBase   = 0x10000
	ringStride = 0x20000

	MSIXTable      = 0x0
	MSIXPBA        = 0x4000
	MSIXVectors    = 80
	MSIXEntrySize  = 16
	MSIXRingVector = 16 // ring n signals on vector MSIXRingVector + n
)

// AllOnes is what a load returns when nothing decodes it: the card has gone.
const AllOnes = ^uint64(0)

// Reg64 is the offset in BAR0 of a register that is accessed 64 bits wide.
type Reg64 uint32

// Is64 marks the type for the 64-bit accessors of internal/mmio.
func (Reg64) Is64() {}

// Low is the register's low half for the 32-bit stores of doorbells and counts.
func (r Reg64) Low() Reg32 { return Reg32(r) }

// String names the register and its offset: OUT_CNTS[5][0xb0100].
func (r Reg64) String() string { return Name(uint32(r)) }

// Reg32 is the offset in BAR0 of a 32-bit access.
type Reg32 uint32

// Is32 marks the type for the 32-bit accessors of internal/mmio.
func (Reg32) Is32() {}

// String names the register as Reg64 does.
func (r Reg32) String() string { return Name(uint32(r)) }

// RingReg is the offset of a register inside a ring's block.
type RingReg uint32

// Queue returns the register of ring q. It panics when q is no ring.
func (r RingReg) Queue(q int) Reg64 {
	if q < 0 || q >= Rings {
		panic(fmt.Sprintf("csr: ring %d outside 0..%d", q, Rings-1))
	}
	return Reg64(ringBase + uint32(q)*ringStride + uint32(r))
}

// Registers of one ring. The vendor's name is in the comment. Offsets are from
// the ring's base 0x10000 + q*0x20000.
const (
	InControl    RingReg = 0x000 // R_IN_CONTROL; RW, IDLE is RO
	InEnable     RingReg = 0x010 // R_IN_ENABLE; RW
	InInstrBaddr RingReg = 0x020 // R_IN_INSTR_BADDR; RW while IDLE
	InInstrRsize RingReg = 0x030 // R_IN_INSTR_RSIZE; RW, instructions
	InInstrDBell RingReg = 0x040 // R_IN_INSTR_DBELL; write adds, 0xffffffff drains
	InCnts       RingReg = 0x050 // R_IN_CNTS; write subtracts
	InIntLevels  RingReg = 0x060 // R_IN_INT_LEVELS; RW
	InIntStatus  RingReg = 0x070 // R_IN_INT_STATUS; W1C
	InPktCnt     RingReg = 0x080 // R_IN_PKT_CNT; writing 0 clears
	InByteCnt    RingReg = 0x090 // R_IN_BYTE_CNT; writing 0 clears

	OutCnts       RingReg = 0x100 // R_OUT_CNTS; write subtracts, bit 59 re-evaluates
	OutIntLevels  RingReg = 0x110 // R_OUT_INT_LEVELS; RW
	OutSlistBaddr RingReg = 0x120 // R_OUT_SLIST_BADDR; RW while IDLE
	OutSlistRsize RingReg = 0x130 // R_OUT_SLIST_RSIZE; RW, 0 reads back 16
	OutSlistDBell RingReg = 0x140 // R_OUT_SLIST_DBELL; write adds, 0xffffffff drains while disabled
	OutControl    RingReg = 0x150 // R_OUT_CONTROL; RW, IDLE is RO
	OutEnable     RingReg = 0x160 // R_OUT_ENABLE; RW
	OutIntStatus  RingReg = 0x170 // R_OUT_INT_STATUS; W1C
	OutPktCnt     RingReg = 0x180 // R_OUT_PKT_CNT; writing 0 clears
	OutByteCnt    RingReg = 0x190 // R_OUT_BYTE_CNT; writing 0 clears

	MboxRintStatus RingReg = 0x200 // R_MBOX_RINT_STATUS
	MboxPFVFData   RingReg = 0x210 // R_MBOX_PF_VF_DATA
	MboxPFVFInt    RingReg = 0x220 // R_MBOX_PF_VF_INT; W1C
	MboxVFPFData   RingReg = 0x230 // R_MBOX_VF_PF_DATA
	AllInStatus    RingReg = 0x300 // R_ALL_IN_STATUS; RO, one bit per signalling ring
	ErrType        RingReg = 0x400 // R_ERR_TYPE; W1C
	VFNum          RingReg = 0x500 // R_VF_NUM; RW, 0 = PF
)

// Global registers.
const (
	SDPMboxInt     Reg64 = 0x20000 // SDP MBOX status; W1C
	SDPMboxW1S     Reg64 = 0x20010
	SDPMboxEnaW1C  Reg64 = 0x20020
	SDPMboxEnaW1S  Reg64 = 0x20030
	SDPIRErr       Reg64 = 0x20080 // SDP IRERR status; W1C
	SDPIRErrW1S    Reg64 = 0x20090
	SDPIRErrEnaW1C Reg64 = 0x200a0
	SDPIRErrEnaW1S Reg64 = 0x200b0
	SDPORErr       Reg64 = 0x20100 // SDP ORERR status; W1C
	SDPORErrW1S    Reg64 = 0x20110
	SDPORErrEnaW1C Reg64 = 0x20120
	SDPORErrEnaW1S Reg64 = 0x20130
	SDPOEI         Reg64 = 0x20140 // SDP OEI status; W1C
	SDPOEIW1S      Reg64 = 0x20150
	SDPOEIEnaW1C   Reg64 = 0x20160
	SDPOEIEnaW1S   Reg64 = 0x20170
	SDPScratch     Reg64 = 0x20180 // SDP_SCRATCH(0): magic and barmap pointer; never written by oxpd
	RInfo          Reg64 = 0x20190 // SDP_EPF_RINFO

	SLIScratch     Reg64 = 0x28100 // SLI_EPF_SCRATCH(0): handshake, then started ports
	SLIMisc        Reg64 = 0x28240 // SLI MISC status; W1C
	SLIMiscW1S     Reg64 = 0x28250
	SLIMiscEnaW1C  Reg64 = 0x28260
	SLIMiscEnaW1S  Reg64 = 0x28270
	SLIPPVF        Reg64 = 0x282c0 // SLI PP_VF status; W1C
	SLIPPVFW1S     Reg64 = 0x282d0
	SLIPPVFEnaW1C  Reg64 = 0x282e0
	SLIPPVFEnaW1S  Reg64 = 0x282f0
	SLIDMAVF       Reg64 = 0x28400 // SLI DMA_VF status; W1C
	SLIDMAVFW1S    Reg64 = 0x28410
	SLIDMAVFEnaW1C Reg64 = 0x28420
	SLIDMAVFEnaW1S Reg64 = 0x28430
	SLIDMA         Reg64 = 0x28500 // SLI DMA status; W1C
	SLIDMAW1S      Reg64 = 0x28510
	SLIDMAEnaW1C   Reg64 = 0x28540
	SLIDMAEnaW1S   Reg64 = 0x28550

	WinWriteAddr Reg64 = 0x2c000 // SLI window write address
	WinReadAddr  Reg64 = 0x2c010
	WinWriteData Reg64 = 0x2c020
	WinWriteMask Reg64 = 0x2c030
	WinReadData  Reg64 = 0x2c040
	MACNumber    Reg64 = 0x2c050 // SLI_MAC_NUMBER; low byte = PCIe port
)

// Access is how a register reacts to a store.
type Access uint8

// Access modes.
const (
	RW          Access = iota // plain storage (read-only bits excepted)
	RO                        // stores are ignored
	W1C                       // a one clears the bit
	W1S                       // a one sets the bit of the status register
	EnaW1C                    // a one clears the enable
	EnaW1S                    // a one sets the enable
	WriteAdds                 // doorbell
	WriteSubs                 // acknowledged count
	ClearOnZero               // statistics: writing 0 clears, other values are ignored
	RWIdle                    // RW while the half ring is IDLE
)

// String is the short name that the register reference prints.
func (a Access) String() string {
	return [...]string{"RW", "RO", "W1C", "W1S", "ENA_W1C", "ENA_W1S", "write adds", "write subtracts", "0 clears", "RW while IDLE"}[a]
}

// Field is a mask and a shift that travel together.
type Field struct {
	Shift uint
	Width uint
}

// Mask covers the field where it lies.
func (f Field) Mask() uint64 { return (^uint64(0) >> (64 - f.Width)) << f.Shift }

// Get extracts the field.
func (f Field) Get(v uint64) uint64 { return v & f.Mask() >> f.Shift }

// Put replaces the field in v. A value that does not fit panics: all are
// constants of ours or were checked where they came in.
func (f Field) Put(v, x uint64) uint64 {
	if x>>f.Width != 0 {
		panic(fmt.Sprintf("csr: value %#x does not fit a field of %d bits at %d", x, f.Width, f.Shift))
	}
	return v&^f.Mask() | x<<f.Shift
}

// Fields of RInfo.
var (
	RInfoSRN  = Field{0, 7}   // first ring of this PF
	RInfoTRS  = Field{16, 8}  // total rings
	RInfoRPVF = Field{32, 5}  // rings per VF
	RInfoNVFS = Field{48, 7}  // number of VFs
	ScratchLo = Field{0, 32}  // SDPScratch: magic
	ScratchHi = Field{32, 32} // SDPScratch: barmap offset in BAR2
)

// ScratchMagic in the low half of SDPScratch says that the target's endpoint
// driver is up.
const ScratchMagic = 0xabcdabcd

// ScratchQueuesUp is what the vendor's host driver leaves in SDPScratch: it hides
// the barmap pointer until the coprocessor reboots. oxpd never writes it.
const ScratchQueuesUp = 0x11223344

// Bits of InControl.
const (
	InControlESR       = 1 << 1
	InControlIs64B     = 1 << 24
	InControlIdle      = 1 << 28
	InControlRDSize3   = 3 << 25
	InControlReset     = 0x14000000
	InControlProgram   = 0x17000002
	RInfoReset         = 0x00400000
	OutControlReset    = 0x1000000000
	OutControlIdle     = 1 << 36
	OutControlESP      = 1 << 26
	OutControlIMode    = 1 << 23
	OutControlAttrs    = 7<<24 | 7<<28 | 7<<32 // ES, NSR, ROR of pointer fetch, data and info
	OutControlSizes    = 1<<23 - 1             // BSIZE and ISIZE
	OutCntsIdle        = 0x2000000000000000
	OutCntsResend      = 1 << 59
	OutCntsOutInt      = 1 << 62
	OutCntsInInt       = 1 << 61
	OutIntStatusPacket = 0x10 // seen after a packet
	OutSlistRsizeMin   = 16   // what RSIZE reads after 0 was written
	DBellDrain         = 0xffffffff
	IntLevelNever      = 0xffffffff
)

// Fields of ring registers.
var (
	InControlRPVF     = Field{48, 4}
	InControlRDSize   = Field{25, 2}
	OutControlBSize   = Field{0, 16}
	DBellCount        = Field{0, 32}  // posted and not fetched, or signed credit
	DBellPosition     = Field{32, 32} // fetch position in bytes
	CntsCount         = Field{0, 32}
	OutIntLevelPkts   = Field{0, 32}
	OutIntLevelTicks  = Field{32, 22}
	MACNumberPCIePort = Field{0, 8}
)

// Handshake words of SLIScratch (endpoint.md 4.1).
const (
	HostLoaded         = 0x00000000deadbeef
	GetHostInfo        = 0x00000000beefdeed
	HostInfoReceived   = 0xdeadde // the reply is this << 16 | clocks per microsecond
	HandshakeCompleted = 0x00000000deeddeed

	HostInfoShift = 16     // of HostInfoReceived in the reply
	StartedPorts  = 0xffff // afterwards: bit 0 = PF port started, bit n = that of VF n, at most 15
)

// Fields of the handshake's info word (endpoint.md 4.2).
var (
	InfoRPVF    = Field{0, 8}
	InfoVFSRN   = Field{8, 8}
	InfoNumVFs  = Field{16, 8}
	InfoRPPF    = Field{24, 8}
	InfoPFSRN   = Field{32, 8}
	InfoAppMode = Field{40, 8}
)

// AppModeNIC is the only application mode that the fast path uses.
const AppModeNIC = 2

// ClocksPerUS is the coprocessor's clock on this board in cycles per microsecond,
// which the handshake reports and nothing publishes again (endpoint.md 4.1).
const ClocksPerUS = 800

// ClocksPerTick is the time unit of OutIntLevels in coprocessor clocks
// (datapath.md 1).
const ClocksPerTick = 1024

// TimeTicks turns microseconds into ticks, with the vendor's integer steps
// (endpoint.md 5.2).
func TimeTicks(clocksPerUS, us uint64) uint64 {
	return clocksPerUS * 1000 / ClocksPerTick * us / 1000
}
