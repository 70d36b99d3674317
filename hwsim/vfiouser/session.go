package vfiouser

import (
	"errors"
	"fmt"
	"io"
	"net"

	"golang.org/x/sys/unix"

	"oxpd/internal/vfu"
	"oxpd/octep/csr"
)

// What this end can take.
const (
	maxFDs      = 8 // in one message
	maxTransfer = 1 << 20
	maxMaps     = 1<<16 - 1
	pageSize    = 4096
	maxHello    = 4096 // bytes of the first message, which comes before anything is agreed on
)

// errEnd is a message after which the connection cannot go on.
var errEnd = errors.New("connection ended")

// session is one client. Everything of it happens in run's goroutine, except left.
type session struct {
	s    *Server
	conn *net.UnixConn
	done chan struct{}

	greeted  bool
	transfer uint32 // most bytes of a region in one message
	maps     map[uint64]mapping
	lines    [csr.MSIXVectors]*line

	in, out []byte
	oob     [64]byte // room for maxFDs descriptors and no more
}

func newSession(s *Server, conn *net.UnixConn) *session {
	return &session{s: s, conn: conn, done: make(chan struct{}), transfer: maxTransfer, maps: map[uint64]mapping{}}
}

// left tells whether the client has closed its end.
func (c *session) left() bool {
	gone := true
	raw, err := c.conn.SyscallConn()
	if err != nil {
		return gone
	}
	_ = raw.Control(func(fd uintptr) { // an error: it is closed here already
		p := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(p, 0)
		for err == unix.EINTR { // also of a poll that does not wait, by a signal of the runtime
			n, err = unix.Poll(p, 0)
		}
		gone = err != nil || n > 0 && p[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
	})
	return gone
}

// run serves the client until its connection ends, then takes back what it had.
func (c *session) run() {
	defer close(c.done)
	defer c.s.over(c)
	c.s.bar2.fill()
	c.s.log.Info("client connected")
	var err error
	for err == nil {
		err = c.serve()
	}
	_ = c.conn.Close() // whatever ended it
	c.dropLines(0, csr.MSIXVectors)
	c.unmapAll()
	if c.greeted {
		c.s.card.Closed()
	}
	if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
		c.s.log.Info("client left")
		return
	}
	c.s.log.Warn("connection of the client ended", "err", err)
}

// request is a command with the descriptors beside it.
type request struct {
	vfu.Header
	payload []byte
	fds     []int
}

// take gives descriptor i to the caller.
func (r *request) take(i int) int {
	fd := r.fds[i]
	r.fds[i] = -1
	return fd
}

