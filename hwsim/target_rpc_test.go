package hwsim

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
	"oxpd/rpc/msg"
)

//oxpd:fault R13 symptom
func TestConfigure(t *testing.T) {
	gold := readHex(t, "testdata/control_windows.hex")
	shared := ringRecord{num: 1, index: 0, shared: 1}
	for _, tc := range []struct {
		name   string
		low    ringRecord
		hi     []ringRecord
		one    bool
		wantOK bool
	}{
		{"eight descriptors at +0x1000", lowRing, nil, false, true},
		{"256 descriptors at 4328", ringRecord{off: 4328, count: 256}, nil, false, true},
		{"facility index 3", ringRecord{off: 0x1000, count: 8, facility: 3}, nil, false, true},
		{"one high ring, as the vendor's host", lowRing, []ringRecord{{num: 1, index: 1}}, false, true},
		{"wrong doorbell index", ringRecord{off: 0x1000, count: 8, index: 1}, nil, false, false},
		{"the SPI number as doorbell index", ringRecord{off: 0x1000, count: 8, index: 155}, nil, false, false},
		{"shared flag on the low ring", ringRecord{off: 0x1000, count: 8, shared: 1}, nil, false, false},
		{"descriptors inside the state block", ringRecord{off: 224, count: 8}, nil, false, false},
		{"descriptors not 8-byte aligned", ringRecord{off: 0x1004, count: 8}, nil, false, false},
		{"count no power of two", ringRecord{off: 0x1000, count: 12}, nil, false, false},
		{"ring past the window", ringRecord{off: 0xffff8, count: 8}, nil, false, false},
		{"high ring with a doorbell that is not published", lowRing, []ringRecord{{num: 1, index: 5}}, false, false},
		{"one doorbell, one shared high ring", lowRing, []ringRecord{shared}, true, true},
		{"one doorbell, high ring not shared", lowRing, []ringRecord{{num: 1}}, true, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newMiniHost(t)
			h.faults(func(f *TargetFaults) { f.RPCOneDoorbell = tc.one })
			h.up()
			require.Equal(t, gold["rpc-idle"], h.bytes(tRPC, 8))
			assert.Equal(t, tc.wantOK, h.configure(tc.low, tc.hi...))
			if tc.wantOK && tc.hi == nil {
				assert.Equal(t, gold["rpc-configured"], h.bytes(tRPC, 8))
			}
		})
	}
}

//oxpd:fault R13 symptom
func TestConfigureNeedsADoorbell(t *testing.T) {
	h := newMiniHost(t).up()
	h.writeRing(tRPC+72, lowRing)
	h.w64(tRPC, 0x00000001d7d3ab00)
	h.advance(time.Second)
	assert.Equal(t, uint64(0x00000001d7d3ab00), h.r64(tRPC), "nothing polls the word")
	h.bell(156)
	h.advance(time.Second)
	assert.Equal(t, uint64(0x00000001d7d3ab00), h.r64(tRPC), "the doorbell of a high ring is another")
	h.bell(155)
	h.advance(time.Second)
	assert.Equal(t, uint64(0x01000001d7d3ab00), h.r64(tRPC))
}

func TestConfigureRealTime(t *testing.T) {
	tl := Real()
	h := newMiniHost(t, func(o *Options) { o.Timeline.RPCConfigure = tl.RPCConfigure }).up()
	h.writeRing(tRPC+72, lowRing)
	h.w64(tRPC, 0x00000001d7d3ab00)
	h.bell(155)
	h.advance(6900 * time.Microsecond)
	assert.Zero(t, h.r64(tRPC)>>56)
	h.advance(200 * time.Microsecond)
	assert.Equal(t, uint64(1), h.r64(tRPC)>>56, "7 ms")
}

func TestRestartReusesTheRevision(t *testing.T) {
	h := newMiniHost(t).rpc()
	require.True(t, h.call(36, make([]byte, 12)).written)
	h.revision = 0
	require.True(t, h.configure(ringRecord{off: 0x1000, count: 8}), "the cached word has reconfig_done set, so it differs")
	require.Zero(t, h.r64(tRPC+80))
	assert.True(t, h.call(36, make([]byte, 12)).written)
}

