package hwsim

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/rpc/msg"
)

// The failure modes of endpoint.md 15, each as a host meets it that brings it
// about. What is asserted is what that host can see: registers, its own memory,
// the wire, the card's counters. What oxpd does about a row is asserted with the
// package that does it.

// control is a driver of BAR2 on the same card, with the target's windows open.
func (h *ringHost) control() *miniHost {
	m := &miniHost{t: h.t.(*testing.T), c: h.c, mem: make([]byte, 64<<10), buf: tBus}
	require.NoError(h.t, h.c.MapDMA(tBus, m.mem))
	return m
}

// out collects what leaves by a port.
func (h *ringHost) out(tag uint16) *[][]byte {
	got := new([][]byte)
	h.wire(tag).SetReceiver(func(b []byte) { *got = append(*got, append([]byte(nil), b...)) })
	return got
}

// A read of the interrupt controller never completes, wherever in entry 15, and
// nothing tells why. Only a power cycle ends it.
//
//oxpd:fault F1 symptom
//oxpd:fault R1 symptom
func TestF1ReadOfEntry15StallsTheHost(t *testing.T) {
	for _, off := range []uint64{0x03c00000, 0x03c00040, 0x03fffff8} {
		c := powered(t, func(o *Options) { o.Choices.StallForbidden = true })
		done := make(chan struct{})
		go func() {
			c.Load(2, off, 4)
			close(done)
		}()
		for c.ReportCount(ReportForbiddenRead) == 0 { // the read has reached the card
			time.Sleep(time.Millisecond)
		}
		c.Advance(time.Minute)
		c.Reboot()
		select {
		case <-done:
			t.Fatalf("the read of %#x completed", off)
		default:
		}
		c.Close()
		<-done
	}
}

// All-ones where nothing is mapped: before the target's kernel, in the entries
// that it never maps, and after its software has gone. BAR0 goes on answering.
//
//oxpd:fault F2 symptom
func TestF2UnmappedWindowsReadAllOnes(t *testing.T) {
	h := newMiniHost(t)
	windows := []uint64{0x02000000, 0x02100000, tNWA, tRPC, 0x023ffff8}
	for _, at := range append([]uint64{0, 0x01fffff8}, windows...) {
		assert.Equal(t, ^uint64(0), h.r64(at), "%#x before the kernel", at)
	}
	assert.EqualValues(t, 0x400000, h.c.Load(0, 0x20190, 8), "RINFO")
	require.True(t, h.wait(time.Second, func() bool { return h.r64(0x02000000) != ^uint64(0) }), "waiting helps")
	assert.Equal(t, ^uint64(0), h.r64(0x01fffff8), "never mapped")
	h.up()

	h.c.Reboot()
	h.c.ConfigWrite(4, 2, 6)
	for _, at := range windows {
		h.w64(at, 1)
		assert.Equal(t, ^uint64(0), h.r64(at), "%#x with the software gone", at)
	}
	assert.EqualValues(t, 0x400000, h.c.Load(0, 0x20190, 8), "RINFO")
	h.up()
	assert.NotEqual(t, ^uint64(0), h.r64(tRPC), "back with the next boot")
}

// A host that stops in the middle leaves its last word, or the target's, in the
// register for good; a later host's offer gets no GET_HOST_INFO. A reboot helps.
//
//oxpd:fault F3 symptom
func TestF3AbandonedHandshakeStands(t *testing.T) {
	const host, get, info = 0xdeadbeef, 0xbeefdeed, 0x0000020008000000
	for name, tc := range map[string]struct {
		write []uint64
		left  uint64
	}{
		"after GET_HOST_INFO": {[]uint64{host}, get},
		"after the reply":     {[]uint64{host, info}, 0xdeadde0320},
	} {
		t.Run(name, func(t *testing.T) {
			h := newMiniHost(t)
			require.True(t, h.wait(time.Second, func() bool { return h.c.Load(0, 0x20180, 8) == 0x02000000abcdabcd }))
			for _, w := range tc.write {
				h.setScratch(w)
				require.True(t, h.wait(time.Second, func() bool { return h.scratch() != w }))
			}
			h.advance(time.Hour)
			require.Equal(t, tc.left, h.scratch(), "an hour later")
			assert.Zero(t, h.r64(tNWA), "no NetAgent")
			assert.Zero(t, h.r64(tRPC), "no rpc")

			h.setScratch(host)
			h.advance(time.Minute)
			assert.NotEqual(t, uint64(get), h.scratch(), "a later offer is not answered as one")

			h.c.Reboot()
			h.c.ConfigWrite(4, 2, 6)
			h.up()
		})
	}
}

