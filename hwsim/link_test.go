package hwsim

import (
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/rpc/msg"
)

func TestConstants(t *testing.T) {
	byName := map[string]Constant{}
	for _, k := range Constants() {
		require.NotContains(t, byName, k.Name)
		byName[k.Name] = k
		assert.NotEmpty(t, k.Unit, k.Name)
		assert.NotEmpty(t, k.Source, k.Name)
		assert.Contains(t, []Tag{Fit, Derived, Estimate}, k.Tag, k.Name)
		assert.Equal(t, k.Tag == Fit, k.Row != "", "%s: a fit names its row, and nothing else does", k.Name)
	}
	units := map[reflect.Type]string{reflect.TypeFor[Latencies](): "ns", reflect.TypeFor[Rates](): "bit/s"}
	for _, options := range []reflect.Type{reflect.TypeFor[Latencies](), reflect.TypeFor[Rates](), reflect.TypeFor[Queues]()} {
		for _, f := range reflect.VisibleFields(options) {
			k, ok := byName[f.Name]
			require.True(t, ok, "%s.%s replaces no constant", options.Name(), f.Name)
			if unit := units[options]; unit != "" {
				assert.Equal(t, unit, k.Unit, f.Name)
			}
		}
	}
	t.Run("an option of 0 takes the constant", func(t *testing.T) {
		lat := (&Latencies{}).cycles()
		assert.EqualValues(t, byName["ToHost"].Value*0.8, lat.toHost)
		var r Rates
		r.defaults()
		assert.EqualValues(t, byName["SwitchTotal"].Value, r.SwitchTotal)
		var q Queues
		q.defaults()
		assert.EqualValues(t, byName["OutRing"].Value, q.OutRing)
	})
	t.Run("what configuration space says of the link", func(t *testing.T) {
		var s configSpace
		s.powerOn()
		assert.EqualValues(t, byName["MaxPayload"].Value, s.maxPayload())
		assert.EqualValues(t, byName["MaxReadRequest"].Value, s.maxReadRequest())
		s.put(cfgDevCtl, 0x5830, 0xffff, 2)
		assert.Equal(t, 256, s.maxPayload())
		assert.Equal(t, 4096, s.maxReadRequest())
	})
	assert.InDelta(t, 9.846, byName["LinkRate"].Value/8/Hz, 0.001, "bytes a cycle")
}

// What a packet costs on the link, by hand: 128 bytes a write at most, 24 more for
// each, and a write of eight bytes for the length word.
func TestPacketOnTheLink(t *testing.T) {
	tests := map[string]struct {
		frame int
		bytes int // on the link, without the length word's write
	}{
		"60":    {60, 134 + 2*24},
		"1,514": {1514, 1588 + 13*24},
		"9,014": {9014, 9088 + (13+4*13+9)*24},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			h := newRingHost(t, 1024).program(2032)
			setMTU(t, h.c, tagF1, 9000)
			h.settled()
			var steps []Step
			h.c.SetTracer(func(s Step) { steps = append(steps, s) })
			told := uint64(0)
			h.c.OnIRQ(16, func() { told = h.c.now })
			h.st(0, rOutLevels, 1)
			h.wire(tagF1).Send(ipFrame(h.c, tagF1, tc.frame, ringOf(h, 0), 1))
			h.settled()
			bytes := map[string]int{}
			var handed, counted uint64
			for _, s := range steps {
				switch {
				case s.Unit == UnitLinkUp:
					bytes[s.What] += s.Bytes
				case s.Unit == UnitToHost:
					handed = s.End
				case s.Unit == UnitCount:
					counted = s.Start
				}
			}
			assert.Equal(t, map[string]int{"packet": tc.bytes, "length word": 8 + 24, "message": 4 + 24}, bytes)
			perByte := 8 * float64(Hz) / bpsLink
			assert.InDelta(t, float64(handed)+float64(tc.bytes+32)*perByte, counted, 1)
			assert.InDelta(t, float64(counted)+28*perByte+nsLink*0.8, told, 2, "and the message crosses behind it")
			assert.NotEqual(t, uint64(0xa5a5a5a5a5a5a5a5), h.length(0, 0))
		})
	}
}

// A driver's read returns behind what the card has written: whoever sees a count
// sees its packets, and a message finds both. The read is sent at every offset to
// the packet.
func TestReadsReturnBehindWrites(t *testing.T) {
	for offset := range 60 {
		h := newRingHost(t, 1024).program(2032)
		setMTU(t, h.c, tagF1, 9000)
		h.settled()
		h.st(0, rOutLevels, 1)
		told := false
		h.c.OnIRQ(16, func() {
			told = true
			assert.EqualValues(t, 9088, h.length(0, 0), "a message overtook its packet")
		})
		h.wire(tagF1).Send(ipFrame(h.c, tagF1, 9014, ringOf(h, 0), 1))
		h.advance(17*time.Microsecond + time.Duration(offset)*50*time.Nanosecond)
		for h.count(0) == 0 {
		}
		require.EqualValues(t, 9088, h.length(0, 0), "offset %d", offset)
		h.settled()
		require.True(t, told)
	}
}

