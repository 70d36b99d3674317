package sys

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// threadNetNS is the network namespace of the calling thread. /proc/self would
// be the one of the process's first thread.
const threadNetNS = "/proc/thread-self/ns/net"

// NetNS is an open network namespace. It exists at least as long as it is open.
// Safe for concurrent use.
type NetNS struct{ f *os.File }

// OpenNetNS opens the namespace that a path names: /run/netns/NAME or
// /proc/PID/ns/net. An empty path is the namespace of the calling thread.
func OpenNetNS(path string) (*NetNS, error) {
	if path == "" {
		path = threadNetNS
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("sys: open network namespace: %w", err)
	}
	return &NetNS{f: f}, nil
}

// NewNetNS makes an empty namespace without a name. It ends with the last file,
// socket and process inside it, so nothing is left behind after Close.
func NewNetNS() (*NetNS, error) {
	var ns *NetNS
	err := onThread(func() (home bool, err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return true, fmt.Errorf("sys: make network namespace: %w", err)
		}
		ns, err = OpenNetNS("")
		return false, err
	})
	if err != nil {
		return nil, err
	}
	return ns, nil
}

// Path names the namespace for OpenNetNS and for other programs, while it is open.
func (n *NetNS) Path() string {
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.f.Fd())
}

// Do runs fn with the calling thread inside the namespace and returns fn's
// error. fn runs on another goroutine, locked to its thread; it must not start
// goroutines that are meant to be inside (they are not). Sockets and TAPs that
// it opens stay in the namespace, whoever uses them later. A child process
// that it starts is inside too.
func (n *NetNS) Do(fn func() error) error {
	return enter(int(n.f.Fd()), setNetNS, fn)
}

// Close closes the namespace's descriptor.
func (n *NetNS) Close() error { return n.f.Close() }

// InNetNS runs fn inside the namespace that path names, and on the calling
// goroutine when path is empty.
func InNetNS(path string, fn func() error) error {
	if path == "" {
		return fn()
	}
	ns, err := OpenNetNS(path)
	if err != nil {
		return err
	}
	defer ns.Close()
	return ns.Do(fn)
}

func setNetNS(fd int) error { return unix.Setns(fd, unix.CLONE_NEWNET) }

// enter is Do with the system call handed in.
func enter(fd int, setns func(fd int) error, fn func() error) error {
	return onThread(func() (home bool, err error) {
		back, err := OpenNetNS("")
		if err != nil {
			return true, err
		}
		defer back.Close()
		if err := setns(fd); err != nil {
			return true, fmt.Errorf("sys: enter network namespace: %w", err)
		}
		err = fn()
		if rerr := setns(int(back.f.Fd())); rerr != nil {
			return false, errors.Join(err, fmt.Errorf("sys: leave network namespace: %w", rerr))
		}
		return true, err
	})
}

// errExited is what a function that ended its goroutine leaves behind.
var errExited = errors.New("sys: function ended its goroutine inside a network namespace")

// onThread runs fn on a goroutine locked to its thread and waits for it. Unless
// fn says that the thread is home again, the thread ends with the goroutine.
func onThread(fn func() (home bool, err error)) error {
	done := make(chan error, 1)
	go func() {
		result := errExited // unless fn returns
		defer func() { done <- result }()
		runtime.LockOSThread()
		home, err := fn()
		result = err
		if home {
			runtime.UnlockOSThread()
		}
	}()
	return <-done
}
