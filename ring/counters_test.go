package ring

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/octep"
)

// A card that is lost with frames posted, reset, and programmed anew: the counters go
// on, and each posted frame is finished, unknown or under way.
//
//oxpd:fault R33 behaviour
func TestCountersGoOnInAnotherBoot(t *testing.T) {
	counters := NewCounters()
	b := newBench(t, &discard{}, func(_ *hwsim.Options, c *Config) { c.Counters = counters })
	b.torn = true // the model's books start at 0 with the reboot
	carry := func(n int) {
		for range n {
			require.True(t, b.card.DeliverRaw(0, 1, make([]byte, 60), 134))
			b.card.Advance(time.Millisecond)
		}
		b.drain()
	}
	carry(70)
	for range 10 {
		require.True(t, b.rings.IQ().Post(1, make([]byte, 60)))
	}
	b.card.Advance(10 * time.Millisecond)
	require.Zero(t, b.rings.IQ().Settle())
	b.card.Faults(func(f *hwsim.Faults) { f.StopFetch = true })
	for range 40 {
		require.True(t, b.rings.IQ().Post(1, make([]byte, 60)))
	}
	before := b.rings.Stats()
	require.EqualValues(t, 70, before.Done)
	require.NotZero(t, before.PrefixSeq)
	b.card.Kill()
	b.card.ResetAccesses()
	assert.Equal(t, 40, b.rings.Abandon())
	assert.Zero(t, b.rings.Abandon(), "once")
	assert.Nil(t, b.rings.IQ().Reserve())
	assert.Empty(t, b.card.Accesses(), "no register is touched")
	before.TxUnknown = 40
	assert.Equal(t, before, b.rings.Stats(), "and nothing else is counted")

	b.card.Reboot()
	b.card.Faults(func(f *hwsim.Faults) { f.StopFetch = false })
	require.NoError(t, b.rings.Free())
	require.NoError(t, b.dev.ConfigWrite(4, 2, 6))
	var err error
	b.rings, err = New(Config{BAR0: b.dev.BAR0(), DMA: b.dev.DMA(), Clock: b.card.Clock(), Sink: &discard{}, Counters: counters})
	require.NoError(t, err)
	require.NoError(t, b.rings.Program(context.Background()))
	require.NoError(t, b.rings.SetClocks(800))
	b.card.Provision()
	carry(5)
	require.True(t, b.rings.IQ().Post(1, make([]byte, 60)))
	b.card.Advance(10 * time.Millisecond)
	b.rings.IQ().Settle()
	s := b.rings.Stats()
	assert.EqualValues(t, 75, s.Done)
	assert.EqualValues(t, 75, s.Queues[0].Done)
	assert.Equal(t, before.Returned+5, s.Returned)
	assert.Greater(t, s.PrefixSeq, before.PrefixSeq)
	assert.Equal(t, []uint64{51, 11, 40}, []uint64{s.TxPosted, s.TxFinished, s.TxUnknown})
	assert.NoError(t, octep.SetBusMaster(b.dev, false))
}
