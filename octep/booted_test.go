package octep_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/mmio"
	"oxpd/internal/simdev/simtest"
	"oxpd/octep"
	"oxpd/octep/csr"
)

func TestBooted(t *testing.T) {
	word := func(v uint64) func(*simBench) {
		return func(b *simBench) { b.card.Store(0, uint64(csr.SLIScratch), 8, v) }
	}
	for _, tc := range []struct {
		name    string
		at      time.Duration
		change  func(b *simBench)
		err     error // nil: booted
		witness string
		report  string // that the test provokes
	}{
		{name: "boots", at: time.Millisecond, err: octep.ErrBooting, witness: "SDP_SCRATCH"},
		{name: "endpoint driver is up", at: time.Second},
		{name: "ports are started", at: time.Second, change: word(1)},
		{name: "offered", at: time.Second, change: word(csr.HostLoaded), err: octep.ErrBooting, witness: "SLI_EPF_SCRATCH"},
		{name: "asks", at: time.Second, change: word(csr.GetHostInfo), err: octep.ErrBooting, witness: "SLI_EPF_SCRATCH"},
		{name: "exchange completed", at: time.Second, change: word(csr.HandshakeCompleted), err: octep.ErrBooting, witness: "SLI_EPF_SCRATCH"},
		{name: "word of no handshake", at: time.Second, change: word(0x1234567), err: octep.ErrBooting, witness: "0x0000000001234567, want 0, or the bitmap"},
		{name: "another driver's note", at: time.Second, change: func(b *simBench) {
			b.card.Store(0, uint64(csr.SDPScratch), 8, csr.ScratchQueuesUp)
		}, err: octep.ErrBooting, witness: "SDP_SCRATCH", report: hwsim.ReportScratch},
		{name: "its software has gone", at: time.Second, change: func(b *simBench) {
			inject(t, b.card, "software-ends")
		}, err: octep.ErrNoSoftware, witness: "barmap at BAR2+0x2000000 reads all ones"},
		{name: "its facilities have gone", at: time.Second, change: func(b *simBench) { inject(t, b.card, "facilities-end") }},
		{name: "is being reset", at: time.Second, change: func(b *simBench) { b.card.Reboot() }, err: mmio.ErrGone, report: hwsim.ReportDecodeOff},
		{name: "card gone", at: time.Second, change: func(b *simBench) { b.card.Kill() }, err: mmio.ErrGone},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := open(t, hwsim.Options{Timeline: hwsim.Compressed()}, octep.Config{}, nil)
			b.card.Advance(tc.at)
			if tc.change != nil {
				tc.change(b)
			}
			b.card.ResetAccesses()
			err := b.e.Booted()
			if tc.report != "" {
				simtest.Expect(t, b.card, tc.report)
			}
			if tc.err == nil {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, tc.err)
				assert.ErrorContains(t, err, tc.witness)
			}
			for name, n := range b.card.Accesses() {
				assert.Zero(t, n.Writes, name)
			}
		})
	}
}

// inject has the card do something at once.
func inject(t *testing.T, c *hwsim.Card, text string) {
	t.Helper()
	i, err := hwsim.ParseInjection(text)
	require.NoError(t, err)
	require.NoError(t, c.Inject(i))
}
