package daemon

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/internal/daemon/config"
	"oxpd/rpc/msg"
)

// reload puts another configuration into force: the one of the start, changed.
func (r *rig) reload(change func(c *config.Config)) {
	r.t.Helper()
	c := r.d.o.Config
	change(&c)
	require.NoError(r.t, c.Check())
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	r.d.Reload(ctx, c)
	require.NoError(r.t, ctx.Err(), "every port has answered")
}

// logged tells whether a line of the log has all the parts.
func (r *rig) logged(parts ...string) bool {
	for _, line := range strings.Split(r.log.String(), "\n") {
		all := true
		for _, p := range parts {
			all = all && strings.Contains(line, p)
		}
		if all {
			return true
		}
	}
	return false
}

func TestReload(t *testing.T) {
	t.Parallel()
	yes, no := true, false
	mac := config.MAC{2, 0, 0x5e, 0, 0x53, 9}
	r := start(t, rigOptions{config: func(c *config.Config) {
		c.Workers = 2
		c.Ports = map[string]config.Port{"F1": {MTU: 9000}, "Port1": {MTU: 1600, Up: &yes}}
	}}).running()
	r.mtus("oxp9", 9000)
	r.wait("oxp1 is up", func() bool { return r.port("oxp1").Admin == client.OperUp })

	t.Run("what can change does", func(t *testing.T) {
		r.reload(func(c *config.Config) {
			c.Switch.Size = 2048
			c.LinkPoll = config.Duration(25 * time.Millisecond)
			c.Ports = map[string]config.Port{"PortF1": {MTU: 8000, MAC: &mac, Promisc: &yes}, "oxp2": {MTU: 2030, Up: &yes}, "oxp1": {Up: &no}}
		})
		r.mtus("oxp9", 8000)
		assert.Equal(t, [6]byte(mac), r.lif("oxp9").MAC)
		assert.Equal(t, mac.String(), r.link("oxp9").Address)
		assert.Contains(t, r.link("oxp9").Flags, "PROMISC")
		assert.Equal(t, uint8(msg.FwdL2), r.lif("oxp9").Fwd)
		r.mtus("oxp2", 2030)
		assert.Contains(t, r.link("oxp2").Flags, "UP")
		assert.NotContains(t, r.link("oxp1").Flags, "UP")
		m, err := r.client.MTU(context.Background(), "oxp2")
		require.NoError(t, err)
		assert.Equal(t, 2030, m.SwitchMTU)
		assert.True(t, r.logged("configuration changed", "key=switch.size old=0 new=2048"))
		assert.True(t, r.logged("configuration changed", "key=link-poll old=20ms new=25ms"))
		assert.True(t, r.logged("port is as configured", "port=oxp9 mtu=8000 mac=02:00:5e:00:53:09 promisc=true"))
		assert.True(t, r.logged("port is as configured", "port=oxp2 mtu=2030 up=true"))
	})
	t.Run("a key that is gone leaves what is", func(t *testing.T) {
		assert.True(t, r.logged("no longer in the configuration: stays as it is", "port=oxp1 keys=mtu"))
		r.mtus("oxp1", 1600)
		r.reload(func(c *config.Config) { c.Ports, c.Switch.Size = nil, 2048 })
		assert.True(t, r.logged("no longer in the configuration: stays as it is", `port=oxp9 keys="mtu mac promisc"`))
		r.mtus("oxp9", 8000)
		assert.Equal(t, mac.String(), r.link("oxp9").Address)
		assert.Contains(t, r.link("oxp9").Flags, "PROMISC")
	})
	t.Run("what cannot change is named", func(t *testing.T) {
		r.reload(func(c *config.Config) {
			c.Switch.Size = 2048
			c.Workers, c.Watermark, c.DMABits, c.Socket, c.Sim.Seed = 3, 512, 48, "/run/other.sock", 9
			c.Sim.Wires = map[string]string{"F1": "loop:F2"}
		})
		for key, values := range map[string]string{
			"workers": "running=2 file=3", "watermark": "running=1024 file=512", "dma-bits": "running=36 file=48", "sim.seed": "running=1 file=9",
			"socket": "file=/run/other.sock", "sim.wires.oxp9": "running=none file=loop:F2",
		} {
			assert.True(t, r.logged(`msg="needs a restart" key=`+key, values), key)
		}
		assert.Equal(t, 2, r.d.config().Workers, "the running value")
		assert.Equal(t, client.StateRunning, r.status().State)
	})
	t.Run("counters go on", func(t *testing.T) {
		packets := func() uint64 {
			s, err := r.client.Stats(context.Background(), "oxp9")
			require.NoError(t, err)
			return s.Ports[0].Counters["rx_packets"]
		}
		r.mustIP("link", "set", "oxp9", "up")
		for range 5 {
			r.card.Wire(1).Send(frameOf(60))
		}
		r.wait("five frames", func() bool { return packets() == 5 })
		for _, up := range []*bool{&no, &yes} {
			r.reload(func(c *config.Config) { c.Ports = map[string]config.Port{"oxp9": {MTU: 7000, Up: up}} })
			assert.Equal(t, uint64(5), packets())
		}
	})
	t.Run("what somebody set otherwise is as in the file again", func(t *testing.T) {
		require.NoError(t, r.setMTU("oxp9", 1500))
		_, err := r.client.ForceMTU(context.Background(), "oxp2", 9000)
		require.NoError(t, err)
		r.reload(func(c *config.Config) {
			c.Switch.Size = 2048
			c.Ports = map[string]config.Port{"oxp9": {MTU: 8000}, "oxp2": {MTU: 2000}}
		})
		r.mtus("oxp9", 8000)
		r.mtus("oxp2", 2000)
	})
}

