package main

import (
	"io"
	"log/slog"
	"sync"
	"time"
)

const (
	logQueue   = 256 << 10   // bytes that wait for whoever reads the log; as many may be on their way
	logGoodbye = time.Second // for what is left at the end
)

// logWriter is standard error of the daemon: a log whose reader is slow, or has
// stopped reading and keeps it open, holds up nobody. Lines wait in a queue; when
// it is full they are dropped and counted, and the number is in the log, where the
// lines are missing, once it flows again. A write that fails (nobody has it open
// any more, a disk is full) loses what it was to write, and the next one is tried
// all the same. Safe for concurrent use.
type logWriter struct {
	w    io.Writer
	wake chan struct{} // capacity 1
	done chan struct{} // closed when everything is written after close

	mu      sync.Mutex
	queue   []byte
	dropped uint64 // lines after those in the queue
	closed  bool
}

// newLogWriter returns a writer to w, which somebody has to close.
func newLogWriter(w io.Writer) *logWriter {
	l := &logWriter{w: w, wake: make(chan struct{}, 1), done: make(chan struct{})}
	go l.run()
	return l
}

// Write implements io.Writer for one line at a time. It does not wait and never
// fails.
func (l *logWriter) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return len(line), nil
	case l.dropped > 0 || len(l.queue)+len(line) > logQueue:
		l.dropped++ // nothing gets in front of the number
	default:
		l.queue = append(l.queue, line...)
	}
	l.rouse()
	return len(line), nil
}

func (l *logWriter) rouse() {
	select {
	case l.wake <- struct{}{}:
	default: // it will look anyhow
	}
}

// run writes what is queued until the writer is closed and the queue empty.
func (l *logWriter) run() {
	defer close(l.done)
	var spare []byte
	note := slog.New(slog.NewTextHandler(l.w, nil))
	for {
		l.mu.Lock()
		lines, dropped, closed := l.queue, l.dropped, l.closed
		l.queue, l.dropped = spare[:0], 0
		l.mu.Unlock()
		if len(lines) > 0 {
			_, _ = l.w.Write(lines) // nobody is left to be told that the log is lost
		}
		if dropped > 0 {
			note.Warn("log was not read in time: lines are missing here", "lines", dropped)
		}
		spare = lines
		switch {
		case len(lines) > 0 || dropped > 0: // more may have come meanwhile
		case closed:
			return
		default:
			<-l.wake
		}
	}
}

// close waits, at most for limit, until what was said is written; the rest is
// lost.
func (l *logWriter) close(limit time.Duration) {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.rouse()
	select {
	case <-l.done:
	case <-time.After(limit):
	}
}
