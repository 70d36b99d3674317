package capture

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// builder writes captures byte by byte, from the drafts and not from the code.
type builder struct {
	binary.AppendByteOrder
	b []byte
}

func le() *builder { return &builder{AppendByteOrder: binary.LittleEndian} }
func be() *builder { return &builder{AppendByteOrder: binary.BigEndian} }

func (w *builder) u16(v ...uint16) *builder {
	for _, x := range v {
		w.b = w.AppendUint16(w.b, x)
	}
	return w
}

func (w *builder) u32(v ...uint32) *builder {
	for _, x := range v {
		w.b = w.AppendUint32(w.b, x)
	}
	return w
}

func (w *builder) raw(b ...byte) *builder {
	w.b = append(w.b, b...)
	return w
}

// pcap begins a file of the old format.
func (w *builder) pcap(magic, link uint32) *builder {
	return w.u32(magic).u16(2, 4).u32(0, 0, 65535, link)
}

func (w *builder) record(sec, frac, wire uint32, frame []byte) *builder {
	return w.u32(sec, frac, uint32(len(frame)), wire).raw(frame...)
}

// block adds a pcapng block whose body the function writes.
func (w *builder) block(kind uint32, body func(*builder)) *builder {
	inner := &builder{AppendByteOrder: w.AppendByteOrder}
	body(inner)
	n := uint32(len(inner.b) + 12)
	return w.u32(kind, n).raw(inner.b...).u32(n)
}

func (w *builder) section() *builder {
	return w.block(0x0a0d0d0a, func(b *builder) { b.u32(0x1a2b3c4d).u16(1, 0).u32(0xffffffff, 0xffffffff) })
}

func (w *builder) iface(link uint16, snap uint32, options ...byte) *builder {
	return w.block(1, func(b *builder) { b.u16(link, 0).u32(snap).raw(options...) })
}

func (w *builder) enhanced(iface uint32, units uint64, wire uint32, frame []byte, options ...byte) *builder {
	return w.block(6, func(b *builder) {
		b.u32(iface, uint32(units>>32), uint32(units), uint32(len(frame)), wire).raw(frame...)
		b.raw(make([]byte, -len(frame)&3)...).raw(options...)
	})
}

func bytesOf(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + n)
	}
	return b
}

// got is a record without what only errors use.
type got struct {
	at    time.Time
	frame []byte
	wire  int
}

// readAll reads to the end and returns what stopped it, nil for io.EOF.
func readAll(b []byte) (out []got, err error) {
	r, err := NewReader(bytes.NewReader(b), "f")
	if err != nil {
		return nil, err
	}
	for {
		rec, err := r.Next()
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		out = append(out, got{rec.Time.UTC(), append([]byte{}, rec.Frame...), rec.WireBytes})
	}
}

