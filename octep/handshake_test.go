package octep

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/mmio"
	"oxpd/octep/csr"
)

// The words of endpoint.md 4.1 and 4.2, transcribed.
const (
	hostLoaded = uint64(0x00000000deadbeef)
	getInfo    = uint64(0x00000000beefdeed)
	infoWord   = uint64(0x0000020008000000)
	reply800   = uint64(0x000000deadde0320)
	completed  = uint64(0x00000000deeddeed)
)

type bench struct {
	d      *fakeDevice
	clk    *fakeClock
	target *fakeTarget
	alive  bool // the second witness
	hs     *Handshake
	stages []string
}

// newBench makes a card whose target first looks at the register at firstPoll;
// negative: never.
func newBench(t *testing.T, firstPoll time.Duration) *bench {
	t.Helper()
	b := &bench{d: readyDevice(), clk: &fakeClock{}}
	if firstPoll >= 0 {
		b.target = newFakeTarget(b.d, b.clk, firstPoll)
	}
	e, err := Open(context.Background(), b.d, Config{Clock: b.clk, Progress: func(stage, awaiting string) {
		if b.target != nil {
			assert.False(t, b.target.spinning(), "progress while the target waits")
		}
		b.stages = append(b.stages, stage+": "+awaiting)
	}})
	require.NoError(t, err)
	b.hs = e.NewHandshake(func() bool { return b.alive })
	b.d.bar0.log = nil
	return b
}

// words are the values that the host stored in the handshake register.
func (b *bench) words() (w []uint64) {
	for _, a := range b.d.bar0.log {
		if a.store && a.off == 0x28100 {
			w = append(w, a.v)
		}
	}
	return w
}

func TestInfoWord(t *testing.T) {
	assert.Equal(t, infoWord, InfoWord())
}

func TestHandshakeWordsInOrder(t *testing.T) {
	b := newBench(t, 300*time.Millisecond)
	clocks, err := b.hs.Run(context.Background())
	require.NoError(t, err)
	assert.EqualValues(t, 800, clocks, "the rate is the low 16 bits; bits 31:16 would give 44510")
	assert.Equal(t, []uint64{hostLoaded, infoWord, completed}, b.words())
	assert.Equal(t, infoWord, b.target.info)
	assert.True(t, b.target.marked)
	assert.Equal(t, HandshakeDone, b.hs.State())
	assert.Less(t, b.clk.now, time.Second)
	assert.Contains(t, b.stages, "handshake: the coprocessor's answer to offer 1 of 12")
	for _, a := range b.d.bar0.log {
		assert.Equal(t, 8, a.width, "scratch and RINFO are 64 bits wide only (CTL-12)")
	}
}

func TestHandshakePollsAtFiftyHertz(t *testing.T) {
	b := newBench(t, 2*time.Second)
	var looks []time.Duration
	b.d.bar0.onLoad = func(uint32) { looks = append(looks, b.clk.now) }
	_, err := b.hs.Run(context.Background())
	require.NoError(t, err)
	for i := 1; i < len(looks); i++ {
		assert.LessOrEqual(t, looks[i]-looks[i-1], 20*time.Millisecond)
	}
	assert.InDelta(t, 100, len(looks), 10)
}

func TestHandshakeOffersUntilTheTargetListens(t *testing.T) {
	b := newBench(t, 20*time.Second)
	type stored struct {
		at time.Duration
		v  uint64
	}
	var seen []stored
	b.d.bar0.onStore = func(_ uint32, v uint64) { seen = append(seen, stored{b.clk.now, v}) }
	clocks, err := b.hs.Run(context.Background())
	require.NoError(t, err)
	assert.EqualValues(t, 800, clocks)
	s := time.Second
	require.Len(t, seen, 9)
	assert.Equal(t, []stored{
		{0, hostLoaded}, {5 * s, 0},
		{6 * s, hostLoaded}, {11 * s, 0},
		{12 * s, hostLoaded}, {17 * s, 0},
		{18 * s, hostLoaded},
	}, seen[:7])
	assert.Equal(t, []uint64{infoWord, completed}, []uint64{seen[7].v, seen[8].v})
}

