package flows

import (
	"math"

	"oxpd/internal/frame"
	"oxpd/internal/tcpstats"
)

const (
	holes = 4 // gaps that are remembered of a direction

	// reorderLimit is how late a segment may fill a gap and be out of order, where no round
	// trip is known; later, it was sent again.
	reorderLimit = 3e6 // ns

	// fitBytes is how far the numbers of a segment may be from those that were seen, when
	// the window that was offered is not larger or not known.
	fitBytes = 1 << 20
	// resetBytes is the same for a reset.
	resetBytes = 1 << 16

	smoothing = 8 // a sample is that part of the smoothed round trip
)

// Directions, as indexes.
const (
	local  = 0 // what the local end sends: out of the port
	remote = 1
)

// hole is a gap in what an end sent, as it was seen here.
type hole struct {
	from, to uint32
	since    int64
}

// side is what is known of one end.
type side struct {
	seen     bool // any segment
	syn, fin bool
	isn      uint32
	finSeq   uint32 // behind its FIN
	nxt      uint32 // highest sequence number, and behind it
	una      uint32 // highest that the other end acknowledged
	acked    bool   // una is known
	lastAck  uint32 // that it sent itself
	ackedAny bool   // lastAck is known
	window   uint32 // that it offered last, as in the header
	closedW  bool   // its window is 0
	mss      uint16
	wscale   uint8
	scales   bool
	sack     bool
	time     bool
	ecn      bool
	synAt    int64 // when its SYN was seen first; 0: not, or more than once

	strayFrom, strayTo uint32 // the last segment that did not fit

	timedSeq uint32 // a segment whose acknowledgement is waited for
	timedAt  int64  // 0: none

	holes [holes]hole
}

// flow is one flow: its parts are in arrays of their own, so that a reader loads only what
// it needs. It is under the lock of its part of the table.
type flow struct {
	*state
	head   *head
	ends   *tcpstats.Ends
	record *tcpstats.Record
}

// head is what a reader looks at first.
type head struct {
	born uint64 // generation in which the flow was begun
	port uint8
}

// state is what a flow is made of beside its record.
type state struct {
	reset bool
	key   key
	hash  uint64
	last  int64 // when a segment was seen
	place int32 // in the ring, -1: not in the ring
	side  [2]side

	opener      int8    // who sent the SYN, -1: not seen
	established bool    // both ends have said something that fits: they exist
	refused     bool    // counted as such
	active      bool    // the local end closed before it had the other one's FIN
	rtt         int64   // ns, between here and the remote end; 0: not measured
	knock       segment // a SYN that does not fit an established flow
}

