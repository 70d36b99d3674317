package hwsim

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
	"oxpd/rpc/msg"
)

// The traps of rpc-lif.md, each as a host meets it that falls into it: registers,
// windows, its own memory, the wire and the card's counters.

const platform, lifUpdate, lifRead = 36, 3, 37

func done(h *miniHost) uint64 { return h.r64(tRPC + 80) }

// A doorbell that is not the facility's: its command waits until the right one rings.
//
//oxpd:fault R2 symptom
func TestR2OtherDoorbell(t *testing.T) {
	h := newMiniHost(t).rpc()
	before := done(h)
	h.writeCommand(platform, make([]byte, 12), 2)
	for _, spi := range []uint32{0, 151, 153, 154, 160, 0xffffffff} {
		h.bell(spi)
	}
	h.advance(time.Second)
	assert.Equal(t, before, done(h))
	h.bell(155)
	assert.True(t, h.finish(time.Second).done)
}

// writeCommand is post without the doorbell.
func (h *miniHost) writeCommand(command byte, payload []byte, flags uint16) {
	h.fillCommand(command, payload)
	h.describe(h.buf, len(payload), flags)
	h.w64(tRPC+72, h.r64(tRPC+72)+1)
}

// fillCommand puts a request into the buffer in use.
func (h *miniHost) fillCommand(command byte, payload []byte) {
	b := h.mem[h.buf-tBus:][:4096]
	for i := range b {
		b[i] = tPoison
	}
	copy(b, []byte{0xf8, 0x0f, 0, command, 0, 0, 0, 0})
	copy(b[8:], payload)
}

// describe writes the descriptor that is posted next.
func (h *miniHost) describe(bus uint64, payloadBytes int, flags uint16) {
	slot := h.r64(tRPC+72) & 7
	h.w64(tRPC+0x1000+16*slot, bus)
	h.w64(tRPC+0x1008+16*slot, uint64(payloadBytes)|uint64(flags)<<16)
}

// Under the fault a reply says that it is longer than its buffer.
//
//oxpd:fault R5 symptom
func TestR5LengthBeyondTheBuffer(t *testing.T) {
	h := newMiniHost(t).rpc()
	h.faults(func(f *TargetFaults) { f.RPCLongReply = true })
	h.post(platform, make([]byte, 12), 2)
	require.True(t, h.wait(time.Second, func() bool { return done(h) == 1 }))
	assert.EqualValues(t, 0xffff, binary.LittleEndian.Uint16(h.mem[6:]))
	assert.Equal(t, "XGS_1US\x00", string(h.mem[8:16]), "the payload is there")
	assert.Equal(t, bytes.Repeat([]byte{tPoison}, 64), h.mem[8+232+4:8+232+4+64], "and ends where it ends")
}

// A byte 2 that a request carries, with POST set, looks like an answer.
//
//oxpd:fault R6 symptom
func TestR6StaleDoneByte(t *testing.T) {
	h := newMiniHost(t).rpc()
	h.fillCommand(platform, make([]byte, 12))
	h.mem[2] = 1
	h.describe(h.buf, 12, 1)
	h.w64(tRPC+72, 1)
	h.bell(155)
	require.True(t, h.wait(time.Second, func() bool { return done(h) == 1 }))
	assert.EqualValues(t, 1, h.mem[2], "it says answered")
	assert.EqualValues(t, 0x0ff8, binary.LittleEndian.Uint16(h.mem), "and the rc is the room for a reply")
	assert.Equal(t, bytes.Repeat([]byte{tPoison}, 232), h.mem[20:252], "no reply was written")
}

// A command that is not run within 2 s stays on the ring and is run later, with what
// then stands in its buffer: zeros are command 0, and that is accepted.
//
//oxpd:fault R7 symptom
//oxpd:fault R8 symptom
//oxpd:fault R18 symptom
func TestR7CommandStaysOnTheRing(t *testing.T) {
	h := newMiniHost(t).rpc()
	h.faults(func(f *TargetFaults) { f.RPCDelay = 3 * time.Second })
	h.post(platform, make([]byte, 12), 2)
	require.False(t, h.finish(2*time.Second).done, "given up")
	require.EqualValues(t, 1, h.r64(tRPC+72)-done(h), "still posted")
	clear(h.mem[:4096])
	r := h.finish(2 * time.Second)
	require.True(t, r.written, "answered after all")
	assert.Zero(t, r.rc, "accepted")
	assert.Empty(t, r.payload, "and not what was asked: platform data are 232 bytes")
}

