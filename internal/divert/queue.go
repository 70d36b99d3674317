package divert

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"time"

	"oxpd/divert/proto"
	"oxpd/internal/board"
	"oxpd/internal/frame"
)

const (
	slotBits = 20 // of an id, below its number
	slotMask = 1<<slotBits - 1
	chunk    = 1024 // entries made at once
	noEntry  = -1

	releaseBatch = 64 // frames that the Outlet gets at once

	// expirySteps is how often in a stall's time the queue is looked at.
	expirySteps = 10
	minExpiry   = time.Millisecond
	restExpiry  = 100 * time.Millisecond
)

// Clock is the time that frames wait in.
type Clock interface {
	Now() time.Duration
	Sleep(ctx context.Context, d time.Duration) error
}

// Offered is a frame that wants a decision. The memory is the caller's.
type Offered struct {
	Port   int // index of its board.Port
	Dir    Direction
	Pieces [][]byte // the frame in order; the first has its headers
	Bytes  int      // sum of the pieces
	Head   *frame.Packet
}

// Fate is what Offer did with a frame.
type Fate uint8

// Fates.
const (
	Passed Fate = iota // the caller goes on with the frame
	Taken              // it was copied, and comes out of the Outlet or does not
	Lost               // it was dropped here, and counted
)

// Released is a frame that goes on.
type Released struct {
	Port  int
	Dir   Direction
	Frame []byte
	L3    int // length of its Ethernet header with tags, 0 when nobody knows
}

// Outlet is where frames go on. Release gets them in order and one batch at a time; their
// memory is the queue's again when it returns.
type Outlet interface {
	Release(frames []Released)
}

// Code is what is decided about a frame.
type Code uint8

// Codes: what engines say, and what is found out about a frame that came back from a
// tap-pair.
const (
	CodeAccept     = Code(proto.Accept)     // it goes on
	CodeDrop       = Code(proto.Drop)       // it does not
	CodeReplace    = Code(proto.Replace)    // Verdict.Frame goes on in its place
	CodeAcceptFlow = Code(proto.AcceptFlow) // it goes on, and so do the later ones of its connection
	CodeShortened  = CodeAcceptFlow + 1     // it came back cut, and is dropped
)

// Verdict is a decision about one frame.
type Verdict struct {
	ID    uint64
	Code  Code
	Frame []byte // with CodeReplace; the caller's
}

// Ticket is a frame that is handed to an engine. Frame stays as it is until Sent.
type Ticket struct {
	ID    uint64
	Port  int
	Dir   Direction
	At    time.Duration // when it was offered, by the queue's clock
	Frame []byte
}

// QueueConfig is what a queue needs. Outlet, Limit and Clock are required.
type QueueConfig struct {
	Name     string // in messages
	Settings Settings
	Outlet   Outlet
	Limit    func(port int) int // MTU that frames of a port are measured against
	Clock    Clock
	Log      *slog.Logger // nil discards
	// Pair is a queue whose engine gives no verdicts: what does not come back in time
	// counts as dropped, and whether it is stalled is said by SetStalled alone.
	Pair bool
}

// entry is a frame without a verdict. Entries are in a list in order of their ids, and
// those that have not been handed out are at its end.
type entry struct {
	id         uint64 // 0: none
	buf        []byte
	at         time.Duration // when it was offered
	due        time.Duration // what its stall is counted from
	prev, next int32
	bucket     uint32
	refs       uint8 // its memory is in use: by the queue, by who took it
	port       uint8
	dir        Direction
	l3         uint8
	handed     bool
}

// Queue is frames that wait for their verdicts. Safe for concurrent use.
type Queue struct {
	cfg  QueueConfig
	log  *slog.Logger
	wake chan struct{}

	out sync.Mutex // held while frames leave, so that they do in order; before mu

	mu      sync.Mutex
	set     Settings
	chunks  [][]entry
	spare   []int32 // entries that are free
	mem     arena
	first   int32 // of the list
	last    int32
	unsent  int32 // the first that was not handed out
	n       int
	bytes   int64
	number  uint64 // of the id given last
	buckets [1 << bucketBits]uint32
	flows   flows

	attached    bool
	stalled     bool
	trialAt     time.Duration // with stalled: when a frame is tried again
	lastVerdict time.Duration
	lastLate    uint64

	counts  [board.Ports][Directions]Counts
	events  Events
	maxN    int
	maxB    int64
	delays  delays
	swept   time.Duration
	losses  losses
	leaving []Released
	slots   []int32 // entries of leaving
}

