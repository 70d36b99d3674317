package sys

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
)

// ErrInUse says that somebody listens on a socket already.
var ErrInUse = errors.New("somebody listens there already")

// ListenUnix makes a socket in the file system, of network unix or unixpacket, for
// its owner alone. One that was left behind, on which nobody listens, is taken
// over; any other file is left alone. Close removes it.
//
// Errors: ErrInUse, fs.ErrExist for what is no socket.
func ListenUnix(network, path string) (*net.UnixListener, error) {
	addr := &net.UnixAddr{Name: path, Net: network}
	ln, err := net.ListenUnix(network, addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		if err = removeLeft(addr); err == nil {
			ln, err = net.ListenUnix(network, addr)
		}
	}
	if err == nil {
		if err = os.Chmod(path, 0o600); err != nil {
			_ = ln.Close() // the error that matters is this one
		}
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, reason(err))
	}
	return ln, nil
}

// reason is an error of the net package without the address, which is named once.
func reason(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

// removeLeft removes a socket that nobody listens on.
func removeLeft(addr *net.UnixAddr) error {
	fi, err := os.Lstat(addr.Name)
	if err != nil {
		return err
	}
	if fi.Mode()&os.ModeSocket == 0 {
		return fmt.Errorf("a file that is no socket is in its place: %w", os.ErrExist)
	}
	c, err := net.DialUnix(addr.Net, nil, addr)
	if err == nil {
		return errors.Join(ErrInUse, c.Close())
	}
	if errors.Is(err, syscall.EPROTOTYPE) {
		return ErrInUse // somebody listens, and speaks otherwise
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return os.Remove(addr.Name)
}
