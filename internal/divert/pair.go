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
	// The engine is looked at every so often, and more often when stall-ms is short.
	lookTime    = 100 * time.Millisecond
	lookTimeMin = 10 * time.Millisecond
	// silentMost is how many frames in a row an engine without probes may have dropped
	// before it is taken for one that has stopped. They have to leave within stall-ms of
	// each other: what is asked of it now and then says nothing.
	silentMost = 8
	lateLife   = 10 // stall times that a frame is remembered which did not come back

	probePeriod = 10 * time.Millisecond
	// probeGrace is how long after a probe a frame may come back that left before it: an
	// engine of several threads does not keep their order.
	probeGrace = 50 * time.Millisecond
	// probesMost is how many probes may be under way: a new one is sent when a frame came
	// back that left after the last.
	probesMost = 16
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

// probe is the one that was sent last in a lane, and the marks of it and those before.
type probe struct {
	number uint64             // of it, counted from 1
	marks  [probesMost]uint64 // by number: flights below left before it
	sent   time.Duration
	first  time.Duration // when the first was sent of those that nothing has come back since
	out    bool          // it may come back
	ever   bool          // one came back
}

// passed is the flights that a probe overtook.
type passed struct {
	mark uint64
	at   time.Duration
}

// way is a lane and what is known about its engine.
type way struct {
	*lane
	probe    probe
	passed   []passed // oldest first
	asked    bool     // a probe was sent since the engine came
	lastBack time.Duration
}

