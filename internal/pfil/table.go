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
	hooks  [hooks]atomic.Pointer[chain] // by hookOf

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
	gone, unmatched count
}

// loaded is a program in use, with its counters.
type loaded struct {
	program  *Program
	source   Source
	warnings []string
	texts    []string // by rule: its canonical text
	acts     []act    // by rule
	at       time.Time
	counts   [][]count // by shard: frames without a rule, then by rule
	base     []count   // by rule: what the same rule has counted in programs before
}

// act is what to do about a rule's frame.
type act struct {
	verdict Verdict
	every   uint32
}

// count is a rule's counters of one shard. 32 bytes.
type count struct {
	hits, bytes uint64
	last        int64  // Unix time in ns, 0: never
	since       uint64 // of a sample rule: frames after the last one that was copied
}

func (c *count) add(o *count) {
	c.hits += o.hits
	c.bytes += o.bytes
	c.last = max(c.last, o.last)
}

func (c *count) totals() Totals {
	t := Totals{Hits: c.hits, Bytes: c.bytes}
	if c.last != 0 {
		t.Last = time.Unix(0, c.last)
	}
	return t
}

// newCounts makes counters for a shard in cache lines of their own: the runtime places
// what is a multiple of 64 bytes at one.
func newCounts(n int) []count { return make([]count, n, (n+1)&^1) }

// Totals are what a rule has counted.
type Totals struct {
	Hits  uint64
	Bytes uint64    // of the whole frames
	Last  time.Time // zero: never
}

// shard is one caller's part of the counters. What is not mu belongs to who holds it,
// but for held, which is the caller's own.
type shard struct {
	mu      sync.Mutex
	held    bool
	pass    uint64 // number of the pass
	now     int64
	at      [hooks]resolved // by hookOf
	samples samples
	_       [64]byte // from the next one's
}

// resolved is what is linked at a hook, as a pass has found it: every frame of the pass
// is judged by that.
type resolved struct {
	drops Drops  // of all passes
	pass  uint64 // that it was found in
	first stage
	rest  []stage // of a chain of several filters
}

// stage is a filter as one shard uses it at one hook.
type stage struct {
	program *Program
	view    *view
	counts  []count // of the shard
	acts    []act
	filter  *filter
	from    *loaded
}

// forget drops what passes have found. No pass is open.
func (s *shard) forget() {
	for i := range s.at {
		s.at[i] = resolved{drops: s.at[i].drops}
	}
}

// between calls do while the shard is in no pass. The path waits for it meanwhile.
func (s *shard) between(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
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
	s := &t.shards[n]
	hook := hookOf(port, dir)
	r := &s.at[hook]
	if (!s.held || r.pass != s.pass) && !t.resolve(s, n, hook) {
		return Pass
	}
	pkt.Parse(first, frameBytes)
	st, rest := &r.first, r.rest
	for {
		i := st.view.match(st.program, hook, first, frameBytes, pkt)
		cnt := &st.counts[i+1]
		cnt.hits++
		cnt.bytes += uint64(frameBytes)
		cnt.last = s.now
		if i >= 0 {
			a := &st.acts[i]
			//exhaustive:enforce
			switch a.verdict {
			case Drop:
				r.drops.Frames++
				r.drops.Bytes += uint64(frameBytes)
			case Sample:
				if cnt.since++; cnt.since >= uint64(a.every) {
					cnt.since -= uint64(a.every)
					s.sample(st, i, port, dir, first, frameBytes)
				}
			case Pass, Divert, Count:
			}
			return a.verdict
		}
		if len(rest) == 0 {
			return Pass
		}
		st, rest = &rest[0], rest[1:]
	}
}

// resolve finds what is linked at a hook, for the rest of the shard's pass, and begins
// the pass when none is open. false: nothing is linked there.
func (t *Table) resolve(s *shard, n, hook int) bool {
	at := &t.hooks[hook]
	if at.Load() == nil {
		return false
	}
	if !s.held {
		t.enter(s)
	}
	c := at.Load() // with the mutex: what was unlinked before is not seen any more
	if c == nil {
		return false
	}
	r := &s.at[hook]
	r.pass, r.rest = s.pass, r.rest[:0]
	for i, f := range *c {
		l := f.now.Load()
		st := stage{program: l.program, view: l.program.views[hook], counts: l.counts[n], acts: l.acts, filter: f, from: l}
		if i == 0 {
			r.first = st
			continue
		}
		r.rest = append(r.rest, st)
	}
	return true
}

// enter begins a pass of a shard.
func (t *Table) enter(s *shard) {
	s.mu.Lock()
	s.held = true
	s.pass++
	s.now = t.now().UnixNano()
}

// sample copies a frame of rule i.
//
//go:noinline
func (s *shard) sample(st *stage, i, port int, dir Direction, first []byte, frameBytes int) {
	sample := s.samples.next()
	sample.filter, sample.rule, sample.line = st.filter.name, st.from.texts[i], st.program.Rules()[i].Line
	sample.at, sample.port, sample.dir = s.now, port, dir
	sample.take(first, frameBytes)
}

// Leave ends a pass of a shard.
func (t *Table) Leave(n int) {
	if s := &t.shards[n]; s.held {
		s.held = false
		s.mu.Unlock()
	}
}

