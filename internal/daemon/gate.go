package daemon

import (
	"context"
	"sync"
	"time"
)

// visitLimit bounds, by the wall clock, how long the stop sequence waits for
// control requests that use the card: one command that is on its way, 2 s.
const visitLimit = 5 * time.Second

// gate lets control requests use the card beside the daemon's own tasks, until
// the end. Nothing that they use is released while one is inside.
type gate struct {
	mu     sync.Mutex
	inside int
	shut   bool
	empty  chan struct{} // closed once the gate is shut and nobody is inside

	ending context.Context // of everybody inside; ended by close
	end    context.CancelFunc
}

func newGate() *gate {
	g := &gate{empty: make(chan struct{})}
	g.ending, g.end = context.WithCancel(context.Background())
	return g
}

// enter lets a request in, unless the gate is shut. Its context is ctx and ends
// with the gate as well; leave is called once, when the card is not used any more.
func (g *gate) enter(ctx context.Context) (visit context.Context, leave func(), ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut {
		return nil, nil, false
	}
	g.inside++
	visit, cancel := context.WithCancel(ctx)
	unhook := context.AfterFunc(g.ending, cancel)
	return visit, func() {
		unhook()
		cancel()
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.inside--; g.shut && g.inside == 0 {
			close(g.empty)
		}
	}, true
}

// close shuts the gate, tells those inside, and waits for them, no longer than
// limit. It reports whether nobody is inside. It may be called again.
func (g *gate) close(limit time.Duration) bool {
	g.mu.Lock()
	if !g.shut {
		g.shut = true
		g.end()
		if g.inside == 0 {
			close(g.empty)
		}
	}
	g.mu.Unlock()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-g.empty:
		return true
	case <-timer.C:
	}
	select {
	case <-g.empty: // at the same moment
		return true
	default:
		return false
	}
}
