package divert

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"oxpd/divert/proto"
	"oxpd/internal/sys"
)

const (
	seqpacket   = "unixpacket"
	socketMode  = 0o600
	dirMode     = 0o755
	helloLimit  = 5 * time.Second
	sendBatch   = 32
	recvBatch   = 8
	handshakes  = 8                      // connections that have not said Hello yet
	noBufPause  = time.Millisecond       // before a send is tried again that found no kernel memory
	probeLimit  = time.Second            // of the test whether somebody listens
	acceptPause = 100 * time.Millisecond // after an error of accept
)

// Listen makes the socket of a listener. A socket in its place that nobody listens on is
// replaced; anything else there is left alone and refused.
func Listen(cfg ListenerConfig) (*Listener, error) {
	ln, err := bindAt(cfg.Path)
	if err != nil {
		return nil, fmt.Errorf("divert: listen on %s: %w", cfg.Path, err)
	}
	var st unix.Stat_t
	if err := unix.Stat(cfg.Path, &st); err != nil {
		return nil, errors.Join(fmt.Errorf("divert: listen on %s: %w", cfg.Path, err), ln.Close())
	}
	return newListener(cfg, ln, st.Ino), nil
}

// bindAt listens on path; nobody but the owner can connect at any moment.
func bindAt(path string) (*net.UnixListener, error) {
	if err := os.MkdirAll(filepath.Dir(path), dirMode); err != nil {
		return nil, err
	}
	switch fi, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case fi.Mode()&fs.ModeSocket == 0:
		return nil, errors.New("a file that is not a socket is in its place: remove it, or choose another path")
	case listens(path):
		return nil, errors.New("another process listens there: end it, or choose another path")
	}
	fresh := path + "." + strconv.Itoa(os.Getpid())
	if fi, err := os.Lstat(fresh); err == nil && fi.Mode()&fs.ModeSocket != 0 {
		_ = os.Remove(fresh) // left by a process of the same number
	}
	ln, err := net.ListenUnix(seqpacket, &net.UnixAddr{Name: fresh, Net: seqpacket})
	if err != nil {
		return nil, err
	}
	ln.SetUnlinkOnClose(false)
	if err = os.Chmod(fresh, socketMode); err == nil {
		err = os.Rename(fresh, path)
	}
	if err != nil {
		_ = os.Remove(fresh)
		return nil, errors.Join(err, ln.Close())
	}
	return ln, nil
}

func listens(path string) bool {
	c, err := net.DialTimeout(seqpacket, path, probeLimit)
	if err != nil {
		return !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist)
	}
	_ = c.Close() // it was the question
	return true
}

// Run serves engines, one at a time, until ctx ends, which is no error. Then the engine
// has gone, and so has the socket.
func (l *Listener) Run(ctx context.Context) error {
	ln := l.ln.(*net.UnixListener)
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	defer stop()
	defer l.unlink()
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

// unlink takes the socket's file away, if it is ours still.
func (l *Listener) unlink() {
	var st unix.Stat_t
	if unix.Stat(l.cfg.Path, &st) == nil && st.Ino == l.inode {
		_ = os.Remove(l.cfg.Path)
	}
}

// refuse tells a peer why, and closes the connection.
func (l *Listener) refuse(c *net.UnixConn, why proto.Reason, text string) {
	l.stats.refused.Add(1)
	l.log.Warn("engine is refused", "why", text, "pid", peerPID(c))
	bye(c, why, text)
	_ = c.Close()
}

// bye does its best: a peer that does not read is not waited for.
func bye(c *net.UnixConn, why proto.Reason, text string) {
	_ = c.SetDeadline(time.Time{}) // one that is over would be an error
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	msg := proto.AppendBye(nil, &proto.Bye{Reason: why, Text: text})
	_ = raw.Write(func(fd uintptr) bool {
		_ = unix.Sendto(int(fd), msg, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
		return true
	})
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
	granted := l.setBuffer(c)
	h, why, err := l.hello(c)
	met()
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		l.refuse(c, why, err.Error())
		return
	}
	e := &Engine{Name: h.Name, PID: peerPID(c), Since: l.cfg.Wall(), Buffer: granted}
	if other := l.take(e); other != nil {
		l.refuse(c, proto.ReasonBusy, fmt.Sprintf("engine %q (pid %d) is at this socket", other.Name, other.PID))
		return
	}
	defer l.leave()
	l.log.Info("engine is attached", "engine", e.Name, "pid", e.PID, "buffer", e.Buffer)
	err = l.serve(c)
	if ctx.Err() == nil {
		l.log.Warn("engine has gone", "engine", e.Name, "pid", e.PID, "err", err)
	}
}

// hello says ours and waits for the engine's.
func (l *Listener) hello(c *net.UnixConn) (proto.Hello, proto.Reason, error) {
	if other := l.Engine(); other != nil {
		return proto.Hello{}, proto.ReasonBusy, fmt.Errorf("engine %q (pid %d) is at this socket", other.Name, other.PID)
	}
	ours := proto.AppendHello(nil, &proto.Hello{
		Version: proto.Version, MaxFrame: uint32(l.cfg.MaxFrame), QueueLen: uint32(l.cfg.Queue.Settings().QueueLen), Name: "oxpd",
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

// setBuffer makes the engine's socket as large as is set, and returns what the kernel
// says of it: on AF_UNIX the sender's buffer is the queue (unix(7), socket(7)).
func (l *Listener) setBuffer(c *net.UnixConn) int {
	want := int(l.cfg.Queue.Settings().BufferSize)
	granted := 0
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
	return granted
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
		_ = c.Close() // ends the reader
		wrote <- err
	}()
	err = newReader(l, raw).run()
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
	raw      syscall.RawConn
	msgs     *sys.Messages
	bufs     [recvBatch][]byte
	verdicts []Verdict
	n        int
	err      error
	try      func(fd uintptr) bool
}

func newReader(l *Listener, raw syscall.RawConn) *reader {
	r := &reader{l: l, raw: raw, msgs: sys.NewMessages(recvBatch)}
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
		if r.err != nil {
			if errors.Is(r.err, unix.ECONNRESET) {
				return nil // it left frames unread
			}
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
		if n == 0 && r.hungUp() {
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

// hungUp tells the end of a connection from an empty message.
func (r *reader) hungUp() (gone bool) {
	err := r.raw.Control(func(fd uintptr) {
		p := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		_, err := unix.Poll(p[:], 0)
		gone = err == nil && p[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
	})
	return err != nil || gone
}
