package hwsim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/octep/csr"
)

// live is a card that somebody has driven: it decodes, and a register is not at its
// power-on value.
func live(t *testing.T, faults func(f *Faults)) *Card {
	t.Helper()
	c := New(Options{Timeline: Compressed()})
	t.Cleanup(c.Close)
	if faults != nil {
		c.Faults(faults)
	}
	c.ConfigWrite(csr.CfgCommand, 2, csr.CfgCommandMemory|csr.CfgCommandBusMaster)
	c.ConfigWrite(csr.CfgBAR0, 4, 0xd0000000)
	c.Advance(time.Second)
	c.Store(0, uint64(csr.InIntLevels.Queue(3)), 8, 0x77)
	require.True(t, lives(c))
	return c
}

// lives tells whether the coprocessor has not been reset since.
func lives(c *Card) bool {
	return c.Load(0, uint64(csr.InIntLevels.Queue(3)), 8) == 0x77 && c.Load(0, uint64(csr.SDPScratch), 8) == csr.BAR2Facilities<<32|csr.ScratchMagic
}

func bar0(c *Card) uint32 { return c.ConfigRead(csr.CfgBAR0, 4) &^ 0xf }

// What vfio-pci does to a function that it may reset, or send to sleep.
func TestResetBehindTheDriver(t *testing.T) {
	for _, tt := range []struct {
		name   string
		faults func(f *Faults)
		do     func(c *Card)
		lives  bool
		bar0   uint32 // afterwards
	}{
		{"opened", nil, (*Card).Opened, true, 0xd0000000},
		{"opened with a reset", func(f *Faults) { f.ResetOnOpen = true }, (*Card).Opened, false, 0xd0000000},
		{"opened, where closing resets", func(f *Faults) { f.BusResetOnClose = true }, (*Card).Opened, true, 0xd0000000},
		{"closed", nil, (*Card).Closed, true, 0xd0000000},
		{"closed with a reset of the bus", func(f *Faults) { f.BusResetOnClose = true }, (*Card).Closed, false, 0xf0000000},
		{"closed, where opening resets", func(f *Faults) { f.ResetOnOpen = true }, (*Card).Closed, true, 0xd0000000},
		{"asleep and awake", nil, sleepAndWake, true, 0xd0000000},
		{"asleep and awake with a reset", func(f *Faults) { f.WakeResets = true }, sleepAndWake, false, 0xd0000000},
		{"awake all the time", func(f *Faults) { f.WakeResets = true }, func(c *Card) { c.ConfigWrite(cfgPMCtl, 2, 0) }, true, 0xd0000000},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := live(t, tt.faults)
			tt.do(c)
			assert.Equal(t, tt.bar0, bar0(c), "addresses of BARs")
			command := c.ConfigRead(csr.CfgCommand, 2)
			assert.Equal(t, tt.lives, command == csr.CfgCommandMemory|csr.CfgCommandBusMaster, "%#x", command)
			c.ConfigWrite(csr.CfgCommand, 2, csr.CfgCommandMemory)
			assert.Equal(t, tt.lives, lives(c))
			c.Advance(time.Second)
			assert.EqualValues(t, csr.BAR2Facilities<<32|csr.ScratchMagic, c.Load(0, uint64(csr.SDPScratch), 8), "it boots again, if it has to")
			assert.Empty(t, c.Reports())
		})
	}
}

func sleepAndWake(c *Card) {
	c.ConfigWrite(cfgPMCtl, 2, 3)
	c.ConfigWrite(cfgPMCtl, 2, 0)
}

// D3hot: config space answers, nothing else does, and the card reaches no memory.
func TestSleep(t *testing.T) {
	c := live(t, nil)
	mem := make([]byte, 4096)
	require.NoError(t, c.MapDMA(0x1_0000_0000, mem))
	assert.EqualValues(t, capPM, c.ConfigRead(int(c.ConfigRead(cfgCapPtr, 1)), 1), "the first capability")
	c.ConfigWrite(cfgPMCtl, 2, 0xffff)
	assert.EqualValues(t, 3|pmNoSoftReset, c.ConfigRead(cfgPMCtl, 2), "D3hot, and no other bit")
	assert.EqualValues(t, 0x177d, c.ConfigRead(csr.CfgVendor, 2))
	for bar := 0; bar <= 4; bar += 2 {
		assert.Equal(t, allOnes, c.Load(bar, 0x190, 8), "BAR%d", bar)
	}
	assert.Equal(t, 3, int(c.ReportCount(ReportDecodeOff)))
	c.mu.Lock()
	assert.False(t, c.dmaWrite("write", 0x1_0000_0000, []byte{1}))
	c.mu.Unlock()
	assert.Zero(t, mem[0])
	c.Store(0, uint64(csr.InIntLevels.Queue(3)), 8, 1)
	c.ConfigWrite(cfgPMCtl, 2, 0)
	assert.True(t, lives(c), "what it was told asleep it has not heard")
	c.Faults(func(f *Faults) { f.WakeResets = true })
	assert.Zero(t, c.ConfigRead(cfgPMCtl, 2)&pmNoSoftReset, "config space says so")
	c.Reboot()
	assert.Zero(t, c.ConfigRead(cfgPMCtl, 2)&pmNoSoftReset)
	c.Faults(func(f *Faults) { f.WakeResets = false })
	assert.NotZero(t, c.ConfigRead(cfgPMCtl, 2)&pmNoSoftReset)
}
