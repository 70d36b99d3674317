package csr

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The register tables of hardware/endpoint.md, transcribed by hand row by row:
// 2 (scratch), 1 (RINFO, window), 5.1 to 5.3 (rings), 8.2 (interrupt groups).
// Offsets of rings are those printed there, of ring 0.

func TestGoldenRingRegisters(t *testing.T) {
	rows := []struct {
		offset uint32
		name   string
		reg    RingReg
		access Access
		reset  uint64
	}{
		// 5.1
		{0x10000, "IN_CONTROL", InControl, RW, 0x0000000014000000},
		{0x10010, "IN_ENABLE", InEnable, RW, 0},
		{0x10020, "IN_INSTR_BADDR", InInstrBaddr, RWIdle, 0},
		{0x10030, "IN_INSTR_RSIZE", InInstrRsize, RW, 0},
		{0x10040, "IN_INSTR_DBELL", InInstrDBell, WriteAdds, 0},
		{0x10050, "IN_CNTS", InCnts, WriteSubs, 0x2000000000000000},
		{0x10060, "IN_INT_LEVELS", InIntLevels, RW, 0},
		{0x10070, "IN_INT_STATUS", InIntStatus, W1C, 0},
		{0x10080, "IN_PKT_CNT", InPktCnt, ClearOnZero, 0},
		{0x10090, "IN_BYTE_CNT", InByteCnt, ClearOnZero, 0},
		// 5.2
		{0x10100, "OUT_CNTS", OutCnts, WriteSubs, 0x2000000000000000},
		{0x10110, "OUT_INT_LEVELS", OutIntLevels, RW, 0},
		{0x10120, "OUT_SLIST_BADDR", OutSlistBaddr, RWIdle, 0},
		{0x10130, "OUT_SLIST_RSIZE", OutSlistRsize, RW, 16},
		{0x10140, "OUT_SLIST_DBELL", OutSlistDBell, WriteAdds, 0},
		{0x10150, "OUT_CONTROL", OutControl, RW, 0x0000001000000000},
		{0x10160, "OUT_ENABLE", OutEnable, RW, 0},
		{0x10170, "OUT_INT_STATUS", OutIntStatus, W1C, 0},
		{0x10180, "OUT_PKT_CNT", OutPktCnt, ClearOnZero, 0},
		{0x10190, "OUT_BYTE_CNT", OutByteCnt, ClearOnZero, 0},
		// 5.3
		{0x10200, "MBOX_RINT_STATUS", MboxRintStatus, RW, 0},
		{0x10210, "MBOX_PF_VF_DATA", MboxPFVFData, RW, 0},
		{0x10220, "MBOX_PF_VF_INT", MboxPFVFInt, W1C, 0},
		{0x10230, "MBOX_VF_PF_DATA", MboxVFPFData, RW, 0},
		{0x10300, "ALL_IN_STATUS", AllInStatus, RO, 0},
		{0x10400, "ERR_TYPE", ErrType, W1C, 0},
		{0x10500, "VF_NUM", VFNum, RW, 0},
	}
	require.Len(t, RingTable, len(rows))
	for i, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			assert.Equal(t, r.name, RingTable[i].Name)
			assert.Equal(t, r.access, RingTable[i].Access)
			assert.Equal(t, r.reset, RingTable[i].Reset)
			assert.True(t, RingTable[i].Ring)
			assert.EqualValues(t, r.reg, RingTable[i].Offset)
			assert.EqualValues(t, r.offset, r.reg.Queue(0))
			assert.EqualValues(t, 0x20000*5+r.offset, r.reg.Queue(5))
			assert.EqualValues(t, 0x20000*63+r.offset, r.reg.Queue(63))
		})
	}
	assert.EqualValues(t, 0x7f0190, OutByteCnt.Queue(63), "last register of the data path ends at 0x7f0198")
}

