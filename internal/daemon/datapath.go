package daemon

import (
	"sync/atomic"
	"time"

	"oxpd/internal/board"
	"oxpd/internal/divert"
	"oxpd/internal/frame"
	"oxpd/internal/pfil"
	"oxpd/internal/port"
	"oxpd/ring"
	"oxpd/ring/wire"
)

// Shards of the filters' table: one of each output queue, and the transmitter's.
const (
	transmitShard = wire.OQs
	filterShards  = wire.OQs + 1
)

// outward decides about frames on their way to the card. It is the transmitter's alone.
type outward struct {
	*fanout
	head  frame.Packet
	piece [1][]byte
	now   time.Duration
	timed bool // now is that of the present turn
}

// Judge implements port.Filter.
func (o *outward) Judge(p board.Port, b []byte) port.Outcome {
	o.head.Have = 0
	by := o.filters.Judge(transmitShard, p.Index, pfil.Out, b, len(b), &o.head)
	if by != pfil.Drop {
		o.flows.see(transmitShard, p.Index, true, &o.head, b, len(b))
	}
	verdict := o.verdict(p.Index, by)
	if verdict == ring.Pass || verdict == ring.Divert && o.offer(p, b) == divert.Passed {
		return port.Pass
	}
	if verdict == ring.Divert {
		return port.Take
	}
	return port.Drop
}

// offer gives a frame to the queue that inspects it.
func (o *outward) offer(p board.Port, b []byte) divert.Fate {
	if !o.timed {
		o.now, o.timed = o.clock.Now(), true
	}
	o.piece[0] = b
	fate := o.inspector.Offer(o.now, &divert.Offered{Port: p.Index, Dir: divert.Out, Pieces: o.piece[:], Bytes: len(b), Head: &o.head})
	o.piece[0] = nil
	return fate
}

// Leave implements port.Filter.
func (o *outward) Leave() {
	o.timed = false
	o.flows.leave(transmitShard)
	o.filters.Leave(transmitShard)
}

// noPort marks a tag that is no front port's.
const noPort = board.Ports

// fanout is the sink of the rings: it finds a frame's port and hands the frame
// over. Ports join while it runs; one that leaves stays reachable for the frames
// that were judged before, and counts them as tap_down.
type fanout struct {
	index [1 << 16]uint8 // tag -> port, noPort for none
	ports [board.Ports]atomic.Pointer[port.Port]
	live  [board.Ports]atomic.Bool

	counts [board.Ports]*port.Counters // of the ports, whether there are any or not
	door   doorway

	filters   *pfil.Table
	inspector *divert.Inspector
	flows     *flowWatch
	clock     divert.Clock
}

// newFanout makes a sink without ports that asks filters about each frame. Before a frame
// comes, it needs an inspector.
func newFanout(filters *pfil.Table, clock divert.Clock) *fanout {
	f := &fanout{filters: filters, flows: newFlowWatch(clock), clock: clock}
	for i := range f.counts {
		f.counts[i] = new(port.Counters)
	}
	for i := range f.index {
		f.index[i] = noPort
	}
	for _, p := range board.All() {
		f.index[uint16(p.Tag)] = uint8(p.Index)
	}
	return f
}

func (f *fanout) join(p *port.Port) {
	i := p.Board().Index
	f.ports[i].Store(p)
	f.live[i].Store(true)
}

// has tells whether a port has joined and not left.
func (f *fanout) has(p *port.Port) bool {
	i := p.Board().Index
	return f.live[i].Load() && f.ports[i].Load() == p
}

// interfaces are the kernel's indexes of the interfaces of ports that have joined, 0 for
// the others.
func (f *fanout) interfaces() (index [board.Ports]int) {
	for i := range index {
		if p := f.ports[i].Load(); p != nil && f.live[i].Load() {
			index[i] = p.Index()
		}
	}
	return index
}

func (f *fanout) leave(p *port.Port) { f.live[p.Board().Index].Store(false) }

// Judge implements ring.Judge: it passes what belongs to an interface and what the
// filters at its port let in. Output queues and shards of the filters have the same
// numbers. The frames of a port that is inspected whole are diverted when they pass.
func (f *fanout) Judge(oq int, first []byte, frameBytes int, tag uint16, head *frame.Packet) ring.Verdict {
	i := f.index[tag]
	if i == noPort || !f.live[i].Load() {
		return ring.Unowned
	}
	by := f.filters.Judge(oq, int(i), pfil.In, first, frameBytes, head)
	if by != pfil.Drop {
		f.flows.see(oq, int(i), false, head, first, frameBytes)
	}
	return f.verdict(int(i), by)
}

// verdict is what becomes of a port's frame after its filters.
func (f *fanout) verdict(index int, by pfil.Verdict) ring.Verdict {
	v := ringVerdict(by)
	if v == ring.Pass && f.inspector.Wants(index) {
		return ring.Divert
	}
	return v
}

// ringVerdict is what a filter's verdict is to the rings.
func ringVerdict(v pfil.Verdict) ring.Verdict {
	//exhaustive:enforce
	switch v {
	case pfil.Drop:
		return ring.Drop
	case pfil.Divert:
		return ring.Divert
	case pfil.Pass, pfil.Sample, pfil.Count:
		return ring.Pass
	}
	return ring.Drop // no verdict: nothing passes by a mistake of ours
}

// Leave implements ring.Judge.
func (f *fanout) Leave(oq int) {
	f.flows.leave(oq)
	f.filters.Leave(oq)
}

// Deliver implements ring.Sink. Frames that are to be diverted go to the inspection queue,
// unless the port would not take them anyway. Output queues and shards have the same numbers,
// so each worker counts in shards of its own.
func (f *fanout) Deliver(oq int, frames []ring.Frame) {
	var now time.Duration // of the first frame that needs it
	for i := range frames {
		fr := &frames[i]
		p := f.ports[f.index[fr.Tag]].Load()
		if fr.Verdict == ring.Divert && p.Fits(fr.Pieces, fr.Bytes, header(fr.Head)) {
			if now == 0 {
				now = f.clock.Now()
			}
			in := divert.Offered{Port: p.Board().Index, Dir: divert.In, Pieces: fr.Pieces, Bytes: fr.Bytes, Head: fr.Head}
			if f.inspector.Offer(now, &in) != divert.Passed {
				continue
			}
		}
		p.Receive(oq, fr.Pieces, header(fr.Head))
	}
}

// header is the length of a frame's Ethernet header with its tags, 0 when nobody has
// read it.
func header(p *frame.Packet) int {
	if p == nil || p.Have&frame.HaveL2 == 0 {
		return 0
	}
	return p.L3
}
