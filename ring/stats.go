package ring

import (
	"sync/atomic"

	"oxpd/ring/wire"
)

// oqCounters are the counters of one output queue. Whoever holds the queue's
// visit writes, anybody reads.
type oqCounters struct {
	done                                       atomic.Uint64
	untagged, dropped, droppedBytes, recycled  atomic.Uint64
	spans, spanBufs, spanMax, spanNoBuf        atomic.Uint64
	long, short, resync, skipped, ghosts       atomic.Uint64
	lapped, unseen, behind                     atomic.Uint64
	bound, declined, handed                    atomic.Uint64
	capped, returned, carry                    atomic.Uint64
	delivered                                  atomic.Uint64
	wdRuns, wdRescues, wdStalls, intr, drained atomic.Uint64
	seen, adoptDup                             atomic.Uint64
	walks                                      atomic.Uint64 // odd while packets are being taken
}

// iqCounters are the counters of the input queue.
type iqCounters struct {
	posted, finished, unknown, full, bytes, badCount, adoptLost atomic.Uint64
}

// Counters are the counters and instruments of rings. They outlive the rings: those
// of the next coprocessor boot go on from them.
type Counters struct {
	oqs [wire.OQs]queueCounters
	iq  iqCounters
}

// queueCounters are those of one output queue.
type queueCounters struct {
	oqCounters
	inst instruments
	_    [64]byte // from the next queue's, which another worker may serve
}

// NewCounters returns counters that are 0.
func NewCounters() *Counters {
	c := new(Counters)
	for q := range c.oqs {
		c.oqs[q].inst = newInstruments()
	}
	return c
}

// restart puts those back that say how things are, and not how often something was.
func (c *Counters) restart() {
	for q := range c.oqs {
		c.oqs[q].seen.Store(0)
		c.oqs[q].carry.Store(0)
	}
}

// OQStats are the counters of one output queue, under the names of
// datapath.md 4. Counts are packets unless the name says otherwise.
type OQStats struct {
	Ring         int    `json:"ring"`
	Done         uint64 `json:"rx_done"`
	Seen         uint64 `json:"rx_seen"`       // buffers found written at the last Census
	Delivered    uint64 `json:"rx_delivered"`  // handed to the sink
	PrefixSeq    uint64 `json:"rx_prefix_seq"` // snapshots taken for Instruments
	Untagged     uint64 `json:"rx_untagged"`
	Dropped      uint64 `json:"pfil_dropped"` // verdict Drop
	DroppedBytes uint64 `json:"pfil_dropped_bytes"`
	Recycled     uint64 `json:"pfil_recycled_bufs"` // buffers of dropped packets, owed as credit in the same pass
	Spans        uint64 `json:"rx_spans"`
	SpanBufs     uint64 `json:"rx_span_bufs"` // buffers after each span's first
	SpanMax      uint64 `json:"rx_span_max"`  // largest length word of a span, bytes
	SpanNoBuf    uint64 `json:"rx_span_nobuf"`
	Long         uint64 `json:"rx_long"`
	Short        uint64 `json:"rx_short"`
	Resync       uint64 `json:"rx_resync"`
	Skipped      uint64 `json:"rx_skipped"` // entries stepped over, shorts included
	Ghosts       uint64 `json:"rx_ghosts"`  // counted packets of which nothing was ever seen
	Lapped       uint64 `json:"oq_lapped"`
	Unseen       uint64 `json:"oq_unseen"`
	Behind       uint64 `json:"oq_behind"`
	Bound        uint64 `json:"oq_bound"`
	Declined     uint64 `json:"oq_declined"`
	Handed       uint64 `json:"oq_handed"`
	Capped       uint64 `json:"credit_capped"`
	Returned     uint64 `json:"credit_returned"` // buffers
	Carry        uint64 `json:"credit_carry"`    // buffers owed now
	IntrTaken    uint64 `json:"intr_taken"`      // calls of the queue's interrupt handler
	IntrDrained  uint64 `json:"intr_drained"`    // productive passes after the first of one hold of the queue
	WdRuns       uint64 `json:"rxwd_runs"`
	WdRescues    uint64 `json:"rxwd_rescues"`
	WdStalls     uint64 `json:"rxwd_stalls"`
	AdoptDup     uint64 `json:"adopt_dup"` // frames handed on again when the rings were adopted
}

// Stats are the counters of the data path as a whole: sums over the queues, the
// maximum for SpanMax, and what exists once.
type Stats struct {
	OQStats
	TxPosted   uint64 `json:"tx_posted"`
	TxFinished uint64 `json:"tx_finished"`
	TxUnknown  uint64 `json:"tx_unknown"`      // posted and not finished when the card was lost
	TxBytes    uint64 `json:"tx_posted_bytes"` // padded frames
	TxFull     uint64 `json:"tx_iq_full"`
	TxBadCount uint64 `json:"tx_bad_count"` // IN_CNTS moved by more than was outstanding
	AdoptLost  uint64 `json:"adopt_lost"`   // frames that were committed and not announced when the rings were adopted
	CreditUnit uint64 `json:"credit_unit"`  // constant 1

	GatherSize int `json:"gather_buffers"`
	GatherFree int `json:"gather_free"`
	GatherHigh int `json:"gather_high_water"`
	LargeSize  int `json:"gather_large_buffers"`
	LargeFree  int `json:"gather_large_free"`
	LargeHigh  int `json:"gather_large_high_water"`

	Queues []OQStats `json:"queues"`
}