// A second word before the acknowledgement is cached as applied without having
// been applied.
//
//oxpd:fault R14 symptom
func TestSecondWordBeforeTheAcknowledgement(t *testing.T) {
	h := newMiniHost(t).up()
	h.writeRing(tRPC+72, lowRing)
	h.w64(tRPC, 0x00000001d7d3ab00)
	h.bell(155)
	h.advance(20 * time.Microsecond)
	h.w32(tRPC+72+20, 0x2000) // the rings moved, too
	h.w64(tRPC, 0x00000002d7d3ab00)
	h.bell(155)
	require.True(t, h.wait(time.Second, func() bool { return h.r64(tRPC)>>56 != 0 }))
	assert.Equal(t, uint64(0x01000002d7d3ab00), h.r64(tRPC), "acknowledged")
	assert.True(t, h.call(36, make([]byte, 12)).written, "but the first ring is in use")
}

//oxpd:fault R4 symptom
func TestPostFlag(t *testing.T) {
	for _, tc := range []struct {
		flags uint16
		reply bool
	}{{1, false}, {2, true}, {3, false}} {
		h := newMiniHost(t).rpc()
		h.post(36, make([]byte, 12), tc.flags)
		r := h.finish(time.Second)
		assert.True(t, r.done, "flags %d: done advances", tc.flags)
		assert.Equal(t, tc.reply, r.written, "flags %d: reply", tc.flags)
		if !tc.reply {
			assert.Equal(t, bytes.Repeat([]byte{tPoison}, 4096-20), h.mem[20:4096], "nothing written")
		}
		log := h.c.Commands()
		require.Len(t, log, 1)
		assert.Equal(t, tc.reply, log[0].Replied)
		assert.Equal(t, tc.flags, log[0].Flags)
	}
}

func TestReplyLayout(t *testing.T) {
	h := newMiniHost(t).rpc()
	seeds := map[string]bool{}
	for i := range 12 { // past the end of the ring of eight
		b := []byte{0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0}
		r := h.call(36, b)
		require.True(t, r.written)
		assert.Equal(t, uint16(2+i), r.seed, "one up per answer")
		assert.Len(t, r.payload, 232)
		assert.NotEqual(t, bytes.Repeat([]byte{tPoison}, 4), r.magic)
		assert.Equal(t, bytes.Repeat([]byte{tPoison}, 64), h.mem[8+232+4:8+232+4+64], "nothing behind the magic")
		seeds[string(r.magic)] = true
	}
	assert.Len(t, seeds, 12, "the magic follows the seed")
	h.post(36, make([]byte, 12), 1)
	h.finish(time.Second)
	assert.Equal(t, uint16(14), h.call(36, make([]byte, 12)).seed, "a command without a reply takes no seed")
	other := newMiniHost(t).rpc()
	assert.True(t, seeds[string(other.call(36, make([]byte, 12)).magic)], "a fixed function")
}

func TestDoneMagicIsNoPoison(t *testing.T) {
	for s := range 1 << 16 {
		m := doneMagic(uint16(s))
		b := byte(m)
		require.NotEqual(t, uint32(b)*0x01010101, m, "seed %d", s)
	}
}

func TestPlatformRead(t *testing.T) {
	h := newMiniHost(t).rpc()
	r := h.table(36, 0, 1, 0)
	require.Len(t, r.payload, 232)
	assert.Equal(t, "XGS_1US\x00", string(r.payload[:8]))
	assert.Equal(t, "UNKNOWN_VERSION\x00", string(r.payload[64:80]))
	assert.Equal(t, "AMDA0202-0004\x00", string(r.payload[128:142]))
	assert.Equal(t, readHex(t, "testdata/control_windows.hex")["platform-numbers"], r.payload[192:])
	h.faults(func(f *TargetFaults) { f.Assembly = "AMDA9999-0001" })
	assert.Equal(t, "AMDA9999-0001\x00", string(h.table(36, 0, 1, 0).payload[128:142]))
}

