package flows

import (
	"context"
	"errors"
	"io"
	"math/bits"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"oxpd/internal/frame"
	"oxpd/internal/tcpstats"
)

const (
	parts   = 16 // of the table, each with a lock
	lockRun = 32 // flows that a reader or a sweep looks at under one lock
	wordRun = 64 // and words of free slots

	roomRun = 8 // slots that are looked at for a flow that has ended, when the table is full

	// Room of a part above its share, for hashes are not even: nine deviations at the
	// smallest table.
	spareShare = 4 // a quarter
	spareFlows = 64

	openShare = 8 // half-open flows are an eighth, and openLeast at least
	openLeast = 16
)

// Bounds of Config.MaxFlows.
const (
	LeastFlows   = 1024
	MostFlows    = 1 << 20
	DefaultFlows = 16384
)

// Times after which a flow is forgotten.
const (
	DefaultIdle = 300 * time.Second
	closedIdle  = 10 * time.Second // a reset, or both ends closed
	openIdle    = 30 * time.Second // half-open
)

// Config is how large a table is.
type Config struct {
	MaxFlows int           // 0: DefaultFlows; 1.5 KB of memory each, more below 4,096
	Idle     time.Duration // without a segment; 0: DefaultIdle
}

// Stats counts.
type Stats struct {
	Flows     int    // in the table proper
	HalfOpen  int    // in the ring
	Seen      uint64 // flows that were begun
	Segments  uint64 // that belong to a flow
	Ignored   uint64 // segments of none: a reset of something unknown, what is no whole TCP header
	Strays    uint64 // segments between the ends of a flow that cannot be of it, by their numbers
	Pushed    uint64 // half-open flows that made room for another
	Refused   uint64 // flows that were ready while the table was full, and stayed in the ring for then
	Expired   uint64 // idle, half-open too long, or closed
	MaxFlows  int
	HalfLimit int
}

// key is what flows are told apart by. A connection whose both ends are at the wire of one
// port is two flows there: each end is the remote one of what it sends in.
type key struct {
	conn   frame.Conn
	port   uint8
	remote uint8 // 1: the larger end is the remote one
}

// keyOf is the key of a frame, and its hash.
func (t *Table) keyOf(conn *frame.Conn, port int, out bool, head *frame.Packet) (k key, hash uint64) {
	srcHi, srcLo := head.SrcWords()
	dstHi, dstLo := head.DstWords()
	larger := head.SrcPort > head.DstPort
	if srcHi != dstHi {
		larger = srcHi > dstHi
	} else if srcLo != dstLo {
		larger = srcLo > dstLo
	}
	k = key{conn: *conn, port: uint8(port)}
	if larger != out {
		k.remote = 1
	}
	// For some seeds the uppermost bits of a connection's hash hardly change with a port.
	// Mixed once more (splitmix64) they do.
	h := conn.Hash(t.seed) + uint64(int(k.port)<<1|int(k.remote))*0x9e3779b97f4a7c15
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return k, h ^ h>>31
}

// partOf is the part of the table that a hash falls in.
func partOf(hash uint64) int { return int(hash >> 60 % parts) }

// Table is the flows of all ports. Safe for concurrent use. Its memory is taken by New.
type Table struct {
	cfg   Config
	seed  uint64
	flows atomic.Int64 // in the table proper, all parts
	gen   atomic.Uint64
	part  [parts]part
}

// part is a part of the table, under its lock.
type part struct {
	mu    sync.Mutex
	index []uint32 // by hash, linear probing: number of a slot and 1, 0 free
	mask  uint64
	used  []uint64 // a bit for each slot with a flow
	slots int
	ring  []uint32 // slots of the half-open flows
	next  int      // of the ring: the oldest, which makes room
	free  []uint32 // slots that are not in the ring and have no flow
	hand  int      // where the search for a flow that has ended goes on
	stats Stats

	// Of each slot. A flow stays where it was begun.
	heads   []head
	ends    []tcpstats.Ends
	states  []state
	records []tcpstats.Record

	_ [64]byte // the next part's lock is in another cache line
}

