package tcpstats

import (
	"encoding/binary"
	"math/bits"
	"net/netip"

	"oxpd/internal/board"
)

// Limits of a filter's text.
const (
	MaxText       = 511 // bytes
	MaxDirectives = 16
	maxMessage    = 127 // bytes of an error's text
	maxAddr4      = 15
	maxAddr6      = 47
)

// SyntaxError says what is wrong with the text of a filter, and where.
type SyntaxError struct {
	Offset  int    // in bytes from the beginning
	Word    string // what stands there
	Reason  string
	TooLong bool // the text as a whole: ENAMETOOLONG; all else is EINVAL
}

// Error has at most 127 bytes: a long word is cut.
func (e *SyntaxError) Error() string {
	const ellipsis = "..."
	b := make([]byte, 0, maxMessage)
	b = append(append(b, "at byte "...), itoa(e.Offset)...)
	b = append(b, ": "...)
	if e.Word != "" {
		room := maxMessage - len(b) - len(`"": `) - len(e.Reason)
		word := e.Word
		if len(word) > room {
			word = word[:max(room-len(ellipsis), 0)] + ellipsis
		}
		b = append(b, '"')
		for i := range len(word) {
			if c := word[i]; printable(c) {
				b = append(b, c)
			} else {
				b = append(b, '?')
			}
		}
		b = append(b, `": `...)
	}
	return string(append(b, e.Reason...))
}

// Code is the error number's name.
func (e *SyntaxError) Code() Code {
	if e.TooLong {
		return CodeTooLong
	}
	return CodeInvalid
}

// Reasons that several places give.
const (
	reasonTwice    = "this directive is there already"
	reasonNoValue  = "nothing stands behind ="
	reasonEmpty    = "the list has nothing in it"
	reasonHostBits = "bits behind the prefix are set"
	reasonConflict = "another directive asks for the other family"
)

// parser goes through a text once.
type parser struct {
	text string
	f    Filter
	seen uint16 // directives, by the bits below
	err  *SyntaxError
}

// Directives.
const (
	hasLocalPort = 1 << iota
	hasRemotePort
	hasExclude
	hasInclude
	hasLocalAddr
	hasRemoteAddr
	hasFormat
	hasFields
	hasVia
	hasSource
)

// Parse understands the text of a filter, or refuses it as a whole with a *SyntaxError.
// It allocates nothing when it succeeds.
func Parse(text string) (Filter, error) {
	if len(text) == 0 {
		return Default(), nil
	}
	if len(text) > MaxText {
		return Filter{}, &SyntaxError{Offset: MaxText, Reason: "the filter is longer than 511 bytes", TooLong: true}
	}
	var spaces bitmap
	if !spaces.fill(text) {
		return Filter{}, badCharacter(text)
	}
	if spaces.words(len(text)) > MaxDirectives {
		return Filter{}, tooMany(text)
	}
	p := parser{text: text, f: Default()}
	for at := spaces.next(0, false); at < len(text); {
		end := min(spaces.next(at, true), len(text))
		if !p.directive(at, end) {
			return Filter{}, p.err
		}
		at = spaces.next(end, false)
	}
	if !p.families() {
		return Filter{}, p.err
	}
	return p.f, nil
}

// bitmap has a bit for each byte of a text: whether it is a space. What is behind the text
// is none.
type bitmap [(MaxText + 1) / 64]uint64

// In each byte of a word.
const (
	ones  = 0x0101010101010101
	highs = 0x80 * ones
)

// fill finds the spaces of a text, eight bytes at a time, and tells whether all of it is
// printable ASCII.
func (m *bitmap) fill(text string) bool {
	bad := uint64(0)
	for i := 0; i < len(text); i += 8 {
		var x uint64
		if len(text)-i >= 8 {
			b := text[i : i+8]
			x = uint64(b[0]) | uint64(b[1])<<8 | uint64(b[2])<<16 | uint64(b[3])<<24 | uint64(b[4])<<32 | uint64(b[5])<<40 | uint64(b[6])<<48 | uint64(b[7])<<56
		} else {
			x = 'x' * ones // what is behind the end is printable, and no space
			for k := len(text) - 1; k >= i; k-- {
				x = x<<8 | uint64(text[k])
			}
		}
		// With the high bits cleared a byte below 0x20 does not reach 0x80 by adding 0x60, and
		// 0x7f does by adding 1.
		low := x &^ highs
		bad |= x | ^(low + 0x60*ones) | (low + ones)
		// A byte is a space when nothing is left of it by XOR.
		y := low ^ ' '*ones
		spaces := ^(y + 0x7f*ones) & highs
		m[i/64] |= spaces >> 7 * 0x0102040810204080 >> 56 << (i % 64)
	}
	return bad&highs == 0
}

