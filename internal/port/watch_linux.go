package port

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

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
// twice; of a change and its reversal nothing may be seen, but that the interface
// was up: to set it up and down again is to ask for something. If the kernel
// had to throw events away, everything is read again. News of a bridge or of
// another master, such as its MTU or its end, is news of its members. fn is called by one
// goroutine and may take its time; an interface that it was told about can be
// gone when it acts.
func Watch(ctx context.Context, cfg WatchConfig, fn func(Link)) error {
	var events, query *netlink.Conn
	err := sys.InNetNS(cfg.NetNS, func() (err error) {
		if events, err = dialRoute(unix.RTMGRP_LINK); err != nil {
			return err
		}
		if query, err = dialRoute(0); err != nil {
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
	Receive() ([]netlink.Message, error)
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

	// Who belongs to whom, of the links that were reported. run's goroutine only.
	masters map[int]int
	members map[int]map[int]struct{}

	mu      sync.Mutex
	pending map[int]news
	every   bool // all of them are pending
	failed  error
}

// news is what events have said of an interface since it was reported last.
type news struct {
	last   kernelCount // the last count that one carried
	raised bool        // one had it administratively up
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
		msgs, err := w.events.Receive()
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
		case err != nil: // a message that cannot be read: something changed
			w.markEvery()
		}
		for _, m := range msgs {
			w.take(m)
		}
	}
}

// take marks the interface that a message is about.
func (w *watcher) take(m netlink.Message) {
	if m.Header.Type != unix.RTM_NEWLINK && m.Header.Type != unix.RTM_DELLINK {
		return
	}
	l, err := decodeLink(m.Data)
	if err != nil {
		w.markEvery()
		return
	}
	w.mark(l.Link)
}

// mark notes that something happened to the interface of an event. The event's count
// is kept: the news that an interface was removed carries its last one.
func (w *watcher) mark(l Link) {
	w.mu.Lock()
	if w.pending == nil {
		w.pending = make(map[int]news)
	}
	n := w.pending[l.Index]
	if n.raised = n.raised || l.Up; l.dropped.known {
		n.last = l.dropped
	}
	w.pending[l.Index] = n
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
	w.addMembers(pending)
	if every {
		links, err := w.query.all()
		if err != nil {
			return err
		}
		for _, l := range links {
			l.Raised = pending[l.Index].raised
			delete(pending, l.Index)
			w.report(ctx, l, fn)
		}
	}
	for index, n := range pending { // what the list no longer has is gone, and one says so
		if w.filter != nil && !w.filter(index) {
			continue
		}
		l, err := w.query.one(index)
		if err != nil {
			return err
		}
		if l.Raised = n.raised && !l.Gone; l.Gone {
			l.dropped = n.last
		}
		w.report(ctx, l, fn)
	}
	return nil
}

// addMembers adds the members of each master that something happened to.
func (w *watcher) addMembers(pending map[int]news) {
	var also []int
	for index := range pending {
		for member := range w.members[index] {
			also = append(also, member)
		}
	}
	for _, member := range also {
		if _, ok := pending[member]; !ok {
			pending[member] = news{}
		}
	}
}

func (w *watcher) report(ctx context.Context, l Link, fn func(Link)) {
	if ctx.Err() == nil && (w.filter == nil || w.filter(l.Index)) {
		w.join(l.Index, l.Master)
		fn(l)
	}
}

// join notes the master of a link, 0 for none.
func (w *watcher) join(link, master int) {
	old := w.masters[link]
	if old == master {
		return
	}
	if w.masters == nil {
		w.masters, w.members = make(map[int]int), make(map[int]map[int]struct{})
	}
	delete(w.masters, link)
	delete(w.members[old], link)
	if len(w.members[old]) == 0 {
		delete(w.members, old)
	}
	if master == 0 {
		return
	}
	w.masters[link] = master
	if w.members[master] == nil {
		w.members[master] = make(map[int]struct{})
	}
	w.members[master][link] = struct{}{}
}

// kernelLinks is linkQuery over rtnetlink.
type kernelLinks struct{ conn *netlink.Conn }

func (k kernelLinks) all() ([]Link, error) {
	msgs, err := askLinks(k.conn, 0, netlink.Dump)
	if err != nil {
		return nil, fmt.Errorf("list: %w", err)
	}
	at := make(map[int]linkMessage, len(msgs))
	for _, m := range msgs {
		at[m.Index] = m
	}
	links := make([]Link, len(msgs))
	for i, m := range msgs {
		links[i] = m.Link
		links[i].joinBridge(at[m.Master])
	}
	return links, nil
}

func (k kernelLinks) one(index int) (Link, error) {
	m, err := readLink(k.conn, index)
	if removed(err) {
		return Link{Index: index, Gone: true}, nil
	}
	if err == nil {
		err = readMaster(k.conn, &m.Link)
	}
	if err != nil {
		return Link{}, fmt.Errorf("read interface %d: %w", index, err)
	}
	return m.Link, nil
}