func TestReader(t *testing.T) {
	at := func(sec, nano int64) time.Time { return time.Unix(sec, nano).UTC() }
	a, b := bytesOf(60), bytesOf(61)
	option := func(order *builder, code uint16, v ...byte) []byte {
		order.b = nil
		return append(order.u16(code, uint16(len(v))).raw(v...).raw(make([]byte, -len(v)&3)...).b, 0, 0, 0, 0)
	}
	for _, tc := range []struct {
		name string
		file *builder
		want []got
	}{
		{"pcap, microseconds, little-endian", le().pcap(0xa1b2c3d4, 1).record(10, 999_999, 60, a).record(9, 0, 61, b), []got{{at(10, 999_999_000), a, 60}, {at(9, 0), b, 61}}},
		{"pcap, microseconds, big-endian", be().pcap(0xa1b2c3d4, 1).record(10, 1, 60, a), []got{{at(10, 1000), a, 60}}},
		{"pcap, nanoseconds, little-endian", le().pcap(0xa1b23c4d, 1).record(10, 999_999_999, 60, a), []got{{at(10, 999_999_999), a, 60}}},
		{"pcap, nanoseconds, big-endian", be().pcap(0xa1b23c4d, 1).record(10, 1, 60, a), []got{{at(10, 1), a, 60}}},
		{"pcap, FCS length known to be 0", le().pcap(0xa1b2c3d4, 1|1<<26).record(0, 0, 60, a), []got{{at(0, 0), a, 60}}},
		{"pcap, no record", le().pcap(0xa1b2c3d4, 1), nil},
		{"pcap, record of nothing", le().pcap(0xa1b2c3d4, 1).record(0, 0, 0, nil), []got{{at(0, 0), []byte{}, 0}}},
		{"pcap, cut by the snap length", le().pcap(0xa1b2c3d4, 1).record(0, 0, 1514, a), []got{{at(0, 0), a, 1514}}},

		{"pcapng, little-endian", le().section().iface(1, 0).enhanced(0, 1_500_000, 60, a).enhanced(0, 2_000_000, 61, b), []got{{at(1, 500_000_000), a, 60}, {at(2, 0), b, 61}}},
		{"pcapng, big-endian", be().section().iface(1, 0).enhanced(0, 1_500_000, 61, b), []got{{at(1, 500_000_000), b, 61}}},
		{"pcapng, nanoseconds", le().section().iface(1, 0, option(le(), 9, 9)...).enhanced(0, 1_000_000_001, 60, a), []got{{at(1, 1), a, 60}}},
		{"pcapng, picoseconds", le().section().iface(1, 0, option(le(), 9, 12)...).enhanced(0, 1_000_000_001_999, 60, a), []got{{at(1, 1), a, 60}}},
		{"pcapng, whole seconds", le().section().iface(1, 0, option(le(), 9, 0)...).enhanced(0, 7, 60, a), []got{{at(7, 0), a, 60}}},
		{"pcapng, 2^-10 seconds", le().section().iface(1, 0, option(le(), 9, 0x8a)...).enhanced(0, 1024+512, 60, a), []got{{at(1, 500_000_000), a, 60}}},
		{"pcapng, 2^-63 seconds", le().section().iface(1, 0, option(le(), 9, 0xbf)...).enhanced(0, 1<<63|1<<62, 60, a), []got{{at(1, 500_000_000), a, 60}}},
		{"pcapng, 10^-19 seconds", le().section().iface(1, 0, option(le(), 9, 19)...).enhanced(0, 15_000_000_000_000_000_000, 60, a), []got{{at(1, 500_000_000), a, 60}}},
		{"pcapng, offset of time", le().section().iface(1, 0, option(le(), 14, 5, 0, 0, 0, 0, 0, 0, 0)...).enhanced(0, 0, 60, a), []got{{at(5, 0), a, 60}}},
		{"pcapng, options of a packet", le().section().iface(1, 0).enhanced(0, 0, 61, b, option(le(), 2, 1, 0, 0, 0)...), []got{{at(0, 0), b, 61}}},
		{"pcapng, cut by the snap length", le().section().iface(1, 60).enhanced(0, 0, 9014, a), []got{{at(0, 0), a, 9014}}},
		{"pcapng, blocks that nobody asked for", le().section().block(5, func(b *builder) { b.u32(1, 2, 3, 4) }).iface(1, 0).block(0x0bad, func(b *builder) { b.raw(make([]byte, 70000)...) }).enhanced(0, 0, 60, a), []got{{at(0, 0), a, 60}}},
		{
			"pcapng, simple packets take the time before them",
			le().section().iface(1, 60).enhanced(0, 3_000_000, 60, a).block(3, func(w *builder) { w.u32(61).raw(b[:60]...) }),
			[]got{{at(3, 0), a, 60}, {at(3, 0), b[:60], 61}},
		},
		{"pcapng, obsolete packet", le().section().iface(1, 0).block(2, func(w *builder) { w.u16(0, 7).u32(0, 1_000_000, 60, 60).raw(a...) }), []got{{at(1, 0), a, 60}}},
		{
			"pcapng, an interface of another type that has no packet",
			le().section().iface(113, 0).iface(1, 0).enhanced(1, 0, 60, a), []got{{at(0, 0), a, 60}},
		},
		{
			"pcapng, sections of both byte orders, with interfaces of their own",
			le().section().iface(1, 0).enhanced(0, 1_000_000, 60, a).raw(be().section().iface(1, 0).enhanced(0, 2_000_000, 61, b).b...),
			[]got{{at(1, 0), a, 60}, {at(2, 0), b, 61}},
		},
		{"pcapng, no packet", le().section(), nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out, err := readAll(tc.file.b)
			require.NoError(t, err)
			assert.Equal(t, tc.want, out)
		})
	}
}