func TestGoldenGlobalRegisters(t *testing.T) {
	rows := []struct {
		offset uint32
		name   string
		reg    Reg64
		access Access
		reset  uint64
	}{
		// 8.2
		{0x20000, "SDP_MBOX", SDPMboxInt, W1C, 0},
		{0x20010, "SDP_MBOX_W1S", SDPMboxW1S, W1S, 0},
		{0x20020, "SDP_MBOX_ENA_W1C", SDPMboxEnaW1C, EnaW1C, 0},
		{0x20030, "SDP_MBOX_ENA_W1S", SDPMboxEnaW1S, EnaW1S, 0},
		{0x20080, "SDP_IRERR", SDPIRErr, W1C, 0},
		{0x20090, "SDP_IRERR_W1S", SDPIRErrW1S, W1S, 0},
		{0x200a0, "SDP_IRERR_ENA_W1C", SDPIRErrEnaW1C, EnaW1C, 0},
		{0x200b0, "SDP_IRERR_ENA_W1S", SDPIRErrEnaW1S, EnaW1S, 0},
		{0x20100, "SDP_ORERR", SDPORErr, W1C, 0},
		{0x20110, "SDP_ORERR_W1S", SDPORErrW1S, W1S, 0},
		{0x20120, "SDP_ORERR_ENA_W1C", SDPORErrEnaW1C, EnaW1C, 0},
		{0x20130, "SDP_ORERR_ENA_W1S", SDPORErrEnaW1S, EnaW1S, 0},
		{0x20140, "SDP_OEI", SDPOEI, W1C, 0},
		{0x20150, "SDP_OEI_W1S", SDPOEIW1S, W1S, 0},
		{0x20160, "SDP_OEI_ENA_W1C", SDPOEIEnaW1C, EnaW1C, 0},
		{0x20170, "SDP_OEI_ENA_W1S", SDPOEIEnaW1S, EnaW1S, 0},
		// 2 and 1
		{0x20180, "SDP_SCRATCH", SDPScratch, RW, 0},
		{0x20190, "SDP_EPF_RINFO", RInfo, RW, 0x0000000000400000},
		{0x28100, "SLI_EPF_SCRATCH", SLIScratch, RW, 0},
		// 8.2
		{0x28240, "SLI_MISC", SLIMisc, W1C, 0},
		{0x28250, "SLI_MISC_W1S", SLIMiscW1S, W1S, 0},
		{0x28260, "SLI_MISC_ENA_W1C", SLIMiscEnaW1C, EnaW1C, 0},
		{0x28270, "SLI_MISC_ENA_W1S", SLIMiscEnaW1S, EnaW1S, 0},
		{0x282c0, "SLI_PP_VF", SLIPPVF, W1C, 0},
		{0x282d0, "SLI_PP_VF_W1S", SLIPPVFW1S, W1S, 0},
		{0x282e0, "SLI_PP_VF_ENA_W1C", SLIPPVFEnaW1C, EnaW1C, 0},
		{0x282f0, "SLI_PP_VF_ENA_W1S", SLIPPVFEnaW1S, EnaW1S, 0},
		{0x28400, "SLI_DMA_VF", SLIDMAVF, W1C, 0},
		{0x28410, "SLI_DMA_VF_W1S", SLIDMAVFW1S, W1S, 0},
		{0x28420, "SLI_DMA_VF_ENA_W1C", SLIDMAVFEnaW1C, EnaW1C, 0},
		{0x28430, "SLI_DMA_VF_ENA_W1S", SLIDMAVFEnaW1S, EnaW1S, 0},
		{0x28500, "SLI_DMA", SLIDMA, W1C, 0},
		{0x28510, "SLI_DMA_W1S", SLIDMAW1S, W1S, 0},
		{0x28540, "SLI_DMA_ENA_W1C", SLIDMAEnaW1C, EnaW1C, 0},
		{0x28550, "SLI_DMA_ENA_W1S", SLIDMAEnaW1S, EnaW1S, 0},
		// 1, window registers
		{0x2c000, "SLI_WIN_WR_ADDR", WinWriteAddr, RW, 0},
		{0x2c010, "SLI_WIN_RD_ADDR", WinReadAddr, RW, 0},
		{0x2c020, "SLI_WIN_WR_DATA", WinWriteData, RW, 0},
		{0x2c030, "SLI_WIN_WR_MASK", WinWriteMask, RW, 0},
		{0x2c040, "SLI_WIN_RD_DATA", WinReadData, RO, 0},
		{0x2c050, "SLI_MAC_NUMBER", MACNumber, RO, 0},
	}
	require.Len(t, GlobalTable, len(rows))
	for i, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			want := GlobalTable[i]
			want.Note = ""
			assert.Equal(t, Info{r.name, r.offset, false, r.access, r.reset, ""}, want)
			assert.EqualValues(t, r.offset, r.reg)
		})
	}
}

