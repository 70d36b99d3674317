package divert

import (
	"encoding/binary"
	"hash/maphash"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"
)

const (
	pairBatch = 32
	pairReads = 8       // frames of an interface at once
	pairBuf   = 1 << 16 // the longest frame that an engine can send
	lookTime  = 100 * time.Millisecond
	// silentMost is how many frames in a row an engine without probes may have dropped
	// before it is taken for one that has stopped.
	silentMost = 8

	probePeriod = 10 * time.Millisecond
	// probeGrace is how long after a probe a frame may come back that left before it: an
	// engine of several threads does not keep their order.
	probeGrace = 50 * time.Millisecond
	probeType  = 0x88b5 // IEEE 802 local experimental EtherType 1
	probeSize  = 60
	probeMagic = 0x6f78706470726f62
)

// Sides of a pair.
const (
	WireSide = 0
	HostSide = 1
)

// PairConfig is what a pair needs. All but Log are required.
type PairConfig struct {
	Port  int
	Queue *Queue // made with Pair
	// Sides are the two interfaces' files, WireSide and HostSide: one frame a call, on the
	// runtime's poller. They stay the caller's, who closes them after Run.
	Sides [2]*os.File
	// Attached tells whether somebody reads both interfaces.
	Attached func() (bool, error)
	Clock    Clock
	Log      *slog.Logger
}

// PairStats counts events at a pair, in frames.
type PairStats struct {
	Injected     uint64 // of the engine's own: went on
	Cut          uint64 // no frame that left, and cut: dropped
	WriteErrors  uint64 // that an interface did not take
	Probes       uint64 // sent
	ProbesBack   uint64
	Attached     bool
	ProbesReturn bool // the engine forwards probes
}

// probe is the one that is under way in a lane.
type probe struct {
	number uint64 // of it, counted from 1
	mark   uint64 // flights below left before it
	sent   time.Duration
	first  time.Duration // when the first was sent of those that nothing has come back since
	out    bool
	ever   bool // one came back
}

// passed is the flights that a probe overtook.
type passed struct {
	mark uint64
	at   time.Duration
	on   bool
}

// way is a lane and what is known about its engine.
type way struct {
	*lane
	probe    probe
	passed   passed
	asked    bool   // a probe was sent since the engine came
	judged   uint64 // flights below have been decided
	lastBack time.Duration
}

// Pair carries a queue's frames through an engine that copies them from one interface to
// the other and gives no verdict: what comes back is accepted, what does not is dropped.
// Safe for concurrent use.
type Pair struct {
	cfg   PairConfig
	log   *slog.Logger
	nonce uint64 // in probes: frames of others do not have it

	mu       sync.Mutex
	ways     [Directions]way // by the frames' direction
	stats    PairStats
	attached bool
	stalled  bool
}

// NewPair makes a pair.
func NewPair(cfg PairConfig) *Pair {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	p := &Pair{cfg: cfg, log: cfg.Log.With("queue", cfg.Queue.cfg.Name)}
	for d := range p.ways {
		p.ways[d].lane = newLane()
		p.ways[d].judged = 1
	}
	p.nonce = maphash.Bytes(p.ways[0].seed, nil)
	return p
}

// Stats reads the pair's counters.
func (p *Pair) Stats() PairStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	s.Attached = p.attached
	s.ProbesReturn = p.ways[In].probe.ever || p.ways[Out].probe.ever
	return s
}

// entrance is the side that frames of a direction are written to; they come back at the
// other.
func entrance(d Direction) int {
	if d == In {
		return WireSide
	}
	return HostSide
}

// left notes frames that are about to be written.
func (p *Pair) left(tickets []Ticket) {
	now := p.cfg.Clock.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range tickets {
		t := &tickets[i]
		p.ways[t.Dir].left(t.ID, t.Frame, now)
	}
}

// returned is what came back of a direction: verdicts about frames that left, and frames
// that did not.
type returned struct {
	verdicts []Verdict
	injected [][]byte
}

// back decides about a frame that came back.
func (p *Pair) back(d Direction, b []byte, r *returned) {
	now := p.cfg.Clock.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	w := &p.ways[d]
	w.lastBack = now
	if n, ok := p.probeNumber(b); ok {
		p.probeBack(w, n, now)
		return
	}
	what, id := w.back(b)
	switch what {
	case backSame:
		r.verdicts = append(r.verdicts, Verdict{ID: id, Code: CodeAccept})
	case backReplaced:
		r.verdicts = append(r.verdicts, Verdict{ID: id, Code: CodeReplace, Frame: b})
	case backShort:
		r.verdicts = append(r.verdicts, Verdict{ID: id, Code: CodeShortened})
	case backCut:
		p.stats.Cut++
	case backInjected:
		p.stats.Injected++
		r.injected = append(r.injected, b)
	}
}

