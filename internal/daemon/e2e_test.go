package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/internal/daemon/config"
	"oxpd/internal/daemon/simcard"
	"oxpd/internal/dma"
	"oxpd/internal/mmio"
	"oxpd/internal/port"
	"oxpd/internal/simdev"
	"oxpd/internal/simdev/simtest"
	"oxpd/internal/sys"
	"oxpd/octep"
	"oxpd/octep/csr"
	"oxpd/rpc/msg"
	"oxpd/switchcfg/console"
)

// hang bounds every wait of these tests by the wall clock. It is a guard against
// hanging, not a measurement.
const hang = 90 * time.Second

// rig is a daemon in this process, its simulated card, and an empty network
// namespace that its interfaces are made in.
type rig struct {
	t        *testing.T
	d        *Daemon
	card     *hwsim.Card
	console  string // terminal of the coprocessor's
	memory   *ledger
	accesses atomic.Uint64 // of both BARs
	client   *client.Client
	ns       *sys.NetNS
	cancel   context.CancelFunc
	ended    chan error
	log      *syncBuffer
	early    atomic.Uint64 // regions freed with bus mastering on
	faulty   bool          // the test makes the card report misuse on purpose
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// ledger is the card's memory provider with a list of what is allocated.
type ledger struct {
	dma.Provider
	keeps bool
	free  func() // before a region is freed

	reclaims atomic.Int32
	refuses  error // of Reclaim
	mu       sync.Mutex
	open     map[*dma.Region]bool
}

func (l *ledger) Alloc(name string, size, align int) (*dma.Region, error) {
	r, err := l.Provider.Alloc(name, size, align)
	if err == nil {
		l.mu.Lock()
		l.open[r] = true
		l.mu.Unlock()
	}
	return r, err
}

func (l *ledger) Free(r *dma.Region) error {
	l.free()
	l.mu.Lock()
	delete(l.open, r)
	l.mu.Unlock()
	return l.Provider.Free(r)
}

func (l *ledger) Keeps() bool { return l.keeps }

func (l *ledger) Reclaim() error {
	l.reclaims.Add(1)
	return l.refuses
}

// names are those of the regions that are allocated.
func (l *ledger) names() (out []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for r := range l.open {
		out = append(out, r.Name())
	}
	return out
}

// watched is a device with that provider, whose BAR accesses are counted.
type watched struct {
	octep.Device
	ledger   *ledger
	accesses *atomic.Uint64
}

func (d watched) DMA() dma.Provider { return d.ledger }
func (d watched) BAR0() mmio.Space  { return counted{d.Device.BAR0(), d.accesses} }
func (d watched) BAR2() mmio.Space  { return counted{d.Device.BAR2(), d.accesses} }

// withTerminal is a device with the coprocessor's console.
type withTerminal struct {
	octep.Device
	path string
}

func (d withTerminal) Console() string { return d.path }

// polled is a device without interrupts.
type polled struct{ octep.Device }

func (polled) BindIRQ(_ int, fn func()) error {
	if fn == nil {
		return nil
	}
	return octep.ErrNoInterrupts
}

// counted is a BAR whose accesses are counted.
type counted struct {
	mmio.Space
	n *atomic.Uint64
}

func (c counted) Load32(off uint32) uint32     { c.n.Add(1); return c.Space.Load32(off) }
func (c counted) Load64(off uint32) uint64     { c.n.Add(1); return c.Space.Load64(off) }
func (c counted) Store32(off uint32, v uint32) { c.n.Add(1); c.Space.Store32(off, v) }
func (c counted) Store64(off uint32, v uint64) { c.n.Add(1); c.Space.Store64(off, v) }

// rigOptions change a rig before it starts.
type rigOptions struct {
	shared *hwsim.Card // a card that outlives the daemon; nil: one of its own
	keeps  bool        // the memory provider keeps memory
	polled bool        // no interrupt of the card comes
	clock  clock       // nil: the machine's

	refuses error // what giving back an earlier run's memory says
	config  func(c *config.Config)
	card    func(c *hwsim.Card)               // before the daemon sees it
	stage   func(s stage, r *rig)             // when a stage begins
	wrap    func(d octep.Device) octep.Device // each device that is opened
	way     *simWay                           // to the card's switch; nil: there is none
	console bool                              // the way to the switch is the console of the card
}

// How long a shell is looked for, and a command waited for, in vain.
const (
	consoleSession = 12 * time.Second
	consoleCommand = 8 * time.Second
)

// start makes a daemon run. At the end of the test it is stopped, unless it has
// ended, and everything is looked at: goroutines, misuse of the card, namespace.
func start(t *testing.T, o rigOptions) *rig {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: makes a network namespace and TAP interfaces")
	}
	ns, err := sys.NewNetNS()
	require.NoError(t, err)
	cfg := config.Default()
	cfg.Socket = filepath.Join(t.TempDir(), "oxpd.sock")
	cfg.LinkPoll, cfg.Reconcile = config.Duration(20*time.Millisecond), config.Duration(20*time.Millisecond)
	if o.config != nil {
		o.config(&cfg)
	}
	require.NoError(t, cfg.Check())
	r := &rig{t: t, ns: ns, ended: make(chan error, 1), log: &syncBuffer{}, client: client.New(cfg.Socket)}
	opened := make(chan struct{})
	once := sync.OnceFunc(func() { close(opened) })
	r.d = New(Options{
		Config: cfg, Version: "test", Simulated: true, NetNS: ns.Path(), Clock: o.clock,
		Logger: slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Open: func(context.Context) (octep.Device, error) {
			var dev octep.Device
			if r.card = o.shared; r.card != nil {
				dev = simdev.New(r.card)
			} else {
				own, err := simcard.Open(cfg.Sim, nil)
				if err != nil {
					return nil, err
				}
				dev, r.card, r.console = own, own.Card, own.Console()
			}
			if o.card != nil {
				o.card(r.card)
			}
			r.memory = &ledger{Provider: dev.DMA(), keeps: o.keeps, refuses: o.refuses, open: map[*dma.Region]bool{}}
			r.memory.free = func() {
				if r.card.ConfigRead(csr.CfgCommand, 2)&csr.CfgCommandBusMaster != 0 {
					r.early.Add(1)
				}
			}
			once()
			if o.polled {
				dev = polled{dev}
			}
			if dev = (watched{dev, r.memory, &r.accesses}); o.wrap != nil {
				dev = o.wrap(dev)
			}
			if o.console {
				dev = withTerminal{dev, r.console}
			}
			return dev, nil
		},
	})
	if o.way != nil {
		o.way.card = func() *hwsim.Card { return r.card }
		r.d.o.OpenSwitch = o.way.open
	}
	if o.console {
		open := consoleWith(console.Options{Log: r.d.log, Session: consoleSession, Command: consoleCommand})
		r.d.o.OpenSwitch = func(ctx context.Context, _ string, booted func() error) (SwitchWay, error) {
			return open(ctx, r.console, booted)
		}
	}
	if o.stage != nil {
		r.d.track.watch = func(s stage) { o.stage(s, r) }
	}
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go owned(r.name(), func() { r.ended <- r.d.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		if r.ended != nil {
			assert.NoError(t, r.end())
		}
		r.after()
		assert.NoError(t, ns.Close())
		if t.Failed() {
			t.Logf("daemon's log:\n%s", r.log)
		}
	})
	select {
	case <-opened:
	case <-time.After(hang):
		t.Fatal("the card is not opened")
	}
	return r
}

