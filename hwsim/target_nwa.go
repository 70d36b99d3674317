package hwsim

import (
	"time"

	"oxpd/internal/board"
	"oxpd/rpc/msg"
)

// agentState is where NetAgent's half of the mailbox stands (rpc-lif.md 7).
type agentState uint8

const (
	agentIdle     agentState = iota // STATUS 0, waiting for TURN 1
	agentBusy                       // a request was seen
	agentHeld                       // STATUS 1, waiting for TURN 2
	agentSettling                   // TURN 2 was seen, STATUS still 1
	agentTickWait                   // the same, until the next tick
)

type netAgent struct {
	up    bool
	dead  bool // attribute 0x0b was touched (F15)
	state agentState
	req   msg.NWARequestMsg
	reply int // offset of the reply body in the window
}

const (
	nwaPorts     = 14 // count word of the port table, one record of which is empty
	nwaTickOneIn = 100
	nwaStatBytes = 264
	nwaTailFill  = 0xee // what stands behind a reply that ends inside a word
)

// More attributes (rpc-lif.md 7.2); no driver here sends them.
const (
	attrStatistics msg.Attr = 0x0e
	attrMultiAdd   msg.Attr = 0x4a
	attrMultiFlush msg.Attr = 0x4b
	attrUniAdd     msg.Attr = 0x4c
	attrSettings   msg.Attr = 0x55
)

func (t *target) nwaWindow() []byte { return t.c.win[winNWA : winNWA+facSize] }

// afterAgent is after for NetAgent: void once it was ended or started again.
func (t *target) afterAgent(d time.Duration, fn func()) {
	gen := t.agentGen
	t.after(d, func() {
		if t.agentGen == gen {
			fn()
		}
	})
}

// agentUp publishes the mailbox: the cookie appears long after the window.
func (t *target) agentUp() {
	if !t.fastPathUp || t.agent.up {
		return
	}
	w := t.nwaWindow()
	clear(w)
	le.PutUint32(w[msg.NWABody:], msg.NWABodyOffset)
	if n := t.c.faults.AgentBody; t.c.acts(fltAgentBody, n != 0) {
		le.PutUint32(w[msg.NWABody:], n)
	}
	le.PutUint32(w[msg.NWAMaxReq:], msg.NWAMaxReqLen)
	le.PutUint32(w[msg.NWAEventOff:], msg.NWAEvent)
	le.PutUint32(w[msg.NWAEventLen:], msg.NWAEvent)
	le.PutUint32(w[msg.NWACookie:], msg.NWAMagic)
	t.agent = netAgent{up: true}
	t.afterAgent(t.tl.AgentTick, t.agentTick)
}

func (t *target) agentTick() {
	if !t.agent.up || t.agent.dead {
		return
	}
	if t.agent.state == agentTickWait {
		t.agentSettled()
	}
	t.agentLook()
	t.afterAgent(t.tl.AgentTick, t.agentTick)
}

// agentLook looks at TURN, after a doorbell or a tick. The target never writes
// TURN, the host never writes STATUS.
func (t *target) agentLook() {
	a := &t.agent
	if !a.up || a.dead || t.c.acts(fltAgentSilent, t.c.faults.AgentSilent) {
		return
	}
	w := t.nwaWindow()
	turn := le.Uint32(w[msg.NWATurn:])
	switch {
	case a.state == agentIdle && turn == msg.TurnRequest:
		n := le.Uint32(w[msg.NWAReqLen:])
		if n < msg.NWAReqSize || n > msg.NWAMaxReqLen {
			t.c.report(ReportNWALength, "request of %d bytes", n)
			n = msg.NWAReqSize
		}
		t.agentTake(int(n))
		t.c.chance(perCommand)
		t.afterAgent(t.tl.AgentAnswer+t.c.delay(fltAgentDelay, t.c.faults.AgentDelay), t.agentAnswer)
	case a.state == agentHeld && turn == msg.TurnAck:
		if t.rng.IntN(nwaTickOneIn) == 0 {
			a.state = agentTickWait
			return
		}
		a.state = agentSettling
		t.afterAgent(t.between(t.tl.AgentSettle, t.tl.AgentSettleTo), t.agentSettled)
	}
}

