package daemon

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
	"oxpd/internal/daemon/config"
	"oxpd/lif"
	"oxpd/rpc/msg"
)

// tables is the coprocessor's table of all LIFs.
type tables struct {
	of       [board.Ports]*fakeTable
	commands int
	at       int    // the command in front of which do is called
	do       func() // once
}

func (f *tables) entry(index uint32) *fakeTable {
	if f.commands++; f.do != nil && f.commands >= f.at {
		do := f.do
		f.do = nil
		do()
	}
	for _, p := range board.All() {
		if uint32(p.LIF()) == index {
			return f.of[p.Index]
		}
	}
	panic(fmt.Sprintf("no port has LIF %d", index))
}

func (f *tables) LIFRead(ctx context.Context, index uint32) (msg.LIF, bool, error) {
	return f.entry(index).LIFRead(ctx, index)
}

func (f *tables) LIFUpdate(ctx context.Context, r msg.LIFUpdateReq) error {
	return f.entry(r.Index).LIFUpdate(ctx, r)
}

func (f *tables) PPort(ctx context.Context, p msg.PPort) error { return nil }

// board12 are twelve owners under one reconciler, in simulated time.
type board12 struct {
	*Daemon
	clk    *leapClock
	table  *tables
	agents [board.Ports]*fakeAgent
	uplink *fakeAgent
	ifaces [board.Ports]*fakeIface
	rounds rounds
	log    []string
}

func newBoard12() *board12 {
	b := &board12{clk: &leapClock{}, table: &tables{}}
	logger := slog.New(slog.NewTextHandler(io.Discard, nil))
	b.uplink = &fakeAgent{log: &b.log, up: true}
	b.Daemon = &Daemon{clock: b.clk, cfg: config.Default(), log: logger, life: &life{agent: b.uplink}, lifs: lif.New(lif.Config{Table: b.table, Clock: b.clk, Logger: logger})}
	for _, p := range board.All() {
		t, a, i := &fakeTable{log: &b.log}, &fakeAgent{log: &b.log}, &fakeIface{}
		b.table.of[p.Index], b.agents[p.Index], b.ifaces[p.Index] = t, a, i
		b.owners[p.Index] = newOwner(ownerConfig{
			port: p, agent: a, lifs: b.lifs, clock: b.clk, log: logger, limit: func() lif.SwitchLimit { return lif.SwitchLimit{} }, lost: b.foundLost,
			attach: func(_ context.Context, _ board.Port, mac [6]byte, mtu int) (iface, error) {
				*i = fakeIface{log: &b.log, mtu: mtu, limit: mtu, mac: mac}
				return i, nil
			},
			detach: func(board.Port, iface) {},
		})
	}
	return b
}

// wipe is a start of the fast path: no LIF, and NetAgent knows nothing of before.
func (b *board12) wipe() {
	for i := range b.table.of {
		b.table.of[i].present, b.table.of[i].entry = false, msg.LIF{}
		b.agents[i].start()
	}
	b.uplink.up = false
}

// tick is the least time that the reconciler sleeps, and what it marks then.
func (b *board12) tick(t *testing.T) {
	t.Helper()
	b.clk.now += waitingTick
	require.NoError(t, b.turn(context.Background(), &b.rounds))
	for marked := true; marked; {
		marked = false
		for _, o := range b.owners {
			marked = marked || o.marks != 0
			o.heed(context.Background())
		}
	}
}

// whole tells what is not as it is wanted, nil when everything is.
func (b *board12) whole() error {
	for i, o := range b.owners {
		e, a := b.table.of[i], b.agents[i]
		switch w := o.want; {
		case !o.snapshot().up:
			return fmt.Errorf("%s waits: %w", o.port, o.snapshot().err)
		case !e.present:
			return fmt.Errorf("%s: no LIF", o.port)
		case e.entry != msg.LIF{MAC: w.mac, MTU: uint16(w.mtu), Fwd: w.mode()}:
			return fmt.Errorf("%s: LIF is %+v, want %+v", o.port, e.entry, w)
		case !a.up, a.promisc != w.promisc, a.allMulti != w.allMulti, a.mac != [6]byte{} && a.mac != w.mac:
			return fmt.Errorf("%s: NetAgent has %+v, want %+v", o.port, *a, w)
		}
	}
	return nil
}