// newNetNS is a namespace that ends with the test.
func newNetNS(t *testing.T) *sys.NetNS {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: makes a network namespace")
	}
	ns, err := sys.NewNetNS()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, ns.Close()) })
	return ns
}

// end waits until the daemon has ended.
func (r *rig) end() error {
	r.t.Helper()
	select {
	case err := <-r.ended:
		r.ended = nil
		return err
	case <-time.After(hang):
		b := make([]byte, 1<<20)
		r.t.Fatalf("the daemon does not end:\n%s", b[:runtime.Stack(b, true)])
		return nil
	}
}

// after looks at what a daemon left behind.
func (r *rig) after() {
	t := r.t
	t.Helper()
	noGoroutines(t, r.name())
	if r.card == nil {
		return
	}
	if !r.faulty {
		simtest.Clean(t, r.card)
		assert.NoError(t, r.card.CheckConservation(), "the card's own books")
	}
	assert.Zero(t, r.early.Load(), "regions freed while the card could reach them")
	stats := r.d.stats(nil)
	assert.NoError(t, stats.Sums.Check())
	assert.NoError(t, stats.CheckInspected())
	if command := r.card.ConfigRead(csr.CfgCommand, 2); command == ^uint32(0) || r.memory.keeps {
		assert.NotEmpty(t, r.memory.names(), "memory that the card may reach is not released")
	} else {
		assert.Zero(t, command&csr.CfgCommandBusMaster, "bus mastering is off before memory is released")
		assert.Empty(t, r.memory.names(), "memory left behind")
	}
	// A program that another test starts has copies of the descriptors until it runs.
	r.wait("the interfaces to be removed", func() bool { return !strings.Contains(r.mustIP("-o", "link"), "oxp") })
}

// name is that of the owner of the daemon's goroutines.
func (r *rig) name() string { return fmt.Sprintf("%s %p", r.t.Name(), r) }

// ownerLabel is the profiler's label that tells goroutines of tests side by side apart:
// a goroutine has those of the one that started it.
const ownerLabel = "owner"

// owned runs fn, whose goroutines and theirs are an owner's.
func owned(owner string, fn func()) {
	pprof.Do(context.Background(), pprof.Labels(ownerLabel, owner), func(context.Context) { fn() })
}

// goroutines are the stacks of an owner's.
func goroutines(t *testing.T, owner string) (of []string) {
	t.Helper()
	var all strings.Builder
	require.NoError(t, pprof.Lookup("goroutine").WriteTo(&all, 1))
	label := fmt.Sprintf("%q:%q", ownerLabel, owner)
	for _, g := range strings.Split(all.String(), "\n\n") {
		if strings.Contains(g, label) {
			of = append(of, g)
		}
	}
	return of
}

// noGoroutines fails when one of an owner's is left.
func noGoroutines(t *testing.T, owner string) {
	t.Helper()
	left := goroutines(t, owner)
	for deadline := time.Now().Add(hang); left != nil && time.Now().Before(deadline); left = goroutines(t, owner) {
		time.Sleep(5 * time.Millisecond)
	}
	assert.Empty(t, left, "goroutines left behind")
}

// What noGoroutines looks for is found: a goroutine that one of the owner's has started,
// and nobody else's.
func TestGoroutinesOfAnOwner(t *testing.T) {
	stop, started := make(chan struct{}), make(chan struct{})
	owned(t.Name(), func() {
		go func() {
			go func() { close(started); <-stop }()
			<-stop
		}()
	})
	<-started
	found := strings.Join(goroutines(t, t.Name()), "\n")
	assert.Contains(t, found, "daemon.TestGoroutinesOfAnOwner.func1.1.1+", "a grandchild")
	assert.Empty(t, goroutines(t, "somebody else"))
	close(stop)
	noGoroutines(t, t.Name())
}

// ip runs the system's own tool inside the namespace.
func (r *rig) ip(args ...string) (string, error) {
	var out []byte
	err := r.ns.Do(func() (err error) {
		out, err = exec.Command("ip", args...).CombinedOutput()
		return err
	})
	return string(out), err
}

func (r *rig) mustIP(args ...string) string {
	r.t.Helper()
	out, err := r.ip(args...)
	require.NoError(r.t, err, out)
	return out
}

