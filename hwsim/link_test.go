package hwsim

import (
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/ring/wire"
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
		assert.EqualValues(t, byName["MaxPayload"].Value, 1<<s.maxPayload())
		assert.EqualValues(t, byName["MaxReadRequest"].Value, 1<<s.maxReadRequest())
		s.put(cfgDevCtl, 0x5830, 0xffff, 2)
		assert.Equal(t, 256, 1<<s.maxPayload())
		assert.Equal(t, 4096, 1<<s.maxReadRequest())
	})
	assert.InDelta(t, 9.846, byName["LinkRate"].Value/8/Hz, 0.001, "bytes a cycle")
}

// What a packet costs on the link, by hand: 128 bytes a write at most, 24 more for
// each, and a write of eight bytes for the length word.
func TestPacketOnTheLink(t *testing.T) {
	tests := map[string]struct {
		frame int
		bytes int // on the link
	}{
		"60":    {60, 134 + 2*24 + 8 + 24},
		"1,514": {1514, 1588 + 13*24 + 8 + 24},
		"9,014": {9014, 9088 + (13+4*13+9)*24 + 8 + 24},
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
			assert.Equal(t, map[string]int{"packet": tc.bytes, "message": 4 + 24}, bytes)
			perByte := 8 * float64(Hz) / bpsLink
			assert.InDelta(t, float64(handed)+float64(tc.bytes)*perByte, counted, 1)
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
		before := h.c.RingState(0).Packets
		assert.Less(t, before, uint64(40))
		h.advance(100 * time.Millisecond)
		assert.Equal(t, before, h.c.RingState(0).Packets, "nothing moves")
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

// The fetch engine asks for one instruction each 949 ns, of whichever ring: the rate
// that two senders had accepted.
func TestFetchEngine(t *testing.T) {
	for name, rings := range map[string][]int{"one ring": {0}, "three rings in turn": {0, 3, 7}} {
		t.Run(name, func(t *testing.T) {
			h := newRingHost(t, 16)
			for _, q := range rings[1:] {
				h.st(q, rInControl, 3<<25|1<<24|1<<1)
				h.st(q, rInBaddr, busInstr)
				h.st(q, rInRsize, hSlots)
				h.st(q, rInEnable, 1)
			}
			h.program(1024)
			h.settled()
			var asked []int
			var first, last uint64
			h.c.SetTracer(func(s Step) {
				if s.Unit == UnitFetch {
					if len(asked) == 0 {
						first = s.Start
					}
					asked, last = append(asked, s.Lane), s.Start
				}
			})
			for range hSlots {
				h.fill(tagF1, make([]byte, 60))
			}
			const each = 60
			for _, q := range rings {
				h.st32(q, rInDBell, each)
			}
			h.settled()
			require.Len(t, asked, each*len(rings))
			perSecond := float64(len(asked)-1) * Hz / float64(last-first)
			assert.InEpsilon(t, 1_053_385, perSecond, 0.001)
			for i := range asked[:each] {
				if i > 2 {
					require.Equal(t, asked[i-len(rings)], asked[i], "in turn")
					require.Equal(t, len(rings) == 1, asked[i-1] == asked[i], "in turn")
				}
			}
		})
	}
}

// An instruction is overwritten until it is read, and its slot until that is; a read
// takes as long as the link, the host's memory and its bytes do.
func TestReadsTakeTheLinksTime(t *testing.T) {
	tests := map[string]struct {
		frame    int
		requests int // of 512 bytes
		answers  int // of 128
	}{
		"60":    {60, 1, 1},
		"1,514": {1514, 4, 13},
		"9,014": {9014, 18, 71},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			h := newRingHost(t, 16).program(1024)
			h.settled()
			var fetch, read Step
			h.c.SetTracer(func(s Step) {
				switch s.Unit {
				case UnitFetch:
					fetch = s
				case UnitRead:
					read = s
				}
			})
			h.send(tagF1, make([]byte, tc.frame))
			h.settled()
			perByte := 8 * float64(Hz) / bpsLink
			const way, memory = nsLink * 0.8, nsHostMemory * 0.8
			assert.InDelta(t, way+24*perByte+memory+(64+20)*perByte+way, fetch.End-fetch.Start, 2)
			bytes := float64(tc.requests*24 + 66 + tc.frame + tc.answers*20)
			assert.InDelta(t, way+bytes*perByte+memory+way, read.End-read.Start, 3)
			assert.EqualValues(t, nsRead*0.8, read.Start-fetch.End)
		})
	}
}

