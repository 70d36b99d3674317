package tcpstats

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestFieldsLieInTheirBlocks: each field in the block of its group behind its first word, no
// two over each other, each with a bit and a name of its own.
func TestFieldsLieInTheirBlocks(t *testing.T) {
	taken, names, bits := map[int]string{}, map[string]bool{}, map[Groups]uint32{}
	for _, f := range Fields() {
		at, size := Block(f.Field.Group())
		assert.GreaterOrEqual(t, f.Field.Offset(), at+4, f.Name)
		assert.LessOrEqual(t, f.Field.Offset()+f.Field.Width(), at+size, f.Name)
		for i := range f.Field.Width() {
			assert.Empty(t, taken[f.Field.Offset()+i], f.Name)
			taken[f.Field.Offset()+i] = f.Name
		}
		if w := f.Field.Width(); f.Kind != Text && f.Kind != Address {
			assert.Zero(t, (f.Field.Offset()-at)%w, "%s is aligned within its block", f.Name)
		}
		assert.False(t, names[f.Name], f.Name)
		names[f.Name] = true
		assert.Zero(t, bits[f.Field.Group()]&f.Field.Bit(), f.Name)
		bits[f.Field.Group()] |= f.Field.Bit()
		assert.NotEmpty(t, f.Doc, f.Name)
		got, ok := FieldByName(f.Name)
		assert.True(t, ok)
		assert.Equal(t, f, got)
	}
	end := headerSize
	for g := GroupIdentity; g <= GroupNames; g <<= 1 {
		at, size := Block(g)
		assert.Equal(t, end, at, g.String())
		assert.Zero(t, size%8, g.String())
		assert.Equal(t, at, g.block())
		end += size
	}
	assert.Equal(t, FullSize, end)
	_, ok := FieldByName("nothing")
	assert.False(t, ok)
}

// TestDefaultGroupsAreThePublishedOnes has the bits of the page.
func TestDefaultGroupsAreThePublishedOnes(t *testing.T) {
	assert.EqualValues(t, 0x08f, DefaultGroups)
	assert.EqualValues(t, 0x3ff, AllGroups)
	for name, bit := range map[string]Groups{"identity": 0x001, "state": 0x002, "congestion": 0x004, "rtt": 0x008, "sequences": 0x010, "counters": 0x020, "timers": 0x040, "buffers": 0x080, "ecn": 0x100, "names": 0x200} {
		assert.Equal(t, name, bit.String())
	}
}

// sample is a record whose every field is there and different.
func sample() (r Record) {
	r.Reset(Host)
	for i, f := range fields {
		switch f.Kind {
		case Address:
			r.SetAddr(f.Field, netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}))
		case Text:
			r.SetText(f.Field, f.Name)
		default:
			r.SetUint(f.Field, uint64(i+1))
		}
	}
	return r
}

// TestGolden is a record byte by byte, as the page of the protocol says it.
func TestGolden(t *testing.T) {
	var r Record
	r.Reset(Flow)
	r.SetUint(FieldFamily, 4)
	r.SetUint(FieldState, uint64(Established))
	r.SetUint(FieldLocalPort, 443)
	r.SetAddr(FieldLocalAddr, netip.MustParseAddr("192.0.2.1"))
	r.SetUint(FieldRTT, 0x01020304)
	want := make([]byte, 8+80+32)
	copy(want, []byte{120, 0, 1, 0, 0x09, 0, 1, 0}) // 120 bytes, version 1, compact, identity and rtt, flow
	copy(want[8:], []byte{0x93, 0, 0, 0, 4, 4, 0, 0, 0xbb, 1})
	copy(want[8+16:], []byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1})
	copy(want[88:], []byte{1, 0, 0, 0, 4, 3, 2, 1})
	assert.Equal(t, want, r.Append(nil, AllGroups, Compact))
	assert.Equal(t, append([]byte{88, 0, 1, 0, 0x01, 0, 1, 0}, want[8:88]...), r.Append(nil, GroupIdentity|GroupNames, Compact), "without what nobody asked for")
	full := r.Append(nil, AllGroups, Full)
	require.Len(t, full, FullSize)
	assert.Equal(t, []byte{byte(FullSize & 0xff), FullSize >> 8, 1, 1, 0x09, 0, 1, 0}, full[:8])
	assert.Equal(t, want[8:88], full[8:88])
	at, _ := Block(GroupRTT)
	assert.Equal(t, want[88:], full[at:at+32])
}

