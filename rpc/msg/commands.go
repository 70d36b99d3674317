package msg

import (
	"bytes"
	"fmt"
)

// Command is a command number (rpc-lif.md 4). Zero is dangerous: it
// invalidates every offloaded flow.
type Command uint8

// Commands that somebody here sends or answers.
const (
	CmdFWStateRevSet       Command = 0
	CmdFWCfgParamsSet      Command = 2
	CmdLIFAddUpdate        Command = 3
	CmdLIFDelete           Command = 4
	CmdPPortUpdate         Command = 5
	CmdPlatformRead        Command = 36
	CmdLIFRead             Command = 37
	CmdConnRead            Command = 38
	CmdNHopRead            Command = 39
	CmdMFlowRead           Command = 40
	CmdLUIDRead            Command = 41
	CmdSARead              Command = 42
	CmdDbgCntRead          Command = 43
	CmdSysCntRead          Command = 44
	CmdPortCntRead         Command = 45
	CmdDFCntRead           Command = 46
	CmdMax                 Command = 51
	CountersSys                    = 182
	CountersPortStride             = 256
	CountersPort                   = 3 // RX, TX, TX_DROP_QUEUE_FULL
	CounterPortRX                  = 0
	CounterPortTX                  = 1
	CounterPortTXQueueFull         = 2
)

var commandNames = [CmdMax]string{
	"FW_STATE_REV_SET", "FW_L3_FWD_STATE_REV_SET", "FW_CFG_PARAMS_SET", "LIF_ADD_UPDATE", "LIF_DELETE", "PPORT_UPDATE",
	"NHOP_PROGRAM", "NHOP_UPDATE", "MFLOW_PROGRAM", "MFLOW_INVALIDATE", "FLOW_CREATE_FP", "CONN_CREATE_FP",
	"CONN_MODIFY_FP", "CONN_MODIFY_FP_VERDICT", "CONN_TRACK_FP", "CONN_CFG_FP_TCP_SEQ_CHK", "CONN_RECLAIM_FP",
	"CONN_GET_FP_TCP_STATE", "ADD_LIVE_UID", "DELETE_LIVE_UID", "QOS_ADD_METER", "QOS_REMOVE_METER", "QOS_QUERY_METER",
	"QOS_SET_SHAPER_RATE", "QOS_GET_SHAPER_RATE", "QOS_SET_DWRR_WEIGHT", "QOS_GET_DWRR_WEIGHT", "DOS_SET_POLICY",
	"DOS_ADD_BLACKLIST_ENTRY", "DOS_CLEAR_BLACKLIST", "SA_ADD", "SA_DEL", "SA_GET_STATS", "SA_REPLAY_UPDATE",
	"SA_SEQ_UPDATE", "SA_HOST_STAT_SYNC", "PLATFORM_READ", "LO_LIF_READ", "LO_CONN_READ", "LO_NHOP_READ",
	"LO_MFLOW_READ", "LO_LUID_READ", "LO_SA_READ", "LO_WORKER_DBG_CNT_READ", "LO_WORKER_SYS_CNT_READ",
	"LO_WORKER_PORT_CNT_READ", "LO_WORKER_DF_CNT_READ", "LO_WORKER_DBG_CNT_CLEAR", "LO_WORKER_SYS_CNT_CLEAR",
	"LO_WORKER_PORT_CNT_CLEAR", "LO_WORKER_DF_CNT_CLEAR",
}

// String is the vendor's name of the command.
func (c Command) String() string {
	if c < CmdMax {
		return commandNames[c]
	}
	return fmt.Sprintf("command %d", uint8(c))
}

// Forwarding modes of a LIF (rpc-lif.md 5.2).
const (
	FwdFree = 0
	FwdL2   = 1
	FwdL3   = 2
	FwdBoth = 3
)

// LIFMask says which fields a LIF_ADD_UPDATE changes.
type LIFMask uint16

// Bits of the update mask. MaskCreate, exactly, is wanted for an empty entry
// and refused for a live one.
const (
	MaskMAC         LIFMask = 0x01
	MaskMTU         LIFMask = 0x02
	MaskFwd         LIFMask = 0x04
	MaskAdmin       LIFMask = 0x08
	MaskOffload     LIFMask = 0x10
	MaskRepresentor LIFMask = 0x20
	MaskCreate      LIFMask = 0xff
)

