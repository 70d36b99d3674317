package hwsim

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
	"oxpd/rpc/msg"
)

//oxpd:fault R35 symptom
func TestAgentAppearsLate(t *testing.T) {
	h := newMiniHost(t).up()
	assert.Zero(t, h.r32(tNWA), "zero cookie: wait")
	require.True(t, h.wait(time.Second, func() bool { return h.r32(tNWA) != 0 }))
	assert.Equal(t, readHex(t, "testdata/control_windows.hex")["nwa-head"], h.bytes(tNWA, 20))
	assert.Zero(t, h.r32(tNWA+0x20), "idle")
}

func TestAgentDiscover(t *testing.T) {
	h := newMiniHost(t).agent()
	a := h.ask(1, 0, 0)
	require.True(t, a.ok)
	assert.Equal(t, uint32(2020), a.bytes)
	assert.Equal(t, uint32(0x14), a.marker)
	assert.Zero(t, a.status)
	require.Len(t, a.payload, 2012)
	head := readHex(t, "testdata/control_windows.hex")["discover-head"]
	assert.Equal(t, head, a.payload[:len(head)])

	count, ports, err := msg.DecodeDiscover(a.payload)
	require.NoError(t, err)
	assert.Equal(t, uint32(14), count)
	var tags []uint16
	for _, p := range ports {
		tags = append(tags, p.Tag)
		assert.Equal(t, uint16(9182), p.MTU)
		assert.Equal(t, p.Tag != 0x8000, p.Manageable, "%#x", p.Tag)
		want := uint16(12)
		switch p.Tag {
		case 1, 2:
			want = 65535
		case 0x8000:
			want = 0
		}
		assert.Equal(t, want, p.MaxUnicast, "%#x", p.Tag)
	}
	assert.Equal(t, []uint16{1, 2, 0x8000, 0x8100, 0x8200, 0x8300, 0x8400, 0x8500, 0x8600, 0x8700, 0x8800, 0x8900, 0x8a00}, tags)
}

//oxpd:fault R43 symptom
//oxpd:fault R46 symptom
//oxpd:fault R51 symptom
func TestAgentOperations(t *testing.T) {
	const get, set, f1, p1 = 4, 3, 1, 0x8100
	for _, tc := range []struct {
		name      string
		op        uint32
		sub, port uint32
		payload   uint32
		status    uint32
		bytes     uint32
		want      []byte
	}{
		{"link, one byte", get, 0x00, f1, 0, 0, 9, []byte{0}},
		{"oper state", get, 0x01, f1, 0, 1, 8, nil},
		{"MTU of a MAC", get, 0x02, f1, 0, 1, 8, nil},
		{"MAC before the port is raised", get, 0x03, f1, 0, 0, 16, make([]byte, 8)},
		{"MAC of a switch port, not raised", get, 0x03, p1, 0, 0, 16, make([]byte, 8)},
		{"speed, link down", get, 0x04, f1, 0, 0, 12, []byte{0x10, 0x27, 0, 0}},
		{"speed of a switch port", get, 0x04, p1, 0, 0, 12, []byte{0xe8, 3, 0, 0}},
		{"frame type", get, 0x05, p1, 0, 1, 8, nil},
		{"link mode", get, 0x09, p1, 0, 1, 8, nil},
		{"media of a 10G MAC", get, 0x0a, f1, 0, 0, 12, []byte{2, 0, 0, 0}},
		{"autoneg", get, 0x0c, p1, 0, 0, 12, []byte{1, 0, 0, 0}},
		{"duplex of a MAC", get, 0x0d, f1, 0, 0, 12, []byte{1, 0, 0, 0}},
		{"duplex of a switch port", get, 0x0d, p1, 0, 0, 12, []byte{0xff, 0, 0, 0}},
		{"statistics", get, 0x0e, p1, 0, 0, 272, make([]byte, 264)},
		{"promiscuous cannot be read", get, 0x45, f1, 0, 1, 8, nil},
		{"PHY id", get, 0x50, f1, 0, 1, 8, nil},
		{"link settings", get, 0x55, f1, 0, 0, 20, []byte{0, 0, 0, 0, 0x10, 0x27, 0, 0, 1, 0, 0, 0}},
		{"set promiscuous", set, 0x45, f1, 1, 0, 8, nil},
		{"set all-multicast", set, 0x46, f1, 1, 0, 8, nil},
		{"set autoneg", set, 0x0c, p1, 0, 0, 8, nil},
		{"set oper state", set, 0x01, p1, 0, 1, 8, nil},
		{"port 3 answers", get, 0x00, 3, 0, 0, 9, []byte{0}},
		{"the uplink as port 0", get, 0x04, 0, 0, 0, 12, []byte{0x10, 0x27, 0, 0}},
		{"the uplink by tag", get, 0x04, 0x8000, 0, 0, 12, []byte{0x10, 0x27, 0, 0}},
		{"unknown port", get, 0x00, 0x8b00, 0, 1, 8, nil},
		{"port number above 16 bits", get, 0x00, 0x10001, 0, 1, 8, nil},
		{"all-port info", 0x45, 14, 0, 0, 0, 8, nil},
		{"ageing", 0x02, 0, 0, 0, 1, 8, nil},
		{"MDIO", 0x41, 0, 0, 0, 1, 8, nil},
		{"GPIO", 0x42, 0, 0, 0, 1, 8, nil},
		{"no operation", 0, 0, 0, 0, 1, 8, nil},
		{"beyond all", 0xffffffff, 0, 0, 0, 1, 8, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newMiniHost(t).agent()
			a := h.ask(tc.op, tc.sub, tc.port, tc.payload)
			require.True(t, a.ok)
			assert.Equal(t, uint32(0x14), a.marker)
			assert.Equal(t, tc.status, a.status)
			assert.Equal(t, tc.bytes, a.bytes, "length with its header")
			require.GreaterOrEqual(t, len(a.payload), len(tc.want))
			assert.Equal(t, tc.want, append([]byte(nil), a.payload[:len(tc.want)]...))
			for _, b := range a.payload[len(tc.want):] {
				assert.NotZero(t, b, "what stands behind the answer is not clean")
			}
		})
	}
}

