package hwsim

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What a host leaves in memory and in the windows is whatever it is. The card
// parses it raw: it never panics, touches nothing that it was not given, and its
// books close.

const tPage = 0x3_0000_0000 // bus address of a page for fuzzed buffers

// window is bytes for BAR2, written in whole words.
func (h *miniHost) window(off uint64, b []byte) {
	for i := 0; i+4 <= len(b); i += 4 {
		h.w32(off+uint64(i), binary.LittleEndian.Uint32(b[i:]))
	}
}

// guarded maps a page for the card with memory on both sides that is not mapped,
// and returns the page and a check that the rest is as it was.
func guarded(t *testing.T, c *Card, bus uint64) (page []byte, check func()) {
	mem := bytes.Repeat([]byte{0x5a}, 3*4096)
	page = mem[4096:8192]
	require.NoError(t, c.MapDMA(bus, page))
	return page, func() {
		for _, side := range [][]byte{mem[:4096], mem[8192:]} {
			require.Equal(t, bytes.Repeat([]byte{0x5a}, 4096), side)
		}
	}
}

// FuzzRPC: a config word and ring records, descriptors and a command buffer.
// Pointed descriptors lead to the buffer, whatever their address says.
func FuzzRPC(f *testing.F) {
	le := binary.LittleEndian
	state := func(word uint64, posted, done uint64, off, count uint32) []byte {
		b := make([]byte, 232)
		le.PutUint64(b, word)
		le.PutUint64(b[72:], posted)
		le.PutUint64(b[80:], done)
		le.PutUint32(b[92:], off)
		le.PutUint32(b[96:], count)
		return b
	}
	desc := func(payload, flags uint16) []byte {
		b := make([]byte, 16)
		le.PutUint16(b[8:], payload)
		le.PutUint16(b[10:], flags)
		return b
	}
	command := func(n byte, payload ...byte) []byte { return append([]byte{0xf8, 0x0f, 0, n, 0, 0, 0, 0}, payload...) }
	const word = 0x00000001d7d3ab00
	f.Add(state(word, 1, 0, 0x1000, 8), desc(12, 2), command(36, make([]byte, 12)...), true)
	f.Add(state(word, 1, 0, 0x1000, 8), desc(12, 2), command(44, 0, 0, 0, 0, 182, 0, 0, 0, 181, 0, 0, 0), true)
	f.Add(state(word, 1, 0, 0x1000, 8), desc(12, 2), command(37, 0xff, 0xff, 7, 0, 0xff, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff), true)
	f.Add(state(word, 1, 0, 0x1000, 8), desc(18, 2), command(3, make([]byte, 18)...), true)
	f.Add(state(word, 1, 0, 0x1000, 8), desc(4, 2), command(5, 127, 0, 1, 0), true)
	f.Add(state(word, 8, 0, 4328, 256), desc(0xffff, 2), command(4), true)
	f.Add(state(word, 9, 0, 0x1000, 8), desc(0, 1), command(0), true)
	f.Add(state(word, 1, 0, 0xfffff000, 8), desc(12, 2), command(36), false)
	f.Add(state(0x0001000100000000, 1, 2, 232, 1<<31), desc(0, 3), command(255), true)
	f.Fuzz(func(t *testing.T, state, desc, buf []byte, pointed bool) {
		h := newMiniHost(t)
		h.c.Provision()
		page, check := guarded(t, h.c, tPage)
		copy(page, buf)
		block := make([]byte, 232)
		copy(block, state)
		h.window(tRPC+8, block[8:])
		h.w64(tRPC, le.Uint64(block))
		h.bell(155)
		h.advance(time.Millisecond)
		at, count := uint64(le.Uint32(block[92:])), uint64(le.Uint32(block[96:]))
		for i := range min(count, 16) {
			d := append(make([]byte, 0, 16), desc[:min(len(desc), 16)]...)
			d = d[:16]
			if pointed {
				le.PutUint64(d, tPage)
			}
			if end := at + 16*(i+1); at%4 == 0 && end <= facSize {
				h.window(tRPC+at+16*i, d)
			}
		}
		h.bell(155)
		h.advance(10 * time.Millisecond)
		check()
		require.NoError(t, h.c.CheckConservation())
	})
}

