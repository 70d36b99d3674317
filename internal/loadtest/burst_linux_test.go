package loadtest

import (
	"fmt"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
)

const (
	burstFar    = 10 * time.Millisecond // along the cable, each way
	burstRounds = 3

	// What the published experiment is held to: a share of the uninspected rate with
	// buffers that hold what comes while the engine rests.
	burstShare = 0.9
	// burstCollapse is the share that is left at most with buffers that do not.
	burstCollapse = 0.5
)

// burst is an engine that rests now and then, behind a wire of some rate.
type burst struct {
	rate         uint64 // of the wire, bit/s
	period, rest time.Duration
	measure      time.Duration
}

// lab is one whose wire is slow and long, and whose streams are not too large for it: of
// themselves they lose nothing.
func (b burst) lab(t *testing.T) (*lab, board.Port) {
	t.Helper()
	l := setup{card: func(o *hwsim.Options) { o.Rates.Cage, o.Latencies.Cable = b.rate, burstFar }}.start(t, calmly)
	p := cage(t)
	l.lossBased(p)
	wire := b.rate / 8 * uint64(2*burstFar) / uint64(time.Second) // bytes under way
	require.NoError(t, l.farOf(p).Sysctl("ipv4/tcp_wmem", fmt.Sprintf("4096 65536 %d", 3*wire)))
	require.NoError(t, l.host.Sysctl("ipv4/tcp_rmem", "4096 131072 33554432"))
	require.NoError(t, l.farOf(p).Do(func() error { return exec.Command("ip", "link", "set", p.Label, "txqueuelen", "10000").Run() }))
	rtt, err := l.host.Ping(l.ctx, farAddr(p), smallPing, answer)
	require.NoError(t, err)
	assert.GreaterOrEqual(t, rtt, 2*burstFar-time.Millisecond) // the card's time runs a little ahead of the wall clock
	return l, p
}

// run measures a stream of its own, with both buffers of a size, or uninspected when it
// is "". It returns the rate in Mbit/s, and how many frames were lost in the queue.
func (b burst) run(l *lab, p board.Port, buffer string) (rate float64, lost uint64) {
	t := l.t
	t.Helper()
	if buffer == "" {
		s := l.newPour(p)
		time.Sleep(b.measure / 2)
		rate = s.rate(b.measure)
		s.stop()
		return rate, 0
	}
	before := l.decided(p)
	l.divert("queue-len=65536", "queue-bytes="+buffer, "buffer-size="+buffer)
	e := l.newEngine(p, inBursts(b.period, b.rest))
	l.inspect(p, client.FramesAll)
	s := l.newPour(p)
	time.Sleep(b.measure / 2)
	rate = s.rate(b.measure)
	l.inspect(p, client.FramesFilter)
	s.stop()
	now := l.decided(p)
	e.stop()
	l.attached(p, false)
	c := now.both.since(before.both)
	assert.Equal(t, c["seen"], c["accepted"]+c["drop_full"], "no frame went another way: %v", c)
	assert.Equal(t, e.accepted.Load(), c["accepted"], "verdicts of the engine")
	t.Logf("buffers of %s: %.0f Mbit/s, %d of %d frames lost; the queue has had %d frames and %d bytes at most, delay p50 %d us, p99 %d us, max %d us; the socket was full %d times",
		buffer, rate, c["drop_full"], c["seen"], now.queue.MostQueued, now.queue.MostBytes, now.queue.DelayP50US, now.queue.DelayP99US, now.queue.DelayMaxUS, now.queue.Counters["send_again"])
	return rate, c["drop_full"]
}

// An engine that rests for 50 ms in 500 at a wire of 100 Mbit/s: 406 full frames come
// meanwhile, of which 64 KiB hold 41 and 4 MiB all.
func TestBurstyEngine(t *testing.T) {
	t.Parallel()
	b := burst{rate: 100_000_000, period: 500 * time.Millisecond, rest: 50 * time.Millisecond, measure: time.Second}
	l, p := b.lab(t)
	l.divert("stall-ms=60000") // it rests, and no worse, on a machine as busy as it may be
	plain, _ := b.run(l, p, "")
	small, lost := b.run(l, p, "64kb")
	assert.Positive(t, lost, "64 KiB")
	large, lost := b.run(l, p, "4mb")
	assert.Zero(t, lost, "4 MiB")
	assert.Greater(t, large, small)
	assert.Greater(t, large, plain/2)
	t.Logf("uninspected %.0f Mbit/s", plain)
}

// The published experiment, at a wire of 1 Gbit/s: 17.4 against 1,213 of 1,190 Mbit/s. In
// turns, the median of each.
func TestRateOfAStreamBehindABurstyEngine(t *testing.T) {
	benched(t)
	threads(t)
	b := burst{rate: 1_000_000_000, period: 50 * time.Millisecond, rest: 5 * time.Millisecond, measure: 4 * time.Second}
	l, p := b.lab(t)
	var plain, small, large, smallLost, largeLost []float64
	for range burstRounds {
		rate, _ := b.run(l, p, "")
		plain = append(plain, rate)
		rate, lost := b.run(l, p, "64kb")
		small, smallLost = append(small, rate), append(smallLost, float64(lost))
		rate, lost = b.run(l, p, "4mb")
		large, largeLost = append(large, rate), append(largeLost, float64(lost))
	}
	t.Logf("uninspected %.0f Mbit/s; 64 KiB %.2f of it, 4 MiB %.2f", middle(plain), middle(small)/middle(plain), middle(large)/middle(plain))
	assert.Positive(t, middle(smallLost), "64 KiB: frames lost")
	assert.Less(t, middle(small), burstCollapse*middle(plain), "64 KiB: the stream collapses")
	assert.Zero(t, middle(largeLost), "4 MiB: frames lost")
	assert.GreaterOrEqual(t, middle(large), burstShare*middle(plain), "4 MiB")
}
