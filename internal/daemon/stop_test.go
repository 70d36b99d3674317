package daemon

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/daemon/client"
	"oxpd/octep/csr"
)

// A command to the card on behalf of the control socket is on its way when the
// daemon stops: its buffer and the BARs are there until it is back.
func TestCountersWhileItStops(t *testing.T) {
	for _, after := range []time.Duration{0, 100 * time.Millisecond, 300 * time.Millisecond, 600 * time.Millisecond} {
		t.Run(after.String(), func(t *testing.T) {
			card := sharedCard(t, hwsim.Compressed())
			r := start(t, rigOptions{shared: card}).running()
			card.Faults(func(f *hwsim.Faults) { f.RPCDelay = 700 * time.Millisecond })
			asked := make(chan error)
			for range 3 {
				go func() {
					_, err := r.client.Counters(context.Background())
					asked <- err
				}()
			}
			time.Sleep(after)
			r.cancel()
			var seen uint64
			for range 3 {
				if err := <-asked; err != nil {
					assert.Equal(t, client.CodeNotReady, code(err), "%v", err)
				}
			}
			require.NoError(t, r.end())
			seen = r.accesses.Load()
			time.Sleep(time.Second) // longer than a command
			assert.Equal(t, seen, r.accesses.Load(), "no BAR is touched after Close")
		})
	}
}

// A request that never comes back keeps memory and device, and the stop goes on.
func TestStopWithARequestThatStaysInside(t *testing.T) {
	card := sharedCard(t, hwsim.Compressed())
	r := start(t, rigOptions{shared: card}).running()
	_, leave, ok := r.d.visit.enter(context.Background())
	require.True(t, ok)
	before := r.memory.names()
	r.cancel()
	require.ErrorContains(t, r.end(), "does not come back")
	assert.ElementsMatch(t, before, r.memory.names(), "nothing is released")
	assert.True(t, r.d.result.MemoryKept)
	assert.Zero(t, card.ConfigRead(csr.CfgCommand, 2)&csr.CfgCommandBusMaster, "it goes with the process: the card may not reach it")
	leave()
	r.memory.keeps = true // for the look at what is left
	r.faulty = true
}
