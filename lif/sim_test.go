package lif_test

import (
	"context"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/board"
	"oxpd/internal/dma"
	"oxpd/internal/simdev"
	"oxpd/internal/simdev/simtest"
	"oxpd/lif"
	"oxpd/octep"
	"oxpd/octep/csr"
	"oxpd/rpc"
	"oxpd/rpc/msg"
)

var (
	bg      = context.Background()
	discard = slog.New(slog.NewTextHandler(io.Discard, nil))
)

// sim is a simulated card in stepped time, with a manager over its rpc channel.
type sim struct {
	*hwsim.Card
	channel *rpc.Channel
	*lif.Manager
}

func newSim(t *testing.T, o hwsim.Options) *sim {
	t.Helper()
	if o.Timeline == (hwsim.Timeline{}) {
		o.Timeline = hwsim.Compressed()
	}
	card := hwsim.New(o)
	dev := simdev.New(card)
	simtest.Guard(t, card)
	t.Cleanup(func() {
		require.NoError(t, dev.Close())
		card.Close()
	})
	ep, err := octep.Open(bg, dev, octep.Config{Clock: card.Clock()})
	require.NoError(t, err)
	require.NoError(t, octep.SetBusMaster(dev, true))
	require.NoError(t, ep.WaitReady(bg))
	_, err = ep.NewHandshake(nil).Run(bg)
	require.NoError(t, err)
	fac, err := ep.WaitFacility(bg, csr.FacRPC)
	require.NoError(t, err)
	alloc := func() (*dma.Region, error) { return dev.DMA().Alloc("rpc buffer", rpc.BufferBytes, msg.BufferAlign) }
	buf, err := alloc()
	require.NoError(t, err)
	c := rpc.New(fac, fac, buf, card.Clock(), discard, rpc.Config{Alloc: alloc})
	require.NoError(t, c.Configure(bg))
	return &sim{card, c, manager(card, c)}
}

func manager(card *hwsim.Card, c *rpc.Channel) *lif.Manager {
	return lif.New(lif.Config{Table: c, Clock: card.Clock(), Logger: discard})
}

func mac(p board.Port) [6]byte { return [6]byte{2, 0, 0, 0, 0, byte(p.Index + 2)} }

func (s *sim) provision(t *testing.T) {
	t.Helper()
	for _, p := range board.All() {
		require.NoError(t, s.Provision(bg, p, mac(p)))
	}
}

func (s *sim) table(t *testing.T) map[string]msg.LIF {
	t.Helper()
	lifs := map[string]msg.LIF{}
	for _, p := range board.All() {
		if l, ok := s.Card.LIF(uint32(p.LIF())); ok {
			lifs[p.Label] = l
		}
	}
	return lifs
}

var f1 = board.ByIndex(8)

func (s *sim) Provision(ctx context.Context, p board.Port, mac [6]byte) error {
	return s.Manager.Provision(ctx, p, mac) // not the card's functional one
}

//oxpd:fault F14 behaviour
//oxpd:fault R25 behaviour
//oxpd:fault R26 behaviour
func TestSimProvisionsAllTwelve(t *testing.T) {
	for name, o := range map[string]hwsim.Options{
		"empty slots read zero":  {},
		"empty slots read short": {TargetOptions: hwsim.TargetOptions{EmptyLIFShort: true}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSim(t, o)
			s.provision(t)
			lifs := s.table(t)
			require.Len(t, lifs, board.Ports)
			for _, p := range board.All() {
				require.Equal(t, msg.LIF{MAC: mac(p), MTU: 1500, Fwd: msg.FwdL3}, lifs[p.Label])
				iface, ok := s.PPort(uint16(p.Tag))
				require.True(t, ok)
				require.Equal(t, p.Iface, iface)
				require.True(t, s.State(p).Ready())
			}
			require.Len(t, s.Commands(), 4*board.Ports, "read, create, bind, read")
			require.Zero(t, s.channel.Stats().Refused)
			require.Empty(t, s.Reports())
		})
	}
}