// kernel is an interface as `ip -j -s link` shows it.
type kernelLink struct {
	IfName    string   `json:"ifname"`
	MTU       int      `json:"mtu"`
	Address   string   `json:"address"`
	Flags     []string `json:"flags"`
	OperState string   `json:"operstate"`
}

func (r *rig) link(name string) kernelLink {
	r.t.Helper()
	var l []kernelLink
	require.NoError(r.t, json.Unmarshal([]byte(r.mustIP("-j", "link", "show", name)), &l))
	require.Len(r.t, l, 1)
	return l[0]
}

// carrier waits until the kernel shows an interface that is up with carrier, or without:
// it shows a change when its own worker comes to it, up to a second later.
func (r *rig) carrier(name string, on bool) {
	r.t.Helper()
	r.wait(fmt.Sprintf("%s with carrier %v", name, on), func() bool {
		return slices.Contains(r.link(name).Flags, "NO-CARRIER") != on
	})
}

// wait polls until something holds.
func (r *rig) wait(what string, cond func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(hang); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Fatalf("never: %s", what)
		}
	}
}

func (r *rig) status() *client.Status {
	r.t.Helper()
	s, err := r.client.Status(context.Background())
	require.NoError(r.t, err)
	return s
}

func (r *rig) running() *rig {
	r.t.Helper()
	r.wait("running", func() bool { return r.status().State == client.StateRunning })
	return r
}

func (r *rig) port(name string) client.Port {
	r.t.Helper()
	p, err := r.client.Ports(context.Background())
	require.NoError(r.t, err)
	q, ok := p.Find(name)
	require.True(r.t, ok)
	return q
}

func (r *rig) stage(s stage) client.Stage {
	r.t.Helper()
	return r.status().Stages[s]
}

// lif is the entry in the card, functional.
func (r *rig) lif(name string) msg.LIF {
	r.t.Helper()
	p, err := board.Parse(name)
	require.NoError(r.t, err)
	l, present := r.card.LIF(uint32(p.LIF()))
	require.True(r.t, present, "LIF of %s", p)
	return l
}

// mtus compares every place that has an MTU.
func (r *rig) mtus(name string, want int) {
	r.t.Helper()
	p, err := board.Parse(name)
	require.NoError(r.t, err)
	assert.Equal(r.t, want, int(r.lif(name).MTU), "LIF in the card")
	assert.Equal(r.t, want, r.link(p.Name).MTU, "interface in the kernel")
	m, err := r.client.MTU(context.Background(), name)
	require.NoError(r.t, err)
	assert.Equal(r.t, [3]int{want, want, want}, [3]int{m.LIF, m.Interface, m.Effective}, "LIF, interface, effective as oxpd shows them")
}

// effective is the MTU in force as oxpd shows it, 0 while LIF and interface differ.
func (r *rig) effective(name string) int {
	r.t.Helper()
	m, err := r.client.MTU(context.Background(), name)
	require.NoError(r.t, err)
	if m.LIF != m.Interface {
		return 0
	}
	return m.Effective
}

func (r *rig) setMTU(name string, mtu int) error {
	_, err := r.client.SetMTU(context.Background(), name, mtu)
	return err
}

