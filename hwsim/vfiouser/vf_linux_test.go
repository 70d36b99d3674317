package vfiouser

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/vfu"
)

// A driver of a virtual function, written for these tests alone after what DPDK's
// octeon_ep (22.11) does: offsets and bits are those of endpoint.md 5, not the
// project's.
const (
	vfTx, vfRx = 128, 2048 // instructions, descriptors
	vfBSize    = 2048
	vfStride   = 16384 // distance of two TX slots
	vfBus      = 0x1_0000_0000
	vfList     = 0x10000  // the descriptors, in its memory; the instructions begin at 0
	vfGather   = 0x20000  // a gather list of 80 bytes for each instruction, 128 apart
	vfSlots    = 0x100000 // TX slots
	vfBufs     = 0x400000 // RX buffers
	vfMemory   = 0x800000

	vIn, vInEnable, vInBase, vInSize, vInBell, vInCount, vInLevels               = 0x10000, 0x10010, 0x10020, 0x10030, 0x10040, 0x10050, 0x10060
	vOutCount, vOutLevels, vOutBase, vOutSize, vOutBell, vOut, vOutEnable        = 0x10100, 0x10110, 0x10120, 0x10130, 0x10140, 0x10150, 0x10160
	vInIdle, vOutIdle                                                     uint64 = 1 << 28, 1 << 36

	polls = 10000 // bound of every poll
)

type vfDriver struct {
	*client
	ring uint64
	mem  []byte
	sent uint64 // free running
	read uint64 // buffers taken, free running
}

func (d *vfDriver) at(reg uint64) uint64 { return d.ring*0x20000 + reg }

func (d *vfDriver) get(reg uint64) uint64    { return d.load(vfu.RegionBAR0, d.at(reg), 8) }
func (d *vfDriver) get32(reg uint64) uint64  { return d.load(vfu.RegionBAR0, d.at(reg), 4) }
func (d *vfDriver) put(reg, v uint64)        { d.store(vfu.RegionBAR0, d.at(reg), 8, v) }
func (d *vfDriver) put32(reg uint64, v uint) { d.store(vfu.RegionBAR0, d.at(reg), 4, uint64(v)) }

func (d *vfDriver) until(what string, ok func() bool) {
	d.t.Helper()
	for range polls {
		if ok() {
			return
		}
	}
	require.Fail(d.t, "polled in vain", what)
}

// startVF brings a ring up, each step in that driver's order.
func startVF(c *client, ring uint64) *vfDriver {
	fd, mem := memfd(c.t, vfMemory)
	require.Zero(c.t, c.mapAt(vfBus, 0, vfMemory, both, fd))
	c.enable()
	d := &vfDriver{client: c, ring: ring, mem: mem}
	d.put(vInEnable, 0)
	d.put(vOutEnable, 0)

	d.put(vIn, d.get(vIn)|3<<25|1<<24|1<<1) // RDSIZE, IS_64B, ESR
	d.until("IN idle", func() bool { return d.get(vIn)&vInIdle != 0 })
	d.put(vInBase, vfBus)
	d.put(vInSize, vfTx)
	d.put(vInBell, 0xffffffff)
	d.until("IN doorbell drained", func() bool { return d.get(vInBell) == 0 })
	d.until("IN count", func() bool { v := d.get32(vInCount); d.put32(vInCount, uint(v)); return v == 0 })
	d.put(vInLevels, 0xffffffff)

	for i := range uint64(vfRx) {
		binary.LittleEndian.PutUint64(mem[vfList+16*i:], vfBus+vfBufs+i*vfBSize)
	}
	d.until("OUT idle", func() bool { return d.get(vOut)&vOutIdle != 0 })
	d.put(vOutBase, vfBus+vfList)
	d.put(vOutSize, vfRx)
	const imodeAndAttributes = 1<<23 | 7<<32 | 7<<28 | 7<<24
	d.put(vOut, d.get(vOut)&^(imodeAndAttributes|0x7fffff)|1<<26|vfBSize) // ES_P
	d.put(vOutLevels, 0x3fffffffffffff)
	d.put(vOutBell, 0xffffffff)
	d.until("OUT doorbell drained", func() bool { return d.get(vOutBell) == 0 })
	d.until("OUT count", func() bool { v := d.get32(vOutCount); d.put32(vOutCount, uint(v)); return v == 0 })

	d.put(vInEnable, 1)
	d.put(vOutEnable, 1)
	d.put32(vOutBell, vfRx)
	return d
}

