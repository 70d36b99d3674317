package daemon

import (
	"errors"
	"fmt"
	"io/fs"
)

// PrivilegeError says that this process may not make interfaces. It is found
// before anything is opened.
type PrivilegeError struct {
	What string // that is missing
	Err  error
}

func (e *PrivilegeError) Error() string {
	return fmt.Sprintf("interfaces cannot be made without %s: %v", e.What, e.Err)
}

func (e *PrivilegeError) Unwrap() error { return e.Err }

// Hint says what to do.
func (e *PrivilegeError) Hint() string {
	if e.What == tunDevice && !errors.Is(e.Err, fs.ErrPermission) {
		return "modprobe tun; in a container, give it the device: --device " + tunDevice
	}
	return "run it as root (sudo); in a container, add the capability NET_ADMIN"
}

const tunDevice = "/dev/net/tun"

// ListenError says that the control socket cannot be where it is wanted.
type ListenError struct {
	Socket string
	Err    error
}

func (e *ListenError) Error() string { return fmt.Sprintf("listen on %s: %v", e.Socket, e.Err) }

func (e *ListenError) Unwrap() error { return e.Err }

// Hint says what to do.
func (e *ListenError) Hint() string {
	return "name another one with --socket, or socket: in the configuration, in a directory that this user may write to"
}