//oxpd:fault R48 symptom
func TestAgentMACs(t *testing.T) {
	h := newMiniHost(t).agent()
	for _, p := range board.All() {
		last := byte(2 + p.Index) // rpc-lif.md 5.1: 02..09, F1 0a, F2 0b, F3 0c, F4 0d
		assert.Equal(t, make([]byte, 8), h.ask(4, 3, uint32(p.Tag)).payload, p.Label)
		require.Zero(t, h.ask(3, 0, uint32(p.Tag), 1).status)
		assert.Equal(t, []byte{2, 0xc8, 0x52, 0, 0, last, 0, 0}, h.ask(4, 3, uint32(p.Tag)).payload, p.Label)
	}
	h = newMiniHost(t, func(o *Options) { o.MACBase = [6]byte{2, 0, 0, 0xff, 0xff, 0xfe} }).agent()
	require.Zero(t, h.ask(3, 0, 0x8400, 1).status)
	assert.Equal(t, []byte{2, 0, 0, 0, 0, 1, 0, 0}, h.ask(4, 3, 0x8400).payload, "the block carries inside the last three bytes")
}

//oxpd:fault R50 symptom
func TestAgentLink(t *testing.T) {
	h := newMiniHost(t, func(o *Options) {
		o.Timeline.LinkTrain, o.Timeline.LinkTrainTo = Real().LinkTrain, Real().LinkTrainTo
	}).agent()
	link := func(tag uint32) byte { return h.ask(4, 0, tag).payload[0] }
	require.Zero(t, h.ask(3, 0, 1, 1).status)
	assert.Zero(t, link(1), "an immediate GET says 0")
	h.advance(900 * time.Millisecond)
	assert.Zero(t, link(1), "trains for a second at least")
	h.ask(3, 0, 1, 1) // raising again does not begin again
	h.advance(1100 * time.Millisecond)
	assert.Equal(t, byte(1), link(1), "and two at most")

	h.ask(3, 0, 1, 0)
	assert.Zero(t, link(1), "lowered: at once")

	h.c.mu.Lock()
	h.c.target.setCable(&h.c.ports[0], false)
	h.c.mu.Unlock()
	h.ask(3, 0, 0x8100, 1)
	h.advance(3 * time.Second)
	assert.Zero(t, link(0x8100), "raised, nobody on the wire")
	h.c.mu.Lock()
	h.c.target.setCable(&h.c.ports[0], true)
	h.c.mu.Unlock()
	h.advance(3 * time.Second)
	assert.Equal(t, byte(1), link(0x8100))
	assert.Equal(t, []uint32{0xe8, 3}, []uint32{uint32(h.ask(4, 4, 0x8100).payload[0]), uint32(h.ask(4, 4, 0x8100).payload[1])})
}