// begin makes the flow new, of its first segment.
func (f flow) begin(p *frame.Packet, s *segment, gen uint64) {
	k := f.key
	*f.state = state{hash: f.hash, key: k, place: f.place, opener: -1, last: s.now}
	*f.head = head{born: gen, port: k.port}
	e, r := f.ends, f.record
	*e = tcpstats.Ends{Family: tcpstats.FamilyIPv4}
	family := uint64(tcpstats.IPv4)
	srcHi, srcLo := p.SrcWords()
	dstHi, dstLo := p.DstWords()
	if p.Have&frame.HaveIPv6 != 0 {
		e.Family, family = tcpstats.FamilyIPv6, uint64(tcpstats.IPv6)
	} else {
		srcLo, dstLo = srcLo|tcpstats.MappedWord, dstLo|tcpstats.MappedWord
	}
	e.LocalHi, e.LocalLo, e.LocalPort = srcHi, srcLo, p.SrcPort
	e.RemoteHi, e.RemoteLo, e.RemotePort = dstHi, dstLo, p.DstPort
	if !s.out {
		e.LocalHi, e.LocalLo, e.LocalPort = dstHi, dstLo, p.DstPort
		e.RemoteHi, e.RemoteLo, e.RemotePort = srcHi, srcLo, p.SrcPort
	}
	r.Reset(tcpstats.Flow)
	r.Put8(tcpstats.FieldFamily, uint8(family))
	r.Put8(tcpstats.FieldPort, k.port)
	r.Put16(tcpstats.FieldLocalPort, e.LocalPort)
	r.Put16(tcpstats.FieldRemotePort, e.RemotePort)
	r.PutAddr(tcpstats.FieldLocalAddr, e.LocalHi, e.LocalLo)
	r.PutAddr(tcpstats.FieldRemoteAddr, e.RemoteHi, e.RemoteLo)
	r.Put64(tcpstats.FieldCookie, f.hash^uint64(s.now))
	identity := tcpstats.FieldFamily.Bit() | tcpstats.FieldState.Bit() | tcpstats.FieldPort.Bit() | tcpstats.FieldLocalPort.Bit() | tcpstats.FieldRemotePort.Bit() |
		tcpstats.FieldLocalAddr.Bit() | tcpstats.FieldRemoteAddr.Bit() | tcpstats.FieldCookie.Bit()
	if p.VLANs > 0 {
		r.Put16(tcpstats.FieldVLAN, p.VLAN[0])
		identity |= tcpstats.FieldVLAN.Bit()
	}
	if s.flags&frame.TCPSYN != 0 {
		// A SYN with an acknowledgement is the answer of the other end.
		f.opener = int8(direction(s))
		if s.flags&frame.TCPACK != 0 {
			f.opener = 1 - f.opener
		}
		r.Put8(tcpstats.FieldDirection, [2]uint8{local: tcpstats.DirectionOut, remote: tcpstats.DirectionIn}[f.opener])
		identity |= tcpstats.FieldDirection.Bit()
	}
	r.Mark(tcpstats.GroupIdentity, identity)
	r.Mark(tcpstats.GroupCongestion, tcpstats.FieldBytesSent.Bit()|tcpstats.FieldBytesRetrans.Bit()|
		tcpstats.FieldMaxSegOut.Bit()|tcpstats.FieldMaxSegIn.Bit())
	r.Mark(tcpstats.GroupSequences, tcpstats.FieldSegsOut.Bit()|tcpstats.FieldSegsIn.Bit()|tcpstats.FieldDataSegsOut.Bit()|tcpstats.FieldDataSegsIn.Bit())
	r.Mark(tcpstats.GroupCounters, tcpstats.FieldRetrans.Bit()|tcpstats.FieldRetransIn.Bit()|tcpstats.FieldOutOfOrder.Bit()|tcpstats.FieldOutOfOrderL.Bit()|
		tcpstats.FieldDupAcks.Bit()|tcpstats.FieldZeroWindows.Bit())
	r.Mark(tcpstats.GroupTimers, tcpstats.FieldFirstSeen.Bit()|tcpstats.FieldLastSeen.Bit())
	r.Put64(tcpstats.FieldFirstSeen, uint64(s.now))
}

// verdict is what a segment is to the flow between its ends.
type verdict uint8

// Verdicts.
const (
	fits         verdict = iota
	strays               // it cannot be of the flow
	beginsAnew           // it begins another flow
	answersKnock         // it answers the SYN of another flow, which is in knock
)

