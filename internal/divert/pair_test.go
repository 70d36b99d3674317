package divert

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pairSteps is a pair whose time, and whose engine, are the test's. Frames go in.
type pairSteps struct {
	*rig
	pair *Pair
	sent [][]byte // to the engine, and what it has not given back
}

func newPairSteps(t *testing.T, change func(*Settings)) *pairSteps {
	r := newRig(t, change)
	r.cfg.Pair = true
	return &pairSteps{rig: r, pair: NewPair(PairConfig{Queue: r.Queue, Clock: r.clock})}
}

// turn does what Pair.write does in one turn, after a time.
func (r *pairSteps) turn(after time.Duration) {
	r.clock.now += after
	var tickets [8]Ticket
	for n := r.Take(tickets[:]); n > 0; n = r.Take(tickets[:]) {
		r.pair.left(tickets[:n])
		for _, t := range tickets[:n] {
			r.sent = append(r.sent, append([]byte(nil), t.Frame...))
		}
		r.Sent(tickets[:n], n)
	}
	for _, d := range r.pair.due(r.clock.now) {
		if d == In {
			r.sent = append(r.sent, r.pair.probeFrame(d, nil))
		}
	}
	r.Settle(r.pair.judge(r.clock.now))
}

// back has frames come back from the engine, and tells how many are its own.
func (r *pairSteps) back(frames ...[]byte) (injected int) {
	var v []Verdict
	for _, b := range frames {
		if r.pair.back(In, b, &v) {
			injected++
		}
	}
	r.Settle(v)
	return injected
}

// engine gives back, in order, what it has been sent and pass says of.
func (r *pairSteps) engine(pass func(b []byte) bool) {
	for _, b := range r.sent {
		if pass(b) {
			require.Zero(r, r.back(b))
		}
	}
	r.sent = nil
}

func notMarked(mark byte) func(b []byte) bool {
	return func(b []byte) bool { return b[len(b)-1] != mark }
}

// What an engine drops is decided by the probe behind it, a little after it is back, and
// probes do not wait for each other's decisions.
func TestProbesDecide(t *testing.T) {
	r := newPairSteps(t, func(s *Settings) { s.Stall = MaxStall })
	r.pair.present(true)
	r.turn(probePeriod)
	r.engine(notMarked('D'))
	for range 20 { // a frame every 10 ms of which the engine drops each second
		require.Equal(t, Taken, r.offer(udp(1, 100, 'D')))
		require.Equal(t, Taken, r.offer(udp(2, 100, 'A')))
		r.turn(probePeriod)
		r.engine(notMarked('D'))
		assert.LessOrEqual(t, r.Queue.Stats().Frames, int(probeGrace/probePeriod)+1)
	}
	r.turn(probePeriod)
	r.engine(notMarked('D'))
	r.turn(probeGrace)
	assert.Equal(t, Counts{Seen: 40, Accepted: 20, Dropped: 20}, r.Counts(0, In))
	before := r.pair.Stats().Probes
	for range 10 {
		r.turn(probePeriod)
	}
	assert.Equal(t, before, r.pair.Stats().Probes, "nothing is with the engine: no probes")
}

// An engine of several threads does not keep the order of a probe and the frames before it.
func TestProbeThatOvertakes(t *testing.T) {
	r := newPairSteps(t, nil)
	r.pair.present(true)
	require.Equal(t, Taken, r.offer(udp(1, 100, 'A')))
	r.turn(probePeriod)
	f, probe := r.sent[0], r.sent[1]
	r.back(probe)
	r.turn(probeGrace - 1)
	r.back(f)
	assert.Equal(t, Counts{Seen: 1, Accepted: 1}, r.Counts(0, In))
}