func TestTableReads(t *testing.T) {
	h := newMiniHost(t).rpc()
	h.c.mu.Lock()
	for i := range h.c.cnt {
		h.c.cnt[i] = uint64(1000 + i)
	}
	for i := range h.c.portCnt {
		for p := range h.c.portCnt[i] {
			h.c.portCnt[i][p] = uint64(i)<<32 | uint64(p)
		}
	}
	h.c.mu.Unlock()
	h.c.SetLIF(0, &msg.LIF{MTU: 1500, Fwd: 2})
	word := func(r reply, i int) uint64 { return binary.LittleEndian.Uint64(r.payload[8*i:]) }

	for _, tc := range []struct {
		name    string
		command byte
		start   uint32
		n       uint16
		end     uint32
		bytes   int
	}{
		{"all 182 counters", 44, 0, 182, 181, 1456},
		{"200 pads", 44, 0, 200, 199, 1600},
		{"the range is narrower than the number", 44, 0, 182, 9, 80},
		{"no entries asked for", 44, 0, 0, 181, 0},
		{"end below start", 44, 10, 5, 5, 0},
		{"more than a reply holds", 44, 0, 65535, 65535, 4064},
		{"port counters, receive", 45, 0, 3, 2, 24},
		{"debug counters", 43, 0, 256, 255, 2048},
		{"dump filter counters", 46, 0, 4, 3, 32},
		{"connections", 38, 0, 10, 9, 0},
		{"next hops", 39, 0, 10, 9, 0},
		{"microflows", 40, 0, 10, 9, 0},
		{"live users", 41, 0, 10, 9, 0},
		{"associations", 42, 0, 10, 9, 0},
		{"interface numbers as LIF indices", 37, 0, 35, 34, 35 * 14},
		{"past the last LIF", 37, 524287, 4, 524290, 14},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := h.table(tc.command, tc.start, tc.n, tc.end)
			require.True(t, r.written)
			assert.Zero(t, r.rc)
			assert.Len(t, r.payload, tc.bytes)
		})
	}
	r := h.table(44, 29, 2, 30)
	assert.Equal(t, []uint64{1029, 1030}, []uint64{word(r, 0), word(r, 1)})
	r = h.table(44, 181, 2, 182)
	assert.Equal(t, []uint64{1181, 0}, []uint64{word(r, 0), word(r, 1)}, "the last one and the padding")
	r = h.table(45, 256, 3, 258)
	assert.Equal(t, []uint64{1 << 32, 1<<32 | 1, 1<<32 | 2}, []uint64{word(r, 0), word(r, 1), word(r, 2)}, "counter*256 + port")
	assert.Equal(t, uint64(2<<32|1), word(h.table(45, 513, 1, 513), 0))

	assert.Equal(t, uint16(1), h.call(44, make([]byte, 11)).rc, "short request")
	h.call(44, []byte{0, 0, 0, 0, 1, 0, 2, 0, 0, 0, 0, 0})
	assert.Equal(t, uint64(1), h.c.ReportCount("rpc-table-flags"))
}

func TestCommandNumbers(t *testing.T) {
	const einval = 0x8000 | 22
	for _, tc := range []struct {
		name    string
		command byte
		payload []byte
		rc      uint16
		report  string
	}{
		{"0 is accepted and reported", 0, nil, 0, "rpc-command-0"},
		{"global gate", 2, []byte{2, 0, 0, 0}, 0, ""},
		{"global gate, short", 2, []byte{2, 0, 0}, 1, ""},
		{"pport", 5, []byte{10, 0, 1, 0}, 0, ""},
		{"pport, short", 5, []byte{10, 0, 1}, 1, ""},
		{"pport, last interface", 5, []byte{127, 0, 1, 0}, 0, ""},
		{"pport, interface above the last", 5, []byte{128, 0, 1, 0}, 1, ""},
		{"LIF delete, short", 4, []byte{0, 0, 0}, 1, ""},
		{"LIF delete of an empty slot", 4, []byte{0, 0, 0, 0}, 1, ""},
		{"not modelled", 6, make([]byte, 64), einval, "rpc-command"},
		{"first invalid number", 51, nil, einval, "rpc-command"},
		{"255", 255, nil, einval, "rpc-command"},
		{"a counter clear is reported", 48, nil, 0, "rpc-counter-clear"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newMiniHost(t).rpc()
			r := h.call(tc.command, tc.payload)
			require.True(t, r.written)
			assert.Equal(t, tc.rc, r.rc)
			assert.Empty(t, r.payload)
			if tc.report != "" {
				assert.Equal(t, uint64(1), h.c.ReportCount(tc.report))
			} else {
				assert.Empty(t, h.c.Reports())
			}
		})
	}
}