// TestPortsOfTheConfiguration: what a file says of ports at the start, and what
// holds where it says nothing.
func TestPortsOfTheConfiguration(t *testing.T) {
	t.Parallel()
	yes, no := true, false
	mac := config.MAC{2, 0, 0x5e, 0, 0x53, 1}
	r := start(t, rigOptions{config: func(c *config.Config) {
		c.Ports = map[string]config.Port{"Port1": {MTU: 1400, Up: &yes, MAC: &mac, Promisc: &yes}, "oxp2": {Up: &no}}
	}}).running()
	r.wait("oxp1 is as configured", func() bool { return r.port("oxp1").Admin == client.OperUp })
	l := r.link("oxp1")
	assert.Equal(t, mac.String(), l.Address)
	assert.Subset(t, l.Flags, []string{"UP", "PROMISC"})
	r.mtus("oxp1", 1400)
	v := r.view("oxp1")
	assert.Equal(t, mac.String(), v.NetAgent.Address, "the switch's filter")
	assert.Equal(t, mac.String(), v.LIF.Address)
	assert.NotEqual(t, mac.String(), v.CardAddress)
	assert.Equal(t, "L2", v.LIF.Mode)
	r.wait("oxp2 is lowered", func() bool { return r.view("oxp2").NetAgent.Admin == client.OperDown })
	assert.NotContains(t, r.link("oxp2").Flags, "UP")

	v = r.view("oxp3")
	assert.Equal(t, client.OperUp, v.NetAgent.Admin, "raised")
	assert.Equal(t, client.OperDown, v.Interface.Admin, "and its interface left down")
	assert.Equal(t, v.CardAddress, v.Interface.Address)
}

