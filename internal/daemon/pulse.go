package daemon

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"oxpd/ring"
)

// pulse knows whether the workers live: each says so after every turn, of which it
// takes one in a sweep's period at least. Safe for concurrent use.
type pulse struct {
	mu   sync.Mutex
	of   []*atomic.Uint64
	seen []uint64
}

// join adds a worker and returns what it calls.
func (p *pulse) join() (beat func()) {
	n := new(atomic.Uint64)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of, p.seen = append(p.of, n), append(p.seen, ^uint64(0))
	return func() { n.Add(1) }
}

// all tells whether every worker has beaten since the last look. Where there are none,
// all have.
func (p *pulse) all() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	yes := true
	for i, n := range p.of {
		now := n.Load()
		yes = yes && now != p.seen[i]
		p.seen[i] = now
	}
	return yes
}

// A service manager that waits for a sign of life gets pingShare of them in its time.
// Workers are not judged over less than judgeOver: a machine may be busy.
const (
	pingShare = 3
	judgeOver = 20 * ring.SweepPeriod
)

// watchdog tells the service manager that oxpd lives.
type watchdog struct {
	limit time.Duration // how long the service manager waits
	tell  func(state string) error
	// alive tells whether everything has moved since it was asked last; false is the
	// death of the process.
	alive func() bool
	log   *slog.Logger
}

// run pings until ctx ends, by the wall clock, as the service manager waits.
func (w *watchdog) run(ctx context.Context) {
	t := time.NewTicker(w.limit / pingShare)
	defer t.Stop()
	judged, alive := time.Now(), true
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if now := time.Now(); now.Sub(judged) >= judgeOver {
			judged, alive = now, w.alive()
		}
		if !alive {
			w.log.Error("a worker has stopped: the service manager hears nothing, and will end oxpd", "after", w.limit)
			continue
		}
		if err := w.tell("WATCHDOG=1"); err != nil {
			w.log.Warn("the service manager does not hear", "err", err)
		}
	}
}

// alive tells whether oxpd may go on. Without a store it may in any case: what its end
// would cost is worse than a ring that stands still. A life that has ended has no
// workers.
func (d *Daemon) alive() bool {
	d.mu.Lock()
	l := d.life
	d.mu.Unlock()
	return l.pulse.all() || l.ctx.Err() != nil || d.keep.why() != ""
}