// Refusals of the fast path: rc 1 to 20, and the LIF keeps what it had.
//
//oxpd:fault R9 symptom
//oxpd:fault R31 symptom
func TestR9Refused(t *testing.T) {
	gold := readHex(t, "testdata/lif_add_update.hex")
	h := newMiniHost(t).rpc()
	require.Zero(t, h.call(lifUpdate, gold["create-portf1"]).rc)
	before := h.table(lifRead, 40960, 1, 40960).payload
	for rc := msg.RC(1); rc <= 20; rc++ {
		h.faults(func(f *TargetFaults) { f.LIFRefuse = map[board.Tag]msg.RC{1: rc} })
		assert.Equal(t, uint16(rc), h.call(lifUpdate, gold["mtu-9000-portf1"]).rc)
	}
	assert.Equal(t, before, h.table(lifRead, 40960, 1, 40960).payload)
}

// A handler that is busy answers 31, which is 20 and EAGAIN; asked again later it
// does what was asked.
//
//oxpd:fault R10 symptom
func TestR10HandlerBusy(t *testing.T) {
	gold := readHex(t, "testdata/lif_add_update.hex")
	h := newMiniHost(t).rpc()
	h.faults(func(f *TargetFaults) { f.LIFRefuse = map[board.Tag]msg.RC{1: 31} })
	require.EqualValues(t, 31, h.call(lifUpdate, gold["create-portf1"]).rc)
	h.faults(func(f *TargetFaults) { f.LIFRefuse = nil })
	h.advance(2 * time.Millisecond)
	assert.Zero(t, h.call(lifUpdate, gold["create-portf1"]).rc)
}

// Bit 15 of rc: what was posted was no command, and nothing was done.
//
//oxpd:fault R11 symptom
func TestR11TransportError(t *testing.T) {
	const einval = 0x8000 | 22
	h := newMiniHost(t).rpc()
	for _, command := range []byte{51, 200, 255} {
		assert.EqualValues(t, einval, h.call(command, nil).rc, "command %d", command)
	}
	h.fillCommand(platform, make([]byte, 12))
	h.describe(h.buf, 5000, 2)
	h.w64(tRPC+72, h.r64(tRPC+72)+1)
	h.bell(155)
	assert.EqualValues(t, einval, h.finish(time.Second).rc, "longer than a buffer")
}

// The idle window says done, and serves nothing.
//
//oxpd:fault R12 symptom
func TestR12AliveAndNotConfigured(t *testing.T) {
	h := newMiniHost(t).up()
	require.EqualValues(t, 0x0100000000000000, h.r64(tRPC))
	h.w32(tRPC+72+20, 0x1000)
	h.w32(tRPC+72+24, 8)
	h.writeCommand(platform, make([]byte, 12), 2)
	h.bell(155)
	h.advance(time.Second)
	assert.Zero(t, done(h))
	assert.EqualValues(t, platform, h.mem[3], "the request is as it was")
}

// A doorbell between two halves of a config word: the half that stands there is
// applied, and the other is cached as if it had been.
//
//oxpd:fault R15 symptom
func TestR15TornConfiguration(t *testing.T) {
	h := newMiniHost(t).up()
	h.writeRing(tRPC+72, lowRing)
	h.w32(tRPC+4, 1) // revision, done cleared
	h.bell(155)
	require.True(t, h.wait(time.Second, func() bool { return h.r64(tRPC)>>56 == 1 }))
	assert.Zero(t, h.r32(tRPC), "acknowledged without the magic")
	h.w32(tRPC, 0xd7d3ab00)
	h.bell(155)
	h.advance(5 * time.Millisecond)
	assert.EqualValues(t, 0x01000001d7d3ab00, h.r64(tRPC), "whole at last, and reads as the acknowledgement of what was never looked at")
}

// Posted before the descriptor is written: the target takes what stood there.
//
//oxpd:fault R17 symptom
func TestR17PostedBeforeTheDescriptor(t *testing.T) {
	h := newMiniHost(t).rpc()
	for range 8 { // every descriptor points at the first buffer
		require.True(t, h.call(platform, make([]byte, 12)).written)
	}
	h.buf = tBuf2
	h.fillCommand(lifRead, make([]byte, 12))
	h.w64(tRPC+72, h.r64(tRPC+72)+1)
	h.bell(155)
	h.advance(time.Second) // the store of the descriptor comes too late
	assert.EqualValues(t, 9, done(h))
	assert.EqualValues(t, lifRead, h.mem[tBuf2-tBus+3], "the request was not looked at")
	assert.EqualValues(t, 10, binary.LittleEndian.Uint16(h.mem[4:]), "the old buffer was answered once more")
}

