package worlds

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"oxpd/internal/board"
	"oxpd/internal/divert"
	"oxpd/ring"
)

// Behind the sink: what rules divert waits in an inspection queue for an engine that takes
// and decides when it likes, also while the rings go round. Its books are the sink's.

// waiting is a frame without a verdict.
type waiting struct {
	f    *flow
	i    int
	id   uint64
	gone bool // handed to the engine
}

// going is a frame that has to leave the queue next.
type going struct {
	f *flow
	i int
	b []byte // nil: as it came
}

type inspection struct {
	*world
	d       drawer
	set     divert.Settings
	all     bool // every frame that passes is inspected
	in      *divert.Inspector
	queue   *divert.Queue
	open    []waiting // in the order in which they came
	bytes   int64
	leaving []going
	wrong   string // of what left
	want    [board.Ports]divert.Counts
	late    uint64
}

// worldTime is the world's clock, on which nobody sleeps here.
type worldTime struct{ w *world }

func (t worldTime) Now() time.Duration                               { return t.w.now() }
func (t worldTime) Sleep(ctx context.Context, _ time.Duration) error { return ctx.Err() }

// init draws from a seed of its own, so that a world is the same but for this.
func (s *inspection) init(w *world) {
	s.world, s.d = w, drawer{rand.New(rand.NewPCG(w.seed, 0xd17e47))}
	s.all = s.d.one(3)
	s.set = divert.Defaults()
	s.set.QueueLen = int(s.d.span(1, 200))
	s.set.QueueBytes = int64(s.d.span(16<<10, 1<<20))
	s.set.OnFull = []divert.Policy{divert.Drop, divert.Pass}[s.d.IntN(2)]
	s.set.OnAbsent = []divert.Policy{divert.Drop, divert.Pass}[s.d.IntN(2)]
	s.set.Order = []divert.Order{divert.Any, divert.Keep}[s.d.IntN(2)]
	s.queue = divert.NewQueue(divert.QueueConfig{Name: "q", Settings: s.set, Outlet: s, Limit: func(int) int { return board.MaxMTU }, Clock: worldTime{w}})
	s.in = divert.NewInspector([]*divert.Queue{s.queue})
	s.queue.Attach()
}

// offer gives the queue a frame of the sink's.
func (s *inspection) offer(x *ring.Frame, f *flow, i int) {
	c, cost := &s.want[f.port.Index], int64(x.Bytes+divert.EntryOverhead)
	full := len(s.open) >= s.set.QueueLen || s.bytes+cost > s.set.QueueBytes
	behind := slices.ContainsFunc(s.open, func(o waiting) bool { return o.f == f })
	fate := s.in.Offer(s.now(), &divert.Offered{Port: f.port.Index, Dir: divert.In, Pieces: x.Pieces, Bytes: x.Bytes, Head: x.Head})
	c.Seen++
	may := []divert.Fate{divert.Taken}
	switch {
	case !full:
	case s.set.OnFull == divert.Drop, s.set.Order == divert.Keep && behind:
		may = []divert.Fate{divert.Lost}
	case s.set.Order == divert.Keep:
		may = []divert.Fate{divert.Passed, divert.Lost} // another flow's frames may look like its own
	default:
		may = []divert.Fate{divert.Passed}
	}
	if !slices.Contains(may, fate) {
		s.broke("inspection", "frame %d of %s, %d bytes, behind %d frames of %d bytes: fate %d, not %v", i, f, x.Bytes, len(s.open), s.bytes, fate, may)
	}
	//exhaustive:enforce
	switch fate {
	case divert.Taken:
		c.Queued++
		s.open = append(s.open, waiting{f: f, i: i})
		s.bytes += cost
	case divert.Passed:
		c.PassFull++
	case divert.Lost:
		c.DropFull++
	}
}

// turn is the engine's: it takes some frames, and decides about some that it has.
func (s *inspection) turn() {
	if len(s.open) == 0 {
		return
	}
	if !s.d.one(3) {
		s.take()
	}
	if !s.d.one(3) {
		s.decide()
	}
	s.counts()
}

// take holds what the engine gets against what was sent.
func (s *inspection) take() {
	var tickets [16]divert.Ticket
	n := s.queue.Take(tickets[:s.d.from(1, len(tickets))])
	next := slices.IndexFunc(s.open, func(o waiting) bool { return !o.gone })
	for k := range n {
		if next < 0 || next+k >= len(s.open) {
			s.broke("inspection", "the engine gets %d frames, %d wait", n, len(s.open))
		}
		o, b := &s.open[next+k], tickets[k].Frame
		o.id = tickets[k].ID
		if len(b) != o.f.frames[o.i].size || tickets[k].Port != o.f.port.Index {
			s.broke("inspection", "the engine gets %d bytes of port %d for frame %d of %s", len(b), tickets[k].Port, o.i, o.f)
		}
		s.same("to the engine", o.f, o.i, b)
	}
	sent := s.d.from(0, n) // its socket took no more
	for k := range sent {
		s.open[next+k].gone = true
	}
	s.queue.Sent(tickets[:n], sent)
}

