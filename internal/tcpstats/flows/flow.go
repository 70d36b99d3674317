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

	// fitBytes is how far an acknowledgement may be from what was seen of the other end,
	// for a flow whose handshake was not seen.
	fitBytes = 1 << 20

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
	synAt    int64 // when its SYN was seen first; 0: not, or more than once
	synTwice bool

	timedSeq uint32 // a segment whose acknowledgement is waited for
	timedAt  int64  // 0: none

	holes [holes]hole
}

// flow is one flow. It is in a part and under its lock.
type flow struct {
	ends  tcpstats.Ends
	live  bool
	reset bool
	key   key
	hash  uint64
	born  uint64 // generation in which it was begun
	moved uint64 // and in which it came to the table proper
	last  int64  // when a segment was seen
	side  [2]side

	established bool  // both ends have said something that fits
	rtt         int64 // ns, between here and the remote end; 0: not measured

	record tcpstats.Record
}

// begin makes the flow new, of its first segment.
func (f *flow) begin(head *frame.Packet, s *segment, gen uint64) {
	live, hash, k := f.live, f.hash, f.key
	*f = flow{live: live, hash: hash, key: k, born: gen, last: s.now}
	f.ends.Family = tcpstats.FamilyIPv4
	family := uint64(tcpstats.IPv4)
	srcHi, srcLo := head.SrcWords()
	dstHi, dstLo := head.DstWords()
	if head.Have&frame.HaveIPv6 != 0 {
		f.ends.Family, family = tcpstats.FamilyIPv6, uint64(tcpstats.IPv6)
	} else {
		srcLo, dstLo = srcLo|tcpstats.MappedWord, dstLo|tcpstats.MappedWord
	}
	e := &f.ends
	e.LocalHi, e.LocalLo, e.LocalPort = srcHi, srcLo, head.SrcPort
	e.RemoteHi, e.RemoteLo, e.RemotePort = dstHi, dstLo, head.DstPort
	if !s.out {
		e.LocalHi, e.LocalLo, e.LocalPort = dstHi, dstLo, head.DstPort
		e.RemoteHi, e.RemoteLo, e.RemotePort = srcHi, srcLo, head.SrcPort
	}
	r := &f.record
	r.Reset(tcpstats.Flow)
	r.Put8(tcpstats.FieldFamily, uint8(family))
	r.Put8(tcpstats.FieldPort, k.port)
	r.Put16(tcpstats.FieldLocalPort, e.LocalPort)
	r.Put16(tcpstats.FieldRemotePort, e.RemotePort)
	r.PutAddr(tcpstats.FieldLocalAddr, e.LocalHi, e.LocalLo)
	r.PutAddr(tcpstats.FieldRemoteAddr, e.RemoteHi, e.RemoteLo)
	r.Put64(tcpstats.FieldCookie, hash^uint64(s.now))
	identity := tcpstats.FieldFamily.Bit() | tcpstats.FieldState.Bit() | tcpstats.FieldPort.Bit() | tcpstats.FieldLocalPort.Bit() | tcpstats.FieldRemotePort.Bit() |
		tcpstats.FieldLocalAddr.Bit() | tcpstats.FieldRemoteAddr.Bit() | tcpstats.FieldCookie.Bit()
	if head.VLANs > 0 {
		r.Put16(tcpstats.FieldVLAN, head.VLAN[0])
		identity |= tcpstats.FieldVLAN.Bit()
	}
	if s.flags&frame.TCPSYN != 0 {
		// A SYN with an acknowledgement is the answer of the other end.
		direction := uint8(tcpstats.DirectionIn)
		if s.out != (s.flags&frame.TCPACK != 0) {
			direction = tcpstats.DirectionOut
		}
		r.Put8(tcpstats.FieldDirection, direction)
		identity |= tcpstats.FieldDirection.Bit()
	}
	r.Mark(tcpstats.GroupIdentity, identity)
	r.Mark(tcpstats.GroupCongestion, tcpstats.FieldBytesSent.Bit()|tcpstats.FieldBytesRetrans.Bit()|tcpstats.FieldBytesReceived.Bit()|
		tcpstats.FieldMaxSegOut.Bit()|tcpstats.FieldMaxSegIn.Bit())
	r.Mark(tcpstats.GroupSequences, tcpstats.FieldSegsOut.Bit()|tcpstats.FieldSegsIn.Bit()|tcpstats.FieldDataSegsOut.Bit()|tcpstats.FieldDataSegsIn.Bit())
	r.Mark(tcpstats.GroupCounters, tcpstats.FieldRetrans.Bit()|tcpstats.FieldRetransIn.Bit()|tcpstats.FieldOutOfOrder.Bit()|tcpstats.FieldOutOfOrderL.Bit()|
		tcpstats.FieldDupAcks.Bit()|tcpstats.FieldZeroWindows.Bit())
	r.Mark(tcpstats.GroupTimers, tcpstats.FieldFirstSeen.Bit()|tcpstats.FieldLastSeen.Bit())
	r.Put64(tcpstats.FieldFirstSeen, uint64(s.now))
}

