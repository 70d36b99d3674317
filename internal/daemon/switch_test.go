package daemon

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	realclock "oxpd/internal/clock"
	"oxpd/internal/daemon/client"
	"oxpd/internal/daemon/config"
	"oxpd/octep"
	"oxpd/switchcfg"
	"oxpd/switchcfg/reg"
)

// simWay is a way to the switch of the rig's card without a console: its MDIO bus.
type simWay struct {
	card func() *hwsim.Card

	mu       sync.Mutex
	err      error               // of open
	prepare  func(r *simSession) // in Prepare
	before   func(n int)         // access number n of all sessions
	accesses int
	writes   []string
	opened   int
	closed   int
}

func (w *simWay) open(_ context.Context, _ string, booted func() error) (SwitchWay, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return nil, w.err
	}
	w.opened++
	s := &simSession{way: w, booted: booted}
	s.SMI = switchcfg.NewSMI(s, realclock.NewReal())
	return s, nil
}

func (w *simWay) set(change func(w *simWay)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(w)
}

func (w *simWay) count() (accesses, opened int, writes []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.accesses, w.opened, append([]string(nil), w.writes...)
}

type simSession struct {
	*switchcfg.SMI
	way    *simWay
	booted func() error
}

func (s *simSession) Prepare(context.Context) error {
	s.way.mu.Lock()
	prepare := s.way.prepare
	s.way.mu.Unlock()
	if prepare != nil {
		prepare(s)
	}
	return s.booted()
}

func (s *simSession) Close() error {
	s.way.set(func(w *simWay) { w.closed++ })
	return nil
}

func (s *simSession) Read(ctx context.Context, dev, r int) (uint16, error) {
	if err := s.access(); err != nil {
		return 0, err
	}
	return s.SMI.Read(ctx, dev, r)
}

func (s *simSession) Write(ctx context.Context, dev, r int, v uint16) error {
	if err := s.access(); err != nil {
		return err
	}
	s.way.set(func(w *simWay) { w.writes = append(w.writes, fmt.Sprintf("%d %d 0x%04x", dev, r, v)) })
	return s.SMI.Write(ctx, dev, r, v)
}

func (s *simSession) access() error {
	s.way.mu.Lock()
	s.way.accesses++
	n, before := s.way.accesses, s.way.before
	s.way.mu.Unlock()
	if before != nil {
		before(n)
	}
	return s.booted()
}

func (s *simSession) ReadMDIO(_ context.Context, phy, r int) (uint16, error) {
	return s.way.card().MDIORead(reg.Bus, phy, r)
}

func (s *simSession) WriteMDIO(_ context.Context, phy, r int, v uint16) error {
	return s.way.card().MDIOWrite(reg.Bus, phy, r, v)
}

// withConsole makes a rig's configuration name a console, which the way does not use.
func withConsole(change ...func(c *config.Config)) func(c *config.Config) {
	return func(c *config.Config) {
		c.Switch.Console, c.Switch.Watch = "/dev/null", config.Duration(time.Hour)
		for _, f := range change {
			f(c)
		}
	}
}

// frames are what the card's switch passes, the uplink first.
func (r *rig) frames() (out [reg.Ports]int) {
	for p := range out {
		out[p] = reg.JumboOf(r.card.SwitchRegister(p, reg.PortControl2)).FrameBytes()
	}
	return out
}

// setFrame sets what the card's switch passes at a port, as somebody else does.
func (r *rig) setFrame(port int, mode reg.Jumbo) {
	r.card.SetSwitchRegister(port, reg.PortControl2, mode.Put(r.card.SwitchRegister(port, reg.PortControl2)))
}

func allFrames(uplink, panel int) (out [reg.Ports]int) {
	for p := range out {
		out[p] = panel
	}
	out[reg.Uplink] = uplink
	return out
}

