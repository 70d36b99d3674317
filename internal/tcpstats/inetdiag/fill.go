package inetdiag

import (
	"bytes"
	"encoding/binary"

	"oxpd/internal/tcpstats"
)

// socket is one message of a reply: slices into the datagram.
type socket struct {
	diag            *[diagSize]byte
	info, cong, mem []byte // attributes, nil when they are absent
	ulp             []byte // name, nil likewise
	mark            uint32
	hasMark         bool
	state           tcpstats.State
	shape           shape // of the message before

	algorithm, protocol label // of the record, which is that of the socket before

	room [infoMost]byte // for the tcp_info of a kernel that has less
}

// ends reads what a filter looks at; ok is false for a message that is not understood.
func (s *socket) ends(e *tcpstats.Ends) bool {
	d := s.diag
	k := d[diagState]
	if k == 0 || int(k) >= len(stateOf) {
		return false
	}
	e.State = stateOf[k]
	s.state = e.State
	e.LocalPort, e.RemotePort = binary.BigEndian.Uint16(d[diagSPort:]), binary.BigEndian.Uint16(d[diagDPort:])
	switch d[diagFamily] {
	case afINET:
		e.Family = tcpstats.FamilyIPv4
		e.LocalHi, e.LocalLo = 0, tcpstats.MappedWord|uint64(binary.BigEndian.Uint32(d[diagSrc:]))
		e.RemoteHi, e.RemoteLo = 0, tcpstats.MappedWord|uint64(binary.BigEndian.Uint32(d[diagDst:]))
	case afINET6:
		e.Family = tcpstats.FamilyIPv6
		e.LocalHi, e.LocalLo = binary.BigEndian.Uint64(d[diagSrc:]), binary.BigEndian.Uint64(d[diagSrc+8:])
		e.RemoteHi, e.RemoteLo = binary.BigEndian.Uint64(d[diagDst:]), binary.BigEndian.Uint64(d[diagDst+8:])
		if e.LocalHi == 0 && e.LocalLo>>32 == tcpstats.MappedWord>>32 {
			e.Family = tcpstats.FamilyMapped
		}
	default:
		return false
	}
	return true
}

// maxShape is how many attributes are remembered of a message. Linux 6.18 has eleven.
const maxShape = 16

// shape is where the attributes of a message are: those of most messages of a dump are at
// the same places. To compare a few headers, all at once, is three times as fast as to go
// from one to the next.
type shape struct {
	bytes int // of all attributes; 0: none is remembered
	n     int
	heads [maxShape]struct {
		at   int
		head uint32
	}
	info, cong, mem, ulp, mark span
}

// span is where an attribute's value is; to is 0 when it is absent.
type span struct{ from, to int }

func (s span) of(b []byte) []byte {
	if s.to == 0 {
		return nil
	}
	return b[s.from:s.to]
}

// fits tells whether the attributes of another message are at the same places.
func (p *shape) fits(b []byte) bool {
	if len(b) != p.bytes || p.n == 0 {
		return false
	}
	differ := uint32(0)
	for i := range p.heads[:p.n] {
		h := &p.heads[i]
		differ |= binary.NativeEndian.Uint32(b[h.at:]) ^ h.head
	}
	return differ == 0
}

// learn finds the attributes. What is malformed ends them.
func (p *shape) learn(b []byte) {
	*p = shape{bytes: len(b)}
	for at := 0; len(b)-at >= attrHeader; {
		size := int(binary.NativeEndian.Uint16(b[at:]))
		if size < attrHeader || size > len(b)-at {
			break
		}
		if p.n < maxShape {
			p.heads[p.n].at, p.heads[p.n].head = at, binary.NativeEndian.Uint32(b[at:])
		}
		p.n++
		value := span{at + attrHeader, at + size}
		switch binary.NativeEndian.Uint16(b[at+attrType:]) & attrMask {
		case attrInfo:
			p.info = value
		case attrCong:
			p.cong = value
		case attrSKMemInfo:
			p.mem = value
		case attrMark:
			if size >= attrHeader+4 {
				p.mark = value
			}
		case attrULPInfo:
			p.ulp = value
		}
		at += (size + nlAlign - 1) &^ (nlAlign - 1)
	}
	if p.n > maxShape {
		p.n = 0 // too many to compare
	}
}