// words counts the words of a text of n bytes.
func (m *bitmap) words(n int) (words int) {
	before := uint64(1) // what is before the text is a space
	for i := 0; i*64 < n; i++ {
		starts := ^m[i] & (m[i]<<1 | before)
		if left := n - i*64; left < 64 {
			starts &= 1<<left - 1
		}
		words += bits.OnesCount64(starts)
		before = m[i] >> 63
	}
	return words
}

// next is the first byte from at on that is a space, or is none.
func (m *bitmap) next(at int, space bool) int {
	for i := at / 64; i < len(m); i++ {
		w := m[i]
		if !space {
			w = ^w
		}
		if i == at/64 {
			w &= ^uint64(0) << (at % 64)
		}
		if w != 0 {
			return i*64 + bits.TrailingZeros64(w)
		}
	}
	return len(m) * 64
}

func printable(c byte) bool { return c >= 0x20 && c <= 0x7e }

func badCharacter(text string) error {
	i := 0
	for printable(text[i]) {
		i++
	}
	why := "a character that is not printable ASCII"
	switch c := text[i]; {
	case c == '\t':
		why = "a tab: directives are separated by spaces"
	case c == '\n' || c == '\r':
		why = "a line end: a filter is one line"
	}
	return &SyntaxError{Offset: i, Reason: why}
}

func tooMany(text string) error {
	words := 0
	for i := range len(text) {
		if text[i] != ' ' && (i == 0 || text[i-1] == ' ') {
			if words++; words > MaxDirectives {
				return &SyntaxError{Offset: i, Word: wordAt(text, i), Reason: "more than 16 directives"}
			}
		}
	}
	return nil
}

// wordAt is the directive that begins at i.
func wordAt(text string, i int) string {
	end := i
	for end < len(text) && text[end] != ' ' {
		end++
	}
	return text[i:end]
}

// fail keeps the error of what stands from at to end.
func (p *parser) fail(at, end int, reason string) bool {
	p.err = &SyntaxError{Offset: at, Word: p.text[at:end], Reason: reason}
	return false
}

// same tells whether a word is another one, which is in lower case.
func same(word, lower string) bool {
	return word == lower || len(word) == len(lower) && sameFolded(word, lower)
}

