package daemon

import (
	"sync/atomic"

	"oxpd/internal/board"
	"oxpd/internal/frame"
	"oxpd/internal/port"
	"oxpd/ring"
)

// noPort marks a tag that is no front port's.
const noPort = board.Ports

// fanout is the sink of the rings: it finds a frame's port and hands the frame
// over. Ports join while it runs; one that leaves stays reachable for the frames
// that were judged before, and counts them as tap_down.
type fanout struct {
	index [1 << 16]uint8 // tag -> port, noPort for none
	ports [board.Ports]atomic.Pointer[port.Port]
	live  [board.Ports]atomic.Bool
}

func newFanout() *fanout {
	f := &fanout{}
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

// Leave implements ring.Judge.
func (f *fanout) Leave(int) {}

// Judge implements ring.Judge: it passes what belongs to an interface.
func (f *fanout) Judge(_ int, _ []byte, _ int, tag uint16, _ *frame.Packet) ring.Verdict {
	if i := f.index[tag]; i == noPort || !f.live[i].Load() {
		return ring.Unowned
	}
	return ring.Pass
}

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
