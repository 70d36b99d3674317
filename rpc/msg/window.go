// Package msg is the memory formats of the two control channels: the rpc
// window, its rings, descriptors, command buffers and payloads, and the
// NetAgent mailbox (hardware/rpc-lif.md 2 to 7). Constants and codecs only.
package msg

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"
)

var le = binary.LittleEndian

// ErrShort says that there are fewer bytes than the fixed part needs.
var ErrShort = errors.New("msg: too few bytes")

func short(what string, have int) error { return fmt.Errorf("%w: %s of %d", ErrShort, what, have) }

// State block at the start of the rpc window (rpc-lif.md 2.1).
const (
	StateMagic    = 0 // u32
	StateRevision = 4 // u16
	StateHiRings  = 6 // u8
	StateDone     = 7 // u8, target sets 1
	StateLowRing  = 72
	StateHiRing   = 104 // four rings
	StateSize     = 232

	ConfigMagic = 0xD7D3AB00
	// ConfigIdle is the config word of a target that nobody has configured.
	ConfigIdle = 0x0100000000000000
)

// ConfigWord is the first eight bytes of the window as one little-endian word.
type ConfigWord struct {
	Magic    uint32
	Revision uint16
	HiRings  uint8
	Done     uint8
}

// Word packs the fields for the one 64-bit store.
func (c ConfigWord) Word() uint64 {
	return uint64(c.Magic) | uint64(c.Revision)<<32 | uint64(c.HiRings)<<48 | uint64(c.Done)<<56
}

// UnpackConfig is the inverse of Word.
func UnpackConfig(w uint64) ConfigWord {
	return ConfigWord{uint32(w), uint16(w >> 32), uint8(w >> 48), uint8(w >> 56)}
}

// Ring record in the state block (rpc-lif.md 2.2).
const (
	RingPosted     = 0  // u64
	RingDone       = 8  // u64
	RingOffset     = 16 // u32
	RingDescOffset = 20 // u32
	RingDescCount  = 24 // u32, power of two
	RingNum        = 28 // u8
	RingFacility   = 29 // u8
	RingDoorbell   = 30 // u8, index inside the facility
	RingShared     = 31 // u8
	RingSize       = 32
)

// Descriptor in the window (rpc-lif.md 2.3).
const (
	DescAddr  = 0  // u64, bus address of the command buffer
	DescLen   = 8  // u16, payload only
	DescFlags = 10 // u16
	DescZero  = 12 // u32
	DescSize  = 16

	FlagPost     = 1 // fire and forget: nothing is written back
	FlagNoAggDMA = 2 // always used: reply, payload and done-magic are written
)

// Descriptor is a decoded descriptor.
type Descriptor struct {
	Addr  uint64
	Len   uint16
	Flags uint16
}

// Decode reads a descriptor.
func (d *Descriptor) Decode(b []byte) error {
	if len(b) < DescSize {
		return short("descriptor", len(b))
	}
	*d = Descriptor{le.Uint64(b[DescAddr:]), le.Uint16(b[DescLen:]), le.Uint16(b[DescFlags:])}
	return nil
}

// Append writes the descriptor behind b.
func (d Descriptor) Append(b []byte) []byte {
	b = le.AppendUint64(b, d.Addr)
	b = le.AppendUint16(b, d.Len)
	b = le.AppendUint16(b, d.Flags)
	return le.AppendUint32(b, 0)
}

// Command buffer (rpc-lif.md 2.4).
const (
	ReqRespSize = 0 // u16, room for the reply payload
	ReqZero     = 2 // u8
	ReqCommand  = 3 // u8
	ReqPayload  = 8

	RespRC      = 0 // u16
	RespDone    = 2 // u8, non-zero when an answer was written
	RespSeed    = 4 // u16
	RespLen     = 6 // u16
	RespPayload = 8
	RespMagic   = 4 // bytes of done-magic behind the payload

	BufferSize  = 4096
	BufferAlign = 4096
	HeaderSize  = 8
	RespRoom    = BufferSize - HeaderSize // 4,088
	MaxRequest  = 4064                    // user data that the target's module takes (DATA_MAX 4096, 32 reserved)
)

// AppendRequest writes a command header and payload behind b.
func AppendRequest(b []byte, cmd Command, payload []byte) []byte {
	b = le.AppendUint16(b, RespRoom)
	b = append(b, 0, byte(cmd), 0, 0, 0, 0)
	return append(b, payload...)
}

// Response is the decoded head of a reply; Len is unchecked.
type Response struct {
	RC   RC
	Done uint8
	Seed uint16
	Len  uint16
}

// Decode reads a reply's head.
func (r *Response) Decode(b []byte) error {
	if len(b) < HeaderSize {
		return short("response", len(b))
	}
	*r = Response{RC(le.Uint16(b[RespRC:])), b[RespDone], le.Uint16(b[RespSeed:]), le.Uint16(b[RespLen:])}
	return nil
}

// Append writes a reply's head behind b; the unused byte is zero.
func (r Response) Append(b []byte) []byte {
	b = le.AppendUint16(b, uint16(r.RC))
	b = append(b, r.Done, 0)
	b = le.AppendUint16(b, r.Seed)
	return le.AppendUint16(b, r.Len)
}

// RC is a command's result: three ranges share 16 bits (rpc-lif.md 2.5).
type RC uint16

// Boundaries of the ranges.
const (
	RCOK        RC = 0
	RCRefused   RC = 1
	RCErrnoBase RC = 20     // 21 and up: errno + 20
	RCTransport RC = 0x8000 // bit 15: transport errno in the low bits, not dispatched
)

// Err returns nil for 0 and a *RCError for everything else.
func (r RC) Err() error {
	if r == RCOK {
		return nil
	}
	return &RCError{RC: r}
}

// RCError is a refusal by the target.
type RCError struct{ RC RC }

// Errno returns the handler's or the transport's errno, 0 when the code is none.
func (e *RCError) Errno() syscall.Errno {
	switch {
	case e.RC&RCTransport != 0:
		return syscall.Errno(e.RC &^ RCTransport)
	case e.RC > RCErrnoBase:
		return syscall.Errno(e.RC - RCErrnoBase)
	}
	return 0
}

// Unwrap gives the errno to errors.Is.
func (e *RCError) Unwrap() error {
	if n := e.Errno(); n != 0 {
		return n
	}
	return nil
}

func (e *RCError) Error() string {
	switch {
	case e.RC&RCTransport != 0:
		return fmt.Sprintf("rc 0x%04x: transport: %v, the command was not run", uint16(e.RC), e.Errno())
	case e.RC > RCErrnoBase:
		return fmt.Sprintf("rc %d: handler: %v", e.RC, e.Errno())
	case e.RC == RCRefused:
		return "rc 1: refused"
	default:
		return fmt.Sprintf("rc %d: refused by the fast path, meaning unknown", e.RC)
	}
}