// attributes finds what a record may need behind the fixed part of a message.
func (s *socket) attributes(b []byte) {
	p := &s.shape
	if !p.fits(b) {
		p.learn(b)
	}
	s.info, s.cong, s.mem = p.info.of(b), p.cong.of(b), p.mem.of(b)
	s.ulp, s.mark, s.hasMark = nil, 0, p.mark.to != 0
	if s.hasMark {
		s.mark = binary.NativeEndian.Uint32(p.mark.of(b))
	}
	if p.ulp.to != 0 {
		s.ulp = nested(p.ulp.of(b), ulpName)
	}
}

// nested is the first attribute of a type within another.
func nested(b []byte, want uint16) []byte {
	for len(b) >= attrHeader {
		size := int(binary.NativeEndian.Uint16(b))
		if size < attrHeader || size > len(b) {
			return nil
		}
		if binary.NativeEndian.Uint16(b[attrType:])&attrMask == want {
			return b[attrHeader:size]
		}
		b = b[min((size+nlAlign-1)&^(nlAlign-1), len(b)):]
	}
	return nil
}

// label is a name in a record: most sockets have the same.
type label struct {
	raw [16]byte // of the attribute, with the zero that ends it
	n   int      // of raw; -1: it is longer, and not remembered
	has bool     // it is not empty
}

// put stores a name in the record, unless it is there already, and tells whether there is
// one.
func (l *label) put(r *tcpstats.Record, f tcpstats.Field, raw []byte) bool {
	if len(raw) == l.n && string(l.raw[:len(raw)]) == string(raw) {
		return l.has
	}
	text := name(raw)
	r.PutText(f, text)
	if l.n = copy(l.raw[:], raw); l.n < len(raw) {
		l.n = -1
	}
	l.has = len(text) > 0
	return l.has
}

// name is a text without the zero that ends it.
func name(b []byte) []byte {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		return b[:i]
	}
	return b
}

// Bits of fields that are there together.
var (
	identityAlways = tcpstats.FieldFamily.Bit() | tcpstats.FieldState.Bit() | tcpstats.FieldFlags.Bit() | tcpstats.FieldLocalPort.Bit() |
		tcpstats.FieldLocalAddr.Bit() | tcpstats.FieldCookie.Bit()
	identityRemote = tcpstats.FieldRemotePort.Bit() | tcpstats.FieldRemoteAddr.Bit()
	stateAlways    = tcpstats.FieldOptions.Bit() | tcpstats.FieldCAState.Bit() | tcpstats.FieldBackoff.Bit()
	scaleBits      = tcpstats.FieldSndWScale.Bit() | tcpstats.FieldRcvWScale.Bit()
	congestionBits = tcpstats.FieldCWnd.Bit() | tcpstats.FieldSndWnd.Bit() | tcpstats.FieldSndMSS.Bit() | tcpstats.FieldRcvMSS.Bit() |
		tcpstats.FieldAdvMSS.Bit() | tcpstats.FieldPMTU.Bit() | tcpstats.FieldRcvSSThresh.Bit() | tcpstats.FieldRcvSpace.Bit() | tcpstats.FieldAppLimited.Bit() |
		tcpstats.FieldDeliveryRate.Bit() | tcpstats.FieldBusy.Bit() | tcpstats.FieldRWndLimited.Bit() | tcpstats.FieldSndBufLimited.Bit() |
		tcpstats.FieldBytesAcked.Bit() | tcpstats.FieldBytesReceived.Bit() | tcpstats.FieldBytesSent.Bit() | tcpstats.FieldBytesRetrans.Bit()
	sequencesBits = tcpstats.FieldUnacked.Bit() | tcpstats.FieldNotSent.Bit() | tcpstats.FieldSegsOut.Bit() | tcpstats.FieldSegsIn.Bit() |
		tcpstats.FieldDataSegsOut.Bit() | tcpstats.FieldDataSegsIn.Bit()
	countersBits = tcpstats.FieldRetrans.Bit() | tcpstats.FieldRetransNow.Bit() | tcpstats.FieldLost.Bit() | tcpstats.FieldSacked.Bit() |
		tcpstats.FieldOutOfOrder.Bit() | tcpstats.FieldProbes.Bit() | tcpstats.FieldReordering.Bit() | tcpstats.FieldReordSeen.Bit() | tcpstats.FieldDelivered.Bit()
	buffersBits = tcpstats.FieldRcvBuf.Bit() | tcpstats.FieldSndBuf.Bit() | tcpstats.FieldRMemAlloc.Bit() | tcpstats.FieldWMemAlloc.Bit() |
		tcpstats.FieldWMemQueued.Bit() | tcpstats.FieldFwdAlloc.Bit() | tcpstats.FieldOptMem.Bit() | tcpstats.FieldBacklog.Bit() | tcpstats.FieldDrops.Bit()
)

