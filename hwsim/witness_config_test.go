package hwsim

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// endpoint.md 1: identity, capabilities, where they are. Places without a record are
// found by the list.
func TestWitnessConfigSpace(t *testing.T) {
	c := New(Options{Timeline: Compressed()})
	defer c.Close()
	rows := []struct {
		off, width int
		name       string
		value      uint32
		bits       uint32 // that a store changes
	}{
		{0x00, 2, "vendor", 0x177d, 0},
		{0x02, 2, "device", 0xa300, 0},
		{0x08, 1, "revision", 1, 0},
		{0x09, 1, "interface", 0x00, 0},
		{0x0a, 2, "class", 0x0b80, 0},
		{0x04, 2, "command", 0, 0x0546}, // memory, bus master, and what PCI has besides
		{0x70, 1, "PCI Express", 0x10, 0},
		{0x82, 2, "LINKSTA: x8, Gen3", 8<<4 | 3, 0},
		{0x10, 4, "BAR0: 64 bits, memory", 0xf0000004, 0xff800000},
		{0x18, 4, "BAR2", 0xec000004, 0xfc000000},
		{0x20, 4, "BAR4", 0xf4800004, 0xfff00000},
		{0x14, 4, "BAR0, upper half", 0, 0xffffffff},
		{0x1c, 4, "BAR2, upper half", 0, 0xffffffff},
		{0x24, 4, "BAR4, upper half", 0, 0xffffffff},
		{0x720, 4, "filter mask", 0, 0xffffffff},
	}
	for _, r := range rows {
		require.Equal(t, r.value, c.ConfigRead(r.off, r.width), r.name)
		for _, v := range []uint32{0xffffffff, 0, 0xffffffff} {
			v &= uint32(1)<<(8*r.width-1)<<1 - 1
			c.ConfigWrite(r.off, r.width, v)
			assert.Equal(t, r.value&^r.bits|v&r.bits, c.ConfigRead(r.off, r.width), "%s after %#x", r.name, v)
		}
		c.ConfigWrite(r.off, r.width, r.value)
	}
	for bar, size := range map[int]uint64{0: 8 << 20, 2: 64 << 20, 4: 1 << 20, 1: 0, 3: 0, 5: 0} {
		assert.Equal(t, size, c.BARSize(bar), "BAR%d", bar)
	}
	assert.Empty(t, c.Reports())
}

func TestWitnessCapabilities(t *testing.T) {
	c := New(Options{Timeline: Compressed()})
	defer c.Close()
	caps := map[uint32]int{}
	for p := c.ConfigRead(0x34, 1); p != 0; p = c.ConfigRead(int(p)+1, 1) {
		caps[c.ConfigRead(int(p), 1)] = int(p)
	}
	assert.NotZero(t, c.ConfigRead(0x06, 2)&(1<<4), "there is a list")
	assert.Equal(t, 0x70, caps[0x10], "PCI Express")
	assert.NotZero(t, c.ConfigRead(0x74, 4)&(1<<28), "FLR")
	msix := caps[0x11]
	require.NotZero(t, msix)
	assert.EqualValues(t, 80-1, c.ConfigRead(msix+2, 2)&0x7ff)
	assert.Zero(t, c.ConfigRead(msix+2, 2)>>14, "off, and not masked as a whole")
	assert.Zero(t, c.ConfigRead(msix+4, 4), "table: BAR0 + 0")
	assert.EqualValues(t, 0x4000, c.ConfigRead(msix+8, 4), "pending bits: BAR0 + 0x4000")
	c.ConfigWrite(msix+2, 2, 0xffff)
	assert.EqualValues(t, 0xc000|79, c.ConfigRead(msix+2, 2), "enable and mask, and nothing else")

	type vsec struct{ id, revision, length uint32 }
	var vendor []vsec
	sriov := 0
	for p := 0x100; p != 0; {
		head := c.ConfigRead(p, 4)
		switch head & 0xffff {
		case 0x000b:
			w := c.ConfigRead(p+4, 4)
			vendor = append(vendor, vsec{w & 0xffff, w >> 16 & 0xf, w >> 20})
		case 0x0010:
			sriov = p
		}
		p = int(head >> 20)
	}
	assert.Equal(t, []vsec{{0x0002, 4, 256}, {0x0001, 1, 56}}, vendor)
	require.NotZero(t, sriov)
	assert.EqualValues(t, 64, c.ConfigRead(sriov+0x0e, 2), "TotalVFs")
	assert.Zero(t, c.ConfigRead(sriov+0x08, 2), "disabled at reset")
	assert.Zero(t, c.ConfigRead(sriov+0x10, 2), "NumVFs")
	assert.EqualValues(t, 0xa303, c.ConfigRead(sriov+0x1a, 2))
	c.ConfigWrite(sriov+0x10, 2, 8)
	assert.EqualValues(t, 8, c.ConfigRead(sriov+0x10, 2))
	assert.Empty(t, c.Reports())
	c.ConfigWrite(sriov+0x08, 2, 1)
	assert.EqualValues(t, 1, c.ReportCount(ReportSRIOV), "what is not modelled is said by name")
}