// A second handshake: no answer, and the bitmap of started ports is gone.
//
//oxpd:fault F4 symptom
func TestF4SecondHandshakeLosesTheBitmap(t *testing.T) {
	h := newMiniHost(t).up()
	require.EqualValues(t, 1, h.scratch(), "the bitmap")
	h.setScratch(0xdeadbeef)
	h.advance(time.Hour)
	assert.EqualValues(t, 0xdeadbeef, h.scratch(), "no answer, no bitmap")
	h.setScratch(0)
	h.advance(time.Hour)
	assert.Zero(t, h.scratch(), "nor does taking it back restore it")
	h.c.Reboot()
	h.c.ConfigWrite(4, 2, 6)
	h.up()
}

// The handshake of a host that promises virtual functions completes; within
// minutes the target's software is gone, and BAR0 is as before.
//
//oxpd:fault F5 symptom
func TestF5PromisedVFsEndTheTarget(t *testing.T) {
	h := newMiniHost(t, func(o *Options) { o.Timeline = Real() })
	until := func(what string, limit time.Duration, ok func() bool) {
		t.Helper()
		for ; !ok(); limit -= 100 * time.Millisecond {
			require.Positive(t, limit, what)
			h.advance(100 * time.Millisecond)
		}
	}
	until("magic", time.Minute, func() bool { return h.c.Load(0, 0x20180, 8) == 0x02000000abcdabcd })
	h.setScratch(0xdeadbeef)
	until("GET_HOST_INFO", 2*time.Second, func() bool { return h.scratch() == 0xbeefdeed })
	h.setScratch(0x0000020808080001)
	until("the reply", 2*time.Second, func() bool { return h.scratch() == 0xdeadde0320 })
	h.setScratch(0xdeeddeed)
	until("completed", 2*time.Second, func() bool { return h.scratch() == 0 })

	until("gone", 10*time.Minute, func() bool { return h.r64(tRPC) == ^uint64(0) })
	assert.Equal(t, ^uint64(0), h.r64(tNWA), "nw_agent")
	assert.Equal(t, ^uint64(0), h.r64(0x02100000+256), "mgmt is down")
	for n := range 5 {
		_, size, _, _ := h.facility(n)
		assert.Zero(t, size, "size of facility %d", n)
	}
	assert.EqualValues(t, 0x400000, h.c.Load(0, 0x20190, 8), "RINFO is fine")
	h.advance(time.Hour)
	assert.Equal(t, ^uint64(0), h.r64(tRPC), "for good")
	h.c.Reboot()
	h.c.ConfigWrite(4, 2, 6)
	h.advance(time.Minute)
	assert.NotEqual(t, ^uint64(0), h.r64(tRPC), "until the host reboots")
}

// A ring that is armed again with other memory after the port opened: no error
// anywhere, packets go to the old memory, and when the credit is used up that its
// host never gives back, the coprocessor's queue-full drops climb.
//
//oxpd:fault F6 symptom
func TestF6RearmedRingWritesToTheOldMemory(t *testing.T) {
	const rsize, offered = 208, 400 // 192 of 400 were measured as dropped
	h := newRingHost(t, rsize).program(rsize + 1024 - 16)
	const list, bufs = 0x7_0000_0000, 0x7_1000_0000
	entries := hostMemory(t, h.c, list, 4096)
	fresh := hostMemory(t, h.c, bufs, rsize*hBufGap)
	for i := range rsize {
		binary.LittleEndian.PutUint64(entries[16*i:], bufs+uint64(i*hBufGap))
	}
	h.st(0, rOutEnable, 0)
	h.st(0, rOutBaddr, list)
	h.st32(0, rOutDBell, 0xffffffff)
	h.st(0, rOutEnable, 1)
	h.st32(0, rOutDBell, rsize+1024-16)
	require.EqualValues(t, list, h.ld(0, rOutBaddr), "the register says that it took it")
	sport := ringOf(h, 0)
	for i := range offered {
		h.wire(tagF1).Send(ipFrame(h.c, tagF1, 60, sport, uint32(i)))
	}
	h.settled()
	assert.Equal(t, make([]byte, len(fresh)), fresh, "the new memory stays empty")
	old := map[uint32]bool{}
	for i := range rsize {
		old[seqOf(h.bufs[0][i*hBufGap+hPrefix:])] = true
	}
	assert.Len(t, old, rsize, "the old memory fills")
	assert.EqualValues(t, rsize, h.count(0), "and is counted")
	assert.EqualValues(t, offered-rsize, h.c.Counter(msg.CntTXDropQueueFull), "the rest is dropped")
	assert.Zero(t, h.ld(0, 0x400), "ERR_TYPE")
	assert.Zero(t, h.c.Load(0, 0x20100, 8), "ORERR")
}

