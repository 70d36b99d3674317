package ring

import (
	"encoding/binary"
	"math/bits"
	"sync/atomic"
	"time"

	"oxpd/internal/dma"
	"oxpd/internal/frame"
	"oxpd/internal/mmio"
	"oxpd/octep/csr"
	"oxpd/ring/wire"
)

const (
	oqMask = wire.OQEntries - 1

	// passPackets and passBuffers bound one pass, so that credit goes back while
	// the ring still has some: a pass of six-buffer frames ends at a quarter ring.
	passPackets = 64
	passBuffers = wire.OQEntries / 4

	// passPieces is how many buffers one walk takes at most: the last packet begins
	// below passBuffers, and is of the greatest length that is believed.
	passPieces = passBuffers - 1 + wire.MaxBuffers

	// gatherBatch bounds how many gathered frames wait for delivery: 8 buffers of
	// 9,216 bytes stay in the second-level cache, 64 do not.
	gatherBatch = 8

	// tick is what datapath.md 3.9 counts in; twoTicks is how long a gap or an
	// uncounted packet must last before the read index moves.
	tick     = time.Millisecond
	twoTicks = 2 * tick

	// VisitBound and SweepBound end a visit, in packets (datapath.md 3.9).
	VisitBound = 16 * wire.OQEntries
	SweepBound = wire.OQEntries
)

// OQ is one output queue (RX): 1,024 list entries, each with a buffer of its
// own for life. The read index runs free and counts entries, not packets. All
// fields below flag belong to whoever holds it.
type OQ struct {
	n       int
	regs    mmio.Space
	cnts    csr.Reg64
	status  csr.Reg64
	bell    csr.Reg64
	list    *dma.Region
	bufs    *dma.Region
	judge   Judge
	sink    Sink
	pool    *pool
	clock   Clock
	grant   int32
	ceiling atomic.Int32 // credit that the doorbell may show, at most the grant

	flag atomic.Uint32 // visitFree, visitHeld, visitNoted
	told atomic.Bool   // a message came that no look at the registers followed

	read     uint32 // entries taken
	taken    uint64 // packets taken
	owed     uint32 // buffers taken whose credit has not gone back
	returned uint64
	entries  uint64 // read, 64 bits wide, for the record
	again    bool   // wants a visit at the next tick
	armed    bool   // the count was 0 at the last look and nothing was taken since: the next packet sends a message
	doubt    bool   // the doorbell must be read before credit is given
	debt     debt
	stuck    stuck
	looked   time.Duration // when a stuck queue was last looked at
	rec      recorder
	mark     mark // as last written

	frames   [passPackets]Frame
	pieces   [passPackets][1][]byte
	heads    [passPackets]frame.Packet // of the frames
	gathered [passPackets][]byte       // the pool's buffer behind a frame, nil for none
	lying    [passPieces][]byte        // of the spans that one walk hands on as they lie

	cnt  *oqCounters
	inst instruments
}

// stuck remembers since when the queue has been unable to go on, and where.
type stuck struct {
	kind    stuckKind
	since   time.Duration
	read    uint32
	word    uint64 // length word at the read index, as in memory
	visible int    // packets visible when the wait began
}

// debt is how many packets were taken, or given up, without their count having
// been seen. A count that comes late belongs to them: it is acknowledged and
// lets nothing else be taken, or the head of a span could be taken before its
// own count (rule 5). Counts that have not come for a sweep's period never will.
type debt struct {
	packets uint32
	since   time.Duration
}

func (d *debt) add(n int, now time.Duration) {
	d.packets += uint32(n)
	d.since = now
}

// pay takes what is due out of a count.
func (d *debt) pay(count int, now time.Duration) (paid int) {
	switch {
	case d.packets == 0:
		return 0
	case now-d.since >= SweepPeriod:
		d.packets = 0
		return 0
	}
	paid = int(min(d.packets, uint32(count)))
	if paid > 0 {
		d.packets -= uint32(paid)
		d.since = now
	}
	return paid
}

