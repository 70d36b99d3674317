package ring

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/ring/wire"
)

var record = Record{Kind: KindOQ, Ring: 5, Seq: 9, Read: 1<<40 + 3, Taken: 77, Returned: 1 << 33, Carry: 0xfffffff1, Debt: 6}

// Version 2, byte by byte. These are never changed: what is changed is the version.
func TestGoldenRecords(t *testing.T) {
	for name, tc := range map[string]struct {
		put  func(b []byte)
		want string
	}{
		"output queue": {func(b []byte) { r := record; r.Put(b) },
			"6f786470 0200 02 05 0900000000000000 0300000000010000 4d00000000000000 0000000002000000 f1ffffff 06000000" +
				"000000000000000000000000 71e8b356"},
		"input queue": {func(b []byte) {
			r := Record{Kind: KindIQ, Seq: 1, Posted: 258, Finished: 3, Last: 0x80000003}
			r.Put(b)
		},
			"6f786470 0200 01 00 0100000000000000 0201000000000000 0300000000000000 03000080 00000000 0000000000000000" +
				"0000000000000000 00000000 8c4abc16"},
		"header": {func(b []byte) {
			h := Header{Watermark: 0x400, Clocks: 800, Regions: 0x01020304, Geometry: geometry()}
			h.put(b, 2)
		},
			"6f786470 0200 03 00 0200000000000000 00040000 20030000 04030201 0001 8024 0800 0004 4206 8006 0000000000000000" +
				"0000000000000000 00000000 ba2ed03f"},
	} {
		t.Run(name, func(t *testing.T) {
			b := make([]byte, RecordSize)
			tc.put(b)
			assert.Equal(t, strings.ReplaceAll(tc.want, " ", ""), hex.EncodeToString(b))
		})
	}
}

func TestRecordComesBackAsWritten(t *testing.T) {
	for _, want := range []Record{record, {Kind: KindIQ, Seq: 1, Posted: 258, Finished: 3, Last: 0x80000003}} {
		b := make([]byte, RecordSize)
		r := want
		r.Put(b)
		var got Record
		require.NoError(t, got.Decode(b))
		assert.Equal(t, want, got)
	}
	want := Header{Watermark: 0x400, Clocks: 800, Handshake: 2, Regions: 1, Geometry: geometry()}
	b := make([]byte, RecordSize)
	want.put(b, 7)
	var got Header
	require.NoError(t, got.decode(b))
	assert.Equal(t, want, got)
	var r Record
	assert.ErrorIs(t, r.Decode(b), ErrRecord, "a header is no ring's")
	r = record
	r.Put(b)
	assert.ErrorIs(t, got.decode(b), ErrRecord, "a ring's is no header")
}

func TestMarkComesBackAsWritten(t *testing.T) {
	for _, want := range []mark{{}, {entries: 1024, packets: 1024, frames: 64, loose: true}, {entries: 1}, {packets: 1}, {frames: 1}, {loose: true}} {
		got, seq := decodeMark(want.word(0x1_2345_6789))
		assert.Equal(t, want, got)
		assert.EqualValues(t, 0x23456789, seq)
	}
}

func TestRecordIsRefusedWhen(t *testing.T) {
	whole := make([]byte, RecordSize)
	r := record
	r.Put(whole)
	for name, damage := range map[string]func(b []byte) []byte{
		"a byte short":       func(b []byte) []byte { return b[:RecordSize-1] },
		"magic is another's": func(b []byte) []byte { b[recMagic] ^= 1; return b },
		"version is newer":   func(b []byte) []byte { b[recVersion]++; return b },
		"version is older":   func(b []byte) []byte { b[recVersion]--; return b },
		"torn in the middle": func(b []byte) []byte { b[recTaken] ^= 0x80; return b },
		"never written":      func(b []byte) []byte { clear(b); return b },
	} {
		t.Run(name, func(t *testing.T) {
			var got Record
			err := got.Decode(damage(append([]byte(nil), whole...)))
			assert.ErrorIs(t, err, ErrRecord)
			assert.Zero(t, got)
		})
	}
}

func TestNewerWholeCopyWins(t *testing.T) {
	mem := make([]byte, 2*RecordSize)
	rec := recorder{mem: mem}
	for taken := uint64(1); taken <= 5; taken++ {
		rec.put(&Record{Kind: KindOQ, Taken: taken})
		got, err := NewestRecord(mem)
		require.NoError(t, err)
		assert.Equal(t, taken, got.Taken)
	}
	// Death in the middle of writing the sixth: the fifth is still there.
	torn := mem[:RecordSize] // copy 0 holds an even sequence number and is next
	torn[recTaken]++
	got, err := NewestRecord(mem)
	require.NoError(t, err)
	assert.Equal(t, uint64(5), got.Taken)

	clear(mem)
	_, err = NewestRecord(mem)
	assert.ErrorIs(t, err, ErrRecord)
	_, err = NewestRecord(mem[:RecordSize])
	assert.ErrorIs(t, err, ErrRecord)
}

// A ring's worth of credit would leave the doorbell as it was, as far as its position
// and credit modulo the ring go.
func TestCreditIsNeverThatOfAWholeRing(t *testing.T) {
	h := newHand(t)
	h.regs.credit = 1008
	h.o.owed = wire.OQEntries
	require.NoError(t, h.o.credit())
	assert.Equal(t, int32(1008+1023), h.regs.credit)
	assert.Equal(t, uint32(1), h.o.owed)
}

func FuzzRecord(f *testing.F) {
	b := make([]byte, 2*RecordSize)
	r := record
	r.Put(b)
	f.Add(b)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		var r Record
		if r.Decode(b) == nil {
			again := make([]byte, RecordSize)
			r.Put(again)
			assert.Equal(t, b[:RecordSize], again)
		}
		_, _ = NewestRecord(b)
	})
}
