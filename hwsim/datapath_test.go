package hwsim

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/rpc/msg"
)

// linkTime is more than a message takes from a store of the driver to its listener.
const linkTime = time.Microsecond

// offer delivers n packets of one frame size to ring 0 by DeliverRaw.
func (h *ringHost) offer(n, frameBytes int) (took int) {
	b := make([]byte, frameBytes)
	for i := 0; i < n; i++ {
		binary.BigEndian.PutUint32(b, uint32(i))
		if h.c.DeliverRaw(0, tagF1, b, uint64(74+frameBytes)) {
			took++
		}
	}
	return took
}

func (h *ringHost) seqAt(q, i int) uint32 {
	return binary.BigEndian.Uint32(h.bufs[q][i*hBufGap+hPrefix:])
}

// Nobody services the ring and more packets are offered than it holds: the
// measured table of endpoint.md 5.5, as far as a model must reproduce it.
func TestCreditTable(t *testing.T) {
	tests := map[string]struct {
		rsize         int
		grant         uint32
		choice        UnderWatermark
		written       int
		doorbell      int32
		overwritten   bool
		aboveTheGrant bool
	}{
		"2,032 fills the ring in order":              {rsize: 1024, grant: 2032, written: 1024, doorbell: 1008},
		"2,048 laps by one batch":                    {rsize: 1024, grant: 2048, written: 1040, doorbell: 1008, overwritten: true, aboveTheGrant: true},
		"4,096 laps":                                 {rsize: 1024, grant: 4096, written: 3088, doorbell: 1008, overwritten: true, aboveTheGrant: true},
		"16,384 laps":                                {rsize: 1024, grant: 16384, written: 15376, doorbell: 1008, overwritten: true, aboveTheGrant: true},
		"1,024 gives sixteen":                        {rsize: 1024, grant: 1024, written: 16, doorbell: 1008},
		"1,040 gives two batches":                    {rsize: 1024, grant: 1040, written: 32, doorbell: 1008},
		"1,008 starves after its batch":              {rsize: 1024, grant: 1008, written: 16, doorbell: 992},
		"256 on a ring of 256 starves":               {rsize: 256, grant: 256, written: 16, doorbell: 240},
		"256, one packet":                            {rsize: 256, grant: 256, choice: DeliverOne, written: 1, doorbell: 240},
		"256, nothing":                               {rsize: 256, grant: 256, choice: DeliverNone, written: 0, doorbell: 240},
		"2 is prefetched as a whole batch":           {rsize: 1024, grant: 2, written: 16, doorbell: -14},
		"1,008 on a ring of 512, nothing under none": {rsize: 512, grant: 1008, choice: DeliverNone, written: 0, doorbell: 992},
		"the grant of a ring of 4,096":               {rsize: 4096, grant: 4096 + 1024 - 16, written: 4096, doorbell: 1008},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			h := newRingHost(t, tc.rsize, func(o *Options) { o.Choices.UnderWatermark = tc.choice })
			h.program(tc.grant)
			const offered = 20000
			took := h.offer(offered, 60)
			assert.Equal(t, tc.written, took)
			assert.EqualValues(t, tc.written, h.count(0))
			assert.EqualValues(t, tc.written, h.ld(0, rOutPkt))
			assert.Equal(t, tc.doorbell, h.credit(0))
			assert.EqualValues(t, offered-tc.written, h.c.Counter(msg.CntTXDropQueueFull))
			assert.EqualValues(t, offered-tc.written, h.c.Counter(msg.CntTXDrop))
			fetched := int(tc.grant) - int(tc.doorbell)
			assert.LessOrEqual(t, fetched-tc.written, 16, "written within one batch of fetched")
			assert.EqualValues(t, uint64(fetched%tc.rsize*16), h.ld(0, rOutDBell)>>32, "fetch position")
			inOrder := true
			for i := 0; i < min(tc.written, tc.rsize); i++ {
				inOrder = inOrder && h.seqAt(0, i) == uint32(i)
			}
			assert.Equal(t, !tc.overwritten, inOrder)
			assert.Equal(t, tc.aboveTheGrant, h.c.ReportCount(ReportCreditAbove) > 0)
			h.settled()
		})
	}
}

func TestFirstGrantIsPrefetched(t *testing.T) {
	h := newRingHost(t, 1024)
	h.programOut(0)
	h.st32(0, rOutDBell, 2)
	assert.EqualValues(t, 0x100_fffffff2, h.ld(0, rOutDBell))
}

func TestCreditAtRest(t *testing.T) {
	h := newRingHost(t, 1024).program(2032)
	for i := 0; i < 3000; i++ {
		h.offer(1, 60)
		require.Len(t, h.take(0, 1), 1)
		c := h.credit(0)
		require.GreaterOrEqual(t, c, int32(2016))
		require.LessOrEqual(t, c, int32(2031))
	}
	h.clean()
}

func TestLazyFetch(t *testing.T) {
	h := newRingHost(t, 1024, func(o *Options) { o.Choices.LazyFetch = true }).program(2032)
	h.offer(16, 60)
	assert.EqualValues(t, 2016, h.credit(0), "the next batch only with the next packet")
	h.offer(1, 60)
	assert.EqualValues(t, 2000, h.credit(0))
}

func TestStockWatermark(t *testing.T) {
	h := newRingHost(t, 1024, func(o *Options) { o.Watermark = 0x100 }).program(2032)
	assert.Equal(t, 1024+768, h.offer(3000, 60), "a grant for 0x400 is 768 too much")
	h = newRingHost(t, 1024, func(o *Options) { o.Watermark = 2048 }).program(2032)
	assert.Equal(t, 16, h.offer(3000, 60), "a watermark above the grant: the first batch at most")
}

func TestWithheldAndStuckCredit(t *testing.T) {
	t.Run("held credit counts when it is let go", func(t *testing.T) {
		h := newRingHost(t, 1024).program(2032)
		require.Equal(t, 1024, h.offer(1100, 60))
		h.faults(func(f *Faults) { f.HoldCredit = 1 })
		h.take(0, 100)
		assert.EqualValues(t, 1008, h.credit(0))
		assert.Zero(t, h.offer(5, 60))
		h.faults(func(f *Faults) { f.HoldCredit = 0 })
		assert.EqualValues(t, 1008+100-16, h.credit(0), "and one batch is held")
	})
	t.Run("a stuck ring wants one more write", func(t *testing.T) {
		h := newRingHost(t, 1024).program(2032)
		h.faults(func(f *Faults) { f.StuckResume = 1 })
		require.Equal(t, 1024, h.offer(1100, 60))
		require.Len(t, h.take(0, 64), 64)
		assert.Zero(t, h.offer(5, 60))
		h.st32(0, rOutDBell, 0)
		assert.Equal(t, 5, h.offer(5, 60))
	})
	t.Run("a write of 0 changes nothing on a healthy ring", func(t *testing.T) {
		h := newRingHost(t, 1024).program(2032)
		before := h.ld(0, rOutDBell)
		h.st32(0, rOutDBell, 0)
		assert.Equal(t, before, h.ld(0, rOutDBell))
	})
}

