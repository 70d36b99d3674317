// Package client reads TCP statistics from the socket of a service.
package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"oxpd/internal/tcpstats"
)

// Conn is an open of a service. One read at a time; not safe for concurrent use.
type Conn struct {
	c    net.Conn
	body []byte
	next uint32
}

// RefusedError is the service's refusal of a line.
type RefusedError struct{ tcpstats.Reply }

func (e *RefusedError) Error() string {
	if e.Offset != nil {
		return (&tcpstats.SyntaxError{Offset: *e.Offset, Word: e.Word, Reason: e.Reason}).Error()
	}
	return e.Reason + " (" + string(e.Code) + ")"
}

// Dial connects to the service at a socket.
func Dial(ctx context.Context, socket string) (*Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", socket, err)
	}
	return &Conn{c: c}, nil
}

// Close ends the open.
func (c *Conn) Close() error { return c.c.Close() }

// Filter sets the filter of the reads that come and returns its canonical form.
// Errors: *RefusedError.
func (c *Conn) Filter(ctx context.Context, text string) (string, error) {
	return c.line(ctx, "FILTER "+text)
}

// Profile takes the filter of a profile, which it returns. Errors: *RefusedError.
func (c *Conn) Profile(ctx context.Context, name string) (string, error) {
	return c.line(ctx, "PROFILE "+name)
}

// watch ends what waits for the connection when ctx ends.
func (c *Conn) watch(ctx context.Context) (stop func()) {
	_ = c.c.SetDeadline(time.Time{}) // an error shows at the next call
	unwatch := context.AfterFunc(ctx, func() { _ = c.c.SetDeadline(time.Unix(1, 0)) })
	return func() { unwatch() }
}

func because(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		return ctx.Err()
	}
	return err
}

// line sends a line and waits for its reply.
func (c *Conn) line(ctx context.Context, text string) (filter string, err error) {
	for _, b := range []byte(text) {
		if b == '\n' {
			return "", errors.New("a line feed within a line")
		}
	}
	defer c.watch(ctx)()
	// A service that refuses the connection does not read the line: its reply is what counts.
	_, werr := io.WriteString(c.c, text+"\n")
	m, err := c.message()
	if err != nil {
		return "", because(ctx, errors.Join(werr, err))
	}
	if m.Kind != tcpstats.MessageReply {
		return "", fmt.Errorf("%w: %q where a reply should be", tcpstats.ErrMessage, m.Kind)
	}
	return c.reply()
}

// reply decodes the message at hand.
func (c *Conn) reply() (string, error) {
	var r tcpstats.Reply
	if err := json.Unmarshal(c.body, &r); err != nil {
		return "", fmt.Errorf("decode reply: %w", err)
	}
	if r.Code != tcpstats.CodeOK {
		return r.Filter, &RefusedError{r}
	}
	return r.Filter, nil
}

// message reads the next message into c.body.
func (c *Conn) message() (m tcpstats.Message, err error) {
	var head [tcpstats.MessageHeader]byte
	if _, err := io.ReadFull(c.c, head[:]); err != nil {
		return m, fmt.Errorf("read from the service: %w", err)
	}
	if err := m.Decode(head[:]); err != nil {
		return m, err
	}
	if cap(c.body) < m.Bytes {
		c.body = make([]byte, m.Bytes)
	}
	c.body = c.body[:m.Bytes]
	if _, err := io.ReadFull(c.c, c.body); err != nil {
		return m, fmt.Errorf("read from the service: %w", err)
	}
	return m, nil
}

// cancelGrace is how long the service may take to end a read that was cancelled.
const cancelGrace = 10 * time.Second

// Read reads once. each gets chunks of whole records, as they came: they are the
// connection's, until it returns. When ctx ends, or each fails, the read is cancelled, and
// what came before stands; End tells that.
//
// Errors: *RefusedError, each's.
func (c *Conn) Read(ctx context.Context, each func(chunk []byte, records int) error) (end tcpstats.End, err error) {
	c.next++
	id := strconv.FormatUint(uint64(c.next), 10)
	_ = c.c.SetDeadline(time.Time{}) // an error shows at the next call
	_, werr := io.WriteString(c.c, "READ "+id+"\n")
	var once sync.Once
	cancel := func() {
		once.Do(func() {
			_ = c.c.SetDeadline(time.Now().Add(cancelGrace))
			_, _ = io.WriteString(c.c, "CANCEL "+id+"\n") // without it, the read ends by its duration
		})
	}
	defer context.AfterFunc(ctx, cancel)()
	for replies, ended := 0, false; ; {
		m, merr := c.message()
		if merr != nil {
			return end, errors.Join(err, werr, merr)
		}
		if m.Kind != tcpstats.MessageReply && (m.Read != c.next || ended) {
			return end, fmt.Errorf("%w: something of read %d while %s is under way", tcpstats.ErrMessage, m.Read, id)
		}
		switch m.Kind {
		case tcpstats.MessageReply:
			if replies++; replies == 1 { // to READ; another one is to CANCEL
				if _, err = c.reply(); err != nil {
					ended = true // there is no such read
				}
			}
		case tcpstats.MessageRecords:
			if err == nil {
				if err = each(c.body, m.Records); err != nil {
					cancel()
				}
			}
		case tcpstats.MessageEnd:
			if jerr := json.Unmarshal(c.body, &end); jerr != nil {
				return end, fmt.Errorf("decode end of read: %w", jerr)
			}
			ended = true
		}
		if !ended {
			continue
		}
		want := 2
		once.Do(func() { want = 1 })
		if replies >= want {
			return end, err
		}
	}
}

// Records calls each for every record of a chunk, with the same Record.
func Records(chunk []byte, each func(r *tcpstats.Record) error) error {
	var r tcpstats.Record
	for len(chunk) > 0 {
		n, err := r.Decode(chunk)
		if err != nil {
			return err
		}
		if err := each(&r); err != nil {
			return err
		}
		chunk = chunk[n:]
	}
	return nil
}
