package pfil

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"oxpd/internal/board"
	"oxpd/internal/frame"
	"oxpd/internal/pfil/cbpf"
)

// Limits of what is parsed. They bound memory and time, not use.
const (
	MaxRules    = 1 << 16
	MaxSets     = 256
	MaxPrograms = 256
	MaxPrefixes = 1 << 22 // of all sets together
	MaxName     = 64      // bytes of a name
	maxLine     = 4096    // bytes
	maxRanges   = 64      // in one list
	maxErrors   = 20      // that are told of one source
	maxWarnings = 20
	maxFound    = 64 // bytes of a word that an error shows
	maxVLAN     = 4095
	maxEvery    = 1 << 30
)

// Rules are the rules of a source with what they name.
type Rules struct {
	Sets     []Set
	Programs []BPF
	Rules    []Rule
	// Warnings say what is most likely not meant: a rule that can never match, a set
	// that no rule names. Each begins with file and line.
	Warnings []string
}

// Set is a named set of prefixes.
type Set struct {
	Name     string
	Path     string // as written
	Line     int    // of its declaration
	col      int    // of Path
	Prefixes []netip.Prefix
}

// BPF is a named classic BPF program.
type BPF struct {
	Name    string
	Path    string // as written
	Line    int    // of its declaration
	col     int    // of Path
	Program *cbpf.Program
}

// Error is a refusal of a source: where, what is there, and what would do.
type Error struct {
	File      string
	Line, Col int // from 1; Col in bytes
	Found     string
	Expected  string
	Text      string // the line, without its end
}

// Error implements error.
func (e *Error) Error() string {
	return fmt.Sprintf("%s:%d:%d: found %s, expected %s", e.File, e.Line, e.Col, e.Found, e.Expected)
}

// Parse reads a source. The error joins up to 20 *Error, in the order of the lines;
// with one there are no rules.
func Parse(src Source) (*Rules, error) {
	p := newParser(src)
	p.lines()
	p.names()
	p.contents(MaxPrefixes)
	if len(p.errs) > 0 {
		return nil, errors.Join(p.errs...)
	}
	p.warn()
	return p.out, nil
}

func newParser(src Source) *parser {
	return &parser{src: src, out: &Rules{}, sets: map[string]bool{}, programs: map[string]bool{}}
}

// lines reads the rules, and no file that they name.
func (p *parser) lines() {
	for rest := p.src.Rules; len(rest) > 0 && !p.full(); {
		var text []byte
		text, rest, _ = bytes.Cut(rest, []byte("\n"))
		p.line++
		p.parseLine(string(bytes.TrimSuffix(text, []byte("\r"))))
	}
}

// word is one word of a line. end is the end of the line, with no text.
type word struct {
	text string
	col  int
	end  bool
}

type parser struct {
	src  Source
	out  *Rules
	errs []error

	sets, programs map[string]bool
	uses           []use

	line  int
	text  string
	words []word // that are left of the line
	room  []word // the memory of words, for the next line
}

// use is a name that a rule needs.
type use struct {
	what, name string
	line, col  int
	text       string
}

func (p *parser) full() bool { return len(p.errs) >= maxErrors }

// refuse notes an error at a word of the current line.
func (p *parser) refuse(w word, expected string, args ...any) bool {
	found := quote(w.text)
	if w.end {
		found = "the end of the line"
	}
	p.errs = append(p.errs, &Error{File: p.src.Name, Line: p.line, Col: w.col, Found: found, Expected: fmt.Sprintf(expected, args...), Text: p.text})
	return false
}

// quote is a word as an error shows it.
func quote(s string) string {
	if len(s) > maxFound {
		s = s[:maxFound] + "..."
	}
	return strconv.Quote(s)
}

// split makes words of a line. A word that begins with # ends it; a word in double
// quotes may have spaces.
func (p *parser) split(text string) bool {
	p.text, p.words = text, p.room[:0]
	defer func() { p.room = p.words[:0] }()
	for at := 0; ; {
		for at < len(text) && (text[at] == ' ' || text[at] == '\t') {
			at++
		}
		if at == len(text) || text[at] == '#' {
			p.words = append(p.words, word{col: at + 1, end: true})
			return true
		}
		begin := at
		if text[at] == '"' {
			n := strings.IndexByte(text[at+1:], '"')
			if n < 0 {
				return p.refuse(word{text: text[at:], col: at + 1}, `a closing "`)
			}
			p.words = append(p.words, word{text: text[at+1 : at+1+n], col: begin + 1})
			at += n + 2
			continue
		}
		for at < len(text) && text[at] != ' ' && text[at] != '\t' {
			at++
		}
		p.words = append(p.words, word{text: text[begin:at], col: begin + 1})
	}
}