func TestWorkersOfTheFastPath(t *testing.T) {
	t.Run("seventeen frames at a time", func(t *testing.T) {
		h := newRingHost(t, 1024, unlimited, func(o *Options) { o.Latencies.Worker = 100 * time.Microsecond }).program(2032)
		h.settled()
		const frames = 40
		for i := range frames {
			h.wire(tagF1).Send(ipFrame(h.c, tagF1, 60, ringOf(h, 0), uint32(i)))
		}
		for i, want := range []uint64{17, 34, 40} {
			h.advance(15 * time.Microsecond)
			assert.Equal(t, want, h.wire(tagF1).Stats().Passed, "after %d times of a worker", i)
			h.advance(85 * time.Microsecond)
		}
		h.settled()
		for i := range frames {
			require.EqualValues(t, i, seqOf(h.bufs[0][i*hBufGap+hPrefix:]))
		}
	})
	t.Run("more than they have room for are lost", func(t *testing.T) {
		h := newRingHost(t, 1024, func(o *Options) { o.Latencies.Worker = time.Millisecond; o.Queues.FastPath = 20 }).program(2032)
		for i := range 50 {
			h.wire(tagF1).Send(ipFrame(h.c, tagF1, 60, 1, uint32(i)))
		}
		h.settled()
		s := h.wire(tagF1).Stats()
		assert.EqualValues(t, 50, s.Passed+s.Overrun)
		assert.NotZero(t, s.Overrun)
		assert.NotZero(t, s.Passed)
	})
}

// The switch has a frame whole before it passes it on, and again at the far side.
func TestSwitchStoresAndForwards(t *testing.T) {
	tests := map[string]struct {
		tag uint16
		in  float64 // ns from the first bit to the packet program's decision
		out float64 // ns from the last bit out of the coprocessor to the wire's far side
	}{
		"a cage":        {tagF1, 1538 * 0.8, 0},
		"a switch port": {tag1, 1538*8 + nsSwitch + 1542*0.8, nsSwitch},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			h := newRingHost(t, 1024).program(2032)
			h.settled()
			var decided, left, arrived uint64
			h.c.SetTracer(func(s Step) {
				switch s.Unit {
				case UnitToHost:
					decided = s.End
				case UnitMACOut:
					left = s.End
				}
			})
			h.wire(tc.tag).SetReceiver(func([]byte) { arrived = h.c.Now() })
			from := h.c.Now()
			h.wire(tc.tag).Send(ipFrame(h.c, tc.tag, 1514, 1, 1))
			h.settled()
			assert.InDelta(t, (tc.in+nsToHost)*0.8, decided-from, 3)
			h.send(tc.tag, make([]byte, 1514))
			h.settled()
			assert.InDelta(t, tc.out*0.8, arrived-left, 3)
		})
	}
}

