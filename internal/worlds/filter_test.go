package worlds

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	"oxpd/internal/board"
	"oxpd/internal/frame"
	"oxpd/internal/pfil"
	"oxpd/ring"
	"oxpd/ring/wire"
)

// The port side's filters: pfil's own table judges, by rules that are drawn, and the
// books say for themselves what each rule is about and which comes first.

// rulePlan is a rule in the words of the language and as the books understand it.
type rulePlan struct {
	text    string
	verdict string // the first of the words
	matches func(f *flow, size int) bool
}

// filterPlan is a filter: rules that it has at first, and others that take their place.
type filterPlan struct {
	name  string
	rules [2][]rulePlan
	links []linkPlan
}

type linkPlan struct {
	port board.Port
	dir  pfil.Direction
}

// Shards of the table: an output queue each, and transmit.
const (
	outShard = wire.OQs
	shards   = wire.OQs + 1
)

const (
	mostFilters = 3
	mostRules   = 12
)

// drawFilters draws from a seed of their own, so that a world is the same but for them.
func (p *plan) drawFilters() {
	d := drawer{rand.New(rand.NewPCG(p.seed, 0xf117e5))}
	if !d.one(2) {
		return
	}
	for i := range d.from(1, mostFilters) {
		x := filterPlan{name: fmt.Sprintf("f%d", i)}
		for k := range x.rules {
			for range d.from(1, mostRules) {
				x.rules[k] = append(x.rules[k], p.drawRule(d))
			}
		}
		// Some rules stay when the filter is replaced, so that their counters do.
		x.rules[1] = append(x.rules[1], x.rules[0][:d.IntN(len(x.rules[0])+1)]...)
		d.Shuffle(len(x.rules[1]), func(a, b int) { x.rules[1][a], x.rules[1][b] = x.rules[1][b], x.rules[1][a] })
		for _, port := range board.All() {
			if d.one(3) {
				continue
			}
			for _, dir := range []pfil.Direction{pfil.In, pfil.Out} {
				if !d.one(4) {
					x.links = append(x.links, linkPlan{port, dir})
				}
			}
		}
		p.filters = append(p.filters, x)
	}
	for range d.IntN(4) {
		p.events = append(p.events, event{kind: evFilter, at: d.dur(p.length), n: d.IntN(len(p.filters)), count: d.IntN(3)})
	}
}

// drawRule draws a rule about one of the flows, or about many.
func (p *plan) drawRule(d drawer) rulePlan {
	verdict := []string{"drop", "drop", "drop", "pass", "pass", "count", "divert", "sample"}[d.IntN(8)]
	r := rulePlan{verdict: verdict, text: verdict, matches: func(*flow, int) bool { return true }}
	if verdict == "sample" {
		r.text += fmt.Sprintf(" %d", d.from(1, 50))
	}
	and := func(also func(f *flow, size int) bool) {
		before := r.matches
		r.matches = func(f *flow, size int) bool { return before(f, size) && also(f, size) }
	}
	if d.one(8) {
		long := d.from(leastFrame, longestFrame)
		switch d.IntN(2) {
		case 0:
			r.text += " program ipv4"
			and(func(f *flow, _ int) bool { return f.shape == shapeIPv4 })
		default:
			r.text += fmt.Sprintf(" program long%d", long)
			and(func(_ *flow, size int) bool { return size >= long })
		}
		p.drawOptions(d, &r, and)
		return r
	}
	of := &p.flows[d.IntN(len(p.flows))]
	proto := []string{"any", "ip", "ip4", "ip6", "udp", "udp", "tcp", "icmp"}[d.IntN(8)]
	r.text += " " + proto
	switch proto {
	case "any":
	case "ip", "udp":
		and(func(f *flow, _ int) bool { return f.shape != shapeOther })
	case "ip4":
		and(func(f *flow, _ int) bool { return f.shape == shapeIPv4 || f.shape == shapeVLAN })
	case "ip6":
		and(func(f *flow, _ int) bool { return f.shape == shapeIPv6 })
	default:
		and(func(*flow, int) bool { return false }) // nobody speaks that here
	}
	r.text += " from " + p.drawEnd(d, proto, of, true, and) + " to " + p.drawEnd(d, proto, of, false, and)
	p.drawOptions(d, &r, and)
	return r
}

