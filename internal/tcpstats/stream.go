package tcpstats

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// What goes through the socket of the service. The client writes lines, the service
// messages: a header and what it says that follows.
//
//	FILTER text   the filter of the reads that come; without one it is the default
//	PROFILE name  likewise, that of a profile as it is now
//	READ id       begin to read; several may be under way, with ids of their own
//	CANCEL id     end that read
//
// Each line is answered by a MessageReply, a read of its own by MessageRecords and one
// MessageEnd.
const (
	// MaxLine is the most that a line has, with its line feed.
	MaxLine = 1024
	// MessageHeader is the size of a message's header.
	MessageHeader = 16
	// MaxMessage is the most that follows a header.
	MaxMessage = ChunkBytes
)

// Kinds of messages.
const (
	MessageReply   = 'A' // a Reply in JSON
	MessageRecords = 'R' // records, back to back
	MessageEnd     = 'E' // an End in JSON
)

// A header's fields.
const (
	mhBytes   = 0  // u32, of what follows
	mhKind    = 4  // u8
	mhVersion = 5  // u8
	mhRead    = 8  // u32, id of the read; 0: none
	mhRecords = 12 // u32, how many records follow
)

// Message is a message's header.
type Message struct {
	Bytes   int
	Kind    byte
	Read    uint32
	Records int
}

// ErrMessage says that bytes are no message.
var ErrMessage = errors.New("no message of this protocol")

// Append appends the header to b.
func (m *Message) Append(b []byte) []byte {
	var h [MessageHeader]byte
	binary.LittleEndian.PutUint32(h[mhBytes:], uint32(m.Bytes))
	h[mhKind], h[mhVersion] = m.Kind, Version
	binary.LittleEndian.PutUint32(h[mhRead:], m.Read)
	binary.LittleEndian.PutUint32(h[mhRecords:], uint32(m.Records))
	return append(b, h[:]...)
}

// Decode reads a header, of which b has MessageHeader bytes.
//
// Errors: ErrShort, ErrMessage.
func (m *Message) Decode(b []byte) error {
	if len(b) < MessageHeader {
		return ErrShort
	}
	n := binary.LittleEndian.Uint32(b[mhBytes:])
	switch kind := b[mhKind]; {
	case b[mhVersion] != Version:
		return fmt.Errorf("%w: version %d, want %d", ErrMessage, b[mhVersion], Version)
	case kind != MessageReply && kind != MessageRecords && kind != MessageEnd:
		return fmt.Errorf("%w: kind %q", ErrMessage, kind)
	case n > MaxMessage:
		return fmt.Errorf("%w: it says that it has %d bytes, more than %d", ErrMessage, n, MaxMessage)
	}
	*m = Message{Bytes: int(n), Kind: b[mhKind], Read: binary.LittleEndian.Uint32(b[mhRead:]), Records: int(binary.LittleEndian.Uint32(b[mhRecords:]))}
	return nil
}

// Code is why something was refused, or ended early: the name of an error number.
type Code string

// Codes.
const (
	CodeOK          Code = ""
	CodeInvalid     Code = "EINVAL"       // the line, or the filter, is not understood
	CodeTooLong     Code = "ENAMETOOLONG" // the filter, or a name
	CodeTooManyOpen Code = "EMFILE"       // max_open_fds
	CodeBusy        Code = "EBUSY"        // max_concurrent_readers, min_read_interval_ms, or the id is in use
	CodeCancelled   Code = "EINTR"
	CodeTimedOut    Code = "ETIMEDOUT" // max_read_duration_ms: what came before is good
	CodeNoProfile   Code = "ENOENT"
	CodeNoSpace     Code = "ENOSPC" // profiles
	CodeNoSource    Code = "ENODEV" // the source is off
	CodeFailed      Code = "EIO"
)

// Reply answers a line.
type Reply struct {
	Code   Code   `json:"code,omitempty"`
	Reason string `json:"reason,omitempty"`
	Offset *int   `json:"offset,omitempty"` // of a filter's text
	Word   string `json:"word,omitempty"`   // of a filter's text
	Filter string `json:"filter"`           // in force, canonical
}

// End is the last of a read. Visited is the sum of Emitted, the Skipped and Aborted.
type End struct {
	Code         Code              `json:"code,omitempty"`
	Reason       string            `json:"reason,omitempty"`
	Partial      bool              `json:"partial"` // not everything was looked at
	Source       string            `json:"source"`
	Visited      uint64            `json:"visited"`
	Emitted      uint64            `json:"emitted"`
	Skipped      map[string]uint64 `json:"skipped"`
	Aborted      uint64            `json:"aborted"`
	PushedDown   []string          `json:"pushed_down"` // what the kernel left out: not visited
	Inconsistent bool              `json:"inconsistent,omitempty"`
	Truncated    uint64            `json:"truncated,omitempty"`
	ElapsedUS    int64             `json:"elapsed_us"`
}
