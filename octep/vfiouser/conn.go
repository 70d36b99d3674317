package vfiouser

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"oxpd/internal/mmio"
	"oxpd/internal/vfu"
)

// answerLimit is how long an answer may take. The server's own work takes
// microseconds; whatever takes this long does not come back.
const answerLimit = 10 * time.Second

// peekPause is between two looks at a message of which a part is there.
const peekPause = time.Millisecond

// maxReply bounds the payload of an answer, of which a region's areas are the longest.
const maxReply = 1 << 10

// errProtocol is an answer that is none.
var errProtocol = errors.New("the server does not keep to the protocol")

// refusal is an error reply.
type refusal struct {
	command vfu.Command
	errno   unix.Errno
}

func (e *refusal) Error() string {
	return fmt.Sprintf("%v refused: %v", e.command, e.errno)
}

func (e *refusal) Unwrap() error { return e.errno }

// conn is the socket. One command is under way at a time.
type conn struct {
	mu   sync.Mutex
	sock *net.UnixConn
	id   uint16
	skip bool  // answers to a process that has died may still come
	err  error // why there is no connection any more
	out  []byte
	in   [vfu.HeaderSize + maxReply]byte
	oob  [64]byte
}

func newConn(sock *net.UnixConn) *conn {
	return &conn{sock: sock, out: make([]byte, 0, 256)}
}

// call sends a command and returns the payload of its answer, in memory that is the
// caller's, and the descriptor beside it, -1 for none.
//
// Errors: *refusal; anything else is the end of the connection, mmio.ErrGone among
// them.
func (c *conn) call(cmd vfu.Command, payload []byte, fds ...int) (reply []byte, fd int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.send(cmd, 0, payload, fds); err != nil {
		return nil, -1, err
	}
	in, fd, err := c.receive(cmd)
	return append([]byte(nil), in...), fd, err
}

// load is call for an access to a region, without garbage. all-ones: nobody answers.
func (c *conn) load(region, width uint32, off uint64) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := ^uint64(0) >> (64 - 8*width)
	var payload [vfu.AccessSize]byte
	if c.send(vfu.ReadAt, 0, vfu.Access{Offset: off, Region: region, Count: width}.Append(payload[:0]), nil) != nil {
		return v
	}
	in, _, err := c.receive(vfu.ReadAt)
	if err != nil {
		return v
	}
	var a vfu.Access
	if a.Decode(in) != nil || len(a.Data) != int(width) {
		c.end(errProtocol)
		return v
	}
	v = 0
	for i := int(width) - 1; i >= 0; i-- {
		v = v<<8 | uint64(a.Data[i])
	}
	return v
}

// store writes to a region and does not wait: messages are obeyed in order.
func (c *conn) store(region, width uint32, off, v uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var data [8]byte
	for i := range data {
		data[i] = byte(v >> (8 * i))
	}
	var payload [vfu.AccessSize + 8]byte
	a := vfu.Access{Offset: off, Region: region, Count: width, Data: data[:width]}
	_ = c.send(vfu.WriteAt, vfu.FlagNoReply, a.Append(payload[:0]), nil) // the next load finds out
}

// end closes the connection for good. Held: c.mu.
func (c *conn) end(why error) error {
	if c.err == nil {
		c.err = fmt.Errorf("%w: %w", why, mmio.ErrGone)
		_ = c.sock.Close() // the reason is why
	}
	return c.err
}

// ended tells whether it is closed.
func (c *conn) ended() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err != nil
}

// send writes a command. Held: c.mu.
func (c *conn) send(cmd vfu.Command, flags uint32, payload []byte, fds []int) error {
	if c.err != nil {
		return c.err
	}
	if err := c.sock.SetDeadline(time.Now().Add(answerLimit)); err != nil {
		return c.end(err)
	}
	c.id++
	h := vfu.Header{ID: c.id, Command: cmd, Size: uint32(vfu.HeaderSize + len(payload)), Flags: flags}
	c.out = append(h.Append(c.out[:0]), payload...)
	var n int
	var err error
	if len(fds) > 0 {
		n, _, err = c.sock.WriteMsgUnix(c.out, unix.UnixRights(fds...), nil)
	} else {
		n, err = c.sock.Write(c.out)
	}
	if err == nil && n != len(c.out) {
		err = io.ErrShortWrite
	}
	if err != nil {
		return c.end(err)
	}
	return nil
}

