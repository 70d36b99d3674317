package pfil

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"oxpd/internal/board"
	"oxpd/internal/frame"
)

const (
	// MaxFilters bounds the filters that are loaded at one time.
	MaxFilters = 64
	// readStep is how many counters are read while a shard is held.
	readStep = 256

	directions = 2 // In and Out, as hooks count them
)

// Table is the filters that are loaded, and the hooks that they are linked to: one
// of each port and direction.
//
// Judge and Leave are for the packet path: each shard by one caller at a time, the
// shards at once. The rest may be called at any time by anybody.
//
// A shard's mutex is taken with the first frame that meets a hook and let go by
// Leave: one lock a pass, and plain counters. Whoever changes a hook or a filter
// takes each mutex once afterwards and knows then that nobody uses the old one.
type Table struct {
	now    func() time.Time
	shards []shard
	hooks  [board.Ports][directions]atomic.Pointer[chain]

	mu      sync.Mutex // of everything below, and of changes above
	filters map[string]*filter
}

// chain are the filters at one hook, in the order of their linking. It is never changed.
type chain []*filter

// filter is a name, under which one program after the other is loaded.
type filter struct {
	name string
	now  atomic.Pointer[loaded]

	// Of programs that were replaced, under Table.mu: what their rules that are gone
	// have counted, and frames without a rule.
	gone, unmatched Totals
}

// loaded is a program in use, with its counters.
type loaded struct {
	program *Program
	source  Source
	rules   *Rules
	acts    []act
	at      time.Time
	counts  [][]count // by shard: frames without a rule, then by rule
	base    []Totals  // by rule: what the same rule has counted in programs before
}

// act is what to do about a rule's frame.
type act struct {
	verdict Verdict
	every   uint32
}

type count struct {
	hits, bytes uint64
	last        int64 // Unix time in ns
}

// Totals are what a rule has counted.
type Totals struct {
	Hits  uint64    `json:"hits"`
	Bytes uint64    `json:"bytes"`          // of the whole frames
	Last  time.Time `json:"last,omitempty"` // zero: never
}

func (t *Totals) add(o Totals) {
	t.Hits += o.Hits
	t.Bytes += o.Bytes
	if o.Last.After(t.Last) {
		t.Last = o.Last
	}
}

// shard is one caller's part of the counters. What is not mu belongs to who holds it,
// but for held, which is the caller's own.
type shard struct {
	mu      sync.Mutex
	held    bool
	now     int64
	drops   [board.Ports][directions]Drops
	samples samples
	_       [64]byte // from the next one's
}

// Drops are the frames that filters dropped at one port, one way.
type Drops struct{ Frames, Bytes uint64 }

// NewTable makes an empty table for a number of callers of Judge. now is the time
// that hits are noted with.
func NewTable(shards int, now func() time.Time) *Table {
	return &Table{now: now, shards: make([]shard, shards), filters: map[string]*filter{}}
}

// Judge decides about a frame of a port that goes one way, In or Out. first is the
// frame's contiguous beginning and frameBytes its whole length. pkt is filled when a
// filter is linked there; its Have is left as it is otherwise. Leave must follow, once
// for any number of frames, soon: it is what changes of the table wait for.
func (t *Table) Judge(n, port int, dir Direction, first []byte, frameBytes int, pkt *frame.Packet) Verdict {
	hook := &t.hooks[port][dir-1]
	if hook.Load() == nil {
		return Pass
	}
	s := &t.shards[n]
	if !s.held {
		s.mu.Lock()
		s.held = true
		s.now = t.now().UnixNano()
	}
	c := hook.Load() // with the mutex: what was unlinked before is not seen any more
	if c == nil {
		return Pass
	}
	pkt.Parse(first, frameBytes)
	for _, f := range *c {
		l := f.now.Load()
		i := l.program.Match(dir, port, first, frameBytes, pkt)
		cnt := &l.counts[n][i+1]
		cnt.hits++
		cnt.bytes += uint64(frameBytes)
		cnt.last = s.now
		if i < 0 {
			continue
		}
		a := l.acts[i]
		//exhaustive:enforce
		switch a.verdict {
		case Drop:
			d := &s.drops[port][dir-1]
			d.Frames++
			d.Bytes += uint64(frameBytes)
		case Sample:
			if cnt.hits%uint64(a.every) == 0 {
				s.samples.put(f, l, i, s.now, port, dir, first, frameBytes)
			}
		case Pass, Divert, Count:
		}
		return a.verdict
	}
	return Pass
}

