package wire_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/frame"
	"oxpd/ring/wire"
)

// vector reads a hex file: lines that start with # name the source, everything
// else is bytes.
func vector(t *testing.T, name string) []byte {
	t.Helper()
	f, err := os.Open("testdata/" + name)
	require.NoError(t, err)
	defer f.Close()
	var digits strings.Builder
	for s := bufio.NewScanner(f); s.Scan(); {
		line, _, _ := strings.Cut(s.Text(), "#")
		digits.WriteString(strings.Join(strings.Fields(line), ""))
	}
	b, err := hex.DecodeString(digits.String())
	require.NoError(t, err)
	return b
}

func TestInstructionBytesAreThoseOfThePage(t *testing.T) {
	for _, tc := range []struct {
		file  string
		frame int
		tlen  uint16
	}{
		{"instruction-60.hex", 60, 154},
		{"instruction-9014.hex", 9014, 9108},
	} {
		t.Run(tc.file, func(t *testing.T) {
			want := vector(t, tc.file)
			got := bytes.Repeat([]byte{0xff}, wire.InstrSize) // stale bytes must not survive
			wire.PutInstruction(got, 0x123456000, tc.frame)
			assert.Equal(t, want, got)

			var in wire.Instruction
			require.NoError(t, in.Decode(want))
			assert.Equal(t, wire.Instruction{
				Dptr: 0x123456000, Tlen: tc.tlen, PKind: 40, Fsz: 28, PKI: 0x805e800000000000, Rlenss: 81, Opcode: 0x1220, IRH: 0x1220000005100000,
			}, in)
		})
	}
}

func TestAddressAboveFourGiBKeepsItsUpperHalf(t *testing.T) {
	b := make([]byte, wire.InstrSize)
	for _, dptr := range []uint64{0x180000000, 0x00007fffc0000000, 0x0000010000000000, 1<<48 - 64} {
		wire.PutInstruction(b, dptr, 60)
		assert.Equal(t, dptr, binary.LittleEndian.Uint64(b), "%#x", dptr)
		e := make([]byte, wire.ListEntry)
		wire.PutListEntry(e, dptr)
		assert.Equal(t, dptr, binary.LittleEndian.Uint64(e), "%#x", dptr)
	}
	wire.PutInstruction(b, 0x180000000, 60)
	assert.Equal(t, []byte{0, 0, 0, 0x80, 1, 0, 0, 0}, b[:8])
}

func TestPrivateHeaderIsTheClearForm(t *testing.T) {
	b := bytes.Repeat([]byte{0xc1}, wire.PrivSize+2) // the vendor's debug pattern asks for encryption
	wire.PutPrivate(b, 0x8a00)
	want := make([]byte, wire.PrivSize)
	want[0], want[1], want[2] = 0x8a, 0x00, 1
	assert.Equal(t, want, b[:wire.PrivSize])
	assert.Equal(t, []byte{0xc1, 0xc1}, b[wire.PrivSize:], "the frame area is not touched")

	var p wire.Private
	require.NoError(t, p.Decode(b))
	assert.Equal(t, wire.Private{Tag: 0x8a00, Valid: true}, p)
}

func TestPrefixOfTheFirstFrameEverRead(t *testing.T) {
	b := vector(t, "prefix-60.hex")
	require.Len(t, b, wire.PrefixSize)
	var p wire.Prefix
	require.NoError(t, p.Decode(b))
	assert.Equal(t, wire.Prefix{Length: 134, Tag: 0x8100, Valid: true}, p)

	got := make([]byte, wire.PrefixSize)
	wire.PutPrefix(got, 0x8100, 0)
	binary.BigEndian.PutUint64(got, 134)
	assert.Equal(t, b, got)
}

// The table of datapath.md 3.6, transcribed row by row.
func TestSpanTable(t *testing.T) {
	for _, row := range []struct {
		frame, l, n int
		last        int // bytes of the packet in its last buffer
	}{
		{60, 134, 1, 142},
		{1514, 1588, 1, 1596},
		{1520, 1594, 1, 1602},
		{1522, 1596, 2, 2},
		{3122, 3196, 2, 1602},
		{9014, 9088, 6, 1086},
		{9018, 9092, 6, 1090},
	} {
		l := row.frame + wire.LenOverhead
		assert.Equal(t, row.l, l, "frame %d", row.frame)
		assert.Equal(t, row.n, wire.Buffers(l), "frame %d", row.frame)
		assert.Equal(t, row.last, l+wire.LenWord-(row.n-1)*wire.BufSize, "frame %d", row.frame)
	}
	for n := 1; n <= 11; n++ { // N buffers carry up to 1,602 N - 82
		l := 1602*n - 82 + wire.LenOverhead
		assert.Equal(t, n, wire.Buffers(l))
		assert.Equal(t, n+1, wire.Buffers(l+1))
	}
}

