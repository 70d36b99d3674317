package hwsim

import (
	"oxpd/internal/board"
	"oxpd/rpc/msg"
)

const switchPorts = 10

// server sends frames at one bandwidth from queues that it serves in turn, one
// frame each (choice 24).
type server struct {
	c       *Card
	queues  []fifo[*packet]
	depth   int
	perByte uint64 // length of a byte in 2^-20 cycles
	extra   int    // bytes counted with each frame
	turn    int    // queue that is served next
	waiting int    // frames in all queues and on the wire
	current *packet
	busy    uint64 // end of the last frame, in 2^-8 cycles
	ev      *event
}

// Fractions of a cycle that servers calculate with.
const (
	byteFraction = 20
	busyFraction = 8
)

func (s *server) init(c *Card, queues, depth int, rate uint64, extra int) {
	*s = server{c: c, queues: make([]fifo[*packet], queues), depth: depth, extra: extra}
	s.perByte = lineTime(rate)
	s.ev = newEvent(flow, s.depart)
}

// lineTime is the length of a byte in 2^-20 cycles at a rate in bit/s.
func lineTime(rate uint64) uint64 { return 8 * Hz << byteFraction / max(rate, 1) }

func (s *server) reset() {
	for i := range s.queues {
		s.queues[i].reset()
	}
	s.current, s.waiting, s.turn = nil, 0, 0
	s.c.agenda.disarm(s.ev)
}

func (s *server) full(queue int) bool { return s.queues[queue].len() >= s.depth }

func (s *server) push(queue int, p *packet) {
	s.queues[queue].push(p)
	s.waiting++
	if s.current == nil {
		s.start()
	}
}

// start puts the next frame on the wire.
func (s *server) start() {
	for i := range s.queues {
		q := (s.turn + i) % len(s.queues)
		if s.queues[q].len() == 0 {
			continue
		}
		p := s.queues[q].pop()
		s.turn = (q + 1) % len(s.queues)
		s.busy = max(s.busy, p.due<<busyFraction)
		begin := s.busy >> busyFraction
		s.busy += uint64(len(p.frame())+s.extra) * s.perByte >> (byteFraction - busyFraction)
		p.due = (s.busy + 1<<busyFraction - 1) >> busyFraction
		// First bit to last, gap included.
		s.c.trace(Step{Unit: UnitMACOut, Lane: p.port, What: "frame", Start: begin, End: s.busy >> busyFraction, Packet: p.id, Bytes: len(p.frame())})
		s.current = p
		s.c.agenda.arm(s.ev, p.due)
		return
	}
}

// depart is the event of the frame on the wire being out.
func (s *server) depart() {
	for n := 0; s.current != nil && s.current.due <= s.c.horizon && n < freeBatch; n++ {
		p := s.current
		s.current = nil
		s.waiting--
		s.c.transmit(p, p.due)
		s.start()
		if s.c.mode == stepped {
			break
		}
	}
	if s.current != nil {
		s.c.agenda.arm(s.ev, s.current.due)
	}
}

// egress finds the server and queue of a port.
func (c *Card) egress(p board.Port) (*server, int) {
	if !p.BehindSwitch() {
		return &c.cages[p.FastPath-1], 0
	}
	if len(c.uplink.queues) == 1 {
		return &c.uplink, 0
	}
	return &c.uplink, p.SwitchPort - 1
}

// transmit is a frame that left the fast path's port: TX_WIRE, then the switch
// and the wire. It takes the packet.
func (c *Card) transmit(p *packet, at uint64) {
	w := c.wires[p.port]
	c.cnt[msg.CntTXWire]++
	c.portCnt[msg.CounterPortTX][w.port.FastPath]++
	c.tally.sent++
	switch {
	case !c.target.carries(p.port):
		w.stats.OutLinkDown++
	case w.port.BehindSwitch() && c.sw.cutsOut(w.port.SwitchPort, len(p.frame())+fcsBytes):
		w.stats.OutSwitchDropped++
		c.trace(Step{Unit: UnitSwitch, Lane: p.port, What: "too long", Start: c.now, End: c.now, Packet: p.id, Bytes: len(p.frame())})
	default:
		w.stats.Out++
		if w.port.BehindSwitch() {
			c.switchOut.enter(p, at+c.lat.sw)
		} else {
			w.cableOut.enter(p, at+c.lat.cable)
		}
		return
	}
	c.pool.put(p)
}

// leaveSwitch is a frame that the switch has passed on.
func (c *Card) leaveSwitch(p *packet, at uint64) {
	c.wires[p.port].cableOut.enter(p, at+c.lat.cable)
}

// uplinkTime is when the switch has passed a frame that it has whole at a cycle on to
// the coprocessor: its own time, and that of the uplink, which the ten ports share.
func (c *Card) uplinkTime(p *packet, at uint64) uint64 {
	c.uplinkIn = max(c.uplinkIn, (at+c.lat.sw)<<busyFraction) + uint64(len(p.b)+fcsBytes+gapBytes+dsaBytes)*c.uplinkByte>>(byteFraction-busyFraction)
	return (c.uplinkIn + 1<<busyFraction - 1) >> busyFraction
}
