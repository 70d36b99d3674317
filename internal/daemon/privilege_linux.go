package daemon

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// mayMakeInterfaces looks at what every interface needs, so that a daemon without
// it ends before it has touched the card.
func mayMakeInterfaces() error {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData // of 64 capabilities, 32 each
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	if data[0].Effective&(1<<unix.CAP_NET_ADMIN) == 0 {
		return &PrivilegeError{"CAP_NET_ADMIN", unix.EPERM}
	}
	fd, err := unix.Open(tunDevice, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return &PrivilegeError{tunDevice, err}
	}
	return unix.Close(fd)
}
