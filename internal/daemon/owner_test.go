package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/internal/mmio"
	"oxpd/internal/nwa"
	"oxpd/internal/port"
	"oxpd/lif"
	"oxpd/rpc"
	"oxpd/rpc/msg"
)

// leapClock is simulated time: a sleep is over at once and time has passed.
type leapClock struct {
	mu  sync.Mutex
	now time.Duration
}

func (c *leapClock) Now() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *leapClock) Sleep(ctx context.Context, d time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now += max(d, 0)
	return ctx.Err()
}

// fakeAgent answers as NetAgent about one port.
type fakeAgent struct {
	log      *[]string
	err      map[board.Tag]error // of MAC
	refuse   map[string]error    // by operation: state, set mac, promisc, allmulti
	mac      [6]byte             // named by SetMAC; 0: the card's own
	deaf     bool                // SetMAC is answered and not done
	forgot   bool                // as after a start: no address until it is raised
	up       bool
	promisc  bool
	allMulti bool
}

// note logs a request and answers it.
func (a *fakeAgent) note(op, format string, args ...any) error {
	*a.log = append(*a.log, fmt.Sprintf(op+" "+format, args...))
	return a.refuse[op]
}

func (a *fakeAgent) SetState(_ context.Context, tag board.Tag, up bool) error {
	err := a.note("state", "%v %v", tag, up)
	if err == nil {
		a.up, a.forgot = up, a.forgot && !up // an address comes with the first raise
	}
	return err
}

// ownMAC is the address of a fake card's port.
func ownMAC(tag board.Tag) [6]byte { return [6]byte{2, 0, 0, 0, byte(tag >> 8), byte(tag)} }

func (a *fakeAgent) MAC(_ context.Context, tag board.Tag) ([6]byte, error) {
	_ = a.note("mac", "%v", tag)
	switch {
	case a.forgot:
		return [6]byte{}, nwa.ErrNoMAC
	case a.mac != [6]byte{}:
		return a.mac, a.err[tag]
	}
	return ownMAC(tag), a.err[tag]
}

func (a *fakeAgent) SetMAC(_ context.Context, tag board.Tag, mac [6]byte) error {
	err := a.note("set mac", "%v", tag)
	if err == nil && !a.deaf {
		a.mac = mac
	}
	return err
}

func (a *fakeAgent) SetPromisc(_ context.Context, tag board.Tag, on bool) error {
	err := a.note("promisc", "%v %v", tag, on)
	if err == nil {
		a.promisc = on
	}
	return err
}

func (a *fakeAgent) SetAllMulti(_ context.Context, tag board.Tag, on bool) error {
	err := a.note("allmulti", "%v %v", tag, on)
	if err == nil {
		a.allMulti = on
	}
	return err
}

func (a *fakeAgent) LinkUp(context.Context, board.Tag) (bool, error) { return true, nil }

func (a *fakeAgent) Hold(context.Context) (func(), error) { return func() {}, nil }

// start is a start of NetAgent: it has forgotten everything.
func (a *fakeAgent) start() {
	a.mac, a.forgot, a.up, a.promisc, a.allMulti = [6]byte{}, true, false, false, false
}

// fakeTable is the coprocessor's table of one LIF.
type fakeTable struct {
	log     *[]string
	entry   msg.LIF
	present bool
	err     error                    // of every command
	update  error                    // of LIF_ADD_UPDATE
	ignore  bool                     // rc 0 and nothing stored
	before  func(r msg.LIFUpdateReq) // in the middle of a command
	read    func()                   // each LIFRead
}

func (f *fakeTable) LIFRead(context.Context, uint32) (msg.LIF, bool, error) {
	if f.read != nil {
		f.read()
	}
	return f.entry, f.present, f.err
}

func (f *fakeTable) LIFUpdate(_ context.Context, r msg.LIFUpdateReq) error {
	line := fmt.Sprintf("lif mask %#x", uint16(r.Mask))
	switch r.Mask {
	case msg.MaskCreate, msg.MaskMTU:
		line += fmt.Sprintf(" mtu %d", r.LIF.MTU)
	case msg.MaskFwd:
		line += fmt.Sprintf(" mode %d", r.LIF.Fwd)
	case msg.MaskMAC:
		line += fmt.Sprintf(" mac %x", r.LIF.MAC)
	}
	*f.log = append(*f.log, line)
	if f.before != nil {
		f.before(r)
	}
	if err := errors.Join(f.err, f.update); err != nil {
		return err
	}
	if f.ignore {
		return nil
	}
	if r.Mask == msg.MaskCreate {
		f.entry, f.present = r.LIF, true
		return nil
	}
	if !f.present {
		return msg.RC(1).Err()
	}
	if r.Mask&msg.MaskMTU != 0 {
		f.entry.MTU = r.LIF.MTU
	}
	if r.Mask&msg.MaskMAC != 0 {
		f.entry.MAC = r.LIF.MAC
	}
	if r.Mask&msg.MaskFwd != 0 {
		f.entry.Fwd = r.LIF.Fwd
	}
	return nil
}

func (f *fakeTable) PPort(context.Context, msg.PPort) error {
	*f.log = append(*f.log, "bind")
	return f.err
}

// fakeIface is the kernel's interface.
type fakeIface struct {
	log      *[]string
	mtu      int
	limit    int
	mac      [6]byte
	isUp     bool
	promisc  bool
	allMulti bool
	bridge   string
	carrier  bool
	err      error  // of SetMTU
	refuse   error  // of SetMAC, SetUp, SetPromisc
	lost     error  // of Link
	changed  func() // called after each change, as the kernel's event
	during   func() // called while the carrier is set
}

