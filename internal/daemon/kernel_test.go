package daemon

import (
	"context"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/internal/port"
	"oxpd/internal/sys"
	"oxpd/rpc/msg"
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
	t.Parallel()
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
	r.card.Wire(1).Send(frameOf(60))
	r.wait("frames at the interface", func() bool {
		s, err := r.client.Stats(context.Background(), "oxp9")
		return err == nil && s.Ports[0].Counters["rx_packets"] == 1
	})
	assert.Equal(t, 1, strings.Count(r.log.String(), "called otherwise"), "logged once")

	r.mustIP("link", "set", "wan0", "down")
	r.mustIP("link", "set", "wan0", "name", "oxp9")
	r.wait("the port's own name again", func() bool { return r.port("oxp9").KernelName == "" })
	assert.Empty(t, r.warned("oxp9"))
	assert.Equal(t, 1, strings.Count(r.log.String(), "called otherwise"), "which is no other name")
	assert.Equal(t, 1, strings.Count(r.log.String(), "has the port's name again"))
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

// TestChangedAddress: the card goes by the interface's address.
func TestChangedAddress(t *testing.T) {
	t.Parallel()
	r := start(t, rigOptions{}).running()
	const other = "02:00:00:00:99:99"
	for _, name := range []string{"oxp9", "oxp1"} { // of a cage, and behind the switch
		own := r.port(name).Address
		require.NotEmpty(t, own)
		r.mustIP("link", "set", name, "up")
		heard := func(to string) func() bool {
			return func() bool {
				b := frameOf(60)
				mac, err := net.ParseMAC(to)
				require.NoError(t, err)
				copy(b, mac)
				before := r.rxPackets(name)
				r.wire(name).Send(b)
				time.Sleep(20 * time.Millisecond) // for a frame that does not come; one that comes late is seen the next time
				return r.rxPackets(name) > before
			}
		}
		r.wait("unicast to its own address", heard(own))
		r.mustIP("link", "set", name, "address", other)
		r.wait("unicast to the new address", heard(other))
		r.wait("and shown so", func() bool { return r.port(name).Address == other })
		q := r.port(name)
		assert.Equal(t, own, q.CardAddress)
		assert.Equal(t, other, q.LIF.Address)
		assert.Empty(t, r.warned(name))
		assert.False(t, heard(own)(), "the old one is nobody's")
		r.mustIP("link", "set", name, "address", own)
		r.wait("the card's own address again", heard(own))
		r.wait("and shown so", func() bool { return r.port(name).CardAddress == "" })
	}
	t.Run("that of another port is put back", func(t *testing.T) {
		own, others := r.port("oxp9").Address, r.port("oxp10").Address
		r.mustIP("link", "set", "oxp9", "address", others)
		r.wait("put back", func() bool { return r.link("oxp9").Address == own })
		assert.Equal(t, own, r.port("oxp9").LIF.Address)
		r.wait("and named", func() bool {
			w := strings.Join(r.view("oxp9").Warnings, "\n")
			return strings.Contains(w, "address "+others+", set at the interface of oxp9 (PortF1), was put back to "+own) && strings.Contains(w, "oxp10 (PortF2)")
		})
		assert.Equal(t, uint64(1), r.view("oxp9").PutBack)
		assert.Equal(t, 1, strings.Count(r.log.String(), "address of the interface is put back"), "logged once")
	})
}

// view is `oxpd port NAME`.
func (r *rig) view(name string) *client.PortView {
	r.t.Helper()
	v, err := r.client.Port(context.Background(), name)
	require.NoError(r.t, err)
	return v
}

// wire is the wire of a port of the simulated card.
func (r *rig) wire(name string) *hwsim.Wire {
	r.t.Helper()
	p, err := board.Parse(name)
	require.NoError(r.t, err)
	return r.card.Wire(uint16(p.Tag))
}

// agentPort is what NetAgent was told of a port.
func (r *rig) agentPort(name string) hwsim.AgentPort {
	r.t.Helper()
	p, err := board.Parse(name)
	require.NoError(r.t, err)
	return r.card.AgentPort(p.Tag)
}

func (r *rig) rxPackets(name string) uint64 {
	r.t.Helper()
	s, err := r.client.Stats(context.Background(), name)
	require.NoError(r.t, err)
	return s.Ports[0].Counters["rx_packets"]
}

// TestPortsFollowIPLink is one verb of ip link after the other.
func TestPortsFollowIPLink(t *testing.T) {
	t.Parallel()
	r := start(t, rigOptions{}).running()
	set := func(args ...string) { r.mustIP(append([]string{"link", "set", "oxp1"}, args...)...) }
	agent := func() hwsim.AgentPort { return r.agentPort("oxp1") }
	l2 := func() bool { return r.lif("oxp1").Fwd == msg.FwdL2 }

	t.Run("a new interface is down, and its port is up", func(t *testing.T) {
		assert.True(t, agent().Up)
		assert.Equal(t, client.OperUp, r.view("oxp1").Want.Admin)
		assert.Equal(t, client.OperDown, r.view("oxp1").Interface.Admin)
	})
	t.Run("up, down, up", func(t *testing.T) {
		set("up")
		r.wait("it to be seen", func() bool { return r.port("oxp1").OperState == client.OperUp })
		set("down")
		r.wait("the port to be lowered", func() bool { return !agent().Up })
		r.wait("the link to be gone", func() bool { return r.port("oxp1").Link == client.LinkDown })
		assert.False(t, r.wire("oxp1").Carries())
		assert.Equal(t, client.PortUp, r.port("oxp1").State, "it stays provisioned")
		set("up")
		r.wait("the port to be raised", func() bool { return agent().Up })
		r.wait("the link to come back", func() bool { return r.port("oxp1").OperState == client.OperUp })
		r.carrier("oxp1", true)
	})
	t.Run("promisc", func(t *testing.T) {
		set("promisc", "on")
		r.wait("L2 and NetAgent's filter off", func() bool { return l2() && agent().Promisc })
		r.wait("foreign unicast arrives", func() bool {
			b := frameOf(60)
			copy(b, "\x02\x11\x22\x33\x44\x55")
			r.wire("oxp1").Send(b)
			return r.rxPackets("oxp1") > 0
		})
		set("promisc", "off")
		r.wait("L3 and NetAgent's filter on", func() bool { return !l2() && !agent().Promisc })
		assert.Zero(t, r.card.Counter(msg.CntDropLIFNotMyMAC), "no frame came to a LIF that drops it on the way")
	})
	t.Run("allmulticast", func(t *testing.T) {
		set("allmulticast", "on")
		r.wait("NetAgent to be told", func() bool { return agent().AllMulti })
		set("allmulticast", "off")
		r.wait("NetAgent to be told", func() bool { return !agent().AllMulti })
		assert.False(t, l2())
	})
	t.Run("a macvlan: no news comes of it", func(t *testing.T) {
		r.mustIP("link", "add", "mv0", "link", "oxp1", "type", "macvlan")
		r.mustIP("link", "set", "mv0", "up")
		r.wait("L2 and NetAgent's filter off", func() bool { return l2() && agent().Promisc })
		r.mustIP("link", "delete", "mv0")
		r.wait("L3 again", func() bool { return !l2() && !agent().Promisc })
	})
	t.Run("an MTU below what IPv6 needs", func(t *testing.T) {
		set("mtu", "1279")
		r.wait("the LIF follows", func() bool { return r.effective("oxp1") == 1279 })
		assert.Contains(t, strings.Join(r.view("oxp1").Warnings, "\n"), "mtu 1279 is below 1280: the kernel takes IPv6 away from oxp1")
		set("mtu", "1280")
		r.wait("the LIF follows", func() bool { return r.effective("oxp1") == 1280 })
		assert.Empty(t, r.view("oxp1").Warnings)
		m, err := r.client.SetMTU(context.Background(), "oxp1", 1000)
		require.NoError(t, err)
		assert.Contains(t, strings.Join(m.Warnings, "\n"), "takes IPv6 away")
		require.NoError(t, r.setMTU("oxp1", 1500))
	})
	t.Run("oxpd port down and up", func(t *testing.T) {
		v, err := r.client.SetState(context.Background(), "oxp1", client.LinkDown)
		require.NoError(t, err)
		assert.Equal(t, client.OperDown, v.Want.Admin)
		assert.Equal(t, client.OperDown, v.Interface.Admin)
		assert.Equal(t, client.OperDown, v.NetAgent.Admin)
		assert.False(t, agent().Up)
		assert.NotContains(t, r.link("oxp1").Flags, "UP")
		_, err = r.client.SetState(context.Background(), "oxp1", client.LinkUp)
		require.NoError(t, err)
		assert.True(t, agent().Up)
		assert.Contains(t, r.link("oxp1").Flags, "UP")
		r.wait("the link to come back", func() bool { return r.port("oxp1").OperState == client.OperUp })
	})
	t.Run("what NetAgent refuses is refused", func(t *testing.T) {
		sub := msg.AttrState
		r.card.Faults(func(f *hwsim.Faults) { f.AgentRefuse = []hwsim.AgentRefusal{{Op: msg.OpSet, Sub: &sub}} })
		_, err := r.client.SetState(context.Background(), "oxp1", client.LinkDown)
		assert.Equal(t, client.CodeRefused, code(err), "%v", err)
		assert.Contains(t, r.link("oxp1").Flags, "UP")
		set("down")
		r.wait("it to be named", func() bool {
			return strings.Contains(strings.Join(r.view("oxp1").Warnings, "\n"), "which is tried again")
		})
		assert.True(t, agent().Up)
		r.card.Faults(func(f *hwsim.Faults) { f.AgentRefuse = nil })
		r.wait("the port to be lowered", func() bool { return !agent().Up })
		r.wait("no warning to be left", func() bool { return len(r.view("oxp1").Warnings) == 0 })
	})
}

// TestMTUThatWasThere is no change, and is not logged as one.
func TestMTUThatWasThere(t *testing.T) {
	t.Parallel()
	r := start(t, rigOptions{}).running()
	require.NoError(t, r.setMTU("oxp9", 1500))
	assert.NotContains(t, r.log.String(), "mtu changed")
	require.NoError(t, r.setMTU("oxp9", 1600))
	assert.Equal(t, 1, strings.Count(r.log.String(), "mtu changed"))
}

// TestInterfaceMovedToAnotherNamespace is gone from here: it is removed there and
// made again here.
func TestInterfaceMovedToAnotherNamespace(t *testing.T) {
	t.Parallel()
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
	r.wait("it to be removed there", func() bool {
		var out []byte
		require.NoError(t, other.Do(func() (err error) {
			out, err = exec.Command("ip", "link", "show").CombinedOutput()
			return err
		}))
		return !strings.Contains(string(out), "oxp9")
	})
}

// TestNewsOfAReplacedInterface is not about the one that the port has now.
func TestNewsOfAReplacedInterface(t *testing.T) {
	b := newBench(t, 8, 0).up(t)
	called := func() string { v := b.snapshot(); return v.foreignName(b.port) }
	old := b.iface
	b.setKernel(old, port.Link{Name: "wan0"})
	require.Equal(t, "wan0", called())
	b.ifaceGone()
	assert.Empty(t, called(), "there is none")
	b.iface = &fakeIface{log: &b.log}
	require.NoError(t, b.provision(context.Background()))
	assert.Empty(t, called(), "the new one")
	b.setKernel(old, port.Link{Name: "wan0"})
	assert.Empty(t, called(), "late news of the old one")
}
