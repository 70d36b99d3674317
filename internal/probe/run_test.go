package probe_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/daemon"
	"oxpd/internal/daemon/client"
	"oxpd/internal/daemon/config"
	"oxpd/internal/probe"
	"oxpd/internal/probe/staged"
	"oxpd/internal/simdev/simtest"
	"oxpd/internal/sys"
	"oxpd/octep"
	"oxpd/octep/csr"
)

// device is a card that the daemon opens and does not close, with other ids where
// a test wants them.
type device struct {
	octep.Device
	id uint32
}

func (d device) ConfigRead(off, width int) (uint32, error) {
	if off == csr.CfgDevice && d.id != 0 {
		return d.id, nil
	}
	return d.Device.ConfigRead(off, width)
}
func (device) Close() error { return nil }

// namespace is one without another daemon.
func namespace(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: a daemon makes interfaces, and here a network namespace")
	}
	ns, err := sys.NewNetNS()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, ns.Close()) })
	return ns.Path()
}

// run is `oxpd run` on a card that stops it before it needs an interface.
func run(t *testing.T, c *staged.Card, dev octep.Device) error {
	t.Helper()
	c.Card.Start()
	cfg := config.Default()
	cfg.Socket = filepath.Join(t.TempDir(), "s")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // a guard against hanging
	defer cancel()
	err := daemon.New(daemon.Options{Config: cfg, Simulated: true, NetNS: namespace(t), Open: func(context.Context) (octep.Device, error) { return dev, nil }}).Run(ctx)
	require.NoError(t, ctx.Err(), "it did not stop by itself")
	return err
}

// What a look says about run is what run does.
func TestRunStopsWhereTheLookSays(t *testing.T) {
	store := func(reg csr.Reg64, v uint64) func(*staged.Card) {
		return func(c *staged.Card) { c.BAR0().Store64(uint32(reg), v) }
	}
	fault := func(f func(*hwsim.Faults)) func(*staged.Card) { return func(c *staged.Card) { c.Card.Faults(f) } }
	for _, tc := range []struct {
		name  string
		host  staged.Host
		after time.Duration
		card  func(*staged.Card)
		id    uint32
		stage string // "" when a look cannot tell that run stops
		text  string
		found string // the stage that run finds it in then; "" is platform
	}{
		{"unknown device", staged.HostFirmware, time.Second, nil, 0xb200, "device", "177d:b200, another device of the same vendor", ""},
		{"virtual functions", staged.HostFirmware, time.Second, store(csr.RInfo, 0x0008000100400000), 0, "device", "virtual functions own the first rings", ""},
		{"exchange in flight", staged.HostOffer, time.Second, nil, 0, "bus-master", "an exchange that another program began is in flight", ""},
		{"foreign handshake word", staged.HostFirmware, time.Second, store(csr.SLIScratch, 0x1122334455667788), 0, "bus-master", "not of the handshake", ""},
		{"rings of an earlier run", staged.HostRings, 0, nil, 0, "bus-master", "rings of an earlier run", ""},
		{"handshake of an earlier run", staged.HostHandshake, 0, nil, 0, "bus-master", "rings of an earlier run", ""},
		{"fast path of an earlier run", staged.HostHandshake, time.Second, nil, 0, "bus-master", "rings of an earlier run", ""},
		{"barmap pointer overwritten", staged.HostFirmware, time.Second, store(csr.SDPScratch, csr.ScratchQueuesUp), 0, "bus-master", "SDP_SCRATCH[0x20180]", ""},
		{"unknown barmap version", staged.HostFirmware, time.Second, fault(func(f *hwsim.Faults) { f.BarmapVersion = 3 }), 0, "ready", "version 0.3; only 0.2 is known", ""},
		{"unknown assembly", staged.HostFirmware, time.Second, fault(func(f *hwsim.Faults) { f.Assembly = "AMDA0999-0001" }), 0, "", `assembly is "AMDA0999-0001", want "AMDA0202-0004"`, ""},
		{"unknown assembly, decoding off", staged.HostAbsent, 0, fault(func(f *hwsim.Faults) { f.Assembly = "AMDA0999-0001" }), 0, "", `assembly is "AMDA0999-0001"`, ""},
		// The coprocessor answers the dead host while run waits for the barmap: run
		// finishes that exchange and comes as far as without it.
		{"an offer stands at power-on", staged.HostOffer, 0, fault(func(f *hwsim.Faults) { f.Assembly = "AMDA0999-0001" }), 0, "", `assembly is "AMDA0999-0001"`, "platform"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			timeline := hwsim.Compressed()
			if tc.found != "" {
				timeline.Kernel = time.Second // run is there before it
			}
			c, err := staged.Open(context.Background(), staged.Moment{Timeline: timeline, Host: tc.host, After: tc.after})
			require.NoError(t, err)
			defer c.Close()
			if tc.card != nil {
				tc.card(c)
			}
			dev := device{c, tc.id}
			r, err := probe.Look(context.Background(), dev, probe.Options{})
			require.NoError(t, err)
			assert.Equal(t, tc.stage != "", r.Run.Stops)
			assert.Equal(t, tc.stage, r.Run.Stage)

			stops := tc.stage
			if stops == "" {
				if stops = tc.found; stops == "" {
					stops = "platform"
				}
				for _, s := range r.Run.Stages {
					assert.NotEqual(t, probe.Stops, s.Verdict, s.Name)
				}
			} else {
				assert.Contains(t, r.Findings[0].Text, tc.text)
			}
			err = run(t, c, dev)
			require.ErrorContains(t, err, "stage "+stops+": ")
			assert.ErrorContains(t, err, tc.text)
		})
	}
}

