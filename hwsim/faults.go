package hwsim

import "time"

// RingMask selects rings, bit n for ring n.
type RingMask uint64

func (m RingMask) has(q int) bool { return m>>uint(q)&1 != 0 }

// AllRings selects every ring.
const AllRings = ^RingMask(0)

// Faults are ways in which the card misbehaves. The zero value is none. They
// are switched by Card.Faults; a field that counts is used up as it acts.
// The number in brackets is the row of datapath.md 7.
type Faults struct {
	Gone bool // every access, config space included, reads all-ones; no DMA, no interrupt

	ResetStalls bool // F29: a load of a BAR of a card that is gone completes only when it is back

	LoseAddresses bool // a reboot leaves the base addresses 0, as under a host that runs: the BARs read all-ones until somebody writes them

	ResetOnOpen     bool // a function reset when somebody opens the function, as vfio-pci asks for one (endpoint.md 17, 1)
	BusResetOnClose bool // a reset of everything when the last one has closed it, as vfio-pci asks for one
	WakeResets      bool // D3hot is left by a function reset; without, registers and coprocessor sleep through

	LoseMessages  RingMask      // [1] a ring's interrupt message is lost at its edge
	StatusStops   RingMask      // [2] no delivery while OUT_INT_STATUS is latched
	LateData      RingMask      // [3] the count is raised LateBy before the packet is visible
	LateLength    RingMask      // the data is visible at once, the length word LateBy later, the count with it
	LateTail      RingMask      // the length word and the first buffer are visible, the rest of a span LateBy later, the count with it
	LateCount     RingMask      // the packet is visible LateBy before its count
	LateBy        time.Duration // delay of the four above; 200 us when one of them is switched by name and this is 0
	SkipEntries   [64]int       // [4] the next n list entries of a ring are taken and never written
	LoseCounts    [64]int       // [5] the next n packets of a ring are never counted
	ShortLength   [64]int       // [6] the next n packets of a ring have a length word of 74 or less
	LongLength    [64]int       // [7] the next n packets of a ring have a length word above 65,535
	HoldCredit    RingMask      // [13] credit writes have no effect until this is cleared; then they do
	StuckResume   RingMask      // [15] a ring that fell under the watermark stays silent until one more doorbell write
	Watermark     int           // [11] [12] SDP_OUT_WMARK instead of the card's own, when not 0
	FetchDelay    time.Duration // [16] added to the fetch of each instruction
	StopFetch     bool          // [16] no instruction is fetched
	ReadDelay     time.Duration // [17] added between an instruction's fetch and the read of its data
	EgressFull    bool          // [21] every egress queue counts as full
	FastPathDead  bool          // [20] F28: the fast path consumes nothing; instructions are still fetched
	IgnoreDisable RingMask      // rule 7: a disabled OUT ring goes on writing where it was told to
	WaitForCredit int           // up to so many packets a ring wait for credit where they would be refused
	IgnoreBaddr   [64]int       // the next n writes of a ring's base addresses are ignored; negative: all
	NeverIdle     RingMask      // IDLE reads 0
	NoDrain       RingMask      // the low half of IN_INSTR_DBELL does not drain

	TargetFaults
	SwitchFaults
	ConsoleFaults
}

// Faults calls fn with the card's faults under the lock. fn must not call the
// card. What it switches takes effect at once.
func (c *Card) Faults(fn func(f *Faults)) {
	c.lock()
	fn(&c.faults)
	c.faultsChanged()
	c.leave()
}