// set logs a change and makes it, unless it is refused.
func (f *fakeIface) set(err error, change func(), format string, args ...any) error {
	*f.log = append(*f.log, "interface "+fmt.Sprintf(format, args...))
	if err != nil {
		return err
	}
	change()
	if f.changed != nil {
		f.changed()
	}
	return nil
}

func (f *fakeIface) Link() (port.Link, error) {
	return port.Link{
		Name: "oxp9", MTU: f.mtu, MAC: f.mac, Up: f.isUp, Promisc: f.promisc, AllMulti: f.allMulti, Bridge: f.bridge,
	}, f.lost
}

func (f *fakeIface) SetMTU(_ context.Context, mtu int) error {
	return f.set(f.err, func() { f.mtu, f.limit = mtu, max(f.limit, mtu) }, "mtu %d", mtu)
}

func (f *fakeIface) SetMAC(mac [6]byte) error {
	return f.set(f.refuse, func() { f.mac = mac }, "mac %x", mac)
}

func (f *fakeIface) SetUp(_ context.Context, up bool) error {
	return f.set(f.refuse, func() { f.isUp = up }, "up %v", up)
}

func (f *fakeIface) SetPromisc(_ context.Context, on bool) error {
	return f.set(f.refuse, func() { f.promisc = on }, "promisc %v", on)
}

func (f *fakeIface) SetLimit(mtu int) {
	*f.log = append(*f.log, fmt.Sprintf("limit %d", mtu))
	f.limit = mtu
}
func (f *fakeIface) SetCarrier(up bool) error {
	f.carrier = up
	if f.during != nil {
		f.during()
	}
	return nil
}

// bench is an owner with everything around it faked.
type bench struct {
	*owner
	log   []string
	clk   *leapClock
	agent *fakeAgent
	table *fakeTable
	iface *fakeIface
	limit lif.SwitchLimit // of the switch
	logs  bytes.Buffer
}

func newBench(t *testing.T, port int, mtu int) *bench {
	t.Helper()
	b := &bench{clk: &leapClock{}}
	b.agent = &fakeAgent{log: &b.log, err: map[board.Tag]error{}, refuse: map[string]error{}}
	b.table = &fakeTable{log: &b.log}
	b.iface = &fakeIface{log: &b.log}
	logger := slog.New(slog.NewTextHandler(&b.logs, nil))
	b.owner = newOwner(ownerConfig{
		port: board.ByIndex(port), agent: b.agent, clock: b.clk, log: logger, settings: portSettings{mtu: mtu},
		limit: func() lif.SwitchLimit { return b.limit },
		lifs:  lif.New(lif.Config{Table: b.table, Clock: b.clk, Logger: logger}),
		attach: func(_ context.Context, _ board.Port, mac [6]byte, mtu int) (iface, error) {
			b.log = append(b.log, fmt.Sprintf("attach mtu %d", mtu))
			*b.iface = fakeIface{log: &b.log, mtu: mtu, limit: mtu, mac: mac, err: b.iface.err, changed: b.iface.changed}
			return b.iface, nil
		},
		rejoin: func(iface) error { b.log = append(b.log, "rejoin"); return nil },
		detach: func(board.Port, iface) { b.log = append(b.log, "detach") },
		lost:   func() {},
	})
	return b
}

// up brings the port up and forgets what that took.
func (b *bench) up(t *testing.T) *bench {
	t.Helper()
	require.NoError(t, b.provision(context.Background()))
	b.log = nil
	return b
}

//oxpd:fault R49 behaviour
func TestProvisionOrder(t *testing.T) {
	t.Run("switch port: raise, MAC, filter, LIF, tag, interface", func(t *testing.T) {
		b := newBench(t, 2, 0)
		require.NoError(t, b.provision(context.Background()))
		assert.Equal(t, []string{"state 0x8300 true", "mac 0x8300", "set mac 0x8300", "lif mask 0xff mtu 1500", "bind", "attach mtu 1500"}, b.log)
		assert.True(t, b.snapshot().up)
	})
	t.Run("cage: its MAC filters by itself", func(t *testing.T) {
		b := newBench(t, 8, 0)
		require.NoError(t, b.provision(context.Background()))
		assert.Equal(t, []string{"state 0x0001 true", "mac 0x0001", "lif mask 0xff mtu 1500", "bind", "attach mtu 1500"}, b.log)
	})
	t.Run("a live LIF is adopted with its mtu", func(t *testing.T) {
		b := newBench(t, 8, 0)
		b.table.present, b.table.entry = true, msg.LIF{MAC: [6]byte{2, 0, 0, 0, 0, 1}, MTU: 9000, Fwd: msg.FwdL3}
		require.NoError(t, b.provision(context.Background()))
		assert.Equal(t, []string{"state 0x0001 true", "mac 0x0001", "bind", "attach mtu 9000"}, b.log)
		assert.Equal(t, 9000, b.want.mtu)
	})
	t.Run("mtu of the configuration comes last", func(t *testing.T) {
		b := newBench(t, 8, 9000)
		require.NoError(t, b.provision(context.Background()))
		assert.Equal(t, []string{"attach mtu 1500", "limit 9000", "lif mask 0x2 mtu 9000", "interface mtu 9000"}, b.log[4:])
	})
}