// Rule 11, to the byte.
//
//oxpd:fault R21 behaviour
//oxpd:fault R22 behaviour
func TestSimMTUChangeIsOneCommandOfEighteenBytes(t *testing.T) {
	s := newSim(t, hwsim.Options{})
	s.provision(t)
	s.ResetCommands()
	require.NoError(t, s.SetMTU(bg, f1, 9000))
	log := s.Commands()
	require.Len(t, log, 2)
	require.Equal(t, msg.CmdLIFAddUpdate, log[0].Command)
	require.Equal(t, []byte{
		0x00, 0xa0, 0x00, 0x00, // LIF 40960
		0x02, 0x00, 0x00, 0x00, 0x00, 0x0a, // its MAC, not in the mask
		0x28, 0x23, // 9000
		0x02, 0x00, // its flags, not in the mask
		0x01, 0x00, // private mask, DF
		0x02, 0x00, // update mask: the MTU alone
	}, log[0].Payload)
	require.Equal(t, msg.CmdLIFRead, log[1].Command)
	require.Equal(t, []byte{0x00, 0xa0, 0, 0, 1, 0, 0, 0, 0x00, 0xa0, 0, 0}, log[1].Payload)
	want := msg.LIF{MAC: mac(f1), MTU: 9000, Fwd: msg.FwdL3}
	require.Equal(t, want, s.table(t)["PortF1"], "nothing else changed")
	require.NoError(t, s.SetMTU(bg, f1, 1500))
	require.Equal(t, uint16(1500), s.table(t)["PortF1"].MTU)
	require.Empty(t, s.Reports())
}

// The other two fields that are changed by themselves (rpc-lif.md 5.2).
func TestSimModeAndMACAreOneCommandEach(t *testing.T) {
	s := newSim(t, hwsim.Options{})
	s.provision(t)
	s.ResetCommands()
	require.NoError(t, s.SetMode(bg, f1, msg.FwdL2))
	require.NoError(t, s.SetMAC(bg, f1, [6]byte{2, 0, 0, 0, 0, 0x77}))
	log := s.Commands()
	require.Len(t, log, 4)
	require.Equal(t, []byte{
		0x00, 0xa0, 0x00, 0x00, // LIF 40960
		0x02, 0x00, 0x00, 0x00, 0x00, 0x0a, // its MAC, not in the mask
		0xdc, 0x05, // its MTU, not in the mask
		0x01, 0x00, // L2
		0x01, 0x00, // private mask, DF
		0x04, 0x00, // update mask: the mode alone
	}, log[0].Payload)
	require.Equal(t, []byte{
		0x00, 0xa0, 0x00, 0x00,
		0x02, 0x00, 0x00, 0x00, 0x00, 0x77, // the new MAC
		0xdc, 0x05,
		0x01, 0x00, // its mode, not in the mask
		0x01, 0x00,
		0x01, 0x00, // update mask: the MAC alone
	}, log[2].Payload)
	require.Equal(t, msg.LIF{MAC: [6]byte{2, 0, 0, 0, 0, 0x77}, MTU: 1500, Fwd: msg.FwdL2}, s.table(t)["PortF1"])
	require.Empty(t, s.Reports())
}

//oxpd:fault D23 symptom
//oxpd:fault D23 behaviour
//oxpd:fault R9 behaviour
//oxpd:fault R30 behaviour
//oxpd:fault R31 behaviour
func TestSimMTUThatIsRefusedOrLost(t *testing.T) {
	s := newSim(t, hwsim.Options{})
	s.provision(t)
	for _, tc := range []struct {
		name  string
		fault func(*hwsim.Faults)
		want  error
	}{
		{"refused", func(f *hwsim.Faults) { f.LIFRefuse = map[board.Tag]msg.RC{f1.Tag: msg.RCRefused} }, lif.ErrRefused},
		{"accepted and not stored", func(f *hwsim.Faults) { f.LIFNotStored = map[board.Tag]bool{f1.Tag: true} }, lif.ErrMismatch},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s.Faults(tc.fault)
			require.ErrorIs(t, s.SetMTU(bg, f1, 9000), tc.want)
			require.Equal(t, uint16(1500), s.table(t)["PortF1"].MTU)
			require.Equal(t, uint16(1500), s.State(f1).Want.MTU)
			s.Faults(func(f *hwsim.Faults) { *f = hwsim.Faults{} })
			require.NoError(t, s.SetMTU(bg, f1, 9000))
			require.NoError(t, s.SetMTU(bg, f1, 1500))
		})
	}
}

// A command that times out may be run after all: the old MTU is restored.
func TestSimMTUThatTimesOutIsPutBack(t *testing.T) {
	s := newSim(t, hwsim.Options{})
	s.provision(t)
	s.Faults(func(f *hwsim.Faults) { f.RPCDelay = 2500 * time.Millisecond })
	err := s.SetMTU(bg, f1, 9000)
	require.ErrorIs(t, err, rpc.ErrTimeout)
	require.ErrorContains(t, err, "the mtu stays 1500")
	require.NoError(t, s.Clock().Sleep(bg, time.Second))
	require.Equal(t, uint16(9000), s.table(t)["PortF1"].MTU, "the target ran it late")
	_, err = s.Reconcile(bg, f1)
	require.ErrorIs(t, err, rpc.ErrStalled)

	s.Faults(func(f *hwsim.Faults) { f.RPCDelay = 0 })
	require.NoError(t, s.channel.Reopen(bg))
	changed, err := s.Reconcile(bg, f1)
	require.NoError(t, err)
	require.True(t, changed)
	require.Equal(t, uint16(1500), s.table(t)["PortF1"].MTU)
	require.Empty(t, s.Reports())
}