// Constants of endpoint.md 1 to 5, transcribed.
func TestGoldenConstants(t *testing.T) {
	rows := []struct {
		name      string
		got, want uint64
	}{
		{"class", PCIClass, 0x0b8000},
		{"BAR0, 8 MiB", BAR0Size, 8 << 20},
		{"BAR2, 64 MiB", BAR2Size, 64 << 20},
		{"BAR4, 1 MiB", BAR4Size, 1 << 20},
		{"64 rings fill BAR0", Rings * ringStride, BAR0Size},
		{"sixteen index entries fill BAR2", 16 * BAR2Entry, BAR2Size},
		{"entry 8", BAR2Facilities, 0x02000000},
		{"entry 9", BAR2FacEnd, 0x02400000},
		{"entry 15", BAR2Interrupt, 0x03c00000},
		{"MSI-X table", MSIXTable, 0},
		{"MSI-X table bytes", MSIXVectors * MSIXEntrySize, 0x500},
		{"MSI-X PBA", MSIXPBA, 0x4000},
		{"vector of ring 7", MSIXRingVector + 7, 23},
		{"magic", ScratchMagic, 0xabcdabcd},
		{"vendor's note", ScratchQueuesUp, 0x11223344},
		{"barmap version 0.2", BarmapVersion02, 0x00000002},
		{"barmap facility 0", BarmapFacility, 0x04},
		{"barmap facility 4", BarmapFacility + 4*BarmapFacSize, 0x44},
		{"barmap gicd_offset", BarmapGICD, 0x54},
		{"barmap pem_num", BarmapPEM, 0x58},
		{"HOST_LOADED", HostLoaded, 0x00000000deadbeef},
		{"GET_HOST_INFO", GetHostInfo, 0x00000000beefdeed},
		{"reply at 800 MHz", HostInfoReceived<<HostInfoShift | ClocksPerUS, 0xdeadde0320},
		{"HANDSHAKE_COMPLETED", HandshakeCompleted, 0x00000000deeddeed},
		{"IN_CONTROL programmed", InControlReset | InControlRDSize3 | InControlIs64B | InControlESR, 0x0000000017000002},
		{"IN_CONTROL programmed, the constant", InControlProgram, 0x0000000017000002},
		{"OUT_CONTROL programmed", OutControlBSize.Put(OutControlReset, 1602) | OutControlESP, 0x0000001004000642},
		{"OUT_CONTROL attributes: bits 24-26, 28-30, 32-34", OutControlAttrs, 0x777000000},
		{"OUT_CONTROL IMODE", OutControlIMode, 0x800000},
		{"OUT_CONTROL sizes: the low 23 bits", OutControlSizes, 0x7fffff},
		{"IN IDLE, bit 28", InControlIdle, 1 << 28},
		{"OUT IDLE, bit 36", OutControlIdle, 1 << 36},
		{"RESEND, bit 59", OutCntsResend, 1 << 59},
		{"IN_INT, bit 61", OutCntsInInt, 1 << 61},
		{"OUT_INT, bit 62", OutCntsOutInt, 1 << 62},
		{"idle OUT_CNTS", OutCntsIdle, 0x2000000000000000},
	}
	for _, r := range rows {
		assert.Equal(t, r.want, r.got, r.name)
	}
}