// fill makes the record of a socket that matched: the groups that are wanted. r is the one
// of the socket before: each field of a group is stored, as 0 when it is absent, which is
// cheaper than to clear the record first.
func (s *socket) fill(r *tcpstats.Record, e *tcpstats.Ends, want tcpstats.Groups) {
	s.identity(r, e)
	groups := tcpstats.GroupIdentity
	if want&tcpstats.GroupBuffers != 0 && s.buffers(r) {
		groups |= tcpstats.GroupBuffers
	}
	if want&tcpstats.GroupNames != 0 && s.names(r) {
		groups |= tcpstats.GroupNames
	}
	if want&tcpstats.GroupTimers != 0 && s.timers(r) {
		groups |= tcpstats.GroupTimers
	}
	// Of a listener the kernel's tcp_info means other things, or nothing.
	if len(s.info) == 0 || e.State == tcpstats.Listen {
		r.PutGroups(groups)
		return
	}
	in := &s.room
	if len(s.info) >= infoMost {
		in = (*[infoMost]byte)(s.info)
	} else {
		clear(in[copy(in[:], s.info):])
	}
	if want&tcpstats.GroupState != 0 {
		states(r, in)
	}
	if want&tcpstats.GroupCongestion != 0 {
		congestion(r, in)
	}
	if want&tcpstats.GroupRTT != 0 {
		rtt(r, in)
	}
	if want&tcpstats.GroupSequences != 0 {
		sequences(r, in)
	}
	if want&tcpstats.GroupCounters != 0 {
		counters(r, in)
	}
	if want&tcpstats.GroupECN != 0 {
		ecn(r, in)
	}
	r.PutGroups(groups | want&fromInfo)
	if n := len(s.info); n < infoMost {
		older(r, n)
	}
}

// fromInfo are the groups that are filled from tcp_info alone.
const fromInfo = tcpstats.GroupState | tcpstats.GroupCongestion | tcpstats.GroupRTT | tcpstats.GroupSequences | tcpstats.GroupCounters | tcpstats.GroupECN

func u32(b *[infoMost]byte, at int) uint32 { return binary.NativeEndian.Uint32(b[at:]) }
func u64(b *[infoMost]byte, at int) uint64 { return binary.NativeEndian.Uint64(b[at:]) }