//oxpd:fault D8 symptom
func TestSpans(t *testing.T) {
	// datapath.md 3.6.
	tests := map[string]struct {
		frame, l, n int
		last        int // bytes in the last buffer
	}{
		"60":    {60, 134, 1, 142},
		"1,514": {1514, 1588, 1, 1596},
		"1,520": {1520, 1594, 1, 1602},
		"1,521": {1521, 1595, 2, 1},
		"1,522": {1522, 1596, 2, 2},
		"3,122": {3122, 3196, 2, 1602},
		"3,123": {3123, 3197, 3, 1},
		"9,014": {9014, 9088, 6, 1086},
		"9,018": {9018, 9092, 6, 1090},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			for _, start := range []int{0, 1, 1019, 1023} {
				h := newRingHost(t, 1024).program(2032)
				for i := 0; i < start; i++ {
					h.offer(1, 60)
					h.take(0, 1)
				}
				for i := range h.bufs[0] {
					h.bufs[0][i] = 0xa5
				}
				b := make([]byte, tc.frame)
				for i := range b {
					b[i] = byte(i * 7)
				}
				require.True(t, h.c.DeliverRaw(0, tagF1, b, uint64(tc.l)))
				assert.EqualValues(t, 1, h.count(0), "counted once")
				at := (start + tc.n - 1) % 1024 * hBufGap
				assert.Equal(t, b[len(b)-1], h.bufs[0][at+tc.last-1], "last byte written")
				assert.Equal(t, bytes.Repeat([]byte{0xa5}, hBufGap-tc.last), h.bufs[0][at+tc.last:at+hBufGap], "nothing behind it")
				next := (start + tc.n) % 1024 * hBufGap
				assert.Equal(t, bytes.Repeat([]byte{0xa5}, hBufGap), h.bufs[0][next:next+hBufGap], "nothing in the next buffer")
				got := h.take(0, 1)
				require.Len(t, got, 1)
				assert.Equal(t, tc.n, got[0].bufs)
				assert.EqualValues(t, tc.l, got[0].length)
				assert.Equal(t, b, got[0].frame)
				assert.EqualValues(t, tc.l+start*134, h.ld(0, rOutByte))
				h.offer(1, 60)
				assert.Len(t, h.take(0, 1), 1, "the next packet begins in the next buffer")
			}
		})
	}
}

func TestGoldenPrefix(t *testing.T) {
	raw, err := os.ReadFile("testdata/prefix.hex")
	require.NoError(t, err)
	want := map[string][]byte{}
	for _, line := range strings.Split(string(raw), "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		name, digits, _ := strings.Cut(line, ":")
		want[name], err = hex.DecodeString(strings.ReplaceAll(digits, " ", ""))
		require.NoError(t, err)
	}
	for name, tc := range map[string]struct {
		tag   uint16
		frame int
	}{"port1-60": {tag1, 60}, "f1-1514": {tagF1, 1514}, "f2-9014": {tagF2, 9014}} {
		t.Run(name, func(t *testing.T) {
			h := newRingHost(t, 1024).program(2032)
			setMTU(t, h.c, tc.tag, 9000)
			f := ipFrame(h.c, tc.tag, tc.frame, ringOf(h, 3), 1)
			if tc.frame > 2000 {
				h.c.SetSwitchFrame(SwitchFrameJumbo)
			}
			h.wire(tc.tag).Send(f)
			h.settled()
			assert.Equal(t, want[name], h.bufs[3][:hPrefix])
			got := h.take(3, 1)
			require.Len(t, got, 1)
			assert.Equal(t, tc.tag, got[0].tag)
			assert.Equal(t, f, got[0].frame)
			h.clean()
		})
	}
}

func TestWireToHost(t *testing.T) {
	h := newRingHost(t, 1024).program(2032)
	sent := map[uint16]int{}
	for i := 0; i < 4000; i++ {
		tag := []uint16{tagF1, tagF2, tag1, tag2, 0x8a00}[i%5]
		h.wire(tag).Send(ipFrame(h.c, tag, 60+i%1400, uint16(i), uint32(i)))
		sent[tag]++
		if i%100 == 99 {
			h.advance(2 * time.Millisecond)
			for q := range h.lists {
				for _, p := range h.take(q, 1000) {
					sent[p.tag]--
				}
			}
		}
	}
	h.settled()
	for q := range h.lists {
		for _, p := range h.take(q, 1000) {
			sent[p.tag]--
		}
		assert.Zero(t, h.count(q))
	}
	for tag, n := range sent {
		assert.Zero(t, n, "%#x", tag)
	}
	for _, i := range []int{msg.CntRXWire, msg.CntToKNForced, msg.CntTXKN} {
		assert.EqualValues(t, 4000, h.c.Counter(i), msg.CounterNames[i])
	}
	assert.EqualValues(t, 800, h.c.PortCounter(msg.CounterPortRX, 1))
	assert.EqualValues(t, 2400, h.c.PortCounter(msg.CounterPortRX, 0))
	h.clean()
}

