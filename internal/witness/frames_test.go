package witness

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What comes back is what was sent, or the first frame that is not is named.
func TestCheck(t *testing.T) {
	const n, size = 5, 70
	frame := func(b []byte, i int) []byte { return b[pcapHeader+i*(pcapRecord+size):][:pcapRecord+size] }
	for _, tt := range []struct {
		name  string
		spoil func(b []byte) []byte
		err   string
	}{
		{"as it was sent", func(b []byte) []byte { return b }, ""},
		{"in nanoseconds", func(b []byte) []byte { binary.LittleEndian.PutUint32(b, pcapMagicNS); return b }, ""},
		{"one bit", func(b []byte) []byte { frame(b, 3)[pcapRecord+size-1] ^= 0x80; return b }, "frame 3 is not what was sent: 70 bytes for 70, equal up to 69"},
		{"one lost", func(b []byte) []byte {
			return append(b[:pcapHeader+2*(pcapRecord+size)], b[pcapHeader+3*(pcapRecord+size):]...)
		}, "frame 2 is not what was sent"},
		{"the last lost", func(b []byte) []byte { return b[:len(b)-pcapRecord-size] }, "4 frames of 5 came back: EOF"},
		{"two change places", func(b []byte) []byte {
			for i := range pcapRecord + size {
				frame(b, 1)[i], frame(b, 2)[i] = frame(b, 2)[i], frame(b, 1)[i]
			}
			return b
		}, "frame 1 is not what was sent"},
		{"one twice", func(b []byte) []byte { copy(frame(b, 4), frame(b, 3)); return b }, "frame 4 is not what was sent"},
		{"one more", func(b []byte) []byte { return append(b, frame(b, 0)...) }, "86 bytes came back behind the last frame"},
		{"cut short", func(b []byte) []byte {
			binary.LittleEndian.PutUint32(frame(b, 4)[pcapRecordLen:], size-1)
			return b[:len(b)-1]
		}, "frame 4 is not what was sent: 69 bytes for 70"},
		{"a length beyond all", func(b []byte) []byte { binary.LittleEndian.PutUint32(frame(b, 0)[pcapRecordLen:], 1<<30); return b }, "frame 0 came back with 1073741824 bytes"},
		{"nothing", func([]byte) []byte { return nil }, "no frame came back"},
		{"something else", func(b []byte) []byte { b[0] = 0; return b }, "no capture"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var sent bytes.Buffer
			require.NoError(t, feed(&sent, n, size))
			err := check(bytes.NewReader(tt.spoil(sent.Bytes())), n, size)
			if tt.err == "" {
				assert.NoError(t, err)
			} else {
				assert.ErrorContains(t, err, tt.err)
			}
		})
	}
}
