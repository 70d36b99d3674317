package vfiouser

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"

	"oxpd/hwsim"
)

// Server is one card on one socket. Its methods are safe for concurrent use.
type Server struct {
	card *hwsim.Card
	bar2 *Memory
	log  *slog.Logger
	ln   *net.UnixListener
	quit chan struct{}

	mu     sync.Mutex
	client *session // nil: nobody
	closed bool
}

// New returns a server of a card on a listening stream socket, which it takes. The
// card must have been made with the memory's Windows and with HostVectors; both stay
// the caller's. A nil logger discards.
func New(ln *net.UnixListener, card *hwsim.Card, bar2 *Memory, log *slog.Logger) *Server {
	if log == nil {
		log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	return &Server{card: card, bar2: bar2, log: log, ln: ln, quit: make(chan struct{})}
}

// Serve serves one client after the other until Close, and then returns nil.
func (s *Server) Serve() error {
	for {
		conn, err := s.ln.AcceptUnix()
		if err != nil {
			select {
			case <-s.quit:
				return nil
			default:
				return fmt.Errorf("vfiouser: accept: %w", err)
			}
		}
		if !s.admit(conn) {
			s.log.Warn("second client refused")
			_ = conn.Close() // it never was one
		}
	}
}

// admit begins a session, unless there is one. One whose client has gone is waited
// for: who comes after a client that died is no second one.
func (s *Server) admit(conn *net.UnixConn) bool {
	s.mu.Lock()
	before := s.client
	s.mu.Unlock()
	if before != nil {
		if !before.left() {
			return false
		}
		select {
		case <-before.done:
		case <-s.quit:
			return false
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.client = newSession(s, conn)
	go s.client.run()
	return true
}

// over is a session's last word.
func (s *Server) over(c *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client == c {
		s.client = nil
	}
}

// Close ends the listening and the client's connection, and returns when nothing
// of either is left. The card goes on. One that was made to stall must be closed
// first.
func (s *Server) Close() error {
	s.mu.Lock()
	client, again := s.client, s.closed
	s.closed = true
	s.mu.Unlock()
	if again {
		return nil
	}
	close(s.quit)
	err := s.ln.Close()
	if client != nil {
		_ = client.conn.Close() // its reader ends with it
		<-client.done
	}
	return err
}