// judge tells what a segment is to the flow. Anybody can send a frame with the addresses
// and ports of a flow: to an established one its numbers must fit. A SYN that does not fit
// is kept, for the other end may have forgotten the flow and answer it.
func (f flow) judge(s *segment) verdict {
	d := direction(s)
	me, other := &f.side[d], &f.side[1-d]
	switch s.flags & (frame.TCPSYN | frame.TCPACK | frame.TCPRST) {
	case frame.TCPSYN:
		same := me.syn && me.isn == s.seq
		switch {
		case f.closed(), !f.established && !same && (me.seen || !other.syn):
			return beginsAnew
		case f.established && !same:
			f.knock = *s
			return strays
		}
		return fits
	case frame.TCPSYN | frame.TCPACK:
		switch {
		case f.knock.flags != 0 && f.knock.out != s.out && s.ack == f.knock.seq+1:
			return answersKnock
		case other.syn && s.ack != other.isn+1, f.established && !(me.syn && me.isn == s.seq):
			return strays
		case !me.syn && me.seen:
			return beginsAnew
		}
		return fits
	}
	if s.flags&frame.TCPRST != 0 {
		return f.judgeReset(me, other, s)
	}
	reach := f.reach(other)
	if me.seen {
		ahead := int32(s.seq - me.nxt)
		if ahead > reach || ahead+int32(s.length()) < -reach {
			if !f.established && !me.syn {
				return beginsAnew
			}
			me.strayFrom, me.strayTo = s.seq, s.seq+s.length()
			return strays
		}
	}
	if s.flags&frame.TCPACK == 0 || !other.seen {
		return fits
	}
	if !f.established && other.syn && !after(s.ack, other.isn) {
		return strays // of the flow before
	}
	if int32(s.ack-other.nxt) <= reach {
		return fits
	}
	// It acknowledges what was not seen, unless that was taken for a stray.
	if n := s.ack - other.strayFrom; n > 0 && n <= other.strayTo-other.strayFrom {
		other.nxt = other.strayTo
		return fits
	}
	if !f.established && !other.syn {
		return beginsAnew
	}
	return strays
}

// judgeReset is judge of a reset. That of an end of which nothing was seen names what the
// other one said.
func (f flow) judgeReset(me, other *side, s *segment) verdict {
	ok := false
	switch {
	case me.seen:
		behind := min(int32(s.seq-me.nxt), 0)
		if me.acked {
			behind = min(int32(s.seq-me.una), 0)
		}
		ok = behind >= -resetBytes && int32(s.seq-me.nxt) <= resetBytes
	case s.flags&frame.TCPACK != 0:
		ok = s.ack == other.nxt
	default:
		ok = other.ackedAny && s.seq == other.lastAck
	}
	if !ok {
		return strays
	}
	return fits
}

// reach is how far an end may send ahead of what it is known to have sent, or repeat: what
// the other one offered, and fitBytes at least.
func (f flow) reach(other *side) int32 {
	window := other.window
	if f.side[local].scales && f.side[remote].scales {
		window <<= other.wscale
	}
	return int32(max(window, fitBytes))
}

func direction(s *segment) int {
	if s.out {
		return local
	}
	return remote
}

// closed tells that the flow has ended.
func (f flow) closed() bool {
	return f.reset || f.side[local].fin && f.side[remote].fin
}

// have adds to what is there of a group.
func (f flow) have(field tcpstats.Field) {
	g := field.Group()
	if h := f.record.Have(g); h&field.Bit() == 0 {
		f.record.Mark(g, h|field.Bit())
	}
}

func (f flow) set32(field tcpstats.Field, v uint32) {
	f.record.Put32(field, v)
	f.have(field)
}

func (f flow) add32(field tcpstats.Field, n uint32) {
	v := f.record.Get32(field)
	f.record.Put32(field, v+min(n, math.MaxUint32-v))
}

func (f flow) add64(field tcpstats.Field, n uint64) { f.record.Put64(field, f.record.Get64(field)+n) }

// segment takes one segment in.
func (f flow) segment(s *segment) {
	d := direction(s)
	me, other := &f.side[d], &f.side[1-d]
	s.now = max(s.now, f.last) // shards have clocks of their own
	f.last = s.now
	r := f.record
	r.Put64(tcpstats.FieldLastSeen, uint64(s.now))
	if s.out {
		f.add64(tcpstats.FieldSegsOut, 1)
	} else {
		f.add64(tcpstats.FieldSegsIn, 1)
	}
	if s.flags&frame.TCPSYN != 0 {
		f.syn(me, other, s)
	}
	f.payload(d, me, s)
	if s.flags&frame.TCPACK != 0 {
		f.ack(d, me, other, s)
	}
	f.window(d, me, s)
	if s.flags&frame.TCPFIN != 0 && !me.fin {
		me.fin, me.finSeq = true, s.seq+s.length()
		if d == local {
			f.active = !other.fin || after(other.finSeq, s.ack)
		}
	}
	if s.flags&frame.TCPRST != 0 {
		f.reset = true
	}
	me.seen = true
	f.settle()
}

