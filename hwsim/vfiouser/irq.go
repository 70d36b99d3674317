package vfiouser

import (
	"sync"

	"golang.org/x/sys/unix"

	"oxpd/internal/vfu"
)

// line is the eventfd of one vector.
type line struct {
	mu sync.Mutex
	fd int // -1 once it is closed: the card may still be on its way to raise
}

// raise adds one to the eventfd. It never blocks: a descriptor that takes nothing
// now is left as it is, and an eventfd that is full has been raised often enough.
func (l *line) raise() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fd < 0 {
		return
	}
	p := []unix.PollFd{{Fd: int32(l.fd), Events: unix.POLLOUT}}
	if n, err := unix.Poll(p, 0); err != nil || n == 0 || p[0].Revents&unix.POLLOUT == 0 {
		return
	}
	_, _ = unix.Write(l.fd, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // what the client made of it is its own
}

func (l *line) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = unix.Close(l.fd)
	l.fd = -1
}

func (c *session) irqInfo(r *request) ([]byte, error) {
	var q vfu.IRQ
	if err := q.Decode(r.payload); err != nil {
		return nil, err
	}
	if err := c.checkArgSize(q.ArgSize, vfu.IRQSize); err != nil {
		return nil, err
	}
	if q.Index >= vfu.IRQs {
		return nil, unix.EINVAL
	}
	a := vfu.IRQ{ArgSize: vfu.IRQSize, Index: q.Index}
	if n := c.s.card.Vectors(); q.Index == vfu.IRQMSIX && n != 0 {
		a.Flags, a.Count = vfu.IRQEventFD, uint32(n)
	}
	return a.Append(nil), nil
}

// setIRQs says who is told of vectors, takes that back, or raises them.
func (c *session) setIRQs(r *request) error {
	var s vfu.IRQSet
	if err := s.Decode(r.payload); err != nil {
		return err
	}
	if err := c.checkArgSize(s.ArgSize, vfu.IRQSetSize); err != nil {
		return err
	}
	count := uint64(0)
	if s.Index == vfu.IRQMSIX {
		count = uint64(c.s.card.Vectors())
	}
	if s.Index >= vfu.IRQs || uint64(s.Start)+uint64(s.Count) > count {
		return unix.EINVAL
	}
	first, n := int(s.Start), int(s.Count)
	if s.Flags != vfu.IRQBool|vfu.IRQTrigger && len(s.Data) != 0 || s.Flags != vfu.IRQFD|vfu.IRQTrigger && len(r.fds) != 0 {
		return unix.EINVAL
	}
	switch s.Flags {
	case vfu.IRQNone | vfu.IRQTrigger:
		if n == 0 && first != 0 {
			return unix.EINVAL
		}
		if n == 0 {
			c.dropLines(0, int(count))
		}
		c.raise(first, n, nil)
	case vfu.IRQBool | vfu.IRQTrigger:
		if n == 0 || len(s.Data) != n {
			return unix.EINVAL
		}
		c.raise(first, n, s.Data)
	case vfu.IRQFD | vfu.IRQTrigger:
		if n == 0 || len(r.fds) != 0 && len(r.fds) != n {
			return unix.EINVAL
		}
		c.dropLines(first, n)
		for i := range r.fds {
			c.listen(first+i, r.take(i))
		}
	default:
		return unix.EINVAL // masking is not offered, anything else makes no sense
	}
	return nil
}

// listen has the messages of a vector raise a descriptor, which it takes. What was
// pending is sent.
func (c *session) listen(vector, fd int) {
	l := &line{fd: fd}
	c.lines[vector] = l
	c.s.card.OnIRQ(vector, l.raise)
}

// dropLines masks vectors and closes their descriptors.
func (c *session) dropLines(first, n int) {
	for v := first; v < first+n; v++ {
		if l := c.lines[v]; l != nil {
			c.s.card.OnIRQ(v, nil)
			l.close()
			c.lines[v] = nil
		}
	}
}

// raise raises vectors in the client's own name; chosen says which, nil: all.
func (c *session) raise(first, n int, chosen []byte) {
	for i := range n {
		if l := c.lines[first+i]; l != nil && (chosen == nil || chosen[i] != 0) {
			l.raise()
		}
	}
}