func TestWireRefusals(t *testing.T) {
	type verdict struct {
		stat    func(s WireStats) uint64
		counter int
	}
	stat := func(f func(s WireStats) uint64) verdict { return verdict{f, -1} }
	cnt := func(i int) verdict { return verdict{func(s WireStats) uint64 { return s.Passed }, i} }
	set := func(h *ringHost, a msg.Attr, v uint32) {
		h.c.lock()
		h.c.target.attrSet(h.c.target.agentPort(tag1), a, [2]uint32{v})
		h.c.leave()
	}
	l2 := func(h *ringHost) {
		l, _ := h.c.LIF(0)
		l.Fwd = msg.FwdL2
		h.c.SetLIF(0, &l)
	}
	tests := map[string]struct {
		tag    uint16
		n      int
		before func(h *ringHost, f []byte)
		want   verdict
	}{
		"port lowered": {tag: tag1, n: 60, before: func(h *ringHost, f []byte) { set(h, msg.AttrState, 0) }, want: stat(func(s WireStats) uint64 { return s.LinkDown })},
		"foreign address, L2 alone": {tag: tag1, n: 60, before: func(h *ringHost, f []byte) {
			f[5] ^= 1
			l2(h)
		}, want: stat(func(s WireStats) uint64 { return s.Filtered })},
		"foreign address, promiscuous alone": {tag: tag1, n: 60, before: func(h *ringHost, f []byte) {
			f[5] ^= 1
			set(h, msg.AttrPromisc, 1)
		}, want: cnt(msg.CntDropLIFNotMyMAC)},
		"foreign address, promiscuous and L2": {tag: tag1, n: 60, before: func(h *ringHost, f []byte) {
			f[5] ^= 1
			set(h, msg.AttrPromisc, 1)
			l2(h)
		}, want: cnt(msg.CntToKNForced)},
		"13 bytes":              {tag: tagF1, n: 13, want: stat(func(s WireStats) uint64 { return s.Runt })},
		"longer than the MAC":   {tag: tagF1, n: macFrame + 1, want: stat(func(s WireStats) uint64 { return s.Oversize })},
		"as long as the MAC":    {tag: tagF1, n: macFrame, want: cnt(msg.CntDropMTUExceeded)},
		"one over the MTU":      {tag: tagF1, n: 1515, want: cnt(msg.CntDropMTUExceeded)},
		"the MTU":               {tag: tagF1, n: 1514, want: cnt(msg.CntToKNForced)},
		"one over the switch":   {tag: tag1, n: 2045, want: stat(func(s WireStats) uint64 { return s.SwitchDropped })},
		"the switch's cap":      {tag: tag1, n: 2044, want: cnt(msg.CntDropMTUExceeded)},
		"foreign address":       {tag: tag1, n: 60, before: func(h *ringHost, f []byte) { f[5] ^= 1 }, want: stat(func(s WireStats) uint64 { return s.Filtered })},
		"far side down":         {tag: tag1, n: 60, before: func(h *ringHost, f []byte) { h.wire(tag1).SetLink(false) }, want: stat(func(s WireStats) uint64 { return s.LinkDown })},
		"LIF missing":           {tag: tag1, n: 60, before: func(h *ringHost, f []byte) { h.c.SetLIF(0, nil) }, want: cnt(msg.CntDropLIFLookupNull)},
		"card killed":           {tag: tag1, n: 60, before: func(h *ringHost, f []byte) { h.c.Kill() }, want: stat(func(s WireStats) uint64 { return s.LinkDown })},
		"fast path silent":      {tag: tag1, n: 60, before: func(h *ringHost, f []byte) { h.faults(func(f *Faults) { f.FastPathDead = true }) }, want: stat(func(s WireStats) uint64 { return s.NoFastPath })},
		"MTU_EXCEEDED at 9,000": {tag: tagF1, n: 9015, before: func(h *ringHost, f []byte) { setMTU(h.t, h.c, tagF1, 9000) }, want: cnt(msg.CntDropMTUExceeded)},
		"9,014 passes at 9,000": {tag: tagF1, n: 9014, before: func(h *ringHost, f []byte) { setMTU(h.t, h.c, tagF1, 9000) }, want: cnt(msg.CntToKNForced)},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			h := newRingHost(t, 1024).program(2032)
			f := ipFrame(h.c, tc.tag, tc.n, 7, 1)
			if tc.before != nil {
				tc.before(h, f)
			}
			for i := 0; i < 3; i++ {
				h.wire(tc.tag).Send(f)
			}
			h.settled()
			s := h.wire(tc.tag).Stats()
			assert.EqualValues(t, 3, s.In)
			assert.EqualValues(t, 3, tc.want.stat(s), "%+v", s)
			if tc.want.counter >= 0 {
				assert.EqualValues(t, 3, h.c.Counter(tc.want.counter))
			}
		})
	}
}

func TestForeignAddressChoice(t *testing.T) {
	h := newRingHost(t, 1024, func(o *Options) { o.Choices.ForeignMACToLIF = true }).program(2032)
	f := ipFrame(h.c, tag1, 60, 7, 1)
	f[5] ^= 1
	h.wire(tag1).Send(f)
	h.settled()
	assert.EqualValues(t, 1, h.c.Counter(msg.CntDropLIFNotMyMAC))
}

func TestHostToWire(t *testing.T) {
	h := newRingHost(t, 1024).program(2032)
	h.c.SetSwitchFrame(SwitchFrameJumbo)
	var got [][]byte
	for _, tag := range []uint16{tagF1, tagF2, tag1} {
		h.wire(tag).SetReceiver(func(b []byte) { got = append(got, append([]byte(nil), b...)) })
	}
	var sent, tlen int
	for i := 0; i < 1000; i++ {
		tag := []uint16{tagF1, tagF2, tag1}[i%3]
		f := ipFrame(h.c, tag, 60+i*9%8955, 1, uint32(i))
		h.send(tag, f)
		sent++
		tlen += len(f) + 94
		h.advance(100 * time.Microsecond)
		require.LessOrEqual(t, len(got), sent)
	}
	h.settled()
	require.Len(t, got, sent)
	last := map[string]int64{}
	for _, f := range got {
		port, seq := string(f[:6]), int64(seqOf(f))
		require.Greater(t, seq+1, last[port], "order on one wire")
		last[port] = seq + 1
		require.Equal(t, ipFrame(h.c, []uint16{tagF1, tagF2, tag1}[seq%3], len(f), 1, uint32(seq)), f)
	}
	for _, i := range []int{msg.CntRXKN, msg.CntFromKNToWire, msg.CntTXWire} {
		assert.EqualValues(t, sent, h.c.Counter(i), msg.CounterNames[i])
	}
	assert.EqualValues(t, sent, uint32(h.ld(0, rInCnts)))
	assert.EqualValues(t, sent, h.ld(0, rInPkt))
	assert.EqualValues(t, tlen, h.ld(0, rInByte), "IN_BYTE_CNT is the sum of tlen")
	assert.EqualValues(t, uint64(sent%256)*64<<32, h.ld(0, rInDBell))
	h.clean()
}

func TestInPosition(t *testing.T) {
	h := newRingHost(t, 16).program(2032)
	for i := 0; i < 38; i++ {
		h.send(tagF1, make([]byte, 60))
	}
	h.settled()
	assert.EqualValues(t, 0x0000098000000000, h.ld(0, rInDBell), "after 38 instructions (endpoint.md 5.1)")
	h.st(0, rInEnable, 0)
	h.st32(0, rInDBell, 7)
	h.st32(0, rInDBell, 0xffffffff)
	assert.EqualValues(t, 0x0000098000000000, h.ld(0, rInDBell), "the drain leaves the position")
}

func TestInCnts(t *testing.T) {
	for name, tc := range map[string]struct {
		wraps bool
		write uint32
		want  uint32
	}{
		"subtracts":             {write: 3, want: 2},
		"stops at 0":            {write: 6, want: 0},
		"wraps where so chosen": {wraps: true, write: 6, want: 0xffffffff},
	} {
		t.Run(name, func(t *testing.T) {
			h := newRingHost(t, 16, func(o *Options) { o.Choices.InCntsWraps = tc.wraps }).program(1024)
			h.send(tagF1, make([]byte, 60), make([]byte, 60), make([]byte, 60), make([]byte, 60), make([]byte, 60))
			h.settled()
			h.st32(0, rInCnts, tc.write)
			assert.Equal(t, tc.want, uint32(h.ld(0, rInCnts)))
		})
	}
}

