package hwsim

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/rpc/msg"
)

// reportNames reads the names of report.go, and fails for a report elsewhere that is
// told by another name than one of them.
func reportNames(t *testing.T) map[string]bool {
	names, idents := map[string]bool{}, map[string]bool{}
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	var all []*ast.File
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		require.NoError(t, err)
		all = append(all, f)
		ast.Inspect(f, func(n ast.Node) bool {
			s, ok := n.(*ast.ValueSpec)
			if !ok || !strings.HasPrefix(s.Names[0].Name, "Report") {
				return true
			}
			text, err := strconv.Unquote(s.Values[0].(*ast.BasicLit).Value)
			require.NoError(t, err)
			require.False(t, names[text], "%s: two reports of one name", text)
			names[text], idents[s.Names[0].Name] = true, true
			return true
		})
	}
	for _, f := range all {
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if sel, ok := call.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "report" {
				id, ok := call.Args[0].(*ast.Ident)
				require.True(t, ok && (idents[id.Name] || id.Name == "why"), "a report by a name that is not in report.go")
			}
			return true
		})
	}
	return names
}

// Every report is provoked by a host that does what it is about, says where, by
// register or address, and when, and is counted. A name that nobody can provoke is red.
func TestEveryReportIsProvoked(t *testing.T) {
	ring := func(f func(h *ringHost)) func(t *testing.T) *Card {
		return func(t *testing.T) *Card {
			h := newRingHost(t, 16).program(16 + 1024 - 16)
			h.c.ResetReports()
			f(h)
			h.advance(10 * time.Millisecond)
			return h.c
		}
	}
	fresh := func(f func(h *ringHost)) func(t *testing.T) *Card {
		return func(t *testing.T) *Card {
			h := newRingHost(t, 16)
			f(h)
			h.advance(10 * time.Millisecond)
			return h.c
		}
	}
	edit := func(f func(in, slot []byte)) func(t *testing.T) *Card {
		return ring(func(h *ringHost) {
			i := h.fill(tagF1, make([]byte, 60))
			f(h.instr[i*hInstr:], h.slots[i*hStride:])
			h.st32(0, rInDBell, 1)
		})
	}
	target := func(f func(h *miniHost)) func(t *testing.T) *Card {
		return func(t *testing.T) *Card {
			h := newMiniHost(t)
			f(h)
			h.advance(10 * time.Millisecond)
			return h.c
		}
	}
	rpcUp := func(f func(h *miniHost)) func(t *testing.T) *Card {
		return target(func(h *miniHost) { f(h.rpc()) })
	}
	sw := func(f func(h smiHost)) func(t *testing.T) *Card {
		return func(t *testing.T) *Card {
			h := newSMIHost(t)
			f(h)
			return h.c
		}
	}
	frame, provoked := make([]byte, 60), map[string]bool{}
	for name, tc := range map[string]struct {
		provoke func(t *testing.T) *Card
		where   string
	}{
		ReportDMAOutside: {edit(func(in, _ []byte) { in[5] = 0x7f }), "0x7f0190000000"},
		ReportDMANoMemory: {ring(func(h *ringHost) {
			require.NoError(h.t, h.c.UnmapDMA(busInstr, len(h.instr)))
			require.NoError(h.t, h.c.MapRegion(DMARegion{Bus: busInstr, Size: uint64(len(h.instr))}))
			h.send(tagF1, frame)
		}), "IN_INSTR_BADDR"},
		ReportDMAReadOnly: {ring(func(h *ringHost) {
			require.NoError(h.t, h.c.UnmapDMA(h.buf(0, 0), len(h.bufs[0])))
			require.NoError(h.t, h.c.MapRegion(DMARegion{Bus: h.buf(0, 0), Size: uint64(len(h.bufs[0])), Mem: h.bufs[0], ReadOnly: true}))
			h.wire(tagF1).Send(ipFrame(h.c, tagF1, 60, ringOf(h, 0), 1))
		}), "0x300000008"},
		ReportDMALost: {ring(func(h *ringHost) {
			file, err := os.CreateTemp(t.TempDir(), "gone")
			require.NoError(h.t, err)
			defer file.Close()
			require.NoError(h.t, file.Truncate(hSlots*hInstr))
			mem, err := unix.Mmap(int(file.Fd()), 0, hSlots*hInstr, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			require.NoError(h.t, err)
			h.t.Cleanup(func() { _ = unix.Munmap(mem) })
			require.NoError(h.t, h.c.UnmapDMA(busInstr, len(h.instr)))
			require.NoError(h.t, h.c.MapRegion(DMARegion{Bus: busInstr, Size: hSlots * hInstr, Mem: mem, Foreign: true}))
			require.NoError(h.t, file.Truncate(0))
			h.st32(0, rInDBell, 1)
		}), "IN_INSTR_BADDR"},
		ReportBusMasterOff: {ring(func(h *ringHost) {
			h.c.ConfigWrite(4, 2, 2)
			h.send(tagF1, frame)
		}), "IN_INSTR_BADDR"},
		ReportDecodeOff: {ring(func(h *ringHost) {
			h.c.ConfigWrite(4, 2, 4)
			h.ld(3, rOutCnts)
			h.c.ConfigWrite(4, 2, 6)
		}), "OUT_CNTS[3][0x70100]"},
		ReportBadWidth:      {ring(func(h *ringHost) { h.c.Load(0, ringReg(3, rOutCnts), 2) }), "OUT_CNTS[3][0x70100]"},
		ReportNarrowStore:   {ring(func(h *ringHost) { h.st32(3, rOutEnable, 1) }), "OUT_ENABLE[3][0x70160]"},
		ReportUnmappedBAR:   {ring(func(h *ringHost) { h.c.Load(0, 0x7000, 8) }), "BAR0[0x07000]"},
		ReportReadOnly:      {ring(func(h *ringHost) { h.st(3, 0x300, 1) }), "ALL_IN_STATUS[3]"},
		ReportForbiddenRead: {target(func(h *miniHost) { h.r32(tGICD) }), "BAR2+0x3c00040"},
		ReportForbiddenPut:  {target(func(h *miniHost) { h.w64(tGICD, 155) }), "BAR2+0x3c00040"},
		ReportUnknownSPI:    {target(func(h *miniHost) { h.up().bell(151) }), "BAR2+0x3c00040 = 151"},
		ReportBaddrBusy: {fresh(func(h *ringHost) {
			h.faults(func(f *Faults) { f.NeverIdle = 1 << 3 })
			h.st(3, rOutBaddr, 4096)
		}), "OUT_SLIST_BADDR[3]"},
		ReportBaddrEnabled: {fresh(func(h *ringHost) {
			h.programOut(3)
			h.st(3, rOutBaddr, 4096)
		}), "OUT_SLIST_BADDR[3]"},
		ReportBaddrLatched: {ring(func(h *ringHost) {
			h.st(3, rOutEnable, 0)
			h.st(3, rOutBaddr, 4096)
		}), "OUT_SLIST_BADDR[3]"},
		ReportRsizeEnabled: {ring(func(h *ringHost) { h.st(3, rOutRsize, 512) }), "OUT_SLIST_RSIZE[3]"},
		ReportAckAbove:     {ring(func(h *ringHost) { h.st(3, rOutCnts, 1) }), "OUT_CNTS[3][0x70100] = 0x1, and the count is 0"},
		ReportScratch:      {target(func(h *miniHost) { h.c.Store(0, 0x20180, 8, 0x11223344) }), "SDP_SCRATCH[0x20180] = 0x11223344"},
		ReportDrainEnabled: {ring(func(h *ringHost) { h.st32(3, rOutDBell, 0xffffffff) }), "OUT_SLIST_DBELL[3]"},
		ReportINOverrun: {ring(func(h *ringHost) {
			h.faults(func(f *Faults) { f.StopFetch = true })
			h.st32(0, rInDBell, 256)
		}), "IN_INSTR_DBELL[0]"},
		ReportINSlotReuse: {ring(func(h *ringHost) {
			h.faults(func(f *Faults) { f.ReadDelay = time.Second })
			h.st32(0, rInDBell, 250)
			h.advance(time.Millisecond)
			h.st32(0, rInDBell, 7)
		}), "IN_INSTR_DBELL[0]"},
		ReportInstruction: {edit(func(in, _ []byte) { in[12] += 0x10 }), "pkind 41"},
		ReportGatherSize:  {edit(func(in, _ []byte) { in[14] |= 3 }), "gsz 3"},
		ReportGatherBit:   {edit(func(in, _ []byte) { in[15] |= 0x40 }), "ring 0"},
		ReportRlenssZ:     {edit(func(in, _ []byte) { clear(in[36:38]) }), "60 bytes"},
		ReportMetadata:    {edit(func(_, s []byte) { s[3] = 0xc1 }), "0xc1"},
		ReportUnknownTag:  {ring(func(h *ringHost) { h.send(253, frame) }), "ring 0"},
		ReportUnpadded:    {ring(func(h *ringHost) { h.send(tagF1, make([]byte, 59)) }), "59 bytes"},
		ReportRsize:       {fresh(func(h *ringHost) { h.st(3, rOutRsize, 100) }), "OUT_SLIST_RSIZE[3]"},
		ReportCreditAbove: {ring(func(h *ringHost) { h.st32(3, rOutDBell, 1000) }), "OUT_SLIST_DBELL[3]"},
		ReportBSize: {ring(func(h *ringHost) {
			h.st(0, rOutControl, 1<<26)
			h.wire(tagF1).Send(ipFrame(h.c, tagF1, 60, ringOf(h, 0), 1))
		}), "OUT_CONTROL[0]"},
		ReportSRIOV: {target(func(h *miniHost) { h.c.ConfigWrite(cfgSRIOV+8, 2, 1) }), "0x248"},

		ReportConsoleByte:    {func(t *testing.T) *Card { c := New(Options{Timeline: Compressed()}); c.ConsoleByte(); return c }, "boot loader"},
		ReportSwitchBusy:     {sw(func(h smiHost) { h.fault("SwitchStuckBusy", ""); h.w(0, 0x9828); h.w(0, 0x9428) }), "0x9428"},
		ReportSwitchBits:     {sw(func(h smiHost) { h.write(4, 8, h.read(4, 8)^1) }), "port 4 register 8"},
		ReportSwitchReserved: {sw(func(h smiHost) { h.write(4, 8, h.read(4, 8)|0x3000) }), "port 4 register 8"},
		ReportSwitchMap:      {sw(func(h smiHost) { h.write(4, 6, 0x07fe) }), "port 4 register 6"},
		ReportSwitchUplink:   {sw(func(h smiHost) { h.write(0, 4, 0x007f) }), "port 0 register 4"},
		ReportSwitchGlobal:   {sw(func(h smiHost) { h.write(0x1b, 4, 1) }), "device 0x1b register 0x4"},

		ReportHandshakeVFs:   {target(func(h *miniHost) { h.handshake(0x0000020808080001) }), "SLI_EPF_SCRATCH"},
		ReportHandshakeAgain: {target(func(h *miniHost) { h.up().setScratch(0xdeadbeef) }), "SLI_EPF_SCRATCH"},
		ReportHandshakeInfo:  {target(func(h *miniHost) { h.handshake(0x0000010008000000) }), "SLI_EPF_SCRATCH"},
		ReportRPCDoorbell:    {rpcUp(func(h *miniHost) { h.bell(156) }), "doorbell 1"},
		ReportRPCConfig:      {target(func(h *miniHost) { h.up().configure(ringRecord{off: 0x1000, count: 8, index: 1}) }), "doorbell index 1"},
		ReportRPCLivelock: {target(func(h *miniHost) {
			h.faults(func(f *TargetFaults) { f.RPCOneDoorbell = true })
			h.rpc()
		}), "one doorbell"},
		ReportRPCPosted:       {rpcUp(func(h *miniHost) { h.w64(tRPC+72, 9); h.bell(155) }), "posted 9"},
		ReportRPCCommand:      {rpcUp(func(h *miniHost) { h.call(51, nil) }), "51"},
		ReportRPCCommandZero:  {rpcUp(func(h *miniHost) { h.call(0, nil) }), "FW_STATE_REV_SET"},
		ReportRPCCounterClear: {rpcUp(func(h *miniHost) { h.call(48, nil) }), msg.Command(48).String()},
		ReportRPCTableFlags:   {rpcUp(func(h *miniHost) { h.call(44, []byte{0, 0, 0, 0, 1, 0, 2, 0, 0, 0, 0, 0}) }), "flags 0x2"},
		ReportNWALength: {target(func(h *miniHost) {
			h.agent()
			h.w32(tNWA+0x1c, 31)
			h.w32(tNWA+0x18, 1)
			h.bell(154)
		}), "31 bytes"},
		ReportNWAFEC:   {target(func(h *miniHost) { h.agent().request(4, 0x0b, 1) }), "0x0b"},
		ReportNWAState: {target(func(h *miniHost) { h.agent().ask(3, 0, 1, 2) }), "state 2"},
	} {
		t.Run(name, func(t *testing.T) {
			c := tc.provoke(t)
			require.NotZero(t, c.ReportCount(name), "%v", c.Reports())
			for _, r := range c.Reports() {
				if r.Name == name {
					assert.Contains(t, r.Text, tc.where)
					assert.LessOrEqual(t, r.Cycle, c.Now())
					return
				}
			}
			t.Fatal("counted and not told")
		})
		provoked[name] = true
	}
	for name := range reportNames(t) {
		assert.True(t, provoked[name], "%s: nobody provokes it", name)
	}
}

// What looks like one of these misuses and is none.
func TestAcknowledgingWhatIsCountedIsNoMisuse(t *testing.T) {
	h := newRingHost(t, 16).program(16 + 1024 - 16)
	h.c.ResetReports()
	h.st(3, rOutCnts, 0)
	h.c.DeliverRaw(3, 1, make([]byte, 60), 60+74)
	h.advance(time.Millisecond)
	h.st(3, rOutCnts, 1)
	assert.Empty(t, h.c.Reports())
}