// slowLink is a link that a packet of 60 bytes holds for 214 us: what waits in
// front of it can be looked at.
func slowLink(o *Options) { o.Rates.LinkRate, o.Queues.LinkQueue = 8_000_000, 1 }

func TestAdmittedPacketsWait(t *testing.T) {
	send := func(h *ringHost, n, size int) {
		for i := range n {
			h.wire(tagF1).Send(ipFrame(h.c, tagF1, size, ringOf(h, 0), uint32(i)))
		}
	}
	t.Run("in order, and credit is debited at the fetch", func(t *testing.T) {
		h := newRingHost(t, 1024, slowLink).program(2032)
		h.settled()
		send(h, 40, 60)
		h.advance(15 * time.Microsecond)
		assert.False(t, h.c.Quiesced())
		require.NoError(t, h.c.CheckConservation())
		assert.EqualValues(t, 2032-16, h.c.RingState(0).Credit)
		h.settled()
		assert.EqualValues(t, 2032-3*16, h.c.RingState(0).Credit)
		for i := range 40 {
			require.EqualValues(t, i, seqOf(h.bufs[0][i*hBufGap+hPrefix:]))
		}
	})
	t.Run("more than the queue holds are refused and counted", func(t *testing.T) {
		h := newRingHost(t, 1024, slowLink, func(o *Options) { o.Queues.OutRing = 10 }).program(2032)
		h.settled()
		send(h, 40, 60)
		h.settled()
		refused := h.c.Counter(msg.CntTXDropQueueFull)
		assert.NotZero(t, refused)
		assert.EqualValues(t, 40, refused+uint64(h.count(0)))
	})
	t.Run("a drain takes their entries away", func(t *testing.T) {
		h := newRingHost(t, 1024, slowLink).program(2032)
		h.settled()
		send(h, 100, 60)
		h.advance(30 * time.Microsecond)
		h.st(0, rOutEnable, 0)
		assert.Zero(t, h.ld(0, rOutControl)&(1<<36), "not idle")
		h.st32(0, rOutDBell, 0xffffffff)
		h.settled()
		assert.NotZero(t, h.ld(0, rOutControl)&(1<<36), "idle")
		refused := h.c.Counter(msg.CntTXDropQueueFull)
		assert.NotZero(t, refused)
		assert.EqualValues(t, 100, refused+uint64(h.count(0)))
	})
	t.Run("a disabled ring finishes them", func(t *testing.T) {
		h := newRingHost(t, 1024, slowLink).program(2032)
		h.settled()
		send(h, 10, 60)
		h.advance(20 * time.Microsecond)
		h.st(0, rOutEnable, 0)
		h.settled()
		assert.EqualValues(t, 10, h.count(0))
	})
	t.Run("a card that is gone and back goes on", func(t *testing.T) {
		h := newRingHost(t, 1024, slowLink).program(2032)
		h.settled()
		send(h, 40, 60)
		h.advance(20 * time.Microsecond)
		h.faults(func(f *Faults) { f.Gone = true })
		h.advance(100 * time.Millisecond)
		before := h.c.RingState(0).Packets
		assert.Less(t, before, uint64(40))
		h.faults(func(f *Faults) { f.Gone = false })
		h.settled()
		assert.EqualValues(t, 40, h.count(0))
	})
	t.Run("a reset loses them", func(t *testing.T) {
		h := newRingHost(t, 1024, slowLink).program(2032)
		h.settled()
		send(h, 40, 60)
		h.advance(20 * time.Microsecond)
		h.c.Reboot()
		assert.True(t, h.c.Quiesced())
		require.NoError(t, h.c.CheckConservation())
		h.advance(100 * time.Millisecond)
		assert.Zero(t, h.c.RingState(0).Packets)
	})
}

// Entries are read from memory when the link brings them, not when they are asked
// for.
func TestListIsReadLater(t *testing.T) {
	h := newRingHost(t, 16)
	h.programOut(0)
	h.st32(0, rOutDBell, 1024)
	assert.EqualValues(t, 1008, h.c.RingState(0).Credit)
	assert.Zero(t, h.c.RingState(0).Held)
	h.advance(linkTime)
	assert.Equal(t, 16, h.c.RingState(0).Held)
}
