package hwsim

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
	"oxpd/rpc/msg"
)

// gateFrame is a frame of n bytes with up to two VLAN tags.
func gateFrame(n int, dst [6]byte, vlans ...uint16) []byte {
	b := make([]byte, n)
	copy(b, dst[:])
	at := 12
	for _, v := range vlans {
		copy(b[at:], []byte{0x81, 0x00, byte(v >> 8), byte(v)})
		at += 4
	}
	copy(b[at:], []byte{0x08, 0x00})
	return b
}

func TestGate(t *testing.T) {
	const tag, iface = 0x0001, 10
	mine := [6]byte{2, 0xc8, 0x52, 0, 0, 0x0a}
	foreign := [6]byte{2, 0xc8, 0x52, 0, 0, 0x0b}
	bcast := [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	mcast := [6]byte{1, 0, 0x5e, 0, 0, 1}
	l3 := msg.LIF{MAC: mine, MTU: 1500, Fwd: msg.FwdL3}
	with := func(fn func(*msg.LIF)) *msg.LIF { l := l3; fn(&l); return &l }
	jumbo := with(func(l *msg.LIF) { l.MTU = 9000 })

	for _, tc := range []struct {
		name    string
		unbound bool
		lif     *msg.LIF
		vlanLIF *msg.LIF // of VLAN 5
		strict  bool
		open    bool
		frame   []byte
		counter int
		ok      bool
	}{
		{"forced", false, &l3, nil, false, false, gateFrame(60, mine), 39, true},
		{"tag not bound", true, &l3, nil, false, false, gateFrame(60, mine), 24, false},
		{"no LIF", false, nil, nil, false, false, gateFrame(60, mine), 25, false},
		{"LIF with mode 0", false, with(func(l *msg.LIF) { l.Fwd = 0 }), nil, false, false, gateFrame(60, mine), 26, false},
		{"admin disabled", false, with(func(l *msg.LIF) { l.AdminDisabled = true }), nil, false, false, gateFrame(60, mine), 27, false},
		{"foreign MAC in L3", false, &l3, nil, false, false, gateFrame(60, foreign), 28, false},
		{"foreign MAC in L2", false, with(func(l *msg.LIF) { l.Fwd = msg.FwdL2 }), nil, false, false, gateFrame(60, foreign), 39, true},
		{"broadcast in L3", false, &l3, nil, false, false, gateFrame(60, bcast), 39, true},
		{"multicast in L3", false, &l3, nil, false, false, gateFrame(60, mcast), 39, true},
		{"MAC zero receives broadcast only", false, with(func(l *msg.LIF) { l.MAC = [6]byte{} }), nil, false, false, gateFrame(60, mine), 28, false},
		{"MTU 1500: 1,514 bytes", false, &l3, nil, false, false, gateFrame(1514, mine), 39, true},
		{"MTU 1500: 1,515 bytes", false, &l3, nil, false, false, gateFrame(1515, mine), 29, false},
		{"MTU 1500: 1,522 bytes", false, &l3, nil, false, false, gateFrame(1522, mine), 29, false},
		{"MTU 9000: 9,014 bytes", false, jumbo, nil, false, false, gateFrame(9014, mine), 39, true},
		{"MTU 9000: 9,015 bytes", false, jumbo, nil, false, false, gateFrame(9015, mine), 29, false},
		{"too long for a foreign MAC: the MAC comes first", false, &l3, nil, false, false, gateFrame(1600, foreign), 28, false},
		{"too long and admin disabled: admin comes first", false, with(func(l *msg.LIF) { l.AdminDisabled = true }), nil, false, false, gateFrame(1600, mine), 27, false},
		{"one VLAN tag: 1,518 bytes", false, &l3, nil, false, false, gateFrame(1518, mine, 5), 38, true},
		{"one VLAN tag: 1,519 bytes", false, &l3, nil, false, false, gateFrame(1519, mine, 5), 29, false},
		{"two VLAN tags: 1,522 bytes", false, &l3, nil, false, false, gateFrame(1522, mine, 5, 6), 38, true},
		{"two VLAN tags: 1,523 bytes", false, &l3, nil, false, false, gateFrame(1523, mine, 5, 6), 29, false},
		{"priority tag", false, &l3, nil, false, false, gateFrame(60, mine, 0xe000), 39, true},
		{"VLAN in L2", false, with(func(l *msg.LIF) { l.Fwd = msg.FwdL2 }), nil, false, false, gateFrame(60, mine, 5), 39, true},
		{"VLAN with a LIF of its own", false, nil, &l3, false, false, gateFrame(60, mine, 5), 39, true},
		{"VLAN LIF with its own MTU", false, jumbo, &l3, false, false, gateFrame(1600, mine, 5), 29, false},
		{"strict: one VLAN tag, 1,514 bytes", false, &l3, nil, true, false, gateFrame(1514, mine, 5), 38, true},
		{"strict: one VLAN tag, 1,515 bytes", false, &l3, nil, true, false, gateFrame(1515, mine, 5), 29, false},
		{"offload disabled", false, with(func(l *msg.LIF) { l.OffloadDisabled = true }), nil, false, false, gateFrame(60, mine), 37, true},
		{"offload disabled, too long", false, with(func(l *msg.LIF) { l.OffloadDisabled = true }), nil, false, false, gateFrame(1515, mine), 29, false},
		{"global gate open, no flow", false, &l3, nil, false, true, gateFrame(60, mine), 40, true},
		{"shorter than a header", false, &l3, nil, false, false, make([]byte, 13), 36, false},
		{"cut inside a VLAN tag", false, &l3, nil, false, false, gateFrame(18, mine, 5)[:16], 39, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLIFTable(tc.strict)
			l.gateOpen = tc.open
			if !tc.unbound {
				require.Equal(t, msg.RCOK, l.bind(msg.PPort{Iface: iface, Tag: tag}))
			}
			if tc.lif != nil {
				l.set(iface<<12, &lifEntry{*tc.lif})
			}
			if tc.vlanLIF != nil {
				l.set(iface<<12|5, &lifEntry{*tc.vlanLIF})
			}
			_, _, counter, ok := l.gate(tag, tc.frame)
			assert.Equal(t, tc.counter, counter)
			assert.Equal(t, tc.ok, ok)
		})
	}
}

