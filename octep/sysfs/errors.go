package sysfs

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"oxpd/octep/discover"
)

// OpenError is a card whose files cannot be opened or mapped.
type OpenError struct {
	Address string
	Err     error
}

func (e *OpenError) Error() string { return fmt.Sprintf("open card %s: %v", e.Address, e.Err) }

// Unwrap returns why.
func (e *OpenError) Unwrap() error { return e.Err }

// Hint is what an operator can do.
func (e *OpenError) Hint() string {
	switch {
	case errors.Is(e.Err, discover.ErrBusy):
		return "stop it first: oxpd stop"
	case errors.Is(e.Err, syscall.EPERM):
		return "the kernel forbids to map BARs: cat /sys/kernel/security/lockdown; Secure Boot turns it on (systemctl reboot --firmware-setup)"
	case errors.Is(e.Err, fs.ErrPermission):
		return "run it as root (sudo)"
	case errors.Is(e.Err, fs.ErrNotExist):
		return "oxpd devices shows what is there"
	}
	return ""
}