// endpoint.md 1, 3.1: the map of BAR2, its table, and when it is there.
func TestWitnessWindows(t *testing.T) {
	h := newMiniHost(t)
	ones := func(from, to uint64) {
		for off := from; off < to; off += 0x100000 {
			assert.Equal(t, ^uint64(0), h.r64(off), "BAR2+%#x", off)
		}
	}
	ones(0, 0x02400000)
	assert.Zero(t, h.c.Load(0, 0x20180, 8), "no magic yet")
	require.True(t, h.wait(1e9, h.c.KernelUp))
	ones(0, 0x02000000)

	// version, five records of offset, size, doorbell, count, gicd_offset, pem_num
	kernel := []uint32{
		0x00000002,
		0x02000000, 0x100000, 152, 1,
		0x02100000, 0x100000, 153, 1,
		0, 0, 0, 0,
		0, 0, 0, 0,
		0, 0, 0, 0,
		0x03c00040, 0,
	}
	live := append([]uint32(nil), kernel...)
	copy(live[9:], []uint32{0x02200000, 0x100000, 154, 1, 0x02300000, 0x100000, 155, 5})
	table := func() (v []uint32) {
		for i := range uint64(len(live)) {
			v = append(v, h.r32(0x02000000+4*i))
		}
		return v
	}
	assert.Equal(t, kernel, table(), "rpc and nw_agent come with the fast path")
	assert.EqualValues(t, 1, h.r64(0x02100000+8), "mgmt_netdev: device type")
	assert.EqualValues(t, 1, h.r64(0x02100000+256), "mgmt_netdev: TARGET_STATUS ready")
	assert.Zero(t, h.r64(0x02200000), "nw_agent is blank")
	h.agent()
	assert.Equal(t, live, table())
	for off := uint64(0x02000060); off < 0x02001000; off += 8 {
		require.Zero(t, h.r64(off), "of the first 4 KiB only the table is not zero: %#x", off)
	}
	ones(0, 0x02000000)
	assert.Empty(t, h.c.Reports())

	h.c.Load(2, 0x02400000, 8)
	h.c.Load(2, 0x03800000, 4)
	h.c.Load(2, 0x03c00000, 4)
	h.c.Load(2, 0x03c00040, 4)
	assert.EqualValues(t, 4, h.c.ReportCount(ReportForbiddenRead), "entries 9 to 15")
	for spi := range uint32(256) {
		before := h.c.ReportCount(ReportUnknownSPI)
		h.bell(spi)
		assert.Equal(t, spi >= 152 && spi <= 159, h.c.ReportCount(ReportUnknownSPI) == before, "SPI %d", spi)
	}
}