// decide gives verdicts about frames that the engine has, in any order.
func (s *inspection) decide() {
	var verdicts []divert.Verdict
	for range s.d.from(1, 20) {
		k := s.d.IntN(max(1, len(s.open)))
		if len(s.open) == 0 || !s.open[k].gone {
			continue
		}
		o := s.open[k]
		s.open = slices.Delete(s.open, k, k+1)
		c, size := &s.want[o.f.port.Index], o.f.frames[o.i].size
		s.bytes -= int64(size + divert.EntryOverhead)
		c.Queued--
		v := divert.Verdict{ID: o.id, Code: []divert.Code{divert.CodeAccept, divert.CodeAccept, divert.CodeDrop, divert.CodeReplace}[s.d.IntN(4)]}
		switch v.Code {
		case divert.CodeAccept:
			c.Accepted++
			s.leaving = append(s.leaving, going{f: o.f, i: o.i})
		case divert.CodeReplace:
			v.Frame = bytes.Repeat([]byte{byte(k)}, []int{13, 14, 60, size, board.MaxMTU + 15}[s.d.IntN(5)])
			if n := len(v.Frame); n < 14 || n > board.MaxMTU+14 {
				c.Oversize++
				break
			}
			c.Replaced++
			s.leaving = append(s.leaving, going{o.f, o.i, v.Frame})
		default:
			c.Dropped++
		}
		verdicts = append(verdicts, v)
		if s.d.one(8) {
			verdicts = append(verdicts, v) // once more
			s.late++
		}
	}
	s.queue.Settle(verdicts)
	s.gone()
}

// Release implements divert.Outlet. What is wrong is said when the queue has returned.
func (s *inspection) Release(frames []divert.Released) {
	for _, r := range frames {
		if s.wrong != "" {
			return
		}
		if len(s.leaving) == 0 {
			s.wrong = fmt.Sprintf("a frame of %d bytes leaves that nothing was said of", len(r.Frame))
			return
		}
		g := s.leaving[0]
		s.leaving = s.leaving[1:]
		if g.b == nil {
			g.b = s.reuse.pattern.put(s.reuse.check, g.f, g.i, g.f.frames[g.i].size)
		}
		if !bytes.Equal(g.b, r.Frame) || r.Port != g.f.port.Index {
			s.wrong = fmt.Sprintf("%d bytes of port %d leave for frame %d of %s, or other ones", len(r.Frame), r.Port, g.i, g.f)
		}
	}
}

// gone ends the world when something has left that should not, or has not.
func (s *inspection) gone() {
	if s.wrong != "" {
		s.broke("inspection", "%s", s.wrong)
	}
	if len(s.leaving) > 0 {
		s.broke("inspection", "%d frames that are to go on have not left", len(s.leaving))
	}
}

// counts holds the queue's counters against the books.
func (s *inspection) counts() {
	for p := range s.want {
		got := s.queue.Counts(p, divert.In)
		got.Reordered = 0 // which flows look alike, the books do not know
		if got != s.want[p] || got.Seen != got.Sum() {
			s.broke("inspection", "port %d: the queue counts %+v, the books say %+v", p, got, s.want[p])
		}
	}
	st := s.queue.Stats()
	if st.Frames != len(s.open) || st.Bytes != s.bytes || st.Events.Late != s.late {
		s.broke("inspection", "the queue has %d frames, %d bytes, and %d late verdicts; the books say %d, %d, %d", st.Frames, st.Bytes, st.Events.Late, len(s.open), s.bytes, s.late)
	}
}

// end is that of the engine: what it has goes by the policy for that, in order. Another
// one comes.
func (s *inspection) end() {
	for _, o := range s.open {
		c := &s.want[o.f.port.Index]
		c.Queued--
		if s.set.OnAbsent == divert.Drop {
			c.DropAbsent++
			continue
		}
		c.PassAbsent++
		s.leaving = append(s.leaving, going{f: o.f, i: o.i})
	}
	s.open, s.bytes = nil, 0
	s.queue.Detach()
	s.gone()
	s.counts()
	s.queue.Attach()
}

// met says what came before a world's engine.
func (s *inspection) met() map[string]uint64 {
	var all divert.Counts
	for p := range s.want {
		all.Add(&s.want[p])
	}
	return map[string]uint64{
		"accepted by an engine": all.Accepted, "dropped by an engine": all.Dropped, "replaced": all.Replaced, "a replacement of no length": all.Oversize,
		"passed by a full queue": all.PassFull, "dropped by a full queue": all.DropFull, "the engine goes": all.PassAbsent + all.DropAbsent,
	}
}