type stuckKind uint8

const (
	notStuck  stuckKind = iota
	stuckGap            // counted, nothing usable at the read index
	uncounted           // packet or short at the read index, nothing counted
)

// States of a queue's visit flag (datapath.md 3.9).
const (
	visitFree = iota
	visitHeld
	visitNoted // held, and somebody was turned away meanwhile
)

// buffer returns the receive buffer of entry i twice.
func (o *OQ) buffer(i uint32) ([]byte, dma.BusAddr) {
	return o.bufs.At(int(i&oqMask)*wire.BufStride, wire.BufSize)
}

// word reads the first eight bytes of entry i's buffer, once.
func (o *OQ) word(i uint32) uint64 {
	b, _ := o.buffer(i)
	return dma.Load64(b)
}

// poison marks the buffer of entry i as empty. Eight bytes are enough: any
// buffer may be the next head, and only its length word is looked at.
func (o *OQ) poison(i uint32) {
	b, _ := o.buffer(i)
	dma.Store64(b, wire.Poison)
}

// length turns a word in memory into a length word. ok is false for an empty
// buffer: poison, or zero, which the coprocessor leaves as often.
func length(word uint64) (l uint64, ok bool) {
	if word == wire.Poison || word == 0 {
		return 0, false
	}
	return bits.ReverseBytes64(word), true
}

// packet tells whether a word is the length of a packet that can be taken:
// neither empty nor short. Nonsense lengths count as packets of one buffer.
func packet(word uint64) (buffers int, ok bool) {
	l, ok := length(word)
	if !ok || l <= wire.LenOverhead {
		return 0, false
	}
	return packetBuffers(l), true
}

// packetBuffers is how many entries a packet with length word l takes: one for
// a length that cannot be trusted (datapath.md 3.3).
func packetBuffers(l uint64) int {
	if l > wire.MaxLength {
		return 1
	}
	if n := wire.Buffers(int(l)); n <= wire.OQEntries {
		return n
	}
	return 1
}

// begin takes the queue's visit flag. When somebody else holds it, a note is
// left: the holder goes in again before it lets go for good.
func (o *OQ) begin() bool {
	for {
		switch o.flag.Load() {
		case visitFree:
			if o.flag.CompareAndSwap(visitFree, visitHeld) {
				return true
			}
		case visitHeld:
			if o.flag.CompareAndSwap(visitHeld, visitNoted) {
				o.cnt.declined.Add(1)
				return false
			}
		case visitNoted:
			o.cnt.declined.Add(1)
			return false
		}
	}
}

// end lets go of the flag and tells whether a note was left, in which case the
// caller still holds it.
func (o *OQ) end() (again bool) {
	if o.flag.CompareAndSwap(visitHeld, visitFree) {
		return false
	}
	o.flag.Store(visitHeld)
	o.cnt.handed.Add(1)
	return true
}

// look says how much a visit asks the registers.
type look uint8

const (
	// quick asks memory first: an empty entry at the read index costs nothing.
	quick look = iota
	// settle is the look before going to sleep: it asks until the count is 0, but
	// leaves a queue alone that is armed, shows nothing and has sent no message. One
	// that has, and shows nothing, may have a gap at its read index.
	settle
	// thorough asks in any case.
	thorough
)

// Handler is what to call for each interrupt of the queue's vector: it counts the
// message and wakes whoever receives from ch, which has room for one and may be
// that of several queues. It never blocks, allocates nothing and may be called at
// any time, also after Free.
func (o *OQ) Handler(ch chan<- struct{}) func() {
	return func() {
		o.cnt.intr.Add(1)
		o.told.Store(true)
		select {
		case ch <- struct{}{}:
		default: // a wake-up is pending already
		}
	}
}

// Visit makes passes until one takes nothing or bound packets were taken, and
// returns how many were. A queue that somebody else is visiting is left to
// them. The error is mmio.ErrGone.
func (o *OQ) Visit(bound int) (took int, err error) {
	took, again, err := o.service(bound, thorough)
	if again && took >= bound {
		o.cnt.bound.Add(1)
	}
	return took, err
}