func (c *oqCounters) stats(ring int) OQStats {
	return OQStats{
		Ring: ring, Done: c.done.Load(), Seen: c.seen.Load(), Delivered: c.delivered.Load(), Untagged: c.untagged.Load(), Dropped: c.dropped.Load(), DroppedBytes: c.droppedBytes.Load(), Recycled: c.recycled.Load(),
		Spans: c.spans.Load(), SpanBufs: c.spanBufs.Load(), SpanMax: c.spanMax.Load(), SpanNoBuf: c.spanNoBuf.Load(),
		Long: c.long.Load(), Short: c.short.Load(), Resync: c.resync.Load(), Skipped: c.skipped.Load(), Ghosts: c.ghosts.Load(),
		Lapped: c.lapped.Load(), Unseen: c.unseen.Load(), Behind: c.behind.Load(), Bound: c.bound.Load(),
		Declined: c.declined.Load(), Handed: c.handed.Load(), Capped: c.capped.Load(), Returned: c.returned.Load(), Carry: c.carry.Load(),
		IntrTaken: c.intr.Load(), IntrDrained: c.drained.Load(), WdRuns: c.wdRuns.Load(), WdRescues: c.wdRescues.Load(), WdStalls: c.wdStalls.Load(),
		AdoptDup: c.adoptDup.Load(),
	}
}

// add accumulates q into the sums of s.
func (s *OQStats) add(q *OQStats) {
	s.Done += q.Done
	s.Seen += q.Seen
	s.Delivered += q.Delivered
	s.PrefixSeq += q.PrefixSeq
	s.Untagged += q.Untagged
	s.Dropped += q.Dropped
	s.DroppedBytes += q.DroppedBytes
	s.Recycled += q.Recycled
	s.Spans += q.Spans
	s.SpanBufs += q.SpanBufs
	s.SpanMax = max(s.SpanMax, q.SpanMax)
	s.SpanNoBuf += q.SpanNoBuf
	s.Long += q.Long
	s.Short += q.Short
	s.Resync += q.Resync
	s.Skipped += q.Skipped
	s.Ghosts += q.Ghosts
	s.Lapped += q.Lapped
	s.Unseen += q.Unseen
	s.Behind += q.Behind
	s.Bound += q.Bound
	s.Declined += q.Declined
	s.Handed += q.Handed
	s.Capped += q.Capped
	s.Returned += q.Returned
	s.Carry += q.Carry
	s.IntrTaken += q.IntrTaken
	s.IntrDrained += q.IntrDrained
	s.WdRuns += q.WdRuns
	s.WdRescues += q.WdRescues
	s.WdStalls += q.WdStalls
	s.AdoptDup += q.AdoptDup
}

// Walks tells whether packets are being taken at this moment, and how often that
// has begun or ended. What is counted on the way, by the rings and by the sink, is
// complete between two walks only: rx_done moves at the end of one, the sink's
// counters in its middle. Counters that were read between two calls which return
// the same n and no open walk belong together.
func (c *Counters) Walks() (n uint64, open bool) {
	for q := range c.oqs {
		w := c.oqs[q].walks.Load()
		n += w
		open = open || w&1 != 0
	}
	return n, open
}

// Walks is that of the rings' Counters.
func (r *Rings) Walks() (n uint64, open bool) { return r.cfg.Counters.Walks() }

// Census looks at the length word of each buffer and keeps how many the card has
// written that nobody has taken: rx_seen. At a ring that keeps up it finds what
// came in the last microseconds; at one that is left, up to all 1,024. Nothing is
// taken and no register touched. The 8,192 loads of it are for a reader of
// counters, not for the packet path. It may be called at any time; after Free the
// last numbers stay.
func (r *Rings) Census() {
	r.memory.Lock()
	defer r.memory.Unlock()
	if r.freed {
		return
	}
	for _, o := range r.oqs {
		n := uint64(0)
		for i := range uint32(wire.OQEntries) {
			if _, full := length(o.word(i)); full {
				n++
			}
		}
		o.cnt.seen.Store(n)
	}
}

// Stats reads all counters; rx_seen is the last Census's. It touches no register and
// may be called at any time, also after Stop.
func (r *Rings) Stats() Stats {
	s := r.cfg.Counters.Stats()
	s.GatherSize, s.GatherFree, s.GatherHigh = r.pool.small.census()
	s.LargeSize, s.LargeFree, s.LargeHigh = r.pool.large.census()
	return s
}

// Stats reads all counters while there are no rings: the gather pool's are 0.
func (c *Counters) Stats() Stats {
	s := Stats{CreditUnit: 1, Queues: make([]OQStats, len(c.oqs))}
	for q := range c.oqs {
		s.Queues[q] = c.oqs[q].stats(q)
		_, s.Queues[q].PrefixSeq = c.oqs[q].inst.last.get()
		s.add(&s.Queues[q])
	}
	s.Ring = -1
	s.TxPosted, s.TxFinished, s.TxFull = c.iq.posted.Load(), c.iq.finished.Load(), c.iq.full.Load()
	s.TxBytes, s.TxBadCount, s.TxUnknown = c.iq.bytes.Load(), c.iq.badCount.Load(), c.iq.unknown.Load()
	s.AdoptLost = c.iq.adoptLost.Load()
	return s
}