// peek is the next word, next takes it. The end of the line stays.
func (p *parser) peek() word { return p.words[0] }

func (p *parser) next() word {
	w := p.words[0]
	if !w.end {
		p.words = p.words[1:]
	}
	return w
}

// take takes the next word when it is this one.
func (p *parser) take(text string) bool {
	if w := p.peek(); w.end || w.text != text {
		return false
	}
	p.next()
	return true
}

// want takes the next word, which must be this one.
func (p *parser) want(text string) bool {
	if p.take(text) {
		return true
	}
	return p.refuse(p.peek(), "%q", text)
}

func (p *parser) parseLine(text string) {
	if len(text) > maxLine {
		p.text = text[:maxLine]
		p.refuse(word{text: text[maxLine:], col: maxLine + 1}, "a line of at most %d bytes", maxLine)
		return
	}
	if !p.split(text) || p.peek().end {
		return
	}
	switch w := p.peek(); w.text {
	case "set":
		p.next()
		p.declare(w, p.sets, MaxSets, len(p.out.Sets), func(name string, path word) {
			p.out.Sets = append(p.out.Sets, Set{Name: name, Path: path.text, Line: p.line, col: path.col})
		})
	case "program":
		p.next()
		p.declare(w, p.programs, MaxPrograms, len(p.out.Programs), func(name string, path word) {
			p.out.Programs = append(p.out.Programs, BPF{Name: name, Path: path.text, Line: p.line, col: path.col})
		})
	default:
		p.rule()
	}
}

// declare reads NAME file PATH.
func (p *parser) declare(what word, known map[string]bool, most, have int, add func(name string, path word)) {
	if have >= most {
		p.refuse(what, "no more than %d of them", most)
		return
	}
	w := p.next()
	switch {
	case !validName(w.text):
		p.refuse(w, "a name of at most %d letters, digits, - _ and .", MaxName)
		return
	case known[w.text]:
		p.refuse(w, "another name: this one is declared already")
		return
	}
	if !p.want("file") {
		return
	}
	path := p.next()
	if path.text == "" || strings.IndexFunc(path.text, unprintable) >= 0 {
		p.refuse(path, "the path of a file, of characters that can be shown")
		return
	}
	if end := p.peek(); !end.end {
		p.refuse(end, "the end of the line")
		return
	}
	known[w.text] = true
	add(w.text, path)
}

func unprintable(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }

// validName tells whether s can name a set, a program or a filter.
func validName(s string) bool {
	if s == "" || len(s) > MaxName || s[0] == '-' || s[0] == '.' {
		return false
	}
	for _, c := range []byte(s) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_', c == '.':
		default:
			return false
		}
	}
	return true
}

// rule reads VERDICT MATCH OPTION...
func (p *parser) rule() {
	r := Rule{Line: p.line}
	if len(p.out.Rules) >= MaxRules {
		p.refuse(p.peek(), "no more than %d rules", MaxRules)
		return
	}
	if p.verdict(&r) && p.match(&r) && p.options(&r) {
		p.out.Rules = append(p.out.Rules, r)
	}
}

func (p *parser) verdict(r *Rule) bool {
	w := p.next()
	i := slices.Index(verdictWords[:], w.text)
	if i < 0 {
		return p.refuse(w, "a verdict (%s), set or program", strings.Join(verdictWords[:], ", "))
	}
	if r.Verdict = Verdict(i); r.Verdict != Sample {
		return true
	}
	n := p.next()
	every, ok := number(n.text, maxEvery)
	if !ok || every == 0 {
		return p.refuse(n, "a number from 1 to %d: one frame in so many is kept", maxEvery)
	}
	r.Every = uint32(every)
	return true
}

func (p *parser) match(r *Rule) bool {
	w := p.next()
	if w.text == "program" {
		name := p.next()
		if !validName(name.text) {
			return p.refuse(name, "the name of a program")
		}
		p.uses = append(p.uses, use{"program", name.text, p.line, name.col, p.text})
		r.Program = name.text
		return true
	}
	if !setProtocol(r, w.text) {
		names := make([]string, len(protocols))
		for i := range protocols {
			names[i] = protocols[i].name
		}
		return p.refuse(w, "a protocol (%s or 0 to 255) or program", strings.Join(names, ", "))
	}
	if !p.want("from") || !p.end(r, &r.Src) || !p.want("to") {
		return false
	}
	dst := p.peek()
	if !p.end(r, &r.Dst) {
		return false
	}
	if a, b := r.Src.Prefix, r.Dst.Prefix; a.IsValid() && b.IsValid() && a.Addr().Is4() != b.Addr().Is4() {
		return p.refuse(dst, "an address of the same family as the source's")
	}
	return true
}

