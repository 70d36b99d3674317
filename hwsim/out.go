package hwsim

import (
	"encoding/binary"
	"math/bits"

	"oxpd/octep/csr"
	"oxpd/ring/wire"
	"oxpd/rpc/msg"
)

// parcel is a packet for a host ring: what the length word will say and what
// follows the prefix.
type parcel struct {
	p      *packet
	tag    uint16
	port   uint16
	bare   bool   // two words in front, and no prefix of the fast path
	length uint64 // length word
}

// bytes is T, the bytes that the block writes, length word included.
func (d *parcel) bytes() int { return d.head() + len(d.p.frame()) }

// head is how many bytes there are in front of the frame.
func (d *parcel) head() int {
	if d.bare {
		return vfHead
	}
	return wire.PrefixSize
}

// outRewind is a new list: the block starts at its first entry, unless the old
// address was latched, when it goes on in the old list.
func (c *Card) outRewind(r *ring) {
	if c.latched {
		return
	}
	r.out.at, r.out.heldN, r.out.granted, r.out.lean = 0, 0, false, -1
}

// outDoorbell is a write of OUT_SLIST_DBELL (datapath.md 3.7, 3.10).
func (c *Card) outDoorbell(r *ring, n uint32) {
	o := &r.out
	if n == csr.DBellDrain && !o.enabled {
		o.credit, o.owed, o.heldN, o.granted, o.lean = 0, 0, 0, false, -1
		return
	}
	add := int64(n)
	if n == csr.DBellDrain {
		c.report(ReportDrainEnabled, "%s = %#x", csr.OutSlistDBell.Queue(r.q), n)
		if !c.o.Choices.DrainIsGrant {
			add = -1
		}
	}
	if c.acts(fltHoldCredit, c.faults.HoldCredit.has(r.q)) {
		o.owed += add
		return
	}
	if o.stuck && o.credit >= int64(c.o.Watermark) {
		o.stuck = false // credit was there already: this write revives
	}
	o.credit += add
	if !c.o.Choices.DrainIsGrant {
		o.credit = int64(int32(uint32(o.credit)))
	}
	c.traceLevel(UnitDescriptor, r.q, "credit", o.credit)
	if limit := int64(c.outWhere(r).size) + int64(c.o.Watermark) - wire.FetchBatch; o.enabled && o.credit > limit && add > 0 {
		c.report(ReportCreditAbove, "ring %d: credit %d, the grant is %d", r.q, o.credit, limit)
	}
	c.kickOut(r)
}

// kickOut fetches a batch if one is due, and lets packets that a fault made wait
// go on.
func (c *Card) kickOut(r *ring) {
	o := &r.out
	if !o.enabled || c.gone() {
		return
	}
	if !o.granted && o.credit > 0 {
		o.granted = true
		lean := -1
		if o.credit < int64(c.o.Watermark) {
			lean = [...]int{DeliverBatch: wire.FetchBatch, DeliverOne: 1, DeliverNone: 0}[c.o.Choices.UnderWatermark]
		}
		if o.heldN == 0 {
			c.fetchBatch(r)
			o.lean = lean
		}
	}
	if !c.o.Choices.LazyFetch {
		c.refill(r)
	}
	for o.waiting.len() > 0 && c.covers(r, c.buffers(r, o.waiting.at(0))) {
		d := o.waiting.pop()
		c.tally.waiting--
		c.write(r, &d)
	}
}

// refill holds one batch as soon as the credit allows.
func (c *Card) refill(r *ring) {
	o := &r.out
	if o.credit < int64(c.o.Watermark) {
		o.stuck = o.stuck || o.heldN == 0 && c.acts(fltStuckResume, c.faults.StuckResume.has(r.q))
		return
	}
	if o.stuck {
		return
	}
	o.lean = -1
	if o.heldN == 0 {
		c.fetchBatch(r)
	}
}