func TestHandshakeSilentTarget(t *testing.T) {
	b := newBench(t, -1)
	_, err := b.hs.Run(context.Background())
	require.ErrorIs(t, err, ErrHandshakeSilent)
	assert.EqualValues(t, 0, b.d.handshakeWord(), "no offer stands")
	assert.Len(t, b.words(), 24, "twelve offers, twelve withdrawals")
	assert.InDelta(t, 72, b.clk.now.Seconds(), 1)
	assert.Equal(t, HandshakeIdle, b.hs.State())

	t.Run("may be run again", func(t *testing.T) {
		b.target = newFakeTarget(b.d, b.clk, 0)
		_, err := b.hs.Run(context.Background())
		require.NoError(t, err)
	})
}

// What the register can hold when Run starts (endpoint.md 4.4, 4.5).
func TestHandshakeStartValues(t *testing.T) {
	tests := []struct {
		name   string
		value  uint64
		alive  bool
		want   error
		stores []uint64
	}{
		{"0 and the fast path is alive: done", 0, true, ErrHandshakeDone, nil},
		{"PF port started: done", 1, false, ErrHandshakeDone, nil},
		{"eight VF ports started: done", 0x1ff, false, ErrHandshakeDone, nil},
		{"last possible bitmap: done", 0xffff, false, ErrHandshakeDone, nil},
		{"one past the bitmap: foreign", 0x10000, false, ErrHandshakeForeign, nil},
		{"own offer over a finished one: done", hostLoaded, true, ErrHandshakeDone, nil},
		{"asked by somebody else's offer: in flight", getInfo, false, ErrHandshakeInFlight, nil},
		{"answered by somebody else: in flight", infoWord, false, ErrHandshakeInFlight, nil},
		{"info word of eight VFs: foreign", 0x0000020808080001, false, ErrHandshakeForeign, nil},
		{"reply to somebody else: in flight", reply800, false, ErrHandshakeInFlight, nil},
		{"reply with bits above: foreign", 1<<40 | reply800, false, ErrHandshakeForeign, nil},
		{"vendor's note of the other register: foreign", 0x11223344, false, ErrHandshakeForeign, nil},
		{"all ones: gone", csr.AllOnes, false, mmio.ErrGone, nil},
		{"completed and nobody clears it: stuck", completed, false, ErrHandshakeStuck, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t, -1)
			b.alive = tt.alive
			b.d.setHandshakeWord(tt.value)
			clocks, err := b.hs.Run(context.Background())
			require.ErrorIs(t, err, tt.want)
			assert.Zero(t, clocks)
			assert.Equal(t, tt.stores, b.words())
			var he *HandshakeError
			if errors.As(err, &he) {
				assert.NotEmpty(t, he.Hint())
				assert.Contains(t, err.Error(), fmt.Sprintf("SLI_EPF_SCRATCH[0x28100]=0x%016x", tt.value))
			}
		})
	}
	t.Run("own offer left behind: goes on", func(t *testing.T) {
		b := newBench(t, time.Second)
		b.d.setHandshakeWord(hostLoaded)
		clocks, err := b.hs.Run(context.Background())
		require.NoError(t, err)
		assert.EqualValues(t, 800, clocks)
		assert.Equal(t, []uint64{infoWord, completed}, b.words())
	})
	for name, fresh := range map[string]bool{"answered after CheckFresh: goes on": true, "answered, and nobody saw it stand: in flight": false} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, 0)
			b.d.setHandshakeWord(hostLoaded)
			if fresh {
				require.NoError(t, b.hs.e.CheckFresh())
			}
			require.NoError(t, b.clk.Sleep(context.Background(), 2*time.Second)) // the target looks once a second
			require.True(t, b.target.spinning())
			clocks, err := b.hs.Run(context.Background())
			if !fresh {
				require.ErrorIs(t, err, ErrHandshakeInFlight)
				assert.Empty(t, b.words())
				return
			}
			require.NoError(t, err)
			assert.EqualValues(t, 800, clocks)
			assert.Equal(t, []uint64{infoWord, completed}, b.words())
			assert.False(t, b.target.spinning())
		})
	}
	t.Run("answered, taken over once", func(t *testing.T) {
		b := newBench(t, -1)
		b.d.setHandshakeWord(hostLoaded)
		require.NoError(t, b.hs.e.CheckFresh())
		b.d.setHandshakeWord(getInfo)
		_, err := b.hs.Run(context.Background())
		require.ErrorIs(t, err, ErrHandshakeStuck, "the target does not go on")
		b.d.setHandshakeWord(getInfo)
		_, err = b.hs.Run(context.Background())
		require.ErrorIs(t, err, ErrHandshakeInFlight)
	})
	t.Run("completed by an earlier process: done when the target clears it", func(t *testing.T) {
		b := newBench(t, -1)
		b.d.setHandshakeWord(completed)
		b.clk.after(time.Second, func() { b.d.setHandshakeWord(0) })
		_, err := b.hs.Run(context.Background())
		require.ErrorIs(t, err, ErrHandshakeDone)
		assert.Empty(t, b.words())
	})
	t.Run("config space empty: gone without touching a BAR", func(t *testing.T) {
		b := newBench(t, -1)
		b.d.gone()
		_, err := b.hs.Run(context.Background())
		require.ErrorIs(t, err, mmio.ErrGone)
		assert.Empty(t, b.d.bar0.log)
	})
}