func TestSwitchPortsNeedTheUplink(t *testing.T) {
	h := newMiniHost(t).agent()
	h.ask(3, 0, 0x8100, 1)
	h.ask(3, 0, 1, 1)
	h.advance(time.Second)
	carries := func(i int) bool {
		h.c.mu.Lock()
		defer h.c.mu.Unlock()
		return h.c.target.carries(i)
	}
	assert.False(t, carries(0), "Port1 with the uplink down")
	assert.True(t, carries(8), "PortF1 does not pass the switch")
	h.ask(3, 0, 0, 1)
	h.advance(time.Second)
	assert.True(t, carries(0))
}

func TestAddressFilter(t *testing.T) {
	frame := func(dst ...byte) []byte { return append(dst, make([]byte, 54)...) }
	bcast, mcast := frame(0xff, 0xff, 0xff, 0xff, 0xff, 0xff), frame(1, 0, 0x5e, 0, 0, 1)
	mine, other := frame(2, 0xc8, 0x52, 0, 0, 2), frame(2, 0xc8, 0x52, 0, 0, 9)
	h := newMiniHost(t).agent()
	admits := func() (got [4]bool) {
		h.c.mu.Lock()
		defer h.c.mu.Unlock()
		for i, f := range [][]byte{bcast, mcast, mine, other} {
			got[i] = h.c.ports[0].admits(f)
		}
		return got
	}
	h.ask(3, 0, 0x8100, 1)
	assert.Equal(t, [4]bool{true, false, false, false}, admits(), "raised: never hit, broadcast alone")
	h.ask(3, 0x46, 0x8100, 1)
	assert.Equal(t, [4]bool{true, true, false, false}, admits(), "all-multicast")
	h.ask(3, 0x46, 0x8100, 0)
	h.ask(3, 3, 0x8100, 0x0052c802, 0x0200)
	assert.Equal(t, [4]bool{true, true, true, false}, admits(), "SET MAC opens it")
	h.ask(3, 0x45, 0x8100, 1)
	assert.Equal(t, [4]bool{true, true, true, true}, admits(), "promiscuous")
	h.ask(3, 0x45, 0x8100, 0)
	h.ask(3, 3, 0x8100, 0x0052c802, 0x0900)
	assert.Equal(t, [4]bool{true, true, false, true}, admits(), "the address that was set last")
	assert.Equal(t, []byte{2, 0xc8, 0x52, 0, 0, 9, 0, 0}, h.ask(4, 3, 0x8100).payload)

	h.ask(3, 3, 0x8200, 0x0052c802, 0x0700)
	h.ask(3, 0, 0x8200, 1)
	assert.Equal(t, []byte{2, 0xc8, 0x52, 0, 0, 7, 0, 0}, h.ask(4, 3, 0x8200).payload, "raising keeps an address that was set")

	h.ask(3, 0, 1, 1)
	h.c.mu.Lock()
	defer h.c.mu.Unlock()
	assert.True(t, h.c.ports[8].admits(frame(2, 0xc8, 0x52, 0, 0, 0x0a)), "a MAC filters on its own address once raised")
}