// A probe that is lost with the frames before it, in an engine whose ring was full, is not
// waited for: another goes out when what left after it comes back. One that only was late
// counts still.
func TestProbeThatIsLost(t *testing.T) {
	for name, late := range map[string]bool{"lost": false, "late": true} {
		t.Run(name, func(t *testing.T) {
			r := newPairSteps(t, func(s *Settings) { s.Stall = MaxStall })
			r.pair.present(true)
			require.Equal(t, Taken, r.offer(udp(1, 100, 'D')))
			r.turn(probePeriod)
			lost := r.sent[1]
			r.sent = nil
			require.Equal(t, Taken, r.offer(udp(2, 100, 'A')))
			r.turn(probePeriod)
			require.Len(t, r.sent, 1, "one probe is under way")
			r.engine(likeAny)
			r.turn(0)
			require.Len(t, r.sent, 1, "another probe")
			if late {
				require.Zero(t, r.back(lost))
				r.sent = nil
			}
			r.engine(likeAny)
			r.turn(probeGrace)
			assert.Equal(t, Counts{Seen: 2, Accepted: 1, Dropped: 1}, r.Counts(0, In))
		})
	}
}

func likeAny([]byte) bool { return true }

// ARP's frames, and those of who asks again, are the same to the last byte. When the
// engine drops one of them, the others are not lost for it.
func TestFramesWithoutADifference(t *testing.T) {
	for _, c := range []struct {
		name   string
		lose   func(r *pairSteps)
		counts Counts
	}{
		{"one is dropped, as a probe says", func(r *pairSteps) {
			r.engine(likeProbe)
			r.turn(probeGrace)
		}, Counts{Seen: 6, Accepted: 5, Dropped: 1}},
		{"one is dropped, as time says", func(r *pairSteps) {
			r.sent = nil
			r.clock.now += r.Settings().Stall
			r.Expire()
			r.turn(0)
		}, Counts{Seen: 6, Accepted: 5, Dropped: 1}},
		{"one was with an engine that has gone", func(r *pairSteps) {
			r.sent = nil
			r.pair.present(false)
			r.pair.present(true)
			r.turn(probePeriod)
		}, Counts{Seen: 6, Accepted: 5, DropAbsent: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newPairSteps(t, nil)
			r.pair.present(true)
			require.Equal(t, Taken, r.offer(udp(1, 100, 'A')))
			r.turn(probePeriod)
			c.lose(r)
			for range 5 {
				require.Equal(t, Taken, r.offer(udp(1, 100, 'A')))
				r.turn(probePeriod)
				r.engine(likeAny)
			}
			assert.Equal(t, c.counts, r.Counts(0, In))
			assert.Zero(t, r.Queue.Stats().Events.Late)
			assert.Zero(t, r.back(udp(1, 100, 'A')), "the lost one, late")
			assert.Equal(t, c.counts, r.Counts(0, In))
			assert.Equal(t, uint64(1), r.Queue.Stats().Events.Late)
			assert.Equal(t, 1, r.back(udp(1, 100, 'A')), "none of ours")
		})
	}
}

// A probe that is nobody's does not get out.
func TestStrayProbes(t *testing.T) {
	r := newPairSteps(t, nil)
	r.pair.present(true)
	r.turn(probePeriod)
	ours := r.sent[0]
	for name, b := range map[string][]byte{
		"the other direction's, sent back where it came from": r.pair.probeFrame(Out, nil),
		"of a pair of before": newPairSteps(t, nil).pair.probeFrame(In, nil),
	} {
		assert.Zero(t, r.back(b), name)
	}
	assert.Zero(t, r.pair.Stats().ProbesBack)
	assert.False(t, r.pair.Stats().ProbesReturn)
	r.back(ours)
	r.back(ours)
	assert.Equal(t, uint64(2), r.pair.Stats().ProbesBack)
	assert.Equal(t, 1, r.back(udp(1, 60, 'X')))
	short := append([]byte(nil), ours[:probeSize-1]...)
	assert.Equal(t, 1, r.back(short), "not even like one")
}

