package hwsim

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/rpc/msg"
)

// unlimited takes the board's bandwidths away: what is left is the model's own speed.
func unlimited(o *Options) {
	o.Rates = Rates{LinkRate: 1e12, Cage: 1e12, Uplink: 1e12, SwitchTotal: 1e12, SwitchPort: 1e12}
	o.Latencies.Fetch = -1
}

// hangGuard bounds a wait on the wall clock.
const hangGuard = time.Minute

func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(hangGuard); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", what)
		}
		runtime.Gosched()
	}
}

func TestFreeMode(t *testing.T) {
	// No bandwidth limit, and no more under way than rings and queues hold: nothing
	// may be dropped, however the machine schedules.
	h := newRingHost(t, 1024, unlimited).program(2032)
	h.c.Start()
	var mu sync.Mutex
	var got []uint32
	h.wire(tagF1).SetReceiver(func(b []byte) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, seqOf(b))
	})
	var irqs atomic.Int64
	for q := range h.lists {
		h.c.OnIRQ(16+q, func() { irqs.Add(1) })
	}
	const n = 20000
	var senders sync.WaitGroup
	var taken atomic.Int64
	senders.Add(1)
	go func() {
		defer senders.Done()
		for i := 0; i < n; i++ {
			for int64(i)-taken.Load() > 900 {
				runtime.Gosched()
			}
			h.wire(tagF2).Send(ipFrame(h.c, tagF2, 60+i%1400, uint16(i), uint32(i)))
		}
	}()
	rx, posted := 0, 0
	last := map[uint16]int64{}
	for end := time.Now().Add(hangGuard); rx < n; {
		require.True(t, time.Now().Before(end), "%d of %d", rx, n)
		for q := range h.lists {
			for _, p := range h.take(q, 64) {
				port := uint16(p.frame[34])<<8 | uint16(p.frame[35])
				require.Greater(t, int64(seqOf(p.frame))+1, last[port], "order inside a flow")
				last[port] = int64(seqOf(p.frame)) + 1
				rx++
				taken.Add(1)
			}
		}
		if posted < n && uint32(posted)-uint32(h.ld(0, rInCnts)) < 200 {
			h.send(tagF1, ipFrame(h.c, tagF1, 60+posted%1400, 1, uint32(posted)))
			posted++
		}
	}
	senders.Wait()
	for ; posted < n; posted++ {
		waitFor(t, "a slot", func() bool { return uint32(posted)-uint32(h.ld(0, rInCnts)) < 200 })
		h.send(tagF1, ipFrame(h.c, tagF1, 60, 1, uint32(posted)))
	}
	waitFor(t, "quiet", h.c.Quiesced)
	require.NoError(t, h.c.CheckConservation())
	mu.Lock()
	defer mu.Unlock()
	require.Len(t, got, n)
	for i, s := range got {
		require.EqualValues(t, i, s)
	}
	assert.NotZero(t, irqs.Load())
	h.clean()
}

// A burst comes at the wire's rate and not in one piece: a driver that comes in
// time for that rate finds room on the ring.
func TestFreeModeKeepsTheLineRate(t *testing.T) {
	h := newRingHost(t, 1024).program(2032)
	setMTU(t, h.c, tagF1, 9000)
	const frames, frameBytes = 300, 9014 // 2.2 ms, and nearly two rings
	const perFrame = (frameBytes + 20) * 8 * time.Second / 10_000_000_000
	f := ipFrame(h.c, tagF1, frameBytes, ringOf(h, 0), 1)
	for range frames {
		h.wire(tagF1).Send(f)
	}
	start := time.Now()
	h.c.Start()
	for !h.c.Quiesced() || h.count(0) > 0 {
		written := h.c.RingState(0).Packets
		most := (time.Since(start)+durationOf(h.c.lat.ahead))/perFrame + 1
		require.LessOrEqual(t, written, uint64(most), "after %v", time.Since(start))
		h.take(0, 4)
		require.Less(t, time.Since(start), hangGuard)
	}
	require.EqualValues(t, frames, h.c.RingState(0).Packets+h.c.Counter(msg.CntTXDropQueueFull))
}