// Leave ends a pass of a shard.
func (t *Table) Leave(n int) {
	if s := &t.shards[n]; s.held {
		s.held = false
		s.mu.Unlock()
	}
}

// grace returns when nobody uses what was replaced before the call.
func (t *Table) grace() {
	for i := range t.shards {
		t.shards[i].mu.Lock()
		t.shards[i].mu.Unlock()
	}
}

// Loaded tells what Load has done.
type Loaded struct {
	Replaced bool     `json:"replaced"` // there was a filter of this name
	Rules    int      `json:"rules"`
	Kept     int      `json:"kept"`    // rules that were there before and go on counting
	Added    int      `json:"added"`   //
	Removed  int      `json:"removed"` // rules that are gone
	Warnings []string `json:"warnings"`
}

// Load puts a filter under a name, in place of the one that has it, wherever that is
// linked. Errors: those of Parse; *NameError; *LimitError. With an error nothing has changed.
func (t *Table) Load(name string, src Source) (Loaded, error) {
	if !validName(name) {
		return Loaded{}, &NameError{Name: name}
	}
	rules, err := Parse(src)
	if err != nil {
		return Loaded{}, err
	}
	program, err := Compile(rules)
	if err != nil {
		return Loaded{}, fmt.Errorf("compile %s: %w", src.Name, err)
	}
	l := &loaded{program: program, source: src, rules: rules, at: t.now(), acts: make([]act, len(rules.Rules)), counts: make([][]count, len(t.shards)), base: make([]Totals, len(rules.Rules))}
	samples := false
	for i := range rules.Rules {
		r := &rules.Rules[i]
		l.acts[i] = act{r.Verdict, r.Every}
		samples = samples || r.Verdict == Sample
	}
	for i := range l.counts {
		l.counts[i] = make([]count, len(rules.Rules)+1)
	}

	t.mu.Lock()
	defer t.mu.Unlock()
	if samples {
		t.makeSamples()
	}
	result := Loaded{Rules: len(rules.Rules), Added: len(rules.Rules), Warnings: rules.Warnings}
	f := t.filters[name]
	if f == nil {
		if len(t.filters) >= MaxFilters {
			return Loaded{}, &LimitError{What: "filters", Most: MaxFilters}
		}
		f = &filter{name: name}
		f.now.Store(l)
		t.filters[name] = f
		return result, nil
	}
	old := f.now.Swap(l)
	t.grace()
	result.Replaced = true
	result.Kept = t.inherit(f, old, l)
	result.Added -= result.Kept
	result.Removed = len(old.acts) - result.Kept
	return result, nil
}

// inherit gives the counters of a program that nobody uses any more to the one in its
// place: of a rule to the same rule, the n-th of one text to the n-th. It returns how
// many rules there are of which that is so.
func (t *Table) inherit(f *filter, old, now *loaded) (kept int) {
	f.unmatched.add(t.totals(old, -1))
	heirs := map[string][]int{}
	for i := range now.rules.Rules {
		text := now.rules.Rules[i].String()
		heirs[text] = append(heirs[text], i)
	}
	for i := range old.rules.Rules {
		text := old.rules.Rules[i].String()
		totals := t.totals(old, i)
		if h := heirs[text]; len(h) > 0 {
			now.base[h[0]] = totals
			heirs[text] = h[1:]
			kept++
			continue
		}
		f.gone.add(totals)
	}
	return kept
}

// totals adds up a rule's counters, -1 for frames without a rule, of a program that
// nobody uses any more.
func (t *Table) totals(l *loaded, rule int) (sum Totals) {
	if rule >= 0 {
		sum = l.base[rule]
	}
	for s := range l.counts {
		sum.add(l.counts[s][rule+1].totals())
	}
	return sum
}

