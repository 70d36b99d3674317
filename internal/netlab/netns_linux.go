package netlab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/jsimonetti/rtnetlink/v2"
	"golang.org/x/sys/unix"
)

// ErrClosed says that a namespace was used after Close.
var ErrClosed = errors.New("netlab: namespace is closed")

// NS is a network namespace without a name. It lives until Close, and no longer
// than this process and the children that were started in it. Safe for
// concurrent use; what is handed to Do runs one after another.
type NS struct {
	file *os.File
	conn *rtnetlink.Conn
	work chan func()
	quit chan struct{} // closed by Close
	gone chan struct{} // closed when the thread ends
	once sync.Once
	ids  atomic.Uint32 // echo identifiers handed out
}

// New makes a namespace with its loopback interface up. The error is EPERM
// (errors.Is) when the process may not make one.
func New() (*NS, error) {
	n := &NS{work: make(chan func()), quit: make(chan struct{}), gone: make(chan struct{})}
	ready := make(chan error)
	go n.thread(ready)
	if err := <-ready; err != nil {
		return nil, err
	}
	if err := n.SetUp("lo", true); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// thread owns the namespace's thread. It never unlocks it, so that the thread
// ends with it instead of carrying foreign goroutines into the namespace.
func (n *NS) thread(ready chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		// The main thread cannot end before the process: leave it as it is. It
		// is taken until the successor runs, which thus gets another.
		up := make(chan struct{})
		go func() {
			close(up)
			n.thread(ready)
		}()
		<-up
		runtime.UnlockOSThread()
		return
	}
	defer close(n.gone)
	if err := n.enter(); err != nil {
		ready <- err
		return
	}
	ready <- nil
	for {
		select {
		case f := <-n.work:
			f()
		case <-n.quit:
			return
		}
	}
}

// enter moves the calling thread into a new namespace and takes hold of it.
func (n *NS) enter() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("netlab: make a network namespace: %w", err)
	}
	file, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return fmt.Errorf("netlab: hold the network namespace: %w", err)
	}
	conn, err := rtnetlink.Dial(nil)
	if err != nil {
		return fmt.Errorf("netlab: open rtnetlink: %w", errors.Join(err, file.Close()))
	}
	n.file, n.conn = file, conn
	return nil
}

// Do runs f on the namespace's thread and returns its error: sockets that f
// opens, children that it starts and files under /proc/sys/net and
// /proc/thread-self belong to the namespace. f must not block for long nor call
// Do; sockets may be used anywhere afterwards. ErrClosed after Close.
func (n *NS) Do(f func() error) error {
	done := make(chan error, 1)
	select {
	case n.work <- func() { done <- f() }:
		return <-done
	case <-n.quit:
		return ErrClosed
	}
}

// Close lets go of the namespace and ends its thread, and with it every child
// that Start started and that still runs.
func (n *NS) Close() error {
	n.once.Do(func() { close(n.quit) })
	<-n.gone
	return errors.Join(n.conn.Close(), n.file.Close())
}

// File is the namespace's descriptor, for a child's ExtraFiles. It belongs to n.
func (n *NS) File() *os.File { return n.file }

// Start starts cmd in the namespace, in a process group of its own, so that a
// terminal's interrupt reaches only this process. The kernel kills the child
// when n is closed or this process ends, however it ends.
func (n *NS) Start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.Setpgid = true
	cmd.SysProcAttr.Pdeathsig = unix.SIGKILL // of the namespace's thread
	if err := n.Do(cmd.Start); err != nil {
		return fmt.Errorf("netlab: start %s: %w", cmd.Path, err)
	}
	return nil
}

// Sysctl writes a setting under /proc/sys/net of the namespace:
// Sysctl("ipv6/conf/all/disable_ipv6", "1").
func (n *NS) Sysctl(name, value string) error {
	return n.Do(func() error {
		if err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0); err != nil {
			return fmt.Errorf("netlab: set %s: %w", name, err)
		}
		return nil
	})
}
