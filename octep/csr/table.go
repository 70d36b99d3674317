package csr

import "fmt"

// Info describes one register for people, diagnostics and the reference page.
type Info struct {
	Name   string // as the pages print it, without the R_ prefix
	Offset uint32 // from BAR0, or from the ring's block when PerRing
	Ring   bool
	Access Access
	Reset  uint64
	Note   string
}

// RingTable lists the registers of one ring block in order of offset.
var RingTable = []Info{
	{"IN_CONTROL", uint32(InControl), true, RW, InControlReset, "IDLE (bit 28) is read-only; IS_64B is off at reset"},
	{"IN_ENABLE", uint32(InEnable), true, RW, 0, "bit 0"},
	{"IN_INSTR_BADDR", uint32(InInstrBaddr), true, RWIdle, 0, "bus address of the instruction ring"},
	{"IN_INSTR_RSIZE", uint32(InInstrRsize), true, RW, 0, "instructions"},
	{"IN_INSTR_DBELL", uint32(InInstrDBell), true, WriteAdds, 0, "low half posted and not fetched, high half fetch position in bytes"},
	{"IN_CNTS", uint32(InCnts), true, WriteSubs, OutCntsIdle, "instructions finished; upper bits as in OUT_CNTS"},
	{"IN_INT_LEVELS", uint32(InIntLevels), true, RW, 0, ""},
	{"IN_INT_STATUS", uint32(InIntStatus), true, W1C, 0, ""},
	{"IN_PKT_CNT", uint32(InPktCnt), true, ClearOnZero, 0, "packets fetched"},
	{"IN_BYTE_CNT", uint32(InByteCnt), true, ClearOnZero, 0, "sum of tlen"},
	{"OUT_CNTS", uint32(OutCnts), true, WriteSubs, OutCntsIdle, "packets written and not acknowledged; bit 59 RESEND"},
	{"OUT_INT_LEVELS", uint32(OutIntLevels), true, RW, 0, "packets 31:0, time 53:32"},
	{"OUT_SLIST_BADDR", uint32(OutSlistBaddr), true, RWIdle, 0, "bus address of the buffer list"},
	{"OUT_SLIST_RSIZE", uint32(OutSlistRsize), true, RW, OutSlistRsizeMin, "entries, a multiple of 16"},
	{"OUT_SLIST_DBELL", uint32(OutSlistDBell), true, WriteAdds, 0, "low half signed credit, high half fetch position in bytes"},
	{"OUT_CONTROL", uint32(OutControl), true, RW, OutControlReset, "IDLE (bit 36) is read-only"},
	{"OUT_ENABLE", uint32(OutEnable), true, RW, 0, "bit 0"},
	{"OUT_INT_STATUS", uint32(OutIntStatus), true, W1C, 0, "0x10 after a packet"},
	{"OUT_PKT_CNT", uint32(OutPktCnt), true, ClearOnZero, 0, "36 bits"},
	{"OUT_BYTE_CNT", uint32(OutByteCnt), true, ClearOnZero, 0, ""},
	{"MBOX_RINT_STATUS", uint32(MboxRintStatus), true, RW, 0, ""},
	{"MBOX_PF_VF_DATA", uint32(MboxPFVFData), true, RW, 0, ""},
	{"MBOX_PF_VF_INT", uint32(MboxPFVFInt), true, W1C, 0, ""},
	{"MBOX_VF_PF_DATA", uint32(MboxVFPFData), true, RW, 0, ""},
	{"ALL_IN_STATUS", uint32(AllInStatus), true, RO, 0, "one bit per signalling ring"},
	{"ERR_TYPE", uint32(ErrType), true, W1C, 0, ""},
	{"VF_NUM", uint32(VFNum), true, RW, 0, "owner, 0 = PF"},
}

