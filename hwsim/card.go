package hwsim

import (
	"sync"
	"time"

	"oxpd/internal/board"
	"oxpd/octep/csr"
	"oxpd/ring/wire"
)

// Hz is the coprocessor's clock (endpoint.md 1). The model's time is cycles of it.
const Hz = csr.ClocksPerUS * 1_000_000

// cyclesOf turns a duration into cycles, rounded down.
func cyclesOf(d time.Duration) uint64 {
	if d <= 0 {
		return 0
	}
	return uint64(d/time.Microsecond)*csr.ClocksPerUS + uint64(d%time.Microsecond)*csr.ClocksPerUS/1000
}

// durationOf turns cycles into a duration.
func durationOf(cycles uint64) time.Duration {
	return time.Duration(cycles/Hz)*time.Second + time.Duration(cycles%Hz*1_000_000_000/Hz)
}

// Options describe a card. The zero value is a card as delivered, with the
// measured boot times.
type Options struct {
	Seed        int64         // of everything that varies; same seed, same trace in stepped mode
	Timeline    Timeline      // zero: Real()
	Function    Function      // what is shown: PF, the whole card, or VF, one virtual function with a loopback behind its rings
	VFRings     int           // rings of the virtual function: 1, 2, 4 or 8; 0: 1. The physical function has all 64
	Watermark   int           // SDP_OUT_WMARK; 0: 0x400 as on this appliance, 0x100 for a VF. The stock firmware has 0x100
	SwitchFrame int           // frame limit of the switch's front ports after a start, FCS included: 1,522, 2,048 or 10,240; 0: 2,048 as found
	SwitchPolls int           // reads of a busy bit of the switch that find it set after a command; 0: 1, negative: none
	SwitchBusy  time.Duration // how long it is set at least
	MACBase     [6]byte       // first of the block of port addresses, Port1's; zero: 02:c8:52:00:00:02
	Choices     Choices
	TargetOptions

	HostVectors bool   // a vector without a listener is masked, and the MSI-X table is storage (choice 16); for a front end that is told who listens
	Windows     []byte // memory of WindowBytes for the facility windows, which a host may have mapped too; it stays until Close. nil: the card's own
	Latencies   Latencies
	Rates       Rates
	Queues      Queues
}

// Frame limits of the switch in bytes, FCS included (datapath.md 5.3).
const (
	SwitchFrameFound = 2048
	SwitchFrameJumbo = 10240
)

// WindowBytes is the size of BAR2's entry 8, which holds the facility windows.
const WindowBytes = csr.BAR2FacEnd - csr.BAR2Facilities

// mode says what moves the card's time.
type mode uint8

const (
	stepped mode = iota // Advance and Clock().Sleep
	free                // the wall clock, after Start
)

// Card is one coprocessor with the board behind it. All methods are safe for
// concurrent use; in stepped mode one goroutine should do everything, or the
// trace is not reproducible.
type Card struct {
	o Options

	mu      sync.Mutex
	mode    mode
	closed  bool
	now     uint64 // cycles since New
	horizon uint64 // events up to here are due: now in stepped mode, ahead of it in free mode
	agenda  agenda
	faults  Faults
	inject  injector
	killed  bool

	cfg  configSpace
	msix msixTable
	dma  dmaTable

	// BAR0
	sdpScratch uint64
	sliScratch uint64
	rinfo      uint64
	plain      map[uint32]uint64 // registers without a behaviour of their own, by offset
	rings      [csr.Rings]ring
	latched    bool // the host port was opened: ring addresses do not change any more

	// BAR2
	win []byte // entry 8: the facility windows, all-ones where the target has not mapped them

	target *target
	sw     *ethSwitch
	lifs   *lifTable
	ports  [board.Ports]portState
	counters

	datapath
	wires [board.Ports]*Wire
	pool  framePool

	acc          accounts
	reports      []Report
	reportCounts map[string]uint64
	doorbells    map[uint32]uint64

	out outbox
	runner
	tracing
}

