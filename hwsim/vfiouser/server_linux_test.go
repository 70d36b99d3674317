package vfiouser

import (
	"bytes"
	"encoding/binary"
	"math"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/hwsim"
	"oxpd/internal/vfu"
	"oxpd/octep/csr"
	"oxpd/ring/wire"
)

func TestDescriptionOfTheDevice(t *testing.T) {
	r := newRig(t)
	c := r.dial()
	reply, _, errno := c.call(vfu.Version, []byte("\x00\x00\x01\x00"+`{"capabilities":{"max_msg_fds":8,"max_data_xfer_size":65536,"write_multiple":true}}`+"\x00"))
	require.Zero(t, errno)
	var h vfu.Hello
	require.NoError(t, h.Decode(reply))
	assert.Equal(t, vfu.Hello{Capabilities: vfu.Capabilities{MaxFDs: 8, MaxTransfer: 1 << 20, MaxMaps: 65535, PageSizes: 4096}}, h, "version 0.0")

	reply, _, errno = c.call(vfu.GetInfo, vfu.Device{ArgSize: 16}.Append(nil))
	require.Zero(t, errno)
	assert.Equal(t, vfu.Device{ArgSize: 16, Flags: vfu.DeviceReset | vfu.DevicePCI, Regions: 9, IRQs: 5}.Append(nil), reply)

	for i, size := range map[uint32]uint64{0: 8 << 20, 1: 0, 2: 64 << 20, 3: 0, 4: 1 << 20, 5: 0, 6: 0, 7: 4096, 8: 0} {
		reply, fds, errno := c.call(vfu.RegionInfo, vfu.Region{ArgSize: 256, Index: i}.Append(nil))
		require.Zero(t, errno)
		var info vfu.Region
		require.NoError(t, info.Decode(reply))
		assert.Equal(t, size, info.Size, "region %d", i)
		assert.EqualValues(t, len(reply), info.ArgSize)
		assert.Equal(t, size > 0, info.Flags&(vfu.RegionRead|vfu.RegionWrite) != 0)
		assert.Equal(t, i == 2, info.Flags&vfu.RegionMap != 0, "region %d: doorbells of a mapped one would not be seen", i)
		if i != 2 {
			assert.Empty(t, fds)
			continue
		}
		require.Len(t, fds, 1)
		areas, ok, err := info.DecodeAreas(reply)
		require.NoError(t, err)
		assert.True(t, ok)
		assert.Equal(t, []vfu.Area{{Offset: 0, Size: csr.BAR2FacEnd}}, areas, "nothing that hangs a host")
		mem, err := unix.Mmap(fds[0], 0, csr.BAR2FacEnd, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		require.NoError(t, err)
		assert.EqualValues(t, 0xff, mem[0])
		assert.EqualValues(t, 0xff, mem[csr.BAR2FacEnd-1])
		assert.ErrorIs(t, unix.Ftruncate(fds[0], 0), unix.EPERM, "nobody takes it away under the card")
		require.NoError(t, unix.Munmap(mem))
		require.NoError(t, unix.Close(fds[0]))

		// Without room for the areas the answer says how much they need.
		reply, fds, errno = c.call(vfu.RegionInfo, vfu.Region{ArgSize: vfu.RegionSize, Index: i}.Append(nil))
		require.Zero(t, errno)
		require.Len(t, reply, vfu.RegionSize)
		var short vfu.Region
		require.NoError(t, short.Decode(reply))
		assert.Equal(t, info, short)
		assert.GreaterOrEqual(t, short.CapOffset, uint32(vfu.RegionSize))
		require.Len(t, fds, 1)
		require.NoError(t, unix.Close(fds[0]))
	}
	for i, count := range []uint32{0, 0, 80, 0, 0} {
		reply, _, errno := c.call(vfu.IRQInfo, vfu.IRQ{ArgSize: 16, Index: uint32(i)}.Append(nil))
		require.Zero(t, errno)
		var info vfu.IRQ
		require.NoError(t, info.Decode(reply))
		assert.Equal(t, count, info.Count)
	}
}

func TestRegions(t *testing.T) {
	r := newRig(t)
	c := r.connect()
	whole, _, errno := c.call(vfu.ReadAt, vfu.Access{Region: vfu.RegionConfig, Count: 4096}.Append(nil))
	require.Zero(t, errno)
	var a vfu.Access
	require.NoError(t, a.Decode(whole))
	require.Len(t, a.Data, 4096, "configuration space in one message")
	assert.Equal(t, []byte{0x7d, 0x17, 0x00, 0xa3}, a.Data[:4])
	assert.EqualValues(t, 0x7d17, unswap(c.load(vfu.RegionConfig, 0, 2)))
	assert.EqualValues(t, 0x0b, c.load(vfu.RegionConfig, 0x0b, 1))

	assert.Equal(t, ^uint64(0), c.load(0, 0x20190, 8), "decoding is off")
	assert.EqualValues(t, 1, r.card.ReportCount(hwsim.ReportDecodeOff))
	data := []byte{6, 0, 0xff, 0xff, 0xff} // an odd piece: the command, the status, which is read only, the revision
	_, _, errno = c.call(vfu.WriteAt, vfu.Access{Offset: 4, Region: vfu.RegionConfig, Count: 5, Data: data}.Append(nil))
	require.Zero(t, errno)
	assert.EqualValues(t, 0x00100006, c.load(vfu.RegionConfig, 4, 4))
	assert.EqualValues(t, 0x00400000, c.load(0, 0x20190, 8))
	c.store(0, 0x20180, 8, 0x1122334455667788)
	assert.EqualValues(t, 0x11223344, c.load(0, 0x20184, 4))
	assert.EqualValues(t, 0, c.load(4, 0x1000, 4))
	assert.Equal(t, uint64(0xffff), c.load(0, 0x20190, 2), "a width that the page does not have")
	assert.EqualValues(t, 1, r.card.ReportCount(hwsim.ReportBadWidth))

	// A command without an answer is obeyed in its place.
	access := vfu.Access{Offset: 0x20180, Count: 8, Data: []byte{1, 2, 3, 4, 5, 6, 7, 8}}.Append(nil)
	c.send(vfu.Header{ID: 7, Command: vfu.WriteAt, Size: uint32(16 + len(access)), Flags: vfu.FlagNoReply}, access)
	assert.EqualValues(t, 0x0807060504030201, c.load(0, 0x20180, 8))
}

func unswap(v uint64) uint16 { return uint16(v)>>8 | uint16(v)<<8 }

// TestSizes has VF-1: what a client says about sizes is checked before it costs
// anything.
func TestSizes(t *testing.T) {
	r := newRig(t)
	c := r.connect()
	fd, _ := memfd(t, 8192)
	require.Zero(t, c.mapAt(0x10000, 0, 8192, both, fd))
	unmap := func(argsz, flags uint32, address, size uint64) []byte {
		return vfu.Unmap{ArgSize: argsz, Flags: flags, Address: address, Size: size}.Append(nil)
	}
	dmaMap := func(argsz, flags uint32, offset, address, size uint64) []byte {
		return vfu.Map{ArgSize: argsz, Flags: flags, Offset: offset, Address: address, Size: size}.Append(nil)
	}
	access := func(off uint64, region, count uint32, data int) []byte {
		return vfu.Access{Offset: off, Region: region, Count: count, Data: make([]byte, data)}.Append(nil)
	}
	irqs := func(argsz, flags, index, start, count uint32, data int) []byte {
		return vfu.IRQSet{ArgSize: argsz, Flags: flags, Index: index, Start: start, Count: count, Data: make([]byte, data)}.Append(nil)
	}
	const end = 1 << 32 // a place without a map
	tests := []struct {
		name    string
		cmd     vfu.Command
		payload []byte
		want    unix.Errno
	}{
		{"unmap: room for four gigabytes", vfu.UnmapDMA, unmap(math.MaxUint32, 0, 0x10000, 8192), unix.EINVAL},
		{"unmap: room for less than the answer", vfu.UnmapDMA, unmap(23, 0, 0x10000, 8192), unix.EINVAL},
		{"unmap: dirty pages", vfu.UnmapDMA, unmap(24, vfu.UnmapDirty, 0x10000, 8192), unix.EINVAL},
		{"unmap: dirty pages of everything, for four gigabytes", vfu.UnmapDMA, unmap(math.MaxUint32, vfu.UnmapDirty, 0, math.MaxUint64-4095), unix.EINVAL},
		{"unmap: past 2^64", vfu.UnmapDMA, unmap(24, 0, 0x10000, math.MaxUint64-4095), unix.EINVAL},
		{"unmap: nothing", vfu.UnmapDMA, unmap(24, 0, 0x10000, 0), unix.EINVAL},
		{"unmap: part of a page", vfu.UnmapDMA, unmap(24, 0, 0x10000, 100), unix.EINVAL},
		{"unmap: from inside of a page", vfu.UnmapDMA, unmap(24, 0, 0x10800, 4096), unix.EINVAL},
		{"unmap: half of a map", vfu.UnmapDMA, unmap(24, 0, 0x10000, 4096), unix.ENOENT},
		{"unmap: more than half of a map", vfu.UnmapDMA, unmap(24, 0, 0xf000, 8192), unix.ENOENT},
		{"unmap: beside a map", vfu.UnmapDMA, unmap(24, 0, 0x12000, math.MaxUint64-0x12fff), unix.ENOENT},
		{"unmap: from its middle", vfu.UnmapDMA, unmap(24, 0, 0x11000, 4096), unix.ENOENT},
		{"unmap: all, and an address", vfu.UnmapDMA, unmap(24, vfu.UnmapAll, 0x10000, 8192), unix.EINVAL},
		{"unmap: a byte too many", vfu.UnmapDMA, append(unmap(24, 0, 0x10000, 8192), 0), unix.EINVAL},
		{"map: room for four gigabytes", vfu.MapDMA, dmaMap(math.MaxUint32, both, 0, end, 4096), unix.EINVAL},
		{"map: nothing", vfu.MapDMA, dmaMap(32, both, 0, end, 0), unix.EINVAL},
		{"map: past 2^64", vfu.MapDMA, dmaMap(32, both, 0, math.MaxUint64-4095, 8192), unix.EINVAL},
		{"map: not a page", vfu.MapDMA, dmaMap(32, both, 0, end, 4097), unix.EINVAL},
		{"map: not at a page", vfu.MapDMA, dmaMap(32, both, 0, end+1, 4096), unix.EINVAL},
		{"map: for nobody", vfu.MapDMA, dmaMap(32, 0, 0, end, 4096), unix.EINVAL},
		{"map: flags that nobody knows", vfu.MapDMA, dmaMap(32, both|4, 0, end, 4096), unix.EINVAL},
		{"map: over another", vfu.MapDMA, dmaMap(32, both, 0, 0, math.MaxUint64-4095), unix.EEXIST},
		{"map: cut short", vfu.MapDMA, dmaMap(32, both, 0, end, 4096)[:31], unix.EINVAL},
		{"read: four gigabytes", vfu.ReadAt, access(0, vfu.RegionConfig, math.MaxUint32, 0), unix.EINVAL},
		{"read: above what was agreed on", vfu.ReadAt, access(0, vfu.RegionConfig, 1<<20+1, 0), unix.EINVAL},
		{"read: nothing", vfu.ReadAt, access(0, 0, 0, 0), unix.EINVAL},
		{"read: past the end", vfu.ReadAt, access(4093, vfu.RegionConfig, 4, 0), unix.EINVAL},
		{"read: past 2^64", vfu.ReadAt, access(math.MaxUint64-1, 0, 4, 0), unix.EINVAL},
		{"read: a region that is not there", vfu.ReadAt, access(0, 1, 4, 0), unix.EINVAL},
		{"read: a region that no device has", vfu.ReadAt, access(0, math.MaxUint32, 4, 0), unix.EINVAL},
		{"read: a BAR, three bytes", vfu.ReadAt, access(0x20190, 0, 3, 0), unix.EINVAL},
		{"read: a BAR, unaligned", vfu.ReadAt, access(0x20194, 0, 8, 0), unix.EINVAL},
		{"read: a BAR, sixteen bytes", vfu.ReadAt, access(0x20190, 0, 16, 0), unix.EINVAL},
		{"read: with data", vfu.ReadAt, access(0x20190, 0, 8, 8), unix.EINVAL},
		{"write: less data than it says", vfu.WriteAt, access(0x20180, 0, 8, 7), unix.EINVAL},
		{"write: more data than it says", vfu.WriteAt, access(0x20180, 0, 8, 9), unix.EINVAL},
		{"write: no data for four gigabytes", vfu.WriteAt, access(0x20180, 0, math.MaxUint32, 0), unix.EINVAL},
		{"info: no room", vfu.GetInfo, vfu.Device{ArgSize: 15}.Append(nil), unix.EINVAL},
		{"info: cut short", vfu.GetInfo, make([]byte, 15), unix.EINVAL},
		{"region: no room", vfu.RegionInfo, vfu.Region{ArgSize: 31}.Append(nil), unix.EINVAL},
		{"region: room for four gigabytes", vfu.RegionInfo, vfu.Region{ArgSize: math.MaxUint32}.Append(nil), unix.EINVAL},
		{"region: none of that number", vfu.RegionInfo, vfu.Region{ArgSize: 32, Index: 9}.Append(nil), unix.EINVAL},
		{"irqs: none of that kind", vfu.IRQInfo, vfu.IRQ{ArgSize: 16, Index: 5}.Append(nil), unix.EINVAL},
		{"irqs: past the last vector", vfu.SetIRQs, irqs(20, vfu.IRQNone|vfu.IRQTrigger, 2, 79, 2, 0), unix.EINVAL},
		{"irqs: a sum that wraps", vfu.SetIRQs, irqs(20, vfu.IRQNone|vfu.IRQTrigger, 2, math.MaxUint32, 1, 0), unix.EINVAL},
		{"irqs: four billion", vfu.SetIRQs, irqs(20, vfu.IRQBool|vfu.IRQTrigger, 2, 0, math.MaxUint32, 0), unix.EINVAL},
		{"irqs: fewer bytes than vectors", vfu.SetIRQs, irqs(22, vfu.IRQBool|vfu.IRQTrigger, 2, 0, 3, 2), unix.EINVAL},
		{"irqs: legacy ones, which are not there", vfu.SetIRQs, irqs(20, vfu.IRQFD|vfu.IRQTrigger, 0, 0, 1, 0), unix.EINVAL},
		{"irqs: masking, which is not offered", vfu.SetIRQs, irqs(20, vfu.IRQNone|vfu.IRQMask, 2, 0, 1, 0), unix.EINVAL},
		{"irqs: two kinds of data", vfu.SetIRQs, irqs(20, vfu.IRQNone|vfu.IRQFD|vfu.IRQTrigger, 2, 0, 1, 0), unix.EINVAL},
		{"irqs: data that nobody asked for", vfu.SetIRQs, irqs(24, vfu.IRQFD|vfu.IRQTrigger, 2, 0, 1, 4), unix.EINVAL},
		{"reset: with a payload", vfu.Reset, []byte{0}, unix.EINVAL},
		{"a second greeting", vfu.Version, vfu.Hello{}.Append(nil), unix.EINVAL},
		{"a command that nobody knows", 99, nil, unix.EOPNOTSUPP},
		{"several writes in one", 15, make([]byte, 8), unix.EOPNOTSUPP},
	}
	c.store(vfu.RegionConfig, 4, 2, 2)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	files := openFiles(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, _, errno := c.call(tt.cmd, tt.payload)
			assert.Equal(t, tt.want, errno)
		})
	}
	runtime.ReadMemStats(&after)
	assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(4<<20), "nothing of the sizes was allocated")
	noMoreFiles(t, files, "no descriptor is left over")
	assert.EqualValues(t, 0x00400000, c.load(0, 0x20190, 8), "and the client is served on")
	require.Zero(t, c.unmap(0x10000, 8192), "its map is still there")
}