// GlobalTable lists the registers outside the ring blocks in order of offset.
var GlobalTable = []Info{
	{"SDP_MBOX", uint32(SDPMboxInt), false, W1C, 0, ""},
	{"SDP_MBOX_W1S", uint32(SDPMboxW1S), false, W1S, 0, ""},
	{"SDP_MBOX_ENA_W1C", uint32(SDPMboxEnaW1C), false, EnaW1C, 0, ""},
	{"SDP_MBOX_ENA_W1S", uint32(SDPMboxEnaW1S), false, EnaW1S, 0, ""},
	{"SDP_IRERR", uint32(SDPIRErr), false, W1C, 0, ""},
	{"SDP_IRERR_W1S", uint32(SDPIRErrW1S), false, W1S, 0, ""},
	{"SDP_IRERR_ENA_W1C", uint32(SDPIRErrEnaW1C), false, EnaW1C, 0, ""},
	{"SDP_IRERR_ENA_W1S", uint32(SDPIRErrEnaW1S), false, EnaW1S, 0, ""},
	{"SDP_ORERR", uint32(SDPORErr), false, W1C, 0, ""},
	{"SDP_ORERR_W1S", uint32(SDPORErrW1S), false, W1S, 0, ""},
	{"SDP_ORERR_ENA_W1C", uint32(SDPORErrEnaW1C), false, EnaW1C, 0, ""},
	{"SDP_ORERR_ENA_W1S", uint32(SDPORErrEnaW1S), false, EnaW1S, 0, ""},
	{"SDP_OEI", uint32(SDPOEI), false, W1C, 0, "bit n = event of facility n"},
	{"SDP_OEI_W1S", uint32(SDPOEIW1S), false, W1S, 0, ""},
	{"SDP_OEI_ENA_W1C", uint32(SDPOEIEnaW1C), false, EnaW1C, 0, ""},
	{"SDP_OEI_ENA_W1S", uint32(SDPOEIEnaW1S), false, EnaW1S, 0, ""},
	{"SDP_SCRATCH", uint32(SDPScratch), false, RW, 0, "magic and barmap pointer"},
	{"SDP_EPF_RINFO", uint32(RInfo), false, RW, RInfoReset, ""},
	{"SLI_EPF_SCRATCH", uint32(SLIScratch), false, RW, 0, "handshake, then started ports"},
	{"SLI_MISC", uint32(SLIMisc), false, W1C, 0, ""},
	{"SLI_MISC_W1S", uint32(SLIMiscW1S), false, W1S, 0, ""},
	{"SLI_MISC_ENA_W1C", uint32(SLIMiscEnaW1C), false, EnaW1C, 0, ""},
	{"SLI_MISC_ENA_W1S", uint32(SLIMiscEnaW1S), false, EnaW1S, 0, ""},
	{"SLI_PP_VF", uint32(SLIPPVF), false, W1C, 0, ""},
	{"SLI_PP_VF_W1S", uint32(SLIPPVFW1S), false, W1S, 0, ""},
	{"SLI_PP_VF_ENA_W1C", uint32(SLIPPVFEnaW1C), false, EnaW1C, 0, ""},
	{"SLI_PP_VF_ENA_W1S", uint32(SLIPPVFEnaW1S), false, EnaW1S, 0, ""},
	{"SLI_DMA_VF", uint32(SLIDMAVF), false, W1C, 0, ""},
	{"SLI_DMA_VF_W1S", uint32(SLIDMAVFW1S), false, W1S, 0, ""},
	{"SLI_DMA_VF_ENA_W1C", uint32(SLIDMAVFEnaW1C), false, EnaW1C, 0, ""},
	{"SLI_DMA_VF_ENA_W1S", uint32(SLIDMAVFEnaW1S), false, EnaW1S, 0, ""},
	{"SLI_DMA", uint32(SLIDMA), false, W1C, 0, ""},
	{"SLI_DMA_W1S", uint32(SLIDMAW1S), false, W1S, 0, ""},
	{"SLI_DMA_ENA_W1C", uint32(SLIDMAEnaW1C), false, EnaW1C, 0, ""},
	{"SLI_DMA_ENA_W1S", uint32(SLIDMAEnaW1S), false, EnaW1S, 0, ""},
	{"SLI_WIN_WR_ADDR", uint32(WinWriteAddr), false, RW, 0, ""},
	{"SLI_WIN_RD_ADDR", uint32(WinReadAddr), false, RW, 0, ""},
	{"SLI_WIN_WR_DATA", uint32(WinWriteData), false, RW, 0, ""},
	{"SLI_WIN_WR_MASK", uint32(WinWriteMask), false, RW, 0, ""},
	{"SLI_WIN_RD_DATA", uint32(WinReadData), false, RO, 0, ""},
	{"SLI_MAC_NUMBER", uint32(MACNumber), false, RO, 0, "low byte = PCIe port"},
}

// Lookup finds the register that an offset in BAR0 belongs to, and its ring
// (-1 for a global one). The upper half of a register (offset + 4) is found too.
func Lookup(off uint32) (info Info, ring int, ok bool) {
	reg := off &^ 7
	for i := range GlobalTable {
		if GlobalTable[i].Offset == reg {
			return GlobalTable[i], -1, true
		}
	}
	if reg >= BAR0Size || reg%ringStride < ringBase {
		return Info{}, -1, false
	}
	for i := range RingTable {
		if RingTable[i].Offset == reg%ringStride-ringBase {
			return RingTable[i], int(reg / ringStride), true
		}
	}
	return Info{}, -1, false
}

// Name prints a register for a bug report: OUT_CNTS[5][0xb0100], or BAR0[0x...].
func Name(off uint32) string {
	info, ring, ok := Lookup(off)
	switch {
	case !ok:
		return fmt.Sprintf("BAR0[0x%05x]", off)
	case ring >= 0:
		return fmt.Sprintf("%s[%d][0x%05x]", info.Name, ring, off)
	default:
		return fmt.Sprintf("%s[0x%05x]", info.Name, off)
	}
}