func TestSwitchJumbo(t *testing.T) {
	t.Parallel()
	way := &simWay{}
	r := start(t, rigOptions{way: way, config: withConsole()}).running()
	ctx := context.Background()

	m, err := r.client.MTU(ctx, "oxp1")
	require.NoError(t, err)
	assert.Equal(t, []any{client.SwitchRead, 2030, 2048, 10240}, []any{m.Switch, m.SwitchMTU, m.SwitchFrame, m.UplinkFrame}, "read before the ports came up")
	err = r.setMTU("oxp1", 9000)
	assert.Equal(t, client.CodeRefused, code(err))
	var refused *client.Error
	require.ErrorAs(t, err, &refused)
	assert.Contains(t, refused.Hint, "oxpd mtu oxp1 9000 --switch")
	assert.Contains(t, refused.Hint, "oxpd switch jumbo --all")
	r.mtus("oxp1", 1500)

	others := r.card.SwitchRegister(3, reg.PortControl2) &^ reg.JumboMask
	dry, err := r.client.SetSwitch(ctx, client.SetSwitch{All: true, Frame: 10240, DryRun: true}, nil)
	require.NoError(t, err)
	assert.True(t, dry.OK)
	assert.Equal(t, client.SwitchWouldChange, dry.Ports[1].Outcome)
	assert.Equal(t, allFrames(10240, 2048), r.frames())

	var told []string
	run, err := r.client.SetSwitch(ctx, client.SetSwitch{All: true, Frame: 10240}, func(p client.SwitchPort) { told = append(told, p.Port) })
	require.NoError(t, err)
	require.NoError(t, run.Check())
	assert.Equal(t, []string{"sw1", "sw2", "sw3", "sw4", "sw5", "sw6", "sw7", "sw8", "sw9", "sw10", "sw0"}, told)
	assert.Equal(t, allFrames(10240, 10240), r.frames())
	assert.Equal(t, others, r.card.SwitchRegister(3, reg.PortControl2)&^reg.JumboMask)
	require.NoError(t, r.setMTU("oxp1", 9000), "without force")
	r.mtus("oxp1", 9000)
	assert.Equal(t, 9000, r.effective("oxp1"))

	sw, err := r.client.Switch(ctx)
	require.NoError(t, err)
	assert.Equal(t, "0x193", sw.Product)
	require.Len(t, sw.Ports, reg.Ports)
	assert.Equal(t, client.SwitchPort{Port: "sw9", IfName: "oxp11", Label: "PortF3", Frame: 10240, MTU: 10218, Register: sw.Ports[9].Register,
		Link: client.LinkUp, Speed: 1000, State: "forwarding"}, sw.Ports[9])
	assert.Equal(t, "sw0", sw.Ports[0].Port)

	t.Run("again nothing is written", func(t *testing.T) {
		_, _, before := way.count()
		run, err := r.client.SetSwitch(ctx, client.SetSwitch{All: true, Frame: 10240}, nil)
		require.NoError(t, err)
		assert.True(t, run.OK)
		_, _, after := way.count()
		assert.Equal(t, before, after)
	})
	t.Run("lowered under a larger mtu: refused", func(t *testing.T) {
		for _, dry := range []bool{true, false} {
			_, err := r.client.SetSwitch(ctx, client.SetSwitch{All: true, Frame: 2048, DryRun: dry}, nil)
			assert.Equal(t, client.CodeRefused, code(err))
			assert.ErrorContains(t, err, "oxp1 (Port1) has mtu 9000")
		}
		assert.Equal(t, allFrames(10240, 10240), r.frames())
		r.mtus("oxp1", 9000)
	})
	t.Run("the LIF is lowered first", func(t *testing.T) {
		atWrite := make(chan int, 100)
		_, _, written := way.count()
		way.set(func(w *simWay) {
			w.before = func(int) {
				if _, _, now := way.count(); len(now) > len(written) {
					select {
					case atWrite <- int(r.lif("oxp1").MTU):
					default:
					}
				}
			}
		})
		defer way.set(func(w *simWay) { w.before = nil })
		run, err := r.client.SetSwitch(ctx, client.SetSwitch{All: true, Frame: 2048, LeaveUplink: true, LowerMTU: true}, nil)
		require.NoError(t, err)
		require.NoError(t, run.Check())
		assert.Equal(t, []client.SwitchMTU{{IfName: "oxp1", Label: "Port1", Before: 9000, MTU: 2030}}, run.Lowered)
		select {
		case mtu := <-atWrite:
			assert.Equal(t, 2030, mtu)
		default:
			t.Error("nothing was written")
		}
		assert.Equal(t, allFrames(10240, 2048), r.frames())
		r.mtus("oxp1", 2030)
	})
	t.Run("registers", func(t *testing.T) {
		v, err := r.client.SwitchRegister(ctx, "sw4", reg.Identifier)
		require.NoError(t, err)
		assert.Equal(t, "0x1930", v.Value)
		v, err = r.client.WriteSwitchRegister(ctx, "Port4", reg.PortControl2, int(reg.Jumbo10240.Put(r.card.SwitchRegister(4, reg.PortControl2))))
		require.NoError(t, err)
		assert.Equal(t, 10240, r.frames()[4])
		m, err := r.client.MTU(ctx, "oxp4")
		require.NoError(t, err)
		assert.Equal(t, 10240, m.SwitchFrame, "and is known")
		assert.NotEqual(t, v.Before, v.Value)
		_, err = r.client.WriteSwitchRegister(ctx, "Port4", reg.PortVLANMap, 0x7ff)
		assert.Equal(t, client.CodeUsage, code(err))
	})
	way.set(func(w *simWay) { assert.Equal(t, w.opened, w.closed) })
}