func TestReaderRefuses(t *testing.T) {
	a := bytesOf(60)
	ng := func() *builder { return le().section().iface(1, 0) }
	for _, tc := range []struct {
		name string
		file *builder
		want string
		eof  bool
	}{
		{"nothing", le(), "f: at byte 0, after 0 packets: the file ends inside the first 4 bytes", true},
		{"three bytes", le().raw(0xd4, 0xc3, 0xb2), "f: at byte 0, after 0 packets: the file ends inside the first 4 bytes", true},
		{"something else", le().raw([]byte("GIF89a..")...), "f: at byte 0, after 0 packets: begins with 47 49 46 38: no capture", false},
		{"compressed", le().raw(0x1f, 0x8b, 8, 0), "f: at byte 0, after 0 packets: a compressed file", false},
		{"modified pcap", le().u32(0xa1b2cd34), "f: at byte 0, after 0 packets: the modified pcap format of an old libpcap", false},
		{"pcap, header cut", le().raw(le().pcap(0xa1b2c3d4, 1).b[:23]...), "f: at byte 0, after 0 packets: the file ends inside the file header", true},
		{"pcap, version 1", le().u32(0xa1b2c3d4).u16(1, 4).u32(0, 0, 0, 1), "f: at byte 0, after 0 packets: pcap version 1: want 2", false},
		{"pcap, Linux cooked", le().pcap(0xa1b2c3d4, 113), "f: at byte 0, after 0 packets: link type 113: want 1, Ethernet", false},
		{"pcap, raw IP", be().pcap(0xa1b2c3d4, 101), "f: at byte 0, after 0 packets: link type 101: want 1, Ethernet", false},
		{"pcap, with FCS", le().pcap(0xa1b2c3d4, 1|1<<26|2<<28), "f: at byte 0, after 0 packets: frames with an FCS of 4 bytes", false},
		{"pcap, record header cut", le().pcap(0xa1b2c3d4, 1).record(0, 0, 60, a).u32(0, 0, 60), "f: at byte 100, after 1 packets: the file ends inside a record's header", true},
		{"pcap, frame cut off", le().pcap(0xa1b2c3d4, 1).u32(0, 0, 60, 60).raw(a[:59]...), "f: at byte 24, after 0 packets: the file ends inside a packet", true},
		{"pcap, more kept than there was", le().pcap(0xa1b2c3d4, 1).record(0, 0, 59, a), "f: at byte 24, after 0 packets: 60 bytes kept of a packet that was 59 bytes long", false},
		{"pcap, one longer than any", le().pcap(0xa1b2c3d4, 1).u32(0, 0, MaxFrame+1, MaxFrame+1), "f: at byte 24, after 0 packets: a packet of 262145 bytes: want at most 262144", false},
		{"pcap, length all ones", le().pcap(0xa1b2c3d4, 1).u32(0, 0, 60, 0xffffffff).raw(a...), "f: at byte 24, after 0 packets: a packet that was 4294967295 bytes long", false},
		{"pcap, a million microseconds", le().pcap(0xa1b2c3d4, 1).record(0, 1_000_000, 60, a), "f: at byte 24, after 0 packets: a time of 0 s and 1000000 parts of 1000000", false},

		{"pcapng, section cut", le().raw(le().section().b[:27]...), "f: at byte 0, after 0 packets: the file ends inside a block", true},
		{"pcapng, no byte order", le().block(0x0a0d0d0a, func(b *builder) { b.u32(0x11223344, 1, 0, 0) }), "f: at byte 0, after 0 packets: a section whose byte order is 44 33 22 11", false},
		{"pcapng, version 2", le().block(0x0a0d0d0a, func(b *builder) { b.u32(0x1a2b3c4d).u16(2, 0).u32(0, 0) }), "f: at byte 0, after 0 packets: pcapng version 2: want 1", false},
		{"pcapng, section of 24 bytes", le().u32(0x0a0d0d0a, 24, 0x1a2b3c4d).u16(1, 0).u32(0, 0, 24), "f: at byte 0, after 0 packets: a section header of 24 bytes", false},
		{"pcapng, block header cut", ng().u32(6), "f: at byte 48, after 0 packets: the file ends inside a block's header", true},
		{"pcapng, block of 8 bytes", ng().u32(6, 8), "f: at byte 48, after 0 packets: a block of 8 bytes", false},
		{"pcapng, block of 13 bytes", ng().u32(5, 13).raw(make([]byte, 13)...), "f: at byte 48, after 0 packets: a block of 13 bytes", false},
		{"pcapng, two lengths", ng().u32(5, 16, 0, 20), "f: at byte 48, after 0 packets: a block that is 16 bytes long at its beginning and 20 at its end", false},
		{"pcapng, end of a block missing", ng().u32(5, 16, 0), "f: at byte 48, after 0 packets: the file ends inside a block", true},
		{"pcapng, packet block without a header", ng().block(6, func(b *builder) { b.u32(0, 0, 0, 0) }), "f: at byte 48, after 0 packets: a packet block of 16 bytes", false},
		{"pcapng, packet longer than its block", ng().block(6, func(b *builder) { b.u32(0, 0, 0, 61, 61).raw(a...) }), "f: at byte 48, after 0 packets: a packet of 61 bytes in a block with room for 60", false},
		{"pcapng, more kept than there was", ng().enhanced(0, 0, 59, a), "f: at byte 48, after 0 packets: 60 bytes kept of a packet that was 59 bytes long", false},
		{"pcapng, packet before any interface", le().section().enhanced(0, 0, 60, a), "f: at byte 28, after 0 packets: a packet of interface 0 of 0", false},
		{"pcapng, packet of an unknown interface", ng().enhanced(1, 0, 60, a), "f: at byte 48, after 0 packets: a packet of interface 1 of 1", false},
		{"pcapng, packet of the interface before the section", le().raw(ng().b...).section().enhanced(0, 0, 60, a), "f: at byte 76, after 0 packets: a packet of interface 0 of 0", false},
		{"pcapng, packet of another link type", le().section().iface(1, 0).iface(113, 0).enhanced(0, 0, 60, a).enhanced(1, 0, 60, a), "f: at byte 160, after 1 packets: link type 113: want 1, Ethernet", false},
		{"pcapng, with FCS", le().section().iface(1, 0, 13, 0, 1, 0, 4, 0, 0, 0).enhanced(0, 0, 60, a), "f: at byte 56, after 0 packets: frames with an FCS of 4 bytes", false},
		{"pcapng, interface block of 4 bytes", le().section().block(1, func(b *builder) { b.u16(1, 0) }), "f: at byte 28, after 0 packets: an interface block of 4 bytes", false},
		{"pcapng, interface block that never ends", le().section().u32(1, 0xfffffffc), "f: at byte 28, after 0 packets: an interface block of 4294967280 bytes", false},
		{"pcapng, option longer than its block", le().section().iface(1, 0, 9, 0, 9, 0), "f: at byte 28, after 0 packets: an interface option of 9 bytes in the last 4", false},
		{"pcapng, unit of time too fine", le().section().iface(1, 0, 9, 0, 1, 0, 20, 0, 0, 0), "f: at byte 28, after 0 packets: a unit of time with the exponent -20", false},
		{"pcapng, simple packet without a length", ng().block(3, func(*builder) {}), "f: at byte 48, after 0 packets: a simple packet block of 0 bytes", false},
		{"pcapng, simple packet longer than its block", ng().block(3, func(b *builder) { b.u32(61).raw(a...) }), "f: at byte 48, after 0 packets: a packet of 61 bytes in a block with room for 60", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out, err := readAll(tc.file.b)
			var f *FormatError
			require.ErrorAs(t, err, &f)
			assert.Equal(t, tc.want, err.Error())
			assert.Equal(t, tc.eof, errors.Is(err, io.ErrUnexpectedEOF))
			assert.Len(t, out, f.Record)
		})
	}
}

