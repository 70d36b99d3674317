package proto

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRoundTrip(t *testing.T) {
	hello := Hello{Version: Version, MaxFrame: 9022, QueueLen: 1024, Name: "oxpd"}
	got, err := ParseHello(AppendHello(nil, &hello))
	require.NoError(t, err)
	assert.Equal(t, hello, got)

	f := Frame{ID: 1<<63 + 5, Port: 11, Direction: 1, Time: 1234567890, Bytes: []byte("a frame")}
	head := make([]byte, FrameHeader)
	PutFrameHeader(head, &f)
	gotFrame, err := ParseFrame(append(head, f.Bytes...))
	require.NoError(t, err)
	assert.Equal(t, f, gotFrame)

	records := []Record{{ID: 1, Code: Accept}, {ID: 2, Code: Replace, Frame: []byte("another")}, {ID: 3, Code: Replace, Frame: []byte{}}, {ID: 4, Code: AcceptFlow}, {ID: 5, Code: Drop}}
	b := BeginVerdicts(nil)
	for i := range records {
		var ok bool
		b, ok = AppendRecord(b, &records[i])
		require.True(t, ok)
	}
	v, err := ParseVerdicts(b)
	require.NoError(t, err)
	assert.Equal(t, len(records), v.Len())
	for i := range records {
		r, ok := v.Next()
		require.True(t, ok)
		assert.Equal(t, records[i], r)
	}
	_, ok := v.Next()
	assert.False(t, ok)

	bye := Bye{Reason: ReasonBusy, Text: "pid 7 is here"}
	gotBye, err := ParseBye(AppendBye(nil, &bye))
	require.NoError(t, err)
	assert.Equal(t, bye, gotBye)
}

// The layout as other languages have to write it.
func TestLayout(t *testing.T) {
	assert.Equal(t, append([]byte{1, 1, 0, 0, 'O', 'X', 'D', 'I', 0x3e, 0x23, 0, 0, 0, 4, 0, 0, 'n', 'a', 'm', 'e'}, make([]byte, 28)...),
		AppendHello(nil, &Hello{Version: 1, MaxFrame: 9022, QueueLen: 1024, Name: "name"}))
	head := make([]byte, FrameHeader)
	PutFrameHeader(head, &Frame{ID: 0x0102, Port: 9, Direction: 1, Time: 3, Bytes: make([]byte, 300)})
	assert.Equal(t, []byte{2, 9, 1, 0, 44, 1, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0}, head)
	b, _ := AppendRecord(BeginVerdicts(nil), &Record{ID: 7, Code: Replace, Frame: []byte{0xaa, 0xbb}})
	assert.Equal(t, []byte{3, 0, 1, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 0xaa, 0xbb}, b)
}

func TestMalformedVerdicts(t *testing.T) {
	good, _ := AppendRecord(BeginVerdicts(nil), &Record{ID: 7, Code: Accept})
	good, _ = AppendRecord(good, &Record{ID: 8, Code: Replace, Frame: []byte{1, 2}})
	_, err := ParseVerdicts(good)
	require.NoError(t, err)
	set := func(at int, v byte) []byte {
		b := bytes.Clone(good)
		b[at] = v
		return b
	}
	for name, b := range map[string][]byte{
		"empty": {}, "7 bytes": good[:7], "head alone": good[:8], "cut record": good[:20], "cut frame": good[:len(good)-1],
		"a byte behind": append(bytes.Clone(good), 0), "code 0": set(16, 0), "code 255": set(16, 255), "length at accept": set(20, 1),
		"longer than there is": set(36, 3), "length near 2^32": set(39, 255), "reserved in head": set(1, 1), "reserved in record": set(17, 1),
		"none": set(2, 0), "more than there are": set(2, 3), "type": set(0, 2), "too long": make([]byte, MaxMessage+1),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseVerdicts(b)
			assert.ErrorIs(t, err, ErrMalformed)
		})
	}
}

func TestMessageIsFull(t *testing.T) {
	b := BeginVerdicts(nil)
	for range MaxRecords {
		var ok bool
		b, ok = AppendRecord(b, &Record{ID: 1, Code: Accept})
		require.True(t, ok)
	}
	_, ok := AppendRecord(b, &Record{ID: 1, Code: Accept})
	assert.False(t, ok, "records")
	_, ok = AppendRecord(BeginVerdicts(nil), &Record{Code: Replace, Frame: make([]byte, MaxMessage-VerdictsHead-RecordSize)})
	assert.True(t, ok)
	_, ok = AppendRecord(BeginVerdicts(nil), &Record{Code: Replace, Frame: make([]byte, MaxMessage-VerdictsHead-RecordSize+1)})
	assert.False(t, ok, "bytes")
}

func TestOtherHellos(t *testing.T) {
	b := AppendHello(nil, &Hello{Version: 2})
	h, err := ParseHello(b[:8])
	require.NoError(t, err)
	assert.Equal(t, uint8(2), h.Version)
	for name, b := range map[string][]byte{"empty": {}, "cut": AppendHello(nil, &Hello{Version: Version})[:47], "magic": make([]byte, HelloSize)} {
		_, err := ParseHello(b)
		assert.ErrorIs(t, err, ErrMalformed, name)
	}
}

func FuzzParse(f *testing.F) {
	b, _ := AppendRecord(BeginVerdicts(nil), &Record{ID: 7, Code: Replace, Frame: []byte{1}})
	f.Add(b)
	f.Add(AppendHello(nil, &Hello{Version: Version, Name: "x"}))
	head := make([]byte, FrameHeader)
	PutFrameHeader(head, &Frame{})
	f.Add(head)
	f.Add(AppendBye(nil, &Bye{Reason: ReasonBusy}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if v, err := ParseVerdicts(b); err == nil {
			again, n := BeginVerdicts(nil), v.Len()
			for r, ok := v.Next(); ok; r, ok = v.Next() {
				again, ok = AppendRecord(again, &r)
				require.True(t, ok)
				n--
			}
			require.Zero(t, n)
			require.Equal(t, b, again)
		}
		if fr, err := ParseFrame(b); err == nil {
			head := make([]byte, FrameHeader)
			PutFrameHeader(head, &fr)
			require.Equal(t, b, append(head, fr.Bytes...))
		}
		_, _ = ParseHello(b)
		_, _ = ParseBye(b)
	})
}
