package daemon

import (
	"net"

	"golang.org/x/sys/unix"
)

// peer is the process at the other end of a connection and its user: 0 and -1 when
// they are unknown.
func peer(c *net.UnixConn) (pid, uid int) {
	uid = -1
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, uid
	}
	err = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid, uid = int(cred.Pid), int(cred.Uid)
		}
	})
	if err != nil {
		return 0, -1
	}
	return pid, uid
}
