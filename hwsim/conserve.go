package hwsim

import (
	"errors"
	"fmt"

	"oxpd/rpc/msg"
)

// tally is the model's own book since the coprocessor's last reset: one entry
// for each end that a frame or an instruction can come to. It is kept apart from
// the counters that a driver reads, so that the two can be compared.
type tally struct {
	// Wire to host.
	fromWire uint64 // frames that the fast path took from wires
	gateDrop uint64
	toHost   uint64 // frames that it decided to hand over
	rawIn    uint64 // DeliverRaw
	written  uint64 // packets written to host rings, DeliverRaw included
	refused  uint64
	waiting  uint64 // fault WaitForCredit
	admitted uint64 // admitted to a ring and not in host memory yet

	// Host to wire.
	instructions uint64 // executed
	badDMA       uint64
	deadIn       uint64 // the fast path was not running, or died of it
	vanished     uint64 // tags 253 and 255
	prepErr      uint64
	control      uint64
	encrypt      uint64
	wireErr      uint64
	egressFull   uint64
	sent         uint64 // TX_WIRE

	// Behind a virtual function.
	looped  uint64 // frames that go back to their ring
	noFrame uint64
}

// Quiesced tells whether nothing is in flight: no frame on a wire towards the
// card or in an egress queue, no instruction posted to an enabled ring and not
// finished, nothing to deliver. Functional.
func (c *Card) Quiesced() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.staged.Load() || !c.out.empty() || c.out.busy || c.ins.len() > 0 || c.tally.waiting > 0 || c.outs.messages.len() > 0 || c.fast.toWire.len()+c.switchOut.len() > 0 {
		return false
	}
	if c.inEgress() > 0 {
		return false
	}
	for _, w := range c.wires {
		if w.inside > 0 || w.cableOut.len() > 0 {
			return false
		}
	}
	for q := range c.rings {
		r := &c.rings[q]
		if r.in.enabled && r.in.posted > 0 || r.out.carries() || r.out.coming > 0 && !c.gone() {
			return false
		}
	}
	return true
}

func (c *Card) inEgress() uint64 {
	n := c.uplink.waiting
	for i := range c.cages {
		n += c.cages[i].waiting
	}
	return uint64(n)
}

// CheckConservation compares the model's own books with each other and with the
// counters that a driver can read: each frame sent on a wire is in one field of
// WireStats or in one of the 182 or was written to a host ring; each instruction
// ended on a wire or in one counter. It returns every sum that does not close.
// It is exact at any moment, and says most when Quiesced. Functional.
func (c *Card) CheckConservation() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &c.tally
	var errs []error
	same := func(what string, got, want uint64) {
		if got != want {
			errs = append(errs, fmt.Errorf("hwsim: conservation: %s: %d, want %d", what, got, want))
		}
	}
	var passed, out uint64
	for _, w := range c.wires {
		s := &w.stats
		same(w.port.Label+": frames in", s.In, s.LinkDown+s.Runt+s.Oversize+s.SwitchDropped+s.Overrun+s.Filtered+s.NoFastPath+s.Passed+uint64(w.inside))
		passed += s.Passed
		out += s.Out + s.OutLinkDown + s.OutSwitchDropped
	}
	same("frames passed by wires", passed, t.fromWire)
	same("frames taken from wires", t.fromWire, t.gateDrop+t.toHost)
	same("packets for host rings", t.toHost+t.rawIn+t.looped, t.written+t.refused+t.waiting+t.admitted)
	same("RX_WIRE", c.cnt[msg.CntRXWire], t.fromWire)
	same("TX_KN", c.cnt[msg.CntTXKN], t.toHost)
	var gate uint64
	for i := msg.CntDropLIFIndexInvalid; i <= msg.CntDropIGErr; i++ {
		gate += c.cnt[i]
	}

	same("instructions", t.instructions, t.badDMA+t.deadIn+t.vanished+t.prepErr+t.control+t.encrypt+t.wireErr+t.egressFull+t.sent+c.inEgress()+uint64(c.fast.toWire.len())+t.looped+t.noFrame)
	same("TX_WIRE", c.cnt[msg.CntTXWire], t.sent)
	same("frames put on wires", out, t.sent)
	same("FROM_KN_TO_WIRE", c.cnt[msg.CntFromKNToWire], t.wireErr+t.egressFull+t.sent+c.inEgress())
	same("FROM_KN_TO_IPSEC_ENCR", c.cnt[msg.CntFromKNToIPsecEncr], t.encrypt)
	same("control messages", c.cnt[msg.CntFromKNProcCmsg]+c.cnt[msg.CntFromKNDropCmsg], t.control)
	same("preparation errors and wire drops", c.cnt[msg.CntFromKNDropPrepErr]+gate, t.prepErr+t.gateDrop)
	same("TX_DROP_QUEUE_FULL", c.cnt[msg.CntTXDropQueueFull], t.refused+t.egressFull)
	same("TX_DROP", c.cnt[msg.CntTXDrop], t.refused+t.egressFull+t.encrypt+t.wireErr)
	return errors.Join(errs...)
}

// RingState is what the block knows of one ring. Functional: the fields are not
// registers and cost no access.
type RingState struct {
	InPosted   uint32 // posted and not fetched
	InFlying   int    // fetched and not finished
	InFinished uint64 // since power-on
	InAt       uint64 // index of the next instruction

	Credit     int64
	Held       int    // list entries fetched and not used
	At         uint64 // index of the next list entry to fetch
	Count      uint32
	Packets    uint64
	Enabled    bool
	Base       uint64 // where the block fetches the list, as latched
	Programmed uint64 // what the register says
}

// RingState returns the state of ring q.
func (c *Card) RingState(q int) RingState {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := &c.rings[q]
	return RingState{
		InPosted: r.in.posted, InFlying: r.in.flying, InFinished: r.in.finished, InAt: r.in.at,
		Credit: r.out.credit, Held: r.out.heldN, At: r.out.at, Count: r.out.count, Packets: r.out.packets, Enabled: r.out.enabled,
		Base: c.outWhere(r).base, Programmed: r.out.reg.base,
	}
}
