package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// MaxSocket is how long the path of a unix socket may be, in bytes: the kernel's
// sun_path less its end.
const MaxSocket = 107

// CheckSocket refuses a path that no socket can have. The error does not name it.
func CheckSocket(path string) error {
	switch {
	case path == "":
		return errors.New("empty: want a path")
	case len(path) > MaxSocket:
		return fmt.Errorf("%d bytes long: the path of a socket has at most %d", len(path), MaxSocket)
	case strings.ContainsRune(path, 0):
		return errors.New("a zero byte is in it: want a path")
	case strings.HasSuffix(path, "/"):
		return errors.New("ends in /: want the path of a socket and not of its directory")
	}
	return nil
}

// LockSuffix is what the daemon appends to the path of its socket for the file
// that it holds locked, with its process id in it.
const LockSuffix = ".lock"

// SocketError says that what is at a path can be no daemon's socket.
type SocketError struct {
	Socket string
	Err    error
}

func (e *SocketError) Error() string { return fmt.Sprintf("open %s: %v", e.Socket, e.Err) }

func (e *SocketError) Unwrap() error { return e.Err }

// Hint says what to do.
func (e *SocketError) Hint() string {
	return "--socket wants the path of a daemon's socket; without it, it is " + DefaultSocket
}

// HeldError says that a daemon lives and nobody listens on its socket: it has just
// begun or is about to end, or somebody removed the socket. It is an ErrNoDaemon.
type HeldError struct {
	Socket string
	PID    int // 0 when it could not be found out
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("%v on %s, but a daemon%s holds %s", ErrNoDaemon, e.Socket, pidText(e.PID), e.Socket+LockSuffix)
}

func (e *HeldError) Unwrap() error { return ErrNoDaemon }

// Hint says what to do.
func (e *HeldError) Hint() string {
	if e.PID == 0 {
		return "somebody removed its socket: end it with SIGTERM and start it again"
	}
	return fmt.Sprintf("somebody removed its socket: end it with kill %d, which runs its stop sequence, and start it again", e.PID)
}

// SilentError says that somebody has the socket and did not answer in time.
type SilentError struct {
	Socket string
	PID    int // 0 when it could not be found out
	Waited time.Duration
}

func (e *SilentError) Error() string {
	return fmt.Sprintf("ask the daemon%s on %s: no answer within %v", pidText(e.PID), e.Socket, e.Waited.Round(time.Second/10))
}

// Unwrap makes it a timeout.
func (e *SilentError) Unwrap() error { return context.DeadlineExceeded }

// Hint says what to do.
func (e *SilentError) Hint() string {
	if e.PID == 0 {
		return "the daemon is stopped (SIGSTOP), or very busy"
	}
	return fmt.Sprintf("the daemon is stopped (kill -CONT %d lets it go on), or very busy (top -p %d)", e.PID, e.PID)
}

func pidText(pid int) string {
	if pid == 0 {
		return ""
	}
	return fmt.Sprintf(" (pid %d)", pid)
}

// refused explains why nobody could be connected to on path.
func refused(path string, err error) error {
	switch fi, statErr := os.Stat(path); {
	case statErr != nil && !errors.Is(statErr, fs.ErrNotExist):
		var pe *fs.PathError
		if errors.As(statErr, &pe) {
			statErr = pe.Err // the path is named once
		}
		return &SocketError{path, statErr}
	case statErr == nil && fi.IsDir():
		return &SocketError{path, errors.New("is a directory and no socket")}
	case statErr == nil && fi.Mode()&fs.ModeSocket == 0:
		return &SocketError{path, errors.New("is a file and no socket")}
	}
	if pid, held := holder(path + LockSuffix); held {
		return &HeldError{path, pid}
	}
	var op *net.OpError
	if errors.As(err, &op) {
		err = op.Err // likewise
	}
	return fmt.Errorf("%w on %s: %w", ErrNoDaemon, path, err)
}

// maxPIDText is more than a process id takes.
const maxPIDText = 32

// holder tells whether somebody holds a lock file, and who.
func holder(path string) (pid int, held bool) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return 0, false
	}
	defer f.Close()
	if !errors.Is(syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB), syscall.EWOULDBLOCK) {
		return 0, false // a lock that was got goes with the file
	}
	b := make([]byte, maxPIDText)
	n, _ := f.Read(b) // what is no number is nobody's
	pid, _ = strconv.Atoi(strings.TrimSpace(string(b[:n])))
	return pid, true
}
