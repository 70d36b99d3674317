package ring

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/dma"
	"oxpd/internal/simdev"
	"oxpd/octep"
	"oxpd/octep/csr"
	"oxpd/ring/wire"
)

// stock is memory that serves one card after another: to map it anew each time takes
// longer than everything else.
type stock struct {
	*kept
	made map[string][]*dma.Region // by name, in the order of their allocation
	used map[string]int           // of made, by the card at hand
}

func newStock(t *testing.T) *stock {
	return &stock{kept: newKept(t, nil), made: map[string][]*dma.Region{}}
}

// serve gives the memory to a card that has had none.
func (s *stock) serve(card *hwsim.Card) {
	s.card, s.used, s.regions = card, map[string]int{}, map[string]*dma.Region{}
}

func (s *stock) Alloc(name string, size, align int) (*dma.Region, error) {
	i := s.used[name]
	s.used[name]++
	if i == len(s.made[name]) {
		r, err := s.kept.Alloc(name, size, align)
		if err == nil {
			s.made[name] = append(s.made[name], r)
		}
		return r, err
	}
	r := s.made[name][i]
	if name == "records" {
		mem, _ := r.At(0, r.Size())
		clear(mem)
	}
	s.regions[name] = r
	return r, s.card.MapDMA(uint64(r.Bus()), s.far[r])
}

// lost is memory of which the process before left nothing.
type lost struct{ *stock }

func (lost) Held(name string, _, _ int) (*dma.Region, error) {
	return nil, fmt.Errorf("find %s: %w", name, dma.ErrNotHeld)
}

// start is what a process does from its beginning to the end of the handshake: it
// looks for an earlier run, programs the rings of a boot that has known none, goes on
// with those that it finds, and refuses what is left.
func (n *newcomer) start(memory dma.Provider) error {
	n.dead = false
	n.open()
	n.cfg.DMA = memory
	err := n.ep.CheckFresh()
	var found Adoption
	var rings *Rings
	if err == nil {
		if rings, err = New(n.cfg); err != nil {
			return err
		}
		if err = octep.SetBusMaster(n.dev, true); err != nil {
			return err
		}
		err = rings.Program(context.Background())
	} else {
		var adopted error
		if rings, found, adopted = Adopt(context.Background(), n.cfg); adopted == nil {
			err = nil
		}
	}
	if err != nil {
		return err
	}
	n.rings = rings
	if err := n.ep.WaitReady(context.Background()); err != nil {
		return err
	}
	n.introduce(found)
	return nil
}

// newBoot is a card out of reset, and memory that no process has had yet. Hundreds of
// them must not wait for the end of the test: whoever is done with one closes it.
func newBoot(t *testing.T, s *stock) *newcomer {
	t.Helper()
	tl := hwsim.Compressed()
	tl.Poll, tl.Spin = 120*time.Millisecond, 30*time.Millisecond
	r := &rig{t: t, card: hwsim.New(hwsim.Options{Timeline: tl})}
	s.serve(r.card)
	r.mem = s.kept
	r.k = &killer{mem: r.mem}
	r.w = &witness{t: t, k: r.k}
	n := &newcomer{rig: r}
	r.dev = mortalCard{simdev.New(r.card), r.k, &n.dead}
	r.cfg = Config{BAR0: r.dev.BAR0(), Clock: killClock{r.card.Clock(), r.k}, Sink: r.w, GatherFrames: 16, GatherLarge: 2}
	return n
}

// addresses are the base addresses that the card shows, of both halves.
func (n *newcomer) addresses() (at [2 * wire.OQs]uint64) {
	for q := range wire.OQs {
		at[2*q] = n.card.Load(0, uint64(csr.InInstrBaddr.Queue(q)), 8)
		at[2*q+1] = n.card.Load(0, uint64(csr.OutSlistBaddr.Queue(q)), 8)
	}
	return at
}

// Never possible: a ring re-armed. A process dies at each access to the card between
// its first look and the end of the handshake, and two more come after it, with the
// memory that it left or without any. Once a ring has an address it never gets another
// one in that boot of the coprocessor: the next process goes on with it, or refuses.
//
//oxpd:fault F6 behaviour
func TestNeverARingArmedAgain(t *testing.T) {
	for name, memory := range map[string]func(s *stock) dma.Provider{
		"its memory is kept": func(s *stock) dma.Provider { return s },
		"its memory is gone": func(s *stock) dma.Provider { return lost{s} },
	} {
		t.Run(name, func(t *testing.T) {
			adopted, refused, fresh, mem := 0, 0, 0, newStock(t)
			step := 1
			if raceEnabled {
				step = 7
			}
			for at := 1; ; at += step {
				n := newBoot(t, mem)
				n.k.at = at
				died := n.k.run(func() { require.NoError(t, n.start(mem)) })
				armed := n.addresses()
				for range 2 {
					n.card.Advance(time.Second) // the host port opens, when the handshake is over
					err := n.start(memory(mem))
					now := n.addresses()
					for i, before := range armed {
						if before != 0 {
							require.Equal(t, before, now[i], "died at access %d (%s)", at, n.k.where)
						}
					}
					var early *octep.EarlierRunError
					var hs *octep.HandshakeError
					switch {
					case err != nil:
						require.True(t, errors.As(err, &early) || errors.As(err, &hs), "died at access %d (%s): %v", at, n.k.where, err)
						refused++
					case armed == [2 * wire.OQs]uint64{}:
						fresh++
					default:
						adopted++
					}
					armed = now
				}
				n.card.Advance(time.Second)
				require.Empty(t, n.card.Reports(), "died at access %d (%s)", at, n.k.where)
				n.card.Close()
				if !died {
					require.Greater(t, at, 300)
					break
				}
			}
			t.Logf("%d times programmed afresh, %d adopted, %d refused", fresh, adopted, refused)
			assert.Positive(t, fresh)
			assert.Positive(t, refused)
			assert.Equal(t, name == "its memory is kept", adopted > 0)
		})
	}
	t.Run("torn down in order: refused until the coprocessor is reset", func(t *testing.T) {
		mem := newStock(t)
		n := newBoot(t, mem)
		defer n.card.Close()
		require.NoError(t, n.start(mem))
		n.card.Advance(time.Second)
		require.NoError(t, n.rings.Teardown())
		var early *octep.EarlierRunError
		require.ErrorAs(t, n.start(mem), &early)
		assert.Empty(t, n.card.Reports())
		n.card.Reboot()
		require.NoError(t, n.start(mem))
		n.card.Advance(time.Second)
		assert.True(t, n.ep.FastPathUp())
		assert.Empty(t, n.card.Reports())
	})
}