// fetchBatch takes sixteen list entries and debits sixteen.
func (c *Card) fetchBatch(r *ring) {
	o := &r.out
	where := c.outWhere(r)
	o.lean = -1
	o.heldN = wire.FetchBatch
	var list [wire.FetchBatch * wire.ListEntry]byte // stays zero when the card may not read it
	c.dmaRead("list fetch", where.base+o.at*wire.ListEntry, list[:])
	swap := o.control&csr.OutControlESP == 0 // F25
	for i := range o.held {
		o.held[i] = binary.LittleEndian.Uint64(list[i*wire.ListEntry:])
		if swap {
			o.held[i] = bits.ReverseBytes64(o.held[i])
		}
	}
	o.credit -= wire.FetchBatch
	c.trace(Step{Unit: UnitDescriptor, Lane: r.q, What: "16 entries", Start: c.now, End: c.now, Bytes: len(list), Addr: where.base + o.at*wire.ListEntry})
	c.traceLevel(UnitDescriptor, r.q, "credit", o.credit)
	o.at += wire.FetchBatch
	if o.at >= where.size {
		o.at = 0
	}
}

// buffers is how many list entries a packet takes at the programmed BSIZE.
func (c *Card) buffers(r *ring, d *parcel) int {
	size := int(csr.OutControlBSize.Get(r.out.control))
	if size == 0 {
		return 0
	}
	return max(1, (d.bytes()+size-1)/size)
}

// available is how many entries the ring can use now: the held ones and what
// whole batches the credit still allows.
func (c *Card) available(r *ring) int {
	o := &r.out
	if wm := int64(c.o.Watermark); o.credit >= wm && !o.stuck {
		return o.heldN + int((o.credit-wm)/wire.FetchBatch+1)*wire.FetchBatch
	}
	if o.lean >= 0 {
		return min(o.heldN, o.lean)
	}
	return o.heldN
}

// outRuns tells whether a ring takes packets: enabled, or disabled and not
// stopped by that (choice 27, and a fault that asks for no latched addresses).
func (c *Card) outRuns(r *ring) bool {
	return r.out.enabled || c.o.Choices.DisabledWrites && c.latched || c.acts(fltIgnoreDisable, c.faults.IgnoreDisable.has(r.q))
}

// covers tells whether a packet of n buffers can be written whole.
func (c *Card) covers(r *ring, n int) bool {
	if c.gone() || !c.outRuns(r) {
		return false
	}
	if r.out.status != 0 && (c.o.Choices.StatusStops || c.acts(fltStatusStops, c.faults.StatusStops.has(r.q))) {
		return false
	}
	return n > 0 && c.available(r) >= n
}

// toRing gives a packet to a host ring: written, or refused whole. It takes the
// packet.
func (c *Card) toRing(q int, d parcel) {
	r := &c.rings[q]
	n := c.buffers(r, &d)
	if n == 0 {
		c.report(ReportBSize, "ring %d", q)
	}
	if r.out.waiting.len() == 0 && c.covers(r, n) {
		c.write(r, &d)
		return
	}
	if c.acts(fltWaitForCredit, r.out.waiting.len() < c.faults.WaitForCredit) {
		c.tally.waiting++
		r.out.waiting.push(d)
		return
	}
	if c.o.Choices.CutMidway && n > 1 && c.covers(r, 1) {
		c.cut(r, &d)
	}
	c.traceDrop(UnitDescriptor, q, msg.CntTXDropQueueFull, d.p) // the credit does not cover it
	c.refuse(&d)
	c.pool.put(d.p)
}

// take returns the next n list entries, fetching batches as it goes. The slice is
// good until the next call.
func (c *Card) take(r *ring, n int) []uint64 {
	o := &r.out
	c.entries = c.entries[:0]
	for ; n > 0; n-- {
		if o.heldN == 0 {
			c.fetchBatch(r)
		}
		c.entries = append(c.entries, o.held[wire.FetchBatch-o.heldN])
		o.heldN--
		if o.lean > 0 {
			o.lean--
		}
		if !c.o.Choices.LazyFetch {
			c.refill(r)
		}
	}
	return c.entries
}

