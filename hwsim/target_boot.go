package hwsim

import (
	"encoding/binary"
	"math/rand/v2"
	"time"

	"oxpd/internal/board"
	"oxpd/octep/csr"
	"oxpd/rpc/msg"
)

// What the target's kernel publishes (endpoint.md 3.1). The doorbell numbers
// come from the coprocessor's device tree.
const (
	facSize     = 1 << 20
	spiFirst    = 152
	spiRPC      = 155
	spiRPCBells = 5

	winControl = csr.FacControl * facSize // offsets inside the four windows
	winMgmt    = csr.FacMgmt * facSize
	winNWA     = csr.FacNWA * facSize
	winRPC     = csr.FacRPC * facSize

	// Management network device, far enough for a host that looks (endpoint.md 11.1).
	mgmtDevType      = 8
	mgmtTargetStatus = 256
	mgmtReady        = 1
)

// scratchUp is SDP_SCRATCH once the target's kernel is up (endpoint.md 2.1).
const scratchUp = csr.BAR2Facilities<<32 | csr.ScratchMagic

var le = binary.LittleEndian

// target is the software on the coprocessor: its kernel's endpoint driver, the
// launcher, the fast path's control side and NetAgent. It lives under the
// card's lock; every method but newTarget is called with it held.
//
//	start -> Kernel: windows mapped, barmap, magic
//	      -> Poll: handshake (target_handshake.go)
//	      -> FastPath: host port open, rpc published (target_rpc.go)
//	      -> AgentUp: NetAgent cookie (target_nwa.go)
type target struct {
	c   *Card
	tl  Timeline
	rng *rand.Rand

	gen     uint64 // counts starts and stops; an event of an older one is void
	running bool
	mapped  bool // the windows decode
	ended   bool // nothing runs any more, until a start
	crashed bool

	// fastPathUp tells that the fast path opened its host port and runs. Frames
	// move only while it is true.
	fastPathUp bool

	hs    handshake
	rpc   rpcTarget
	agent netAgent

	agentGen uint64 // counts restarts of NetAgent alone

	uplink, phantom portState
	trainings       uint64

	params uint16 // FW_CFG_PARAMS_SET

	commands   []CommandLog
	handshakes []HandshakeWrite
}

// TargetOptions are the choices that concern the software on the coprocessor.
type TargetOptions struct {
	// ClearLIFs makes the fast path empty the LIF table Timeline.TableClear after
	// it came up, as the sister board's does (rpc-lif.md 5.6).
	ClearLIFs bool
	// EmptyLIFShort answers LO_LIF_READ of an empty slot with no entry instead of
	// 14 zero bytes (rpc-lif.md 5.5).
	EmptyLIFShort bool
}

func newTarget(c *Card) *target {
	t := &target{c: c, tl: c.o.Timeline, rng: rand.New(rand.NewPCG(uint64(c.o.Seed), 0))}
	for i := range c.ports {
		c.ports[i].cable = true
	}
	t.resetPorts()
	return t
}

// after runs fn later, unless the coprocessor was stopped or started again.
func (t *target) after(d time.Duration, fn func()) {
	gen := t.gen
	t.c.after(cyclesOf(d), func() {
		if t.gen == gen {
			fn()
		}
	})
}

// between draws a time from lo to hi.
func (t *target) between(lo, hi time.Duration) time.Duration {
	if hi <= lo {
		return lo
	}
	return lo + time.Duration(t.rng.Int64N(int64(hi-lo)+1))
}

// start is power-on or the end of a reset: nothing mapped, nothing known.
func (t *target) start() {
	t.stop()
	t.running = true
	t.c.stalled.Broadcast()
	t.c.out.boot(BootLoader)
	t.c.sdpScratch, t.c.sliScratch = 0, 0
	t.after(t.tl.Kernel, t.kernelUp)
}

// stop is the begin of a reset: the coprocessor's memory and state are gone.
func (t *target) stop() {
	if t.running && !t.ended {
		t.c.out.boot(BootOff)
	}
	t.gen++
	t.running, t.mapped, t.ended, t.crashed, t.fastPathUp = false, false, false, false, false
	t.hs, t.rpc, t.agent = handshake{}, rpcTarget{}, netAgent{}
	t.params = paramsReset
	t.c.lifs.reset()
	t.c.sw.reset()
	t.resetPorts()
	t.unmap(0)
}

// unmap lets everything from off on read all-ones.
func (t *target) unmap(off int) {
	w := t.c.win[off:]
	w[0] = 0xff
	for n := 1; n < len(w); n *= 2 {
		copy(w[n:], w[:n])
	}
}

// decodes tells whether the byte at off of the windows answers; elsewhere loads
// give the all-ones that unmap left and stores are lost.
func (t *target) decodes(off uint32) bool {
	return t.mapped && (!t.crashed || off < winMgmt)
}

// kernelUp is the endpoint driver: entry 8 is mapped as a whole, so all four
// windows decode; rpc and nw_agent read zero until somebody fills them.
func (t *target) kernelUp() {
	clear(t.c.win)
	t.mapped = true
	t.c.out.boot(BootKernel)
	le.PutUint64(t.c.win[winMgmt+mgmtDevType:], 1)
	le.PutUint64(t.c.win[winMgmt+mgmtTargetStatus:], mgmtReady)
	t.publish()
	t.c.sdpScratch = scratchUp
	t.pollHandshake()
}

