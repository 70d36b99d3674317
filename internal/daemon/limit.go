package daemon

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

// limited keeps no more than a number of connections at a time. When they are all
// taken and another one comes, the one that has been waiting longest for its
// client to finish its request gives way, once it has had its grace: clients that
// open a connection and say nothing hold up nobody for long. One whose request is
// being answered is never closed; if they all are, the newcomer waits.
type limited struct {
	net.Listener
	most  int
	grace time.Duration
	done  chan struct{}
	once  sync.Once

	mu    sync.Mutex
	open  []*limitedConn // oldest first
	moved chan struct{}  // closed, and made anew, when a connection is closed or no longer answered
}

// connGrace is how long a client may take for its request however many others
// wait. 64 connections give way to 900 in three seconds.
const connGrace = 200 * time.Millisecond

func limit(l net.Listener, n int) *limited {
	return &limited{Listener: l, most: n, grace: connGrace, done: make(chan struct{}), moved: make(chan struct{})}
}

// Accept implements net.Listener.
func (l *limited) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	conn := &limitedConn{Conn: c, l: l}
	for {
		free, victim, wait, moved := l.admit(conn)
		if free {
			return conn, nil
		}
		if victim != nil {
			_ = victim.Close() // its client had its time
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-moved:
		case <-l.done:
			timer.Stop()
			_ = c.Close() // nobody will answer it
			return nil, net.ErrClosed
		}
		timer.Stop()
	}
}

// admit adds a connection when there is room. When there is none it names the
// connection to close, or how long to wait at most before looking again.
func (l *limited) admit(c *limitedConn) (free bool, victim *limitedConn, wait time.Duration, moved <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if len(l.open) < l.most {
		c.since = now
		l.open = append(l.open, c)
		return true, nil, 0, nil
	}
	wait = time.Hour // until something moves
	for _, o := range l.open {
		if o.answered {
			continue
		}
		left := l.grace - now.Sub(o.since)
		if left <= 0 {
			return false, o, 0, nil
		}
		wait = min(wait, left)
	}
	return false, nil, wait, l.moved
}

// Close implements net.Listener.
func (l *limited) Close() error {
	l.once.Do(func() { close(l.done) })
	return l.Listener.Close()
}

// change does something to a connection's state and wakes an Accept that waits.
func (l *limited) change(fn func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fn()
	close(l.moved)
	l.moved = make(chan struct{})
}

// limitedConn leaves the list when it is closed.
type limitedConn struct {
	net.Conn
	l *limited

	// Guarded by the listener's mu.
	since    time.Time // began to wait for a request
	answered bool      // a request is complete and is being answered
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	err := c.Conn.Close()
	c.l.change(func() {
		for i, o := range c.l.open {
			if o == c {
				c.l.open = append(c.l.open[:i], c.l.open[i+1:]...)
				return
			}
		}
	})
	return err
}

type connKey struct{}

// withConn is the server's ConnContext: it lets handlers find their connection.
func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// answering marks the connection of a request as one that must not give way, until
// the function that it returns is called. Call it when the whole request is there.
func answering(r *http.Request) (done func()) {
	c, ok := r.Context().Value(connKey{}).(*limitedConn)
	if !ok {
		return func() {}
	}
	c.l.change(func() { c.answered = true })
	return func() { c.l.change(func() { c.answered, c.since = false, time.Now() }) }
}
