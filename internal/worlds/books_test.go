package worlds

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"oxpd/internal/board"
	"oxpd/internal/frame"
	"oxpd/internal/pfil"
	"oxpd/octep/csr"
	"oxpd/ring"
	"oxpd/ring/wire"
)

// violation is a rule that a world broke.
type violation struct {
	rule, what string
	at         time.Duration // since the first frame
}

func (v *violation) Error() string { return fmt.Sprintf("%s: at %v: %s", v.rule, v.at, v.what) }

// fate is how a frame ended, as far as the outside saw.
type fate uint8

const (
	underWay  fate = iota // or lost
	judged                // the port side has seen its packet
	arrived               // it came out, whole
	filtered              // a filter dropped it
	unowned               // its interface was gone
	turnedOff             // the input queue had no room for it
)

// record is one frame of a flow.
type record struct {
	size  int
	at    time.Duration // handed over
	ready time.Duration // inwards: its last bit can have come in, at the earliest
	seen  time.Duration // by the other side
	freed time.Duration // the host had given its buffers back
	fate  fate
}

// message is a statistics message on ring 0.
type message struct {
	size            int
	at, seen, freed time.Duration
}

// spell is a time in which something was so.
type spell struct {
	from, to time.Duration // to is the end of all times while it lasts
}

const forever = time.Duration(1<<63 - 1)

func (s spell) meets(from, to time.Duration) bool { return s.from <= to && from <= s.to }

// mtuSpell is a time in which a LIF had one of two MTUs.
type mtuSpell struct {
	spell
	low, high int
}

// books are what was put into the world and what came out of it, by the wires, the
// sink and the verdict alone. Neither a counter nor a field of driver or model is read
// while it is kept.
type books struct {
	w       *world
	reuse   *reuse
	born    time.Duration // first frame
	drained time.Duration
	macs    [board.Ports][6]byte

	byPort [board.Ports]struct {
		in, out []*record     // in order
		shapes  []*flow       // of in
		outs    []*flow       // of out
		busy    time.Duration // the cable is, until
		mtu     []mtuSpell
		cable   []spell // may be out: until the link is trained again
		surely  []spell // is out
		gone    int     // reasons for the cable to be out
	}
	wanted   []passage // by the port side, and not delivered yet
	unfreed  []*record
	messages []*message // that ring 0 took, in order
	judgedMs int        // of them that the port side has seen
	freedMs  int        // of them whose buffers are back

	posts, finished int // by the last look
	refusals        int
	barredOut       int // frames that a filter kept from being posted
	messagesRefused int
	lostBy          [causes]uint64
	longs, tooShort int // malformed packets that a ring took
	mostSkipped     int // entries that faults may have left out

	shortage [wire.OQs][]spell
	shorts   [wire.OQs]int
	egress   []spell             // the fault is on
	lifless  []spell             // there is no LIF
	acted    [passingFaults]bool // faults that were on at some time
	active   [passingFaults]int
}

type passage struct {
	f       *flow
	n       int
	verdict ring.Verdict
}

func (b *books) init(w *world, r *reuse) { b.w, b.reuse = w, r }

// broke ends the world.
func (b *books) broke(rule, format string, args ...any) {
	at := time.Duration(0)
	if b.w.card != nil {
		at = b.w.now() - b.born
	}
	panic(&violation{rule, fmt.Sprintf(format, args...), at})
}

// sent enters a frame for a wire and returns its bytes, valid until the next.
func (b *books) sent(f *flow, size int) []byte {
	p := &b.byPort[f.port.Index]
	b.address(f)
	r := b.enter(f, size)
	r.ready = max(p.busy, r.at)
	if !b.w.cutIn(f.port, size) && !b.w.cableIsOut(f.port, r.at, r.at) { // what is cut off may take no time
		r.ready += time.Duration(uint64(size+fcsBytes+gapBytes) * 8 * 1_000_000_000 / b.w.rate(f.port))
		p.busy = r.ready
	}
	p.in = append(p.in, r)
	p.shapes = append(p.shapes, f)
	return b.reuse.pattern.put(b.reuse.frame, f, len(f.frames)-1, size)
}

// posted enters a frame for the input queue and returns its bytes.
func (b *books) posted(f *flow, size int) []byte {
	p := &b.byPort[f.port.Index]
	b.address(f)
	r := b.enter(f, size)
	p.out = append(p.out, r)
	p.outs = append(p.outs, f)
	b.posts++
	return b.reuse.pattern.put(b.reuse.frame, f, len(f.frames)-1, size)
}