// probeBack notes that what left before a probe has been dealt with.
func (p *Pair) probeBack(w *way, number uint64, now time.Duration) {
	p.stats.ProbesBack++
	w.probe.ever = true
	if number == w.probe.number && w.probe.out {
		w.probe.out = false
		w.passed = passed{mark: w.probe.mark, at: now, on: true}
	}
}

// judge decides about the frames that a probe has overtaken for long enough.
func (p *Pair) judge(now time.Duration) (dropped []Verdict) {
	p.mu.Lock()
	defer p.mu.Unlock()
	stall := p.cfg.Queue.Settings().Stall
	for d := range p.ways {
		w := &p.ways[d]
		if w.passed.on && now-w.passed.at >= min(probeGrace, stall) {
			for n := max(w.judged, w.low); n < w.passed.mark; n++ {
				if f := w.lane.at(n); !f.over {
					dropped = append(dropped, Verdict{ID: f.id, Code: CodeDrop})
				}
			}
			w.judged = max(w.judged, w.passed.mark)
			w.passed.on = false
		}
		w.forget(now, flightLife*stall)
	}
	return dropped
}

// due says in which directions a probe is to be sent now, and counts them as sent.
func (p *Pair) due(now time.Duration) (probes []Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.attached {
		return nil
	}
	stall := p.cfg.Queue.Settings().Stall
	for d := range Direction(Directions) {
		w := &p.ways[d]
		if w.probe.out && now-w.probe.sent < stall || w.passed.on || now-w.probe.sent < probePeriod {
			continue
		}
		if _, waits := w.oldest(w.judged); w.asked && !waits && !p.stalled {
			continue
		}
		w.asked = true
		if !w.probe.out || w.lastBack >= w.probe.first {
			w.probe.first = now
		}
		w.probe.number++
		w.probe.mark, w.probe.sent, w.probe.out = w.high, now, true
		p.stats.Probes++
		probes = append(probes, d)
	}
	return probes
}

// silent tells whether the engine has stopped working: a probe that used to come back
// does not, or nothing at all does.
func (p *Pair) silent(now time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	stall := p.cfg.Queue.Settings().Stall
	for d := range p.ways {
		w := &p.ways[d]
		since, waits := w.probe.first, w.probe.out
		if !w.probe.ever {
			since, waits = w.unanswered()
		}
		if waits && w.lastBack < since && now-since >= stall {
			return true
		}
	}
	return false
}

// unanswered is when the first of the frames left that nothing has come back since; ok is
// false when they are too few to tell an engine that has stopped from one that dropped them.
func (w *way) unanswered() (since time.Duration, ok bool) {
	n := w.high
	for n != w.low && w.lane.at(n-1).at > w.lastBack {
		n--
	}
	if w.high-n < silentMost {
		return 0, false
	}
	return w.lane.at(n).at, true
}

// probeFrame is probe number n of a direction: between two addresses that nobody has.
func (p *Pair) probeFrame(d Direction, b []byte) []byte {
	p.mu.Lock()
	n := p.ways[d].probe.number
	p.mu.Unlock()
	b = append(b[:0], 0x02, 'o', 'x', 'p', 'd', 1, 0x02, 'o', 'x', 'p', 'd', 0)
	b = binary.BigEndian.AppendUint16(b, probeType)
	b = binary.BigEndian.AppendUint64(b, probeMagic)
	b = binary.BigEndian.AppendUint64(b, p.nonce)
	b = binary.BigEndian.AppendUint64(b, n)
	return append(b, make([]byte, probeSize-len(b))...)
}

// probeNumber is the number of a probe of ours.
func (p *Pair) probeNumber(b []byte) (n uint64, ok bool) {
	if len(b) < probeSize || binary.BigEndian.Uint16(b[12:]) != probeType || binary.BigEndian.Uint64(b[14:]) != probeMagic ||
		binary.BigEndian.Uint64(b[22:]) != p.nonce {
		return 0, false
	}
	return binary.BigEndian.Uint64(b[30:]), true
}