// A table read for no entries: a reply with nothing in it, or no reply at all.
//
//oxpd:fault R19 symptom
func TestR19NoEntries(t *testing.T) {
	h := newMiniHost(t).rpc()
	r := h.table(44, 0, 0, 181)
	assert.Zero(t, r.rc)
	assert.Empty(t, r.payload)
	h = newMiniHost(t, func(o *Options) { o.Choices.SilentUnknown = true }).rpc()
	r = h.table(44, 0, 0, 181)
	assert.True(t, r.done)
	assert.False(t, r.written)
}

// Commands 47 to 50 empty the counters of the table that they name.
//
//oxpd:fault R20 symptom
func TestR20CountersCleared(t *testing.T) {
	h := newRingHost(t, 64).program(64 + 1024 - 16)
	m := h.control()
	require.True(t, m.configure(lowRing))
	h.wire(tagF1).Send(ipFrame(h.c, tagF1, 60, 1, 1))
	h.settled()
	received := func() uint64 {
		return binary.LittleEndian.Uint64(m.table(44, msg.CntRXWire, 1, msg.CntRXWire).payload)
	}
	require.EqualValues(t, 1, received())
	require.Zero(t, m.call(48, nil).rc)
	assert.Zero(t, received(), "gone, for every reader")
	h.c.Reboot() // the card's own books were not told
}

// LIF_ADD_UPDATE of 16 bytes, as an early page had it.
//
//oxpd:fault R21 symptom
//oxpd:fault R23 symptom
func TestR21UpdateThatIsTooShortOrHasAnotherMask(t *testing.T) {
	gold := readHex(t, "testdata/lif_add_update.hex")
	h := newMiniHost(t).rpc()
	create, mtu := gold["create-portf1"], gold["mtu-9000-portf1"]
	assert.EqualValues(t, 1, h.call(lifUpdate, create[:16]).rc, "16 bytes")
	assert.EqualValues(t, 1, h.call(lifUpdate, mtu).rc, "a partial mask on an empty slot")
	require.Zero(t, h.call(lifUpdate, create).rc)
	assert.EqualValues(t, 1, h.call(lifUpdate, create).rc, "the create mask on a live one")
	assert.EqualValues(t, 1, h.call(lifUpdate, mtu[:16]).rc, "16 bytes")
	assert.Zero(t, h.call(lifUpdate, mtu).rc)
}

// A DF bit that lands in the update mask asks for one more field: the address of a
// LIF whose MTU alone was meant.
//
//oxpd:fault R22 symptom
func TestR22DFBitInTheMask(t *testing.T) {
	gold := readHex(t, "testdata/lif_add_update.hex")
	h := newMiniHost(t).rpc()
	require.Zero(t, h.call(lifUpdate, gold["create-portf1"]).rc)
	before := h.table(lifRead, 40960, 1, 40960).payload
	mtu := append([]byte(nil), gold["mtu-9000-portf1"]...)
	copy(mtu[4:10], []byte{2, 9, 9, 9, 9, 9}) // filled harmlessly, as it is not in the mask
	mtu[16] |= 1                              // the DF bit of a 16-bit store
	require.Zero(t, h.call(lifUpdate, mtu).rc, "accepted")
	after := h.table(lifRead, 40960, 1, 40960).payload
	assert.NotEqual(t, before[:6], after[:6])
	assert.Equal(t, []byte{2, 9, 9, 9, 9, 9}, after[:6], "the port has another address")
}