func code(err error) client.Code {
	var e *client.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

func TestBringUp(t *testing.T) {
	t.Parallel()
	var order []stage
	r := start(t, rigOptions{stage: func(s stage, _ *rig) { order = append(order, s) }}).running()
	s := r.status()
	assert.Equal(t, board.Ports, s.PortsUp)
	assert.Empty(t, s.Warnings)
	assert.Equal(t, "AMDA0202-0004", s.Device.Assembly)
	assert.Equal(t, uint64(800), s.Device.ClockMHz)
	for i, g := range s.Stages {
		assert.Equal(t, client.StageDone, g.State, g.Name)
		assert.Equal(t, stage(i), order[i])
	}
	macs := map[string]bool{}
	for _, p := range board.All() {
		q := r.port(p.Name)
		l := r.link(p.Name)
		assert.Equal(t, client.PortUp, q.State)
		assert.Equal(t, p.Label, q.Label)
		assert.Equal(t, q.Address, l.Address, "the card's address is the interface's")
		assert.Equal(t, q.Address, q.LIF.Address)
		assert.Equal(t, 1500, l.MTU)
		assert.Equal(t, client.LinkUp, q.Link)
		assert.NotContains(t, l.Flags, "NO-CARRIER")
		macs[q.Address] = true
		iface, ok := r.card.PPort(uint16(p.Tag))
		assert.True(t, ok)
		assert.Equal(t, p.Iface, iface)
		r.mtus(p.Name, 1500)
	}
	assert.Len(t, macs, board.Ports, "each port has an address of its own")

	m, err := r.client.MTU(context.Background(), "Port1")
	require.NoError(t, err)
	assert.Equal(t, client.SwitchUnknown, m.Switch)
	assert.Empty(t, m.Note, "every mode of the switch passes 1500")
}

func TestMTUByCommand(t *testing.T) {
	t.Parallel()
	r := start(t, rigOptions{}).running()
	r.card.ResetCommands()
	require.NoError(t, r.setMTU("PortF1", 9000))
	r.mtus("oxp9", 9000)
	var updates int
	for _, c := range r.card.Commands() {
		if c.Command == msg.CmdLIFAddUpdate {
			updates++
			want := msg.LIFUpdateReq{Index: 40960, LIF: r.lif("oxp9"), Mask: msg.MaskMTU}.Append(nil)
			assert.Equal(t, want, c.Payload, "18 bytes, the MTU alone")
		}
	}
	assert.Equal(t, 1, updates)
	for _, v := range []int{72, 9000, 1500} {
		require.NoError(t, r.setMTU("F1", v))
		r.mtus("oxp9", v)
	}
	for _, v := range []int{71, 9001, -1} {
		assert.Equal(t, client.CodeUsage, code(r.setMTU("F1", v)), v)
	}
	assert.Equal(t, client.CodeUnknownPort, code(r.setMTU("oxp13", 1500)))
	r.mtus("oxp9", 1500)
	r.mtus("oxp10", 1500)
}

func TestMTUByNetlink(t *testing.T) {
	t.Parallel()
	r := start(t, rigOptions{}).running()
	r.mustIP("link", "set", "oxp9", "mtu", "9000")
	r.wait("the LIF follows", func() bool { return r.effective("oxp9") == 9000 })
	r.mtus("oxp9", 9000)
	r.mustIP("link", "set", "oxp9", "mtu", "1400")
	r.wait("the LIF follows", func() bool { return r.effective("oxp9") == 1400 })
	r.mtus("oxp9", 1400)
	for _, v := range []string{"9001", "71"} {
		r.mustIP("link", "set", "oxp9", "mtu", v)
		r.wait("put back", func() bool { return r.link("oxp9").MTU == 1400 })
		r.mtus("oxp9", 1400)
	}
	t.Run("a hundred changes end where the last one said", func(t *testing.T) {
		for i := range 100 {
			r.mustIP("link", "set", "oxp9", "mtu", fmt.Sprint(1000+i))
		}
		r.wait("the LIF follows", func() bool { return r.effective("oxp9") == 1099 })
		r.mtus("oxp9", 1099)
	})
}

// TestForeignMTU: what no port may have and the kernel takes, up to the largest
// that a TAP interface has (65,535 less the header). Each is put back once, logged
// once and counted, and neither that nor a change of oxpd's own is answered by
// another one.
func TestForeignMTU(t *testing.T) {
	t.Parallel()
	r := start(t, rigOptions{}).running()
	counts := func() (puts uint64, logged, updates int) {
		for _, c := range r.card.Commands() {
			if c.Command == msg.CmdLIFAddUpdate {
				updates++
			}
		}
		return r.view("oxp9").PutBack, strings.Count(r.log.String(), `msg="mtu of the interface is put back" port=oxp9`), updates
	}
	rounds := func() {
		t.Helper()
		seen := len(r.card.Commands())
		r.wait("two rounds of reading back", func() bool { return len(r.card.Commands()) >= seen+2*board.Ports })
	}
	for i, mtu := range []int{68, 71, 9001, 65521} {
		t.Run(fmt.Sprint(mtu), func(t *testing.T) {
			r.card.ResetCommands()
			r.mustIP("link", "set", "oxp9", "mtu", fmt.Sprint(mtu))
			r.wait("counted", func() bool { puts, _, _ := counts(); return puts == uint64(i+1) })
			r.wait("put back", func() bool { return r.link("oxp9").MTU == 1500 })
			rounds()
			puts, logged, updates := counts()
			assert.Equal(t, uint64(i+1), puts, "counted once")
			assert.Equal(t, i+1, logged, "logged once")
			assert.Contains(t, r.log.String(), fmt.Sprintf("asked=%d mtu=1500", mtu))
			assert.Zero(t, updates, "the LIF is not asked")
			r.mtus("oxp9", 1500)
		})
	}
	t.Run("beyond what the kernel takes", func(t *testing.T) {
		for _, mtu := range []string{"65522", "67"} {
			_, err := r.ip("link", "set", "oxp9", "mtu", mtu)
			assert.Error(t, err, mtu)
		}
		rounds()
		puts, _, _ := counts()
		assert.Equal(t, uint64(4), puts, "nothing happened")
	})
	t.Run("own changes do not loop", func(t *testing.T) {
		r.card.ResetCommands()
		for _, mtu := range []int{9000, 72, 1500} {
			require.NoError(t, r.setMTU("oxp9", mtu))
		}
		rounds()
		puts, _, updates := counts()
		assert.Equal(t, 3, updates, "one command for each change, and none for its news")
		assert.NotContains(t, r.log.String(), "by=netlink", "nor is it taken for somebody else's")
		assert.Equal(t, uint64(4), puts)
		r.mtus("oxp9", 1500)
	})
}

// TestMTUAndTheSwitch: a port behind the switch, whose limit is known, and one
// that is not behind it.
func TestMTUAndTheSwitch(t *testing.T) {
	t.Parallel()
	r := start(t, rigOptions{config: func(c *config.Config) { c.Switch.Size = 2048 }}).running()
	ctx := context.Background()
	err := r.setMTU("oxp1", 2031)
	require.Equal(t, client.CodeRefused, code(err), "%v", err)
	var refused *client.Error
	require.ErrorAs(t, err, &refused)
	assert.Contains(t, refused.Hint, "oxpd mtu oxp1 2031 --switch")
	r.mtus("oxp1", 1500)
	require.NoError(t, r.setMTU("oxp1", 2030))
	r.mtus("oxp1", 2030)
	r.mustIP("link", "set", "oxp1", "mtu", "9000")
	r.wait("put back", func() bool { return r.link("oxp1").MTU == 2030 })
	r.mtus("oxp1", 2030)
	require.NoError(t, r.setMTU("oxp9", 9000))
	r.mtus("oxp9", 9000)

	m, err := r.client.ForceMTU(ctx, "oxp1", 9000)
	require.NoError(t, err)
	assert.Equal(t, &client.MTU{
		Schema: client.Schema, IfName: "oxp1", Label: "Port1", LIF: 9000, Interface: 9000, Switch: client.SwitchConfig, SwitchMTU: 2030, SwitchFrame: 2048,
		Effective: 2030, Warnings: m.Warnings,
	}, m)
	require.Len(t, m.Warnings, 1)
	assert.Contains(t, m.Warnings[0], "vanish in the switch")
	r.card.ResetCommands()
	r.wait("two rounds of reading back", func() bool { return len(r.card.Commands()) > 2*board.Ports })
	assert.Equal(t, []int{9000, 9000}, []int{int(r.lif("oxp1").MTU), r.link("oxp1").MTU}, "LIF and interface")
	assert.Contains(t, strings.Join(r.status().Warnings, "\n"), "mtu 9000 of oxp1 (Port1) is more than the switch before it passes: 2030")
	m, err = r.client.MTU(ctx, "oxp1")
	require.NoError(t, err)
	assert.Equal(t, 2030, m.Effective)
	assert.Contains(t, m.Note, "vanish in the switch")
}

func TestMTUOfTheConfiguration(t *testing.T) {
	t.Parallel()
	r := start(t, rigOptions{config: func(c *config.Config) {
		c.Ports = map[string]config.Port{"F2": {MTU: 9000}, "Port1": {MTU: 1600}}
	}}).running()
	r.mtus("oxp10", 9000)
	r.mtus("oxp1", 1600)
	r.mtus("oxp9", 1500)
}

func TestLIFRefused(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(f *hwsim.Faults){
		"rc 1":                func(f *hwsim.Faults) { f.LIFRefuse = map[board.Tag]msg.RC{1: 1} },
		"rc 0 and not stored": func(f *hwsim.Faults) { f.LIFNotStored = map[board.Tag]bool{1: true} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t, rigOptions{}).running()
			r.card.Faults(fault)
			err := r.setMTU("oxp9", 9000)
			assert.Equal(t, client.CodeRefused, code(err), "%v", err)
			r.mtus("oxp9", 1500)
			r.mustIP("link", "set", "oxp9", "mtu", "9000")
			r.wait("put back", func() bool { return r.link("oxp9").MTU == 1500 })
			r.mtus("oxp9", 1500)
			require.NoError(t, r.setMTU("oxp10", 9000), "the other ports do not care")
			r.card.Faults(func(f *hwsim.Faults) { *f = hwsim.Faults{} })
			require.NoError(t, r.setMTU("oxp9", 9000))
			r.mtus("oxp9", 9000)
		})
	}
}