// TestForgetPorts: a start of NetAgent leaves nothing of what it was told.
func TestForgetPorts(t *testing.T) {
	const set, get, f1 = 3, 4, 1
	h := newMiniHost(t).agent()
	own := h.c.AgentPort(f1).MAC
	assert.Zero(t, own)
	for _, r := range [][3]uint32{{0x00, f1, 1}, {0x03, f1, 0x04030202}, {0x45, f1, 1}, {0x46, f1, 1}} {
		require.True(t, h.ask(set, r[0], r[1], r[2]).ok)
	}
	assert.Equal(t, AgentPort{Up: true, MAC: [6]byte{2, 2, 3, 4}, Promisc: true, AllMulti: true}, h.c.AgentPort(f1))
	assert.Zero(t, h.c.AgentPort(tagPhantom), "no port")
	h.c.ForgetPorts()
	assert.Zero(t, h.c.AgentPort(f1))
	assert.Equal(t, make([]byte, 8), h.ask(get, 0x03, f1).payload, "and the mailbox answers")
}

// A reply that nobody acknowledged holds the mailbox: STATUS stays 1 and the next
// request is not served, until somebody writes TURN 2.
//
//oxpd:fault F16 symptom
//oxpd:fault R41 symptom
func TestAgentStrandedReply(t *testing.T) {
	h := newMiniHost(t).agent()
	require.True(t, h.request(4, 0, 1).ok)
	// The host went away without the acknowledgement; the next one finds STATUS 1.
	h.w32(tNWA+0x54, 0xabad1dea)
	h.w32(tNWA+0x18, 1)
	h.bell(154)
	h.advance(time.Second)
	assert.Equal(t, uint32(1), h.r32(tNWA+0x20))
	assert.Equal(t, uint32(0xabad1dea), h.r32(tNWA+0x54), "F16: the request is not served")
	require.True(t, h.release())
	assert.Equal(t, uint32(9), h.ask(4, 0, 1).bytes)
}

func TestRestartAgent(t *testing.T) {
	h := newMiniHost(t).rpc()
	require.Zero(t, h.call(3, readHex(t, "testdata/lif_add_update.hex")["create-portf1"]).rc)
	require.True(t, h.wait(time.Second, func() bool { return h.r32(tNWA) != 0 }))
	ports := []uint32{0, 1, 0x8100}
	for _, port := range ports {
		require.Zero(t, h.ask(3, 0, port, 1).status)
		require.Zero(t, h.ask(3, 3, port, 0x0052c802, 0x0700).status)
		require.Zero(t, h.ask(3, 0x45, port, 1).status)
		require.Zero(t, h.ask(3, 0x46, port, 1).status)
	}
	h.advance(time.Second)
	require.Equal(t, []byte{1}, h.ask(4, 0, 0x8100).payload[:1])

	// In the middle of a request, which is never answered.
	h.w32(tNWA+0x34, 1)
	h.w32(tNWA+0x1c, 32)
	h.w32(tNWA+0x18, 1)
	h.bell(154)
	h.advance(Compressed().AgentAnswer / 2)
	h.c.RestartAgent()
	assert.Equal(t, make([]byte, 0x100), h.bytes(tNWA, 0x100), "a blank mailbox: wait")
	h.advance(Compressed().AgentUp / 2)
	assert.Zero(t, h.r32(tNWA))
	h.advance(Compressed().AgentUp)
	assert.Equal(t, uint32(0xcafebabe), h.r32(tNWA))
	assert.Zero(t, h.r32(tNWA+0x20), "idle")

	for _, port := range ports {
		assert.Equal(t, []byte{0}, h.ask(4, 0, port).payload[:1], "%#x is down", port)
		assert.Equal(t, make([]byte, 8), h.ask(4, 3, port).payload, "%#x has no address", port)
	}
	h.c.mu.Lock()
	p := h.c.ports[0]
	h.c.mu.Unlock()
	assert.False(t, p.admin || p.named || p.promisc || p.allMulti, "%+v", p)
	assert.True(t, p.cable, "cables stay")
	_, live := h.c.LIF(40960)
	assert.True(t, live, "LIFs stay")
	require.Zero(t, h.ask(3, 0, 0x8100, 1).status)
	assert.Equal(t, []byte{2, 0xc8, 0x52, 0, 0, 2, 0, 0}, h.ask(4, 3, 0x8100).payload, "its own until one is named")
	h.advance(time.Second)
	assert.Equal(t, []byte{1}, h.ask(4, 0, 0x8100).payload[:1])

	t.Run("it heals one that attribute 0x0b killed", func(t *testing.T) {
		h := newMiniHost(t).agent()
		require.False(t, h.request(4, 0x0b, 1).ok)
		h.c.RestartAgent()
		h.advance(Compressed().AgentUp + time.Millisecond)
		assert.True(t, h.ask(4, 0, 1).ok)
	})
	t.Run("nothing to restart before the fast path is up", func(t *testing.T) {
		h := newMiniHost(t)
		h.c.RestartAgent()
		assert.Equal(t, ^uint32(0), h.r32(tNWA), "not even a window")
		h.advance(time.Minute)
		assert.Zero(t, h.r32(tNWA))
	})
	t.Run("nor after it died", func(t *testing.T) {
		h := newMiniHost(t).agent()
		h.c.mu.Lock()
		h.c.target.killFastPath()
		h.c.mu.Unlock()
		h.c.RestartAgent()
		assert.Equal(t, uint32(0xcafebabe), h.r32(tNWA), "F12: the windows keep what they hold")
	})
	t.Run("an answer that was slower than the restart is void", func(t *testing.T) {
		h := newMiniHost(t).agent()
		h.faults(func(f *TargetFaults) { f.AgentDelay = time.Second })
		h.w32(tNWA+0x34, 4)
		h.w32(tNWA+0x1c, 32)
		h.w32(tNWA+0x18, 1)
		h.bell(154)
		h.advance(100 * time.Millisecond)
		h.c.RestartAgent()
		h.advance(2 * time.Second)
		assert.Equal(t, uint32(0xcafebabe), h.r32(tNWA))
		assert.Zero(t, h.r32(tNWA+0x20))
	})
}