// sameFolded is same for words of one length.
func sameFolded(word, lower string) bool {
	for i := 0; i < len(lower); i++ {
		c := word[i]
		if c >= 'A' && c <= 'Z' {
			c |= 0x20
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

// once notes a directive that may be there once.
func (p *parser) once(bit uint16, at, end int) bool {
	if p.seen&bit != 0 {
		return p.fail(at, end, reasonTwice)
	}
	p.seen |= bit
	return true
}

// directive reads what stands from at to end.
func (p *parser) directive(at, end int) bool {
	eq := at
	for eq < end && p.text[eq] != '=' {
		eq++
	}
	key := p.text[at:eq]
	if eq == end {
		return p.word(key, at, end)
	}
	from := eq + 1
	var bit uint16
	// Its length, and one letter, leave one.
	want := ""
	switch len(key) {
	case len("via"):
		bit, want = hasVia, "via"
	case len("format"):
		switch key[1] | 0x20 {
		case 'i':
			bit, want = hasFields, "fields"
		default:
			if bit, want = hasFormat, "format"; key[0]|0x20 == 's' {
				bit, want = hasSource, "source"
			}
		}
	case len("exclude"):
		bit, want = hasExclude, "exclude"
	case len("local_port"):
		if bit, want = hasLocalPort, "local_port"; key[6]|0x20 == 'a' {
			bit, want = hasLocalAddr, "local_addr"
		}
	case len("remote_port"):
		if bit, want = hasRemotePort, "remote_port"; key[7]|0x20 == 'a' {
			bit, want = hasRemoteAddr, "remote_addr"
		}
	case len("include_state"):
		bit, want = hasInclude, "include_state"
	}
	if bit != 0 && !same(key, want) {
		bit = 0
	}
	switch {
	case bit == 0 && isFlag(key):
		return p.fail(at, end, "this word stands alone, without =")
	case bit == 0:
		return p.fail(at, end, "no such directive")
	case from == end:
		return p.fail(at, end, reasonNoValue)
	case !p.once(bit, at, end):
		return false
	}
	switch bit {
	case hasLocalPort:
		return p.ports(&p.f.LocalPorts, from, end)
	case hasRemotePort:
		return p.ports(&p.f.RemotePorts, from, end)
	case hasExclude:
		return p.exclude(at, from, end)
	case hasInclude:
		return p.include(at, from, end)
	case hasLocalAddr:
		return p.addr(&p.f.Local, from, end)
	case hasRemoteAddr:
		return p.addr(&p.f.Remote, from, end)
	case hasFormat:
		return p.format(from, end)
	case hasFields:
		return p.fields(from, end)
	case hasVia:
		return p.via(from, end)
	}
	return p.source(from, end)
}

func isFlag(word string) bool { return same(word, "ipv4_only") || same(word, "ipv6_only") }

// word reads a directive without a value.
func (p *parser) word(key string, at, end int) bool {
	var family Family
	switch {
	case same(key, "ipv4_only"):
		family = IPv4
	case same(key, "ipv6_only"):
		family = IPv6
	default:
		return p.fail(at, end, "no such word: a directive is KEY=VALUE, ipv4_only or ipv6_only")
	}
	if p.f.Family != AnyFamily && p.f.Family != family {
		return p.fail(at, end, "ipv4_only and ipv6_only exclude each other")
	}
	p.f.Family = family
	return true
}

// item is the next of a list that is not empty: from at to to. more is false at the end.
func (p *parser) item(at, end int) (from, to int, more bool) {
	for at < end && p.text[at] == ',' {
		at++
	}
	if at >= end {
		return at, at, false
	}
	to = at + 1
	for to < end && p.text[to] != ',' {
		to++
	}
	return at, to, true
}

func (p *parser) ports(into *Ports, at, end int) bool {
	const most = 65535
	first := at
	for at < end {
		if p.text[at] == ',' {
			at++
			continue
		}
		from, port := at, uint32(0)
		for at < end && p.text[at] != ',' {
			d := uint32(p.text[at]) - '0'
			if d > 9 {
				return p.badPort(from, end, "no port: want digits")
			}
			port = port*10 + d
			if at++; at-from > 5 {
				return p.badPort(from, end, "no port: more than five digits")
			}
		}
		switch {
		case p.text[from] == '0':
			return p.badPort(from, end, "no port: want 1 to 65535 without leading zeros")
		case port > most:
			return p.badPort(from, end, "no port: want 1 to 65535")
		case into.n != 0 && into.Has(uint16(port)):
			return p.badPort(from, end, "the port is in the list already")
		case into.n == MaxPorts:
			return p.badPort(from, end, "more than 8 ports")
		}
		into.add(uint16(port))
	}
	if into.n == 0 {
		return p.fail(first, end, reasonEmpty)
	}
	return true
}

// badPort fails at the item that begins at from.
func (p *parser) badPort(from, end int, reason string) bool {
	_, to, _ := p.item(from, end)
	return p.fail(from, to, reason)
}

// states reads a list of states.
func (p *parser) states(at, end int) (mask StateMask, ok bool) {
	first := at
	for {
		from, to, more := p.item(at, end)
		if !more {
			break
		}
		s, known := stateOf(p.text[from:to])
		switch {
		case !known:
			return 0, p.fail(from, to, "no such state")
		case mask.Has(s):
			return 0, p.fail(from, to, "the state is in the list already")
		}
		mask |= 1 << s
		at = to
	}
	if mask == 0 {
		return 0, p.fail(first, end, reasonEmpty)
	}
	return mask, true
}

// stateOf is the state of a word, in whatever case.
func stateOf(word string) (State, bool) {
	// Its length and its first letter leave one or two.
	if len(word) < len("listen") {
		return 0, false
	}
	var s State
	switch first := word[0] | 0x20; len(word) {
	case len("closed"): // listen
		if s = Closed; first == 'l' {
			s = Listen
		}
	case len("closing"):
		s = Closing
	case len("syn_sent"): // last_ack, syn_rcvd, timewait
		switch {
		case first == 'l':
			s = LastAck
		case first == 't':
			return TimeWait, same(word, "timewait")
		case same(word, "syn_rcvd"):
			return SynReceived, true
		default:
			s = SynSent
		}
	case len("time_wait"): // closewait
		if first == 'c' {
			return CloseWait, same(word, "closewait")
		}
		s = TimeWait
	case len("close_wait"): // fin_wait_1, fin_wait_2
		switch {
		case first == 'c':
			s = CloseWait
		case word[len(word)-1] == '1':
			s = FinWait1
		default:
			s = FinWait2
		}
	case len("established"):
		s = Established
	case len("syn_received"):
		s = SynReceived
	default:
		return 0, false
	}
	return s, same(word, stateNames[s])
}

func (p *parser) exclude(at, from, end int) bool {
	if p.seen&hasInclude != 0 {
		return p.fail(at, end, "include_state= is there already")
	}
	mask, ok := p.states(from, end)
	p.f.States &^= mask
	return ok
}

func (p *parser) include(at, from, end int) bool {
	if p.seen&hasExclude != 0 {
		return p.fail(at, end, "exclude= is there already")
	}
	mask, ok := p.states(from, end)
	p.f.States = mask
	return ok
}

func (p *parser) format(from, end int) bool {
	switch word := p.text[from:end]; {
	case same(word, "compact"):
		p.f.Format = Compact
	case same(word, "full"):
		p.f.Format = Full
	default:
		return p.fail(from, end, "want compact or full")
	}
	return true
}

func (p *parser) source(from, end int) bool {
	switch word := p.text[from:end]; {
	case same(word, "host"):
		p.f.Source = Host
	case same(word, "flow"):
		p.f.Source = Flow
	default:
		return p.fail(from, end, "want host or flow")
	}
	return true
}

func (p *parser) via(from, end int) bool {
	word := p.text[from:end]
	if same(word, "any") {
		p.f.Via = ViaAny
		return true
	}
	port, err := board.Parse(word)
	if err != nil {
		return p.fail(from, end, "no such port: want oxp1 to oxp12, a label, or any")
	}
	p.f.Via = uint8(port.Index + 1)
	return true
}

func (p *parser) fields(at, end int) bool {
	first, all := at, Groups(0)
	for {
		from, to, more := p.item(at, end)
		if !more {
			break
		}
		g := groupOf(p.text[from:to])
		if g == 0 {
			return p.fail(from, to, "no such group of fields")
		}
		all |= g
		at = to
	}
	if all == 0 {
		return p.fail(first, end, reasonEmpty)
	}
	p.f.Fields = all | GroupIdentity
	return true
}

// groupOf is the group, or the set of groups, of a word, 0 for none.
func groupOf(word string) Groups {
	switch {
	case same(word, "all"):
		return AllGroups
	case same(word, "default"):
		return DefaultGroups
	}
	for i := range groupNames {
		if same(word, groupNames[i]) {
			return 1 << i
		}
	}
	return 0
}

// number is a decimal number without leading zeros of up to three digits, -1 for none.
func number(s string) int {
	if len(s) == 0 || len(s) > 3 || len(s) > 1 && s[0] == '0' {
		return -1
	}
	n := 0
	for i := 0; i < len(s); i++ {
		d := int(s[i]) - '0'
		if d < 0 || d > 9 {
			return -1
		}
		n = n*10 + d
	}
	return n
}

// addr reads an address and its prefix.
func (p *parser) addr(into *netip.Prefix, at, end int) bool {
	word := p.text[at:end]
	slash, six := len(word), false
	for i := 0; i < len(word); i++ {
		switch word[i] {
		case ':':
			six = true
		case '/':
			if slash == len(word) {
				slash = i
			}
		}
	}
	size, most := 32, maxAddr4
	if six {
		size, most = 128, maxAddr6
	}
	n := size
	if slash < len(word) {
		if n = number(word[slash+1:]); n < 0 || n > size {
			if six {
				return p.fail(at, end, "no prefix: want / and 0 to 128 without leading zeros")
			}
			return p.fail(at, end, "no prefix: want / and 0 to 32 without leading zeros")
		}
	}
	if slash > most {
		return p.fail(at, end, "too long for an address")
	}
	var a netip.Addr
	if six {
		b, reason := ipv6(word[:slash])
		if reason != "" {
			return p.fail(at, end, reason)
		}
		a = netip.AddrFrom16(b)
		if !clean(binary.BigEndian.Uint64(b[:]), min(n, 64)) || !clean(binary.BigEndian.Uint64(b[8:]), max(n-64, 0)) {
			return p.fail(at, end, reasonHostBits)
		}
	} else {
		v, ok := ipv4(word[:slash])
		if !ok {
			return p.fail(at, end, "no address: want four numbers of 0 to 255 without leading zeros, or IPv6")
		}
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], v)
		a = netip.AddrFrom4(b)
		if !clean(uint64(v)<<32, n) {
			return p.fail(at, end, reasonHostBits)
		}
	}
	*into = netip.PrefixFrom(a, n)
	return true
}

// clean tells whether a word has nothing behind its first n bits.
func clean(word uint64, n int) bool { return word<<n == 0 }

func ipv4(s string) (v uint32, ok bool) {
	octets, n, digits := 0, 0, 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c == '.' {
			if digits == 0 || octets == 3 {
				return 0, false
			}
			v = v<<8 | uint32(n)
			octets, n, digits = octets+1, 0, 0
			continue
		}
		d := int(c) - '0'
		if d < 0 || d > 9 || digits > 0 && n == 0 {
			return 0, false
		}
		n, digits = n*10+d, digits+1
		if n > 255 {
			return 0, false
		}
	}
	return v<<8 | uint32(n), octets == 3 && digits > 0
}