// A port whose card was lost and is back: the interface stays, what was wanted is told
// anew, and a port that was lowered is not raised on the way.
func TestProvisionOfACardThatIsBack(t *testing.T) {
	ctx := context.Background()
	lose := func(b *bench) {
		ended, end := context.WithCancelCause(ctx)
		end(errCardGone)
		b.run(ended)
		b.lifs.(*lif.Manager).Forget()
		b.table.present = false
		_, _, err := b.carry(false)
		require.NoError(t, err)
		b.cardLost()
		b.log = nil
	}
	t.Run("with what was set", func(t *testing.T) {
		b := newBench(t, 8, 9000).up(t)
		require.NoError(t, b.setLink(true))
		lose(b)
		v := b.snapshot()
		assert.False(t, v.up)
		assert.NotNil(t, v.iface)
		assert.Equal(t, client.LinkDown, v.link)
		assert.False(t, b.serves())
		require.ErrorIs(t, b.ask(ctx, func(context.Context) error { panic("done") }), mmio.ErrGone)
		b.cardBack(b.agent)
		assert.True(t, b.serves())
		require.NoError(t, b.provision(ctx))
		assert.Equal(t, []string{"state 0x0001 true", "mac 0x0001", "lif mask 0xff mtu 9000", "bind", "rejoin"}, b.log[:5])
		assert.NotContains(t, strings.Join(b.log, "\n"), "attach")
		assert.Zero(t, b.snapshot().forgot, "a loss of the card is none of the fast path's")
	})
	t.Run("lowered", func(t *testing.T) {
		b := newBench(t, 8, 0).up(t)
		require.NoError(t, b.setUp(ctx, true))
		require.NoError(t, b.setUp(ctx, false))
		lose(b)
		b.cardBack(b.agent)
		require.NoError(t, b.provision(ctx))
		assert.NotContains(t, b.log, "state 0x0001 true")
		assert.Contains(t, b.log, "state 0x0001 false")
	})
	t.Run("the interface was removed meanwhile", func(t *testing.T) {
		b := newBench(t, 8, 0).up(t)
		lose(b)
		b.rejoin = func(iface) error { return port.ErrRemoved }
		b.cardBack(b.agent)
		require.NoError(t, b.provision(ctx))
		assert.Contains(t, strings.Join(b.log, "\n"), "detach\nattach mtu 1500")
	})
	t.Run("a request that came too late for the card is never done", func(t *testing.T) {
		b := newBench(t, 8, 0).up(t)
		lose(b)
		require.Error(t, b.ask(ctx, func(context.Context) error { panic("done") }))
		b.cardBack(b.agent)
		soon, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		b.run(soon)
	})
}

func TestRefusedMAC(t *testing.T) {
	b := newBench(t, 2, 0)
	refused := errors.New("status 1")
	b.agent.err[0x8300] = refused
	ctx := context.Background()
	require.ErrorIs(t, b.provision(ctx), refused)
	assert.Equal(t, []string{"state 0x8300 true", "mac 0x8300"}, b.log, "nothing is done with an address that was refused")
	v := b.snapshot()
	assert.False(t, v.up)
	assert.False(t, v.haveMAC)
	assert.Equal(t, "the card to name the port's MAC address", v.awaiting)

	t.Run("pauses grow to a minute", func(t *testing.T) {
		var pauses []time.Duration
		for range 8 {
			v := b.snapshot()
			pauses = append(pauses, v.retryAt-b.clk.Now())
			assert.False(t, b.due(b.clk.Now()))
			b.clk.now = v.retryAt
			assert.True(t, b.due(b.clk.Now()))
			require.Error(t, b.provision(ctx))
		}
		s := time.Second
		assert.Equal(t, []time.Duration{2 * s, 4 * s, 8 * s, 16 * s, 32 * s, 60 * s, 60 * s, 60 * s}, pauses)
	})
	t.Run("and it comes up when the refusal ends", func(t *testing.T) {
		delete(b.agent.err, 0x8300)
		require.NoError(t, b.provision(ctx))
		assert.True(t, b.snapshot().up)
		assert.NoError(t, b.snapshot().err)
	})
}