// A long cable takes its time each way and holds as many frames as fit on it; they
// follow each other at the line's rate, and their sender is free of them once they have
// left its end.
func TestCable(t *testing.T) {
	const (
		delay  = 10 * time.Millisecond
		rate   = 1_000_000_000
		frames = 1000 // some 826 of 1,514 bytes are under way at a time
		line   = (1514 + fcsBytes + gapBytes) * 8 * 0.8
	)
	tests := map[string]struct {
		tag uint16
		in  float64 // ns from the first bit to the packet program's decision, without the cable
		out float64 // ns from the last bit out of the coprocessor to the cable
	}{
		"a cage":        {tagF1, 1538 * 8, 0},
		"a switch port": {tag1, 1538*8 + nsSwitch + 1542*0.8, nsSwitch},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			h := newRingHost(t, 1024, func(o *Options) { o.Latencies.Cable, o.Rates.Cage = delay, rate }).program(2032)
			h.settled()
			var decided, sent, came []uint64
			h.c.SetTracer(func(s Step) {
				switch s.Unit {
				case UnitToHost:
					decided = append(decided, s.End)
				case UnitMACOut:
					sent = append(sent, s.End)
				}
			})
			h.wire(tc.tag).SetReceiver(func([]byte) { came = append(came, h.c.Now()) })

			from := h.c.Now()
			for i := range frames {
				h.wire(tc.tag).Send(ipFrame(h.c, tc.tag, 1514, 1, uint32(i)))
			}
			h.advance(delay)
			assert.Zero(t, len(decided), "the first bit is not there")
			assert.InDelta(t, frames-delay.Seconds()*rate/(1538*8), h.wire(tc.tag).Backlog(), 1, "frames that the sender still has")
			assert.False(t, h.c.Quiesced())
			assert.NoError(t, h.c.CheckConservation())
			h.settled()
			require.Len(t, decided, frames)
			cable := float64(cyclesOf(delay))
			for i, at := range decided {
				require.InDelta(t, (tc.in+nsToHost)*0.8+cable+float64(i)*line, at-from, 20, "frame %d", i)
			}

			h.send(tc.tag, make([]byte, 1514))
			h.advance(delay)
			require.Len(t, sent, 1)
			assert.Empty(t, came)
			assert.False(t, h.c.Quiesced())
			assert.NoError(t, h.c.CheckConservation())
			h.settled()
			require.Len(t, came, 1)
			assert.InDelta(t, tc.out*0.8+cable, came[0]-sent[0], 3)
		})
	}
}

// A reset of the coprocessor loses what is on the cables.
func TestCableIsEmptyAfterReset(t *testing.T) {
	h := newRingHost(t, 1024, func(o *Options) { o.Latencies.Cable = 10 * time.Millisecond }).program(2032)
	h.settled()
	came := 0
	h.wire(tagF1).SetReceiver(func([]byte) { came++ })
	h.wire(tagF1).Send(ipFrame(h.c, tagF1, 60, 1, 1))
	h.send(tagF1, make([]byte, 60))
	h.advance(time.Millisecond)
	require.False(t, h.c.Quiesced())
	h.c.Reboot()
	h.advance(20 * time.Millisecond)
	h.settled()
	assert.Zero(t, came)
	assert.Equal(t, WireStats{}, h.wire(tagF1).Stats())
}

// A2: what loses nothing to time ends the same whichever way time moves: frames on
// the wires and in the rings, the 182 counters, and the registers.
func TestSteppedAndFreeEndTheSame(t *testing.T) {
	type end struct {
		Host, Wire map[string]int
		Counters   map[string]uint64
		Registers  map[string]uint64
	}
	run := func(live bool) end {
		h := newRingHost(t, 1024, unlimited).program(2032)
		setMTU(t, h.c, tagF1, 9000)
		h.c.SetSwitchFrame(SwitchFrameJumbo)
		e := end{map[string]int{}, map[string]int{}, map[string]uint64{}, map[string]uint64{}}
		tags := []uint16{tagF1, tagF2, tag1, tag2}
		var mu sync.Mutex
		for _, tag := range tags {
			h.wire(tag).SetReceiver(func(b []byte) {
				mu.Lock()
				defer mu.Unlock()
				e.Wire[string(b)]++
			})
		}
		if live {
			h.c.Start()
		}
		quiet := func() {
			if !live {
				h.settled()
				return
			}
			waitFor(t, "quiet", h.c.Quiesced)
		}
		for round := range 20 {
			for i := range 40 {
				n := round*40 + i
				size := 60 + n*37%1455
				if n%10 == 0 {
					size = 60 + n*11%8955 // of PortF1, some above the MTU of the others
				}
				tag := tags[n%len(tags)]
				h.wire(tag).Send(ipFrame(h.c, tag, size, uint16(n), uint32(n)))
				h.send(tags[n%3], ipFrame(h.c, tagF2, size, 1, uint32(n)))
			}
			quiet()
			for q := range h.lists {
				for _, p := range h.take(q, 1000) {
					e.Host[fmt.Sprint(q, p.tag, string(p.frame))]++
				}
			}
		}
		quiet()
		for i, name := range msg.CounterNames {
			e.Counters[name] += h.c.Counter(i)
		}
		for _, q := range []int{0, 1, 2, 3, 4, 5, 6, 7} {
			for _, off := range []int{rInDBell, rInCnts, rInPkt, rInByte, rOutCnts, rOutDBell, rOutPkt, rOutByte, rOutStatus, rOutControl} {
				e.Registers[fmt.Sprintf("%d %#x", q, off)] = h.ld(q, off)
			}
		}
		require.NoError(t, h.c.CheckConservation())
		h.clean()
		mu.Lock()
		defer mu.Unlock()
		return e
	}
	stepped := run(false)
	require.Greater(t, len(stepped.Host), 700)
	require.Len(t, stepped.Wire, 800)
	require.NotZero(t, stepped.Counters[msg.CounterNames[msg.CntDropMTUExceeded]])
	require.Zero(t, stepped.Counters[msg.CounterNames[msg.CntTXDropQueueFull]])
	assert.Equal(t, stepped, run(true))
}