//oxpd:fault R39 symptom
func TestStrandAgent(t *testing.T) {
	h := newMiniHost(t)
	assert.False(t, h.c.StrandAgent(), "no mailbox yet")
	h.agent()
	require.True(t, h.c.StrandAgent())
	assert.Equal(t, uint32(1), h.r32(tNWA+0x20), "STATUS: a reply is present")
	assert.Equal(t, uint32(9), h.r32(tNWA+0x24), "a whole one")
	assert.False(t, h.c.StrandAgent(), "held")
	h.w32(tNWA+0x18, 1) // a host that does not look
	h.bell(154)
	h.advance(time.Second)
	assert.Equal(t, uint32(1), h.r32(tNWA+0x20), "F16")
	h.w32(tNWA+0x18, 2)
	assert.False(t, h.c.StrandAgent(), "acknowledged, and not seen to be")
	require.True(t, h.release())
	assert.Equal(t, uint32(9), h.ask(4, 0, 1).bytes)

	h.faults(func(f *TargetFaults) { f.AgentSilent = true })
	assert.False(t, h.c.StrandAgent(), "it sees no request")
}

//oxpd:fault R42 symptom
func TestAgentTimes(t *testing.T) {
	h := newMiniHost(t, func(o *Options) {
		o.Timeline.AgentAnswer, o.Timeline.AgentTick = Real().AgentAnswer, Real().AgentTick
	}).agent()
	now := func() time.Duration { return h.c.Clock().Now() }
	ticks := 0
	for i := range 300 {
		at := now()
		require.True(t, h.request(4, 0, 1).ok)
		took := now() - at
		require.InDelta(t, 12, float64(took)/1e6, 0.2, "answer %d", i)
		h.w32(tNWA+0x18, 2)
		at = now()
		h.bell(154)
		for h.r32(tNWA+0x20) != 0 {
			h.advance(time.Microsecond)
			require.Less(t, now()-at, 11*time.Millisecond)
		}
		if took = now() - at; took > 100*time.Microsecond {
			ticks++
			continue
		}
		require.GreaterOrEqual(t, took, 18*time.Microsecond)
		require.LessOrEqual(t, took, 72*time.Microsecond, "67 us, the doorbell and a load")
	}
	assert.Positive(t, ticks, "about one in a hundred waits for the tick")
	assert.Less(t, ticks, 15)
}