// A grant of 256 under a watermark of 1,024: one packet a ring, then nothing.
//
//oxpd:fault F7 symptom
func TestF7GrantBelowTheWatermark(t *testing.T) {
	h := newRingHost(t, 256, func(o *Options) { o.Choices.UnderWatermark = DeliverOne }).program(256)
	const offered = 400
	for i := range offered {
		h.wire(tagF1).Send(ipFrame(h.c, tagF1, 60, ringOf(h, i%hOQs), uint32(i)))
	}
	h.settled()
	for q := range hOQs {
		assert.EqualValues(t, 1, h.count(q), "ring %d", q)
		assert.EqualValues(t, 1, h.ld(q, rOutPkt), "ring %d", q)
		assert.EqualValues(t, 240, h.credit(q), "ring %d: one batch was fetched", q)
	}
	assert.EqualValues(t, offered-hOQs, h.c.Counter(msg.CntTXDropQueueFull))
	for q := range hOQs {
		h.st32(q, rOutDBell, 1024)
	}
	for i := range 80 {
		h.wire(tagF1).Send(ipFrame(h.c, tagF1, 60, ringOf(h, i%hOQs), uint32(i)))
	}
	h.settled()
	for q := range hOQs {
		assert.EqualValues(t, 11, h.count(q), "ring %d: granting more helps", q)
	}
}

// With credit above the grant the card laps: it counts more than the ring holds,
// the newest packets stand first, and the lost ones are in no counter. A host
// that goes on from its index meets gaps in the sequence.
//
//oxpd:fault F8 symptom
func TestF8GrantAboveTheCeilingLaps(t *testing.T) {
	const rsize, offered = 1024, 1500
	h := newRingHost(t, rsize).program(4096)
	sport := ringOf(h, 0)
	for i := range offered {
		h.wire(tagF1).Send(ipFrame(h.c, tagF1, 60, sport, uint32(i)))
	}
	h.settled()
	assert.EqualValues(t, offered, h.count(0), "OUT_CNTS is larger than the ring")
	assert.Zero(t, h.c.Counter(msg.CntTXDropQueueFull), "nothing counts as lost")
	var seqs []uint32
	for _, p := range h.take(0, offered) {
		seqs = append(seqs, seqOf(p.frame))
	}
	require.Len(t, seqs, rsize, "what the memory still has")
	assert.EqualValues(t, rsize, seqs[0], "newest frames first")
	assert.EqualValues(t, offered-1, seqs[offered-rsize-1])
	assert.EqualValues(t, offered-rsize, seqs[offered-rsize], "then a jump back to what was not overwritten")
	assert.EqualValues(t, offered-rsize, h.count(0), "and a count for which no packet is there")
}

// The drain value to an enabled ring is no drain: it counts as credit.
//
//oxpd:fault F9 symptom
func TestF9DrainAfterTheEnableIsCredit(t *testing.T) {
	for name, tc := range map[string]struct {
		huge   bool
		credit int32
	}{
		"added to the signed credit":   {false, 2016 - 1},
		"a grant of four billion more": {true, 2016 - 1},
	} {
		t.Run(name, func(t *testing.T) {
			h := newRingHost(t, 1024, func(o *Options) { o.Choices.DrainIsGrant = tc.huge })
			h.programOut(0)
			h.st32(0, rOutDBell, 0xffffffff)
			require.NotEqual(t, uint64(0), h.ld(0, rOutDBell), "something was fetched for it, or the credit moved")
			h.st32(0, rOutDBell, 2032)
			require.Equal(t, tc.credit, h.credit(0), "not drained")
			h.c.Provision()
			sport := ringOf(h, 0)
			for i := range 3000 {
				h.wire(tagF1).Send(ipFrame(h.c, tagF1, 60, sport, uint32(i)))
			}
			h.settled()
			assert.Equal(t, tc.huge, h.count(0) > 1024, "laps without end")
		})
	}
	t.Run("before the enable it drains", func(t *testing.T) {
		h := newRingHost(t, 1024)
		h.programOut(0)
		h.st32(0, rOutDBell, 2032)
		h.st(0, rOutEnable, 0)
		h.st32(0, rOutDBell, 0xffffffff)
		assert.Zero(t, h.credit(0))
	})
}

// Of flows over all rings, those arrive that hash to a ring that was armed.
//
//oxpd:fault F10 symptom
func TestF10RingsThatAreNotArmed(t *testing.T) {
	const armed, each = 3, 20
	h := newRingHost(t, 256)
	h.programIn()
	for q := range armed {
		h.programOut(q)
		h.st32(q, rOutDBell, 256+1024-16)
	}
	h.c.Provision()
	for i := range each * hOQs {
		h.wire(tagF1).Send(ipFrame(h.c, tagF1, 60, ringOf(h, i%hOQs), uint32(i)))
	}
	h.settled()
	for q := range hOQs {
		want := uint64(0)
		if q < armed {
			want = each
		}
		assert.Equal(t, want, h.ld(q, rOutPkt), "ring %d", q)
	}
	assert.EqualValues(t, (hOQs-armed)*each, h.c.Counter(msg.CntTXDropQueueFull))
}