// A LIF with address zero in L3 mode: broadcast arrives, nothing else does.
//
//oxpd:fault R24 symptom
func TestR24AddressZero(t *testing.T) {
	h := newRingHost(t, 64).program(64 + 1024 - 16)
	l, _ := h.c.LIF(uint32(h.wire(tagF1).port.LIF()))
	l.MAC = [6]byte{}
	h.c.SetLIF(uint32(h.wire(tagF1).port.LIF()), &l)
	all := ipFrame(h.c, tagF1, 60, 1, 1)
	copy(all, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	h.wire(tagF1).Send(all)
	for i := range 5 {
		h.wire(tagF1).Send(ipFrame(h.c, tagF1, 60, 1, uint32(i)))
	}
	h.settled()
	arrived := uint64(0)
	for q := range hOQs {
		arrived += h.ld(q, rOutPkt)
	}
	assert.EqualValues(t, 1, arrived)
	assert.EqualValues(t, 5, h.c.Counter(msg.CntDropLIFNotMyMAC))
}

// PPORT_UPDATE of 3 bytes, or for an interface that there is not.
//
//oxpd:fault R26 symptom
func TestR26PPortRefused(t *testing.T) {
	h := newMiniHost(t).rpc()
	assert.EqualValues(t, 1, h.call(5, []byte{10, 0, 1}).rc)
	assert.EqualValues(t, 1, h.call(5, []byte{128, 0, 1, 0}).rc)
	assert.Zero(t, h.call(5, []byte{10, 0, 1, 0}).rc)
}

// LIFs read by interface number: of twelve one is found. Read by LIF index all are,
// and a slot that is empty reads zeros, or nothing.
//
//oxpd:fault R27 symptom
//oxpd:fault R28 symptom
func TestR27SweepByInterfaceNumber(t *testing.T) {
	for name, short := range map[string]bool{"empty slots read zero": false, "empty slots read short": true} {
		t.Run(name, func(t *testing.T) {
			h := newRingHost(t, 16, func(o *Options) { o.EmptyLIFShort = short }).program(1024)
			m := h.control()
			require.True(t, m.configure(lowRing))
			found := func(index uint32) bool {
				p := m.table(lifRead, index, 1, index).payload
				switch len(p) {
				case 0:
					assert.True(t, short)
					return false
				case 14:
					return !bytes.Equal(p, make([]byte, 14))
				}
				t.Fatalf("%d bytes", len(p))
				return false
			}
			n := 0
			for index := range uint32(35) {
				if found(index) {
					n++
				}
			}
			assert.Equal(t, 1, n, "0 to 34")
			n = 0
			for iface := range uint32(14) {
				if found(iface << 12) {
					n++
				}
			}
			assert.Equal(t, board.Ports, n)
		})
	}
}

// rc 0 and nothing stored: the read-back alone tells.
//
//oxpd:fault R30 symptom
func TestR30AnsweredAndNotStored(t *testing.T) {
	gold := readHex(t, "testdata/lif_add_update.hex")
	h := newMiniHost(t).rpc()
	require.Zero(t, h.call(lifUpdate, gold["create-portf1"]).rc)
	before := h.table(lifRead, 40960, 1, 40960).payload
	h.faults(func(f *TargetFaults) { f.LIFNotStored = map[board.Tag]bool{1: true} })
	require.Zero(t, h.call(lifUpdate, gold["mtu-9000-portf1"]).rc)
	assert.Equal(t, before, h.table(lifRead, 40960, 1, 40960).payload)
}

// The layer-3 size alone counts: 1,514 bytes pass at 1,500 and 1,515 do not, 9,014
// and 9,015 at 9,000. A drop is one of counter 29 and nothing in any ring.
//
//oxpd:fault R32 symptom
func TestR32FrameAboveTheMTU(t *testing.T) {
	for _, mtu := range []int{1500, 9000} {
		h := newRingHost(t, 64).program(64 + 1024 - 16)
		setMTU(t, h.c, tagF1, uint16(mtu))
		arrived := func() (n uint64) {
			for q := range hOQs {
				n += h.ld(q, rOutPkt)
			}
			return n
		}
		for i := range 3 {
			h.wire(tagF1).Send(ipFrame(h.c, tagF1, mtu+15, uint16(i), uint32(i)))
		}
		h.settled()
		assert.EqualValues(t, 3, h.c.Counter(msg.CntDropMTUExceeded))
		assert.Zero(t, arrived())
		h.wire(tagF1).Send(ipFrame(h.c, tagF1, mtu+14, 1, 1))
		h.settled()
		assert.EqualValues(t, 1, arrived())
	}
}

// A coprocessor restart zeroes every counter.
//
//oxpd:fault R33 symptom
func TestR33CountersStartAnew(t *testing.T) {
	h := newRingHost(t, 64).program(64 + 1024 - 16)
	for i := range 5 {
		h.wire(tagF1).Send(ipFrame(h.c, tagF1, 60, 1, uint32(i)))
		h.send(tagF1, ipFrame(h.c, tagF1, 60, 1, uint32(i)))
	}
	h.settled()
	require.EqualValues(t, 5, h.c.Counter(msg.CntRXWire))
	h.c.Reboot()
	h.c.ConfigWrite(4, 2, 6)
	m := h.control()
	m.rpc()
	assert.Equal(t, make([]byte, 8*msg.CountersSys), m.table(44, 0, msg.CountersSys, msg.CountersSys-1).payload)
}

// TX_KN counts what the fast path decided to hand over, whether or not a ring took it.
//
//oxpd:fault R34 symptom
func TestR34DecidedAndNotDelivered(t *testing.T) {
	h := newRingHost(t, 16).program(16 + 1024 - 16)
	sport := ringOf(h, 0)
	for i := range 100 {
		h.wire(tagF1).Send(ipFrame(h.c, tagF1, 60, sport, uint32(i)))
	}
	h.settled()
	assert.EqualValues(t, 100, h.c.Counter(msg.CntTXKN))
	assert.EqualValues(t, 16, h.count(0))
	assert.EqualValues(t, 84, h.c.Counter(msg.CntTXDropQueueFull))
}

// A mailbox whose endpoint has gone reads all-ones.
//
//oxpd:fault R36 symptom
func TestR36MailboxOfACardThatIsGone(t *testing.T) {
	h := newMiniHost(t).agent()
	h.c.Kill()
	for _, at := range []uint64{0, 4, 0x18, 0x20, 0x54} {
		assert.Equal(t, ^uint32(0), h.r32(tNWA+at))
	}
}

// Under the fault the mailbox has another body offset, or replies begin with another
// word.
//
//oxpd:fault R37 symptom
//oxpd:fault R38 symptom
func TestR37OtherMailbox(t *testing.T) {
	h := newMiniHost(t)
	h.faults(func(f *TargetFaults) { f.AgentBody, f.AgentMarker = 0x38, 0x15 })
	h.agent()
	assert.EqualValues(t, 0x38, h.r32(tNWA+4))
	assert.EqualValues(t, 0x15, h.ask(4, 0, 1).marker)
	h.faults(func(f *TargetFaults) { f.AgentBody, f.AgentMarker = 0, 0 })
	h.c.RestartAgent()
	require.True(t, h.wait(time.Second, func() bool { return h.r32(tNWA) == 0xcafebabe }))
	assert.EqualValues(t, 0x34, h.r32(tNWA+4))
	assert.EqualValues(t, 0x14, h.ask(4, 0, 1).marker)
}

// Two callers at once: the second request stands where the first one stood, and both
// read the answer to it.
//
//oxpd:fault R44 symptom
func TestR44TwoCallers(t *testing.T) {
	h := newMiniHost(t).agent()
	put := func(sub, port uint32) {
		for i, v := range []uint32{4, sub, port, 0, 0, 0, 0, 0} {
			h.w32(tNWA+0x34+4*uint64(i), v)
		}
		h.w32(tNWA+0x1c, 32)
		h.w32(tNWA+0x18, 1)
	}
	put(4, 1)      // speed of F1: 10,000
	put(4, 0x8100) // speed of Port1: 1,000
	h.bell(154)
	require.True(t, h.wait(time.Second, func() bool { return h.r32(tNWA+0x20) == 1 }))
	assert.EqualValues(t, 1000, h.r32(tNWA+0x5c), "there is one answer, to the later question")
	require.True(t, h.release())
	h.advance(time.Second)
	assert.Zero(t, h.r32(tNWA+0x20), "the first is never answered")
}

// A port whose address was not named: broadcast alone reaches the coprocessor.
//
//oxpd:fault R49 symptom
func TestR49FilterThatIsClosed(t *testing.T) {
	h := newRingHost(t, 64)
	h.programIn()
	for q := range h.lists {
		h.programOut(q)
		h.st32(q, rOutDBell, 64+1024-16)
	}
	m := h.control()
	m.agent()
	require.Zero(t, m.ask(3, 0, 0, 1).status, "uplink")
	require.Zero(t, m.ask(3, 0, 0x8100, 1).status, "port up")
	h.advance(time.Second)
	all := ipFrame(h.c, tag1, 60, 1, 1)
	own := bytes.Clone(all)
	copy(all, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	send := func(f []byte) uint64 {
		before := h.c.Counter(msg.CntRXWire)
		h.wire(tag1).Send(f)
		h.settled()
		return h.c.Counter(msg.CntRXWire) - before
	}
	assert.EqualValues(t, 1, send(all))
	assert.EqualValues(t, 0, send(own))
	mac := m.ask(4, 3, 0x8100).payload
	require.Zero(t, m.ask(3, 3, 0x8100, binary.LittleEndian.Uint32(mac), binary.LittleEndian.Uint32(mac[4:])).status)
	assert.EqualValues(t, 1, send(own), "named: it comes")
}
