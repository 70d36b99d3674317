package ring

import "oxpd/internal/frame"

// Verdict is what a Judge decides about a packet before anything is
// spent on it.
type Verdict uint8

// Verdicts. The ring acts on Drop and Unowned itself; everything else reaches
// the sink, which reads the verdict from the Frame.
const (
	Pass    Verdict = iota // deliver
	Drop                   // pfil_dropped: no gather, no copy; the buffers go straight back
	Unowned                // the tag belongs to no interface: rx_untagged
	Divert                 // deliver to the inspection queue, which copies: a span is not gathered
)

// Judge decides about packets where the device wrote them: once a packet, by whoever
// holds output queue oq, and Leave after each walk over it; for different queues at
// once. The sink gets what the walk took before Leave.
//
// A process that is killed in a walk never leaves. The next one judges the packets of
// the batch that was under way once more, by the rules that it has then; what the dead
// one counted died with it.
//
// first is the frame's bytes in the packet's first buffer, at most
// wire.FirstPayload; frameBytes is the whole frame's length and may be larger. A
// judge keeps neither first nor head. When it has to read the frame's headers it
// fills head, which goes with the frame to the sink.
type Judge interface {
	Judge(oq int, first []byte, frameBytes int, tag uint16, head *frame.Packet) Verdict
	Leave(oq int)
}

// JudgeFunc is a Judge that reads no headers and does not care about walks.
type JudgeFunc func(first []byte, frameBytes int, tag uint16) Verdict

// Leave implements Judge.
func (JudgeFunc) Leave(int) {}

// Judge implements Judge.
func (f JudgeFunc) Judge(_ int, first []byte, frameBytes int, tag uint16, _ *frame.Packet) Verdict {
	return f(first, frameBytes, tag)
}

// VNetHeader is a virtio-net header (12 bytes, mrg_rxbuf form) for a sink that
// hands super-frames to the kernel; all zero means a plain frame.
type VNetHeader [12]byte

// Frame is one received frame. Pieces are its bytes in order, without FCS: one
// piece when it is contiguous, which every frame is but those of verdict Divert: they are
// handed on as they lie, in up to wire.Buffers of their length.
type Frame struct {
	Tag     uint16 // port tag
	Verdict Verdict
	Bytes   int // sum of the pieces
	Pieces  [][]byte
	VNet    VNetHeader
	Head    *frame.Packet // Have is 0 when the judge has not read the headers
}

// Sink takes frames. Deliver is called by the worker of output queue oq, for
// different queues at once; frames and their memory are valid until it returns.
// The sink counts each frame in exactly one disposition.
type Sink interface {
	Deliver(oq int, frames []Frame)
}