// A message after which the next cannot be found ends the connection, and the next
// client is served.
func TestMessagesThatEndTheConnection(t *testing.T) {
	r := newRig(t)
	version := vfu.Hello{}.Append(nil)
	for _, tt := range []struct {
		name    string
		greeted bool
		h       vfu.Header
		payload []byte
	}{
		{"size 0", true, vfu.Header{Command: vfu.GetInfo}, nil},
		{"size below the header", true, vfu.Header{Command: vfu.GetInfo, Size: 15}, nil},
		{"four gigabytes", true, vfu.Header{Command: vfu.WriteAt, Size: math.MaxUint32}, nil},
		{"a byte above what was agreed on", true, vfu.Header{Command: vfu.WriteAt, Size: 16 + 16 + 1<<20 + 1}, nil},
		{"a reply", true, vfu.Header{Command: vfu.GetInfo, Size: 16, Flags: vfu.FlagReply}, nil},
		{"a command before the greeting", false, vfu.Header{Command: vfu.GetInfo, Size: 32}, nil},
		{"a greeting of a megabyte", false, vfu.Header{Command: vfu.Version, Size: 1 << 20}, nil},
		{"another major version", false, vfu.Header{Command: vfu.Version, Size: 20}, []byte{1, 0, 0, 0}},
		{"a greeting that is cut short", false, vfu.Header{Command: vfu.Version, Size: 18}, []byte{0, 0}},
		{"a greeting in another language", false, vfu.Header{Command: vfu.Version, Size: 23}, []byte("\x00\x00\x00\x00hi\x00")},
		{"transfers of 0 bytes", false, vfu.Header{Command: vfu.Version, Size: uint32(16 + len(version))}, version},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := r.dial()
			if tt.greeted {
				require.NoError(t, c.conn.Close())
				c = r.connect()
			}
			c.send(tt.h, tt.payload)
			c.ended()
		})
	}
	t.Run("half a message", func(t *testing.T) {
		c := r.connect()
		c.send(vfu.Header{Command: vfu.GetInfo, Size: 32}, make([]byte, 8))
		require.NoError(t, c.conn.Close())
	})
	c := r.connect()
	assert.EqualValues(t, 0x177d, c.load(vfu.RegionConfig, 0, 2))
}

