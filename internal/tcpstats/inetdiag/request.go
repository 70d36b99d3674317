package inetdiag

import (
	"encoding/binary"
	"net/netip"

	"oxpd/internal/tcpstats"
)

// Address families (bits/socket.h).
const (
	afINET  = 2
	afINET6 = 10
)

// Operations of a filter program (linux/inet_diag.h, INET_DIAG_BC_*).
const (
	opJmp       = 1
	opSGE       = 2
	opSLE       = 3
	opSCond     = 7
	opDCond     = 8
	opSEQ       = 11
	opDEQ       = 12
	opSize      = 4
	condSize    = 8 // struct inet_diag_hostcond
	anyPort     = -1
	rejectBytes = 4 // a jump that far behind the end rejects
)

// kernelStates has for each state the kernel's that are it.
var kernelStates = [...]uint32{
	tcpstats.Closed: 1<<kClose | 1<<kBoundInactive, tcpstats.Listen: 1 << kListen, tcpstats.SynSent: 1 << kSynSent,
	tcpstats.SynReceived: 1<<kSynRecv | 1<<kNewSynRecv, tcpstats.Established: 1 << kEstablished, tcpstats.CloseWait: 1 << kCloseWait,
	tcpstats.FinWait1: 1 << kFinWait1, tcpstats.Closing: 1 << kClosing, tcpstats.LastAck: 1 << kLastAck, tcpstats.FinWait2: 1 << kFinWait2,
	tcpstats.TimeWait: 1 << kTimeWait,
}

// stateOf has for each of the kernel's states what it is here.
var stateOf = [kStates]tcpstats.State{
	kEstablished: tcpstats.Established, kSynSent: tcpstats.SynSent, kSynRecv: tcpstats.SynReceived, kFinWait1: tcpstats.FinWait1,
	kFinWait2: tcpstats.FinWait2, kTimeWait: tcpstats.TimeWait, kClose: tcpstats.Closed, kCloseWait: tcpstats.CloseWait,
	kLastAck: tcpstats.LastAck, kListen: tcpstats.Listen, kClosing: tcpstats.Closing, kNewSynRecv: tcpstats.SynReceived,
	kBoundInactive: tcpstats.Closed,
}

// dump is a request.
type dump struct {
	states uint32
	ext    uint8
	code   []byte
}

// plan is what a query asks the kernel, nil for nothing, and which tests the kernel makes.
func plan(q *tcpstats.Query) (*dump, tcpstats.Pushed) {
	f := &q.Filter
	d := &dump{ext: extensions(f.Fields)}
	asked := f.States
	if q.NoPushDown {
		asked = tcpstats.AllStates
	}
	for s, bits := range kernelStates {
		if asked.Has(tcpstats.State(s)) {
			d.states |= bits
		}
	}
	if q.NoPushDown {
		return d, 0
	}
	pushed := pushedBy(f)
	if d.states == 0 || f.Families() == 0 {
		return nil, pushed // of prefixes that lie in different families, too
	}
	d.code = program(f)
	return d, pushed
}

// pushedBy are the tests that the kernel makes for a filter.
func pushedBy(f *tcpstats.Filter) (p tcpstats.Pushed) {
	if f.Families() != allFamilies {
		p |= tcpstats.PushedFamily
	}
	if f.States != tcpstats.AllStates {
		p |= tcpstats.PushedState
	}
	if f.LocalPorts.Len() > 0 || f.RemotePorts.Len() > 0 {
		p |= tcpstats.PushedPort
	}
	if f.Local.IsValid() || f.Remote.IsValid() {
		p |= tcpstats.PushedAddr
	}
	return p
}

// extensions are the attributes that groups of fields need.
func extensions(g tcpstats.Groups) (ext uint8) {
	if g&(fromInfo|tcpstats.GroupTimers) != 0 {
		ext |= 1 << (attrInfo - 1)
	}
	if g&tcpstats.GroupBuffers != 0 {
		ext |= 1 << (attrSKMemInfo - 1)
	}
	if g&tcpstats.GroupNames != 0 {
		ext |= 1 << (attrCong - 1)
	}
	return ext
}