// FuzzNetAgent: the host's half of the mailbox, then the acknowledgement.
func FuzzNetAgent(f *testing.F) {
	request := func(words ...uint32) []byte {
		var b []byte
		for _, w := range words {
			b = binary.LittleEndian.AppendUint32(b, w)
		}
		return b
	}
	f.Add(uint32(1), uint32(32), request(1))
	f.Add(uint32(1), uint32(32), request(4, 3, 0x8100))
	f.Add(uint32(1), uint32(32), request(3, 0, 0x8a00, 0, 1))
	f.Add(uint32(1), uint32(32), request(4, 0x0b, 1))
	f.Add(uint32(1), uint32(0x7fcc), request(1))
	f.Add(uint32(1), uint32(0xffffffff), request(0x45, 14))
	f.Add(uint32(2), uint32(0), request(0))
	f.Fuzz(func(t *testing.T, turn, length uint32, body []byte) {
		h := newMiniHost(t)
		h.c.Provision()
		h.window(tNWA+0x34, body[:min(len(body), 4096)])
		h.w32(tNWA+0x1c, length)
		h.w32(tNWA+0x18, turn)
		h.bell(154)
		h.advance(10 * time.Millisecond)
		if status := h.r32(tNWA + 0x20); turn != 1 {
			require.Zero(t, status)
		} else if status == 1 {
			n := h.r32(tNWA + 0x24)
			require.True(t, 8 <= n && n <= 2020, "%d bytes", n)
			require.True(t, h.release(), "STATUS back to 0")
		}
		require.Equal(t, uint32(0xcafebabe), h.r32(tNWA))
		require.NoError(t, h.c.CheckConservation())
	})
}

// FuzzInstruction: an instruction and what lies in its slot: private header,
// frame, or a gather list. Aimed instructions point at the slot, whatever their
// dptr says.
func FuzzInstruction(f *testing.F) {
	le, be := binary.LittleEndian, binary.BigEndian
	instruction := func(ih3, irh uint64) []byte {
		b := make([]byte, 64)
		le.PutUint64(b, busSlots)
		le.PutUint64(b[8:], ih3)
		le.PutUint64(b[16:], 0x805e800000000000)
		be.PutUint64(b[32:], irh)
		return b
	}
	slot := func(tag uint16, meta ...byte) []byte {
		b := make([]byte, hPriv+60)
		be.PutUint16(b, tag)
		copy(b[2:], meta)
		be.PutUint16(b[hPriv+12:], 0x88b5)
		return b
	}
	const good, irh = 28 + hPriv + 60 | 40<<36 | 28<<42, 0x1220<<48 | 81<<20
	f.Add(instruction(good, irh), slot(tagF1, 1), true)
	f.Add(instruction(good, irh), slot(tag1, 1), true)
	f.Add(instruction(good, 0x1220<<48), slot(tagF1, 1), true)
	f.Add(instruction(good, irh), slot(tagF1, 1, 1), true)
	f.Add(instruction(good, irh), slot(253), true)
	f.Add(instruction(good, irh), slot(254, 1), true)
	f.Add(instruction(good, irh), slot(0x7777, 1), true)
	f.Add(instruction(27|40<<36|28<<42, irh), slot(tagF1, 1), true)
	f.Add(instruction(0xffff|40<<36|28<<42, irh), slot(tagF1, 1), true)
	f.Add(instruction(good, irh), slot(tagF1, 1), false)
	list := le.AppendUint64(nil, hPriv+60<<48) // sizes in reversed order
	for range 4 {
		list = le.AppendUint64(list, busSlots+4096)
	}
	f.Add(instruction(good|1<<62|1<<48, irh), list, true)
	f.Add(instruction(good|1<<62|0x3fff<<48, irh), bytes.Repeat(list, 8), true)
	f.Fuzz(func(t *testing.T, instr, slot []byte, aimed bool) {
		h := newRingHost(t, 16).program(1024)
		copy(h.slots, slot)
		copy(h.instr[:hInstr], instr)
		if aimed {
			le.PutUint64(h.instr, busSlots)
		}
		left := 0
		for _, tag := range []uint16{tagF1, tagF2, tag1, tag2} {
			h.wire(tag).SetReceiver(func([]byte) { left++ })
		}
		h.st32(0, rInDBell, 1)
		h.settled()
		require.EqualValues(t, 1, h.c.RingState(0).InFinished)
		require.LessOrEqual(t, left, 1)
	})
}

// FuzzWireFrame: a frame from outside ends in one place, and a host ring holds it
// unchanged.
func FuzzWireFrame(f *testing.F) {
	f.Add([]byte{})
	f.Add(bytes.Repeat([]byte{0xff}, 14))
	f.Add(bytes.Repeat([]byte{0xff}, 9014))
	for _, l3 := range [][]byte{ // EtherType and what follows
		{0x08, 0, 0x45, 0, 0, 20, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2},
		{0x08, 0, 0x4f, 0, 0, 20, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 0, 0, 0},
		{0x86, 0xdd, 0x60, 0, 0, 0, 0, 0, 6},
		{0x81, 0, 0, 1, 0x08, 0, 0x45},
	} {
		f.Add(append(bytes.Repeat([]byte{0xff}, 12), l3...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h := newRingHost(t, 16).program(1024)
		setMTU(t, h.c, tagF1, 9000)
		h.wire(tagF1).Send(b)
		h.settled()
		taken := 0
		for q := range h.lists {
			for _, p := range h.take(q, 1) {
				taken++
				require.Equal(t, b, p.frame)
			}
		}
		require.LessOrEqual(t, taken, 1)
		h.clean()
	})
}
