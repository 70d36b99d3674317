package tcpstats

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"slices"

	"oxpd/internal/board"
)

// State is the state of a connection.
type State uint8

// States, in the order of their bits in a filter.
const (
	Closed State = iota
	Listen
	SynSent
	SynReceived
	Established
	CloseWait
	FinWait1
	Closing
	LastAck
	FinWait2
	TimeWait

	stateCount = iota
)

// stateNames are the words of include_state= and exclude=.
var stateNames = [stateCount]string{"closed", "listen", "syn_sent", "syn_received", "established", "close_wait", "fin_wait_1", "closing", "last_ack", "fin_wait_2", "time_wait"}

// String is the word for the state.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "unknown"
}

// StateMask is a set of states, bit 0 Closed. AllStates has bits of no state too: it is
// told from the eleven that are named one by one.
type StateMask uint16

// AllStates is the mask of a filter that says nothing of states.
const AllStates StateMask = 1<<16 - 1

// Has tells whether a state is in the mask.
func (m StateMask) Has(s State) bool { return m>>s&1 != 0 }

// MaxPorts is how many ports a list has at most.
const MaxPorts = 8

// Ports is a list of ports. Empty: every port.
type Ports struct {
	list [MaxPorts]uint16
	n    uint8
}

// List are the ports, in the order in which they were written. It is the caller's.
func (p Ports) List() []uint16 { return slices.Clone(p.list[:p.n]) }

// Len is how many there are.
func (p Ports) Len() int { return int(p.n) }

// Has tells whether a port is in the list, or the list is empty.
func (p *Ports) Has(port uint16) bool {
	if p.n == 0 {
		return true
	}
	for _, q := range p.list[:p.n] {
		if q == port {
			return true
		}
	}
	return false
}

// add puts a port at the end. There is room.
func (p *Ports) add(port uint16) {
	p.list[p.n] = port
	p.n++
}

// Family is what a filter says of addresses.
type Family uint8

// Families.
const (
	AnyFamily Family = 0
	IPv4      Family = 4
	IPv6      Family = 6
)

// Filter is a filter that was understood. It is a value: two filters are equal with ==.
// The zero value matches nothing; Default does everything.
type Filter struct {
	LocalPorts, RemotePorts Ports
	Local, Remote           netip.Prefix // the zero Prefix: any address
	States                  StateMask
	Fields                  Groups // Identity always
	Via                     uint8  // index of the port and 1; ViaAny: every socket, with its port; 0: ports are not looked for
	Family                  Family // as written; an address implies more
	Format                  Format
	Source                  SourceKind
}

// Default is the filter of an empty text.
func Default() Filter { return Filter{States: AllStates, Fields: DefaultGroups} }

// ViaAny is the Via of via=any.
const ViaAny = 255

// ViaPort is the port of via=; ok is false when it names none.
func (f *Filter) ViaPort() (board.Port, bool) {
	if f.Via == 0 || f.Via == ViaAny {
		return board.Port{}, false
	}
	return board.All()[f.Via-1], true
}

// Families says what sockets a filter is about.
type Families uint8

// What a socket speaks, and how it is bound. One that is mapped is an IPv6 socket that
// speaks IPv4: it counts as IPv4, and is also found by its IPv6 address.
const (
	FamilyIPv4 Families = 1 << iota
	FamilyMapped
	FamilyIPv6

	allFamilies = FamilyIPv4 | FamilyMapped | FamilyIPv6
)

// mapped is where the IPv6 addresses of IPv4 are.
var mapped = netip.MustParsePrefix("::ffff:0:0/96")

// familiesOf are the families that an address implies.
func familiesOf(p netip.Prefix) Families {
	switch {
	case !p.IsValid():
		return allFamilies
	case p.Addr().Is4():
		return FamilyIPv4 | FamilyMapped
	case p.Bits() >= mapped.Bits() && mapped.Contains(p.Addr()):
		return FamilyMapped
	}
	return FamilyIPv6
}

