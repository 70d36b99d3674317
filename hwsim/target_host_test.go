package hwsim

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"oxpd/octep/csr"
)

// The tests of the target write raw bytes as a host would; the numbers here are
// the pages', on purpose not the layout packages'.
const (
	tRPC  = 0x02300000
	tNWA  = 0x02200000
	tGICD = 0x03c00040
	tBus  = 0x1_4000_0000 // bus address of the test's memory
	tBuf2 = tBus + 8192   // a second command buffer
)

// miniHost is a driver of a hundred lines, stepped with the card.
type miniHost struct {
	t        *testing.T
	c        *Card
	mem      []byte
	revision uint64
	buf      uint64 // command buffer in use
}

func newMiniHost(t *testing.T, change ...func(*Options)) *miniHost {
	o := Options{Seed: 1, Timeline: Compressed()}
	for _, fn := range change {
		fn(&o)
	}
	h := &miniHost{t: t, c: New(o), mem: make([]byte, 64<<10), buf: tBus}
	atEnd(t, h.c, h.c.Close)
	h.c.ConfigWrite(4, 2, 6) // memory decoding, bus mastering
	require.NoError(t, h.c.MapDMA(tBus, h.mem))
	return h
}

func (h *miniHost) r32(off uint64) uint32    { return uint32(h.c.Load(2, off, 4)) }
func (h *miniHost) r64(off uint64) uint64    { return h.c.Load(2, off, 8) }
func (h *miniHost) w32(off uint64, v uint32) { h.c.Store(2, off, 4, uint64(v)) }
func (h *miniHost) w64(off uint64, v uint64) { h.c.Store(2, off, 8, v) }
func (h *miniHost) bell(spi uint32)          { h.w32(tGICD, spi) }
func (h *miniHost) scratch() uint64          { return h.c.Load(0, 0x28100, 8) }
func (h *miniHost) setScratch(v uint64)      { h.c.Store(0, 0x28100, 8, v) }
func (h *miniHost) advance(d time.Duration)  { h.c.Advance(d) }
func (h *miniHost) faults(fn func(*TargetFaults)) {
	h.c.Faults(func(f *Faults) { fn(&f.TargetFaults) })
}

// bytes reads n bytes of BAR2 in words.
func (h *miniHost) bytes(off uint64, n int) []byte {
	var b []byte
	for i := 0; i < n; i += 4 {
		b = binary.LittleEndian.AppendUint32(b, h.r32(off+uint64(i)))
	}
	return b[:n]
}

// write puts b, a multiple of 4 bytes, into BAR2.
// wait steps the card until ok, at most limit of card time.
func (h *miniHost) wait(limit time.Duration, ok func() bool) bool {
	for step := 20 * time.Microsecond; limit > 0; limit -= step {
		if ok() {
			return true
		}
		h.advance(step)
	}
	return ok()
}

// handshake runs the host's half with the given info word.
func (h *miniHost) handshake(info uint64) {
	h.t.Helper()
	require.True(h.t, h.wait(time.Second, func() bool { return h.c.Load(0, 0x20180, 8) == 0x02000000abcdabcd }), "magic")
	h.setScratch(0xdeadbeef)
	require.True(h.t, h.wait(time.Second, func() bool { return h.scratch() == 0xbeefdeed }), "GET_HOST_INFO")
	h.setScratch(info)
	require.True(h.t, h.wait(time.Second, func() bool { return h.scratch()>>16 == 0xdeadde }), "reply")
	h.setScratch(0xdeeddeed)
	require.True(h.t, h.wait(time.Second, func() bool { return h.scratch() == 0 }), "zeroed")
}

// up boots as far as rpc being published.
func (h *miniHost) up() *miniHost {
	h.t.Helper()
	h.handshake(0x0000020008000000)
	require.True(h.t, h.wait(time.Second, func() bool { return h.scratch() == 1 }), "host port")
	return h
}

// agent boots as far as NetAgent's cookie.
func (h *miniHost) agent() *miniHost {
	h.t.Helper()
	h.up()
	require.True(h.t, h.wait(time.Second, func() bool { return h.r32(tNWA) == 0xcafebabe }), "cookie")
	return h
}

// ringRecord is what the host writes into a ring of the state block.
type ringRecord struct {
	off, count                   uint32
	num, facility, index, shared byte
}

func (h *miniHost) writeRing(at uint64, r ringRecord) {
	h.w64(at, 0)
	h.w64(at+8, 0)
	h.w32(at+16, 0)
	h.w32(at+20, r.off)
	h.w32(at+24, r.count)
	h.w32(at+28, uint32(r.num)|uint32(r.facility)<<8|uint32(r.index)<<16|uint32(r.shared)<<24)
}

var lowRing = ringRecord{off: 0x1000, count: 8}

// configure opens the channel; false when it was not acknowledged in 3 s.
func (h *miniHost) configure(low ringRecord, hi ...ringRecord) bool {
	h.writeRing(tRPC+72, low)
	for i := range 4 {
		r := ringRecord{}
		if i < len(hi) {
			r = hi[i]
		}
		h.writeRing(tRPC+104+uint64(i)*32, r)
	}
	h.revision++
	h.w64(tRPC, 0xd7d3ab00|h.revision<<32|uint64(len(hi))<<48)
	h.bell(155)
	return h.wait(3*time.Second, func() bool { return h.r64(tRPC)>>56 != 0 })
}

