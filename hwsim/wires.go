package hwsim

import (
	"io"
	"sync"
	"sync/atomic"

	"oxpd/internal/board"
	"oxpd/internal/frame"
	"oxpd/rpc/msg"
)

// WireStats is where the frames of one wire ended. Every frame of In is in
// exactly one of the fields below it, still on the wire, or Passed: seen by the
// fast path, whose 182 counters say more. A reset of the coprocessor loses what is
// on the wire and starts all of them at 0. Out counts what left; the two fields
// below it counted as TX_WIRE and did not.
type WireStats struct {
	In            uint64 // frames sent from outside
	LinkDown      uint64 // the port was down, or its far side
	Runt          uint64 // shorter than an Ethernet header
	Oversize      uint64 // longer than the MAC takes
	SwitchDropped uint64 // longer than the switch passes, at the port or at the uplink
	Overrun       uint64 // more sent at once than Queues.Wire, or more than Queues.FastPath with the fast path
	Filtered      uint64 // stopped by the port's address filter
	NoFastPath    uint64 // the fast path was not running
	Passed        uint64

	Out              uint64
	OutLinkDown      uint64
	OutSwitchDropped uint64
	OutRefused       uint64

	// Bridged is frames that left and came in at another port behind the switch, whose
	// VLAN map somebody has widened: neither the fast path nor the host has seen them.
	Bridged uint64
}

// macFrame is the longest frame of a front port's MAC without FCS: NetAgent
// reports an MTU of 9,182 for each, with room for two VLAN tags. Estimate.
const macFrame = msg.DiscoverMTU + frame.MaxHeader

// Wire is the cable of one front port. Frames are Ethernet without FCS.
type Wire struct {
	c       *Card
	port    board.Port
	perByte uint64
	busy    uint64 // end of the last frame that came in, in 2^-8 cycles
	queue   fifo[*packet]
	inside  int // frames that came in and are not with the fast path's decision yet
	ev      *event
	stats   WireStats

	cableIn  stage[*packet] // frames that have left the far side whole
	cableOut stage[*packet]

	smu     sync.Mutex // staged: frames sent that the card has not looked at
	staged  []*packet
	spare   []*packet
	backlog int // staged and queued
	room    *sync.Cond

	rmu     sync.Mutex // receive
	receive func([]byte)
	refused atomic.Uint64
}

func newWire(c *Card, p board.Port) *Wire {
	w := &Wire{c: c, port: p}
	rate := c.o.Rates.Cage
	if p.BehindSwitch() {
		rate = c.o.Rates.SwitchPort
	}
	w.perByte = lineTime(rate)
	w.ev = newEvent(flow, w.depart)
	w.cableIn.init(c, false, w.arrive)
	w.cableOut.init(c, false, w.leave)
	w.room = sync.NewCond(&w.smu)
	return w
}

// Wire returns the wire of the front port with a tag, nil for any other tag.
func (c *Card) Wire(tag uint16) *Wire {
	p, ok := board.ByTag(board.Tag(tag))
	if !ok {
		return nil
	}
	return c.wires[p.Index]
}

// Port returns the front port at the card's end.
func (w *Wire) Port() board.Port { return w.port }

// Send puts a frame from outside on the wire; it is copied. Frames follow each
// other at line rate. In free mode Send never blocks: Backlog tells a fast
// sender when to pause.
func (w *Wire) Send(b []byte) {
	p := w.c.pool.get(len(b))
	copy(p.b, b)
	w.stage(p)
}

// stage is Send for a frame that is in memory of the card already. It takes the
// packet.
func (w *Wire) stage(p *packet) {
	c := w.c
	w.smu.Lock()
	w.staged = append(w.staged, p)
	w.backlog++
	w.smu.Unlock()
	c.staged.Store(true)
	if c.freeRunning.Load() {
		if c.sleeping.Load() {
			c.wakeUp()
		}
		return
	}
	c.settle()
}

// Backlog returns how many frames were sent and are not on the wire whole.
func (w *Wire) Backlog() int {
	w.smu.Lock()
	defer w.smu.Unlock()
	return w.backlog
}

