package tcpstats

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
)

// Version is that of records.
const Version = 1

// A record's header.
const (
	hdrSize    = 0 // u16, of the whole record
	hdrVersion = 2 // u8
	hdrFormat  = 3 // u8, a Format
	hdrGroups  = 4 // u16: the blocks that follow
	hdrSource  = 6 // u8, a SourceKind
)

// Format is how a record is laid out.
type Format uint8

// Formats.
const (
	Compact Format = iota
	Full
)

// String is the word of format=.
func (f Format) String() string {
	if f == Full {
		return "full"
	}
	return "compact"
}

// SourceKind is where a record comes from.
type SourceKind uint8

// Sources.
const (
	Host SourceKind = iota
	Flow
)

// String is the word of source=.
func (s SourceKind) String() string {
	if s == Flow {
		return "flow"
	}
	return "host"
}

// Values of fields.
const (
	FlagMapped = 1 // of FieldFlags: an IPv6 socket that speaks IPv4

	OptionTimestamps = 1 << 0 // of FieldOptions, as TCPI_OPT has them
	OptionSACK       = 1 << 1
	OptionWScale     = 1 << 2
	OptionECN        = 1 << 3
	OptionECNSeen    = 1 << 4
	OptionSynData    = 1 << 5

	DirectionIn  = 1 // of FieldDirection: opened from the wire of the port
	DirectionOut = 2

	TimerRetransmit = 1 // of FieldTimer
	TimerKeepalive  = 2
	TimerTimeWait   = 3
	TimerProbe      = 4
)

// Record is one socket or flow, in the layout of the full format. The zero value has no
// field and is no valid record before Reset. Not safe for concurrent use.
type Record struct {
	b [FullSize]byte
}

// Reset takes every field away.
func (r *Record) Reset(from SourceKind) {
	*r = Record{}
	binary.LittleEndian.PutUint16(r.b[hdrSize:], FullSize)
	r.b[hdrVersion], r.b[hdrFormat], r.b[hdrSource] = Version, byte(Full), byte(from)
}

// Source is where the record comes from.
func (r *Record) Source() SourceKind { return SourceKind(r.b[hdrSource]) }

// Put8 stores a value. Like the other Puts it does not say that the field is there: Mark
// does, once for a group. The field's width must be that of the Put.
func (r *Record) Put8(f Field, v uint8) { r.b[f.offset()] = v }

// Put16 is Put8 for two bytes.
func (r *Record) Put16(f Field, v uint16) { binary.LittleEndian.PutUint16(r.b[f.offset():], v) }

// Put32 is Put8 for four bytes.
func (r *Record) Put32(f Field, v uint32) { binary.LittleEndian.PutUint32(r.b[f.offset():], v) }

// Put64 is Put8 for eight bytes.
func (r *Record) Put64(f Field, v uint64) { binary.LittleEndian.PutUint64(r.b[f.offset():], v) }

// PutAddr is Put8 for an address: its two words in host order, that of IPv4 mapped.
func (r *Record) PutAddr(f Field, hi, lo uint64) {
	binary.BigEndian.PutUint64(r.b[f.offset():], hi)
	binary.BigEndian.PutUint64(r.b[f.offset()+8:], lo)
}

// PutText is Put8 for a text, cut at 16 bytes.
func (r *Record) PutText(f Field, s []byte) {
	o := f.offset()
	n := copy(r.b[o:o+16], s)
	clear(r.b[o+n : o+16])
}

// Get32 reads what Put32 stored. It is for sources, which know that it is there.
func (r *Record) Get32(f Field) uint32 { return binary.LittleEndian.Uint32(r.b[f.offset():]) }

// Get64 reads what Put64 stored.
func (r *Record) Get64(f Field) uint64 { return binary.LittleEndian.Uint64(r.b[f.offset():]) }

// Mark says which fields of a group are there: the or of their Bits, 0 for none. It
// replaces what was said of the group before.
func (r *Record) Mark(g Groups, have uint32) {
	binary.LittleEndian.PutUint32(r.b[blockAt[bits.TrailingZeros16(uint16(g))]:], have)
	groups := Groups(binary.LittleEndian.Uint16(r.b[hdrGroups:])) &^ g
	if have != 0 {
		groups |= g
	}
	binary.LittleEndian.PutUint16(r.b[hdrGroups:], uint16(groups))
}