// Layout of LIF_ADD_UPDATE: 18 bytes on this board, not 16 (rpc-lif.md 5.2).
const (
	LIFIndex    = 0  // u32
	LIFMAC      = 4  // 6 bytes, wire order
	LIFMTU      = 10 // u16
	LIFFlags    = 12 // u16
	LIFPrivMask = 14 // u8, bit 0 = DF field valid
	LIFDF       = 15 // u8, bit 0 = df_enabled
	LIFUpdate   = 16 // u16
	LIFSize     = 18

	FlagFwdMask          = 3
	FlagAdminDisabled    = 1 << 2
	FlagOffloadDisabled  = 1 << 3
	FlagRepresentorShift = 4
)

// LIF is the content of a logical interface.
type LIF struct {
	MAC             [6]byte
	MTU             uint16
	Fwd             uint8 // FwdFree to FwdBoth
	AdminDisabled   bool
	OffloadDisabled bool
	Representor     uint16 // 12 bits
	DF              bool
}

// Flags packs mode, admin, offload and representor.
func (l LIF) Flags() uint16 {
	f := uint16(l.Fwd)&FlagFwdMask | l.Representor<<FlagRepresentorShift
	if l.AdminDisabled {
		f |= FlagAdminDisabled
	}
	if l.OffloadDisabled {
		f |= FlagOffloadDisabled
	}
	return f
}

// SetFlags unpacks Flags.
func (l *LIF) SetFlags(f uint16) {
	l.Fwd = uint8(f & FlagFwdMask)
	l.AdminDisabled = f&FlagAdminDisabled != 0
	l.OffloadDisabled = f&FlagOffloadDisabled != 0
	l.Representor = f >> FlagRepresentorShift
}

// LIFUpdateReq is the payload of LIF_ADD_UPDATE.
type LIFUpdateReq struct {
	Index uint32
	LIF   LIF
	Mask  LIFMask
}

// Append writes the 18 bytes behind b.
func (r LIFUpdateReq) Append(b []byte) []byte {
	b = le.AppendUint32(b, r.Index)
	b = append(b, r.LIF.MAC[:]...)
	b = le.AppendUint16(b, r.LIF.MTU)
	b = le.AppendUint16(b, r.LIF.Flags())
	df := byte(0)
	if r.LIF.DF {
		df = 1
	}
	b = append(b, 1, df)
	return le.AppendUint16(b, uint16(r.Mask))
}

// Decode reads the 18 bytes.
func (r *LIFUpdateReq) Decode(b []byte) error {
	if len(b) < LIFSize {
		return short("LIF_ADD_UPDATE", len(b))
	}
	*r = LIFUpdateReq{Index: le.Uint32(b[LIFIndex:]), Mask: LIFMask(le.Uint16(b[LIFUpdate:]))}
	copy(r.LIF.MAC[:], b[LIFMAC:])
	r.LIF.MTU = le.Uint16(b[LIFMTU:])
	r.LIF.SetFlags(le.Uint16(b[LIFFlags:]))
	r.LIF.DF = b[LIFDF]&1 != 0
	return nil
}

// LIFEntrySize is the size of an entry of LO_LIF_READ: MAC 6, MTU u16, flags
// u16, df u16, reserved u16 (rpc-lif.md 5.5).
const LIFEntrySize = 14

// AppendEntry writes a table entry behind b.
func (l LIF) AppendEntry(b []byte) []byte {
	b = append(b, l.MAC[:]...)
	b = le.AppendUint16(b, l.MTU)
	b = le.AppendUint16(b, l.Flags())
	df := uint16(0)
	if l.DF {
		df = 1
	}
	b = le.AppendUint16(b, df)
	return le.AppendUint16(b, 0)
}

