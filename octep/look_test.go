package octep

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/mmio"
	"oxpd/octep/csr"
)

func TestLookWritesNothing(t *testing.T) {
	ctx := context.Background()
	for _, tc := range []struct {
		name  string
		card  func(*fakeDevice)
		check func(t *testing.T, d *fakeDevice, e *Endpoint, err error)
	}{
		{"ready", func(*fakeDevice) {}, func(t *testing.T, _ *fakeDevice, e *Endpoint, err error) {
			require.NoError(t, err)
			require.NoError(t, e.CheckRingInfo())
			awaiting, err := e.Ready()
			require.NoError(t, err)
			assert.Empty(t, awaiting)
			assert.Equal(t, measured(), e.Barmap())
			require.NoError(t, e.CheckFresh())
			assert.False(t, e.FastPathUp())
			n, _ := e.Refusals()
			assert.Zero(t, n)
		}},
		{"memory decoding off", func(d *fakeDevice) { d.cfg[csr.CfgCommand] = csr.CfgCommandBusMaster }, func(t *testing.T, d *fakeDevice, e *Endpoint, err error) {
			require.ErrorIs(t, err, ErrNotDecoding)
			assert.Nil(t, e)
			assert.Empty(t, d.bar0.log, "no BAR is touched")
			assert.Empty(t, d.bar2.log)
		}},
		{"virtual functions", func(d *fakeDevice) { d.bar0.set(uint32(csr.RInfo), 0x0008000100400000) }, func(t *testing.T, _ *fakeDevice, e *Endpoint, err error) {
			require.NoError(t, err, "the split is not judged")
			assert.Equal(t, RingInfo{SRN: 0, TRS: 64, RPVF: 1, NVFS: 8}, e.RingInfo())
			var refused *RingInfoError
			require.ErrorAs(t, e.CheckRingInfo(), &refused)
			awaiting, err := e.Ready()
			require.NoError(t, err)
			assert.Empty(t, awaiting, "the rest can be looked at")
		}},
		{"another device", func(d *fakeDevice) { d.cfg[csr.CfgDevice] = 0xb200 }, func(t *testing.T, d *fakeDevice, _ *Endpoint, err error) {
			var identity *IdentityError
			require.ErrorAs(t, err, &identity)
			assert.Empty(t, d.bar0.log)
		}},
		{"gone", func(d *fakeDevice) { d.gone() }, func(t *testing.T, d *fakeDevice, _ *Endpoint, err error) {
			require.ErrorIs(t, err, mmio.ErrGone)
			assert.Empty(t, d.bar0.log)
		}},
		{"gone between the two ids", func(d *fakeDevice) { d.cfg[csr.CfgDevice] = csr.CfgVendorNone }, func(t *testing.T, d *fakeDevice, _ *Endpoint, err error) {
			require.ErrorIs(t, err, mmio.ErrGone)
			assert.Empty(t, d.bar0.log)
		}},
		{"does not decode", func(d *fakeDevice) { d.bar0.set(uint32(csr.RInfo), csr.AllOnes) }, func(t *testing.T, _ *fakeDevice, _ *Endpoint, err error) {
			require.ErrorIs(t, err, mmio.ErrGone)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := readyDevice()
			d.cfg[csr.CfgCommand] = csr.CfgCommandMemory
			tc.card(d)
			writes := 0
			d.onCfgWrite = func(int, uint32) { writes++ }
			e, err := Look(ctx, d, Config{})
			tc.check(t, d, e, err)
			assert.Zero(t, writes, "config space")
			for _, log := range [][]access{d.bar0.log, d.bar2.log} {
				for _, a := range log {
					assert.False(t, a.store, "%+v", a)
				}
			}
		})
	}
	t.Run("context has ended", func(t *testing.T) {
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		_, err := Look(ctx, readyDevice(), Config{})
		require.ErrorIs(t, err, context.Canceled)
	})
}

func TestHandshakeWord(t *testing.T) {
	for v, want := range map[uint64]string{
		0: "idle", 0xdeadbeef: "offered", 0xbeefdeed: "asked", 0x0000020008000000: "answered", 0xdeadde0320: "received",
		0xdeeddeed: "completed", 1: "started", 0x1ff: "started", 0x0000020808080001: "foreign", 0x11223344: "foreign",
	} {
		name, words := HandshakeWord(v)
		assert.Equal(t, want, name, "%#x", v)
		assert.NotEmpty(t, words)
	}
}
