package daemon

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/rpc/msg"
)

func TestStarved(t *testing.T) {
	for _, tc := range []struct {
		name        string
		now, before handed
		waiting     uint64
		warns       bool
	}{
		{"nothing happened", handed{}, handed{}, 0, false},
		{"traffic, and no refusal", handed{0, 5000}, handed{}, 0, false},
		{"refused, and a batch arrived", handed{100, 16}, handed{}, 0, true},
		{"refused since, and nothing arrived", handed{1064, 500}, handed{1000, 500}, 0, true},
		{"one refusal too few", handed{1063, 500}, handed{1000, 500}, 0, false},
		{"refused before", handed{1000, 500}, handed{1000, 500}, 0, false},
		{"the rings are full: the host is slow", handed{1000, 0}, handed{}, 1, false},
		{"a burst above the ring's depth", handed{1000, 1009}, handed{}, 0, false},
		{"a batch for each ring", handed{1000, 128}, handed{}, 0, true},
		{"another boot", handed{100, 0}, handed{5000, 9000}, 0, true},
		{"another boot, and all is well", handed{0, 10}, handed{5000, 9000}, 0, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			assert.Equal(t, tc.warns, tc.now.starved(tc.before, tc.waiting, 1024) != "")
		})
	}
	assert.Equal(t, "since the last look the card refused 100 packets for want of credit, 16 arrived, and its rings here are empty: "+
		"its watermark may be above what it is granted for (watermark: 1024 in the configuration)", handed{100, 16}.starved(handed{}, 0, 1024))
}

func TestRefusalsTowardsAWireAreNotTheHosts(t *testing.T) {
	var sys [msg.CountersSys]uint64
	var ports [msg.CountersPort][msg.CountersPortStride]uint64
	sys[msg.CntTXDropQueueFull] = 100
	ports[msg.CounterPortTXQueueFull][0], ports[msg.CounterPortTXQueueFull][2], ports[msg.CounterPortTXQueueFull][5] = 30, 20, 7
	assert.Equal(t, handed{50, 9}, handedBy(&sys, &ports, 9))
	sys[msg.CntTXDropQueueFull] = 10
	assert.Zero(t, handedBy(&sys, &ports, 0).refused)
}

// A watermark above the grant: TX_KN moves and nothing arrives. Reading the card's
// counters says so, and no longer when it has passed.
//
//oxpd:fault D12 behaviour
func TestWatermarkAboveTheGrantIsNamed(t *testing.T) {
	t.Parallel()
	r := start(t, rigOptions{}).running()
	carries := func(frames int) []string {
		w, frame := r.wire("oxp9"), between(1, 9, 60)
		mac := r.lif("oxp9").MAC
		copy(frame, mac[:])
		before := r.card.Counter(msg.CntTXKN)
		for range frames {
			w.Send(frame)
		}
		r.wait("the card to hand them over, or not", func() bool { return r.card.Counter(msg.CntTXKN) >= before+uint64(frames) })
		c, err := r.client.Counters(context.Background())
		require.NoError(t, err)
		return c.Warnings
	}
	r.mustIP("link", "set", "oxp9", "up")
	assert.Empty(t, carries(300), "nothing is known before the first look")
	assert.Empty(t, carries(300))
	i, err := hwsim.ParseInjection("watermark-above-grant")
	require.NoError(t, err)
	require.NoError(t, r.card.Inject(i))
	var warnings []string
	r.wait("a warning", func() bool { // the batch that still comes may not be taken yet at the first look
		warnings = carries(300)
		return len(warnings) > 0
	})
	assert.Contains(t, warnings[0], "its watermark may be above what it is granted for (watermark: 1024 in the configuration)")
	require.NoError(t, r.card.ClearFault("watermark-above-grant"))
	assert.Empty(t, carries(300))
}