// The data of an instruction is read later than the instruction: a slot that is
// used again in between goes out as it is then (F21), and IN_CNTS would have
// told.
func TestDataIsReadLater(t *testing.T) {
	h := newRingHost(t, 16).program(1024)
	var got []byte
	h.wire(tagF1).SetReceiver(func(b []byte) { got = append(got, b...) })
	h.faults(func(f *Faults) { f.ReadDelay = time.Millisecond })
	h.send(tagF1, ipFrame(h.c, tagF1, 60, 1, 1))
	h.advance(500 * time.Microsecond)
	assert.Zero(t, uint32(h.ld(0, rInDBell)), "fetched")
	assert.Zero(t, uint32(h.ld(0, rInCnts)), "not finished")
	copy(h.slots[hPriv:], ipFrame(h.c, tagF1, 60, 1, 2))
	h.advance(time.Millisecond)
	assert.EqualValues(t, 1, uint32(h.ld(0, rInCnts)))
	require.NotEmpty(t, got)
	assert.EqualValues(t, 2, seqOf(got), "what was there when it was read")
}

func TestInputRingMisuse(t *testing.T) {
	t.Run("overrun", func(t *testing.T) {
		h := newRingHost(t, 16).program(1024)
		h.faults(func(f *Faults) { f.StopFetch = true })
		h.st32(0, rInDBell, 255)
		h.clean()
		h.st32(0, rInDBell, 1)
		assert.EqualValues(t, 1, h.c.ReportCount(ReportINOverrun))
	})
	t.Run("slot used before it was finished", func(t *testing.T) {
		h := newRingHost(t, 16).program(1024)
		h.faults(func(f *Faults) { f.ReadDelay = time.Millisecond })
		h.st32(0, rInDBell, 250)
		h.advance(100 * time.Microsecond)
		require.EqualValues(t, 250-64, uint32(h.ld(0, rInDBell)), "no more in flight than the block holds")
		h.clean()
		h.st32(0, rInDBell, 7)
		assert.EqualValues(t, 1, h.c.ReportCount(ReportINSlotReuse))
	})
	t.Run("slow fetch fills the doorbell", func(t *testing.T) {
		h := newRingHost(t, 16).program(1024)
		h.faults(func(f *Faults) { f.FetchDelay = time.Second })
		h.st32(0, rInDBell, 255)
		h.advance(time.Millisecond)
		assert.EqualValues(t, 255, uint32(h.ld(0, rInDBell)))
	})
	t.Run("disabled ring fetches nothing", func(t *testing.T) {
		h := newRingHost(t, 16).program(1024)
		h.st(0, rInEnable, 0)
		h.send(tagF1, make([]byte, 60))
		h.advance(time.Second)
		assert.EqualValues(t, 1, uint32(h.ld(0, rInDBell)))
		h.st(0, rInEnable, 1)
		h.settled()
		assert.Zero(t, uint32(h.ld(0, rInDBell)))
	})
}

func TestHostToWireRefusals(t *testing.T) {
	change := func(f func(in, slot []byte)) func(in, slot []byte) { return f }
	tests := map[string]struct {
		tag      uint16
		n        int
		edit     func(in, slot []byte)
		options  func(o *Options)
		counters []int
		report   string
		wire     bool
	}{
		"clear frame":         {tag: tagF1, n: 60, counters: []int{msg.CntRXKN, msg.CntFromKNToWire, msg.CntTXWire}, wire: true},
		"metadata not marked": {tag: tagF1, n: 60, edit: change(func(_, s []byte) { s[2] = 0 }), counters: []int{msg.CntRXKN, msg.CntFromKNToWire, msg.CntTXWire}, wire: true},
		"tag 0":               {tag: 0, n: 60, counters: []int{msg.CntRXKN, msg.CntFromKNToWire, msg.CntTXWireErr, msg.CntTXDrop}, report: ReportUnknownTag},
		"tag 253":             {tag: 253, n: 60, report: ReportUnknownTag},
		"tag 255":             {tag: 255, n: 60, report: ReportUnknownTag},
		"tag 255, counted":    {tag: 255, n: 60, options: func(o *Options) { o.Choices.CountVanished = true }, counters: []int{msg.CntRXKN}, report: ReportUnknownTag},
		"tag of no port":      {tag: 0x8b00, n: 60, counters: []int{msg.CntRXKN, msg.CntFromKNToWire, msg.CntTXWireErr, msg.CntTXDrop}, report: ReportUnknownTag},
		"control message": {tag: 254, n: 86, edit: change(func(_, s []byte) { copy(s[66+12:], []byte{0xef, 0xef, 0, 0, 7, 1}) }),
			counters: []int{msg.CntRXKN, msg.CntFromKNProcCmsg}},
		"control message of another version": {tag: 254, n: 86, edit: change(func(_, s []byte) { copy(s[66+12:], []byte{0xef, 0xef, 0, 0, 7, 2}) }),
			counters: []int{msg.CntRXKN, msg.CntFromKNDropCmsg}},
		"encryption asked for": {tag: tagF1, n: 60, edit: change(func(_, s []byte) { s[3] = 0xc1 }),
			counters: []int{msg.CntRXKN, msg.CntFromKNToIPsecEncr, msg.CntCryptoDropSAUnavailable, msg.CntTXDrop}, report: ReportMetadata},
		"command opcode": {tag: tagF1, n: 60, edit: change(func(in, _ []byte) { in[33] = 0x21 }),
			counters: []int{msg.CntRXKN, msg.CntFromKNToWire, msg.CntTXWireErr, msg.CntTXDrop}, report: ReportInstruction},
		"another pkind":        {tag: tagF1, n: 60, edit: change(func(in, _ []byte) { in[12] += 0x10 }), counters: []int{msg.CntRXKN, msg.CntFromKNDropPrepErr}, report: ReportInstruction},
		"tlen without a frame": {tag: tagF1, n: 13, counters: []int{msg.CntRXKN, msg.CntFromKNDropPrepErr}, report: ReportInstruction},
		"tlen 27":              {tag: tagF1, n: 60, edit: change(func(in, _ []byte) { in[8], in[9] = 27, 0 }), counters: []int{msg.CntRXKN, msg.CntFromKNDropPrepErr}, report: ReportInstruction},
		"gather bit, no size":  {tag: tagF1, n: 60, edit: change(func(in, _ []byte) { in[15] |= 0x40 }), report: ReportGatherBit},
		"gather size, no bit":  {tag: tagF1, n: 60, edit: change(func(in, _ []byte) { in[14] |= 3 }), counters: []int{msg.CntRXKN, msg.CntFromKNToWire, msg.CntTXWire}, report: ReportGatherSize, wire: true},
		"dptr nowhere":         {tag: tagF1, n: 60, edit: change(func(in, _ []byte) { in[5] = 0x7f }), report: ReportDMAOutside},
		"rlenssz 0 with IP":    {tag: tagF1, n: 60, edit: change(func(in, s []byte) { clear(in[36:38]); s[66+12] = 8; s[66+13] = 0 }), counters: []int{msg.CntRXKN, msg.CntFromKNToWire, msg.CntTXWire}, wire: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			h := newRingHost(t, 16, func(o *Options) {
				if tc.options != nil {
					tc.options(o)
				}
			}).program(1024)
			left := 0
			h.wire(tagF1).SetReceiver(func([]byte) { left++ })
			i := h.fill(tc.tag, make([]byte, tc.n))
			if tc.edit != nil {
				tc.edit(h.instr[i*hInstr:], h.slots[i*hStride:])
			}
			h.st32(0, rInDBell, 1)
			h.settled()
			assert.EqualValues(t, 1, uint32(h.ld(0, rInCnts)), "finished all the same")
			want := map[int]uint64{}
			for _, i := range tc.counters {
				want[i]++
			}
			got := map[int]uint64{}
			for i := range msg.CountersSys {
				if n := h.c.Counter(i); n != 0 {
					got[i] = n
				}
			}
			assert.Equal(t, want, got)
			assert.Equal(t, tc.wire, left == 1)
			if tc.report == "" {
				h.clean()
			} else {
				assert.NotZero(t, h.c.ReportCount(tc.report), "%v", h.c.Reports())
			}
		})
	}
}

