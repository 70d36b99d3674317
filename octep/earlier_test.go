package octep_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/mmio"
	"oxpd/internal/simdev"
	"oxpd/internal/simdev/simtest"
	"oxpd/octep"
	"oxpd/octep/csr"
)

func TestCheckFresh(t *testing.T) {
	// Stores below are another program's.
	ring := func(q int, reg csr.RingReg, v uint64) func(*simBench) {
		return func(b *simBench) { b.card.Store(0, uint64(reg.Queue(q)), 8, v) }
	}
	scratch := func(v uint64) func(*simBench) {
		return func(b *simBench) { b.card.Store(0, uint64(csr.SLIScratch), 8, v) }
	}
	for _, tc := range []struct {
		name    string
		at      time.Duration
		earlier func(b *simBench)
		err     error  // nil: fresh
		witness string // part of the text
	}{
		{name: "coprocessor still boots", at: time.Millisecond},
		{name: "its endpoint driver is up", at: time.Second},
		{name: "an offer that nobody answered", at: time.Millisecond, earlier: scratch(csr.HostLoaded)},
		{name: "first input ring enabled", earlier: ring(0, csr.InEnable, 1), err: octep.ErrEarlierRun, witness: "IN_ENABLE[0][0x10010]=0x0000000000000001"},
		{name: "last output ring enabled", earlier: ring(63, csr.OutEnable, 1), err: octep.ErrEarlierRun, witness: "OUT_ENABLE[63][0x7f0160]"},
		{name: "address of an input ring", earlier: ring(8, csr.InInstrBaddr, 0x1_8000_0000), err: octep.ErrEarlierRun, witness: "IN_INSTR_BADDR"},
		{name: "address of an output ring", earlier: ring(7, csr.OutSlistBaddr, 0x1_8000_0000), err: octep.ErrEarlierRun, witness: "OUT_SLIST_BADDR"},
		{name: "torn down, input side was set up", earlier: ring(0, csr.InControl, csr.InControlProgram), err: octep.ErrEarlierRun, witness: "IN_CONTROL"},
		{name: "torn down, output side was set up", earlier: ring(3, csr.OutControl, csr.OutControlESP), err: octep.ErrEarlierRun, witness: "OUT_CONTROL"},
		{name: "sizes written and cleared again", at: time.Second, earlier: func(b *simBench) {
			ring(0, csr.OutSlistRsize, 0)(b)
			ring(0, csr.InInstrRsize, 0)(b)
		}},
		{name: "exchange asks", earlier: scratch(csr.GetHostInfo), err: octep.ErrHandshakeInFlight},
		{name: "exchange answered", earlier: scratch(octep.InfoWord()), err: octep.ErrHandshakeInFlight},
		{name: "exchange replied", earlier: scratch(csr.HostInfoReceived<<16 | 800), err: octep.ErrHandshakeInFlight},
		{name: "exchange completed", earlier: scratch(csr.HandshakeCompleted), err: octep.ErrEarlierRun, witness: "SLI_EPF_SCRATCH"},
		{name: "host port started", earlier: scratch(1), err: octep.ErrEarlierRun, witness: "SLI_EPF_SCRATCH"},
		{name: "port of a virtual function started", earlier: scratch(0x8000), err: octep.ErrEarlierRun, witness: "SLI_EPF_SCRATCH"},
		{name: "word of no handshake", earlier: scratch(0x1234567), err: octep.ErrHandshakeForeign},
		{name: "vendor driver's queues are up", at: time.Second, err: octep.ErrEarlierRun, witness: "SDP_SCRATCH", earlier: func(b *simBench) {
			b.card.Store(0, uint64(csr.SDPScratch), 8, csr.ScratchQueuesUp)
			simtest.Expect(b.t, b.card, hwsim.ReportScratch)
		}},
		{name: "fast path runs and the register was overwritten with 0", at: time.Second, err: octep.ErrEarlierRun, witness: "the fast path runs", earlier: func(b *simBench) {
			b.card.Provision()
			scratch(0)(b)
			simtest.Expect(b.t, b.card, hwsim.ReportHandshakeAgain)
		}},
		{name: "card gone", earlier: func(b *simBench) { b.card.Kill() }, err: mmio.ErrGone},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := open(t, hwsim.Options{Timeline: hwsim.Compressed()}, octep.Config{}, nil)
			b.card.Advance(tc.at)
			if tc.earlier != nil {
				tc.earlier(b)
			}
			command := b.card.ConfigRead(csr.CfgCommand, 2)
			b.card.ResetAccesses()
			err := b.e.CheckFresh()
			if tc.err == nil {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, tc.err)
				assert.ErrorContains(t, err, tc.witness)
			}
			for name, n := range b.card.Accesses() {
				assert.Zero(t, n.Writes, name)
				assert.NotEqual(t, "BAR2_FORBIDDEN", name)
			}
			assert.Equal(t, command, b.card.ConfigRead(csr.CfgCommand, 2), "the command register")
			var h interface{ Hint() string }
			if tc.err != nil && tc.err != mmio.ErrGone {
				require.ErrorAs(t, err, &h)
				assert.Contains(t, h.Hint(), "reboot the coprocessor")
			}
		})
	}
}

// Between the end of the handshake and the start of the fast path the register
// reads 0 and no window is alive.
func TestCheckFreshBeforeTheFastPathIsUp(t *testing.T) {
	b := open(t, hwsim.Options{}, octep.Config{}, nil)
	ctx := context.Background()
	require.NoError(t, b.e.WaitReady(ctx))
	b.card.Store(0, uint64(csr.InControl.Queue(0)), 8, csr.InControlProgram)
	_, err := b.e.NewHandshake(nil).Run(ctx)
	require.NoError(t, err)
	require.Zero(t, b.card.Load(0, uint64(csr.SLIScratch), 8))
	require.False(t, b.e.FastPathUp())
	e, err := octep.Open(ctx, b.dev, octep.Config{Clock: b.card.Clock()})
	require.NoError(t, err)
	require.ErrorIs(t, e.CheckFresh(), octep.ErrEarlierRun)
	b.card.Reboot()
	e, err = octep.Open(ctx, b.dev, octep.Config{Clock: b.card.Clock()})
	require.NoError(t, err)
	require.NoError(t, e.CheckFresh(), "a reset clears it")
}

// A card that is refused decodes nothing that it did not decode before.
func TestRefusedCardDecodesNothing(t *testing.T) {
	for _, found := range []uint32{0, csr.CfgCommandMemory} {
		card := hwsim.New(hwsim.Options{Timeline: hwsim.Compressed()})
		dev := simdev.New(card)
		card.ConfigWrite(csr.CfgCommand, 2, csr.CfgCommandMemory)
		card.Store(0, uint64(csr.InEnable.Queue(0)), 8, 1)
		card.ConfigWrite(csr.CfgCommand, 2, found)
		e, err := octep.Open(context.Background(), dev, octep.Config{Clock: card.Clock()})
		require.NoError(t, err)
		require.ErrorIs(t, e.CheckFresh(), octep.ErrEarlierRun)
		require.NoError(t, e.PutBack())
		assert.Equal(t, found, card.ConfigRead(csr.CfgCommand, 2))
	}
}