// PutHave is Mark without what Groups tells: a source that fills many groups says that once,
// by PutGroups.
func (r *Record) PutHave(g Groups, have uint32) {
	binary.LittleEndian.PutUint32(r.b[g.block():], have)
}

// PutGroups says which groups have a field, according to what PutHave said.
func (r *Record) PutGroups(g Groups) { binary.LittleEndian.PutUint16(r.b[hdrGroups:], uint16(g)) }

// block is where the block of a single group begins. For a constant it is one.
func (g Groups) block() int {
	switch g {
	case GroupState:
		return statesAt
	case GroupCongestion:
		return congestionAt
	case GroupRTT:
		return rttAt
	case GroupSequences:
		return sequencesAt
	case GroupCounters:
		return countersAt
	case GroupTimers:
		return timersAt
	case GroupBuffers:
		return buffersAt
	case GroupECN:
		return ecnAt
	case GroupNames:
		return namesAt
	}
	return identityAt
}

// Groups are those that have a field.
func (r *Record) Groups() Groups { return Groups(binary.LittleEndian.Uint16(r.b[hdrGroups:])) }

// Have says which fields of a group are there.
func (r *Record) Have(g Groups) uint32 {
	return binary.LittleEndian.Uint32(r.b[blockAt[bits.TrailingZeros16(uint16(g))]:])
}

// Has tells whether a field is there.
func (r *Record) Has(f Field) bool {
	return binary.LittleEndian.Uint32(r.b[blockAt[f.group()]:])&f.Bit() != 0
}

// Uint is the value of a field of up to eight bytes; ok is false when it is absent.
func (r *Record) Uint(f Field) (v uint64, ok bool) {
	if !r.Has(f) {
		return 0, false
	}
	o := f.offset()
	switch f.width() {
	case 1:
		v = uint64(r.b[o])
	case 2:
		v = uint64(binary.LittleEndian.Uint16(r.b[o:]))
	case 4:
		v = uint64(binary.LittleEndian.Uint32(r.b[o:]))
	case 8:
		v = binary.LittleEndian.Uint64(r.b[o:])
	default:
		return 0, false
	}
	return v, true
}

// SetUint stores a value and says that it is there. A value that is wider than the field
// is cut.
func (r *Record) SetUint(f Field, v uint64) {
	switch f.width() {
	case 1:
		r.Put8(f, uint8(v))
	case 2:
		r.Put16(f, uint16(v))
	case 4:
		r.Put32(f, uint32(v))
	case 8:
		r.Put64(f, v)
	default:
		return
	}
	r.Mark(f.Group(), r.Have(f.Group())|f.Bit())
}

// Addr is an address, IPv4 as IPv4, the zero Addr when it is absent.
func (r *Record) Addr(f Field) netip.Addr {
	if !r.Has(f) || f.width() != 16 {
		return netip.Addr{}
	}
	return netip.AddrFrom16([16]byte(r.b[f.offset():])).Unmap()
}

// SetAddr stores an address and says that it is there.
func (r *Record) SetAddr(f Field, a netip.Addr) {
	b := a.As16()
	copy(r.b[f.offset():], b[:])
	r.Mark(f.Group(), r.Have(f.Group())|f.Bit())
}

// Text is a name, empty when it is absent.
func (r *Record) Text(f Field) string {
	if !r.Has(f) || f.width() != 16 {
		return ""
	}
	b := r.b[f.offset() : f.offset()+16]
	n := 0
	for n < len(b) && b[n] != 0 {
		n++
	}
	return string(b[:n])
}

// SetText stores a name and says that it is there.
func (r *Record) SetText(f Field, s string) {
	r.PutText(f, []byte(s))
	r.Mark(f.Group(), r.Have(f.Group())|f.Bit())
}

// Append appends the record, with the groups that were asked for, to b. In the full
// format the other blocks are there without a field.
func (r *Record) Append(b []byte, want Groups, as Format) []byte {
	groups := r.Groups() & want
	if as == Full {
		return r.appendFull(b, groups)
	}
	at := len(b)
	if cap(b)-at < FullSize {
		b = slices.Grow(b, FullSize)
	}
	out := b[at : at+FullSize]
	n, left := headerSize, uint(groups)
	if left&1 != 0 { // the header and the first block lie side by side too
		_, end := run(left)
		n = copy(out, r.b[:blockAt[end]])
		left &= ^uint(0) << end
	}
	for left != 0 {
		first, end := run(left)
		n += copy(out[n:], r.b[blockAt[first]:blockAt[end]])
		left &= ^uint(0) << end
	}
	putHeader(out, n, Compact, groups, r.Source())
	return b[:at+n]
}

