package divert

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/divert/proto"
	"oxpd/internal/frame"
)

// hang is how long a test waits for what should come at once.
const hang = 30 * time.Second

// setClock stands until a test moves it, whoever reads it.
type setClock struct{ now atomic.Int64 }

func (c *setClock) Now() time.Duration                               { return time.Duration(c.now.Load()) }
func (c *setClock) Sleep(ctx context.Context, d time.Duration) error { c.pass(d); return ctx.Err() }
func (c *setClock) pass(d time.Duration)                             { c.now.Add(int64(d)) }

// lockedGone is gone for several goroutines. Frames wait in front of its gate, if it has
// one.
type lockedGone struct {
	gate chan struct{}
	mu   sync.Mutex
	gone
}

func (g *lockedGone) Release(frames []Released) {
	if g.gate != nil {
		<-g.gate
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.gone.Release(frames)
}

func (g *lockedGone) len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.frames)
}

// socketRig is a listener that runs. Its queue's time stands still.
type socketRig struct {
	*testing.T
	*Queue
	l     *Listener
	out   *lockedGone
	clock *setClock
	stop  func()
}

func newSocketRig(t *testing.T, set func(*Settings), change func(*ListenerConfig)) *socketRig {
	s := Defaults()
	if set != nil {
		set(&s)
	}
	r := &socketRig{T: t, out: &lockedGone{}, clock: &setClock{}}
	r.clock.pass(time.Hour)
	r.Queue = NewQueue(QueueConfig{Name: "test", Settings: s, Outlet: r.out, Limit: func(int) int { return 9000 }, Clock: r.clock})
	cfg := ListenerConfig{Path: filepath.Join(t.TempDir(), "inspect.sock"), Queue: r.Queue, Clock: r.clock, HelloLimit: hang}
	if change != nil {
		change(&cfg)
	}
	l, err := Listen(cfg)
	require.NoError(t, err)
	r.l = l
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			assert.NoError(t, err)
		case <-time.After(hang):
			t.Error("the listener does not end")
		}
	})
	t.Cleanup(func() {
		r.stop()
		c := r.Counts(0, In)
		assert.Equal(t, c.Seen, c.Sum(), "%+v", c)
		assert.Zero(t, c.Queued)
		assert.NoFileExists(t, l.Path())
	})
	return r
}

func (r *socketRig) offer(b []byte) Fate {
	var head frame.Packet
	head.Parse(b, len(b))
	return r.Queue.Offer(r.clock.Now(), &Offered{Pieces: [][]byte{b}, Bytes: len(b), Head: &head})
}

func (r *socketRig) eventually(what string, ok func() bool) {
	r.Helper()
	for end := time.Now().Add(hang); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			r.Fatalf("not so: %s: %+v %+v", what, r.Queue.Stats().Events, r.l.Stats())
		}
	}
}

// peer is an engine by hand.
type peer struct {
	*testing.T
	*net.UnixConn
}

func (r *socketRig) dial() *peer {
	c, err := net.DialUnix(seqpacket, nil, &net.UnixAddr{Name: r.l.Path(), Net: seqpacket})
	require.NoError(r, err)
	r.Cleanup(func() { c.Close() })
	require.NoError(r, c.SetDeadline(time.Now().Add(hang)))
	return &peer{r.T, c}
}

// attach is dial and greet.
func (r *socketRig) attach() *peer {
	p := r.dial()
	r.greet(p)
	return p
}

// greet is both Hellos.
func (r *socketRig) greet(p *peer) {
	h, err := proto.ParseHello(p.read())
	require.NoError(r, err)
	assert.Equal(r, uint32(9022), h.MaxFrame)
	p.write(proto.AppendHello(nil, &proto.Hello{Version: proto.Version, Name: "by hand"}))
	r.eventually("attached", func() bool { return r.Queue.Stats().State != Absent })
}