//oxpd:fault D22 behaviour
func TestSetMTU(t *testing.T) {
	refused := msg.RC(1).Err()
	timeout := &rpc.TimeoutError{What: "LIF_ADD_UPDATE"}
	for _, tc := range []struct {
		name  string
		from  int
		to    int
		set   func(b *bench)
		log   []string
		lif   int // afterwards
		iface int
		code  client.Code
	}{
		{
			name: "raise: limit, LIF, interface", from: 1500, to: 9000,
			log: []string{"limit 9000", "lif mask 0x2 mtu 9000", "interface mtu 9000"}, lif: 9000, iface: 9000,
		},
		{
			name: "lower: LIF, interface, limit after the frames on their way", from: 9000, to: 1500,
			log: []string{"limit 9000", "lif mask 0x2 mtu 1500", "interface mtu 1500"}, lif: 1500, iface: 1500,
		},
		{
			name: "smallest", from: 1500, to: 72,
			log: []string{"limit 1500", "lif mask 0x2 mtu 72", "interface mtu 72"}, lif: 72, iface: 72,
		},
		{
			name: "LIF refuses: old on both", from: 1500, to: 9000, set: func(b *bench) { b.table.update = refused },
			log: []string{"limit 9000", "lif mask 0x2 mtu 9000", "limit 1500"}, lif: 1500, iface: 1500, code: client.CodeRefused,
		},
		{
			name: "LIF accepts and keeps the old: old on both", from: 1500, to: 9000, set: func(b *bench) { b.table.ignore = true },
			log: []string{"limit 9000", "lif mask 0x2 mtu 9000", "limit 1500"}, lif: 1500, iface: 1500, code: client.CodeRefused,
		},
		{
			name: "no answer: old on both", from: 1500, to: 9000, set: func(b *bench) { b.table.update = timeout },
			log: []string{"limit 9000", "lif mask 0x2 mtu 9000", "limit 1500"}, lif: 1500, iface: 1500, code: client.CodeTimeout,
		},
		{
			name: "card gone", from: 1500, to: 9000, set: func(b *bench) { b.table.update = mmio.ErrGone },
			log: []string{"limit 9000", "lif mask 0x2 mtu 9000", "limit 1500"}, lif: 1500, iface: 1500, code: client.CodeGone,
		},
		{
			name: "interface refuses: the LIF is put back", from: 1500, to: 9000, set: func(b *bench) { b.iface.err = errors.New("EBUSY") },
			log: []string{"limit 9000", "lif mask 0x2 mtu 9000", "interface mtu 9000", "lif mask 0x2 mtu 1500"},
			lif: 1500, iface: 1500, code: client.CodeRefused,
		},
		{name: "one below", from: 1500, to: 71, lif: 1500, iface: 1500, code: client.CodeUsage},
		{name: "one above", from: 1500, to: 9001, lif: 1500, iface: 1500, code: client.CodeUsage},
		{name: "negative", from: 1500, to: -1, lif: 1500, iface: 1500, code: client.CodeUsage},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, 8, 0).up(t)
			ctx := context.Background()
			if tc.from != b.want.mtu {
				require.NoError(t, b.setMTU(ctx, tc.from, false))
				b.settle(ctx)
				b.log = nil
			}
			if tc.set != nil {
				tc.set(b)
			}
			err := b.setMTU(ctx, tc.to, false)
			assert.Equal(t, tc.log, b.log)
			assert.Equal(t, tc.lif, int(b.table.entry.MTU), "LIF")
			assert.Equal(t, tc.iface, b.iface.mtu, "interface")
			if tc.code == "" {
				require.NoError(t, err)
			} else {
				require.Error(t, err)
				assert.Equal(t, tc.code, describe(err).Code, "%v", err)
			}
			b.settle(ctx)
			assert.Equal(t, tc.iface, b.iface.limit, "limit once frames on their way have passed")
		})
	}
}

func TestLIFThatIsNotPutBackIsTriedAgain(t *testing.T) {
	b := newBench(t, 8, 0).up(t)
	ctx := context.Background()
	b.iface.err = errors.New("EBUSY")
	b.table.before = func(r msg.LIFUpdateReq) {
		if r.LIF.MTU == 1500 {
			b.table.update = msg.RC(1).Err()
		}
	}
	err := b.setMTU(ctx, 9000, false)
	require.ErrorContains(t, err, "which is tried again")
	assert.Equal(t, 9000, int(b.table.entry.MTU))
	b.iface.err, b.table.update, b.table.before = nil, nil, nil
	require.NoError(t, b.reconcile(ctx))
	assert.Equal(t, 1500, int(b.table.entry.MTU))
	assert.Equal(t, 1500, b.iface.mtu)
}

func TestInterfaceChangedByOthers(t *testing.T) {
	for _, tc := range []struct {
		name  string
		to    int
		set   func(b *bench)
		log   []string
		lif   int
		iface int
	}{
		{name: "raised: the LIF follows", to: 9000, log: []string{"limit 9000", "lif mask 0x2 mtu 9000"}, lif: 9000, iface: 9000},
		{name: "lowered: the LIF follows", to: 1400, log: []string{"limit 1500", "lif mask 0x2 mtu 1400"}, lif: 1400, iface: 1400},
		{
			name: "LIF refuses: put back", to: 9000, set: func(b *bench) { b.table.update = msg.RC(1).Err() },
			log: []string{"limit 9000", "lif mask 0x2 mtu 9000", "interface mtu 1500"}, lif: 1500, iface: 1500,
		},
		{name: "more than a LIF takes: put back", to: 9001, log: []string{"interface mtu 1500"}, lif: 1500, iface: 1500},
		{name: "less than a LIF takes: put back", to: 71, log: []string{"interface mtu 1500"}, lif: 1500, iface: 1500},
		{name: "old news", to: 1500, lif: 1500, iface: 1500},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, 8, 0).up(t)
			ctx := context.Background()
			b.iface.mtu = tc.to
			if tc.set != nil {
				tc.set(b)
			}
			_ = b.follow(ctx, false)
			assert.Equal(t, tc.log, b.log)
			assert.Equal(t, tc.lif, int(b.table.entry.MTU), "LIF")
			assert.Equal(t, tc.iface, b.iface.mtu, "interface")
			b.settle(ctx)
			assert.Equal(t, tc.iface, b.iface.limit)
			b.log = nil
			_ = b.follow(ctx, false) // the news of what was just done
			assert.Empty(t, b.log, "own changes are recognised")
		})
	}
}

