package octep_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/mmio"
	"oxpd/internal/simdev"
	"oxpd/internal/simdev/simtest"
	"oxpd/octep"
	"oxpd/octep/csr"
)

// The endpoint on the simulated card in stepped time: times are the card's.

type simBench struct {
	t    *testing.T
	card *hwsim.Card
	dev  octep.Device
	e    *octep.Endpoint
}

func open(t *testing.T, o hwsim.Options, cfg octep.Config, faults func(*hwsim.Faults)) *simBench {
	t.Helper()
	card := hwsim.New(o)
	if faults != nil {
		card.Faults(faults)
	}
	b := &simBench{t: t, card: card, dev: simdev.New(card)}
	if cfg.Clock == nil {
		cfg.Clock = card.Clock()
	}
	var err error
	b.e, err = octep.Open(context.Background(), b.dev, cfg)
	require.NoError(t, err)
	simtest.Guard(t, card)
	return b
}

// fastPath brings the card to where the fast path runs and rpc is advertised.
func (b *simBench) fastPath(t *testing.T) {
	t.Helper()
	require.NoError(t, b.e.WaitReady(context.Background()))
	_, err := b.e.NewHandshake(nil).Run(context.Background())
	require.NoError(t, err)
	b.card.Advance(time.Second)
}

// settle lets the card finish what it does on its own and returns the word that
// then stands in the handshake register.
func (b *simBench) settle() uint64 {
	b.card.Advance(time.Second)
	return b.card.Load(0, uint64(csr.SLIScratch), 8)
}

//oxpd:fault F4 behaviour
func TestSimBringUp(t *testing.T) {
	for _, tl := range []struct {
		name     string
		timeline hwsim.Timeline
		ready    time.Duration
		fastPath time.Duration
	}{
		{"real times", hwsim.Real(), 30 * time.Second, 150 * time.Second},
		{"compressed times", hwsim.Compressed(), 30 * time.Millisecond, 150 * time.Millisecond},
	} {
		t.Run(tl.name, func(t *testing.T) {
			var stages []string
			b := open(t, hwsim.Options{Timeline: tl.timeline}, octep.Config{Progress: func(s, a string) { stages = append(stages, s+": "+a) }}, nil)
			ctx, clk := context.Background(), b.card.Clock()
			require.NoError(t, b.e.WaitReady(ctx))
			assert.InDelta(t, tl.ready.Seconds(), clk.Now().Seconds(), 0.2)
			require.NoError(t, octep.SetBusMaster(b.dev, true))

			hs := b.e.NewHandshake(nil)
			before := clk.Now()
			clocks, err := hs.Run(ctx)
			require.NoError(t, err)
			assert.EqualValues(t, 800, clocks)
			assert.Less(t, clk.Now()-before, 2*time.Second)
			var words []uint64
			for _, w := range b.card.HandshakeWrites() {
				words = append(words, w.Value)
			}
			assert.Equal(t, []uint64{0xdeadbeef, 0x0000020008000000, 0xdeeddeed}, words)

			before = clk.Now()
			f, err := b.e.WaitFacility(ctx, csr.FacRPC)
			require.NoError(t, err)
			for !b.e.FastPathUp() {
				require.NoError(t, clk.Sleep(ctx, 10*time.Millisecond))
				require.Less(t, clk.Now()-before, 5*time.Minute)
			}
			assert.InDelta(t, tl.fastPath.Seconds(), (clk.Now() - before).Seconds(), 2)
			require.NoError(t, f.Ring(0))
			assert.Equal(t, map[uint32]uint64{155: 1}, b.card.Doorbells())
			assert.EqualValues(t, 1, b.settle(), "the host port is open")

			_, err = b.e.NewHandshake(nil).Run(ctx)
			require.ErrorIs(t, err, octep.ErrHandshakeDone, "a second process recognises it")
			_, err = b.e.NewHandshake(func() bool { return false }).Run(ctx)
			require.ErrorIs(t, err, octep.ErrHandshakeDone, "by the bitmap alone as well")
			assert.Len(t, b.card.HandshakeWrites(), 3, "and leaves the register alone")
			assert.EqualValues(t, 1, b.settle())

			assert.Empty(t, b.card.Reports())
			assert.NotContains(t, b.card.Accesses(), "BAR2_FORBIDDEN")
			n, _ := b.e.Refusals()
			assert.Zero(t, n)
			assert.Contains(t, stages[0], octep.StageIdentify)
			assert.Contains(t, stages[1], "magic in SDP_SCRATCH")
			assert.Contains(t, stages[2], "answer to offer 1 of 12")
		})
	}
}

