package octep

import (
	"bytes"
	"context"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/octep/csr"
)

func readyEndpoint(t *testing.T, d *fakeDevice, cfg Config) *Endpoint {
	t.Helper()
	if cfg.Clock == nil {
		cfg.Clock = &fakeClock{}
	}
	e, err := Open(context.Background(), d, cfg)
	require.NoError(t, err)
	require.NoError(t, e.WaitReady(context.Background()))
	d.bar2.log = nil
	return e
}

func TestAllowListSweep(t *testing.T) {
	d := readyDevice()
	e := readyEndpoint(t, d, Config{})
	advertised := span{0x02000000, 0x02400000}
	table := span{0x02000000, 0x0200005c}
	n := uint64(0)
	// All of BAR2 in steps that meet every border, and the borders' neighbours.
	offs := []uint32{0x01fffff8, 0x01fffffc, 0x023ffff8, 0x023ffffc, 0x03c00040, 0x03c00044, 0x0200005c, 0x02000058, 0xfffffff8}
	for off := uint64(0); off < csr.BAR2Size; off += 0x10000 {
		offs = append(offs, uint32(off))
	}
	for _, off := range offs {
		for _, width := range []int{4, 8} {
			if off%uint32(width) != 0 {
				continue
			}
			at := span{uint64(off), uint64(off) + uint64(width)}
			d.bar2.log = nil
			v := uint64(0)
			if width == 4 {
				v = uint64(e.guard.Load32(off))
			} else {
				v = e.guard.Load64(off)
			}
			if advertised.holds(at) {
				require.Equal(t, []access{{false, off, width, v}}, d.bar2.log)
			} else {
				n++
				require.Empty(t, d.bar2.log, "load at %#x reached the card", off)
				require.Equal(t, csr.AllOnes>>(64-8*width), v)
			}
			d.bar2.log = nil
			if width == 4 {
				e.guard.Store32(off, 7)
			} else {
				e.guard.Store64(off, 7)
			}
			if advertised.holds(at) && !table.overlaps(at) {
				require.Equal(t, []access{{true, off, width, 7}}, d.bar2.log)
			} else {
				n++
				require.Empty(t, d.bar2.log, "store at %#x reached the card", off)
			}
		}
	}
	count, last := e.Refusals()
	assert.Equal(t, n, count)
	assert.NotEqual(t, Refusal{}, last)
}

func TestAllowListMisaligned(t *testing.T) {
	d := readyDevice()
	e := readyEndpoint(t, d, Config{})
	assert.Equal(t, ^uint32(0), e.guard.Load32(0x02300002))
	assert.Equal(t, csr.AllOnes, e.guard.Load64(0x02300004))
	e.guard.Store32(0x02300001, 0)
	e.guard.Store64(0x02300004, 0)
	assert.Empty(t, d.bar2.log)
	count, last := e.Refusals()
	assert.EqualValues(t, 4, count)
	assert.Equal(t, Refusal{Store: true, Off: 0x02300004, Width: 8}, last)
	assert.Equal(t, "store of 8 bytes at BAR2+0x2300004", last.String())
}

func TestNothingIsAllowedBeforeTheBarmap(t *testing.T) {
	d := readyDevice()
	e, err := Open(context.Background(), d, Config{Clock: &fakeClock{}})
	require.NoError(t, err)
	e.guard.Load64(0x02000000)
	e.guard.Store32(0x02300000, 1)
	assert.False(t, e.guard.ring(0))
	assert.False(t, e.guard.ring(155))
	assert.Empty(t, d.bar2.log)
	count, _ := e.Refusals()
	assert.EqualValues(t, 4, count)
}