// drop closes what nobody took.
func (r *request) drop() {
	for _, fd := range r.fds {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// serve reads one command and answers it. Its errors end the connection.
func (c *session) serve() error {
	r, err := c.read()
	defer r.drop()
	if err != nil {
		return err
	}
	reply, fd, err := c.dispatch(r)
	var errno unix.Errno
	switch {
	case err == nil:
	case errors.As(err, &errno):
	case errors.Is(err, vfu.ErrMalformed):
		errno = unix.EINVAL
	default:
		return err
	}
	if err != nil {
		c.s.log.Debug("command refused", "command", r.Command.String(), "err", err)
	}
	if r.Flags&vfu.FlagNoReply != 0 && r.Command != vfu.Version {
		return nil
	}
	return c.reply(r, reply, fd, errno)
}

// read reads one command. What it returns is never nil, and its descriptors are the
// caller's also when there is an error.
func (c *session) read() (*request, error) {
	r := &request{}
	var head [vfu.HeaderSize]byte
	for have := 0; have < len(head); {
		n, oobn, flags, _, err := c.conn.ReadMsgUnix(head[have:], c.oob[:])
		fds, broken := descriptors(c.oob[:oobn])
		r.fds = append(r.fds, fds...)
		switch {
		case err != nil:
			return r, err
		case n == 0 && have == 0:
			return r, io.EOF
		case n == 0:
			return r, io.ErrUnexpectedEOF
		case broken != nil:
			return r, broken
		case flags&unix.MSG_CTRUNC != 0 || len(r.fds) > maxFDs:
			return r, fmt.Errorf("more than %d descriptors in one message: %w", maxFDs, errEnd)
		}
		have += n
	}
	if err := r.Decode(head[:]); err != nil {
		return r, err
	}
	most := uint32(vfu.HeaderSize + vfu.AccessSize + c.transfer)
	if !c.greeted {
		most = vfu.HeaderSize + maxHello
	}
	switch {
	case r.Flags&vfu.FlagTypeMask != 0:
		return r, fmt.Errorf("%v that is no command: %w", r.Command, errEnd)
	case r.Size < vfu.HeaderSize || r.Size > most:
		return r, fmt.Errorf("%v of %d bytes: want %d to %d: %w", r.Command, r.Size, vfu.HeaderSize, most, errEnd)
	case !c.greeted && r.Command != vfu.Version:
		return r, fmt.Errorf("%v before %v: %w", r.Command, vfu.Version, errEnd)
	}
	n := int(r.Size - vfu.HeaderSize)
	if cap(c.in) < n {
		c.in = make([]byte, n)
	}
	r.payload = c.in[:n]
	_, err := io.ReadFull(c.conn, r.payload) // drops descriptors that lie in between
	return r, err
}

// descriptors takes the descriptors out of control messages.
func descriptors(oob []byte) ([]int, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	var all []int
	for i := range msgs {
		if fds, e := unix.ParseUnixRights(&msgs[i]); e == nil {
			all = append(all, fds...)
		}
	}
	return all, err
}

// reply answers a command: with an error alone, or with a payload and perhaps a
// descriptor (-1: none).
func (c *session) reply(r *request, payload []byte, fd int, errno unix.Errno) error {
	h := vfu.Header{ID: r.ID, Command: r.Command, Size: vfu.HeaderSize, Flags: vfu.FlagReply}
	if errno != 0 {
		h.Flags |= vfu.FlagError
		h.Errno = uint32(errno)
		payload, fd = nil, -1
	}
	h.Size += uint32(len(payload))
	c.out = append(h.Append(c.out[:0]), payload...)
	if fd < 0 {
		_, err := c.conn.Write(c.out)
		return err
	}
	n, _, err := c.conn.WriteMsgUnix(c.out, unix.UnixRights(fd), nil)
	if err == nil && n != len(c.out) {
		err = io.ErrShortWrite
	}
	return err
}

// dispatch runs a command and returns the reply's payload and the descriptor beside
// it, -1 for none. A unix.Errno or vfu.ErrMalformed is for the client, any other
// error for nobody.
func (c *session) dispatch(r *request) (reply []byte, fd int, err error) {
	switch r.Command {
	case vfu.Version:
		reply, err = c.version(r)
	case vfu.MapDMA:
		err = c.mapDMA(r)
	case vfu.UnmapDMA:
		reply, err = c.unmapDMA(r)
	case vfu.GetInfo:
		reply, err = c.deviceInfo(r)
	case vfu.RegionInfo:
		return c.regionInfo(r)
	case vfu.IRQInfo:
		reply, err = c.irqInfo(r)
	case vfu.SetIRQs:
		err = c.setIRQs(r)
	case vfu.ReadAt:
		reply, err = c.readRegion(r)
	case vfu.WriteAt:
		reply, err = c.writeRegion(r)
	case vfu.Reset:
		err = c.reset(r)
	default:
		err = unix.EOPNOTSUPP
	}
	return reply, -1, err
}

// version agrees on what the rest of the messages look like.
func (c *session) version(r *request) ([]byte, error) {
	if c.greeted {
		return nil, unix.EINVAL
	}
	var h vfu.Hello
	if err := h.Decode(r.payload); err != nil {
		return nil, fmt.Errorf("%v: %w", err, errEnd) // no answer to what makes no sense
	}
	if h.Major != 0 || h.MaxTransfer < 8 {
		return nil, fmt.Errorf("version %d.%d, transfers of %d bytes: want 0.x and at least 8: %w", h.Major, h.Minor, h.MaxTransfer, errEnd)
	}
	c.greeted = true
	c.s.card.Opened()
	c.transfer = uint32(min(h.MaxTransfer, maxTransfer))
	own := vfu.Capabilities{MaxFDs: maxFDs, MaxTransfer: maxTransfer, MaxMaps: maxMaps, PageSizes: pageSize}
	return vfu.Hello{Capabilities: own}.Append(nil), nil
}

// checkArgSize judges the room that a client says it has for a payload of size
// bytes.
func (c *session) checkArgSize(argsz uint32, size int) error {
	if argsz < uint32(size) || argsz > vfu.AccessSize+c.transfer {
		return unix.EINVAL
	}
	return nil
}

func (c *session) deviceInfo(r *request) ([]byte, error) {
	var d vfu.Device
	if err := d.Decode(r.payload); err != nil {
		return nil, err
	}
	if err := c.checkArgSize(d.ArgSize, vfu.DeviceSize); err != nil {
		return nil, err
	}
	return vfu.Device{ArgSize: vfu.DeviceSize, Flags: vfu.DeviceReset | vfu.DevicePCI, Regions: vfu.Regions, IRQs: vfu.IRQs}.Append(nil), nil
}

// reset is a function reset of the card (choice 17).
func (c *session) reset(r *request) error {
	if len(r.payload) != 0 {
		return unix.EINVAL
	}
	c.s.card.FunctionReset()
	c.s.bar2.fill()
	return nil
}