func TestFastPathDiesOfRlensszZero(t *testing.T) {
	h := newRingHost(t, 16).program(1024)
	arp := make([]byte, 60)
	copy(arp[12:], []byte{8, 6})
	i := h.fill(tagF1, arp)
	clear(h.instr[i*hInstr+36 : i*hInstr+38])
	h.st32(0, rInDBell, 1)
	h.settled()
	assert.EqualValues(t, 1, h.c.ReportCount(ReportRlenssZ))
	rx := h.c.Counter(msg.CntRXKN)
	h.send(tagF1, make([]byte, 60))
	h.settled()
	assert.EqualValues(t, 2, h.ld(0, rInPkt), "instructions are still fetched")
	assert.Equal(t, rx, h.c.Counter(msg.CntRXKN), "nobody takes them")
	h.wire(tagF1).Send(ipFrame(h.c, tagF1, 60, 1, 1))
	h.settled()
	assert.EqualValues(t, 1, h.wire(tagF1).Stats().NoFastPath)
}

func TestGather(t *testing.T) {
	h := newRingHost(t, 16).program(1024)
	var got []byte
	h.wire(tagF1).SetReceiver(func(b []byte) { got = append([]byte(nil), b...) })
	f := ipFrame(h.c, tagF1, 9014, 1, 5)
	i := h.fill(tagF1, f)
	all := append([]byte(nil), h.slots[:hPriv+len(f)]...)
	clear(h.slots)
	list := h.slots[100*hStride:]
	sizes := []int{2000, 2000, 2000, 2000, 1080}
	for k, off := 0, 0; k < len(sizes); k++ {
		group := list[k/4*40:]
		binary.LittleEndian.PutUint16(group[2*(3-k%4):], uint16(sizes[k]))
		binary.LittleEndian.PutUint64(group[8+8*(k%4):], busSlots+uint64(k*hStride+64))
		copy(h.slots[k*hStride+64:], all[off:off+sizes[k]])
		off += sizes[k]
	}
	in := h.instr[i*hInstr:]
	binary.LittleEndian.PutUint64(in, busSlots+100*hStride)
	in[14], in[15] = 5, 0x40
	h.st32(0, rInDBell, 1)
	h.settled()
	h.clean()
	assert.Equal(t, f, got)
}

func TestDMAViolations(t *testing.T) {
	t.Run("bus mastering off", func(t *testing.T) {
		h := newRingHost(t, 16).program(1024)
		h.c.ConfigWrite(4, 2, 2)
		h.send(tagF1, make([]byte, 60))
		h.advance(time.Millisecond)
		assert.NotZero(t, h.c.ReportCount(ReportBusMasterOff))
		r := h.c.Reports()[0]
		assert.Contains(t, r.Text, "0x180000000")
		assert.NotZero(t, r.Cycle)
	})
	t.Run("a freed region", func(t *testing.T) {
		h := newRingHost(t, 16).program(1024)
		require.NoError(t, h.c.UnmapDMA(h.buf(0, 0), len(h.bufs[0])))
		h.offer(1, 60)
		assert.NotZero(t, h.c.ReportCount(ReportDMAOutside))
		assert.EqualValues(t, 1, h.count(0), "the block does not notice")
		assert.EqualValues(t, 0xa5, h.bufs[0][0])
	})
	t.Run("a buffer that runs over a region's end", func(t *testing.T) {
		h := newRingHost(t, 16)
		binary.LittleEndian.PutUint64(h.lists[0], h.buf(0, 16)-100)
		h.program(1024)
		h.offer(1, 60)
		assert.NotZero(t, h.c.ReportCount(ReportDMAOutside))
	})
	t.Run("maps that overlap or are empty are refused", func(t *testing.T) {
		c := New(Options{Timeline: Compressed()})
		defer c.Close()
		require.NoError(t, c.MapDMA(0x10000, make([]byte, 0x1000)))
		require.NoError(t, c.MapDMA(0x11000, make([]byte, 0x1000)))
		for _, bus := range []uint64{0x10000, 0xf800, 0x10800, 0x11fff} {
			assert.ErrorIs(t, c.MapDMA(bus, make([]byte, 0x1000)), ErrDMARegion, "%#x", bus)
		}
		assert.ErrorIs(t, c.MapDMA(0x20000, nil), ErrDMARegion)
		assert.ErrorIs(t, c.MapDMA(^uint64(0)-10, make([]byte, 100)), ErrDMARegion)
		assert.ErrorIs(t, c.UnmapDMA(0x10000, 100), ErrDMARegion)
		require.NoError(t, c.UnmapDMA(0x10000, 0x1000))
		require.NoError(t, c.MapDMA(0xf800, make([]byte, 0x1000)))
	})
}

// F6: a ring that is armed anew after the host port was opened goes on where the
// old addresses point.
func TestRingsAreLatched(t *testing.T) {
	h := newRingHost(t, 16).program(1024)
	other := hostMemory(t, h.c, 0x7_0000_0000, 1<<16)
	bufs := hostMemory(t, h.c, 0x7_1000_0000, 1<<16)
	for i := 0; i < 16; i++ {
		binary.LittleEndian.PutUint64(other[16*i:], 0x7_1000_0000+uint64(i*hBufGap))
	}
	h.st(0, rOutEnable, 0)
	h.st(0, rOutBaddr, 0x7_0000_0000)
	h.st32(0, rOutDBell, 0xffffffff)
	h.st(0, rOutEnable, 1)
	h.st32(0, rOutDBell, 1024)
	assert.EqualValues(t, 1, h.c.ReportCount(ReportBaddrLatched))
	require.Equal(t, 1, h.offer(1, 60))
	assert.Equal(t, make([]byte, 100), bufs[:100], "nothing in the new memory")
	assert.EqualValues(t, 134, h.length(0, 0))
	assert.EqualValues(t, busList, h.c.RingState(0).Base)
	assert.EqualValues(t, 0x7_0000_0000, h.c.RingState(0).Programmed)
}