// Frames posted on ring 8 are fetched, counted as finished, and taken for frames
// that come from a wire: dropped.
//
//oxpd:fault F11 symptom
func TestF11InputRing8(t *testing.T) {
	const q = 8
	h := newRingHost(t, 16)
	h.st(q, rInControl, 3<<25|1<<24|1<<1)
	h.st(q, rInBaddr, busInstr)
	h.st(q, rInRsize, hSlots)
	h.st(q, rInEnable, 1)
	h.program(1024)
	got := h.out(tagF1)
	for i := range 5 {
		h.fill(tagF1, ipFrame(h.c, tagF1, 60, 1, uint32(i)))
	}
	h.st32(q, rInDBell, 5)
	h.settled()
	assert.EqualValues(t, 5, h.ld(q, rInPkt), "fetched")
	assert.EqualValues(t, 5, uint32(h.ld(q, rInCnts)), "finished")
	assert.Empty(t, *got)
	assert.Zero(t, h.c.Counter(msg.CntRXKN), "not counted as the host's")
	assert.EqualValues(t, 5, h.c.Counter(msg.CntDropIGErr))

	h.tail = 0
	h.send(tagF1, ipFrame(h.c, tagF1, 60, 1, 9))
	h.settled()
	assert.Len(t, *got, 1, "ring 0 is the host's")
}

// rlenssz 0 with a frame that is no IP ends the fast path. Instructions are still
// fetched; nobody takes what they carry, to either side.
//
//oxpd:fault F12 symptom
//oxpd:fault D20 symptom
func TestF12RlensszZeroEndsTheFastPath(t *testing.T) {
	h := newRingHost(t, 16).program(1024)
	got := h.out(tagF1)
	arp := make([]byte, 60)
	copy(arp[12:], []byte{8, 6})
	i := h.fill(tagF1, arp)
	clear(h.instr[i*hInstr+36 : i*hInstr+38])
	h.st32(0, rInDBell, 1)
	h.settled()
	from := h.c.Counter(msg.CntRXKN)
	for n := range 10 {
		h.send(tagF1, ipFrame(h.c, tagF1, 60, 1, uint32(n)))
		h.wire(tagF1).Send(ipFrame(h.c, tagF1, 60, 1, uint32(n)))
	}
	h.settled()
	assert.EqualValues(t, 11, h.ld(0, rInPkt), "IN_PKT_CNT moves")
	assert.Empty(t, *got)
	assert.Equal(t, from, h.c.Counter(msg.CntRXKN))
	for q := range hOQs {
		assert.Zero(t, h.ld(q, rOutPkt), "ring %d", q)
	}
	h.c.Reboot()
	h.c.ConfigWrite(4, 2, 6)
	h.tail = 0
	h.program(1024)
	h.send(tagF1, arp)
	h.settled()
	assert.Len(t, *got, 1, "after a reboot, with rlenssz 81")
}

// A metadata byte 1 that is not 0 sends the frame to encryption, where it ends.
//
//oxpd:fault F13 symptom
//oxpd:fault D19 symptom
func TestF13MetadataOfAnotherForm(t *testing.T) {
	h := newRingHost(t, 16).program(1024)
	got := h.out(tagF1)
	i := h.fill(tagF1, ipFrame(h.c, tagF1, 60, 1, 1))
	for k := 1; k < 64; k++ { // the vendor's debug pattern
		h.slots[i*hStride+2+k] = byte(0xbf + k)
	}
	h.st32(0, rInDBell, 1)
	h.settled()
	assert.Empty(t, *got, "never on the wire")
	assert.EqualValues(t, 1, h.c.Counter(msg.CntFromKNToIPsecEncr))
	assert.EqualValues(t, 1, h.c.Counter(msg.CntTXDrop))
	assert.Zero(t, h.c.Counter(msg.CntFromKNToWire))
	h.send(tagF1, ipFrame(h.c, tagF1, 60, 1, 2))
	h.settled()
	assert.Len(t, *got, 1, "byte 0 is 1 and the rest 0: on the wire")
}

