// Package wire is the memory formats of the packet rings: the instruction of
// an input queue, the private header in front of a posted frame, the buffer
// list entry and the prefix of a received packet, and the arithmetic of spans
// (hardware/datapath.md 2 and 3, hardware/endpoint.md 6). Constants and codecs
// only; device memory is touched elsewhere.
package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Geometry that oxpd gives the rings (datapath.md, numbers table).
const (
	InstrSize  = 64    // bytes of an instruction, IS_64B set
	IQSlots    = 256   // instructions of the input queue
	OQEntries  = 1024  // entries of an output queue
	OQs        = 8     // output queues in use, 0 to 7: promised in the handshake, flows are spread over all
	BufSize    = 1602  // BSIZE, bytes of a receive buffer: 1,536 + 66
	ListEntry  = 16    // bytes of a buffer list entry
	FetchBatch = 16    // list entries that the block takes at a time
	Watermark  = 0x400 // credit under which this appliance's firmware stops fetching
	FrameRoom  = 9216  // bytes that a TX slot has for a frame at least, and a gather buffer: 9,000 + 14 + 4 fits
)

// Distances of two TX slots and of two receive buffers, for the CPU and for the
// device alike: addresses are multiples of 64.
const (
	SlotStride = (FrameRoom + PrivSize + align - 1) &^ (align - 1) // 9,344
	BufStride  = (BufSize + align - 1) &^ (align - 1)              // 1,664

	align = 64
)

// Grant is the first and largest credit of an output queue (design.md rule 3).
func Grant(entries, watermark int) int { return entries + watermark - FetchBatch }

// Private header in front of a posted frame (datapath.md 2.2, 2.3).
const (
	PrivTag   = 0  // u16 big-endian, port tag
	PrivMeta  = 2  // 64 bytes of metadata
	MetaValid = 0  // in the metadata: 1
	MetaEncr  = 1  // in the metadata: 0 for a clear frame
	MetaSA    = 12 // in the metadata: u32 little-endian association handle
	PrivSize  = 66

	MaxTxFrame = SlotStride - PrivSize // 9,278
)

// Instruction constants (datapath.md 2.1).
const (
	FrontSize   = 28 // fsz: 16 + 4 + 8
	PKind       = 40 // plus the number of VFs announced, which is 0
	SL          = FrontSize + PrivSize
	Opcode      = 0x1220
	OpcodeCmd   = 0x1221 // a command form that the fast path does not know
	RlenssZ     = 81     // checksum offset: PrivSize + Ethernet header + 1; 0 with a non-IP frame kills the fast path
	MaxInstrLen = 0xffff
)

// Offsets of the instruction's words.
const (
	InstrDptr  = 0  // u64 le
	InstrIH3   = 8  // u64 le
	InstrPKI   = 16 // u64 le
	InstrRptr  = 24 // u64 be
	InstrIRH   = 32 // u64 be
	InstrExtra = 40 // three words, zero
)

// Bit positions of ih3, pki_ih3 and irh.
const (
	IH3TlenMask     = 0xffff
	IH3PKindShift   = 36 // 41:36
	IH3FszShift     = 42 // 47:42
	IH3GszShift     = 48 // 61:48
	IH3GszMask      = 0x3fff
	IH3Gather       = 1 << 62
	PKITagTypeShift = 45
	PKIUtt          = 1 << 47
	PKISlShift      = 48 // 55:48
	PKIW            = 1 << 63
	IRHRlenssShift  = 20 // 33:20
	IRHRlenssMask   = 0x3fff
	IRHOpcodeShift  = 48
)

// Instruction is a decoded instruction, the fields that anybody here uses.
type Instruction struct {
	Dptr   uint64
	Tlen   uint16 // front data + private header + frame
	PKind  uint8
	Fsz    uint8
	Gsz    uint16
	Gather bool
	PKI    uint64
	Rptr   uint64
	Rlenss uint16
	Opcode uint16
	IRH    uint64
}

// ErrShort says that there are fewer bytes than the fixed part needs.
var ErrShort = errors.New("wire: too few bytes")

const (
	pkiData = uint64(PKIUtt) | SL<<PKISlShift | uint64(PKIW)
	ih3Data = uint64(PKind)<<IH3PKindShift | uint64(FrontSize)<<IH3FszShift
	irhData = uint64(Opcode)<<IRHOpcodeShift | uint64(RlenssZ)<<IRHRlenssShift
)

// PutInstruction writes the 64 bytes of a data instruction into b: dptr is the
// slot's bus address, frameBytes the padded frame length, at most MaxTxFrame.
func PutInstruction(b []byte, dptr uint64, frameBytes int) {
	_ = b[InstrSize-1]
	tlen := uint64(FrontSize + PrivSize + frameBytes)
	binary.LittleEndian.PutUint64(b[InstrDptr:], dptr)
	binary.LittleEndian.PutUint64(b[InstrIH3:], ih3Data|tlen)
	binary.LittleEndian.PutUint64(b[InstrPKI:], pkiData)
	binary.BigEndian.PutUint64(b[InstrRptr:], 0)
	binary.BigEndian.PutUint64(b[InstrIRH:], irhData)
	clear(b[InstrExtra:InstrSize])
}