// Events counts what engines do that is no verdict about a queued frame.
type Events struct {
	Handed   uint64 // frames given to an engine
	Late     uint64 // verdicts about frames that something was decided of before
	Unknown  uint64 // verdicts about ids that were never given
	Stalls   uint64 // times that the engine stopped answering
	Attached uint64 // engines that came
	Flows    uint64 // connections that were accepted whole
	NoFlow   uint64 // that were to be, and found the table full
}

// NewQueue makes a queue without an engine.
func NewQueue(cfg QueueConfig) *Queue {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	q := &Queue{
		cfg: cfg, log: cfg.Log.With("queue", cfg.Name), wake: make(chan struct{}, 1), first: noEntry, last: noEntry, unsent: noEntry,
		leaving: make([]Released, 0, releaseBatch), slots: make([]int32, 0, releaseBatch),
	}
	q.apply(cfg.Settings)
	return q
}

// Set changes the settings. What is queued stays, also above a new bound.
func (q *Queue) Set(s Settings) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.apply(s)
}

func (q *Queue) apply(s Settings) {
	q.set = s
	q.mem.slack = 2*s.QueueBytes + 1<<20
}

// Settings are those in force.
func (q *Queue) Settings() Settings {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.set
}

// Wake has something when there are frames to take that were not there before.
func (q *Queue) Wake() <-chan struct{} { return q.wake }

func (q *Queue) at(i int32) *entry { return &q.chunks[i/chunk][i%chunk] }

// Offer takes a frame in, or applies the policy. now is the time at the queue's clock, so
// that a caller with many frames reads it once.
func (q *Queue) Offer(now time.Duration, f *Offered) Fate {
	return q.offer(now, f, hostHash(f.Head, f.Pieces[0]))
}

func (q *Queue) offer(now time.Duration, f *Offered, hosts uint64) Fate {
	bucket := flowBucket(hosts, f.Head)
	q.mu.Lock()
	defer q.mu.Unlock()
	c := &q.counts[f.Port][f.Dir]
	c.Seen++
	if q.flows.passes(f.Port, f.Head, now) && (q.set.Order == Any || q.buckets[bucket] == 0) {
		if q.buckets[bucket] > 0 {
			c.Reordered++
		}
		c.FlowPassed++
		return Passed
	}
	cost := int64(f.Bytes) + EntryOverhead
	switch {
	case !q.attached:
		return q.policy(c, absent, bucket)
	case q.stalled && now < q.trialAt:
		return q.policy(c, stall, bucket)
	case q.n >= q.set.QueueLen:
		return q.policy(c, fullFrames, bucket)
	case q.bytes+cost > q.set.QueueBytes:
		return q.policy(c, fullBytes, bucket)
	}
	if q.stalled {
		q.trialAt = now + q.set.Stall
	}
	q.push(now, f, bucket)
	c.Queued++
	return Taken
}

// push puts a frame at the end of the list.
func (q *Queue) push(now time.Duration, f *Offered, bucket uint32) {
	if len(q.spare) == 0 {
		q.grow()
	}
	i := q.spare[len(q.spare)-1]
	q.spare = q.spare[:len(q.spare)-1]
	e := q.at(i)
	q.number++
	*e = entry{
		id: q.number<<slotBits | uint64(i), buf: q.mem.get(f.Bytes), at: now, due: now, prev: q.last, next: noEntry,
		bucket: bucket, refs: 1, port: uint8(f.Port), dir: f.Dir,
	}
	if f.Head.Have&frame.HaveL2 != 0 {
		e.l3 = uint8(f.Head.L3)
	}
	n := 0
	for _, p := range f.Pieces {
		n += copy(e.buf[n:], p)
	}
	if q.last == noEntry {
		q.first = i
	} else {
		q.at(q.last).next = i
	}
	q.last = i
	if q.unsent == noEntry {
		q.unsent = i
		q.signal()
	}
	q.n++
	q.bytes += int64(f.Bytes) + EntryOverhead
	q.maxN, q.maxB = max(q.maxN, q.n), max(q.maxB, q.bytes)
	q.buckets[bucket]++
}

func (q *Queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// grow makes entries. There are never more than MaxQueueLen in the list, and as many
// more as somebody holds the memory of.
func (q *Queue) grow() {
	base := int32(len(q.chunks) * chunk)
	q.chunks = append(q.chunks, make([]entry, chunk))
	for i := int32(chunk - 1); i >= 0; i-- {
		q.spare = append(q.spare, base+i)
	}
}

// Take hands out the frames that are next, at most as many as dst takes. Their memory
// stays as it is until Sent, whatever is decided meanwhile.
func (q *Queue) Take(dst []Ticket) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for ; n < len(dst) && q.unsent != noEntry; n++ {
		e := q.at(q.unsent)
		e.handed = true
		e.refs++
		dst[n] = Ticket{ID: e.id, Port: int(e.port), Dir: e.dir, At: e.at, Frame: e.buf}
		q.unsent = e.next
	}
	q.events.Handed += uint64(n)
	return n
}

