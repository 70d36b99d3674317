package daemon

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/daemon/client"
	"oxpd/ring/wire"
)

func TestBusyMeter(t *testing.T) {
	var m busyMeter
	slept := [2]time.Duration{time.Hour, 0}
	now := 7 * time.Second
	m.sample(now)
	assert.Nil(t, m.show(), "no workers")
	for i := range slept {
		m.of = append(m.of, sleeper{rings: []int{i, i + 2}, slept: func() time.Duration { return slept[i] }, then: slept[i]})
	}
	m.at = now
	for _, tc := range []struct {
		name  string
		wall  time.Duration
		slept [2]time.Duration
		want  []float64
		of    float64
	}{
		{"too short to say anything", 900 * time.Millisecond, [2]time.Duration{0, 900 * time.Millisecond}, nil, 0},
		{"busy, and idle", 4100 * time.Millisecond, [2]time.Duration{500 * time.Millisecond, 4 * time.Second}, []float64{90, 2}, 5},
		{"a sleep that began before", 5 * time.Second, [2]time.Duration{5050 * time.Millisecond, 2500 * time.Millisecond}, []float64{0, 50}, 5},
		{"an interval that came late", 7500 * time.Millisecond, [2]time.Duration{7 * time.Second, 0}, []float64{6.7, 100}, 7.5},
	} {
		now += tc.wall
		slept[0], slept[1] = slept[0]+tc.slept[0], slept[1]+tc.slept[1]
		m.sample(now)
		var want []client.WorkerBusy
		for i, p := range tc.want {
			want = append(want, client.WorkerBusy{Rings: []int{i, i + 2}, Percent: p, Seconds: tc.of})
		}
		assert.Equal(t, want, m.show(), tc.name)
	}
}

func TestStatusShowsHowBusyWorkersAre(t *testing.T) {
	t.Parallel()
	r := start(t, rigOptions{}).running()
	var busy []client.WorkerBusy
	r.wait("a whole interval", func() bool {
		busy = r.status().Busy
		return busy != nil
	})
	require.Len(t, busy, r.status().Workers)
	served := map[int]bool{}
	for _, w := range busy {
		for _, q := range w.Rings {
			served[q] = true
		}
		assert.GreaterOrEqual(t, w.Seconds, 1.0)
		assert.Less(t, w.Percent, 100.0, "nothing comes: it has slept")
	}
	assert.Len(t, served, wire.OQs)
}
