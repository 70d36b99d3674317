package loadtest

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	inspect "oxpd/divert/client"
	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/internal/netlab"
)

// divert changes settings of inspection, each as KEY=VALUE.
func (l *lab) divert(settings ...string) {
	l.t.Helper()
	var set []client.DivertSetting
	for _, s := range settings {
		key, value, _ := strings.Cut(s, "=")
		set = append(set, client.DivertSetting{Key: key, Value: value})
	}
	_, err := l.client.SetDivert(l.ctx, set...)
	require.NoError(l.t, err)
}

// inspect says which frames of a port are inspected.
func (l *lab) inspect(p board.Port, frames string) {
	l.t.Helper()
	_, err := l.client.SetDivertPort(l.ctx, p.Name, client.SetDivertPort{Frames: frames})
	require.NoError(l.t, err)
}

// inspection is what became of the frames of a port that were to be inspected, of either
// direction or of both, and the first listener's queue.
type inspection struct {
	in, out, both counts
	queue         client.DivertQueue
}

// counts are counters of inspection by name, without what their names begin with.
type counts map[string]uint64

// verdicts are the frames that the engine has decided about.
func (c counts) verdicts() uint64 {
	return c["accepted"] + c["dropped"] + c["replaced"] + c["oversize"]
}

// since is what has come to it after an earlier reading.
func (c counts) since(e counts) counts {
	d := counts{}
	for name := range c {
		d[name] = c[name] - e[name]
	}
	return d
}

// only fails when any frame was counted elsewhere than it says.
func (c counts) only(t *testing.T, want counts, msg string) {
	t.Helper()
	got := counts{}
	for name, v := range c {
		if v != 0 {
			got[name] = v
		}
	}
	assert.Equal(t, want, got, msg)
}

// noFrames are the counters that count what happened to frames that others count.
var noFrames = map[string]bool{"seen": true, "reordered": true, "injected": true}

// countsOf checks that every frame is in exactly one counter.
func countsOf(t *testing.T, all map[string]uint64) counts {
	t.Helper()
	c, sum := counts{}, uint64(0)
	for name, v := range all {
		name = strings.TrimPrefix(name, "divert_")
		c[name] = v
		if !noFrames[name] {
			sum += v
		}
	}
	require.Contains(t, c, "seen")
	assert.Equal(t, c["seen"], sum, "frames seen, and what became of them: %v", all)
	return c
}

// inspection reads it.
func (l *lab) inspection(p board.Port) inspection {
	l.t.Helper()
	d, err := l.client.Divert(l.ctx, p.Name)
	require.NoError(l.t, err)
	require.Len(l.t, d.Ports, 1)
	require.NotEmpty(l.t, d.Queues)
	i := inspection{in: countsOf(l.t, d.Ports[0].In), out: countsOf(l.t, d.Ports[0].Out), both: counts{}, queue: d.Queues[0]}
	for name := range i.in {
		i.both[name] = i.in[name] + i.out[name]
	}
	return i
}

// decided reads it once no frame waits for a verdict.
func (l *lab) decided(p board.Port) (i inspection) {
	l.t.Helper()
	l.wait("every frame decided", func() bool {
		i = l.inspection(p)
		return i.both["queued"] == 0
	})
	return i
}

// socket is where the first listener is.
func (l *lab) socket() string {
	l.t.Helper()
	d, err := l.client.Divert(l.ctx, "")
	require.NoError(l.t, err)
	require.NotEmpty(l.t, d.Queues)
	return d.Queues[0].Name
}

// attached waits until an engine is at the first listener, or none is.
func (l *lab) attached(p board.Port, there bool) {
	l.t.Helper()
	l.wait("an engine comes or goes", func() bool { return (l.inspection(p).queue.State != client.QueueAbsent) == there })
}

// engine accepts every frame, in its own time.
type engine struct {
	t        *testing.T
	accepted atomic.Uint64 // verdicts given
	cancel   context.CancelFunc
	ended    chan error
}

// manner is how an engine gets to its verdict about a frame. When it returns false the
// frame has none.
type manner func(ctx context.Context, c *inspect.Engine, id uint64) (bool, error)

// newEngine connects one.
func (l *lab) newEngine(p board.Port, m manner) *engine {
	l.t.Helper()
	ctx, cancel := context.WithCancel(l.ctx)
	c, err := inspect.Dial(ctx, l.socket(), inspect.Options{Name: "test"})
	require.NoError(l.t, err)
	e := &engine{t: l.t, cancel: cancel, ended: make(chan error, 1)}
	go func() { e.ended <- e.run(ctx, c, m) }()
	l.attached(p, true)
	return e
}

func (e *engine) run(ctx context.Context, c *inspect.Engine, m manner) error {
	for {
		f, err := c.Next()
		if err != nil {
			return err
		}
		verdict, err := m(ctx, c, f.ID)
		if err != nil {
			return err
		}
		if verdict {
			e.accepted.Add(1)
		}
	}
}

