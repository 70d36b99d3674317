package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"oxpd/internal/board"
	"oxpd/internal/daemon/config"
	"oxpd/internal/divert"
	"oxpd/internal/port"
)

// pairPause is the time before the interfaces of a tap-pair, which somebody has taken
// away, are made again.
const pairPause = time.Second

// inspection is the queues of frames that wait for a verdict, what takes frames from them,
// and the way of those that go on. It outlives the card. Safe for concurrent use.
type inspection struct {
	*divertService
	in    *divert.Inspector
	fan   *fanout
	clock clock
	log   *slog.Logger
	netns string
	paths []string // of the listeners

	ctx    context.Context // of what serves engines
	end    context.CancelFunc
	out    context.Context // of frames on their way out, which goes on to the end of stop
	endOut context.CancelFunc
	tasks  sync.WaitGroup

	stopped bool // with changing

	mu        sync.Mutex
	listeners map[*divert.Queue]*divert.Listener // there are some once start has returned
	unmade    map[*divert.Queue]error            // why a queue has no listener
	pairs     [board.Ports]*tapPair              // those that were ever made
}

// newInspection makes queues for the listeners of a configuration. Nothing is opened
// before start.
func newInspection(cfg config.Config, netns string, fan *fanout, clock clock, log *slog.Logger) *inspection {
	s := &inspection{fan: fan, clock: clock, log: log, netns: netns, paths: cfg.Listeners(), listeners: map[*divert.Queue]*divert.Listener{}, unmade: map[*divert.Queue]error{}}
	s.ctx, s.end = context.WithCancel(context.Background())
	s.out, s.endOut = context.WithCancel(context.Background())
	var queues []*divert.Queue
	for i, path := range s.paths {
		queues = append(queues, s.newQueue(path, i, false))
	}
	s.in = divert.NewInspector(queues)
	s.divertService = newDivertService(s.in, s, log)
	return s
}

// newQueue makes a queue, the nth of all.
func (s *inspection) newQueue(name string, n int, pair bool) *divert.Queue {
	return divert.NewQueue(divert.QueueConfig{
		Name: name, Settings: divert.Defaults(), Limit: s.fan.limit, Clock: s.clock, Log: s.log, Pair: pair,
		Outlet: &outlet{fan: s.fan, ctx: s.out, shard: port.QueueShards + n%port.EngineShards},
	})
}

// start makes the listeners' sockets and begins to serve engines, with what the
// configuration says. After an error nothing is left open. A socket that the configuration
// does not name need not be: the datapath starts without it, and frames that are diverted
// meet the policy for an engine that is not there.
func (s *inspection) start(cfg *config.Divert) error {
	for i, q := range s.in.Listeners() {
		l, err := divert.Listen(divert.ListenerConfig{
			Path: s.paths[i], Queue: q, Clock: s.clock, Log: s.log,
		})
		if err != nil && len(cfg.Listeners) > 0 {
			s.stop()
			return err
		}
		s.spawn("inspection queue", q.Run)
		s.mu.Lock()
		s.listeners[q], s.unmade[q] = l, err
		s.mu.Unlock()
		if err != nil {
			s.log.Warn("there is no inspection socket: divert.listeners of the configuration may name another", "err", err)
			continue
		}
		s.spawn("inspection socket", l.Run)
	}
	if err := s.boot(cfg); err != nil {
		s.stop()
		return err
	}
	return nil
}

// spawn runs a part until it ends. An error of it takes nothing else along: frames meet
// the policy for an engine that is not there.
func (s *inspection) spawn(what string, run func(ctx context.Context) error) {
	s.tasks.Add(1)
	go func() {
		defer s.tasks.Done()
		if err := run(s.ctx); err != nil {
			s.log.Error("inspection is not served any more", "what", what, "err", err)
		}
	}()
}

// stop takes the engines away. What is queued goes on or is dropped, by the policy for
// that, and when stop returns no queue has a frame or takes one.
func (s *inspection) stop() {
	s.changing.Lock()
	s.stopped = true
	s.changing.Unlock()
	s.end()
	s.tasks.Wait()
	s.endOut()
}

