package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"oxpd/internal/daemon/client"
)

const (
	socketMode   = 0o600
	lockMode     = 0o600
	socketDir    = 0o755
	lockSuffix   = client.LockSuffix
	connectLimit = time.Second // of the test whether somebody listens
	maxPIDText   = 32

	// Clients look at the lock for a moment each (client.HeldError): it is not a
	// daemon's before it was held for so long.
	lockPatience = 300 * time.Millisecond
	lockPoll     = 5 * time.Millisecond
)

// RunningError says that another daemon has the socket.
type RunningError struct {
	Socket string
	PID    int // 0 when it could not be found out
}

func (e *RunningError) Error() string {
	who := "another daemon"
	if e.PID != 0 {
		who += " (pid " + strconv.Itoa(e.PID) + ")"
	}
	return who + " listens on " + e.Socket
}

// controlSocket is the daemon's listener together with the lock that makes it
// the only one. The lock file stays behind: removing it would let two daemons
// hold locks on two files of one name.
type controlSocket struct {
	net.Listener
	path string
	lock *os.File
	ino  uint64
}

// listen takes the lock next to path and listens on path with mode 0600. A
// socket that nobody listens on any more is replaced; anything else in its
// place is left alone and refused. Errors: *RunningError for another daemon,
// otherwise a *ListenError.
func listen(path string) (*controlSocket, error) {
	if err := client.CheckSocket(path); err != nil {
		return nil, &ListenError{path, err}
	}
	if err := os.MkdirAll(filepath.Dir(path), socketDir); err != nil {
		return nil, &ListenError{path, fmt.Errorf("make its directory: %w", err)}
	}
	lock, err := takeLock(path)
	if err != nil {
		return nil, err
	}
	s, err := listenLocked(path, lock)
	if err != nil {
		_ = lock.Close() // the error that matters is the listener's
		return nil, err
	}
	return s, nil
}

func listenLocked(path string, lock *os.File) (*controlSocket, error) {
	switch fi, err := os.Lstat(path); {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return nil, &ListenError{path, err}
	case fi.Mode()&os.ModeSocket == 0:
		return nil, &ListenError{path, errors.New("a file that is not a socket is in its place")}
	default:
		if pid, ok := listener(path); ok {
			return nil, &RunningError{Socket: path, PID: pid}
		}
	}
	// The socket gets its mode before it gets its name, so that nobody but the
	// owner can connect at any moment.
	fresh := path + "." + strconv.Itoa(os.Getpid())
	if len(fresh) > client.MaxSocket {
		fresh = filepath.Join(filepath.Dir(path), ".oxpd."+strconv.Itoa(os.Getpid()))
	}
	if fi, err := os.Lstat(fresh); err == nil && fi.Mode()&os.ModeSocket != 0 {
		_ = os.Remove(fresh) // left by a process of the same number that died between the two steps
	}
	l, err := bind(fresh)
	if err != nil {
		return nil, &ListenError{path, err}
	}
	l.SetUnlinkOnClose(false)
	var st unix.Stat_t
	err = os.Chmod(fresh, socketMode)
	if err == nil {
		err = os.Rename(fresh, path)
	}
	if err == nil {
		err = unix.Stat(path, &st)
	}
	if err != nil {
		_ = l.Close()
		_ = os.Remove(fresh)
		return nil, &ListenError{path, fmt.Errorf("put it in its place: %w", err)}
	}
	return &controlSocket{Listener: l, path: path, lock: lock, ino: st.Ino}, nil
}

// bind listens on a path that may be longer than the kernel takes: then through
// its directory's descriptor.
func bind(path string) (*net.UnixListener, error) {
	if len(path) > client.MaxSocket {
		dir, err := os.Open(filepath.Dir(path))
		if err != nil {
			return nil, err
		}
		defer dir.Close()
		path = fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path))
	}
	// Where the kernel gives the file the mode of the socket (Linux), it never has
	// another one: with a umask of 0 everybody could connect until it is changed.
	cfg := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = unix.Fchmod(int(fd), socketMode) }) // elsewhere it is changed behind it
	}}
	l, err := cfg.Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	return l.(*net.UnixListener), nil
}

// release removes the socket's name, when it is still this daemon's, and gives the lock back.
func (s *controlSocket) release() error {
	err := s.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	var st unix.Stat_t
	if unix.Stat(s.path, &st) == nil && st.Ino == s.ino {
		err = errors.Join(err, os.Remove(s.path))
	}
	return errors.Join(err, s.lock.Close())
}

// takeLock opens and locks the lock file and writes the process id into it. A file
// of that name that holds anything else is somebody's, and left alone.
func takeLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path+lockSuffix, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, lockMode)
	if err != nil {
		return nil, &ListenError{path, fmt.Errorf("open its lock: %w", err)}
	}
	if err := lockFile(f, lockPatience); err != nil {
		defer f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, &RunningError{Socket: path, PID: lockPID(f)}
		}
		return nil, &ListenError{path, fmt.Errorf("lock %s: %w", f.Name(), err)}
	}
	fi, err := f.Stat()
	if err == nil && (!fi.Mode().IsRegular() || fi.Size() > 0 && lockPID(f) == 0) {
		_ = f.Close()
		return nil, &ListenError{path, fmt.Errorf("its lock would be %s, and that is no daemon's", f.Name())}
	}
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		_ = f.Close()
		return nil, &ListenError{path, fmt.Errorf("write %s: %w", f.Name(), err)}
	}
	return f, nil
}

// lockFile takes the lock, which others may have for as long as patience.
func lockFile(f *os.File, patience time.Duration) error {
	for began := time.Now(); ; time.Sleep(lockPoll) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Since(began) > patience {
			return err
		}
	}
}

// lockPID is the number that the file holds and nothing else, 0 for none.
func lockPID(f *os.File) int {
	b := make([]byte, maxPIDText)
	n, _ := f.ReadAt(b, 0) // a short read is the rule; nothing read is no number
	if n == len(b) {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b[:n])))
	if err != nil {
		return 0
	}
	return pid
}

// listener tells whether somebody listens on the socket, and who.
func listener(path string) (pid int, ok bool) {
	c, err := net.DialTimeout("unix", path, connectLimit)
	if err != nil {
		return 0, false
	}
	defer c.Close()
	pid, _ = peer(c.(*net.UnixConn))
	return pid, true
}
