package vfiouser_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/dma"
	"oxpd/internal/mmio"
	"oxpd/octep"
	"oxpd/octep/csr"
	"oxpd/octep/vfiouser"
	"oxpd/ring"
)

// remembering is a provider that lists its regions.
type remembering struct {
	dma.Provider
	regions []*dma.Region
}

func (p *remembering) Alloc(name string, size, align int) (*dma.Region, error) {
	r, err := p.Provider.Alloc(name, size, align)
	if err == nil {
		p.regions = append(p.regions, r)
	}
	return r, err
}

// contents is all that the regions hold.
func (p *remembering) contents() []byte {
	var all []byte
	for _, r := range p.regions {
		m, _ := r.At(0, r.Size())
		all = append(all, m...)
	}
	return all
}

// upTo is how far a bring-up goes.
type upTo int

const (
	upToRings upTo = iota
	upToAsked      // the target has seen the offer and waits
	upToEnd
)

// bringUp is a driver's bring-up in stepped time.
func bringUp(t *testing.T, card *hwsim.Card, d *vfiouser.Device, memory dma.Provider, end upTo) (rings *ring.Rings) {
	t.Helper()
	ctx, clk := context.Background(), card.Clock()
	ep, err := octep.Open(ctx, d, octep.Config{Clock: clk})
	require.NoError(t, err)
	require.NoError(t, ep.CheckFresh(), "a coprocessor that knows no host")
	require.NoError(t, octep.SetBusMaster(d, true))
	rings, err = ring.New(ring.Config{BAR0: d.BAR0(), DMA: memory, Clock: clk, Sink: &sink{frames: map[uint16][][]byte{}}})
	require.NoError(t, err)
	require.NoError(t, rings.Program(ctx))
	if end == upToRings {
		return rings
	}
	require.NoError(t, ep.WaitReady(ctx))
	if end == upToAsked {
		mmio.Store64(d.BAR0(), csr.SLIScratch, csr.HostLoaded)
		mmio.Load64(d.BAR0(), csr.SLIScratch) // it has arrived
		card.Advance(time.Second)
		require.EqualValues(t, uint64(csr.GetHostInfo), mmio.Load64(d.BAR0(), csr.SLIScratch))
		return rings
	}
	clocks, err := ep.NewHandshake(nil).Run(ctx)
	require.NoError(t, err)
	require.NoError(t, rings.SetClocks(clocks))
	card.Advance(time.Second)
	require.True(t, ep.FastPathUp())
	card.Provision()
	return rings
}

// powerOnValues compares every register of BAR0 with that of a card that has just
// been switched on.
func powerOnValues(t *testing.T, d *vfiouser.Device) {
	t.Helper()
	fresh := hwsim.New(hwsim.Options{Timeline: hwsim.Real()})
	defer fresh.Close()
	fresh.ConfigWrite(csr.CfgCommand, 2, csr.CfgCommandMemory)
	require.NoError(t, d.ConfigWrite(csr.CfgCommand, 2, csr.CfgCommandMemory))
	var off []uint64
	for _, r := range csr.GlobalTable {
		off = append(off, uint64(r.Offset))
	}
	for q := range csr.Rings {
		for _, r := range csr.RingTable {
			off = append(off, 0x10000+uint64(q)<<17+uint64(r.Offset))
		}
	}
	for v := range uint64(csr.MSIXVectors) {
		off = append(off, v*16, v*16+8)
	}
	off = append(off, csr.MSIXPBA, csr.MSIXPBA+8)
	for _, o := range off {
		if got, want := d.BAR0().Load64(uint32(o)), fresh.Load(0, o, 8); got != want {
			t.Errorf("%s: %#x after the reset, %#x at power-on", csr.Name(uint32(o)), got, want)
		}
	}
}

// VF-7: a reset is complete whatever it falls into: power-on values, no DMA after
// it, and a bring-up that works, ten times in a row.
func TestResetStartsAnew(t *testing.T) {
	s := serveStepped(t)
	d := s.open(t)
	states := []struct {
		name string
		make func(t *testing.T, memory dma.Provider) *ring.Rings
	}{
		{"eight rings live", func(t *testing.T, m dma.Provider) *ring.Rings { return bringUp(t, s.card, d, m, upToEnd) }},
		{"one ring live", func(t *testing.T, m dma.Provider) *ring.Rings {
			r := bringUp(t, s.card, d, m, upToEnd)
			for q := 1; q < 8; q++ {
				mmio.Store64(d.BAR0(), csr.OutEnable.Queue(q), 0)
			}
			return r
		}},
		{"MSI-X masked, a message pending", func(t *testing.T, m dma.Provider) *ring.Rings {
			require.NoError(t, d.BindIRQ(csr.MSIXRingVector, func() {}))
			r := bringUp(t, s.card, d, m, upToEnd)
			require.NoError(t, d.BindIRQ(csr.MSIXRingVector, nil))
			require.True(t, s.card.DeliverRaw(0, 1, make([]byte, 60), 134))
			s.card.Advance(time.Millisecond)
			require.EqualValues(t, 1<<16, d.BAR0().Load64(csr.MSIXPBA))
			return r
		}},
		{"rings and no handshake", func(t *testing.T, m dma.Provider) *ring.Rings { return bringUp(t, s.card, d, m, upToRings) }},
		{"handshake half done", func(t *testing.T, m dma.Provider) *ring.Rings { return bringUp(t, s.card, d, m, upToAsked) }},
	}
	for round := range 10 {
		state := states[round%len(states)]
		t.Run(fmt.Sprintf("%d %s", round, state.name), func(t *testing.T) {
			memory := &remembering{Provider: d.DMA()}
			rings := state.make(t, memory)
			before := memory.contents()
			require.NoError(t, d.Reset())
			v, err := d.ConfigRead(csr.CfgCommand, 2)
			require.NoError(t, err)
			assert.Zero(t, v, "neither bus mastering nor decoding")
			powerOnValues(t, d)
			assert.Empty(t, s.card.Reports())
			s.card.DeliverRaw(0, 1, make([]byte, 60), 134) // a packet for a ring that is not programmed
			s.card.Advance(10 * time.Second)
			assert.True(t, bytes.Equal(before, memory.contents()), "the memory is as it was")
			require.NoError(t, rings.Free())
			s.card.ResetReports()
		})
		require.NoError(t, d.Reset()) // a reset of a card that has just been reset
	}
	memory := &remembering{Provider: d.DMA()}
	rings := bringUp(t, s.card, d, memory, upToEnd)
	require.True(t, s.card.DeliverRaw(0, 1, make([]byte, 60), 134))
	s.card.Advance(time.Millisecond)
	assert.EqualValues(t, 1, csr.CntsCount.Get(mmio.Load64(d.BAR0(), csr.OutCnts.Queue(0))))
	require.NoError(t, octep.SetBusMaster(d, false))
	require.NoError(t, rings.Free())
}