func TestRefusalIsLoggedOnce(t *testing.T) {
	var out bytes.Buffer
	d := readyDevice()
	e := readyEndpoint(t, d, Config{Logger: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	e.guard.Load32(0x03c00040)
	e.guard.Load32(0x03c00044)
	assert.Equal(t, 1, bytes.Count(out.Bytes(), []byte("refused access")))
	assert.Contains(t, out.String(), "load of 4 bytes at BAR2+0x3c00040")
}

func TestFacilityWindow(t *testing.T) {
	d := readyDevice()
	e := readyEndpoint(t, d, Config{})
	f, err := e.Facility(csr.FacRPC)
	require.NoError(t, err)
	assert.Equal(t, "rpc", f.Name())
	assert.EqualValues(t, 0x100000, f.Size())
	d.bar2.log = nil

	f.Store64(0, 0x1122334455667788)
	f.Store32(0xffffc, 9)
	assert.Equal(t, uint64(0x1122334455667788), f.Load64(0))
	assert.Equal(t, uint32(9), f.Load32(0xffffc))
	assert.Equal(t, []access{
		{true, 0x02300000, 8, 0x1122334455667788}, {true, 0x023ffffc, 4, 9},
		{false, 0x02300000, 8, 0x1122334455667788}, {false, 0x023ffffc, 4, 9},
	}, d.bar2.log)

	d.bar2.log = nil
	before, _ := e.Refusals()
	assert.Equal(t, ^uint32(0), f.Load32(0x100000), "just past the window")
	assert.Equal(t, csr.AllOnes, f.Load64(0xffffc), "across its end")
	assert.Equal(t, csr.AllOnes, f.Load64(0xfffffff8), "offset that wraps into another window")
	f.Store32(0x100000, 1)
	f.Store64(0xfffffff8, 1)
	assert.Empty(t, d.bar2.log)
	after, _ := e.Refusals()
	assert.EqualValues(t, 5, after-before)
}

func TestControlWindowKeepsTheBarmap(t *testing.T) {
	d := readyDevice()
	e := readyEndpoint(t, d, Config{})
	f, err := e.Facility(csr.FacControl)
	require.NoError(t, err)
	d.bar2.log = nil
	assert.EqualValues(t, 2, f.Load32(0))
	f.Store32(0x54, 0)    // gicd_offset
	f.Store64(0x58, 0)    // half in, half behind
	f.Store32(0x5c, 0xaa) // behind it
	assert.Equal(t, []access{{false, 0x02000000, 4, 2}, {true, 0x0200005c, 4, 0xaa}}, d.bar2.log)
}

func TestRing(t *testing.T) {
	tests := []struct {
		name     string
		facility int
		index    int
		spi      uint64 // 0: refused
	}{
		{"control", csr.FacControl, 0, 152},
		{"mgmt_netdev", csr.FacMgmt, 0, 153},
		{"nw_agent", csr.FacNWA, 0, 154},
		{"first of rpc", csr.FacRPC, 0, 155},
		{"last of rpc", csr.FacRPC, 4, 159},
		{"one past rpc", csr.FacRPC, 5, 0},
		{"one past nw_agent is rpc's", csr.FacNWA, 1, 0},
		{"negative", csr.FacRPC, -1, 0},
		{"interrupt number for an index", csr.FacRPC, 155, 0},
		{"index that wraps 32 bits", csr.FacRPC, 1 << 32, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := readyDevice()
			e := readyEndpoint(t, d, Config{})
			f, err := e.Facility(tt.facility)
			require.NoError(t, err)
			d.bar2.log = nil
			err = f.Ring(tt.index)
			if tt.spi != 0 {
				require.NoError(t, err)
				assert.Equal(t, []access{{true, 0x03c00040, 4, tt.spi}}, d.bar2.log)
				return
			}
			var de *DoorbellError
			require.ErrorAs(t, err, &de)
			assert.Empty(t, d.bar2.log)
		})
	}
}

func TestWindowWithdrawnByTheTarget(t *testing.T) {
	d := readyDevice()
	e := readyEndpoint(t, d, Config{})
	f, err := e.Facility(csr.FacRPC)
	require.NoError(t, err)
	m := measured()
	m.Facility[csr.FacRPC] = csr.Facility{}
	d.writeTable(0x02000000, m)
	_, err = e.Facility(csr.FacRPC)
	require.ErrorIs(t, err, ErrFacilityAbsent)
	d.bar2.log = nil
	assert.Equal(t, csr.AllOnes, f.Load64(0), "an old handle is closed as well")
	err = f.Ring(0)
	var de *DoorbellError
	require.ErrorAs(t, err, &de)
	assert.ErrorContains(t, err, "no longer advertised")
	assert.Empty(t, d.bar2.log)
}
