package ring

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// Adoption record: what a later process needs to go on with a live ring. It lies in
// memory that outlives the process, two copies written in turn, so that one is whole
// whenever the process dies. 64 bytes, little-endian. The head and the checksum are
// those of all kinds, the rest is the kind's; bytes in no field are zero.
const (
	recMagic   = 0 // u32
	recVersion = 4 // u16
	recKind    = 6 // u8: KindIQ, KindOQ or KindHeader
	recRing    = 7 // u8
	recSeq     = 8 // u64, the higher of two whole copies is the newer

	// Of an output queue.
	recRead     = 16 // u64, entries taken since the ring was armed, free-running
	recTaken    = 24 // u64, packets taken
	recReturned = 32 // u64, credit returned, the first grant not counted
	recCarry    = 40 // u32, credit owed and not returned
	recDebt     = 44 // u32, packets taken whose counts may still come

	// Of the input queue.
	recPosted   = 16 // u64, instructions announced, free-running
	recFinished = 24 // u64, instructions finished at the last look
	recLast     = 32 // u32, low half of IN_CNTS at that look

	// Of the header.
	recWatermark  = 16 // u32
	recClocks     = 20 // u32, per microsecond; 0 before the handshake
	recRegions    = 24 // u32, CRC-32C of the bus addresses of all other regions
	recIQSlots    = 28 // u16
	recSlotStride = 30 // u16
	recOQs        = 32 // u16
	recOQEntries  = 34 // u16
	recBufSize    = 36 // u16
	recBufStride  = 38 // u16
	recHandshake  = 40 // u8, see Rings.NoteHandshake

	recCRC = 60 // u32, CRC-32C of the bytes before it
	// RecordSize is the size of one copy.
	RecordSize = 64

	// RecordVersion is the only version that is read or written. Version 1 said
	// nothing of the middle of a pass.
	RecordVersion = 2

	recordMagic = 0x7064786f // "oxdp"
)

// Kinds of record.
const (
	KindIQ     = 1
	KindOQ     = 2
	KindHeader = 3
)

// Record is the state of one ring at the end of a pass or burst. Which fields are
// kept depends on Kind.
type Record struct {
	Kind uint8
	Ring uint8
	Seq  uint64

	Read     uint64
	Taken    uint64
	Returned uint64
	Carry    uint32
	Debt     uint32

	Posted   uint64
	Finished uint64
	Last     uint32
}

// Header is what all rings have in common, and what a later process must agree with.
type Header struct {
	Watermark uint32
	Clocks    uint32 // coprocessor clocks per microsecond; 0: the handshake has not told them
	Handshake uint8  // see Rings.NoteHandshake
	Regions   uint32 // see regionSum
	Geometry  Geometry
}

// Geometry is how the rings lie in memory.
type Geometry struct {
	IQSlots, SlotStride, OQs, OQEntries, BufSize, BufStride uint16
}

// ErrRecord says that bytes hold no whole adoption record.
var ErrRecord = errors.New("ring: no adoption record")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// seal writes the head of a record, and the checksum over what is there.
func seal(b []byte, kind, ring uint8, seq uint64) {
	le := binary.LittleEndian
	le.PutUint32(b[recMagic:], recordMagic)
	le.PutUint16(b[recVersion:], RecordVersion)
	b[recKind], b[recRing] = kind, ring
	le.PutUint64(b[recSeq:], seq)
	le.PutUint32(b[recCRC:], crc32.Checksum(b[:recCRC], castagnoli))
}

// whole tells why one copy is not a whole record.
func whole(b []byte) error {
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
	return nil
}

// Put writes the record of a ring into b, RecordSize bytes that hold no other kind.
func (r *Record) Put(b []byte) {
	_ = b[RecordSize-1]
	le := binary.LittleEndian
	if r.Kind == KindIQ {
		le.PutUint64(b[recPosted:], r.Posted)
		le.PutUint64(b[recFinished:], r.Finished)
		le.PutUint32(b[recLast:], r.Last)
	} else {
		le.PutUint64(b[recRead:], r.Read)
		le.PutUint64(b[recTaken:], r.Taken)
		le.PutUint64(b[recReturned:], r.Returned)
		le.PutUint32(b[recCarry:], r.Carry)
		le.PutUint32(b[recDebt:], r.Debt)
	}
	seal(b, r.Kind, r.Ring, r.Seq)
}

// Decode reads one copy of a ring's record. It returns ErrRecord, with the reason,
// when the bytes are too few, of another version or kind, or torn.
func (r *Record) Decode(b []byte) error {
	if err := whole(b); err != nil {
		return err
	}
	le := binary.LittleEndian
	got := Record{Kind: b[recKind], Ring: b[recRing], Seq: le.Uint64(b[recSeq:])}
	switch got.Kind {
	case KindIQ:
		got.Posted, got.Finished, got.Last = le.Uint64(b[recPosted:]), le.Uint64(b[recFinished:]), le.Uint32(b[recLast:])
	case KindOQ:
		got.Read, got.Taken, got.Returned = le.Uint64(b[recRead:]), le.Uint64(b[recTaken:]), le.Uint64(b[recReturned:])
		got.Carry, got.Debt = le.Uint32(b[recCarry:]), le.Uint32(b[recDebt:])
	default:
		return fmt.Errorf("%w: kind %d is not a ring's", ErrRecord, got.Kind)
	}
	*r = got
	return nil
}

