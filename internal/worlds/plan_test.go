package worlds

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"oxpd/hwsim"
	"oxpd/internal/board"
	"oxpd/ring/wire"
	"oxpd/rpc/msg"
)

// plan is a world before it is run: everything in it comes from the seed alone.
// Events may be left out of it, and what remains is a world too.
type plan struct {
	seed    uint64
	card    hwsim.Options
	faults  hwsim.Faults // from the first frame to the last
	chance  []string     // the same, by chance (hwsim.ParseInjection); off when the world drains
	conf    ringPlan
	host    hostPlan
	flows   []flow
	mtus    [board.Ports]int // set before the first frame
	filters []filterPlan     // of the port side
	events  []event
	length  time.Duration // of the part with events
	wiped   bool          // the LIF table may be emptied behind the host's back

	shown map[int]bool // flows that String shows; nil: all
}

// ringPlan is what the host's rings are configured with.
type ringPlan struct {
	watermark, gather, large, level int
	levelTime                       time.Duration
}

// hostPlan is how the host serves its rings.
type hostPlan struct {
	style   style
	workers int
	grain   time.Duration // how exactly a message's time is met
	latency time.Duration // from a message to the worker
	pause   time.Duration // between two turns of a busy worker, or two polls
	bound   int           // packets a visit, for style visits
	batch   int           // frames under one doorbell of the input queue; 0: Post, frame by frame
	watch   bool          // IN_CNTS is read in front of each Post
	drop    int           // of scenes: one packet in so many is dropped; 0: none
}

type style uint8

const (
	messages style = iota // workers that messages wake
	polling               // workers without interrupts
	visits                // rings at random, a bounded visit each
	styles
)

var styleNames = [styles]string{"workers woken by messages", "workers that poll", "bounded visits in random order"}

// eventKind says what happens to a world from outside.
type eventKind uint8

const (
	evBurst   eventKind = iota // frames of a flow
	evMTU                      // the host changes a port's MTU
	evAway                     // nobody serves a worker's rings
	evCeiling                  // a ring's credit is capped
	evCable                    // a port's cable is out
	evLeave                    // a port's interface is gone
	evControl                  // statistics messages
	evShort                    // packets whose length word is one of no packet: too short
	evLong                     // or too long
	evWipe                     // the LIF table is emptied, and the host finds out later
	evFault                    // a fault is on
	evFilter                   // a filter is replaced, taken out or put in
	eventKinds
)

// event is one thing that happens at a time, for a time.
type event struct {
	kind eventKind
	at   time.Duration
	last time.Duration // how long it lasts, of kinds that end; the gap between two frames of a burst

	n     int // flow, port, worker, ring or fault
	count int // frames, MTU, ceiling, messages, or the fault's number
	tag   board.Tag
}

func (e event) String() string {
	at := fmt.Sprintf("%9v  ", e.at)
	switch e.kind {
	case evBurst:
		return at + fmt.Sprintf("flow %d: %d frames, %v apart", e.n, e.count, e.last)
	case evMTU:
		return at + fmt.Sprintf("%s: MTU %d", board.ByIndex(e.n).Label, e.count)
	case evAway:
		return at + fmt.Sprintf("worker %d away for %v", e.n, e.last)
	case evCeiling:
		return at + fmt.Sprintf("ring %d: credit capped at %d for %v", e.n, e.count, e.last)
	case evCable:
		return at + fmt.Sprintf("%s: cable out for %v", board.ByIndex(e.n).Label, e.last)
	case evLeave:
		return at + fmt.Sprintf("%s: interface gone for %v", board.ByIndex(e.n).Label, e.last)
	case evControl:
		return at + fmt.Sprintf("%d messages of up to %d bytes with tag %s to ring 0", e.n, e.count, e.tag)
	case evShort:
		return at + fmt.Sprintf("ring %d: a length word of %d, too short", e.n, e.count)
	case evWipe:
		return at + fmt.Sprintf("the LIF table is wiped; the host looks after %v", e.last)
	case evFilter:
		return at + fmt.Sprintf("filter %d: %s", e.n, map[bool]string{true: "replaced", false: "out, or in again"}[e.count == 0])
	case evLong:
		return at + fmt.Sprintf("ring %d: a length word of %#x, too long", e.n, e.count)
	default:
		return at + fmt.Sprintf("fault %s %d for %v", passing[e.n].name, e.count, e.last)
	}
}