// write writes a packet that the credit covers: prefix and frame over N buffers,
// the length word last, then the count.
func (c *Card) write(r *ring, d *parcel) {
	n := c.buffers(r, d)
	c.spoilLength(r, d)
	for skip := &c.faults.SkipEntries[r.q]; c.acts(fltSkipEntries, *skip > 0 && c.available(r) > n); *skip-- {
		c.take(r, 1)
	}
	entries := c.take(r, n)
	c.written(r, d)
	if c.isLate(r) {
		c.writeLate(r, *d, append([]uint64(nil), entries...))
		return
	}
	c.place(r, d, entries, 0)
	c.putLength(r, d, entries[0])
	c.raise(r)
	c.pool.put(d.p)
}

// place writes the buffers of a packet from number first on, everything but the
// length word. A buffer that the card may not write is left out; the block does
// not notice.
func (c *Card) place(r *ring, d *parcel, entries []uint64, first int) {
	size := int(csr.OutControlBSize.Get(r.out.control))
	var prefix [wire.PrefixSize]byte
	d.prefix(&prefix)
	frame, head := d.p.frame(), d.head()
	for i := first; i < len(entries); i++ {
		// Bytes from..to of the packet are this buffer's.
		from, to := i*size, min((i+1)*size, d.bytes())
		skip := 0
		if i == 0 {
			skip = min(wire.LenWord, to)
		}
		c.dmaAccess("packet write", entries[i]+uint64(skip), to-from-skip, true, func(m []byte, at int) {
			at += from + skip
			if at < head {
				n := copy(m, prefix[at:head])
				m, at = m[n:], at+n
			}
			copy(m, frame[at-head:])
		})
		c.trace(Step{Unit: UnitWrite, Lane: r.q, What: "buffer", Start: c.now, End: c.now, Packet: d.p.id, Bytes: to - from - skip, Addr: entries[i] + uint64(skip)})
	}
}

// putLength makes a packet visible: its length word in one big-endian store,
// after everything else, also for a reader on another core.
func (c *Card) putLength(r *ring, d *parcel, entry uint64) {
	c.trace(Step{Unit: UnitWrite, Lane: r.q, What: "length word", Start: c.now, End: c.now, Packet: d.p.id, Bytes: wire.LenWord, Addr: entry})
	c.dmaAccess("length word", entry, wire.LenWord, true, func(m []byte, at int) {
		c.order.Add(0) // a locked add keeps the stores before it in front
		if len(m) == wire.LenWord {
			binary.BigEndian.PutUint64(m, d.length)
			return
		}
		var word [wire.LenWord]byte // it lies in two regions
		binary.BigEndian.PutUint64(word[:], d.length)
		copy(m, word[at:])
	})
}

// prefix fills the fields of datapath.md 3.3; the length word is not touched.
func (d *parcel) prefix(b *[wire.PrefixSize]byte) {
	binary.LittleEndian.PutUint64(b[wire.PfxResp:], wire.RespPunt)
	binary.BigEndian.PutUint16(b[wire.PfxTag:], d.tag)
	binary.LittleEndian.PutUint32(b[wire.PfxID:], wire.PrefixID)
	b[wire.PfxValid] = 1
	binary.LittleEndian.PutUint16(b[wire.PfxPort:], d.port)
}

// written counts a packet that is in host memory.
func (c *Card) written(r *ring, d *parcel) {
	r.out.packets++
	r.out.bytes += d.length
	if c.o.Choices.ByteCntWithHead {
		r.out.bytes += wire.LenWord
	}
	c.tally.written++
}

// raise adds one to the ring's count and sends its message when that crosses the
// level.
func (c *Card) raise(r *ring) {
	if c.acts(fltLoseCounts, c.faults.LoseCounts[r.q] > 0) {
		c.faults.LoseCounts[r.q]--
		return
	}
	before := r.out.count
	r.out.count++
	c.traceLevel(UnitCount, r.q, "count", int64(r.out.count))
	if uint64(before) < r.out.level() {
		c.outLevel(r, r.out.count)
	}
}

// level is the packet level; 0 acts as 1.
func (o *outHalf) level() uint64 { return max(1, csr.OutIntLevelPkts.Get(o.levels)) }

