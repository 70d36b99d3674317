// Package proto is the messages between oxpd and an inspection engine on a
// SOCK_SEQPACKET socket: one message a datagram, its first byte the type, all integers
// little-endian.
//
//	oxpd -> engine   Hello, Frame, Bye
//	engine -> oxpd   Hello, Verdicts
//
// Parsers check all of a message before anything of it is used, allocate nothing and
// return slices of what they were given.
package proto

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// Version is the one version of the protocol.
const Version = 1

// Magic is at the beginning of a Hello: "OXDI" in memory.
const Magic = 0x4944584f

// Sizes in bytes.
const (
	HelloSize    = 48
	FrameHeader  = 24 // before the frame
	VerdictsHead = 8  // before the records
	RecordSize   = 16 // before a record's frame
	ByeHead      = 4  // before the text
	NameSize     = 32

	MaxMessage = 1 << 16
	MaxRecords = 2048 // of a message
)

// Type is the first byte of a message.
type Type uint8

// Types.
const (
	TypeHello    Type = 1
	TypeFrame    Type = 2
	TypeVerdicts Type = 3
	TypeBye      Type = 4
)

// Code is an engine's decision.
type Code uint8

// Codes.
const (
	Accept     Code = 1 // the frame goes on
	Drop       Code = 2 // it does not
	Replace    Code = 3 // the record's frame goes on in its place
	AcceptFlow Code = 4 // it goes on, and so do the later ones of its connection, which are not shown
)

// Reason is why oxpd closes a connection.
type Reason uint8

// Reasons.
const (
	ReasonBusy     Reason = 1 // another engine is at this socket
	ReasonVersion  Reason = 2 // the engine's Hello is of another version
	ReasonNoHello  Reason = 3 // none came in time
	ReasonShutdown Reason = 4 // oxpd ends
)

// ErrMalformed is wrapped by every parser's error.
var ErrMalformed = errors.New("malformed message")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}

// TypeOf is the type of a message, 0 for an empty one.
func TypeOf(b []byte) Type {
	if len(b) == 0 {
		return 0
	}
	return Type(b[0])
}

// Hello is the first message of either side.
type Hello struct {
	Version  uint8
	MaxFrame uint32 // longest frame in bytes that the sender handles; oxpd's is the longest that it sends
	QueueLen uint32 // oxpd's: frames that may be without a verdict; an engine's is 0
	Name     string // of the sender, for people; at most NameSize bytes of UTF-8
}

// AppendHello appends a message. A longer name is cut.
func AppendHello(b []byte, h *Hello) []byte {
	b = append(b, byte(TypeHello), h.Version, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, Magic)
	b = binary.LittleEndian.AppendUint32(b, h.MaxFrame)
	b = binary.LittleEndian.AppendUint32(b, h.QueueLen)
	var name [NameSize]byte
	copy(name[:], h.Name)
	return append(b, name[:]...)
}

// ParseHello reads a Hello. One of another version is no error, for its sender is to be
// told so: then only Version is set.
func ParseHello(b []byte) (Hello, error) {
	switch {
	case len(b) < 8 || TypeOf(b) != TypeHello || binary.LittleEndian.Uint32(b[4:]) != Magic:
		return Hello{}, malformed("no hello")
	case b[1] != Version:
		return Hello{Version: b[1]}, nil
	case len(b) != HelloSize:
		return Hello{}, malformed("hello of %d bytes, want %d", len(b), HelloSize)
	case b[2] != 0 || b[3] != 0:
		return Hello{}, malformed("hello with reserved bytes set")
	}
	name := b[16:HelloSize]
	n := 0
	for n < len(name) && name[n] != 0 {
		n++
	}
	return Hello{
		Version: b[1], MaxFrame: binary.LittleEndian.Uint32(b[8:]), QueueLen: binary.LittleEndian.Uint32(b[12:]), Name: string(name[:n]),
	}, nil
}

// Frame is a frame that wants a verdict.
type Frame struct {
	ID        uint64
	Port      uint8 // index in the board's table: 0 is oxp1
	Direction uint8 // 0: from the wire to the host; 1: from the host to the wire
	Time      int64 // when oxpd got it, Unix nanoseconds
	Bytes     []byte
}

// At is Time as a time.
func (f *Frame) At() time.Time { return time.Unix(0, f.Time) }

// PutFrameHeader writes what stands before a frame of f.Bytes into the first FrameHeader
// bytes of b.
func PutFrameHeader(b []byte, f *Frame) {
	_ = b[FrameHeader-1]
	b[0], b[1], b[2], b[3] = byte(TypeFrame), f.Port, f.Direction, 0
	binary.LittleEndian.PutUint32(b[4:], uint32(len(f.Bytes)))
	binary.LittleEndian.PutUint64(b[8:], f.ID)
	binary.LittleEndian.PutUint64(b[16:], uint64(f.Time))
}