// over tells that a segment begins another flow between the same ends: a new SYN where the
// old flow has ended, or has another beginning.
func (f *flow) over(s *segment) bool {
	if s.flags&(frame.TCPSYN|frame.TCPACK) != frame.TCPSYN {
		return false
	}
	d := &f.side[direction(s)]
	return f.closed() || d.syn && d.isn != s.seq || !d.syn && d.seen
}

func direction(s *segment) int {
	if s.out {
		return local
	}
	return remote
}

// closed tells that the flow has ended.
func (f *flow) closed() bool {
	return f.reset || f.side[local].fin && f.side[remote].fin
}

// proven tells that both ends exist: the handshake is whole, or each has acknowledged what
// the other one sent.
func (f *flow) proven() bool { return f.established }

// have adds to what is there of a group.
func (f *flow) have(field tcpstats.Field) {
	g := field.Group()
	if h := f.record.Have(g); h&field.Bit() == 0 {
		f.record.Mark(g, h|field.Bit())
	}
}

func (f *flow) set32(field tcpstats.Field, v uint32) {
	f.record.Put32(field, v)
	f.have(field)
}

func (f *flow) add32(field tcpstats.Field, n uint32) {
	v := f.record.Get32(field)
	f.record.Put32(field, v+min(n, math.MaxUint32-v))
}

func (f *flow) add64(field tcpstats.Field, n uint64) { f.record.Put64(field, f.record.Get64(field)+n) }

// segment takes one segment in.
func (f *flow) segment(s *segment) {
	d := direction(s)
	me, other := &f.side[d], &f.side[1-d]
	f.last = s.now
	r := &f.record
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
	}
	if s.flags&frame.TCPRST != 0 {
		f.reset = true
	}
	me.seen = true
	f.state()
}

