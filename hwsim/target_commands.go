package hwsim

import (
	"oxpd/internal/board"
	"oxpd/rpc/msg"
)

const (
	paramsReset   = 0x002 // FW_CFG_PARAMS_SET after a start: tcp-seq-check (rpc-lif.md 5.8)
	paramsOffload = 0x001
	paramsSize    = 4
	lifDeleteSize = 4

	dbgCounters = 256 // 0 to 98 and 255 are named (rpc-lif.md 6.3)
	dfCounters  = 64  // no record says how many; an estimate

	cmdClearFirst = msg.CmdDFCntRead + 1 // 47 to 50 clear DBG, SYS, PORT, DF
)

func isTableRead(c msg.Command) bool { return c >= msg.CmdLIFRead && c <= msg.CmdDFCntRead }

// command runs one command and returns its result and at most room bytes of
// reply (rpc-lif.md 4, 5, 6). What no host of this board ever sends is answered
// as unknown.
func (t *target) command(cmd msg.Command, payload []byte, room int) (msg.RC, []byte) {
	switch {
	case cmd == msg.CmdFWStateRevSet:
		t.c.report(ReportRPCCommandZero, "FW_STATE_REV_SET: every offloaded flow is invalid; a wiped buffer reads so")
		return msg.RCOK, nil
	case cmd == msg.CmdFWCfgParamsSet:
		if len(payload) < paramsSize {
			return msg.RCRefused, nil
		}
		t.params = le.Uint16(payload)
		t.c.lifs.gateOpen = t.params&paramsOffload != 0
		return msg.RCOK, nil
	case cmd == msg.CmdLIFAddUpdate:
		return t.lifAddUpdate(payload), nil
	case cmd == msg.CmdLIFDelete:
		if len(payload) < lifDeleteSize {
			return msg.RCRefused, nil
		}
		return t.c.lifs.remove(le.Uint32(payload)), nil
	case cmd == msg.CmdPPortUpdate:
		var p msg.PPort
		if p.Decode(payload) != nil {
			return msg.RCRefused, nil
		}
		return t.c.lifs.bind(p), nil
	case cmd == msg.CmdPlatformRead:
		return t.platformRead(payload, room)
	case isTableRead(cmd):
		return t.tableRead(cmd, payload, room)
	case cmd >= cmdClearFirst && cmd < msg.CmdMax:
		t.c.report(ReportRPCCounterClear, "%v: the host cleared counters", cmd)
		switch cmd - cmdClearFirst {
		case 1:
			t.c.cnt = [msg.CountersSys]uint64{}
		case 2:
			t.c.portCnt = [msg.CountersPort][msg.CountersPortStride]uint64{}
		}
		return msg.RCOK, nil
	}
	t.c.report(ReportRPCCommand, "%v is not answered by this model", cmd)
	return rpcTransEIN, nil
}

// lifAddUpdate is command 3: 18 bytes on this board; shorter ones are refused.
func (t *target) lifAddUpdate(payload []byte) msg.RC {
	var r msg.LIFUpdateReq
	if r.Decode(payload) != nil {
		return msg.RCRefused
	}
	store := true
	if p, ok := portOfLIF(r.Index); ok {
		if rc := t.c.faults.LIFRefuse[p.Tag]; t.c.acts(fltLIFRefuse, rc != msg.RCOK) {
			return rc
		}
		store = !t.c.acts(fltLIFNotStored, t.c.faults.LIFNotStored[p.Tag])
	}
	return t.c.lifs.update(r, payload[msg.LIFPrivMask]&1 != 0, store)
}

func (t *target) platformRead(payload []byte, room int) (msg.RC, []byte) {
	if len(payload) < msg.TableReadSize || room < msg.PlatformSize {
		return msg.RCRefused, nil
	}
	assembly := t.c.faults.Assembly
	if !t.c.acts(fltAssembly, assembly != "") {
		assembly = board.Assembly
	}
	return msg.RCOK, msg.Platform{
		Platform: board.Platform, Version: "UNKNOWN_VERSION", Assembly: assembly,
		ID: 2, Cores: 20, MaxIfaces: lifIfaces, Rings: 1, MFlowTimeout: 10, ConnTimeout: 5,
		MaxConns: 2_000_000, MaxNHops: 65536, MaxFWRules: 65536, MFlows: 4_001_450,
	}.Append(nil)
}

// tableRead is commands 37 to 46: bare entries from s_index on, as many as
// num_entries says, the range allows and the reply has room for.
func (t *target) tableRead(cmd msg.Command, payload []byte, room int) (msg.RC, []byte) {
	var r msg.TableRead
	if r.Decode(payload) != nil {
		return msg.RCRefused, nil
	}
	if r.Flags != 0 {
		t.c.report(ReportRPCTableFlags, "%v with flags %#x: one of them clears", cmd, r.Flags)
	}
	n := int(r.Num)
	if r.End < r.Start {
		n = 0
	} else if span := uint64(r.End) - uint64(r.Start) + 1; span < uint64(n) {
		n = int(span)
	}
	switch cmd {
	case msg.CmdLIFRead:
		return msg.RCOK, t.lifRead(r.Start, min(n, room/msg.LIFEntrySize))
	case msg.CmdSysCntRead:
		return msg.RCOK, appendCounters(t.c.cnt[:], r.Start, min(n, room/8))
	case msg.CmdPortCntRead:
		var flat []uint64
		for i := range t.c.portCnt {
			flat = append(flat, t.c.portCnt[i][:]...)
		}
		return msg.RCOK, appendCounters(flat, r.Start, min(n, room/8))
	case msg.CmdDbgCntRead:
		return msg.RCOK, appendCounters(make([]uint64, dbgCounters), r.Start, min(n, room/8))
	case msg.CmdDFCntRead:
		return msg.RCOK, appendCounters(make([]uint64, dfCounters), r.Start, min(n, room/8))
	}
	return msg.RCOK, nil // connections, next hops, flows, users, associations: none
}

// appendCounters returns n counters from start on; past the array's end the
// target pads with zeros.
func appendCounters(cnt []uint64, start uint32, n int) []byte {
	b := make([]byte, 0, 8*n)
	for i := range uint64(n) {
		v := uint64(0)
		if at := uint64(start) + i; at < uint64(len(cnt)) {
			v = cnt[at]
		}
		b = le.AppendUint64(b, v)
	}
	return b
}

func (t *target) lifRead(start uint32, n int) []byte {
	var b []byte
	for i := range uint64(n) {
		at := uint64(start) + i
		if at >= lifIndices {
			break
		}
		switch e := t.c.lifs.entry(uint32(at)); {
		case e.live():
			b = e.AppendEntry(b)
		case !t.c.o.EmptyLIFShort:
			b = append(b, make([]byte, msg.LIFEntrySize)...)
		}
	}
	return b
}