// Decode reads an instruction.
func (in *Instruction) Decode(b []byte) error {
	if len(b) < InstrSize {
		return fmt.Errorf("%w: instruction of %d", ErrShort, len(b))
	}
	ih3 := binary.LittleEndian.Uint64(b[InstrIH3:])
	irh := binary.BigEndian.Uint64(b[InstrIRH:])
	*in = Instruction{
		Dptr:   binary.LittleEndian.Uint64(b[InstrDptr:]),
		Tlen:   uint16(ih3 & IH3TlenMask),
		PKind:  uint8(ih3 >> IH3PKindShift & 0x3f),
		Fsz:    uint8(ih3 >> IH3FszShift & 0x3f),
		Gsz:    uint16(ih3 >> IH3GszShift & IH3GszMask),
		Gather: ih3&IH3Gather != 0,
		PKI:    binary.LittleEndian.Uint64(b[InstrPKI:]),
		Rptr:   binary.BigEndian.Uint64(b[InstrRptr:]),
		Rlenss: uint16(irh >> IRHRlenssShift & IRHRlenssMask),
		Opcode: uint16(irh >> IRHOpcodeShift),
		IRH:    irh,
	}
	return nil
}

// PutPrivate writes the 66 bytes in front of a clear frame: tag, metadata valid,
// all else zero. A stale byte here can send a clear frame to encryption.
func PutPrivate(b []byte, tag uint16) {
	clear(b[:PrivSize])
	binary.BigEndian.PutUint16(b[PrivTag:], tag)
	b[PrivMeta+MetaValid] = 1
}

// Private is a decoded private header.
type Private struct {
	Tag     uint16
	Valid   bool
	Encrypt bool
	SA      uint32
}

// Decode reads a private header.
func (p *Private) Decode(b []byte) error {
	if len(b) < PrivSize {
		return fmt.Errorf("%w: private header of %d", ErrShort, len(b))
	}
	m := b[PrivMeta:]
	*p = Private{
		Tag:     binary.BigEndian.Uint16(b[PrivTag:]),
		Valid:   m[MetaValid]&1 != 0,
		Encrypt: m[MetaEncr] != 0,
		SA:      binary.LittleEndian.Uint32(m[MetaSA:]),
	}
	return nil
}

// PutListEntry writes a buffer list entry; the info address is not used.
func PutListEntry(b []byte, buf uint64) {
	_ = b[ListEntry-1]
	binary.LittleEndian.PutUint64(b, buf)
	binary.LittleEndian.PutUint64(b[8:], 0)
}

// DecodeListEntry reads the buffer address of a list entry.
func DecodeListEntry(b []byte) (buf uint64, err error) {
	if len(b) < ListEntry {
		return 0, fmt.Errorf("%w: list entry of %d", ErrShort, len(b))
	}
	return binary.LittleEndian.Uint64(b), nil
}

// Prefix of a punted packet, in its first buffer (datapath.md 3.3).
const (
	PfxLength  = 0  // u64 be: bytes that follow this word
	PfxResp    = 8  // response word
	PfxTag     = 16 // u16 be
	PfxID      = 18 // u32 le, constant
	PfxValid   = 23 // 1
	PfxPort    = 24 // u16 le
	PfxFlow    = 26 // u32 le
	PfxSA      = 34 // u16 le
	PrefixSize = 82

	LenWord      = 8                                             // bytes of the length word
	LenOverhead  = PrefixSize - LenWord                          // 74: L = 74 + frame
	MaxLength    = 65535                                         // a larger L is nonsense
	MaxBuffers   = (MaxLength + LenWord + BufSize - 1) / BufSize // of a packet of that length
	PrefixID     = 0xb44399a2
	RespPunt     = 0x8003000000000000   // as a little-endian u64, low confidence
	FirstPayload = BufSize - PrefixSize // 1,520 bytes of frame in the first buffer

	// Poison is what the first eight bytes of an empty buffer hold. The
	// coprocessor clears nothing, so zero is as empty as poison.
	Poison     = 0xa5a5a5a5a5a5a5a5
	PoisonByte = 0xa5
)

// Buffers is how many buffers of BufSize bytes a packet with length word l
// takes: ceil((l + 8) / 1602) (datapath.md 3.6).
func Buffers(l int) int { return (l + LenWord + BufSize - 1) / BufSize }

// Prefix is a decoded prefix.
type Prefix struct {
	Length uint64 // L, unchecked
	Tag    uint16
	Valid  bool
	Port   uint16
	Flow   uint32
	SA     uint16
}

// Decode reads the prefix of a packet's first buffer.
func (p *Prefix) Decode(b []byte) error {
	if len(b) < PrefixSize {
		return fmt.Errorf("%w: prefix of %d", ErrShort, len(b))
	}
	*p = Prefix{
		Length: binary.BigEndian.Uint64(b[PfxLength:]),
		Tag:    binary.BigEndian.Uint16(b[PfxTag:]),
		Valid:  b[PfxValid] == 1,
		Port:   binary.LittleEndian.Uint16(b[PfxPort:]),
		Flow:   binary.LittleEndian.Uint32(b[PfxFlow:]),
		SA:     binary.LittleEndian.Uint16(b[PfxSA:]),
	}
	return nil
}

// PutPrefix writes everything of a prefix but its length word, which goes last
// and in one store: a receiver takes it for the arrival of the packet.
func PutPrefix(b []byte, tag, port uint16) {
	_ = b[PrefixSize-1]
	binary.LittleEndian.PutUint64(b[PfxResp:], RespPunt)
	clear(b[PfxTag:PrefixSize])
	binary.BigEndian.PutUint16(b[PfxTag:], tag)
	binary.LittleEndian.PutUint32(b[PfxID:], PrefixID)
	b[PfxValid] = 1
	binary.LittleEndian.PutUint16(b[PfxPort:], port)
}

// Control messages (datapath.md 2.6, 3.4): tag 254, this EtherType at frame
// offset 12, then u16 0, u8 type, u8 version.
const (
	ControlEtherType = 0xefef
	ControlVersion   = 1
	ControlMaxType   = 6
	ControlPortSpeed = 7
	ControlFrame     = 86
)