// syn takes a SYN in.
func (f *flow) syn(me, other *side, s *segment) {
	if me.syn {
		me.synAt, me.synTwice = 0, true // of which the answer is, nobody can tell
		return
	}
	me.syn, me.isn, me.synAt = true, s.seq, s.now
	me.mss, me.wscale, me.scales, me.sack, me.time = s.mss, s.wscale, s.hasWScale, s.sack, s.time
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
	r, options := &f.record, uint8(0)
	if me.time && other.time {
		options |= tcpstats.OptionTimestamps
	}
	if me.sack && other.sack {
		options |= tcpstats.OptionSACK
	}
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
func (f *flow) handshake(toRemote bool, began, now int64) {
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
func (f *flow) sample(ns int64) {
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
	dataOf    = [2]tcpstats.Field{local: tcpstats.FieldDataSegsOut, remote: tcpstats.FieldDataSegsIn}
)

// payload takes in what a segment has of the sequence space.
func (f *flow) payload(d int, me *side, s *segment) {
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
	}
	if d == remote {
		f.add64(tcpstats.FieldBytesReceived, uint64(min(s.bytes, end-me.nxt)))
	} else if me.timedAt == 0 && s.bytes > 0 {
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
func (f *flow) again(d int, me *side, s *segment, end uint32) {
	limit := int64(reorderLimit)
	if f.rtt != 0 {
		limit = min(limit, f.rtt)
	}
	since, ok := me.fill(s.seq, end)
	if ok && d == remote {
		f.add64(tcpstats.FieldBytesReceived, uint64(s.bytes))
	}
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

// fill takes what lies from from to to out of the gap that it lies in. ok is false when
// it lies in none.
func (m *side) fill(from, to uint32) (since int64, ok bool) {
	for i := range m.holes {
		h := &m.holes[i]
		if h.since == 0 || after(h.from, from) || after(to, h.to) {
			continue
		}
		since = h.since
		switch rest := *h; {
		case h.from == from && h.to == to:
			h.since = 0
		case h.from == from:
			h.from = to
		default:
			h.to = from
			if rest.to != to {
				m.gap(to, rest.to, since)
			}
		}
		return since, true
	}
	return 0, false
}

// ack takes an acknowledgement of an end in: what it says of the other one.
func (f *flow) ack(d int, me, other *side, s *segment) {
	if !f.established && other.seen && f.fits(me, other, s) {
		f.established = true
	}
	// The third segment of the handshake.
	if other.syn && !me.ackedAny && s.flags&frame.TCPSYN == 0 && me.syn && s.ack == other.isn+1 && other.synAt != 0 {
		if other.synAt > me.synAt {
			f.handshake(d == remote, other.synAt, s.now)
		}
	}
	fresh := !me.ackedAny || after(s.ack, me.lastAck)
	if other.seen && fresh && !after(s.ack, other.nxt) {
		if d == remote {
			if f.side[local].acked {
				f.add64(tcpstats.FieldBytesAcked, uint64(s.ack-other.una))
			}
			f.set32(tcpstats.FieldSndUna, s.ack)
			f.have(tcpstats.FieldBytesAcked)
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
	if fresh {
		me.lastAck = s.ack
		me.ackedAny = true
	}
}

// fits tells whether an acknowledgement can be one of what the other end sent.
func (f *flow) fits(me, other *side, s *segment) bool {
	if other.syn {
		if s.flags&frame.TCPSYN != 0 {
			return false // the answer to a SYN: the first end may not exist
		}
		return me.syn && !after(s.ack, other.nxt) && after(s.ack, other.isn)
	}
	// The handshake was not seen: both ends must know what the other one sends.
	diff := int32(s.ack - other.nxt)
	return me.seen && diff <= 0 && diff > -fitBytes && other.ackedAny && int32(other.lastAck-me.nxt) <= 0 && int32(other.lastAck-me.nxt) > -fitBytes
}

// window takes the window in that an end offers.
func (f *flow) window(d int, me *side, s *segment) {
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

// state says what the local end's state is, as far as the segments show it.
func (f *flow) state() {
	l, r := &f.side[local], &f.side[remote]
	finAcked := func(m *side) bool { return m.fin && m.acked && !after(m.finSeq, m.una) }
	s := tcpstats.Established
	switch {
	case f.reset:
		s = tcpstats.Closed
	case l.fin && r.fin && finAcked(l) && finAcked(r):
		s = tcpstats.TimeWait
	case l.fin && r.fin && finAcked(l):
		s = tcpstats.TimeWait
	case l.fin && r.fin && finAcked(r):
		s = tcpstats.LastAck
	case l.fin && r.fin:
		s = tcpstats.Closing
	case l.fin && finAcked(l):
		s = tcpstats.FinWait2
	case l.fin:
		s = tcpstats.FinWait1
	case r.fin:
		s = tcpstats.CloseWait
	case f.established:
	case l.syn && !r.syn:
		s = tcpstats.SynSent
	case r.syn && !f.established:
		s = tcpstats.SynReceived
	}
	f.ends.State = s
	f.record.Put8(tcpstats.FieldState, uint8(s))
}
