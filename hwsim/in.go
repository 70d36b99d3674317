package hwsim

import (
	"encoding/binary"

	"oxpd/octep/csr"
	"oxpd/ring/wire"
)

// instruction sizes: IS_64B is off at reset (datapath.md 1).
const instrBytes32 = 32

func (c *Card) instrBytes(r *ring) uint32 {
	if r.in.control&csr.InControlIs64B != 0 {
		return wire.InstrSize
	}
	return instrBytes32
}

// fetched is an instruction between its fetch and the read of its data.
type fetched struct {
	ring  int
	id    uint64 // number in traces
	due   uint64
	words [wire.InstrSize]byte
}

// inDoorbell is a write of IN_INSTR_DBELL: n more instructions, or a drain.
func (c *Card) inDoorbell(r *ring, n uint32) {
	if n == csr.DBellDrain {
		if !r.in.enabled {
			if !c.acts(fltNoDrain, c.faults.NoDrain.has(r.q)) {
				r.in.total -= uint64(r.in.posted)
				r.in.posted = 0
			}
			return
		}
		c.report(ReportDrainEnabled, "%s = %#x", csr.InInstrDBell.Queue(r.q), n)
	}
	r.in.posted += n
	r.in.total += uint64(n)
	if n != 0 {
		if size := c.inWhere(r).size; uint64(r.in.posted) >= max(size, 1) {
			c.report(ReportINOverrun, "ring %d: %d instructions posted and not fetched, the ring has %d and one stays empty", r.q, r.in.posted, size)
		} else if out := r.in.total - r.in.finished; out > size {
			c.report(ReportINSlotReuse, "ring %d: %d instructions posted and not finished in a ring of %d", r.q, out, size)
		}
	}
	c.kickIn(r)
}

// kickIn arms the fetch of the next instruction if there is one to fetch.
func (c *Card) kickIn(r *ring) {
	if r.in.ev.idx < 0 && c.inReady(r) {
		c.agenda.arm(r.in.ev, c.now+c.fetchCycles())
	}
}

func (c *Card) inReady(r *ring) bool {
	return r.in.enabled && r.in.posted > 0 && r.in.flying < c.o.Queues.InFlight && !c.acts(fltStopFetch, c.faults.StopFetch) && !c.gone()
}

func (c *Card) fetchCycles() uint64 {
	return c.lat.fetch + cyclesOf(c.delay(fltFetchDelay, c.faults.FetchDelay))
}

// fetch is the event of a ring's input half: take the next instruction into the
// block. Its data is read later, by readData.
func (c *Card) fetch(r *ring) {
	for n := 0; ; n++ {
		if !c.inReady(r) {
			return
		}
		where, size := c.inWhere(r), c.instrBytes(r)
		c.fly.push(fetched{ring: r.q, id: c.nextPacket()})
		f := c.fly.at(c.fly.len() - 1)
		bus := where.base + r.in.at*uint64(size)
		c.dmaRead("instruction fetch", bus, f.words[:size])
		// One instruction is in the block.
		c.trace(Step{Unit: UnitFetch, Lane: r.q, What: "instruction", Start: c.now - min(c.now, c.fetchCycles()), End: c.now, Packet: f.id, Bytes: int(size), Addr: bus})
		if r.in.control&csr.InControlESR == 0 {
			swapWords(f.words[:])
		}
		r.in.at++
		if r.in.at >= where.size {
			r.in.at = 0
		}
		r.in.posted--
		r.in.flying++
		r.in.packets++
		r.in.bytes += binary.LittleEndian.Uint64(f.words[wire.InstrIH3:]) & wire.IH3TlenMask
		f.due = max(c.now+c.lat.read+cyclesOf(c.delay(fltReadDelay, c.faults.ReadDelay)), c.flyDue)
		c.flyDue = f.due
		// Its data is asked for now and read at the end.
		c.trace(Step{Unit: UnitRead, Lane: r.q, What: "data", Start: c.now, End: f.due, Packet: f.id,
			Bytes: int(binary.LittleEndian.Uint64(f.words[wire.InstrIH3:]) & wire.IH3TlenMask), Addr: binary.LittleEndian.Uint64(f.words[wire.InstrDptr:])})
		if c.readEv.idx < 0 {
			c.agenda.arm(c.readEv, c.fly.at(0).due)
		}
		if c.mode == stepped || n == freeBatch {
			break
		}
	}
	c.kickIn(r)
}