// Row CTL-7 against the card.
//
//oxpd:fault R23 behaviour
func TestSimRestartOnALiveTable(t *testing.T) {
	s := newSim(t, hwsim.Options{})
	s.provision(t)
	require.NoError(t, s.SetMTU(bg, f1, 9000))
	before := s.table(t)
	s.ResetCommands()

	next := manager(s.Card, s.channel)
	for _, p := range board.All() {
		require.NoError(t, next.Provision(bg, p, mac(p)))
	}
	for _, entry := range s.Commands() {
		require.NotEqual(t, msg.CmdLIFAddUpdate, entry.Command)
	}
	require.Equal(t, before, s.table(t))

	port2 := board.ByIndex(1)
	s.SetLIF(uint32(port2.LIF()), nil)
	s.ResetCommands()
	changed, err := next.ReconcileAll(bg)
	require.NoError(t, err)
	require.Equal(t, 1, changed)
	require.Equal(t, before, s.table(t))
	updates := 0
	for _, entry := range s.Commands() {
		if entry.Command == msg.CmdLIFAddUpdate {
			updates++
			require.Equal(t, []byte{0xff, 0}, entry.Payload[msg.LIFUpdate:])
		}
	}
	require.Equal(t, 1, updates)
	require.Zero(t, s.channel.Stats().Refused)
}

// Row CTL-8 against the card.
func TestSimEightRefusingPorts(t *testing.T) {
	s := newSim(t, hwsim.Options{})
	refuse := map[board.Tag]msg.RC{}
	for _, p := range board.All() {
		if p.Index < 8 {
			refuse[p.Tag] = msg.RCRefused
		}
	}
	s.Faults(func(f *hwsim.Faults) { f.LIFRefuse = refuse })
	from := s.Clock().Now()
	for _, p := range board.All() {
		err := s.Provision(bg, p, mac(p))
		if p.Index < 8 {
			require.ErrorIs(t, err, lif.ErrRefused)
		} else {
			require.NoError(t, err)
		}
	}
	for _, p := range board.All() {
		if p.Index >= 8 {
			require.NoError(t, s.SetMTU(bg, p, 9000))
		}
	}
	require.Less(t, s.Clock().Now()-from, time.Second)
	require.Equal(t, uint64(8), s.Stats().Refused)
	require.Equal(t, uint64(8), s.channel.Stats().Refused)

	s.Faults(func(f *hwsim.Faults) { f.LIFRefuse = nil })
	for range 3 {
		require.NoError(t, s.Clock().Sleep(bg, 2*time.Second))
		_, err := s.ReconcileAll(bg)
		require.NoError(t, err)
	}
	require.Len(t, s.table(t), board.Ports)
}

// The fast path's table clear of rpc-lif.md 5.6.
//
//oxpd:fault R29 behaviour
func TestSimTableIsClearedAfterTheProvisioning(t *testing.T) {
	times := hwsim.Compressed()
	times.TableClear = 13 * time.Second
	s := newSim(t, hwsim.Options{Timeline: times, TargetOptions: hwsim.TargetOptions{ClearLIFs: true}})
	s.provision(t)
	require.NoError(t, s.SetMTU(bg, f1, 9000))
	before := s.table(t)
	require.NoError(t, s.Clock().Sleep(bg, times.TableClear))
	require.Empty(t, s.table(t))
	changed, err := s.ReconcileAll(bg)
	require.NoError(t, err)
	require.Equal(t, board.Ports, changed)
	require.Equal(t, before, s.table(t), "with the MTU that was set")
}

// A card that was lost is back with an empty table: nothing of it counts as a loss of
// the fast path's, and what was wanted is written.
func TestSimForgottenTableIsWrittenAnew(t *testing.T) {
	s := newSim(t, hwsim.Options{})
	s.provision(t)
	require.NoError(t, s.SetMTU(bg, f1, 9000))
	require.NoError(t, s.SetMode(bg, f1, msg.FwdL2))
	before := s.table(t)
	for _, p := range board.All() {
		s.SetLIF(uint32(p.LIF()), nil)
	}
	s.Forget()
	for _, p := range board.All() {
		st := s.State(p)
		require.False(t, st.Present)
		require.False(t, st.Bound)
		require.Zero(t, st.Have)
		require.True(t, st.Provisioned)
	}
	s.provision(t)
	require.Equal(t, before, s.table(t))
	for _, p := range board.All() {
		st := s.State(p)
		require.True(t, st.Ready())
		require.Zero(t, st.Lost)
	}
	require.EqualValues(t, 2*board.Ports, s.Stats().Bound, "the tags too")
}