// publish writes the barmap as the coprocessor's state and the faults have it.
func (t *target) publish() {
	if !t.mapped {
		return
	}
	f := &t.c.faults.TargetFaults
	if f.BarmapAllOnes {
		for i := range csr.BarmapSize {
			t.c.win[winControl+i] = 0xff
		}
		return
	}
	m := csr.Barmap{Version: csr.BarmapVersion02, GICD: gicdSetSPI}
	if f.BarmapVersion != 0 {
		m.Version = f.BarmapVersion
	}
	for i := range csr.FacUnused {
		late := i == csr.FacNWA || i == csr.FacRPC
		if t.crashed || f.BarmapNoSizes || f.FacilityMissing[i] || late && !t.fastPathUp {
			continue
		}
		m.Facility[i] = csr.Facility{
			Offset: csr.BAR2Facilities + uint32(i)*facSize, Size: facSize,
			Doorbell: spiFirst + uint32(i), Doorbells: 1,
		}
		if i == csr.FacRPC {
			m.Facility[i].Doorbells = t.rpcBells()
		}
	}
	copy(t.c.win[winControl:], m.Append(nil))
}

// faultsChanged lets every fault that was switched on or off take effect.
func (t *target) faultsChanged() {
	t.publish()
	t.c.sw.faultsChanged()
	if t.rpc.up && !t.c.faults.RPCSilent {
		t.rpcKick()
	}
}

// launch is what the handshake sets off: the fast path starts, opens its host
// port and publishes rpc; NetAgent follows (endpoint.md 4.6, 13). No virtual
// function exists in this model, so an info word that promises some is F5.
func (t *target) launch() {
	info := t.hs.info
	if vfs := csr.InfoNumVFs.Get(info); vfs != 0 {
		t.c.report(ReportHandshakeVFs, "%s: info word %#x promises %d VFs and none exists: the fast path will die", csr.SLIScratch, info, vfs)
		t.after(t.tl.Crash, t.crash)
	}
	t.after(t.tl.FastPath, t.openHostPort)
}

func (t *target) openHostPort() {
	if t.crashed {
		return
	}
	t.c.latchRings()
	t.fastPathUp = true
	t.c.sliScratch |= 1
	t.rpcUp()
	t.publish()
	t.afterAgent(t.tl.AgentUp, t.agentUp)
	if t.c.o.ClearLIFs {
		t.after(t.tl.TableClear, t.c.lifs.clear)
	}
}

// crash is the end of the target's software (F5): the windows read all-ones, the
// sizes read 0, BAR0 goes on answering.
func (t *target) crash() {
	t.crashed = true
	t.killFastPath()
	t.unmap(winMgmt)
	t.publish()
}

// vanish is the end of all that the target runs, its kernel too: every window reads
// all-ones, the registers stay (F2).
func (t *target) vanish() {
	if !t.running || t.ended {
		return
	}
	t.c.out.boot(BootOff)
	t.killFastPath()
	t.gen++
	t.mapped, t.ended = false, true
	t.unmap(0)
}

// killFastPath ends the packet program and with it rpc's handlers and NetAgent;
// the windows keep what they hold (F12).
func (t *target) killFastPath() {
	t.fastPathUp = false
	t.rpc.up = false
	t.agent.up = false
}

// doorbell is a store of spi to the interrupt distributor. Numbers outside the
// advertised ranges raise some other interrupt; the model only reports them.
func (t *target) doorbell(spi uint32) {
	switch {
	case spi < spiFirst || spi >= spiRPC+spiRPCBells:
		t.c.report(ReportUnknownSPI, "BAR2+%#x = %d: no facility's", gicdSetSPI, spi)
	case spi >= spiRPC:
		t.rpcDoorbell(spi - spiRPC)
	case spi == spiFirst+csr.FacNWA:
		t.afterAgent(t.tl.AgentNudge, t.agentLook)
	}
}

// provision is a finished bring-up without a control plane: fast path running,
// links up, every port's LIF and tag installed as the vendor leaves them.
func (t *target) provision() {
	if !t.mapped {
		t.gen++ // the boot that is under way ends here
		t.kernelUp()
	}
	t.hs.state = hsDone
	if !t.fastPathUp {
		t.openHostPort()
		t.agentUp()
	}
	t.uplink.admin, t.uplink.link, t.uplink.raised = true, true, true
	for i := range t.c.ports {
		p := &t.c.ports[i]
		t.setAdmin(p, true)
		p.train, p.link, p.named = 0, p.cable, true
		b := board.ByIndex(i)
		t.c.lifs.set(uint32(b.LIF()), &lifEntry{msg.LIF{MAC: p.mac, MTU: board.DefaultMTU, Fwd: msg.FwdL3}})
		t.c.lifs.bind(msg.PPort{Iface: b.Iface, Tag: uint16(b.Tag)})
	}
}
