package divert

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"oxpd/divert/proto"
	"oxpd/internal/sys"
)

const (
	seqpacket   = "unixpacket"
	dirMode     = 0o755
	helloLimit  = 5 * time.Second
	sendBatch   = 32
	recvBatch   = 8
	handshakes  = 8                      // connections that have not said Hello yet
	noBufPause  = time.Millisecond       // before a send is tried again that found no kernel memory
	acceptPause = 100 * time.Millisecond // after an error of accept
)

// Listen makes the socket of a listener, for the owner alone. A socket in its place that
// nobody listens on is replaced; anything else there is left alone and refused.
//
// Errors: sys.ErrInUse, fs.ErrExist for what is no socket.
func Listen(cfg ListenerConfig) (*Listener, error) {
	if err := os.MkdirAll(filepath.Dir(cfg.Path), dirMode); err != nil {
		return nil, fmt.Errorf("divert: make a directory for %s: %w", cfg.Path, err)
	}
	ln, err := sys.ListenUnix(seqpacket, cfg.Path)
	if err != nil {
		return nil, fmt.Errorf("divert: %w", err)
	}
	return newListener(cfg, ln), nil
}

// Run serves engines, one at a time, until ctx ends, which is no error. Then the engine
// has gone, and so has the socket.
func (l *Listener) Run(ctx context.Context) error {
	ln := l.ln.(*net.UnixListener)
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	defer stop()
	defer ln.Close()
	var open sync.WaitGroup
	defer open.Wait()
	room := make(chan struct{}, handshakes)
	for {
		c, err := ln.AcceptUnix()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("divert: accept on %s: %w", l.cfg.Path, err)
		case err != nil:
			// No descriptors, or the peer went before it was here.
			l.log.Warn("engine could not connect", "err", err)
			if l.cfg.Clock.Sleep(ctx, acceptPause) != nil {
				return nil
			}
			continue
		}
		select {
		case room <- struct{}{}:
		default:
			l.refuse(c, proto.ReasonBusy, "too many connections that have not said who they are")
			continue
		}
		open.Add(1)
		go func() {
			defer open.Done()
			l.greet(ctx, c, func() { <-room })
		}()
	}
}

// refuse tells a peer why, and closes the connection.
func (l *Listener) refuse(c *net.UnixConn, why proto.Reason, text string) {
	l.stats.refused.Add(1)
	l.log.Warn("engine is refused", "why", text, "pid", peerPID(c))
	bye(c, why, text)
	_ = c.Close()
}

// bye does its best: a peer that does not read is not waited for, nor is a writer that
// waits for it.
func bye(c *net.UnixConn, why proto.Reason, text string) {
	msg := proto.AppendBye(nil, &proto.Bye{Reason: why, Text: text})
	_ = control(c, func(fd int) error { return unix.Sendto(fd, msg, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil) })
}

// greet exchanges Hellos and serves the engine. met is called when it said its own, or
// did not.
func (l *Listener) greet(ctx context.Context, c *net.UnixConn, met func()) {
	stop := context.AfterFunc(ctx, func() {
		bye(c, proto.ReasonShutdown, "oxpd ends")
		_ = c.Close()
	})
	defer stop()
	defer c.Close()
	asked, granted := l.setBuffer(c)
	h, why, err := l.hello(ctx, c)
	met()
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		l.refuse(c, why, err.Error())
		return
	}
	e := &Engine{Name: h.Name, PID: peerPID(c), Since: l.cfg.Wall(), Asked: asked, Buffer: granted, conn: c, left: make(chan struct{})}
	if other := l.take(e); other != nil {
		l.refuse(c, proto.ReasonBusy, other.here().Error())
		return
	}
	defer l.leave()
	l.log.Info("engine is attached", "engine", e.Name, "pid", e.PID, "buffer", e.Buffer)
	err = l.serve(c)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		l.log.Warn("engine is lost", "engine", e.Name, "pid", e.PID, "err", err)
	default:
		l.log.Warn("engine has gone", "engine", e.Name, "pid", e.PID)
	}
}

// here is the engine that is attached. One whose connection has ended is on its way out,
// and that is waited for: it may be the one before this one, which was restarted.
func (l *Listener) here(ctx context.Context) *Engine {
	e := l.Engine()
	if e == nil || !hungUp(e.conn) {
		return e
	}
	limit := time.NewTimer(l.cfg.HelloLimit)
	defer limit.Stop()
	select {
	case <-e.left:
	case <-limit.C:
	case <-ctx.Done():
	}
	return l.Engine()
}