// A transfer is no larger than the smaller end of the two agreed to.
func TestNegotiatedTransfer(t *testing.T) {
	r := newRig(t)
	c := r.dial()
	caps := vfu.DefaultCapabilities()
	caps.MaxTransfer = 64
	_, _, errno := c.call(vfu.Version, vfu.Hello{Capabilities: caps}.Append(nil))
	require.Zero(t, errno)
	_, _, errno = c.call(vfu.ReadAt, vfu.Access{Region: vfu.RegionConfig, Count: 64}.Append(nil))
	assert.Zero(t, errno)
	_, _, errno = c.call(vfu.ReadAt, vfu.Access{Region: vfu.RegionConfig, Count: 65}.Append(nil))
	assert.Equal(t, unix.EINVAL, errno)
	c.send(vfu.Header{Command: vfu.WriteAt, Size: 16 + 16 + 65}, nil)
	c.ended()
}

func TestMaps(t *testing.T) {
	r := newRig(t)
	c := r.connect()
	fd, _ := memfd(t, 16384)
	require.Zero(t, c.mapAt(0x10000, 4096, 8192, both, fd))
	for name, errno := range map[string]unix.Errno{
		"the same":              c.mapAt(0x10000, 4096, 8192, both, fd),
		"its last page":         c.mapAt(0x11000, 0, 4096, both, fd),
		"around it":             c.mapAt(0, 0, 1<<40, both),
		"without memory, in it": c.mapAt(0x10000, 0, 4096, both),
	} {
		assert.Equal(t, unix.EEXIST, errno, name)
	}
	require.Zero(t, c.mapAt(0x12000, 0, 4096, both, fd), "behind it")
	require.Zero(t, c.mapAt(0xf000, 0, 4096, vfu.MapRead, fd), "before it, to read")
	require.Zero(t, c.mapAt(1<<40, 0, 1<<62, both), "memory of which only the place is known")
	require.Zero(t, c.mapAt(0xfffffffffffff000, 12288, 4096, both, fd), "the last page of all")

	file, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer file.Close()
	pipe := make([]int, 2)
	require.NoError(t, unix.Pipe(pipe))
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	for name, errno := range map[string]unix.Errno{
		"an offset in the middle of a page": c.mapAt(0x100000, 100, 4096, both, fd),
		"past the end of the file":          c.mapAt(0x100000, 16384, 4096, both, fd),
		"an offset that wraps":              c.mapAt(0x100000, math.MaxUint64-4095, 8192, both, fd),
		"an empty file":                     c.mapAt(0x100000, 0, 4096, both, int(file.Fd())),
		"two descriptors":                   c.mapAt(0x100000, 0, 4096, both, fd, fd),
	} {
		assert.Equal(t, unix.EINVAL, errno, name)
	}
	assert.NotZero(t, c.mapAt(0x100000, 0, 4096, both, pipe[0]), "what has no memory")
	assert.NotZero(t, c.mapAt(0x100000, 0, 1<<62, both, fd), "more than there is")

	reply, _, errno := c.call(vfu.UnmapDMA, vfu.Unmap{ArgSize: 24, Address: 0x10000, Size: 8192}.Append(nil))
	require.Zero(t, errno)
	assert.Equal(t, vfu.Unmap{ArgSize: 24, Address: 0x10000, Size: 8192}.Append(nil), reply, "what was asked for")
	assert.Equal(t, unix.ENOENT, c.unmap(0x10000, 8192), "twice")
	require.Zero(t, c.unmap(0xfffffffffffff000, 4096))
	_, _, errno = c.call(vfu.UnmapDMA, vfu.Unmap{ArgSize: 24, Flags: vfu.UnmapAll}.Append(nil))
	require.Zero(t, errno)
	assert.Equal(t, unix.ENOENT, c.unmap(0x12000, 4096))
	require.Zero(t, c.mapAt(0, 0, 1<<63, both), "nothing is left")
}