// unanswered is the frames that left since anything came back.
type unanswered struct {
	frames      int
	first, last time.Duration // when they left
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
	silence  unanswered      // of both
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

// left notes frames that are about to be written, pairBatch at most.
func (p *Pair) left(tickets []Ticket) {
	now := p.cfg.Clock.Now()
	stall := p.cfg.Queue.Settings().Stall
	var looks [pairBatch]look
	for i := range tickets {
		looks[i] = p.ways[tickets[i].Dir].look(tickets[i].Frame)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range tickets {
		t := &tickets[i]
		p.ways[t.Dir].left(t.ID, len(t.Frame), looks[i], now)
	}
	if p.silence.frames == 0 || now-p.silence.last >= stall {
		p.silence = unanswered{first: now}
	}
	p.silence.frames += len(tickets)
	p.silence.last = now
}

// back finds out what came back of a direction, and adds the verdict about it, if it is a
// frame that left. It is true for one of the engine's own, which is to go on.
func (p *Pair) back(d Direction, b []byte, verdicts *[]Verdict) (injected bool) {
	now := p.cfg.Clock.Now()
	w := &p.ways[d]
	whole := w.whole(b)
	p.mu.Lock()
	defer p.mu.Unlock()
	w.lastBack = now
	p.silence.frames = 0
	if n, ok := p.probeNumber(d, b); ok {
		p.probeBack(w, n, now)
		return false
	}
	what, id, number := w.back(b, whole)
	if number >= w.probe.mark() {
		w.probe.out = false // it is lost, or in another of the engine's threads
	}
	switch what {
	case backSame:
		*verdicts = append(*verdicts, Verdict{ID: id, Code: CodeAccept})
	case backReplaced:
		*verdicts = append(*verdicts, Verdict{ID: id, Code: CodeReplace, Frame: b})
	case backShort:
		*verdicts = append(*verdicts, Verdict{ID: id, Code: CodeShortened})
	case backCut:
		p.stats.Cut++
	case backInjected:
		if likeProbe(b) {
			return false // sent back where it came from, or by a pair of before: for nobody else
		}
		p.stats.Injected++
		return true
	}
	return false
}

// probeBack notes that what left before a probe has been dealt with.
func (p *Pair) probeBack(w *way, number uint64, now time.Duration) {
	p.stats.ProbesBack++
	w.probe.ever = true
	if number > w.probe.number || number+probesMost <= w.probe.number {
		return
	}
	if number == w.probe.number {
		w.probe.out = false
	}
	if mark := w.probe.marks[number%probesMost]; mark > w.mark() {
		w.passed = append(w.passed, passed{mark: mark, at: now})
	}
}

// judge decides about the frames that a probe has overtaken for long enough. Frames that
// the queue has decided about by itself are late from now on.
func (p *Pair) judge(now time.Duration) (dropped []Verdict) {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := p.cfg.Queue
	stall := q.Settings().Stall
	for d := range p.ways {
		w := &p.ways[d]
		mark := w.overtaken(now, min(probeGrace, stall))
		for f := w.oldest(); f != nil; f = w.oldest() {
			if f.number < mark {
				dropped = append(dropped, Verdict{ID: f.id, Code: CodeDrop})
			} else if q.holds(f.id) {
				break
			}
			w.decided()
		}
		w.forget(now - lateLife*stall)
	}
	return dropped
}

// mark is the number below which a probe has overtaken all flights, be it just now.
func (w *way) mark() uint64 {
	if len(w.passed) == 0 {
		return 0
	}
	return w.passed[len(w.passed)-1].mark
}

// mark is that of the last probe.
func (p *probe) mark() uint64 { return p.marks[p.number%probesMost] }

// overtaken is the number below which a probe has overtaken all flights for a time.
func (w *way) overtaken(now, grace time.Duration) (mark uint64) {
	n := 0
	for ; n < len(w.passed) && now-w.passed[n].at >= grace; n++ {
		mark = w.passed[n].mark
	}
	w.passed = append(w.passed[:0], w.passed[n:]...)
	return mark
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
		if w.probe.out && now-w.probe.sent < stall || now-w.probe.sent < probePeriod {
			continue
		}
		if w.asked && !p.stalled && !w.waits() {
			continue
		}
		w.asked = true
		if !w.probe.out || w.lastBack >= w.probe.first {
			w.probe.first = now
		}
		w.probe.number++
		w.probe.marks[w.probe.number%probesMost], w.probe.sent, w.probe.out = w.number, now, true
		p.stats.Probes++
		probes = append(probes, d)
	}
	return probes
}

// waits tells whether there are flights that no probe has overtaken yet.
func (w *way) waits() bool {
	f := w.oldest()
	return f != nil && w.flights[w.out.last].number >= w.mark()
}

// silent tells whether the engine has stopped working: a probe that used to come back
// does not, or nothing at all does.
func (p *Pair) silent(now time.Duration) bool {
	stall := p.cfg.Queue.Settings().Stall
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.attached {
		return false
	}
	forwards := false
	for d := range p.ways {
		w := &p.ways[d]
		forwards = forwards || w.probe.ever
		if w.probe.ever && w.probe.out && w.lastBack < w.probe.first && now-w.probe.first >= stall {
			return true
		}
	}
	return !forwards && p.silence.frames >= silentMost && now-p.silence.first >= stall
}

// present says whether an engine is there.
func (p *Pair) present(there bool) {
	p.mu.Lock()
	was := p.attached
	p.attached = there
	if there != was {
		p.stalled = false // as the queue takes it
		p.silence = unanswered{}
		for d := range p.ways { // what is known is known of the one before
			w := &p.ways[d]
			w.probe = probe{number: w.probe.number}
			w.passed, w.asked = w.passed[:0], false
		}
	}
	p.mu.Unlock()
	switch {
	case there && !was:
		p.cfg.Queue.Attach()
		p.log.Info("engine is attached")
	case was && !there:
		p.cfg.Queue.Detach()
		p.log.Warn("engine has gone")
	}
}

func (p *Pair) stall() {
	if p.setStalled(true) {
		p.log.Warn("engine does not give frames back", "stall_ms", p.cfg.Queue.Settings().Stall.Milliseconds())
	}
}

// wake ends a stall: something came back.
func (p *Pair) wake() {
	if p.setStalled(false) {
		p.log.Info("engine works again")
	}
}

// setStalled says whether the engine has stopped working, and tells whether that is new.
// Pair and queue are of one mind about it.
func (p *Pair) setStalled(stalled bool) (news bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stalled == stalled {
		return false
	}
	p.stalled = stalled
	p.cfg.Queue.SetStalled(stalled)
	return true
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
	b = append(b, byte(d))
	return append(b, make([]byte, probeSize-len(b))...)
}

// Where a probe has what.
const (
	probeMagicAt  = 14
	probeNonceAt  = 22
	probeNumberAt = 30
	probeDirAt    = 38
)

// probeNumber is the number of a probe of this pair that came back in its direction.
func (p *Pair) probeNumber(d Direction, b []byte) (n uint64, ok bool) {
	if !likeProbe(b) || binary.BigEndian.Uint64(b[probeNonceAt:]) != p.nonce || b[probeDirAt] != byte(d) {
		return 0, false
	}
	return binary.BigEndian.Uint64(b[probeNumberAt:]), true
}

// likeProbe tells whether a frame is some pair's probe.
func likeProbe(b []byte) bool {
	return len(b) >= probeSize && binary.BigEndian.Uint16(b[probeMagicAt-typeBytes:]) == probeType && binary.BigEndian.Uint64(b[probeMagicAt:]) == probeMagic
}
