package hwsim

import (
	"encoding/binary"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A driver written for these tests alone, with the numbers of the pages and
// nothing of the project's driver: it shares no mistake with it.
const (
	hSlots  = 256
	hInstr  = 64
	hStride = 9344
	hOQs    = 8
	hBuf    = 1602
	hBufGap = 1664
	hPrefix = 82
	hPriv   = 66
	hGrant  = 2032

	busInstr = 0x1_8000_0000
	busSlots = 0x1_9000_0000
	busList  = 0x2_0000_0000 // + ring * 1 MiB
	busBufs  = 0x3_0000_0000 // + ring * 16 MiB
)

// Offsets in a ring's block (endpoint.md 5.1, 5.2).
const (
	rInControl, rInEnable, rInBaddr, rInRsize, rInDBell, rInCnts, rInLevels = 0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60
	rInPkt, rInByte                                                         = 0x80, 0x90
	rOutCnts, rOutLevels, rOutBaddr, rOutRsize, rOutDBell, rOutControl      = 0x100, 0x110, 0x120, 0x130, 0x140, 0x150
	rOutEnable, rOutStatus, rOutPkt, rOutByte                               = 0x160, 0x170, 0x180, 0x190
)

func ringReg(q, off int) uint64 { return uint64(0x10000 + q*0x20000 + off) }

type ringHost struct {
	t     testing.TB
	c     *Card
	instr []byte
	slots []byte
	lists [hOQs][]byte
	bufs  [hOQs][]byte
	rsize int

	tail uint64 // instructions posted
	read [hOQs]int
}

// hostMemory is memory that the race detector leaves alone, as DMA memory is.
func hostMemory(t testing.TB, c *Card, bus uint64, n int) []byte {
	mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	require.NoError(t, c.MapDMA(bus, mem))
	return mem
}

func newRingHost(t testing.TB, rsize int, change ...func(*Options)) *ringHost {
	o := Options{Timeline: Compressed()}
	for _, f := range change {
		f(&o)
	}
	h := &ringHost{t: t, c: New(o), rsize: rsize}
	atEnd(t, h.c, h.c.Close)
	h.c.ConfigWrite(0x04, 2, 0x0006)
	h.instr = hostMemory(t, h.c, busInstr, hSlots*hInstr)
	h.slots = hostMemory(t, h.c, busSlots, hSlots*hStride+4096-hSlots*hStride%4096)
	for q := range h.lists {
		h.lists[q] = hostMemory(t, h.c, busList+uint64(q)<<20, max(rsize*16, 4096))
		h.bufs[q] = hostMemory(t, h.c, h.buf(q, 0), rsize*hBufGap)
		for i := 0; i < rsize; i++ {
			binary.LittleEndian.PutUint64(h.lists[q][16*i:], h.buf(q, i))
			h.poison(q, i)
		}
	}
	// Last, so that it runs first: the memory is still there. The books are exact at
	// any moment, so whatever a test leaves behind, they close.
	atEnd(t, h.c, func() { assert.NoError(t, h.c.CheckConservation()) })
	return h
}

// atEnd runs fn when the test has ended, unless a panic has left the card locked:
// the panic shall be seen and not a hang.
func atEnd(t testing.TB, c *Card, fn func()) {
	t.Cleanup(func() {
		for end := time.Now().Add(hangGuard); !c.mu.TryLock(); runtime.Gosched() {
			if time.Now().After(end) {
				t.Error("the card stays locked")
				return
			}
		}
		c.mu.Unlock()
		fn()
	})
}

func (h *ringHost) buf(q, i int) uint64 { return busBufs + uint64(q)<<24 + uint64(i*hBufGap) }

func (h *ringHost) poison(q, i int) {
	for k := 0; k < 8; k++ {
		h.bufs[q][i*hBufGap+k] = 0xa5
	}
}

func (h *ringHost) ld(q, off int) uint64      { return h.c.Load(0, ringReg(q, off), 8) }
func (h *ringHost) st(q, off int, v uint64)   { h.c.Store(0, ringReg(q, off), 8, v) }
func (h *ringHost) st32(q, off int, v uint32) { h.c.Store(0, ringReg(q, off), 4, uint64(v)) }
func (h *ringHost) count(q int) uint32        { return uint32(h.ld(q, rOutCnts)) }
func (h *ringHost) credit(q int) int32        { return int32(h.ld(q, rOutDBell)) }
func (h *ringHost) length(q, i int) uint64    { return binary.BigEndian.Uint64(h.bufs[q][i*hBufGap:]) }
func (h *ringHost) advance(d time.Duration)   { h.c.Advance(d) }
func (h *ringHost) faults(fn func(f *Faults)) { h.c.Faults(fn) }
func (h *ringHost) wire(tag uint16) *Wire     { return h.c.Wire(tag) }

// programIn is steps 3 to 7 of endpoint.md 7.1 for the input half of ring 0.
func (h *ringHost) programIn() {
	h.st(0, rInEnable, 0)
	h.st(0, rInControl, h.ld(0, rInControl)|3<<25|1<<24|1<<1)
	require.NotZero(h.t, h.ld(0, rInControl)&(1<<28), "idle")
	h.st(0, rInBaddr, busInstr)
	h.st(0, rInRsize, hSlots)
	h.st(0, rInLevels, 0xffffffff)
	h.st32(0, rInDBell, 0xffffffff)
	h.st(0, rInEnable, 1)
}

// programOut is the same for the output half of a ring, up to its enable.
func (h *ringHost) programOut(q int) {
	h.st(q, rOutEnable, 0)
	h.st(q, rOutControl, 1<<26|hBuf)
	h.st(q, rOutBaddr, busList+uint64(q)<<20)
	h.st(q, rOutRsize, uint64(h.rsize))
	h.st32(q, rOutDBell, 0xffffffff)
	h.st(q, rOutEnable, 1)
}

// program brings up all rings with a grant and opens the host port.
func (h *ringHost) program(grant uint32) *ringHost {
	h.programIn()
	for q := range h.lists {
		h.programOut(q)
		h.st32(q, rOutDBell, grant)
	}
	h.c.Provision()
	return h
}

// instruction writes an instruction for slot i as datapath.md 2.1 lists it.
func (h *ringHost) instruction(i int, dptr uint64, frameBytes int) []byte {
	b := h.instr[i*hInstr : (i+1)*hInstr]
	clear(b)
	binary.LittleEndian.PutUint64(b, dptr)
	binary.LittleEndian.PutUint64(b[8:], uint64(28+hPriv+frameBytes)|40<<36|28<<42)
	binary.LittleEndian.PutUint64(b[16:], 0x805e800000000000)
	binary.BigEndian.PutUint64(b[32:], 0x1220<<48|81<<20)
	return b
}

// fill puts a frame into the next slot and returns the slot's index; the
// doorbell is not rung.
func (h *ringHost) fill(tag uint16, frame []byte) int {
	i := int(h.tail % hSlots)
	h.tail++
	slot := h.slots[i*hStride:]
	clear(slot[:hPriv])
	binary.BigEndian.PutUint16(slot, tag)
	slot[2] = 1
	copy(slot[hPriv:], frame)
	h.instruction(i, busSlots+uint64(i*hStride), len(frame))
	return i
}

func (h *ringHost) send(tag uint16, frames ...[]byte) {
	for _, f := range frames {
		h.fill(tag, f)
	}
	h.st32(0, rInDBell, uint32(len(frames)))
}

// rx is one packet as the test driver took it.
type rx struct {
	tag    uint16
	frame  []byte
	length uint64
	bufs   int
}

// take takes up to n packets of a ring by their length words, returns the
// credit, then acknowledges.
func (h *ringHost) take(q, n int) (got []rx) {
	h.st(q, rOutStatus, h.ld(q, rOutStatus))
	n = min(n, int(h.count(q)))
	bufs := 0
	for ; len(got) < n; bufs += got[len(got)-1].bufs {
		l := h.length(q, h.read[q])
		if l == 0xa5a5a5a5a5a5a5a5 || l == 0 {
			break
		}
		p := rx{length: l, bufs: (int(l) + 8 + hBuf - 1) / hBuf}
		var all []byte
		for left := int(l) + 8; left > 0; left -= hBuf {
			b := h.bufs[q][h.read[q]*hBufGap:]
			all = append(all, b[:min(left, hBuf)]...)
			h.poison(q, h.read[q])
			h.read[q] = (h.read[q] + 1) % h.rsize
		}
		p.tag = binary.BigEndian.Uint16(all[16:])
		p.frame = all[hPrefix:]
		got = append(got, p)
	}
	if len(got) > 0 {
		h.st32(q, rOutDBell, uint32(bufs))
		h.st32(q, rOutCnts, uint32(len(got)))
	}
	return got
}

// ipFrame is an Ethernet frame of n bytes with an IPv4 UDP header to the port's
// own address; its payload begins with seq.
func ipFrame(c *Card, tag uint16, n int, sport uint16, seq uint32) []byte {
	b := make([]byte, max(n, 46))
	for i := 46; i < len(b); i++ {
		b[i] = byte(i) ^ byte(seq)
	}
	mac := portAddress(c, tag)
	copy(b, mac[:])
	copy(b[6:], []byte{2, 0, 0, 0, 0, 9})
	binary.BigEndian.PutUint16(b[12:], 0x0800)
	b[14] = 0x45
	binary.BigEndian.PutUint16(b[16:], uint16(len(b)-14))
	b[22], b[23] = 64, 17
	copy(b[26:], []byte{10, 0, 0, 1, 10, 0, 0, 2})
	binary.BigEndian.PutUint16(b[34:], sport)
	binary.BigEndian.PutUint16(b[36:], 9)
	binary.BigEndian.PutUint32(b[42:], seq)
	return b[:n]
}

func seqOf(b []byte) uint32 { return binary.BigEndian.Uint32(b[42:]) }

func portAddress(c *Card, tag uint16) [6]byte {
	w := c.Wire(tag)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ports[w.port.Index].mac
}

// ringOf finds a source port whose tuple takes a ring.
func ringOf(h *ringHost, q int) uint16 {
	for p := uint16(1); p < 10000; p++ {
		if h.c.hash(ipFrame(h.c, tagF1, 60, p, 0)) == q {
			return p
		}
	}
	h.t.Fatalf("no tuple for ring %d", q)
	return 0
}

const (
	tagF1 = 0x0001
	tagF2 = 0x0002
	tag1  = 0x8100
	tag2  = 0x8200
)

// setMTU writes a port's LIF past the control plane.
func setMTU(t testing.TB, c *Card, tag uint16, mtu uint16) {
	index := uint32(c.Wire(tag).port.LIF())
	l, ok := c.LIF(index)
	require.True(t, ok)
	l.MTU = mtu
	c.SetLIF(index, &l)
}

// settled waits in card time until nothing is in flight, then checks the books.
func (h *ringHost) settled() {
	h.t.Helper()
	for i := 0; i < 1000 && !h.c.Quiesced(); i++ {
		h.advance(time.Millisecond)
	}
	require.True(h.t, h.c.Quiesced())
	require.NoError(h.t, h.c.CheckConservation())
}

// clean fails when the card had something to report.
func (h *ringHost) clean() {
	h.t.Helper()
	require.Empty(h.t, h.c.Reports())
}