// syn takes a SYN in.
func (f flow) syn(me, other *side, s *segment) {
	if me.syn && me.isn != s.seq {
		// Another answer to a SYN, as of a server that does not remember its first one.
		*me = side{}
		f.add32(retransOf[direction(s)], 1)
	} else if me.syn {
		me.synAt = 0 // of which the answer is, nobody can tell
		return
	}
	me.syn, me.isn, me.synAt = true, s.seq, s.now
	me.mss, me.wscale, me.scales, me.sack, me.time = s.mss, s.wscale, s.hasWScale, s.sack, s.time
	me.ecn = s.ecn()
	if s.mss != 0 {
		if s.out {
			f.set32(tcpstats.FieldAdvMSS, uint32(s.mss))
		} else {
			f.set32(tcpstats.FieldPeerMSS, uint32(s.mss))
		}
	}
	if s.flags&frame.TCPACK == 0 || !other.syn {
		return
	}
	// Both have said what they can.
	r, options := f.record, uint8(0)
	if me.time && other.time {
		options |= tcpstats.OptionTimestamps
	}
	if me.sack && other.sack {
		options |= tcpstats.OptionSACK
	}
	if me.ecn && other.ecn {
		options |= tcpstats.OptionECN
		r.Put8(tcpstats.FieldECN, 1)
	}
	r.Mark(tcpstats.GroupECN, tcpstats.FieldECN.Bit())
	have := tcpstats.FieldOptions.Bit()
	if me.scales && other.scales {
		options |= tcpstats.OptionWScale
		r.Put8(tcpstats.FieldSndWScale, f.side[remote].wscale)
		r.Put8(tcpstats.FieldRcvWScale, f.side[local].wscale)
		have |= tcpstats.FieldSndWScale.Bit() | tcpstats.FieldRcvWScale.Bit()
	}
	r.Put8(tcpstats.FieldOptions, options)
	r.Mark(tcpstats.GroupState, have)
	f.handshake(!s.out, other.synAt, s.now)
}

// handshake notes a round trip of the handshake between here and one end. A beginning of
// 0 is not known.
func (f flow) handshake(toRemote bool, began, now int64) {
	if began == 0 || now < began {
		return
	}
	us := uint32(min((now-began)/1000, math.MaxUint32))
	if !toRemote {
		f.set32(tcpstats.FieldHandshakeLocal, us)
		return
	}
	f.set32(tcpstats.FieldHandshakeRTT, us)
	f.sample(now - began)
}

// sample takes a round trip between here and the remote end, in nanoseconds.
func (f flow) sample(ns int64) {
	us := uint32(min(ns/1000, math.MaxUint32))
	if f.rtt == 0 {
		f.rtt = max(ns, 1)
		f.set32(tcpstats.FieldMinRTT, us)
	} else {
		f.rtt += (ns - f.rtt) / smoothing
		if us < f.record.Get32(tcpstats.FieldMinRTT) {
			f.record.Put32(tcpstats.FieldMinRTT, us)
		}
	}
	f.set32(tcpstats.FieldRTT, uint32(min(f.rtt/1000, math.MaxUint32)))
}

// fields of a direction.
var (
	retransOf = [2]tcpstats.Field{local: tcpstats.FieldRetrans, remote: tcpstats.FieldRetransIn}
	reorderOf = [2]tcpstats.Field{local: tcpstats.FieldOutOfOrderL, remote: tcpstats.FieldOutOfOrder}
	largestOf = [2]tcpstats.Field{local: tcpstats.FieldMaxSegOut, remote: tcpstats.FieldMaxSegIn}
	ackedOf   = [2]tcpstats.Field{local: tcpstats.FieldBytesAcked, remote: tcpstats.FieldBytesReceived}
	dataOf    = [2]tcpstats.Field{local: tcpstats.FieldDataSegsOut, remote: tcpstats.FieldDataSegsIn}
)

