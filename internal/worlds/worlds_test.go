package worlds

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
)

var bg = context.Background()

var (
	seedFlag  = flag.Uint64("seed", 1, "the world of TestWorld; the first one of TestWorlds")
	seedsFlag = flag.Int("seeds", 0, "how many worlds TestWorlds runs; 0: 2,000, with -short 200")
)

// Worlds of one run of the tests.
const (
	allSeeds   = 2000
	shortSeeds = 200
	raceSeeds  = 100 // a world is one goroutine
)

// soakEnv makes TestFreshWorlds run for a duration such as 1h.
const soakEnv = "OXPD_SOAK"

// failedFile is where TestFreshWorlds adds the seeds that failed, one a line.
const failedFile = "failed-seeds.txt"

// TestWorlds runs worlds side by side and shows some of each rule that was broken.
func TestWorlds(t *testing.T) {
	n := allSeeds
	switch {
	case *seedsFlag > 0:
		n = *seedsFlag
	case raceDetector:
		n = raceSeeds
	case testing.Short():
		n = shortSeeds
	}
	first := *seedFlag
	var next atomic.Uint64
	var mu sync.Mutex
	bad := map[uint64]*violation{}
	met := meetings{}
	many(runtime.GOMAXPROCS(0), func(r *reuse) bool {
		i := next.Add(1) - 1
		if i >= uint64(n) {
			return false
		}
		w, v := live(draw(first+i), r)
		mu.Lock()
		defer mu.Unlock()
		if v != nil {
			bad[first+i] = v
			return true
		}
		met.add(w)
		return true
	})
	rules := map[string]int{}
	for s := first; s < first+uint64(n); s++ {
		if v := bad[s]; v != nil {
			if rules[v.rule]++; rules[v.rule] <= 3 {
				t.Errorf("%v\n%s", v, again(s))
			}
		}
	}
	if len(bad) > 0 {
		t.Errorf("%d of %d worlds broke a rule: %v", len(bad), n, rules)
	}
	t.Log(met)
	if n >= allSeeds {
		for _, what := range meant {
			assert.GreaterOrEqual(t, met[what], 10, "worlds with %s", what)
		}
	}
}

// meetings count worlds by what happened in them.
type meetings map[string]int

// meant is what worlds are for: a thing that happens in none of them tests nothing.
var meant = []string{
	"frames in", "frames out", "frames of several buffers", "more than a thousand frames", "all twelve ports",
	"pfil_dropped", "rx_untagged", "rx_long", "rx_short", "rx_resync", "oq_unseen", "oq_behind", "credit_capped", "rxwd_rescues", "tx_iq_full", "MTU changes",
	"drop", "pass", "divert", "sample", "count", "a drop on transmit", "a filter that changes", "counters kept by a rule",
	"accepted by an engine", "dropped by an engine", "replaced", "a replacement of no length", "passed by a full queue", "dropped by a full queue", "the engine goes",
	"MTU changes that fail", "no link", "too long for the switch", "a foreign address", "above the MTU", "a host ring is full", "an egress queue is full", "a fault", "no LIF",
}

func (m meetings) add(w *world) {
	s := w.rings.Stats()
	ports := 0
	for p := range w.byPort {
		if len(w.byPort[p].in)+len(w.byPort[p].out) > 0 {
			ports++
		}
	}
	st := w.lifs.Stats()
	for what, n := range map[string]uint64{
		"frames in": s.Delivered, "frames out": s.TxPosted, "frames of several buffers": s.Spans, "pfil_dropped": s.Dropped,
		"rx_untagged": s.Untagged, "rx_long": s.Long, "rx_short": s.Short, "rx_resync": s.Resync, "oq_unseen": s.Unseen, "oq_behind": s.Behind,
		"credit_capped": s.Capped, "rxwd_rescues": s.WdRescues, "tx_iq_full": s.TxFull, "MTU changes": st.MTUChanges, "MTU changes that fail": st.Refused + st.Mismatches,
		"more than a thousand frames": (s.Done + s.TxPosted) / 1000, "all twelve ports": uint64(ports / board.Ports),
	} {
		if n > 0 {
			m[what]++
		}
	}
	for what, n := range w.gate.said {
		if n > 0 {
			m[what]++
		}
	}
	for what, n := range map[string]int{"a drop on transmit": w.barredOut, "a filter that changes": w.gate.changes, "counters kept by a rule": w.gate.kept} {
		if n > 0 {
			m[what]++
		}
	}
	for what, n := range w.inspect.met() {
		if n > 0 {
			m[what]++
		}
	}
	for i, n := range w.lostBy {
		if n > 0 {
			m[causeNames[i]]++
		}
	}
}