func TestAgentWithoutDoorbell(t *testing.T) {
	h := newMiniHost(t).agent()
	h.w32(tNWA+0x34, 1)
	h.w32(tNWA+0x1c, 32)
	h.w32(tNWA+0x18, 1)
	assert.True(t, h.wait(time.Second, func() bool { return h.r32(tNWA+0x20) == 1 }), "both sides poll")
	h.w32(tNWA+0x18, 2)
	assert.True(t, h.wait(time.Second, func() bool { return h.r32(tNWA+0x20) == 0 }))
	assert.Equal(t, uint32(2), h.r32(tNWA+0x18), "the target never writes TURN")
}

func TestAgentFEC(t *testing.T) {
	for _, op := range []uint32{3, 4} {
		t.Run(fmt.Sprintf("op %d", op), func(t *testing.T) {
			h := newMiniHost(t).agent()
			assert.False(t, h.request(op, 0x0b, 1).ok, "no answer")
			h.w32(tNWA+0x18, 2)
			h.bell(154)
			assert.False(t, h.request(4, 0, 1).ok, "nor ever again")
			assert.Equal(t, uint64(1), h.c.ReportCount("nwa-fec"))
			h.c.Reboot()
			h.c.ConfigWrite(4, 2, 6)
			assert.True(t, h.agent().ask(4, 0, 1).ok, "until the coprocessor restarts")
		})
	}
}

//oxpd:fault R40 symptom
//oxpd:fault R45 symptom
//oxpd:fault R52 symptom
func TestAgentFaults(t *testing.T) {
	t.Run("silent, then late", func(t *testing.T) {
		h := newMiniHost(t).agent()
		h.faults(func(f *TargetFaults) { f.AgentSilent = true })
		assert.False(t, h.request(4, 0, 1).ok)
		h.faults(func(f *TargetFaults) { f.AgentSilent = false })
		assert.True(t, h.wait(time.Second, func() bool { return h.r32(tNWA+0x20) == 1 }))
		assert.True(t, h.release())
	})
	t.Run("silent from the middle of a request on", func(t *testing.T) {
		h := newMiniHost(t).agent()
		h.w32(tNWA+0x34, 1)
		h.w32(tNWA+0x1c, 32)
		h.w32(tNWA+0x18, 1)
		h.bell(154)
		h.advance(Compressed().AgentAnswer / 2)
		h.faults(func(f *TargetFaults) { f.AgentSilent = true })
		h.advance(time.Second)
		require.Zero(t, h.r32(tNWA+0x20))
		h.faults(func(f *TargetFaults) { f.AgentSilent = false })
		assert.True(t, h.wait(time.Second, func() bool { return h.r32(tNWA+0x20) == 1 }))
	})
	t.Run("slow", func(t *testing.T) {
		h := newMiniHost(t).agent()
		h.faults(func(f *TargetFaults) { f.AgentDelay = 2 * time.Second })
		at := h.c.Clock().Now()
		require.True(t, h.request(4, 0, 1).ok)
		assert.Greater(t, h.c.Clock().Now()-at, 2*time.Second)
	})
	t.Run("refuses one operation of one port", func(t *testing.T) {
		h := newMiniHost(t).agent()
		mac, tag := msg.AttrMAC, board.Tag(0x8100)
		h.faults(func(f *TargetFaults) { f.AgentRefuse = []AgentRefusal{{Op: msg.OpGet, Sub: &mac, Port: &tag}} })
		assert.Equal(t, uint32(1), h.ask(4, 3, 0x8100).status)
		assert.Zero(t, h.ask(4, 3, 0x8200).status)
		assert.Zero(t, h.ask(4, 0, 0x8100).status)
	})
	t.Run("bad request length", func(t *testing.T) {
		h := newMiniHost(t).agent()
		h.w32(tNWA+0x1c, 0xffffffff)
		h.w32(tNWA+0x18, 1)
		h.bell(154)
		require.True(t, h.wait(time.Second, func() bool { return h.r32(tNWA+0x20) == 1 }))
		assert.Equal(t, uint64(1), h.c.ReportCount("nwa-length"))
	})
}