func TestReloadLowersTheLimitOfTheSwitch(t *testing.T) {
	t.Parallel()
	r := start(t, rigOptions{config: func(c *config.Config) {
		c.Switch.Size = 10240
		c.Ports = map[string]config.Port{"oxp1": {MTU: 9000}}
	}}).running()
	r.mtus("oxp1", 9000)
	r.reload(func(c *config.Config) { c.Ports, c.Switch.Size = nil, 2048 })
	assert.True(t, r.logged("level=WARN", "mtu stays above the limit of the switch", "port=oxp1 mtu=9000"))
	assert.Contains(t, strings.Join(r.status().Warnings, "\n"), "mtu 9000 of oxp1 (Port1) is more than the switch before it passes: 2030")
	r.card.ResetCommands()
	r.wait("two rounds of reading back", func() bool { return len(r.card.Commands()) > 2*board.Ports })
	assert.Equal(t, []int{9000, 9000, 2030}, []int{int(r.lif("oxp1").MTU), r.link("oxp1").MTU, r.effective("oxp1")}, "kept")
	require.Equal(t, client.CodeRefused, code(r.setMTU("oxp1", 8999)))
	require.NoError(t, r.setMTU("oxp1", 2030))
}

func TestReloadWhenAPortRefuses(t *testing.T) {
	t.Parallel()
	r := start(t, rigOptions{}).running()
	refuse := func(on bool) {
		r.card.Faults(func(f *hwsim.Faults) {
			if f.LIFRefuse = nil; on {
				f.LIFRefuse = map[board.Tag]msg.RC{1: 1}
			}
		})
	}
	both := func(c *config.Config) { c.Ports = map[string]config.Port{"oxp9": {MTU: 9000}, "oxp10": {MTU: 9000}} }
	refuse(true)
	r.reload(both)
	r.mtus("oxp10", 9000)
	r.mtus("oxp9", 1500)
	assert.True(t, r.logged("level=WARN", "port is not as configured", "port=oxp9 mtu=9000", "err="))
	assert.True(t, r.logged("port is as configured", "port=oxp10"))

	t.Run("it is tried again", func(t *testing.T) {
		refuse(false)
		r.wait("as configured", func() bool { return r.link("oxp9").MTU == 9000 })
		r.mtus("oxp9", 9000)
	})
	t.Run("until the file does not say it any more", func(t *testing.T) {
		require.NoError(t, r.setMTU("oxp9", 1500))
		refuse(true)
		r.reload(both)
		r.reload(func(c *config.Config) { c.Ports = nil })
		refuse(false)
		r.card.ResetCommands()
		r.wait("two rounds of reading back", func() bool { return len(r.card.Commands()) > 2*board.Ports })
		r.mtus("oxp9", 1500)
	})
}

// TestReloadWhenAPortIsBusy: the others do not wait for it.
func TestReloadWhenAPortIsBusy(t *testing.T) {
	t.Parallel()
	r := start(t, rigOptions{}).running()
	begun, release, read := make(chan struct{}), make(chan struct{}), make(chan struct{})
	asked := make(chan error, 1)
	go func() {
		asked <- r.d.owners[8].ask(context.Background(), func(context.Context) error { close(begun); <-release; return nil })
	}()
	<-begun
	go func() {
		defer close(read)
		r.reload(func(c *config.Config) { c.Ports = map[string]config.Port{"oxp9": {MTU: 9000}, "oxp10": {MTU: 9000}} })
	}()
	r.wait("the other port", func() bool { return r.logged("port is as configured", "port=oxp10") })
	assert.False(t, r.logged("port is as configured", "port=oxp9"))
	close(release)
	<-read
	require.NoError(t, <-asked)
	r.mtus("oxp9", 9000)
	r.mtus("oxp10", 9000)
}