// What the register can turn into while an offer stands.
func TestHandshakeWhileOffering(t *testing.T) {
	tests := []struct {
		name  string
		value uint64
		want  error
		left  uint64
	}{
		{"the port of an earlier handshake opens", 1, ErrHandshakeDone, 1},
		{"another host's info word", infoWord, ErrHandshakeInFlight, infoWord},
		{"garbage", 0x12345678, ErrHandshakeForeign, 0x12345678},
		{"all ones", csr.AllOnes, mmio.ErrGone, csr.AllOnes},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t, -1)
			b.clk.after(1500*time.Millisecond, func() { b.d.setHandshakeWord(tt.value) })
			_, err := b.hs.Run(context.Background())
			require.ErrorIs(t, err, tt.want)
			assert.Equal(t, tt.left, b.d.handshakeWord())
			assert.Less(t, b.clk.now, 2*time.Second)
		})
	}
	t.Run("the coprocessor restarts under the offer: offered again", func(t *testing.T) {
		b := newBench(t, 8*time.Second)
		b.clk.after(time.Second, func() { b.d.setHandshakeWord(0) })
		_, err := b.hs.Run(context.Background())
		require.NoError(t, err)
		assert.Equal(t, []uint64{hostLoaded, hostLoaded, infoWord, completed}, b.words())
	})
	t.Run("the witness wakes between offers: done, no further offer", func(t *testing.T) {
		b := newBench(t, -1)
		b.clk.after(3*time.Second, func() { b.alive = true })
		_, err := b.hs.Run(context.Background())
		require.ErrorIs(t, err, ErrHandshakeDone)
		assert.Equal(t, []uint64{hostLoaded, 0}, b.words())
	})
	t.Run("another host offers between ours", func(t *testing.T) {
		b := newBench(t, -1)
		b.clk.after(5500*time.Millisecond, func() { b.d.setHandshakeWord(hostLoaded) })
		_, err := b.hs.Run(context.Background())
		require.ErrorIs(t, err, ErrHandshakeInFlight)
		assert.Equal(t, hostLoaded, b.d.handshakeWord())
	})
}

// cancelAt counts every look and every wait and cancels at number n.
func cancelAt(b *bench, n int) (context.Context, *int) {
	ctx, cancel := context.WithCancel(context.Background())
	steps := 0
	step := func() {
		if steps == n {
			cancel()
		}
		steps++
	}
	b.d.bar0.onLoad = func(uint32) { step() }
	b.d.bar0.onStore = func(uint32, uint64) { step() }
	b.clk.slept = step
	return ctx, &steps
}

