package port

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/board"
)

// seen collects what Watch reports, the last state of each interface.
type seen struct {
	mu    sync.Mutex
	last  map[int]Link
	calls int
}

func (s *seen) report(l Link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil {
		s.last = map[int]Link{}
	}
	s.last[l.Index] = l
	s.calls++
}

func (s *seen) link(index int) (Link, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, ok := s.last[index]
	return l, ok
}

// watch runs Watch until the test ends.
func watch(t *testing.T, cfg WatchConfig, fn func(Link)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Watch(ctx, cfg, fn) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			assert.ErrorIs(t, err, context.Canceled)
		case <-time.After(hang):
			t.Error("Watch does not stop")
		}
	})
}

func TestWatch(t *testing.T) {
	ns := newNS(t)
	p := open(t, ns)
	other := open(t, ns, "oxp1")
	var s seen
	watch(t, WatchConfig{NetNS: ns.Path(), Filter: func(i int) bool { return i != other.Index() }}, s.report)
	is := func(what string, cond func(Link) bool) {
		t.Helper()
		eventually(t, what, func() bool { l, ok := s.link(p.Index()); return ok && cond(l) })
	}
	is("reported at the start", func(l Link) bool { return l.Name == "oxp9" && l.Up && l.Carrier && l.MTU == 1500 })
	ip(t, ns, "link set oxp9 mtu 1400")
	is("MTU", func(l Link) bool { return l.MTU == 1400 })
	ip(t, ns, "link set oxp9 address 02:00:00:00:00:77")
	is("MAC", func(l Link) bool { return l.MAC == [6]byte{2, 0, 0, 0, 0, 0x77} })
	ip(t, ns, "link set oxp9 down")
	is("down", func(l Link) bool { return !l.Up })
	ip(t, ns, "link set oxp9 name wan0")
	is("name", func(l Link) bool { return l.Name == "wan0" })
	ip(t, ns, "link add br0 type bridge")
	ip(t, ns, "link set wan0 master br0")
	is("master", func(l Link) bool { return l.Master != 0 })
	ip(t, ns, "link set wan0 nomaster")
	is("no master", func(l Link) bool { return l.Master == 0 })
	ip(t, ns, "link set wan0 up")
	require.NoError(t, p.SetCarrier(false))
	is("carrier", func(l Link) bool { return !l.Carrier })
	ip(t, ns, "link delete wan0")
	is("gone", func(l Link) bool {
		return l == Link{Index: p.Index(), Gone: true, dropped: kernelCount{known: true}}
	})
	_, ok := s.link(other.Index())
	assert.False(t, ok, "filtered")
}

// TestWatchMTU: the owner of the MTU puts a foreign value back, from inside the
// callback; its own change comes back as an event and nothing loops.
func TestWatchMTU(t *testing.T) {
	const want, foreign = 1500, 50
	ns := newNS(t)
	p := open(t, ns)
	var mu sync.Mutex
	var putBack, reports int
	watch(t, WatchConfig{NetNS: ns.Path(), Filter: func(i int) bool { return i == p.Index() }}, func(l Link) {
		mu.Lock()
		reports++
		mu.Unlock()
		if l.Gone || l.MTU == want {
			return
		}
		mu.Lock()
		putBack++
		mu.Unlock()
		assert.NoError(t, p.SetMTU(context.Background(), want))
	})
	eventually(t, "first report", func() bool { mu.Lock(); defer mu.Unlock(); return reports > 0 })
	q := query(t, ns)
	for i := range foreign {
		l := netlinkLink{conn: q.conn, index: p.Index()}
		require.NoError(t, l.setMTU(1000+i))
	}
	eventually(t, "put back", func() bool { return state(t, ns, p.Index()).MTU == want })
	mu.Lock()
	n, before := reports, putBack
	mu.Unlock()
	assert.LessOrEqual(t, before, foreign)
	assert.NotZero(t, before)

	// A change of our own is reported as the state that we want: nothing to do.
	require.NoError(t, p.SetMTU(context.Background(), want))
	ip(t, ns, "link set oxp9 txqueuelen 100")
	eventually(t, "a report", func() bool { mu.Lock(); defer mu.Unlock(); return reports > n })
	mu.Lock()
	defer mu.Unlock()
	assert.Equal(t, before, putBack)
	assert.Equal(t, want, p.Limit())
}