// New makes a card that comes out of reset at cycle 0, in stepped mode. Bus
// mastering and memory decoding are off, as firmware leaves a device without a
// driver.
func New(o Options) *Card {
	if o.Timeline == (Timeline{}) {
		o.Timeline = Real()
	}
	switch {
	case o.Function == PF:
		o.VFRings = 0
	case o.VFRings == 0:
		o.VFRings = vfRings
	}
	if o.Watermark == 0 {
		o.Watermark = wire.Watermark
		if o.Function == VF {
			o.Watermark = vfWatermark
		}
	}
	if o.SwitchFrame == 0 {
		o.SwitchFrame = SwitchFrameFound
	}
	if o.SwitchPolls == 0 {
		o.SwitchPolls = 1
	}
	if o.MACBase == ([6]byte{}) {
		o.MACBase = [6]byte{0x02, 0xc8, 0x52, 0, 0, 0x02}
	}
	o.Rates.defaults()
	o.Queues.defaults()
	if o.Windows == nil {
		o.Windows = make([]byte, WindowBytes)
	}
	c := &Card{
		o:            o,
		win:          o.Windows[:WindowBytes],
		reportCounts: map[string]uint64{},
		doorbells:    map[uint32]uint64{},
	}
	c.lifs = newLIFTable(o.Choices.StrictVLAN)
	c.sw = newSwitch(c)
	c.target = newTarget(c)
	c.cfg.vf = o.Function == VF
	c.cfg.powerOn()
	c.inject.init(o.Seed)
	c.initRunner()
	c.initDatapath()
	for i := range c.wires {
		c.wires[i] = newWire(c, board.ByIndex(i))
	}
	c.mu.Lock()
	c.powerOn()
	c.mu.Unlock()
	return c
}

// powerOn brings the registers to their reset values and starts the
// coprocessor's software. Held: c.mu.
func (c *Card) powerOn() {
	c.resetRegisters()
	c.resetDatapath()
	c.counters = counters{}
	c.latched = false
	if c.o.Function == PF {
		c.target.start()
	}
}

// Reboot resets the coprocessor: registers, configuration space and software
// start anew. Frames in flight are lost, a card that was killed is back, and
// what CheckConservation adds up starts at 0. Memory stays registered.
func (c *Card) Reboot() {
	c.lock()
	c.killed = false
	c.reset()
	c.leave()
}

// Kill takes the card off the bus: everything reads all-ones and nothing moves
// any more until Reboot.
func (c *Card) Kill() {
	c.lock()
	c.killed = true
	c.target.stop()
	c.leave()
}

// FunctionReset is a function level reset from outside of configuration space, as
// VFIO asks for one.
func (c *Card) FunctionReset() {
	c.lock()
	c.functionReset()
	c.leave()
}

// Opened tells the card that somebody has opened the function: ResetOnOpen.
func (c *Card) Opened() {
	c.lock()
	if c.acts(fltResetOnOpen, c.faults.ResetOnOpen) {
		c.functionReset()
	}
	c.leave()
}

// Closed tells the card that nobody has it open any more: BusResetOnClose.
func (c *Card) Closed() {
	c.lock()
	if c.acts(fltBusResetOnClose, c.faults.BusResetOnClose) {
		c.reset()
	}
	c.leave()
}

// reset is that of the bus, and of power: everything starts anew. Held: c.mu.
func (c *Card) reset() {
	c.target.stop()
	c.cfg.powerOn()
	if c.acts(fltLoseAddresses, c.faults.LoseAddresses) {
		c.cfg.loseAddresses()
	}
	c.cfg.softReset(c.faults.WakeResets)
	c.powerOn()
}

// functionReset is a function level reset (choice 17). Held: c.mu.
func (c *Card) functionReset() {
	c.cfg.functionReset()
	c.cfg.softReset(c.faults.WakeResets)
	c.target.stop()
	if c.o.Choices.FLRKeepsRings {
		c.fpDead = true
		return
	}
	c.powerOn()
}

// gone tells whether the card is off the bus. Held: c.mu.
func (c *Card) gone() bool { return c.killed || c.faults.Gone }

// Provision is functional: it brings the data path to the state that a
// completed bring-up leaves (fast path running, every port raised, its LIF at
// MTU 1,500 in L3 mode, its tag bound, links up), without control traffic.
// Program the rings first: their addresses are latched here. A virtual function
// needs none.
func (c *Card) Provision() {
	c.lock()
	if c.o.Function == PF {
		c.target.provision()
	}
	c.leave()
}

// Doorbells returns how often each SPI number was written. Functional.
func (c *Card) Doorbells() map[uint32]uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := make(map[uint32]uint64, len(c.doorbells))
	for k, v := range c.doorbells {
		m[k] = v
	}
	return m
}

// SetWatermark changes SDP_OUT_WMARK, which only the coprocessor can reach. Functional.
func (c *Card) SetWatermark(n int) {
	c.lock()
	c.o.Watermark = n
	c.kickRings()
	c.leave()
}