// until runs the reconciler until everything is as wanted and returns how long that took.
func (b *board12) until(t *testing.T, limit time.Duration) time.Duration {
	t.Helper()
	began := b.clk.now
	for b.whole() != nil {
		b.tick(t)
		if b.clk.now-began > limit {
			require.NoError(t, b.whole(), "after %v", b.clk.now-began)
		}
	}
	return b.clk.now - began
}

// TestFastPathThatStartsAnew wipes everything at moments chosen by a seed.
func TestFastPathThatStartsAnew(t *testing.T) {
	t.Parallel()
	const seeds = 200
	period := time.Duration(config.Default().Reconcile)
	up := func(t *testing.T) *board12 {
		b := newBoard12()
		for _, o := range b.owners {
			require.NoError(t, o.provision(context.Background()))
		}
		require.NoError(t, b.whole())
		return b
	}
	worst := func(t *testing.T, limit time.Duration, run func(t *testing.T, rng *rand.Rand) *board12) {
		var most time.Duration
		for seed := range uint64(seeds) {
			b := run(t, rand.New(rand.NewPCG(seed, 0)))
			if took := b.until(t, limit); took > most {
				most = took
			}
			require.False(t, t.Failed(), "seed %d", seed)
			// It stays so, and it was not looked at more often than it had to be.
			for end := b.clk.now + quickPause + waitingTick; !b.uplink.up; b.tick(t) {
				require.LessOrEqual(t, b.clk.now, end, "the uplink is not raised, seed %d", seed)
			}
			for range 20 {
				b.tick(t)
			}
			commands := b.table.commands
			for range 4 * 12 {
				b.tick(t)
			}
			require.NoError(t, b.whole(), "seed %d", seed)
			require.LessOrEqual(t, b.table.commands-commands, 12, "one read a period, seed %d", seed)
		}
		t.Logf("whole again after %v at most", most)
	}
	t.Run("at rest, with ports set up in every way: within one period", func(t *testing.T) {
		worst(t, period, func(t *testing.T, rng *rand.Rand) *board12 {
			b := up(t)
			for _, i := range b.ifaces {
				i.isUp, i.promisc, i.allMulti = rng.IntN(2) == 0, rng.IntN(2) == 0, rng.IntN(2) == 0
				if i.mtu = 1500; rng.IntN(2) == 0 {
					i.mtu, i.mac[5] = 9000, i.mac[5]|0x40
				}
			}
			for _, o := range b.owners {
				require.NoError(t, o.follow(context.Background(), false))
			}
			for range rng.IntN(20) {
				b.tick(t)
			}
			b.wipe()
			return b
		})
	})
	t.Run("in the middle of changes of the MTU", func(t *testing.T) {
		worst(t, period, func(t *testing.T, rng *rand.Rand) *board12 {
			b := up(t)
			wiped := false
			b.table.at, b.table.do = b.table.commands+1+rng.IntN(40), func() { b.wipe(); wiped = true }
			for !wiped {
				o := b.owners[rng.IntN(len(b.owners))]
				old := o.want.mtu
				if err := o.setMTU(context.Background(), 1000+rng.IntN(8000), false); err != nil {
					require.True(t, wiped, "%v", err)
					require.Equal(t, old, o.want.mtu, "a change that fails leaves the old one")
				}
				if rng.IntN(4) == 0 {
					b.tick(t)
				}
			}
			return b
		})
	})
	t.Run("in the middle of provisioning: a try that failed pauses", func(t *testing.T) {
		worst(t, period+retryFirst, func(t *testing.T, rng *rand.Rand) *board12 {
			b := newBoard12()
			b.table.at, b.table.do = 1+rng.IntN(36), b.wipe
			for _, o := range b.owners {
				_ = o.provision(context.Background())
			}
			if b.table.do != nil {
				b.table.do = nil
				b.wipe()
			}
			return b
		})
	})
	t.Run("again, while it is being repaired", func(t *testing.T) {
		worst(t, period+retryFirst, func(t *testing.T, rng *rand.Rand) *board12 {
			b := up(t)
			b.wipe()
			again := false
			b.table.at, b.table.do = b.table.commands+1+rng.IntN(50), func() { b.wipe(); again = true }
			for !again {
				b.tick(t)
			}
			return b
		})
	})
	t.Run("NetAgent alone", func(t *testing.T) {
		worst(t, period, func(t *testing.T, rng *rand.Rand) *board12 {
			b := up(t)
			b.ifaces[3].promisc = true
			require.NoError(t, b.owners[3].follow(context.Background(), false))
			for range rng.IntN(20) {
				b.tick(t)
			}
			for _, a := range b.agents {
				a.start()
			}
			b.uplink.up = false
			return b
		})
	})
	t.Run("a LIF that somebody changes is put right when its turn comes", func(t *testing.T) {
		worst(t, 13*period, func(t *testing.T, rng *rand.Rand) *board12 {
			b := up(t)
			e := b.table.of[rng.IntN(len(b.table.of))]
			e.entry.MAC[0] ^= 4
			e.entry.MTU, e.entry.Fwd = 7000, msg.FwdL2
			return b
		})
	})
}

