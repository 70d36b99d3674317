package daemon

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/internal/daemon/config"
	"oxpd/internal/simdev"
	"oxpd/lif"
	"oxpd/octep"
	"oxpd/octep/csr"
	"oxpd/rpc"
	"oxpd/rpc/msg"
)

// NetAgent falls silent while everything runs: links are unknown and shown so,
// carrier and traffic stay, MTUs are changed, and it comes back by itself.
func TestNetAgentSilentWhileRunning(t *testing.T) {
	t.Parallel()
	// A request to a silent NetAgent takes a second, and they wait for each other: with
	// the other tests' period twelve of the reconciler go before each look at a link.
	r := start(t, rigOptions{config: func(c *config.Config) { c.Reconcile = config.Duration(time.Minute) }}).running()
	r.mustIP("link", "set", "oxp9", "up")
	r.wait("every port", func() bool { return r.status().PortsUp == board.Ports })
	for _, p := range []string{"oxp9", "oxp10"} {
		r.wait("links", func() bool { return r.port(p).Link == client.LinkUp })
	}
	r.carrier("oxp9", true)
	r.card.Faults(func(f *hwsim.Faults) { f.AgentSilent = true })
	r.wait("a link is unknown", func() bool { return strings.Contains(strings.Join(r.status().Warnings, "\n"), "link unknown") })
	assert.Equal(t, client.StateRunning, r.status().State)
	assert.Equal(t, board.Ports, r.status().PortsUp)
	r.wait("and shown so", func() bool { return r.port("oxp9").Link == client.LinkUnknown })
	assert.NotContains(t, r.link("oxp9").Flags, "NO-CARRIER", "what is not known is not changed")
	require.NoError(t, r.setMTU("oxp9", 9000), "the LIF needs no NetAgent")
	r.mtus("oxp9", 9000)
	r.card.Wire(1).Send(frameOf(9014))
	r.wait("frames pass", func() bool {
		s, err := r.client.Stats(context.Background(), "oxp9")
		return err == nil && s.Ports[0].Counters["rx_packets"] == 1
	})

	r.card.Wire(1).SetLink(false)
	r.card.Faults(func(f *hwsim.Faults) { f.AgentSilent = false })
	r.wait("every link is known again", func() bool { return !strings.Contains(strings.Join(r.status().Warnings, "\n"), "link unknown") })
	r.wait("what changed in the meantime is seen", func() bool { return r.port("oxp9").Link == client.LinkDown })
	r.carrier("oxp9", false)
	assert.Equal(t, client.LinkUp, r.port("oxp10").Link)
}

// from is a clock that began at another time.
type from struct {
	clock
	zero time.Duration
}

func (c from) Now() time.Duration { return c.zero + c.clock.Now() }

// CTL-1: a target that never answers costs an MTU change 2.0 to 2.5 s, whatever
// time it is. The clock is the card's.
func TestMTUOnASilentTarget(t *testing.T) {
	for _, zero := range []time.Duration{0, math.MaxInt32 * time.Millisecond, 400 * 24 * time.Hour} {
		t.Run(fmt.Sprint("clock at ", zero), func(t *testing.T) {
			ctx := context.Background()
			card := hwsim.New(hwsim.Options{Timeline: hwsim.Compressed()})
			clk := from{card.Clock(), zero}
			dev := simdev.New(card)
			ep, err := octep.Open(ctx, dev, octep.Config{Clock: clk})
			require.NoError(t, err)
			require.NoError(t, octep.SetBusMaster(dev, true))
			card.Provision()
			require.NoError(t, ep.WaitReady(ctx))
			f, err := ep.WaitFacility(ctx, csr.FacRPC)
			require.NoError(t, err)
			buf, err := dev.DMA().Alloc("rpc command", rpc.BufferBytes, msg.BufferAlign)
			require.NoError(t, err)
			defer func() { require.NoError(t, dev.DMA().Free(buf)) }()
			channel := rpc.New(f, f, buf, clk, nil, rpc.Config{Doorbells: 5})
			require.NoError(t, channel.Configure(ctx))
			table := &reopener{}
			table.use(channel)

			b := newBench(t, 8, 0)
			b.clock, b.lifs = clk, lif.New(lif.Config{Table: table, Clock: clk})
			require.NoError(t, b.provision(ctx))
			card.Faults(func(f *hwsim.Faults) { f.RPCSilent = true })
			began := clk.Now()
			err = b.setMTU(ctx, 9000, false)
			took := clk.Now() - began
			require.ErrorIs(t, err, rpc.ErrTimeout)
			assert.Equal(t, client.CodeTimeout, describe(err).Code)
			assert.GreaterOrEqual(t, took, 2*time.Second)
			assert.LessOrEqual(t, took, 2500*time.Millisecond)
			assert.Equal(t, 1500, b.iface.mtu)
			require.ErrorIs(t, b.setMTU(ctx, 9000, false), rpc.ErrStalled)
			assert.Equal(t, took, clk.Now()-began, "the next one does not wait")
		})
	}
}