func TestSilentUnknown(t *testing.T) {
	h := newMiniHost(t, func(o *Options) { o.Choices.SilentUnknown = true }).rpc()
	for _, run := range []func() reply{
		func() reply { return h.call(51, nil) },
		func() reply { return h.table(37, 0, 0, 0) },
	} {
		r := run()
		assert.True(t, r.done)
		assert.False(t, r.written)
	}
	assert.True(t, h.table(37, 0, 1, 0).written)
}

func TestLIFRules(t *testing.T) {
	gold := readHex(t, "testdata/lif_add_update.hex")
	create, mtu := gold["create-portf1"], gold["mtu-9000-portf1"]
	mask := func(b []byte, m uint16) []byte {
		b = append([]byte(nil), b...)
		binary.LittleEndian.PutUint16(b[16:], m)
		return b
	}
	for _, tc := range []struct {
		name    string
		live    bool
		payload []byte
		rc      uint16
	}{
		{"empty, mask exactly 0x00ff", false, create, 0},
		{"empty, mask 0x3f", false, mask(create, 0x3f), 1},
		{"empty, mask 0x01ff", false, mask(create, 0x1ff), 1},
		{"empty, mask 0xffff", false, mask(create, 0xffff), 1},
		{"empty, mask 0x02", false, mtu, 1},
		{"empty, mask 0", false, mask(create, 0), 1},
		{"live, mask 0x00ff", true, create, 1},
		{"live, mask 0x02", true, mtu, 0},
		{"live, mask 0x3f", true, mask(create, 0x3f), 0},
		{"live, mask 0x40", true, mask(create, 0x40), 0},
		{"16 bytes", true, mtu[:16], 1},
		{"16 bytes on an empty slot", false, create[:16], 1},
		{"17 bytes", true, mtu[:17], 1},
		{"nothing", false, nil, 1},
		{"index past the table", false, append([]byte{0, 0, 8, 0}, create[4:]...), 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newMiniHost(t).rpc()
			if tc.live {
				require.Zero(t, h.call(3, create).rc)
			}
			before := h.table(37, 40960, 1, 40960).payload
			h.c.ResetCommands()
			r := h.call(3, tc.payload)
			require.True(t, r.written)
			assert.Equal(t, tc.rc, r.rc)
			log := h.c.Commands()
			require.Len(t, log, 1)
			assert.Equal(t, msg.CmdLIFAddUpdate, log[0].Command)
			assert.True(t, bytes.Equal(tc.payload, log[0].Payload), "the log has the bytes: %x", log[0].Payload)
			assert.Equal(t, msg.RC(tc.rc), log[0].RC)
			if tc.rc != 0 {
				assert.Equal(t, before, h.table(37, 40960, 1, 40960).payload, "unchanged")
			}
		})
	}
}

