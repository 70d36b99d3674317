package hwsim

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// alarm is a timerfd that the runtime's poller watches. The poller itself waits
// in whole milliseconds, and so do timers while every goroutine is parked; a file
// that becomes readable ends that wait at once.
type alarm struct {
	fd   int
	file *os.File // nil: there is none, and set does nothing
	done chan struct{}
}

// newAlarm returns an alarm that calls ring each time it goes off, from a
// goroutine of its own that close waits for.
func newAlarm(ring func()) *alarm {
	a := &alarm{done: make(chan struct{})}
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		close(a.done) // the runtime's timers are left, and are coarse
		return a
	}
	a.fd, a.file = fd, os.NewFile(uintptr(fd), "timerfd")
	go func() {
		defer close(a.done)
		var expirations [8]byte
		for {
			if _, err := a.file.Read(expirations[:]); err != nil {
				return // closed
			}
			ring()
		}
	}()
	return a
}

// set lets the alarm go off once, in d; a setting before it is forgotten. It
// reports whether it will.
func (a *alarm) set(d time.Duration) bool {
	if a.file == nil {
		return false
	}
	in := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(max(d, 1)))}
	return unix.TimerfdSettime(a.fd, 0, &in, nil) == nil
}

// close ends the alarm; set must not be called any more.
func (a *alarm) close() {
	if a.file != nil {
		_ = a.file.Close() // the reader ends with it
	}
	<-a.done
}
