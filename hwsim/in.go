package hwsim

import (
	"encoding/binary"
	"math/bits"

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

// fetching is an instruction that is asked for.
type fetching struct {
	r     *ring
	id    uint64 // number in traces
	index uint64 // in its ring
	bus   uint64
	size  uint32
}

// inUnits are what all input rings share: one fetch engine, which takes them in
// turn, and what follows it, each in order.
type inUnits struct {
	ready   RingMask // rings that may have an instruction to fetch
	turn    int      // ring that is looked at next
	free    uint64   // cycle from which the engine can ask for another one
	running bool     // under fetch
	ev      *event

	words stage[fetching] // reads of instructions
	wait  stage[*packet]  // instructions on their way to the reader
	data  stage[*packet]  // reads of what they point at
}

func (u *inUnits) init(c *Card) {
	u.ev = newEvent(flow, c.fetch)
	u.words.init(c, true, c.instruction)
	u.wait.init(c, true, c.askData)
	u.data.init(c, true, c.readData)
}

func (u *inUnits) reset(c *Card) {
	u.ready, u.turn, u.free = 0, 0, 0
	c.agenda.disarm(u.ev)
	u.words.reset()
	u.wait.reset()
	u.data.reset()
}

// resume lets what was held back while the card was off the bus go on.
func (u *inUnits) resume() {
	u.words.arm()
	u.wait.arm()
	u.data.arm()
}

// finish does at once what was asked of host memory, whatever time it would take.
func (u *inUnits) finish() {
	u.words.finish()
	u.wait.finish()
	u.data.finish()
}

func (u *inUnits) len() int { return u.words.len() + u.wait.len() + u.data.len() }

// inDoorbell is a write of IN_INSTR_DBELL: n more instructions, or a drain.
func (c *Card) inDoorbell(r *ring, n uint32) {
	if n == csr.DBellDrain {
		if !r.in.enabled {
			if !c.acts(fltNoDrain, c.faults.NoDrain.has(r.q)) {
				r.in.total -= uint64(r.in.posted - r.in.asked)
				r.in.posted = r.in.asked
			}
			return
		}
		c.report(ReportDrainEnabled, "%s = %#x", csr.InInstrDBell.Queue(r.q), n)
	}
	r.in.posted += n
	r.in.total += uint64(n)
	if n != 0 {
		if size := c.inWhere(r).size; uint64(r.in.posted) >= max(size, 1) {
			c.report(ReportINOverrun, "%s: %d instructions posted and not fetched, the ring has %d and one stays empty", csr.InInstrDBell.Queue(r.q), r.in.posted, size)
		} else if out := r.in.total - r.in.finished; out > size {
			c.report(ReportINSlotReuse, "%s: %d instructions posted and not finished in a ring of %d", csr.InInstrDBell.Queue(r.q), out, size)
		}
	}
	c.kickIn(r, c.storeAt())
}

// kickIn lets the fetch engine look at a ring from a cycle on.
func (c *Card) kickIn(r *ring, at uint64) {
	u := &c.ins
	if u.ready.has(r.q) || !c.inReady(r) {
		return
	}
	u.ready |= 1 << r.q
	if u.ev.idx < 0 && !u.running {
		c.agenda.arm(u.ev, max(at, u.free))
	}
}

func (c *Card) inReady(r *ring) bool {
	return r.in.enabled && r.in.posted > r.in.asked && r.in.flying+int(r.in.asked) < c.o.Queues.InFlight && !c.acts(fltStopFetch, c.faults.StopFetch) && !c.gone()
}

// fetch is the event of the fetch engine: ask for one instruction of the next ring
// that has one.
func (c *Card) fetch() {
	u := &c.ins
	u.running = true
	for n := 0; n < c.batch(); n++ {
		r := c.nextIn()
		if r == nil {
			break
		}
		at := max(u.ev.at, u.free)
		if at > c.horizon {
			break
		}
		c.askInstruction(r, at)
	}
	u.running = false
	if u.ready != 0 {
		c.agenda.arm(u.ev, max(u.ev.at, u.free))
	}
}

// nextIn finds the next ring with an instruction to fetch.
func (c *Card) nextIn() *ring {
	u := &c.ins
	for u.ready != 0 {
		q := (u.turn + bits.TrailingZeros64(bits.RotateLeft64(uint64(u.ready), -u.turn))) % csr.Rings
		if c.inReady(&c.rings[q]) {
			u.turn = q // stays in front until it is asked
			return &c.rings[q]
		}
		u.ready &^= 1 << q
	}
	return nil
}

// askInstruction sends the read of a ring's next instruction.
func (c *Card) askInstruction(r *ring, at uint64) {
	u := &c.ins
	where, size := c.inWhere(r), c.instrBytes(r)
	f := fetching{r: r, id: c.nextPacket(), size: size}
	if where.size > 0 {
		f.index = (r.in.at + uint64(r.in.asked)) % where.size
	}
	f.bus = where.base + f.index*uint64(size)
	delay := cyclesOf(c.delay(fltFetchDelay, c.faults.FetchDelay))
	came := c.hostRead(linkFetch, at, int(size), "instruction") + delay
	u.free = at + c.lat.fetch + delay
	u.turn = (r.q + 1) % csr.Rings
	r.in.asked++
	c.trace(Step{Unit: UnitFetch, Lane: r.q, What: "instruction", Start: at, End: came, Packet: f.id, Bytes: int(size), Addr: f.bus})
	u.words.enter(f, came)
}

// instruction is the arrival of an instruction in the block. Its data is asked for
// later, by askData.
func (c *Card) instruction(f fetching, at uint64) {
	r := f.r
	var words [wire.InstrSize]byte
	c.dmaRead("instruction fetch", f.bus, words[:f.size])
	if r.in.control&csr.InControlESR == 0 {
		swapWords(words[:])
	}
	r.in.at = f.index + 1
	if r.in.at >= c.inWhere(r).size {
		r.in.at = 0
	}
	r.in.asked--
	r.in.posted--
	r.in.flying++
	r.in.packets++
	le := binary.LittleEndian
	ih3 := le.Uint64(words[wire.InstrIH3:])
	r.in.bytes += ih3 & wire.IH3TlenMask
	p := c.pool.get(max(int(ih3&wire.IH3TlenMask)-wire.FrontSize, 0))
	p.id = f.id
	p.fromRing = fromRing{ring: r.q, dptr: le.Uint64(words[wire.InstrDptr:]), ih3: ih3, pki: le.Uint64(words[wire.InstrPKI:]), irh: binary.BigEndian.Uint64(words[wire.InstrIRH:])}
	wait := c.lat.read + cyclesOf(c.delay(fltReadDelay, c.faults.ReadDelay))
	if c.instant {
		wait = 0
	}
	c.ins.wait.enter(p, at+wait)
}

// askData sends the reads of what an instruction points at: of the list first where
// that is one.
func (c *Card) askData(p *packet, at uint64) {
	asked := at
	if p.ih3&wire.IH3Gather != 0 {
		groups := (int(p.ih3>>wire.IH3GszShift&wire.IH3GszMask) + gatherPtrs - 1) / gatherPtrs
		at = c.hostRead(linkRead, at, groups*gatherGroup, "gather list")
	}
	came := c.hostRead(linkRead, at, len(p.b), "data")
	c.trace(Step{Unit: UnitRead, Lane: p.ring, What: "data", Start: asked, End: came, Packet: p.id, Bytes: int(p.ih3 & wire.IH3TlenMask), Addr: p.dptr})
	c.ins.data.enter(p, came)
}

// swapWords reverses the bytes of each 64-bit word: what the block reads when
// the host left the swap bit in the wrong state (F25).
func swapWords(b []byte) {
	for ; len(b) >= 8; b = b[8:] {
		binary.BigEndian.PutUint64(b, binary.LittleEndian.Uint64(b))
	}
}

// readData is the arrival of an instruction's data: it is handed to the fast path,
// and only now is the slot free.
func (c *Card) readData(p *packet, at uint64) {
	r := &c.rings[p.ring]
	c.execute(p, at)
	r.in.flying--
	r.in.finished++
	r.in.count++
	c.kickIn(r, at)
}

// execute reads what an instruction points at. The fields come from the raw
// words; only their places are shared with the driver.
func (c *Card) execute(p *packet, at uint64) {
	t := &c.tally
	t.instructions++
	tlen := int(p.ih3 & wire.IH3TlenMask)
	if tlen < wire.FrontSize {
		c.report(ReportInstruction, "ring %d: tlen %d is below the front data of %d", p.ring, tlen, wire.FrontSize)
	}
	gather, gsz := p.ih3&wire.IH3Gather != 0, int(p.ih3>>wire.IH3GszShift&wire.IH3GszMask)
	ok := false
	switch {
	case gather && gsz == 0:
		c.report(ReportGatherBit, "ring %d: dptr %#x, tlen %d", p.ring, p.dptr, tlen)
	case gather:
		ok = c.gather(p.dptr, gsz, p.b)
	default:
		if gsz != 0 {
			// The bytes at dptr are sent, be they a frame or a fragment list.
			c.report(ReportGatherSize, "ring %d: gsz %d, dptr %#x", p.ring, gsz, p.dptr)
		}
		ok = c.dmaRead("read", p.dptr, p.b)
	}
	switch {
	case !ok:
		t.badDMA++
		c.pool.put(p)
	case c.o.Function == VF:
		c.loopBack(p, at)
	default:
		c.toFastPath(p, at)
	}
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
