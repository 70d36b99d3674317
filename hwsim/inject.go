package hwsim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"oxpd/ring/wire"
)

// injector is what the card knows of its faults beside Faults: with which
// probability each acts, how often it has, and what is still to come. It lives
// under the card's lock.
type injector struct {
	rng    *rand.Rand
	chance [faultIDs]float64 // 0: always
	acted  [faultIDs]uint64

	timed   []*pending                // wait for their cycle
	waiting [opportunities][]*pending // wait for an opportunity
	done    [actionIDs]uint64         // how often each was done

	late      lateMasks // what late has drawn for the packet at hand
	watermark int       // the card's own, while Faults.Watermark stands in for it
}

// lateMasks are the fields of Faults that take a packet apart in time.
type lateMasks struct{ LateData, LateLength, LateTail, LateCount RingMask }

// seedFaults separates the draws of faults from those of everything else.
const seedFaults = 0xfa017

func (x *injector) init(seed int64) { x.rng = rand.New(rand.NewPCG(uint64(seed), seedFaults)) }

// draw tells whether a fault that is on acts now.
func (x *injector) draw(id faultID) bool {
	if p := x.chance[id]; p != 0 && x.rng.Float64() >= p {
		return false
	}
	x.acted[id]++
	return true
}

// drawLate decides what happens to a packet of ring q.
func (c *Card) drawLate(q int) *lateMasks {
	f, x := &c.faults, &c.inject
	x.late = lateMasks{}
	if !(f.LateData | f.LateLength | f.LateTail | f.LateCount).has(q) {
		return &x.late
	}
	pick := func(id faultID, m RingMask) RingMask {
		if !c.acts(id, m.has(q)) {
			return 0
		}
		return m
	}
	x.late = lateMasks{pick(fltLateData, f.LateData), pick(fltLateLength, f.LateLength), pick(fltLateTail, f.LateTail), pick(fltLateCount, f.LateCount)}
	return &x.late
}

// Lengths of ShortLength and LongLength: the last that is no frame and the first
// that no packet can have (datapath.md 7, rows 6 and 7).
const (
	shortLength = wire.LenOverhead
	longLength  = 1 << 16
)

// spoilLength gives a packet that is about to be written a length that it does not
// have.
func (c *Card) spoilLength(r *ring, p *packet) {
	if n := &c.faults.ShortLength[r.q]; c.acts(fltShortLength, *n > 0) {
		*n--
		p.length = shortLength
	}
	if n := &c.faults.LongLength[r.q]; c.acts(fltLongLength, *n > 0) {
		*n--
		p.length = longLength
	}
}

// faultWatermark lets Faults.Watermark take effect.
func (c *Card) faultWatermark() {
	x, n := &c.inject, c.faults.Watermark
	if n != 0 && x.watermark == 0 {
		x.watermark = c.o.Watermark
	}
	switch {
	case n != 0:
		c.o.Watermark = n
	case x.watermark != 0:
		c.o.Watermark, x.watermark = x.watermark, 0
	}
}

// Injection is a fault with when and how often it acts. ParseInjection reads one,
// Card.Inject puts it into force.
type Injection struct {
	Name  string  // a field of Faults, the id or the name of a row of FaultRows, or an action
	Arg   string  // as SetFault takes it; of an action, its own
	At    uint64  // cycle of the card at which it begins; with After, so many cycles from now. 0: at once
	After bool    //
	P     float64 // of acting at an opportunity, up to 1; 0: always
}

