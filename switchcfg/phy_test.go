package switchcfg

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/switchcfg/reg"
)

func phyBench() (*fakeBus, *PHYs) {
	b := newBus()
	b.phy.busyFor = 50 * time.Microsecond
	for p := reg.FirstPHY; p <= reg.LastPHY; p++ {
		b.phy.pages[p] = 0x12
		b.phy.c22[p] = map[int]map[int]uint16{0: {0: reg.PHYHealthy}, 2: {}, 0x12: {}}
	}
	b.phy.c45["9 4.f002"] = reg.SERDESPowerAwake
	b.phy.c45["0 4.2000"] = reg.SERDESControlAwake
	return b, NewPHYs(b.smi(), b.clock)
}

//oxpd:fault S20 behaviour
func TestPHYPageIsPutBack(t *testing.T) {
	ctx := context.Background()
	b, p := phyBench()
	v, err := p.Read(ctx, 3, 0, reg.PHYControl)
	require.NoError(t, err)
	assert.Equal(t, uint16(reg.PHYHealthy), v, "and not the 0 of another page")
	assert.Equal(t, uint16(0x12), b.phy.pages[3])

	require.NoError(t, p.Write(ctx, 3, 2, 16, 0x1234))
	assert.Equal(t, uint16(0x1234), b.phy.c22[3][2][16])
	assert.Equal(t, uint16(0x12), b.phy.pages[3])

	t.Run("when the access fails", func(t *testing.T) {
		b, p := phyBench()
		b.after = func(int) {
			if b.phy.pages[3] == 0 {
				b.phy.busyFor, b.after = 2*busyLimit, nil // of the command that reads
			}
		}
		_, err := p.Read(ctx, 3, 0, reg.PHYControl)
		var e *BusyError
		require.ErrorAs(t, err, &e)
		assert.ErrorContains(t, err, "SMI PHY command register stayed busy")
		assert.Equal(t, uint16(0x12), b.phy.pages[3])
	})
	t.Run("when the context ends", func(t *testing.T) {
		b, p := phyBench()
		ctx, cancel := context.WithCancel(ctx)
		b.after = func(int) {
			if b.phy.pages[3] == 0 {
				cancel()
			}
		}
		_, err := p.Read(ctx, 3, 0, reg.PHYControl)
		require.NoError(t, err)
		assert.Equal(t, uint16(0x12), b.phy.pages[3])
		_, err = p.Read(ctx, 3, 0, reg.PHYControl)
		require.ErrorIs(t, err, context.Canceled)
	})
	t.Run("not selected when it reads wrong", func(t *testing.T) {
		b, p := phyBench()
		b.readAs = func(n, dev, r int, v uint16) uint16 {
			if dev == reg.Global2 && r == reg.PHYData {
				return v + uint16(n)
			}
			return v
		}
		var e *UnstableError
		require.ErrorAs(t, p.Write(ctx, 3, 2, 16, 1), &e)
		assert.Equal(t, uint16(0x12), b.phy.pages[3])
	})
}

func TestSERDES(t *testing.T) {
	ctx := context.Background()
	b, p := phyBench()
	v, err := p.ReadC45(ctx, 9, reg.SERDESMMD, reg.SERDESPower)
	require.NoError(t, err)
	assert.Equal(t, uint16(reg.SERDESPowerAwake), v)
	v, err = p.ReadC45(ctx, Uplink, reg.SERDESMMD, reg.SERDESControl)
	require.NoError(t, err)
	assert.Equal(t, uint16(reg.SERDESControlAwake), v)
	require.NoError(t, p.WriteC45(ctx, 10, reg.SERDESMMD, reg.SERDESEnable, 4))
	assert.Equal(t, uint16(4), b.phy.c45["10 4.f003"])
}

func TestPHYNumbers(t *testing.T) {
	ctx := context.Background()
	b, p := phyBench()
	var e *RangeError
	for _, err := range []error{
		p.Write(ctx, 0, 0, 0, 0), p.Write(ctx, 9, 0, 0, 0), p.Write(ctx, 1, 256, 0, 0), p.Write(ctx, 1, -1, 0, 0), p.Write(ctx, 1, 0, 32, 0),
		p.WriteC45(ctx, 1, 4, 0, 0), p.WriteC45(ctx, 8, 4, 0, 0), p.WriteC45(ctx, 11, 4, 0, 0), p.WriteC45(ctx, 9, 32, 0, 0), p.WriteC45(ctx, 9, 4, 0x10000, 0),
	} {
		require.ErrorAs(t, err, &e)
	}
	assert.Empty(t, b.writes)
}