func setProtocol(r *Rule, text string) bool {
	for _, k := range protocols {
		if k.name == text {
			r.Family, r.HasNum, r.Proto = k.family, k.hasNum, k.num
			return true
		}
	}
	n, ok := number(text, 255)
	if !ok {
		return false
	}
	r.Family, r.HasNum, r.Proto = IP, true, uint8(n)
	return true
}

// end reads [not] WHO [port PORTS].
func (p *parser) end(r *Rule, e *End) bool {
	e.Not = p.take("not")
	switch w := p.next(); {
	case w.text == "any":
		if e.Not {
			return p.refuse(w, "an address, a prefix or a set after not")
		}
	case w.text == "set":
		name := p.next()
		if !validName(name.text) {
			return p.refuse(name, "the name of a set")
		}
		p.uses = append(p.uses, use{"set", name.text, p.line, name.col, p.text})
		e.Set = name.text
	default:
		prefix, want := parsePrefix(w.text)
		if want != "" {
			if want == wantPrefix {
				want = "any, set, " + want
			}
			return p.refuse(w, "%s", want)
		}
		if v4 := prefix.Addr().Is4(); r.Family == IPv4 && !v4 || r.Family == IPv6 && v4 {
			return p.refuse(w, "an address of the family that %s is of", r.protocol())
		}
		e.Prefix = prefix
	}
	if w := p.peek(); p.take("port") {
		if !r.HasNum || !hasPorts(r.Proto) {
			return p.refuse(w, "tcp, udp or sctp as the protocol: %s has no ports", r.protocol())
		}
		return p.ranges(&e.Ports, "a port", 65535, nil)
	}
	return true
}

const wantPrefix = "an address such as 192.0.2.1 or 2001:db8::1, or a prefix such as 192.0.2.0/24"

// parsePrefix reads an address or a prefix. want says what would do instead.
func parsePrefix(text string) (p netip.Prefix, want string) {
	var err error
	if strings.IndexByte(text, '/') < 0 {
		var a netip.Addr
		if a, err = netip.ParseAddr(text); err == nil && a.Zone() == "" {
			p = netip.PrefixFrom(a, a.BitLen())
		}
	} else {
		p, err = netip.ParsePrefix(text)
	}
	switch {
	case err != nil || !p.IsValid():
		return p, wantPrefix
	case p.Addr().Is4In6():
		return p, "an IPv4 address as such, not mapped into IPv6"
	case p.Masked() != p:
		return p, fmt.Sprintf("%s: nothing may be set behind the prefix", p.Masked())
	}
	return p, ""
}

// number reads digits without leading zeros.
func number(text string, most uint64) (uint64, bool) {
	if text == "" || len(text) > 1 && text[0] == '0' || text[0] == '+' {
		return 0, false
	}
	n, err := strconv.ParseUint(text, 10, 64)
	return n, err == nil && n <= most
}

// ranges reads a list of numbers and ranges and sorts it; what touches is joined.
// names may give words for numbers.
func (p *parser) ranges(into *[]Range, what string, most uint64, names map[string]uint16) bool {
	w := p.next()
	bad := func(item string, at int, want string, args ...any) bool {
		return p.refuse(word{text: item, col: w.col + at, end: w.end}, want, args...)
	}
	if w.end {
		return bad("", 0, "%s, a range or a list of them", what)
	}
	var rs []Range
	at := 0
	for _, item := range strings.Split(w.text, ",") {
		if len(rs) == maxRanges {
			return bad(item, at, "no more than %d in a list", maxRanges)
		}
		if v, ok := names[item]; ok {
			rs = append(rs, Range{v, v})
			at += len(item) + 1
			continue
		}
		lo, hi, isRange := strings.Cut(item, "-")
		if !isRange {
			hi = lo
		}
		a, ok := number(lo, most)
		b, ok2 := number(hi, most)
		if !ok || !ok2 {
			if names != nil {
				return bad(item, at, "%s from 0 to %d, or one of %s", what, most, strings.Join(sortedKeys(names), ", "))
			}
			return bad(item, at, "%s from 0 to %d, or a range such as 1-9", what, most)
		}
		if a > b {
			return bad(item, at, "the smaller number first: %d-%d", b, a)
		}
		rs = append(rs, Range{uint16(a), uint16(b)})
		at += len(item) + 1
	}
	*into = join(rs)
	return true
}