func TestMTUWithTheSwitch(t *testing.T) {
	t.Parallel()
	way := &simWay{}
	r := start(t, rigOptions{way: way, config: withConsole(), card: func(c *hwsim.Card) {
		c.Faults(func(f *hwsim.Faults) { f.SwitchUplink = 2048 })
	}}).running()
	ctx := context.Background()
	assert.Equal(t, allFrames(2048, 2048), r.frames())

	_, opened, _ := way.count()
	_, err := r.client.ChangeMTU(ctx, "oxp1", client.SetMTU{MTU: 1500, Switch: true})
	require.NoError(t, err)
	_, err = r.client.ChangeMTU(ctx, "oxp1", client.SetMTU{MTU: 2026, Switch: true})
	require.NoError(t, err)
	_, err = r.client.ChangeMTU(ctx, "oxp9", client.SetMTU{MTU: 9000, Switch: true})
	require.NoError(t, err)
	_, now, _ := way.count()
	assert.Equal(t, opened, now, "what passes needs no look, nor a port that is not behind it")

	m, err := r.client.ChangeMTU(ctx, "oxp3", client.SetMTU{MTU: 9000, Switch: true})
	require.NoError(t, err)
	assert.Equal(t, 9000, m.Effective)
	want := allFrames(10240, 2048)
	want[3] = 10240
	assert.Equal(t, want, r.frames())
	r.mtus("oxp3", 9000)

	m, err = r.client.ChangeMTU(ctx, "oxp3", client.SetMTU{MTU: 1600, Switch: true})
	require.NoError(t, err)
	assert.Equal(t, want, r.frames(), "never lowered")
	assert.Equal(t, 1600, m.Effective)

	t.Run("a port that passes more than it needs stays so", func(t *testing.T) {
		r.setFrame(4, reg.Jumbo10240)
		r.setFrame(reg.Uplink, reg.Jumbo1522)
		_, err := r.client.Switch(ctx)
		require.NoError(t, err)
		_, err = r.client.ChangeMTU(ctx, "oxp4", client.SetMTU{MTU: 1600, Switch: true})
		require.NoError(t, err)
		assert.Equal(t, []int{10240, 10240}, []int{r.frames()[reg.Uplink], r.frames()[4]})
	})
	t.Run("the switch cannot be raised: the mtu stays", func(t *testing.T) {
		r.card.Faults(func(f *hwsim.Faults) { f.SwitchNoStick[5] = -1 })
		_, err := r.client.ChangeMTU(ctx, "oxp5", client.SetMTU{MTU: 9000, Switch: true})
		assert.Equal(t, client.CodeRefused, code(err))
		assert.ErrorContains(t, err, "mtu of oxp5 (Port5) stays as it is")
		r.mtus("oxp5", 1500)
	})
}

// TestEffectiveMTUByMode are the rows of SW-1.
//
//oxpd:fault S11 behaviour
func TestEffectiveMTUByMode(t *testing.T) {
	t.Parallel()
	r := start(t, rigOptions{way: &simWay{}, config: withConsole()}).running()
	ctx := context.Background()
	_, err := r.client.ForceMTU(ctx, "oxp2", 9000)
	require.NoError(t, err)
	for _, tc := range []struct {
		panel, uplink reg.Jumbo
		want          int
	}{
		{reg.Jumbo1522, reg.Jumbo1522, 1500}, {reg.Jumbo2048, reg.Jumbo2048, 2026}, {reg.Jumbo2048, reg.Jumbo10240, 2030},
		{reg.Jumbo10240, reg.Jumbo2048, 2026}, {reg.Jumbo10240, reg.Jumbo10240, 9000},
	} {
		r.setFrame(2, tc.panel)
		r.setFrame(reg.Uplink, tc.uplink)
		_, err := r.client.Switch(ctx)
		require.NoError(t, err)
		assert.Equal(t, tc.want, r.effective("oxp2"), "%d %d", tc.panel, tc.uplink)
		assert.Equal(t, 1500, r.effective("oxp1"))
	}
}

// TestUnreachableSwitch is SW-2: nobody needs the switch for what passes every mode.
func TestUnreachableSwitch(t *testing.T) {
	t.Parallel()
	way := &simWay{err: errors.New("console /dev/null: nothing comes back")}
	r := start(t, rigOptions{way: way, config: withConsole(func(c *config.Config) { c.Switch.Jumbo = config.JumboAll })}).running()
	require.NoError(t, r.setMTU("oxp1", 1500))
	accesses, _, _ := way.count()
	assert.Zero(t, accesses)
	assert.Contains(t, r.stage(stageSwitch).Detail, "cannot be reached, tried again")
	assert.Contains(t, strings.Join(r.status().Warnings, "\n"), "nothing comes back")
	m, err := r.client.MTU(context.Background(), "oxp1")
	require.NoError(t, err)
	assert.Equal(t, client.SwitchUnknown, m.Switch, "what it shall be is not what it is")
	_, err = r.client.Switch(context.Background())
	assert.ErrorContains(t, err, "read the switch: console /dev/null: nothing comes back")
	_, err = r.client.ChangeMTU(context.Background(), "oxp1", client.SetMTU{MTU: 9000, Switch: true})
	assert.ErrorContains(t, err, "stays as it is")
	r.mtus("oxp1", 1500)
}

func TestSwitchInTheSmallestModeIsNoError(t *testing.T) {
	t.Parallel()
	r := start(t, rigOptions{way: &simWay{}, config: withConsole(), card: func(c *hwsim.Card) { c.SetSwitchFrame(1522) }})
	r.running()
	assert.Empty(t, r.status().Warnings)
	assert.NotContains(t, r.log.String(), "level=WARN")
}

func TestSwitchWithoutAConsole(t *testing.T) {
	t.Parallel()
	r := start(t, rigOptions{way: &simWay{}}).running()
	_, err := r.client.Switch(context.Background())
	assert.Equal(t, client.CodeNotReady, code(err))
	var e *client.Error
	require.ErrorAs(t, err, &e)
	assert.Contains(t, e.Hint, "switch: {console: /dev/ttyS2}")
	assert.Equal(t, "not read: no console, and no size, is configured", r.stage(stageSwitch).Detail)
}

