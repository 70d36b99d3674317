package hwsim

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/rpc/msg"
)

const (
	l2Bytes  = 14
	jumboMTU = 9000 // MTU of every LIF in these tests
)

// try sends a frame with mtu bytes of layer 3 each way on port1 and tells which
// came through. The rest of the sums closes.
func (h *ringHost) try(tag uint16, mtu int) (toHost, toWire bool) {
	h.t.Helper()
	n := mtu + l2Bytes
	before := h.wire(tag).Stats()
	punted := h.c.Counter(msg.CntTXKN)
	h.wire(tag).Send(ipFrame(h.c, tag, n, 1, 1))
	h.send(tag, ipFrame(h.c, tag, n, 1, 2))
	h.settled()
	for q := range h.lists {
		h.take(q, 16)
	}
	after := h.wire(tag).Stats()
	toHost, toWire = h.c.Counter(msg.CntTXKN) == punted+1, after.Out == before.Out+1
	assert.Equal(h.t, !toHost, after.SwitchDropped == before.SwitchDropped+1, "to the host: dropped by the switch or passed")
	assert.Equal(h.t, !toWire, after.OutSwitchDropped == before.OutSwitchDropped+1, "to the wire")
	return toHost, toWire
}

// The table of known-bugs SW-1, and both unknowns of the limit.
//
//oxpd:fault S11 symptom
func TestSwitchLimitsByPortAndUplink(t *testing.T) {
	sizes := []int{1522, 2048, 10240}
	for _, tc := range []struct {
		panel, uplink int // modes
		in, out       int // largest MTU; in: towards the host
		uncounted     int // both ways, where the DSA tag is not counted
		inIngress     int // where the limit applies at the way in only
		outIngress    int
	}{
		{0, 0, 1500, 1500, 1504, 1504, 1500},
		{0, 1, 1504, 1504, 1504, 1504, 2026},
		{0, 2, 1504, 1504, 1504, 1504, jumboMTU},
		{1, 0, 1500, 1500, 1504, 2030, 1500},
		{1, 1, 2026, 2026, 2030, 2030, 2026},
		{1, 2, 2030, 2030, 2030, 2030, jumboMTU},
		{2, 0, 1500, 1500, 1504, jumboMTU, 1500},
		{2, 1, 2026, 2026, 2030, jumboMTU, 2026},
		{2, 2, jumboMTU, jumboMTU, jumboMTU, jumboMTU, jumboMTU},
	} {
		for name, of := range map[string]struct {
			in, out int
			choose  func(c *Choices)
		}{
			"as found":         {tc.in, tc.out, func(c *Choices) {}},
			"29: DSA tag free": {tc.uncounted, tc.uncounted, func(c *Choices) { c.DSAUncounted = true }},
			"30: way in only":  {tc.inIngress, tc.outIngress, func(c *Choices) { c.IngressLimitOnly = true }},
		} {
			t.Run(fmt.Sprintf("port %d, uplink %d, %s", sizes[tc.panel], sizes[tc.uplink], name), func(t *testing.T) {
				h := newRingHost(t, 64, func(o *Options) { of.choose(&o.Choices) }).program(1072)
				setMTU(t, h.c, tag1, jumboMTU)
				s := h.switchHost()
				s.mode(1, uint16(tc.panel))
				s.mode(0, uint16(tc.uplink))
				toHost, _ := h.try(tag1, of.in)
				_, toWire := h.try(tag1, of.out)
				assert.Equal(t, []bool{true, true}, []bool{toHost, toWire}, "the largest")
				if of.in < jumboMTU {
					toHost, _ = h.try(tag1, of.in+1)
					assert.False(t, toHost, "one more, to the host")
				}
				if of.out < jumboMTU {
					_, toWire = h.try(tag1, of.out+1)
					assert.False(t, toWire, "one more, to the wire")
				}
				assert.Zero(t, h.c.Counter(msg.CntDropMTUExceeded), "the switch's drops are no counter's")
				h.clean()
			})
		}
	}
}

func TestSwitchLimitIsThePortsOwn(t *testing.T) {
	h := newRingHost(t, 64).program(1072)
	for _, tag := range []uint16{tag1, tag2, 0x8900, 0x8a00, tagF1} {
		setMTU(t, h.c, tag, jumboMTU)
	}
	h.switchHost().mode(10, 2)
	for tag, want := range map[uint16]bool{tag1: false, tag2: false, 0x8900: false, 0x8a00: true, tagF1: true} {
		toHost, toWire := h.try(tag, jumboMTU)
		assert.Equal(t, []bool{want, want}, []bool{toHost, toWire}, "%#x", tag)
	}
	h.clean()
}