// payload takes in what a segment has of the sequence space.
func (f flow) payload(d int, me *side, s *segment) {
	n := s.length()
	end := s.seq + n
	if !me.seen {
		me.nxt = s.seq
	}
	if n == 0 {
		return
	}
	if s.bytes > 0 {
		f.add64(dataOf[d], 1)
		if s.bytes > f.record.Get32(largestOf[d]) {
			f.record.Put32(largestOf[d], s.bytes)
		}
		if d == local {
			f.add64(tcpstats.FieldBytesSent, uint64(s.bytes))
		}
	}
	switch {
	case !after(end, me.nxt) && s.bytes <= 1 && s.flags&(frame.TCPSYN|frame.TCPFIN) == 0 && end == me.nxt && me.acked && me.una == me.nxt:
		return // a byte that was acknowledged already: it asks whether the other end is there
	case !after(end, me.nxt):
		f.again(d, me, s, end)
		return
	case after(s.seq, me.nxt):
		me.gap(me.nxt, s.seq, s.now)
	case s.seq != me.nxt:
		f.add32(retransOf[d], 1) // its beginning was there already
		me.fill(s.seq, me.nxt)
		me.timedAt = 0
		if d == local {
			f.add64(tcpstats.FieldBytesRetrans, uint64(me.nxt-s.seq))
		}
	}
	if d == local && me.timedAt == 0 && s.bytes > 0 {
		me.timedSeq, me.timedAt = end, s.now
	}
	me.nxt = end
	if d == local {
		f.set32(tcpstats.FieldSndNxt, end)
	} else {
		f.set32(tcpstats.FieldRcvNxt, end)
	}
}

// again takes in a segment that ends before what was seen: it was sent again, or comes out
// of order.
func (f flow) again(d int, me *side, s *segment, end uint32) {
	limit := int64(reorderLimit)
	if f.rtt != 0 {
		limit = min(limit, f.rtt)
	}
	since, ok := me.fill(s.seq, end)
	if ok && s.now-since <= limit {
		f.add32(reorderOf[d], 1)
		return
	}
	f.add32(retransOf[d], 1)
	if d == local {
		f.add64(tcpstats.FieldBytesRetrans, uint64(s.bytes))
		me.timedAt = 0 // of which the acknowledgement is, nobody can tell
	}
}

// gap notes that something is missing. When there are too many gaps the oldest is
// forgotten: what fills it counts as sent again.
func (m *side) gap(from, to uint32, now int64) {
	oldest := 0
	for i := range m.holes {
		h := &m.holes[i]
		if h.since == 0 {
			oldest = i
			break
		}
		if h.since < m.holes[oldest].since {
			oldest = i
		}
	}
	m.holes[oldest] = hole{from, to, max(now, 1)}
}

// fill takes what lies from from to to out of the gaps. It returns since when the oldest is
// there of those that it lies in; ok is false when it lies in none.
func (m *side) fill(from, to uint32) (since int64, ok bool) {
	for i := range m.holes {
		h := m.holes[i]
		lo, hi := h.from, h.to
		if after(from, lo) {
			lo = from
		}
		if after(hi, to) {
			hi = to
		}
		if h.since == 0 || !after(hi, lo) {
			continue
		}
		if !ok || h.since < since {
			since, ok = h.since, true
		}
		left, right := lo != h.from, hi != h.to
		switch {
		case left && right:
			m.holes[i].to = lo
			m.gap(hi, h.to, h.since)
		case left:
			m.holes[i].to = lo
		case right:
			m.holes[i].from = hi
		default:
			m.holes[i].since = 0
		}
	}
	return since, ok
}