// TestLIFThatGoesOnVanishing is put back for ever, and the others are not looked at
// every 2 s because of it for ever.
func TestLIFThatGoesOnVanishing(t *testing.T) {
	b := newBoard12()
	for _, o := range b.owners {
		require.NoError(t, o.provision(context.Background()))
	}
	reads := 0
	count := func(d time.Duration) int {
		reads = 0
		for end := b.clk.now + d; b.clk.now < end; b.tick(t) {
			b.table.of[3].present = false
		}
		return reads
	}
	b.table.of[9].read = func() { reads++ }
	quick := quickTries * quickPause
	assert.InDelta(t, quickTries, count(quick), 15, "of a port that has lost nothing")
	assert.LessOrEqual(t, count(10*time.Minute), 10*60/12+3, "its turn")
	b.until(t, 13*time.Second)
	for range 4 * 3 * 13 {
		b.tick(t) // every port has had a turn without a loss
	}
	b.wipe()
	assert.LessOrEqual(t, b.until(t, 2*time.Second), time.Second, "and the next start of the fast path is found as ever")
}

// A port that was just raised takes every other turn
// until it has a link.
func TestPortThatWasRaisedIsLookedAtSoon(t *testing.T) {
	b := newBoard12()
	assert.Nil(t, b.training(0), "nothing is up")
	for _, o := range b.owners {
		require.NoError(t, o.provision(context.Background()))
	}
	assert.Nil(t, b.training(0), "what the bring-up raised waits for its turn")
	b.clk.now = time.Minute
	o := b.owners[4]
	require.NoError(t, o.setUp(context.Background(), false))
	assert.Nil(t, b.training(0))
	require.NoError(t, o.setUp(context.Background(), true))
	assert.Equal(t, o, b.training(0))
	assert.Equal(t, o, b.training(7))
	require.NoError(t, o.setLink(true))
	assert.Nil(t, b.training(0), "it has its link")
	require.NoError(t, o.setLink(false))
	assert.Equal(t, o, b.training(0))
	b.clk.now += trainTime
	assert.Nil(t, b.training(0), "nobody is there")
	o = b.owners[7]
	o.ifaceGone()
	require.NoError(t, o.provision(context.Background()))
	assert.Equal(t, o, b.training(0), "its interface was made again")
}

// TestLossThatIsFoundAtTheEndOfARush is looked into as the first one is.
func TestLossThatIsFoundAtTheEndOfARush(t *testing.T) {
	b := newBoard12()
	for _, o := range b.owners {
		require.NoError(t, o.provision(context.Background()))
	}
	b.rush.Store(true)
	last := b.owners[len(b.owners)-1]
	last.mu.Lock() // who counts the losses waits here
	counted := make(chan bool)
	go func() { counted <- b.lookAgain(b.clk.now, &b.rounds) }()
	ending := assert.Eventually(t, func() bool { return !b.rush.Load() }, hang, time.Millisecond, "whoever finds one now starts a rush")
	found := make(chan struct{})
	go func() { b.owners[0].forgotten("lif", "absent"); close(found) }()
	if ending {
		require.Eventually(t, b.rush.Load, hang, time.Millisecond)
	}
	last.mu.Unlock()
	<-counted
	<-found
	assert.True(t, b.rush.Load())
	for _, o := range b.owners {
		assert.Equal(t, markReconcile, o.marks&markReconcile, o.port.Name)
	}
}
