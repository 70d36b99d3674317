package ring

import (
	"math/bits"
	"sync/atomic"
	"time"

	"oxpd/internal/dma"
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
	verdict VerdictFunc
	sink    Sink
	pool    *pool
	clock   Clock
	ceiling atomic.Int32 // credit that the doorbell may show, the grant

	flag atomic.Uint32 // visitFree, visitHeld, visitNoted

	read     uint32 // entries taken
	taken    uint64 // packets taken
	owed     uint32 // buffers taken whose credit has not gone back
	returned uint64
	entries  uint64 // read, 64 bits wide, for the record
	again    bool   // wants a visit at the next tick
	stuck    stuck
	looked   time.Duration // when a stuck queue was last looked at
	rec      recorder

	frames   [passPackets]Frame
	pieces   [passPackets][1][]byte
	gathered [passPackets][]byte // the pool's buffer behind a frame, nil for none

	cnt oqCounters
}

// stuck remembers since when the queue has been unable to go on, and where.
type stuck struct {
	kind    stuckKind
	since   time.Duration
	read    uint32
	word    uint64 // length word at the read index, as in memory
	visible int    // packets visible when the wait began
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

// Visit makes passes until one takes nothing or bound packets were taken, and
// returns how many were. A queue that somebody else is visiting is left to
// them. The error is mmio.ErrGone.
func (o *OQ) Visit(bound int) (took int, err error) {
	took, again, err := o.service(bound, true)
	if again && took >= bound {
		o.cnt.bound.Add(1)
	}
	return took, err
}

// service is a visit, or a slice of a worker's. thorough looks at the registers
// whatever the memory shows, and ends only when the card says that the count is
// 0; otherwise an empty entry at the read index ends it without any register
// access. again asks for another one: within a tick when nothing was taken, at
// once when the bound was reached.
func (o *OQ) service(bound int, thorough bool) (took int, again bool, err error) {
	if !o.begin() {
		return 0, false, nil
	}
	for held := true; held; held = o.end() {
		for took < bound && (thorough || o.ready()) {
			n, err := o.pass(bound - took)
			took += n
			if err != nil {
				o.flag.Store(visitFree)
				return took, false, err
			}
			if n == 0 {
				break
			}
		}
		again = o.again || took >= bound
	}
	return took, again, nil
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
// acknowledge. The caller holds the flag.
func (o *OQ) pass(budget int) (took int, err error) {
	o.again = false
	st, err := mmio.Checked64(o.regs, o.status)
	if err != nil {
		return 0, err
	}
	if st != 0 {
		mmio.Store64(o.regs, o.status, st)
	}
	v, err := mmio.Checked64(o.regs, o.cnts)
	if err != nil {
		return 0, err
	}
	count := int(csr.CntsCount.Get(v))
	if count == 0 {
		took, err = o.behind()
		return took, o.finish(0, err)
	}
	surplus := 0
	if count > wire.OQEntries {
		// More packets than entries: the block has lapped the ring, and what it
		// has overwritten will never be found.
		o.cnt.lapped.Add(1)
		surplus = count - wire.OQEntries
		count = wire.OQEntries
	}
	took = o.walk(min(count, budget))
	ack := took
	if took == 0 {
		o.cnt.unseen.Add(1)
		o.again = true
		ack, err = o.gap(count + surplus)
	} else {
		o.stuck.kind = notStuck
		ack += surplus
	}
	return took, o.finish(ack, err)
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
	o.rec.put(&Record{Kind: KindOQ, Ring: uint8(o.n), Read: o.entries, Taken: o.taken, Returned: o.returned, Carry: o.owed})
	return nil
}

// credit offers what is owed, never above the ceiling, and carries the rest.
func (o *OQ) credit() error {
	if o.owed == 0 {
		return nil
	}
	v, err := mmio.Checked64(o.regs, o.bell)
	if err != nil {
		return err
	}
	have := max(int32(csr.DBellCount.Get(v)), 0)
	room := max(o.ceiling.Load()-have, 0)
	give := min(o.owed, uint32(room))
	if give < o.owed {
		o.cnt.capped.Add(1)
	}
	if give > 0 {
		mmio.Barrier() // poison before credit
		mmio.Store32(o.regs, o.bell.Low(), give)
		o.owed -= give
		o.returned += uint64(give)
		o.cnt.returned.Store(o.returned)
	}
	o.cnt.carry.Store(uint64(o.owed))
	return nil
}

// walk takes up to n packets from the read index on, stops at the first entry
// that holds none, delivers what it took and poisons every buffer of it.
func (o *OQ) walk(n int) (took int) {
	var (
		start   = o.read
		frames  int // waiting for delivery
		spans   int // of them gathered
		bytes   uint64
		end     = min(n, passPackets)
		dropped uint64
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
		at := o.read
		o.read += uint32(bufs)
		took++
		if l > wire.MaxLength || wire.Buffers(int(l)) != bufs {
			o.cnt.long.Add(1)
			continue
		}
		frameBytes := int(l) - wire.LenOverhead
		bytes += uint64(frameBytes)
		if bufs > 1 {
			o.cnt.spans.Add(1)
			o.cnt.spanBufs.Add(uint64(bufs - 1))
			if l > o.cnt.spanMax.Load() {
				o.cnt.spanMax.Store(l)
			}
		}
		b, _ := o.buffer(at)
		first := b[wire.PrefixSize:min(int(l)+wire.LenWord, wire.BufSize)]
		tag := uint16(b[wire.PfxTag])<<8 | uint16(b[wire.PfxTag+1])
		verdict := o.verdict(first, frameBytes, tag)
		switch verdict {
		case Drop:
			dropped++
			continue
		case Unowned:
			o.cnt.untagged.Add(1)
			continue
		case Pass, Divert, Sample:
		}
		if bufs > 1 {
			dst := o.pool.get(frameBytes)
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
		f.Tag, f.Verdict, f.Bytes, f.Pieces = tag, verdict, frameBytes, o.pieces[frames][:]
		if frames++; spans == gatherBatch {
			o.deliver(frames)
			frames, spans = 0, 0
		}
	}
	if took == 0 {
		return 0
	}
	if frames > 0 {
		o.deliver(frames)
	}
	for i := start; i != o.read; i++ {
		o.poison(i)
	}
	o.moved(o.read - start)
	o.taken += uint64(took)
	o.cnt.done.Add(uint64(took))
	o.cnt.bytes.Add(bytes)
	if dropped > 0 {
		o.cnt.dropped.Add(dropped)
	}
	return took
}

// deliver hands n frames to the sink and takes their gather buffers back.
func (o *OQ) deliver(n int) {
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
	word := o.word(o.read)
	l, full := length(word)
	if !full {
		o.stuck.kind = notStuck
		return 0, nil
	}
	o.again = true
	if !o.waited(uncounted) {
		return 0, nil
	}
	visible := o.stuck.visible
	o.stuck.kind = notStuck
	if l <= wire.LenOverhead {
		o.skip(1)
		return 0, nil
	}
	took = o.walk(visible)
	o.cnt.behind.Add(uint64(took))
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
	// How many packets are lost is the count less those that can be seen. Both
	// move while packets arrive: only a count that stands still over the scan is
	// used, else the next tick tries again.
	visible := o.scan(o.read+uint32(steps), wire.OQEntries-steps)
	v, err := mmio.Checked64(o.regs, o.cnts)
	if err != nil {
		return 0, err
	}
	if int(csr.CntsCount.Get(v)) != count {
		return 0, nil
	}
	o.stuck.kind = notStuck
	if resync {
		o.cnt.resync.Add(1)
	}
	o.skip(steps)
	return max(count-visible, 0), nil
}

// next returns how far behind the read index the nearest entry is that holds a
// packet with a length that can be trusted; 0 means none. Bytes of a span whose
// head was never written do not look like one.
func (o *OQ) next() int {
	for i := 1; i < wire.OQEntries; i++ {
		l, full := length(o.word(o.read + uint32(i)))
		if full && l > wire.LenOverhead && l <= wire.MaxLength && wire.Buffers(int(l)) <= wire.OQEntries {
			return i
		}
	}
	return 0
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
	o.moved(uint32(n))
}