// service is a visit, or a slice of a worker's. again asks for another one:
// within a tick when nothing was taken, at once when the bound was reached.
func (o *OQ) service(bound int, l look) (took int, again bool, err error) {
	if !o.begin() {
		return 0, false, nil
	}
	passes := 0
	for held := true; held; held = o.end() {
		for took < bound && o.wants(l) {
			n, err := o.pass(bound-took, l)
			took += n
			if err != nil {
				o.flag.Store(visitFree)
				return took, false, err
			}
			if n == 0 {
				break
			}
			if passes++; passes > 1 {
				o.cnt.drained.Add(1)
			}
		}
		again = o.again || took >= bound
	}
	return took, again, nil
}

// wants tells whether a pass is worth its register accesses.
func (o *OQ) wants(l look) bool {
	switch l {
	case thorough:
		o.told.Store(false)
		return true
	case settle:
		if o.told.Swap(false) || !o.armed || o.owed > 0 {
			return true
		}
	case quick:
	}
	return o.ready()
}

// ready tells from memory alone whether a pass would find something at the read
// index. A queue that is stuck is left alone until the next tick.
func (o *OQ) ready() bool {
	if _, full := length(o.word(o.read)); !full {
		return false
	}
	return o.stuck.kind == notStuck || o.clock.Now() >= o.looked+tick
}

// pass is one pass of datapath.md 3.8. The order at its end is poison, credit,
// acknowledge. A quick pass leaves out clearing the status, which the look
// before sleeping does. The caller holds the flag.
func (o *OQ) pass(budget int, l look) (took int, err error) {
	o.again = false
	o.doubt = o.doubt || l == thorough
	if l != quick {
		st, err := mmio.Checked64(o.regs, o.status)
		if err != nil {
			return 0, err
		}
		if st != 0 {
			mmio.Store64(o.regs, o.status, st)
		}
	}
	v, err := mmio.Checked64(o.regs, o.cnts)
	if err != nil {
		return 0, err
	}
	count := int(csr.CntsCount.Get(v))
	paid := 0
	if o.debt.packets > 0 {
		paid = o.debt.pay(count, o.clock.Now())
		count -= paid
	}
	if count == 0 {
		took, err = o.behind()
		o.armed = paid == 0 // a count that was acknowledged may have risen meanwhile
		return took, o.finish(paid, err)
	}
	o.armed = false
	surplus := 0
	if count > wire.OQEntries {
		// More packets than entries: the block has lapped the ring, and what it
		// has overwritten will never be found.
		o.cnt.lapped.Add(1)
		surplus = count - wire.OQEntries
		count = wire.OQEntries
	}
	took = o.walk(min(count, budget), true)
	ack := took
	if took == 0 {
		o.cnt.unseen.Add(1)
		o.again = true
		ack, err = o.gap(count + surplus)
	} else {
		o.stuck.kind = notStuck
		ack += surplus
	}
	return took, o.finish(ack+paid, err)
}

// finish returns credit for every buffer taken, acknowledges ack packets and
// writes the adoption record.
func (o *OQ) finish(ack int, err error) error {
	if err != nil {
		return err
	}
	if o.owed == 0 && ack == 0 {
		return nil
	}
	if err := o.credit(); err != nil {
		return err
	}
	if ack > 0 {
		mmio.Store32(o.regs, o.cnts.Low(), uint32(ack))
	}
	o.record()
	return nil
}

// record writes down where the queue stands: with this the pass is over.
func (o *OQ) record() {
	o.rec.put(&Record{Kind: KindOQ, Ring: uint8(o.n), Read: o.entries, Taken: o.taken, Returned: o.returned, Carry: o.owed, Debt: o.debt.packets})
}

// marked writes down how far the pass has come, before what it says is done.
func (o *OQ) marked(m mark) {
	o.mark = m
	o.rec.mark(m)
}