// grace returns when nobody uses, or keeps, what was replaced before the call.
func (t *Table) grace() {
	for i := range t.shards {
		t.shards[i].between(t.shards[i].forget)
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
	l, samples := t.prepare(program)
	l.source, l.warnings = src, rules.Warnings

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

// prepare makes counters for a program and tells whether it has sample rules.
func (t *Table) prepare(p *Program) (l *loaded, samples bool) {
	rules := p.Rules()
	l = &loaded{
		program: p, at: t.now(), texts: make([]string, len(rules)), acts: make([]act, len(rules)),
		counts: make([][]count, len(t.shards)), base: make([]count, len(rules)),
	}
	for i := range rules {
		r := &rules[i]
		l.texts[i] = r.String()
		l.acts[i] = act{r.Verdict, r.Every}
		samples = samples || r.Verdict == Sample
	}
	for i := range l.counts {
		l.counts[i] = newCounts(len(rules) + 1)
	}
	return l, samples
}

// inherit gives the counters of a program that nobody uses any more to the one in its
// place: of a rule to the same rule, the n-th of one text to the n-th. It returns how
// many rules there are of which that is so.
func (t *Table) inherit(f *filter, old, now *loaded) (kept int) {
	unmatched := old.total(-1)
	f.unmatched.add(&unmatched)
	heirs := map[string][]int{}
	for i, text := range now.texts {
		heirs[text] = append(heirs[text], i)
	}
	for i, text := range old.texts {
		total := old.total(i)
		h := heirs[text]
		if len(h) == 0 {
			f.gone.add(&total)
			continue
		}
		now.base[h[0]] = total
		if now.acts[h[0]].verdict == Sample {
			t.resume(old, i, now, h[0])
		}
		heirs[text] = h[1:]
		kept++
	}
	return kept
}

// resume goes on counting to a rule's next sample where a program has left off that
// nobody uses any more.
func (t *Table) resume(old *loaded, was int, now *loaded, is int) {
	for i := range t.shards {
		t.shards[i].between(func() { now.counts[i][is+1].since += old.counts[i][was+1].since })
	}
}

// total adds up a rule's counters, -1 for frames without a rule, of a program that
// nobody uses any more.
func (l *loaded) total(rule int) (sum count) {
	if rule >= 0 {
		sum = l.base[rule]
	}
	for s := range l.counts {
		sum.add(&l.counts[s][rule+1])
	}
	return sum
}

// read adds up the counters of a program that is in use, a step of them at a time:
// frames without a rule first, then by rule.
func (t *Table) read(l *loaded) []count {
	sums := make([]count, len(l.acts)+1)
	copy(sums[1:], l.base)
	for i := range t.shards {
		counts := l.counts[i]
		for at := 0; at < len(counts); at += readStep {
			t.shards[i].between(func() {
				for j := at; j < min(at+readStep, len(counts)); j++ {
					sums[j].add(&counts[j])
				}
			})
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
	t.grace()
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
				do(&t.hooks[hookOf(p.Index, d)], Hook{p, d})
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
	Gone      Totals // of rules that were replaced
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
	Rules []RuleInfo
}

// List is all filters, by name.
func (t *Table) List() []Info {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []Info
	for _, name := range t.names() {
		f := t.filters[name]
		out = append(out, t.info(f, t.read(f.now.Load())))
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
	v := View{Info: t.info(f, sums)}
	for i := range l.acts {
		v.Rules = append(v.Rules, RuleInfo{l.program.Rules()[i].Line, l.texts[i], l.acts[i].verdict, sums[i+1].totals()})
	}
	return v
}

// info is a filter whose counters read has added up. Called with mu.
func (t *Table) info(f *filter, sums []count) Info {
	l := f.now.Load()
	matched, unmatched := f.gone, f.unmatched
	unmatched.add(&sums[0])
	for i := range sums[1:] {
		matched.add(&sums[i+1])
	}
	return Info{
		Name: f.name, File: l.source.Name, Loaded: l.at, Links: t.links(f), Rules: len(l.acts),
		Matched: matched.totals(), Gone: f.gone.totals(), Unmatched: unmatched.totals(), Warnings: l.warnings,
	}
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
func (t *Table) Dropped(p board.Port, dir Direction) Drops { return t.DroppedByPort(dir)[p.Index] }

// DroppedByPort are the frames that filters have dropped, In or Out, by board.Port.Index.
// Each shard is held once.
func (t *Table) DroppedByPort(dir Direction) (sum [board.Ports]Drops) {
	for i := range t.shards {
		s := &t.shards[i]
		s.between(func() {
			for p := range sum {
				sum[p].Frames += s.at[hookOf(p, dir)].drops.Frames
				sum[p].Bytes += s.at[hookOf(p, dir)].drops.Bytes
			}
		})
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

// hooksText names hooks in the order of the ports: all, where it is all of one
// direction or of both, and a port alone for both of its directions.
func hooksText(at []Hook) string {
	var in, out uint16
	for _, h := range at {
		if h.Dir == In {
			in |= 1 << h.Port.Index
		} else {
			out |= 1 << h.Port.Index
		}
	}
	var words []string
	add := func(name string, in, out bool) {
		switch {
		case in && out:
			words = append(words, name)
		case in:
			words = append(words, name+" in")
		case out:
			words = append(words, name+" out")
		}
	}
	allIn, allOut := in == portMask, out == portMask
	add("all", allIn, allOut)
	for _, p := range board.All() {
		add(p.Name, !allIn && in>>p.Index&1 != 0, !allOut && out>>p.Index&1 != 0)
	}
	return strings.Join(words, ", ")
}
