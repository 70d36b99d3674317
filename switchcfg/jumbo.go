package switchcfg

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"oxpd/switchcfg/reg"
)

// SizeMode is the mode of a frame size in bytes. Errors: *SizeError.
func SizeMode(bytes int) (reg.Jumbo, error) {
	for _, j := range []reg.Jumbo{reg.Jumbo1522, reg.Jumbo2048, reg.Jumbo10240} {
		if j.FrameBytes() == bytes {
			return j, nil
		}
	}
	return 0, &SizeError{Bytes: bytes}
}

// UplinkMode is what the uplink needs so that panel ports have all of their mode: their
// frames have four bytes more on it.
func UplinkMode(panel reg.Jumbo) reg.Jumbo {
	for _, j := range []reg.Jumbo{reg.Jumbo1522, reg.Jumbo2048} {
		if j.FrameBytes() >= panel.FrameBytes()+reg.DSATag {
			return j
		}
	}
	return reg.Jumbo10240
}

// ModeFor is the smallest mode whose frames hold an MTU, with one VLAN tag.
func ModeFor(mtu int) reg.Jumbo {
	for _, j := range []reg.Jumbo{reg.Jumbo1522, reg.Jumbo2048} {
		if j.FrameBytes() >= mtu+reg.Overhead+vlanTag {
			return j
		}
	}
	return reg.Jumbo10240
}

const vlanTag = 4

// Plan is what Jumbo shall make true.
type Plan struct {
	Mode  reg.Jumbo // of the ports, one that is not reserved
	Ports []Port    // panel ports
	// LeaveUplink leaves the uplink as it is. Otherwise it is raised when the ports need
	// it, and never lowered.
	LeaveUplink bool
	DryRun      bool // reads only
}

// Outcome is what became of a port in a run.
type Outcome string

// Outcomes.
const (
	Unchanged   Outcome = "unchanged"    // it was as asked
	Changed     Outcome = "changed"      // it was written, and reads as asked
	WouldChange Outcome = "would change" // in a dry run
	Left        Outcome = "left"         // it was not asked for
	NotBegun    Outcome = "not begun"    // the run ended before it: it is as it was: not as asked, or not read
	Failed      Outcome = "failed"       // see the error
)

// PortResult is one port of a run.
type PortResult struct {
	Port    Port
	Outcome Outcome
	Known   bool   // Before and Now were read
	Before  uint16 // PortControl2 at the beginning of the run
	Now     uint16 // as last read
	Want    uint16 // what it shall be
	Tries   int    // writes
	Err     error
}

// OK tells whether the port is as it shall be.
func (r *PortResult) OK() bool {
	return r.Outcome == Unchanged || r.Outcome == Changed || r.Outcome == Left || r.Outcome == WouldChange
}

// Mode is the frame size as last read; meaningless unless Known.
func (r *PortResult) Mode() reg.Jumbo { return reg.JumboOf(r.Now) }

// Say is the outcome in words.
func (r *PortResult) Say() string {
	if r.Err != nil {
		return r.Err.Error()
	}
	return string(r.Outcome)
}

// Result is what a run found and did: all eleven ports, the uplink first.
type Result struct {
	ID    reg.ID
	Ports []PortResult // empty when the switch was not identified
}

// Switch is the switch as oxpd uses it. Not safe for concurrent use.
type Switch struct {
	regs   Registers
	others *Others
}

// New returns the switch whose registers are given. What it learns of the bits beside the
// frame size it forgets with itself.
func New(regs Registers) *Switch { return NewKnown(regs, &Others{}) }

// NewKnown returns the switch whose registers are given and of which something is known
// from before, in the same boot of the coprocessor. It keeps others and adds to them.
func NewKnown(regs Registers, others *Others) *Switch { return &Switch{regs: regs, others: others} }

// writeTries is how often a value is written that does not read back.
const writeTries = 3