// TestTruncated: a file that ends anywhere gives whole frames and then says where
// it ends; it never gives a frame that lacks something.
// A pipe that nobody writes to is no capture, and nobody waits for one.
func TestPipeWithoutAWriter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(path, 0o600))
	_, err := Open(context.Background(), path)
	var e *FormatError
	require.ErrorAs(t, err, &e)
}

// A read that waits for the other end of a pipe ends with its context, in the header and
// behind it.
func TestReadOfAPipeEndsWithItsContext(t *testing.T) {
	whole := bytes.Repeat([]byte{0}, pcapHeader)
	copy(whole, []byte{0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0})
	whole[16], whole[20] = 0xff, linkEthernet
	for _, written := range [][]byte{whole[:2], whole} {
		path := filepath.Join(t.TempDir(), "pipe")
		require.NoError(t, syscall.Mkfifo(path, 0o600))
		w, err := os.OpenFile(path, os.O_RDWR, 0) // it stays open and writes no more
		require.NoError(t, err)
		defer w.Close()
		_, err = w.Write(written)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(20*time.Millisecond, cancel)
		f, err := Open(ctx, path)
		if err == nil {
			_, err = f.Next()
			require.NoError(t, f.Close())
		}
		assert.ErrorIs(t, err, context.Canceled)
		_, err = Check(path)
		assert.ErrorContains(t, err, "is not a regular file")
	}
}