// engine implements engines.
func (s *inspection) engine(q *divert.Queue) engineView {
	s.mu.Lock()
	l, unmade := s.listeners[q], s.unmade[q]
	var pair *tapPair
	for _, p := range s.pairs {
		if p != nil && p.queue == q {
			pair = p
		}
	}
	s.mu.Unlock()
	switch {
	case unmade != nil:
		return engineView{warning: fmt.Sprintf("no engine can connect: %v; divert.listeners may name another path", unmade)}
	case l != nil:
		return listenerView(l, q.Settings().BufferSize)
	case pair != nil:
		return pair.view()
	}
	return engineView{}
}

// listenerView is what is known of the engine at a socket.
func listenerView(l *divert.Listener, bufferSize int64) engineView {
	st := l.Stats()
	v := engineView{counters: map[string]uint64{
		"send_again": st.SendAgain, "send_nobufs": st.SendNoBufs, "bad_messages": st.BadMessages, "refused": st.Refused,
	}}
	if e := l.Engine(); e != nil {
		v.name, v.pid, v.buffer = e.Name, e.PID, e.Buffer
		v.warning = bufferWarning(l.Path(), e, bufferSize)
	}
	return v
}

// bufferWarning is what is wrong with the buffer of an engine's socket, "" when it is as
// set.
func bufferWarning(path string, e *divert.Engine, bufferSize int64) string {
	switch asked := int64(e.Asked); {
	case asked != bufferSize:
		return fmt.Sprintf("%s: the engine connected before buffer-size was set to %s: its socket has it when it connects again", path, divert.FormatSize(bufferSize))
	case int64(e.Buffer) < 2*asked:
		return fmt.Sprintf("%s: the engine's socket got %s of the %s of buffer-size: raise net.core.wmem_max to %d or more, and start the engine again",
			path, divert.FormatSize(int64(e.Buffer)/2), divert.FormatSize(asked), 2*asked)
	}
	return ""
}

// tapPair is a port's two interfaces with an engine between them, and its queue, which
// stays when they go.
type tapPair struct {
	queue *divert.Queue

	mu   sync.Mutex
	end  context.CancelFunc // nil: the port has none now
	done chan struct{}      // closed when they are gone
	pair *divert.Pair       // the last one
	why  string             // there are none; empty: there are, or nobody wants them
}

// view is what is known of the engine.
func (t *tapPair) view() engineView {
	t.mu.Lock()
	defer t.mu.Unlock()
	v := engineView{warning: t.why}
	if t.pair != nil {
		st := t.pair.Stats()
		v.counters = map[string]uint64{
			"injected": st.Injected, "cut": st.Cut, "write_errors": st.WriteErrors, "probes": st.Probes, "probes_back": st.ProbesBack,
		}
	}
	return v
}

// setPair implements engines. Whoever calls it holds changing.
func (s *inspection) setPair(p board.Port, on bool, set divert.Settings) error {
	if s.stopped {
		return errors.New("oxpd ends")
	}
	if !on {
		s.in.SetPair(p.Index, nil)
		s.pairOf(p).stop()
		return nil
	}
	in, err := s.openPair(p)
	if err != nil {
		return err
	}
	t := s.pairOf(p)
	if t == nil {
		t = &tapPair{queue: s.newQueue(p.Name, len(s.paths)+p.Index, true)}
		s.mu.Lock()
		s.pairs[p.Index] = t
		s.mu.Unlock()
		s.spawn("inspection queue", t.queue.Run)
	}
	t.queue.Set(set)
	ctx, end := context.WithCancel(s.ctx)
	done := make(chan struct{})
	t.mu.Lock()
	t.end, t.done = end, done
	t.mu.Unlock()
	s.tasks.Add(1)
	go func() {
		defer s.tasks.Done()
		defer close(done)
		s.servePair(ctx, p, t, in)
	}()
	s.in.SetPair(p.Index, t.queue)
	return nil
}

// stop takes the interfaces away and waits until they are.
func (t *tapPair) stop() {
	t.mu.Lock()
	end, done := t.end, t.done
	t.end = nil
	t.mu.Unlock()
	if end != nil {
		end()
		<-done
	}
}

// pairOf is the pair that a port has or had, nil for none.
func (s *inspection) pairOf(p board.Port) *tapPair {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pairs[p.Index]
}

func (s *inspection) openPair(p board.Port) (*port.Inline, error) {
	return port.OpenInline(port.InlineConfig{
		Names: [2]string{divert.WireSide: p.Name + "w", divert.HostSide: p.Name + "h"}, NetNS: s.netns, Log: s.log,
	})
}