func TestHandshakeCancelledAtEveryStep(t *testing.T) {
	b := newBench(t, 200*time.Millisecond)
	b.target.latency = 50 * time.Millisecond
	ctx, total := cancelAt(b, -1)
	_, err := b.hs.Run(ctx)
	require.NoError(t, err)
	require.Greater(t, *total, 20)

	finished, withdrawn := 0, 0
	for n := range *total {
		b := newBench(t, 200*time.Millisecond)
		b.target.latency = 50 * time.Millisecond
		ctx, _ := cancelAt(b, n)
		clocks, err := b.hs.Run(ctx)
		// Whatever the target still has to do, it does without us.
		require.NoError(t, b.clk.Sleep(context.Background(), 10*time.Second))
		require.False(t, b.target.spinning(), "cancelled at step %d", n)
		require.EqualValues(t, 0, b.d.handshakeWord(), "cancelled at step %d", n)
		if err == nil {
			finished++
			require.EqualValues(t, 800, clocks)
			require.Equal(t, infoWord, b.target.info)
			require.True(t, b.target.marked)
		} else {
			withdrawn++
			require.ErrorIs(t, err, context.Canceled)
			require.Zero(t, b.target.asked, "cancelled at step %d", n)
		}
	}
	assert.Greater(t, finished, 5)
	assert.Greater(t, withdrawn, 5)
}

// The target and the withdrawal cross on the bus.
func TestHandshakeWithdrawalRaces(t *testing.T) {
	cancelled := func(b *bench, after time.Duration) context.Context {
		ctx, cancel := context.WithCancel(context.Background())
		b.clk.after(after, cancel)
		return ctx
	}
	t.Run("target asks just after the 0: the exchange is finished", func(t *testing.T) {
		b := newBench(t, time.Hour)
		wake := b.d.bar0.onStored
		b.d.bar0.onStored = func(off uint32, v uint64) {
			if v == 0 {
				b.target.ask() // it had read HOST_LOADED before
				return
			}
			wake(off, v)
		}
		clocks, err := b.hs.Run(cancelled(b, time.Second))
		require.NoError(t, err)
		assert.EqualValues(t, 800, clocks)
		assert.Equal(t, []uint64{hostLoaded, 0, infoWord, completed}, b.words())
		assert.False(t, b.target.spinning())
	})
	t.Run("target asks some polls after the 0: the exchange is finished", func(t *testing.T) {
		b := newBench(t, time.Hour)
		b.clk.after(time.Second+80*time.Millisecond, b.target.ask)
		_, err := b.hs.Run(cancelled(b, time.Second))
		require.NoError(t, err)
		assert.False(t, b.target.spinning())
	})
	t.Run("target asks just before the 0: released, and said", func(t *testing.T) {
		b := newBench(t, time.Hour)
		b.d.bar0.onStore = func(_ uint32, v uint64) {
			if v == 0 {
				b.target.ask()
			}
		}
		_, err := b.hs.Run(cancelled(b, time.Second))
		require.ErrorIs(t, err, ErrHandshakeSpoiled)
		require.NoError(t, b.clk.Sleep(context.Background(), time.Second))
		assert.EqualValues(t, 0, b.target.info, "the withdrawal became the info word")
		assert.False(t, b.target.spinning())
		assert.EqualValues(t, 0, b.d.handshakeWord())
	})
}