// post writes instructions for n frames, each of so many fragments, and rings the
// bell once. What a driver leaves uninitialised is different each time.
func (d *vfDriver) post(n, size, fragments int) (frames [][]byte) {
	le := binary.LittleEndian
	for range n {
		slot := d.sent % vfTx
		frame := d.mem[vfSlots+slot*vfStride:][:size]
		for i := range frame {
			frame[i] = byte(d.sent*7 + uint64(i) + uint64(i)>>8)
		}
		frames = append(frames, append([]byte(nil), frame...))
		dptr := uint64(vfBus + vfSlots + slot*vfStride)
		ih3 := uint64(size+28) | 40<<36 | 28<<42
		if fragments > 1 {
			list := d.mem[vfGather+slot*128:]
			piece := size / fragments
			for i := range fragments {
				length := piece
				if i == fragments-1 {
					length = size - i*piece
				}
				group := list[i/4*40:]
				le.PutUint16(group[2*(3-i%4):], uint16(length))
				le.PutUint64(group[8+8*(i%4):], dptr+uint64(i*piece))
			}
			dptr = vfBus + vfGather + slot*128
			ih3 |= 1<<62 | uint64(fragments)<<48
		}
		irh := uint64(0x1220) << 48
		if d.sent&1 != 0 {
			irh = bits.ReverseBytes64(irh)
		}
		in := d.mem[slot*64:]
		for i, w := range []uint64{dptr, ih3, 1<<47 | 28<<48 | 1<<63, 0x9e3779b97f4a7c15 * (d.sent + 1), irh, 0, 0, 0} {
			le.PutUint64(in[8*i:], w)
		}
		d.sent++
	}
	d.put32(vInBell, uint(n))
	return frames
}

// poll is one visit: read v, write v, take v packets, give the buffers back, of which
// there may be none.
func (d *vfDriver) poll() (frames [][]byte) {
	v := d.get32(vOutCount)
	d.put32(vOutCount, uint(v))
	used := uint64(0)
	for range v {
		buf := d.mem[vfBufs+d.read%vfRx*vfBSize:]
		length := binary.BigEndian.Uint64(buf)
		require.Greater(d.t, length, uint64(8), "a length word that has not come")
		require.Less(d.t, length, uint64(0x10000))
		left := int(length) - 8
		binary.BigEndian.PutUint64(buf, 0)
		frame := append([]byte(nil), buf[16:][:min(left, vfBSize-16)]...)
		d.read++
		used++
		for len(frame) < left {
			frame = append(frame, d.mem[vfBufs+d.read%vfRx*vfBSize:][:min(left-len(frame), vfBSize)]...)
			d.read++
			used++
		}
		frames = append(frames, frame)
	}
	d.put32(vOutBell, uint(used))
	return frames
}

// TestVFLoop: a driver that knows the virtual function alone sends and has every
// frame back, in order, each byte of it, on the ring that it sent by.
func TestVFLoop(t *testing.T) {
	tests := []struct {
		name            string
		rings           int
		ring            uint64
		size, fragments int
		buffers         int // of each frame
		frames          int
	}{
		{"one buffer, round the instructions", 0, 0, 64, 1, 1, 400},
		{"the last byte of one buffer", 0, 0, vfBSize - 16, 1, 1, 32},
		{"one byte in a second buffer", 0, 0, vfBSize - 15, 1, 2, 32},
		{"jumbo over five buffers, round the descriptors", 0, 0, 9014, 1, 5, 512},
		{"jumbo of five fragments", 0, 0, 9014, 5, 5, 32},
		{"the second of two rings", 2, 1, 64, 1, 1, 64},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRigOf(t, func(o *hwsim.Options) { o.Function, o.VFRings = hwsim.VF, tt.rings })
			d := startVF(r.connect(), tt.ring)
			assert.EqualValues(t, max(1, tt.rings), d.load(vfu.RegionBAR0, vIn, 8)>>48&0xf, "rings of this function")
			for done := 0; done < tt.frames; {
				want := d.post(min(32, tt.frames-done), tt.size, tt.fragments)
				done += len(want)
				var got [][]byte
				d.until("frames", func() bool { got = append(got, d.poll()...); return len(got) >= len(want) })
				require.Equal(t, want, got)
			}
			assert.EqualValues(t, tt.frames*tt.buffers, d.read)
			assert.EqualValues(t, tt.frames, d.get32(vInCount), "free running")
			assert.Empty(t, d.poll(), "once each")
			credit := d.get(vOutBell)
			d.put32(vOutBell, 0)
			assert.Equal(t, credit, d.get(vOutBell), "a bell of 0 changes nothing")
			assert.Empty(t, r.card.Reports())
			assert.True(t, r.card.Quiesced())
			assert.NoError(t, r.card.CheckConservation())
		})
	}
}

