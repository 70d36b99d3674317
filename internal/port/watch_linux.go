package port

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jsimonetti/rtnetlink/v2"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"oxpd/internal/sys"
)

// Watch calls fn with the state of every interface once, and then of each one
// that something happened to, until ctx ends; it returns ctx's error.
//
// The state is read when fn is about to be called, not taken from the event: an
// old event, or the echo of the caller's own change, shows what is true now.
// Events that arrive while fn runs are merged. The same state may be reported
// twice; a change and its reversal may not be reported at all. If the kernel
// had to throw events away, everything is read again. fn is called by one
// goroutine and may take its time; an interface that it was told about can be
// gone when it acts.
func Watch(ctx context.Context, cfg WatchConfig, fn func(Link)) error {
	var events, query *rtnetlink.Conn
	err := sys.InNetNS(cfg.NetNS, func() (err error) {
		if events, err = rtnetlink.Dial(&netlink.Config{Groups: unix.RTMGRP_LINK}); err != nil {
			return err
		}
		if query, err = rtnetlink.Dial(nil); err != nil {
			events.Close()
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("port: watch links: %w", err)
	}
	defer query.Close()
	defer events.Close()
	w := &watcher{events: events, query: kernelLinks{query}, filter: cfg.Filter, wake: make(chan struct{}, 1)}
	return fmt.Errorf("port: watch links: %w", w.run(ctx, fn))
}

// linkEvents is the socket that events arrive on. A test loses some.
type linkEvents interface {
	Receive() ([]rtnetlink.Message, []netlink.Message, error)
	SetReadDeadline(t time.Time) error
}

// linkQuery reads the kernel's state.
type linkQuery interface {
	all() ([]Link, error)
	one(index int) (Link, error) // Gone when there is none
}

// watcher has two goroutines, so that events are taken from the socket while
// the callback runs.
type watcher struct {
	events linkEvents
	query  linkQuery
	filter func(index int) bool
	wake   chan struct{} // something is pending

	mu      sync.Mutex
	pending map[int]kernelCount // with the last count that an event carried
	every   bool                // all of them are pending
	failed  error
}

func (w *watcher) run(ctx context.Context, fn func(Link)) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	stop := context.AfterFunc(ctx, func() { w.events.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	defer w.events.SetReadDeadline(time.Unix(1, 0)) // ends listen on every path

	w.markEvery()
	wg.Add(1)
	go func() {
		defer wg.Done()
		w.listen()
	}()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.wake:
		}
		if err := w.handle(ctx, fn); err != nil {
			return cmp.Or(ctx.Err(), err)
		}
	}
}

// listen takes events until the socket fails or its deadline passes.
func (w *watcher) listen() {
	for {
		msgs, _, err := w.events.Receive()
		var op *netlink.OpError
		switch {
		case errors.Is(err, unix.ENOBUFS):
			w.markEvery()
		case errors.As(err, &op):
			w.mu.Lock()
			w.failed = err
			w.mu.Unlock()
			w.awake()
			return
		case err != nil: // a message that the library cannot read: something changed
			w.markEvery()
		}
		for _, m := range msgs {
			if lm, ok := m.(*rtnetlink.LinkMessage); ok {
				w.mark(int(lm.Index), droppedOf(lm))
			}
		}
	}
}

// mark notes that something happened to an interface. The count of the event is
// kept: the news that an interface was removed carries its last one.
func (w *watcher) mark(index int, n kernelCount) {
	w.mu.Lock()
	if w.pending == nil {
		w.pending = make(map[int]kernelCount)
	}
	if was := w.pending[index]; was.known && !n.known {
		n = was
	}
	w.pending[index] = n
	w.mu.Unlock()
	w.awake()
}

func (w *watcher) markEvery() {
	w.mu.Lock()
	w.every = true
	w.mu.Unlock()
	w.awake()
}

func (w *watcher) awake() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// handle reports everything pending.
func (w *watcher) handle(ctx context.Context, fn func(Link)) error {
	w.mu.Lock()
	pending, every, failed := w.pending, w.every, w.failed
	w.pending, w.every = nil, false
	w.mu.Unlock()
	if failed != nil {
		return failed
	}
	if every {
		links, err := w.query.all()
		if err != nil {
			return err
		}
		for _, l := range links {
			delete(pending, l.Index)
			w.report(ctx, l, fn)
		}
	}
	for index, last := range pending { // what the list no longer has is gone, and one says so
		if w.filter != nil && !w.filter(index) {
			continue
		}
		l, err := w.query.one(index)
		if err != nil {
			return err
		}
		if l.Gone {
			l.dropped = last
		}
		w.report(ctx, l, fn)
	}
	return nil
}

func (w *watcher) report(ctx context.Context, l Link, fn func(Link)) {
	if ctx.Err() == nil && (w.filter == nil || w.filter(l.Index)) {
		fn(l)
	}
}

// kernelLinks is linkQuery over rtnetlink.
type kernelLinks struct{ conn *rtnetlink.Conn }

func (k kernelLinks) all() ([]Link, error) {
	msgs, err := k.conn.Link.List()
	if err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	links := make([]Link, 0, len(msgs))
	for i := range msgs {
		if msgs[i].Attributes != nil {
			links = append(links, linkOf(&msgs[i]))
		}
	}
	return links, nil
}

func (k kernelLinks) one(index int) (Link, error) {
	m, err := getLink(k.conn, uint32(index))
	if errors.Is(err, unix.ENODEV) {
		return Link{Index: index, Gone: true}, nil
	}
	if err != nil {
		return Link{}, fmt.Errorf("read interface %d: %w", index, err)
	}
	return linkOf(m), nil
}

func linkOf(m *rtnetlink.LinkMessage) Link {
	a := m.Attributes
	l := Link{
		Index:   int(m.Index),
		Name:    a.Name,
		MTU:     int(a.MTU),
		Up:      m.Flags&unix.IFF_UP != 0,
		Carrier: a.Carrier != nil && *a.Carrier == 1,
		dropped: droppedOf(m),
	}
	copy(l.MAC[:], a.Address)
	if a.Master != nil {
		l.Master = int(*a.Master)
	}
	return l
}