// receive reads the answer to the last command. The payload is good until the next
// one. Held: c.mu.
func (c *conn) receive(cmd vfu.Command) (payload []byte, fd int, err error) {
	for {
		h, fd, err := c.message(cmd)
		switch {
		case err != nil:
			return nil, -1, err
		case !c.answers(h, cmd): // what the process before had asked
			closeFD(fd)
		case h.Flags&vfu.FlagError != 0:
			closeFD(fd)
			return nil, -1, &refusal{cmd, unix.Errno(h.Errno)}
		default:
			return c.in[vfu.HeaderSize:h.Size], fd, nil
		}
	}
}

// answers tells whether a message is the answer to the last command.
func (c *conn) answers(h vfu.Header, cmd vfu.Command) bool { return h.ID == c.id && h.Command == cmd }

// message reads one message, the answer to cmd unless others are skipped. Held: c.mu.
func (c *conn) message(cmd vfu.Command) (h vfu.Header, fd int, err error) {
	room := len(c.in)
	if c.skip { // another may follow
		if room, err = c.next(); err != nil {
			return h, -1, c.end(err)
		}
	}
	fd = -1
	have, size := 0, vfu.HeaderSize
	for have < size {
		n, oobn, _, _, err := c.sock.ReadMsgUnix(c.in[have:room], c.oob[:])
		fd = firstOf(fd, c.oob[:oobn])
		if err == nil && n == 0 {
			err = io.EOF
		}
		if err != nil {
			closeFD(fd)
			return h, -1, c.end(err)
		}
		had := have
		have += n
		if had < vfu.HeaderSize && have >= vfu.HeaderSize {
			_ = h.Decode(c.in[:vfu.HeaderSize]) // of that length
			if !c.skip && !c.answers(h, cmd) || !c.fits(h) {
				closeFD(fd)
				return h, -1, c.end(errProtocol)
			}
			size = int(h.Size)
		}
	}
	if have > size {
		closeFD(fd)
		return h, -1, c.end(errProtocol)
	}
	return h, fd, nil
}

// fits tells whether h can be the head of an answer.
func (c *conn) fits(h vfu.Header) bool {
	return h.Flags&vfu.FlagTypeMask == vfu.FlagReply && h.Size >= vfu.HeaderSize && h.Size <= uint32(len(c.in))
}

// next waits until all of the next message is there, leaves it there, and returns its
// size. What follows takes it by one read, so that a process that dies on the way
// leaves all of it or nothing, never a half that the next process takes for a head.
// Held: c.mu.
func (c *conn) next() (size int, err error) {
	raw, err := c.sock.SyscallConn()
	if err != nil {
		return 0, err
	}
	for {
		var n int
		var peekErr error
		err := raw.Read(func(fd uintptr) bool { // to the deadline of send
			for {
				n, _, peekErr = unix.Recvfrom(int(fd), c.in[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
				if !errors.Is(peekErr, unix.EINTR) {
					return !errors.Is(peekErr, unix.EAGAIN)
				}
			}
		})
		if err = errors.Join(err, peekErr); err != nil {
			return 0, err
		}
		if n == 0 {
			return 0, io.EOF
		}
		var h vfu.Header
		if n >= vfu.HeaderSize {
			_ = h.Decode(c.in[:vfu.HeaderSize]) // of that length
			if !c.fits(h) {
				return 0, errProtocol
			}
			if n >= int(h.Size) {
				return int(h.Size), nil
			}
		}
		time.Sleep(peekPause) // the socket is readable: nothing else tells
	}
}

// firstOf returns fd, or the first descriptor of control messages when that is none,
// and closes all others.
func firstOf(fd int, oob []byte) int {
	if len(oob) == 0 {
		return fd
	}
	msgs, _ := unix.ParseSocketControlMessage(oob) // what cannot be read has no descriptors
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			continue
		}
		for _, f := range fds {
			if fd < 0 {
				fd = f
			} else {
				closeFD(f)
			}
		}
	}
	return fd
}

func closeFD(fd int) {
	if fd >= 0 {
		_ = unix.Close(fd)
	}
}

// close ends the connection.
func (c *conn) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.end(net.ErrClosed)
}