// put writes the header into b, RecordSize bytes.
func (h *Header) put(b []byte, seq uint64) {
	_ = b[RecordSize-1]
	le := binary.LittleEndian
	le.PutUint32(b[recWatermark:], h.Watermark)
	le.PutUint32(b[recClocks:], h.Clocks)
	le.PutUint32(b[recRegions:], h.Regions)
	g := &h.Geometry
	le.PutUint16(b[recIQSlots:], g.IQSlots)
	le.PutUint16(b[recSlotStride:], g.SlotStride)
	le.PutUint16(b[recOQs:], g.OQs)
	le.PutUint16(b[recOQEntries:], g.OQEntries)
	le.PutUint16(b[recBufSize:], g.BufSize)
	le.PutUint16(b[recBufStride:], g.BufStride)
	b[recHandshake] = h.Handshake
	seal(b, KindHeader, 0, seq)
}

func (h *Header) decode(b []byte) error {
	if err := whole(b); err != nil {
		return err
	}
	if b[recKind] != KindHeader {
		return fmt.Errorf("%w: kind %d is not a header", ErrRecord, b[recKind])
	}
	le := binary.LittleEndian
	*h = Header{
		Watermark: le.Uint32(b[recWatermark:]), Clocks: le.Uint32(b[recClocks:]), Handshake: b[recHandshake], Regions: le.Uint32(b[recRegions:]),
		Geometry: Geometry{
			IQSlots: le.Uint16(b[recIQSlots:]), SlotStride: le.Uint16(b[recSlotStride:]), OQs: le.Uint16(b[recOQs:]),
			OQEntries: le.Uint16(b[recOQEntries:]), BufSize: le.Uint16(b[recBufSize:]), BufStride: le.Uint16(b[recBufStride:]),
		},
	}
	return nil
}

// newest returns the newer whole copy of a pair, 2 x RecordSize bytes.
func newest(b []byte) ([]byte, error) {
	if len(b) < 2*RecordSize {
		return nil, fmt.Errorf("%w: %d bytes for two copies", ErrRecord, len(b))
	}
	x, y := b[:RecordSize], b[RecordSize:2*RecordSize]
	ex, ey := whole(x), whole(y)
	switch {
	case ex != nil && ey != nil:
		return nil, fmt.Errorf("%w; its other copy: %w", ex, ey)
	case ey != nil || ex == nil && binary.LittleEndian.Uint64(x[recSeq:]) > binary.LittleEndian.Uint64(y[recSeq:]):
		return x, nil
	}
	return y, nil
}

// NewestRecord reads the newer whole copy of a ring's pair.
func NewestRecord(b []byte) (Record, error) {
	var r Record
	b, err := newest(b)
	if err == nil {
		err = r.Decode(b)
	}
	return r, err
}

// mark is how far a pass or burst has come since the last record: one word, so that
// it is never torn, and cheap enough to be written several times a pass. A mark of
// another record than the newest is an old one.
//
//	 0..10  entries   output queue: handed on, their buffers are the driver's no more
//	11..21  packets   output queue: in those entries, to be acknowledged.
//	                  Input queue: committed and not announced
//	22..28  frames    being handed to the sink at this moment, none of them in entries
//	29      loose     the counts of those packets may never come
//	32..63  low half of the record's sequence number
type mark struct {
	entries uint32
	packets uint32
	frames  uint32
	loose   bool
}

const (
	markPackets = 11
	markFrames  = 22
	markLoose   = 29
	markSeq     = 32
	markMask    = 1<<markPackets - 1 // of entries and of packets
	frameMask   = 1<<(markLoose-markFrames) - 1
)

func (m mark) word(seq uint64) uint64 {
	w := uint64(m.entries&markMask) | uint64(min(m.packets, markMask))<<markPackets | uint64(m.frames&frameMask)<<markFrames | seq<<markSeq
	if m.loose {
		w |= 1 << markLoose
	}
	return w
}

func decodeMark(w uint64) (m mark, seq uint32) {
	return mark{
		entries: uint32(w) & markMask,
		packets: uint32(w>>markPackets) & markMask,
		frames:  uint32(w>>markFrames) & frameMask,
		loose:   w>>markLoose&1 != 0,
	}, uint32(w >> markSeq)
}

// recorder writes what a later process goes by: the records of a ring, two copies in
// turn, and the mark between two of them.
//
// A process that is killed stops between two instructions of each of its threads, and
// what it has stored by then is there: plain stores in the order of the program are
// all that is needed.
type recorder struct {
	mem []byte   // 2 x RecordSize
	at  *[8]byte // the mark
	seq uint64
}

func (r *recorder) put(rec *Record) {
	r.seq++
	rec.Seq = r.seq
	rec.Put(r.next())
}

// next is the copy that the record of this sequence number goes to.
func (r *recorder) next() []byte { return r.mem[int(r.seq&1)*RecordSize:][:RecordSize] }

func (r *recorder) mark(m mark) { binary.LittleEndian.PutUint64(r.at[:], m.word(r.seq)) }

// pending is the mark of n committed instructions, without the rest of it: it is
// written for every frame.
func (r *recorder) pending(n uint32) {
	binary.LittleEndian.PutUint64(r.at[:], uint64(n)<<markPackets|r.seq<<markSeq)
}

// Layout of the region of the records: the header's pair, the input queue's, then
// one for each output queue; and on the next page their marks, a cache line each in
// the same order.
const (
	recordHeader = 0
	recordIQ     = 1
	recordOQ     = 2

	recordMarks = 4096
	markStride  = 64
	recordsSize = recordMarks + 4096
)