// drawEnd draws one side of a rule, and what of it the books know.
func (p *plan) drawEnd(d drawer, proto string, of *flow, src bool, and func(func(f *flow, size int) bool)) string {
	v6 := proto == "ip6" || (proto == "ip" || proto == "udp") && of.shape == shapeIPv6
	text := "any"
	if proto != "any" && proto != "icmp" && !d.one(3) {
		family := func(f *flow) bool { return v6 == (f.shape == shapeIPv6) }
		host, low := address(v6, src, of.n), 0
		if src && d.one(2) {
			low = d.from(1, 4)
		}
		prefix := netip.PrefixFrom(host, host.BitLen()-low).Masked()
		same := func(f *flow) bool { return family(f) && (!src || f.n>>low == of.n>>low) }
		text = prefix.String()
		if low == 0 {
			text = host.String()
		}
		switch {
		case src && !d.one(4):
			and(func(f *flow, _ int) bool { return same(f) })
		case src && proto != "ip" && proto != "udp":
			text = "not " + text
			and(func(f *flow, _ int) bool { return family(f) && !same(f) })
		case src:
			text = "set odd"
			and(func(f *flow, _ int) bool { return f.n%2 == 1 })
		default:
			and(func(f *flow, _ int) bool { return same(f) })
		}
	}
	if (proto == "udp" || proto == "tcp") && d.one(3) {
		port := func(*flow) int { return 5001 }
		if src {
			port = func(f *flow) int { return 1024 + f.n }
		}
		lo := port(of) - d.IntN(3)
		hi := lo + d.IntN(6)
		text += " port " + pfil.Range{Lo: uint16(lo), Hi: uint16(hi)}.String()
		and(func(f *flow, _ int) bool { return lo <= port(f) && port(f) <= hi })
	}
	return text
}

// address is where frames of a flow come from, or go to.
func address(v6, src bool, n int) netip.Addr {
	switch {
	case v6 && src:
		return netip.AddrFrom16([16]byte{0: 0xfd, 14: byte(n >> 8), 15: byte(n)})
	case v6:
		return netip.AddrFrom16([16]byte{0: 0xfd})
	case src:
		return netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)})
	}
	return netip.AddrFrom4([4]byte{10, 1, 0, 1})
}

// drawOptions draws the options behind a rule, in the order of the canonical form.
func (p *plan) drawOptions(d drawer, r *rulePlan, and func(func(f *flow, size int) bool)) {
	if d.one(4) {
		out := d.one(2)
		r.text += map[bool]string{true: " out", false: " in"}[out]
		and(func(f *flow, _ int) bool { return f.out == out })
	}
	if d.one(4) {
		var on []string
		var mask int
		for _, x := range board.All() {
			if d.one(2) && len(on) < board.Ports-1 {
				on, mask = append(on, x.Name), mask|1<<x.Index
			}
		}
		if len(on) > 0 {
			r.text += " on " + strings.Join(on, ",")
			and(func(f *flow, _ int) bool { return mask>>f.port.Index&1 == 1 })
		}
	}
	if strings.Contains(r.text, " any from any to any") && d.one(3) {
		r.text += " ethertype 0x88b5"
		and(func(f *flow, _ int) bool { return f.shape == shapeOther })
	}
	switch d.IntN(10) {
	case 0:
		r.text += " vlan none"
		and(func(f *flow, _ int) bool { return f.shape != shapeVLAN })
	case 1:
		id := d.IntN(3)
		r.text += fmt.Sprintf(" vlan %d", id)
		and(func(f *flow, _ int) bool { return f.shape == shapeVLAN && f.n%3 == id })
	}
	if d.one(4) {
		lo := d.from(leastFrame, longestFrame-1)
		hi := d.from(lo+1, longestFrame)
		r.text += fmt.Sprintf(" length %d-%d", lo, hi)
		and(func(_ *flow, size int) bool { return lo <= size && size <= hi })
	}
}