// Families are those that the filter admits.
func (f *Filter) Families() Families {
	if f.Local.IsValid() || f.Remote.IsValid() {
		return familiesOf(f.Local) & familiesOf(f.Remote)
	}
	//exhaustive:enforce
	switch f.Family {
	case IPv4:
		return FamilyIPv4 | FamilyMapped
	case IPv6:
		return FamilyIPv6
	case AnyFamily:
	}
	return allFamilies
}

// Skip is why a socket is none of a filter's. The order is that in which it is asked.
type Skip uint8

// Reasons.
const (
	Match Skip = iota
	SkipFamily
	SkipState
	SkipPort
	SkipAddr
	SkipVia

	skipCount = iota
)

// skipNames are the words of reasons.
var skipNames = [skipCount]string{"match", "family", "state", "port", "addr", "via"}

// String is the word for the reason.
func (s Skip) String() string { return skipNames[s] }

// Skips are the reasons, in the order in which they are asked.
func Skips() []Skip { return []Skip{SkipFamily, SkipState, SkipPort, SkipAddr, SkipVia} }

// Ends is what a filter looks at.
type Ends struct {
	LocalHi, LocalLo      uint64 // address in two words, host order; IPv4 mapped (::ffff:a.b.c.d)
	RemoteHi, RemoteLo    uint64
	LocalPort, RemotePort uint16
	State                 State
	Family                Families // one bit
}

// MappedWord is what stands before the four bytes of an IPv4 address in the second word.
const MappedWord = 0xffff << 32

// Matcher is a filter that is ready to be asked, many times. Its methods may be called
// from several goroutines.
type Matcher struct {
	filter                Filter
	families              Families
	local, remote         wordPrefix
	ports, addrs, trivial bool // what there is to ask
}

// wordPrefix is a prefix in two words. Without bits every address is in it.
type wordPrefix struct{ hi, lo, maskHi, maskLo uint64 }

func wordsOf(p netip.Prefix) (w wordPrefix) {
	if !p.IsValid() {
		return w
	}
	n := p.Bits()
	if p.Addr().Is4() {
		n += 96
	}
	b := p.Addr().As16()
	w.maskHi = ^(^uint64(0) >> min(n, 64))
	w.maskLo = ^(^uint64(0) >> max(n-64, 0))
	w.hi, w.lo = binary.BigEndian.Uint64(b[:])&w.maskHi, binary.BigEndian.Uint64(b[8:])&w.maskLo
	return w
}

func (w *wordPrefix) has(hi, lo uint64) bool { return hi&w.maskHi == w.hi && lo&w.maskLo == w.lo }

// Matcher makes the filter ready.
func (f *Filter) Matcher() Matcher {
	m := Matcher{filter: *f, families: f.Families(), local: wordsOf(f.Local), remote: wordsOf(f.Remote)}
	m.ports = f.LocalPorts.n != 0 || f.RemotePorts.n != 0
	m.addrs = f.Local.IsValid() || f.Remote.IsValid()
	m.trivial = !m.ports && !m.addrs && m.families == allFamilies && f.States == AllStates
	return m
}

// Filter is what the matcher was made of.
func (m *Matcher) Filter() *Filter { return &m.filter }

// Ask tells whether a socket matches, but for via, which its source knows. The first miss
// decides.
func (m *Matcher) Ask(e *Ends) Skip {
	switch {
	case m.trivial:
		return Match
	case m.families&e.Family == 0:
		return SkipFamily
	case !m.filter.States.Has(e.State):
		return SkipState
	case m.ports && !(m.filter.LocalPorts.Has(e.LocalPort) && m.filter.RemotePorts.Has(e.RemotePort)):
		return SkipPort
	case m.addrs && !(m.local.has(e.LocalHi, e.LocalLo) && m.remote.has(e.RemoteHi, e.RemoteLo)):
		return SkipAddr
	}
	return Match
}

// Only is the only state that the mask has of the eleven; ok is false when there are
// several.
func (m StateMask) Only() (s State, ok bool) {
	m &= 1<<stateCount - 1
	return State(bits.TrailingZeros16(uint16(m))), bits.OnesCount16(uint16(m)) == 1
}