func (b *books) enter(f *flow, size int) *record {
	if len(f.frames) == cap(f.frames) {
		// Records are pointed to: they must not move.
		f.frames = append(make([]record, 0, mostFrames+2*wire.OQEntries), f.frames...)
	}
	f.frames = append(f.frames, record{size: size, at: b.w.now(), seen: -1, freed: forever})
	return &f.frames[len(f.frames)-1]
}

// address gives a flow its destination.
func (b *books) address(f *flow) {
	switch {
	case f.foreign:
		f.dst = [6]byte{2, 0xff, 0, 0, 0, byte(f.n)}
	case f.out:
		f.dst = [6]byte{2, 0, 0, 2, 0, byte(f.n)}
	case f.n%7 == 6:
		f.dst = [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	default:
		f.dst = b.macs[f.port.Index]
	}
}

// refused takes back the frame that was posted last: there was no room.
func (b *books) refused(f *flow) {
	f.frames[len(f.frames)-1].fate = turnedOff
	b.posts--
	b.refusals++
	b.mayBeFull()
}

// find returns the frame that some bytes are, or begin with.
func (b *books) find(what string, head []byte) (*flow, int) {
	n, i, ok := mark(head)
	if !ok || n >= len(b.w.flows) || i >= len(b.w.flows[n].frames) {
		b.broke("bytes", "%s begins with % x, which nobody has sent", what, head[:min(len(head), 64)])
	}
	return &b.w.flows[n], i
}

// see notes that the other side has seen a frame: once, and after all of its flow that
// were sent before.
func (b *books) see(what string, f *flow, i int) *record {
	r := &f.frames[i]
	if r.fate != underWay {
		b.broke("once", "%s: frame %d of %s comes again", what, i, f)
	}
	if i <= f.last {
		b.broke("order", "%s: frame %d of %s comes after %d", what, i, f, f.last)
	}
	f.last = i
	r.seen = b.w.now()
	return r
}

// same checks bytes of a frame from its begin on.
func (b *books) same(what string, f *flow, i int, got []byte) {
	want := b.reuse.pattern.put(b.reuse.check, f, i, f.frames[i].size)[:len(got)]
	if bytes.Equal(got, want) {
		return
	}
	at := 0
	for got[at] == want[at] {
		at++
	}
	b.broke("bytes", "%s: frame %d of %s, %d bytes: byte %d is %#x, sent as %#x", what, i, f, f.frames[i].size, at, got[at], want[at])
}

// left is a frame that came out of a port's wire.
func (b *books) left(p board.Port, got []byte) {
	what := "out of " + p.Label
	f, i := b.find(what, got)
	if !f.out || f.port != p {
		b.broke("bytes", "%s: frame %d of %s", what, i, f)
	}
	r := b.see(what, f, i)
	if len(got) != r.size {
		b.broke("bytes", "%s: frame %d of %s has %d bytes, %d were posted", what, i, f, len(got), r.size)
	}
	b.same(what, f, i, got)
	r.fate = arrived
}

// barred takes back the frame that was to be posted: a filter dropped it.
func (b *books) barred(f *flow) {
	f.frames[len(f.frames)-1].fate = turnedOff
	b.posts--
	b.barredOut++
}

// Leave implements ring.Judge.
func (w *world) Leave(oq int) { w.gate.table.Leave(oq) }

// Judge implements ring.Judge: it is the port side's look at a packet of a ring, where
// the card wrote it.
func (w *world) Judge(oq int, first []byte, size int, tag uint16, head *frame.Packet) ring.Verdict {
	p, ok := board.ByTag(board.Tag(tag))
	if !ok && slices.Contains(strayTags, board.Tag(tag)) {
		w.messageSeen(size)
		return ring.Unowned
	}
	if !ok {
		w.broke("tag", "a packet of %d bytes has tag %#x, which is no port's", size, tag)
	}
	f, i := w.find("into the host", first)
	if f.out || f.port != p {
		w.broke("tag", "frame %d of %s comes with the tag of %s", i, f, p.Label)
	}
	r := w.see("into the host", f, i)
	if size != r.size || len(first) != min(size, wire.FirstPayload) {
		w.broke("bytes", "into the host: frame %d of %s has %d bytes, %d in its first buffer; sent with %d", i, f, size, len(first), r.size)
	}
	w.same("into the host", f, i, first)
	w.unfreed = append(w.unfreed, r)
	r.fate = judged
	if w.joined[p.Index] > 0 {
		r.fate = unowned
		return ring.Unowned
	}
	v := w.gate.ask(oq, pfil.In, f, i, size, first, head)
	if v == ring.Drop {
		r.fate = filtered
		return v
	}
	if w.inspect.all {
		v = ring.Divert
	}
	w.wanted = append(w.wanted, passage{f, i, v})
	return v
}

// Deliver implements ring.Sink.
func (w *world) Deliver(oq int, frames []ring.Frame) {
	for _, x := range frames {
		n := 0
		var whole []byte
		if len(x.Pieces) == 1 {
			whole = x.Pieces[0]
		} else {
			for _, p := range x.Pieces {
				whole = append(whole, p...)
			}
		}
		n = len(whole)
		f, i := w.find("into the host", whole)
		if len(w.wanted) == 0 || w.wanted[0] != (passage{f, i, x.Verdict}) {
			w.broke("order", "the sink gets frame %d of %s, verdict %d; what passed before is %v", i, f, x.Verdict, w.wanted)
		}
		if x.Head.Have != 0 {
			var own frame.Packet
			own.Parse(whole[:min(n, wire.FirstPayload)], n)
			if *x.Head != own || own.L3 != etherBytes+f.shape.vlans()*vlanBytes {
				w.broke("filter", "the sink gets frame %d of %s with the headers %+v", i, f, *x.Head)
			}
		}
		w.wanted = w.wanted[1:]
		r := &f.frames[i]
		if n != r.size || x.Bytes != n || board.Tag(x.Tag) != f.port.Tag {
			w.broke("bytes", "the sink gets frame %d of %s with %d bytes, said to be %d, tag %#x; sent with %d", i, f, n, x.Bytes, x.Tag, r.size)
		}
		w.same("into the sink", f, i, whole)
		if x.Verdict == ring.Divert {
			w.inspect.offer(&x, f, i)
		}
		r.fate = arrived
		if f.ring < 0 {
			f.ring = oq
		}
		if f.ring != oq {
			w.broke("ring", "frame %d of %s comes by ring %d, those before by %d", i, f, oq, f.ring)
		}
	}
}

// served is the end of one look at rings: what was seen has its buffers back.
func (b *books) served() {
	if len(b.wanted) > 0 {
		b.broke("sum", "the verdict passed %v, and the sink did not get them", b.wanted)
	}
	now := b.w.now()
	for _, r := range b.unfreed {
		r.freed = now
	}
	b.unfreed = b.unfreed[:0]
	for _, m := range b.messages[b.freedMs:b.judgedMs] {
		m.freed = now
	}
	b.freedMs = b.judgedMs
	b.w.inspect.turn()
}

// messageSent enters a statistics message that ring 0 took.
func (b *books) messageSent(size int) {
	b.messages = append(b.messages, &message{size: size, at: b.w.now(), seen: -1, freed: forever})
}

// messageSeen is the port side's look at one.
func (b *books) messageSeen(size int) {
	if b.judgedMs == len(b.messages) {
		b.broke("once", "a statistics message of %d bytes comes, and none was sent", size)
	}
	m := b.messages[b.judgedMs]
	if m.size != size {
		b.broke("order", "a statistics message has %d bytes, the next one that was sent %d", size, m.size)
	}
	m.seen = b.w.now()
	b.judgedMs++
}

// look reads how many frames the card has finished, as any host can.
func (b *books) look() {
	b.finished = int(uint32(b.w.dev.BAR0().Load64(uint32(csr.InCnts.Queue(0)))))
}

// mayBeFull checks a refusal of the input queue: only the slot that stays empty is
// free. With a look right in front of the refusal that is exact; by one behind it the
// card may have gone on, by as many as it has in flight.
func (b *books) mayBeFull() {
	slack := 0
	if !b.w.host.watch || b.w.host.batch > 0 {
		b.look()
		slack = inFlight
	}
	if under := b.posts - b.finished; under < wire.IQSlots-1-slack {
		b.broke("full", "the input queue refuses a frame with %d of %d under way", under, wire.IQSlots-1)
	}
}

// inFlight is how many instructions the card fetches ahead at most.
const inFlight = 64

// rate is how fast a port's cable is, in bit/s.
func (w *world) rate(p board.Port) uint64 {
	r, def := w.plan.card.Rates.Cage, uint64(10_000_000_000)
	if p.BehindSwitch() {
		r, def = w.plan.card.Rates.SwitchPort, 1_000_000_000
	}
	if r == 0 {
		return def
	}
	return r
}

// recovery is how long the consequences of credit that was short may last: the host
// gives what it carries at the next look, a sweep's period later at most, and a ring
// that was full is drained.
const recovery = ring.SweepPeriod + 20*time.Millisecond

// short begins or ends a reason for a ring's credit to be below the grant.
func (b *books) short(q, by int) {
	s := &b.shortage[q]
	if b.shorts[q] == 0 {
		*s = append(*s, spell{b.w.now(), forever})
	}
	if b.shorts[q] += by; b.shorts[q] == 0 {
		(*s)[len(*s)-1].to = b.w.now() + recovery
	}
}

// acts begins or ends a passing fault.
func (b *books) acts(k, q int, on bool) {
	by := -1
	if on {
		by = 1
		b.acted[k] = true
		if k == fSkipEntries {
			b.mostSkipped += 5
		}
	}
	b.active[k] += by
	switch k {
	case fHoldCredit, fStuckResume:
		b.short(q, by)
	case fEgressFull:
		if on {
			b.egress = append(b.egress, spell{b.w.now(), forever})
		} else if b.active[k] == 0 {
			for i := range b.egress {
				b.egress[i].to = min(b.egress[i].to, b.w.now())
			}
		}
	}
}

// chanced begins or ends a fault that acts by chance.
func (b *books) chanced(name string, on bool) {
	by := -1
	if on {
		by = 1
	}
	switch name {
	case "HoldCredit", "StuckResume":
		for q := range b.shorts {
			b.short(q, by)
		}
	case "EgressFull":
		b.acts(fEgressFull, 0, on)
	case "SkipEntries":
		b.acted[fSkipEntries] = true
		b.mostSkipped += 4 * wire.OQs
	case "LoseCounts":
		b.acted[fLoseCounts] = true
	}
}

// was tells whether a passing fault was on at some time.
func (b *books) was(k int) bool { return b.acted[k] }

// cableOut takes a port's cable away. It is out until the link is trained again.
func (b *books) cableOut(p board.Port) {
	x := &b.byPort[p.Index]
	if x.gone++; x.gone == 1 {
		x.surely = append(x.surely, spell{b.w.now(), forever})
	}
	x.cable = append(x.cable, spell{b.w.now(), forever})
}

// cableBack tells whether the cable is there again.
func (b *books) cableBack(p board.Port) bool {
	x := &b.byPort[p.Index]
	if x.gone--; x.gone > 0 {
		return false
	}
	x.surely[len(x.surely)-1].to = b.w.now()
	back := b.w.now() + b.w.plan.card.Timeline.LinkTrainTo
	for i := range x.cable {
		x.cable[i].to = min(x.cable[i].to, back)
	}
	return true
}

// changed notes an MTU change that began at a time and has just ended.
func (b *books) changed(p board.Port, from time.Duration, mtu int, err error) {
	x := &b.byPort[p.Index]
	before := b.mtuNow(p)
	if len(x.mtu) > 0 {
		x.mtu[len(x.mtu)-1].to = from
	}
	now := b.w.now()
	x.mtu = append(x.mtu, mtuSpell{spell{from, now}, min(before, mtu), max(before, mtu)})
	if err != nil {
		mtu = before // refused, not stored, or stored in a LIF that is gone
	}
	x.mtu = append(x.mtu, mtuSpell{spell{now, forever}, mtu, mtu})
}

func (b *books) mtuNow(p board.Port) int {
	x := &b.byPort[p.Index]
	if len(x.mtu) == 0 {
		return b.w.mtus[p.Index]
	}
	return x.mtu[len(x.mtu)-1].high
}

// mtuBetween is the least and the largest MTU that a port can have had between two times.
func (b *books) mtuBetween(p board.Port, from, to time.Duration) (low, high int) {
	x := &b.byPort[p.Index]
	if len(x.mtu) == 0 {
		return b.w.mtus[p.Index], b.w.mtus[p.Index]
	}
	low, high = b.w.mtus[p.Index], 0
	if from <= x.mtu[0].from {
		high = low
	} else {
		low = 1 << 20
	}
	for _, s := range x.mtu {
		if s.meets(from, to) {
			low, high = min(low, s.low), max(high, s.high)
		}
	}
	return low, high
}

// trace is all that happened to frames, with its times.
func (w *world) trace() string {
	var b strings.Builder
	for i := range w.flows {
		for j, r := range w.flows[i].frames {
			fmt.Fprintln(&b, i, j, r.size, r.at, r.ready, r.seen, r.freed, r.fate)
		}
	}
	fmt.Fprintf(&b, "%d %+v", w.now(), w.rings.Stats())
	return b.String()
}
