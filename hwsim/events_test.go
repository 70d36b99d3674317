package hwsim

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAgenda(t *testing.T) {
	t.Run("one cycle's events run in the order of arming, of either kind", func(t *testing.T) {
		var a agenda
		var got []int
		for i := range 20 {
			a.arm(newEvent(eventKind(i%2), func() { got = append(got, i) }), 7)
		}
		for e := a.due(7, 7); e != nil; e = a.due(7, 7) {
			a.disarm(e)
			e.fn()
		}
		want := make([]int, 20)
		for i := range want {
			want[i] = i
		}
		assert.Equal(t, want, got)
	})
	t.Run("only the data path runs ahead", func(t *testing.T) {
		var a agenda
		early, onTime := newEvent(flow, nil), newEvent(timely, nil)
		a.arm(onTime, 50)
		a.arm(early, 60)
		require.Same(t, early, a.due(10, 100))
		a.disarm(early)
		assert.Nil(t, a.due(49, 100))
		assert.Same(t, onTime, a.due(50, 100))
	})
	t.Run("moved and removed events keep the order", func(t *testing.T) {
		rng := rand.New(rand.NewPCG(1, 2))
		var a agenda
		events := make([]*event, 200)
		for i := range events {
			events[i] = newEvent(flow, nil)
			a.arm(events[i], rng.Uint64N(1000))
		}
		left := len(events)
		for i, e := range events {
			switch i % 3 {
			case 0:
				a.arm(e, rng.Uint64N(1000))
			case 1:
				a.disarm(e)
				a.disarm(e)
				left--
			}
		}
		last := uint64(0)
		for ; left > 0; left-- {
			e := a.first(flow)
			require.GreaterOrEqual(t, e.at, last)
			last = e.at
			a.disarm(e)
		}
		assert.Nil(t, a.first(flow))
	})
}