func TestByteOrderBits(t *testing.T) {
	t.Run("pointer swap off", func(t *testing.T) {
		h := newRingHost(t, 16)
		h.programOut(0)
		h.st(0, rOutControl, hBuf)
		h.st32(0, rOutDBell, 1024)
		h.offer(1, 60)
		assert.NotZero(t, h.c.ReportCount(ReportDMAOutside), "pointers are read the wrong way round")
	})
	t.Run("instruction swap off", func(t *testing.T) {
		h := newRingHost(t, 16).program(1024)
		h.st(0, rInControl, 3<<25|1<<24)
		left := 0
		h.wire(tagF1).SetReceiver(func([]byte) { left++ })
		h.send(tagF1, make([]byte, 60))
		h.advance(time.Millisecond)
		assert.Zero(t, left)
		assert.NotEmpty(t, h.c.Reports(), "words are read the wrong way round")
	})
	t.Run("64-byte instructions off", func(t *testing.T) {
		h := newRingHost(t, 16).program(1024)
		h.st(0, rInControl, 3<<25|1<<1)
		h.send(tagF1, make([]byte, 60), make([]byte, 60))
		h.advance(time.Millisecond)
		assert.NotEmpty(t, h.c.Reports())
	})
}

func TestInterrupts(t *testing.T) {
	listen := func(h *ringHost, q int) *int {
		n := new(int)
		h.c.OnIRQ(16+q, func() { *n++ })
		return n
	}
	t.Run("once, at the crossing", func(t *testing.T) {
		h := newRingHost(t, 1024).program(2032)
		n := listen(h, 0)
		h.st(0, rOutLevels, 4)
		h.offer(3, 60)
		assert.Zero(t, *n)
		h.offer(1, 60)
		assert.Equal(t, 1, *n)
		assert.EqualValues(t, 0x10, h.ld(0, rOutStatus))
		h.offer(20, 60)
		assert.Equal(t, 1, *n, "not again while above")
		h.st32(0, rOutCnts, 21)
		h.offer(1, 60)
		assert.Equal(t, 2, *n, "again at the next crossing")
		h.st(0, rOutStatus, 0x10)
		assert.Zero(t, h.ld(0, rOutStatus))
	})
	t.Run("timer below the level", func(t *testing.T) {
		h := newRingHost(t, 1024).program(2032)
		n := listen(h, 0)
		h.st(0, rOutLevels, 39<<32|32)
		h.offer(1, 60)
		h.advance(49 * time.Microsecond)
		assert.Zero(t, *n)
		h.advance(time.Microsecond + linkTime)
		assert.Equal(t, 1, *n)
		h.advance(time.Second)
		assert.Equal(t, 1, *n, "once")
	})
	t.Run("RESEND", func(t *testing.T) {
		h := newRingHost(t, 1024).program(2032)
		n := listen(h, 0)
		h.st(0, rOutLevels, 4)
		h.offer(6, 60)
		h.st(0, rOutCnts, 1<<59|1)
		h.advance(linkTime)
		assert.Equal(t, 2, *n, "above the level")
		h.st(0, rOutCnts, 1<<59|4)
		h.advance(linkTime)
		assert.Equal(t, 3, *n, "one waits")
		h.st(0, rOutCnts, 1<<59|1)
		h.advance(linkTime)
		assert.Equal(t, 3, *n, "none waits")
	})
	t.Run("RESEND at the level only, where so chosen", func(t *testing.T) {
		h := newRingHost(t, 1024, func(o *Options) { o.Choices.ResendAtLevel = true }).program(2032)
		n := listen(h, 0)
		h.st(0, rOutLevels, 4)
		h.offer(4, 60)
		h.st(0, rOutCnts, 1<<59|1)
		h.advance(linkTime)
		assert.Equal(t, 1, *n)
	})
	t.Run("time part 0", func(t *testing.T) {
		for fires, want := range map[bool]int{false: 0, true: 1} {
			h := newRingHost(t, 1024, func(o *Options) { o.Choices.TimerZeroFires = fires }).program(2032)
			n := listen(h, 0)
			h.st(0, rOutLevels, 4)
			h.offer(1, 60)
			h.advance(time.Second)
			assert.Equal(t, want, *n)
		}
	})
	t.Run("masked vector waits in the pending bits", func(t *testing.T) {
		h := newRingHost(t, 1024).program(2032)
		n := listen(h, 3)
		h.c.Store(0, 19*16+12, 4, 1)
		h.c.DeliverRaw(3, tagF1, make([]byte, 60), 134)
		assert.Zero(t, *n)
		assert.EqualValues(t, 1<<19, h.c.Load(0, 0x4000, 8))
		h.c.Store(0, 19*16+12, 4, 0)
		h.advance(linkTime)
		assert.Equal(t, 1, *n)
		assert.Zero(t, h.c.Load(0, 0x4000, 8))
	})
	t.Run("lost message", func(t *testing.T) {
		h := newRingHost(t, 1024).program(2032)
		n := listen(h, 0)
		h.faults(func(f *Faults) { f.LoseMessages = 1 })
		h.offer(1, 60)
		assert.Zero(t, *n)
		assert.EqualValues(t, 0x10, h.ld(0, rOutStatus))
	})
	t.Run("latched status", func(t *testing.T) {
		for stops, want := range map[bool]int{false: 5, true: 0} {
			h := newRingHost(t, 1024, func(o *Options) { o.Choices.StatusStops = stops }).program(2032)
			require.Equal(t, 1, h.offer(1, 60))
			assert.Equal(t, want, h.offer(5, 60))
			h.st(0, rOutStatus, 0x10)
			assert.Equal(t, 1, h.offer(1, 60))
		}
	})
}

