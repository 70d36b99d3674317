package staged

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/simdev/simtest"
	"oxpd/octep/csr"
)

func TestOpen(t *testing.T) {
	for _, tc := range []struct {
		host    Host
		after   time.Duration
		command uint32
		word    uint64 // of the handshake register
		now     time.Duration
	}{
		{HostAbsent, time.Minute, 0, 0, time.Minute},
		{HostFirmware, time.Minute, csr.CfgCommandMemory, 0, time.Minute},
		{HostOffer, 29 * time.Second, csr.CfgCommandMemory, csr.HostLoaded, 29 * time.Second},
		{HostOffer, time.Minute, csr.CfgCommandMemory, csr.GetHostInfo, time.Minute},
		{HostRings, 0, csr.CfgCommandMemory | csr.CfgCommandBusMaster, 0, 0},
		{HostHandshake, 0, csr.CfgCommandMemory | csr.CfgCommandBusMaster, 0, 30 * time.Second},
		{HostHandshake, 5 * time.Minute, csr.CfgCommandMemory | csr.CfgCommandBusMaster, 1, 330 * time.Second},
	} {
		t.Run(string(tc.host)+" "+tc.after.String(), func(t *testing.T) {
			c, err := Open(context.Background(), Moment{Timeline: hwsim.Real(), Host: tc.host, After: tc.after})
			require.NoError(t, err)
			assert.Equal(t, tc.command, c.Card.ConfigRead(csr.CfgCommand, 2))
			if tc.command != 0 {
				assert.Equal(t, tc.word, c.BAR0().Load64(uint32(csr.SLIScratch)))
			}
			assert.InDelta(t, tc.now.Seconds(), c.Card.Clock().Now().Seconds(), 2)
			simtest.Clean(t, c.Card)
			require.NoError(t, c.Close())
		})
	}
}

func TestOpenRefuses(t *testing.T) {
	for name, m := range map[string]Moment{
		"before the reset": {Host: HostAbsent, After: -1},
		"too late":         {Host: HostAbsent, After: MaxAfter + 1},
		"unknown host":     {Host: "x"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Open(context.Background(), m)
			require.ErrorContains(t, err, "staged: ")
		})
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := Open(ctx, Moment{Host: HostHandshake})
	require.ErrorIs(t, err, context.Canceled)
}