// ParseInjection reads NAME[=ARGUMENT][@WHEN][%P]. WHEN is a time since the card was
// made (10ms) or its cycle (8000000), with a + before it one from now. P is a
// probability above 0, at most 1. The name is looked up by Inject.
func ParseInjection(text string) (Injection, error) {
	var i Injection
	rest, p, hasP := strings.Cut(text, "%")
	rest, when, hasWhen := strings.Cut(rest, "@")
	i.Name, i.Arg, _ = strings.Cut(rest, "=")
	var err error
	switch {
	case i.Name == "":
		err = errors.New("no name: want NAME[=ARGUMENT][@WHEN][%P]")
	case hasWhen:
		err = i.parseWhen(when)
	}
	if err == nil && hasP {
		if i.P, err = strconv.ParseFloat(p, 64); err != nil || !(i.P > 0 && i.P <= 1) {
			err = fmt.Errorf("%%%s: want a probability above 0 and up to 1, such as %%0.01", p)
		}
	}
	if err != nil {
		return Injection{}, fmt.Errorf("hwsim: fault %q: %w", text, err)
	}
	return i, nil
}

// maxWhen bounds the cycle of an injection: 292 years of the card's clock.
const maxWhen = 1 << 62

func (i *Injection) parseWhen(when string) error {
	text := when
	text, i.After = strings.CutPrefix(text, "+")
	if n, err := strconv.ParseUint(text, 10, 64); err == nil && n <= maxWhen && text[0] != '+' {
		i.At = n
		return nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || text[0] == '+' {
		return fmt.Errorf("@%s: want a time such as @10ms, or a cycle such as @8000000; with a + behind the @, from now", when)
	}
	i.At = cyclesOf(d)
	return nil
}

// String is what ParseInjection reads.
func (i Injection) String() string {
	s := i.Name
	if i.Arg != "" {
		s += "=" + i.Arg
	}
	if i.At != 0 || i.After {
		s += "@"
		if i.After {
			s += "+"
		}
		s += strconv.FormatUint(i.At, 10)
	}
	if i.P != 0 {
		s += "%" + strconv.FormatFloat(i.P, 'g', -1, 64)
	}
	return s
}

// setting is one thing that an injection does.
type setting struct {
	fault  faultID
	arg    string
	needed bool // beside the first: only where the field is not set

	isAction bool
	action   actionID
	do       func(c *Card)
}

// pending is an injection that waits.
type pending struct {
	what     Injection
	settings []setting
	per      opportunity
	ev       *event // of timed ones
}

// Check tells what Inject would refuse of an injection: an unknown name, a row that the
// host brings about, an argument or a probability that the fault does not take.
func (i Injection) Check() error {
	_, err := i.resolve()
	return err
}

// resolve looks an injection's name up and checks its argument.
func (i *Injection) resolve() (*pending, error) {
	p := &pending{what: *i}
	var err error
	if p.settings, err = settingsOf(i.Name); err != nil {
		return nil, err
	}
	if i.Arg != "" {
		p.settings[0].arg = i.Arg
	}
	for n := range p.settings {
		if err := p.settings[n].check(); err != nil {
			return nil, err
		}
	}
	first := p.settings[0]
	p.per = faultSwitches[first.fault].per
	if first.isAction {
		p.per = faultActions[first.action].per
	}
	if i.P != 0 && p.per == never {
		return nil, fmt.Errorf("hwsim: fault %s is a number that others use, and has no opportunities: leave %%%v out", i.Name, i.P)
	}
	return p, nil
}

// settingsOf are the settings that a name stands for, with what a row presets; there
// is one at least.
func settingsOf(name string) ([]setting, error) {
	row, ok := FaultRowOf(name)
	if !ok {
		s, ok := settingOf(name)
		if !ok {
			return nil, unknownFault(name)
		}
		return []setting{s}, nil
	}
	if !row.Switched() {
		return nil, row.unswitched()
	}
	var list []setting
	for n, set := range row.sets {
		name, preset, _ := strings.Cut(set, "=")
		s, ok := settingOf(name)
		if !ok {
			return nil, unknownFault(name)
		}
		s.arg, s.needed = preset, n > 0
		list = append(list, s)
	}
	return list, nil
}

// settingOf finds a field or an action.
func settingOf(name string) (s setting, ok bool) {
	for id := range faultActions {
		if sameName(faultActions[id].name, name) {
			return setting{isAction: true, action: actionID(id)}, true
		}
	}
	for id := range faultSwitches {
		if sameName(faultSwitches[id].field, name) {
			return setting{fault: faultID(id)}, true
		}
	}
	return setting{}, false
}

// check tries the argument.
func (s *setting) check() (err error) {
	if !s.isAction {
		return setField(new(Faults), faultSwitches[s.fault].field, s.arg)
	}
	a := &faultActions[s.action]
	if s.do, err = a.prepare(s.arg); err != nil {
		return fmt.Errorf("hwsim: fault %s=%q: %w", a.name, s.arg, err)
	}
	return nil
}

// sameName compares two names without regard to case and hyphens.
func sameName(a, b string) bool {
	bare := func(s string) string { return strings.ReplaceAll(s, "-", "") }
	return strings.EqualFold(bare(a), bare(b))
}

// ErrFaultPast is about an injection whose cycle is over.
var ErrFaultPast = errors.New("the card is past that cycle")

// Inject puts injections into force: all of them, or none when one is refused. Those
// with a time or a probability act later, by themselves. Errors: ErrFaultPast, and
// what SetFault says.
func (c *Card) Inject(list ...Injection) error {
	all := make([]*pending, len(list))
	for n := range list {
		p, err := list[n].resolve()
		if err != nil {
			return err
		}
		all[n] = p
	}
	c.lock()
	defer c.leave()
	for _, p := range all {
		if p.what.After {
			p.what.At, p.what.After = p.what.At+c.now, false
		} else if p.what.At != 0 && p.what.At < c.now {
			return fmt.Errorf("hwsim: fault %s, cycle %d (%v): %w: it is at %d (%v)", p.what.Name, p.what.At, durationOf(p.what.At), ErrFaultPast, c.now, durationOf(c.now))
		}
	}
	for _, p := range all {
		if p.what.At > c.now {
			c.inject.timed = append(c.inject.timed, p)
			p.ev = c.at(p.what.At, func() {
				c.inject.timed = without(c.inject.timed, p)
				c.begin(p)
			})
			continue
		}
		c.begin(p)
	}
	return nil
}

// begin is the moment at which an injection is to act: at once, or from now on at
// an opportunity. Held: c.mu.
func (c *Card) begin(p *pending) {
	if p.what.P != 0 && p.per != perSite {
		c.inject.waiting[p.per] = append(c.inject.waiting[p.per], p)
		return
	}
	c.apply(p)
}

// apply does what an injection says. Held: c.mu.
func (c *Card) apply(p *pending) {
	for _, s := range p.settings {
		switch {
		case s.isAction:
			c.inject.done[s.action]++
			s.do(c)
		case s.needed && !faultField(&c.faults, s.fault).IsZero():
		default:
			// The argument was tried when the injection was taken.
			_ = setField(&c.faults, faultSwitches[s.fault].field, s.arg)
			if faultSwitches[s.fault].begins {
				c.inject.acted[s.fault]++
			}
			c.inject.chance[s.fault] = 0
			if p.per == perSite && !s.needed {
				c.inject.chance[s.fault] = p.what.P
			}
		}
	}
	c.faultsChanged()
}

// drawWaiting draws for each fault that waits for an opportunity of this kind.
func (c *Card) drawWaiting(o opportunity) {
	for _, p := range append([]*pending(nil), c.inject.waiting[o]...) {
		if c.inject.rng.Float64() < p.what.P {
			c.inject.waiting[o] = without(c.inject.waiting[o], p)
			c.after(0, func() { c.apply(p) })
		}
	}
}

func without(list []*pending, p *pending) []*pending {
	return slices.DeleteFunc(list, func(x *pending) bool { return x == p })
}

// faultField is the field of a fault.
func faultField(f *Faults, id faultID) reflect.Value {
	return reflect.ValueOf(f).Elem().FieldByName(faultSwitches[id].field)
}

// ErrFaultOff is about a fault that is to be cleared and is not on.
var ErrFaultOff = errors.New("is not on")

// ClearFault ends a fault by a name that Inject takes, and what still waits by that
// name; all ends every one. What an action has done stays. Errors: ErrFaultOff.
func (c *Card) ClearFault(name string) error {
	if strings.EqualFold(name, "all") {
		c.lock()
		defer c.leave()
		c.clearPending(func(*pending) bool { return true })
		c.faults = Faults{}
		c.inject.chance = [faultIDs]float64{}
		c.faultsChanged()
		return nil
	}
	want, err := settingsOf(name)
	if err != nil {
		return err
	}
	c.lock()
	defer c.leave()
	cleared := c.clearPending(func(p *pending) bool { return p.settings[0].same(&want[0]) })
	for _, s := range want {
		if s.isAction {
			continue
		}
		if v := faultField(&c.faults, s.fault); !v.IsZero() {
			v.SetZero()
			c.inject.chance[s.fault], cleared = 0, true
		}
	}
	if !cleared {
		return fmt.Errorf("hwsim: fault %s %w", name, ErrFaultOff)
	}
	c.faultsChanged()
	return nil
}

// same tells whether two settings are of one field or action.
func (s *setting) same(o *setting) bool {
	return s.isAction == o.isAction && s.fault == o.fault && s.action == o.action
}

// clearPending drops what waits and is meant. Held: c.mu.
func (c *Card) clearPending(meant func(p *pending) bool) (any bool) {
	x := &c.inject
	for _, p := range append([]*pending(nil), x.timed...) {
		if meant(p) {
			c.agenda.disarm(p.ev)
			x.timed, any = without(x.timed, p), true
		}
	}
	for o := range x.waiting {
		n := len(x.waiting[o])
		x.waiting[o] = slices.DeleteFunc(x.waiting[o], meant)
		any = any || len(x.waiting[o]) != n
	}
	return any
}

// FaultState is a fault that is on, that waits, or that has acted.
type FaultState struct {
	Name  string // as Inject takes it
	Arg   string
	State string        // one of the constants below
	At    time.Duration // of one that is to begin: when, since the card was made
	P     float64       // 0: always
	Per   string        // what an opportunity is; empty: it has none
	Acted uint64        // how often it has acted so far; of states such as a watermark, how often it was injected
}

// States of a fault.
const (
	FaultOn      = "on"
	FaultTimed   = "timed"   // begins At
	FaultWaiting = "waiting" // begins at an opportunity, with probability P
	FaultOver    = "over"    // has acted, and is used up, cleared or done
)

// FaultStates lists what is on, what waits and what has acted, in the order of
// Faults, actions last. Functional.
func (c *Card) FaultStates() (list []FaultState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	x := &c.inject
	for id := range faultID(faultIDs) {
		s, v := &faultSwitches[id], faultField(&c.faults, id)
		switch {
		case !v.IsZero():
			list = append(list, FaultState{Name: s.field, Arg: faultText(v), State: FaultOn, P: x.chance[id], Per: s.when, Acted: x.acted[id]})
		case x.acted[id] > 0:
			list = append(list, FaultState{Name: s.field, State: FaultOver, Per: s.when, Acted: x.acted[id]})
		}
	}
	for id, n := range x.done {
		if n > 0 {
			list = append(list, FaultState{Name: faultActions[id].name, State: FaultOver, Per: opportunityNames[faultActions[id].per], Acted: n})
		}
	}
	for _, p := range x.timed {
		list = append(list, p.state(FaultTimed))
	}
	for _, waiting := range x.waiting {
		for _, p := range waiting {
			list = append(list, p.state(FaultWaiting))
		}
	}
	return list
}

func (p *pending) state(s string) FaultState {
	st := FaultState{Name: p.what.Name, Arg: p.what.Arg, State: s, P: p.what.P}
	if s == FaultTimed {
		st.At = durationOf(p.what.At)
	}
	if first := p.settings[0]; !first.isAction {
		st.Per = faultSwitches[first.fault].when
	} else {
		st.Per = opportunityNames[p.per]
	}
	return st
}

var opportunityNames = [opportunities]string{
	perAccess: "a register access", perFrame: "a frame at the fast path", perCommand: "a command of rpc or NetAgent",
}