// New makes a table.
func New(cfg Config) *Table {
	if cfg.MaxFlows == 0 {
		cfg.MaxFlows = DefaultFlows
	}
	if cfg.Idle == 0 {
		cfg.Idle = DefaultIdle
	}
	t := &Table{cfg: cfg, seed: rand.Uint64()}
	share := (cfg.MaxFlows + parts - 1) / parts
	share += share/spareShare + spareFlows
	open := max(cfg.MaxFlows/openShare/parts, openLeast)
	buckets := 1
	for buckets < 2*(share+open) {
		buckets *= 2
	}
	for i := range t.part {
		p := &t.part[i]
		p.index, p.mask = make([]uint32, buckets), uint64(buckets-1)
		p.slots, p.used = open+share, make([]uint64, (open+share+63)/64)
		p.heads, p.ends = make([]head, p.slots), make([]tcpstats.Ends, p.slots)
		p.states, p.records = make([]state, p.slots), make([]tcpstats.Record, p.slots)
		p.ring, p.free = make([]uint32, open), make([]uint32, share)
		for slot := range p.ring {
			p.ring[slot] = uint32(slot)
		}
		for i := range p.free {
			p.free[i] = uint32(p.slots - 1 - i)
		}
	}
	return t
}

// Config is how large the table is.
func (t *Table) Config() Config { return t.cfg }

// Stats counts what was seen so far.
func (t *Table) Stats() Stats {
	out := Stats{MaxFlows: t.cfg.MaxFlows, HalfLimit: parts * len(t.part[0].ring)}
	for i := range t.part {
		p := &t.part[i]
		p.mu.Lock()
		s := p.stats
		p.mu.Unlock()
		out.Flows += s.Flows
		out.HalfOpen += s.HalfOpen
		out.Seen += s.Seen
		out.Segments += s.Segments
		out.Ignored += s.Ignored
		out.Strays += s.Strays
		out.Pushed += s.Pushed
		out.Refused += s.Refused
		out.Expired += s.Expired
	}
	return out
}

// Observe looks at a frame of a port. now is nanoseconds since 1970, out tells that the
// frame goes to the wire. head is its headers; when its Have is 0 nobody has read them and
// Observe does. first is the frame's beginning and frameBytes its whole length. It keeps
// none of them and allocates nothing.
func (t *Table) Observe(now int64, port int, out bool, head *frame.Packet, first []byte, frameBytes int) {
	if head.Have == 0 {
		head.Parse(first, frameBytes)
	}
	if head.Have&(frame.HaveTCP|frame.HaveFrag) != frame.HaveTCP {
		return
	}
	conn, ok := head.Conn()
	if !ok {
		return
	}
	var s segment
	ok = s.read(head, first, frameBytes)
	k, h := t.keyOf(&conn, port, out, head)
	p := &t.part[partOf(h)]
	p.mu.Lock()
	if ok {
		s.now, s.out = now, out
		t.observe(p, h, &k, head, &s)
	} else {
		p.stats.Ignored++
	}
	p.mu.Unlock()
}

// observe is Observe in a part.
func (t *Table) observe(p *part, h uint64, k *key, head *frame.Packet, s *segment) {
	slot, ok := p.find(h, k)
	var syn segment // that began another flow between the same ends
	if ok {
		//exhaustive:enforce
		switch f := p.at(slot); f.judge(s) {
		case fits:
		case strays:
			p.stats.Strays++
			return
		case beginsAnew:
			p.remove(t, slot)
			ok = false
		case answersKnock:
			syn = f.knock
			p.remove(t, slot)
			ok = false
		}
	}
	if !ok {
		if s.flags&frame.TCPRST != 0 || s.flags&(frame.TCPSYN|frame.TCPACK) == 0 {
			p.stats.Ignored++
			return
		}
		slot = p.begin(t, h, k)
		f := p.at(slot)
		f.begin(head, s, t.gen.Load())
		if syn.flags != 0 {
			f.last = syn.now
			f.record.Put64(tcpstats.FieldFirstSeen, uint64(syn.now))
			f.segment(&syn)
			p.stats.Segments++
		}
	}
	f := p.at(slot)
	p.stats.Segments++
	f.segment(s)
	if f.place >= 0 && f.established {
		p.promote(t, slot)
	}
}

