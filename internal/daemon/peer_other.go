//go:build !linux

package daemon

import "net"

// peer is the process at the other end of a connection; unknown here.
func peer(*net.UnixConn) (pid int) { return 0 }