func TestFullAndCompactHaveTheSame(t *testing.T) {
	r := sample()
	rng := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		groups := Groups(rng.Uint32()) & AllGroups
		compact, full := r.Append([]byte("x"), groups, Compact)[1:], r.Append(nil, groups, Full)
		var a, b Record
		n, err := a.Decode(append(bytes.Clone(compact), 1, 2, 3))
		require.NoError(t, err)
		assert.Equal(t, len(compact), n)
		n, err = b.Decode(full)
		require.NoError(t, err)
		assert.Equal(t, FullSize, n)
		assert.Equal(t, a, b)
		assert.Equal(t, groups, a.Groups())
		assert.Less(t, len(compact), FullSize+1)
		for _, f := range fields {
			assert.Equal(t, groups&f.Field.Group() != 0, a.Has(f.Field))
		}
	}
}

// TestAbsentIsZero: bytes of what is absent are 0 in both formats, whatever was there before.
func TestAbsentIsZero(t *testing.T) {
	r := sample()
	r.Drop(FieldRTT)
	r.Mark(GroupNames, 0)
	full := r.Append(nil, AllGroups, Full)
	assert.Equal(t, make([]byte, 4), full[FieldRTT.Offset():FieldRTT.Offset()+4])
	at, size := Block(GroupNames)
	assert.Equal(t, make([]byte, size), full[at:at+size])
	_, ok := r.Uint(FieldRTT)
	assert.False(t, ok)
	assert.Empty(t, r.Text(FieldAlgorithm))
	assert.Zero(t, r.Groups()&GroupNames)
}

func TestDecodeRefuses(t *testing.T) {
	r := sample()
	good := r.Append(nil, AllGroups, Compact)
	for name, c := range map[string]struct {
		change func(b []byte) []byte
		want   error
	}{
		"nothing":              {func([]byte) []byte { return nil }, ErrShort},
		"half a header":        {func(b []byte) []byte { return b[:7] }, ErrShort},
		"cut":                  {func(b []byte) []byte { return b[:len(b)-1] }, ErrShort},
		"a size of nothing":    {func(b []byte) []byte { b[0], b[1] = 7, 0; return b }, ErrRecord},
		"another version":      {func(b []byte) []byte { b[2] = 2; return b }, ErrRecord},
		"another format":       {func(b []byte) []byte { b[3] = 2; return b }, ErrRecord},
		"groups there are not": {func(b []byte) []byte { b[5] = 0xff; return b }, ErrRecord},
		"another source":       {func(b []byte) []byte { b[6] = 2; return b }, ErrRecord},
		"too small for its groups": {func(b []byte) []byte {
			binary.LittleEndian.PutUint16(b, uint16(len(b)-8))
			return b
		}, ErrRecord},
	} {
		_, err := new(Record).Decode(c.change(bytes.Clone(good)))
		assert.ErrorIs(t, err, c.want, name)
	}
	longer := append(bytes.Clone(good), 9, 9, 9, 9)
	binary.LittleEndian.PutUint16(longer, uint16(len(longer)))
	var got Record
	n, err := got.Decode(longer)
	require.NoError(t, err, "of a later oxpd")
	assert.Equal(t, len(longer), n)
	assert.Equal(t, r, got)
}

// FuzzDecode: what decodes is made the same again by Append, as far as its bytes mean
// something, and nothing else is believed.
func FuzzDecode(f *testing.F) {
	r := sample()
	f.Add(r.Append(nil, AllGroups, Compact))
	f.Add(r.Append(nil, DefaultGroups, Full))
	f.Add([]byte{8, 0, 1, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		var r, again Record
		n, err := r.Decode(b)
		if err != nil {
			return
		}
		require.LessOrEqual(t, n, len(b))
		for _, as := range []Format{Compact, Full} {
			out := r.Append(nil, AllGroups, as)
			m, err := again.Decode(out)
			require.NoError(t, err)
			assert.Equal(t, len(out), m)
			assert.Equal(t, r, again)
		}
		require.True(t, json.Valid(r.AppendJSON(nil)), "%s", r.AppendJSON(nil))
		Diagnose(&r, 1500)
	})
}

