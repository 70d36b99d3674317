package inetdiag

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"oxpd/internal/board"
	"oxpd/internal/sys"
	"oxpd/internal/tcpstats"
)

// Config is what a Source needs.
type Config struct {
	NetNS string // path of the namespace whose sockets are read; empty: the process's own
	// Ports are the kernel's indexes of the ports' interfaces, 0 for those that are not there.
	// nil: there are no ports.
	Ports func() [board.Ports]int
}

// receiveLimit ends a wait for the kernel, which answers a dump within the call.
const receiveLimit = 5 * time.Second

// Source is the kernel's TCP sockets. Safe for concurrent use.
type Source struct {
	cfg   Config
	rooms sync.Pool // *[datagramBytes]byte, for reads to come
}

// New makes a source. Nothing is opened before Open.
func New(cfg Config) *Source { return &Source{cfg: cfg} }

// cursor is one read.
type cursor struct {
	fd    int
	dump  *dump // that is to be asked for; nil: it was, or there is none
	reply reply
	under bool // a dump is under way

	matcher tcpstats.Matcher
	fields  tcpstats.Groups
	format  tcpstats.Format
	tracing bool // somebody traces, as of this call of Next
	via     uint8
	route   *router // nil: nobody asks for ports

	socket socket
	record tcpstats.Record
	walked tcpstats.Walked
	// room is of an allocation of its own, which is on a page of its own: the kernel's copy to
	// a place that is not aligned takes a twentieth of a dump more.
	room  *[datagramBytes]byte
	rooms *sync.Pool
}

// Open implements tcpstats.Source.
func (s *Source) Open(_ context.Context, q *tcpstats.Query) (tcpstats.Cursor, error) {
	c := &cursor{fd: -1, matcher: q.Filter.Matcher(), fields: q.Filter.Fields, format: q.Filter.Format, rooms: &s.rooms}
	c.dump, c.walked.PushedDown = plan(q)
	c.record.Reset(tcpstats.Host)
	err := sys.InNetNS(s.cfg.NetNS, func() (err error) {
		c.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("inetdiag: open sock_diag: %w", err)
	}
	if err := bound(c.fd); err != nil {
		_ = unix.Close(c.fd)
		return nil, err
	}
	if c.via = q.Filter.Via; c.via != 0 {
		if c.route, err = s.newRouter(); err != nil {
			_ = unix.Close(c.fd)
			return nil, err
		}
	}
	var ok bool
	if c.room, ok = s.rooms.Get().(*[datagramBytes]byte); !ok {
		c.room = new([datagramBytes]byte)
	}
	return c, nil
}

// bound gives the waits of a socket an end.
func bound(fd int) error {
	limit := unix.NsecToTimeval(receiveLimit.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		return fmt.Errorf("inetdiag: bound the wait for the kernel: %w", err)
	}
	return nil
}

// Next implements tcpstats.Cursor. It looks at no more than one datagram with sockets.
func (c *cursor) Next(ctx context.Context, b []byte) ([]byte, int, error) {
	c.tracing = tcpstats.Tracing()
	appended := c.walked.Appended
	for left := tcpstats.Stretch; left == tcpstats.Stretch; {
		more, err := c.datagram()
		if err != nil {
			return b, 0, fmt.Errorf("inetdiag: %w", err)
		}
		if !more {
			return b, 0, io.EOF
		}
		for ; left > 0; left-- {
			diag, attributes, ok, err := c.reply.next()
			if err != nil {
				c.said()
				return b, int(c.walked.Appended - appended), fmt.Errorf("inetdiag: %w", err)
			}
			if !ok {
				break
			}
			b, _ = c.judge(diag, attributes, b)
		}
		c.said()
	}
	return b, int(c.walked.Appended - appended), nil
}

// said takes over what a reply says of the whole dump.
func (c *cursor) said() {
	c.walked.Inconsistent = c.walked.Inconsistent || c.reply.inconsistent
	c.under = c.under && !c.reply.done
}

// datagram waits for one, unless there is one with messages that nobody has looked at. more
// is false at the end of the dump.
func (c *cursor) datagram() (more bool, err error) {
	for !c.under || len(c.reply.rest) == 0 {
		if !c.under {
			if c.dump == nil {
				return false, nil
			}
			if err := c.ask(); err != nil {
				return false, err
			}
		}
		if err := c.receive(); err != nil {
			return false, err
		}
	}
	return true, nil
}

// ask sends the request.
func (c *cursor) ask() error {
	const seq = 1
	request := c.dump.append(nil, seq)
	c.dump = nil
	if err := unix.Sendto(c.fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("ask for sockets: %w", err)
	}
	c.under = true
	c.reply = reply{seq: seq}
	return nil
}

// receive takes the next datagram.
func (c *cursor) receive() error {
	for {
		n, err := sys.Receive(c.fd, c.room[:])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			c.under = false
			return fmt.Errorf("receive: the kernel did not answer in %v: %w", receiveLimit, os.ErrDeadlineExceeded)
		case err != nil:
			c.under = false
			return fmt.Errorf("receive: %w", err)
		case n == 0:
			c.under = false
			return fmt.Errorf("receive: %w", io.ErrUnexpectedEOF)
		case n > len(c.room):
			c.walked.Truncated++
			c.reply.rest = nil
			return fmt.Errorf("%w: %d bytes of %d", ErrTruncated, len(c.room), n)
		}
		c.reply.rest = c.room[:n]
		return nil
	}
}

// Walked implements tcpstats.Cursor.
func (c *cursor) Walked() tcpstats.Walked { return c.walked }

// Close implements tcpstats.Cursor. What a dump still has is read and counted.
func (c *cursor) Close() error {
	if c.room == nil {
		return nil // it was closed
	}
	c.dump = nil
	for c.under {
		more, err := c.datagram()
		for ok := more; ok && err == nil; {
			if _, _, ok, err = c.reply.next(); ok {
				c.walked.Visited++
			}
		}
		c.said()
		if err != nil && !errors.Is(err, ErrReply) && !errors.Is(err, ErrTruncated) {
			break
		}
	}
	c.rooms.Put(c.room)
	c.room, c.reply.rest = nil, nil
	err := unix.Close(c.fd)
	if c.route != nil {
		err = errors.Join(err, c.route.close())
	}
	return err
}
