package ring

// Verdict is what a VerdictFunc decides about a packet before anything is
// spent on it.
type Verdict uint8

// Verdicts. The ring acts on Drop and Unowned itself; everything else reaches
// the sink, which reads the verdict from the Frame.
const (
	Pass    Verdict = iota // deliver
	Drop                   // filtered: no gather, no copy; the buffers go straight back
	Unowned                // the tag belongs to no interface: rx_untagged
	Divert                 // deliver to the inspection queue
	Sample                 // deliver, and copy to the sample ring
)

// VerdictFunc judges a packet where the device wrote it. first is the frame's
// bytes in the packet's first buffer, at most wire.FirstPayload; frameBytes is
// the whole frame's length and may be larger. It must not keep first. It is
// called by the worker of the packet's ring, for different rings at once.
type VerdictFunc func(first []byte, frameBytes int, tag uint16) Verdict

// VNetHeader is a virtio-net header (12 bytes, mrg_rxbuf form) for a sink that
// hands super-frames to the kernel; all zero means a plain frame.
type VNetHeader [12]byte

// Frame is one received frame. Pieces are its bytes in order, without FCS: one
// piece when it is contiguous, which every gathered frame is.
type Frame struct {
	Tag     uint16 // port tag
	Verdict Verdict
	Bytes   int // sum of the pieces
	Pieces  [][]byte
	VNet    VNetHeader
}

// Sink takes frames. Deliver is called by the worker of output queue oq, for
// different queues at once; frames and their memory are valid until it returns.
// The sink counts each frame in exactly one disposition.
type Sink interface {
	Deliver(oq int, frames []Frame)
}
