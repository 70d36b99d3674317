package sys

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// mmsghdr is struct mmsghdr (recvmmsg(2)).
type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32
}

// Messages is a batch of datagrams for one system call. Each has two pieces at most,
// which stay the caller's. Not safe for concurrent use.
type Messages struct {
	hdrs []mmsghdr
	iovs [][2]unix.Iovec
}

// NewMessages makes a batch of n.
func NewMessages(n int) *Messages {
	m := &Messages{hdrs: make([]mmsghdr, n), iovs: make([][2]unix.Iovec, n)}
	for i := range m.hdrs {
		m.hdrs[i].hdr.Iov = &m.iovs[i][0]
	}
	return m
}

// Set gives datagram i its memory, in order; body may be empty, head may not.
func (m *Messages) Set(i int, head, body []byte) {
	h := &m.hdrs[i].hdr
	setPiece(&m.iovs[i][0], head)
	h.SetIovlen(1)
	if len(body) > 0 {
		setPiece(&m.iovs[i][1], body)
		h.SetIovlen(2)
	}
}

func setPiece(v *unix.Iovec, b []byte) {
	v.Base = &b[0]
	v.SetLen(len(b))
}

// Send sends datagrams from to end-1 and returns how many went: fewer, without an error,
// when the socket took no more. It does not wait: unix.EAGAIN when it took none.
func (m *Messages) Send(fd, from, end int) (int, error) {
	return m.call(unix.SYS_SENDMMSG, fd, from, end, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
}

// Receive fills datagrams 0 to end-1 and returns how many came. It does not wait.
func (m *Messages) Receive(fd, end int) (int, error) {
	return m.call(unix.SYS_RECVMMSG, fd, 0, end, unix.MSG_DONTWAIT)
}

func (m *Messages) call(trap uintptr, fd, from, end int, flags uintptr) (int, error) {
	n, _, errno := unix.Syscall6(trap, uintptr(fd), uintptr(unsafe.Pointer(&m.hdrs[from])), uintptr(end-from), flags, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// Bytes is how many bytes of datagram i were received; cut says that it had more than
// its memory takes.
func (m *Messages) Bytes(i int) (n int, cut bool) {
	return int(m.hdrs[i].n), m.hdrs[i].hdr.Flags&unix.MSG_TRUNC != 0
}