// rpc-lif.md 5.2: each bit changes its field and no other.
func TestEachMaskBitIsOneField(t *testing.T) {
	base := msg.LIF{MAC: [6]byte{2, 0xc8, 0x52, 0, 0, 0x0a}, MTU: 1500, Fwd: msg.FwdL3}
	other := msg.LIF{MAC: [6]byte{2, 9, 9, 9, 9, 9}, MTU: 9000, Fwd: msg.FwdL2, AdminDisabled: true, OffloadDisabled: true, Representor: 4095}
	with := func(fn func(*msg.LIF)) msg.LIF { l := base; fn(&l); return l }
	for _, tc := range []struct {
		mask msg.LIFMask
		want msg.LIF
	}{
		{0x01, with(func(l *msg.LIF) { l.MAC = other.MAC })},
		{0x02, with(func(l *msg.LIF) { l.MTU = 9000 })},
		{0x04, with(func(l *msg.LIF) { l.Fwd = msg.FwdL2 })},
		{0x08, with(func(l *msg.LIF) { l.AdminDisabled = true })},
		{0x10, with(func(l *msg.LIF) { l.OffloadDisabled = true })},
		{0x20, with(func(l *msg.LIF) { l.Representor = 4095 })},
		{0x40, base},
		{0x80, base},
	} {
		table := newLIFTable(false)
		table.set(0, &lifEntry{base})
		require.Equal(t, msg.RCOK, table.update(msg.LIFUpdateReq{LIF: other, Mask: tc.mask}, false, true))
		assert.Equal(t, tc.want, table.entry(0).LIF, "mask %#x", tc.mask)
	}
}