// hello says ours and waits for the engine's.
func (l *Listener) hello(ctx context.Context, c *net.UnixConn) (proto.Hello, proto.Reason, error) {
	if other := l.here(ctx); other != nil {
		return proto.Hello{}, proto.ReasonBusy, other.here()
	}
	ours := proto.AppendHello(nil, &proto.Hello{
		Version: proto.Version, MaxFrame: MaxFrame, QueueLen: uint32(l.cfg.Queue.Settings().QueueLen), Name: "oxpd",
	})
	if err := c.SetDeadline(time.Now().Add(l.cfg.HelloLimit)); err != nil {
		return proto.Hello{}, proto.ReasonNoHello, err
	}
	if _, err := c.Write(ours); err != nil {
		return proto.Hello{}, proto.ReasonNoHello, fmt.Errorf("say hello: %w", err)
	}
	var buf [2 * proto.HelloSize]byte
	n, err := c.Read(buf[:])
	if err != nil {
		return proto.Hello{}, proto.ReasonNoHello, fmt.Errorf("no hello within %v: %w", l.cfg.HelloLimit, err)
	}
	h, err := proto.ParseHello(buf[:n])
	switch {
	case err != nil:
		return h, proto.ReasonNoHello, err
	case h.Version != proto.Version:
		return h, proto.ReasonVersion, fmt.Errorf("protocol version %d, want %d", h.Version, proto.Version)
	}
	return h, 0, c.SetDeadline(time.Time{})
}

// setBuffer makes the engine's socket as large as is set, and returns that and what the
// kernel says of it: on AF_UNIX the sender's buffer is the queue (unix(7), socket(7)).
func (l *Listener) setBuffer(c *net.UnixConn) (want, granted int) {
	want = int(l.cfg.Queue.Settings().BufferSize)
	err := control(c, func(fd int) error {
		var err error
		if want != 0 {
			if err = l.cfg.SetBuffer(fd, unix.SO_SNDBUFFORCE, want); err != nil {
				err = l.cfg.SetBuffer(fd, unix.SO_SNDBUF, want)
			}
		}
		var got error
		granted, got = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
		return errors.Join(err, got)
	})
	switch {
	case err != nil:
		l.log.Warn("engine's socket keeps the kernel's buffer size", "buffer_size", want, "err", err)
	case granted < 2*want:
		l.log.Warn("engine's socket is smaller than buffer-size: raise net.core.wmem_max", "buffer_size", want, "granted", granted/2, "net.core.wmem_max", 2*want)
	}
	return want, granted
}

// setSendBuffer is ListenerConfig.SetBuffer of the kernel.
func setSendBuffer(fd, option, size int) error {
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, size)
}

func control(c syscall.Conn, fn func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = fn(int(fd)) }); err != nil {
		return err
	}
	return inner
}

func peerPID(c *net.UnixConn) (pid int) {
	_ = control(c, func(fd int) error {
		if cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
		return nil
	})
	return pid
}

// serve carries frames to the engine and its verdicts back until one of both ends.
func (l *Listener) serve(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	q := l.cfg.Queue
	q.Attach()
	defer q.Detach()
	ended := make(chan struct{})
	wrote := make(chan error, 1)
	go func() {
		err := newWriter(l, raw).run(ended)
		_ = c.CloseRead() // ends the reader, when it has what the engine said before
		wrote <- err
	}()
	err = newReader(l, c, raw).run()
	close(ended)
	_ = c.Close() // ends the writer
	return errors.Join(err, <-wrote)
}

// writer gives an engine its frames.
type writer struct {
	l       *Listener
	raw     syscall.RawConn
	tickets [sendBatch]Ticket
	heads   [sendBatch][proto.FrameHeader]byte
	msgs    *sys.Messages
	from, n int
	err     error
	try     func(fd uintptr) bool
}

func newWriter(l *Listener, raw syscall.RawConn) *writer {
	w := &writer{l: l, raw: raw, msgs: sys.NewMessages(sendBatch)}
	w.try = w.send
	return w
}

// run takes and sends until the connection is closed, or ended is.
func (w *writer) run(ended <-chan struct{}) error {
	q := w.l.cfg.Queue
	for {
		if w.n = q.Take(w.tickets[:]); w.n == 0 {
			select {
			case <-q.Wake():
				continue
			case <-ended:
				return nil
			}
		}
		w.fill()
		err := w.all()
		q.Sent(w.tickets[:w.n], w.from)
		if err != nil {
			return err
		}
	}
}