// TestSwitchLimitOfAChange: who may change a port's MTU to what, and what stands.
func TestSwitchLimitOfAChange(t *testing.T) {
	const port1, f1 = 0, 8
	type step struct {
		by    string // "command", "force", "netlink", or "limit" for another limit
		value int
		mtu   int    // in force then, on LIF and interface
		err   string // part of the refusal; "" accepted
		logs  string // part of what is logged; "" nothing about the switch
	}
	const beyond, dropped, unknown = "is more than the switch before it passes", "longer frames vanish in the switch", "is unknown"
	for _, tc := range []struct {
		name  string
		port  int
		limit int
		steps []step
	}{
		{"known: up to it", port1, 2048, []step{{"command", 2030, 2030, "", ""}, {"command", 2031, 2030, beyond, ""}, {"command", 9000, 2030, beyond, ""}}},
		{"known, with the usual tools", port1, 2048, []step{{"netlink", 2030, 2030, "", ""}, {"netlink", 2031, 2030, beyond, ""}, {"netlink", 9000, 2030, beyond, ""}}},
		{"known: none for PortF1", f1, 2048, []step{{"command", 9000, 9000, "", ""}, {"netlink", 8000, 8000, "", ""}}},
		{"unknown: accepted, with a warning", port1, 0, []step{{"command", 1504, 1504, "", ""}, {"command", 1505, 1505, "", unknown}, {"netlink", 9000, 9000, "", unknown}}},
		{"jumbo mode", port1, 10240, []step{{"command", 9000, 9000, "", ""}}},
		{"forced: stands, until it is changed", port1, 2048, []step{
			{"force", 9000, 9000, "", dropped},
			{"netlink", 9000, 9000, "", ""}, // the news of it, or the same value again
			{"command", 9000, 9000, "", ""},
			{"command", 8999, 9000, beyond, ""},
			{"netlink", 9001, 9000, "out of range", ""},
			{"netlink", 2031, 9000, beyond, ""},
			{"command", 2000, 2000, "", ""},
			{"netlink", 9000, 2000, beyond, ""},
			{"command", 9000, 2000, beyond, ""},
		}},
		{"forced beyond what a LIF takes", port1, 2048, []step{{"force", 9001, 1500, "out of range", ""}}},
		{"a limit that comes down below an MTU leaves it", port1, 10240, []step{
			{"command", 9000, 9000, "", ""},
			{"limit", 2048, 9000, "", ""},
			{"netlink", 9000, 9000, "", ""},
			{"command", 8000, 9000, beyond, ""},
			{"command", 1500, 1500, "", ""},
			{"netlink", 9000, 1500, beyond, ""},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, tc.port, 0).up(t)
			b.limit = lif.SwitchLimit{Panel: tc.limit}
			ctx := context.Background()
			for i, s := range tc.steps {
				b.logs.Reset()
				var err error
				switch s.by {
				case "command", "force":
					if err = b.setMTU(ctx, s.value, s.by == "force"); s.err == beyond {
						assert.Equal(t, client.CodeRefused, describe(err).Code)
						assert.Contains(t, describe(err).Hint, "--force")
					}
				case "netlink":
					b.iface.mtu = s.value
					err = b.follow(ctx, false)
				case "limit":
					b.limit = lif.SwitchLimit{Panel: s.value}
				}
				require.NoError(t, b.reconcile(ctx))
				if s.err == "" {
					require.NoError(t, err, "step %d, %+v", i, s)
				} else {
					require.ErrorContains(t, err, s.err, "step %d, %+v", i, s)
				}
				assert.Equal(t, s.mtu, int(b.table.entry.MTU), "LIF after step %d, %+v", i, s)
				assert.Equal(t, s.mtu, b.iface.mtu, "interface after step %d, %+v", i, s)
				if s.logs == "" {
					assert.NotContains(t, b.logs.String(), "may not pass the switch")
				} else {
					assert.Contains(t, b.logs.String(), s.logs)
				}
			}
		})
	}
	t.Run("one that is made again keeps it", func(t *testing.T) {
		b := newBench(t, port1, 0).up(t)
		ctx := context.Background()
		b.limit = lif.SwitchLimit{Panel: 2048}
		require.NoError(t, b.setMTU(ctx, 9000, true))
		b.table.present = false // the fast path was restarted
		b.iface.lost = port.ErrRemoved
		require.NoError(t, b.reconcile(ctx))
		b.iface.lost = nil
		require.NoError(t, b.provision(ctx))
		assert.Equal(t, 9000, int(b.table.entry.MTU))
		assert.Equal(t, 9000, b.iface.mtu)
	})
	t.Run("what was forced is put back without a second force", func(t *testing.T) {
		b := newBench(t, port1, 0).up(t)
		ctx := context.Background()
		b.limit = lif.SwitchLimit{Panel: 2048}
		require.NoError(t, b.setMTU(ctx, 9000, true))
		b.iface.err = errors.New("EBUSY")
		b.table.before = func(r msg.LIFUpdateReq) {
			if r.LIF.MTU == 9000 {
				b.table.update = msg.RC(1).Err()
			}
		}
		require.ErrorContains(t, b.setMTU(ctx, 1500, false), "which is tried again")
		b.iface.err, b.table.update, b.table.before = nil, nil, nil
		require.NoError(t, b.reconcile(ctx))
		assert.Equal(t, 9000, int(b.table.entry.MTU))
		assert.Equal(t, 9000, b.iface.mtu)
	})
}

func TestDrainTakesTwoSweeps(t *testing.T) {
	b := newBench(t, 8, 0).up(t)
	ctx := context.Background()
	require.NoError(t, b.setMTU(ctx, 9000, false))
	b.settle(ctx)
	at := b.clk.Now()
	require.NoError(t, b.setMTU(ctx, 1500, false))
	assert.Equal(t, 9000, b.iface.limit, "a frame that the LIF let through is not too long")
	b.settle(ctx)
	assert.Equal(t, 1500, b.iface.limit)
	assert.Equal(t, drainTime, b.clk.Now()-at)
	b.settle(ctx)
	assert.Equal(t, drainTime, b.clk.Now()-at, "nothing to wait for")
}