// Jumbo sets the frame size of ports (switch.md 6) and tells progress of each as it is
// decided; progress may be nil. The result is what stands, also with an error. The run is
// idempotent. When ctx ends in the middle, the port that was begun is finished: each one
// is then as it was or as asked, and the result says which.
//
// Errors: *IncompleteError unless every port is as asked, with the causes; *ProductError
// and others of the first look, with nothing written.
func (s *Switch) Jumbo(ctx context.Context, plan Plan, progress func(PortResult)) (Result, error) {
	if err := plan.check(); err != nil {
		return Result{}, err
	}
	r := &run{trusted: trusted{regs: s.regs}, others: s.others, plan: plan, progress: progress}
	if progress == nil {
		r.progress = func(PortResult) {}
	}
	err := r.do(ctx)
	if len(r.result.Ports) == 0 {
		return r.result, err
	}
	r.settle()
	for _, p := range r.result.Ports {
		if err != nil || !p.OK() {
			return r.result, &IncompleteError{Result: r.result, Err: err}
		}
	}
	return r.result, nil
}

func (p *Plan) check() error {
	if p.Mode >= reg.JumboReserved {
		return &RangeError{"frame size mode", int(p.Mode), int(reg.Jumbo1522), int(reg.Jumbo10240)}
	}
	for _, port := range p.Ports {
		if port <= Uplink || port >= reg.Ports {
			return &RangeError{"switch port", int(port), int(Uplink) + 1, reg.Ports - 1}
		}
	}
	return nil
}

// asks tells whether a port is one that the plan is about.
func (p *Plan) asks(port Port) bool {
	if port == Uplink {
		return !p.LeaveUplink
	}
	return slices.Contains(p.Ports, port)
}

// run is one run of Jumbo.
type run struct {
	trusted
	others   *Others
	plan     Plan
	progress func(PortResult)
	result   Result
}

// do returns why the run ended before its time.
func (r *run) do(ctx context.Context) error {
	var err error
	if r.result.ID, err = r.product(ctx); err != nil {
		return err
	}
	err = r.survey(ctx)
	r.decide()
	if err != nil {
		return err
	}
	for _, p := range r.order() {
		if err := r.set(ctx, p); err != nil {
			return err
		}
		r.progress(*p)
	}
	if !r.written() {
		return nil // what was read is what stands
	}
	return r.confirm(ctx)
}

// settle says of the ports that a run did not come to which of them are as asked all the
// same.
func (r *run) settle() {
	for i := range r.result.Ports {
		p := &r.result.Ports[i]
		if p.Outcome == NotBegun && p.Known && p.Want == p.Before && reg.JumboOf(p.Before) != reg.JumboReserved {
			p.Outcome = Unchanged
		}
	}
}

// written tells whether anything was.
func (r *run) written() bool {
	for i := range r.result.Ports {
		if r.result.Ports[i].Tries > 0 {
			return true
		}
	}
	return false
}

func interrupted(err error) error { return fmt.Errorf("interrupted: %w", err) }

// survey reads every port before anything is written.
func (r *run) survey(ctx context.Context) error {
	r.result.Ports = make([]PortResult, reg.Ports)
	for i := range r.result.Ports {
		r.result.Ports[i] = PortResult{Port: Port(i), Outcome: Left}
		if r.plan.asks(Port(i)) {
			r.result.Ports[i].Outcome = NotBegun
		}
	}
	for i := range r.result.Ports {
		p := &r.result.Ports[i]
		v, err := r.port(ctx, p.Port, reg.PortControl2)
		if err != nil {
			return fmt.Errorf("read all ports before the first write: %w", err)
		}
		r.others.first(p.Port, v)
		p.Known, p.Before, p.Now, p.Want = true, v, v, v
	}
	return nil
}

// decide says what each port that was read shall be.
func (r *run) decide() {
	for _, port := range r.plan.Ports {
		p := &r.result.Ports[port]
		p.Want = r.plan.Mode.Put(r.others.of(port, p.Before))
	}
	if up := &r.result.Ports[Uplink]; !r.plan.LeaveUplink && len(r.plan.Ports) > 0 {
		up.Want = r.others.of(Uplink, up.Before)
		up.Want = r.uplinkMode(up).Put(up.Want)
	}
}

// uplinkMode is what the uplink shall be: never less than it was. When it was written by
// somebody else nobody knows what it was, and the largest is right for all.
func (r *run) uplinkMode(up *PortResult) reg.Jumbo {
	if up.foreign() {
		return reg.Jumbo10240
	}
	return max(reg.JumboOf(up.Before), UplinkMode(r.plan.Mode))
}