// DecodeEntry reads a table entry. An entry with Fwd FwdFree is absent.
func (l *LIF) DecodeEntry(b []byte) error {
	if len(b) < LIFEntrySize {
		return short("LIF entry", len(b))
	}
	*l = LIF{MTU: le.Uint16(b[6:]), DF: le.Uint16(b[10:])&1 != 0}
	copy(l.MAC[:], b)
	l.SetFlags(le.Uint16(b[8:]))
	return nil
}

// PPort is the payload of PPORT_UPDATE: u8 iface, u8 0, u16 tag, little-endian
// here and big-endian in a data frame.
type PPort struct {
	Iface uint8
	Tag   uint16
}

// PPortSize is the payload's size.
const PPortSize = 4

// Append writes the payload behind b.
func (p PPort) Append(b []byte) []byte { return le.AppendUint16(append(b, p.Iface, 0), p.Tag) }

// Decode reads the payload.
func (p *PPort) Decode(b []byte) error {
	if len(b) < PPortSize {
		return short("PPORT_UPDATE", len(b))
	}
	*p = PPort{b[0], le.Uint16(b[2:])}
	return nil
}

// TableRead is the request of commands 37 to 46 (rpc-lif.md 4.1).
type TableRead struct {
	Start uint32
	Num   uint16 // nothing comes back for 0
	Flags uint16 // 0 is the ordinary read; the clear option is never used
	End   uint32
}

// TableReadSize is the request's size.
const TableReadSize = 12

// Append writes the request behind b.
func (t TableRead) Append(b []byte) []byte {
	b = le.AppendUint32(b, t.Start)
	b = le.AppendUint16(b, t.Num)
	b = le.AppendUint16(b, t.Flags)
	return le.AppendUint32(b, t.End)
}

// Decode reads the request.
func (t *TableRead) Decode(b []byte) error {
	if len(b) < TableReadSize {
		return short("table read", len(b))
	}
	*t = TableRead{le.Uint32(b), le.Uint16(b[4:]), le.Uint16(b[6:]), le.Uint32(b[8:])}
	return nil
}

// PlatformSize is the size of PLATFORM_READ's reply (rpc-lif.md 4.2).
const PlatformSize = 232

// Platform is the reply of PLATFORM_READ.
type Platform struct {
	Platform, Version, Assembly string
	ID, Cores, MaxIfaces, Rings uint8
	MFlowTimeout                uint8 // seconds
	ConnTimeout                 uint32
	MaxConns, MaxNHops          uint32
	MaxFWRules, MFlows          uint32
}

// Append writes the 232 bytes behind b.
func (p Platform) Append(b []byte) []byte {
	at := len(b)
	b = append(b, make([]byte, PlatformSize)...)
	r := b[at:]
	copy(r[0:64], p.Platform)
	copy(r[64:128], p.Version)
	copy(r[128:192], p.Assembly)
	r[192], r[193], r[194], r[195], r[196] = p.ID, p.Cores, p.MaxIfaces, p.Rings, p.MFlowTimeout
	le.PutUint32(r[200:], p.ConnTimeout)
	le.PutUint32(r[204:], p.MaxConns)
	le.PutUint32(r[208:], p.MaxNHops)
	le.PutUint32(r[212:], p.MaxFWRules)
	le.PutUint32(r[224:], p.MFlows)
	return b
}

// Decode reads the reply.
func (p *Platform) Decode(b []byte) error {
	if len(b) < PlatformSize {
		return short("PLATFORM_READ reply", len(b))
	}
	*p = Platform{
		Platform: text(b[0:64]), Version: text(b[64:128]), Assembly: text(b[128:192]),
		ID: b[192], Cores: b[193], MaxIfaces: b[194], Rings: b[195], MFlowTimeout: b[196],
		ConnTimeout: le.Uint32(b[200:]), MaxConns: le.Uint32(b[204:]), MaxNHops: le.Uint32(b[208:]),
		MaxFWRules: le.Uint32(b[212:]), MFlows: le.Uint32(b[224:]),
	}
	return nil
}

func text(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}

// DecodeCounters fills dst with little-endian u64 from b and returns how many
// there were: the shorter of both.
func DecodeCounters(dst []uint64, b []byte) int {
	n := min(len(dst), len(b)/8)
	for i := range n {
		dst[i] = le.Uint64(b[8*i:])
	}
	return n
}
