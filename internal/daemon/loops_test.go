package daemon

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/rpc/msg"
)

// rpcSPI is the doorbell of the rpc facility (rpc-lif.md 1).
const rpcSPI = 155

// A channel that stays closed holds up nothing that does not need it, and is
// said once.
func TestClosedChannelHoldsUpNothing(t *testing.T) {
	t.Parallel()
	sub, tag := msg.AttrMAC, board.Tag(0x8300)
	r := start(t, rigOptions{card: func(c *hwsim.Card) {
		c.Faults(func(f *hwsim.Faults) { f.AgentRefuse = []hwsim.AgentRefusal{{Op: msg.OpGet, Sub: &sub, Port: &tag}} })
	}}).running()
	r.card.Faults(func(f *hwsim.Faults) { f.RPCSilent = true })
	require.Equal(t, client.CodeTimeout, code(r.setMTU("oxp9", 9000)))
	r.wait("the channel stays closed", func() bool { return strings.Contains(r.log.String(), "rpc channel stays closed") })
	bells := func() uint64 { return r.card.Doorbells()[rpcSPI] }
	first := bells()

	r.card.Faults(func(f *hwsim.Faults) { f.AgentRefuse = nil })
	r.wait("the waiting port has gone on to what needs the channel", func() bool { return strings.Contains(r.port("Port3").Awaiting, "LIF") })
	r.wait("two more attempts, each with its bell, and the next", func() bool { return bells() >= first+3 })
	closed := strings.Count(r.log.String(), "rpc channel stays closed")
	assert.LessOrEqual(t, closed, 2, "once a reason")
	assert.NotContains(t, r.log.String(), "rpc channel is open again")

	r.card.Faults(func(f *hwsim.Faults) { f.RPCSilent = false })
	r.wait("open", func() bool { return strings.Contains(r.log.String(), "rpc channel is open again") })
	r.wait("Port3 comes up", func() bool { return r.port("Port3").State == client.PortUp })
	r.wait("the MTU is taken", func() bool { return r.setMTU("oxp9", 9000) == nil })
	assert.Equal(t, 1, strings.Count(r.log.String(), "rpc channel is open again"))
}
