package hwsim

import (
	"encoding/binary"
	"hash/crc32"
	"sync/atomic"

	"oxpd/internal/board"
	"oxpd/internal/frame"
	"oxpd/octep/csr"
	"oxpd/ring/wire"
	"oxpd/rpc/msg"
)

// datapath is what moves frames: the instructions in flight, the egress servers
// and the model's own books.
type datapath struct {
	lat  cycleLatencies
	link pcie
	outs outUnits

	linkQueue uint64 // Queues.LinkQueue in cycles
	instant   bool   // under finishWrites: nothing takes time

	ins  inUnits
	fast fastPath

	switchIn   stage[*packet] // in the switch, towards the coprocessor
	switchOut  stage[*packet] // in the switch, towards the wires
	uplinkIn   uint64         // end of what the uplink brings, in 2^-8 cycles
	uplinkByte uint64         // length of a byte there, in 2^-20 cycles

	cages  [2]server // PortF1, PortF2
	uplink server    // the ten switch ports

	fpDead bool   // the fast path crashed (F12) or fell silent; a reboot brings it back
	epoch  uint64 // counts power-ons; what a fault put off dies with its epoch
	order  atomic.Uint32
	crc    *crc32.Table
	tuple  [36]byte // what hash sums up; here because a local one would be allocated
	tally  tally
}

// freeBatch bounds what one event does at a time in free mode.
const freeBatch = 32

// batch is how many steps of one unit an event does: in stepped mode each has a
// moment of its own.
func (c *Card) batch() int {
	if c.mode == stepped {
		return 1
	}
	return freeBatch
}

func (c *Card) initDatapath() {
	c.lat = c.o.Latencies.cycles()
	c.link.init(&c.o)
	c.uplinkByte = lineTime(c.o.Rates.Uplink)
	c.linkQueue = uint64(c.o.Queues.LinkQueue) * c.link.up.perByte >> byteFraction
	c.ins.init(c)
	c.outs.init(c)
	c.fast.toWire.init(c, false, c.fromHost)
	c.fast.toHost.init(c, false, c.leaveFastPath)
	c.switchIn.init(c, false, c.enterFastPath)
	c.switchOut.init(c, false, c.leaveSwitch)
	c.crc = crc32.MakeTable(crc32.Castagnoli)
	c.acc.init()
	for q := range c.rings {
		r := &c.rings[q]
		r.out.timer = newEvent(flow, func() { c.timerExpired(r) })
		r.out.listEv = newEvent(flow, func() { c.listCame(r) })
		r.out.writeEv = newEvent(flow, func() { c.issue(r, r.out.writeEv.at) })
	}
	for i := range c.cages {
		c.cages[i].init(c, 1, c.o.Queues.EgressCage, c.o.Rates.Cage, fcsBytes+gapBytes)
	}
	queues := switchPorts
	if c.o.Choices.SharedEgress {
		queues = 1
	}
	c.uplink.init(c, queues, c.o.Queues.EgressSwitch, c.o.Rates.SwitchTotal, fcsBytes)
}

// resetDatapath drops everything in flight and opens new books. Held: c.mu.
func (c *Card) resetDatapath() {
	c.epoch++
	c.fpDead = false
	c.ins.reset(c)
	c.fast.reset()
	c.switchIn.reset()
	c.switchOut.reset()
	c.uplinkIn = 0
	for q := range c.rings {
		r := &c.rings[q]
		c.agenda.disarm(r.out.timer)
		c.agenda.disarm(r.out.listEv)
		c.agenda.disarm(r.out.writeEv)
	}
	c.link.reset()
	c.outs.reset()
	for i := range c.cages {
		c.cages[i].reset()
	}
	c.uplink.reset()
	for _, w := range c.wires {
		w.reset()
	}
	c.tally = tally{}
}

// fastPathAlive tells whether the packet program takes frames.
func (c *Card) fastPathAlive() bool {
	return c.target.fastPathUp && !c.fpDead && !c.acts(fltFastPathDead, c.faults.FastPathDead)
}