// foreign tells whether somebody else has changed bits of the port beside the frame size.
func (p *PortResult) foreign() bool { return others(p.Before) != others(p.Want) }

// order is that in which ports are set: those asked for, then the uplink.
func (r *run) order() (order []*PortResult) {
	asked := map[Port]bool{}
	add := func(port Port) {
		if !asked[port] {
			asked[port] = true
			order = append(order, &r.result.Ports[port])
		}
	}
	for _, port := range r.plan.Ports {
		add(port)
	}
	if !r.plan.LeaveUplink {
		add(Uplink)
	}
	return order
}

// set makes one port as it shall be. Its error ends the run: the way to the switch is
// gone. What is wrong with the port alone is in its result.
func (r *run) set(ctx context.Context, p *PortResult) error {
	switch {
	case p.foreign():
		p.Outcome, p.Err = Failed, &OthersError{Port: p.Port, Was: others(p.Want), Is: others(p.Before), Value: p.Before, Want: p.Want}
		return nil
	case reg.JumboOf(p.Before) == reg.JumboReserved:
		p.Outcome, p.Err = Failed, &ReservedError{Port: p.Port, Value: p.Before}
		return nil
	case p.Want == p.Before:
		p.Outcome = Unchanged
		return nil
	case r.plan.DryRun:
		p.Outcome = WouldChange
		return nil
	}
	// Once more, straight before the write: the rest of the value must still be that.
	now, err := r.expect(ctx, p.Port, reg.PortControl2, p.Before, 1)
	if err != nil {
		return r.broken(ctx, p, err)
	}
	if now != p.Before {
		p.Now = now
		p.Outcome, p.Err = Failed, &ChangedError{At: p.register(), Want: p.Before, Got: now}
		return nil
	}
	return r.write(context.WithoutCancel(ctx), p) // each access is bounded
}

func (p *PortResult) register() Register { return Register{int(p.Port), reg.PortControl2} }

// write writes what the port shall be and reads it back, some times when it reads
// otherwise. An error of the write says nothing: the read-back does.
func (r *run) write(ctx context.Context, p *PortResult) error {
	for p.Tries < writeTries {
		p.Tries++
		sent := r.regs.Write(ctx, int(p.Port), reg.PortControl2, p.Want)
		now, err := r.expect(ctx, p.Port, reg.PortControl2, p.Want, 2)
		if err != nil {
			p.Known = false
			return r.broken(ctx, p, &UnverifiedError{At: p.register(), Old: p.Before, Want: p.Want, Err: joined(sent, err)})
		}
		if p.Now = now; now == p.Want {
			p.Outcome, p.Err = Changed, nil
			return nil
		}
		p.Outcome = Failed
		p.Err = joined(sent, &VerifyError{At: p.register(), Want: p.Want, Got: now, Old: p.Before, Tries: p.Tries})
	}
	return nil
}

// joined is what became of a write: what its read-back says, and what the write said.
func joined(sent, found error) error {
	if sent == nil {
		return found
	}
	return fmt.Errorf("%w; the write said: %w", found, sent)
}

// broken notes an access that failed for good, which ends the run unless the register
// alone is to blame.
func (r *run) broken(ctx context.Context, p *PortResult, err error) error {
	if err := ctx.Err(); err != nil {
		return interrupted(err) // before anything of the port was written
	}
	p.Outcome, p.Err = Failed, err
	var unstable *UnstableError
	if errors.As(err, &unstable) && r.misses <= maxMisses {
		return nil
	}
	r.progress(*p)
	return fmt.Errorf("the run ends at %s", p.Port)
}

// confirm reads everything once more. A port that reads otherwise than it did, and than
// it shall, was changed by somebody else.
func (r *run) confirm(ctx context.Context) error {
	for i := range r.result.Ports {
		p := &r.result.Ports[i]
		v, err := r.expect(ctx, p.Port, reg.PortControl2, p.Now, 1)
		if err != nil {
			return fmt.Errorf("read all ports after the last write: %w", err)
		}
		if p.OK() && v != p.Want {
			p.Outcome, p.Err = Failed, &ChangedError{At: p.register(), Want: p.Want, Got: v}
			r.progress(*p)
		}
		p.Known, p.Now = true, v
	}
	return nil
}