func TestHandshakeReplyDeadline(t *testing.T) {
	t.Run("target dead after asking: COMPLETED at 2 s, then given up", func(t *testing.T) {
		b := newBench(t, 0)
		b.target.deaf = true
		var at time.Duration
		b.d.bar0.onStore = func(_ uint32, v uint64) {
			if v == completed && at == 0 {
				at = b.clk.now
			}
		}
		_, err := b.hs.Run(context.Background())
		require.ErrorIs(t, err, ErrHandshakeStuck)
		assert.InDelta(t, 2, at.Seconds(), 0.1)
		assert.InDelta(t, 4, b.clk.now.Seconds(), 0.2)
		assert.Equal(t, []uint64{hostLoaded, infoWord, completed}, b.words())
		assert.NotContains(t, b.words(), uint64(0), "never 0 here")
	})
	t.Run("reply at the last moment counts", func(t *testing.T) {
		b := newBench(t, 0)
		b.target.latency = 1995 * time.Millisecond // seen by the look at the deadline
		clocks, err := b.hs.Run(context.Background())
		require.NoError(t, err)
		assert.EqualValues(t, 800, clocks)
	})
	t.Run("slow target takes the release for the info word: released again", func(t *testing.T) {
		b := newBench(t, 0)
		b.target.latency = 2500 * time.Millisecond
		var at []time.Duration
		wake := b.d.bar0.onStored
		b.d.bar0.onStored = func(off uint32, v uint64) {
			wake(off, v)
			if v == completed {
				at = append(at, b.clk.now)
			}
		}
		_, err := b.hs.Run(context.Background())
		require.ErrorIs(t, err, ErrHandshakeStuck)
		require.Len(t, at, 2)
		assert.InDelta(t, 0.5, (at[1] - at[0]).Seconds(), 0.05, "the reply is completed when it comes")
		require.NoError(t, b.clk.Sleep(context.Background(), 10*time.Second))
		assert.Equal(t, completed, b.target.info)
		assert.False(t, b.target.spinning())
		assert.EqualValues(t, 0, b.d.handshakeWord())
	})
	t.Run("target that comes to itself at the release: stuck, for it knows of no rings", func(t *testing.T) {
		b := newBench(t, 0)
		b.target.deaf = true
		b.d.bar0.onStore = func(_ uint32, v uint64) { b.target.deaf = b.target.deaf && v != completed }
		_, err := b.hs.Run(context.Background())
		require.ErrorIs(t, err, ErrHandshakeStuck)
		assert.Equal(t, completed, b.target.info)
		assert.False(t, b.target.spinning())
		assert.EqualValues(t, 0, b.d.handshakeWord())
	})
	t.Run("target never clears COMPLETED: stuck", func(t *testing.T) {
		b := newBench(t, 0)
		b.d.bar0.onStore = func(_ uint32, v uint64) { b.target.deaf = v == completed }
		_, err := b.hs.Run(context.Background())
		require.ErrorIs(t, err, ErrHandshakeStuck)
		assert.Equal(t, completed, b.d.handshakeWord())
	})
	t.Run("the port opens at once: the bitmap is the end as well", func(t *testing.T) {
		b := newBench(t, 0)
		b.d.bar0.onStored = func(off uint32, v uint64) {
			b.target.wake()
			if v == completed {
				b.target.phase = 3
				b.d.setHandshakeWord(1)
			}
		}
		_, err := b.hs.Run(context.Background())
		require.NoError(t, err)
		assert.EqualValues(t, 1, b.d.handshakeWord())
	})
	t.Run("rate 0: the board's is used", func(t *testing.T) {
		b := newBench(t, 0)
		b.target.reply = 0xdeadde0000
		clocks, err := b.hs.Run(context.Background())
		require.NoError(t, err)
		assert.EqualValues(t, 800, clocks)
	})
	t.Run("rate with the top bit: not taken for a sign", func(t *testing.T) {
		b := newBench(t, 0)
		b.target.reply = 0xdeaddeffff
		clocks, err := b.hs.Run(context.Background())
		require.NoError(t, err)
		assert.EqualValues(t, 0xffff, clocks)
	})
}