// serve runs the owner until the test ends or end is called.
func (b *bench) serve(t *testing.T) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { b.run(ctx); close(done) }()
	end = func() { cancel(); <-done }
	t.Cleanup(end)
	return end
}

// askMTU is what the control socket asks.
func (b *bench) askMTU(ctx context.Context, mtu int) error {
	return b.ask(ctx, func(ctx context.Context) error { return b.setMTU(ctx, mtu, false) })
}

// settled waits until everything marked and asked for before is done.
func (b *bench) settled(t *testing.T) {
	t.Helper()
	require.NoError(t, b.ask(context.Background(), func(context.Context) error { return nil }))
}

func TestQueue(t *testing.T) {
	ctx := context.Background()
	t.Run("own change and its news", func(t *testing.T) {
		b := newBench(t, 8, 0).up(t)
		b.iface.changed = func() { b.notice(markIface) }
		b.serve(t)
		require.NoError(t, b.askMTU(ctx, 9000))
		require.NoError(t, b.askMTU(ctx, 1500))
		b.settled(t)
		lifs := 0
		for _, l := range b.log {
			if l == "lif mask 0x2 mtu 9000" || l == "lif mask 0x2 mtu 1500" {
				lifs++
			}
		}
		assert.Equal(t, 2, lifs)
	})
	t.Run("a request that nobody waits for is not begun", func(t *testing.T) {
		b := newBench(t, 8, 0).up(t)
		gone, cancel := context.WithCancel(ctx)
		asked := make(chan error)
		go func() { asked <- b.askMTU(gone, 9000) }()
		require.Eventually(t, func() bool { return len(b.reqs) == 1 }, hang, time.Millisecond)
		cancel()
		err := <-asked
		require.ErrorIs(t, err, context.Canceled)
		assert.NotErrorIs(t, err, errUnderWay)
		b.serve(t)
		b.settled(t)
		assert.Empty(t, b.log)
		assert.Equal(t, 1500, int(b.table.entry.MTU))
		require.ErrorIs(t, b.askMTU(gone, 9000), context.Canceled, "nor put into the queue")
	})
	t.Run("one that has begun is said to be under way", func(t *testing.T) {
		b := newBench(t, 8, 0).up(t)
		begun, answer := make(chan struct{}), make(chan struct{})
		b.table.before = func(msg.LIFUpdateReq) { close(begun); <-answer }
		b.serve(t)
		release := sync.OnceFunc(func() { close(answer) })
		t.Cleanup(release)
		gone, cancel := context.WithCancel(ctx)
		asked := make(chan error)
		go func() { asked <- b.askMTU(gone, 9000) }()
		<-begun
		cancel()
		err := <-asked
		require.ErrorIs(t, err, errUnderWay)
		require.ErrorIs(t, err, context.Canceled)
		assert.Contains(t, describe(err).Hint, "oxpd mtu oxp9")
		release()
		b.settled(t)
		assert.Equal(t, 9000, int(b.table.entry.MTU), "and it was done")
		assert.Equal(t, 9000, b.iface.mtu)
	})
	t.Run("no number of events takes a place from somebody who asks", func(t *testing.T) {
		b := newBench(t, 8, 0).up(t)
		for range 10 * queueSize {
			b.notice(markIface)
			b.notice(markReconcile)
		}
		b.serve(t)
		assert.NoError(t, b.askMTU(ctx, 9000))
		assert.Equal(t, 9000, b.iface.mtu)
	})
	t.Run("full: requests are refused, marks are not lost", func(t *testing.T) {
		b := newBench(t, 8, 0).up(t)
		for range queueSize {
			b.reqs <- &request{do: func(context.Context) error { return nil }, reply: make(chan error, 1)}
		}
		err := b.askMTU(ctx, 9000)
		assert.ErrorIs(t, err, errBusy)
		assert.Contains(t, describe(err).Hint, "ask again in a moment")
		b.iface.lost = port.ErrRemoved
		b.notice(markIface)
		b.notice(markIface) // the same one
		b.serve(t)
		require.Eventually(t, func() bool { return !b.snapshot().up }, hang, time.Millisecond, "a removed interface is noticed all the same")
		b.iface.lost = nil
		b.notice(markProvision)
		require.Eventually(t, func() bool { return b.snapshot().up }, hang, time.Millisecond)
		require.Eventually(t, func() bool { return len(b.reqs) == 0 }, hang, time.Millisecond)
		b.settled(t)
		assert.Equal(t, []string{"detach", "state 0x0001 true", "mac 0x0001", "attach mtu 1500"}, b.log)
	})
	t.Run("a waiting port is not tried before its pause is over", func(t *testing.T) {
		b := newBench(t, 2, 0)
		b.agent.err[0x8300] = errors.New("status 1")
		b.serve(t)
		b.notice(markProvision)
		require.Eventually(t, func() bool { return b.snapshot().err != nil }, hang, time.Millisecond)
		b.notice(markProvision)
		b.settled(t)
		assert.Equal(t, []string{"state 0x8300 true", "mac 0x8300"}, b.log)
	})
	t.Run("before the port is up", func(t *testing.T) {
		b := newBench(t, 8, 0)
		b.serve(t)
		err := b.askMTU(ctx, 9000)
		require.ErrorIs(t, err, errNotUp)
		assert.Equal(t, client.CodeNotReady, describe(err).Code)
	})
}

