package hwsim

import (
	"encoding/binary"
	"math/bits"

	"oxpd/octep/csr"
	"oxpd/ring/wire"
)

// total is T, the bytes that the block writes, length word included.
func (p *packet) total() int { return p.head() + len(p.frame()) }

// head is how many bytes there are in front of the frame.
func (p *packet) head() int {
	if p.bare {
		return vfHead
	}
	return wire.PrefixSize
}

// underway is a packet that is on the link.
type underway struct {
	r       *ring
	p       *packet
	counted bool // its count goes its own way
}

// outUnits are what all output rings share, each in order.
type outUnits struct {
	writes   stage[underway] // packets on the link
	counts   stage[*ring]    // counts that follow them
	messages stage[int]      // messages on the link, by vector
}

func (u *outUnits) init(c *Card) {
	u.writes.init(c, true, c.land)
	u.counts.init(c, true, c.count)
	u.messages.init(c, true, func(vector int, _ uint64) { c.out.irq(vector) })
}

func (u *outUnits) reset() {
	u.writes.reset()
	u.counts.reset()
	u.messages.reset()
}

// resume lets what was held back while the card was off the bus go on.
func (u *outUnits) resume(c *Card) {
	u.writes.arm()
	u.counts.arm()
	u.messages.arm()
	for q := range c.rings {
		if o := &c.rings[q].out; o.coming > 0 {
			c.agenda.arm(o.listEv, max(o.came, c.now))
		}
	}
}

// outRewind is a new list: the block starts at its first entry, unless the old
// address was latched, when it goes on in the old list.
func (c *Card) outRewind(r *ring) {
	if c.latched {
		return
	}
	c.forget(r)
	r.out.at, r.out.granted, r.out.lean = 0, false, -1
}

// forget takes the entries that a ring holds or has asked for away from it, and
// with them the packets that it had room for: they end as refused.
func (c *Card) forget(r *ring) {
	o := &r.out
	o.heldN, o.coming, o.reserved = 0, 0, 0
	c.agenda.disarm(o.listEv)
	c.agenda.disarm(o.writeEv)
	for o.queue.len() > 0 {
		p := o.queue.pop()
		if !p.cut {
			c.tally.admitted--
			c.refuse(r, p)
		}
		c.pool.put(p)
	}
}