func TestTruncated(t *testing.T) {
	a, b := bytesOf(60), bytesOf(1514)
	for name, file := range map[string][]byte{
		"pcap":   le().pcap(0xa1b2c3d4, 1).record(1, 0, 60, a).record(2, 0, 1514, b).b,
		"pcapng": le().section().iface(1, 0).enhanced(0, 1, 60, a).enhanced(0, 2, 1514, b, 1, 0, 2, 0, 'h', 'i', 0, 0).b,
	} {
		t.Run(name, func(t *testing.T) {
			whole, err := readAll(file)
			require.NoError(t, err)
			require.Len(t, whole, 2)
			ends := 0
			for n := range file {
				out, err := readAll(file[:n])
				assert.Equal(t, whole[:len(out)], append([]got{}, out...), "%d bytes", n)
				if err == nil {
					ends++
					continue
				}
				assert.ErrorIs(t, err, io.ErrUnexpectedEOF, "%d bytes", n)
			}
			// Behind the header of a pcap, behind both blocks in front of a pcapng, and
			// behind the first packet.
			assert.Equal(t, map[string]int{"pcap": 2, "pcapng": 3}[name], ends)
		})
	}
}

// TestAfterAnError nothing more is read.
func TestAfterAnError(t *testing.T) {
	file := le().pcap(0xa1b2c3d4, 1).record(0, 0, 59, bytesOf(60)).record(0, 0, 60, bytesOf(60))
	r, err := NewReader(bytes.NewReader(file.b), "f")
	require.NoError(t, err)
	_, first := r.Next()
	require.Error(t, first)
	_, second := r.Next()
	assert.Equal(t, first, second)
}

// TestMemoryFollowsTheFile: a length that the file does not have costs nothing.
func TestMemoryFollowsTheFile(t *testing.T) {
	file := le().pcap(0xa1b2c3d4, 1).u32(0, 0, MaxFrame, MaxFrame).raw(bytesOf(100)...).b
	r, err := NewReader(bytes.NewReader(file), "f")
	require.NoError(t, err)
	_, err = r.Next()
	assert.ErrorIs(t, err, io.ErrUnexpectedEOF)
	assert.LessOrEqual(t, cap(r.frame), 1<<16)
}

// TestOthersReadWhatIsWritten compares with gopacket's reader.
func TestOthersReadWhatIsWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out.pcapng")
	rec, err := Create(path, "oxp9")
	require.NoError(t, err)
	begin := time.Date(2031, 2, 3, 4, 5, 6, 123_456_789, time.UTC)
	var want [][]byte
	for i, n := range []int{0, 1, 14, 59, 60, 61, 62, 63, 1514, 9014, MaxFrame} {
		want = append(want, bytesOf(n))
		require.NoError(t, rec.Record(begin.Add(time.Duration(i)), want[i]))
	}
	assert.ErrorContains(t, rec.w.Write(begin, make([]byte, MaxFrame+1)), "want at most 262144")
	assert.EqualValues(t, len(want), rec.Frames())
	require.NoError(t, rec.Close())

	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	r, err := pcapgo.NewNgReader(f, pcapgo.DefaultNgReaderOptions)
	require.NoError(t, err)
	assert.Equal(t, layers.LinkTypeEthernet, r.LinkType())
	for i := range want {
		b, info, err := r.ReadPacketData()
		require.NoError(t, err)
		assert.True(t, bytes.Equal(want[i], b))
		assert.Equal(t, begin.Add(time.Duration(i)), info.Timestamp.UTC())
		assert.Equal(t, len(want[i]), info.Length)
	}
	_, _, err = r.ReadPacketData()
	assert.Equal(t, io.EOF, err)
	i, err := r.Interface(0)
	require.NoError(t, err)
	assert.Equal(t, "oxp9", i.Name)

	ours, err := Check(path)
	require.NoError(t, err)
	assert.Equal(t, len(want), ours.Packets)
	assert.Equal(t, MaxFrame, ours.Longest)
	assert.Equal(t, time.Duration(len(want)-1), ours.Duration)
}