// Without its tag or its LIF a port's frames are dropped before any ring.
//
//oxpd:fault F14 symptom
//oxpd:fault R25 symptom
func TestF14TagOrLIFMissing(t *testing.T) {
	arrived := func(h *ringHost) (n uint64) {
		for q := range hOQs {
			n += h.ld(q, rOutPkt)
		}
		return n
	}
	send := func(h *ringHost) {
		for i := range 10 {
			h.wire(tagF1).Send(ipFrame(h.c, tagF1, 60, uint16(i), uint32(i)))
		}
		h.settled()
	}
	t.Run("no LIF, then one", func(t *testing.T) {
		h := newRingHost(t, 256).program(256 + 1024 - 16)
		index := uint32(h.wire(tagF1).port.LIF())
		l, _ := h.c.LIF(index)
		h.c.SetLIF(index, nil)
		send(h)
		assert.EqualValues(t, 10, h.c.Counter(msg.CntDropLIFLookupNull))
		assert.Zero(t, arrived(h))
		h.c.SetLIF(index, &l)
		send(h)
		assert.EqualValues(t, 10, arrived(h))
	})
	t.Run("no tag, then one", func(t *testing.T) {
		h := newRingHost(t, 256)
		h.programIn()
		for q := range h.lists {
			h.programOut(q)
			h.st32(q, rOutDBell, 256+1024-16)
		}
		m := h.control()
		m.agent()
		require.True(t, m.configure(lowRing))
		require.Zero(t, m.ask(3, 0, 1, 1).status, "port up")
		require.Zero(t, m.call(3, readHex(t, "testdata/lif_add_update.hex")["create-portf1"]).rc)
		h.advance(time.Second)
		send(h)
		assert.EqualValues(t, 10, h.c.Counter(msg.CntDropLIFIndexInvalid))
		assert.Zero(t, arrived(h))
		require.Zero(t, m.call(5, []byte{10, 0, 1, 0}).rc)
		send(h)
		assert.EqualValues(t, 10, arrived(h))
	})
}

// Attribute 0x0b: no answer, no answer to anything later, and packets go on as
// if nothing had happened.
//
//oxpd:fault F15 symptom
//oxpd:fault R47 symptom
func TestF15FECAttributeEndsNetAgent(t *testing.T) {
	for name, op := range map[string]uint32{"set": 3, "get": 4} {
		t.Run(name, func(t *testing.T) {
			h := newRingHost(t, 64).program(64 + 1024 - 16)
			m := h.control()
			require.True(t, m.ask(4, 0, 1).ok)
			require.False(t, m.request(op, 0x0b, 1).ok, "no answer in 3 s")
			m.w32(tNWA+0x18, 2)
			m.bell(154)
			require.False(t, m.request(4, 0, 1).ok, "every later request times out")

			got := h.out(tagF1)
			h.send(tagF1, ipFrame(h.c, tagF1, 60, 1, 1))
			h.wire(tagF1).Send(ipFrame(h.c, tagF1, 60, ringOf(h, 2), 1))
			h.settled()
			assert.Len(t, *got, 1, "host to wire")
			assert.EqualValues(t, 1, h.count(2), "wire to host")
			require.True(t, m.configure(lowRing), "rpc, too")

			h.c.Reboot()
			h.c.ConfigWrite(4, 2, 6)
			assert.True(t, m.agent().ask(4, 0, 1).ok, "after a reboot")
		})
	}
}

// A servicer that acknowledges some of what waits and leaves more than the level
// gets no interrupt ever again on that ring, whatever arrives. RESEND helps, and
// so does taking all.
//
//oxpd:fault F19 symptom
func TestF19PacketsLeftAboveTheLevel(t *testing.T) {
	const level, left = 4, 1000
	h := newRingHost(t, 2048).program(2048 + 1024 - 16)
	fired := 0
	h.c.OnIRQ(16, func() { fired++ })
	h.st(0, rOutLevels, 39<<32|level)
	sport := ringOf(h, 0)
	arrive := func(n int) {
		for i := range n {
			h.wire(tagF1).Send(ipFrame(h.c, tagF1, 60, sport, uint32(i)))
		}
		h.settled()
	}
	arrive(level)
	require.Equal(t, 1, fired, "at the crossing")
	arrive(left)
	h.take(0, 10)
	arrive(500)
	h.advance(time.Second)
	assert.Equal(t, 1, fired, "frozen")
	assert.EqualValues(t, level+left-10+500, h.count(0), "while they sit in memory")

	h.st(0, rOutCnts, 1<<59)
	h.advance(linkTime)
	assert.Equal(t, 2, fired, "RESEND raises it again")
	h.take(0, 2000)
	require.Zero(t, h.count(0))
	arrive(level)
	assert.Equal(t, 3, fired, "and so does a new crossing, once all are taken")
}