// TestSwitchInStatus: the line of the stage is that of now, and what is not as configured
// is warned of.
func TestSwitchInStatus(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	line := func(r *rig) string { return r.stage(stageSwitch).Detail }
	warnings := func(r *rig) string { return strings.Join(r.status().Warnings, "\n") }
	jumbo := withConsole(func(c *config.Config) { c.Switch.Jumbo = config.JumboAll })
	t.Run("set by command", func(t *testing.T) {
		t.Parallel()
		r := start(t, rigOptions{way: &simWay{}, config: jumbo}).running()
		assert.Equal(t, "10240 bytes at all ten ports, 10240 at the uplink", line(r))
		assert.Empty(t, warnings(r))
		set := func(frame int) {
			run, err := r.client.SetSwitch(ctx, client.SetSwitch{Ports: []string{"oxp1", "oxp12"}, Frame: frame, LeaveUplink: true}, nil)
			require.NoError(t, err)
			require.NoError(t, run.Check())
		}
		set(2048)
		assert.Equal(t, "2048 bytes at oxp1 oxp12, 10240 bytes at oxp2 oxp3 oxp4 oxp5 oxp6 oxp7 oxp8 oxp11, 10240 at the uplink", line(r))
		assert.Contains(t, warnings(r), "switch.jumbo is not in force at oxp1 oxp12: a command has set the switch otherwise there")
		set(10240)
		assert.Equal(t, "10240 bytes at all ten ports, 10240 at the uplink", line(r))
		assert.Empty(t, warnings(r))
	})
	t.Run("a port that does not stick", func(t *testing.T) {
		t.Parallel()
		r := start(t, rigOptions{way: &simWay{}, config: jumbo, card: func(c *hwsim.Card) {
			c.Faults(func(f *hwsim.Faults) { f.SwitchNoStick[5] = -1 })
		}}).running()
		assert.Equal(t, "10240 bytes at oxp1 oxp2 oxp3 oxp4 oxp6 oxp7 oxp8 oxp11 oxp12, 2048 bytes at oxp5, 10240 at the uplink", line(r))
		assert.Contains(t, warnings(r), "the switch is not as configured, which is tried again: ")
		assert.NotContains(t, warnings(r), "cannot be looked at")
		assert.False(t, r.logged("cannot be looked at"))
	})
	t.Run("read again after it could not be", func(t *testing.T) {
		t.Parallel()
		way := &simWay{err: errors.New("nothing comes back")}
		r := start(t, rigOptions{way: way, config: withConsole()}).running()
		assert.Equal(t, "cannot be reached, tried again: nothing comes back", line(r))
		way.set(func(w *simWay) { w.err = nil })
		_, err := r.client.Switch(ctx)
		require.NoError(t, err)
		assert.Equal(t, "2048 bytes at all ten ports, 10240 at the uplink", line(r))
	})
	t.Run("another configuration", func(t *testing.T) {
		t.Parallel()
		way := &simWay{err: errors.New("nothing comes back")}
		r := start(t, rigOptions{way: way}).running()
		assert.Equal(t, "not read: no console, and no size, is configured", line(r))
		r.reload(func(c *config.Config) { c.Switch.Size = 2048 })
		assert.Equal(t, "not read, as no console is configured; switch.size says 2048 bytes", line(r))
		r.reload(withConsole())
		r.wait("looked at", func() bool { return line(r) == "cannot be reached, tried again: nothing comes back" })
		assert.Contains(t, warnings(r), "cannot be looked at")
		r.reload(func(*config.Config) {})
		assert.Equal(t, "not read: no console, and no size, is configured", line(r))
		assert.Empty(t, warnings(r), "nothing is tried again")
	})
}

// ownConsole is a simulated card with a console of its own, or that could make none.
func ownConsole(path string) func(octep.Device) octep.Device {
	return func(dev octep.Device) octep.Device { return withTerminal{dev, path} }
}