// source is what pfil is given for some rules: with the sets and programs that they use.
func (p *plan) source(name string, rules []rulePlan) pfil.Source {
	src := pfil.Source{Name: name, Files: map[string][]byte{}}
	var text strings.Builder
	declare := func(kind, what, content string) {
		if src.Files[what] == nil {
			fmt.Fprintf(&text, "%s %s file %s\n", kind, what, what)
			src.Files[what] = []byte(content)
		}
	}
	for i := range rules {
		for _, word := range strings.Fields(rules[i].text) {
			var least int
			switch {
			case word == "odd":
				var all strings.Builder
				for n := 1; n < len(p.flows); n += 2 {
					fmt.Fprintf(&all, "%s\n%s\n", address(false, true, n), address(true, true, n))
				}
				if all.Len() == 0 {
					all.WriteString("192.0.2.1\n") // a set must not be empty
				}
				declare("set", word, all.String())
			case word == "ipv4":
				declare("program", word, "4\n40 0 0 12\n21 0 1 2048\n6 0 0 262144\n6 0 0 0\n") // ldh [12]; jeq #0x800
			case strings.HasPrefix(word, "long"):
				fmt.Sscanf(word, "long%d", &least)
				declare("program", word, fmt.Sprintf("4\n128 0 0 0\n53 0 1 %d\n6 0 0 262144\n6 0 0 0\n", least)) // ld len; jge
			}
		}
	}
	for i := range rules {
		fmt.Fprintln(&text, rules[i].text)
	}
	src.Rules = []byte(text.String())
	return src
}

// tally is how often a rule was the first that matched.
type tally struct{ frames, bytes uint64 }

func (t tally) and(size int) tally { return tally{t.frames + 1, t.bytes + uint64(size)} }

// filters are pfil's table and what the books expect of it.
type filters struct {
	*world
	table *pfil.Table
	head  frame.Packet // of frames that leave

	now       []int // which rules each filter has
	linked    []map[linkPlan]bool
	chains    map[linkPlan][]int // filters, in the order of linking
	hits      []map[string]tally // of each filter, by text and occurrence
	gone      []tally            // of each filter: rules that it has no longer
	unmatched []tally
	dropped   map[linkPlan]tally
	said      map[string]int // verdicts
	changes   int
	kept      int // rules that had counted when their filter was replaced, and stayed
}

func (g *filters) init(w *world) {
	g.world, g.table = w, pfil.NewTable(shards, w.wall)
	g.chains, g.dropped, g.said = map[linkPlan][]int{}, map[linkPlan]tally{}, map[string]int{}
	g.gone, g.unmatched = make([]tally, len(w.filters)), make([]tally, len(w.filters))
	for i := range w.filters {
		g.now, g.hits, g.linked = append(g.now, 0), append(g.hits, map[string]tally{}), append(g.linked, map[linkPlan]bool{})
		g.load(i, 0)
		for _, l := range w.filters[i].links {
			g.link(i, l)
		}
	}
}

// key names the i-th of some rules: by its text, and by which of that text it is.
func key(rules []rulePlan, i int) string {
	n := 0
	for _, r := range rules[:i] {
		if r.text == rules[i].text {
			n++
		}
	}
	return fmt.Sprintf("%s #%d", rules[i].text, n)
}

func (g *filters) load(i, k int) {
	x := &g.filters[i]
	_, err := g.table.Load(x.name, g.source(x.name, x.rules[k]))
	g.must("load "+x.name, err)
	before := g.hits[i]
	g.now[i], g.hits[i] = k, map[string]tally{}
	for n := range x.rules[k] {
		name := key(x.rules[k], n)
		g.hits[i][name] = before[name]
		if before[name].frames > 0 {
			g.kept++
		}
		delete(before, name)
	}
	for _, t := range before {
		g.gone[i].frames += t.frames
		g.gone[i].bytes += t.bytes
	}
}