// A host that takes one buffer for each packet is a buffer behind after the first
// long one: each look finds what came before, and every counter is clean.
//
//oxpd:fault F20 symptom
func TestF20SpanTakenAsOneBuffer(t *testing.T) {
	h := newRingHost(t, 1024).program(2032)
	setMTU(t, h.c, tagF1, 9000)
	sport := ringOf(h, 0)
	naive := func() (buffer []byte) { // one packet counted, one buffer taken
		require.EqualValues(t, 1, h.count(0))
		buffer = append(buffer, h.bufs[0][h.read[0]*hBufGap:][:hBuf]...)
		h.poison(0, h.read[0])
		h.read[0]++
		h.st32(0, rOutDBell, 1)
		h.st32(0, rOutCnts, 1)
		return buffer
	}
	arrive := func(n int, seq uint32) {
		h.wire(tagF1).Send(ipFrame(h.c, tagF1, n, sport, seq))
		h.settled()
	}
	arrive(60, 1)
	require.EqualValues(t, 1, seqOf(naive()[hPrefix:]), "right until a long one comes")
	long := ipFrame(h.c, tagF1, 3000, sport, 2)
	arrive(3000, 2)
	naive()
	arrive(60, 3)
	assert.Equal(t, long[hBuf-hPrefix:], naive()[:3000-hBuf+hPrefix], "the look for packet 3 finds the tail of 2")
	for seq := uint32(4); seq < 100; seq++ {
		arrive(60, seq)
		require.Equal(t, seq-1, seqOf(naive()[hPrefix:]), "one late for ever")
	}
	assert.Zero(t, h.count(0))
	assert.Zero(t, h.c.Counter(msg.CntTXDrop))
	assert.EqualValues(t, 99, h.ld(0, rOutPkt), "the card counts as if all were well")
	assert.LessOrEqual(t, h.credit(0), int32(2032))
}

// A transmit buffer that is filled again before the card has read it: what goes
// out is the later frame, by the later port, and no counter knows.
//
//oxpd:fault F21 symptom
func TestF21SlotReusedBeforeItWasRead(t *testing.T) {
	h := newRingHost(t, 16).program(1024)
	h.faults(func(f *Faults) { f.ReadDelay = time.Millisecond })
	first, second := h.out(tagF1), h.out(tagF2)
	h.send(tagF1, ipFrame(h.c, tagF1, 60, 1, 1))
	for i := 0; uint32(h.ld(0, rInDBell)) != 0; i++ {
		require.Less(t, i, 1000, "fetched")
	}
	require.Zero(t, uint32(h.ld(0, rInCnts)), "and not finished: the doorbell is no permission")
	h.tail = 0
	h.fill(tagF2, ipFrame(h.c, tagF2, 60, 1, 2))
	h.settled()
	assert.Empty(t, *first, "the frame that was posted is gone")
	require.Len(t, *second, 1, "another went out of another port")
	assert.EqualValues(t, 2, seqOf((*second)[0]))
	assert.EqualValues(t, 1, h.c.Counter(msg.CntTXWire))
	assert.Zero(t, h.c.Counter(msg.CntTXDrop)+h.c.Counter(msg.CntTXWireErr))
}

// A host that posts without looking at the doorbell writes over instructions that
// were not fetched: those frames never leave, the later ones leave twice.
//
//oxpd:fault F22 symptom
func TestF22InstructionsOverwritten(t *testing.T) {
	const over = 10
	h := newRingHost(t, 16).program(1024)
	got := h.out(tagF1)
	h.faults(func(f *Faults) { f.StopFetch = true })
	for i := range hSlots + over {
		h.send(tagF1, ipFrame(h.c, tagF1, 60, 1, uint32(i)))
	}
	require.EqualValues(t, hSlots+over, uint32(h.ld(0, rInDBell)), "the low half of the doorbell tells")
	h.faults(func(f *Faults) { f.StopFetch = false })
	h.settled()
	times := map[uint32]int{}
	for _, f := range *got {
		times[seqOf(f)]++
	}
	for seq := range uint32(hSlots + over) {
		want := 1
		switch {
		case seq < over:
			want = 0
		case seq >= hSlots:
			want = 2
		}
		assert.Equal(t, want, times[seq], "frame %d", seq)
	}
	assert.Zero(t, h.c.Counter(msg.CntTXDrop))
}