func TestRPCTimeout(t *testing.T) {
	t.Parallel()
	// No round of reconciliation asks first, and lets the command meet a channel that is
	// being opened again.
	r := start(t, rigOptions{config: func(c *config.Config) { c.Reconcile = config.Duration(time.Minute) }}).running()
	r.card.Faults(func(f *hwsim.Faults) { f.RPCSilent = true })
	began := time.Now()
	err := r.setMTU("oxp9", 9000)
	assert.Equal(t, client.CodeTimeout, code(err), "%v", err)
	assert.Less(t, time.Since(began), hang)
	assert.Equal(t, 1500, r.link("oxp9").MTU)
	_, err = r.client.Counters(context.Background())
	assert.Contains(t, []client.Code{client.CodeTimeout, client.CodeNotReady}, code(err), "stalled, or being opened again: %v", err)
	s, err := r.client.Stats(context.Background(), "")
	require.NoError(t, err, "oxpd's own counters need no channel")
	assert.True(t, s.Sums.Accounted)
	r.card.Faults(func(f *hwsim.Faults) { f.RPCSilent = false })
	r.wait("the channel is opened again", func() bool { return r.setMTU("oxp9", 9000) == nil })
	r.mtus("oxp9", 9000)
	c, err := r.client.Counters(context.Background())
	require.NoError(t, err)
	assert.Len(t, c.Counters, msg.CountersSys)
}

func TestNetAgentSilentAtBringUp(t *testing.T) {
	t.Parallel()
	r := start(t, rigOptions{card: func(c *hwsim.Card) { c.Faults(func(f *hwsim.Faults) { f.AgentSilent = true }) }})
	r.wait("the stage waits", func() bool {
		g := r.stage(stageNetAgent)
		return g.State == client.StageActive && g.Awaiting == "NetAgent to answer" && g.Error != ""
	})
	s := r.status()
	assert.Equal(t, client.StateBringUp, s.State)
	assert.Equal(t, client.StagePending, s.Stages[stagePorts].State)
	assert.Equal(t, client.CodeNotReady, code(r.setMTU("oxp9", 9000)))
	assert.Equal(t, client.PortWaiting, r.port("oxp9").State)
	r.card.Faults(func(f *hwsim.Faults) { f.AgentSilent = false })
	r.running()
	assert.Equal(t, board.Ports, r.status().PortsUp)
}

func TestFacilityAppearsLate(t *testing.T) {
	t.Parallel()
	r := start(t, rigOptions{card: func(c *hwsim.Card) {
		c.Faults(func(f *hwsim.Faults) { f.FacilityMissing[csr.FacRPC] = true })
	}})
	r.wait("the stage waits", func() bool {
		g := r.stage(stageRPC)
		return g.State == client.StageActive && strings.Contains(g.Awaiting, "rpc")
	})
	r.card.Faults(func(f *hwsim.Faults) { f.FacilityMissing[csr.FacRPC] = false })
	r.running()
}

//oxpd:fault R52 behaviour
func TestMACRefused(t *testing.T) {
	t.Parallel()
	sub, tag := msg.AttrMAC, board.Tag(0x8300)
	r := start(t, rigOptions{card: func(c *hwsim.Card) {
		c.Faults(func(f *hwsim.Faults) { f.AgentRefuse = []hwsim.AgentRefusal{{Op: msg.OpGet, Sub: &sub, Port: &tag}} })
	}}).running()
	assert.Equal(t, board.Ports-1, r.status().PortsUp)
	q := r.port("Port3")
	assert.Equal(t, client.PortWaiting, q.State)
	assert.Contains(t, q.Awaiting, "MAC address")
	assert.Empty(t, q.Address)
	_, present := r.card.LIF(8192)
	assert.False(t, present, "no LIF with another port's address")
	_, err := r.ip("link", "show", "oxp3")
	assert.Error(t, err, "no interface")
	r.card.Faults(func(f *hwsim.Faults) { f.AgentRefuse = nil })
	r.wait("Port3 comes up", func() bool { return r.port("Port3").State == client.PortUp })
	r.wait("its link is read", func() bool { return r.port("Port3").Link == client.LinkUp })
	assert.NotEqual(t, r.port("Port2").Address, r.port("Port3").Address)
	assert.Equal(t, r.link("oxp3").Address, r.port("Port3").Address)
}