// fill makes messages of the tickets.
func (w *writer) fill() {
	unix0 := w.l.cfg.Wall().UnixNano() - int64(w.l.cfg.Clock.Now())
	for i := range w.tickets[:w.n] {
		t := &w.tickets[i]
		proto.PutFrameHeader(w.heads[i][:], &proto.Frame{ID: t.ID, Port: uint8(t.Port), Direction: uint8(t.Dir), Time: unix0 + int64(t.At), Bytes: t.Frame})
		w.msgs.Set(i, w.heads[i][:], t.Frame)
	}
}

// all sends everything; from is how much went.
func (w *writer) all() error {
	for w.from = 0; w.from < w.n; {
		w.err = nil
		if err := w.raw.Write(w.try); err != nil {
			return err
		}
		switch {
		case w.err == nil:
		case errors.Is(w.err, unix.ENOBUFS), errors.Is(w.err, unix.ENOMEM):
			w.l.stats.noBufs.Add(1)
			time.Sleep(noBufPause)
		default:
			return w.err
		}
	}
	return nil
}

// send is one system call; false waits until the socket has room.
func (w *writer) send(fd uintptr) bool {
	n, err := w.l.cfg.Send(w.msgs, int(fd), w.from, w.n)
	w.from += n
	switch {
	case errors.Is(err, unix.EAGAIN):
		w.l.stats.again.Add(1)
		return false
	case errors.Is(err, unix.EINTR):
	default:
		w.err = err
	}
	return true
}

// reader takes an engine's verdicts.
type reader struct {
	l        *Listener
	conn     syscall.Conn
	raw      syscall.RawConn
	msgs     *sys.Messages
	bufs     [recvBatch][]byte
	verdicts []Verdict
	n        int
	err      error
	try      func(fd uintptr) bool
}

func newReader(l *Listener, conn syscall.Conn, raw syscall.RawConn) *reader {
	r := &reader{l: l, conn: conn, raw: raw, msgs: sys.NewMessages(recvBatch)}
	for i := range r.bufs {
		r.bufs[i] = make([]byte, proto.MaxMessage)
		r.msgs.Set(i, r.bufs[i], nil)
	}
	r.try = r.receive
	return r
}

// run settles what comes until the engine has gone: then it returns nil.
func (r *reader) run() error {
	for {
		r.n, r.err = 0, nil
		if err := r.raw.Read(r.try); err != nil {
			if errors.Is(err, net.ErrClosed) {
				return nil
			}
			return err
		}
		switch {
		case errors.Is(r.err, unix.ECONNRESET):
			continue // it went and left frames unread: what it said before is there yet
		case r.err != nil:
			return r.err
		}
		ended := r.parse()
		r.l.cfg.Queue.Settle(r.verdicts)
		if ended {
			return nil
		}
	}
}

func (r *reader) receive(fd uintptr) bool {
	r.n, r.err = r.msgs.Receive(int(fd), recvBatch)
	if errors.Is(r.err, unix.EAGAIN) {
		return false
	}
	if errors.Is(r.err, unix.EINTR) {
		r.err = nil
	}
	return true
}

// parse collects the verdicts of what came. ended says that nothing more will.
func (r *reader) parse() (ended bool) {
	clear(r.verdicts)
	r.verdicts = r.verdicts[:0]
	for i := range r.n {
		n, cut := r.msgs.Bytes(i)
		if n == 0 && hungUp(r.conn) {
			return true
		}
		v, err := proto.ParseVerdicts(r.bufs[i][:n])
		if err == nil && cut {
			err = fmt.Errorf("%w: longer than %d bytes", proto.ErrMalformed, proto.MaxMessage)
		}
		if err != nil {
			r.l.bad(err)
			continue
		}
		for rec, ok := v.Next(); ok; rec, ok = v.Next() {
			r.verdicts = append(r.verdicts, Verdict{ID: rec.ID, Code: Code(rec.Code), Frame: rec.Frame})
		}
	}
	return false
}

// hungUp tells whether the other side has closed the connection, which an empty message
// of its does not.
func hungUp(c syscall.Conn) (gone bool) {
	err := control(c, func(fd int) error {
		p := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		_, err := unix.Poll(p[:], 0)
		gone = err == nil && p[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
		return nil
	})
	return err != nil || gone
}
