package daemon

import (
	"context"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/daemon/client"
	"oxpd/internal/sys"
)

// warned are the warnings of the status about a port.
func (r *rig) warned(port string) (out []string) {
	for _, w := range r.status().Warnings {
		if strings.HasPrefix(w, port) {
			out = append(out, w)
		}
	}
	return out
}

// TestRenamedInterface is the same port by another name: it is served, its MTU has
// one owner, and everything of oxpd goes by the board's name.
func TestRenamedInterface(t *testing.T) {
	r := start(t, rigOptions{}).running()
	r.mustIP("link", "set", "oxp9", "name", "wan0")
	r.wait("the name to be seen", func() bool { return r.port("oxp9").KernelName == "wan0" })
	p := r.port("oxp9")
	assert.Equal(t, client.PortUp, p.State)
	assert.Equal(t, "PortF1", p.Label)
	assert.Equal(t, []string{"oxp9 (PortF1) is called wan0 in the kernel; oxpd serves it all the same, and its commands take oxp9 and PortF1"}, r.warned("oxp9"))

	require.NoError(t, r.setMTU("oxp9", 9000))
	assert.Equal(t, 9000, r.link("wan0").MTU)
	r.mustIP("link", "set", "wan0", "mtu", "1600")
	r.wait("the LIF to follow", func() bool { return int(r.lif("PortF1").MTU) == 1600 })
	r.mustIP("link", "set", "wan0", "up")
	r.wait("the administrative state", func() bool { return r.port("oxp9").Admin == client.OperUp })
	r.card.Wire(1).Send(frame(60))
	r.wait("frames at the interface", func() bool {
		s, err := r.client.Stats(context.Background(), "oxp9")
		return err == nil && s.Ports[0].Counters["rx_packets"] == 1
	})
	assert.Equal(t, 1, strings.Count(r.log.String(), "called otherwise"), "logged once")

	r.mustIP("link", "set", "wan0", "down")
	r.mustIP("link", "set", "wan0", "name", "oxp9")
	r.wait("the port's own name again", func() bool { return r.port("oxp9").KernelName == "" })
	assert.Empty(t, r.warned("oxp9"))
	r.mustIP("link", "set", "oxp9", "name", "wan0")
	r.wait("the name to be seen", func() bool { return r.port("oxp9").KernelName == "wan0" })
	index := r.port("oxp9").IfIndex
	r.mustIP("link", "delete", "wan0")
	r.wait("a new one by the port's own name", func() bool {
		p := r.port("oxp9")
		return p.State == client.PortUp && p.IfIndex != 0 && p.IfIndex != index
	})
	assert.Empty(t, r.port("oxp9").KernelName, "the old one's is forgotten")
}

// TestChangedAddress is not the card's: whoever did it is told.
func TestChangedAddress(t *testing.T) {
	r := start(t, rigOptions{}).running()
	own := r.port("oxp9").Address
	require.NotEmpty(t, own)
	r.mustIP("link", "set", "oxp9", "address", "02:00:00:00:99:99")
	r.wait("the address to be seen", func() bool { return r.port("oxp9").KernelAddress == "02:00:00:00:99:99" })
	assert.Equal(t, own, r.port("oxp9").Address, "the card's stands")
	assert.Equal(t, []string{"oxp9 (PortF1): the interface has address 02:00:00:00:99:99 and the card goes by " + own +
		": unicast to the former does not arrive; ip link set oxp9 address " + own}, r.warned("oxp9"))
	r.mustIP("link", "set", "oxp9", "up")
	r.wait("the administrative state", func() bool { return r.port("oxp9").Admin == client.OperUp })
	assert.Equal(t, 1, strings.Count(r.log.String(), "the card does not know"), "logged once")
	r.mustIP("link", "set", "oxp9", "address", own)
	r.wait("the card's address again", func() bool { return r.port("oxp9").KernelAddress == "" })
	assert.Empty(t, r.warned("oxp9"))
}

// TestMTUThatWasThere is no change, and is not logged as one.
func TestMTUThatWasThere(t *testing.T) {
	r := start(t, rigOptions{}).running()
	require.NoError(t, r.setMTU("oxp9", 1500))
	assert.NotContains(t, r.log.String(), "mtu changed")
	require.NoError(t, r.setMTU("oxp9", 1600))
	assert.Equal(t, 1, strings.Count(r.log.String(), "mtu changed"))
}

// TestInterfaceMovedToAnotherNamespace is gone from here: it is removed there and
// made again here.
func TestInterfaceMovedToAnotherNamespace(t *testing.T) {
	r := start(t, rigOptions{}).running()
	index := r.port("oxp9").IfIndex
	other, err := sys.NewNetNS()
	require.NoError(t, err)
	defer other.Close()
	r.mustIP("link", "set", "oxp9", "netns", other.Path())
	r.wait("another interface", func() bool {
		p := r.port("oxp9")
		return p.State == client.PortUp && p.IfIndex != 0 && p.IfIndex != index
	})
	assert.Contains(t, r.log.String(), "removed, or moved to another network namespace")
	require.NoError(t, r.setMTU("oxp9", 9000))
	assert.Equal(t, 9000, r.link("oxp9").MTU)
	require.NoError(t, other.Do(func() error {
		out, err := exec.Command("ip", "link", "show").CombinedOutput()
		assert.NotContains(t, string(out), "oxp9")
		return err
	}))
}