// The golden payloads are what the layout package composes, and what they say
// arrives in the table: masked fields alone.
func TestLIFGolden(t *testing.T) {
	gold := readHex(t, "testdata/lif_add_update.hex")
	f1 := uint32(40960)
	mac := func(last byte) [6]byte { return [6]byte{2, 0xc8, 0x52, 0, 0, last} }
	base := msg.LIF{MAC: mac(0x0a), MTU: 1500, Fwd: msg.FwdL3}
	with := func(fn func(*msg.LIF)) msg.LIF { l := base; fn(&l); return l }
	for _, tc := range []struct {
		name string
		req  msg.LIFUpdateReq
		want msg.LIF
	}{
		{"create-portf1", msg.LIFUpdateReq{Index: f1, LIF: base, Mask: msg.MaskCreate}, base},
		{"create-port1", msg.LIFUpdateReq{Index: 0, LIF: with(func(l *msg.LIF) { l.MAC = mac(2) }), Mask: msg.MaskCreate}, with(func(l *msg.LIF) { l.MAC = mac(2) })},
		{"create-portf4", msg.LIFUpdateReq{Index: 36864, LIF: with(func(l *msg.LIF) { l.MAC = mac(0x0d) }), Mask: msg.MaskCreate}, with(func(l *msg.LIF) { l.MAC = mac(0x0d) })},
		{"mtu-9000-portf1", msg.LIFUpdateReq{Index: f1, LIF: msg.LIF{MTU: 9000}, Mask: msg.MaskMTU}, with(func(l *msg.LIF) { l.MTU = 9000 })},
		{"mtu-72-portf1", msg.LIFUpdateReq{Index: f1, LIF: msg.LIF{MTU: 72}, Mask: msg.MaskMTU}, with(func(l *msg.LIF) { l.MTU = 72 })},
		{"representor-port1", msg.LIFUpdateReq{LIF: msg.LIF{Representor: 4095}, Mask: msg.MaskRepresentor}, with(func(l *msg.LIF) { l.MAC = mac(2); l.Representor = 4095 })},
		{"l2-portf1", msg.LIFUpdateReq{Index: f1, LIF: msg.LIF{Fwd: msg.FwdL2}, Mask: msg.MaskFwd}, with(func(l *msg.LIF) { l.Fwd = msg.FwdL2 })},
		{"admin-off-portf1", msg.LIFUpdateReq{Index: f1, LIF: msg.LIF{AdminDisabled: true}, Mask: msg.MaskAdmin}, with(func(l *msg.LIF) { l.AdminDisabled = true })},
		{"df-portf1", msg.LIFUpdateReq{Index: f1, LIF: msg.LIF{MTU: 9000, DF: true}, Mask: msg.MaskMTU}, with(func(l *msg.LIF) { l.MTU = 9000; l.DF = true })},
	} {
		t.Run(tc.name, func(t *testing.T) {
			require.Equal(t, gold[tc.name], tc.req.Append(nil), "golden bytes")
			h := newMiniHost(t).rpc()
			if tc.req.Mask != msg.MaskCreate {
				for _, name := range []string{"create-port1", "create-portf1"} {
					require.Zero(t, h.call(3, gold[name]).rc)
				}
			}
			require.Zero(t, h.call(3, gold[tc.name]).rc)
			got, live := h.c.LIF(tc.req.Index)
			require.True(t, live)
			assert.Equal(t, tc.want, got)
			assert.Equal(t, tc.want.AppendEntry(nil), h.table(37, tc.req.Index, 1, tc.req.Index).payload, "read back")
		})
	}
}

func TestLIFReadGolden(t *testing.T) {
	gold := readHex(t, "testdata/lif_add_update.hex")
	h := newMiniHost(t).rpc()
	assert.Equal(t, make([]byte, 14), h.table(37, 40960, 1, 40960).payload, "an empty slot: 14 zero bytes")
	require.Zero(t, h.call(3, gold["create-portf1"]).rc)
	require.Zero(t, h.call(3, gold["mtu-9000-portf1"]).rc)
	assert.Equal(t, readHex(t, "testdata/control_windows.hex")["lif-entry-portf1"], h.table(37, 40960, 1, 40960).payload)

	short := newMiniHost(t, func(o *Options) { o.EmptyLIFShort = true }).rpc()
	assert.Empty(t, short.table(37, 40960, 1, 40960).payload, "alternative: nothing")
	require.Zero(t, short.call(3, gold["create-portf1"]).rc)
	assert.Len(t, short.table(37, 40960, 1, 40960).payload, 14)
}