// TestPacketsSayWhereTheyAreFrom: the blocks byte for byte, and as gopacket reads them.
func TestPacketsSayWhereTheyAreFrom(t *testing.T) {
	at := time.Unix(1_700_000_000, 123_456_789).UTC()
	var out bytes.Buffer
	w, err := NewWriter(&out, "oxp1", "oxp9")
	require.NoError(t, err)
	require.NoError(t, w.Flush())
	head := out.Len()
	require.NoError(t, w.WritePacket(&Packet{Iface: 1, Time: at, Frame: bytesOf(61), WireBytes: 9014, Dir: Inbound, Comment: "a:1: x"}))
	require.NoError(t, w.WritePacket(&Packet{Iface: 0, Time: at, Frame: bytesOf(60), Dir: Outbound}))
	require.NoError(t, w.WritePacket(&Packet{Iface: 1, Time: at, Frame: bytesOf(60)}))
	require.ErrorContains(t, w.WritePacket(&Packet{Comment: strings.Repeat("x", MaxComment+1)}), "a comment of 32769 bytes")
	require.ErrorContains(t, w.WritePacket(&Packet{WireBytes: MaxFrame + 1}), "a frame of 262145 bytes")
	require.NoError(t, w.Flush())

	hi, lo := uint32(uint64(at.UnixNano())>>32), uint32(at.UnixNano())
	want := le().block(6, func(b *builder) {
		b.u32(1, hi, lo, 61, 9014).raw(bytesOf(61)...).raw(0, 0, 0)
		b.u16(1, 6).raw([]byte("a:1: x")...).raw(0, 0).u16(2, 4).u32(1).u16(0, 0)
	}).block(6, func(b *builder) {
		b.u32(0, hi, lo, 60, 60).raw(bytesOf(60)...).u16(2, 4).u32(2).u16(0, 0)
	}).block(6, func(b *builder) {
		b.u32(1, hi, lo, 60, 60).raw(bytesOf(60)...)
	})
	assert.Equal(t, want.b, out.Bytes()[head:])

	back, err := readAll(out.Bytes())
	require.NoError(t, err)
	assert.Equal(t, []got{{at, bytesOf(61), 9014}, {at, bytesOf(60), 60}, {at, bytesOf(60), 60}}, back)
	theirs, err := pcapgo.NewNgReader(bytes.NewReader(out.Bytes()), pcapgo.NgReaderOptions{})
	require.NoError(t, err)
	for _, n := range []int{1, 0, 1} {
		_, info, err := theirs.ReadPacketData()
		require.NoError(t, err)
		assert.Equal(t, n, info.InterfaceIndex)
		i, err := theirs.Interface(n)
		require.NoError(t, err)
		assert.Equal(t, []string{"oxp1", "oxp9"}[n], i.Name)
	}
}

// TestReadsWhatOthersWrite: gopacket's two writers.
func TestReadsWhatOthersWrite(t *testing.T) {
	at := time.Unix(1_700_000_000, 123_456_000).UTC()
	frame := bytesOf(61)
	info := gopacket.CaptureInfo{Timestamp: at, CaptureLength: 61, Length: 100}
	var old, ng bytes.Buffer
	w := pcapgo.NewWriter(&old)
	require.NoError(t, w.WriteFileHeader(65535, layers.LinkTypeEthernet))
	require.NoError(t, w.WritePacket(info, frame))
	n, err := pcapgo.NewNgWriter(&ng, layers.LinkTypeEthernet)
	require.NoError(t, err)
	require.NoError(t, n.WritePacket(info, frame))
	require.NoError(t, n.Flush())
	for name, b := range map[string][]byte{"pcap": old.Bytes(), "pcapng": ng.Bytes()} {
		t.Run(name, func(t *testing.T) {
			out, err := readAll(b)
			require.NoError(t, err)
			assert.Equal(t, []got{{at, frame, 100}}, out)
		})
	}
}