// An engine that forwards no probes is taken for one that has stopped when many frames in
// a row do not come back, in either direction.
func TestSilenceWithoutProbes(t *testing.T) {
	const stall = time.Second
	frames := func(r *pairSteps, n int, every time.Duration) {
		for i := range n {
			r.offer(udp(byte(i), 100, 'A'))
			r.turn(every)
		}
	}
	for _, c := range []struct {
		name string
		do   func(r *pairSteps)
		want bool
	}{
		{"silentMost in a row", func(r *pairSteps) { frames(r, silentMost, 0); r.clock.now += stall }, true},
		{"one less", func(r *pairSteps) { frames(r, silentMost-1, 0); r.clock.now += stall }, false},
		{"not yet", func(r *pairSteps) { frames(r, silentMost, 0); r.clock.now += stall - 1 }, false},
		{"now and then", func(r *pairSteps) { frames(r, 10*silentMost, stall) }, false},
		{"one comes back", func(r *pairSteps) {
			frames(r, silentMost, 0)
			r.back(r.sent[0])
			frames(r, silentMost-1, 0)
			r.clock.now += stall
		}, false},
		{"one comes back the other way", func(r *pairSteps) {
			frames(r, silentMost, 0)
			r.pair.back(Out, udp(1, 100, 'X'), new([]Verdict))
			r.clock.now += stall
		}, false},
		{"it has gone", func(r *pairSteps) { frames(r, silentMost, 0); r.clock.now += stall; r.pair.present(false) }, false},
		{"another has come", func(r *pairSteps) {
			frames(r, silentMost, 0)
			r.clock.now += stall
			r.pair.present(false)
			r.pair.present(true)
		}, false},
		{"no frames at all", func(r *pairSteps) { r.turn(0); r.clock.now += 10 * stall }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newPairSteps(t, func(s *Settings) { s.Stall = stall })
			r.pair.present(true)
			c.do(r)
			assert.Equal(t, c.want, r.pair.silent(r.clock.now))
		})
	}
}

// Pair and queue are of one mind about an engine that has stopped, whoever says it and
// whatever comes between.
func TestPairAndQueueAgree(t *testing.T) {
	r := newPairSteps(t, func(s *Settings) { s.OnStall = Pass })
	r.pair.present(true)
	stalled := func(want bool) {
		t.Helper()
		assert.Equal(t, want, r.pair.stalled)
		assert.Equal(t, want, r.Queue.Stats().State == Stalled)
	}
	assert.True(t, r.pair.setStalled(true))
	assert.False(t, r.pair.setStalled(true), "no news")
	stalled(true)
	assert.Equal(t, Passed, r.offer(udp(1, 100, 'A')))
	assert.True(t, r.pair.setStalled(false))
	stalled(false)
	r.pair.setStalled(true)
	r.pair.present(false)
	r.pair.present(true) // another engine
	stalled(false)
	assert.True(t, r.pair.setStalled(true))
	stalled(true)
}

// A probe that is not back after stall-ms is sent again. That must not put off what its
// absence says of the engine; what comes back meanwhile does.
func TestPairSilence(t *testing.T) {
	const stall = time.Second
	for _, c := range []struct {
		name   string
		back   time.Duration // when a frame comes back, 0: never
		silent time.Duration // when the engine is first taken for one that has stopped
	}{
		{"nothing comes back", 0, stall},
		{"a frame comes back, and then nothing", stall / 2, 2 * stall},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := Defaults()
			s.Stall = stall
			now := new(handClock)
			q := NewQueue(QueueConfig{Settings: s, Outlet: &gone{}, Clock: now, Pair: true})
			p := NewPair(PairConfig{Queue: q, Clock: now})
			p.attached = true
			w := &p.ways[In]
			w.probe.ever = true
			p.left([]Ticket{{ID: 1, Frame: udp(1, 100, 'A')}, {ID: 2, Frame: udp(2, 100, 'A')}})
			const start, step = 10 * time.Millisecond, 10 * time.Millisecond
			at := time.Duration(0)
			for ; at <= 4*stall && !p.silent(now.now); at += step {
				now.now = start + at
				p.due(now.now) // as often as Pair.write does, and before watch
				if at == c.back && at > 0 {
					p.back(In, udp(1, 100, 'A'), new([]Verdict))
				}
			}
			assert.Equal(t, c.silent, at-step)
		})
	}
}
