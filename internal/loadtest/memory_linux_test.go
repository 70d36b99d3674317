package loadtest

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/board"
	"oxpd/internal/frame"
	"oxpd/internal/simdev"
	"oxpd/internal/simdev/simtest"
	"oxpd/octep"
	"oxpd/octep/csr"
	"oxpd/ring"
	"oxpd/ring/wire"
	"oxpd/rpc/msg"
)

const (
	jumboFrames = 2_000_000
	jumboBytes  = board.MaxMTU + frame.HeaderSize
	jumboPieces = 6  // receive buffers of each
	jumboFlows  = 64 // over the rings
	jumboAhead  = 128
	// residentSlack is what a process may breathe. A hundredth of two million
	// frames that are kept would be 180 MB.
	residentSlack = 32 << 20

	// Places in a frame: the source port makes the flow, the payload begins with a
	// number.
	flowAt    = frame.HeaderSize + ipHeader
	numberAt  = flowAt + udpHeader
	patternAt = numberAt + 8
)

// jumboSink looks at each gathered frame where the pieces meet, and at the order
// within its flow. A flow has one ring, and a ring one worker.
type jumboSink struct {
	got, wrong atomic.Uint64
	next       [jumboFlows]uint64

	// Frames that find no buffer need one worker to have them all while the other looks
	// for one, which one core may never do: who first has so many waits for missing.
	all     int // 0: nobody waits
	missing func() bool
	waited  atomic.Bool
}

// hold is that wait.
func (s *jumboSink) hold() {
	for end := time.Now().Add(hang); !s.missing() && time.Now().Before(end); {
		time.Sleep(poll)
	}
}

func mark(at int) byte { return byte(at ^ at>>8) }

// Deliver implements ring.Sink.
func (s *jumboSink) Deliver(_ int, frames []ring.Frame) {
	if s.all > 0 && len(frames) == s.all && s.waited.CompareAndSwap(false, true) {
		s.hold()
	}
	for i := range frames {
		b := frames[i].Pieces[0]
		ok := len(frames[i].Pieces) == 1 && len(b) == jumboBytes && b[jumboBytes-1] == mark(jumboBytes-1)
		for at := wire.FirstPayload; ok && at < jumboBytes; at += wire.BufSize {
			ok = b[at-1] == mark(at-1) && b[at] == mark(at)
		}
		flow, number := binary.BigEndian.Uint16(b[flowAt:]), binary.BigEndian.Uint64(b[numberAt:])
		if !ok || flow >= jumboFlows || number < s.next[flow] {
			s.wrong.Add(1)
			continue
		}
		s.next[flow] = number + 1
	}
	s.got.Add(uint64(len(frames)))
}

// flood is a card at wall time with the rings of a driver and nothing behind
// them but a sink.
type flood struct {
	t      *testing.T
	card   *hwsim.Card
	rings  *ring.Rings
	ports  [2]board.Port
	frames [jumboFlows][]byte
	sent   uint64
}

func newFlood(t *testing.T, sink ring.Sink, pool int) *flood {
	t.Helper()
	o := hwsim.Options{Seed: 1}
	o.Rates.Cage = 100_000_000_000 // the CPU is the limit, not the cages
	f := &flood{t: t, card: hwsim.New(o)}
	dev := simdev.New(f.card)
	require.NoError(t, dev.ConfigWrite(csr.CfgCommand, 2, csr.CfgCommandMemory))
	require.NoError(t, octep.SetBusMaster(dev, true))
	var err error
	f.rings, err = ring.New(ring.Config{BAR0: dev.BAR0(), DMA: dev.DMA(), Clock: f.card.Clock(), Sink: sink, GatherFrames: pool})
	require.NoError(t, err)
	require.NoError(t, f.rings.Program(context.Background()))
	require.NoError(t, f.rings.SetClocks(csr.ClocksPerUS))
	f.card.Provision()
	for i, name := range []string{"F1", "F2"} {
		f.ports[i], err = board.Parse(name)
		require.NoError(t, err)
		l, _ := f.card.LIF(uint32(f.ports[i].LIF()))
		l.MTU = board.MaxMTU
		f.card.SetLIF(uint32(f.ports[i].LIF()), &l)
	}
	for i := range f.frames {
		l, _ := f.card.LIF(uint32(f.port(i).LIF()))
		f.frames[i] = testFrame(l.MAC[:], []byte{2, 0, 0, 0, 1, 1}, jumboBytes, uint16(i))
		for at := patternAt; at < jumboBytes; at++ {
			f.frames[i][at] = mark(at)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, w := range f.rings.Workers(2) {
		irq := make(chan struct{}, 1)
		for _, q := range w.Queues() {
			require.NoError(t, dev.BindIRQ(csr.MSIXRingVector+q, f.rings.OQ(q).Handler(irq)))
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			assert.NoError(t, w.Run(ctx, irq))
		}()
	}
	f.card.Start()
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		f.card.Close()
		simtest.Clean(t, f.card)
		assert.NoError(t, octep.SetBusMaster(dev, false))
		assert.NoError(t, dev.Close())
		assert.NoError(t, f.rings.Free())
	})
	return f
}