// steps wraps a card and its clock and counts every access, config look and wait.
type steps struct {
	octep.Device
	clock octep.Clock
	n, at int
	hit   func()
}

func (s *steps) step() {
	if s.n == s.at {
		s.hit()
	}
	s.n++
}

func (s *steps) BAR0() mmio.Space { return stepSpace{s.Device.BAR0(), s} }
func (s *steps) ConfigRead(off, width int) (uint32, error) {
	s.step()
	return s.Device.ConfigRead(off, width)
}
func (s *steps) Now() time.Duration { return s.clock.Now() }
func (s *steps) Sleep(ctx context.Context, d time.Duration) error {
	s.step()
	return s.clock.Sleep(ctx, d)
}

type stepSpace struct {
	mmio.Space
	s *steps
}

func (b stepSpace) Load64(off uint32) uint64 {
	b.s.step()
	return b.Space.Load64(off)
}

func (b stepSpace) Store64(off uint32, v uint64) {
	b.s.step()
	b.Space.Store64(off, v)
}

// stepped makes a card whose target listens, with the handshake not begun. The
// target's spins take longer than a poll of the host, so that there are steps
// inside them.
func stepped(t *testing.T) (*simBench, *steps) {
	t.Helper()
	tl := hwsim.Compressed()
	tl.Poll, tl.Spin = 120*time.Millisecond, 30*time.Millisecond
	card := hwsim.New(hwsim.Options{Timeline: tl})
	s := &steps{Device: simdev.New(card), clock: card.Clock(), at: -1}
	e, err := octep.Open(context.Background(), s, octep.Config{Clock: s})
	require.NoError(t, err)
	require.NoError(t, e.WaitReady(context.Background()))
	s.n = 0
	return &simBench{t, card, s, e}, s
}

// Never possible: a handshake abandoned. A context that ends at any step, as SIGTERM
// ends it, leaves no target that waits.
//
//oxpd:fault F3 behaviour
func TestSimHandshakeCancelledAtEveryStep(t *testing.T) {
	b, s := stepped(t)
	_, err := b.e.NewHandshake(nil).Run(context.Background())
	require.NoError(t, err)
	total := s.n
	require.Greater(t, total, 20)

	finished, withdrawn := 0, 0
	for n := range total {
		b, s := stepped(t)
		ctx, cancel := context.WithCancel(context.Background())
		s.at, s.hit = n, cancel
		_, err := b.e.NewHandshake(nil).Run(ctx)
		left := b.settle()
		require.LessOrEqual(t, left, uint64(1), "cancelled at step %d: the target waits with %#x", n, left)
		s.at = -1
		if err == nil {
			finished++
		} else {
			withdrawn++
			require.ErrorIs(t, err, context.Canceled, "step %d", n)
			clocks, err := b.e.NewHandshake(nil).Run(context.Background())
			require.NoError(t, err, "cancelled at step %d: a later process gets its answer", n)
			require.EqualValues(t, 800, clocks)
		}
		b.card.Advance(time.Second)
		require.True(t, b.e.FastPathUp(), "cancelled at step %d", n)
		require.Empty(t, b.card.Reports(), "cancelled at step %d", n)
		cancel()
	}
	assert.Greater(t, finished, 5)
	assert.Greater(t, withdrawn, 5)
}

func TestSimCardLostAtEveryStep(t *testing.T) {
	b, s := stepped(t)
	_, err := b.e.NewHandshake(nil).Run(context.Background())
	require.NoError(t, err)
	total := s.n

	for n := range total {
		b, s := stepped(t)
		s.at, s.hit = n, b.card.Kill
		_, err := b.e.NewHandshake(nil).Run(context.Background())
		if err != nil { // the loss may come after the last look
			require.ErrorIs(t, err, mmio.ErrGone, "lost at step %d", n)
			require.Less(t, s.n-n, 6, "lost at step %d: looked on", n)
		} else {
			require.Greater(t, n, total-3)
		}
	}
}