func TestLIFMTUIsNotRangeChecked(t *testing.T) {
	gold := readHex(t, "testdata/lif_add_update.hex")
	h := newMiniHost(t).rpc()
	require.Zero(t, h.call(3, gold["create-portf1"]).rc)
	for _, mtu := range []uint16{0, 71, 9001, 65535} {
		b := append([]byte(nil), gold["mtu-9000-portf1"]...)
		binary.LittleEndian.PutUint16(b[10:], mtu)
		assert.Zero(t, h.call(3, b).rc)
		l, _ := h.c.LIF(40960)
		assert.Equal(t, mtu, l.MTU)
	}
}

func TestLIFDelete(t *testing.T) {
	gold := readHex(t, "testdata/lif_add_update.hex")
	h := newMiniHost(t).rpc()
	require.Zero(t, h.call(3, gold["create-portf1"]).rc)
	require.Zero(t, h.call(4, []byte{0, 0xa0, 0, 0}).rc)
	_, live := h.c.LIF(40960)
	assert.False(t, live)
	assert.Zero(t, h.call(3, gold["create-portf1"]).rc, "free again")
}

//oxpd:fault R29 symptom
func TestTableClear(t *testing.T) {
	gold := readHex(t, "testdata/lif_add_update.hex")
	h := newMiniHost(t, func(o *Options) { o.ClearLIFs = true }).rpc()
	require.Zero(t, h.call(3, gold["create-portf1"]).rc)
	require.Zero(t, h.call(5, []byte{10, 0, 1, 0}).rc)
	_, live := h.c.LIF(40960)
	require.True(t, live)
	h.advance(Compressed().TableClear)
	_, live = h.c.LIF(40960)
	assert.False(t, live, "answered rc 0 and lost")
	iface, bound := h.c.PPort(1)
	assert.True(t, bound, "the tag maps survive")
	assert.Equal(t, uint8(10), iface)
	assert.Zero(t, h.call(3, gold["create-portf1"]).rc)
	h.advance(time.Second)
	_, live = h.c.LIF(40960)
	assert.True(t, live, "once only")

	h.c.WipeLIFs()
	_, live = h.c.LIF(40960)
	assert.False(t, live)
}