func (s *socket) identity(r *tcpstats.Record, e *tcpstats.Ends) {
	d := s.diag
	family, flags := uint8(tcpstats.IPv4), uint8(0)
	switch e.Family {
	case tcpstats.FamilyIPv6:
		family = uint8(tcpstats.IPv6)
	case tcpstats.FamilyMapped:
		flags = tcpstats.FlagMapped
	}
	have := identityAlways
	r.Put8(tcpstats.FieldFamily, family)
	r.Put8(tcpstats.FieldState, uint8(e.State))
	r.Put8(tcpstats.FieldFlags, flags)
	r.Put16(tcpstats.FieldLocalPort, e.LocalPort)
	r.PutAddr(tcpstats.FieldLocalAddr, e.LocalHi, e.LocalLo)
	// A socket that was never connected has no other end.
	if e.State != tcpstats.Listen && (e.State != tcpstats.Closed || e.RemotePort != 0) {
		r.Put16(tcpstats.FieldRemotePort, e.RemotePort)
		r.PutAddr(tcpstats.FieldRemoteAddr, e.RemoteHi, e.RemoteLo)
		have |= identityRemote
	} else {
		r.Put16(tcpstats.FieldRemotePort, 0)
		r.PutAddr(tcpstats.FieldRemoteAddr, 0, 0)
	}
	r.Put8(tcpstats.FieldPort, 0)
	// Without an inode nobody has the socket open: in TIME_WAIT, not accepted, or closed.
	uid, inode := binary.NativeEndian.Uint32(d[diagUID:]), binary.NativeEndian.Uint32(d[diagInode:])
	r.Put64(tcpstats.FieldInode, uint64(inode))
	r.Put32(tcpstats.FieldUID, uid)
	if inode != 0 {
		have |= tcpstats.FieldInode.Bit()
	}
	if inode != 0 || uid != 0 {
		have |= tcpstats.FieldUID.Bit()
	}
	r.Put64(tcpstats.FieldCookie, uint64(binary.NativeEndian.Uint32(d[diagCookie:]))|uint64(binary.NativeEndian.Uint32(d[diagCookie+4:]))<<32)
	bound := binary.NativeEndian.Uint32(d[diagIf:])
	r.Put32(tcpstats.FieldIfIndex, bound)
	if bound != 0 {
		have |= tcpstats.FieldIfIndex.Bit()
	}
	r.Put32(tcpstats.FieldMark, s.mark)
	if s.hasMark {
		have |= tcpstats.FieldMark.Bit()
	}
	r.PutHave(tcpstats.GroupIdentity, have)
}

func states(r *tcpstats.Record, in *[infoMost]byte) {
	have, options := stateAlways, in[infoOptions]
	r.Put8(tcpstats.FieldOptions, options&(tcpstats.OptionTimestamps|tcpstats.OptionSACK|tcpstats.OptionWScale|tcpstats.OptionECN|tcpstats.OptionECNSeen|tcpstats.OptionSynData))
	r.Put8(tcpstats.FieldCAState, in[infoCAState])
	r.Put8(tcpstats.FieldBackoff, in[infoBackoff])
	scales := uint8(0)
	if options&tcpstats.OptionWScale != 0 {
		scales = in[infoWScale]
		have |= scaleBits
	}
	r.Put8(tcpstats.FieldSndWScale, scales&15)
	r.Put8(tcpstats.FieldRcvWScale, scales>>4)
	r.PutHave(tcpstats.GroupState, have)
}

func congestion(r *tcpstats.Record, in *[infoMost]byte) {
	const (
		infinite = 0x7fffffff // TCP_INFINITE_SSTHRESH
		noRate   = ^uint64(0)
	)
	have := congestionBits
	r.Put32(tcpstats.FieldCWnd, u32(in, infoSndCWnd))
	ssthresh, pacing, most := u32(in, infoSndSSThresh), u64(in, infoPacingRate), u64(in, infoMaxPacing)
	if ssthresh < infinite {
		have |= tcpstats.FieldSSThresh.Bit()
	} else {
		ssthresh = 0
	}
	if pacing != noRate {
		have |= tcpstats.FieldPacingRate.Bit()
	} else {
		pacing = 0
	}
	if most != noRate {
		have |= tcpstats.FieldMaxPacingRate.Bit()
	} else {
		most = 0
	}
	r.Put32(tcpstats.FieldSSThresh, ssthresh)
	r.Put64(tcpstats.FieldPacingRate, pacing)
	r.Put64(tcpstats.FieldMaxPacingRate, most)
	r.Put32(tcpstats.FieldSndWnd, u32(in, infoSndWnd))
	r.Put32(tcpstats.FieldSndMSS, u32(in, infoSndMSS))
	r.Put32(tcpstats.FieldRcvMSS, u32(in, infoRcvMSS))
	r.Put32(tcpstats.FieldAdvMSS, u32(in, infoAdvMSS))
	r.Put32(tcpstats.FieldPMTU, u32(in, infoPMTU))
	r.Put32(tcpstats.FieldRcvSSThresh, u32(in, infoRcvSSThresh))
	r.Put32(tcpstats.FieldRcvSpace, u32(in, infoRcvSpace))
	r.Put8(tcpstats.FieldAppLimited, in[infoAppLimited]&1)
	r.Put64(tcpstats.FieldDeliveryRate, u64(in, infoDeliveryRate))
	r.Put64(tcpstats.FieldBusy, u64(in, infoBusy))
	r.Put64(tcpstats.FieldRWndLimited, u64(in, infoRWndLimited))
	r.Put64(tcpstats.FieldSndBufLimited, u64(in, infoSndBufLimited))
	r.Put64(tcpstats.FieldBytesAcked, u64(in, infoBytesAcked))
	r.Put64(tcpstats.FieldBytesReceived, u64(in, infoBytesReceived))
	r.Put64(tcpstats.FieldBytesSent, u64(in, infoBytesSent))
	r.Put64(tcpstats.FieldBytesRetrans, u64(in, infoBytesRetrans))
	r.Put32(tcpstats.FieldRcvWnd, u32(in, infoRcvWnd))
	r.PutHave(tcpstats.GroupCongestion, have|tcpstats.FieldRcvWnd.Bit())
}