// TestSwitchOfASimulatedCard is read with nothing configured, and no port waits for it.
func TestSwitchOfASimulatedCard(t *testing.T) {
	t.Parallel()
	limit := func(r *rig) []any {
		m, err := r.client.MTU(context.Background(), "oxp1")
		require.NoError(t, err)
		return []any{m.Switch, m.SwitchFrame}
	}
	t.Run("after the ports are up", func(t *testing.T) {
		t.Parallel()
		goOn := make(chan struct{})
		way := &simWay{prepare: func(*simSession) { <-goOn }}
		r := start(t, rigOptions{way: way, wrap: ownConsole("/dev/null")}).running()
		assert.True(t, r.logged("stage done", "stage=switch", "not read yet, which is done in the background"))
		assert.Equal(t, []any{client.SwitchUnknown, 0}, limit(r))
		close(goOn)
		r.wait("read", func() bool { return limit(r)[0] == client.SwitchRead })
		assert.Equal(t, []any{client.SwitchRead, 2048}, limit(r))
		assert.Equal(t, "2048 bytes at all ten ports, 10240 at the uplink", r.stage(stageSwitch).Detail)
		_, _, writes := way.count()
		assert.NotContains(t, strings.Join(writes, "\n"), fmt.Sprintf(" %d 0x", reg.PortControl2))
		assert.Empty(t, r.status().Warnings)
	})
	t.Run("also after the coprocessor has started anew", func(t *testing.T) {
		t.Parallel()
		r := start(t, rigOptions{way: &simWay{}, wrap: ownConsole("/dev/null")}).running()
		r.wait("read", func() bool { return limit(r)[0] == client.SwitchRead })
		r.away()
		r.card.Reboot()
		r.running()
		r.wait("read", func() bool { return limit(r)[0] == client.SwitchRead })
	})
	t.Run("not without a shell", func(t *testing.T) {
		t.Parallel()
		way := &simWay{}
		r := start(t, rigOptions{way: way, wrap: ownConsole("")}).running()
		assert.Contains(t, r.stage(stageSwitch).Detail, "not read: reach the switch: there is no console of the coprocessor: the simulated card could not make its own")
		assert.Equal(t, []any{client.SwitchUnknown, 0}, limit(r))
		assert.Empty(t, r.status().Warnings)
		_, opened, _ := way.count()
		assert.Zero(t, opened)
	})
}

// TestConfiguredJumbo: before MTUs are, after every start of the coprocessor, and watched.
//
//oxpd:fault S12 behaviour
//oxpd:fault S17 behaviour
func TestConfiguredJumbo(t *testing.T) {
	t.Parallel()
	way := &simWay{}
	r := start(t, rigOptions{way: way, config: withConsole(func(c *config.Config) {
		c.Switch.Jumbo, c.Switch.Watch = config.JumboAll, config.Duration(20*time.Millisecond)
		c.Ports = map[string]config.Port{"oxp1": {MTU: 9000}}
	})}).running()
	ctx := context.Background()
	assert.Equal(t, allFrames(10240, 10240), r.frames())
	assert.Equal(t, "10240 bytes at all ten ports, 10240 at the uplink", r.stage(stageSwitch).Detail)
	r.mtus("oxp1", 9000)
	assert.NotContains(t, r.log.String(), "may not pass the switch")

	r.setFrame(2, reg.Jumbo2048) // somebody on the coprocessor
	r.wait("set again", func() bool { return r.frames() == allFrames(10240, 10240) })
	r.wait("said so", func() bool {
		return r.logged("level=WARN", "switch was not as configured any more, and is again", "ports=1")
	})

	run, err := r.client.SetSwitch(ctx, client.SetSwitch{Ports: []string{"oxp4"}, Frame: 2048}, nil)
	require.NoError(t, err)
	require.NoError(t, run.Check())
	r.setFrame(9, reg.Jumbo2048) // which comes after the fourth
	r.wait("set again", func() bool { return r.frames()[9] == 10240 })
	assert.Equal(t, 2048, r.frames()[4], "what was set by hand stands")

	r.away()
	r.card.Reboot()
	r.running()
	assert.Equal(t, allFrames(10240, 10240), r.frames(), "also what was set by hand")
	r.mtus("oxp1", 9000)
}

// TestConfiguredSizeUnderALargerMTU: the switch is lowered after the LIF, and by nobody
// else before.
func TestConfiguredSizeUnderALargerMTU(t *testing.T) {
	t.Parallel()
	r := start(t, rigOptions{way: &simWay{}, config: withConsole(func(c *config.Config) {
		c.Switch.Jumbo, c.Switch.Size, c.Switch.Watch = config.JumboAll, 2048, config.Duration(50*time.Millisecond)
	})}).running()
	_, err := r.client.ForceMTU(context.Background(), "oxp1", 9000)
	require.NoError(t, err)
	// A look that had begun before does not know of it.
	r.wait("known", func() bool { return r.logged("port of the switch is left as it is", "port=oxp1") })
	r.setFrame(1, reg.Jumbo10240)
	r.setFrame(2, reg.Jumbo10240) // which comes after the first
	r.wait("lowered", func() bool { return r.frames()[2] == 2048 })
	assert.Equal(t, 10240, r.frames()[1])
}

// TestReloadedSwitch: a configuration that wants the switch set has it set at once.
func TestReloadedSwitch(t *testing.T) {
	t.Parallel()
	r := start(t, rigOptions{way: &simWay{}}).running()
	assert.Equal(t, allFrames(10240, 2048), r.frames())
	r.reload(withConsole(func(c *config.Config) {
		c.Switch.Jumbo, c.Ports = config.JumboAll, map[string]config.Port{"oxp3": {MTU: 9000}}
	}))
	r.wait("set", func() bool { return r.frames() == allFrames(10240, 10240) })
	r.wait("and what waited for it", func() bool { return r.effective("oxp3") == 9000 })
}