// TestWatchRacesClose: TAP-7. The MTU changes in a tight loop while the port is
// closed and the watch stops.
func TestWatchRacesClose(t *testing.T) {
	for range 50 {
		ns := newNS(t)
		p, err := Open(Config{Port: board.ByIndex(8), NetNS: ns.Path()})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() {
			done <- Watch(ctx, WatchConfig{NetNS: ns.Path()}, func(l Link) {
				if err := p.SetMTU(ctx, board.DefaultMTU); err != nil && !errors.Is(err, ErrClosed) && !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			})
		}()
		q := query(t, ns)
		l := netlinkLink{conn: q.conn, index: p.Index()}
		for i := range 20 {
			require.NoError(t, l.setMTU(1400+i%2*100))
		}
		require.NoError(t, p.Close())
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
	}
}

// TestWatchNamespace: DM-6. Everything acts in the port's namespace, whichever
// thread it runs on, after as many switches as you like.
func TestWatchNamespace(t *testing.T) {
	ns, decoy := newNS(t), newNS(t)
	p := open(t, ns)
	for i := p.Index(); i > 1; i-- { // an interface of the same index elsewhere
		ip(t, decoy, fmt.Sprintf("link add d%d type bridge", i))
	}
	var s seen
	watch(t, WatchConfig{NetNS: ns.Path()}, s.report)
	var wg sync.WaitGroup
	for i := range 10_000 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			runtime.Gosched()
			if i%100 != 0 {
				return
			}
			assert.NoError(t, decoy.Do(func() error { return nil }))
			assert.NoError(t, p.SetMTU(context.Background(), 1000+i/100))
			assert.NoError(t, p.SetCarrier(i%200 == 0))
			p.Stats()
		}()
	}
	wg.Wait()
	require.NoError(t, p.SetMTU(context.Background(), 1234))
	eventually(t, "seen", func() bool { l, ok := s.link(p.Index()); return ok && l.MTU == 1234 })
	assert.NotContains(t, ip(t, decoy, "link show"), "oxp9")
	assert.Equal(t, 1500, state(t, decoy, p.Index()).MTU)
}

// scripted is a socket with a given sequence of answers.
type scripted struct {
	answers chan answer
	stopped chan struct{}
	once    sync.Once
	calls   atomic.Int64
}

type answer struct {
	index uint32
	err   error
	data  []byte // instead of a message about index
}

func (s *scripted) Receive() ([]netlink.Message, error) {
	s.calls.Add(1)
	select {
	case a := <-s.answers:
		if a.err != nil {
			return nil, a.err
		}
		m := netlink.Message{Header: netlink.Header{Type: unix.RTM_NEWLINK}, Data: a.data}
		if m.Data == nil {
			m.Data = make([]byte, ifinfoSize)
			binary.NativeEndian.PutUint32(m.Data[ifinfoIndex:], a.index)
		}
		return []netlink.Message{m}, nil
	case <-s.stopped:
		return nil, &netlink.OpError{Op: "receive", Err: context.DeadlineExceeded}
	}
}

func (s *scripted) SetReadDeadline(time.Time) error {
	s.once.Do(func() { close(s.stopped) })
	return nil
}

// kernel is a state to be read.
type kernel struct {
	mu    sync.Mutex
	links map[int]Link
	err   error
	asked []int // for one
}

func (k *kernel) all() ([]Link, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var links []Link
	for _, l := range k.links {
		links = append(links, l)
	}
	return links, k.err
}

func (k *kernel) one(index int) (Link, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked = append(k.asked, index)
	l, ok := k.links[index]
	if !ok {
		l = Link{Index: index, Gone: true}
	}
	return l, k.err
}

func (k *kernel) set(l Link) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.links[l.Index] = l
}