// ipv6 reads eight groups of up to four hex digits, of which :: stands for one or more.
func ipv6(s string) (b [16]byte, reason string) {
	const (
		groups   = 8
		notSix   = "no IPv6 address: want eight groups of one to four hex digits, or one ::"
		twoGaps  = ":: is there twice"
		tooMuch  = "more than eight groups"
		dottedIs = "no dotted form within IPv6: write its last four bytes in hex"
	)
	var g [groups]uint16
	n, gap := 0, -1
	i := 0
	if len(s) >= 2 && s[0] == ':' && s[1] == ':' {
		gap, i = 0, 2
	}
	for i < len(s) {
		from, v := i, uint32(0)
		for i < len(s) {
			d := hexOf[s[i]]
			if d == noHex {
				break
			}
			v = v<<4 | uint32(d)
			i++
		}
		switch {
		case i < len(s) && s[i] == '.':
			return b, dottedIs
		case i == from || i-from > 4 || i < len(s) && s[i] != ':':
			return b, notSix // a colon too many, a digit too many, or no digit
		case n == groups:
			return b, tooMuch
		}
		g[n] = uint16(v)
		n++
		if i == len(s) {
			break
		}
		if i++; i == len(s) {
			return b, notSix // ends with one colon
		}
		if s[i] == ':' {
			if gap >= 0 {
				return b, twoGaps
			}
			gap = n
			i++
		}
	}
	switch {
	case gap < 0 && n != groups:
		return b, notSix
	case gap >= 0 && n == groups:
		return b, ":: must stand for a group at least"
	}
	for k := range n {
		to := k
		if gap >= 0 && k >= gap {
			to = groups - n + k
		}
		binary.BigEndian.PutUint16(b[2*to:], g[k])
	}
	return b, ""
}