// An idle card sleeps until the next thing is due.
func TestFreeModeSleeps(t *testing.T) {
	h := newRingHost(t, 16, func(o *Options) { o.Timeline.AgentTick = time.Hour }).program(1024) // nothing else wakes it
	h.c.Start()
	waitFor(t, "sleep", h.c.sleeping.Load)
	time.Sleep(20 * time.Millisecond)
	var turns int
	for i := 0; i < 20; i++ {
		time.Sleep(time.Millisecond)
		if !h.c.sleeping.Load() {
			turns++
		}
	}
	assert.LessOrEqual(t, turns, 5)
	var got atomic.Int64
	h.wire(tagF1).SetReceiver(func([]byte) { got.Add(1) })
	h.send(tagF1, make([]byte, 60))
	waitFor(t, "a frame posted to a sleeping card", func() bool { return got.Load() == 1 })
	h.wire(tagF1).Send(ipFrame(h.c, tagF1, 60, 1, 1))
	waitFor(t, "a frame sent to a sleeping card", func() bool {
		for q := range h.lists {
			if h.count(q) > 0 {
				return true
			}
		}
		return false
	})
}

func TestFreeModeClock(t *testing.T) {
	c := powered(t)
	c.Start()
	k := c.Clock()
	at := k.Now()
	require.NoError(t, k.Sleep(context.Background(), 20*time.Millisecond))
	assert.GreaterOrEqual(t, k.Now()-at, 20*time.Millisecond)
}

func TestCloseEndsEverything(t *testing.T) {
	before := runtime.NumGoroutine()
	for i := 0; i < 20; i++ {
		c := New(Options{Timeline: Compressed()})
		c.Start()
		c.Close()
		c.Close()
	}
	waitFor(t, "goroutines", func() bool { return runtime.NumGoroutine() <= before })
}

// pipe is a file of frames for Attach.
type pipe struct {
	in, out chan []byte
	quit    chan struct{}
	once    sync.Once
	deaf    atomic.Bool
}

func (p *pipe) Read(b []byte) (int, error) {
	select {
	case f := <-p.in:
		return copy(b, f), nil
	case <-p.quit:
		return 0, fmt.Errorf("closed")
	}
}

func (p *pipe) Write(b []byte) (int, error) {
	if p.deaf.Load() {
		return 0, fmt.Errorf("interface is down")
	}
	p.out <- append([]byte(nil), b...)
	return len(b), nil
}

func (p *pipe) Close() error {
	p.once.Do(func() { close(p.quit) })
	return nil
}

func TestAttach(t *testing.T) {
	h := newRingHost(t, 1024).program(2032)
	h.c.Start()
	p := &pipe{in: make(chan []byte), out: make(chan []byte, 16), quit: make(chan struct{})}
	stop := h.wire(tag1).Attach(p)
	f := ipFrame(h.c, tag1, 1514, ringOf(h, 0), 7)
	p.in <- f
	var got []rx
	waitFor(t, "the frame", func() bool { got = h.take(0, 1); return len(got) == 1 })
	assert.Equal(t, f, got[0].frame)
	h.send(tag1, f)
	assert.Equal(t, f, <-p.out)
	p.deaf.Store(true)
	h.send(tag1, f)
	waitFor(t, "the refusal", func() bool { return h.wire(tag1).Stats().OutRefused == 1 })
	stop()
	stop()
	require.NoError(t, h.c.CheckConservation())
}

func TestNoGarbagePerFrame(t *testing.T) {
	h := newRingHost(t, 1024, unlimited, func(o *Options) { o.Timeline.AgentTick = time.Hour }).program(2032)
	f := ipFrame(h.c, tagF1, 1514, ringOf(h, 0), 1)
	h.wire(tagF1).SetReceiver(func([]byte) {})
	at := 0
	round := func() {
		for i := 0; i < 32; i++ {
			h.wire(tagF1).Send(f)
		}
		h.fill(tagF1, f)
		h.st32(0, rInDBell, 1)
		h.advance(time.Millisecond)
		n := h.count(0)
		for ; n > 0; n-- {
			h.poison(0, at)
			at = (at + 1) % h.rsize
			h.st32(0, rOutDBell, 1)
			h.st32(0, rOutCnts, 1)
		}
	}
	for i := 0; i < 100; i++ {
		round()
	}
	assert.Zero(t, testing.AllocsPerRun(100, round))
	require.NoError(t, h.c.CheckConservation())
}