// outDoorbell is a write of OUT_SLIST_DBELL (datapath.md 3.7, 3.10).
func (c *Card) outDoorbell(r *ring, n uint32) {
	o := &r.out
	if n == csr.DBellDrain && !o.enabled {
		c.forget(r)
		o.credit, o.owed, o.granted, o.lean = 0, 0, false, -1
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
	c.traceLevel(UnitDescriptor, r.q, WhatCredit, o.credit)
	if limit := int64(c.outWhere(r).size) + int64(c.o.Watermark) - wire.FetchBatch; o.enabled && o.credit > limit && add > 0 {
		c.report(ReportCreditAbove, "%s: credit %d, the grant is %d", csr.OutSlistDBell.Queue(r.q), o.credit, limit)
	}
	c.kickOut(r)
}

// kickOut asks for a batch if one is due, and lets packets that wait go on.
func (c *Card) kickOut(r *ring) {
	o := &r.out
	if !o.enabled || c.gone() {
		return
	}
	at := c.storeAt()
	if !o.granted && o.credit > 0 {
		o.granted = true
		lean := -1
		if o.credit < int64(c.o.Watermark) {
			lean = [...]int{DeliverBatch: wire.FetchBatch, DeliverOne: 1, DeliverNone: 0}[c.o.Choices.UnderWatermark]
		}
		if o.heldN+o.coming == 0 {
			c.fetchBatch(r, at)
			o.lean = lean
		}
	}
	if !c.o.Choices.LazyFetch {
		c.refill(r, at)
	}
	for o.waiting.len() > 0 && c.covers(r, c.buffers(r, *o.waiting.at(0))) {
		p := o.waiting.pop()
		c.tally.waiting--
		c.admit(r, p, c.buffers(r, p), at)
	}
	if o.queue.len() > 0 {
		c.issue(r, at)
	}
}

// refill holds one batch as soon as the credit allows.
func (c *Card) refill(r *ring, at uint64) {
	o := &r.out
	if o.credit < int64(c.o.Watermark) {
		o.stuck = o.stuck || o.heldN+o.coming == 0 && c.acts(fltStuckResume, c.faults.StuckResume.has(r.q))
		return
	}
	if o.stuck {
		return
	}
	o.lean = -1
	if o.heldN+o.coming == 0 {
		c.fetchBatch(r, at)
	}
}

// fetchBatch asks for sixteen list entries and debits sixteen.
func (c *Card) fetchBatch(r *ring, at uint64) {
	o := &r.out
	const bytes = wire.FetchBatch * wire.ListEntry
	where := c.outWhere(r)
	o.lean = -1
	o.list = where.base + o.at*wire.ListEntry
	o.coming = wire.FetchBatch
	o.came = c.hostRead(linkOut, at, bytes, "list entries")
	o.credit -= wire.FetchBatch
	c.trace(Step{Unit: UnitDescriptor, Lane: r.q, What: "16 entries", Start: at, End: o.came, Bytes: bytes, Addr: o.list})
	c.traceLevel(UnitDescriptor, r.q, WhatCredit, o.credit)
	o.at += wire.FetchBatch
	if o.at >= where.size {
		o.at = 0
	}
	if c.early(o.came) {
		c.hold(r)
		return
	}
	c.agenda.arm(o.listEv, o.came)
}

// hold is the arrival of list entries.
func (c *Card) hold(r *ring) {
	o := &r.out
	var list [wire.FetchBatch * wire.ListEntry]byte // stays zero when the card may not read it
	c.dmaRead("list fetch", o.list, list[:])
	swap := o.control&csr.OutControlESP == 0 // F25
	for i := range o.held {
		o.held[i] = binary.LittleEndian.Uint64(list[i*wire.ListEntry:])
		if swap {
			o.held[i] = bits.ReverseBytes64(o.held[i])
		}
	}
	o.heldN, o.coming = o.coming, 0
}

// listCame is the event of list entries that arrive.
func (c *Card) listCame(r *ring) {
	if c.gone() {
		return
	}
	c.hold(r)
	c.issue(r, r.out.came)
}

// buffers is how many list entries a packet takes at the programmed BSIZE.
func (c *Card) buffers(r *ring, p *packet) int {
	size := int(csr.OutControlBSize.Get(r.out.control))
	if size == 0 {
		return 0
	}
	return max(1, (p.total()+size-1)/size)
}

// available is how many entries the ring has for a packet that comes now: those
// that it holds or has asked for and what whole batches the credit still allows,
// less what packets take that were admitted before.
func (c *Card) available(r *ring) int {
	o := &r.out
	n := o.heldN + o.coming
	switch wm := int64(c.o.Watermark); {
	case o.credit >= wm && !o.stuck:
		n += int((o.credit-wm)/wire.FetchBatch+1) * wire.FetchBatch
	case o.lean >= 0:
		n = min(n, o.lean)
	}
	return n - o.reserved
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

// toHost gives a packet to a host ring at a cycle: admitted whole, or refused
// whole. It takes the packet.
func (c *Card) toHost(q int, p *packet, at uint64) {
	r := &c.rings[q]
	n := c.buffers(r, p)
	if n == 0 {
		c.report(ReportBSize, "%s: BSIZE is 0", csr.OutControl.Queue(q))
	}
	switch {
	case r.out.queue.len() >= c.o.Queues.OutRing:
	case r.out.waiting.len() == 0 && c.covers(r, n):
		c.admit(r, p, n, at)
		c.issue(r, at)
		return
	case c.acts(fltWaitForCredit, r.out.waiting.len() < c.faults.WaitForCredit):
		c.tally.waiting++
		r.out.waiting.push(p)
		return
	}
	c.refuse(r, p)
	if c.o.Choices.CutMidway && n > 1 && c.covers(r, 1) {
		p.cut = true
		c.admit(r, p, c.available(r), at)
		c.issue(r, at)
		return
	}
	c.pool.put(p)
}

// admit queues a packet for n entries, which the ring has for it: all that it takes
// or, where it is to be cut, all that there are.
func (c *Card) admit(r *ring, p *packet, n int, at uint64) {
	p.n, p.due = n, at
	if !p.cut {
		c.tally.admitted++
		c.spoilLength(r, p)
		for skip := &c.faults.SkipEntries[r.q]; c.acts(fltSkipEntries, *skip > 0 && c.available(r) > p.n+p.skip); *skip-- {
			p.skip++
		}
	}
	r.out.reserved += p.n + p.skip
	r.out.queue.push(p)
}

// issue begins the writes of a ring's packets, as far as list entries have come and
// the link takes them. at is not before the cycle of what happened to call it.
func (c *Card) issue(r *ring, at uint64) {
	o := &r.out
	for o.queue.len() > 0 && !c.gone() {
		p := *o.queue.at(0)
		at = max(at, p.due)
		if !c.collect(r, p, &at) {
			return
		}
		if from := c.room(&c.link.up, linkOut); from > at && !c.instant {
			if !c.early(from) {
				c.agenda.arm(o.writeEv, from)
				return
			}
			at = from
		}
		p.late = c.late(r)
		sent := c.sendPacket(r, p, at)
		o.queue.drop()
		c.sent(r, p, sent)
	}
}

// sent is a packet whose last byte is on the link at a cycle. Its count follows that
// byte; a read of the count that sees it returns behind the packet. In free mode
// reads take no time, and the count waits until the packet is there.
func (c *Card) sent(r *ring, p *packet, at uint64) {
	w := underway{r: r, p: p}
	landed := at + c.lat.link
	if c.instant {
		landed = at
	}
	r.out.onLink++
	if !p.cut && p.late == notLate && c.mode == stepped && !c.instant {
		w.counted = true
		r.out.onLink++
		c.outs.counts.enter(r, at+c.lat.count)
	}
	c.outs.writes.enter(w, landed)
}

// collect takes the list entries of the packet at the head of a ring's queue. It
// reports whether it has all of them, and moves at to when it had.
func (c *Card) collect(r *ring, p *packet, at *uint64) bool {
	o := &r.out
	for len(p.bufs) < p.n+p.skip {
		if o.heldN == 0 {
			if o.coming == 0 && o.credit >= int64(c.o.Watermark) && !o.stuck {
				c.fetchBatch(r, *at)
			}
			if o.heldN == 0 {
				return false
			}
		}
		*at = max(*at, o.came)
		p.bufs = append(p.bufs, o.held[wire.FetchBatch-o.heldN])
		o.heldN--
		o.reserved--
		if o.lean > 0 {
			o.lean--
		}
		if !c.o.Choices.LazyFetch {
			c.refill(r, *at)
		}
	}
	return true
}

// sendPacket puts a packet's writes on the link: each buffer's share, in pieces of at
// most the payload size, and the length word behind all of them. It returns the
// cycle of the last byte.
func (c *Card) sendPacket(r *ring, p *packet, at uint64) uint64 {
	size, most := int(csr.OutControlBSize.Get(r.out.control)), c.cfg.maxPayload()
	left := p.total()
	bytes := max(min(left, size*p.n)-wire.LenWord, 0)
	writes := tlps(max(min(left, size)-wire.LenWord, 0), most)
	for i := 1; i < p.n; i++ {
		left -= size
		writes += tlps(min(left, size), most)
	}
	if !p.cut {
		bytes += wire.LenWord
		writes++
	}
	end := c.send(&c.link.up, linkOut, at, bytes+writes*tlpHead, "packet")
	if c.tracer != nil && p.late == notLate {
		c.tracePacket(r, p, end, bytes+writes*tlpHead)
	}
	return end
}

// tracePacket tells of the writes of a packet that is on the link until end.
func (c *Card) tracePacket(r *ring, p *packet, end uint64, bytes int) {
	size, most := int(csr.OutControlBSize.Get(r.out.control)), c.cfg.maxPayload()
	at := func(left int) uint64 { return end - uint64(left)*c.link.up.perByte>>byteFraction }
	left := p.total()
	for i := range p.n {
		n := min(left, size)
		left -= n
		skip := 0
		if i == 0 {
			skip = min(wire.LenWord, n)
		}
		start := at(bytes)
		bytes -= n - skip + tlps(n-skip, most)*tlpHead
		c.trace(Step{Unit: UnitWrite, Lane: r.q, What: WhatBuffer, Start: start, End: at(bytes), Packet: p.id, Bytes: n - skip, Addr: p.bufs[p.skip+i] + uint64(skip)})
	}
	if !p.cut {
		c.trace(Step{Unit: UnitWrite, Lane: r.q, What: WhatLength, Start: at(bytes), End: end, Packet: p.id, Bytes: wire.LenWord, Addr: p.bufs[p.skip]})
	}
}

// land puts a packet into host memory, prefix and frame over its buffers and the
// length word last, and sees that it is counted.
func (c *Card) land(w underway, at uint64) {
	r, p := w.r, w.p
	entries := p.bufs[p.skip:]
	r.out.onLink--
	if p.cut {
		c.place(r, p, entries, 0)
		c.pool.put(p)
		return
	}
	c.written(r, p)
	if p.late != notLate {
		c.writeLate(r, p, entries, at)
		return
	}
	c.place(r, p, entries, 0)
	c.putLength(r, p, entries[0])
	c.pool.put(p)
	if !w.counted {
		c.raiseInTurn(r, at)
	}
}

// count is the count of a packet.
func (c *Card) count(r *ring, at uint64) {
	r.out.onLink--
	c.raiseInTurn(r, at)
}

// finishWrites does at once what the output rings have before them, whatever time
// it would take: what follows is in its place on the ring, and behind it.
func (c *Card) finishWrites() {
	if c.gone() {
		return
	}
	for r := range c.rings {
		if o := &c.rings[r].out; o.coming > 0 {
			c.agenda.disarm(o.listEv)
			c.hold(&c.rings[r])
		}
	}
	c.outs.writes.finish()
	for r := range c.rings {
		c.issue(&c.rings[r], c.now)
	}
	c.outs.counts.finish()
	c.outs.messages.finish()
}

// place writes the buffers of a packet from number first on, everything but the
// length word. A buffer that the card may not write is left out; the block does
// not notice.
func (c *Card) place(r *ring, p *packet, entries []uint64, first int) {
	size := int(csr.OutControlBSize.Get(r.out.control))
	var prefix [wire.PrefixSize]byte
	p.prefix(&prefix)
	frame, head := p.frame(), p.head()
	for i := first; i < len(entries); i++ {
		// Bytes from..to of the packet are this buffer's.
		from, to := i*size, min((i+1)*size, p.total())
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
		if p.late != notLate {
			c.trace(Step{Unit: UnitWrite, Lane: r.q, What: WhatBuffer, Start: c.now, End: c.now, Packet: p.id, Bytes: to - from - skip, Addr: entries[i] + uint64(skip)})
		}
	}
}

// putLength makes a packet visible: its length word in one big-endian store,
// after everything else, also for a reader on another core.
func (c *Card) putLength(r *ring, p *packet, entry uint64) {
	if p.late != notLate {
		c.trace(Step{Unit: UnitWrite, Lane: r.q, What: WhatLength, Start: c.now, End: c.now, Packet: p.id, Bytes: wire.LenWord, Addr: entry})
	}
	c.dmaAccess("length word", entry, wire.LenWord, true, func(m []byte, at int) {
		c.order.Add(0) // a locked add keeps the stores before it in front
		if len(m) == wire.LenWord {
			binary.BigEndian.PutUint64(m, p.length)
			return
		}
		var word [wire.LenWord]byte // it lies in two regions
		binary.BigEndian.PutUint64(word[:], p.length)
		copy(m, word[at:])
	})
}

// prefix fills the fields of datapath.md 3.3; the length word is not touched.
func (p *packet) prefix(b *[wire.PrefixSize]byte) {
	binary.LittleEndian.PutUint64(b[wire.PfxResp:], wire.RespPunt)
	binary.BigEndian.PutUint16(b[wire.PfxTag:], p.tag)
	binary.LittleEndian.PutUint32(b[wire.PfxID:], wire.PrefixID)
	b[wire.PfxValid] = 1
	binary.LittleEndian.PutUint16(b[wire.PfxPort:], p.fast)
}

// written counts a packet that is in host memory.
func (c *Card) written(r *ring, p *packet) {
	r.out.packets++
	r.out.bytes += p.length
	if c.o.Choices.ByteCntWithHead {
		r.out.bytes += wire.LenWord
	}
	c.tally.written++
	c.tally.admitted--
}

// raise adds one to the ring's count at a cycle and sends its message when that
// crosses the level.
func (c *Card) raise(r *ring, at uint64) {
	if c.acts(fltLoseCounts, c.faults.LoseCounts[r.q] > 0) {
		c.faults.LoseCounts[r.q]--
		return
	}
	before := r.out.count
	r.out.count++
	c.traceLevel(UnitCount, r.q, WhatCount, int64(r.out.count))
	if uint64(before) < r.out.level() {
		c.outLevel(r, r.out.count, at)
	}
}

// level is the packet level; 0 acts as 1.
func (o *outHalf) level() uint64 { return max(1, csr.OutIntLevelPkts.Get(o.levels)) }

// outLevel looks at a count that has just risen, or that is looked at as if it
// had: at the level a message goes out, below it the timer starts.
func (c *Card) outLevel(r *ring, count uint32, at uint64) {
	o := &r.out
	if uint64(count) >= o.level() {
		c.signal(r, at)
		return
	}
	if count == 0 {
		return
	}
	ticks := csr.OutIntLevelTicks.Get(o.levels)
	if ticks == 0 {
		if c.o.Choices.TimerZeroFires {
			c.signal(r, at)
		}
		return
	}
	if o.timer.idx < 0 {
		c.agenda.arm(o.timer, at+ticks*csr.ClocksPerTick)
		c.trace(Step{Unit: UnitTimer, Lane: r.q, What: "armed", Start: at, End: at})
	}
}

// timerExpired is the event of a ring's timer.
func (c *Card) timerExpired(r *ring) {
	if n := r.out.count; n > 0 && uint64(n) < r.out.level() {
		at := r.out.timer.at
		c.trace(Step{Unit: UnitTimer, Lane: r.q, What: "fired", Start: at, End: at})
		c.signal(r, at)
	}
}

// signal latches the status and sends the ring's message at a cycle.
func (c *Card) signal(r *ring, at uint64) {
	c.agenda.disarm(r.out.timer)
	r.out.status |= csr.OutIntStatusPacket
	if !c.acts(fltLoseMessages, c.faults.LoseMessages.has(r.q)) {
		if v := csr.MSIXRingVector + r.q; v < c.Vectors() {
			c.message(v, at)
		}
	}
}

// outAck is a write of OUT_CNTS: subtract, and with RESEND look again.
func (c *Card) outAck(r *ring, v uint64) {
	o := &r.out
	if uint32(v) > o.count {
		c.report(ReportAckAbove, "%s = %#x, and the count is %d", csr.OutCnts.Queue(r.q), v, o.count)
	}
	o.count = c.subtract(o.count, uint32(v), false)
	c.traceLevel(UnitCount, r.q, WhatCount, int64(o.count))
	if o.count == 0 {
		c.agenda.disarm(o.timer)
	}
	if v&csr.OutCntsResend == 0 || o.count == 0 {
		return
	}
	if c.o.Choices.ResendAtLevel && uint64(o.count) < o.level() {
		return
	}
	c.signal(r, c.storeAt())
}

// lateKind is which step of a packet a fault or choice 23 puts off.
type lateKind uint8

const (
	notLate lateKind = iota
	lateData
	lateLength
	lateCount
	lateTail
)

// late tells whether a step of the next packet is put off.
func (c *Card) late(r *ring) lateKind {
	switch f := c.drawLate(r.q); {
	case f.LateData.has(r.q):
		return lateData
	case f.LateLength.has(r.q):
		return lateLength
	case f.LateCount.has(r.q):
		return lateCount
	case f.LateTail.has(r.q) || c.o.Choices.LengthFirst:
		return lateTail
	}
	return notLate
}

// lengthFirstBy is how long a span's tail lags its length word under choice 23.
// Estimate.
const lengthFirstBy = Hz / 1_000_000

// raiseInTurn counts a packet, behind those of its ring whose count is put off: counts
// keep the order of their packets, or a packet would be taken on the count of a later
// one.
func (c *Card) raiseInTurn(r *ring, at uint64) {
	if r.out.lateCounts == 0 {
		c.raise(r, at)
		return
	}
	c.putOffCount(r, at, func(there bool) {
		if there {
			c.raise(r, c.now)
		}
	})
}

// putOffCount is putOff of what raises a ring's count, behind the last that does.
func (c *Card) putOffCount(r *ring, cycle uint64, fn func(there bool)) {
	r.out.lateUntil = max(r.out.lateUntil, cycle)
	r.out.lateCounts++
	c.putOff(r, r.out.lateUntil, func(there bool) {
		r.out.lateCounts--
		fn(there)
	})
}

// putOff has something done for a ring at a cycle, unless there is a start before. A
// card that is off the bus by then writes nothing: what was put off is lost, also for
// one that comes back, and fn is told that it is not there.
func (c *Card) putOff(r *ring, cycle uint64, fn func(there bool)) {
	r.out.late++
	epoch := c.epoch
	c.at(cycle, func() {
		if c.epoch != epoch {
			return
		}
		r.out.late--
		fn(!c.gone())
	})
}

// writeLate is write with one of its steps put off. The count follows the last
// step, except where the fault is that it does not.
func (c *Card) writeLate(r *ring, p *packet, entries []uint64, at uint64) {
	by := cyclesOf(c.faults.LateBy)
	var later func()
	switch p.late {
	case lateData:
		c.raiseInTurn(r, at)
		later = func() {
			c.place(r, p, entries, 0)
			c.putLength(r, p, entries[0])
		}
	case lateLength:
		c.place(r, p, entries, 0)
		later = func() {
			c.putLength(r, p, entries[0])
			c.raise(r, c.now)
		}
	case lateCount:
		c.place(r, p, entries, 0)
		c.putLength(r, p, entries[0])
		later = func() { c.raise(r, c.now) }
	default:
		by = max(by, lengthFirstBy)
		c.place(r, p, entries[:1], 0)
		c.putLength(r, p, entries[0])
		later = func() {
			c.place(r, p, entries, 1)
			c.raise(r, c.now)
		}
	}
	put := c.putOffCount
	if p.late == lateData {
		put = c.putOff // the count came before
	}
	put(r, c.now+by, func(there bool) {
		if there {
			later()
		}
		c.pool.put(p)
	})
}
