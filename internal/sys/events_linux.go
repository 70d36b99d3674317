package sys

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Events is an eventfd and who is told of its events.
type Events struct {
	fd   int
	file *os.File
	done chan struct{}
}

// NewEvents makes an eventfd and begins to call fn after each event, on a goroutine of
// its own; several events before a call are one.
func NewEvents(fn func()) (*Events, error) {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("sys: make an eventfd: %w", err)
	}
	e := &Events{fd, os.NewFile(uintptr(fd), "eventfd"), make(chan struct{})}
	go func() {
		defer close(e.done)
		var count [8]byte
		for {
			if _, err := e.file.Read(count[:]); err != nil {
				return // closed
			}
			fn()
		}
	}()
	return e, nil
}

// FD is the descriptor, for whoever raises the events. It is good until Close.
func (e *Events) FD() int { return e.fd }

// Close ends the calls, and waits for the last one.
func (e *Events) Close() {
	_ = e.file.Close() // the reader ends with it
	<-e.done
}