// fromHost is the fast path's look at a frame of the host (datapath.md 5.2). It
// takes the packet: what is read from dptr, private header in front.
func (c *Card) fromHost(p *packet, at uint64) {
	t := &c.tally
	if c.chance(perFrame); !c.fastPathAlive() {
		t.deadIn++
		c.pool.put(p)
		return
	}
	drop := func(cause *uint64, counters ...int) {
		*cause++
		for _, i := range counters {
			c.cnt[i]++
			c.traceDrop(UnitToWire, -1, i, p)
		}
		c.pool.put(p)
	}
	if p.ring != 0 {
		// F11: only ring 0 is the host's; others are taken for the wire and dropped.
		c.report(ReportInstruction, "ring %d transmits; only ring 0 does", p.ring)
		drop(&t.prepErr, msg.CntDropIGErr)
		return
	}
	if len(p.b) < wire.PrivSize+frame.HeaderSize {
		c.report(ReportInstruction, "ring %d: %d bytes at dptr hold no frame", p.ring, len(p.b))
		c.cnt[msg.CntRXKN]++
		drop(&t.prepErr, msg.CntFromKNDropPrepErr)
		return
	}
	tag := board.Tag(binary.BigEndian.Uint16(p.b[wire.PrivTag:]))
	meta := p.b[wire.PrivMeta:wire.PrivSize]
	p.off = wire.PrivSize
	body := p.frame()

	if tag == tagVanish1 || tag == tagVanish2 { // choice 12
		c.report(ReportUnknownTag, "ring %d: tag %v vanishes", p.ring, tag)
		if c.o.Choices.CountVanished {
			c.cnt[msg.CntRXKN]++
		}
		drop(&t.vanished)
		return
	}
	c.cnt[msg.CntRXKN]++
	if pkind, fsz, sl := p.ih3>>wire.IH3PKindShift&0x3f, p.ih3>>wire.IH3FszShift&0x3f, p.pki>>wire.PKISlShift&0xff; pkind != wire.PKind || fsz != wire.FrontSize || sl != wire.SL {
		c.report(ReportInstruction, "pkind %d, fsz %d, sl %d", pkind, fsz, sl)
		drop(&t.prepErr, msg.CntFromKNDropPrepErr)
		return
	}
	if tag == board.TagControl {
		h := binary.BigEndian.Uint16(body[12:])
		if h == wire.ControlEtherType && len(body) > frame.HeaderSize+3 && body[frame.HeaderSize+3] == wire.ControlVersion {
			drop(&t.control, msg.CntFromKNProcCmsg)
		} else {
			drop(&t.control, msg.CntFromKNDropCmsg)
		}
		return
	}
	if p.irh>>wire.IRHRlenssShift&wire.IRHRlenssMask == 0 && !isIP(body) {
		// F12: the checksum step crashes, and with it the fast path.
		c.report(ReportRlenssZ, "tag %v, frame of %d bytes", tag, len(body))
		c.fpDead = true
		c.target.killFastPath()
		drop(&t.deadIn)
		return
	}
	if meta[wire.MetaEncr] != 0 {
		// F13: to encryption; no association exists in this model.
		c.report(ReportMetadata, "byte 1 is %#x, association %#x", meta[wire.MetaEncr], binary.LittleEndian.Uint32(meta[wire.MetaSA:]))
		drop(&t.encrypt, msg.CntFromKNToIPsecEncr, msg.CntCryptoDropSAUnavailable, msg.CntTXDrop)
		return
	}
	c.cnt[msg.CntFromKNToWire]++
	port, known := board.ByTag(tag)
	if op := p.irh >> wire.IRHOpcodeShift; !known || op != wire.Opcode {
		if !known {
			c.report(ReportUnknownTag, "ring %d: tag %v", p.ring, tag)
		} else {
			c.report(ReportInstruction, "opcode %#x", op)
		}
		drop(&t.wireErr, msg.CntTXWireErr, msg.CntTXDrop) // choice 13
		return
	}
	if len(body) < frame.MinSize {
		c.report(ReportUnpadded, "tag %v, frame of %d bytes", tag, len(body))
	}
	s, queue := c.egress(port)
	if s.full(queue) || c.acts(fltEgressFull, c.faults.EgressFull) {
		c.portCnt[msg.CounterPortTXQueueFull][port.FastPath]++
		drop(&t.egressFull, msg.CntTXDropQueueFull, msg.CntTXDrop)
		return
	}
	p.tag, p.port = uint16(tag), port.Index
	p.due = at
	c.trace(Step{Unit: UnitToWire, Lane: p.port, What: "frame", Start: p.since, End: at, Packet: p.id, Bytes: len(body)}) // what it dropped was not told
	s.push(queue, p)
}

// Tags that are dropped before they are counted (endpoint.md 6.2).
const (
	tagVanish1 board.Tag = 253
	tagVanish2 board.Tag = 255
)