// The numbers table of datapath.md, transcribed.
func TestNumbers(t *testing.T) {
	assert.Equal(t, 64, wire.InstrSize)
	assert.Equal(t, 256, wire.IQSlots)
	assert.Equal(t, 9344, wire.SlotStride)
	assert.Equal(t, 2392064, wire.IQSlots*wire.SlotStride)
	assert.Equal(t, 1024, wire.OQEntries)
	assert.Equal(t, 8, wire.OQs)
	assert.Equal(t, 1602, wire.BufSize)
	assert.Equal(t, 1664, wire.BufStride)
	assert.Equal(t, 82, wire.PrefixSize)
	assert.Equal(t, 66, wire.PrivSize)
	assert.Equal(t, 1024, wire.Watermark)
	assert.Equal(t, 16, wire.FetchBatch)
	assert.Equal(t, 2032, wire.Grant(1024, 1024))
	assert.Equal(t, 9278, wire.MaxTxFrame)
	assert.Equal(t, 94, wire.SL)
	assert.Equal(t, 81, wire.RlenssZ)
	assert.Equal(t, wire.PrivSize+frame.HeaderSize+1, wire.RlenssZ)
	assert.Equal(t, 9216, wire.FrameRoom)
	assert.Equal(t, 1520, wire.FirstPayload)
	assert.Zero(t, wire.SlotStride%64)
	assert.Zero(t, wire.BufStride%64)
}

func TestShortInputIsRefused(t *testing.T) {
	var (
		in  wire.Instruction
		pr  wire.Private
		pfx wire.Prefix
	)
	assert.ErrorIs(t, in.Decode(make([]byte, wire.InstrSize-1)), wire.ErrShort)
	assert.ErrorIs(t, pr.Decode(make([]byte, wire.PrivSize-1)), wire.ErrShort)
	assert.ErrorIs(t, pfx.Decode(make([]byte, wire.PrefixSize-1)), wire.ErrShort)
	_, err := wire.DecodeListEntry(make([]byte, wire.ListEntry-1))
	assert.ErrorIs(t, err, wire.ErrShort)
}

func FuzzInstruction(f *testing.F) {
	f.Add(uint64(0x123456000), 60)
	f.Add(uint64(1<<63), 9278)
	f.Fuzz(func(t *testing.T, dptr uint64, frame int) {
		if frame < 1 || frame > wire.MaxTxFrame {
			return
		}
		b := make([]byte, wire.InstrSize)
		wire.PutInstruction(b, dptr, frame)
		var in wire.Instruction
		require.NoError(t, in.Decode(b))
		assert.Equal(t, dptr, in.Dptr)
		assert.Equal(t, frame+94, int(in.Tlen))
		assert.False(t, in.Gather)
	})
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte{})
	f.Add(bytes.Repeat([]byte{wire.PoisonByte}, 128))
	f.Fuzz(func(t *testing.T, b []byte) {
		var (
			in  wire.Instruction
			pr  wire.Private
			pfx wire.Prefix
		)
		assert.Equal(t, len(b) >= wire.InstrSize, in.Decode(b) == nil)
		assert.Equal(t, len(b) >= wire.PrivSize, pr.Decode(b) == nil)
		assert.Equal(t, len(b) >= wire.PrefixSize, pfx.Decode(b) == nil)
		addr, err := wire.DecodeListEntry(b)
		if err == nil {
			e := make([]byte, wire.ListEntry)
			wire.PutListEntry(e, addr)
			assert.Equal(t, b[:8], e[:8])
		}
		if pr.Decode(b) == nil && pr.Valid && !pr.Encrypt && pr.SA == 0 {
			got := make([]byte, wire.PrivSize)
			wire.PutPrivate(got, pr.Tag)
			assert.Equal(t, b[:2], got[:2])
		}
	})
}