// join sorts ranges and makes one of those that overlap or touch.
func join(rs []Range) []Range {
	slices.SortFunc(rs, func(a, b Range) int { return int(a.Lo) - int(b.Lo) })
	out := rs[:1]
	for _, r := range rs[1:] {
		last := &out[len(out)-1]
		if uint32(r.Lo) > uint32(last.Hi)+1 {
			out = append(out, r)
			continue
		}
		last.Hi = max(last.Hi, r.Hi)
	}
	return out
}

func sortedKeys(m map[string]uint16) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b string) int {
		if m[a] != m[b] {
			return int(m[a]) - int(m[b])
		}
		return strings.Compare(a, b)
	})
	return keys
}

// icmpTypes and icmp6Types are the names of types (IANA, ICMP Type Numbers and ICMPv6
// "type" Numbers).
func icmpTypes() map[string]uint16 {
	return map[string]uint16{
		"echo-reply": 0, "unreachable": 3, "redirect": 5, "echo-request": 8, "router-advertisement": 9, "router-solicitation": 10,
		"time-exceeded": 11, "parameter-problem": 12, "timestamp-request": 13, "timestamp-reply": 14,
	}
}

func icmp6Types() map[string]uint16 {
	return map[string]uint16{
		"unreachable": 1, "packet-too-big": 2, "time-exceeded": 3, "parameter-problem": 4, "echo-request": 128, "echo-reply": 129,
		"listener-query": 130, "listener-report": 131, "listener-done": 132, "router-solicitation": 133, "router-advertisement": 134,
		"neighbor-solicitation": 135, "neighbor-advertisement": 136, "redirect": 137,
	}
}

// options reads what follows the match, each option once.
func (p *parser) options(r *Rule) bool {
	seen := map[string]bool{}
	for {
		w := p.next()
		if w.end {
			if r.Dir == 0 {
				r.Dir = Both
			}
			return true
		}
		if seen[w.text] {
			return p.refuse(w, "each option once")
		}
		seen[w.text] = true
		if !p.option(r, w) {
			return false
		}
	}
}

func (p *parser) option(r *Rule, w word) bool {
	switch w.text {
	case "in", "out":
		if r.Dir != 0 {
			return p.refuse(w, "in or out; neither of them for both directions")
		}
		r.Dir = In
		if w.text == "out" {
			r.Dir = Out
		}
		return true
	case "on":
		return p.ports(r)
	case "length":
		return p.ranges(&r.Lengths, "a length in bytes", 65535, nil)
	case "vlan":
		if p.take(vlanNoneWord) {
			r.VLANs = []Range{{VLANNone, VLANNone}}
			return true
		}
		return p.ranges(&r.VLANs, "none or a VLAN id", maxVLAN, nil)
	case "frag":
		if r.Program != "" || r.Family == AnyFrame {
			return p.refuse(w, "ip, ip4, ip6 or a protocol before frag")
		}
		r.Frag = true
		return true
	case "ethertype":
		if r.Program != "" || r.Family != AnyFrame {
			return p.refuse(w, "any as the protocol before ethertype")
		}
		return p.etherType(r)
	case "icmp-type":
		switch {
		case r.HasNum && r.Family == IPv4 && r.Proto == frame.ProtoICMP:
			return p.ranges(&r.ICMPTypes, "a type", 255, icmpTypes())
		case r.HasNum && r.Family == IPv6 && r.Proto == frame.ProtoICMPv6:
			return p.ranges(&r.ICMPTypes, "a type", 255, icmp6Types())
		}
		return p.refuse(w, "icmp or icmp6 as the protocol before icmp-type")
	case "tcp-flags":
		if !r.HasNum || r.Proto != frame.ProtoTCP {
			return p.refuse(w, "tcp as the protocol before tcp-flags")
		}
		return p.flags(r)
	}
	return p.refuse(w, "in, out, on, frag, length, vlan, ethertype, icmp-type, tcp-flags or the end of the line")
}

func (p *parser) ports(r *Rule) bool {
	w := p.next()
	at := 0
	for _, name := range strings.Split(w.text, ",") {
		port, err := board.Parse(name)
		if err != nil {
			return p.refuse(word{text: name, col: w.col + at, end: w.end}, "a port by interface name or label, such as oxp9 or F1")
		}
		r.Ports |= 1 << port.Index
		at += len(name) + 1
	}
	if r.Ports == portMask {
		r.Ports = 0
	}
	return true
}