func (f *flood) port(flow int) board.Port { return f.ports[flow%len(f.ports)] }

// pour sends as fast as the card takes frames, until the rings have taken n
// more, and waits until nothing is under way.
func (f *flood) pour(n uint64) {
	f.t.Helper()
	for end, deadline := f.rings.Stats().Done+n, time.Now().Add(hang); f.rings.Stats().Done < end; {
		require.True(f.t, time.Now().Before(deadline), "the flood does not end")
		for range 4 * jumboFlows {
			flow := int(f.sent % jumboFlows)
			w := f.card.Wire(uint16(f.port(flow).Tag))
			for w.Backlog() > jumboAhead {
				time.Sleep(20 * time.Microsecond)
			}
			binary.BigEndian.PutUint64(f.frames[flow][numberAt:], f.sent)
			w.Send(f.frames[flow])
			f.sent++
		}
	}
	require.Eventually(f.t, func() bool {
		return f.card.Quiesced() && f.rings.Stats().Done+f.card.Counter(msg.CntTXDropQueueFull) == f.card.Counter(msg.CntTXKN)
	}, hang, time.Millisecond)
}

// resident is VmRSS after what is not in use has gone back to the system.
func resident(t *testing.T) int {
	t.Helper()
	debug.FreeOSMemory()
	status, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(status), "\nVmRSS:")
	require.True(t, found)
	kB := 0
	_, err = fmt.Sscan(rest, &kB)
	require.NoError(t, err)
	return kB << 10
}

// TestJumboFloodNeedsNoMoreMemory: spans are gathered into a pool of fixed size,
// and every buffer comes back. From the usual pool none is ever missing; from one
// that is too small the frames that found none are counted, and the rings go on.
// The process grows in neither case.
func TestJumboFloodNeedsNoMoreMemory(t *testing.T) {
	total := uint64(jumboFrames)
	if raceEnabled || testing.Short() {
		total /= 10
	}
	for _, c := range []struct {
		name   string
		pool   int // buffers; 0 is the default
		frames uint64
	}{
		{"the usual pool", 0, total},
		{"a pool of two buffers", 2, total / 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			sink := &jumboSink{all: c.pool}
			f := newFlood(t, sink, c.pool)
			sink.missing = func() bool { return f.rings.Stats().SpanNoBuf > 0 }
			f.pour(c.frames / 20) // everything has its size then
			before, start := resident(t), time.Now()
			f.pour(c.frames)
			took := time.Since(start)
			after := resident(t)

			s, full := f.rings.Stats(), f.card.Counter(msg.CntTXDropQueueFull)
			assert.Zero(t, sink.wrong.Load(), "frames that are not what was sent, or not in order")
			assert.Equal(t, f.sent, s.Done+full, "every frame was taken, or refused by a full ring")
			assert.Equal(t, s.Done, s.Spans)
			assert.Equal(t, (jumboPieces-1)*s.Spans, s.SpanBufs)
			assert.Equal(t, s.Done, sink.got.Load()+s.SpanNoBuf, "delivered, or without a buffer")
			if c.pool == 0 {
				assert.Zero(t, s.SpanNoBuf)
			} else {
				assert.Positive(t, s.SpanNoBuf)
			}
			assert.Equal(t, s.GatherSize, s.GatherFree, "every buffer is back")
			assert.LessOrEqual(t, after, before+residentSlack, "resident memory")
			assert.NoError(t, f.card.CheckConservation())
			t.Logf("%d frames of %d bytes in %v, %.0f/s; %d found a full ring, %d no buffer; %d of %d buffers out at most; resident %d MiB before, %d MiB after",
				c.frames, jumboBytes, took.Round(time.Millisecond), float64(c.frames)/took.Seconds(), full, s.SpanNoBuf, s.GatherHigh, s.GatherSize, before>>20, after>>20)
		})
	}
}