// many calls fn on so many goroutines until it returns false on each.
func many(goroutines int, fn func(r *reuse) bool) {
	p := newPattern()
	var wg sync.WaitGroup
	for range goroutines {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for r := newReuse(p); fn(r); {
			}
		}()
	}
	wg.Wait()
}

// again is the command that runs one world once more.
func again(seed uint64) string {
	return fmt.Sprintf("go test ./internal/worlds -run 'TestWorld$' -seed=%d", seed)
}

// TestWorld runs one world. Of one that breaks a rule it says what it was, and what
// is left of it when all events that the failure does not need are dropped.
func TestWorld(t *testing.T) {
	r := newReuse(newPattern())
	p := draw(*seedFlag)
	_, v := live(p, r)
	if v == nil {
		return
	}
	t.Logf("world %d\n%s", p.seed, p.String())
	t.Errorf("%v\n%s", v, again(p.seed))
	small, left := shrink(p, v, r)
	t.Logf("the same rule is broken with %d of %d events, at %v: %s\n%s", len(small.events), len(p.events), left.at, left.what, small.String())
}

// shrink drops events of a world as long as it breaks the same rule.
func shrink(p plan, v *violation, r *reuse) (plan, *violation) {
	for step := max(1, len(p.events)/2); ; {
		dropped := false
		for i := 0; i+step <= len(p.events); {
			q := p
			q.events = append(append([]event(nil), p.events[:i]...), p.events[i+step:]...)
			if _, x := live(q, r); x != nil && x.rule == v.rule {
				p, v, dropped = q, x, true
				continue
			}
			i += step
		}
		if step == 1 && !dropped {
			break
		}
		step = max(1, step/2)
	}
	used := map[int]bool{}
	for _, e := range p.events {
		if e.kind == evBurst {
			used[e.n] = true
		}
	}
	p.shown = used
	return p, v
}

// TestFreshWorlds runs worlds that no run before has seen, as long as the environment
// says, and keeps those that fail.
func TestFreshWorlds(t *testing.T) {
	s := os.Getenv(soakEnv)
	if s == "" {
		t.Skip("runs by make soak")
	}
	d, err := time.ParseDuration(s)
	require.NoError(t, err, soakEnv)
	end := time.Now().Add(d)
	var next, failed atomic.Uint64
	first := uint64(time.Now().UnixNano())
	var mu sync.Mutex
	// The other half of the cores is the other soak's.
	many(max(1, runtime.GOMAXPROCS(0)/2), func(r *reuse) bool {
		if time.Now().After(end) {
			return false
		}
		seed := first + next.Add(1)
		if _, v := live(draw(seed), r); v != nil {
			mu.Lock()
			defer mu.Unlock()
			if failed.Add(1) <= 20 {
				t.Errorf("%v\n%s", v, again(seed))
			}
			f, err := os.OpenFile(failedFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
			if assert.NoError(t, err) {
				_, err = fmt.Fprintln(f, seed)
				assert.NoError(t, err)
				assert.NoError(t, f.Close())
			}
		}
		return true
	})
	t.Logf("%d worlds from seed %d on, %d broke a rule", next.Load(), first+1, failed.Load())
	if failed.Load() > 0 {
		t.Logf("their seeds are in internal/worlds/%s", failedFile)
	}
}

// TestOneSeedIsOneWorld runs some worlds twice.
func TestOneSeedIsOneWorld(t *testing.T) {
	r := newReuse(newPattern())
	for seed := uint64(1); seed <= 20; seed++ {
		a, v := live(draw(seed), r)
		require.Nil(t, v, again(seed))
		b, v := live(draw(seed), r)
		require.Nil(t, v, again(seed))
		require.Equal(t, a.trace(), b.trace(), again(seed))
	}
}