func TestJSON(t *testing.T) {
	r := sample()
	r.SetUint(FieldState, uint64(TimeWait))
	r.SetUint(FieldPort, 8)
	r.SetUint(FieldDirection, DirectionOut)
	r.SetUint(FieldFlags, FlagMapped)
	r.SetUint(FieldOptions, OptionSACK|OptionECN)
	r.SetUint(FieldTimer, TimerProbe)
	r.SetUint(FieldCAState, 3)
	r.SetUint(FieldECN, 1)
	var doc map[string]any
	require.NoError(t, json.Unmarshal(r.AppendJSON(nil, [2]string{"extra", "[1]"}), &doc))
	for name, want := range map[string]any{
		"source": "host", "state": "time_wait", "port": "oxp9", "direction": "out", "flags": []any{"v4_mapped"}, "options": []any{"sack", "ecn"}, "timer": "probe", "ca_state": "recovery", "ecn": true,
		"local_addr": "10.0.0.7", "algorithm": "algorithm", "extra": []any{1.0}, "local_port": 5.0,
	} {
		assert.Equal(t, want, doc[name], name)
	}
	assert.Len(t, doc, len(fields)+2)
	r.Reset(Flow)
	assert.Equal(t, `{"source":"flow"}`, string(r.AppendJSON(nil)), "what is absent is no member")
	r.SetText(FieldAlgorithm, "a\"\x01\xff")
	assert.True(t, json.Valid(r.AppendJSON(nil)), "%s", r.AppendJSON(nil))
}

func TestDelta(t *testing.T) {
	before := sample()
	now := before
	now.SetUint(FieldBytesAcked, 1<<40)
	now.SetUint(FieldRetrans, 3) // went round
	before.SetUint(FieldRetrans, 1<<32-2)
	now.SetUint(FieldRTT, 77)
	before.Drop(FieldSegsIn)
	now.Delta(&before)
	v := func(f Field) uint64 { v, _ := now.Uint(f); return v }
	was, _ := before.Uint(FieldBytesAcked)
	assert.EqualValues(t, 1<<40-was, v(FieldBytesAcked))
	assert.EqualValues(t, 5, v(FieldRetrans))
	assert.EqualValues(t, 77, v(FieldRTT), "no counter")
	assert.NotZero(t, v(FieldSegsIn), "the earlier one does not have it")
	assert.Zero(t, v(FieldSegsOut))
	fresh := sample()
	want := fresh
	fresh.Delta(nil)
	assert.Equal(t, want, fresh, "a new one has it all")
}

func TestTop(t *testing.T) {
	order, err := ParseOrder("retrans")
	require.NoError(t, err)
	assert.Equal(t, GroupCounters, order.Groups())
	top := NewTop(3, order)
	for i, n := range []uint64{5, 1, 9, 5, 7, 9, 0} {
		var r Record
		r.Reset(Host)
		r.SetUint(FieldRetrans, n)
		r.SetUint(FieldUID, uint64(i))
		top.Add(&r)
	}
	var none Record
	none.Reset(Host)
	top.Add(&none)
	var got [][2]uint64
	for _, r := range top.Sorted() {
		n, _ := r.Uint(FieldRetrans)
		i, _ := r.Uint(FieldUID)
		got = append(got, [2]uint64{n, i})
	}
	assert.Equal(t, [][2]uint64{{9, 2}, {9, 5}, {7, 4}}, got)
	for _, name := range []string{"", "nothing", "local_addr", "algorithm"} {
		_, err := ParseOrder(name)
		assert.Error(t, err, name)
	}
	for name := range orders {
		_, err := ParseOrder(name)
		assert.NoError(t, err, name)
	}
}

func TestMessages(t *testing.T) {
	m := Message{Bytes: 1000, Kind: MessageRecords, Read: 7, Records: 3}
	b := m.Append([]byte("x"))[1:]
	assert.Equal(t, []byte{0xe8, 3, 0, 0, 'R', 1, 0, 0, 7, 0, 0, 0, 3, 0, 0, 0}, b)
	var got Message
	require.NoError(t, got.Decode(b))
	assert.Equal(t, m, got)
	assert.ErrorIs(t, got.Decode(b[:15]), ErrShort)
	for at, v := range map[int]byte{3: 0xff, 4: 'x', 5: 2} {
		bad := bytes.Clone(b)
		bad[at] = v
		assert.ErrorIs(t, got.Decode(bad), ErrMessage, at)
	}
}

// FuzzMessage: a header is refused, or is the bytes that it was made of.
func FuzzMessage(f *testing.F) {
	f.Add((&Message{Bytes: 1000, Kind: MessageEnd, Read: 7}).Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m Message
		if m.Decode(b) != nil {
			return
		}
		var again Message
		require.NoError(t, again.Decode(m.Append(nil)))
		assert.Equal(t, m, again)
		assert.LessOrEqual(t, m.Bytes, MaxMessage)
	})
}