// TestReloadWhenAPortTakesNothing: settings that found a full queue are not lost.
func TestReloadWhenAPortTakesNothing(t *testing.T) {
	t.Parallel()
	r := start(t, rigOptions{}).running()
	o := r.d.owners[8]
	begun, release := make(chan struct{}), make(chan struct{})
	var asked sync.WaitGroup
	ask := func(do func(context.Context) error) {
		asked.Add(1)
		go func() {
			defer asked.Done()
			assert.NoError(t, o.ask(context.Background(), do))
		}()
	}
	ask(func(context.Context) error { close(begun); <-release; return nil })
	<-begun
	for range queueSize {
		ask(func(context.Context) error { return nil })
	}
	r.wait("a full queue", func() bool { return len(o.reqs) == queueSize })
	r.reload(func(c *config.Config) { c.Ports = map[string]config.Port{"oxp9": {MTU: 9000}} })
	assert.True(t, r.logged("port is not as configured", "port=oxp9", errBusy.Error()))
	close(release)
	asked.Wait()
	r.wait("as configured", func() bool { return r.link("oxp9").MTU == 9000 })
}

// TestReloadBeforeThePortIsUp: the settings wait with the port, or with the
// bring-up.
func TestReloadBeforeThePortIsUp(t *testing.T) {
	t.Parallel()
	set := func(c *config.Config) { c.Ports = map[string]config.Port{"oxp3": {MTU: 1900}, "oxp9": {MTU: 9000}} }
	t.Run("a port that waits", func(t *testing.T) {
		t.Parallel()
		sub, tag := msg.AttrMAC, board.Tag(0x8300)
		r := start(t, rigOptions{card: func(c *hwsim.Card) {
			c.Faults(func(f *hwsim.Faults) { f.AgentRefuse = []hwsim.AgentRefusal{{Op: msg.OpGet, Sub: &sub, Port: &tag}} })
		}}).running()
		r.reload(set)
		r.mtus("oxp9", 9000)
		assert.True(t, r.logged("port is not as configured", "port=oxp3", "the settings are applied when it is up"))
		r.card.Faults(func(f *hwsim.Faults) { f.AgentRefuse = nil })
		r.wait("Port3 comes up", func() bool { return r.port("Port3").State == client.PortUp })
		r.wait("as configured", func() bool { return r.link("oxp3").MTU == 1900 })
	})
	t.Run("in the bring-up", func(t *testing.T) {
		t.Parallel()
		r := start(t, rigOptions{stage: func(now stage, r *rig) {
			if now == stageHandshake {
				r.reload(set)
			}
		}}).running()
		r.mtus("oxp9", 9000)
		r.mtus("oxp3", 1900)
	})
}

func TestReloadAtTheEnd(t *testing.T) {
	t.Parallel()
	r := start(t, rigOptions{}).running()
	r.cancel()
	require.NoError(t, r.end())
	r.reload(func(c *config.Config) { c.Ports = map[string]config.Port{"oxp9": {MTU: 9000}} })
	assert.True(t, r.logged("port is not as configured", "port=oxp9", errStopping.Error()))
}

// stepClock is simulated time in which something happens during each sleep.
type stepClock struct {
	leapClock
	during func()
}

func (c *stepClock) Sleep(ctx context.Context, d time.Duration) error {
	err := c.leapClock.Sleep(ctx, d)
	c.during()
	return err
}

// TestPeriodOfTheConfiguration: another period is heeded within a tick, not at the
// end of the one before, which may be a minute.
func TestPeriodOfTheConfiguration(t *testing.T) {
	clk := &stepClock{during: func() {}}
	cfg := config.Default()
	cfg.LinkPoll = config.Duration(time.Minute)
	d := New(Options{Config: cfg, Clock: clk})
	poll := func(c config.Config) config.Duration { return c.LinkPoll }
	ctx := context.Background()
	require.NoError(t, d.period(ctx, poll))
	assert.Equal(t, time.Minute, clk.Now())

	clk.during = func() {
		cfg.LinkPoll = config.Duration(100 * time.Millisecond)
		d.Reload(ctx, cfg)
	}
	require.NoError(t, d.period(ctx, poll))
	assert.Equal(t, time.Minute+waitingTick, clk.Now())

	ended, cancel := context.WithCancel(ctx)
	cancel()
	assert.True(t, errors.Is(d.period(ended, poll), context.Canceled))
}