// ParseFrame reads a Frame; its Bytes are part of b.
func ParseFrame(b []byte) (Frame, error) {
	switch {
	case len(b) < FrameHeader || TypeOf(b) != TypeFrame:
		return Frame{}, malformed("no frame")
	case uint64(binary.LittleEndian.Uint32(b[4:])) != uint64(len(b)-FrameHeader):
		return Frame{}, malformed("frame says %d bytes and has %d", binary.LittleEndian.Uint32(b[4:]), len(b)-FrameHeader)
	case b[2] > 1 || b[3] != 0:
		return Frame{}, malformed("frame with direction %d and flags %#x", b[2], b[3])
	}
	return Frame{
		ID: binary.LittleEndian.Uint64(b[8:]), Port: b[1], Direction: b[2], Time: int64(binary.LittleEndian.Uint64(b[16:])), Bytes: b[FrameHeader:],
	}, nil
}

// Record is one verdict. Frame is for Replace alone.
type Record struct {
	ID    uint64
	Code  Code
	Frame []byte
}

// BeginVerdicts appends the head of a message without records.
func BeginVerdicts(b []byte) []byte {
	return append(b, byte(TypeVerdicts), 0, 0, 0, 0, 0, 0, 0)
}

// AppendRecord appends a verdict to a message that BeginVerdicts began, which is all of
// b. ok is false, and b unchanged, when the message has no room for it.
func AppendRecord(b []byte, r *Record) (_ []byte, ok bool) {
	n := binary.LittleEndian.Uint16(b[2:])
	if n >= MaxRecords || len(b)+RecordSize+len(r.Frame) > MaxMessage {
		return b, false
	}
	binary.LittleEndian.PutUint16(b[2:], n+1)
	b = binary.LittleEndian.AppendUint64(b, r.ID)
	b = append(b, byte(r.Code), 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(r.Frame)))
	return append(b, r.Frame...), true
}

// Verdicts is a message of verdicts that was checked.
type Verdicts struct {
	left int
	rest []byte
}

// ParseVerdicts checks a message: either all of its records can be used, or none.
func ParseVerdicts(b []byte) (Verdicts, error) {
	switch {
	case len(b) < VerdictsHead || len(b) > MaxMessage || TypeOf(b) != TypeVerdicts:
		return Verdicts{}, malformed("no verdicts in %d bytes", len(b))
	case b[1] != 0 || binary.LittleEndian.Uint32(b[4:]) != 0:
		return Verdicts{}, malformed("verdicts with reserved bytes set")
	}
	n := int(binary.LittleEndian.Uint16(b[2:]))
	if n == 0 || n > MaxRecords {
		return Verdicts{}, malformed("%d verdicts, want 1 to %d", n, MaxRecords)
	}
	v := Verdicts{left: n, rest: b[VerdictsHead:]}
	rest := v.rest
	for i := range n {
		if len(rest) < RecordSize {
			return Verdicts{}, malformed("verdict %d of %d is cut", i+1, n)
		}
		code, length := Code(rest[8]), uint64(binary.LittleEndian.Uint32(rest[12:]))
		switch {
		case code < Accept || code > AcceptFlow:
			return Verdicts{}, malformed("verdict %d has code %d", i+1, code)
		case rest[9] != 0 || rest[10] != 0 || rest[11] != 0:
			return Verdicts{}, malformed("verdict %d has reserved bytes set", i+1)
		case code != Replace && length != 0:
			return Verdicts{}, malformed("verdict %d has a frame and is no replacement", i+1)
		case length > uint64(len(rest)-RecordSize):
			return Verdicts{}, malformed("verdict %d has a frame of %d bytes in %d", i+1, length, len(rest)-RecordSize)
		}
		rest = rest[RecordSize+length:]
	}
	if len(rest) != 0 {
		return Verdicts{}, malformed("%d bytes behind the last verdict", len(rest))
	}
	return v, nil
}

// Len is how many verdicts Next has yet.
func (v *Verdicts) Len() int { return v.left }

// Next is the next verdict; its Frame is part of the message. ok is false at the end.
func (v *Verdicts) Next() (r Record, ok bool) {
	if v.left == 0 {
		return Record{}, false
	}
	v.left--
	end := RecordSize + binary.LittleEndian.Uint32(v.rest[12:])
	r = Record{ID: binary.LittleEndian.Uint64(v.rest), Code: Code(v.rest[8])}
	if r.Code == Replace {
		r.Frame = v.rest[RecordSize:end]
	}
	v.rest = v.rest[end:]
	return r, true
}

// Bye is the last message of oxpd. Text is for people.
type Bye struct {
	Reason Reason
	Text   string
}

// AppendBye appends a message.
func AppendBye(b []byte, bye *Bye) []byte {
	b = append(b, byte(TypeBye), byte(bye.Reason), 0, 0)
	return append(b, bye.Text...)
}

// ParseBye reads a Bye.
func ParseBye(b []byte) (Bye, error) {
	if len(b) < ByeHead || TypeOf(b) != TypeBye || b[2] != 0 || b[3] != 0 {
		return Bye{}, malformed("no bye")
	}
	return Bye{Reason: Reason(b[1]), Text: string(b[ByeHead:])}, nil
}