// block is a piece of a program. A jump to reject is resolved when the program is whole.
type block struct {
	code   []byte
	reject []int // offsets of operations whose no rejects
}

func (b *block) op(code byte, yes int, no uint16) int {
	at := len(b.code)
	b.code = append(b.code, code, byte(yes), 0, 0)
	binary.NativeEndian.PutUint16(b.code[at+2:], no)
	return at
}

// rejectFrom makes the operation at an offset reject when it says no.
func (b *block) rejectFrom(at int) { b.reject = append(b.reject, at) }

// ports appends that one of the ports matches. eq is opSEQ or opDEQ.
func (b *block) ports(eq byte, list []uint16) {
	const size = 2 * opSize // the port is in an operation of its own behind
	var ends []int
	for i, p := range list {
		at := b.op(eq, size, size+opSize)
		b.op(0, 0, p)
		if i == len(list)-1 {
			b.rejectFrom(at)
			break
		}
		ends = append(ends, b.op(opJmp, opSize, 0))
	}
	for _, at := range ends {
		binary.NativeEndian.PutUint16(b.code[at+2:], uint16(len(b.code)-at))
	}
}

// cond appends that an address lies in a prefix; op is opSCond or opDCond. It returns
// the operation's offset.
func (b *block) cond(op byte, p netip.Prefix) int {
	family, addr := byte(afINET6), p.Addr().AsSlice()
	if p.Addr().Is4() {
		family = afINET
	}
	size := opSize + condSize + len(addr)
	at := b.op(op, size, uint16(size))
	port := int32(anyPort)
	b.code = append(b.code, family, byte(p.Bits()), 0, 0)
	b.code = binary.NativeEndian.AppendUint32(b.code, uint32(port))
	b.code = append(b.code, addr...)
	return at
}

// program is the filter as the kernel's program, nil when there is nothing to test.
func program(f *tcpstats.Filter) []byte {
	var b block
	v4 := netip.PrefixFrom(netip.IPv4Unspecified(), 0) // what speaks IPv4, also by an IPv6 socket
	switch families := f.Families(); {
	case families == allFamilies:
	case families&tcpstats.FamilyIPv6 == 0: // those of IPv6 addresses keep IPv4 sockets out, below
		b.rejectFrom(b.cond(opSCond, v4))
	default:
		at := b.cond(opSCond, v4) // yes: reject
		b.rejectFrom(b.op(opJmp, opSize, 0))
		binary.NativeEndian.PutUint16(b.code[at+2:], uint16(len(b.code)-at))
	}
	b.ports(opSEQ, f.LocalPorts.List())
	b.ports(opDEQ, f.RemotePorts.List())
	if f.Local.IsValid() {
		b.rejectFrom(b.cond(opSCond, f.Local))
	}
	if f.Remote.IsValid() {
		b.rejectFrom(b.cond(opDCond, f.Remote))
	}
	for _, at := range b.reject {
		binary.NativeEndian.PutUint16(b.code[at+2:], uint16(len(b.code)-at+rejectBytes))
	}
	return b.code
}

const allFamilies = tcpstats.FamilyIPv4 | tcpstats.FamilyMapped | tcpstats.FamilyIPv6

// append appends the request as a netlink message.
func (d *dump) append(b []byte, seq uint32) []byte {
	const request, dumpAll = 0x1, 0x300
	at := len(b)
	b = append(b, make([]byte, nlHeader+reqSize)...)
	h := b[at:]
	binary.NativeEndian.PutUint16(h[nlType:], tcpDiagGetSock)
	binary.NativeEndian.PutUint16(h[nlFlags:], request|dumpAll)
	binary.NativeEndian.PutUint32(h[8:], seq)
	r := h[nlHeader:]
	r[reqExt] = d.ext
	binary.NativeEndian.PutUint32(r[reqStates:], d.states)
	if len(d.code) > 0 {
		b = binary.NativeEndian.AppendUint16(b, uint16(attrHeader+len(d.code)))
		b = binary.NativeEndian.AppendUint16(b, reqByteCode)
		b = append(b, d.code...)
	}
	binary.NativeEndian.PutUint32(b[at:], uint32(len(b)-at))
	return b
}