func TestEightPortsRefuseEveryLIFCommand(t *testing.T) {
	t.Parallel()
	refuse := map[board.Tag]msg.RC{}
	for i := range 8 {
		refuse[board.ByIndex(i).Tag] = 1
	}
	r := start(t, rigOptions{card: func(c *hwsim.Card) { c.Faults(func(f *hwsim.Faults) { f.LIFRefuse = refuse }) }}).running()
	assert.Equal(t, 4, r.status().PortsUp)
	for _, name := range []string{"F1", "F2", "F3", "F4"} {
		require.NoError(t, r.setMTU(name, 2000))
		r.mtus(name, 2000)
	}
	assert.Equal(t, client.CodeNotReady, code(r.setMTU("Port1", 2000)))
	r.card.Faults(func(f *hwsim.Faults) { f.LIFRefuse = nil })
	r.wait("the refused ones come up", func() bool { return r.status().PortsUp == board.Ports })
}

//oxpd:fault R50 behaviour
func TestCarrierFollowsTheLink(t *testing.T) {
	t.Parallel()
	r := start(t, rigOptions{card: func(c *hwsim.Card) { c.Wire(1).SetLink(false) }}).running()
	r.mustIP("link", "set", "oxp9", "up")
	assert.Contains(t, r.link("oxp9").Flags, "NO-CARRIER", "carrier stays down until the card says up")
	assert.Equal(t, client.LinkDown, r.port("oxp9").Link)
	r.card.Wire(1).SetLink(true)
	r.wait("link up", func() bool { return r.port("oxp9").OperState == client.OperUp })
	r.carrier("oxp9", true)
	r.card.Wire(1).SetLink(false)
	r.wait("link down", func() bool { return r.port("oxp9").Link == client.LinkDown })
	r.carrier("oxp9", false)
}

func TestInterfaceRemovedInTheKernel(t *testing.T) {
	t.Parallel()
	r := start(t, rigOptions{}).running()
	was := r.port("oxp9").IfIndex
	r.mustIP("link", "delete", "oxp9")
	r.wait("made again", func() bool { q := r.port("oxp9"); return q.State == client.PortUp && q.IfIndex != was })
	r.wait("its link is read", func() bool { return r.port("oxp9").Link == client.LinkUp })
	r.mtus("oxp9", 1500)
	require.NoError(t, r.setMTU("oxp9", 9000))
}

// frameOf is a broadcast of n bytes.
func frameOf(n int) []byte {
	b := bytes.Repeat([]byte{0x5a}, n)
	copy(b, "\xff\xff\xff\xff\xff\xff\x02\x00\x00\x00\x00\x01\x88\xb5")
	return b
}

func TestEveryFrameIsAccountedFor(t *testing.T) {
	t.Parallel()
	r := start(t, rigOptions{}).running()
	ctx := context.Background()
	w := r.card.Wire(1)
	var left atomic.Uint64
	w.SetReceiver(func([]byte) { left.Add(1) })

	counter := func(name string) uint64 {
		s, err := r.client.Stats(ctx, "")
		require.NoError(t, err)
		p, ok := s.Port("PortF1")
		require.True(t, ok)
		if v, ok := p.Counters[name]; ok {
			return v
		}
		v, ok := s.Device[name]
		require.True(t, ok, name)
		return v
	}
	send := func(name string, n, frames int) {
		t.Helper()
		before := counter(name)
		for range frames {
			w.Send(frameOf(n))
		}
		r.wait(name, func() bool { return counter(name) == before+uint64(frames) })
	}
	send("tap_down", 60, 5)
	r.mustIP("link", "set", "oxp9", "up")
	send("rx_packets", 60, 20)
	send("rx_packets", 1514, 20)
	require.NoError(t, r.setMTU("F1", 9000))
	send("rx_packets", 9014, 20)
	assert.Equal(t, uint64(20), counter("rx_spans"))
	assert.Equal(t, uint64(9088), counter("rx_span_max"))
	require.NoError(t, r.setMTU("F1", 1500))
	for range 3 {
		w.Send(frameOf(1515))
	}
	r.wait("the LIF drops what is too long", func() bool { return r.card.Counter(msg.CntDropMTUExceeded) == 3 })
	limit := r.d.owners[8].snapshot().iface.(*port.Port).Limit
	r.wait("the limit comes down once frames of the larger MTU have passed", func() bool { return limit() == 1500 })
	// Past the LIF, as a card that counts differently would send it.
	before := counter("rx_toolong")
	r.card.DeliverRaw(3, 1, frameOf(1600), 1600+74)
	r.wait("rx_toolong", func() bool { return counter("rx_toolong") == before+1 })
	before = counter("rx_malformed")
	r.card.DeliverRaw(4, 1, frameOf(20)[:8], 8+74)
	r.wait("rx_malformed", func() bool { return counter("rx_malformed") == before+1 })
	before = counter("rx_untagged")
	r.card.DeliverRaw(5, 0x7777, frameOf(60), 60+74)
	r.wait("rx_untagged", func() bool { return counter("rx_untagged") == before+1 })

	r.wait("what the kernel sent has left", func() bool { return left.Load() == counter("tx_packets") })
	assert.NotZero(t, left.Load())
	s, err := r.client.Stats(ctx, "")
	require.NoError(t, err)
	assert.True(t, s.Sums.Accounted, "%+v", s.Sums)
	assert.True(t, s.Sums.Quiet)
	assert.Equal(t, uint64(68), s.Sums.Taken)
	assert.NoError(t, r.card.CheckConservation(), "the card's own books")

	t.Run("the numbers survive an interface that goes and comes", func(t *testing.T) {
		rx := counter("rx_packets")
		r.mustIP("link", "delete", "oxp9")
		r.wait("made again", func() bool { return r.port("oxp9").State == client.PortUp })
		assert.Equal(t, rx, counter("rx_packets"))
		s, err := r.client.Stats(ctx, "")
		require.NoError(t, err)
		assert.True(t, s.Sums.Accounted, "%+v", s.Sums)
	})
	t.Run("the coprocessor's counters have names", func(t *testing.T) {
		c, err := r.client.Counters(ctx)
		require.NoError(t, err)
		assert.Equal(t, uint64(3), c.Get("FROM_WIRE_DROP_MTU_EXCEEDED"))
		assert.Equal(t, uint64(68), c.Ports[1].RX, "65 that passed the gate and 3 that did not")
	})
}

