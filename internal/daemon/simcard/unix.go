package simcard

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"oxpd/internal/board"
	"oxpd/internal/daemon/config"
	"oxpd/internal/sys"
)

// errNoPeer is a frame for a wire that nobody has connected to.
var errNoPeer = errors.New("nobody is connected")

// unixWire is the far side of a wire that another process is: one message on the
// socket, of SOCK_SEQPACKET, is one frame without FCS, both ways. One process is
// connected at a time, a second one waits; the wire's link is up meanwhile. It is
// what hwsim's Attach reads and writes.
type unixWire struct {
	log  *slog.Logger
	port board.Port
	ln   *net.UnixListener
	link func(up bool)

	mu     sync.Mutex
	peer   *net.UnixConn // nil: nobody
	closed bool
}

// attachUnix makes the socket and hangs it at a front port.
func (d *Board) attachUnix(p board.Port, spec config.Wire) error {
	ln, err := sys.ListenUnix("unixpacket", spec.Socket)
	if err != nil {
		return err
	}
	wire := d.wire(p)
	wire.SetLink(false)
	stop := wire.Attach(&unixWire{log: d.log, port: p, ln: ln, link: wire.SetLink})
	d.stop = append(d.stop, func() error { stop(); return nil })
	return nil
}

// Read waits for a peer and its next frame. os.ErrClosed after Close.
func (w *unixWire) Read(b []byte) (int, error) {
	for {
		peer, err := w.await()
		if err != nil {
			return 0, err
		}
		n, err := peer.Read(b)
		if err == nil && n > 0 {
			return n, nil
		}
		w.lose(peer)
	}
}

// await returns who is connected; it waits while nobody is.
func (w *unixWire) await() (*net.UnixConn, error) {
	w.mu.Lock()
	peer := w.peer
	w.mu.Unlock()
	if peer != nil {
		return peer, nil
	}
	peer, err := w.ln.AcceptUnix()
	if err != nil {
		return nil, os.ErrClosed
	}
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return nil, errors.Join(os.ErrClosed, peer.Close())
	}
	w.peer = peer
	w.mu.Unlock()
	w.log.Info("wire connected", "port", w.port.Name)
	w.link(true)
	return peer, nil
}

// lose ends the connection of a peer that has left.
func (w *unixWire) lose(peer *net.UnixConn) {
	w.mu.Lock()
	w.peer = nil
	closed := w.closed
	w.mu.Unlock()
	_ = peer.Close() // it may be closed already
	if !closed {
		w.log.Info("wire disconnected", "port", w.port.Name)
		w.link(false)
	}
}

// Write sends a frame. It does not wait for a peer that does not read.
func (w *unixWire) Write(b []byte) (int, error) {
	w.mu.Lock()
	peer := w.peer
	w.mu.Unlock()
	if peer == nil {
		return 0, errNoPeer
	}
	raw, err := peer.SyscallConn()
	if err != nil {
		return 0, err
	}
	n := 0
	if e := raw.Write(func(fd uintptr) bool {
		n, err = unix.Write(int(fd), b)
		return true // once: what does not fit is lost, as on any wire
	}); e != nil {
		return 0, e
	}
	return n, err
}

// Close ends the waiting of Read and removes the socket.
func (w *unixWire) Close() error {
	w.mu.Lock()
	peer := w.peer
	w.closed = true
	w.mu.Unlock()
	err := w.ln.Close()
	if peer != nil {
		_ = peer.Close() // its reader ends with it
	}
	return err
}