// Where the uplink alone is too small, the drop is the switch's too: port 0 as a
// fault finds it.
//
//oxpd:fault S9 symptom
func TestSwitchReservedModePassesWhatTheLeastDoes(t *testing.T) {
	h := newRingHost(t, 64).program(1072)
	setMTU(t, h.c, tag1, jumboMTU)
	h.switchHost().mode(1, 3)
	toHost, toWire := h.try(tag1, 1504)
	assert.Equal(t, []bool{true, true}, []bool{toHost, toWire})
	toHost, toWire = h.try(tag1, 1505)
	assert.Equal(t, []bool{false, false}, []bool{toHost, toWire})
}

// Writes that take a port off the network, as a careless one did (switch.md 2).
//
//oxpd:fault S3 symptom
func TestSwitchWritesThatTakeAPortDown(t *testing.T) {
	for _, tc := range []struct {
		name      string
		port, reg int
		v         uint16
		one, two  bool // whether Port1, Port2 still carry
	}{
		{"0|3 into Port Control", 1, 4, 0x0003, false, true},
		{"disabled", 1, 4, 0x007c, false, true},
		{"learning", 1, 4, 0x007e, false, true},
		{"as it was", 1, 4, 0x007f, true, true},
		{"uplink without DSA", 0, 4, 0x007f, false, false},
		{"uplink disabled", 0, 4, 0x017c, false, false},
		{"VLAN map of the port without the uplink", 1, 6, 0x0000, false, true},
		{"VLAN map of the uplink without the port", 0, 6, 0x07fc, false, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newRingHost(t, 64).program(1072)
			h.switchHost().write(tc.port, tc.reg, tc.v)
			assert.Equal(t, []bool{tc.one, tc.two}, []bool{h.wire(tag1).Carries(), h.wire(tag2).Carries()})
			for tag, carries := range map[uint16]bool{tag1: tc.one, tag2: tc.two} {
				h.wire(tag).Send(ipFrame(h.c, tag, 60, 1, 1))
				h.send(tag, ipFrame(h.c, tag, 60, 1, 1))
				h.settled()
				want := WireStats{In: 1, Passed: 1, Out: 1}
				if !carries {
					want = WireStats{In: 1, LinkDown: 1, OutLinkDown: 1}
				}
				assert.Equal(t, want, h.wire(tag).Stats(), "%#x", tag)
			}
			var reports uint64
			for _, name := range []string{ReportSwitchMap, ReportSwitchUplink} {
				reports += h.c.ReportCount(name)
			}
			assert.Equal(t, tc.reg == 6 || tc.port == 0, reports == 1, "what oxpd must never write is reported")
		})
	}
}

// A VLAN map that names panel ports: what stops the switch from passing frames between
// them behind the firewall's back is gone (switch.md 4).
//
//oxpd:fault S8 symptom
func TestVLANMapBridgesPanelPorts(t *testing.T) {
	const tag3 = 0x8300
	for _, tc := range []struct {
		name   string
		vlans  uint16 // of Port1
		n      int
		toHost bool
		bare   []uint16 // ports that the frame leaves by without having been to the host
	}{
		{"as found", 0x0001, 60, true, nil},
		{"Port2 too", 0x0005, 60, true, []uint16{tag2}},
		{"Port2 alone", 0x0004, 60, false, []uint16{tag2}},
		{"itself", 0x0003, 60, true, nil},
		{"Port2 and Port3", 0x000d, 1514, true, []uint16{tag2, tag3}},
		{"longer than the port passes", 0x000d, 2045, false, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newRingHost(t, 64).program(1072)
			h.switchHost().write(1, 6, tc.vlans)
			sent := ipFrame(h.c, tag1, tc.n, 1, 1)
			got := map[uint16][][]byte{}
			for _, tag := range []uint16{tag1, tag2, tag3, 0x8400} {
				h.wire(tag).SetReceiver(func(b []byte) { got[tag] = append(got[tag], bytes.Clone(b)) })
			}
			h.wire(tag1).Send(sent)
			h.settled()
			assert.Equal(t, tc.toHost, h.c.Counter(msg.CntRXWire) == 1, "seen by the fast path")
			want := map[uint16][][]byte{}
			for _, tag := range tc.bare {
				want[tag] = [][]byte{sent}
				assert.Equal(t, uint64(1), h.wire(tag).Stats().Bridged)
			}
			assert.Equal(t, want, got)
			assert.Zero(t, h.c.Counter(msg.CntTXWire), "no counter of the card moves")
			assert.Equal(t, uint64(1), h.c.ReportCount(ReportSwitchMap))

			h.wire(tag2).Send(ipFrame(h.c, tag2, 60, 1, 2))
			h.settled()
			assert.Empty(t, got[tag1], "one way")
			assert.NoError(t, h.c.CheckConservation())
		})
	}
}

func TestSwitchRegisterPeekAndPoke(t *testing.T) {
	h := newRingHost(t, 16).program(1024)
	before := h.c.Now()
	h.c.SetSwitchRegister(1, 4, 0)
	assert.Zero(t, h.c.SwitchRegister(1, 4))
	assert.False(t, h.wire(tag1).Carries())
	assert.Equal(t, before, h.c.Now())
	require.Empty(t, h.c.Reports())
}
