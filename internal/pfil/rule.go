package pfil

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"oxpd/internal/board"
	"oxpd/internal/frame"
)

// Verdict is what a rule says about a frame that it matches. Each of them ends the
// search: the first rule that matches decides.
type Verdict uint8

// Verdicts.
const (
	Pass   Verdict = iota // deliver
	Drop                  // the frame ends here
	Divert                // deliver to the inspection queue
	Sample                // deliver, and keep a copy of one in Rule.Every
	Count                 // deliver: the rule's counters are all that is wanted
)

var verdictWords = [...]string{"pass", "drop", "divert", "sample", "count"}

// String is the word of the language.
func (v Verdict) String() string {
	if int(v) >= len(verdictWords) {
		return "verdict " + strconv.Itoa(int(v))
	}
	return verdictWords[v]
}

// Direction is a set of ways that a frame can go.
type Direction uint8

// Directions.
const (
	In   Direction = 1 << iota // from the wire to the host
	Out                        // from the host to the wire
	Both = In | Out
)

// String is the word of the language, "both" for Both.
func (d Direction) String() string {
	switch d {
	case In:
		return "in"
	case Out:
		return "out"
	case Both:
		return "both"
	}
	return "direction " + strconv.Itoa(int(d))
}

// Family says what kind of datagram a rule is about.
type Family uint8

// Families.
const (
	AnyFrame Family = iota // every frame, datagram or not
	IP                     // IPv4 or IPv6
	IPv4
	IPv6
)

// Range is numbers from Lo to Hi, both of them included.
type Range struct{ Lo, Hi uint16 }

// Has tells whether v is in the range.
func (r Range) Has(v uint16) bool { return r.Lo <= v && v <= r.Hi }

// End is one side of a rule: where a datagram comes from, or goes to.
type End struct {
	Not    bool         // everything but Prefix or Set
	Prefix netip.Prefix // a host has all its bits; invalid: none given
	Set    string       // name of a set; empty: none given
	Ports  []Range      // empty: any; ascending
}

// Any tells whether the end takes every address.
func (e *End) Any() bool { return !e.Prefix.IsValid() && e.Set == "" }

// VLANNone, alone in Rule.VLANs, stands for frames without a tag.
const VLANNone = 0xffff

const vlanNoneWord = "none"

// Rule is one line. The zero value of each option is the option not given.
type Rule struct {
	Line    int // in its file, from 1
	Verdict Verdict
	Every   uint32 // with Sample: one in so many is kept

	Program string // a classic BPF program by name; with it there is no Family to Dst
	Family  Family
	HasNum  bool  // Proto is asked for
	Proto   uint8 // protocol number
	Src     End
	Dst     End

	Dir        Direction // never 0
	Ports      uint16    // board ports, one bit each by board.Port.Index; 0: all
	Frag       bool
	Lengths    []Range // bytes of the whole frame without FCS
	ICMPTypes  []Range
	FlagsSet   uint8 // TCP flags that must be set
	FlagsClear uint8 // TCP flags that must not be set
	VLANs      []Range
	EtherType  uint16 // 0: any
}

// protocols are the names of the language, with the family that they imply.
var protocols = []struct {
	name   string
	family Family
	hasNum bool
	num    uint8
}{
	{"any", AnyFrame, false, 0},
	{"ip", IP, false, 0},
	{"ip4", IPv4, false, 0},
	{"ip6", IPv6, false, 0},
	{"tcp", IP, true, frame.ProtoTCP},
	{"udp", IP, true, frame.ProtoUDP},
	{"icmp", IPv4, true, frame.ProtoICMP},
	{"icmp6", IPv6, true, frame.ProtoICMPv6},
	{"sctp", IP, true, frame.ProtoSCTP},
	{"gre", IP, true, frame.ProtoGRE},
	{"esp", IP, true, frame.ProtoESP},
}

// tcpFlags are the names of the flags, the least bit first.
var tcpFlags = [8]string{"fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr"}

// portMask is the bits of all ports.
const portMask = 1<<board.Ports - 1

// hasPorts tells whether a protocol has ports that frame.Packet reads.
func hasPorts(proto uint8) bool {
	return proto == frame.ProtoTCP || proto == frame.ProtoUDP || proto == frame.ProtoSCTP
}

// String is the rule in its canonical form: one space between words, names as the
// board has them, nothing that says what is so anyway. Two rules with one text are
// the same rule. Parsed again it gives the same rule, except for Line.
func (r *Rule) String() string {
	var b strings.Builder
	b.WriteString(r.Verdict.String())
	if r.Verdict == Sample {
		fmt.Fprintf(&b, " %d", r.Every)
	}
	if r.Program != "" {
		b.WriteString(" program " + r.Program)
	} else {
		b.WriteString(" " + r.protocol() + " from " + r.Src.String() + " to " + r.Dst.String())
	}
	if r.Dir != Both {
		b.WriteString(" " + r.Dir.String())
	}
	if r.Ports != 0 {
		b.WriteString(" on " + portNames(r.Ports))
	}
	if r.Frag {
		b.WriteString(" frag")
	}
	if r.EtherType != 0 {
		fmt.Fprintf(&b, " ethertype 0x%04x", r.EtherType)
	}
	if len(r.VLANs) > 0 {
		b.WriteString(" vlan " + vlans(r.VLANs))
	}
	if len(r.ICMPTypes) > 0 {
		b.WriteString(" icmp-type " + ranges(r.ICMPTypes))
	}
	if r.FlagsSet|r.FlagsClear != 0 {
		b.WriteString(" tcp-flags " + flagWords(r.FlagsSet, r.FlagsClear))
	}
	if len(r.Lengths) > 0 {
		b.WriteString(" length " + ranges(r.Lengths))
	}
	return b.String()
}

// protocol is the word for family and protocol number.
func (r *Rule) protocol() string {
	for _, p := range protocols {
		if p.family == r.Family && p.hasNum == r.HasNum && (!p.hasNum || p.num == r.Proto) {
			return p.name
		}
	}
	return strconv.Itoa(int(r.Proto))
}

// String is the end in its canonical form.
func (e *End) String() string {
	s := "any"
	switch {
	case e.Set != "":
		s = "set " + e.Set
	case e.Prefix.IsValid() && e.Prefix.IsSingleIP():
		s = e.Prefix.Addr().String()
	case e.Prefix.IsValid():
		s = e.Prefix.String()
	}
	if e.Not {
		s = "not " + s
	}
	if len(e.Ports) > 0 {
		s += " port " + ranges(e.Ports)
	}
	return s
}

func ranges(rs []Range) string {
	words := make([]string, len(rs))
	for i, r := range rs {
		words[i] = r.String()
	}
	return strings.Join(words, ",")
}

// String is the range as the language writes it.
func (r Range) String() string {
	if r.Lo == r.Hi {
		return strconv.Itoa(int(r.Lo))
	}
	return fmt.Sprintf("%d-%d", r.Lo, r.Hi)
}

func vlans(rs []Range) string {
	if rs[0].Lo == VLANNone {
		return vlanNoneWord
	}
	return ranges(rs)
}

func portNames(mask uint16) string {
	var names []string
	for _, p := range board.All() {
		if mask>>p.Index&1 != 0 {
			names = append(names, p.Name)
		}
	}
	return strings.Join(names, ",")
}

func flagWords(set, clear uint8) string {
	var words []string
	for i, name := range tcpFlags {
		if set>>i&1 != 0 {
			words = append(words, name)
		}
		if clear>>i&1 != 0 {
			words = append(words, "!"+name)
		}
	}
	return strings.Join(words, ",")
}