// Many maps that lie in a range go with it; none goes where one is cut.
func TestUnmapOfARange(t *testing.T) {
	c := newRig(t).connect()
	fd, _ := memfd(t, 8192)
	maps := func() {
		t.Helper()
		for at := uint64(0x200000); at < 0x208000; at += 4096 {
			require.Zero(t, c.mapAt(at, 4096, 4096, both, fd))
		}
		require.Zero(t, c.mapAt(0x208000, 0, 8192, both, fd))
	}
	maps()
	assert.Equal(t, unix.ENOENT, c.unmap(0x200000, 0x9000), "half of the last")
	assert.Equal(t, unix.EEXIST, c.mapAt(0x200000, 0, 4096, both, fd), "nothing has gone")
	require.Zero(t, c.unmap(0x200000, 0x8000))
	assert.Equal(t, unix.EEXIST, c.mapAt(0x209000, 0, 4096, both, fd), "the one behind it stays")
	require.Zero(t, c.unmap(0x200000, 1<<40), "a range that it ends in")
	maps()
	require.Zero(t, c.unmap(0, math.MaxUint64-4095), "all but one page of 2^64")
	maps()
}

// bench is a ring in memory of a client, programmed by message.
type bench struct {
	*client
	r *rig
}

const (
	entries, bufs   = 1024, 1024
	bufSize, stride = 1602, 1664
	busList         = 0x1_0000_0000
	busBufs         = 0x2_0000_0000
	busIn           = 0x3_0000_0000
	busSlots        = 0x4_0000_0000
)

