// Package client is for inspection engines in Go: it connects to one of oxpd's
// inspection sockets, reads frames and answers with verdicts.
//
//	e, err := client.Dial(ctx, "/run/oxpd/inspect.sock", client.Options{Name: "my engine"})
//	for {
//		f, err := e.Next()      // waits; flushes the verdicts so far before it does
//		e.Accept(f.ID)
//	}
//
// Each frame waits in oxpd's queue until it has its verdict, whatever the order. One
// without a verdict for oxpd's stall-ms goes by oxpd's policy, and a verdict that comes
// later changes nothing. When the connection ends, what has no verdict goes by the policy
// for an absent engine.
//
// Verdicts are sent in batches: when Next finds no frame and is about to wait, when 64 of
// them have come together, and by Flush. An engine that takes long for a frame calls Flush
// after each verdict; otherwise oxpd sees none for a while, and may take it for stalled.
//
// The package needs the standard library alone, and Linux, or another system with
// SOCK_SEQPACKET on Unix sockets.
package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"oxpd/divert/proto"
)

const (
	network    = "unixpacket"
	helloLimit = 5 * time.Second
	// flushRecords is how many verdicts wait at most before they are sent unasked.
	flushRecords = 64
)

// ErrClosed is returned when the engine was closed by Close.
var ErrClosed = errors.New("engine is closed")

// RefusedError is oxpd's reason to end a connection.
type RefusedError struct {
	Reason proto.Reason
	Text   string
}

// Error says who ended it and why.
func (e *RefusedError) Error() string { return "oxpd ended the connection: " + e.Text }

// Options are how an engine introduces itself.
type Options struct {
	Name string // shown to operators; at most 32 bytes, the rest is cut
}

// Frame is a frame that wants a verdict. Data belongs to the engine until the next call
// of Next.
type Frame struct {
	ID   uint64
	Port int       // 0 is oxp1, 11 is oxp12
	Out  bool      // on its way from the host to the wire
	Time time.Time // when oxpd got it
	Data []byte    // from the Ethernet header on, without FCS
}

// Engine is a connection to one inspection socket. Next is for one goroutine; verdicts may
// be given from any.
type Engine struct {
	conn  *net.UnixConn
	raw   syscall.RawConn
	hello proto.Hello
	buf   []byte
	stop  func() bool
	ctx   context.Context

	try     func(fd uintptr) bool // reads once; it stands here so that Next allocates nothing
	n       int
	readErr error

	mu      sync.Mutex
	out     []byte
	records int
	err     error // of sending
}

// Dial connects to the socket at path. When ctx ends the connection is closed, and what
// waits returns ctx's error. Errors: those of connecting, *RefusedError (another engine
// is there), proto.ErrMalformed.
func Dial(ctx context.Context, path string, o Options) (*Engine, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, network, path)
	if err != nil {
		return nil, fmt.Errorf("connect to inspection socket: %w", err)
	}
	e := &Engine{conn: c.(*net.UnixConn), buf: make([]byte, proto.MaxMessage), ctx: ctx, out: proto.BeginVerdicts(make([]byte, 0, proto.MaxMessage))}
	e.stop = context.AfterFunc(ctx, func() { _ = c.Close() })
	e.try = e.tryRead
	if e.raw, err = e.conn.SyscallConn(); err == nil {
		err = e.greet(o)
	}
	if err != nil {
		e.stop()
		return nil, errors.Join(fmt.Errorf("greet oxpd at %s: %w", path, err), c.Close())
	}
	return e, nil
}

// greet reads oxpd's Hello and says the engine's.
func (e *Engine) greet(o Options) error {
	if err := e.conn.SetDeadline(time.Now().Add(helloLimit)); err != nil {
		return err
	}
	b, err := e.read()
	if err != nil {
		return err
	}
	if e.hello, err = proto.ParseHello(b); err != nil {
		return err
	}
	if e.hello.Version != proto.Version {
		return fmt.Errorf("oxpd has protocol version %d, want %d", e.hello.Version, proto.Version)
	}
	if _, err := e.conn.Write(proto.AppendHello(nil, &proto.Hello{Version: proto.Version, MaxFrame: proto.MaxMessage - proto.FrameHeader, Name: o.Name})); err != nil {
		return e.why(err)
	}
	return e.conn.SetDeadline(time.Time{})
}

// MaxFrame is the longest frame in bytes that oxpd sends.
func (e *Engine) MaxFrame() int { return int(e.hello.MaxFrame) }

// QueueLen is how many frames may be without a verdict, when the engine connected.
func (e *Engine) QueueLen() int { return int(e.hello.QueueLen) }