func TestDeliveryFaults(t *testing.T) {
	empty := func(h *ringHost, i int) bool { return h.length(0, i) == 0xa5a5a5a5a5a5a5a5 }
	late := func(set func(f *Faults)) *ringHost {
		h := newRingHost(t, 1024).program(2032)
		h.faults(func(f *Faults) { set(f); f.LateBy = 50 * time.Microsecond })
		return h
	}
	t.Run("counted before it is visible", func(t *testing.T) {
		h := late(func(f *Faults) { f.LateData = 1 })
		h.offer(1, 9014)
		assert.EqualValues(t, 1, h.count(0))
		assert.True(t, empty(h, 0))
		h.advance(50 * time.Microsecond)
		assert.EqualValues(t, 9088, h.length(0, 0))
		assert.EqualValues(t, 1, h.count(0))
	})
	t.Run("count after the packet", func(t *testing.T) {
		h := late(func(f *Faults) { f.LateCount = 1 })
		h.offer(1, 60)
		assert.EqualValues(t, 134, h.length(0, 0))
		assert.Zero(t, h.count(0))
		h.advance(50 * time.Microsecond)
		assert.EqualValues(t, 1, h.count(0))
	})
	t.Run("length word later", func(t *testing.T) {
		h := late(func(f *Faults) { f.LateLength = 1 })
		h.offer(1, 60)
		assert.True(t, empty(h, 0))
		assert.EqualValues(t, 1, h.bufs[0][17], "the rest is there")
		h.advance(50 * time.Microsecond)
		assert.EqualValues(t, 134, h.length(0, 0))
	})
	t.Run("tail of a span later", func(t *testing.T) {
		h := late(func(f *Faults) { f.LateTail = 1 })
		h.offer(1, 1522)
		assert.EqualValues(t, 1596, h.length(0, 0))
		assert.True(t, empty(h, 1))
		assert.Zero(t, h.count(0))
		h.advance(50 * time.Microsecond)
		assert.False(t, empty(h, 1))
		assert.EqualValues(t, 1, h.count(0))
	})
	t.Run("choice 23", func(t *testing.T) {
		h := newRingHost(t, 1024, func(o *Options) { o.Choices.LengthFirst = true }).program(2032)
		h.offer(1, 1522)
		assert.EqualValues(t, 1596, h.length(0, 0))
		assert.Zero(t, h.count(0))
		h.advance(time.Microsecond)
		assert.EqualValues(t, 1, h.count(0))
	})
	t.Run("entries skipped", func(t *testing.T) {
		h := late(func(f *Faults) { f.SkipEntries[0] = 2 })
		h.offer(2, 60)
		assert.True(t, empty(h, 0) && empty(h, 1))
		assert.EqualValues(t, 134, h.length(0, 2))
		assert.EqualValues(t, 134, h.length(0, 3))
		assert.EqualValues(t, 2, h.count(0))
	})
	t.Run("counts lost", func(t *testing.T) {
		h := late(func(f *Faults) { f.LoseCounts[0] = 2 })
		h.offer(3, 60)
		assert.EqualValues(t, 1, h.count(0))
		assert.EqualValues(t, 3, h.ld(0, rOutPkt))
	})
	t.Run("impossible length words", func(t *testing.T) {
		h := newRingHost(t, 1024).program(2032)
		for i, l := range []uint64{0, 74, 65536, 1024*1602 - 8, 1 << 63} {
			require.True(t, h.c.DeliverRaw(0, tagF1, make([]byte, 60), l))
			assert.Equal(t, l, h.length(0, i))
		}
	})
	t.Run("a disabled ring refuses", func(t *testing.T) {
		h := newRingHost(t, 1024).program(2032)
		h.st(0, rOutEnable, 0)
		assert.Zero(t, h.offer(3, 60))
		h.faults(func(f *Faults) { f.IgnoreDisable = 1 })
		assert.Equal(t, 3, h.offer(3, 60), "or writes on, by fault")
	})
	t.Run("a disabled ring writes on, choice 27", func(t *testing.T) {
		h := newRingHost(t, 1024, func(o *Options) { o.Choices.DisabledWrites = true })
		h.programOut(0)
		h.st32(0, rOutDBell, 2032)
		h.st(0, rOutEnable, 0)
		assert.False(t, h.c.DeliverRaw(0, tagF1, make([]byte, 60), 134), "not before the host port latched the addresses")
		h.st(0, rOutEnable, 1)
		h.c.Provision()
		h.st(0, rOutEnable, 0)
		h.st(0, rOutBaddr, 0)
		assert.Equal(t, 3, h.offer(3, 60), "into the buffers that it knows")
		assert.EqualValues(t, 134, h.length(0, 2))
		h.st32(0, rOutDBell, 0xffffffff)
		assert.Zero(t, h.offer(3, 60), "as far as its credit goes")
	})
	t.Run("too little credit for a span", func(t *testing.T) {
		h := newRingHost(t, 1024).program(1024) // one batch
		require.Equal(t, 12, h.offer(12, 60))
		assert.Zero(t, h.offer(1, 9014))
		assert.True(t, empty(h, 12), "refused before the first write")
		assert.Equal(t, 1, h.offer(1, 1522))
	})
	t.Run("too little credit for a span, choice 22", func(t *testing.T) {
		h := newRingHost(t, 1024, func(o *Options) { o.Choices.CutMidway = true }).program(1024)
		require.Equal(t, 12, h.offer(12, 60))
		assert.Zero(t, h.offer(1, 9014))
		assert.True(t, empty(h, 12), "no length word")
		assert.False(t, empty(h, 13), "but data behind it")
	})
	t.Run("packets wait for credit", func(t *testing.T) {
		h := newRingHost(t, 1024, func(o *Options) { o.Latencies = NoTime() }).program(2032)
		h.faults(func(f *Faults) { f.WaitForCredit = 100 })
		require.Equal(t, 1124, h.offer(1200, 60))
		require.Len(t, h.take(0, 1024), 1024)
		assert.EqualValues(t, 100, h.count(0), "written inside the credit store")
	})
	t.Run("packets wait for credit, and cross the link", func(t *testing.T) {
		h := newRingHost(t, 1024).program(2032)
		h.faults(func(f *Faults) { f.WaitForCredit = 100 })
		require.Equal(t, 1124, h.offer(1200, 60))
		require.Len(t, h.take(0, 1024), 1024)
		assert.Less(t, h.count(0), uint32(100))
		h.advance(20 * time.Microsecond)
		assert.EqualValues(t, 100, h.count(0))
	})
	t.Run("OUT_BYTE_CNT, choice 7", func(t *testing.T) {
		h := newRingHost(t, 1024, func(o *Options) { o.Choices.ByteCntWithHead = true }).program(2032)
		h.offer(1, 60)
		assert.EqualValues(t, 142, h.ld(0, rOutByte))
		h.st(0, rOutByte, 0)
		assert.Zero(t, h.ld(0, rOutByte))
	})
}

func TestEgressRates(t *testing.T) {
	flood := func(t *testing.T, frameBytes int, tags ...uint16) (pps map[uint16]float64, h *ringHost) {
		h = newRingHost(t, 16).program(1024)
		count := map[uint16]int{}
		for _, tag := range tags {
			h.wire(tag).SetReceiver(func([]byte) { count[tag]++ })
		}
		b := make([]byte, frameBytes)
		posted := uint32(0)
		start := h.c.Clock().Now()
		for h.c.Clock().Now()-start < 30*time.Millisecond {
			var burst uint32
			for done := uint32(h.ld(0, rInCnts)); posted-done < 200; burst++ {
				h.fill(tags[int(posted)%len(tags)], b)
				posted++
			}
			h.st32(0, rInDBell, burst)
			h.advance(50 * time.Microsecond)
		}
		pps = map[uint16]float64{}
		for tag, n := range count {
			pps[tag] = float64(n) / (h.c.Clock().Now() - start).Seconds()
		}
		return pps, h
	}
	t.Run("10G cage at line rate", func(t *testing.T) {
		pps, h := flood(t, 1514, tagF1)
		assert.InDelta(t, 812744, pps[tagF1], 15000)
		h.settled()
	})
	t.Run("a switch port, 1,472 bytes of UDP", func(t *testing.T) {
		pps, h := flood(t, 1514, tag1)
		assert.InDelta(t, 83700, pps[tag1], 900)
		assert.NotZero(t, h.c.Counter(msg.CntTXDropQueueFull))
		assert.Equal(t, h.c.Counter(msg.CntTXDropQueueFull), h.c.PortCounter(msg.CounterPortTXQueueFull, 0))
		h.settled()
	})
	t.Run("two switch ports share it", func(t *testing.T) {
		pps, _ := flood(t, 1514, tag1, tag2)
		assert.InDelta(t, 83700, pps[tag1]+pps[tag2], 900)
		assert.InDelta(t, pps[tag1], pps[tag2], 500)
	})
	t.Run("a flood of one port costs another nothing", func(t *testing.T) {
		h := newRingHost(t, 16).program(1024)
		got := 0
		h.wire(tag2).SetReceiver(func([]byte) { got++ })
		for i := 0; i < 200; i++ {
			for k := 0; k < 40; k++ {
				h.send(tag1, make([]byte, 1514))
			}
			h.send(tag2, make([]byte, 60))
			h.advance(200 * time.Microsecond)
		}
		h.settled()
		assert.NotZero(t, h.c.Counter(msg.CntTXDropQueueFull))
		assert.Equal(t, 200, got)
	})
}