// at is the flow in a slot.
func (p *part) at(slot int) flow {
	return flow{&p.states[slot], &p.heads[slot], &p.ends[slot], &p.records[slot]}
}

// has tells whether a slot has a flow.
func (p *part) has(slot int) bool { return p.used[slot/64]>>(slot%64)&1 != 0 }

// find looks a flow up.
func (p *part) find(h uint64, k *key) (slot int, ok bool) {
	for i := h & p.mask; p.index[i] != 0; i = (i + 1) & p.mask {
		s := int(p.index[i] - 1)
		if f := &p.states[s]; f.hash == h && f.key == *k {
			return s, true
		}
	}
	return 0, false
}

// put writes a slot into the index.
func (p *part) put(h uint64, slot int) {
	i := h & p.mask
	for p.index[i] != 0 {
		i = (i + 1) & p.mask
	}
	p.index[i] = uint32(slot + 1)
}

// take takes a slot out of the index and closes the gap.
func (p *part) take(h uint64, slot int) {
	i := h & p.mask
	for p.index[i] != uint32(slot+1) {
		i = (i + 1) & p.mask
	}
	for j := (i + 1) & p.mask; p.index[j] != 0; j = (j + 1) & p.mask {
		home := p.states[p.index[j]-1].hash & p.mask
		if (j-home)&p.mask >= (j-i)&p.mask { // what is at j may stand at i
			p.index[i] = p.index[j]
			i = j
		}
	}
	p.index[i] = 0
}

// begin takes the slot of the oldest half-open flow for another.
func (p *part) begin(t *Table, h uint64, k *key) int {
	place, slot := p.next, int(p.ring[p.next])
	p.next = (p.next + 1) % len(p.ring)
	f := p.at(slot)
	if p.has(slot) {
		p.stats.Pushed++
		p.remove(t, slot)
	}
	f.hash, f.key, f.place = h, *k, int32(place)
	p.used[slot/64] |= 1 << (slot % 64)
	p.put(h, slot)
	p.stats.HalfOpen++
	p.stats.Seen++
	return slot
}

// remove forgets a flow.
func (p *part) remove(t *Table, slot int) {
	f := p.at(slot)
	p.take(f.hash, slot)
	p.used[slot/64] &^= 1 << (slot % 64)
	if f.place >= 0 { // its slot stays in the ring
		p.stats.HalfOpen--
		return
	}
	p.stats.Flows--
	t.flows.Add(-1)
	p.free = append(p.free, uint32(slot)) // it has room for all of them
}

// promote takes a flow out of the ring when there is room elsewhere. It stays in its slot,
// so that a reader comes by it once; the ring gets a free one.
func (p *part) promote(t *Table, slot int) {
	f := p.at(slot)
	if !p.room(t) {
		if !f.refused {
			f.refused = true
			p.stats.Refused++
		}
		return
	}
	p.ring[f.place] = p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	f.place = -1
	p.stats.HalfOpen--
	p.stats.Flows++
}

// room takes room for one flow in the table proper. When that is full, one that has ended
// makes room.
func (p *part) room(t *Table) bool {
	for range roomRun {
		if len(p.free) > 0 {
			if t.flows.Add(1) <= int64(t.cfg.MaxFlows) {
				return true
			}
			t.flows.Add(-1)
		}
		p.hand = (p.hand + 1) % p.slots
		if f := p.at(p.hand); p.has(p.hand) && f.place < 0 && f.closed() {
			p.remove(t, p.hand)
			p.stats.Expired++
		}
	}
	return false
}

// nextUsed is the next slot with a flow, from one on, and whether there is one. It looks
// at wordRun words at most; slot is where to go on.
func (p *part) nextUsed(from int, words *int) (slot int, ok bool) {
	for ; from < p.slots && *words > 0; *words-- {
		if w := p.used[from/64] >> (from % 64); w != 0 {
			return from + bits.TrailingZeros64(w), true
		}
		from = from&^63 + 64
	}
	return min(from, p.slots), false
}

