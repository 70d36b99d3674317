package ring

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/dma"
	"oxpd/ring/wire"
)

func TestPause(t *testing.T) {
	const ms = time.Millisecond
	type turn struct {
		at    time.Duration
		took  int
		sleep time.Duration // that Step allows
		want  time.Duration
	}
	for _, tt := range []struct {
		name  string
		turns []turn
	}{
		{"at rest it grows to 5 ms", []turn{{0, 0, SweepPeriod, ms}, {1 * ms, 0, SweepPeriod, 2 * ms}, {3 * ms, 0, SweepPeriod, 4 * ms}, {7 * ms, 0, SweepPeriod, 5 * ms},
			{12 * ms, 0, SweepPeriod, 5 * ms}}},
		{"load makes it 1 ms at once", []turn{{0, 0, SweepPeriod, ms}, {1 * ms, 0, SweepPeriod, 2 * ms}, {3 * ms, 1, SweepPeriod, ms}, {4 * ms, 0, SweepPeriod, ms}}},
		{"for 100 ms after the last packet", []turn{{0, 1, SweepPeriod, ms}, {99 * ms, 0, SweepPeriod, ms}, {100 * ms, 0, SweepPeriod, 2 * ms}}},
		{"a turn that is busy to the end has none", []turn{{0, 7, 0, 0}, {0, 0, SweepPeriod, ms}}},
		{"a queue's tick is kept", []turn{{0, 0, tick, tick}, {ms, 0, tick, tick}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var p pacer
			for _, turn := range tt.turns {
				assert.Equal(t, turn.want, p.pause(turn.at, turn.took, turn.sleep), "at %v", turn.at)
			}
		})
	}
}

// Without interrupts, in the card's time: full rate at 1 ms loses nothing, and a card
// that sends nothing is looked at 200 times a second.
func TestSimPolling(t *testing.T) {
	sink := &keep{}
	b := newBench(t, sink)
	w := b.rings.Workers(1)[0]
	clock := b.card.Clock()
	b.mtu(portF1, 9000)
	port := b.card.Wire(uint16(portF1.Tag))

	// turn is one of Run with a nil channel, in the card's time.
	turn := func() (took int, slept time.Duration) {
		took, sleep, err := w.Step(WakeBusy)
		require.NoError(t, err)
		slept = w.pace.pause(clock.Now(), took, sleep)
		b.card.Advance(slept)
		return took, slept
	}
	rest := func(d time.Duration) (turns int) {
		for end := clock.Now() + d; clock.Now() < end; turns++ {
			_, slept := turn()
			require.LessOrEqual(t, slept, restPeriod)
		}
		return turns
	}
	rest(200 * time.Millisecond)
	assert.LessOrEqual(t, rest(time.Second), 201)

	sent := 0
	for end := clock.Now() + 50*time.Millisecond; clock.Now() < end; {
		for range 80 { // 5.8 Gbit/s of jumbo frames in one flow
			port.Send(udp(b.mac(portF1), 1, sent, 9000))
			sent++
		}
		if took, slept := turn(); took > 0 || sent > 80 {
			require.LessOrEqual(t, slept, time.Millisecond, "under load")
		}
	}
	rest(300 * time.Millisecond)
	assert.Len(t, sink.frames, sent)
	assert.LessOrEqual(t, rest(time.Second), 201, "at rest again")
	b.healthy()
}

// list records what a provider is asked for.
type list struct {
	dma.Provider
	asked []dma.Need
}

func (l *list) Alloc(name string, size, align int) (*dma.Region, error) {
	l.asked = append(l.asked, dma.Need{Size: size, Align: align})
	return l.Provider.Alloc(name, size, align)
}