func (p *peer) read() []byte {
	b := make([]byte, proto.MaxMessage)
	n, err := p.Read(b)
	require.NoError(p, err)
	return b[:n]
}

func (p *peer) write(b []byte) {
	_, err := p.Write(b)
	require.NoError(p, err)
}

func (p *peer) frame() proto.Frame {
	f, err := proto.ParseFrame(p.read())
	require.NoError(p, err)
	return f
}

func (p *peer) say(records ...proto.Record) {
	b := proto.BeginVerdicts(nil)
	for i := range records {
		b, _ = proto.AppendRecord(b, &records[i])
	}
	p.write(b)
}

func TestSocket(t *testing.T) {
	r := newSocketRig(t, nil, nil)
	fi, err := os.Stat(r.l.Path())
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), fi.Mode().Perm())
	assert.Equal(t, Lost, r.offer(udp(1, 100, 0)), "nobody is there")
	p := r.attach()
	assert.Equal(t, "by hand", r.l.Engine().Name)
	assert.Equal(t, os.Getpid(), r.l.Engine().PID)
	for i := range byte(4) {
		require.Equal(t, Taken, r.offer(udp(1, 1514, i)))
	}
	var frames [4]proto.Frame
	for i := range frames {
		frames[i] = p.frame()
		assert.Equal(t, udp(1, 1514, byte(i)), frames[i].Bytes)
		assert.WithinDuration(t, time.Now(), frames[i].At(), hang)
	}
	p.say(proto.Record{ID: frames[0].ID, Code: proto.Accept}, proto.Record{ID: frames[1].ID, Code: proto.Drop},
		proto.Record{ID: frames[2].ID, Code: proto.Replace, Frame: udp(2, 60, 9)})
	r.eventually("settled", func() bool { return r.Queue.Stats().Frames == 1 })
	p.write([]byte{3, 0, 1, 0, 0, 0, 0})
	p.write(nil)
	r.eventually("bad messages", func() bool { return r.l.Stats().BadMessages == 2 })
	other := r.dial()
	bye, err := proto.ParseBye(other.read())
	require.NoError(t, err)
	assert.Equal(t, proto.ReasonBusy, bye.Reason)
	assert.Contains(t, bye.Text, "by hand")
	p.Close()
	r.eventually("gone", func() bool { return r.l.Engine() == nil })
	assert.Equal(t, Counts{Seen: 5, Accepted: 1, Dropped: 1, Replaced: 1, DropAbsent: 2}, r.Counts(0, In))
	assert.Equal(t, 2, r.out.len())
	r.attach()
}

func TestSocketFull(t *testing.T) {
	r := newSocketRig(t, nil, nil)
	p := r.attach()
	const all = 600
	for i := range all {
		require.Equal(t, Taken, r.offer(udp(1, 1514, byte(i))))
	}
	r.eventually("full", func() bool { return r.l.Stats().SendAgain > 0 })
	assert.Less(t, r.Queue.Stats().Events.Handed, uint64(all))
	for i := range all {
		f := p.frame()
		require.Equal(t, byte(i), f.Bytes[1513])
		p.say(proto.Record{ID: f.ID, Code: proto.Accept})
	}
	r.eventually("settled", func() bool { return r.out.len() == all })
}

func TestNoHello(t *testing.T) {
	r := newSocketRig(t, nil, func(c *ListenerConfig) { c.HelloLimit = 50 * time.Millisecond })
	p := r.dial()
	p.read()
	bye, err := proto.ParseBye(p.read())
	require.NoError(t, err)
	assert.Equal(t, proto.ReasonNoHello, bye.Reason)
}

func TestOtherVersion(t *testing.T) {
	r := newSocketRig(t, nil, nil)
	p := r.dial()
	p.read()
	p.write(proto.AppendHello(nil, &proto.Hello{Version: 9}))
	bye, err := proto.ParseBye(p.read())
	require.NoError(t, err)
	assert.Equal(t, proto.ReasonVersion, bye.Reason)
}