// TestReloadKeepsWhatACommandHasSet unless the configuration says something else of the
// switch.
func TestReloadKeepsWhatACommandHasSet(t *testing.T) {
	t.Parallel()
	jumbo := withConsole(func(c *config.Config) {
		c.Switch.Jumbo, c.Switch.Watch = config.JumboAll, config.Duration(20*time.Millisecond)
	})
	r := start(t, rigOptions{way: &simWay{}, config: jumbo}).running()
	run, err := r.client.SetSwitch(context.Background(), client.SetSwitch{Ports: []string{"oxp1"}, Frame: 2048}, nil)
	require.NoError(t, err)
	require.NoError(t, run.Check())
	r.reload(func(*config.Config) {})
	r.setFrame(9, reg.Jumbo2048) // which comes after the first
	r.wait("looked at", func() bool { return r.frames()[9] == 10240 })
	assert.Equal(t, 2048, r.frames()[1])
	r.reload(func(c *config.Config) { c.Switch.Size = 10240 })
	r.wait("set", func() bool { return r.frames() == allFrames(10240, 10240) })
}

// TestWatchSaysThingsOnce until they change, and in the words that are true.
func TestWatchSaysThingsOnce(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	size := func(bytes int) func(c *config.Config) {
		return withConsole(func(c *config.Config) {
			c.Switch.Jumbo, c.Switch.Size, c.Switch.Watch = config.JumboAll, bytes, config.Duration(10*time.Millisecond)
		})
	}
	looks := func(r *rig, way *simWay) { // and some more
		_, before, _ := way.count()
		r.wait("looks", func() bool { _, now, _ := way.count(); return now > before+3 })
	}
	t.Run("a port that does not stick", func(t *testing.T) {
		t.Parallel()
		way := &simWay{}
		r := start(t, rigOptions{way: way, config: size(10240), card: func(c *hwsim.Card) {
			c.Faults(func(f *hwsim.Faults) { f.SwitchNoStick[5] = -1 })
		}}).running()
		r.d.sw.lookSoon() // a look that failed is repeated after seconds
		looks := func(n int) { r.wait("a look", func() bool { _, now, _ := way.count(); return now >= n }) }
		looks(2)
		r.d.sw.lookSoon()
		looks(3)
		assert.Equal(t, 1, strings.Count(r.log.String(), "port of the switch is not as asked"))
		assert.Equal(t, 1, strings.Count(r.log.String(), "switch is not as configured, which is tried again"))
		r.card.Faults(func(f *hwsim.Faults) { f.SwitchNoStick[5] = 0 })
		r.d.sw.lookSoon()
		r.wait("set", func() bool { return r.logged("switch is as configured") })
		assert.False(t, r.logged("and is again"), "it never was before")
		r.card.Faults(func(f *hwsim.Faults) { f.SwitchNoStick[5] = -1 })
		r.setFrame(5, reg.Jumbo2048)
		r.wait("said again", func() bool { return strings.Count(r.log.String(), "port of the switch is not as asked") == 2 })
	})
	t.Run("a port that is left", func(t *testing.T) {
		t.Parallel()
		const text = "port of the switch is left as it is"
		way := &simWay{}
		r := start(t, rigOptions{way: way, config: size(2048)}).running()
		_, err := r.client.ForceMTU(ctx, "oxp1", 9000)
		require.NoError(t, err)
		r.wait("said", func() bool { return r.logged(text, "mtu=9000") })
		looks(r, way)
		assert.Equal(t, 1, strings.Count(r.log.String(), text))
		_, err = r.client.ForceMTU(ctx, "oxp1", 8000)
		require.NoError(t, err)
		r.wait("said again", func() bool { return r.logged(text, "mtu=8000") })
		looks(r, way)
		assert.Equal(t, 2, strings.Count(r.log.String(), text))
	})
	t.Run("another configuration", func(t *testing.T) {
		t.Parallel()
		way := &simWay{}
		r := start(t, rigOptions{way: way, config: size(2048)}).running()
		r.reload(size(10240))
		r.wait("set", func() bool { return r.frames() == allFrames(10240, 10240) })
		looks(r, way)
		assert.False(t, r.logged("and is again"), "what has changed is the configuration")
		r.setFrame(2, reg.Jumbo2048)
		r.wait("said so", func() bool { return r.logged("switch was not as configured any more, and is again", "ports=1") })
	})
}

// TestNetAgentIsKeptAwayFromTheSwitch while it is used.
func TestNetAgentIsKeptAwayFromTheSwitch(t *testing.T) {
	t.Parallel()
	way := &simWay{}
	r := start(t, rigOptions{way: way, config: withConsole()}).running()
	inside, goOn := make(chan struct{}), make(chan struct{})
	way.set(func(w *simWay) {
		w.prepare = func(*simSession) { close(inside); <-goOn }
	})
	shown := make(chan error, 1)
	go func() { _, err := r.client.Switch(context.Background()); shown <- err }()
	<-inside
	down := make(chan error, 1)
	go func() { _, err := r.client.SetState(context.Background(), "oxp1", client.LinkDown); down <- err }()
	select {
	case <-down:
		t.Error("NetAgent was asked")
	case <-time.After(200 * time.Millisecond): // nothing depends on it but the power of the test
	}
	close(goOn)
	require.NoError(t, <-shown)
	require.NoError(t, <-down)
}