// noHex is what hexOf has for what is no hex digit.
const noHex = 0xff

// hexOf has the values of hex digits.
var hexOf = func() (t [256]uint8) {
	for i := range t {
		t[i] = noHex
	}
	for i, c := range []byte("0123456789abcdef") {
		t[c] = uint8(i)
	}
	for i, c := range []byte("ABCDEF") {
		t[c] = uint8(10 + i)
	}
	return t
}()

// families refuses what no socket can be.
func (p *parser) families() bool {
	local, remote := familyOf(p.f.Local), familyOf(p.f.Remote)
	want := p.f.Family
	for _, f := range [...]Family{local, remote} {
		if f == AnyFamily {
			continue
		}
		if want != AnyFamily && want != f {
			at := p.lastAddr()
			p.err = &SyntaxError{Offset: at, Word: wordAt(p.text, at), Reason: reasonConflict}
			return false
		}
		want = f
	}
	return true
}

// familyOf is the family that an address is written in.
func familyOf(p netip.Prefix) Family {
	switch {
	case !p.IsValid():
		return AnyFamily
	case p.Addr().Is4():
		return IPv4
	}
	return IPv6
}

// lastAddr is where the last directive with an address begins.
func (p *parser) lastAddr() int {
	last := 0
	for i := range len(p.text) {
		if p.text[i] == ' ' || i > 0 && p.text[i-1] != ' ' {
			continue
		}
		if word := wordAt(p.text, i); len(word) > len("local_addr=") && (same(word[:len("local_addr=")], "local_addr=") || len(word) > len("remote_addr=") && same(word[:len("remote_addr=")], "remote_addr=")) {
			last = i
		}
	}
	return last
}