// A card that a look calls gone is one that run waits for.
func TestRunWaitsForACardThatIsGone(t *testing.T) {
	c, err := staged.Open(context.Background(), staged.Moment{Timeline: hwsim.Compressed(), Host: staged.HostFirmware, After: time.Second})
	require.NoError(t, err)
	defer c.Close()
	c.Card.Kill()
	dev := device{c, 0}
	r, err := probe.Look(context.Background(), dev, probe.Options{})
	require.NoError(t, err)
	assert.Equal(t, probe.Waits, r.Run.Stages[0].Verdict)

	c.Card.Start()
	cfg := config.Default()
	cfg.Socket = filepath.Join(t.TempDir(), "s")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // a guard against hanging
	defer cancel()
	ended := make(chan error, 1)
	d := daemon.New(daemon.Options{Config: cfg, Simulated: true, NetNS: namespace(t), Open: func(context.Context) (octep.Device, error) { return dev, nil }})
	go func() { ended <- d.Run(ctx) }()
	cl := client.New(cfg.Socket)
	for {
		s, err := cl.Status(ctx)
		if err == nil && s.State == client.StateGone {
			break
		}
		select {
		case err := <-ended:
			require.Fail(t, "run ended", "%v", err)
		case <-ctx.Done():
			require.Fail(t, "run never waits")
		case <-time.After(10 * time.Millisecond):
		}
	}
	cancel()
	assert.NoError(t, <-ended)
}

// The card of run --sim has addresses of 33 bits.
func TestRunRefusesWideAddresses(t *testing.T) {
	c, err := staged.Open(context.Background(), staged.Moment{Timeline: hwsim.Compressed(), Host: staged.HostFirmware, After: time.Second})
	require.NoError(t, err)
	defer c.Close()
	c.Card.Start()
	cfg := config.Default()
	cfg.Socket, cfg.DMABits = filepath.Join(t.TempDir(), "s"), 32
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c.Card.ResetAccesses()
	err = daemon.New(daemon.Options{Config: cfg, Simulated: true, NetNS: namespace(t), Open: func(context.Context) (octep.Device, error) { return device{c, 0}, nil }}).Run(ctx)
	require.ErrorContains(t, err, "stage rings: ring: allocate records: dma: region records: ")
	require.ErrorContains(t, err, "need addresses of 33 bits, and dma-bits is 32")
	for name, n := range c.Card.Accesses() {
		assert.Zero(t, n.Writes, "the card was told nothing: %s", name)
	}
	simtest.Clean(t, c.Card)
}