// agentTake takes a request of n bytes out of the window.
func (t *target) agentTake(n int) {
	a := &t.agent
	// The window is larger than the longest request.
	_ = a.req.Decode(t.nwaWindow()[msg.NWARequest:])
	a.reply = msg.NWARequest + n
	a.state = agentBusy
}

func (t *target) agentSettled() {
	if !t.agent.up {
		return
	}
	le.PutUint32(t.nwaWindow()[msg.NWAStatus:], msg.StatusIdle)
	t.agent.state = agentIdle
}

// agentAnswer runs the request and hands the window to the host, which has to
// acknowledge: until then nobody else gets an answer (F16).
func (t *target) agentAnswer() {
	a := &t.agent
	if !a.up {
		return
	}
	if t.c.acts(fltAgentSilent, t.c.faults.AgentSilent) {
		a.state = agentIdle // the request is still there and will be seen again
		return
	}
	payload, ok := t.agentRun(&a.req)
	if a.dead {
		return
	}
	status := uint32(msg.ReplyOK)
	if !ok {
		status, payload = msg.ReplyNoSuch, nil
	}
	w := t.nwaWindow()
	marker := uint32(msg.ReplyMarker)
	if n := t.c.faults.AgentMarker; t.c.acts(fltAgentMarker, n != 0) {
		marker = n
	}
	b := le.AppendUint32(w[a.reply:a.reply], marker)
	b = le.AppendUint32(b, status)
	b = append(b, payload...)
	n := len(b)
	for len(b)%4 != 0 {
		b = append(b, nwaTailFill)
	}
	le.PutUint32(w[msg.NWAReplyLen:], uint32(n))
	le.PutUint32(w[msg.NWAStatus:], msg.StatusReply)
	a.state = agentHeld
}

// agentRun is one operation (rpc-lif.md 7.1); false is status 1.
func (t *target) agentRun(r *msg.NWARequestMsg) (payload []byte, ok bool) {
	if t.c.acts(fltAgentRefuse, t.c.faults.refuses(r)) {
		return nil, false
	}
	switch r.Op {
	case msg.OpDiscover:
		return t.agentDiscover(), true
	case msg.OpAllPorts:
		return nil, true // answered; what it says is not on record
	case msg.OpSet, msg.OpGet:
		if msg.Attr(r.Sub) == msg.AttrFEC {
			t.c.report(ReportNWAFEC, "attribute 0x0b: NetAgent is dead until the coprocessor restarts")
			t.agent.dead = true
			return nil, false
		}
		p := t.agentPort(r.Port)
		if p == nil {
			return nil, false
		}
		if r.Op == msg.OpSet {
			return nil, t.attrSet(p, msg.Attr(r.Sub), r.Payload)
		}
		return t.attrGet(p, msg.Attr(r.Sub))
	}
	return nil, false
}

// agentDiscover is the port table: 14 records of which 13 are filled.
func (t *target) agentDiscover() []byte {
	const switchFilters, macFilters = 12, 65535
	ports := make([]msg.NWAPort, 0, nwaPorts)
	for _, onMAC := range []bool{true, false} {
		if !onMAC {
			ports = append(ports, msg.NWAPort{Tag: uint16(t.uplink.tag), MTU: msg.DiscoverMTU})
		}
		for i := range t.c.ports {
			p := &t.c.ports[i]
			if p.onMAC != onMAC {
				continue
			}
			r := msg.NWAPort{Tag: uint16(p.tag), Manageable: true, MaxUnicast: switchFilters, MTU: msg.DiscoverMTU}
			if onMAC {
				r.MaxUnicast = macFilters
			}
			ports = append(ports, r)
		}
	}
	return msg.AppendDiscover(nil, nwaPorts, ports)
}