// ack takes an acknowledgement of an end in: what it says of the other one.
func (f flow) ack(d int, me, other *side, s *segment) {
	if !f.established && s.flags&frame.TCPRST == 0 && f.proves(me, other, s) {
		f.established = true
	}
	// The third segment of the handshake.
	if other.syn && !me.ackedAny && s.flags&frame.TCPSYN == 0 && me.syn && s.ack == other.isn+1 && other.synAt != 0 {
		if other.synAt > me.synAt {
			f.handshake(d == remote, other.synAt, s.now)
		}
	}
	fresh := !me.ackedAny || after(s.ack, me.lastAck)
	if other.seen && fresh && !after(s.ack, other.nxt) && (!other.acked || after(s.ack, other.una)) {
		if other.acked {
			n := s.ack - other.una
			if other.fin && s.ack == other.finSeq {
				n--
			}
			f.add64(ackedOf[1-d], uint64(n))
		}
		f.have(ackedOf[1-d])
		if d == remote {
			f.set32(tcpstats.FieldSndUna, s.ack)
			if other.timedAt != 0 && !after(other.timedSeq, s.ack) {
				f.sample(s.now - other.timedAt)
				other.timedAt = 0
			}
		}
		other.una, other.acked = s.ack, true
	}
	if d == remote && !fresh && s.ack == me.lastAck && s.bytes == 0 && s.flags&(frame.TCPSYN|frame.TCPFIN|frame.TCPRST) == 0 &&
		s.window == me.window && other.acked && after(other.nxt, s.ack) {
		f.add32(tcpstats.FieldDupAcks, 1)
	}
	if fresh && !(other.seen && after(s.ack, other.nxt)) || !f.established {
		me.lastAck, me.ackedAny = s.ack, true
	}
}

// proves tells whether an acknowledgement shows that both ends are there.
func (f flow) proves(me, other *side, s *segment) bool {
	if other.syn {
		if s.flags&frame.TCPSYN != 0 {
			return false // the answer to a SYN: the first end may not exist
		}
		return me.syn && !after(s.ack, other.nxt) && after(s.ack, other.isn)
	}
	// The handshake was not seen: both ends must know what the other one sends.
	diff := int32(s.ack - other.nxt)
	return me.seen && other.seen && diff <= 0 && diff > -fitBytes && other.ackedAny && int32(other.lastAck-me.nxt) <= 0 && int32(other.lastAck-me.nxt) > -fitBytes
}

// window takes the window in that an end offers.
func (f flow) window(d int, me *side, s *segment) {
	if s.flags&frame.TCPRST != 0 {
		return
	}
	me.window = s.window
	if d == remote && s.flags&frame.TCPSYN == 0 {
		if s.window == 0 && !me.closedW {
			f.add32(tcpstats.FieldZeroWindows, 1)
		}
		me.closedW = s.window == 0
	}
	both := f.side[local].syn && f.side[remote].syn
	if !both {
		return
	}
	bytes := s.window
	if s.flags&frame.TCPSYN == 0 && f.side[local].scales && f.side[remote].scales {
		bytes <<= me.wscale
	}
	if d == remote {
		f.set32(tcpstats.FieldSndWnd, bytes)
	} else {
		f.set32(tcpstats.FieldRcvWnd, bytes)
	}
}

// settle says what the local end's state is, as far as the segments show it.
func (f flow) settle() {
	l, r := &f.side[local], &f.side[remote]
	acked := l.fin && l.acked && !after(l.finSeq, l.una)
	s := tcpstats.Established
	switch {
	case f.reset:
		s = tcpstats.Closed
	case l.fin && f.active && acked && r.fin:
		s = tcpstats.TimeWait
	case l.fin && f.active && acked:
		s = tcpstats.FinWait2
	case l.fin && f.active && r.fin:
		s = tcpstats.Closing
	case l.fin && f.active:
		s = tcpstats.FinWait1
	case l.fin && acked:
		s = tcpstats.Closed
	case l.fin:
		s = tcpstats.LastAck
	case r.fin:
		s = tcpstats.CloseWait
	case f.established:
	case f.opener == local:
		s = tcpstats.SynSent
	case f.opener == remote:
		s = tcpstats.SynReceived
	}
	f.ends.State = s
	f.record.Put8(tcpstats.FieldState, uint8(s))
}