func rtt(r *tcpstats.Record, in *[infoMost]byte) {
	const none = ^uint32(0)
	have := tcpstats.FieldRTO.Bit()
	r.Put32(tcpstats.FieldRTO, u32(in, infoRTO))
	smoothed, variance, least, receiver := u32(in, infoRTT), u32(in, infoRTTVar), u32(in, infoMinRTT), u32(in, infoRcvRTT)
	if smoothed != 0 {
		have |= tcpstats.FieldRTT.Bit() | tcpstats.FieldRTTVar.Bit()
	} else {
		variance = 0 // what it begins with: nothing was measured
	}
	if least != none {
		have |= tcpstats.FieldMinRTT.Bit()
	} else {
		least = 0
	}
	if receiver != 0 {
		have |= tcpstats.FieldRcvRTT.Bit()
	}
	r.Put32(tcpstats.FieldRTT, smoothed)
	r.Put32(tcpstats.FieldRTTVar, variance)
	r.Put32(tcpstats.FieldMinRTT, least)
	r.Put32(tcpstats.FieldRcvRTT, receiver)
	r.PutHave(tcpstats.GroupRTT, have)
}

func sequences(r *tcpstats.Record, in *[infoMost]byte) {
	r.Put32(tcpstats.FieldUnacked, u32(in, infoUnacked))
	r.Put32(tcpstats.FieldNotSent, u32(in, infoNotSent))
	r.Put64(tcpstats.FieldSegsOut, uint64(u32(in, infoSegsOut)))
	r.Put64(tcpstats.FieldSegsIn, uint64(u32(in, infoSegsIn)))
	r.Put64(tcpstats.FieldDataSegsOut, uint64(u32(in, infoDataSegsOut)))
	r.Put64(tcpstats.FieldDataSegsIn, uint64(u32(in, infoDataSegsIn)))
	r.PutHave(tcpstats.GroupSequences, sequencesBits)
}

func counters(r *tcpstats.Record, in *[infoMost]byte) {
	r.Put32(tcpstats.FieldRetrans, u32(in, infoTotalRetrans))
	r.Put32(tcpstats.FieldRetransNow, u32(in, infoRetrans))
	r.Put32(tcpstats.FieldLost, u32(in, infoLost))
	r.Put32(tcpstats.FieldSacked, u32(in, infoSacked))
	r.Put32(tcpstats.FieldOutOfOrder, u32(in, infoRcvOOOPack))
	r.Put8(tcpstats.FieldProbes, in[infoProbes])
	r.Put32(tcpstats.FieldReordering, u32(in, infoReordering))
	r.Put32(tcpstats.FieldReordSeen, u32(in, infoReordSeen))
	r.Put32(tcpstats.FieldDelivered, u32(in, infoDelivered))
	r.Put32(tcpstats.FieldRTOs, uint32(binary.NativeEndian.Uint16(in[infoTotalRTO:])))
	r.PutHave(tcpstats.GroupCounters, countersBits|tcpstats.FieldRTOs.Bit())
}