func TestSimRebootAtEveryStep(t *testing.T) {
	b, s := stepped(t)
	_, err := b.e.NewHandshake(nil).Run(context.Background())
	require.NoError(t, err)
	total := s.n

	for n := range total {
		b, s := stepped(t)
		s.at, s.hit = n, b.card.Reboot
		_, err := b.e.NewHandshake(nil).Run(context.Background())
		s.at = -1
		if err == nil {
			continue // offered again to the new boot, or the reboot came last
		}
		// Decoding is off after a reset: the register reads all ones.
		require.True(t, errors.Is(err, mmio.ErrGone) || errors.Is(err, octep.ErrHandshakeReset), "step %d: %v", n, err)
		e, err := octep.Open(context.Background(), s, octep.Config{Clock: s})
		require.NoError(t, err)
		require.NoError(t, e.WaitReady(context.Background()))
		_, err = e.NewHandshake(nil).Run(context.Background())
		require.NoError(t, err, "rebooted at step %d: the new boot is in order", n)
	}
}

func TestSimHandshakeFaults(t *testing.T) {
	t.Run("deaf for 20 s: offered every 6 s", func(t *testing.T) {
		b := open(t, hwsim.Options{}, octep.Config{}, func(f *hwsim.Faults) { f.HandshakeDeaf = true })
		require.NoError(t, b.e.WaitReady(context.Background()))
		start := b.card.Clock().Now()
		_, err := b.e.NewHandshake(func() bool {
			if b.card.Clock().Now()-start >= 20*time.Second {
				b.card.Faults(func(f *hwsim.Faults) { f.HandshakeDeaf = false })
			}
			return false
		}).Run(context.Background())
		require.NoError(t, err)
		w := b.card.HandshakeWrites()
		require.Len(t, w, 11, "four offers withdrawn, one answered")
		for i := 0; i < 8; i += 2 {
			assert.EqualValues(t, csr.HostLoaded, w[i].Value)
			assert.Zero(t, w[i+1].Value)
			assert.InDelta(t, 5, (w[i+1].At - w[i].At).Seconds(), 0.05)
			assert.InDelta(t, 6, (w[i+2].At - w[i].At).Seconds(), 0.05)
		}
	})
	t.Run("never answers: silent after twelve offers, nothing left standing", func(t *testing.T) {
		b := open(t, hwsim.Options{Timeline: hwsim.Compressed()}, octep.Config{}, func(f *hwsim.Faults) { f.HandshakeDeaf = true })
		require.NoError(t, b.e.WaitReady(context.Background()))
		_, err := b.e.NewHandshake(nil).Run(context.Background())
		require.ErrorIs(t, err, octep.ErrHandshakeSilent)
		assert.Len(t, b.card.HandshakeWrites(), 24)
		assert.Zero(t, b.settle())
	})
	t.Run("stops after asking, wakes later: finds COMPLETED", func(t *testing.T) {
		b := open(t, hwsim.Options{Timeline: hwsim.Compressed()}, octep.Config{}, func(f *hwsim.Faults) { f.HandshakeMute = true })
		require.NoError(t, b.e.WaitReady(context.Background()))
		start := b.card.Clock().Now()
		_, err := b.e.NewHandshake(nil).Run(context.Background())
		require.ErrorIs(t, err, octep.ErrHandshakeStuck)
		assert.InDelta(t, 4, (b.card.Clock().Now() - start).Seconds(), 0.2)
		assert.EqualValues(t, csr.HandshakeCompleted, b.settle())
		for _, w := range b.card.HandshakeWrites() {
			assert.NotZero(t, w.Value, "never 0 between GET_HOST_INFO and COMPLETED")
		}
	})
}