// Sent gives the memory of tickets back. The first n went to the engine; the others, of
// those that nothing was decided about, are next again: nothing that was taken after them
// may have gone.
func (q *Queue) Sent(tickets []Ticket, n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.events.Handed -= uint64(len(tickets) - n)
	for k := len(tickets) - 1; k >= 0; k-- {
		i := int32(tickets[k].ID & slotMask)
		e := q.at(i)
		if k >= n && e.id == tickets[k].ID {
			e.handed = false
			q.unsent = i
		}
		tickets[k].Frame = nil
		q.unref(i)
	}
}

// unref gives an entry up when nobody uses its memory.
func (q *Queue) unref(i int32) {
	e := q.at(i)
	if e.refs--; e.refs == 0 {
		q.mem.put(e.buf)
		e.buf = nil
		q.spare = append(q.spare, i)
	}
}

// remove takes an entry out of the list; what is behind it has waited for it.
func (q *Queue) remove(i int32, now, until time.Duration) (e *entry, c *Counts) {
	e = q.at(i)
	c = &q.counts[e.port][e.dir]
	c.Queued--
	if q.unsent == i {
		q.unsent = e.next
	}
	if e.prev == noEntry {
		q.first = e.next
	} else {
		q.at(e.prev).next = e.next
	}
	if e.next == noEntry {
		q.last = e.prev
	} else {
		next := q.at(e.next)
		next.prev = e.prev
		next.due = max(next.due, e.due, until)
	}
	e.id = 0
	q.n--
	q.bytes -= int64(len(e.buf)) + EntryOverhead
	q.delays.add(now - e.at)
	return e, c
}

// end gives up a frame that goes nowhere.
func (q *Queue) end(i int32) {
	q.buckets[q.at(i).bucket]--
	q.unref(i)
}

// leave sends a frame on: b, which is the entry's own or one that replaces it. Called
// with both locks.
func (q *Queue) leave(i int32, b []byte, l3 int) {
	e := q.at(i)
	q.leaving = append(q.leaving, Released{Port: int(e.port), Dir: e.dir, Frame: b, L3: l3})
	q.slots = append(q.slots, i)
	if len(q.leaving) == releaseBatch {
		q.release()
	}
}

// release lets go what leaves. The frames of a flow count as queued until they are gone,
// so that none overtakes them.
func (q *Queue) release() {
	if len(q.leaving) == 0 {
		return
	}
	q.mu.Unlock()
	q.cfg.Outlet.Release(q.leaving)
	q.mu.Lock()
	for _, i := range q.slots {
		q.end(i)
	}
	clear(q.leaving)
	q.leaving, q.slots = q.leaving[:0], q.slots[:0]
}

// exit runs fn with both locks and lets go what it sends on.
func (q *Queue) exit(fn func(now time.Duration)) {
	q.out.Lock()
	defer q.out.Unlock()
	q.mu.Lock()
	defer q.mu.Unlock()
	fn(q.cfg.Clock.Now())
	q.release()
}

// Settle applies verdicts in their order and sends on what passes. The verdicts' frames
// are the caller's again when it returns.
func (q *Queue) Settle(verdicts []Verdict) {
	q.exit(func(now time.Duration) {
		for i := range verdicts {
			q.settle(&verdicts[i], now)
		}
	})
}

func (q *Queue) settle(v *Verdict, now time.Duration) {
	i := int32(v.ID & slotMask)
	if int(i) >= len(q.chunks)*chunk || v.ID == 0 || q.at(i).id != v.ID || !q.at(i).handed {
		q.late(v.ID, now)
		return
	}
	q.heard(now)
	e, c := q.remove(i, now, now)
	switch v.Code {
	case CodeAccept:
		c.Accepted++
		q.leave(i, e.buf, int(e.l3))
		return
	case CodeAcceptFlow:
		c.Accepted++
		q.acceptFlow(e, now)
		q.leave(i, e.buf, int(e.l3))
		return
	case CodeReplace:
		if fits(v.Frame, q.cfg.Limit(int(e.port))) {
			c.Replaced++
			q.leave(i, v.Frame, 0)
			return
		}
		c.Oversize++
	case CodeShortened:
		c.Shortened++
		q.losses.cut++
		q.losses.some = true
	default:
		c.Dropped++
	}
	q.end(i)
}

// fits tells whether a port with an MTU takes a frame.
func fits(b []byte, mtu int) bool {
	return len(b) >= frame.HeaderSize && (len(b) <= mtu+frame.HeaderSize || len(b) <= mtu+frame.L3Of(b))
}