// The heads of the two mailboxes (endpoint.md 12; rpc-lif.md 2.1, 3, 7).
func TestWitnessMailboxHeads(t *testing.T) {
	h := newMiniHost(t).agent()
	assert.EqualValues(t, 0x0100000000000000, h.r64(tRPC), "rpc: alive, nothing configured")
	for off := uint64(8); off < 232; off += 8 {
		assert.Zero(t, h.r64(tRPC+off), "rpc +%d", off)
	}
	require.True(t, h.configure(lowRing))
	assert.EqualValues(t, 0x01000001d7d3ab00, h.r64(tRPC))
	assert.EqualValues(t, 0x01, h.r32(tRPC+4)>>24, "reconfig_done is byte 7")

	for off, want := range map[uint64]uint32{
		0x00: 0xcafebabe, 0x04: 0x34, 0x08: 0x7fcc, 0x0c: 0x8000, 0x10: 0x8000,
		0x18: 0, 0x1c: 0, 0x20: 0, 0x24: 0,
	} {
		assert.Equal(t, want, h.r32(tNWA+off), "nw_agent +%#x", off)
	}
	a := h.ask(0x01, 0, 0)
	assert.EqualValues(t, 0x14, a.marker)
	assert.EqualValues(t, 2020, a.bytes)
	assert.EqualValues(t, 14, a.payload[0])
	assert.Empty(t, h.c.Reports())
}

// Switch registers (switch.md 4, 5, 7, 9): values of a start and what a store does,
// through the two registers of the multi-chip front end.
func TestWitnessSwitchRegisters(t *testing.T) {
	const free = 0xffff // storage
	rows := []struct {
		reg   int
		name  string
		start [11]uint16 // by port
		bits  uint16     // that a store changes
		known uint16     // that the page has a value for
	}{
		{0x00, "Port Status", [11]uint16{0x034d, 0x000f, 0x000f, 0x000f, 0x000f, 0x000f, 0x000f, 0x000f, 0x000f, 0x0249, 0x0249}, 0, 0xffff},
		{0x03, "Switch Identifier", [11]uint16{0x1930, 0x1930, 0x1930, 0x1930, 0x1930, 0x1930, 0x1930, 0x1930, 0x1930, 0x1930, 0x1930}, 0, 0xffff},
		{0x04, "Port Control", [11]uint16{0x017f, 0x007c, 0x007c, 0x007c, 0x007c, 0x007c, 0x007c, 0x007c, 0x007c, 0x007c, 0x007c}, free, 0xffff},
		{0x05, "Port Control 1", [11]uint16{}, free, 0},
		{0x06, "VLAN map", [11]uint16{0x07fe, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, free, 0xffff},
		{0x07, "Default VLAN", [11]uint16{}, free, 0},
		{0x08, "Port Control 2", [11]uint16{0x2000, 0x1000, 0x1000, 0x1000, 0x1000, 0x1000, 0x1000, 0x1000, 0x1000, 0x1000, 0x1000}, free, 0x3000},
		{0x0b, "Association vector", [11]uint16{}, free, 0},
	}
	h := newSMIHost(t)
	for _, r := range rows {
		for p, start := range r.start {
			was := h.read(p, r.reg)
			assert.Equal(t, start&r.known, was&r.known, "%s of port %d", r.name, p)
			for _, v := range []uint16{0xffff, 0, 0x8001} {
				h.write(p, r.reg, v)
				assert.Equal(t, v&r.bits|was&^r.bits, h.read(p, r.reg), "%s of port %d after %#x", r.name, p, v)
			}
			h.write(p, r.reg, was)
		}
	}
	for _, name := range []string{ReportSwitchBits, ReportSwitchReserved, ReportSwitchMap, ReportSwitchUplink} {
		assert.NotZero(t, h.c.ReportCount(name), name)
	}

	t.Run("PHYs and lanes", func(t *testing.T) {
		r := newRingHost(t, 16).program(1024)
		h := r.switchHost()
		for p := 1; p <= 8; p++ {
			assert.NotZero(t, h.phyRead(p, 22), "the page at start is another")
			assert.Zero(t, h.phyRead(p, 0), "which reads 0")
			h.phyWrite(p, 22, 0)
			assert.Equal(t, uint16(0x1140), h.phyRead(p, 0), "PHY %d: healthy", p)
		}
		for _, p := range []int{9, 10} {
			assert.Equal(t, [3]uint16{0x0058, 0x0004, 0x1140},
				[3]uint16{h.c45Read(p, 4, 0xf002), h.c45Read(p, 4, 0xf003), h.c45Read(p, 4, 0x2000)}, "lane %d", p)
		}
		r.clean()
	})
}