// A barmap that is not written yet is waited for, one of another version refused;
// windows whose software has gone are not touched.
//
//oxpd:fault F2 behaviour
//oxpd:fault R3 behaviour
func TestSimBarmapFaults(t *testing.T) {
	t.Run("version 3: refused, a hundred times, nothing left behind (CTL-10)", func(t *testing.T) {
		b := open(t, hwsim.Options{Timeline: hwsim.Compressed()}, octep.Config{}, func(f *hwsim.Faults) { f.BarmapVersion = 3 })
		for range 100 {
			e, err := octep.Open(context.Background(), b.dev, octep.Config{Clock: b.card.Clock()})
			require.NoError(t, err)
			err = e.WaitReady(context.Background())
			var ve *octep.VersionError
			require.ErrorAs(t, err, &ve)
			cmd, err := b.dev.ConfigRead(csr.CfgCommand, 2)
			require.NoError(t, err)
			require.Zero(t, cmd&csr.CfgCommandBusMaster)
			require.Zero(t, b.card.Accesses()["BAR2_FORBIDDEN"])
		}
	})
	t.Run("all ones, written after a minute", func(t *testing.T) {
		var stages []string
		card := hwsim.New(hwsim.Options{Timeline: hwsim.Compressed()})
		card.Faults(func(f *hwsim.Faults) { f.BarmapAllOnes = true })
		e, err := octep.Open(context.Background(), simdev.New(card), octep.Config{Clock: card.Clock(), Progress: func(_, a string) {
			stages = append(stages, a)
		}})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		card.Advance(time.Minute)
		require.ErrorIs(t, e.WaitReady(ctx), context.Canceled)
		assert.Contains(t, stages, "the barmap at BAR2+0x2000000 (reads all ones)")
		card.Faults(func(f *hwsim.Faults) { f.BarmapAllOnes = false })
		require.NoError(t, e.WaitReady(context.Background()))
	})
	t.Run("a facility that is missing, then there", func(t *testing.T) {
		b := open(t, hwsim.Options{Timeline: hwsim.Compressed()}, octep.Config{}, func(f *hwsim.Faults) { f.FacilityMissing[csr.FacRPC] = true })
		b.fastPath(t)
		_, err := b.e.Facility(csr.FacRPC)
		require.ErrorIs(t, err, octep.ErrFacilityAbsent)
		_, err = b.e.WaitFacility(context.Background(), csr.FacRPC)
		require.ErrorIs(t, err, octep.ErrTimeout)
		b.card.Faults(func(f *hwsim.Faults) { f.FacilityMissing[csr.FacRPC] = false })
		f, err := b.e.WaitFacility(context.Background(), csr.FacRPC)
		require.NoError(t, err)
		assert.EqualValues(t, 1<<20, f.Size())
	})
	t.Run("sizes 0 after a crash close the windows", func(t *testing.T) {
		b := open(t, hwsim.Options{Timeline: hwsim.Compressed()}, octep.Config{}, nil)
		b.fastPath(t)
		f, err := b.e.Facility(csr.FacRPC)
		require.NoError(t, err)
		b.card.Faults(func(f *hwsim.Faults) { f.BarmapNoSizes = true })
		_, err = b.e.Facility(csr.FacNWA)
		require.ErrorIs(t, err, octep.ErrFacilityAbsent)
		b.card.ResetAccesses()
		assert.Equal(t, csr.AllOnes, f.Load64(0))
		require.Error(t, f.Ring(0))
		assert.Empty(t, b.card.Accesses())
	})
}

// What the pages forbid produces no access at the card.
//
//oxpd:fault F1 behaviour
//oxpd:fault R1 behaviour
//oxpd:fault R2 behaviour
func TestSimForbiddenAccesses(t *testing.T) {
	b := open(t, hwsim.Options{Timeline: hwsim.Compressed()}, octep.Config{}, nil)
	b.fastPath(t)
	f, err := b.e.Facility(csr.FacRPC) // the last window: what lies behind it is forbidden
	require.NoError(t, err)
	b.card.ResetAccesses()
	for _, off := range []uint32{0x100000, 0x02000000 - 0x300000, 0x03c00000 - 0x02300000, 0x03c00040 - 0x02300000, 0x04000000 - 0x02300000, 0xfffffff8} {
		f.Load32(off)
		f.Load64(off)
		f.Store32(off, 155)
		f.Store64(off, 155)
	}
	require.Error(t, f.Ring(5))
	require.Error(t, f.Ring(-1))
	assert.Empty(t, b.card.Accesses())
	assert.Empty(t, b.card.Doorbells())
	assert.Empty(t, b.card.Reports())
	n, _ := b.e.Refusals()
	assert.EqualValues(t, 24, n)
}

// Registers that are 64 bits wide are touched 64 bits wide (CTL-12).
func TestSimAccessWidths(t *testing.T) {
	b := open(t, hwsim.Options{Timeline: hwsim.Compressed()}, octep.Config{}, nil)
	require.NoError(t, b.e.WaitReady(context.Background()))
	_, err := b.e.NewHandshake(nil).Run(context.Background())
	require.NoError(t, err)
	acc := b.card.Accesses()
	for _, name := range []string{"SDP_SCRATCH", "SDP_EPF_RINFO", "SLI_EPF_SCRATCH"} {
		assert.NotZero(t, acc[name].Reads, name)
		assert.Zero(t, acc[name].Reads32+acc[name].Writes32, name)
	}
	assert.Zero(t, acc["SDP_SCRATCH"].Writes, "SDP_SCRATCH is never written")
	assert.Zero(t, acc["SDP_EPF_RINFO"].Writes)
}