func (q *Queue) acceptFlow(e *entry, now time.Duration) {
	var p frame.Packet
	p.Parse(e.buf, len(e.buf))
	before := len(q.flows.last)
	q.flows.accept(int(e.port), &p, now)
	q.events.Flows += uint64(len(q.flows.last) - before)
}

// heard notes that the engine works.
func (q *Queue) heard(now time.Duration) {
	if !q.cfg.Pair {
		q.lastVerdict, q.stalled = now, false
	}
}

// late takes a verdict about a frame that is not queued. One that is further than any
// before shows that the engine works its way to those that are.
func (q *Queue) late(id uint64, now time.Duration) {
	number := id >> slotBits
	if number == 0 || number > q.number || q.unsent != noEntry && id >= q.at(q.unsent).id {
		q.events.Unknown++
		return
	}
	q.events.Late++
	if number <= q.lastLate {
		return
	}
	q.lastLate = number
	q.heard(now)
	if q.first != noEntry {
		if e := q.at(q.first); id < e.id {
			e.due = max(e.due, now)
		}
	}
}

// holds tells whether a frame that was taken in waits for its verdict still.
func (q *Queue) holds(id uint64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.at(int32(id&slotMask)).id == id
}

// Inject sends a frame on that the engine made: of a tap-pair, which has no other way to
// say so. It is the caller's again when it returns.
func (q *Queue) Inject(port int, dir Direction, b []byte) {
	q.exit(func(time.Duration) {
		q.counts[port][dir].Injected++
		q.mu.Unlock()
		one := [1]Released{{Port: port, Dir: dir, Frame: b}}
		q.cfg.Outlet.Release(one[:])
		q.mu.Lock()
	})
}

// Attach says that an engine is there.
func (q *Queue) Attach() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.attached {
		q.attached, q.stalled = true, false
		q.events.Attached++
	}
}

// Detach says that the engine has gone: what is queued goes by the policy for that.
func (q *Queue) Detach() {
	q.exit(func(now time.Duration) {
		q.attached, q.stalled = false, false
		q.flush(absent, now)
	})
}

// SetStalled says of a tap-pair's engine whether it has stopped working.
func (q *Queue) SetStalled(stalled bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if stalled && !q.stalled {
		q.events.Stalls++
		q.trialAt = q.cfg.Clock.Now() + q.set.Stall
	}
	q.stalled = stalled
}

// flush sends everything where the policy says.
func (q *Queue) flush(why reason, now time.Duration) {
	for q.first != noEntry {
		q.give(q.first, why, now)
	}
}

// give ends one frame by a policy. The frame is the oldest: passing, it overtakes nothing.
func (q *Queue) give(i int32, why reason, now time.Duration) {
	e, c := q.remove(i, now, 0)
	p := q.set.policyOf(why)
	q.lose(why, p)
	*c.by(why, p)++
	if p == Pass {
		q.leave(i, e.buf, int(e.l3))
		return
	}
	q.end(i)
}

// policy decides about a frame that is not queued.
func (q *Queue) policy(c *Counts, why reason, bucket uint32) Fate {
	p := q.set.policyOf(why)
	if p == Pass && q.buckets[bucket] > 0 {
		if q.set.Order == Keep {
			p = Drop
		} else {
			c.Reordered++
		}
	}
	q.lose(why, p)
	*c.by(why, p)++
	if p == Pass {
		return Passed
	}
	return Lost
}

// Expire acts for an engine that does not answer, and says when to look again. It is the
// step of Run.
func (q *Queue) Expire() (wait time.Duration) {
	q.exit(func(now time.Duration) {
		for q.first != noEntry && now-q.at(q.first).due >= q.set.Stall {
			q.expire(now)
		}
		q.delays.turn(now)
		if now-q.swept >= delayWindow {
			q.swept = now
			q.flows.sweep(now)
		}
		wait = restExpiry
		if q.first != noEntry {
			wait = max(minExpiry, min(restExpiry, q.set.Stall/expirySteps))
		}
	})
	q.report()
	return wait
}

// expire ends the oldest frame, and all behind it when the engine has given no verdict
// at all since that one's clock began.
func (q *Queue) expire(now time.Duration) {
	i := q.first
	switch {
	case q.cfg.Pair:
		_, c := q.remove(i, now, 0)
		c.Dropped++
		q.end(i)
	case q.lastVerdict > q.at(i).due:
		q.give(i, stall, now)
	default:
		if !q.stalled {
			q.events.Stalls++
		}
		q.stalled = true
		q.trialAt = now + q.set.Stall
		q.flush(stall, now)
	}
}

// Run expires and reports until ctx ends, which is no error.
func (q *Queue) Run(ctx context.Context) error {
	for {
		if err := q.cfg.Clock.Sleep(ctx, q.Expire()); err != nil {
			return nil
		}
	}
}