// attrSet is the SET column of rpc-lif.md 7.2.
func (t *target) attrSet(p *portState, a msg.Attr, payload [2]uint32) bool {
	switch a {
	case msg.AttrState:
		switch payload[0] {
		case 0, 1:
			t.setAdmin(p, payload[0] == 1)
		default:
			// 2 and 3 stop and start transmit queues.
			t.c.report(ReportNWAState, "state %d of port %v", payload[0], p.tag)
		}
	case msg.AttrMTU:
		p.mtu = payload[0]
	case msg.AttrMAC:
		var b []byte
		b = le.AppendUint32(b, payload[0])
		b = le.AppendUint32(b, payload[1])
		p.mac, p.named = [6]byte(b[:6]), true
	case msg.AttrAutoneg:
		p.autoneg = payload[0]
	case msg.AttrPromisc:
		p.promisc = payload[0] != 0
	case msg.AttrAllMulti:
		p.allMulti = payload[0] != 0
	case attrMultiAdd, attrMultiFlush, attrUniAdd:
	default:
		return false
	}
	return true
}

// attrGet is the GET column of rpc-lif.md 7.2.
func (t *target) attrGet(p *portState, a msg.Attr) (payload []byte, ok bool) {
	words := func(w ...uint32) ([]byte, bool) {
		for _, v := range w {
			payload = le.AppendUint32(payload, v)
		}
		return payload, true
	}
	switch a {
	case msg.AttrState:
		if p.link {
			return []byte{1}, true
		}
		return []byte{0}, true
	case msg.AttrMTU:
		if p.onMAC {
			return nil, false
		}
		return words(p.mtu)
	case msg.AttrMAC:
		var mac [8]byte
		copy(mac[:], p.mac[:]) // zeros until the port is raised or an address set
		return mac[:], true
	case msg.AttrSpeed:
		return words(p.speed)
	case msg.AttrMedia:
		if p.onMAC {
			return words(2)
		}
		return words(1)
	case msg.AttrAutoneg:
		return words(p.autoneg)
	case msg.AttrDuplex:
		if p.onMAC {
			return words(1)
		}
		return words(0xff)
	case attrStatistics:
		return make([]byte, nwaStatBytes), true // dead: the same for every port
	case attrSettings:
		return words(0, 10000, 1)
	}
	return nil, false
}

// RestartAgent ends NetAgent and starts it again: the mailbox is blank until the
// cookie is back, and every port is as after a coprocessor start: down, no address
// named, filters closed, its address zero until it is raised. The LIFs stay. What
// a real restart does to the ports is not on record; this is the worst. Functional.
func (c *Card) RestartAgent() {
	c.lock()
	c.target.agentRestart()
	c.leave()
}

func (t *target) agentRestart() {
	if !t.fastPathUp {
		return
	}
	t.agentGen++
	t.agent = netAgent{}
	clear(t.nwaWindow())
	t.resetPorts()
	t.afterAgent(t.tl.AgentUp, t.agentUp)
}

// StrandAgent leaves NetAgent's mailbox as a process does that died with its
// request answered and not acknowledged (F16). It returns false, and does nothing,
// while somebody else holds the mailbox or NetAgent does not serve it. Functional.
func (c *Card) StrandAgent() bool {
	c.lock()
	defer c.leave()
	return c.target.agentStrand()
}

func (t *target) agentStrand() bool {
	a, w := &t.agent, t.nwaWindow()
	if !a.up || a.dead || t.c.faults.AgentSilent || a.state != agentIdle || le.Uint32(w[msg.NWATurn:]) == msg.TurnRequest {
		return false
	}
	r := msg.NWARequestMsg{Op: msg.OpGet, Sub: uint32(msg.AttrState), Port: uint32(board.ByIndex(0).Tag)}
	copy(w[msg.NWARequest:], r.Append(nil))
	le.PutUint32(w[msg.NWAReqLen:], msg.NWAReqSize)
	le.PutUint32(w[msg.NWATurn:], msg.TurnRequest)
	t.agentTake(msg.NWAReqSize)
	t.agentAnswer()
	return true
}