func TestStopInTheMiddleOfAChange(t *testing.T) {
	stopIn := func(t *testing.T, b *bench, change func()) (asked, queued error) {
		t.Helper()
		ctx, cancel := context.WithCancel(context.Background())
		begun, answer := make(chan struct{}), make(chan struct{})
		var once sync.Once
		b.table.before = func(msg.LIFUpdateReq) {
			once.Do(func() { close(begun); <-answer })
		}
		done, first, second := make(chan struct{}), make(chan error, 1), make(chan error, 1)
		go func() { b.run(ctx); close(done) }()
		go func() {
			if change != nil {
				change()
				first <- nil
				return
			}
			first <- b.askMTU(context.Background(), 9000)
		}()
		<-begun
		go func() { second <- b.askMTU(context.Background(), 2000) }()
		require.Eventually(t, func() bool { return len(b.reqs) == 1 }, hang, time.Millisecond)
		cancel()
		close(answer)
		<-done
		return <-first, <-second
	}
	t.Run("it is finished, and what waits is refused", func(t *testing.T) {
		b := newBench(t, 8, 0).up(t)
		asked, queued := stopIn(t, b, nil)
		require.NoError(t, asked)
		assert.Equal(t, 9000, int(b.table.entry.MTU))
		assert.Equal(t, 9000, b.iface.mtu)
		require.ErrorIs(t, queued, errStopping)
		assert.Equal(t, client.CodeNotReady, describe(queued).Code)
		require.ErrorIs(t, b.askMTU(context.Background(), 2000), errStopping, "and so is what comes later")
	})
	t.Run("it is put back when the interface refuses", func(t *testing.T) {
		b := newBench(t, 8, 0).up(t)
		b.iface.err = errors.New("EBUSY")
		asked, _ := stopIn(t, b, nil)
		require.ErrorIs(t, asked, b.iface.err)
		assert.Equal(t, 1500, int(b.table.entry.MTU))
		assert.Equal(t, 1500, b.iface.mtu)
	})
	t.Run("one of the interface is followed", func(t *testing.T) {
		b := newBench(t, 8, 0).up(t)
		_, _ = stopIn(t, b, func() { b.iface.mtu = 9000; b.notice(markIface) })
		assert.Equal(t, 9000, int(b.table.entry.MTU))
		assert.Equal(t, 9000, b.iface.mtu)
	})
}

func TestRefusedRequestLeavesThePendingMTU(t *testing.T) {
	ctx := context.Background()
	for _, tc := range []struct {
		name string
		set  func(b *bench)
	}{
		{"LIF refuses", func(b *bench) { b.table.update = msg.RC(1).Err() }},
		{"interface refuses", func(b *bench) { b.iface.err = errors.New("EBUSY") }},
		{"interface refuses and the LIF is not put back", func(b *bench) {
			b.iface.err = errors.New("EBUSY")
			b.table.before = func(r msg.LIFUpdateReq) {
				if r.LIF.MTU == 1500 {
					b.table.update = msg.RC(1).Err()
				}
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, 8, 9000)
			b.table.present, b.table.entry = true, msg.LIF{MAC: [6]byte{2, 0, 0, 0, 0, 1}, MTU: 1500, Fwd: msg.FwdL3}
			tc.set(b)
			require.NoError(t, b.provision(ctx))
			assert.Error(t, b.snapshot().err, "shown")
			require.Error(t, b.setMTU(ctx, 2000, false))
			b.table.update, b.iface.err, b.table.before = nil, nil, nil
			require.NoError(t, b.reconcile(ctx))
			assert.Equal(t, 9000, int(b.table.entry.MTU), "as configured")
			assert.Equal(t, 9000, b.iface.mtu)
			assert.NoError(t, b.snapshot().err)
		})
	}
	t.Run("one that succeeds replaces it", func(t *testing.T) {
		b := newBench(t, 8, 9000)
		b.table.present, b.table.entry = true, msg.LIF{MAC: [6]byte{2, 0, 0, 0, 0, 1}, MTU: 1500, Fwd: msg.FwdL3}
		b.table.update = msg.RC(1).Err()
		require.NoError(t, b.provision(ctx))
		b.table.update = nil
		require.NoError(t, b.setMTU(ctx, 2000, false))
		require.NoError(t, b.reconcile(ctx))
		assert.Equal(t, 2000, int(b.table.entry.MTU))
	})
}

func TestErrorsOfAChangeAreShown(t *testing.T) {
	ctx := context.Background()
	b := newBench(t, 8, 0).up(t)
	refused := msg.RC(1).Err()
	b.iface.mtu, b.table.update = 9000, refused
	b.notice(markIface)
	b.heed(ctx)
	require.ErrorIs(t, b.snapshot().err, refused)
	assert.ErrorContains(t, b.snapshot().err, "was put back to 1500")
	b.table.update = nil
	require.NoError(t, b.reconcile(ctx))
	assert.NoError(t, b.snapshot().err, "until the next look finds nothing")

	for name, succeed := range map[string]func(){
		"netlink": func() { b.iface.mtu = 2000; b.notice(markIface); b.heed(ctx) },
		"request": func() { require.NoError(t, b.setMTU(ctx, 3000, false)) },
	} {
		b.iface.mtu = 9001
		b.notice(markIface)
		b.heed(ctx)
		require.ErrorContains(t, b.snapshot().err, "mtu 9001", name)
		succeed()
		assert.NoError(t, b.snapshot().err, "or until a change succeeds, by %s", name)
		assert.Empty(t, b.snapshot().mtuBack, name)
	}
	b.iface.mac = group
	b.notice(markIface)
	b.heed(ctx)
	require.ErrorContains(t, b.snapshot().err, "was put back to "+hwAddr(b.want.mac))
	b.iface.mac = foreign
	b.notice(markIface)
	b.heed(ctx)
	assert.NoError(t, b.snapshot().err, "the same for an address")

	b.iface.lost = errors.New("ENOBUFS")
	b.notice(markIface)
	b.heed(ctx)
	require.ErrorIs(t, b.snapshot().err, b.iface.lost)
	assert.True(t, b.snapshot().up, "no answer is not the same as gone")
}