func TestRPCFaults(t *testing.T) {
	gold := readHex(t, "testdata/lif_add_update.hex")
	f1 := board.Tag(1)
	for _, tc := range []struct {
		name string
		run  func(t *testing.T, h *miniHost)
	}{
		{"silent, and a wiped buffer then reads as command 0", func(t *testing.T, h *miniHost) {
			h.faults(func(f *TargetFaults) { f.RPCSilent = true })
			h.post(36, make([]byte, 12), 2)
			assert.False(t, h.finish(2*time.Second).done)
			assert.Empty(t, h.c.Commands(), "still on the ring")
			clear(h.mem)
			h.faults(func(f *TargetFaults) { f.RPCSilent = false })
			assert.True(t, h.finish(time.Second).done, "run late")
			require.Len(t, h.c.Commands(), 1)
			assert.Equal(t, msg.Command(0), h.c.Commands()[0].Command)
			assert.Equal(t, uint64(1), h.c.ReportCount("rpc-command-0"))
		}},
		{"silent from the middle of a command on", func(t *testing.T, h *miniHost) {
			h.post(36, make([]byte, 12), 2)
			h.advance(5 * time.Microsecond)
			h.faults(func(f *TargetFaults) { f.RPCSilent = true })
			assert.False(t, h.finish(time.Second).done)
			h.faults(func(f *TargetFaults) { f.RPCSilent = false })
			assert.True(t, h.finish(time.Second).written)
		}},
		{"silent, reopened with another buffer", func(t *testing.T, h *miniHost) {
			h.faults(func(f *TargetFaults) { f.RPCSilent = true })
			h.post(36, make([]byte, 12), 2)
			assert.False(t, h.finish(2*time.Second).done)
			h.faults(func(f *TargetFaults) { f.RPCSilent = false })
			h.finish(time.Second)
			h.buf = tBuf2
			require.True(t, h.configure(lowRing))
			assert.True(t, h.call(36, make([]byte, 12)).written)
		}},
		{"slow", func(t *testing.T, h *miniHost) {
			h.faults(func(f *TargetFaults) { f.RPCDelay = 3 * time.Second })
			h.post(36, make([]byte, 12), 2)
			assert.False(t, h.finish(2*time.Second).done)
			assert.True(t, h.finish(2*time.Second).written)
		}},
		{"buffer outside every region", func(t *testing.T, h *miniHost) {
			h.post(36, make([]byte, 12), 2)
			require.NoError(t, h.c.UnmapDMA(tBus, len(h.mem)))
			h.wait(time.Second, func() bool { return h.r64(tRPC+80) == 1 })
			assert.NotZero(t, h.c.ReportCount(ReportDMAOutside))
		}},
		{"LIF refused for one port", func(t *testing.T, h *miniHost) {
			require.Zero(t, h.call(3, gold["create-portf1"]).rc)
			h.faults(func(f *TargetFaults) { f.LIFRefuse = map[board.Tag]msg.RC{f1: 7} })
			assert.Equal(t, uint16(7), h.call(3, gold["mtu-9000-portf1"]).rc)
			l, _ := h.c.LIF(40960)
			assert.Equal(t, uint16(1500), l.MTU)
			assert.Zero(t, h.call(3, gold["create-port1"]).rc, "other ports are not concerned")
		}},
		{"LIF answered and not stored", func(t *testing.T, h *miniHost) {
			require.Zero(t, h.call(3, gold["create-portf1"]).rc)
			h.faults(func(f *TargetFaults) { f.LIFNotStored = map[board.Tag]bool{f1: true} })
			assert.Zero(t, h.call(3, gold["mtu-9000-portf1"]).rc)
			l, _ := h.c.LIF(40960)
			assert.Equal(t, uint16(1500), l.MTU)
		}},
		{"more posted than the ring holds", func(t *testing.T, h *miniHost) {
			h.w64(tRPC+72, 9)
			h.bell(155)
			h.advance(time.Second)
			assert.Zero(t, h.r64(tRPC+80))
			assert.Equal(t, uint64(1), h.c.ReportCount("rpc-posted"))
		}},
		{"payload longer than a buffer", func(t *testing.T, h *miniHost) {
			h.post(36, make([]byte, 12), 2)
			h.w64(tRPC+0x1008, 5000|2<<16)
			assert.Equal(t, uint16(0x8000|22), h.finish(time.Second).rc)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) { tc.run(t, newMiniHost(t).rpc()) })
	}
}

// rpc-lif.md 3.1: one doorbell, no high ring.
//
//oxpd:fault R16 symptom
func TestHighRingLivelock(t *testing.T) {
	h := newMiniHost(t)
	h.faults(func(f *TargetFaults) { f.RPCOneDoorbell = true })
	h.up()
	require.True(t, h.configure(lowRing))
	assert.True(t, h.call(36, make([]byte, 12)).written, "one command")
	h.post(36, make([]byte, 12), 2)
	assert.False(t, h.finish(100*time.Millisecond).done, "then nothing")
	assert.True(t, h.wait(time.Second, func() bool { return h.r64(tRPC) == ^uint64(0) }), "later all-ones")

	h = newMiniHost(t)
	h.faults(func(f *TargetFaults) { f.RPCOneDoorbell = true })
	h.up()
	require.True(t, h.configure(lowRing, ringRecord{num: 1, shared: 1}))
	for range 5 {
		require.True(t, h.call(36, make([]byte, 12)).written, "the cure")
	}
}

// The two-step opening of the sister board: word 0, then the real one.
func TestConfigWordZero(t *testing.T) {
	h := newMiniHost(t).up()
	for _, word := range []uint64{0, 0x00000001d7d3ab00} {
		h.writeRing(tRPC+72, lowRing)
		h.w64(tRPC, word)
		h.bell(155)
		require.True(t, h.wait(time.Second, func() bool { return h.r64(tRPC) == word|1<<56 }), "%#x", word)
	}
	assert.True(t, h.call(36, make([]byte, 12)).written)
}