// TestSumsUnderTraffic: a difference that is shown as one of a quiet moment is a
// lost frame, also while the rings are busy.
func TestSumsUnderTraffic(t *testing.T) {
	t.Parallel()
	r := start(t, rigOptions{}).running()
	r.mustIP("link", "set", "oxp9", "up")
	require.NoError(t, r.setMTU("F1", 9000))
	stop := make(chan struct{})
	var sender sync.WaitGroup
	sender.Add(1)
	go func() {
		defer sender.Done()
		w := r.card.Wire(1)
		for {
			select {
			case <-stop:
				return
			default:
			}
			for range 32 {
				w.Send(frameOf(9014))
			}
			r.wait("the wire to be free", func() bool { s := w.Stats(); return s.In == s.Passed+s.Overrun+s.LinkDown })
		}
	}()
	defer sender.Wait()
	defer close(stop)
	var taken uint64
	for i := 0; i < 1000 || taken < 5000; i++ {
		s := r.d.stats(nil)
		taken = s.Sums.Taken
		if s.Sums.Quiet {
			require.True(t, s.Sums.Accounted, "%+v", s.Sums)
		}
	}
}

// Doorbells (rpc-lif.md 1).
const (
	spiNetAgent = 154
	spiRPC      = 155
)

func TestReadingAsksNothingOfTheCard(t *testing.T) {
	t.Parallel()
	r := start(t, rigOptions{config: func(c *config.Config) {
		c.LinkPoll, c.Reconcile = config.Duration(time.Minute), config.Duration(time.Minute)
	}}).running()
	r.card.Faults(func(f *hwsim.Faults) { f.AgentSilent, f.RPCSilent = true, true })
	bells, began := r.card.Doorbells(), r.d.clock.Now()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 20 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				select {
				case <-stop:
					return
				default:
				}
				_, err := r.client.Stats(context.Background(), "")
				assert.NoError(t, err)
				_, err = r.client.Ports(context.Background())
				assert.NoError(t, err)
				_, err = r.client.Status(context.Background())
				assert.NoError(t, err)
			}
		}()
	}
	for range 20 {
		r.mustIP("link", "set", "oxp9", "up")
		r.mustIP("link", "set", "oxp9", "down")
		_, err := r.client.Port(context.Background(), "oxp9")
		assert.NoError(t, err)
	}
	close(stop)
	wg.Wait()
	rung := r.card.Doorbells()
	took := r.d.clock.Now() - began
	for spi, n := range rung {
		most := 4 * uint64(took/time.Minute) // the periods above, should the machine be that busy
		switch spi {
		case spiRPC:
			most += 2 + 2*uint64(took/flowPause) // by the looks at the card's counters
		case spiNetAgent:
			most += 4 + 4*uint64(took/(30*time.Second)) // by the port that goes down, once in half a minute while it is silent
		}
		assert.LessOrEqual(t, n-bells[spi], most, "doorbell %d: no facility is rung by reading", spi)
	}
}

func TestSecondDaemon(t *testing.T) {
	t.Parallel()
	r := start(t, rigOptions{}).running()
	o := r.d.o
	o.Open = func(context.Context) (octep.Device, error) {
		t.Error("a second daemon opens the card")
		return nil, errors.New("never")
	}
	err := New(o).Run(context.Background())
	var re *RunningError
	require.ErrorAs(t, err, &re)
	assert.Equal(t, RunningError{Socket: r.client.Socket(), PID: os.Getpid()}, *re)
	assert.Equal(t, client.StateRunning, r.status().State, "the first one does not notice")
}

// mayBeCrossed takes it that the withdrawal of an offer has crossed the coprocessor's
// question, which takes the 0 for an answer (octep.ErrHandshakeSpoiled). It is released
// then, which must be the last write.
func (r *rig) mayBeCrossed() {
	writes := r.card.HandshakeWrites()
	for i, w := range writes {
		r.t.Logf("handshake write %d: %+v", i, w)
	}
	for _, x := range r.card.Reports() {
		r.faulty = true
		assert.Equal(r.t, "handshake-info", x.Name, "%+v", x)
		assert.EqualValues(r.t, csr.HandshakeCompleted, writes[len(writes)-1].Value)
	}
}

func TestStopInEachStage(t *testing.T) {
	t.Parallel()
	for s := range stages {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			r := start(t, rigOptions{stage: func(now stage, r *rig) {
				if now == s {
					r.cancel()
				}
			}})
			require.NoError(t, r.end())
			r.mayBeCrossed()
			assert.NotContains(t, r.log.String(), "level=ERROR")
		})
	}
	for _, after := range []time.Duration{0, 2, 5, 8, 10, 12, 15, 20, 30, 40, 50, 60, 70} {
		t.Run(fmt.Sprintf("handshake and %d ms", after), func(t *testing.T) {
			t.Parallel()
			r := start(t, rigOptions{stage: func(now stage, r *rig) {
				if now == stageHandshake {
					time.AfterFunc(after*time.Millisecond, r.cancel)
				}
			}})
			require.NoError(t, r.end())
			r.mayBeCrossed()
		})
	}
}

