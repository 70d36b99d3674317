package port

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"oxpd/internal/sys"
)

// epoll is an epoll descriptor that itself is on the runtime's poller, so that
// waiting takes no thread.
type epoll struct {
	file   *os.File
	raw    syscall.RawConn
	fd     int
	look   func(fd uintptr) bool // made once: a closure per wait would be garbage
	events [64]unix.EpollEvent
	n      int
	err    error
}

func newPoller() (poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create epoll: %w", err)
	}
	if fd, err = sys.AboveStdio(fd); err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("create epoll: %w", err)
	}
	e := &epoll{fd: fd, file: os.NewFile(uintptr(fd), "epoll")}
	if e.raw, err = e.file.SyscallConn(); err != nil {
		e.file.Close()
		return nil, fmt.Errorf("create epoll: %w", err)
	}
	e.look = func(fd uintptr) bool {
		e.n, e.err = unix.EpollWait(int(fd), e.events[:], 0)
		return e.n != 0 || e.err != nil && e.err != unix.EINTR
	}
	return e, nil
}

func (e *epoll) add(fd int, id int32) error {
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: id}
	if err := unix.EpollCtl(e.fd, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		return fmt.Errorf("add to epoll: %w", err)
	}
	return nil
}

func (e *epoll) remove(fd int) error {
	if err := unix.EpollCtl(e.fd, unix.EPOLL_CTL_DEL, fd, nil); err != nil {
		return fmt.Errorf("remove from epoll: %w", err)
	}
	return nil
}

func (e *epoll) wait(ids []int32) (int, error) {
	if err := e.raw.Read(e.look); err != nil {
		return 0, fmt.Errorf("wait: %w", err)
	}
	if e.err != nil {
		return 0, fmt.Errorf("wait: %w", e.err)
	}
	n := min(e.n, len(ids))
	for i := range n {
		ids[i] = e.events[i].Fd
	}
	return n, nil
}

func (e *epoll) interrupt() error { return e.file.SetReadDeadline(time.Unix(1, 0)) }
func (e *epoll) resume() error    { return e.file.SetReadDeadline(time.Time{}) }
func (e *epoll) close() error     { return e.file.Close() }