// credit offers what is owed, never above the ceiling, and carries the rest.
//
// The doorbell is read first wherever it could be above what the books say: on
// every thorough look, after entries were skipped, while something is carried,
// and while the ceiling is below the grant. Otherwise it reads G + returned - fetched, and no
// more can have been taken than was fetched: what is owed always fits.
func (o *OQ) credit() error {
	if o.owed == 0 {
		return nil
	}
	// Of a whole ring the doorbell could not tell a later process whether it was given:
	// position and credit come back to where they were.
	give := min(o.owed, oqMask)
	ceiling := o.ceiling.Load()
	if o.doubt || ceiling < o.grant {
		v, err := mmio.Checked64(o.regs, o.bell)
		if err != nil {
			return err
		}
		have := max(int32(csr.DBellCount.Get(v)), 0)
		give = min(give, uint32(max(ceiling-have, 0)))
		o.doubt = give < o.owed
	}
	if give < o.owed {
		o.cnt.capped.Add(1)
	}
	if give > 0 {
		mmio.Barrier() // poison before credit
		mmio.Store32(o.regs, o.bell.Low(), give)
		o.owed -= give
		o.returned += uint64(give)
		o.cnt.returned.Add(uint64(give))
	}
	if carry := uint64(o.owed); carry != o.cnt.carry.Load() { // seldom: a store of this kind is a locked one
		o.cnt.carry.Store(carry)
	}
	return nil
}

// walk takes packets, whose counts have come or have not, and keeps the time in which
// the counters do not add up.
func (o *OQ) walk(n int, counted bool) (took int) {
	o.cnt.walks.Add(1)
	o.mark = mark{loose: !counted}
	took = o.take(n)
	o.judge.Leave(o.n)
	o.cnt.walks.Add(1)
	return took
}

// drops are what the judge dropped in one walk.
type drops struct{ packets, bytes, buffers uint64 }

func (d *drops) add(frameBytes, buffers int) {
	d.packets++
	d.bytes += uint64(frameBytes)
	d.buffers += uint64(buffers)
}

// take takes up to n packets from the read index on, stops at the first entry
// that holds none, delivers what it took and poisons every buffer of it.
func (o *OQ) take(n int) (took int) {
	var (
		start   = o.read
		frames  int // waiting for delivery
		spans   int // of them gathered
		lying   int // pieces of those that are handed on as they lie
		end     = min(n, passPackets)
		dropped drops
		at      uint32 // first entry of the last packet
		foreign = none // of the last one that no interface owns
		span    = none // of the last one of more than one buffer
	)
	for took < end && o.read-start < passBuffers {
		l, full := length(o.word(o.read))
		if !full || l <= wire.LenOverhead {
			break
		}
		bufs := packetBuffers(l)
		if o.read-start+uint32(bufs) > wire.OQEntries {
			break // the entries behind it are this pass's own
		}
		at = o.read
		o.read += uint32(bufs)
		took++
		if l > wire.MaxLength || wire.Buffers(int(l)) != bufs {
			o.cnt.long.Add(1)
			continue
		}
		frameBytes := int(l) - wire.LenOverhead
		if bufs > 1 {
			span = int64(at)
			o.cnt.spans.Add(1)
			o.cnt.spanBufs.Add(uint64(bufs - 1))
			if l > o.cnt.spanMax.Load() {
				o.cnt.spanMax.Store(l)
			}
		}
		b, _ := o.buffer(at)
		first := b[wire.PrefixSize:min(int(l)+wire.LenWord, wire.BufSize)]
		tag := uint16(b[wire.PfxTag])<<8 | uint16(b[wire.PfxTag+1])
		head := &o.heads[frames]
		head.Have = 0
		verdict := o.judge.Judge(o.n, first, frameBytes, tag, head)
		//exhaustive:enforce
		switch verdict {
		case Drop:
			dropped.add(frameBytes, bufs)
			continue
		case Unowned:
			o.cnt.untagged.Add(1)
			foreign = int64(at)
			continue
		case Pass, Divert:
		}
		if bufs > 1 && verdict != Divert {
			dst := o.pool.get(frameBytes)
			if dst == nil && spans > 0 {
				// What waits has the buffers: they come back with its delivery.
				o.deliver(frames, at-start, took-1)
				frames, spans = 0, 0
				o.heads[0] = *head
				dst = o.pool.get(frameBytes)
			}
			if dst == nil {
				o.cnt.spanNoBuf.Add(1)
				continue
			}
			first = o.gather(dst, at, frameBytes)
			o.gathered[frames] = dst
			spans++
		}
		o.pieces[frames][0] = first
		f := &o.frames[frames]
		f.Tag, f.Verdict, f.Bytes, f.Pieces, f.Head = tag, verdict, frameBytes, o.pieces[frames][:], &o.heads[frames]
		if bufs > 1 && verdict == Divert {
			f.Pieces = o.spread(o.lying[lying:lying:lying+bufs], at, first, frameBytes)
			lying += bufs
		}
		if frames++; spans == gatherBatch {
			o.deliver(frames, o.read-start, took)
			frames, spans = 0, 0
		}
	}
	if took == 0 {
		return 0
	}
	o.deliver(frames, o.read-start, took)
	o.snapshot(int64(at), foreign, span)
	for i := start; i != o.read; i++ {
		o.poison(i)
	}
	o.moved(o.read - start)
	o.taken += uint64(took)
	o.cnt.done.Add(uint64(took))
	if dropped.packets > 0 {
		o.cnt.dropped.Add(dropped.packets)
		o.cnt.droppedBytes.Add(dropped.bytes)
		o.cnt.recycled.Add(dropped.buffers)
	}
	return took
}