func (p *parser) etherType(r *Rule) bool {
	w := p.next()
	names := map[string]uint16{"ip4": frame.TypeIPv4, "arp": frame.TypeARP, "ip6": frame.TypeIPv6}
	v, ok := names[w.text]
	if hex, isHex := strings.CutPrefix(w.text, "0x"); isHex {
		n, err := strconv.ParseUint(hex, 16, 16)
		v, ok = uint16(n), err == nil && n > 0
	}
	if !ok {
		return p.refuse(w, "an EtherType from 0x0001 to 0xffff, or one of %s", strings.Join(sortedKeys(names), ", "))
	}
	r.EtherType = v
	return true
}

func (p *parser) flags(r *Rule) bool {
	w := p.next()
	at := 0
	for _, item := range strings.Split(w.text, ",") {
		name, not := strings.CutPrefix(item, "!")
		i := slices.Index(tcpFlags[:], name)
		if i < 0 {
			return p.refuse(word{text: item, col: w.col + at, end: w.end}, "flags such as syn,!ack out of %s", strings.Join(tcpFlags[:], ", "))
		}
		if not {
			r.FlagsClear |= 1 << i
		} else {
			r.FlagsSet |= 1 << i
		}
		if r.FlagsSet&r.FlagsClear != 0 {
			return p.refuse(word{text: item, col: w.col + at}, "a flag either set or not")
		}
		at += len(item) + 1
	}
	return true
}

// names checks that what the rules use is declared: it may be, further down.
func (p *parser) names() {
	for _, u := range p.uses {
		known := p.sets
		if u.what == "program" {
			known = p.programs
		}
		if !known[u.name] && !p.full() {
			p.line, p.text = u.line, u.text
			p.refuse(word{text: u.name, col: u.col}, "a %s that is declared: `%s %s file PATH`", u.what, u.what, u.name)
		}
	}
}

// contents reads the files of sets, with at most left prefixes, and of programs.
func (p *parser) contents(left int) {
	for i := range p.out.Sets {
		s := &p.out.Sets[i]
		if text, ok := p.file(s.Path, s.Line, s.col); ok {
			var errs []error
			s.Prefixes, errs = parseSet(p.src.fileName(s.Path), text, left, maxErrors-len(p.errs))
			left -= len(s.Prefixes)
			p.errs = append(p.errs, errs...)
		}
	}
	for i := range p.out.Programs {
		b := &p.out.Programs[i]
		text, ok := p.file(b.Path, b.Line, b.col)
		if !ok {
			continue
		}
		program, err := cbpf.Parse(text)
		if err != nil {
			p.errs = append(p.errs, p.programError(b.Path, err))
			continue
		}
		b.Program = program
	}
}

// file is the content of a file that a line names.
func (p *parser) file(path string, line, col int) ([]byte, bool) {
	if p.full() {
		return nil, false
	}
	text, ok := p.src.Files[path]
	if !ok {
		p.errs = append(p.errs, &Error{File: p.src.Name, Line: line, Col: col, Found: quote(path), Expected: "a file that was read along with the rules"})
	}
	return text, ok
}

func (p *parser) programError(path string, err error) error {
	var at *cbpf.Error
	if !errors.As(err, &at) {
		return fmt.Errorf("%s: %w", p.src.fileName(path), err)
	}
	return &Error{File: p.src.fileName(path), Line: at.Line, Col: at.Col, Found: at.Found, Expected: at.Expected, Text: at.Text}
}

// parseSet reads prefixes, one a line, at most mostPrefixes of them.
func parseSet(name string, text []byte, mostPrefixes, mostErrors int) (out []netip.Prefix, errs []error) {
	out = make([]netip.Prefix, 0, min(bytes.Count(text, []byte("\n"))+1, mostPrefixes))
	for line := 1; len(text) > 0 && len(errs) < mostErrors; line++ {
		var whole []byte
		whole, text, _ = bytes.Cut(text, []byte("\n"))
		word, _, _ := bytes.Cut(whole, []byte("#"))
		word = bytes.TrimSpace(word)
		if len(word) == 0 {
			continue
		}
		prefix, want := parsePrefix(string(word[:min(len(word), maxLine)]))
		if want == "" && len(out) == mostPrefixes {
			want = fmt.Sprintf("no more than %d prefixes in all sets", MaxPrefixes)
			mostErrors = len(errs) + 1 // and no other
		}
		if want != "" {
			errs = append(errs, &Error{File: name, Line: line, Col: bytes.Index(whole, word) + 1, Found: quote(string(word)), Expected: want, Text: string(whole[:min(len(whole), maxLine)])})
			continue
		}
		out = append(out, prefix)
	}
	return out, errs
}