func TestSwitchInterrupted(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(t *testing.T, r *rig, cancel context.CancelFunc){
		"asked to": func(t *testing.T, r *rig, _ context.CancelFunc) {
			assert.NoError(t, r.client.InterruptSwitch(context.Background()))
		},
		"by a client that goes away": func(_ *testing.T, r *rig, cancel context.CancelFunc) { cancel() },
		"by the end of the daemon":   func(_ *testing.T, r *rig, _ context.CancelFunc) { r.cancel() },
		"by the loss of the card":    func(_ *testing.T, r *rig, _ context.CancelFunc) { r.card.Kill() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			way := &simWay{}
			r := start(t, rigOptions{way: way, config: withConsole()}).running()
			reached, goOn := make(chan struct{}), make(chan struct{})
			way.set(func(w *simWay) {
				from := len(w.writes)
				w.before = func(int) {
					if _, _, now := way.count(); len(now) == from+3 {
						way.set(func(w *simWay) { w.before = nil })
						close(reached)
						<-goOn
					}
				}
			})
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			type answer struct {
				run *client.SwitchRun
				err error
			}
			answered := make(chan answer, 1)
			go func() {
				run, err := r.client.SetSwitch(ctx, client.SetSwitch{All: true, Frame: 10240}, nil)
				answered <- answer{run, err}
			}()
			<-reached
			end(t, r, cancel)
			time.Sleep(50 * time.Millisecond) // lets it arrive; nothing depends on it
			close(goOn)
			a := <-answered
			if a.run != nil && name != "by the loss of the card" { // its switch has gone too
				require.Error(t, a.run.Check())
				for _, p := range a.run.Ports {
					n := 0
					_, err := fmt.Sscanf(p.Port, "sw%d", &n)
					require.NoError(t, err)
					if p.Register != "" {
						assert.Equal(t, fmt.Sprintf("0x%04x", r.card.SwitchRegister(n, reg.PortControl2)), p.Register, p.Port)
					}
				}
			} else if a.run == nil {
				require.Error(t, a.err)
			}
			r.wait("the run has ended", func() bool {
				way.mu.Lock()
				defer way.mu.Unlock()
				return way.opened == way.closed
			})
			if name == "by the loss of the card" {
				return
			}
			got := r.frames()
			assert.Equal(t, []int{10240, 10240, 10240, 10240}, got[:4], "the port that was begun is finished")
			for p := 4; p < reg.Ports; p++ {
				assert.Equal(t, 2048, got[p], p)
			}
		})
	}
}

func TestOneRunAtATime(t *testing.T) {
	t.Parallel()
	way := &simWay{}
	r := start(t, rigOptions{way: way, config: withConsole()}).running()
	inside, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	way.set(func(w *simWay) { w.prepare = func(*simSession) { once.Do(func() { close(inside); <-goOn }) } })
	first := make(chan error, 1)
	go func() {
		_, err := r.client.SetSwitch(context.Background(), client.SetSwitch{All: true, Frame: 10240}, nil)
		first <- err
	}()
	<-inside
	_, err := r.client.SetSwitch(context.Background(), client.SetSwitch{All: true, Frame: 10240}, nil)
	assert.Equal(t, client.CodeRefused, code(err))
	assert.ErrorContains(t, err, "being set by another command")
	close(goOn)
	require.NoError(t, <-first)
}

// TestMTUIsNotRaisedWhileTheSwitchIsLowered: the ceiling of a run that lowers.
func TestMTUIsNotRaisedWhileTheSwitchIsLowered(t *testing.T) {
	t.Parallel()
	way := &simWay{}
	r := start(t, rigOptions{way: way, config: withConsole(), card: func(c *hwsim.Card) { c.SetSwitchFrame(10240) }}).running()
	r.card.SetSwitchFrame(10240) // its start has put it back
	_, err := r.client.Switch(context.Background())
	require.NoError(t, err)
	inside, goOn := make(chan struct{}), make(chan struct{})
	way.set(func(w *simWay) { w.prepare = func(*simSession) { close(inside); <-goOn } })
	lowered := make(chan error, 1)
	go func() {
		run, err := r.client.SetSwitch(context.Background(), client.SetSwitch{All: true, Frame: 2048}, nil)
		if err == nil {
			err = run.Check()
		}
		lowered <- err
	}()
	<-inside
	assert.Equal(t, client.CodeRefused, code(r.setMTU("oxp1", 9000)))
	close(goOn)
	require.NoError(t, <-lowered)
	assert.Equal(t, allFrames(10240, 2048), r.frames())
	assert.Equal(t, client.CodeRefused, code(r.setMTU("oxp1", 9000)))
	r.mtus("oxp1", 1500)
}

// TestSwitchOfACoprocessorThatBoots: the gate is asked, and nothing is sent.
func TestSwitchOfACoprocessorThatBoots(t *testing.T) {
	t.Parallel()
	way := &simWay{}
	asked := make(chan error, 1)
	r := start(t, rigOptions{way: way, config: withConsole(), stage: func(s stage, r *rig) {
		if s == stageHandshake {
			_, err := r.client.Switch(context.Background())
			asked <- err
		}
	}})
	err := <-asked
	assert.Equal(t, client.CodeNotReady, code(err))
	r.running()
	_, err = r.client.Switch(context.Background())
	require.NoError(t, err)
}