// TestVFIsNoCard: what the physical function alone has is not there.
func TestVFIsNoCard(t *testing.T) {
	r := newRigOf(t, func(o *hwsim.Options) { o.Function = hwsim.VF })
	c := r.connect()
	for off, want := range map[uint64]uint64{
		0x00: 0xa303177d, 0x08: 0x02000001, 0x2c: 0xa303177d,
		0x18: 0, 0x20: 0, // BAR2 and BAR4
		0x70:  0x00020010, // PCIe is the last capability: no MSI-X
		0x100: 0,
	} {
		assert.Equal(t, want, c.load(vfu.RegionConfig, off, 4), "config space at %#x", off)
	}
	c.store(vfu.RegionConfig, 0x10, 4, 0xffffffff)
	assert.EqualValues(t, 0xff800004, c.load(vfu.RegionConfig, 0x10, 4), "8 MiB of BAR0")
	for i := range uint32(9) {
		reply, fds, errno := c.call(vfu.RegionInfo, vfu.Region{ArgSize: 256, Index: i}.Append(nil))
		require.Zero(t, errno)
		var info vfu.Region
		require.NoError(t, info.Decode(reply))
		assert.Equal(t, map[uint32]uint64{0: 8 << 20, 7: 4096}[i], info.Size, "region %d", i)
		assert.Empty(t, fds, "nothing is mapped")
	}
	reply, _, errno := c.call(vfu.IRQInfo, vfu.IRQ{ArgSize: 16, Index: vfu.IRQMSIX}.Append(nil))
	require.Zero(t, errno)
	var irqs vfu.IRQ
	require.NoError(t, irqs.Decode(reply))
	assert.Zero(t, irqs.Count)
	for _, region := range []uint32{2, 4} {
		_, _, errno := c.call(vfu.ReadAt, vfu.Access{Region: region, Count: 4}.Append(nil))
		assert.NotZero(t, errno)
	}

	c.enable()
	assert.EqualValues(t, 0x0001000014000000, c.load(vfu.RegionBAR0, vIn, 8), "as after power-on, with the number of rings")
	c.store(vfu.RegionBAR0, vIn, 8, 0x0008000000000000)
	assert.EqualValues(t, 0x0001000010000000, c.load(vfu.RegionBAR0, vIn, 8), "a driver does not change it")
	assert.Empty(t, r.card.Reports())
	for n, off := range []uint64{0x0, 0x4000, 0x20180, 0x20190, 0x28100, 0x20000 + vIn} {
		t.Run(fmt.Sprintf("%#x", off), func(t *testing.T) {
			c.store(vfu.RegionBAR0, off, 8, 0x55)
			assert.Zero(t, c.load(vfu.RegionBAR0, off, 8))
			assert.EqualValues(t, 2*(n+1), r.card.ReportCount(hwsim.ReportUnmappedBAR))
		})
	}
	_, _, errno = c.call(vfu.Reset, nil)
	require.Zero(t, errno)
	c.enable()
	assert.EqualValues(t, 0x0001000014000000, c.load(vfu.RegionBAR0, vIn, 8))
}

// TestVFWithoutCredit: frames for which there are no buffers are refused whole, and
// those that follow come back.
func TestVFWithoutCredit(t *testing.T) {
	r := newRigOf(t, func(o *hwsim.Options) { o.Function = hwsim.VF })
	d := startVF(r.connect(), 0)
	for range 20 { // 2,000 buffers wanted
		before := d.sent
		d.post(20, 9014, 1)
		d.until("instructions", func() bool { return d.get32(vInCount) == before+20 })
	}
	d.until("nothing on its way to the ring", func() bool { return d.get32(vInCount) != 0 && r.card.Quiesced() }) // each look takes time
	got := d.poll()
	assert.Len(t, got, ((vfRx-0x100)/16+1)*16/5, "batches of sixteen while the credit is at the watermark of 0x100, five buffers a frame")
	want := d.post(1, 64, 1)
	d.until("a frame", func() bool { got = d.poll(); return len(got) > 0 })
	assert.Equal(t, want, got)
	assert.NoError(t, r.card.CheckConservation())
	assert.Empty(t, r.card.Reports())
}

// TestVFSwallows: what does not come back is in the books, and the ring goes on.
func TestVFSwallows(t *testing.T) {
	tests := []struct {
		name string
		size int
		dead bool
		want uint64 // reports of a bad instruction
	}{
		{"a far side that is dead", 64, true, 0},
		{"thirteen bytes are no frame", 13, false, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRigOf(t, func(o *hwsim.Options) { o.Function = hwsim.VF })
			d := startVF(r.connect(), 0)
			r.card.Faults(func(f *hwsim.Faults) { f.FastPathDead = tt.dead })
			d.post(1, tt.size, 1)
			d.until("the instruction", func() bool { return d.get32(vInCount) == 1 })
			assert.Empty(t, d.poll())
			assert.Equal(t, tt.want, r.card.ReportCount(hwsim.ReportInstruction))
			assert.NoError(t, r.card.CheckConservation())

			r.card.Faults(func(f *hwsim.Faults) { f.FastPathDead = false })
			want := d.post(1, 14, 1)
			var got [][]byte
			d.until("a frame", func() bool { got = d.poll(); return len(got) > 0 })
			assert.Equal(t, want, got)
			assert.NoError(t, r.card.CheckConservation())
		})
	}
}