func TestSimWatch(t *testing.T) {
	b := open(t, hwsim.Options{Timeline: hwsim.Compressed()}, octep.Config{}, nil)
	b.card.ResetAccesses()
	s := &steps{Device: b.dev, clock: b.card.Clock(), at: 100}
	s.hit = b.card.Kill
	require.ErrorIs(t, octep.Watch(context.Background(), s, s, 100*time.Millisecond), mmio.ErrGone)
	assert.InDelta(t, 3.3, b.card.Clock().Now().Seconds(), 0.3, "two looks and a sleep each time")
	assert.Empty(t, b.card.Accesses(), "config space only")
}

// The info word promises no virtual function, and an hour later the software that
// believed it still runs. A card that shows some is refused.
//
//oxpd:fault F5 behaviour
func TestF5NoVirtualFunctionIsPromised(t *testing.T) {
	b := open(t, hwsim.Options{}, octep.Config{}, nil)
	b.fastPath(t)
	b.card.Advance(time.Hour)
	f, err := b.e.WaitFacility(context.Background(), csr.FacRPC)
	require.NoError(t, err)
	assert.NotEqual(t, csr.AllOnes, f.Load64(0))
	assert.True(t, b.e.FastPathUp())
	assert.Empty(t, b.card.Reports())

	b.card.Store(0, uint64(csr.RInfo), 8, 0x0008000100400000)
	_, err = octep.Open(context.Background(), b.dev, octep.Config{Clock: b.card.Clock()})
	var re *octep.RingInfoError
	assert.ErrorAs(t, err, &re)
}

// A register that somebody has overwritten is no ready target: oxpd says who may
// have been there, waits, writes nothing into it, and goes on once it is restored.
//
//oxpd:fault F24 behaviour
func TestF24OverwrittenPointerIsLeftAlone(t *testing.T) {
	b := open(t, hwsim.Options{Timeline: hwsim.Compressed()}, octep.Config{}, nil)
	b.card.Advance(time.Second)
	b.card.Store(0, uint64(csr.SDPScratch), 8, 0x11223344)
	simtest.Expect(t, b.card, hwsim.ReportScratch)
	var early *octep.EarlierRunError
	require.ErrorAs(t, b.e.CheckFresh(), &early)
	assert.ErrorContains(t, early, "SDP_SCRATCH[0x20180]")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.Error(t, b.e.WaitReady(ctx))
	assert.Zero(t, b.card.Accesses()["SDP_SCRATCH"].Writes-1, "nobody else writes it")

	b.card.Store(0, uint64(csr.SDPScratch), 8, 0x02000000abcdabcd)
	require.NoError(t, b.e.WaitReady(context.Background()))
	_, err := b.e.NewHandshake(nil).Run(context.Background())
	require.NoError(t, err)
	b.card.Advance(time.Second)
	assert.True(t, b.e.FastPathUp())
	assert.EqualValues(t, 2, b.card.Accesses()["SDP_SCRATCH"].Writes)
}

// A card that is held in reset stalls whoever reads a BAR: everything that asks
// whether it is there asks configuration space, and comes back.
//
//oxpd:fault F29 behaviour
func TestF29AbsenceIsSeenInConfigSpace(t *testing.T) {
	b := open(t, hwsim.Options{Timeline: hwsim.Compressed()}, octep.Config{}, nil)
	b.fastPath(t)
	b.card.Faults(func(f *hwsim.Faults) { f.ResetStalls = true })
	b.card.Kill()
	b.card.ResetAccesses()
	done := make(chan struct{})
	go func() {
		defer close(done)
		assert.False(t, octep.Alive(b.dev))
		assert.ErrorIs(t, octep.Watch(context.Background(), b.dev, b.card.Clock(), 100*time.Millisecond), mmio.ErrGone)
		_, err := octep.Open(context.Background(), b.dev, octep.Config{Clock: b.card.Clock()})
		assert.ErrorIs(t, err, mmio.ErrGone)
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Error("a read of a BAR stalls")
		b.card.Close() // which ends it
		<-done
	}
	assert.Empty(t, b.card.Accesses(), "configuration space only")
}
