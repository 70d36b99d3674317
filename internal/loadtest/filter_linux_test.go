package loadtest

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/internal/daemon/config"
	"oxpd/internal/frame"
)

const (
	// filterName and filterRules are the filter of these tests: one source.
	filterName  = "flood"
	filterRules = "drop udp from 10.66.200.2 to any in\n"

	jumboFrame = board.MaxMTU + frame.HeaderSize

	// What is let pass beside a flood, 16 frames a millisecond at most.
	allowedGap    = time.Millisecond
	allowedFrames = 2000
)

// allowed is an address that no rule names and that nobody has.
var allowed = netip.AddrFrom4([4]byte{10, 66, 200, 3})

// cage is a port whose wire is the fastest.
func cage(t *testing.T) board.Port {
	t.Helper()
	p, err := board.Parse("F1")
	require.NoError(t, err)
	return p
}

// calmly is a lab's configuration in which nothing but frames moves.
func calmly(c *config.Config) {
	c.LinkPoll, c.Reconcile = config.Duration(time.Second), config.Duration(time.Second)
}

// loadFilter loads the rule that drops one source, without linking it.
func (l *lab) loadFilter() {
	l.t.Helper()
	_, err := l.client.LoadFilter(l.ctx, &client.FilterSource{Schema: client.Schema, Name: filterName, File: "flood.rules", Rules: []byte(filterRules)})
	require.NoError(l.t, err)
}

func (l *lab) link(p board.Port) {
	l.t.Helper()
	_, err := l.client.LinkFilter(l.ctx, filterName, p.Name, client.DirectionIn)
	require.NoError(l.t, err)
}

func (l *lab) unlink(p board.Port) {
	l.t.Helper()
	_, err := l.client.UnlinkFilter(l.ctx, filterName, p.Name, client.DirectionIn)
	require.NoError(l.t, err)
}

// filtered is what filters did at a port and what they let pass there.
type filtered struct {
	dropped, droppedBytes, recycled uint64
	passed                          uint64
	hits, unmatched                 uint64 // of the filter
}

// filtered reads it at rest.
func (l *lab) filtered(p board.Port) filtered {
	l.t.Helper()
	r := l.rest()
	port, _ := r.stats.Port(p.Name)
	v, err := l.client.Filter(l.ctx, filterName)
	require.NoError(l.t, err)
	c := port.Counters
	return filtered{
		dropped: c["pfil_dropped"], droppedBytes: c["pfil_dropped_bytes"], recycled: r.stats.Device["pfil_recycled_bufs"],
		passed: c["rx_packets"], hits: v.List[0].Hits, unmatched: v.Unmatched.Frames,
	}
}

// since is what has come to it after an earlier reading.
func (f filtered) since(e filtered) filtered {
	return filtered{f.dropped - e.dropped, f.droppedBytes - e.droppedBytes, f.recycled - e.recycled, f.passed - e.passed, f.hits - e.hits, f.unmatched - e.unmatched}
}

// What one rule drops on the ring is counted to the frame, in all places, and nothing of
// what it does not name is lost beside it. Without the rule the same frames reach the
// host, where the kernel's own filter drops and counts them.
func TestFloodIsDroppedOnTheRing(t *testing.T) {
	for _, c := range []struct {
		size   int
		frames uint64
	}{
		{64, 100_000},
		{jumboFrame, 20_000},
	} {
		t.Run(fmt.Sprintf("frames of %d bytes", c.size), func(t *testing.T) {
			t.Parallel()
			frames := c.frames
			if raceEnabled {
				frames /= 10
			}
			l := newLab(t, calmly)
			kernel := newXT(t, l.host)
			p := cage(t)
			l.settle(p, board.MaxMTU)
			flood := l.newFlow(p, strange, c.size)
			other := l.newFlow(p, allowed, 64, flood)
			other.gap = allowedGap
			l.loadFilter()

			start := l.filtered(p)
			l.link(p)
			stop := other.start(allowedFrames)
			flood.whole(frames)
			beside := stop().frames
			dropped := l.filtered(p)
			assert.Equal(t, filtered{
				dropped: frames, droppedBytes: frames * uint64(c.size), recycled: frames * flood.buffers(),
				passed: beside, hits: frames, unmatched: beside,
			}, dropped.since(start))

			l.unlink(p)
			kernel.drop(strange)
			stop = other.start(allowedFrames)
			flood.whole(frames)
			beside = stop().frames
			assert.Equal(t, filtered{passed: frames + beside}, l.filtered(p).since(dropped), "nothing is linked")
			assert.Equal(t, frames, kernel.dropped(), "dropped by the kernel")
			assert.Zero(t, l.ringFull(), "no ring was full")
		})
	}
}

// A filter that is linked and unlinked all the time loses no frame but those that its
// rule names, and each of those is either dropped or delivered.
func TestLinkAndUnlinkUnderFlood(t *testing.T) {
	times := 10_000
	if raceEnabled {
		times /= 10
	}
	l := newLab(t, calmly)
	p := cage(t)
	flood := l.newFlow(p, strange, 64)
	other := l.newFlow(p, allowed, 64, flood)
	flood.gap, other.gap = allowedGap/4, allowedGap/4 // the control socket needs a core too
	l.loadFilter()
	start := l.filtered(p)
	stopFlood, stopOther := flood.start(forever), other.start(forever)
	began := time.Now()
	for range times {
		l.link(p)
		l.unlink(p)
	}
	took := time.Since(began)
	named, rest := stopFlood().frames, stopOther().frames
	got := l.filtered(p).since(start)
	assert.Equal(t, named+rest, got.dropped+got.passed, "every frame was dropped or delivered")
	assert.Equal(t, got.hits, got.dropped, "what was dropped is what the rule names")
	assert.LessOrEqual(t, got.unmatched, rest, "frames that it does not name were judged while it was linked")
	assert.LessOrEqual(t, got.dropped, named, "and all of them delivered")
	assert.Positive(t, got.dropped, "it was linked under the flood")
	assert.Positive(t, named-got.dropped, "and unlinked")
	assert.Positive(t, got.unmatched)
	assert.Zero(t, l.ringFull(), "no ring was full")
	t.Logf("%d times in %v, beside %d frames that the rule names, of which %d were dropped, and %d others", times, took.Round(time.Millisecond), named, got.dropped, rest)
}

// forever is more frames than a flow sends before it is stopped.
const forever = ^uint64(0)
