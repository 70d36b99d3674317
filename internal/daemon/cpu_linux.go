package daemon

import (
	"time"

	"golang.org/x/sys/unix"
)

// cpuTime is what the process has used since its start, of itself and in the kernel.
func cpuTime() (time.Duration, bool) {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0, false
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), true
}