func (c *count) totals() Totals {
	t := Totals{Hits: c.hits, Bytes: c.bytes}
	if c.last != 0 {
		t.Last = time.Unix(0, c.last)
	}
	return t
}

// read adds up the counters of a program that is in use, a step of them at a time:
// frames without a rule first, then by rule.
func (t *Table) read(l *loaded) []Totals {
	sums := make([]Totals, len(l.acts)+1)
	copy(sums[1:], l.base)
	for i := range t.shards {
		s, counts := &t.shards[i], l.counts[i]
		for at := 0; at < len(counts); at += readStep {
			s.mu.Lock()
			for j := at; j < min(at+readStep, len(counts)); j++ {
				sums[j].add(counts[j].totals())
			}
			s.mu.Unlock()
		}
	}
	return sums
}

// Unload takes a filter away. Errors: *UnknownError, *LinkedError.
func (t *Table) Unload(name string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	f, err := t.find(name)
	if err != nil {
		return err
	}
	if at := t.links(f); len(at) > 0 {
		return &LinkedError{Name: name, At: at}
	}
	delete(t.filters, name)
	return nil
}

// find is the filter of a name. Called with mu.
func (t *Table) find(name string) (*filter, error) {
	if f := t.filters[name]; f != nil {
		return f, nil
	}
	return nil, &UnknownError{Name: name, Have: t.names()}
}

func (t *Table) names() []string {
	names := make([]string, 0, len(t.filters))
	for n := range t.filters {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// Hook is a place that filters are linked to.
type Hook struct {
	Port board.Port
	Dir  Direction // In or Out
}

// String is the hook as the commands write it.
func (h Hook) String() string { return h.Port.Name + " " + h.Dir.String() }

// Link puts a filter at the end of the chains of ports, in directions. Where it is
// already it stays. Frames that are judged after Link has returned meet it.
// Errors: *UnknownError.
func (t *Table) Link(name string, ports []board.Port, dir Direction) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	f, err := t.find(name)
	if err != nil {
		return err
	}
	t.each(ports, dir, func(hook *atomic.Pointer[chain], _ Hook) {
		var c chain
		if old := hook.Load(); old != nil {
			c = *old
		}
		if slices.Contains(c, f) {
			return
		}
		c = append(slices.Clone(c), f)
		hook.Store(&c)
	})
	return nil
}

// Unlink takes a filter out of the chains of ports. When it returns, no frame is
// judged by the filter there any more. Errors: *UnknownError; *NotLinkedError when it
// is at none of these places.
func (t *Table) Unlink(name string, ports []board.Port, dir Direction) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	f, err := t.find(name)
	if err != nil {
		return err
	}
	found := false
	t.each(ports, dir, func(hook *atomic.Pointer[chain], _ Hook) {
		old := hook.Load()
		if old == nil || !slices.Contains(*old, f) {
			return
		}
		found = true
		var c chain
		for _, o := range *old {
			if o != f {
				c = append(c, o)
			}
		}
		if len(c) == 0 {
			hook.Store(nil)
			return
		}
		hook.Store(&c)
	})
	if !found {
		return &NotLinkedError{Name: name, At: t.links(f)}
	}
	t.grace()
	return nil
}

func (t *Table) each(ports []board.Port, dir Direction, do func(*atomic.Pointer[chain], Hook)) {
	for _, p := range ports {
		for _, d := range []Direction{In, Out} {
			if dir&d != 0 {
				do(&t.hooks[p.Index][d-1], Hook{p, d})
			}
		}
	}
}

// links are the hooks that a filter is at. Called with mu.
func (t *Table) links(f *filter) (at []Hook) {
	all := board.All()
	t.each(all[:], Both, func(hook *atomic.Pointer[chain], h Hook) {
		if c := hook.Load(); c != nil && slices.Contains(*c, f) {
			at = append(at, h)
		}
	})
	return at
}

// Info is a filter in short.
type Info struct {
	Name      string
	File      string // that it was made of
	Loaded    time.Time
	Links     []Hook
	Rules     int
	Matched   Totals // of all rules, also of those that are gone
	Unmatched Totals
	Warnings  []string
}

