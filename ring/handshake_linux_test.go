package ring

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/mmio"
	"oxpd/internal/simdev"
	"oxpd/octep"
	"oxpd/octep/csr"
	"oxpd/ring/wire"
)

// mortalCard is a card whose host may die, and then does nothing more.
type mortalCard struct {
	octep.Device
	k    *killer
	dead *bool
}

func (c mortalCard) BAR0() mmio.Space { return mortalSpace{killSpace{c.Device.BAR0(), c.k}, c.dead} }

type mortalSpace struct {
	killSpace
	dead *bool
}

func (s mortalSpace) Load64(off uint32) uint64 {
	if *s.dead {
		return 0
	}
	defer watch(s.dead)
	return s.killSpace.Load64(off)
}

func (s mortalSpace) Store64(off uint32, v uint64) {
	if !*s.dead {
		defer watch(s.dead)
		s.killSpace.Store64(off, v)
	}
}

type mortalClock struct {
	killClock
	dead *bool
}

func (c mortalClock) Now() time.Duration {
	defer watch(c.dead)
	return c.killClock.Now()
}

// watch notes a death, so that what is deferred in the dying process does nothing.
func watch(dead *bool) {
	if why := recover(); why != nil {
		*dead = true
		panic(why)
	}
}

// newcomer is a card whose rings are programmed, and whose target listens.
type newcomer struct {
	*rig
	ep   *octep.Endpoint
	dead bool
}

func newNewcomer(t *testing.T) *newcomer {
	t.Helper()
	tl := hwsim.Compressed()
	tl.Poll, tl.Spin = 120*time.Millisecond, 30*time.Millisecond // there are steps of the host in each wait
	r := &rig{t: t, card: hwsim.New(hwsim.Options{Timeline: tl})}
	t.Cleanup(r.card.Close)
	r.mem = newKept(t, r.card)
	r.k = &killer{mem: r.mem}
	r.w = &witness{t: t, k: r.k}
	n := &newcomer{rig: r}
	r.dev = mortalCard{simdev.New(r.card), r.k, &n.dead}
	n.open()
	require.NoError(t, octep.SetBusMaster(r.dev, true))
	r.cfg = Config{BAR0: r.dev.BAR0(), DMA: r.mem, Clock: killClock{r.card.Clock(), r.k}, Sink: r.w, GatherFrames: 16, GatherLarge: 2}
	rings, err := New(r.cfg)
	require.NoError(t, err)
	require.NoError(t, rings.Program(context.Background()))
	require.NoError(t, n.ep.WaitReady(context.Background()))
	r.rings = rings
	return n
}

func (n *newcomer) open() {
	var err error
	n.ep, err = octep.Open(context.Background(), n.dev, octep.Config{Clock: mortalClock{killClock{n.card.Clock(), n.k}, &n.dead}})
	require.NoError(n.t, err)
}

// introduce is what a process does once it has the rings: it makes the handshake, or
// goes on with it, and sets the levels.
func (n *newcomer) introduce(found Adoption) {
	if found.ClocksPerUS != 0 && found.Handshake == 0 {
		return
	}
	h := n.ep.NewHandshake(nil)
	h.Resume(octep.Progress{State: octep.HandshakeState(found.Handshake), ClocksPerUS: found.ClocksPerUS},
		func(p octep.Progress) {
			defer watch(&n.dead)
			n.rings.NoteHandshake(uint8(p.State), p.ClocksPerUS)
		})
	clocks, err := h.Run(context.Background())
	require.NoError(n.t, err)
	require.EqualValues(n.t, 800, clocks)
	require.NoError(n.t, n.rings.SetClocks(clocks))
}

// next is the next process on the same rings.
func (n *newcomer) next() {
	n.dead = false
	n.open()
	require.NoError(n.t, n.ep.WaitReady(context.Background()))
	n.introduce(n.adopt())
}

// A process is killed at every step between the programming of the rings and the end of
// its bring-up, and the one after it too. The coprocessor gets one answer and is never
// left spinning, the clocks are known, and the levels are set.
func TestKilledAtEveryStepOfTheHandshake(t *testing.T) {
	for _, tc := range []struct {
		name   string
		store  bool          // killed at the first store to the records after a step
		pause  time.Duration // until the next process comes
		deaths int           // at least
	}{
		{"at a step, and the next comes at once", false, 0, 30},
		{"at a step, and the next comes later", false, time.Second, 30},
		{"when it writes the record after a step", true, 0, 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			deaths := 0
			for at := 1; ; at++ {
				n := newNewcomer(t)
				n.k.at = at
				if tc.store {
					n.k.onStore(t, func() pages { return pages{"records", 0, 0} })
				}
				if !n.k.run(func() { n.introduce(Adoption{}) }) {
					if n.k.where != "" {
						continue // no store came after that step
					}
					require.Greater(t, at, 20)
					break
				}
				deaths++
				n.card.Advance(tc.pause)
				n.k.run(n.next) // it may die, too
				n.card.Advance(tc.pause)
				n.next()

				n.card.Advance(time.Second)
				require.True(t, n.ep.FastPathUp(), "died at step %d", at)
				require.Empty(t, n.card.Reports(), "died at step %d", at)
				answers := 0
				for _, w := range n.card.HandshakeWrites() {
					if w.Value == octep.InfoWord() {
						answers++
					}
				}
				require.Equal(t, 1, answers, "died at step %d", at)
				for q := range wire.OQs {
					level := n.card.Load(0, uint64(csr.OutIntLevels.Queue(q)), 8)
					require.NotZero(t, csr.OutIntLevelTicks.Get(level), "died at step %d: level of ring %d", at, q)
				}
				found := n.adopt()
				require.Equal(t, Adoption{ClocksPerUS: 800, Watermark: wire.Watermark}, found)
			}
			assert.Greater(t, deaths, tc.deaths)
		})
	}
}