func itoa(n int) string {
	var b [20]byte
	return string(appendInt(b[:0], n))
}

func appendInt(b []byte, n int) []byte {
	if n >= 10 {
		b = appendInt(b, n/10)
	}
	return append(b, byte('0'+n%10))
}

// String is the canonical form: Parse makes the same filter of it. That of the default
// filter is empty.
func (f Filter) String() string { return string(f.AppendText(nil)) }

// AppendText appends the canonical form to b.
func (f *Filter) AppendText(b []byte) []byte {
	at := len(b)
	key := func(k string) {
		if len(b) > at {
			b = append(b, ' ')
		}
		b = append(b, k...)
	}
	ports := func(k string, p *Ports) {
		if p.n == 0 {
			return
		}
		key(k)
		for i, port := range p.list[:p.n] {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendInt(b, int(port))
		}
	}
	ports("local_port=", &f.LocalPorts)
	ports("remote_port=", &f.RemotePorts)
	const named = 1<<stateCount - 1
	switch {
	case f.States == AllStates:
	case f.States&^named != 0:
		key("exclude=")
		b = appendStates(b, ^f.States&named)
	default:
		key("include_state=")
		b = appendStates(b, f.States)
	}
	if f.Local.IsValid() {
		key("local_addr=")
		b = appendPrefix(b, f.Local)
	}
	if f.Remote.IsValid() {
		key("remote_addr=")
		b = appendPrefix(b, f.Remote)
	}
	//exhaustive:enforce
	switch f.Family {
	case IPv4:
		key("ipv4_only")
	case IPv6:
		key("ipv6_only")
	case AnyFamily:
	}
	if f.Via == ViaAny {
		key("via=any")
	} else if p, ok := f.ViaPort(); ok {
		key("via=")
		b = append(b, p.Name...)
	}
	if f.Source != Host {
		key("source=")
		b = append(b, f.Source.String()...)
	}
	if f.Format != Compact {
		key("format=")
		b = append(b, f.Format.String()...)
	}
	switch f.Fields {
	case DefaultGroups:
	case AllGroups:
		key("fields=all")
	default:
		key("fields=")
		first := true
		for rest := f.Fields; rest != 0; rest &= rest - 1 {
			if !first {
				b = append(b, ',')
			}
			first = false
			b = append(b, groupNames[bits.TrailingZeros16(uint16(rest))]...)
		}
	}
	return b
}

func appendStates(b []byte, m StateMask) []byte {
	for first := true; m != 0; m &= m - 1 {
		if !first {
			b = append(b, ',')
		}
		first = false
		b = append(b, stateNames[bits.TrailingZeros16(uint16(m))]...)
	}
	return b
}

// appendPrefix appends a prefix, its length left out when it is the whole address. IPv6 is
// written without dots.
func appendPrefix(b []byte, p netip.Prefix) []byte {
	a := p.Addr()
	if a.Is4In6() {
		const digits = "0123456789abcdef"
		raw := a.As16()
		b = append(b, "::ffff:"...)
		for i := 12; i < 16; i += 2 {
			if i > 12 {
				b = append(b, ':')
			}
			v, lead := binary.BigEndian.Uint16(raw[i:]), true
			for shift := 12; shift >= 0; shift -= 4 {
				d := v >> shift & 15
				if lead = lead && d == 0 && shift > 0; !lead {
					b = append(b, digits[d])
				}
			}
		}
	} else {
		b = a.AppendTo(b)
	}
	if p.Bits() != a.BitLen() {
		b = append(b, '/')
		b = appendInt(b, p.Bits())
	}
	return b
}