func (b bench) reg(q int, r csr.RingReg) uint64 { return uint64(r.Queue(q)) }

// program arms output ring 0 with the list at busList, whose buffers begin at first,
// and the input ring at busIn, and has the fast path run. put writes a descriptor.
func (b bench) program(first uint64, put func(i int, bus uint64)) {
	b.enable()
	for i := range entries {
		put(i, first+uint64(i*stride))
	}
	b.store(0, b.reg(0, csr.OutSlistBaddr), 8, busList)
	b.store(0, b.reg(0, csr.OutSlistRsize), 8, entries)
	b.store(0, b.reg(0, csr.OutControl), 8, csr.OutControlESP|bufSize)
	b.store(0, b.reg(0, csr.OutIntLevels), 8, 1)
	b.store(0, b.reg(0, csr.OutEnable), 8, 1)
	b.store(0, b.reg(0, csr.OutSlistDBell), 4, entries+wire.Watermark-wire.FetchBatch)
	b.store(0, b.reg(0, csr.InControl), 8, csr.InControlReset|csr.InControlIs64B|csr.InControlESR)
	b.store(0, b.reg(0, csr.InInstrBaddr), 8, busIn)
	b.store(0, b.reg(0, csr.InInstrRsize), 8, 128)
	b.store(0, b.reg(0, csr.InEnable), 8, 1)
	b.r.card.Provision()
}

func (b bench) deliver(frame []byte) {
	b.t.Helper()
	require.True(b.t, b.r.card.DeliverRaw(0, 1, frame, uint64(len(frame)+74)))
	b.r.card.Advance(time.Millisecond)
}

func pattern(seq, n int) []byte {
	f := make([]byte, n)
	for i := range f {
		f[i] = byte(i*7 + i>>8 + seq)
	}
	return f
}

// twoMaps is one range of bus addresses in two maps of two files; split is where the
// second begins.
type twoMaps struct {
	split int
	a, b  []byte
}

func (c *client) twoMaps(bus uint64, split, size int) twoMaps {
	c.t.Helper()
	fdA, a := memfd(c.t, split)
	fdB, b := memfd(c.t, size-split+4096)
	require.Zero(c.t, c.mapAt(bus, 0, uint64(split), both, fdA))
	require.Zero(c.t, c.mapAt(bus+uint64(split), 4096, uint64(size-split), both, fdB))
	return twoMaps{split, a, b[4096:]}
}

// bytes returns n bytes at an offset; put writes some.
func (m twoMaps) bytes(at, n int) []byte {
	var out []byte
	if at < m.split {
		out = append(out, m.a[at:min(at+n, m.split)]...)
	}
	if at+n > m.split {
		out = append(out, m.b[max(at-m.split, 0):at+n-m.split]...)
	}
	return out
}

func (m twoMaps) put(at int, p []byte) {
	if at < m.split {
		p = p[copy(m.a[at:], p):]
		at = m.split
	}
	copy(m.b[at-m.split:], p)
}

// TestTwoAdjacentMaps has VF-2: list, buffers and frames over two maps with two
// descriptors; every byte lands where its address says.
func TestTwoAdjacentMaps(t *testing.T) {
	r := newRig(t)
	b := bench{r.connect(), r}
	list := b.twoMaps(busList, 4096, entries*16) // entry 256 is the first of the second
	const start = 2048                           // buffer 3 is 7,040..8,642
	data := b.twoMaps(busBufs, 8192, 2<<20)
	b.program(busBufs+start, func(i int, bus uint64) { list.put(16*i, binary.LittleEndian.AppendUint64(nil, bus)) })

	frame := pattern(3, 9014)
	b.deliver(frame)
	var got []byte
	for i := range 6 {
		got = append(got, data.bytes(start+i*stride, bufSize)...)
	}
	assert.EqualValues(t, 9014+74, binary.BigEndian.Uint64(got))
	assert.Equal(t, frame, got[wire.PrefixSize:][:9014], "a frame whose fourth buffer lies in both")
	for seq := range 400 { // past entry 256
		b.deliver(pattern(seq, 60))
		at := start + (6+seq)*stride
		require.Equal(t, pattern(seq, 60), data.bytes(at+wire.PrefixSize, 60), "buffer %d", 6+seq)
	}

	// To the wire: the third frame's bytes lie in both maps.
	in := b.twoMaps(busIn, 4096, 8192)
	slots := b.twoMaps(busSlots, 20480, 1<<20)
	const slot = 9344
	var sent [][]byte
	r.card.Wire(1).SetReceiver(func(f []byte) { sent = append(sent, bytes.Clone(f)) })
	for seq := range 80 { // instruction 64 is the first of the second
		f := pattern(seq, 9014)
		f[12], f[13] = 0x88, 0xb5
		at := seq % 4 * slot
		slots.put(at, append([]byte{0, 1, 1}, make([]byte, 63)...))
		slots.put(at+wire.PrivSize, f)
		ih3 := uint64(wire.PrivSize+len(f)+wire.FrontSize) | wire.PKind<<wire.IH3PKindShift | wire.FrontSize<<wire.IH3FszShift
		i := binary.LittleEndian.AppendUint64(nil, busSlots+uint64(at))
		i = binary.LittleEndian.AppendUint64(i, ih3)
		i = binary.LittleEndian.AppendUint64(i, wire.SL<<wire.PKISlShift|1<<47|1<<63)
		i = binary.BigEndian.AppendUint64(append(i, make([]byte, 8)...), 0x1220<<48|81<<20)
		in.put(64*seq, i)
		b.store(0, b.reg(0, csr.InInstrDBell), 4, 1)
		r.card.Advance(time.Millisecond)
		require.Len(t, sent, seq+1, "%v", r.card.Reports())
		require.Equal(t, f, sent[seq])
	}
	assert.Empty(t, r.card.Reports())
}