func TestGateAllocatesNothing(t *testing.T) {
	l := newLIFTable(false)
	l.bind(msg.PPort{Iface: 10, Tag: 1})
	mine := [6]byte{2, 0, 0, 0, 0, 1}
	l.set(10<<12, &lifEntry{msg.LIF{MAC: mine, MTU: 1500, Fwd: msg.FwdL3}})
	f := gateFrame(1514, mine)
	assert.Zero(t, testing.AllocsPerRun(100, func() { l.gate(1, f) }))
}

func TestPPortBindsBothDirections(t *testing.T) {
	l := newLIFTable(false)
	require.Equal(t, msg.RCOK, l.bind(msg.PPort{Iface: 8, Tag: 0x8900}))
	assert.Equal(t, uint8(8), l.iface[0x8900])
	assert.Equal(t, uint16(0x8900), l.tag[8])
	assert.Equal(t, msg.RCRefused, l.bind(msg.PPort{Iface: 128, Tag: 1}))
	assert.Equal(t, uint8(ifaceNone), l.iface[1])
}

// rpc-lif.md 5.1, row by row.
func TestProvision(t *testing.T) {
	c := New(Options{Timeline: Compressed()})
	t.Cleanup(c.Close)
	c.ConfigWrite(4, 2, 6)
	c.Provision()
	for _, row := range []struct {
		label string
		tag   uint16
		iface uint8
		index uint32
		last  byte
	}{
		{"Port1", 0x8100, 0, 0, 0x02}, {"Port2", 0x8200, 1, 4096, 0x03}, {"Port3", 0x8300, 2, 8192, 0x04},
		{"Port4", 0x8400, 3, 12288, 0x05}, {"Port5", 0x8500, 4, 16384, 0x06}, {"Port6", 0x8600, 5, 20480, 0x07},
		{"Port7", 0x8700, 6, 24576, 0x08}, {"Port8", 0x8800, 7, 28672, 0x09}, {"PortF3", 0x8900, 8, 32768, 0x0c},
		{"PortF4", 0x8a00, 9, 36864, 0x0d}, {"PortF1", 0x0001, 10, 40960, 0x0a}, {"PortF2", 0x0002, 11, 45056, 0x0b},
	} {
		lif, live := c.LIF(row.index)
		assert.True(t, live, row.label)
		assert.Equal(t, msg.LIF{MAC: [6]byte{2, 0xc8, 0x52, 0, 0, row.last}, MTU: 1500, Fwd: msg.FwdL3}, lif, row.label)
		iface, ok := c.PPort(row.tag)
		assert.True(t, ok, row.label)
		assert.Equal(t, row.iface, iface, row.label)
		p, _ := board.ByTag(board.Tag(row.tag))
		c.mu.Lock()
		assert.True(t, c.target.carries(p.Index), row.label)
		assert.True(t, c.ports[p.Index].admits(gateFrame(60, lif.MAC)), row.label)
		c.mu.Unlock()
	}
	c.Advance(Compressed().Kernel * 4)
	lif, live := c.LIF(40960)
	assert.True(t, live, "the boot that was under way does not undo it")
	assert.Equal(t, uint16(1500), lif.MTU)
	assert.Equal(t, uint64(0xcafebabe), c.Load(2, tNWA, 4), "nor empty the windows")
	assert.Equal(t, uint64(1), c.Load(0, 0x28100, 8))
}

func TestOffloadGate(t *testing.T) {
	h := newMiniHost(t).rpc()
	require.Zero(t, h.call(2, []byte{3, 0, 0, 0}).rc)
	h.c.mu.Lock()
	assert.True(t, h.c.lifs.gateOpen)
	h.c.mu.Unlock()
	require.Zero(t, h.call(2, []byte{2, 0, 0, 0}).rc)
	h.c.mu.Lock()
	defer h.c.mu.Unlock()
	assert.False(t, h.c.lifs.gateOpen)
}
