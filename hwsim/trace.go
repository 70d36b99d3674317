package hwsim

import (
	"fmt"

	"oxpd/octep/csr"
	"oxpd/rpc/msg"
)

// Unit is a part of the card that takes time of its own.
type Unit uint8

// The units, in the order of a frame's way from the host out and back in. What a
// lane of each is stands in brackets; without them there is one.
const (
	UnitLoad       Unit = iota // register reads of the driver, which waits for them [ring; -1 is the card]
	UnitStore                  // register writes of the driver, which it does not wait for [ring; -1 is the card]
	UnitLinkDown               // PCIe, host to card: completions of the card's reads, and the driver's stores
	UnitLinkUp                 // PCIe, card to host: requests, packets, messages
	UnitFetch                  // instruction fetch of an input ring [ring]
	UnitRead                   // reads of what an instruction points at [ring]
	UnitToWire                 // fast path, host to wire [port; -1: none was found]
	UnitMACOut                 // a frame on its way out of the board [port]
	UnitMACIn                  // a frame on its way into the board [port]
	UnitSwitch                 // what the switch in front of ten ports drops [port]
	UnitToHost                 // fast path, wire to host [port]
	UnitDescriptor             // descriptor fetch of an output ring, and its credit [ring]
	UnitWrite                  // writes of an output ring to the host's buffers: data, then the length word [ring]
	UnitCount                  // count of an output ring [ring]
	UnitTimer                  // interrupt timer of an output ring: armed, fired [ring]
	UnitMessage                // MSI-X messages [vector]
	Units
)

var unitNames = [Units]string{
	UnitLoad:       "host load",
	UnitStore:      "host store",
	UnitLinkDown:   "PCIe to card",
	UnitLinkUp:     "PCIe to host",
	UnitFetch:      "instruction fetch",
	UnitRead:       "data read",
	UnitToWire:     "fast path to wire",
	UnitMACOut:     "MAC out",
	UnitMACIn:      "MAC in",
	UnitSwitch:     "switch",
	UnitToHost:     "fast path to host",
	UnitDescriptor: "descriptor fetch",
	UnitWrite:      "buffer write",
	UnitCount:      "count update",
	UnitTimer:      "interrupt timer",
	UnitMessage:    "message",
}

func (u Unit) String() string {
	if u < Units {
		return unitNames[u]
	}
	return fmt.Sprintf("unit %d", uint8(u))
}

// StepKind says what a Step's other fields mean.
type StepKind uint8

const (
	StepSpan  StepKind = iota // the unit was busy from Start to End; equal: it did something at that moment
	StepLevel                 // something that the unit keeps is Value from Start on: credit, a count, a queue's length
)

// Step is one thing that one unit did. Fields that mean nothing for it are 0.
type Step struct {
	Unit   Unit
	Kind   StepKind
	Lane   int    // which of several alike: a ring, a port by index, a vector, a BAR
	What   string // a constant: what was done, or what Value is of
	Start  uint64 // cycles
	End    uint64 // cycles
	Packet uint64 // number of the packet, by order of entering the card, from 1: one number from end to end
	Bytes  int    // that were moved
	Addr   uint64 // bus address, or offset in the BAR
	Value  int64  // of a level; of a register, what was read or written
}

// What of the steps that readers look for.
const (
	WhatBuffer = "buffer"      // UnitWrite: data into one buffer
	WhatLength = "length word" // UnitWrite: the packet becomes visible
	WhatCredit = "credit"      // level of UnitDescriptor
	WhatCount  = "count"       // level of UnitCount
)

// tracing is who is told of steps.
type tracing struct {
	tracer func(Step)
	marked uint64 // packets that have a number
}

// SetTracer says who is told of every step of every unit from now on; nil: nobody.
// A step is told when its end is known, which is not before its start and may be
// before its end. fn is called under the card's lock, must not call the card, and
// in stepped mode hears the same steps for the same seed and accesses. In free mode
// steps run ahead of the clock, and their times with them.
func (c *Card) SetTracer(fn func(Step)) {
	c.lock()
	c.tracer = fn
	c.leave()
}

// trace tells of a step. Without a tracer it costs one comparison. Held: c.mu.
func (c *Card) trace(s Step) {
	if c.tracer != nil {
		c.tracer(s)
	}
}

// traceLevel tells that something is value from now on. Held: c.mu.
func (c *Card) traceLevel(u Unit, lane int, what string, value int64) {
	c.trace(Step{Unit: u, Kind: StepLevel, Lane: lane, What: what, Start: c.now, End: c.now, Value: value})
}

// traceDrop tells that a packet ended at a unit, in one of the coprocessor's 182
// counters. Held: c.mu.
func (c *Card) traceDrop(u Unit, lane, counter int, p *packet) {
	c.trace(Step{Unit: u, Lane: lane, What: msg.CounterNames[counter], Start: c.now, End: c.now, Packet: p.id, Bytes: len(p.frame())})
}

// nextPacket numbers a packet that enters the card. Held: c.mu.
func (c *Card) nextPacket() uint64 {
	c.marked++
	return c.marked
}

// traceAccess tells of an access of the driver that began at a cycle and is over.
// Held: c.mu.
func (c *Card) traceAccess(u Unit, bar int, off uint64, width int, v, start uint64) {
	if c.tracer == nil {
		return
	}
	lane, name := c.registerAt(bar, off)
	c.tracer(Step{Unit: u, Lane: lane, What: name, Start: start, End: c.now, Bytes: width, Addr: off, Value: int64(v)})
}

// noRing is the lane of registers that belong to no ring.
const noRing = -1

// registerAt names what is at an offset of a BAR: a register with its ring, or the
// area that it lies in.
func (c *Card) registerAt(bar int, off uint64) (lane int, name string) {
	at := uint32(off)
	switch {
	case bar == 0 && c.inMSIX(at):
		return noRing, areaNames[areaMSIX]
	case bar == 0:
		if block := at & blockMask &^ 7; block >= blockBase {
			if i := c.acc.find(block - blockBase); i >= 0 {
				return int(at >> blockShift), csr.RingTable[i].Name
			}
		} else if i, ok := c.acc.globalAt[at&^7]; ok {
			return noRing, csr.GlobalTable[i].Name
		}
		return noRing, areaNames[areaBAR0]
	case bar != 2:
		return noRing, areaNames[areaBAR4]
	case at < csr.BAR2Facilities:
		return noRing, areaNames[areaBAR2]
	case at < csr.BAR2FacEnd:
		return noRing, areaNames[areaControl+area((at-csr.BAR2Facilities)>>20)]
	case at == gicdSetSPI:
		return noRing, areaNames[areaDoorbell]
	}
	return noRing, areaNames[areaForbidden]
}