// deliver hands n frames, all that wait, to the sink and takes their gather buffers
// back. With that the pass is done with its first entries and the packets in them.
func (o *OQ) deliver(n int, entries uint32, packets int) {
	m := o.mark
	if n > 0 {
		m.frames = uint32(n)
		o.marked(m)
		o.handOn(n)
	}
	m.entries, m.packets, m.frames = entries, uint32(packets), 0
	o.marked(m)
}

func (o *OQ) handOn(n int) {
	o.sink.Deliver(o.n, o.frames[:n])
	for i := range n {
		o.pool.put(o.gathered[i])
		o.gathered[i] = nil
	}
	o.cnt.delivered.Add(uint64(n))
}

// moved accounts for n entries that the read index has passed: each is owed to
// the device as one unit of credit.
func (o *OQ) moved(n uint32) {
	o.owed += n
	o.entries += uint64(n)
}

// scan walks by packets from entry i on, over at most limit entries, and
// returns how many packets are visible there.
func (o *OQ) scan(i uint32, limit int) (packets int) {
	for limit > 0 {
		n, ok := packet(o.word(i))
		if !ok || n > limit {
			break
		}
		i += uint32(n)
		limit -= n
		packets++
	}
	return packets
}

// sighted is scan across gaps: packets behind one are not lost, and a count that was
// taken off for them would leave them there until another packet comes. Directly
// behind a gap an entry counts when it has the constant of the prefix.
func (o *OQ) sighted(i uint32, limit int) (packets int) {
	for trusted := true; limit > 0; {
		n, ok := packet(o.word(i))
		if trusted = ok && n <= limit && (trusted || o.prefixed(i)); trusted {
			packets++
		} else {
			n = 1
		}
		i += uint32(n)
		limit -= n
	}
	return packets
}

// prefixed tells whether entry i has the constant of the prefix: the pieces of a span
// whose head was never written hold whatever its sender chose.
func (o *OQ) prefixed(i uint32) bool {
	b, _ := o.buffer(i)
	return binary.LittleEndian.Uint32(b[wire.PfxID:]) == wire.PrefixID
}

