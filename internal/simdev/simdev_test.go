package simdev_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/board"
	"oxpd/internal/mmio"
	"oxpd/internal/simdev"
	"oxpd/internal/simdev/simtest"
	"oxpd/octep"
	"oxpd/octep/csr"
)

func newDevice(t *testing.T) (*hwsim.Card, octep.Device) {
	t.Helper()
	card := hwsim.New(hwsim.Options{Timeline: hwsim.Compressed()})
	dev := simdev.New(card)
	simtest.Guard(t, card)
	require.NoError(t, dev.ConfigWrite(csr.CfgCommand, 2, csr.CfgCommandMemory|csr.CfgCommandBusMaster))
	return card, dev
}

func TestConfigSpace(t *testing.T) {
	card, dev := newDevice(t)
	read := func(off, width int) uint32 {
		v, err := dev.ConfigRead(off, width)
		require.NoError(t, err)
		return v
	}
	assert.Equal(t, "sim", dev.Name())
	assert.EqualValues(t, board.Vendor, read(csr.CfgVendor, 2))
	assert.EqualValues(t, board.DevicePF, read(csr.CfgDevice, 2))
	assert.EqualValues(t, uint32(board.DevicePF)<<16|board.Vendor, read(csr.CfgVendor, 4))
	assert.EqualValues(t, 1, read(csr.CfgRevision, 1))
	assert.EqualValues(t, csr.PCIClass, read(csr.CfgRevision, 4)>>8)
	for _, width := range []int{0, 3, 8} {
		_, err := dev.ConfigRead(0, width)
		assert.Error(t, err)
		assert.Error(t, dev.ConfigWrite(csr.CfgCommand, width, 0))
	}

	card.Kill()
	assert.EqualValues(t, 0xff, read(csr.CfgRevision, 1), "all ones of the width asked for")
	assert.EqualValues(t, 0xffff, read(csr.CfgVendor, 2))
	assert.EqualValues(t, 0xffffffff, read(csr.CfgVendor, 4))
	assert.False(t, octep.Alive(dev))
	_, err := mmio.Checked64(dev.BAR0(), csr.RInfo)
	assert.ErrorIs(t, err, mmio.ErrGone)
}

func TestBARsKeepWidthAndNumber(t *testing.T) {
	card, dev := newDevice(t)
	card.Advance(time.Second)
	bar0, bar2 := dev.BAR0(), dev.BAR2()
	assert.EqualValues(t, csr.BAR0Size, bar0.Size())
	assert.EqualValues(t, csr.BAR2Size, bar2.Size())

	assert.EqualValues(t, csr.RInfoReset, mmio.Load64(bar0, csr.RInfo))
	assert.EqualValues(t, csr.RInfoReset, bar0.Load32(uint32(csr.RInfo)))
	mmio.Store64(bar0, csr.InInstrBaddr.Queue(3), 0x1122334455667788)
	assert.EqualValues(t, 0x11223344, bar0.Load32(uint32(csr.InInstrBaddr.Queue(3))+4))
	mmio.Store32(bar0, csr.InIntLevels.Queue(3).Low(), 7)
	bar2.Store64(0x02100400, 0x8877665544332211)
	bar2.Store32(0x02100408, 5)
	assert.EqualValues(t, 0x88776655, bar2.Load32(0x02100404))
	assert.EqualValues(t, 5, bar2.Load64(0x02100408))

	acc := card.Accesses()
	assert.Equal(t, hwsim.AccessCount{Reads: 2, Reads32: 1}, acc["SDP_EPF_RINFO"])
	assert.Equal(t, hwsim.AccessCount{Reads: 1, Reads32: 1, Writes: 1}, acc["IN_INSTR_BADDR[3]"])
	assert.EqualValues(t, 1, acc["IN_INT_LEVELS[3]"].Writes32)
	assert.Equal(t, hwsim.AccessCount{Reads: 2, Reads32: 1, Writes: 2, Writes32: 1}, acc["BAR2_MGMT_NETDEV"])
}

func TestRegionsAreTheCards(t *testing.T) {
	card, dev := newDevice(t)
	r, err := dev.DMA().Alloc("r", 4096, 4096)
	require.NoError(t, err)
	assert.ErrorIs(t, card.MapDMA(uint64(r.Bus()), make([]byte, 4096)), hwsim.ErrDMARegion, "the card has it already")
	assert.False(t, dev.DMA().Keeps())
	require.NoError(t, dev.DMA().Free(r))
	assert.NoError(t, card.MapDMA(uint64(r.Bus()), make([]byte, 4096)), "and has lost it")
}

// raise has the card send the message of ring 0: a packet that it delivered.
func raise(t *testing.T, card *hwsim.Card, dev octep.Device) {
	t.Helper()
	const entries, size = 2048, 1664
	list, err := dev.DMA().Alloc("list", entries*16, 4096)
	require.NoError(t, err)
	buf, err := dev.DMA().Alloc("buffers", entries*size, 64)
	require.NoError(t, err)
	mem, _ := list.At(0, list.Size())
	for i := range entries {
		_, bus := buf.At(i*size, size)
		for b := range 8 {
			mem[i*16+b] = byte(uint64(bus) >> (8 * b))
		}
	}
	bar0 := dev.BAR0()
	mmio.Store64(bar0, csr.OutSlistBaddr.Queue(0), uint64(list.Bus()))
	mmio.Store64(bar0, csr.OutSlistRsize.Queue(0), entries)
	mmio.Store64(bar0, csr.OutControl.Queue(0), csr.OutControlBSize.Put(csr.OutControlESP, 1602))
	mmio.Store64(bar0, csr.OutIntLevels.Queue(0), 0)
	mmio.Store64(bar0, csr.OutEnable.Queue(0), 1)
	mmio.Store32(bar0, csr.OutSlistDBell.Queue(0).Low(), entries)
	card.Provision()
	require.True(t, card.DeliverRaw(0, uint16(board.All()[0].Tag), make([]byte, 60), 8+74))
	card.Advance(time.Second)
	require.EqualValues(t, 1, csr.CntsCount.Get(mmio.Load64(bar0, csr.OutCnts.Queue(0))))
}

func TestBindIRQ(t *testing.T) {
	for _, tt := range []struct {
		name string
		then func(dev octep.Device) error
		want uint64
	}{
		{"bound: called once", nil, 1},
		{"unbound: not called", func(dev octep.Device) error { return dev.BindIRQ(csr.MSIXRingVector, nil) }, 0},
		{"closed: nobody is called, the card lives on", octep.Device.Close, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			card, dev := newDevice(t)
			var calls, others uint64
			require.NoError(t, dev.BindIRQ(csr.MSIXRingVector, func() { calls++ }))
			require.NoError(t, dev.BindIRQ(csr.MSIXRingVector+1, func() { others++ }))
			if tt.then != nil {
				require.NoError(t, tt.then(dev))
			}
			raise(t, card, dev)
			assert.Equal(t, tt.want, calls)
			assert.Equal(t, tt.want, card.Messages(csr.MSIXRingVector))
			assert.Zero(t, others, "the vector of another ring")
		})
	}
	t.Run("vectors that the card does not have", func(t *testing.T) {
		_, dev := newDevice(t)
		for _, v := range []int{-1, csr.MSIXVectors} {
			assert.Error(t, dev.BindIRQ(v, func() {}))
		}
		assert.NoError(t, dev.BindIRQ(csr.MSIXVectors-1, func() {}))
	})
}
