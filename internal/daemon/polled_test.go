package daemon

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/octep"
	"oxpd/octep/csr"
)

// A card that is reached without interrupts is polled, and says so.
func TestWithoutInterrupts(t *testing.T) {
	t.Parallel()
	r := start(t, rigOptions{polled: true}).running()
	ctx := context.Background()
	var rings string
	for _, s := range r.status().Stages {
		if s.Name == stageRings.String() {
			rings = s.Detail
		}
	}
	assert.Contains(t, rings, "no interrupts: they poll")
	assert.NotZero(t, r.card.ConfigRead(csr.CfgCommand, 2)&csr.CfgCommandNoINTx, "nor a legacy one, on a line that others share")
	r.mustIP("link", "set", "oxp9", "up")
	taken := func() uint64 {
		s, err := r.client.Stats(ctx, "")
		require.NoError(t, err)
		assert.Zero(t, s.Device["intr_taken"])
		p, ok := s.Port("PortF1")
		require.True(t, ok)
		return p.Counters["rx_packets"]
	}
	for n := range uint64(3) { // at rest, and under load
		for range 20 {
			r.card.Wire(1).Send(frameOf(60))
		}
		r.wait("frames", func() bool { return taken() == 20*(n+1) })
	}
	r.cancel()
	require.NoError(t, r.end())
}

// Memory that an earlier run left is given back once the card is known to know
// nothing of it, and not before.
func TestReclaim(t *testing.T) {
	t.Parallel()
	card := sharedCard(t, hwsim.Compressed())
	r := start(t, rigOptions{shared: card, keeps: true}).running()
	assert.EqualValues(t, 1, r.memory.reclaims.Load())
	r.cancel()
	require.NoError(t, r.end())

	again := start(t, rigOptions{shared: card, keeps: true})
	var earlier *octep.EarlierRunError
	require.ErrorAs(t, again.end(), &earlier)
	assert.Zero(t, again.memory.reclaims.Load(), "the card may write to it")
	assert.Empty(t, again.memory.names())
	again.memory.keeps = false
	again.card = nil // nothing of it is this run's
}

func TestReclaimRefused(t *testing.T) {
	t.Parallel()
	no := errors.New("read-only")
	card := sharedCard(t, hwsim.Compressed())
	r := start(t, rigOptions{shared: card, refuses: no})
	require.ErrorIs(t, r.end(), no)
	assert.Empty(t, r.memory.names())
}