// While the target spins: the card goes, the coprocessor restarts, our own code fails.
func TestHandshakeCutShort(t *testing.T) {
	// once runs fn when the host has stored v.
	once := func(b *bench, v uint64, fn func()) {
		wake := b.d.bar0.onStored
		b.d.bar0.onStored = func(off uint32, got uint64) {
			wake(off, got)
			if got == v {
				fn()
			}
		}
	}
	t.Run("card reads all ones: gone, nothing more is stored", func(t *testing.T) {
		b := newBench(t, 0)
		once(b, infoWord, func() { b.target.deaf = true; b.d.setHandshakeWord(csr.AllOnes) })
		_, err := b.hs.Run(context.Background())
		require.ErrorIs(t, err, mmio.ErrGone)
		assert.Equal(t, []uint64{hostLoaded, infoWord}, b.words())
		last := b.d.bar0.log[len(b.d.bar0.log)-2:]
		assert.True(t, last[0].store && !last[1].store, "one look saw it, none followed")
	})
	t.Run("config space empty: gone, no further BAR access", func(t *testing.T) {
		b := newBench(t, 0)
		n := 0
		once(b, infoWord, func() { b.d.gone(); n = len(b.d.bar0.log) })
		_, err := b.hs.Run(context.Background())
		require.ErrorIs(t, err, mmio.ErrGone)
		assert.Len(t, b.d.bar0.log, n)
	})
	t.Run("coprocessor restarts: said, and COMPLETED is not left for the next boot", func(t *testing.T) {
		b := newBench(t, 0)
		once(b, infoWord, func() { b.target.deaf = true; b.d.setHandshakeWord(0) })
		_, err := b.hs.Run(context.Background())
		require.ErrorIs(t, err, ErrHandshakeReset)
		assert.EqualValues(t, 0, b.d.handshakeWord())
	})
	t.Run("clock fails while the target spins: released", func(t *testing.T) {
		b := newBench(t, 0)
		once(b, infoWord, func() { b.clk.err = errors.New("clock stopped") })
		_, err := b.hs.Run(context.Background())
		require.ErrorContains(t, err, "clock stopped")
		assert.Equal(t, completed, b.d.handshakeWord())
	})
	t.Run("clock fails under an offer: withdrawn", func(t *testing.T) {
		b := newBench(t, -1)
		b.d.bar0.onStored = func(uint32, uint64) { b.clk.err = errors.New("clock stopped") }
		_, err := b.hs.Run(context.Background())
		require.ErrorContains(t, err, "clock stopped")
		assert.Equal(t, []uint64{hostLoaded, 0}, b.words())
	})
	t.Run("panic while the target spins: released on the way out", func(t *testing.T) {
		b := newBench(t, 0)
		once(b, infoWord, func() { b.clk.slept = func() { panic("ours") } })
		assert.PanicsWithValue(t, "ours", func() { _, _ = b.hs.Run(context.Background()) })
		assert.Equal(t, completed, b.d.handshakeWord())
	})
	t.Run("clock stands still: the number of looks is bounded", func(t *testing.T) {
		b := newBench(t, 0)
		b.target.deaf = true
		once(b, infoWord, func() { b.clk.slept = func() { b.clk.now -= handshakePoll } })
		_, err := b.hs.Run(context.Background())
		require.ErrorIs(t, err, ErrHandshakeStuck)
	})
}

func TestFastPathUp(t *testing.T) {
	const rpcAt, nwaAt = 0x02300000, 0x02200000
	tests := []struct {
		name string
		rpc  uint64
		nwa  uint64
		want bool
	}{
		{"both blank", 0, 0, false},
		{"both all ones", csr.AllOnes, csr.AllOnes, false},
		{"rpc idle", 0x0100000000000000, 0, true},
		{"rpc configured", 0x01000001d7d3ab00, 0, true},
		{"NetAgent cookie", 0, 0x34cafebabe, true},
		{"NetAgent half a cookie", 0, 0xcafe, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := readyDevice()
			d.bar2.set(rpcAt, tt.rpc)
			d.bar2.set(nwaAt, tt.nwa)
			e, err := Open(context.Background(), d, Config{Clock: &fakeClock{}})
			require.NoError(t, err)
			assert.False(t, e.FastPathUp(), "nothing is known before the endpoint is ready")
			require.NoError(t, e.WaitReady(context.Background()))
			assert.Equal(t, tt.want, e.FastPathUp())
		})
	}
	t.Run("windows not advertised", func(t *testing.T) {
		d := readyDevice()
		m := measured()
		m.Facility[csr.FacRPC], m.Facility[csr.FacNWA] = csr.Facility{}, csr.Facility{}
		d.writeTable(0x02000000, m)
		d.bar2.set(rpcAt, 0x0100000000000000)
		e, err := Open(context.Background(), d, Config{Clock: &fakeClock{}})
		require.NoError(t, err)
		require.NoError(t, e.WaitReady(context.Background()))
		assert.False(t, e.FastPathUp())
	})
}