func TestWireLineRate(t *testing.T) {
	h := newRingHost(t, 1024).program(2032)
	f := ipFrame(h.c, tagF1, 1514, 1, 1)
	for i := 0; i < 2000; i++ {
		h.wire(tagF1).Send(f)
	}
	h.advance(10*time.Microsecond + time.Millisecond)
	assert.InDelta(t, 812, h.wire(tagF1).Stats().Passed, 1, "812,700 frames of 1,514 bytes a second")
	h.settled()
}

func TestSameSeedSameTrace(t *testing.T) {
	trace := func() (log []uint64) {
		h := newRingHost(t, 64, func(o *Options) { o.Seed = 42 }).program(64 + 1008)
		h.wire(tagF1).SetReceiver(func(b []byte) {
			log = append(log, h.c.Now(), uint64(seqOf(b)))
			h.wire(tagF2).Send(ipFrame(h.c, tagF2, len(b), uint16(len(b)), seqOf(b)))
		})
		for i := 0; i < 500; i++ {
			h.send(tagF1, ipFrame(h.c, tagF1, 60+i, 1, uint32(i)))
			h.advance(3 * time.Microsecond)
			for q := range h.lists {
				for _, p := range h.take(q, 8) {
					log = append(log, h.c.Now(), uint64(q), uint64(seqOf(p.frame)))
				}
			}
		}
		h.settled()
		return log
	}
	a := trace()
	assert.Greater(t, len(a), 2000)
	assert.Equal(t, a, trace())
}

// Conservation under everything at once: every sum closes at any moment.
func TestConservationAtAnyMoment(t *testing.T) {
	h := newRingHost(t, 64).program(64 + 1008)
	tags := []uint16{tagF1, tagF2, tag1, tag2, 0, 253, 254, 0x8b00}
	for i := 0; i < 3000; i++ {
		tag := tags[i%len(tags)]
		n := 14 + i*37%2200
		if i%11 == 0 {
			n = i % 14
		}
		if w := h.wire(tag); w != nil {
			f := ipFrame(h.c, tag, n, uint16(i), uint32(i))
			if i%7 == 0 && n > 6 {
				f[4] ^= 1
			}
			w.Send(f)
		}
		if i%200 == 0 {
			h.wire(tagF2).SetLink(i%400 == 0)
		}
		h.fill(tag, make([]byte, n))
		h.st32(0, rInDBell, 1)
		if i%3 == 0 {
			h.take(i/3%8, 4)
		}
		require.NoError(t, h.c.CheckConservation())
	}
	h.settled()
}

func TestRebootStartsAnew(t *testing.T) {
	h := newRingHost(t, 16).program(1024)
	h.wire(tagF1).Send(ipFrame(h.c, tagF1, 60, 1, 1))
	h.send(tagF1, make([]byte, 60))
	h.c.Reboot()
	assert.True(t, h.c.Quiesced())
	require.NoError(t, h.c.CheckConservation())
	h.c.ConfigWrite(4, 2, 6)
	assert.EqualValues(t, 0x14000000, h.ld(0, rInControl))
	h.tail = 0
	for q := range h.read {
		h.read[q] = 0
	}
	h.program(1024)
	h.wire(tagF1).Send(ipFrame(h.c, tagF1, 60, 1, 2))
	h.settled()
	assert.EqualValues(t, 1, h.c.Counter(msg.CntTXKN))
}

func TestUnboundTag(t *testing.T) {
	for punt, want := range map[bool]int{false: msg.CntDropLIFIndexInvalid, true: msg.CntToKNForced} {
		h := newRingHost(t, 16, func(o *Options) { o.Choices.PuntUnbound = punt }).program(1024)
		h.c.lifs.iface[tag1] = ifaceNone
		h.wire(tag1).Send(ipFrame(h.c, tag1, 60, 1, 1))
		h.settled()
		assert.EqualValues(t, 1, h.c.Counter(want))
		assert.EqualValues(t, b2u(punt), h.c.Counter(msg.CntTXKN))
	}
}

func TestSharedEgress(t *testing.T) {
	h := newRingHost(t, 16, func(o *Options) { o.Choices.SharedEgress = true }).program(1024)
	got := 0
	h.wire(tag2).SetReceiver(func([]byte) { got++ })
	for i := 0; i < 100; i++ {
		for k := 0; k < 60; k++ {
			h.send(tag1, make([]byte, 1514))
		}
		h.send(tag2, make([]byte, 60))
		h.advance(200 * time.Microsecond)
	}
	h.settled()
	assert.Less(t, got, 100, "a flood of one port costs another frames")
}

func TestLinkAndCapOnTheWayOut(t *testing.T) {
	h := newRingHost(t, 16).program(1024)
	h.send(tag1, make([]byte, 2044), make([]byte, 2045))
	h.settled()
	h.wire(tag1).SetLink(false)
	h.send(tag1, make([]byte, 60))
	h.settled()
	assert.Equal(t, WireStats{Out: 1, OutSwitchDropped: 1, OutLinkDown: 1}, h.wire(tag1).Stats())
	assert.EqualValues(t, 3, h.c.Counter(msg.CntTXWire), "the coprocessor sent all of them")

	h.c.lock()
	h.c.target.setAdmin(h.c.target.agentPort(tagF1), false)
	h.c.leave()
	h.send(tagF1, make([]byte, 60))
	h.settled()
	assert.Equal(t, WireStats{OutLinkDown: 1}, h.wire(tagF1).Stats(), "a port that was lowered")
}

// F11: what another ring than 0 posts is taken for the wire and dropped.
func TestOnlyRingZeroTransmits(t *testing.T) {
	h := newRingHost(t, 16)
	h.st(5, rInControl, 3<<25|1<<24|1<<1)
	h.st(5, rInBaddr, busInstr)
	h.st(5, rInRsize, hSlots)
	h.st(5, rInEnable, 1)
	h.program(1024)
	h.fill(tagF1, make([]byte, 60))
	h.st32(5, rInDBell, 1)
	h.settled()
	assert.EqualValues(t, 1, h.c.Counter(msg.CntDropIGErr))
	assert.Zero(t, h.c.Counter(msg.CntRXKN))
	assert.EqualValues(t, 1, uint32(h.ld(5, rInCnts)))
}
