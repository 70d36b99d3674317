package flows

import (
	"context"
	"errors"
	"io"
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
	MaxFlows int           // 0: DefaultFlows
	Idle     time.Duration // without a segment; 0: DefaultIdle
}

// Stats counts.
type Stats struct {
	Flows     int    // in the table proper
	HalfOpen  int    // in the ring
	Seen      uint64 // flows that were begun
	Segments  uint64 // that belong to a flow
	Ignored   uint64 // segments of none: a reset or an ACK of something unknown, what is no whole TCP header
	Pushed    uint64 // half-open flows that made room for another
	Refused   uint64 // times that a flow was ready and the table full
	Expired   uint64 // idle, half-open too long, or closed
	MaxFlows  int
	HalfLimit int
}

// key is what flows are told apart by.
type key struct {
	conn frame.Conn
	port uint8
}

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
	slots []flow   // the ring of half-open flows, and behind it the table proper
	open  int      // how many of the slots are the ring
	next  int      // of the ring: the oldest, which makes room
	free  []uint32 // slots of the table proper
	stats Stats
	_     [64]byte // the next part's lock is in another cache line
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
		p.slots, p.open = make([]flow, open+share), open
		p.free = make([]uint32, 0, share)
		for s := len(p.slots) - 1; s >= open; s-- {
			p.free = append(p.free, uint32(s))
		}
	}
	return t
}

// Config is how large the table is.
func (t *Table) Config() Config { return t.cfg }

// Stats counts what was seen so far.
func (t *Table) Stats() Stats {
	out := Stats{MaxFlows: t.cfg.MaxFlows, HalfLimit: parts * t.part[0].open}
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
	h := conn.Hash(t.seed) + uint64(port)*0x9e3779b97f4a7c15
	p := &t.part[h>>60%parts]
	p.mu.Lock()
	if ok {
		s.now, s.out = now, out
		t.observe(p, h, key{conn, uint8(port)}, head, &s)
	} else {
		p.stats.Ignored++
	}
	p.mu.Unlock()
}

// observe is Observe in a part.
func (t *Table) observe(p *part, h uint64, k key, head *frame.Packet, s *segment) {
	slot, ok := p.find(h, &k)
	if ok && p.slots[slot].over(s) {
		p.remove(t, slot)
		ok = false
	}
	if !ok {
		if s.flags&(frame.TCPRST) != 0 || s.flags&(frame.TCPSYN|frame.TCPACK) == 0 {
			p.stats.Ignored++
			return
		}
		slot = p.begin(t, h, &k)
		p.slots[slot].begin(head, s, t.gen.Load())
	}
	f := &p.slots[slot]
	p.stats.Segments++
	f.segment(s)
	if slot < p.open && f.proven() {
		p.promote(t, slot)
	}
}

// find looks a flow up.
func (p *part) find(h uint64, k *key) (slot int, ok bool) {
	for i := h & p.mask; p.index[i] != 0; i = (i + 1) & p.mask {
		s := int(p.index[i] - 1)
		if f := &p.slots[s]; f.hash == h && f.key == *k {
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
		home := p.slots[p.index[j]-1].hash & p.mask
		if (j-home)&p.mask >= (j-i)&p.mask { // what is at j may stand at i
			p.index[i] = p.index[j]
			i = j
		}
	}
	p.index[i] = 0
}

// begin takes the slot of the oldest half-open flow for another.
func (p *part) begin(t *Table, h uint64, k *key) int {
	slot := p.next
	p.next = (p.next + 1) % p.open
	if p.slots[slot].live {
		p.stats.Pushed++
		p.remove(t, slot)
	}
	f := &p.slots[slot]
	f.live, f.hash, f.key = true, h, *k
	p.put(h, slot)
	p.stats.HalfOpen++
	p.stats.Seen++
	return slot
}

// remove forgets a flow.
func (p *part) remove(t *Table, slot int) {
	f := &p.slots[slot]
	p.take(f.hash, slot)
	f.live = false
	if slot < p.open {
		p.stats.HalfOpen--
		return
	}
	p.stats.Flows--
	t.flows.Add(-1)
	p.free = append(p.free, uint32(slot)) // it has room for all of them
}

// promote moves a flow from the ring into the table proper, when there is room.
func (p *part) promote(t *Table, slot int) {
	if len(p.free) == 0 || t.flows.Load() >= int64(t.cfg.MaxFlows) {
		p.stats.Refused++
		return
	}
	to := int(p.free[len(p.free)-1])
	p.free = p.free[:len(p.free)-1]
	f := &p.slots[slot]
	p.slots[to] = *f
	p.slots[to].moved = t.gen.Load()
	p.take(f.hash, slot)
	f.live = false
	p.put(p.slots[to].hash, to)
	p.stats.HalfOpen--
	p.stats.Flows++
	t.flows.Add(1)
}

// Sweep forgets what is idle or closed. Call it every second or so.
func (t *Table) Sweep(now int64) {
	for i := range t.part {
		p := &t.part[i]
		for from := 0; from < len(p.slots); from += lockRun {
			p.mu.Lock()
			for slot := from; slot < min(from+lockRun, len(p.slots)); slot++ {
				f := &p.slots[slot]
				if !f.live {
					continue
				}
				limit := t.cfg.Idle
				switch {
				case slot < p.open:
					limit = openIdle
				case f.closed():
					limit = closedIdle
				}
				if now-f.last > int64(limit) {
					p.remove(t, slot)
					p.stats.Expired++
				}
			}
			p.mu.Unlock()
		}
	}
}

// Open implements tcpstats.Source.
func (t *Table) Open(_ context.Context, q *tcpstats.Query) (tcpstats.Cursor, error) {
	return &cursor{
		t: t, matcher: q.Filter.Matcher(), fields: q.Filter.Fields, format: q.Filter.Format, via: q.Filter.Via,
		gen: t.gen.Add(1),
	}, nil
}

// cursor is one read: it goes through the parts, in each through the ring first.
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
		end := min(c.slot+lockRun, len(p.slots))
		for ; c.slot < end; c.slot++ {
			f := &p.slots[c.slot]
			// One that was moved since the read began was seen in the ring, or is newer.
			if !f.live || f.born >= c.gen || f.moved >= c.gen {
				continue
			}
			c.walked.Visited++
			why := c.matcher.Ask(&f.ends)
			if why == tcpstats.Match && c.via != 0 && c.via != tcpstats.ViaAny && c.via != f.key.port+1 {
				why = tcpstats.SkipVia
			}
			if tracing {
				c.trace(ctx, why)
			}
			if why != tcpstats.Match {
				c.walked.Skipped[why]++
				continue
			}
			b = f.record.Append(b, c.fields, c.format)
			c.walked.Appended++
		}
		p.mu.Unlock()
		if c.slot == len(p.slots) {
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