// servePair carries a port's frames through its interfaces until ctx ends; interfaces that
// somebody removes are made again.
func (s *inspection) servePair(ctx context.Context, p board.Port, t *tapPair, in *port.Inline) {
	for {
		err := s.runPair(ctx, p, t, in)
		if ctx.Err() != nil {
			t.note(nil, "")
			return
		}
		t.note(nil, fmt.Sprintf("%s: the interfaces for its engine have gone, and are made again: %v", p.Name, err))
		s.log.Warn("interfaces for an engine have gone", "port", p.Name, "err", err)
		for in = nil; in == nil; {
			if s.clock.Sleep(ctx, pairPause) != nil {
				t.note(nil, "")
				return
			}
			if in, err = s.openPair(p); err != nil {
				t.note(nil, fmt.Sprintf("%s: there are no interfaces for its engine: %v", p.Name, err))
			}
		}
	}
}

// note says what there is of a pair now.
func (t *tapPair) note(pair *divert.Pair, why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.why = why
	if pair != nil {
		t.pair = pair
	}
}

// runPair carries frames through two interfaces until ctx ends or one of them has gone,
// and removes them.
func (s *inspection) runPair(ctx context.Context, p board.Port, t *tapPair, in *port.Inline) error {
	pair := divert.NewPair(divert.PairConfig{Port: p.Index, Queue: t.queue, Sides: in.Files(), Attached: in.Attached, Clock: s.clock, Log: s.log})
	t.note(pair, "")
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watched := make(chan error, 1)
	go func() { watched <- in.Watch(ctx) }()
	err := pair.Run(ctx)
	cancel()
	return errors.Join(err, <-watched, in.Close())
}

// outlet is the way of one queue's frames to their port and to the card.
type outlet struct {
	fan    *fanout
	ctx    context.Context
	shard  int
	piece  [1][]byte
	passed [passedMost]port.Passed
}

// passedMost is how many frames are given to the card at once.
const passedMost = 32

// Release implements divert.Outlet.
func (o *outlet) Release(frames []divert.Released) {
	for len(frames) > 0 {
		if frames[0].Dir == divert.In {
			o.in(&frames[0])
			frames = frames[1:]
			continue
		}
		n := 1
		for n < min(len(frames), passedMost) && frames[n].Dir == divert.Out && frames[n].Port == frames[0].Port {
			n++
		}
		o.out(frames[:n])
		frames = frames[n:]
	}
}

// in gives a frame to its interface.
func (o *outlet) in(f *divert.Released) {
	p := o.fan.ports[f.Port].Load()
	if p == nil { // of an engine's own making: the port has not come up yet
		o.fan.counts[f.Port].Refuse(o.shard)
		return
	}
	o.piece[0] = f.Frame
	p.Receive(o.shard, o.piece[:], f.L3)
	o.piece[0] = nil
}

// out gives frames of one port to the card.
func (o *outlet) out(frames []divert.Released) {
	for i := range frames {
		o.passed[i] = port.Passed{Frame: frames[i].Frame, Header: frames[i].L3}
	}
	o.fan.send(o.ctx, frames[0].Port, o.passed[:len(frames)])
	clear(o.passed[:len(frames)])
}

// doorway is the present way to the card. Its lock is held while frames are given to it.
type doorway struct {
	sync.RWMutex
	tx *port.Transmitter // nil: there is none
}

// sendBy sets by what frames that engines let go on reach the card; nil: there is none.
// When it returns nothing uses the one of before.
func (f *fanout) sendBy(tx *port.Transmitter) {
	f.door.Lock()
	defer f.door.Unlock()
	f.door.tx = tx
}

// send gives frames of a port to the card; without a card they are counted as tx_gone.
func (f *fanout) send(ctx context.Context, index int, frames []port.Passed) {
	f.door.RLock()
	defer f.door.RUnlock()
	p := f.ports[index].Load()
	if p == nil || f.door.tx == nil {
		f.counts[index].Strand(len(frames))
		return
	}
	f.door.tx.Send(ctx, p, frames)
}

// limit is the MTU that a port's frames are measured against.
func (f *fanout) limit(index int) int {
	if p := f.ports[index].Load(); p != nil {
		return p.Limit()
	}
	return board.DefaultMTU
}
