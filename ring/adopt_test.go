package ring

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var record = Record{Kind: KindOQ, Ring: 5, Seq: 9, Read: 1<<40 + 3, Taken: 77, Returned: 1 << 33, Posted: 1, Finished: 2, Carry: 0xfffffff1}

func TestRecordComesBackAsWritten(t *testing.T) {
	b := make([]byte, RecordSize)
	r := record
	r.Put(b)
	var got Record
	require.NoError(t, got.Decode(b))
	assert.Equal(t, record, got)
}

func TestRecordIsRefusedWhen(t *testing.T) {
	whole := make([]byte, RecordSize)
	r := record
	r.Put(whole)
	for name, damage := range map[string]func(b []byte) []byte{
		"a byte short":       func(b []byte) []byte { return b[:RecordSize-1] },
		"magic is another's": func(b []byte) []byte { b[recMagic] ^= 1; return b },
		"version is newer":   func(b []byte) []byte { b[recVersion]++; return b },
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
