//go:build !linux

package hwsim

import "time"

// alarm does nothing here: the poller of other systems waits in nanoseconds, so
// the runtime's timers are fine enough.
type alarm struct{}

func newAlarm(func()) *alarm          { return &alarm{} }
func (*alarm) set(time.Duration) bool { return false }
func (*alarm) close()                 {}