// A list that is shorter than RSIZE says: what lies behind it is taken for
// addresses, and packets are written there.
//
//oxpd:fault F23 symptom
//oxpd:fault D26 symptom
func TestF23RsizeBeyondTheMemory(t *testing.T) {
	const real = 16
	h := newRingHost(t, 32)
	const foreign = 0x7_0000_0000
	other := hostMemory(t, h.c, foreign, 32*4096) // somebody else's pages
	for i := real; i < 32; i++ {
		binary.LittleEndian.PutUint64(h.lists[0][16*i:], foreign+uint64(i)*4096) // and somebody else's pointers behind the list
	}
	h.program(32 + 1024 - 16)
	sport := ringOf(h, 0)
	arrive := func(from, to int) {
		for i := from; i < to; i++ {
			h.wire(tagF1).Send(ipFrame(h.c, tagF1, 60, sport, uint32(i)))
		}
		h.settled()
	}
	arrive(0, real)
	assert.Equal(t, make([]byte, len(other)), other, "all is well within the list")
	arrive(real, 32)
	for i := real; i < 32; i++ {
		assert.EqualValues(t, i, seqOf(other[i*4096+hPrefix:]), "page %d", i)
	}
}

// 0x20180 is plain storage: whoever writes it takes the barmap pointer from
// whoever reads it next.
//
//oxpd:fault F24 symptom
func TestF24PointerOverwritten(t *testing.T) {
	h := newMiniHost(t).up()
	const pointer = 0x02000000abcdabcd
	h.c.Store(0, 0x20180, 8, 0x11223344) // the vendor's last note
	h.advance(time.Hour)
	assert.EqualValues(t, 0x11223344, h.c.Load(0, 0x20180, 8), "the target does not put it back")
	assert.True(t, h.configure(lowRing), "who knows the way goes on")
	h.c.Store(0, 0x20180, 8, pointer)
	assert.EqualValues(t, pointer, h.c.Load(0, 0x20180, 8), "restored by hand")
}

// Each of the three order and size bits left wrong sends the card elsewhere.
//
//oxpd:fault F25 symptom
func TestF25OrderBitsWrong(t *testing.T) {
	t.Run("ES_P off: pointers are read byte-reversed", func(t *testing.T) {
		h := newRingHost(t, 16)
		const reversed = 0x03000000 // of the first buffer's address
		require.EqualValues(t, 0x0000_0003_0000_0000, h.buf(0, 0))
		wrong := hostMemory(t, h.c, reversed, 4096)
		h.programIn()
		h.programOut(0)
		h.st(0, rOutControl, hBuf)
		h.st32(0, rOutDBell, 1040)
		h.c.Provision()
		h.wire(tagF1).Send(ipFrame(h.c, tagF1, 60, ringOf(h, 0), 7))
		h.settled()
		assert.EqualValues(t, 1, h.count(0), "counted as if it had arrived")
		assert.EqualValues(t, 0xa5, h.bufs[0][0], "the buffer is empty")
		assert.EqualValues(t, 7, seqOf(wrong[hPrefix:]), "the packet is at the reversed address")
	})
	t.Run("ESR off: instructions are read byte-reversed", func(t *testing.T) {
		h := newRingHost(t, 16).program(1024)
		h.st(0, rInControl, 3<<25|1<<24)
		got := h.out(tagF1)
		h.send(tagF1, ipFrame(h.c, tagF1, 60, 1, 1))
		h.settled()
		assert.EqualValues(t, 1, h.ld(0, rInPkt), "fetched")
		assert.Empty(t, *got)
		assert.NotEqual(t, uint64(60+94), h.ld(0, rInByte), "tlen is not the one that was written")
	})
	t.Run("IS_64B off: two instructions are taken for four", func(t *testing.T) {
		h := newRingHost(t, 16).program(1024)
		h.st(0, rInControl, 3<<25|1<<1)
		got := h.out(tagF1)
		h.send(tagF1, ipFrame(h.c, tagF1, 60, 1, 1), ipFrame(h.c, tagF1, 60, 1, 2))
		h.settled()
		assert.EqualValues(t, 64, h.ld(0, rInDBell)>>32, "two steps of 32 bytes")
		for _, f := range *got {
			assert.NotEqualValues(t, 2, seqOf(f), "the second frame never leaves")
		}
	})
}

// A base address written while the ring is not idle is ignored.
//
//oxpd:fault F26 symptom
func TestF26BaddrWhileNotIdle(t *testing.T) {
	h := newRingHost(t, 16)
	h.programIn()
	h.faults(func(f *Faults) { f.StopFetch = true })
	h.send(tagF1, ipFrame(h.c, tagF1, 60, 1, 1))
	require.Zero(t, h.ld(0, rInControl)&(1<<28), "not idle")
	h.st(0, rInBaddr, 0x7_0000_0000)
	assert.EqualValues(t, busInstr, h.ld(0, rInBaddr))
	h.faults(func(f *Faults) { f.StopFetch = false })
	for i := 0; h.ld(0, rInControl)&(1<<28) == 0; i++ {
		require.Less(t, i, 10000, "idle comes")
	}
	h.st(0, rInEnable, 0)
	h.st(0, rInBaddr, 0x7_0000_0000)
	assert.EqualValues(t, 0x7_0000_0000, h.ld(0, rInBaddr), "idle: taken")
}