func TestNeedsAreWhatIsAllocated(t *testing.T) {
	l := &list{Provider: dma.NewInProcess(nowhere{}, 0)}
	r, err := New(Config{BAR0: &handRegs{}, DMA: l, Clock: &handClock{}, Sink: &keep{}})
	require.NoError(t, err)
	assert.Equal(t, Needs(), l.asked)
	for _, n := range l.asked {
		assert.LessOrEqual(t, n.Size, 2<<20, "in one hugepage")
	}
	assert.Equal(t, wire.OQs+1, dma.Pages(l.asked, 2<<20), "what is not a buffer lies beside buffers")
	require.NoError(t, r.Free())
}

// Every slot, list and buffer lies in one hugepage: packed one behind the other, TX
// slot 224 and RX buffer 1,260 would not.
func TestNothingCrossesAPage(t *testing.T) {
	const page = 2 << 20
	r, err := New(Config{BAR0: &handRegs{}, DMA: dma.NewInProcess(nowhere{}, 0), Clock: &handClock{}, Sink: &keep{}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Free()) })
	inside := func(reg *dma.Region, b []byte, bus dma.BusAddr) {
		require.LessOrEqual(t, reg.Size(), page)
		off := int(bus - reg.Bus())
		require.LessOrEqual(t, off+len(b), reg.Size())
		mem, at := reg.At(off, len(b))
		require.Equal(t, bus, at)
		require.Same(t, &mem[0], &b[0])
	}
	for i := range uint32(wire.IQSlots) {
		b, bus := r.iq.slot(i)
		require.Len(t, b, 9344)
		inside(r.iq.slots[i/32], b, bus)
	}
	for _, o := range r.oqs {
		for i := range uint32(wire.OQEntries) {
			b, bus := o.buffer(i)
			inside(o.bufs, b, bus)
		}
	}
}

// moving is a provider whose memory has moved since it was given.
type moving struct {
	dma.Provider
	which string
}

func (m moving) Alloc(name string, size, align int) (*dma.Region, error) {
	r, err := m.Provider.Alloc(name, size, align)
	if err != nil || name != m.which {
		return r, err
	}
	mem, bus := r.At(0, size)
	return dma.NewChecked(name, mem, bus, func() error { return dma.ErrMoved }), nil
}

// Memory that is not where it was when it was allocated is never told to the card.
func TestProgramRefusesMemoryThatMoved(t *testing.T) {
	for _, which := range []string{"records", "oq7 buffers", "iq0 slots from 224"} {
		t.Run(which, func(t *testing.T) {
			regs := &handRegs{other: map[uint32]uint64{}}
			r, err := New(Config{BAR0: regs, DMA: moving{dma.NewInProcess(nowhere{}, 0), which}, Clock: &handClock{}, Sink: &keep{}})
			require.NoError(t, err)
			require.ErrorIs(t, r.Program(context.Background()), dma.ErrMoved)
			assert.Empty(t, regs.log, "no register was written")
		})
	}
}

// lateClock tells a later time each time that it is asked.
type lateClock struct {
	Clock
	times []time.Duration
}

func (c *lateClock) Now() (t time.Duration) {
	t, c.times = c.times[0], c.times[1:]
	return t
}

func TestWorkerTellsHowLongItHasSlept(t *testing.T) {
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	message, over := make(chan struct{}, 1), make(chan time.Time, 1)
	w := &Worker{}
	assert.Zero(t, w.Slept())
	for _, tc := range []struct {
		name   string
		ctx    context.Context
		wake   func()
		ranOut bool
		from   time.Duration
		until  time.Duration
		slept  time.Duration // in all
	}{
		{"woken by a message", context.Background(), func() { message <- struct{}{} }, false, 10, 17, 7},
		{"to the end", context.Background(), func() { over <- time.Time{} }, true, 1000, 51_000, 50_007},
		{"ended", gone, func() {}, false, 60_000, 60_001, 50_008},
	} {
		tc.wake()
		w.clock = &lateClock{times: []time.Duration{tc.from, tc.until}}
		assert.Equal(t, tc.ranOut, w.away(tc.ctx, message, over), tc.name)
		assert.Equal(t, tc.slept, w.Slept(), tc.name)
	}
}
