package divert

import (
	"fmt"
	"time"

	"oxpd/internal/board"
	"oxpd/internal/frame"
)

// reason is why a policy decided.
type reason uint8

const (
	fullFrames reason = iota
	fullBytes
	absent
	stall

	reasons
)

// policyOf is the policy for a reason.
func (s *Settings) policyOf(why reason) Policy {
	//exhaustive:enforce
	switch why {
	case absent:
		return s.OnAbsent
	case stall:
		return s.OnStall
	case fullFrames, fullBytes, reasons:
	}
	return s.OnFull
}

// by is the counter of what a policy decided.
func (c *Counts) by(why reason, p Policy) *uint64 {
	pass := p == Pass
	switch {
	case why == absent && pass:
		return &c.PassAbsent
	case why == absent:
		return &c.DropAbsent
	case why == stall && pass:
		return &c.PassStall
	case why == stall:
		return &c.DropStall
	case pass:
		return &c.PassFull
	}
	return &c.DropFull
}

// reportPeriod is the shortest time between two lines about frames without a verdict.
const reportPeriod = time.Second

// losses are the frames that no verdict was given about since the last line about them.
type losses struct {
	n    [reasons][2]uint64 // that a policy decided about, by policy
	cut  uint64             // that came back from a tap-pair shorter than they left
	some bool
	told time.Duration
	ever bool
}

// lose notes a frame that a policy decided about.
func (q *Queue) lose(why reason, p Policy) {
	q.losses.n[why][p]++
	q.losses.some = true
}

// MaxFrame is the longest frame that a port takes, in bytes: what an engine's buffers
// have to take.
const MaxFrame = board.MaxMTU + frame.MaxHeader

// report says which frames went without a verdict, once a reportPeriod at most, and what
// to change about it.
func (q *Queue) report() {
	now := q.cfg.Clock.Now()
	q.mu.Lock()
	l := &q.losses
	if !l.some || l.ever && now-l.told < reportPeriod {
		q.mu.Unlock()
		return
	}
	n, cut, s := l.n, l.cut, q.set
	*l = losses{told: now, ever: true}
	q.mu.Unlock()

	var attrs []any
	for why := range reasons {
		if dropped, passed := n[why][Drop], n[why][Pass]; dropped+passed > 0 {
			attrs = append(attrs, "why", why.text(), "dropped", dropped, "passed_uninspected", passed, "change", s.change(why))
		}
	}
	if cut > 0 {
		attrs = append(attrs, "why", "the engine gave them back cut", "dropped", cut, "passed_uninspected", 0,
			"change", fmt.Sprintf("raise the engine's snaplen to %d bytes", MaxFrame))
	}
	q.log.Warn("frames went without a verdict", attrs...)
}

// text says why a policy had to decide.
func (r reason) text() string {
	return [...]string{"queue full: frames", "queue full: bytes", "no engine is attached", "the engine gives no verdict", ""}[r]
}

// change is the setting that would help.
func (s *Settings) change(why reason) string {
	//exhaustive:enforce
	switch why {
	case fullFrames:
		return fmt.Sprintf("raise queue-len (now %d frames)", s.QueueLen)
	case fullBytes:
		return fmt.Sprintf("raise queue-bytes (now %d)", s.QueueBytes)
	case absent:
		return fmt.Sprintf("attach an engine, or choose with on-absent (now %v)", s.OnAbsent)
	case stall, reasons:
	}
	return fmt.Sprintf("mend the engine, or raise stall-ms (now %d), or choose with on-stall (now %v)", s.Stall.Milliseconds(), s.OnStall)
}

// State is what a queue's engine does.
type State uint8

// States.
const (
	Absent  State = iota // there is none
	Idle                 // it has nothing to decide
	Busy                 // it has
	Stalled              // it has stopped answering
)

var stateNames = [...]string{"absent", "idle", "busy", "stalled"}

// String is the state as documents have it.
func (s State) String() string { return nameOf(stateNames[:], int(s)) }

// QueueStats is a queue at one moment.
type QueueStats struct {
	Name          string
	State         State
	Frames        int   // queued
	Bytes         int64 // of them, as QueueBytes counts
	MaxFrames     int   // ever
	MaxBytes      int64
	P50, P99, Max time.Duration // from offer to decision, in the last 10 to 20 s; Max ever
	Flows         int           // connections accepted whole
	Events        Events
	Counts        [board.Ports][Directions]Counts
}

// Stats reads the queue.
func (q *Queue) Stats() QueueStats {
	q.mu.Lock()
	defer q.mu.Unlock()
	s := QueueStats{
		Name: q.cfg.Name, State: q.state(), Frames: q.n, Bytes: q.bytes, MaxFrames: q.maxN, MaxBytes: q.maxB,
		P50: q.delays.quantile(0.5), P99: q.delays.quantile(0.99), Max: q.delays.max,
		Flows: len(q.flows.last), Events: q.events, Counts: q.counts,
	}
	s.Events.NoFlow = q.flows.refused
	return s
}

func (q *Queue) state() State {
	switch {
	case !q.attached:
		return Absent
	case q.stalled:
		return Stalled
	case q.n == 0:
		return Idle
	}
	return Busy
}