// TestCountsKeepTheOrderOfTheirPackets: a packet behind one whose tail or count a fault
// has put off is not counted first, or the host would take the first one on its count.
func TestCountsKeepTheOrderOfTheirPackets(t *testing.T) {
	late := map[string]func(f *Faults) *RingMask{
		"tail":   func(f *Faults) *RingMask { return &f.LateTail },
		"length": func(f *Faults) *RingMask { return &f.LateLength },
		"count":  func(f *Faults) *RingMask { return &f.LateCount },
	}
	for name, mask := range late {
		t.Run(name, func(t *testing.T) {
			h := newRingHost(t, 64).program(1072)
			const by = 100 * time.Microsecond
			deliver := func(on RingMask) {
				h.c.Faults(func(f *Faults) { *mask(f), f.LateBy = on, by })
				require.True(t, h.c.DeliverRaw(0, tag1, make([]byte, 3000), wire.LenOverhead+3000))
				h.c.Advance(time.Microsecond)
			}
			deliver(0)
			require.Equal(t, uint32(1), h.c.RingState(0).Count)
			deliver(AllRings)
			deliver(0)
			deliver(0)
			assert.Equal(t, uint32(1), h.c.RingState(0).Count, "one is late, and two behind it")
			h.c.Advance(by - 10*time.Microsecond)
			assert.Equal(t, uint32(1), h.c.RingState(0).Count)
			assert.False(t, h.c.Quiesced())
			h.c.Advance(10 * time.Microsecond)
			assert.Equal(t, uint32(4), h.c.RingState(0).Count)
			assert.True(t, h.c.Quiesced())
			deliver(0)
			assert.Equal(t, uint32(5), h.c.RingState(0).Count, "at once again")
		})
	}
}

// What was put off when the card left the bus is lost, and nothing waits for it.
func TestWhatAGoneCardHasPutOffIsLost(t *testing.T) {
	for name, leave := range map[string]func(c *Card){
		"killed": (*Card).Kill,
		"off the bus for a while": func(c *Card) {
			c.Faults(func(f *Faults) { f.Gone = true })
		},
	} {
		for fault, mask := range map[string]func(f *Faults) *RingMask{
			"data": func(f *Faults) *RingMask { return &f.LateData },
			"tail": func(f *Faults) *RingMask { return &f.LateTail },
		} {
			t.Run(name+", "+fault, func(t *testing.T) {
				h := newRingHost(t, 64).program(1072)
				const by = 100 * time.Microsecond
				deliver := func(on RingMask) {
					h.c.Faults(func(f *Faults) { *mask(f), f.LateBy, f.Gone = on, by, false })
					require.True(t, h.c.DeliverRaw(0, tag1, make([]byte, 3000), wire.LenOverhead+3000))
					h.c.Advance(time.Microsecond)
				}
				deliver(AllRings)
				deliver(0) // its count waits, behind a late tail
				require.False(t, h.c.Quiesced())
				leave(h.c)
				h.c.Advance(by)
				assert.True(t, h.c.Quiesced())
				assert.NoError(t, h.c.CheckConservation())
				if name == "killed" {
					return
				}
				before := h.c.RingState(0).Count
				deliver(0)
				assert.Equal(t, before+1, h.c.RingState(0).Count, "back, and at once")
				assert.True(t, h.c.Quiesced())
			})
		}
	}
}