func TestFramesOf(t *testing.T) {
	for name, tc := range map[string]struct {
		frame func(p switchcfg.Port) int
		want  string
	}{
		"all": {func(p switchcfg.Port) int { return 10240 }, "10240 bytes at all ten ports, 10240 at the uplink"},
		"one": {func(p switchcfg.Port) int {
			if p == 9 {
				return 10240
			}
			return 2048
		}, "2048 bytes at oxp1 oxp2 oxp3 oxp4 oxp5 oxp6 oxp7 oxp8 oxp12, 10240 bytes at oxp11, 2048 at the uplink"},
		"not known": {func(p switchcfg.Port) int { return 0 }, "unknown at all ten ports, unknown at the uplink"},
	} {
		assert.Equal(t, tc.want, framesOf(tc.frame), name)
	}
}

// TestForeignBitsOfThePortsRegister: they are not taken for the port's own, until somebody
// writes them or the coprocessor starts anew.
func TestForeignBitsOfThePortsRegister(t *testing.T) {
	t.Parallel()
	way := &simWay{}
	var foreign atomic.Uint32 // what port 2 has when the coprocessor starts; 0: what it is
	r := start(t, rigOptions{way: way, config: withConsole(), stage: func(s stage, r *rig) {
		if v := foreign.Load(); s == stageHandshake && v != 0 {
			r.card.SetSwitchRegister(2, reg.PortControl2, uint16(v))
		}
	}}).running()
	ctx := context.Background()
	jumbo := func() *client.Error {
		run, err := r.client.SetSwitch(ctx, client.SetSwitch{All: true, Frame: 10240}, nil)
		if err == nil {
			err = run.Check()
		}
		if err == nil {
			return nil
		}
		var e *client.Error
		require.ErrorAs(t, err, &e)
		return e
	}
	right := reg.Jumbo10240.Put(r.card.SwitchRegister(1, reg.PortControl2))
	repair := fmt.Sprintf("oxpd switch write oxp1 8 0x%04x --i-know", right)

	r.card.Faults(func(f *hwsim.Faults) { f.SwitchForeignData = 3 })
	e := jumbo()
	require.NotNil(t, e)
	assert.Contains(t, e.Hint, repair)
	wrong := r.card.SwitchRegister(1, reg.PortControl2)
	require.NotEqual(t, right&^reg.JumboMask, wrong&^reg.JumboMask)

	_, _, written := way.count()
	for range 2 {
		e = jumbo()
		require.NotNil(t, e)
		assert.Equal(t, client.CodeRefused, e.Code)
		assert.Contains(t, e.Message, repair)
		_, err := r.client.ChangeMTU(ctx, "oxp1", client.SetMTU{MTU: 9000, Switch: true})
		assert.ErrorContains(t, err, repair)
	}
	_, _, now := way.count()
	assert.Equal(t, written, now)
	_, err := r.client.WriteSwitchRegister(ctx, "oxp1", reg.PortControl2, int(right))
	require.NoError(t, err)
	require.Nil(t, jumbo())
	assert.Equal(t, right, r.card.SwitchRegister(1, reg.PortControl2))

	r.card.SetSwitchRegister(2, reg.PortControl2, wrong)
	require.NotNil(t, jumbo())
	foreign.Store(uint32(wrong))
	r.away()
	r.card.Reboot()
	r.running()
	require.Nil(t, jumbo(), "another boot of the coprocessor may have others")
	assert.Equal(t, reg.Jumbo10240.Put(wrong), r.card.SwitchRegister(2, reg.PortControl2))
}

// TestSwitchThatIsLowAlready: a run that lowers nothing is not refused for an MTU.
func TestSwitchThatIsLowAlready(t *testing.T) {
	t.Parallel()
	way := &simWay{}
	r := start(t, rigOptions{way: way, config: withConsole()}).running()
	ctx := context.Background()
	restore := func(lower bool) (*client.SwitchRun, error) {
		run, err := r.client.SetSwitch(ctx, client.SetSwitch{All: true, Frame: 2048, LeaveUplink: true, LowerMTU: lower}, nil)
		if err == nil {
			err = run.Check()
		}
		return run, err
	}
	require.NoError(t, r.setMTU("oxp1", 2030))
	r.setFrame(reg.Uplink, reg.Jumbo1522)
	_, err := r.client.Switch(ctx)
	require.NoError(t, err)

	for _, lower := range []bool{false, true} {
		run, err := restore(lower)
		require.NoError(t, err)
		assert.Empty(t, run.Lowered)
		assert.NotEmpty(t, run.Warnings, "the uplink does not pass it")
		assert.EqualValues(t, 2030, r.lif("oxp1").MTU)
	}
	_, _, written := way.count()
	assert.Empty(t, written)

	r.setFrame(2, reg.Jumbo10240) // another port of the same run is lowered
	_, err = restore(false)
	require.NoError(t, err)
	assert.Equal(t, allFrames(1522, 2048), r.frames())

	r.setFrame(1, reg.Jumbo10240) // which nobody has told
	_, err = restore(false)
	assert.Equal(t, client.CodeRefused, code(err))
	assert.ErrorContains(t, err, "oxp1 (Port1) has mtu 2030")
	assert.Equal(t, 10240, r.frames()[1])
}
