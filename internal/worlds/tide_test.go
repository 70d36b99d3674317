package worlds

import (
	"cmp"
	"math/bits"
	"slices"
	"time"
)

// tide is how much of something there is over time: the sum of the weights of all
// spells that a moment lies in, their ends included.
type tide struct {
	marks []tideMark
	times []time.Duration
	most  [][]int // [k][i]: the most over 2^k levels from i on
}

type tideMark struct {
	at time.Duration
	by int
}

func (t *tide) add(from, to time.Duration, weight int) {
	t.marks = append(t.marks, tideMark{from, weight})
	if to != forever {
		t.marks = append(t.marks, tideMark{to + 1, -weight})
	}
}

// settle is to be called after the last add and before the first high.
func (t *tide) settle() {
	slices.SortFunc(t.marks, func(a, b tideMark) int { return cmp.Compare(a.at, b.at) })
	t.times, t.most = t.times[:0], nil
	var levels []int
	level := 0
	for _, m := range t.marks {
		level += m.by
		if n := len(t.times); n > 0 && t.times[n-1] == m.at {
			levels[n-1] = level
			continue
		}
		t.times, levels = append(t.times, m.at), append(levels, level)
	}
	t.most = append(t.most, levels)
	for k := 1; 1<<k <= len(levels); k++ {
		below := t.most[k-1]
		row := make([]int, len(levels)-1<<k+1)
		for i := range row {
			row[i] = max(below[i], below[i+1<<(k-1)])
		}
		t.most = append(t.most, row)
	}
}

// high is the most that there was at any moment between two times.
func (t *tide) high(from, to time.Duration) int {
	// Level i holds from times[i] until the next.
	i, found := slices.BinarySearch(t.times, from)
	if !found && i > 0 {
		i--
	}
	j, found := slices.BinarySearch(t.times, to)
	if found {
		j++
	}
	if j <= i {
		return 0 // all of it is later
	}
	k := bits.Len(uint(j-i)) - 1
	return max(t.most[k][i], t.most[k][j-1<<k])
}