func (g *filters) link(i int, l linkPlan) {
	g.must("link", g.table.Link(g.filters[i].name, []board.Port{l.port}, l.dir))
	g.linked[i][l] = true
	g.chains[l] = append(g.chains[l], i)
}

func (g *filters) unlink(i int, l linkPlan) {
	g.must("unlink", g.table.Unlink(g.filters[i].name, []board.Port{l.port}, l.dir))
	delete(g.linked[i], l)
	g.chains[l] = slices.DeleteFunc(slices.Clone(g.chains[l]), func(k int) bool { return k == i })
}

// change replaces a filter, or takes it out, or puts it in again.
func (g *filters) change(i, how int) {
	g.changes++
	if how == 0 {
		g.load(i, 1-g.now[i])
		return
	}
	for _, l := range g.filters[i].links {
		if g.linked[i][l] {
			g.unlink(i, l)
		} else {
			g.link(i, l)
		}
	}
}

// expected is what the books say about a frame, and note it.
func (g *filters) expected(l linkPlan, f *flow, size int) string {
	for _, i := range g.chains[l] {
		rules := g.filters[i].rules[g.now[i]]
		for n := range rules {
			if !rules[n].matches(f, size) {
				continue
			}
			name := key(rules, n)
			g.hits[i][name] = g.hits[i][name].and(size)
			if rules[n].verdict == "drop" {
				g.dropped[l] = g.dropped[l].and(size)
			}
			g.said[rules[n].verdict]++
			return rules[n].verdict
		}
		g.unmatched[i] = g.unmatched[i].and(size)
	}
	return "pass"
}

// ask has the table judge a frame and holds that against the books.
func (g *filters) ask(shard int, dir pfil.Direction, f *flow, i, size int, first []byte, head *frame.Packet) ring.Verdict {
	v := g.table.Judge(shard, f.port.Index, dir, first, size, head)
	if want := g.expected(linkPlan{f.port, dir}, f, size); v.String() != want {
		g.broke("filter", "frame %d of %s, %d bytes: the verdict is %s, the first rule that it matches says %s", i, f, size, v, want)
	}
	//exhaustive:enforce
	switch v {
	case pfil.Drop:
		return ring.Drop
	case pfil.Divert:
		return ring.Divert
	case pfil.Pass, pfil.Sample, pfil.Count:
	}
	return ring.Pass
}

// leaves tells whether a frame that was posted passes the filters.
func (g *filters) leaves(f *flow, b []byte) bool {
	defer g.table.Leave(outShard)
	return g.ask(outShard, pfil.Out, f, len(f.frames)-1, len(b), b, &g.head) != ring.Drop
}

// check holds the table's counters against the books.
func (g *filters) check() {
	same := func(what string, hits, bytes uint64, want tally) {
		g.equal(what+": frames", hits, want.frames)
		g.equal(what+": bytes", bytes, want.bytes)
	}
	for i := range g.filters {
		x := &g.filters[i]
		v, err := g.table.Show(x.name)
		g.must("show "+x.name, err)
		rules := x.rules[g.now[i]]
		g.equal(x.name+": rules", uint64(len(v.Rules)), uint64(len(rules)))
		for n, r := range v.Rules {
			if r.Text != rules[n].text {
				g.broke("filter", "%s: rule %d is shown as %q, loaded as %q", x.name, n, r.Text, rules[n].text)
			}
			same(x.name+": "+r.Text, r.Hits, r.Bytes, g.hits[i][key(rules, n)])
		}
		same(x.name+": no rule", v.Unmatched.Hits, v.Unmatched.Bytes, g.unmatched[i])
		same(x.name+": rules that are gone", v.Gone.Hits, v.Gone.Bytes, g.gone[i])
	}
	for _, p := range board.All() {
		for _, dir := range []pfil.Direction{pfil.In, pfil.Out} {
			d := g.table.Dropped(p, dir)
			same(fmt.Sprintf("%s: dropped %s", p.Label, dir), d.Frames, d.Bytes, g.dropped[linkPlan{p, dir}])
		}
	}
}