// TestUnmappedMemory: the card is done with memory when an unmap is answered.
func TestUnmappedMemory(t *testing.T) {
	r := newRig(t)
	b := bench{r.connect(), r}
	list := b.twoMaps(busList, 4096, entries*16)
	fd, mem := memfd(t, 2<<20)
	require.Zero(t, b.mapAt(busBufs, 0, 2<<20, both, fd))
	b.program(busBufs, func(i int, bus uint64) { list.put(16*i, binary.LittleEndian.AppendUint64(nil, bus)) })
	b.deliver(pattern(1, 60))
	require.Equal(t, pattern(1, 60), mem[wire.PrefixSize:][:60])
	require.Zero(t, b.unmap(busBufs, 2<<20))
	before := bytes.Clone(mem)
	b.deliver(pattern(2, 60))
	assert.True(t, bytes.Equal(before, mem), "nothing is written any more")
	assert.NotZero(t, r.card.ReportCount(hwsim.ReportDMAOutside))

	r.card.ResetReports()
	require.Zero(t, b.mapAt(busBufs, 0, 2<<20, vfu.MapRead, fd))
	b.deliver(pattern(3, 60))
	assert.True(t, bytes.Equal(before, mem), "nor to memory that is for reading")
	assert.NotZero(t, r.card.ReportCount(hwsim.ReportDMAReadOnly))

	// A client that makes its file shorter hurts itself.
	r.card.ResetReports()
	require.Zero(t, b.unmap(busBufs, 2<<20))
	gone, err := unix.MemfdCreate("gone", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	defer unix.Close(gone)
	require.NoError(t, unix.Ftruncate(gone, 2<<20))
	require.Zero(t, b.mapAt(busBufs, 0, 2<<20, both, gone))
	require.NoError(t, unix.Ftruncate(gone, 0))
	b.deliver(pattern(4, 60))
	assert.NotZero(t, r.card.ReportCount(hwsim.ReportDMALost))
	assert.EqualValues(t, 0x177d, b.load(vfu.RegionConfig, 0, 2))
}

// TestInterrupts has VF-3: all vectors at once, one alone, and what becomes of a
// message that nobody listens to.
func TestInterrupts(t *testing.T) {
	r := newRig(t)
	b := bench{r.connect(), r}
	list := b.twoMaps(busList, 4096, entries*16)
	b.twoMaps(busBufs, 8192, 2<<20)
	b.program(busBufs, func(i int, bus uint64) { list.put(16*i, binary.LittleEndian.AppendUint64(nil, bus)) })
	set := func(flags, start, count uint32, data []byte, fds ...int) unix.Errno {
		t.Helper()
		s := vfu.IRQSet{ArgSize: uint32(vfu.IRQSetSize + len(data)), Flags: flags, Index: vfu.IRQMSIX, Start: start, Count: count, Data: data}
		_, _, errno := b.call(vfu.SetIRQs, s.Append(nil), fds...)
		return errno
	}
	var fds [csr.MSIXVectors]int
	for v := range fds {
		fds[v] = eventfd(t)
	}
	bind := func() {
		for v := 0; v < len(fds); v += maxFDs {
			require.Zero(t, set(vfu.IRQFD|vfu.IRQTrigger, uint32(v), maxFDs, nil, fds[v:v+maxFDs]...))
		}
	}
	raised := func() (all []int) {
		for v, fd := range fds {
			if events(t, fd) > 0 {
				all = append(all, v)
			}
		}
		return all
	}
	packet := func() {
		b.deliver(pattern(0, 60))
		b.store(0, b.reg(0, csr.OutCnts), 4, 1)
	}
	pending := func() uint64 { return b.load(0, csr.MSIXPBA, 8) }

	bind()
	require.Zero(t, set(vfu.IRQNone|vfu.IRQTrigger, 0, 80, nil))
	assert.Len(t, raised(), 80, "each has its own")
	packet()
	assert.Equal(t, []int{16}, raised())
	require.Zero(t, set(vfu.IRQBool|vfu.IRQTrigger, 14, 4, []byte{0, 1, 0, 1}))
	assert.Equal(t, []int{15, 17}, raised())

	require.Zero(t, set(vfu.IRQFD|vfu.IRQTrigger, 16, 1, nil), "one index, no descriptor")
	packet()
	assert.Empty(t, raised(), "silent")
	assert.EqualValues(t, 1<<16, pending(), "and latched")
	require.Zero(t, set(vfu.IRQNone|vfu.IRQTrigger, 0, 80, nil))
	assert.Len(t, raised(), 79, "that one alone")
	require.Zero(t, set(vfu.IRQFD|vfu.IRQTrigger, 16, 1, nil, fds[16]))
	assert.Equal(t, []int{16}, raised(), "sent to the next who listens")
	assert.Zero(t, pending())

	require.Zero(t, set(vfu.IRQNone|vfu.IRQTrigger, 0, 0, nil), "count 0")
	require.Zero(t, set(vfu.IRQNone|vfu.IRQTrigger, 0, 80, nil))
	packet()
	assert.Empty(t, raised(), "all 80")
	assert.EqualValues(t, 1<<16, pending())
	bind()
	assert.Equal(t, []int{16}, raised())

	assert.Equal(t, unix.EINVAL, set(vfu.IRQFD|vfu.IRQTrigger, 0, 3, nil, fds[0], fds[1]), "fewer descriptors than vectors")
	packet()
	assert.Equal(t, []int{16}, raised(), "a refusal changes nothing")

	// Descriptors that take nothing do not hold the card up.
	full := make([]int, 2)
	require.NoError(t, unix.Pipe(full))
	defer unix.Close(full[0])
	defer unix.Close(full[1])
	require.NoError(t, unix.SetNonblock(full[1], true))
	for {
		if _, err := unix.Write(full[1], make([]byte, 4096)); err != nil {
			break
		}
	}
	require.NoError(t, unix.SetNonblock(full[1], false))
	require.Zero(t, set(vfu.IRQFD|vfu.IRQTrigger, 16, 1, nil, full[1]))
	packet()
	brim, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	require.NoError(t, err)
	defer unix.Close(brim)
	_, err = unix.Write(brim, binary.LittleEndian.AppendUint64(nil, math.MaxUint64-1))
	require.NoError(t, err)
	require.Zero(t, set(vfu.IRQFD|vfu.IRQTrigger, 16, 1, nil, brim))
	packet()
	assert.Empty(t, r.card.Reports())
}

// TestSecondClient has VF-4.
func TestSecondClient(t *testing.T) {
	r := newRig(t)
	fd, mem := memfd(t, 4096)
	first := r.connect()
	first.enable()
	first.store(0, 0x20180, 8, 0x1122334455667788)
	require.Zero(t, first.mapAt(0x10000, 0, 4096, both, fd))
	for range 10 {
		r.dial().ended()
	}
	assert.EqualValues(t, 0x1122334455667788, first.load(0, 0x20180, 8), "the first works on")
	require.NoError(t, first.conn.Close())

	second := r.connect() // at once: the first has left
	assert.EqualValues(t, 0x1122334455667788, second.load(0, 0x20180, 8), "the card is the same")
	require.Zero(t, second.mapAt(0x10000, 0, 4096, both, fd), "the maps are not")
	require.NoError(t, second.conn.Close())
	_ = r.connect()
	assert.Zero(t, mem[0])
}

// TestResetByClients: a client is who opens the function and closes it.
func TestResetByClients(t *testing.T) {
	r := newRig(t)
	c := r.connect()
	fresh := func(c *client) bool { return c.load(0, 0x20180, 8) != 0x1122334455667788 }
	again := func(fault func(f *hwsim.Faults)) *client {
		c.enable()
		c.store(0, 0x20180, 8, 0x1122334455667788)
		require.False(t, fresh(c))
		r.card.Faults(fault)
		require.NoError(t, c.conn.Close())
		c = r.connect()
		c.enable()
		return c
	}
	assert.False(t, fresh(again(func(*hwsim.Faults) {})))
	assert.True(t, fresh(again(func(f *hwsim.Faults) { f.ResetOnOpen = true })))
	assert.True(t, fresh(again(func(f *hwsim.Faults) { f.ResetOnOpen, f.BusResetOnClose = false, true })))
	assert.False(t, fresh(again(func(f *hwsim.Faults) { f.BusResetOnClose = false })))
}

// TestDescriptors has VF-5: whatever comes beside a message is closed.
func TestDescriptors(t *testing.T) {
	const rounds = 10_000
	r := newRig(t)
	c := r.connect()
	fd, _ := memfd(t, 8192)
	irq := eventfd(t)
	eight := []int{irq, irq, irq, irq, irq, irq, irq, irq}
	info := vfu.Device{ArgSize: 16}.Append(nil)
	before := openFiles(t)
	for range rounds {
		require.Zero(t, c.mapAt(0x10000, 0, 8192, both, fd))
		require.Zero(t, c.unmap(0x10000, 8192))
		_, _, errno := c.call(vfu.GetInfo, info, irq)
		require.Zero(t, errno)
		_, _, errno = c.call(vfu.GetInfo, info, eight...)
		require.Zero(t, errno)
		_, _, errno = c.call(99, nil, eight...)
		require.NotZero(t, errno)
		require.NotZero(t, c.mapAt(0x10000, 0, 1<<40, both, fd))
		require.NotZero(t, c.mapAt(0x10000, 0, 4096, both, eight...))
	}
	s := vfu.IRQSet{ArgSize: vfu.IRQSetSize, Flags: vfu.IRQFD | vfu.IRQTrigger, Index: vfu.IRQMSIX, Count: 8}.Append(nil)
	for range rounds {
		_, _, errno := c.call(vfu.SetIRQs, s, eight...)
		require.Zero(t, errno)
		_, _, errno = c.call(vfu.SetIRQs, s[:19], eight...)
		require.NotZero(t, errno)
	}
	_, _, errno := c.call(vfu.SetIRQs, vfu.IRQSet{ArgSize: vfu.IRQSetSize, Flags: vfu.IRQNone | vfu.IRQTrigger, Index: vfu.IRQMSIX}.Append(nil))
	require.Zero(t, errno)
	noMoreFiles(t, before, "no descriptor is left over")

	// A ninth is more than was agreed on.
	c.send(vfu.Header{Command: vfu.GetInfo, Size: 32}, info, append(eight, irq)...)
	c.ended()
	require.NoError(t, c.conn.Close())
	// Beside half a header, and beside the payload.
	for _, cut := range []int{3, 16, 20} {
		c = r.connect()
		m := append(vfu.Header{Command: vfu.GetInfo, Size: 32}.Append(nil), info...)
		_, _, err := c.conn.WriteMsgUnix(m[:cut], unix.UnixRights(eight[:4]...), nil)
		require.NoError(t, err)
		_, _, err = c.conn.WriteMsgUnix(m[cut:], unix.UnixRights(eight[:4]...), nil)
		require.NoError(t, err)
		_, _, _ = c.reply()
		require.NoError(t, c.conn.Close())
	}
	_ = r.connect() // it is served once the last one's are closed
	noMoreFiles(t, before, "no descriptor is left over")
}

// TestDoorbellsOfRingsThatAreNotReady has VF-6.
func TestDoorbellsOfRingsThatAreNotReady(t *testing.T) {
	r := newRig(t)
	b := bench{r.connect(), r}
	b.enable()
	r.card.Provision()
	for _, c := range []struct {
		name         string
		enable, size uint64
		base, value  uint64
		width        uint32
	}{
		{"disabled", 0, 256, 0x1000, 5, 4},
		{"without size", 1, 0, 0x1000, 5, 4},
		{"without address", 1, 256, 0, 5, 4},
		{"upper half set", 1, 256, 0x1000, 0xffffffff_00000005, 8},
		{"all of it", 1, 0, 0, math.MaxUint64, 8},
	} {
		t.Run(c.name, func(t *testing.T) {
			for q := range csr.Rings {
				b.store(0, b.reg(q, csr.InInstrRsize), 8, c.size)
				b.store(0, b.reg(q, csr.InInstrBaddr), 8, c.base)
				b.store(0, b.reg(q, csr.OutSlistRsize), 8, c.size)
				b.store(0, b.reg(q, csr.OutSlistBaddr), 8, c.base)
				b.store(0, b.reg(q, csr.InEnable), 8, c.enable)
				b.store(0, b.reg(q, csr.OutEnable), 8, c.enable)
				b.store(0, b.reg(q, csr.InInstrDBell), c.width, c.value)
				b.store(0, b.reg(q, csr.OutSlistDBell), c.width, c.value)
			}
			r.card.Advance(time.Millisecond)
			r.card.DeliverRaw(0, 1, make([]byte, 60), 134)
			r.card.Advance(time.Millisecond)
			assert.EqualValues(t, 0x177d, b.load(vfu.RegionConfig, 0, 2), "the card is there")
		})
	}
	assert.NotEmpty(t, r.card.Reports(), "and says what was wrong")
}

// TestEndOfTheAddressSpace has VF-8: a map up to 2^64 is found, reached to its last
// byte, unmapped exactly.
func TestEndOfTheAddressSpace(t *testing.T) {
	r := newRig(t)
	b := bench{r.connect(), r}
	const page = math.MaxUint64 - 4095
	fd, mem := memfd(t, 4096)
	before := openFiles(t)
	require.Zero(t, b.mapAt(page, 0, 4096, both, fd))
	list := b.twoMaps(busList, 4096, entries*16)
	// The last byte of the page is the last of a frame of 61 bytes.
	first := uint64(math.MaxUint64) - (wire.PrefixSize + 61) + 1
	b.program(first, func(i int, bus uint64) { list.put(16*i, binary.LittleEndian.AppendUint64(nil, bus)) })
	b.deliver(pattern(5, 61))
	assert.Equal(t, pattern(5, 61), mem[4096-61:])
	assert.Empty(t, r.card.Reports())
	assert.Equal(t, unix.EEXIST, b.mapAt(page, 0, 4096, both, fd))
	assert.Equal(t, unix.ENOENT, b.unmap(page-4096, 4096))
	require.Zero(t, b.unmap(page, 4096))
	assert.Equal(t, unix.ENOENT, b.unmap(page, 4096))
	require.Zero(t, b.mapAt(page, 0, 4096, both, fd))
	noMoreFiles(t, before+2, "only the test's own files of the list are new")
}

func TestClose(t *testing.T) {
	r := newRig(t)
	c := r.connect()
	require.NoError(t, r.srv.Close())
	c.ended()
	require.NoError(t, r.srv.Close(), "twice")
	assert.NoFileExists(t, r.path)
	assert.EqualValues(t, 0x177d, r.card.ConfigRead(0, 2), "the card goes on")
}

// FuzzCommand: no payload of any command fails otherwise than by its error, or
// leaves a map or a vector behind that the end does not take away.
func FuzzCommand(f *testing.F) {
	for _, s := range []struct {
		cmd vfu.Command
		b   []byte
	}{
		{vfu.Version, vfu.Hello{Capabilities: vfu.DefaultCapabilities()}.Append(nil)},
		{vfu.MapDMA, vfu.Map{ArgSize: 32, Flags: both, Address: 4096, Size: 4096}.Append(nil)},
		{vfu.UnmapDMA, vfu.Unmap{ArgSize: 24, Address: 4096, Size: 4096}.Append(nil)},
		{vfu.GetInfo, vfu.Device{ArgSize: 16}.Append(nil)},
		{vfu.RegionInfo, vfu.Region{ArgSize: 256, Index: 2}.Append(nil)},
		{vfu.IRQInfo, vfu.IRQ{ArgSize: 16, Index: 2}.Append(nil)},
		{vfu.SetIRQs, vfu.IRQSet{ArgSize: 22, Flags: vfu.IRQBool | vfu.IRQTrigger, Index: 2, Count: 2, Data: []byte{0, 1}}.Append(nil)},
		{vfu.ReadAt, vfu.Access{Region: 7, Count: 64}.Append(nil)},
		{vfu.WriteAt, vfu.Access{Offset: 0x20180, Count: 8, Data: make([]byte, 8)}.Append(nil)},
		{vfu.Reset, nil},
	} {
		f.Add(uint16(s.cmd), s.b)
	}
	mem, err := NewMemory()
	require.NoError(f, err)
	card := hwsim.New(hwsim.Options{Timeline: hwsim.Compressed(), HostVectors: true, Windows: mem.Windows()})
	f.Fuzz(func(t *testing.T, cmd uint16, payload []byte) {
		c := newSession(&Server{card: card, bar2: mem}, nil)
		r := &request{Header: vfu.Header{Command: vfu.Command(cmd)}, payload: payload}
		reply, _, err := c.dispatch(r)
		if err != nil {
			require.Nil(t, reply)
		}
		require.LessOrEqual(t, len(reply), vfu.AccessSize+maxTransfer)
		c.dropLines(0, csr.MSIXVectors)
		c.unmapAll()
		require.NoError(t, card.MapRegion(hwsim.DMARegion{Size: math.MaxUint64}), "no map is left")
		require.NoError(t, card.UnmapRegion(0, math.MaxUint64))
	})
}