// passing are the faults that come and go in the middle of traffic. Those that put
// single writes off are no such faults: when one ends, a later write would overtake
// an earlier one, which the bus does not do.
var passing = []struct {
	name string
	set  func(f *hwsim.Faults, q, n int, on bool)
}{
	{"LoseMessages", func(f *hwsim.Faults, _, _ int, on bool) {
		f.LoseMessages = 0
		if on {
			f.LoseMessages = hwsim.AllRings
		}
	}},
	{"HoldCredit", func(f *hwsim.Faults, q, _ int, on bool) { f.HoldCredit = mask(f.HoldCredit, q, on) }},
	{"StuckResume", func(f *hwsim.Faults, q, _ int, on bool) { f.StuckResume = mask(f.StuckResume, q, on) }},
	{"SkipEntries", func(f *hwsim.Faults, q, n int, on bool) {
		f.SkipEntries[q] = 0
		if on {
			f.SkipEntries[q] = 1 + n%5
		}
	}},
	{"StopFetch", func(f *hwsim.Faults, _, _ int, on bool) { f.StopFetch = on }},
	{"FetchDelay", func(f *hwsim.Faults, _, n int, on bool) {
		f.FetchDelay = while(on, time.Duration(n)*time.Microsecond/10)
	}},
	{"ReadDelay", func(f *hwsim.Faults, _, n int, on bool) { f.ReadDelay = while(on, time.Duration(n)*time.Microsecond*3) }},
	{"EgressFull", func(f *hwsim.Faults, _, _ int, on bool) { f.EgressFull = on }},
	{"RPCDelay", func(f *hwsim.Faults, _, n int, on bool) { f.RPCDelay = while(on, time.Duration(n)*10*time.Microsecond) }},
	{"LIFRefuse", func(f *hwsim.Faults, _, _ int, on bool) { f.LIFRefuse = refuseAll(on) }},
	{"LIFNotStored", func(f *hwsim.Faults, _, _ int, on bool) { f.LIFNotStored = storeNone(on) }},
	{"LoseCounts", func(f *hwsim.Faults, q, n int, on bool) {
		f.LoseCounts[q] = 0
		if on {
			f.LoseCounts[q] = 1 + n%5
		}
	}},
}

// Places in passing that the books must know.
const (
	fLoseMessages = iota
	fHoldCredit
	fStuckResume
	fSkipEntries
	fStopFetch
	fFetchDelay
	fReadDelay
	fEgressFull
	fRPCDelay
	fLIFRefuse
	fLIFNotStored
	fLoseCounts
	passingFaults
)

func refuseAll(on bool) map[board.Tag]msg.RC {
	if !on {
		return nil
	}
	m := map[board.Tag]msg.RC{}
	for _, p := range board.All() {
		m[p.Tag] = msg.RCRefused
	}
	return m
}

func storeNone(on bool) map[board.Tag]bool {
	if !on {
		return nil
	}
	m := map[board.Tag]bool{}
	for _, p := range board.All() {
		m[p.Tag] = true
	}
	return m
}

func mask(m hwsim.RingMask, q int, on bool) hwsim.RingMask {
	if on {
		return m | 1<<q
	}
	return m &^ (1 << q)
}

func while(on bool, d time.Duration) time.Duration {
	if on {
		return d
	}
	return 0
}

// drawer draws from a world's seed.
type drawer struct{ *rand.Rand }

func (d drawer) one(in int) bool                    { return d.IntN(in) == 0 }
func (d drawer) from(lo, hi int) int                { return lo + d.IntN(hi-lo+1) }
func (d drawer) dur(hi time.Duration) time.Duration { return time.Duration(d.Int64N(int64(hi) + 1)) }

// pick draws a duration between lo and hi, as often below as above their geometric middle.
func (d drawer) span(lo, hi time.Duration) time.Duration {
	for hi > 2*lo && d.one(2) {
		hi /= 2
	}
	return lo + d.dur(hi-lo)
}

