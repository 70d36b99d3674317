package divert

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"oxpd/internal/board"
)

// Kind is what decides about the frames of a port.
type Kind uint8

// Kinds.
const (
	Socket  Kind = iota // the engines at the listeners
	TapPair             // an engine between two interfaces of the port's own
)

var kindNames = []string{"socket", "tap-pair"}

// String is the kind as settings have it.
func (k Kind) String() string { return nameOf(kindNames, int(k)) }

// ParseKind reads a kind.
func ParseKind(text string) (Kind, error) {
	i, err := parseName(kindNames, text)
	return Kind(i), err
}

// Inspector finds the queue of each frame: that of its port's pair, or one of the
// listeners' by its hosts. Safe for concurrent use.
type Inspector struct {
	listeners []*Queue
	pairs     [board.Ports]atomic.Pointer[Queue]
	all       [board.Ports]atomic.Bool

	mu    sync.Mutex
	known []*Queue // every pair's, also of those that were taken away
}

// NewInspector makes an inspector over the queues of listeners, one at least.
func NewInspector(listeners []*Queue) *Inspector { return &Inspector{listeners: listeners} }

// Listeners are the queues that share the frames of all ports without a pair.
func (in *Inspector) Listeners() []*Queue { return in.listeners }

// SetAll says whether every frame of a port wants a decision, or only those that a
// filter says so of.
func (in *Inspector) SetAll(port int, all bool) { in.all[port].Store(all) }

// Wants tells whether every frame of a port wants a decision.
func (in *Inspector) Wants(port int) bool { return in.all[port].Load() }

// SetPair gives a port a queue of its own, nil takes it away: the listeners' are its
// then. What the old one has stays there, and its counts are the port's for ever: whoever
// gives the port a pair again gives it the same queue.
func (in *Inspector) SetPair(port int, q *Queue) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if q != nil && !slices.Contains(in.known, q) {
		in.known = append(in.known, q)
	}
	in.pairs[port].Store(q)
}

// Pair is a port's own queue, nil when it has none.
func (in *Inspector) Pair(port int) *Queue { return in.pairs[port].Load() }

// Offer gives a frame to its queue. A frame whose headers nobody has read is parsed into
// its Head, for which the first piece has to have them.
func (in *Inspector) Offer(now time.Duration, f *Offered) Fate {
	if f.Head.Have == 0 {
		f.Head.Parse(f.Pieces[0], f.Bytes)
	}
	hosts := hostHash(f.Head, f.Pieces[0])
	if q := in.pairs[f.Port].Load(); q != nil {
		return q.offer(now, f, hosts)
	}
	return in.listeners[hosts%uint64(len(in.listeners))].offer(now, f, hosts)
}

// Queues are all that have counts, the listeners' first.
func (in *Inspector) Queues() []*Queue {
	in.mu.Lock()
	defer in.mu.Unlock()
	return slices.Concat(in.listeners, in.known)
}

// Set changes the settings of all queues.
func (in *Inspector) Set(s Settings) {
	for _, q := range in.Queues() {
		q.Set(s)
	}
}

// Counts is what became of a port's frames, over all queues.
func (in *Inspector) Counts(port int, dir Direction) Counts {
	var c Counts
	for _, q := range in.Queues() {
		one := q.Counts(port, dir)
		c.Add(&one)
	}
	return c
}

// Census is what became of all ports' frames, by port and direction. still says that no
// frame was leaving a queue meanwhile: each that is counted as passed has been given to an
// Outlet that has returned.
func (in *Inspector) Census() (counts [board.Ports][Directions]Counts, still bool) {
	still = true
	for _, q := range in.Queues() {
		quiet := q.out.TryLock()
		still = still && quiet
		q.mu.Lock()
		for p := range counts {
			for d := range counts[p] {
				counts[p][d].Add(&q.counts[p][d])
			}
		}
		q.mu.Unlock()
		if quiet {
			q.out.Unlock()
		}
	}
	return counts, still
}

// Counts is what became of a port's frames in one direction.
func (q *Queue) Counts(port int, dir Direction) Counts {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.counts[port][dir]
}
