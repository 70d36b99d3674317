package serve

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"oxpd/internal/sys"
	"oxpd/internal/tcpstats"
)

const (
	// writeStall is how long a client may take nothing when its read has no bound.
	writeStall  = 30 * time.Second
	replyStall  = 5 * time.Second        // of a reply
	lateGrace   = 2 * time.Second        // for a message that a slow reader has begun to take when its read is over
	endStall    = 200 * time.Millisecond // of everything, when the service ends
	acceptPause = 100 * time.Millisecond
	dirMode     = 0o755
	groupMode   = 0o660
)

// ListenConfig is what a Listener needs. Path is required.
type ListenConfig struct {
	Path  string
	Group int // that may connect too, besides the owner; -1 or 0: nobody
	Log   *slog.Logger
}

// Listener is the socket of a service.
type Listener struct {
	s   *Service
	ln  *net.UnixListener
	log *slog.Logger
}

// Listen makes the socket. One in its place that nobody listens on is replaced; anything
// else there is left alone and refused.
//
// Errors: sys.ErrInUse, fs.ErrExist for what is no socket.
func Listen(s *Service, cfg ListenConfig) (*Listener, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	if err := os.MkdirAll(filepath.Dir(cfg.Path), dirMode); err != nil {
		return nil, fmt.Errorf("tcpstats: make a directory for %s: %w", cfg.Path, err)
	}
	ln, err := sys.ListenUnix("unix", cfg.Path)
	if err != nil {
		return nil, fmt.Errorf("tcpstats: %w", err)
	}
	if cfg.Group > 0 {
		if err := errors.Join(os.Chown(cfg.Path, -1, cfg.Group), os.Chmod(cfg.Path, groupMode)); err != nil {
			_ = ln.Close() // the error that matters is this one
			return nil, fmt.Errorf("tcpstats: give %s to its group: %w", cfg.Path, err)
		}
	}
	return &Listener{s: s, ln: ln, log: cfg.Log.With("socket", cfg.Path)}, nil
}

// Run serves clients until ctx ends, which is no error. Then all reads have ended and the
// socket is gone.
func (l *Listener) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = l.ln.Close() })
	defer stop()
	defer l.ln.Close()
	var open sync.WaitGroup
	defer open.Wait()
	for {
		c, err := l.ln.AcceptUnix()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("tcpstats: accept: %w", err)
		case err != nil:
			l.log.Warn("client could not connect", "err", err)
			select {
			case <-time.After(acceptPause):
			case <-ctx.Done():
				return nil
			}
			continue
		}
		o, err := l.s.Open()
		if err != nil {
			// Refused at once and without a goroutine: the reply fits into an empty socket.
			_ = c.SetWriteDeadline(time.Now().Add(acceptPause))
			_, _ = c.Write(replyMessage(nil, 0, refusalOf(err), tcpstats.Default()))
			_ = c.Close()
			continue
		}
		open.Add(1)
		go func() {
			defer open.Done()
			newConn(c, o).serve(ctx)
		}()
	}
}

// refusalOf is an error as a reply has it.
func refusalOf(err error) tcpstats.Reply {
	var (
		r *Refusal
		s *tcpstats.SyntaxError
	)
	switch {
	case err == nil:
		return tcpstats.Reply{}
	case errors.As(err, &r):
		return tcpstats.Reply{Code: r.Code, Reason: r.Reason}
	case errors.As(err, &s):
		offset := s.Offset
		return tcpstats.Reply{Code: s.Code(), Reason: s.Reason, Offset: &offset, Word: s.Word}
	}
	return tcpstats.Reply{Code: tcpstats.CodeFailed, Reason: err.Error()}
}

// replyMessage appends a reply to b.
func replyMessage(b []byte, read uint32, r tcpstats.Reply, f tcpstats.Filter) []byte {
	r.Filter = f.String()
	return document(b, tcpstats.MessageReply, read, r)
}

// document appends a message that is a JSON document.
func document(b []byte, kind byte, read uint32, doc any) []byte {
	text, err := json.Marshal(doc)
	if err != nil {
		panic(err) // plain structs
	}
	m := tcpstats.Message{Bytes: len(text), Kind: kind, Read: read}
	return append(m.Append(b), text...)
}

// conn is a client's connection.
type conn struct {
	c *net.UnixConn
	o *Open

	write  sync.Mutex // one message at a time
	broken bool       // a message was cut: nothing can follow

	deadline sync.Mutex // of what is written
	last     time.Time  // no deadline is later, when the service ends

	mu    sync.Mutex
	reads map[uint32]context.CancelFunc
	under sync.WaitGroup
}

func newConn(c *net.UnixConn, o *Open) *conn {
	return &conn{c: c, o: o, reads: map[uint32]context.CancelFunc{}}
}