// read is the next message. A Bye is a *RefusedError.
func (e *Engine) read() ([]byte, error) {
	n, err := e.conn.Read(e.buf)
	if errors.Is(err, syscall.ECONNRESET) {
		n, err = e.conn.Read(e.buf) // oxpd left verdicts unread: what it said before is there yet
	}
	return e.message(n, err)
}

// tryRead reads what is there.
func (e *Engine) tryRead(fd uintptr) bool {
	e.n, e.readErr = syscall.Read(int(fd), e.buf)
	return true
}

// next is the next message that is there, or that comes once all verdicts have been sent.
func (e *Engine) next() ([]byte, error) {
	if err := e.raw.Read(e.try); err != nil {
		return nil, e.why(err)
	}
	switch {
	case errors.Is(e.readErr, syscall.EAGAIN), errors.Is(e.readErr, syscall.EINTR), errors.Is(e.readErr, syscall.ECONNRESET):
	default:
		return e.message(e.n, e.readErr)
	}
	if err := e.Flush(); err != nil {
		return nil, err
	}
	return e.read()
}

// message takes what a read had apart.
func (e *Engine) message(n int, err error) ([]byte, error) {
	switch {
	case err != nil:
		return nil, e.why(err)
	case n == 0:
		return nil, io.EOF
	}
	b := e.buf[:n]
	if proto.TypeOf(b) == proto.TypeBye {
		bye, err := proto.ParseBye(b)
		if err != nil {
			return nil, err
		}
		return nil, &RefusedError{Reason: bye.Reason, Text: bye.Text}
	}
	return b, nil
}

// why is the reason behind an error of a connection that was closed.
func (e *Engine) why(err error) error {
	if errors.Is(err, net.ErrClosed) {
		if ctx := e.ctx.Err(); ctx != nil {
			return ctx
		}
		return ErrClosed
	}
	return err
}

// Next is the next frame. When there is none yet it sends the verdicts so far before it
// waits. Errors:
// io.EOF when oxpd has gone, *RefusedError when it said why, ErrClosed, that of Dial's
// ctx, proto.ErrMalformed.
func (e *Engine) Next() (Frame, error) {
	b, err := e.next()
	if err != nil {
		return Frame{}, err
	}
	f, err := proto.ParseFrame(b)
	if err != nil {
		return Frame{}, err
	}
	return Frame{ID: f.ID, Port: int(f.Port), Out: f.Direction == 1, Time: f.At(), Data: f.Bytes}, nil
}

// Accept lets a frame go on.
func (e *Engine) Accept(id uint64) error { return e.say(&proto.Record{ID: id, Code: proto.Accept}) }

// AcceptFlow is Accept, and the later frames of the connection go on without being shown.
// Of a frame that is of no TCP, UDP or SCTP connection it is Accept.
func (e *Engine) AcceptFlow(id uint64) error {
	return e.say(&proto.Record{ID: id, Code: proto.AcceptFlow})
}

// Drop ends a frame.
func (e *Engine) Drop(id uint64) error { return e.say(&proto.Record{ID: id, Code: proto.Drop}) }

// Replace lets another frame go on in its place. It is the caller's again when Replace
// returns. oxpd drops one that its port cannot send.
func (e *Engine) Replace(id uint64, frame []byte) error {
	return e.say(&proto.Record{ID: id, Code: proto.Replace, Frame: frame})
}

// say adds a verdict to those that wait to be sent.
func (e *Engine) say(r *proto.Record) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var ok bool
	if e.out, ok = proto.AppendRecord(e.out, r); !ok {
		if err := e.flush(); err != nil {
			return err
		}
		if e.out, ok = proto.AppendRecord(e.out, r); !ok {
			return fmt.Errorf("replace frame %d: %d bytes do not fit into a message", r.ID, len(r.Frame))
		}
	}
	if e.records++; e.records >= flushRecords {
		return e.flush()
	}
	return nil
}

// Flush sends the verdicts that wait. That oxpd has gone is no error of verdicts: Next has
// what came before, and says why.
func (e *Engine) Flush() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.flush()
}

func (e *Engine) flush() error {
	if e.err != nil || e.records == 0 {
		return e.err
	}
	if _, err := e.conn.Write(e.out); err != nil && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
		e.err = fmt.Errorf("send verdicts: %w", e.why(err))
	}
	e.out, e.records = proto.BeginVerdicts(e.out[:0]), 0
	return e.err
}

// Close ends the connection without sending what verdicts wait.
func (e *Engine) Close() error {
	e.stop()
	return e.conn.Close()
}