func TestWatchEvents(t *testing.T) {
	start := func(t *testing.T, fn func(Link)) (*scripted, *kernel, chan error, context.CancelFunc) {
		k := &kernel{links: map[int]Link{5: {Index: 5, MTU: 1500}, 6: {Index: 6, MTU: 1500}}}
		s := &scripted{answers: make(chan answer), stopped: make(chan struct{})}
		ctx, cancel := context.WithCancel(context.Background())
		w := &watcher{events: s, query: k, wake: make(chan struct{}, 1)}
		done := make(chan error, 1)
		go func() { done <- w.run(ctx, fn) }()
		t.Cleanup(cancel)
		return s, k, done, cancel
	}
	t.Run("events that were thrown away are made up for", func(t *testing.T) {
		var got seen
		s, k, done, cancel := start(t, got.report)
		eventually(t, "start", func() bool { _, a := got.link(5); _, b := got.link(6); return a && b })
		k.set(Link{Index: 6, MTU: 1400})
		s.answers <- answer{err: &netlink.OpError{Op: "receive", Err: unix.ENOBUFS}}
		eventually(t, "read again", func() bool { l, _ := got.link(6); return l.MTU == 1400 })
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
	})
	t.Run("an event that cannot be read too", func(t *testing.T) {
		var got seen
		s, k, _, _ := start(t, got.report)
		eventually(t, "start", func() bool { _, ok := got.link(6); return ok })
		k.set(Link{Index: 6, MTU: 1400})
		s.answers <- answer{err: errors.New("wrong attribute")}
		eventually(t, "read again", func() bool { l, _ := got.link(6); return l.MTU == 1400 })
	})
	t.Run("a message that is cut off too", func(t *testing.T) {
		var got seen
		s, k, _, _ := start(t, got.report)
		eventually(t, "start", func() bool { _, ok := got.link(6); return ok })
		k.set(Link{Index: 6, MTU: 1400})
		s.answers <- answer{data: []byte{1, 2, 3}}
		eventually(t, "read again", func() bool { l, _ := got.link(6); return l.MTU == 1400 })
	})
	t.Run("an old event shows the present", func(t *testing.T) {
		var got seen
		s, k, _, _ := start(t, got.report)
		eventually(t, "start", func() bool { _, ok := got.link(6); return ok })
		k.set(Link{Index: 6, MTU: 9000})
		s.answers <- answer{index: 6} // of a change before this one
		eventually(t, "present", func() bool { l, _ := got.link(6); return l.MTU == 9000 })
	})
	t.Run("events during a callback are merged", func(t *testing.T) {
		enter, leave := make(chan int), make(chan struct{})
		s, _, _, _ := start(t, func(l Link) { enter <- l.Index; <-leave })
		for range 2 { // the start
			<-enter
			leave <- struct{}{}
		}
		s.answers <- answer{index: 5}
		<-enter
		for range 100 {
			s.answers <- answer{index: 6} // is taken although the callback is busy
		}
		s.answers <- answer{err: errors.New("all of them")}
		// The call after the last of 102 answers: everything has been marked.
		eventually(t, "all marked", func() bool { return s.calls.Load() == 103 })
		leave <- struct{}{}
		got := map[int]int{}
		for range 2 {
			got[<-enter]++
			leave <- struct{}{}
		}
		assert.Equal(t, map[int]int{5: 1, 6: 1}, got)
		select {
		case i := <-enter:
			t.Errorf("reported again: %d", i)
		case <-time.After(10 * time.Millisecond):
		}
	})
	t.Run("the kernel is not asked about what nobody wants", func(t *testing.T) {
		var got seen
		k := &kernel{links: map[int]Link{}}
		w := &watcher{query: k, filter: func(i int) bool { return i == 5 }, wake: make(chan struct{}, 1)}
		w.mark(Link{Index: 5})
		w.mark(Link{Index: 6})
		require.NoError(t, w.handle(context.Background(), got.report))
		assert.Equal(t, []int{5}, k.asked)
		assert.Equal(t, map[int]Link{5: {Index: 5, Gone: true}}, got.last)
	})
	t.Run("an interface that was up in between", func(t *testing.T) {
		var got seen
		k := &kernel{links: map[int]Link{5: {Index: 5}, 6: {Index: 6}, 7: {Index: 7}}}
		w := &watcher{query: k, wake: make(chan struct{}, 1)}
		raised := func(want map[int]bool) {
			t.Helper()
			require.NoError(t, w.handle(context.Background(), got.report))
			for index, yes := range want {
				l, _ := got.link(index)
				assert.Equal(t, yes, l.Raised, "interface %d", index)
			}
		}
		for _, up := range []bool{true, false, false} {
			w.mark(Link{Index: 5, Up: up})
			w.mark(Link{Index: 6})
		}
		w.mark(Link{Index: 8, Up: true}) // it has gone
		raised(map[int]bool{5: true, 6: false, 8: false})
		w.mark(Link{Index: 5})
		w.mark(Link{Index: 6, Up: true})
		w.markEvery()
		raised(map[int]bool{5: false, 6: true, 7: false})
	})
	t.Run("news of a master is news of its members", func(t *testing.T) {
		var got seen
		k := &kernel{links: map[int]Link{5: {Index: 5, Master: 9}, 6: {Index: 6, Master: 9}, 7: {Index: 7, Master: 8}}}
		w := &watcher{query: k, filter: func(i int) bool { return i <= 7 }, wake: make(chan struct{}, 1)}
		asked := func(marked ...int) []int {
			t.Helper()
			k.asked = nil
			for _, i := range marked {
				w.mark(Link{Index: i})
			}
			require.NoError(t, w.handle(context.Background(), got.report))
			return k.asked
		}
		w.markEvery()
		assert.Empty(t, asked())
		assert.ElementsMatch(t, []int{5, 6}, asked(9))
		assert.ElementsMatch(t, []int{5, 6}, asked(9, 5), "once each")
		assert.Empty(t, asked(10, 11, 12), "links of others")
		k.set(Link{Index: 5, Master: 8})
		assert.ElementsMatch(t, []int{5}, asked(5))
		assert.ElementsMatch(t, []int{5, 7}, asked(8), "it has another master now")
		assert.ElementsMatch(t, []int{6}, asked(9))
		delete(k.links, 6)
		assert.ElementsMatch(t, []int{6}, asked(6))
		assert.Empty(t, asked(9), "it has gone")
		k.set(Link{Index: 5})
		k.set(Link{Index: 7})
		assert.ElementsMatch(t, []int{5, 7}, asked(5, 7))
		assert.Empty(t, w.members, "nothing is kept")
		assert.Empty(t, w.masters)
	})
	t.Run("a socket that fails ends it", func(t *testing.T) {
		var got seen
		s, _, done, _ := start(t, got.report)
		s.answers <- answer{err: &netlink.OpError{Op: "receive", Err: unix.EBADF}}
		require.ErrorIs(t, <-done, unix.EBADF)
	})
	t.Run("a kernel that does not answer ends it", func(t *testing.T) {
		var got seen
		s, k, done, _ := start(t, got.report)
		eventually(t, "start", func() bool { _, ok := got.link(6); return ok })
		k.mu.Lock()
		k.err = unix.EPERM
		k.mu.Unlock()
		s.answers <- answer{index: 6}
		require.ErrorIs(t, <-done, unix.EPERM)
	})
}

// TestWatchOverrun: the kernel really throws events away while nobody reads.
func TestWatchOverrun(t *testing.T) {
	ns := newNS(t)
	p := open(t, ns)
	var events *netlink.Conn
	require.NoError(t, ns.Do(func() (err error) {
		events, err = dialRoute(unix.RTMGRP_LINK)
		return err
	}))
	defer events.Close()
	q := query(t, ns)
	l := netlinkLink{conn: q.conn, index: p.Index()}
	for i := range 2000 {
		require.NoError(t, l.setMTU(1000+i%2))
	}
	require.NoError(t, l.setMTU(1300))
	var s seen
	w := &watcher{events: events, query: q, wake: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.run(ctx, s.report) }()
	eventually(t, "present state", func() bool { got, _ := s.link(p.Index()); return got.MTU == 1300 })
	require.NoError(t, l.setMTU(1301))
	eventually(t, "and events go on", func() bool { got, _ := s.link(p.Index()); return got.MTU == 1301 })
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
}

func TestWatchBadNamespace(t *testing.T) {
	err := Watch(context.Background(), WatchConfig{NetNS: "/run/netns/oxpd-no-such"}, func(Link) {})
	require.ErrorIs(t, err, os.ErrNotExist)
}
