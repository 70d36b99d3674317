package port

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
)

// stuck is a tap whose writes wait until the test lets them go.
type stuck struct {
	queued
	entered, release chan struct{}
}

func (s *stuck) Write(b []byte) (int, error) {
	close(s.entered)
	<-s.release
	return len(b), nil
}

// A port that is taken away waits for a worker that has a frame of it, and for the
// transmitter's turn, and only a wait counts.
//
//oxpd:fault D27 behaviour
func TestQuiesceCountsItsWaits(t *testing.T) {
	const held = 5 * time.Millisecond
	// waiting lets go of what a goroutine waits for, once it is seen to wait.
	waiting := func(t *testing.T, quiesce func(), waits func() bool, release func()) {
		done := make(chan struct{})
		go func() { defer close(done); quiesce() }()
		eventually(t, "the port is being taken away", waits)
		time.Sleep(held)
		release()
		<-done
	}
	for _, tc := range []struct {
		name string
		run  func(t *testing.T, p *Port, tap *stuck)
		want uint64
	}{
		{"nobody inside", func(t *testing.T, p *Port, _ *stuck) {
			bare(newSlots(255), p).Remove(p)
			require.NoError(t, p.Close())
		}, 0},
		{"a worker has a frame when it is closed", func(t *testing.T, p *Port, tap *stuck) {
			go p.Receive(3, one(ether(60, 0, 0)), 0)
			<-tap.entered
			waiting(t, func() { assert.NoError(t, p.Close()) }, func() bool { return taken(&p.counters.rx[2].mu) }, func() { close(tap.release) })
		}, 1},
		{"the transmitter is in its turn when it is removed", func(t *testing.T, p *Port, _ *stuck) {
			tr := bare(newSlots(255), p)
			p.counters.tx.mu.Lock()
			waiting(t, func() { tr.Remove(p) }, func() bool {
				tr.mu.Lock()
				defer tr.mu.Unlock()
				return len(tr.ports) == 0
			}, p.counters.tx.mu.Unlock)
			require.NoError(t, p.Close())
		}, 1},
		{"removed and closed, each with somebody inside", func(t *testing.T, p *Port, tap *stuck) {
			tr := bare(newSlots(255), p)
			p.counters.tx.mu.Lock()
			waiting(t, func() { tr.Remove(p) }, func() bool {
				tr.mu.Lock()
				defer tr.mu.Unlock()
				return len(tr.ports) == 0
			}, p.counters.tx.mu.Unlock)
			go p.Receive(7, one(ether(60, 0, 0)), 0)
			<-tap.entered
			waiting(t, func() { assert.NoError(t, p.Close()) }, func() bool { return taken(&p.counters.rx[6].mu) }, func() { close(tap.release) })
		}, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tap := &stuck{entered: make(chan struct{}), release: make(chan struct{})}
			p := newPort(Config{Port: board.ByIndex(8)}, tap, deaf{})
			tc.run(t, p, tap)
			s := p.Stats()
			assert.Equal(t, tc.want, s.QuiesceWaits)
			if tc.want == 0 {
				assert.Zero(t, s.QuiesceLongest)
				return
			}
			assert.GreaterOrEqual(t, s.QuiesceLongest, uint64(held/time.Microsecond)/2, "in microseconds")
			assert.Less(t, s.QuiesceLongest, uint64(hang/time.Microsecond))
		})
	}
}

// taken tells whether somebody holds mu.
func taken(mu *sync.Mutex) bool {
	if mu.TryLock() {
		mu.Unlock()
		return false
	}
	return true
}

// The worst wait stays, and is rounded up.
func TestQuiesceKeepsTheLongest(t *testing.T) {
	var c Counters
	c.waits.longest.Store(int64(3*time.Second + 1))
	var mu sync.Mutex
	mu.Lock()
	done := make(chan struct{})
	go func() { defer close(done); c.waits.lock(&mu) }()
	time.Sleep(time.Millisecond)
	mu.Unlock()
	<-done
	assert.EqualValues(t, 3_000_001, c.Stats().QuiesceLongest)
}