// SetReceiver says who gets the frames that leave: called without the card's
// lock, in order, the slice valid during the call. nil discards them.
func (w *Wire) SetReceiver(fn func(frame []byte)) {
	w.rmu.Lock()
	defer w.rmu.Unlock()
	w.receive = fn
}

func (w *Wire) deliver(b []byte) {
	w.rmu.Lock()
	fn := w.receive
	w.rmu.Unlock()
	if fn != nil {
		fn(b)
	}
}

// Carries tells whether frames of the wire pass in both directions now: the port
// is up and its link is trained. Functional.
func (w *Wire) Carries() bool {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	return !w.c.gone() && w.c.target.carries(w.port.Index)
}

// Loop joins the wires of two front ports of the card with a cable and takes
// both receivers: what leaves one port enters the other. As with any cable, a
// port has a link while the port at the other end is up. A frame that is faster
// than the slower port takes waits, and is counted there as Overrun when too many
// do. unplug takes the cable away; nothing hangs at either port then.
func (w *Wire) Loop(other *Wire) (unplug func()) {
	w.SetReceiver(other.Send)
	other.SetReceiver(w.Send)
	w.c.join(w, other)
	return func() {
		w.SetReceiver(nil)
		other.SetReceiver(nil)
		w.c.part(w, other)
	}
}

// join makes each port the other's far side.
func (c *Card) join(a, b *Wire) {
	c.lock()
	p, q := &c.ports[a.port.Index], &c.ports[b.port.Index]
	p.peer, q.peer = q, p
	c.target.setCable(p, c.target.powered(q))
	c.target.setCable(q, c.target.powered(p))
	c.leave()
}

// part leaves both ports with the far side that every wire begins with.
func (c *Card) part(a, b *Wire) {
	c.lock()
	p, q := &c.ports[a.port.Index], &c.ports[b.port.Index]
	p.peer, q.peer = nil, nil
	c.target.setCable(p, true)
	c.target.setCable(q, true)
	c.leave()
}

// SetLink connects or disconnects the far side of the wire.
func (w *Wire) SetLink(up bool) {
	w.c.lock()
	w.c.target.setCable(&w.c.ports[w.port.Index], up)
	w.c.leave()
}

// Stats returns where the wire's frames ended. Functional.
func (w *Wire) Stats() WireStats {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	s := w.stats
	s.OutRefused = w.refused.Load()
	return s
}

// attachBacklog is how many frames an attached file may have under way before it
// is read no further: what does not fit then waits, and is dropped, where it is.
const attachBacklog = 256

// Attach connects a file of which each Read and each Write is one frame, such as
// a TAP interface, and takes the receiver. stop closes the file, waits for the
// reader and takes the receiver away. What a Write does not take is lost, as on
// any wire whose far side does not listen, and counted as OutRefused; it must not
// block. Frames longer than any that the board passes may be cut.
func (w *Wire) Attach(rw io.ReadWriteCloser) (stop func()) {
	w.SetReceiver(func(b []byte) {
		if _, err := rw.Write(b); err != nil {
			w.refused.Add(1)
		}
	})
	done := make(chan struct{})
	stopping := false // under smu
	go func() {
		defer close(done)
		for {
			// Long frames are read where they stay, short ones moved to where they
			// take less room.
			p := w.c.pool.get(largePacket)
			n, err := rw.Read(p.mem)
			if err != nil {
				w.c.pool.put(p)
				return
			}
			w.smu.Lock()
			for w.backlog >= attachBacklog && !stopping {
				w.room.Wait()
			}
			stopped := stopping
			w.smu.Unlock()
			switch p.b = p.mem[:n]; {
			case stopped:
				return
			case n > smallPacket:
				w.stage(p)
			default:
				w.Send(p.b)
				w.c.pool.put(p)
			}
		}
	}()
	var once sync.Once
	return func() {
		once.Do(func() {
			w.SetReceiver(nil)
			w.smu.Lock()
			stopping = true
			w.smu.Unlock()
			w.room.Broadcast()
			_ = rw.Close() // the reader ends with it
			<-done
		})
	}
}