var frameSizes = []int{60, 1514, 9014}

// BenchmarkToWire posts instructions in bursts of 32 and lets the card send them:
// the driver's part is the instruction and the doorbell, frames lie ready in the
// slots.
func BenchmarkToWire(b *testing.B) {
	for _, n := range frameSizes {
		b.Run(fmt.Sprintf("frame=%d/burst=32", n), func(b *testing.B) {
			h := newRingHost(b, 16, unlimited).program(1024)
			h.c.Start()
			var got atomic.Uint64
			h.wire(tagF1).SetReceiver(func([]byte) { got.Add(1) })
			f := ipFrame(h.c, tagF1, n, 1, 1)
			for i := 0; i < hSlots; i++ {
				h.fill(tagF1, f)
			}
			b.SetBytes(int64(n))
			b.ReportAllocs()
			b.ResetTimer()
			for posted := 0; posted < b.N; {
				burst := min(32, b.N-posted)
				for uint32(posted)+uint32(burst)-uint32(h.ld(0, rInCnts)) > 255 {
					runtime.Gosched()
				}
				h.st32(0, rInDBell, uint32(burst))
				posted += burst
			}
			waitFor(b, "the last frame", func() bool { return int(got.Load()) == b.N })
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pkts/s")
			h.clean()
			require.NoError(b, h.c.CheckConservation())
		})
	}
}

// BenchmarkToHost sends frames on a wire and takes them from one ring by their
// length words, poisoning and crediting every buffer.
func BenchmarkToHost(b *testing.B) {
	for _, n := range frameSizes {
		b.Run(fmt.Sprintf("frame=%d/burst=32", n), func(b *testing.B) {
			h := newRingHost(b, 1024, unlimited).program(2032)
			setMTU(b, h.c, tagF1, 9000)
			h.c.Start()
			w := h.wire(tagF1)
			f := ipFrame(h.c, tagF1, n, ringOf(h, 0), 1)
			bufs := (n + hPrefix + hBuf - 1) / hBuf
			ahead := 512 / bufs
			b.SetBytes(int64(n))
			b.ReportAllocs()
			b.ResetTimer()
			sent, at := 0, 0
			for taken := 0; taken < b.N; {
				for sent < b.N && sent-taken < ahead {
					w.Send(f)
					sent++
				}
				got := int(h.count(0))
				for i := 0; i < got*bufs; i++ {
					h.poison(0, at)
					at = (at + 1) % h.rsize
				}
				if got > 0 {
					h.st32(0, rOutDBell, uint32(got*bufs))
					h.st32(0, rOutCnts, uint32(got))
				} else {
					runtime.Gosched()
				}
				taken += got
			}
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pkts/s")
			h.clean()
			require.NoError(b, h.c.CheckConservation())
		})
	}
}

// BenchmarkRoundTrip is one frame at a time through the whole card: wire, ring,
// interrupt, a driver that sleeps until it, instruction, wire.
func BenchmarkRoundTrip(b *testing.B) {
	for _, n := range frameSizes {
		b.Run(fmt.Sprintf("frame=%d", n), func(b *testing.B) {
			h := newRingHost(b, 1024).program(2032)
			setMTU(b, h.c, tagF1, 9000)
			h.c.Start()
			irq, back := make(chan struct{}, 1), make(chan struct{}, 1)
			h.c.OnIRQ(16, func() {
				select {
				case irq <- struct{}{}:
				default:
				}
			})
			h.st(0, rOutLevels, 1)
			w := h.wire(tagF1)
			w.SetReceiver(func([]byte) { back <- struct{}{} })
			f := ipFrame(h.c, tagF1, n, ringOf(h, 0), 1)
			b.ResetTimer()
			for i := 0; i < b.N; i++ {
				w.Send(f)
				<-irq
				for got := h.take(0, 1); len(got) == 1; got = h.take(0, 1) {
					h.send(tagF1, f)
				}
				<-back
			}
		})
	}
}
