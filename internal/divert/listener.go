package divert

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// ListenerConfig is what a listener needs. Path, Queue and Clock are required.
type ListenerConfig struct {
	Path  string
	Queue *Queue
	Clock Clock
	Wall  func() time.Time // nil: time.Now
	Log   *slog.Logger     // nil discards

	HelloLimit time.Duration // an engine's time to say Hello; 0: 5 s

	// Tests put in what fails. nil: the kernel's.
	Send      func(m messages, fd, from, end int) (int, error)
	SetBuffer func(fd, option, size int) error
}

// messages is a batch that can be sent.
type messages interface {
	Send(fd, from, end int) (int, error)
}

// Listener is a socket that engines connect to, and the way of a queue's frames to the
// one that is connected. Its methods are safe for concurrent use.
type Listener struct {
	cfg ListenerConfig
	ln  net.Listener
	log *slog.Logger

	mu     sync.Mutex
	engine *Engine
	warned time.Duration // when a malformed message was last spoken of
	ever   bool

	stats struct{ again, noBufs, bad, refused atomic.Uint64 }
}

// Engine is what is connected.
type Engine struct {
	Name   string // as it says
	PID    int    // 0 when the kernel does not say
	Since  time.Time
	Asked  int // buffer-size when it connected; 0: the kernel's default
	Buffer int // SO_SNDBUF as the kernel tells it: twice what it granted

	conn syscall.Conn
	left chan struct{} // closed when it is attached no more
}

// here is why another is refused.
func (e *Engine) here() error {
	return fmt.Errorf("engine %q (pid %d) is at this socket", e.Name, e.PID)
}

// ListenerStats counts events at a listener.
type ListenerStats struct {
	SendAgain   uint64 // sends that found the socket full (EAGAIN)
	SendNoBufs  uint64 // sends that found no kernel memory (ENOBUFS, ENOMEM)
	BadMessages uint64 // of engines, malformed: nothing of them was used
	Refused     uint64 // connections
}

// badPeriod is the shortest time between two lines about malformed messages.
const badPeriod = time.Second

func newListener(cfg ListenerConfig, ln net.Listener) *Listener {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	if cfg.Wall == nil {
		cfg.Wall = time.Now
	}
	if cfg.HelloLimit == 0 {
		cfg.HelloLimit = helloLimit
	}
	if cfg.Send == nil {
		cfg.Send = messages.Send
	}
	if cfg.SetBuffer == nil {
		cfg.SetBuffer = setSendBuffer
	}
	return &Listener{cfg: cfg, ln: ln, log: cfg.Log.With("socket", cfg.Path)}
}

// Path is where the socket is.
func (l *Listener) Path() string { return l.cfg.Path }

// Queue is the listener's.
func (l *Listener) Queue() *Queue { return l.cfg.Queue }

// Engine is what is connected, nil when nothing is.
func (l *Listener) Engine() *Engine {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.engine
}

// Stats reads the listener's counters.
func (l *Listener) Stats() ListenerStats {
	return ListenerStats{
		SendAgain: l.stats.again.Load(), SendNoBufs: l.stats.noBufs.Load(), BadMessages: l.stats.bad.Load(), Refused: l.stats.refused.Load(),
	}
}

// take makes e the engine, unless there is one, which it returns.
func (l *Listener) take(e *Engine) (other *Engine) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.engine != nil {
		return l.engine
	}
	l.engine = e
	return nil
}

// leave makes room for another engine.
func (l *Listener) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.engine.left)
	l.engine = nil
}

// bad counts a message that could not be used, and speaks of it now and then.
func (l *Listener) bad(err error) {
	l.stats.bad.Add(1)
	now := l.cfg.Clock.Now()
	l.mu.Lock()
	speak := !l.ever || now-l.warned >= badPeriod
	if speak {
		l.ever, l.warned = true, now
	}
	l.mu.Unlock()
	if speak {
		l.log.Warn("engine sent what is no verdicts: nothing of it is used", "err", err, "bad_messages", l.stats.bad.Load())
	}
}