// rpc boots and opens the channel.
func (h *miniHost) rpc() *miniHost {
	h.t.Helper()
	h.up()
	require.True(h.t, h.configure(lowRing), "configuration acknowledged")
	return h
}

// reply is what the target wrote over a command buffer.
type reply struct {
	done    bool // the ring's done moved
	written bool // descriptor_done is set
	rc      uint16
	seed    uint16
	payload []byte
	magic   []byte
}

const tPoison = 0xa5

// post puts one command on the low ring and rings.
func (h *miniHost) post(command byte, payload []byte, flags uint16) {
	b := h.mem[h.buf-tBus:][:4096]
	for i := range b {
		b[i] = tPoison
	}
	copy(b, []byte{0xf8, 0x0f, 0, command, 0, 0, 0, 0}) // room 4,088
	copy(b[8:], payload)
	posted := h.r64(tRPC + 72)
	slot := posted & 7
	h.w64(tRPC+0x1000+16*slot, h.buf)
	h.w64(tRPC+0x1008+16*slot, uint64(len(payload))|uint64(flags)<<16)
	h.w64(tRPC+72, posted+1)
	h.bell(155)
}

// finish waits for the command posted last.
func (h *miniHost) finish(limit time.Duration) (r reply) {
	r.done = h.wait(limit, func() bool { return h.r64(tRPC+80) == h.r64(tRPC+72) })
	b := h.mem[h.buf-tBus:][:4096]
	r.written = b[2] != 0
	if !r.written {
		return r
	}
	r.rc = binary.LittleEndian.Uint16(b)
	r.seed = binary.LittleEndian.Uint16(b[4:])
	n := int(binary.LittleEndian.Uint16(b[6:]))
	r.payload = append([]byte(nil), b[8:8+n]...)
	r.magic = append([]byte(nil), b[8+n:8+n+4]...)
	return r
}

func (h *miniHost) call(command byte, payload []byte) reply {
	h.post(command, payload, 2)
	return h.finish(2 * time.Second)
}

// table is a table read of n entries from start on.
func (h *miniHost) table(command byte, start uint32, n uint16, end uint32) reply {
	b := binary.LittleEndian.AppendUint32(nil, start)
	b = binary.LittleEndian.AppendUint16(b, n)
	b = binary.LittleEndian.AppendUint16(b, 0)
	return h.call(command, binary.LittleEndian.AppendUint32(b, end))
}

// answer is a reply of NetAgent.
type answer struct {
	ok      bool // STATUS 1 came
	bytes   uint32
	marker  uint32
	status  uint32
	payload []byte // whole words, whatever the length says
}

// request writes a request and waits for STATUS 1 without acknowledging it.
func (h *miniHost) request(op, sub, port uint32, payload ...uint32) (a answer) {
	w := append([]uint32{op, sub, port, 0}, payload...)
	for i := range 8 {
		v := uint32(0)
		if i < len(w) {
			v = w[i]
		}
		h.w32(tNWA+0x34+4*uint64(i), v)
	}
	h.w32(tNWA+0x1c, 32)
	h.w32(tNWA+0x18, 1)
	h.bell(154)
	if !h.wait(3*time.Second, func() bool { return h.r32(tNWA+0x20) == 1 }) {
		return answer{}
	}
	a = answer{ok: true, bytes: h.r32(tNWA + 0x24), marker: h.r32(tNWA + 0x54), status: h.r32(tNWA + 0x58)}
	a.payload = h.bytes(tNWA+0x5c, (int(a.bytes)-8+3)&^3)
	return a
}

// release acknowledges and waits for STATUS 0.
func (h *miniHost) release() bool {
	h.w32(tNWA+0x18, 2)
	h.bell(154)
	return h.wait(20*time.Millisecond, func() bool { return h.r32(tNWA+0x20) == 0 })
}

func (h *miniHost) ask(op, sub, port uint32, payload ...uint32) answer {
	h.t.Helper()
	a := h.request(op, sub, port, payload...)
	if a.ok {
		require.True(h.t, h.release(), "STATUS back to 0")
	}
	return a
}

// readHex reads a file of "name = bytes" lines.
func readHex(t *testing.T, path string) map[string][]byte {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	m := map[string][]byte{}
	s := bufio.NewScanner(f)
	for s.Scan() {
		line := strings.TrimSpace(s.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		name, text, ok := strings.Cut(line, "=")
		require.True(t, ok, line)
		b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
		require.NoError(t, err, line)
		m[strings.TrimSpace(name)] = b
	}
	require.NoError(t, s.Err())
	return m
}

func (h *miniHost) facility(n int) (offset, size, bell, bells uint32) {
	at := uint64(csr.BAR2Facilities + 4 + 16*n)
	return h.r32(at), h.r32(at + 4), h.r32(at + 8), h.r32(at + 12)
}
