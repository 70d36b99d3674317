package hwsim

import (
	"oxpd/internal/board"
	"oxpd/rpc/msg"
)

const (
	uplinkMbps = 10000 // nominal speed of the switch uplink

	// tagPhantom answers NetAgent without being a port (rpc-lif.md 7.1).
	tagPhantom board.Tag = 0x0003
)

// portState is a MAC or switch port as NetAgent has set it up. link follows
// admin and cable after the training time; frames pass while it is true.
type portState struct {
	tag       board.Tag
	speed     uint32 // nominal, Mbit/s
	onMAC     bool   // a coprocessor MAC, not a switch port
	swPort    int    // port of the switch, 0 on a MAC
	burnedMAC [6]byte

	admin  bool
	cable  bool       // the far side is there and up; owned by the wire
	peer   *portState // the far side, when it is another front port
	link   bool
	raised bool   // was up once since the coprocessor started; the address reads 0 before
	train  uint64 // number of the training in progress, 0 for none

	mac      [6]byte
	named    bool // the host has named an address; before, only broadcast passes
	promisc  bool
	allMulti bool
	autoneg  uint32
	mtu      uint32
}

// admits is the port's own address filter (rpc-lif.md 7.2). Multicast follows
// the unicast filter: no record tells them apart.
func (p *portState) admits(frame []byte) bool {
	if p.promisc || len(frame) < 6 {
		return true
	}
	dst := [6]byte(frame[:6])
	switch {
	case dst == broadcast:
		return true
	case dst[0]&1 != 0:
		return p.named || p.allMulti
	default:
		return p.named && dst == p.mac
	}
}

var broadcast = [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// portMAC is address n of the appliance's block: front ports in order of label
// (1-8, F1, F2, F3, F4), then two for the internal link (rpc-lif.md 5.1).
func portMAC(base [6]byte, n int) [6]byte {
	v := uint32(base[3])<<16 | uint32(base[4])<<8 | uint32(base[5])
	v += uint32(n)
	base[3], base[4], base[5] = byte(v>>16), byte(v>>8), byte(v)
	return base
}

// resetPorts is a coprocessor start: everything down, cables as they were; one to
// another front port has nobody up at its other end.
func (t *target) resetPorts() {
	c := t.c
	for i := range c.ports {
		b := board.ByIndex(i)
		c.ports[i].reset(b.Tag, uint32(b.SpeedMbps), !b.BehindSwitch(), portMAC(t.c.o.MACBase, i))
		c.ports[i].swPort = b.SwitchPort
	}
	for p := range t.c.sw.ports {
		if p != 0 {
			t.c.sw.agentState(p, false)
		}
	}
	t.uplink.reset(board.TagUplink, uplinkMbps, true, portMAC(t.c.o.MACBase, board.Ports))
	t.uplink.cable = true
	t.phantom.reset(tagPhantom, 0, true, [6]byte{})
}

func (p *portState) reset(tag board.Tag, speed uint32, onMAC bool, mac [6]byte) {
	*p = portState{
		tag: tag, speed: speed, onMAC: onMAC, burnedMAC: mac,
		cable: p.cable && p.peer == nil, peer: p.peer, autoneg: 1, mtu: msg.DiscoverMTU,
	}
}

// agentPort finds what NetAgent's port number names: a data-path tag, 0 for the
// uplink, and 3, which answers without being a port.
func (t *target) agentPort(n uint32) *portState {
	switch n {
	case 0, uint32(board.TagUplink):
		return &t.uplink
	case uint32(tagPhantom):
		return &t.phantom
	}
	if n > 0xffff {
		return nil
	}
	b, ok := board.ByTag(board.Tag(n))
	if !ok {
		return nil
	}
	return &t.c.ports[b.Index]
}

// setAdmin raises or lowers a port. A raised MAC filters on its own address at
// once; a switch port waits for SET MAC.
func (t *target) setAdmin(p *portState, up bool) {
	p.admin = up
	if p.swPort != 0 {
		t.c.sw.agentState(p.swPort, up)
	}
	if up && !p.raised {
		p.raised = true
		if !p.named {
			p.mac, p.named = p.burnedMAC, p.onMAC
		}
	}
	t.repower(p)
}

// powered tells whether a port's side of the cable is up.
func (t *target) powered(p *portState) bool {
	if p.swPort != 0 {
		return t.c.sw.powered(p.swPort)
	}
	return p.admin
}

// repower lets a port, and the one at the other end of its cable, follow the
// power of its side.
func (t *target) repower(p *portState) {
	t.relink(p)
	if p.peer != nil {
		t.setCable(p.peer, t.powered(p))
	}
}

// powerChanged tells that somebody wrote the PHY or the lane of a port of the
// switch.
func (t *target) powerChanged(swPort int) { t.repower(t.behind(swPort)) }

// setCable tells that the far side of a front port came or went.
func (t *target) setCable(p *portState, up bool) {
	p.cable = up
	t.relink(p)
}

// relink drops a link at once and brings it up after the training time. A
// training in progress is not begun again.
func (t *target) relink(p *portState) {
	if !t.powered(p) || !p.cable {
		p.link, p.train = false, 0
		return
	}
	if p.link || p.train != 0 {
		return
	}
	t.trainings++
	train := t.trainings
	p.train = train
	t.after(t.between(t.tl.LinkTrain, t.tl.LinkTrainTo), func() {
		if p.train == train {
			p.link, p.train = true, 0
		}
	})
}

// carries tells whether frames of front port i pass: its link is up and, behind
// the switch, the uplink was raised too and the switch joins the two.
func (t *target) carries(i int) bool {
	p := &t.c.ports[i]
	return p.link && (p.onMAC || t.uplink.admin && t.c.sw.joined[p.swPort])
}

// AgentPort is a port as NetAgent has it set up.
type AgentPort struct {
	Up       bool // SET state; the link is Wire.Carries
	MAC      [6]byte
	Promisc  bool
	AllMulti bool
}

// AgentPort returns what NetAgent knows of the front port with a tag, and the zero
// value for any other tag. Functional.
func (c *Card) AgentPort(tag board.Tag) AgentPort {
	c.mu.Lock()
	defer c.mu.Unlock()
	b, ok := board.ByTag(tag)
	if !ok {
		return AgentPort{}
	}
	p := &c.ports[b.Index]
	return AgentPort{Up: p.admin, MAC: p.mac, Promisc: p.promisc, AllMulti: p.allMulti}
}

// ForgetPorts makes NetAgent forget what it was told, as at a start: every port and
// the uplink are down and have no address. The mailbox answers as before. Functional.
func (c *Card) ForgetPorts() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.target.resetPorts()
}