func TestStopByCommand(t *testing.T) {
	t.Parallel()
	for _, teardown := range []bool{false, true} {
		t.Run(fmt.Sprintf("teardown=%v", teardown), func(t *testing.T) {
			t.Parallel()
			r := start(t, rigOptions{}).running()
			res, err := r.client.Stop(context.Background(), teardown)
			require.NoError(t, err)
			require.NoError(t, r.end())
			assert.Equal(t, !teardown, res.RingsEnabled)
			assert.False(t, res.MemoryKept, "memory of a process ends with it")
			assert.True(t, res.RebootNeeded)
			assert.Contains(t, r.log.String(), "reboot the coprocessor")
			for q := range 8 {
				assert.Equal(t, !teardown, r.card.Load(0, uint64(csr.OutEnable.Queue(q)), 8)&1 == 1, "OUT_ENABLE of ring %d", q)
			}
			_, err = r.client.Status(context.Background())
			assert.ErrorIs(t, err, client.ErrNoDaemon)
		})
	}
	t.Run("memory that is kept stays with the card", func(t *testing.T) {
		t.Parallel()
		r := start(t, rigOptions{keeps: true}).running()
		before := r.memory.names()
		res, err := r.client.Stop(context.Background(), false)
		require.NoError(t, err)
		require.NoError(t, r.end())
		assert.Equal(t, client.StopResult{Schema: client.Schema, RingsEnabled: true, MemoryKept: true, Warnings: []string{}}, *res)
		assert.ElementsMatch(t, before, r.memory.names())
		assert.NotZero(t, r.card.ConfigRead(csr.CfgCommand, 2)&csr.CfgCommandBusMaster, "the card goes on")
	})
	t.Run("twice, and a signal, are one", func(t *testing.T) {
		t.Parallel()
		r := start(t, rigOptions{}).running()
		var wg sync.WaitGroup
		for range 4 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				_, err := r.client.Stop(context.Background(), false)
				if !errors.Is(err, client.ErrNoDaemon) {
					assert.NoError(t, err)
				}
			}()
		}
		r.cancel()
		require.NoError(t, r.end())
		wg.Wait()
		assert.Equal(t, 1, strings.Count(r.log.String(), "msg=stopping"))
	})
}

func TestStopUnderTraffic(t *testing.T) {
	t.Parallel()
	r := start(t, rigOptions{}).running()
	r.mustIP("link", "set", "oxp9", "up")
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		f := frameOf(1514)
		for {
			select {
			case <-stop:
				return
			default:
				if r.card.Wire(1).Backlog() < 64 {
					r.card.Wire(1).Send(f)
				}
			}
		}
	}()
	defer func() { close(stop); wg.Wait() }()
	r.wait("traffic", func() bool {
		s, err := r.client.Stats(context.Background(), "oxp9")
		return err == nil && s.Ports[0].Counters["rx_packets"] > 1000
	})
	// Nothing of the card may be touched once memory is released: the card reports it.
	r.cancel()
	require.NoError(t, r.end())
	r.faulty = true
	simtest.Clean(t, r.card, hwsim.ReportBusMasterOff)
}

func TestStopWaitsForEveryPart(t *testing.T) {
	t.Parallel()
	r := start(t, rigOptions{}).running()
	r.d.tasks.Add(1) // a part that takes its time
	r.cancel()
	r.wait("stopping", func() bool { return strings.Contains(r.log.String(), "msg=stopping") })
	time.Sleep(time.Second) // a window to go on in: closing twelve interfaces takes a while
	r.link("oxp9")
	assert.NotZero(t, r.card.ConfigRead(csr.CfgCommand, 2)&csr.CfgCommandBusMaster)
	r.d.tasks.Done()
	require.NoError(t, r.end())
}

func TestInterfaceChangesWhileItStops(t *testing.T) {
	t.Parallel()
	for i := range 5 {
		r := start(t, rigOptions{}).running()
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				select {
				case <-stop:
					return
				default:
					_, _ = r.ip("link", "set", "oxp9", "mtu", "1400")
					_, _ = r.ip("link", "set", "oxp9", "mtu", "1500")
				}
			}
		}()
		time.Sleep(time.Duration(i*7) * time.Millisecond) // another moment each time
		r.cancel()
		require.NoError(t, r.end())
		close(stop)
		wg.Wait()
	}
}

// descriptors counts this process's open files.
func descriptors(t *testing.T) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(d)
}

func TestCardLost(t *testing.T) {
	t.Parallel()
	for _, after := range []time.Duration{0, 10 * time.Millisecond, 500 * time.Millisecond} {
		t.Run(after.String(), func(t *testing.T) {
			t.Parallel()
			r := start(t, rigOptions{}).running()
			r.faulty = true
			r.card.Kill()
			time.Sleep(after)
			if after > 200*time.Millisecond {
				r.wait("noticed", func() bool { return strings.Contains(r.log.String(), lostText) })
				s := r.status()
				assert.Equal(t, client.StateGone, s.State)
				assert.False(t, s.Device.Alive)
				assert.Contains(t, strings.Join(s.Warnings, "\n"), "the card is lost")
				assert.Equal(t, client.CodeGone, code(r.setMTU("oxp9", 9000)))
				assert.Equal(t, client.LinkDown, r.port("oxp9").Link)
				seen := r.accesses.Load()
				time.Sleep(300 * time.Millisecond) // six sweeps, to be caught in
				r.cancel()
				require.NoError(t, r.end())
				assert.Equal(t, seen, r.accesses.Load(), "no BAR is touched after the loss")
				return
			}
			r.cancel()
			require.NoError(t, r.end())
			assert.Equal(t, 1, strings.Count(r.log.String(), "msg=stopping"))
		})
	}
}