// isIP tells whether a frame's checksum step finds IP.
func isIP(b []byte) bool {
	h, ok := frame.Parse(b)
	return ok && (h.EtherType == frame.TypeIPv4 || h.EtherType == frame.TypeIPv6)
}

// fromWire is the fast path's look at a frame of a wire that passed the port
// (datapath.md 5.2). It takes the packet.
func (c *Card) fromWire(port board.Port, p *packet, at uint64) {
	t := &c.tally
	c.cnt[msg.CntRXWire]++
	c.portCnt[msg.CounterPortRX][port.FastPath]++
	t.fromWire++
	_, _, counter, ok := c.lifs.gate(uint16(port.Tag), p.frame())
	if !ok && counter == msg.CntDropLIFIndexInvalid && c.o.Choices.PuntUnbound {
		counter, ok = msg.CntToKNForced, true
	}
	c.cnt[counter]++
	if !ok {
		t.gateDrop++
		c.traceDrop(UnitToHost, port.Index, counter, p)
		c.pool.put(p)
		return
	}
	c.cnt[msg.CntTXKN]++
	t.toHost++
	p.tag, p.fast, p.length = uint16(port.Tag), uint16(port.FastPath), uint64(wire.LenOverhead+len(p.frame()))
	c.toHost(c.hash(p.frame()), p, at)
}

// refuse counts a packet that a host ring did not take.
func (c *Card) refuse(r *ring, p *packet) {
	c.traceDrop(UnitDescriptor, r.q, msg.CntTXDropQueueFull, p)
	c.cnt[msg.CntTXDrop]++
	c.cnt[msg.CntTXDropQueueFull]++
	c.tally.refused++
}

// hash picks the host ring of a frame: CRC32C over addresses and ports in network
// order with seed 0xffffffff, modulo 8 (datapath.md 3.2). Frames without an IP
// tuple take ring 0, as control messages do; no record says so.
func (c *Card) hash(b []byte) int {
	h, ok := frame.Parse(b)
	if !ok {
		return 0
	}
	tuple := &c.tuple
	*tuple = [36]byte{}
	l3 := b[h.L3:]
	n, l4, proto := 0, 0, byte(0)
	switch {
	case h.EtherType == frame.TypeIPv4 && len(l3) >= 20:
		n = copy(tuple[:], l3[12:20])
		l4, proto = int(l3[0]&0xf)*4, l3[9]
		if binary.BigEndian.Uint16(l3[6:])&0x3fff != 0 {
			proto = 0 // a fragment: all of a datagram take one ring
		}
	case h.EtherType == frame.TypeIPv6 && len(l3) >= 40:
		n = copy(tuple[:], l3[8:40])
		l4, proto = 40, l3[6]
	default:
		return 0
	}
	if (proto == protoTCP || proto == protoUDP) && len(l3) >= l4+4 {
		copy(tuple[n:], l3[l4:l4+4])
	}
	return int(crc32.Update(0, c.crc, tuple[:n+4]) % wire.OQs)
}

const (
	protoTCP = 6
	protoUDP = 17
)

// atOnce calls fn; what it does to the rings takes no time.
func (c *Card) atOnce(fn func()) {
	c.instant = true
	fn()
	c.instant = false
}

// finishLink does at once what is on the link or waits for it, both ways.
func (c *Card) finishLink() {
	if c.gone() {
		return
	}
	c.atOnce(func() {
		c.ins.finish()
		c.finishWrites()
	})
}

// DeliverRaw is functional: the block writes a packet with a chosen length word
// to a ring at once, and what is under way to rings before it, with a prefix of that tag and payload behind it. A control or
// statistics message is board.TagControl on ring 0 with its true length,
// wire.LenOverhead + len(payload). It is not counted in TX_KN; a ring without
// credit refuses it like any packet. It reports whether the ring took it.
func (c *Card) DeliverRaw(ring int, tag uint16, payload []byte, length uint64) bool {
	if ring < 0 || ring >= csr.Rings {
		return false
	}
	c.lock()
	defer c.leave()
	return c.deliverRaw(ring, tag, payload, length)
}

// deliverRaw is DeliverRaw. Held: c.mu.
func (c *Card) deliverRaw(ring int, tag uint16, payload []byte, length uint64) bool {
	p := c.pool.get(len(payload))
	p.id = c.nextPacket()
	copy(p.b, payload)
	var refused uint64
	c.atOnce(func() {
		c.finishWrites()
		refused = c.tally.refused
		c.tally.rawIn++
		p.tag, p.length = tag, length
		c.toHost(ring, p, c.now)
	})
	return c.tally.refused == refused
}