// stop ends it and waits for its end.
func (e *engine) stop() {
	e.t.Helper()
	e.cancel()
	select {
	case err := <-e.ended:
		assert.ErrorIs(e.t, err, context.Canceled, "the engine ended by itself")
	case <-time.After(hang):
		e.t.Fatal("the engine does not end")
	}
}

// rest lets a time pass.
func rest(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// slowly is to take a frame, be at it for a time, answer, and take the next.
func slowly(d time.Duration) manner {
	return func(ctx context.Context, c *inspect.Engine, id uint64) (bool, error) {
		rest(ctx, d)
		return true, errors.Join(c.Accept(id), c.Flush())
	}
}

// inBursts is to be quick, and to rest at the end of each period.
func inBursts(period, pause time.Duration) manner {
	last := time.Now()
	return func(ctx context.Context, c *inspect.Engine, id uint64) (bool, error) {
		if time.Since(last) >= period-pause {
			rest(ctx, pause)
			last = time.Now()
		}
		return true, c.Accept(id)
	}
}

// onceAwake is to answer nothing, and later to be quick.
func onceAwake(awake *atomic.Bool) manner {
	return func(_ context.Context, c *inspect.Engine, id uint64) (bool, error) {
		if !awake.Load() {
			return false, nil
		}
		return true, c.Accept(id)
	}
}

// pour is a stream that never ends by itself.
type pour struct {
	l     *lab
	s     *netlab.Stream
	end   chan struct{}
	ended chan error
	moved netlab.Transfer
}

// newPour opens one from the far side of a port.
func (l *lab) newPour(p board.Port) *pour {
	l.t.Helper()
	s, err := netlab.Connect(l.ctx, l.farOf(p), l.host, hostAddr(p), false)
	require.NoError(l.t, err)
	r := &pour{l: l, s: s, end: make(chan struct{}), ended: make(chan error, 1)}
	go func() {
		var err error
		r.moved, err = s.SendUntil(l.ctx, r.end)
		r.ended <- err
	}()
	return r
}

// rate is what arrives in Mbit/s, over a time.
func (r *pour) rate(d time.Duration) float64 {
	before, start := r.s.Received(), time.Now()
	time.Sleep(d)
	return float64(r.s.Received()-before) * 8 / time.Since(start).Seconds() / 1e6
}

// moves waits until some more has arrived.
func (r *pour) moves(bytes int64) {
	r.l.t.Helper()
	before := r.s.Received()
	r.l.wait("the stream goes on", func() bool {
		select {
		case err := <-r.ended:
			r.l.t.Fatalf("the stream broke: %v", err)
		default:
		}
		return r.s.Received()-before >= bytes
	})
}

// stop ends it: every byte has arrived as it was sent.
func (r *pour) stop() netlab.Transfer {
	r.l.t.Helper()
	close(r.end)
	select {
	case err := <-r.ended:
		require.NoError(r.l.t, err, "the stream broke")
	case <-time.After(hang):
		r.l.t.Fatal("the stream does not end")
	}
	require.NoError(r.l.t, r.s.Close())
	return r.moved
}

// copyTo moves bytes from the far side of a port to the host.
func (l *lab) copyTo(p board.Port, bytes int64) netlab.Transfer {
	l.t.Helper()
	s, err := netlab.Connect(l.ctx, l.farOf(p), l.host, hostAddr(p), false)
	require.NoError(l.t, err)
	defer s.Close()
	ctx, cancel := context.WithTimeout(l.ctx, hang)
	defer cancel()
	moved, err := s.Send(ctx, bytes)
	require.NoError(l.t, err)
	return moved
}

// lossBased makes a far side's streams go by losses, as most do, and forget each other's.
// A sender does not wait for long before it tries again.
func (l *lab) lossBased(p board.Port) {
	l.t.Helper()
	far := l.farOf(p)
	for _, s := range []struct{ name, value string }{{"tcp_congestion_control", "reno"}, {"tcp_no_metrics_save", "1"}, {"tcp_rto_max_ms", "1000"}} {
		if err := far.Sysctl("ipv4/"+s.name, s.value); !errors.Is(err, os.ErrNotExist) { // the last: Linux 6.15
			require.NoError(l.t, err)
		}
	}
}

// threads lets the kernel share the cores between what runs here, instead of Go, whose
// turns of 10 ms are more than a ring holds frames for at the rate of a wire. For tests
// that measure and run alone.
func threads(t *testing.T) {
	before := runtime.GOMAXPROCS(8)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
}

// benched skips what measures, outside of make bench.
func benched(t *testing.T) {
	t.Helper()
	if os.Getenv("OXPD_BENCH") == "" {
		t.Skip("a measurement: make bench")
	}
}
