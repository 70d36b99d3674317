package vfiouser

import "os"

// irq is a vector's eventfd and who hands its events on.
type irq struct {
	file *os.File
	done chan struct{}
}

// watch begins to call fn after each event; several before a call are one.
func watch(file *os.File, fn func()) *irq {
	i := &irq{file, make(chan struct{})}
	go func() {
		defer close(i.done)
		var count [8]byte
		for {
			if _, err := i.file.Read(count[:]); err != nil {
				return // closed
			}
			fn()
		}
	}()
	return i
}

// close ends the watching.
func (i *irq) close() {
	_ = i.file.Close() // the reader ends with it
	<-i.done
}