// Every field decoder: all ones, one bit at each end, and its neighbours
// (CTL-11). lo and hi are the bit numbers that the page prints.
func TestFields(t *testing.T) {
	rows := []struct {
		name   string
		f      Field
		lo, hi uint
	}{
		{"RINFO SRN", RInfoSRN, 0, 6},
		{"RINFO TRS", RInfoTRS, 16, 23},
		{"RINFO RPVF", RInfoRPVF, 32, 36},
		{"RINFO NVFS", RInfoNVFS, 48, 54},
		{"SDP_SCRATCH magic", ScratchLo, 0, 31},
		{"SDP_SCRATCH barmap", ScratchHi, 32, 63},
		{"IN_CONTROL RPVF", InControlRPVF, 48, 51},
		{"IN_CONTROL RDSIZE", InControlRDSize, 25, 26},
		{"OUT_CONTROL BSIZE", OutControlBSize, 0, 15},
		{"doorbell count", DBellCount, 0, 31},
		{"doorbell position", DBellPosition, 32, 63},
		{"count", CntsCount, 0, 31},
		{"OUT_INT_LEVELS packets", OutIntLevelPkts, 0, 31},
		{"OUT_INT_LEVELS time", OutIntLevelTicks, 32, 53},
		{"MAC_NUMBER port", MACNumberPCIePort, 0, 7},
		{"info rpvf", InfoRPVF, 0, 7},
		{"info vf_srn", InfoVFSRN, 8, 15},
		{"info num_vfs", InfoNumVFs, 16, 23},
		{"info rppf", InfoRPPF, 24, 31},
		{"info pf_srn", InfoPFSRN, 32, 39},
		{"info app_mode", InfoAppMode, 40, 47},
	}
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			var mask uint64
			for b := r.lo; b <= r.hi; b++ {
				mask |= 1 << b
			}
			full := mask >> r.lo
			assert.Equal(t, mask, r.f.Mask())
			assert.Equal(t, full, r.f.Get(AllOnes), "all ones")
			assert.Zero(t, r.f.Get(^mask), "everything but the field")
			assert.EqualValues(t, 1, r.f.Get(1<<r.lo), "lowest bit")
			assert.EqualValues(t, uint64(1)<<(r.hi-r.lo), r.f.Get(1<<r.hi), "highest bit")
			if r.lo > 0 {
				assert.Zero(t, r.f.Get(1<<(r.lo-1)), "neighbour below")
			}
			if r.hi < 63 {
				assert.Zero(t, r.f.Get(1<<(r.hi+1)), "neighbour above")
				assert.Panics(t, func() { r.f.Put(0, full+1) }, "one past the field")
			}
			assert.Equal(t, mask, r.f.Put(0, full))
			assert.Equal(t, ^mask, r.f.Put(AllOnes, 0), "neighbours keep their value")
		})
	}
}

// The two values of RINFO on record (endpoint.md 1; CTL-11).
func TestRInfoOnRecord(t *testing.T) {
	type split struct{ srn, trs, rpvf, nvfs uint64 }
	get := func(v uint64) split {
		return split{RInfoSRN.Get(v), RInfoTRS.Get(v), RInfoRPVF.Get(v), RInfoNVFS.Get(v)}
	}
	assert.Equal(t, split{0, 64, 0, 0}, get(0x0000000000400000))
	assert.Equal(t, split{0, 64, 1, 8}, get(0x0008000100400000))
}

// Doorbell words on record (endpoint.md 5.1, 5.5; TX-5).
func TestDoorbellsOnRecord(t *testing.T) {
	assert.EqualValues(t, 38*64, DBellPosition.Get(0x0000098000000000))
	assert.EqualValues(t, 0, DBellCount.Get(0x0000098000000000))
	credit := func(v uint64) int32 { return int32(DBellCount.Get(v)) }
	assert.EqualValues(t, -14, credit(0xfffffff2))
	assert.EqualValues(t, 0, DBellPosition.Get(0xfffffff2), "the sign does not reach the upper half")
	assert.EqualValues(t, 0x100, DBellPosition.Get(0x00000100000000f1))
	assert.EqualValues(t, 241, credit(0x00000100000000f1))
}

// The info words that the board accepted (endpoint.md 4.2).
func TestInfoWordsOnRecord(t *testing.T) {
	word := func(rpvf, vfSRN, numVFs, rppf, pfSRN, mode uint64) (w uint64) {
		for _, p := range []struct {
			f Field
			v uint64
		}{{InfoRPVF, rpvf}, {InfoVFSRN, vfSRN}, {InfoNumVFs, numVFs}, {InfoRPPF, rppf}, {InfoPFSRN, pfSRN}, {InfoAppMode, mode}} {
			w = p.f.Put(w, p.v)
		}
		return w
	}
	assert.EqualValues(t, 0x0000020008000000, word(0, 0, 0, 8, 0, 2))
	assert.EqualValues(t, 0x0000020808080001, word(1, 0, 8, 8, 8, 2))
}