// serve follows the client's lines until it sends no more. Reads that are under way then
// are finished: a client may send its lines and close its direction.
func (c *conn) serve(ctx context.Context) {
	defer c.o.Close()
	defer c.c.Close()
	over := context.AfterFunc(ctx, c.hurry)
	defer over()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = c.c.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	defer c.under.Wait()
	lines := bufio.NewReaderSize(c.c, tcpstats.MaxLine)
	for {
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			c.reply(0, &Refusal{tcpstats.CodeTooLong, fmt.Sprintf("a line of more than %d bytes", tcpstats.MaxLine)})
			return
		}
		if err != nil {
			if len(line) > 0 && errors.Is(err, io.EOF) {
				c.reply(0, &Refusal{tcpstats.CodeInvalid, "the last line has no line feed"})
			}
			return
		}
		if !c.line(ctx, string(line[:len(line)-1])) {
			cancel()
			return
		}
	}
}

// reply answers a line, and tells whether the client took it.
func (c *conn) reply(read uint32, err error) bool {
	return c.send(replyStall, replyMessage(nil, read, refusalOf(err), c.o.Filter()), nil) == nil
}

// hurry bounds what is being written, and all that will be: the service ends.
func (c *conn) hurry() {
	c.deadline.Lock()
	defer c.deadline.Unlock()
	c.last = time.Now().Add(endStall)
	_ = c.c.SetWriteDeadline(c.last) // on a connection that is closed nothing waits
}

// within sets the deadline of a write.
func (c *conn) within(limit time.Duration) error {
	c.deadline.Lock()
	defer c.deadline.Unlock()
	at := time.Now().Add(limit)
	if !c.last.IsZero() && c.last.Before(at) {
		at = c.last
	}
	return c.c.SetWriteDeadline(at)
}

// send writes a message. One that is cut ends the connection.
func (c *conn) send(limit time.Duration, head, body []byte) error {
	c.write.Lock()
	defer c.write.Unlock()
	return c.put(limit, head, body)
}

// end sends the end of a read, whose id is free with it: another read of that id is
// answered after it.
func (c *conn) end(id uint32, end *tcpstats.End) {
	b := document(nil, tcpstats.MessageEnd, id, end)
	c.write.Lock()
	defer c.write.Unlock()
	c.mu.Lock()
	delete(c.reads, id)
	c.mu.Unlock()
	_ = c.put(replyStall, b, nil) // a client that has gone does not want it
}

// put is send for whoever holds write.
func (c *conn) put(limit time.Duration, head, body []byte) error {
	if c.broken {
		return io.ErrClosedPipe
	}
	err := c.within(limit)
	if err == nil {
		b := net.Buffers{head, body}
		if body == nil {
			b = b[:1]
		}
		_, err = b.WriteTo(c.c)
	}
	if err == nil {
		return nil
	}
	c.broken = true
	_ = c.c.Close() // what reads the lines ends, too
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%w for %v", ErrSlow, limit.Round(time.Millisecond))
	}
	return fmt.Errorf("client has gone: %w", err)
}

// line follows one line and tells whether to go on.
func (c *conn) line(ctx context.Context, text string) bool {
	word, rest, _ := strings.Cut(text, " ")
	switch word {
	case "FILTER":
		return c.reply(0, c.o.SetFilter(rest))
	case "PROFILE":
		return c.reply(0, c.o.UseProfile(rest))
	case "READ", "CANCEL":
		id, err := strconv.ParseUint(rest, 10, 32)
		if err != nil || id == 0 {
			return c.reply(0, &Refusal{tcpstats.CodeInvalid, fmt.Sprintf("%s wants the number of a read, 1 to 4294967295", word)})
		}
		if word == "READ" {
			return c.read(ctx, uint32(id))
		}
		return c.reply(uint32(id), c.cancel(uint32(id)))
	}
	return c.reply(0, &Refusal{tcpstats.CodeInvalid, "want FILTER text, PROFILE name, READ id or CANCEL id"})
}

func (c *conn) cancel(id uint32) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	stop := c.reads[id]
	if stop == nil {
		return &Refusal{tcpstats.CodeNoProfile, fmt.Sprintf("no read %d is under way", id)}
	}
	stop()
	return nil
}

// read begins a read.
func (c *conn) read(ctx context.Context, id uint32) bool {
	c.mu.Lock()
	_, there := c.reads[id]
	c.mu.Unlock()
	if there {
		return c.reply(id, &Refusal{tcpstats.CodeBusy, fmt.Sprintf("read %d is under way", id)})
	}
	r, err := c.o.Begin()
	if err != nil {
		return c.reply(id, err)
	}
	ctx, stop := context.WithCancel(ctx)
	c.mu.Lock()
	c.reads[id] = stop
	c.mu.Unlock()
	ok := c.reply(id, nil) // before its records
	c.under.Add(1)
	go func() {
		defer c.under.Done()
		defer stop()
		end := r.Run(ctx, make([]byte, 0, tcpstats.ChunkBytes), func(b []byte, n int) error {
			limit, bounded := r.Left()
			if limit = max(limit, 0) + lateGrace; !bounded {
				limit = writeStall
			}
			m := tcpstats.Message{Bytes: len(b), Kind: tcpstats.MessageRecords, Read: id, Records: n}
			return c.send(limit, m.Append(nil), b)
		})
		c.end(id, &end)
	}()
	return ok
}
