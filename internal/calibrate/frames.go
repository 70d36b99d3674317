package calibrate

import (
	"encoding/binary"
	"time"

	"oxpd/hwsim"
	"oxpd/internal/board"
	"oxpd/ring"
)

// Where a frame says which one it is.
const (
	atFlow = 42
	atSeq  = 46
)

// frame is a UDP frame of n bytes, without FCS: its flow is in the ports, so that
// it takes the flow's ring, and the payload says flow and number.
func frame(dst [6]byte, flow, seq, n int) []byte {
	f := make([]byte, n)
	copy(f, dst[:])
	copy(f[6:], []byte{2, 0, 0, 0, 1, byte(flow)})
	be := binary.BigEndian
	be.PutUint16(f[12:], 0x0800)
	ip := f[14:]
	ip[0], ip[8], ip[9] = 0x45, 64, 17
	be.PutUint16(ip[2:], uint16(n-14))
	copy(ip[12:], []byte{10, 0, byte(flow >> 8), byte(flow), 10, 0, 0, 1})
	be.PutUint16(ip[20:], uint16(1024+flow))
	be.PutUint16(ip[22:], 5001)
	be.PutUint16(ip[24:], uint16(n-34))
	be.PutUint32(f[atFlow:], uint32(flow))
	be.PutUint32(f[atSeq:], uint32(seq))
	return f
}

// arrivals is the sink of the rings: it keeps what the rows ask for, not the frames.
type arrivals struct {
	r      *rig
	frames int
	strays int               // frames that were not the next of their flow
	behind int               // most that a frame's number was below its flow's highest so far
	next   map[uint32]uint32 // number of each flow's next frame
	ring   map[uint32]int    // each flow's ring
	last   time.Duration     // when the last came

	highest map[uint32]uint32
}

// Deliver implements ring.Sink.
func (a *arrivals) Deliver(oq int, frames []ring.Frame) {
	for i := range frames {
		b := frames[i].Pieces[0] // the first piece of any frame is long enough
		flow, seq := binary.BigEndian.Uint32(b[atFlow:]), binary.BigEndian.Uint32(b[atSeq:])
		if seq != a.next[flow] {
			a.strays++
		}
		a.highest[flow] = max(a.highest[flow], seq)
		a.behind = max(a.behind, int(a.highest[flow]-seq))
		a.next[flow] = seq + 1
		a.ring[flow] = oq
		a.frames++
	}
	a.last = a.r.now()
}

// port finds a front port by its label.
func port(label string) board.Port {
	p, err := board.Parse(label)
	if err != nil {
		panic(err) // a label of this package
	}
	return p
}

func (r *rig) wire(p board.Port) *hwsim.Wire { return r.card.Wire(uint16(p.Tag)) }

// mac is the address that a port's LIF takes.
func (r *rig) mac(p board.Port) [6]byte {
	l, _ := r.card.LIF(uint32(p.LIF()))
	return l.MAC
}

// arrive lets count frames of n bytes of flows in turn come into a port from its
// wire at a rate; count 0 goes on for ever.
func (r *rig) arrive(p board.Port, perSecond float64, count, flows, n int) {
	w, dst := r.wire(p), r.mac(p)
	r.every(perSecond, count, func(i int) { w.Send(frame(dst, 1+i%flows, i/flows, n)) })
}

// sender is a process that sends frames as fast as it can, or at its own pace: it
// takes so long for a frame, whether the ring has room for it or not.
func (r *rig) sender(p board.Port, flow, n int, takes time.Duration) {
	at, seq := r.now(), 0
	f := frame([6]byte{2, 2, 2, 2, 2, 2}, flow, seq, n)
	r.add(0, func() time.Duration {
		binary.BigEndian.PutUint32(f[atSeq:], uint32(seq))
		seq++
		r.rings.IQ().Post(uint16(p.Tag), f)
		at += takes
		return at
	})
}

// rate is how often a count rises in a second of the card's time, counted over so
// long a window after so long a start.
func (r *rig) rate(start, window time.Duration, count func() uint64) float64 {
	r.pass(start)
	from, before := r.now(), count()
	r.pass(window)
	return float64(count()-before) / (r.now() - from).Seconds()
}

// leaves counts the frames that leave through a port's wire.
func (r *rig) leaves(p board.Port) *uint64 {
	n := new(uint64)
	r.wire(p).SetReceiver(func([]byte) { *n++ })
	return n
}