// Budget of one world.
const (
	mostFrames = 1600
	mostBytes  = 5 << 19
)

// draw makes the plan of a seed.
func draw(seed uint64) plan {
	d := drawer{rand.New(rand.NewPCG(seed, 0x0b5e55ed))}
	p := plan{seed: seed}
	p.card = d.options(seed)
	p.drawRings(d)
	p.drawHost(d)
	p.drawFlows(d)
	p.drawLateness(d)
	p.length = d.span(time.Millisecond, 24*time.Millisecond)
	for i := range p.mtus {
		p.mtus[i] = d.mtu()
	}
	p.drawBursts(d)
	p.drawPressure(d)
	p.drawFilters()
	slices.SortStableFunc(p.events, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	return p
}

func (d drawer) mtu() int {
	switch d.IntN(6) {
	case 0, 1:
		return board.DefaultMTU
	case 2, 3:
		return board.MaxMTU
	case 4:
		return []int{board.MinMTU, 576, 1499, 1501, 1504, 1506, 1508, 3108, 8999}[d.IntN(9)]
	default:
		return d.from(board.MinMTU, board.MaxMTU)
	}
}

// options are a card whose every unit has times of its own.
func (d drawer) options(seed uint64) hwsim.Options {
	o := hwsim.Options{Seed: int64(seed), Timeline: hwsim.Compressed(), Choices: d.choices()}
	o.SwitchFrame = []int{1522, hwsim.SwitchFrameFound, hwsim.SwitchFrameJumbo, hwsim.SwitchFrameJumbo}[d.IntN(4)]
	o.EmptyLIFShort = d.one(2)
	l := &o.Latencies
	l.Load, l.Store = d.span(50*time.Nanosecond, 2*time.Microsecond), d.span(20*time.Nanosecond, 400*time.Nanosecond)
	l.Fetch, l.Read = d.span(50*time.Nanosecond, 3*time.Microsecond), d.span(100*time.Nanosecond, 40*time.Microsecond)
	l.ToWire, l.ToHost = d.span(time.Microsecond, 40*time.Microsecond), d.span(time.Microsecond, 60*time.Microsecond)
	l.Link, l.HostMemory, l.Count = d.span(20*time.Nanosecond, 2*time.Microsecond), d.span(20*time.Nanosecond, 2*time.Microsecond), d.span(0, 20*time.Microsecond)
	l.Worker, l.Switch = d.span(100*time.Nanosecond, 20*time.Microsecond), d.span(100*time.Nanosecond, 10*time.Microsecond)
	if d.one(3) {
		o.Rates.LinkRate = uint64(d.from(1, 60)) * 1_000_000_000
		o.Rates.Uplink = uint64(d.from(2, 10)) * 1_000_000_000
	}
	if d.one(2) {
		o.Rates.Cage = uint64(d.from(1, 10)) * 1_000_000_000
		o.Rates.SwitchPort = uint64(d.from(1, 10)) * 100_000_000
		o.Rates.SwitchTotal = uint64(d.from(2, 20)) * 100_000_000
	}
	if d.one(2) {
		o.Queues = hwsim.Queues{InFlight: d.from(1, 64), EgressCage: d.from(4, 512), EgressSwitch: d.from(4, 128)}
	}
	return o
}

// choices are the open points: each has its default in most worlds.
func (d drawer) choices() hwsim.Choices {
	other := func() bool { return d.one(7) }
	return hwsim.Choices{
		UnderWatermark: hwsim.UnderWatermark(d.IntN(3)),
		LazyFetch:      other(), StatusStops: d.one(20), DrainIsGrant: other(), ResendAtLevel: other(), TimerZeroFires: other(),
		ByteCntWithHead: other(), ForeignMACToLIF: other(), PuntUnbound: other(), CountVanished: other(), SilentUnknown: other(),
		InCntsWraps: other(), StrictVLAN: other(), CutMidway: d.one(14), LengthFirst: other(), SharedEgress: other(),
		DoneInPlace: other(), DisabledWrites: other(), DSAUncounted: other(), IngressLimitOnly: other(),
	}
}

func (p *plan) drawRings(d drawer) {
	r := &p.conf
	r.watermark = wire.Watermark
	if d.one(4) {
		r.watermark = 0x100
	}
	p.card.Watermark = r.watermark
	r.gather, r.large = d.from(1, 16), d.from(1, 3)
	r.level = 1
	if d.one(2) {
		r.level = d.from(1, 48)
	}
	r.levelTime = d.span(2*time.Microsecond, 400*time.Microsecond)
}

func (p *plan) drawHost(d drawer) {
	h := &p.host
	h.style = style(d.IntN(int(styles)))
	h.workers = 1 + d.IntN(4)
	h.grain = d.span(5*time.Microsecond, 60*time.Microsecond)
	h.latency = d.span(time.Microsecond, 200*time.Microsecond)
	h.pause = d.span(time.Microsecond, 40*time.Microsecond)
	if h.style == polling {
		h.pause = d.span(20*time.Microsecond, time.Millisecond)
	}
	h.bound = d.from(1, 200)
	if d.one(3) {
		h.batch = d.from(2, 64)
	}
	h.watch = d.one(3)
	if d.one(4) {
		h.drop = d.from(2, 20)
	}
}

// drawFlows gives each port some flows both ways.
func (p *plan) drawFlows(d drawer) {
	ports := d.Perm(board.Ports)
	if d.one(2) {
		ports = ports[:d.from(1, board.Ports)]
	}
	for _, i := range ports {
		for range d.from(1, 3) {
			f := flow{n: len(p.flows), port: board.ByIndex(i), out: d.one(2), shape: shape(d.IntN(int(shapes))), last: -1, ring: -1}
			f.foreign = !f.out && d.one(16)
			f.sizes = d.sizes(f.shape)
			p.flows = append(p.flows, f)
		}
	}
}

// sizes draws what lengths a flow's frames have.
func (d drawer) sizes(s shape) []int {
	var some []int
	switch d.IntN(4) {
	case 0:
		some = []int{d.from(leastFrame, longestFrame)}
	case 1:
		some = []int{leastFrame}
	case 2:
		for range d.from(2, 6) {
			some = append(some, sizes[d.IntN(len(sizes))])
		}
	default:
		for range d.from(2, 6) {
			some = append(some, d.from(leastFrame, longestFrame))
		}
	}
	for i := range some {
		some[i] = max(some[i], s.least())
	}
	return some
}

// drawLateness switches on, for the whole world, what puts writes off.
func (p *plan) drawLateness(d drawer) {
	f := &p.faults
	if d.one(4) {
		f.WaitForCredit = d.from(1, 40)
	}
	if !d.one(4) {
		return
	}
	f.LateBy = d.span(time.Microsecond, 900*time.Microsecond)
	for _, m := range []*hwsim.RingMask{&f.LateData, &f.LateLength, &f.LateTail, &f.LateCount} {
		if d.one(2) {
			*m = hwsim.RingMask(d.Uint64() & (1<<wire.OQs - 1))
		}
	}
}

// late tells whether a packet may become visible in steps.
func (p *plan) late() bool {
	f := &p.faults
	return f.LateData|f.LateLength|f.LateTail|f.LateCount != 0 || p.card.Choices.LengthFirst
}

// drawBursts has every flow send.
func (p *plan) drawBursts(d drawer) {
	frames, bytes := d.from(100, mostFrames), mostBytes
	if d.one(4) {
		bytes -= p.drawFlood(d)
	}
	everybody := d.one(2)
	for n := 0; frames > 0 && bytes > 0; n++ {
		f := &p.flows[d.IntN(len(p.flows))]
		if everybody && n < len(p.flows) {
			f = &p.flows[n]
		}
		e := event{kind: evBurst, at: d.dur(p.length), n: f.n}
		switch d.IntN(8) {
		case 0: // more than a ring holds
			e.count = d.from(200, 1300)
		case 1, 2:
			e.count = d.from(20, 200)
		default:
			e.count = d.from(1, 40)
		}
		if !d.one(3) {
			e.last = d.span(100*time.Nanosecond, 30*time.Microsecond)
		}
		if everybody && n < len(p.flows) {
			e.count = min(e.count, 40)
		}
		e.count = min(e.count, frames, max(1, bytes/f.mean()))
		frames -= e.count
		bytes -= e.count * f.mean()
		p.events = append(p.events, e)
	}
}

// drawFlood has one flow send more than a ring holds, while nobody may be there to take
// it. It returns how many bytes that are.
func (p *plan) drawFlood(d drawer) int {
	var in []*flow
	for i := range p.flows {
		if f := &p.flows[i]; !f.out && !f.foreign {
			in = append(in, f)
		}
	}
	if len(in) == 0 {
		return 0
	}
	f := in[d.IntN(len(in))]
	count := d.from(100, 300)
	if d.one(3) {
		f.sizes = []int{f.shape.least()}
		count = d.from(900, 1600)
	} else {
		f.sizes = []int{d.from(7900, 9014), d.from(7900, 9014)}
		p.mtus[f.port.Index] = board.MaxMTU
		p.card.SwitchFrame = hwsim.SwitchFrameJumbo
	}
	at := d.dur(p.length)
	p.events = append(p.events, event{kind: evBurst, at: at, n: f.n, count: count})
	if !d.one(3) {
		for k := range p.host.workers {
			p.events = append(p.events, event{kind: evAway, at: at, n: k, last: d.span(time.Millisecond, 12*time.Millisecond)})
		}
	}
	return count * f.mean()
}

func (f *flow) mean() int {
	sum := 0
	for _, n := range f.sizes {
		sum += n
	}
	return sum / len(f.sizes)
}

// drawPressure adds what makes it hard.
func (p *plan) drawPressure(d drawer) {
	add := func(e event) {
		e.at = d.dur(p.length)
		p.events = append(p.events, e)
	}
	some := func(in, most int) int {
		if !d.one(in) {
			return 0
		}
		return d.from(1, most)
	}
	for range some(2, 4) {
		add(event{kind: evMTU, n: p.flows[d.IntN(len(p.flows))].port.Index, count: d.mtu()})
	}
	for range some(2, 3) {
		add(event{kind: evAway, n: d.IntN(p.host.workers), last: d.span(20*time.Microsecond, 8*time.Millisecond)})
	}
	for range some(5, 3) {
		add(event{kind: evCeiling, n: d.IntN(wire.OQs), count: d.from(0, wire.Grant(wire.OQEntries, p.conf.watermark)), last: d.span(20*time.Microsecond, 6*time.Millisecond)})
	}
	for range some(8, 2) {
		add(event{kind: evCable, n: p.flows[d.IntN(len(p.flows))].port.Index, last: d.span(20*time.Microsecond, 4*time.Millisecond)})
	}
	for range some(6, 2) {
		add(event{kind: evLeave, n: p.flows[d.IntN(len(p.flows))].port.Index, last: d.span(20*time.Microsecond, 4*time.Millisecond)})
	}
	for range some(4, 6) {
		add(event{kind: evControl, n: d.from(1, 20), count: []int{100, 1528, 1529, 1824, 3040, 14882}[d.IntN(6)], tag: strayTags[d.IntN(len(strayTags))]})
	}
	// At most one oddity in a world, of 0 length words too long, 1 too short, 2 entries
	// left out, 3 counts lost: what lies behind a gap and is no packet with a length
	// that can be trusted ends no gap, and may stay there until a packet comes.
	odd := d.IntN(5)
	if odd == 0 && !p.card.Choices.CutMidway {
		for range d.from(1, 3) {
			add(event{kind: evLong, n: d.IntN(wire.OQs), count: []int{65536, 65537, 1 << 30, wire.OQEntries * wire.BufSize}[d.IntN(4)]})
		}
	}
	if odd == 1 && !p.card.Choices.CutMidway && !p.late() {
		for range d.from(1, 3) {
			add(event{kind: evShort, n: d.IntN(wire.OQs), count: d.from(1, wire.LenOverhead)})
		}
	}
	if p.wiped = d.one(6); p.wiped {
		for range d.from(1, 2) {
			add(event{kind: evWipe, last: d.span(20*time.Microsecond, 3*time.Millisecond)})
		}
	}
	p.drawChance(d, odd)
	for range some(2, 5) {
		k := d.IntN(len(passing))
		if k == fSkipEntries && odd != 2 || k == fLoseCounts && odd != 3 || p.wiped && (k == fLIFRefuse || k == fLIFNotStored) {
			continue
		}
		if k == fLoseCounts && p.late() {
			continue // a head that is counted for the packet before it says nothing about its tail
		}
		add(event{kind: evFault, n: k, count: d.from(1, 100), last: d.span(20*time.Microsecond, 6*time.Millisecond)})
	}
}

// strayTags are tags that no port has: of statistics messages, and of what the fast
// path should not hand over.
var strayTags = []board.Tag{board.TagControl, board.TagControl, board.TagControl, 0, 0x0003, 0x1234, 0xfc10}

// drawChance switches faults on that act at some of their opportunities.
func (p *plan) drawChance(d drawer, odd int) {
	add := func(in int, name, arg string, most int) {
		if d.one(in) {
			p.chance = append(p.chance, fmt.Sprintf("%s=%s%%%g", name, arg, float64(d.from(1, most))/100))
		}
	}
	some := func() string {
		var s []string
		for q := range wire.OQs {
			s = append(s, fmt.Sprintf("%d:%d", q, d.from(1, 4)))
		}
		return strings.Join(s, ",")
	}
	add(16, "LoseMessages", "all", 60)
	add(20, "HoldCredit", "all", 30)
	add(20, "StuckResume", "all", 60)
	add(16, "EgressFull", "true", 10)
	add(12, "FetchDelay", d.span(100*time.Nanosecond, 20*time.Microsecond).String(), 30)
	add(12, "ReadDelay", d.span(time.Microsecond, 300*time.Microsecond).String(), 30)
	add(20, "RPCDelay", d.span(time.Microsecond, time.Millisecond).String(), 60)
	if odd == 2 {
		add(3, "SkipEntries", some(), 20)
	}
	if odd == 3 && !p.late() {
		add(3, "LoseCounts", some(), 20)
	}
	if odd != 1 && odd != 2 && odd != 3 && !p.late() {
		// What is late by chance is overtaken by what is not, which no bus does: the host
		// gets along with that, but not behind a gap, and not with a tail.
		p.faults.LateBy = d.span(time.Microsecond, 900*time.Microsecond)
		for _, name := range []string{"LateData", "LateLength", "LateCount"} {
			add(30, name, "all", 60)
		}
	}
}

// has tells whether a fault is on by chance.
func (p *plan) has(name string) bool {
	return slices.ContainsFunc(p.chance, func(s string) bool { return strings.HasPrefix(s, name+"=") })
}

// String describes the world: what is not as delivered, who sends, what happens.
func (p *plan) String() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, "  "+format+"\n", args...) }
	line("watermark %d, gather pool %d + %d, level %d/%v", p.conf.watermark, p.conf.gather, p.conf.large, p.conf.level, p.conf.levelTime)
	line("host: %s, %+v", styleNames[p.host.style], p.host)
	line("switch %d, %+v %+v %+v", p.card.SwitchFrame, p.card.Latencies, p.card.Rates, p.card.Queues)
	line("choices %+v", p.card.Choices)
	if p.late() || p.faults.WaitForCredit > 0 {
		line("faults all along: data %#x, length %#x, tail %#x, count %#x late by %v; %d wait for credit", p.faults.LateData, p.faults.LateLength,
			p.faults.LateTail, p.faults.LateCount, p.faults.LateBy, p.faults.WaitForCredit)
	}
	for _, x := range p.filters {
		for k, rules := range x.rules {
			for _, r := range rules {
				line("filter %s, %s: %s", x.name, []string{"at first", "replaced"}[k], r.text)
			}
		}
		for _, l := range x.links {
			line("filter %s: linked at %s %s", x.name, l.port.Label, l.dir)
		}
	}
	if len(p.chance) > 0 {
		line("faults by chance: %s", strings.Join(p.chance, " "))
	}
	for i := range p.flows {
		f := &p.flows[i]
		if p.shown != nil && !p.shown[i] {
			continue
		}
		line("%s, %v bytes; MTU %d at first", f, f.sizes, p.mtus[f.port.Index])
	}
	for _, e := range p.events {
		line("%s", e)
	}
	return b.String()
}