// endpoint.md 5.2: 800 and 2 us give 1, 50 us gives 39; 14: 44510 and 2 us give 86.
func TestTimeTicks(t *testing.T) {
	assert.EqualValues(t, 1, TimeTicks(800, 2))
	assert.EqualValues(t, 39, TimeTicks(800, 50))
	assert.EqualValues(t, 86, TimeTicks(44510, 2))
	assert.EqualValues(t, 7810, TimeTicks(800, 10000), "integer at each step: 781.25 becomes 781")
	assert.EqualValues(t, 0, TimeTicks(800, 0))
	assert.EqualValues(t, 0, TimeTicks(0, 50))
}

func TestLookupAndNames(t *testing.T) {
	rows := []struct {
		off  uint32
		name string
	}{
		{0x10000, "IN_CONTROL[0][0x10000]"},
		{0xb0100, "OUT_CNTS[5][0xb0100]"},
		{0xb0104, "OUT_CNTS[5][0xb0104]"},
		{0x7f0190, "OUT_BYTE_CNT[63][0x7f0190]"},
		{0x30100, "OUT_CNTS[1][0x30100]"},
		{0x20180, "SDP_SCRATCH[0x20180]"},
		{0x28100, "SLI_EPF_SCRATCH[0x28100]"},
		{0x00000, "BAR0[0x00000]"},
		{0x10008, "BAR0[0x10008]"},
		{0x101a0, "BAR0[0x101a0]"},
		{0x40100, "BAR0[0x40100]"}, // lower half of ring 2's slot
		{0x800000, "BAR0[0x800000]"},
		{0x810000, "BAR0[0x810000]"},
	}
	for _, r := range rows {
		assert.Equal(t, r.name, Name(r.off))
		assert.Equal(t, r.name, Reg64(r.off).String())
		assert.Equal(t, r.name, Reg64(r.off).Low().String())
	}
	assert.Panics(t, func() { OutCnts.Queue(64) })
	assert.Panics(t, func() { OutCnts.Queue(-1) })
}

func TestAccessNames(t *testing.T) {
	seen := map[string]bool{}
	for a := RW; a <= RWIdle; a++ {
		assert.NotEmpty(t, a.String())
		seen[a.String()] = true
	}
	assert.Len(t, seen, int(RWIdle)+1)
}

// Every byte of the table in its own place (endpoint.md 3.1).
func TestBarmapPlaces(t *testing.T) {
	b := make([]byte, BarmapSize)
	for i := range b {
		b[i] = byte(i)
	}
	var m Barmap
	require.NoError(t, m.Decode(b))
	word := func(off uint32) uint32 { return off | (off+1)<<8 | (off+2)<<16 | (off+3)<<24 }
	assert.Equal(t, word(0), m.Version)
	for i, at := range []uint32{0x04, 0x14, 0x24, 0x34, 0x44} {
		assert.Equal(t, Facility{word(at), word(at + 4), word(at + 8), word(at + 12)}, m.Facility[i])
	}
	assert.Equal(t, word(0x54), m.GICD)
	assert.EqualValues(t, 0x58, m.PEM)
	require.ErrorIs(t, m.Decode(b[:BarmapSize-1]), ErrShort)
}

func FuzzBarmapDecode(f *testing.F) {
	f.Add(make([]byte, BarmapSize))
	f.Add(make([]byte, BarmapSize-1))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m, again Barmap
		if err := m.Decode(b); err != nil {
			require.ErrorIs(t, err, ErrShort)
			require.Less(t, len(b), BarmapSize)
			return
		}
		require.GreaterOrEqual(t, len(b), BarmapSize)
		out := m.Append(nil)
		require.Len(t, out, BarmapSize)
		require.Equal(t, b[:BarmapPEM+1], out[:BarmapPEM+1])
		require.NoError(t, again.Decode(out))
		require.Equal(t, m, again)
	})
}