// swapWords reverses the bytes of each 64-bit word: what the block reads when
// the host left the swap bit in the wrong state (F25).
func swapWords(b []byte) {
	for ; len(b) >= 8; b = b[8:] {
		binary.BigEndian.PutUint64(b, binary.LittleEndian.Uint64(b))
	}
}

// readData is the event of the instructions in flight: read the data of those
// that are due and hand the frames to the fast path. Only now is a slot free.
func (c *Card) readData() {
	for c.fly.len() > 0 {
		f := c.fly.at(0)
		if f.due > c.horizon || c.gone() {
			break
		}
		r := &c.rings[f.ring]
		c.execute(f)
		c.fly.drop()
		r.in.flying--
		r.in.finished++
		r.in.count++
		c.kickIn(r)
		if c.mode == stepped {
			break
		}
	}
	if c.fly.len() > 0 && !c.gone() {
		c.agenda.arm(c.readEv, max(c.fly.at(0).due, c.now))
	}
}

// execute reads what an instruction points at. The fields come from the raw
// words; only their places are shared with the driver.
func (c *Card) execute(f *fetched) {
	t := &c.tally
	t.instructions++
	le := binary.LittleEndian
	dptr := le.Uint64(f.words[wire.InstrDptr:])
	ih3 := le.Uint64(f.words[wire.InstrIH3:])
	n := int(ih3&wire.IH3TlenMask) - wire.FrontSize
	if n < 0 {
		c.report(ReportInstruction, "ring %d: tlen %d is below the front data of %d", f.ring, n+wire.FrontSize, wire.FrontSize)
		n = 0
	}
	gather, gsz := ih3&wire.IH3Gather != 0, int(ih3>>wire.IH3GszShift&wire.IH3GszMask)
	p := c.pool.get(n)
	p.id = f.id
	ok := false
	switch {
	case gather && gsz == 0:
		c.report(ReportGatherBit, "ring %d: dptr %#x, tlen %d", f.ring, dptr, n+wire.FrontSize)
	case gather:
		ok = c.gather(dptr, gsz, p.b)
	default:
		if gsz != 0 {
			// The bytes at dptr are sent, be they a frame or a fragment list.
			c.report(ReportGatherSize, "ring %d: gsz %d, dptr %#x", f.ring, gsz, dptr)
		}
		ok = c.dmaRead("read", dptr, p.b)
	}
	if !ok {
		t.badDMA++
		c.pool.put(p)
		return
	}
	c.fromHost(f, p)
}

// Gather list: groups of four 16-bit sizes, in reversed order, and four pointers
// (datapath.md 2.1).
const (
	gatherGroup = 40
	gatherPtrs  = 4
)

// gather fills b from the fragments of a list at bus.
func (c *Card) gather(bus uint64, fragments int, b []byte) bool {
	var group [gatherGroup]byte
	for i := 0; i < fragments && len(b) > 0; i++ {
		if !c.dmaRead("gather list", bus+uint64(i/gatherPtrs*gatherGroup), group[:]) {
			return false
		}
		k := i % gatherPtrs
		n := min(int(binary.LittleEndian.Uint16(group[2*(gatherPtrs-1-k):])), len(b))
		if !c.dmaRead("read", binary.LittleEndian.Uint64(group[8+8*k:]), b[:n]) {
			return false
		}
		b = b[n:]
	}
	if len(b) > 0 {
		c.report(ReportInstruction, "gather list is %d bytes short of tlen", len(b))
	}
	return len(b) == 0
}