// TestPcapgo is why this package has a reader of its own (doc.go): what pcapgo
// makes of files that this one reads, or refuses by name.
func TestPcapgo(t *testing.T) {
	read := func(b []byte) (n int, first time.Time, err error) {
		r, err := pcapgo.NewNgReader(bytes.NewReader(b), pcapgo.NgReaderOptions{WantMixedLinkType: true})
		if err != nil {
			return 0, first, err
		}
		for ; ; n++ {
			_, info, err := r.ReadPacketData()
			if err != nil {
				return n, first, err
			}
			if n == 0 {
				first = info.Timestamp
			}
		}
	}
	a := bytesOf(60)
	unit := func(exp byte) *builder { return le().section().iface(1, 0, 9, 0, 1, 0, exp, 0, 0, 0) }
	t.Run("a unit of time too fine panics", func(t *testing.T) {
		assert.Panics(t, func() { _, _, _ = read(unit(0x80 | 64).b) })
	})
	t.Run("half a second of 2^-32 s is another time", func(t *testing.T) {
		_, at, err := read(unit(0x80|32).enhanced(0, 1<<31, 60, a).b)
		require.Equal(t, io.EOF, err)
		assert.NotEqual(t, time.Unix(0, 500_000_000).UTC(), at)
	})
	t.Run("the end of a block that is not there is no error", func(t *testing.T) {
		n, _, err := read(le().section().iface(1, 0).u32(6, 92, 0, 0, 0, 60, 60).raw(a[:59]...).b)
		assert.Equal(t, 0, n)
		assert.Equal(t, io.EOF, err)
	})
	t.Run("an FCS is not told", func(t *testing.T) {
		n, _, err := read(le().section().iface(1, 0, 13, 0, 1, 0, 4, 0, 0, 0).enhanced(0, 0, 60, a).b)
		assert.Equal(t, 1, n)
		assert.Equal(t, io.EOF, err)
	})
	t.Run("memory comes before the bytes", func(t *testing.T) {
		const length = 64 << 20
		file := le().section().iface(1, 0).u32(6, length+32, 0, 0, 0, length, length).b
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _, err := read(file)
		runtime.ReadMemStats(&after)
		assert.Equal(t, io.EOF, err)
		assert.GreaterOrEqual(t, after.TotalAlloc-before.TotalAlloc, uint64(length))
	})
}

func TestRecorder(t *testing.T) {
	t.Run("frames are in the file before it is closed", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "out")
		r, err := Create(path, "oxp9")
		require.NoError(t, err)
		s, err := Check(path)
		require.NoError(t, err, "a capture from the first moment on")
		assert.Zero(t, s.Packets)
		for n := 1; n <= 2; n++ { // each of them, not only the first
			require.NoError(t, r.Record(time.Now(), bytesOf(60)))
			require.Eventually(t, func() bool {
				s, err := Check(path)
				return err == nil && s.Packets == n
			}, 30*time.Second, 10*time.Millisecond)
		}
		require.NoError(t, r.Close())
	})
	t.Run("an error ends it and stays", func(t *testing.T) {
		r, err := Create("/dev/full", "oxp9")
		require.ErrorContains(t, err, "no space left")
		require.Nil(t, r)
	})
	t.Run("closed twice", func(t *testing.T) {
		r, err := Create(filepath.Join(t.TempDir(), "out"), "oxp9")
		require.NoError(t, err)
		require.NoError(t, r.Close())
		assert.ErrorIs(t, r.Close(), os.ErrClosed)
		assert.ErrorIs(t, r.Record(time.Now(), nil), os.ErrClosed)
	})
	t.Run("no such folder", func(t *testing.T) {
		_, err := Create(filepath.Join(t.TempDir(), "none", "out"), "oxp9")
		assert.ErrorIs(t, err, os.ErrNotExist)
	})
	t.Run("the file goes away under it", func(t *testing.T) {
		r, err := Create(filepath.Join(t.TempDir(), "out"), "oxp9")
		require.NoError(t, err)
		require.NoError(t, r.file.Close())
		var first error
		for i := 0; first == nil && i < 3; i++ {
			first = r.Record(time.Now(), make([]byte, 1<<16)) // more than is kept back
		}
		require.Error(t, first)
		assert.Equal(t, first, r.Record(time.Now(), nil))
		assert.Error(t, r.Close())
	})
}

func TestCheckNames(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bad.pcap")
	require.NoError(t, os.WriteFile(path, le().pcap(0xa1b2c3d4, 1).record(0, 0, 60, bytesOf(60)).raw(1).b, 0o600))
	s, err := Check(path)
	assert.EqualError(t, err, path+": at byte 100, after 1 packets: the file ends inside a record's header")
	var f *FormatError
	require.ErrorAs(t, err, &f)
	assert.True(t, strings.HasPrefix(f.Hint(), "the file is damaged"))
	assert.Equal(t, 1, s.Packets)
	_, err = Check(path + "x")
	assert.ErrorIs(t, err, os.ErrNotExist)
}