func ecn(r *tcpstats.Record, in *[infoMost]byte) {
	r.Put8(tcpstats.FieldECN, in[infoOptions]>>3&1)
	r.Put32(tcpstats.FieldDeliveredCE, u32(in, infoDeliveredCE))
	r.Put32(tcpstats.FieldDSACKDups, u32(in, infoDSACKDups))
	r.Put32(tcpstats.FieldReceivedCE, u32(in, infoReceivedCE))
	r.PutHave(tcpstats.GroupECN, tcpstats.FieldECN.Bit()|tcpstats.FieldDeliveredCE.Bit()|tcpstats.FieldDSACKDups.Bit()|tcpstats.FieldReceivedCE.Bit())
}

func (s *socket) timers(r *tcpstats.Record) bool {
	have := uint32(0)
	kind, retries, left := s.diag[diagTimer], s.diag[diagRetrans], binary.NativeEndian.Uint32(s.diag[diagExpires:])
	if kind != 0 {
		have |= tcpstats.FieldTimer.Bit() | tcpstats.FieldRetries.Bit() | tcpstats.FieldTimerMS.Bit()
	} else {
		retries, left = 0, 0
	}
	r.Put8(tcpstats.FieldTimer, kind)
	r.Put8(tcpstats.FieldRetries, retries)
	r.Put32(tcpstats.FieldTimerMS, left)
	var sent, came, acked uint32
	if len(s.info) >= infoLastAckRecv+4 && s.state != tcpstats.Listen {
		sent, came, acked = binary.NativeEndian.Uint32(s.info[infoLastDataSent:]), binary.NativeEndian.Uint32(s.info[infoLastDataRecv:]), binary.NativeEndian.Uint32(s.info[infoLastAckRecv:])
		have |= tcpstats.FieldLastSentMS.Bit() | tcpstats.FieldLastRecvMS.Bit() | tcpstats.FieldLastAckMS.Bit()
	}
	r.Put32(tcpstats.FieldLastSentMS, sent)
	r.Put32(tcpstats.FieldLastRecvMS, came)
	r.Put32(tcpstats.FieldLastAckMS, acked)
	r.PutHave(tcpstats.GroupTimers, have)
	return have != 0
}

func (s *socket) buffers(r *tcpstats.Record) bool {
	have := uint32(0)
	receive, send := binary.NativeEndian.Uint32(s.diag[diagRQueue:]), binary.NativeEndian.Uint32(s.diag[diagWQueue:])
	var waiting, limit uint32 // of a listener
	switch s.state {
	case tcpstats.Listen:
		waiting, limit, receive, send = receive, send, 0, 0
		have |= tcpstats.FieldAcceptQueue.Bit() | tcpstats.FieldAcceptLimit.Bit()
	case tcpstats.TimeWait, tcpstats.SynReceived: // they have no queues
		receive, send = 0, 0
	default:
		have |= tcpstats.FieldRecvQueue.Bit() | tcpstats.FieldSendQueue.Bit()
	}
	r.Put32(tcpstats.FieldAcceptQueue, waiting)
	r.Put32(tcpstats.FieldAcceptLimit, limit)
	r.Put32(tcpstats.FieldRecvQueue, receive)
	r.Put32(tcpstats.FieldSendQueue, send)
	var none [memSize]byte
	m := &none
	if len(s.mem) >= memSize {
		m = (*[memSize]byte)(s.mem)
		have |= buffersBits
	}
	r.Put32(tcpstats.FieldRMemAlloc, binary.NativeEndian.Uint32(m[memRMemAlloc:]))
	r.Put32(tcpstats.FieldRcvBuf, binary.NativeEndian.Uint32(m[memRcvBuf:]))
	r.Put32(tcpstats.FieldWMemAlloc, binary.NativeEndian.Uint32(m[memWMemAlloc:]))
	r.Put32(tcpstats.FieldSndBuf, binary.NativeEndian.Uint32(m[memSndBuf:]))
	r.Put32(tcpstats.FieldFwdAlloc, binary.NativeEndian.Uint32(m[memFwdAlloc:]))
	r.Put32(tcpstats.FieldWMemQueued, binary.NativeEndian.Uint32(m[memWMemQueued:]))
	r.Put32(tcpstats.FieldOptMem, binary.NativeEndian.Uint32(m[memOptMem:]))
	r.Put32(tcpstats.FieldBacklog, binary.NativeEndian.Uint32(m[memBacklog:]))
	r.Put32(tcpstats.FieldDrops, binary.NativeEndian.Uint32(m[memDrops:]))
	r.PutHave(tcpstats.GroupBuffers, have)
	return have != 0
}

