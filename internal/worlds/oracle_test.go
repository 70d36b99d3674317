package worlds

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
)

func TestLossesAreExplainedOnlyByWhatWasCounted(t *testing.T) {
	for _, tc := range []struct {
		name    string
		lost    losses
		counted map[cause]uint64
		ok      bool
	}{
		{"nothing", nil, nil, true},
		{"each by its own", losses{aboveMTU: 3, ringFull: 2}, map[cause]uint64{aboveMTU: 3, ringFull: 2}, true},
		{"one or the other", losses{aboveMTU | ringFull: 5}, map[cause]uint64{aboveMTU: 3, ringFull: 2}, true},
		{"one more than was counted", losses{aboveMTU: 3}, map[cause]uint64{aboveMTU: 2}, false},
		{"one fewer", losses{aboveMTU: 3}, map[cause]uint64{aboveMTU: 4}, false},
		{"the sum is right and one counter is not", losses{aboveMTU: 3, ringFull: 2}, map[cause]uint64{aboveMTU: 2, ringFull: 3}, false},
		{"what is undecided makes up for it", losses{aboveMTU: 1, aboveMTU | ringFull: 2, ringFull: 2}, map[cause]uint64{aboveMTU: 2, ringFull: 3}, true},
		{"two kinds, neither of which can be a third", losses{noLink | aboveMTU: 2, aboveMTU: 2}, map[cause]uint64{noLink: 1, aboveMTU: 2, ringFull: 1}, false},
		{"a counter that no frame can be in", losses{aboveMTU: 2}, map[cause]uint64{aboveMTU: 1, queueFull: 1}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			assert.Equal(t, tc.ok, tc.lost.explained(tc.counted) == nil)
		})
	}
}

// The highest level in any span of time is what adding up says.
func TestTideIsTheSumAtEachMoment(t *testing.T) {
	r := drawer{rand.New(rand.NewPCG(1, 1))}
	for range 200 {
		var x tide
		var level [64]int
		for range r.IntN(12) {
			from := r.IntN(40)
			to, w := from+r.IntN(20), r.IntN(7)
			end := time.Duration(to)
			if r.one(5) {
				end, to = forever, len(level)-1
			}
			x.add(time.Duration(from), end, w)
			for i := from; i <= to; i++ {
				level[i] += w
			}
		}
		x.settle()
		for range 50 {
			from := r.IntN(60)
			to := from + r.IntN(64-from)
			want := 0
			for _, l := range level[from : to+1] {
				want = max(want, l)
			}
			require.Equal(t, want, x.high(time.Duration(from), time.Duration(to)))
		}
	}
}

// A frame says who it is, whatever it looks like, and no two have the same bytes.
func TestFramesSayWhoTheyAre(t *testing.T) {
	p := newPattern()
	b, seen := make([]byte, longestFrame), map[string]bool{}
	for s := range shapes {
		for n := range 50 {
			f := &flow{n: 3 + int(s), shape: s}
			size := s.least() + n
			got := p.put(b, f, n, size)
			flow, i, ok := mark(got)
			require.True(t, ok)
			require.Equal(t, []int{f.n, n}, []int{flow, i})
			require.False(t, seen[string(got)])
			seen[string(got)] = true
		}
	}
	_, _, ok := mark(make([]byte, leastFrame-1))
	assert.False(t, ok)
}

// An MTU is what it was, or one of two while it is being changed.
func TestMTUBetween(t *testing.T) {
	f1 := board.ByIndex(8)
	w := &world{}
	w.books.init(w, nil)
	w.mtus[f1.Index] = 1500
	w.byPort[f1.Index].mtu = []mtuSpell{{spell{10, 20}, 1500, 9000}, {spell{20, 30}, 9000, 9000}, {spell{30, 40}, 576, 9000}, {spell{40, forever}, 576, 576}}
	for _, tc := range []struct{ from, to, low, high int }{
		{0, 9, 1500, 1500}, {0, 15, 1500, 9000}, {12, 13, 1500, 9000}, {21, 29, 9000, 9000}, {21, 35, 576, 9000}, {41, 99, 576, 576}, {0, 99, 576, 9000},
	} {
		low, high := w.mtuBetween(f1, time.Duration(tc.from), time.Duration(tc.to))
		assert.Equal(t, []int{tc.low, tc.high}, []int{low, high}, "%d to %d", tc.from, tc.to)
	}
}
