package ring

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// Adoption record: what a later process needs to go on with a live ring. It
// lies in memory that outlives the process, two copies written in turn, so that
// one is whole whenever the process dies. 64 bytes, little-endian.
const (
	recMagic    = 0  // u32
	recVersion  = 4  // u16
	recKind     = 6  // u8: KindIQ or KindOQ
	recRing     = 7  // u8
	recSeq      = 8  // u64, the higher of two whole copies is the newer
	recRead     = 16 // u64, OQ: entries taken since the ring was armed, free-running
	recTaken    = 24 // u64, OQ: packets taken
	recReturned = 32 // u64, OQ: credit returned, the first grant not counted
	recPosted   = 40 // u64, IQ: instructions posted, free-running
	recFinished = 48 // u64, IQ: instructions finished
	recCarry    = 56 // u32, OQ: credit owed and not returned
	recCRC      = 60 // u32, CRC-32C of the bytes before it
	// RecordSize is the size of one copy.
	RecordSize = 64

	// RecordVersion is the only version there is.
	RecordVersion = 1

	recordMagic = 0x7064786f // "oxdp"
)

// Kinds of ring in a Record.
const (
	KindIQ = 1
	KindOQ = 2
)

// Record is the state of one ring at the end of a pass.
type Record struct {
	Kind     uint8
	Ring     uint8
	Seq      uint64
	Read     uint64
	Taken    uint64
	Returned uint64
	Posted   uint64
	Finished uint64
	Carry    uint32
}

// ErrRecord says that bytes hold no whole adoption record.
var ErrRecord = errors.New("ring: no adoption record")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Put writes the record into b, RecordSize bytes.
func (r *Record) Put(b []byte) {
	_ = b[RecordSize-1]
	le := binary.LittleEndian
	le.PutUint32(b[recMagic:], recordMagic)
	le.PutUint16(b[recVersion:], RecordVersion)
	b[recKind], b[recRing] = r.Kind, r.Ring
	le.PutUint64(b[recSeq:], r.Seq)
	le.PutUint64(b[recRead:], r.Read)
	le.PutUint64(b[recTaken:], r.Taken)
	le.PutUint64(b[recReturned:], r.Returned)
	le.PutUint64(b[recPosted:], r.Posted)
	le.PutUint64(b[recFinished:], r.Finished)
	le.PutUint32(b[recCarry:], r.Carry)
	le.PutUint32(b[recCRC:], crc32.Checksum(b[:recCRC], castagnoli))
}

// Decode reads one copy. It returns ErrRecord, with the reason, when the bytes
// are too few, of another version, or torn.
func (r *Record) Decode(b []byte) error {
	if len(b) < RecordSize {
		return fmt.Errorf("%w: %d bytes", ErrRecord, len(b))
	}
	le := binary.LittleEndian
	switch {
	case le.Uint32(b[recMagic:]) != recordMagic:
		return fmt.Errorf("%w: magic %#x", ErrRecord, le.Uint32(b[recMagic:]))
	case le.Uint16(b[recVersion:]) != RecordVersion:
		return fmt.Errorf("%w: version %d, want %d", ErrRecord, le.Uint16(b[recVersion:]), RecordVersion)
	case le.Uint32(b[recCRC:]) != crc32.Checksum(b[:recCRC], castagnoli):
		return fmt.Errorf("%w: checksum does not match", ErrRecord)
	}
	*r = Record{
		Kind: b[recKind], Ring: b[recRing],
		Seq: le.Uint64(b[recSeq:]), Read: le.Uint64(b[recRead:]), Taken: le.Uint64(b[recTaken:]), Returned: le.Uint64(b[recReturned:]),
		Posted: le.Uint64(b[recPosted:]), Finished: le.Uint64(b[recFinished:]), Carry: le.Uint32(b[recCarry:]),
	}
	return nil
}

// NewestRecord reads the newer whole copy of a pair, 2 x RecordSize bytes.
func NewestRecord(b []byte) (Record, error) {
	if len(b) < 2*RecordSize {
		return Record{}, fmt.Errorf("%w: %d bytes for two copies", ErrRecord, len(b))
	}
	var x, y Record
	ex, ey := x.Decode(b[:RecordSize]), y.Decode(b[RecordSize:])
	switch {
	case ex != nil && ey != nil:
		return Record{}, fmt.Errorf("both copies: %w", errors.Join(ex, ey))
	case ey != nil || (ex == nil && x.Seq > y.Seq):
		return x, nil
	}
	return y, nil
}