// takeStaged moves what was sent since the last look onto the wires. Held: c.mu.
func (c *Card) takeStaged() {
	if !c.staged.Swap(false) {
		return
	}
	for _, w := range c.wires {
		w.smu.Lock()
		batch := w.staged
		w.staged = w.spare[:0]
		w.smu.Unlock()
		kept := 0
		for i, p := range batch {
			if w.enter(p) {
				kept++
			}
			batch[i] = nil
		}
		w.spare = batch
		if gone := len(batch) - kept; gone > 0 {
			w.left(gone)
		}
	}
}

// left takes frames out of the backlog.
func (w *Wire) left(n int) {
	w.smu.Lock()
	w.backlog -= n
	w.smu.Unlock()
	w.room.Signal()
}

// enter is the first bit of a frame at the port. It reports whether the frame is
// on its way; if not, it is counted and gone.
func (w *Wire) enter(p *packet) bool {
	c, n := w.c, len(p.b)
	w.stats.In++
	p.id = c.nextPacket()
	if w.port.BehindSwitch() {
		c.bridge(w, p)
	}
	var end *uint64
	switch {
	case c.gone() || !c.target.carries(w.port.Index):
		end = &w.stats.LinkDown
	case n < frame.HeaderSize:
		end = &w.stats.Runt
	case w.port.BehindSwitch() && c.sw.cutsIn(w.port.SwitchPort, n+fcsBytes):
		end = &w.stats.SwitchDropped
		c.trace(Step{Unit: UnitSwitch, Lane: w.port.Index, What: "too long", Start: c.now, End: c.now, Packet: p.id, Bytes: n})
	case n > macFrame:
		end = &w.stats.Oversize
	case w.queue.len() >= c.o.Queues.Wire:
		end = &w.stats.Overrun
	}
	if end != nil {
		*end++
		c.pool.put(p)
		return false
	}
	w.busy = max(w.busy, c.now<<busyFraction)
	begin := w.busy >> busyFraction
	w.busy += uint64(n+fcsBytes+gapBytes) * w.perByte >> (byteFraction - busyFraction)
	last := w.busy >> busyFraction
	p.due, p.port = last, w.port.Index
	c.trace(Step{Unit: UnitMACIn, Lane: p.port, What: "frame", Start: begin, End: last, Packet: p.id, Bytes: n}) // first bit to last
	w.inside++
	w.queue.push(p)
	if w.ev.idx < 0 {
		c.agenda.arm(w.ev, p.due)
	}
	return true
}

// depart is the event of a frame being on the cable whole.
func (w *Wire) depart() {
	c := w.c
	n := 0
	for ; n < c.batch() && w.queue.len() > 0 && (*w.queue.at(0)).due <= c.horizon; n++ {
		p := w.queue.pop()
		w.cableIn.enter(p, p.due+c.lat.cable)
	}
	w.left(n)
	if w.queue.len() > 0 {
		c.agenda.arm(w.ev, max((*w.queue.at(0)).due, c.now))
	}
}

// arrive is the port having a frame whole. The switch passes it on by the uplink.
func (w *Wire) arrive(p *packet, at uint64) {
	if w.port.BehindSwitch() {
		w.c.switchIn.enter(p, w.c.uplinkTime(p, at))
		return
	}
	w.c.enterFastPath(p, at)
}

// leave is the far side having a frame whole.
func (w *Wire) leave(p *packet, _ uint64) { w.c.out.frames = append(w.c.out.frames, outFrame{w, p}) }

// reset is a coprocessor reset: what is on the wire is lost.
func (w *Wire) reset() {
	w.c.takeStaged()
	n := w.queue.len()
	w.queue.reset()
	w.cableIn.reset()
	w.cableOut.reset()
	w.inside = 0
	w.c.agenda.disarm(w.ev)
	w.left(n)
	w.stats = WireStats{}
	w.refused.Store(0)
}
