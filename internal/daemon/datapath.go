package daemon

import (
	"sync/atomic"

	"oxpd/internal/board"
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

// outward asks the filters about frames on their way to the card. It is the
// transmitter's alone.
type outward struct {
	filters *pfil.Table
	head    frame.Packet
}

// Judge implements port.Filter.
func (o *outward) Judge(p board.Port, b []byte) port.Outcome {
	if o.filters.Judge(transmitShard, p.Index, pfil.Out, b, len(b), &o.head) == pfil.Drop {
		return port.Drop
	}
	return port.Pass
}

// Leave implements port.Filter.
func (o *outward) Leave() { o.filters.Leave(transmitShard) }

// noPort marks a tag that is no front port's.
const noPort = board.Ports

// fanout is the sink of the rings: it finds a frame's port and hands the frame
// over. Ports join while it runs; one that leaves stays reachable for the frames
// that were judged before, and counts them as tap_down.
type fanout struct {
	index [1 << 16]uint8 // tag -> port, noPort for none
	ports [board.Ports]atomic.Pointer[port.Port]
	live  [board.Ports]atomic.Bool

	filters *pfil.Table
}

// newFanout makes a sink without ports that asks filters about each frame.
func newFanout(filters *pfil.Table) *fanout {
	f := &fanout{filters: filters}
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

func (f *fanout) leave(p *port.Port) { f.live[p.Board().Index].Store(false) }

// Judge implements ring.Judge: it passes what belongs to an interface and what the
// filters at its port let in. Output queues and shards of the filters have the same
// numbers.
func (f *fanout) Judge(oq int, first []byte, frameBytes int, tag uint16, head *frame.Packet) ring.Verdict {
	i := f.index[tag]
	if i == noPort || !f.live[i].Load() {
		return ring.Unowned
	}
	return ringVerdict(f.filters.Judge(oq, int(i), pfil.In, first, frameBytes, head))
}

// ringVerdict is what a filter's verdict is to the rings. A frame that is to be
// diverted is delivered as others are while nothing inspects it.
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
func (f *fanout) Leave(oq int) { f.filters.Leave(oq) }

// Deliver implements ring.Sink. Output queues and shards have the same numbers,
// so each worker counts in shards of its own.
func (f *fanout) Deliver(oq int, frames []ring.Frame) {
	for i := range frames {
		fr := &frames[i]
		f.ports[f.index[fr.Tag]].Load().Receive(oq, fr.Pieces, header(fr.Head))
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