func TestSame(t *testing.T) {
	dir := t.TempDir()
	a, link, b := filepath.Join(dir, "a"), filepath.Join(dir, "link"), filepath.Join(dir, "b")
	require.NoError(t, os.WriteFile(a, nil, 0o600))
	require.NoError(t, os.Link(a, link))
	assert.True(t, Same(a, a))
	assert.True(t, Same(a, link), "another name of the file")
	assert.False(t, Same(a, b), "not there yet")
	assert.True(t, Same(b, b))
}

func TestReaddress(t *testing.T) {
	mac := [6]byte{2, 1, 2, 3, 4, 5}
	for _, tc := range []struct {
		name        string
		frame, want []byte
	}{
		{"unicast", []byte{0, 9, 9, 9, 9, 9, 7}, []byte{2, 1, 2, 3, 4, 5, 7}},
		{"multicast", []byte{1, 0, 0x5e, 0, 0, 1, 7}, []byte{1, 0, 0x5e, 0, 0, 1, 7}},
		{"broadcast", []byte{255, 255, 255, 255, 255, 255}, []byte{255, 255, 255, 255, 255, 255}},
		{"shorter than an address", []byte{0, 9, 9, 9, 9}, []byte{0, 9, 9, 9, 9}},
		{"nothing", []byte{}, []byte{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			Readdress(tc.frame, mac)
			assert.Equal(t, tc.want, tc.frame)
		})
	}
}

func TestPacer(t *testing.T) {
	var p Pacer
	file, wall := time.Unix(100, 0), time.Unix(5000, 0)
	assert.Zero(t, p.Wait(time.Time{}, wall), "no time: at once, and the clock has not begun")
	assert.Zero(t, p.Wait(file, wall), "the first")
	assert.Equal(t, 3*time.Second, p.Wait(file.Add(3*time.Second), wall))
	assert.Equal(t, time.Second, p.Wait(file.Add(3*time.Second), wall.Add(2*time.Second)), "some of it has passed")
	assert.Negative(t, p.Wait(file.Add(3*time.Second), wall.Add(4*time.Second)), "late: at once")
	assert.Negative(t, p.Wait(file.Add(-time.Second), wall), "back in time: at once")
}

// FuzzReader: no panic, no frame longer than it was on the wire or than the
// file, and what was read is read again from what is written.
func FuzzReader(f *testing.F) {
	f.Add(le().pcap(0xa1b2c3d4, 1).record(1, 2, 60, bytesOf(60)).record(3, 4, 1514, bytesOf(61)).b)
	f.Add(be().pcap(0xa1b23c4d, 1).record(1, 2, 60, bytesOf(60)).b)
	f.Add(le().section().iface(1, 0, 9, 0, 1, 0, 9, 0, 0, 0).enhanced(0, 1<<40, 60, bytesOf(60)).b)
	f.Add(be().section().iface(1, 64).block(3, func(b *builder) { b.u32(60).raw(bytesOf(60)...) }).block(5, func(b *builder) { b.u32(1) }).b)
	f.Fuzz(func(t *testing.T, b []byte) {
		out, err := readAll(b)
		var bad *FormatError
		if err != nil && !errors.As(err, &bad) {
			t.Fatalf("an error that is not the file's: %v", err)
		}
		if bad != nil && (bad.Offset < 0 || bad.Offset > int64(len(b)) || bad.Record != len(out)) {
			t.Fatalf("%d frames of %d bytes, and %+v", len(out), len(b), bad)
		}
		var again bytes.Buffer
		w, err := NewWriter(&again, "x")
		require.NoError(t, err)
		total := 0
		for _, g := range out {
			if total += len(g.frame); len(g.frame) > g.wire || total > len(b) {
				t.Fatalf("frames of %d bytes, %d on the wire, in a file of %d", len(g.frame), g.wire, len(b))
			}
			require.NoError(t, w.Write(g.at, g.frame))
		}
		require.NoError(t, w.Flush())
		back, err := readAll(again.Bytes())
		require.NoError(t, err)
		require.Len(t, back, len(out))
		for i := range out {
			require.True(t, bytes.Equal(out[i].frame, back[i].frame))
		}
	})
}