// Frames with tags that are no port's: 0 is a wire error and a drop, 253 and 255
// leave no trace at all.
//
//oxpd:fault F27 symptom
func TestF27TagsOfNoPort(t *testing.T) {
	for name, tc := range map[string]struct {
		tag  uint16
		want map[int]uint64
	}{
		"0":   {0, map[int]uint64{msg.CntRXKN: 5, msg.CntFromKNToWire: 5, msg.CntTXWireErr: 5, msg.CntTXDrop: 5}},
		"253": {253, map[int]uint64{}},
		"255": {255, map[int]uint64{}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newRingHost(t, 16).program(1024)
			left := 0
			for _, p := range h.c.wires {
				p.SetReceiver(func([]byte) { left++ })
			}
			for i := range 5 {
				h.send(tc.tag, ipFrame(h.c, tagF1, 60, 1, uint32(i)))
			}
			h.settled()
			assert.EqualValues(t, 5, uint32(h.ld(0, rInCnts)), "taken")
			assert.Zero(t, left, "no wire has it")
			got := map[int]uint64{}
			for i := range msg.CountersSys {
				if n := h.c.Counter(i); n != 0 {
					got[i] = n
				}
			}
			assert.Equal(t, tc.want, got)
		})
	}
}

// The fast path wedged: instructions are fetched, the coprocessor's count of
// frames from the host stands, rpc answers as if nothing were.
//
//oxpd:fault F28 symptom
func TestF28FastPathWedged(t *testing.T) {
	h := newRingHost(t, 64).program(64 + 1024 - 16)
	m := h.control()
	require.True(t, m.configure(lowRing))
	fromHost := func() uint64 {
		r := m.table(44, msg.CntRXKN, 1, msg.CntRXKN)
		require.True(t, r.written, "rpc answers")
		require.Len(t, r.payload, 8)
		return binary.LittleEndian.Uint64(r.payload)
	}
	got := h.out(tagF1)
	h.send(tagF1, ipFrame(h.c, tagF1, 60, 1, 0))
	h.settled()
	require.EqualValues(t, 1, fromHost())
	h.faults(func(f *Faults) { f.FastPathDead = true })
	for i := range 20 {
		h.send(tagF1, ipFrame(h.c, tagF1, 60, 1, uint32(i)))
	}
	h.settled()
	assert.EqualValues(t, 21, h.ld(0, rInPkt), "IN_PKT_CNT moves")
	assert.EqualValues(t, 1, fromHost(), "frozen")
	assert.Len(t, *got, 1)
}

// Under the fault, a read of a BAR while the card is held in reset does not come
// back, as on the other family; configuration space answers.
//
//oxpd:fault F29 symptom
func TestF29ReadDuringReset(t *testing.T) {
	c := powered(t)
	c.Faults(func(f *Faults) { f.ResetStalls = true })
	c.Kill()
	assert.EqualValues(t, 0xffff, c.ConfigRead(0, 2)&0xffff, "configuration space tells")
	done := make(chan uint64)
	started := make(chan struct{})
	go func() {
		close(started)
		done <- c.Load(0, 0x20190, 8)
	}()
	<-started
	select {
	case <-done:
		t.Fatal("the read completed")
	case <-time.After(50 * time.Millisecond): // as long as a test may take to see that nothing happens
	}
	c.Reboot()
	assert.Equal(t, ^uint64(0), <-done, "it ends with the reset, and brings nothing")
}

// An entry that the card took and never wrote: the buffer at the read index stays
// empty while the later ones fill, for ever.
//
//oxpd:fault F30 symptom
func TestF30EmptyBufferAtTheIndex(t *testing.T) {
	h := newRingHost(t, 1024).program(2032)
	h.faults(func(f *Faults) { f.SkipEntries[0] = 1 })
	sport := ringOf(h, 0)
	for i := range 10 {
		h.wire(tagF1).Send(ipFrame(h.c, tagF1, 60, sport, uint32(i)))
	}
	h.settled()
	h.advance(time.Minute)
	assert.EqualValues(t, 10, h.count(0))
	assert.Equal(t, uint64(0xa5a5a5a5a5a5a5a5), h.length(0, 0), "empty at the index")
	for i := range 10 {
		assert.EqualValues(t, 134, h.length(0, i+1), "full behind it")
	}
	assert.Empty(t, h.take(0, 10), "who waits there waits for ever")

	h.read[0]++ // stepped over, and its buffer given back
	h.st32(0, rOutDBell, 1)
	assert.Len(t, h.take(0, 10), 10)
	assert.Zero(t, h.count(0))
}
