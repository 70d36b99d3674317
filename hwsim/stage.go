package hwsim

// stage is a step that things take one after the other: what is in it, in order,
// each with the cycle at which it is through. It keeps one event, and a thing costs
// a push and a pop, or nothing when it may go on at once.
type stage[T any] struct {
	c     *Card
	q     fifo[inStage[T]]
	ev    *event
	last  uint64 // nothing is through before what came before it
	bus   bool   // it needs the bus: a card that is gone keeps what is in it
	leave func(v T, at uint64)
}

type inStage[T any] struct {
	v   T
	due uint64
}

// init says what becomes of a thing that is through, and the cycle of that.
func (s *stage[T]) init(c *Card, bus bool, leave func(v T, at uint64)) {
	*s = stage[T]{c: c, bus: bus, leave: leave}
	s.ev = newEvent(flow, s.run)
}

func (s *stage[T]) len() int { return s.q.len() }

// enter takes a thing that is through at a cycle.
func (s *stage[T]) enter(v T, due uint64) {
	due = max(due, s.last)
	s.last = due
	if s.q.len() == 0 && s.c.early(due) && !s.held() {
		s.leave(v, due)
		return
	}
	s.q.push(inStage[T]{v, due})
	s.arm()
}

func (s *stage[T]) held() bool { return s.bus && s.c.gone() }

// arm puts the head on the agenda.
func (s *stage[T]) arm() {
	if s.ev.idx < 0 && s.q.len() > 0 && !s.held() {
		s.c.agenda.arm(s.ev, max(s.q.at(0).due, s.c.now))
	}
}

// run is the event of things being through.
func (s *stage[T]) run() {
	for n := 0; n < s.c.batch() && s.q.len() > 0 && s.q.at(0).due <= s.c.horizon && !s.held(); n++ {
		x := s.q.pop()
		s.leave(x.v, x.due)
	}
	s.arm()
}

// finish lets everything through now.
func (s *stage[T]) finish() {
	for s.q.len() > 0 {
		s.leave(s.q.pop().v, s.c.now)
	}
	s.c.agenda.disarm(s.ev)
	s.last = s.c.now
}

// reset forgets what is in the stage.
func (s *stage[T]) reset() {
	s.q.reset()
	s.c.agenda.disarm(s.ev)
	s.last = 0
}