// outLevel looks at a count that has just risen, or that is looked at as if it
// had: at the level a message goes out, below it the timer starts.
func (c *Card) outLevel(r *ring, count uint32) {
	o := &r.out
	if uint64(count) >= o.level() {
		c.signal(r)
		return
	}
	if count == 0 {
		return
	}
	ticks := csr.OutIntLevelTicks.Get(o.levels)
	if ticks == 0 {
		if c.o.Choices.TimerZeroFires {
			c.signal(r)
		}
		return
	}
	if o.timer.idx < 0 {
		c.agenda.arm(o.timer, c.now+ticks*csr.ClocksPerTick)
		c.trace(Step{Unit: UnitTimer, Lane: r.q, What: "armed", Start: c.now, End: c.now})
	}
}

// timerExpired is the event of a ring's timer.
func (c *Card) timerExpired(r *ring) {
	if n := r.out.count; n > 0 && uint64(n) < r.out.level() {
		c.trace(Step{Unit: UnitTimer, Lane: r.q, What: "fired", Start: c.now, End: c.now})
		c.signal(r)
	}
}

// signal latches the status and sends the ring's message.
func (c *Card) signal(r *ring) {
	c.agenda.disarm(r.out.timer)
	r.out.status |= csr.OutIntStatusPacket
	if !c.acts(fltLoseMessages, c.faults.LoseMessages.has(r.q)) {
		if v := csr.MSIXRingVector + r.q; v < c.Vectors() {
			c.message(v)
		}
	}
}

// outAck is a write of OUT_CNTS: subtract, and with RESEND look again.
func (c *Card) outAck(r *ring, v uint64) {
	o := &r.out
	o.count = c.subtract(o.count, uint32(v), false)
	c.traceLevel(UnitCount, r.q, "count", int64(o.count))
	if o.count == 0 {
		c.agenda.disarm(o.timer)
	}
	if v&csr.OutCntsResend == 0 || o.count == 0 {
		return
	}
	if c.o.Choices.ResendAtLevel && uint64(o.count) < o.level() {
		return
	}
	c.signal(r)
}

// isLate tells whether a fault or choice 23 takes a packet apart in time.
func (c *Card) isLate(r *ring) bool {
	f := c.drawLate(r.q)
	return (f.LateData | f.LateLength | f.LateTail | f.LateCount).has(r.q) || c.o.Choices.LengthFirst
}

// lengthFirstBy is how long a span's tail lags its length word under choice 23.
// Estimate.
const lengthFirstBy = Hz / 1_000_000

// writeLate is write with one of its steps put off. The count follows the last
// step, except where the fault is that it does not.
func (c *Card) writeLate(r *ring, d parcel, entries []uint64) {
	f := &c.inject.late
	by := cyclesOf(c.faults.LateBy)
	var later func()
	switch {
	case f.LateData.has(r.q):
		c.raise(r)
		later = func() {
			c.place(r, &d, entries, 0)
			c.putLength(r, &d, entries[0])
		}
	case f.LateLength.has(r.q):
		c.place(r, &d, entries, 0)
		later = func() {
			c.putLength(r, &d, entries[0])
			c.raise(r)
		}
	case f.LateCount.has(r.q):
		c.place(r, &d, entries, 0)
		c.putLength(r, &d, entries[0])
		later = func() { c.raise(r) }
	default:
		by = max(by, lengthFirstBy)
		c.place(r, &d, entries[:1], 0)
		c.putLength(r, &d, entries[0])
		later = func() {
			c.place(r, &d, entries, 1)
			c.raise(r)
		}
	}
	r.out.late++
	epoch := c.epoch
	c.after(by, func() {
		if c.epoch != epoch || c.gone() {
			return
		}
		r.out.late--
		later()
		c.pool.put(d.p)
	})
}

// cut is choice 22: what the credit covers of a packet is written, never its
// length word.
func (c *Card) cut(r *ring, d *parcel) {
	c.place(r, d, c.take(r, c.available(r)), 0)
}