// run is the first of a set of groups, and the group behind those that follow it without a
// gap: their blocks lie side by side.
func run(groups uint) (first, end int) {
	first = bits.TrailingZeros(groups)
	return first, first + bits.TrailingZeros(^(groups >> first))
}

// putHeader writes a record's header.
func putHeader(b []byte, size int, as Format, groups Groups, from SourceKind) {
	binary.LittleEndian.PutUint64(b, uint64(size)<<(8*hdrSize)|Version<<(8*hdrVersion)|uint64(as)<<(8*hdrFormat)|uint64(groups)<<(8*hdrGroups)|uint64(from)<<(8*hdrSource))
}

// appendFull appends the record in the full format, the blocks of other groups empty.
func (r *Record) appendFull(b []byte, groups Groups) []byte {
	at := len(b)
	b = append(b, r.b[:]...)
	out := b[at:]
	for left := uint(AllGroups &^ groups); left != 0; {
		first, end := run(left)
		clear(out[blockAt[first]:blockAt[end]])
		left &= ^uint(0) << end
	}
	putHeader(out, FullSize, Full, groups, r.Source())
	return b
}

// Errors of Decode.
var (
	// ErrShort says that the bytes end before the record does.
	ErrShort = errors.New("the record is not whole")
	// ErrRecord says that the bytes are no record.
	ErrRecord = errors.New("no record")
)

// Decode reads the record that begins b and returns its size. Bytes of b behind it are not
// looked at. A record that is longer than what its blocks take has fields that this
// program does not know: they are left out.
//
// Errors: ErrShort, ErrRecord.
func (r *Record) Decode(b []byte) (int, error) {
	if len(b) < headerSize {
		return 0, ErrShort
	}
	size := int(binary.LittleEndian.Uint16(b[hdrSize:]))
	groups := Groups(binary.LittleEndian.Uint16(b[hdrGroups:]))
	switch {
	case size < headerSize:
		return 0, fmt.Errorf("%w: it says that it has %d bytes", ErrRecord, size)
	case b[hdrVersion] != Version:
		return 0, fmt.Errorf("%w of this program: version %d, want %d", ErrRecord, b[hdrVersion], Version)
	case b[hdrFormat] > byte(Full):
		return 0, fmt.Errorf("%w: format %d", ErrRecord, b[hdrFormat])
	case b[hdrSource] > byte(Flow):
		return 0, fmt.Errorf("%w: source %d", ErrRecord, b[hdrSource])
	case groups&^AllGroups != 0:
		return 0, fmt.Errorf("%w: groups %#x", ErrRecord, uint16(groups))
	case size > len(b):
		return 0, ErrShort
	}
	r.Reset(SourceKind(b[hdrSource]))
	full := Format(b[hdrFormat]) == Full
	var from [groupCount]int // where each block is in b, 0 for those that are not
	at := headerSize
	for g := range groupCount {
		bytes := blockAt[g+1] - blockAt[g]
		there := groups>>g&1 != 0
		if !there && !full {
			continue
		}
		if at+bytes > size {
			return 0, fmt.Errorf("%w: %d bytes are too few for its groups %#x", ErrRecord, size, uint16(groups))
		}
		if there {
			from[g] = at
			r.Mark(1<<g, binary.LittleEndian.Uint32(b[at:])&known[g])
		}
		at += bytes
	}
	// Only what is there is taken: what lies between means nothing.
	for i := range fields {
		f := fields[i].Field
		if g := f.group(); from[g] != 0 && r.Has(f) {
			o := f.offset()
			copy(r.b[o:o+f.width()], b[from[g]+o-blockAt[g]:])
		}
	}
	return size, nil
}

// known has the bits of the fields of each group.
var known = func() (k [groupCount]uint32) {
	for _, i := range fields {
		k[i.Field.group()] |= i.Field.Bit()
	}
	return k
}()

// Drop takes a field away.
func (r *Record) Drop(f Field) {
	clear(r.b[f.offset() : f.offset()+f.width()])
	r.Mark(f.Group(), r.Have(f.Group())&^f.Bit())
}
