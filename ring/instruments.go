package ring

import (
	"sync"
	"sync/atomic"

	"oxpd/internal/dma"
	"oxpd/internal/frame"
	"oxpd/ring/wire"
)

// The instruments of datapath.md 4 are for finding out what the card writes where
// the pages are silent or wrong: the prefix of the last packet, and how the last
// one that no interface owns and the last span began.

// HeadBytes is how much of a frame is kept: an Ethernet header with two VLAN tags,
// the longest that a port takes. Behind a header without tags these are eight bytes
// of layer 3, which end before the first address of IPv4 (12), IPv6 and ARP (8): who
// sent to whom is seen by MAC alone, and of what was sent nothing. A packet whose
// prefix is shorter than datapath.md 3.3 has it (a frame forwarded to the host's own
// port) shows more of its frame in place of the prefix; no interface owns such a
// packet.
const HeadBytes = frame.MaxHeader

const snapshotBytes = wire.PrefixSize + HeadBytes

// none is no entry.
const none int64 = -1

// instruments are one queue's snapshots.
type instruments struct {
	last, untagged, span *exchange
}

func newInstruments() instruments {
	return instruments{newExchange(), newExchange(), newExchange()}
}

// opening is the first n bytes of a packet; seq says of which, from 1.
type opening struct {
	seq uint64
	n   int
	mem [snapshotBytes]byte
}

// exchange hands the newest opening from the holder of a queue to readers of
// counters. Writer and readers have a slot each, which they swap for the one in the
// middle: neither ever waits for the other, and a pass pays one atomic operation.
type exchange struct {
	slots [3]opening
	seq   uint64        // openings so far; the writer's
	back  uint32        // the writer's slot
	mid   atomic.Uint32 // the slot in the middle, with fresh when it is the writer's last

	mu    sync.Mutex // among readers
	front uint32     // the readers' slot
}

const fresh = 1 << 8 // above any slot's number

func newExchange() *exchange { return &exchange{back: 1, front: 2} }

// put keeps how a packet begins.
func (x *exchange) put(packet []byte) {
	x.seq++
	to := &x.slots[x.back]
	to.seq, to.n = x.seq, copy(to.mem[:], packet)
	x.back = x.mid.Swap(x.back|fresh) &^ fresh
}

// get copies the newest opening; seq is 0 while there is none.
func (x *exchange) get() (s Snapshot, seq uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.mid.Load()&fresh != 0 {
		x.front = x.mid.Swap(x.front) &^ fresh
	}
	p := &x.slots[x.front]
	b := append([]byte(nil), p.mem[:p.n]...)
	n := min(len(b), wire.PrefixSize)
	return Snapshot{Prefix: b[:n:n], Head: b[n:]}, p.seq
}

// snapshot keeps how packets of a pass begin, given by their first entries, before
// their buffers are poisoned: one of every pass, and two more on the rare ways.
func (o *OQ) snapshot(last, untagged, span int64) {
	o.keep(o.inst.last, last)
	o.keep(o.inst.untagged, untagged)
	o.keep(o.inst.span, span)
}

// keep takes the length anew, and only as far as it is short: a ring that laps may
// have rewritten it. Of a packet with a length that cannot be nothing is read.
func (o *OQ) keep(in *exchange, entry int64) {
	if entry == none {
		return
	}
	b, _ := o.buffer(uint32(entry))
	l, full := length(dma.Load64(b))
	if !full || l > wire.MaxLength {
		return
	}
	in.put(b[:min(int(l)+wire.LenWord, snapshotBytes)])
}

// Snapshot is how a packet began in memory: the prefix of datapath.md 3.3, length word
// first, and HeadBytes of the frame or as many as it had. Both are empty while there
// was no such packet.
type Snapshot struct{ Prefix, Head []byte }

// Instruments are the snapshots of one output queue.
type Instruments struct {
	Ring      int
	PrefixSeq uint64   // goes up with each Last, of which there is one a pass
	Last      Snapshot // the last packet of the last pass
	Untagged  Snapshot // the last packet of a pass that no interface owned
	Span      Snapshot // the last packet of a pass that was more than one buffer long
}

// Instruments is that of the rings' Counters.
func (r *Rings) Instruments() []Instruments { return r.cfg.Counters.Instruments() }

// Instruments copies the snapshots of each queue. It may be called at any time, also
// after Free.
func (c *Counters) Instruments() []Instruments {
	out := make([]Instruments, len(c.oqs))
	for q := range c.oqs {
		in, of := &out[q], &c.oqs[q].inst
		in.Ring = q
		in.Last, in.PrefixSeq = of.last.get()
		in.Untagged, _ = of.untagged.get()
		in.Span, _ = of.span.get()
	}
	return out
}