// RuleInfo is a rule and what it has counted.
type RuleInfo struct {
	Line    int
	Text    string
	Verdict Verdict
	Totals
}

// View is a filter with its rules. Of all frames that the filter has judged, each is
// in Unmatched, in Gone, or in one rule.
type View struct {
	Info
	Gone  Totals // of rules that were replaced
	Rules []RuleInfo
}

// List is all filters, by name.
func (t *Table) List() []Info {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []Info
	for _, name := range t.names() {
		out = append(out, t.view(t.filters[name]).Info)
	}
	return out
}

// Show is one filter. Errors: *UnknownError.
func (t *Table) Show(name string) (View, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f, err := t.find(name)
	if err != nil {
		return View{}, err
	}
	return t.view(f), nil
}

func (t *Table) view(f *filter) View {
	l := f.now.Load()
	sums := t.read(l)
	v := View{Gone: f.gone, Info: Info{
		Name: f.name, File: l.source.Name, Loaded: l.at, Links: t.links(f), Rules: len(l.acts), Matched: f.gone, Unmatched: f.unmatched, Warnings: l.rules.Warnings,
	}}
	v.Unmatched.add(sums[0])
	for i := range l.rules.Rules {
		r := &l.rules.Rules[i]
		v.Rules = append(v.Rules, RuleInfo{r.Line, r.String(), r.Verdict, sums[i+1]})
		v.Matched.add(sums[i+1])
	}
	return v
}

// Source is what a filter was made of: not to be changed. Errors: *UnknownError.
func (t *Table) Source(name string) (Source, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f, err := t.find(name)
	if err != nil {
		return Source{}, err
	}
	return f.now.Load().source, nil
}

// Dropped are the frames of a port that filters have dropped, In or Out.
func (t *Table) Dropped(p board.Port, dir Direction) (sum Drops) {
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		d := s.drops[p.Index][dir-1]
		s.mu.Unlock()
		sum.Frames += d.Frames
		sum.Bytes += d.Bytes
	}
	return sum
}

// NameError refuses a filter's name.
type NameError struct{ Name string }

// Error implements error.
func (e *NameError) Error() string {
	return fmt.Sprintf("filter name %q: want at most %d letters, digits, - _ and ., a letter, digit or _ first", e.Name, MaxName)
}

// LimitError says that there can be no more of something.
type LimitError struct {
	What string
	Most int
}

// Error implements error.
func (e *LimitError) Error() string { return fmt.Sprintf("there are %d %s already", e.Most, e.What) }

// Hint says what to do.
func (e *LimitError) Hint() string { return "oxpd filter unload NAME takes one away" }

// UnknownError says that no filter has a name.
type UnknownError struct {
	Name string
	Have []string // those that there are
}

// Error implements error.
func (e *UnknownError) Error() string {
	if len(e.Have) == 0 {
		return fmt.Sprintf("filter %q: no filter is loaded", e.Name)
	}
	return fmt.Sprintf("filter %q is not loaded: there is %s", e.Name, strings.Join(e.Have, ", "))
}

// Hint says what to do.
func (e *UnknownError) Hint() string { return "oxpd filter load " + e.Name + " FILE loads it" }

// LinkedError says that a filter cannot go while it is linked.
type LinkedError struct {
	Name string
	At   []Hook
}

// Error implements error.
func (e *LinkedError) Error() string {
	return fmt.Sprintf("filter %s is linked at %s", e.Name, hooksText(e.At))
}

// Hint says what to do.
func (e *LinkedError) Hint() string { return "oxpd filter unlink " + e.Name + " all first" }

// NotLinkedError says that a filter is not where it was to be taken from.
type NotLinkedError struct {
	Name string
	At   []Hook // where it is
}

// Error implements error.
func (e *NotLinkedError) Error() string {
	if len(e.At) == 0 {
		return fmt.Sprintf("filter %s is linked nowhere", e.Name)
	}
	return fmt.Sprintf("filter %s is not linked there: it is at %s", e.Name, hooksText(e.At))
}

func hooksText(at []Hook) string {
	words := make([]string, len(at))
	for i, h := range at {
		words[i] = h.String()
	}
	return strings.Join(words, ", ")
}
