package probe

import (
	"oxpd/octep/csr"
	"oxpd/ring/wire"
)

// shown are the registers of a ring that a report has: all but the mailbox between
// physical and virtual functions.
var shown = []csr.RingReg{
	csr.InControl, csr.InEnable, csr.InInstrBaddr, csr.InInstrRsize, csr.InInstrDBell, csr.InCnts, csr.InIntLevels, csr.InIntStatus, csr.InPktCnt, csr.InByteCnt,
	csr.OutCnts, csr.OutIntLevels, csr.OutSlistBaddr, csr.OutSlistRsize, csr.OutSlistDBell, csr.OutControl, csr.OutEnable, csr.OutIntStatus, csr.OutPktCnt, csr.OutByteCnt,
	csr.ErrType, csr.VFNum,
}

// rings reads each register of the rings that oxpd uses once, and decodes that.
func (l *looker) rings() {
	var all []Ring
	for q := range wire.OQs {
		at := map[csr.RingReg]uint64{}
		r := Ring{Ring: q}
		for _, reg := range shown {
			off := reg.Queue(q)
			info, _, _ := csr.Lookup(uint32(off))
			at[reg] = l.load(off)
			r.Registers = append(r.Registers, Register{Name: info.Name, Offset: hex(uint64(off), 24), Value: hex(at[reg], 64)})
		}
		if l.gone != nil {
			return
		}
		r.decode(at)
		all = append(all, r)
	}
	l.r.Rings = all
}

// decode takes the registers apart (endpoint.md 5.1, 5.2).
func (r *Ring) decode(at map[csr.RingReg]uint64) {
	const vfNum = 0x7f // R_VF_NUM 6:0
	r.Owner = int(at[csr.VFNum] & vfNum)
	r.In = In{
		Enabled:  at[csr.InEnable]&1 != 0,
		Idle:     at[csr.InControl]&csr.InControlIdle != 0,
		Base:     hex(at[csr.InInstrBaddr], 64),
		Entries:  at[csr.InInstrRsize],
		Wide:     at[csr.InControl]&csr.InControlIs64B != 0,
		Posted:   uint32(csr.DBellCount.Get(at[csr.InInstrDBell])),
		Position: uint32(csr.DBellPosition.Get(at[csr.InInstrDBell])),
		Finished: uint32(csr.CntsCount.Get(at[csr.InCnts])),
		Packets:  at[csr.InPktCnt],
		Bytes:    at[csr.InByteCnt],
	}
	r.Out = Out{
		Enabled:  at[csr.OutEnable]&1 != 0,
		Idle:     at[csr.OutControl]&csr.OutControlIdle != 0,
		Base:     hex(at[csr.OutSlistBaddr], 64),
		Entries:  at[csr.OutSlistRsize],
		Buffer:   csr.OutControlBSize.Get(at[csr.OutControl]),
		Credit:   int32(csr.DBellCount.Get(at[csr.OutSlistDBell])),
		Position: uint32(csr.DBellPosition.Get(at[csr.OutSlistDBell])),
		Waiting:  uint32(csr.CntsCount.Get(at[csr.OutCnts])),
		Level:    csr.OutIntLevelPkts.Get(at[csr.OutIntLevels]),
		Ticks:    csr.OutIntLevelTicks.Get(at[csr.OutIntLevels]),
		Packets:  at[csr.OutPktCnt],
		Bytes:    at[csr.OutByteCnt],
	}
}
