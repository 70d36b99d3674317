package hwsim

// event is one entry of the card's agenda. Parts of the data path keep one
// event each and arm it anew, so that a frame costs no allocation; everything
// else goes through at and after.
type event struct {
	at  uint64 // cycle
	seq uint64 // order among events of one cycle
	fn  func()
	idx int // place in the heap, -1 while not armed
}

func newEvent(fn func()) *event { return &event{fn: fn, idx: -1} }

// agenda is a heap of events by cycle, then by the order of arming.
type agenda struct {
	heap []*event
	seq  uint64
}

func (a *agenda) less(i, j int) bool {
	x, y := a.heap[i], a.heap[j]
	return x.at < y.at || x.at == y.at && x.seq < y.seq
}

func (a *agenda) swap(i, j int) {
	a.heap[i], a.heap[j] = a.heap[j], a.heap[i]
	a.heap[i].idx, a.heap[j].idx = i, j
}

func (a *agenda) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !a.less(i, parent) {
			return
		}
		a.swap(i, parent)
		i = parent
	}
}

func (a *agenda) down(i int) {
	for {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < len(a.heap); c++ {
			if a.less(c, least) {
				least = c
			}
		}
		if least == i {
			return
		}
		a.swap(i, least)
		i = least
	}
}

// arm puts e on the agenda for a cycle, or moves it there.
func (a *agenda) arm(e *event, at uint64) {
	if e.idx >= 0 && e.at == at {
		return
	}
	a.seq++
	e.at, e.seq = at, a.seq
	if e.idx < 0 {
		e.idx = len(a.heap)
		a.heap = append(a.heap, e)
		a.up(e.idx)
		return
	}
	a.up(e.idx)
	a.down(e.idx)
}

// disarm takes e off the agenda.
func (a *agenda) disarm(e *event) {
	i := e.idx
	if i < 0 {
		return
	}
	last := len(a.heap) - 1
	if i != last {
		a.swap(i, last)
	}
	a.heap[last] = nil
	a.heap = a.heap[:last]
	e.idx = -1
	if i != last {
		a.up(i)
		a.down(i)
	}
}

// next returns the cycle of the earliest event.
func (a *agenda) next() (at uint64, ok bool) {
	if len(a.heap) == 0 {
		return 0, false
	}
	return a.heap[0].at, true
}

// pop takes the earliest event off the agenda.
func (a *agenda) pop() *event {
	e := a.heap[0]
	a.disarm(e)
	return e
}

// at runs fn under the lock at a cycle, or at once when that is past.
func (c *Card) at(cycle uint64, fn func()) *event {
	e := newEvent(fn)
	c.agenda.arm(e, max(cycle, c.now))
	return e
}

// after runs fn under the lock that many cycles from now.
func (c *Card) after(cycles uint64, fn func()) *event { return c.at(c.now+cycles, fn) }

// cancel takes an event of at or after off the agenda; nil and past ones are
// no harm.
func (c *Card) cancel(e *event) {
	if e != nil {
		c.agenda.disarm(e)
	}
}