// Sweep forgets what is idle or has ended. Call it every second or so.
func (t *Table) Sweep(now int64) {
	for i := range t.part {
		p := &t.part[i]
		for from := 0; from < p.slots; {
			p.mu.Lock()
			words := wordRun
			for range lockRun {
				slot, ok := p.nextUsed(from, &words)
				from = slot
				if !ok {
					break
				}
				from++
				if f := p.at(slot); now-f.last > int64(t.patience(f)) {
					p.remove(t, slot)
					p.stats.Expired++
				}
			}
			p.mu.Unlock()
		}
	}
}

// patience is how long a flow may be without a segment.
func (t *Table) patience(f flow) time.Duration {
	switch {
	case f.closed():
		return min(closedIdle, t.cfg.Idle)
	case !f.established:
		return min(openIdle, t.cfg.Idle)
	}
	return t.cfg.Idle
}

// Open implements tcpstats.Source.
func (t *Table) Open(_ context.Context, q *tcpstats.Query) (tcpstats.Cursor, error) {
	return &cursor{
		t: t, matcher: q.Filter.Matcher(), fields: q.Filter.Fields, format: q.Filter.Format, via: q.Filter.Via,
		gen: t.gen.Add(1),
	}, nil
}

// cursor is one read: it goes through the parts, slot by slot. What was there when it began
// and still is when it comes by is in it, once.
type cursor struct {
	t       *Table
	matcher tcpstats.Matcher
	fields  tcpstats.Groups
	format  tcpstats.Format
	via     uint8
	gen     uint64 // flows that are newer are left out

	part, slot int
	walked     tcpstats.Walked
	closed     bool
}

var errClosed = errors.New("flows: the cursor is closed")

// Next implements tcpstats.Cursor.
func (c *cursor) Next(ctx context.Context, b []byte) (out []byte, records int, err error) {
	if c.closed {
		return b, 0, errClosed
	}
	visited, appended := c.walked.Visited, c.walked.Appended
	tracing := tcpstats.Tracing()
	for c.part < parts {
		p := &c.t.part[c.part]
		if c.walked.Visited-visited+lockRun > tcpstats.Stretch {
			break
		}
		p.mu.Lock()
		words := wordRun
		for range lockRun {
			slot, ok := p.nextUsed(c.slot, &words)
			c.slot = slot
			if !ok {
				break
			}
			c.slot++
			head := &p.heads[slot]
			if head.born >= c.gen {
				continue
			}
			c.walked.Visited++
			why := c.matcher.Ask(&p.ends[slot])
			if why == tcpstats.Match && c.via != 0 && c.via != tcpstats.ViaAny && c.via != head.port+1 {
				why = tcpstats.SkipVia
			}
			if tracing {
				c.trace(ctx, why)
			}
			if why != tcpstats.Match {
				c.walked.Skipped[why]++
				continue
			}
			b = p.records[slot].Append(b, c.fields, c.format)
			c.walked.Appended++
		}
		p.mu.Unlock()
		if c.slot == p.slots {
			c.part, c.slot = c.part+1, 0
		}
	}
	if c.part == parts && c.walked.Visited == visited {
		return b, 0, io.EOF
	}
	return b, int(c.walked.Appended - appended), nil
}

func (c *cursor) trace(ctx context.Context, why tcpstats.Skip) {
	if why != tcpstats.Match {
		tcpstats.Probe(ctx, tcpstats.PointSkip)
		return
	}
	tcpstats.Probe(ctx, tcpstats.PointMatch)
	tcpstats.Probe(ctx, tcpstats.PointFill)
}

// Close implements tcpstats.Cursor.
func (c *cursor) Close() error {
	c.closed = true
	return nil
}

// Walked implements tcpstats.Cursor.
func (c *cursor) Walked() tcpstats.Walked { return c.walked }