func (s *socket) names(r *tcpstats.Record) bool {
	have := uint32(0)
	algorithm := s.cong
	if s.state == tcpstats.Listen {
		algorithm = nil
	}
	if s.algorithm.put(r, tcpstats.FieldAlgorithm, algorithm) {
		have |= tcpstats.FieldAlgorithm.Bit()
	}
	if len(s.ulp)|s.protocol.n != 0 && s.protocol.put(r, tcpstats.FieldULP, s.ulp) {
		have |= tcpstats.FieldULP.Bit()
	}
	r.PutHave(tcpstats.GroupNames, have)
	return have != 0
}

// late are the fields that not every kernel has, and where the last byte of each is in
// tcp_info. What comes before sndbuf_limited is in every kernel that has sock_diag with it.
var late = []struct {
	field tcpstats.Field
	end   int
}{
	{tcpstats.FieldSegsOut, infoSegsOut + 4}, {tcpstats.FieldSegsIn, infoSegsIn + 4}, {tcpstats.FieldNotSent, infoNotSent + 4},
	{tcpstats.FieldMinRTT, infoMinRTT + 4}, {tcpstats.FieldDataSegsIn, infoDataSegsIn + 4}, {tcpstats.FieldDataSegsOut, infoDataSegsOut + 4},
	{tcpstats.FieldPacingRate, infoPacingRate + 8}, {tcpstats.FieldMaxPacingRate, infoMaxPacing + 8},
	{tcpstats.FieldBytesAcked, infoBytesAcked + 8}, {tcpstats.FieldBytesReceived, infoBytesReceived + 8},
	{tcpstats.FieldDeliveryRate, infoDeliveryRate + 8}, {tcpstats.FieldAppLimited, infoDeliveryRate + 8}, {tcpstats.FieldBusy, infoBusy + 8},
	{tcpstats.FieldRWndLimited, infoRWndLimited + 8}, {tcpstats.FieldSndBufLimited, infoSndBufLimited + 8},
	{tcpstats.FieldDelivered, infoDelivered + 4}, {tcpstats.FieldDeliveredCE, infoDeliveredCE + 4},
	{tcpstats.FieldBytesSent, infoBytesSent + 8}, {tcpstats.FieldBytesRetrans, infoBytesRetrans + 8},
	{tcpstats.FieldDSACKDups, infoDSACKDups + 4}, {tcpstats.FieldReordSeen, infoReordSeen + 4}, {tcpstats.FieldOutOfOrder, infoRcvOOOPack + 4},
	{tcpstats.FieldSndWnd, infoSndWnd + 4}, {tcpstats.FieldRcvWnd, infoRcvWnd + 4}, {tcpstats.FieldRTOs, infoTotalRTO + 2},
	{tcpstats.FieldReceivedCE, infoReceivedCE + 4},
}

// older takes away what a kernel does not have whose tcp_info has n bytes.
func older(r *tcpstats.Record, n int) {
	const first = infoTotalRetrans + 4 // of Linux 2.6: every kernel has it
	if n < first {
		for rest := fromInfo; rest != 0; rest &= rest - 1 {
			r.Mark(rest&-rest, 0)
		}
		return
	}
	for i := range late {
		if l := &late[i]; n < l.end && r.Has(l.field) {
			r.Drop(l.field)
		}
	}
}