func TestChannelThatIsClosedDoesNotLengthenPauses(t *testing.T) {
	ctx := context.Background()
	b := newBench(t, 8, 0)
	b.table.err = &rpc.StalledError{Cause: rpc.ErrTimeout}
	for range 8 {
		require.Error(t, b.provision(ctx))
		left := b.snapshot().retryAt - b.clk.Now()
		assert.LessOrEqual(t, left, retryFirst)
		b.clk.now += left
	}
}

func TestReconcileRepairs(t *testing.T) {
	b := newBench(t, 8, 0).up(t)
	b.table.entry.MTU = 9000 // somebody else
	require.NoError(t, b.reconcile(context.Background()))
	assert.Equal(t, []string{"lif mask 0x2 mtu 1500", "mac 0x0001"}, b.log)
	assert.Equal(t, uint64(1), b.snapshot().drift)
	b.table.present = false
	b.log = nil
	require.NoError(t, b.reconcile(context.Background()))
	assert.Equal(t, []string{
		"lif mask 0xff mtu 1500", "bind", // and a fast path that has started anew takes NetAgent with it
		"state 0x0001 true", "set mac 0x0001", "mac 0x0001", "promisc 0x0001 false", "allmulti 0x0001 false",
	}, b.log)
	b.log = nil
	require.NoError(t, b.reconcile(context.Background()))
	assert.Equal(t, []string{"mac 0x0001"}, b.log, "once")
}

func TestInterfaceRemovedByOthers(t *testing.T) {
	b := newBench(t, 8, 0).up(t)
	b.iface.lost = fmt.Errorf("port: read MTU of oxp9: %w", port.ErrRemoved)
	require.NoError(t, b.reconcile(context.Background()), "also when no news came")
	b.iface.lost = nil
	v := b.snapshot()
	assert.False(t, v.up)
	assert.True(t, b.due(b.clk.Now()))
	require.NoError(t, b.provision(context.Background()))
	assert.Equal(t, []string{"mac 0x0001", "detach", "state 0x0001 true", "mac 0x0001", "attach mtu 1500"}, b.log)
}

// TestInterfaceMadeAgain is down and not promiscuous, as the kernel makes it, but for
// what the configuration asks for and nobody has set otherwise since.
func TestInterfaceMadeAgain(t *testing.T) {
	yes, no := true, false
	for _, tc := range []struct {
		name          string
		settings      portSettings
		since         func(i *fakeIface)
		isUp, promisc bool
	}{
		{"nothing configured", portSettings{}, func(i *fakeIface) { i.isUp, i.promisc = true, true }, false, false},
		{"up and promiscuous", portSettings{up: &yes, promisc: &yes}, func(*fakeIface) {}, true, true},
		{"set otherwise since", portSettings{up: &yes, promisc: &yes}, func(i *fakeIface) { i.isUp, i.promisc = false, false }, false, false},
		{"configured down", portSettings{up: &no, promisc: &no}, func(*fakeIface) {}, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx := context.Background()
			b := newBench(t, 8, 0).up(t)
			require.NoError(t, b.apply(ctx, tc.settings))
			tc.since(b.iface)
			require.NoError(t, b.follow(ctx, false))
			wanted := b.want.up
			b.iface.lost = fmt.Errorf("port: read MTU of oxp9: %w", port.ErrRemoved)
			require.NoError(t, b.reconcile(ctx))
			require.False(t, b.snapshot().up)
			require.NoError(t, b.provision(ctx))
			assert.Equal(t, tc.isUp, b.iface.isUp)
			assert.Equal(t, tc.promisc, b.iface.promisc)
			assert.Equal(t, wanted, b.want.up)
			b.agree(t)
		})
	}
}

func TestLink(t *testing.T) {
	b := newBench(t, 8, 0)
	require.NoError(t, b.setLink(true))
	assert.False(t, b.iface.carrier, "no interface yet")
	b.up(t)
	assert.Equal(t, client.LinkUnknown, b.snapshot().link)
	require.NoError(t, b.setLink(true))
	assert.True(t, b.iface.carrier)
	require.NoError(t, b.setLink(false))
	assert.False(t, b.iface.carrier)

	t.Run("an interface that is made meanwhile has no carrier and no link", func(t *testing.T) {
		b := newBench(t, 8, 0).up(t)
		b.iface.during = func() {
			b.ifaceGone()
			b.iface = &fakeIface{log: &b.log}
			require.NoError(t, b.provision(context.Background()))
		}
		require.NoError(t, b.setLink(true))
		assert.Equal(t, client.LinkUnknown, b.snapshot().link)
		assert.False(t, b.iface.carrier)
		require.NoError(t, b.setLink(true), "the next look at the link")
		assert.Equal(t, client.LinkUp, b.snapshot().link)
		assert.True(t, b.iface.carrier)
	})
}