// waited tells whether the queue has been stuck in the same way at the same
// place for two ticks, and starts the wait when it has not been.
func (o *OQ) waited(kind stuckKind) bool {
	now, word := o.clock.Now(), o.word(o.read)
	o.looked = now
	s := &o.stuck
	if s.kind != kind || s.read != o.read || s.word != word {
		*s = stuck{kind: kind, since: now, read: o.read, word: word, visible: o.scan(o.read, wire.OQEntries)}
		return false
	}
	return now-s.since >= twoTicks
}

// behind handles packets that nothing counts: after two ticks it takes those
// that were visible when the wait began and acknowledges none. A short that
// nothing counts is stepped over.
func (o *OQ) behind() (took int, err error) {
	l, full := length(o.word(o.read))
	if !full {
		o.stuck.kind = notStuck
		return 0, nil
	}
	o.again = true
	if !o.waited(uncounted) {
		return 0, nil
	}
	s := o.stuck
	o.stuck.kind = notStuck
	if l <= wire.LenOverhead {
		o.marked(mark{entries: 1, packets: 1, loose: true})
		o.skip(1)
		o.debt.add(1, o.clock.Now())
		return 0, nil
	}
	took = o.walk(s.visible, false)
	o.cnt.behind.Add(uint64(took))
	o.debt.add(took, o.clock.Now())
	if s.visible -= took; s.visible > 0 { // the rest of them has waited as long
		s.read, s.word = o.read, o.word(o.read)
		o.stuck = s
	}
	return took, nil
}

// gap handles a count whose packet is not at the read index. After two ticks
// the read index moves to the next entry that holds a packet, and the packets
// that will never be found are taken off the count: lost is what to
// acknowledge for them. A count with nothing anywhere in the ring is given up
// after a sweep's period; should its packets come all the same, they are taken
// as uncounted ones.
func (o *OQ) gap(count int) (lost int, err error) {
	if !o.waited(stuckGap) {
		return 0, nil
	}
	_, short := length(o.word(o.read))
	steps := o.next()
	if steps == 0 && !short {
		if o.clock.Now()-o.stuck.since < SweepPeriod {
			return 0, nil
		}
		o.cnt.ghosts.Add(uint64(count))
		o.stuck.kind = notStuck
		return count, nil
	}
	resync := steps > 0
	steps = max(steps, 1)
	// How many packets are lost is the count less those that can be seen. Packets
	// that arrive during the scan may be in either: what cannot be told apart is
	// left to be paid by counts to come.
	visible := o.sighted(o.read+uint32(steps), wire.OQEntries-steps)
	v, err := mmio.Checked64(o.regs, o.cnts)
	if err != nil {
		return 0, err
	}
	more := max(int(csr.CntsCount.Get(v))-count, 0)
	if more > 0 {
		o.debt.add(more, o.clock.Now())
	}
	o.stuck.kind = notStuck
	if resync {
		o.cnt.resync.Add(1)
	}
	lost = max(count-visible, 0)
	o.marked(mark{entries: uint32(steps), packets: uint32(lost + more), loose: true})
	o.skip(steps)
	return lost, nil
}

// next returns how far behind the read index the nearest entry is that holds a
// packet with a length that can be trusted; 0 means none. An entry with the
// constant of the prefix is preferred.
func (o *OQ) next() int {
	other := 0
	for i := 1; i < wire.OQEntries; i++ {
		at := o.read + uint32(i)
		l, full := length(o.word(at))
		if !full || l <= wire.LenOverhead || l > wire.MaxLength || wire.Buffers(int(l)) > wire.OQEntries {
			continue
		}
		if o.prefixed(at) {
			return i
		}
		if other == 0 {
			other = i
		}
	}
	return other
}

// skip steps over n entries that hold no packet. Their credit is owed: the
// device has passed them.
func (o *OQ) skip(n int) {
	for range n {
		if l, full := length(o.word(o.read)); full && l <= wire.LenOverhead {
			o.cnt.short.Add(1)
		}
		o.poison(o.read)
		o.read++
	}
	o.cnt.skipped.Add(uint64(n))
	o.doubt = true
	o.moved(uint32(n))
}
