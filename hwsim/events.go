package hwsim

// event is one entry of the card's agenda. Parts of the data path keep one
// event each and arm it anew, so that a frame costs no allocation; everything
// else goes through at and after.
type event struct {
	at   uint64 // cycle
	seq  uint64 // order among events of one cycle
	fn   func()
	kind eventKind
	idx  int // place in its heap, -1 while not armed
}

// eventKind tells apart what may run ahead of the clock in free mode.
type eventKind uint8

const (
	// flow is a step of the data path. In free mode it may run up to
	// Latencies.FreeAhead early: it follows from work that is there already.
	flow eventKind = iota
	// timely is everything with a time of its own, which may repeat.
	timely
	eventKinds
)

func newEvent(kind eventKind, fn func()) *event { return &event{fn: fn, kind: kind, idx: -1} }

// eventHeap is a heap of events by cycle, then by the order of arming.
type eventHeap []*event

func before(x, y *event) bool { return x.at < y.at || x.at == y.at && x.seq < y.seq }

func (h eventHeap) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].idx, h[j].idx = i, j
}

func (h eventHeap) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !before(h[i], h[parent]) {
			return
		}
		h.swap(i, parent)
		i = parent
	}
}

func (h eventHeap) down(i int) {
	for {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < len(h); c++ {
			if before(h[c], h[least]) {
				least = c
			}
		}
		if least == i {
			return
		}
		h.swap(i, least)
		i = least
	}
}

// agenda is what the card has to do, by cycle.
type agenda struct {
	heaps [eventKinds]eventHeap
	seq   uint64
}

// arm puts e on the agenda for a cycle, or moves it there.
func (a *agenda) arm(e *event, at uint64) {
	if e.idx >= 0 && e.at == at {
		return
	}
	h := &a.heaps[e.kind]
	a.seq++
	e.at, e.seq = at, a.seq
	if e.idx < 0 {
		e.idx = len(*h)
		*h = append(*h, e)
	}
	h.up(e.idx)
	h.down(e.idx)
}

// disarm takes e off the agenda.
func (a *agenda) disarm(e *event) {
	i := e.idx
	if i < 0 {
		return
	}
	h := &a.heaps[e.kind]
	last := len(*h) - 1
	h.swap(i, last)
	(*h)[last] = nil
	*h = (*h)[:last]
	e.idx = -1
	if i < last {
		h.up(i)
		h.down(i)
	}
}

// first returns the earliest event of a kind, nil when there is none.
func (a *agenda) first(k eventKind) *event {
	if len(a.heaps[k]) == 0 {
		return nil
	}
	return a.heaps[k][0]
}

// due returns the earliest event that may run when timely ones are due up to
// now and those of the data path up to horizon; nil when none is.
func (a *agenda) due(now, horizon uint64) *event {
	f, t := a.first(flow), a.first(timely)
	if f != nil && f.at > horizon {
		f = nil
	}
	if t != nil && t.at > now {
		t = nil
	}
	if t == nil || f != nil && before(f, t) {
		return f
	}
	return t
}

// at runs fn under the lock at a cycle, or at once when that is past.
func (c *Card) at(cycle uint64, fn func()) *event {
	e := newEvent(timely, fn)
	c.agenda.arm(e, max(cycle, c.now))
	return e
}

// after runs fn under the lock that many cycles from now.
func (c *Card) after(cycles uint64, fn func()) *event { return c.at(c.now+cycles, fn) }
