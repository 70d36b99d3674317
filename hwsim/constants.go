package hwsim

import (
	"time"

	"oxpd/octep/csr"
	"oxpd/ring/wire"
)

// Tag says where a constant comes from.
type Tag string

const (
	Fit      Tag = "fit"      // chosen so that the model gives a measured row; the row predicts nothing
	Derived  Tag = "derived"  // on record, or calculated from what is
	Estimate Tag = "estimate" // nobody has measured it
)

// Constant is one number of the model's timing, with its source.
type Constant struct {
	Name   string // as Latencies, Rates and Queues call it where they can replace it
	Value  float64
	Unit   string // ns, bit/s, bytes, frames, cycles, workers, ...
	Tag    Tag
	Source string // page and section, the arithmetic, or what the estimate rests on
	Row    string // of a fit: the measured row, by its name in internal/calibrate
}

// Latencies in nanoseconds.
const (
	nsLink       = 250
	nsHostMemory = 200
	nsLoad       = 200
	nsStore      = 100
	nsFetch      = 1e9 / 1_053_385.0
	nsRead       = 4_150
	nsCount      = 0
	nsWorker     = 1_000
	nsToWire     = 5_000
	nsToHost     = 10_000
	nsSwitch     = 2_000
	nsCable      = 0
	nsMDIO       = 26_000
	nsFreeAhead  = 200_000
)

// Rates in bit/s.
const (
	bpsLink        = 8_000_000_000.0 * linkLanes * 128 / 130
	bpsCage        = 10_000_000_000
	bpsUplink      = 10_000_000_000
	bpsSwitchPort  = 1_000_000_000
	bpsSwitchTotal = 1_018_000_000
)

// linkLanes is the width of the PCIe link.
const linkLanes = 8

// Sizes in bytes.
const (
	// tlpHead is what a request or a write costs on the link beside its data:
	// framing with the sequence number 4, header with a 64-bit address 16, LCRC 4.
	tlpHead = 4 + 16 + 4
	// tlpCompletion is the same for a completion, whose header has 12.
	tlpCompletion = 4 + 12 + 4
	fcsBytes      = 4
	gapBytes      = 20 // preamble and inter-frame gap
)

// Depths.
const (
	depthInFlight     = 64
	depthEgressCage   = 512
	depthEgressSwitch = 128
	depthWire         = 16_384
	depthFastPath     = 4_096
	depthOutRing      = 1_024
	depthLink         = 8_192
)

// workers is how many threads of the packet program take frames.
const workers = 17

// Constants returns every number of the model's timing, once each, in the order of
// a frame's way.
func Constants() []Constant {
	return append([]Constant{
		{"Clock", Hz, "Hz", Derived, "the handshake says 800 a microsecond (endpoint.md 1, 4)", ""},

		{"Link", nsLink, "ns", Estimate, "one way over a PCIe link without a switch, both ends' layers included; with Load a read of a register takes 0.7 us, as is usual for such a part", ""},
		{"LinkRate", bpsLink, "bit/s", Derived, "Gen3 x8 (endpoint.md 1): 8 GT/s x 8 x 128/130 = 7.877 GB/s = 9.846 bytes a cycle", ""},
		{"LinkQueue", depthLink, "bytes", Estimate, "posted writes that wait in front of the link; an output ring waits with its next packet while there are more", ""},
		{"TLPHead", tlpHead, "bytes", Derived, "request or write: framing 4, header with a 64-bit address 16, LCRC 4 (PCI Express 3.0)", ""},
		{"TLPCompletion", tlpCompletion, "bytes", Derived, "completion: framing 4, header 12, LCRC 4 (PCI Express 3.0)", ""},
		{"MaxPayload", 128, "bytes", Derived, "DEVCTL as the firmware leaves it: 128 << bits 7:5, which are 0; read from configuration space", ""},
		{"MaxReadRequest", 512, "bytes", Derived, "DEVCTL as the firmware leaves it: 128 << bits 14:12, which are 2; read from configuration space", ""},
		{"HostMemory", nsHostMemory, "ns", Estimate, "a read request at the root complex to its first data: memory, and an IOMMU that hits", ""},
		{"Load", nsLoad, "ns", Estimate, "a register read inside the block; the link is beside it, both ways", ""},
		{"Store", nsStore, "ns", Estimate, "what a posted write costs the driver's core", ""},

		{"Fetch", nsFetch, "ns", Fit, "one fetch engine for all input rings; two senders had 1,053,385 small frames/s accepted (datapath.md 6.2, endpoint.md 15): 10^9 / 1,053,385 = 949.3 ns an instruction", "two-senders"},
		{"InFlight", depthInFlight, "instructions", Estimate, "fetched or being fetched, and not finished, each ring", ""},
		{"Read", nsRead, "ns", Fit, "from an instruction's words to the request for its data. With what comes before, and the way of the request, a frame is read 5.8 us after its doorbell: 29 % of 20 us, the distance of 50,000 evenly spaced frames/s through one buffer (datapath.md 2.2)", "shared-slot"},
		{"ListBatch", wire.FetchBatch, "entries", Derived, "list entries that an output ring fetches at a time (datapath.md 3.7)", ""},
		{"Watermark", wire.Watermark, "credit", Derived, "below it an output ring fetches no list entries: 0x400 on this appliance (endpoint.md 5.5)", ""},
		{"OutRing", depthOutRing, "packets", Estimate, "admitted to an output ring and not written yet", ""},
		{"Count", nsCount, "ns", Estimate, "a packet's last byte on the link to its count. A count that comes later is found behind its packet (oq_behind), one that comes before it finds an empty buffer (oq_unseen); 61.6 million frames had neither (datapath.md 6.3)", ""},
		{"TimerTick", csr.ClocksPerTick, "cycles", Derived, "unit of OUT_INT_LEVELS' time part (endpoint.md 5.2)", ""},

		{"Workers", workers, "workers", Derived, "threads of the packet program (endpoint.md 4.6)", ""},
		{"Worker", nsWorker, "ns", Estimate, "time of a worker for one frame: 17 million frames/s in all, which no record came near", ""},
		{"ToWire", nsToWire, "ns", Estimate, "fast path, instruction's data to egress queue, without waiting for a worker", ""},
		{"ToHost", nsToHost, "ns", Estimate, "fast path, end of a frame to its output ring, without waiting for a worker", ""},
		{"FastPath", depthFastPath, "frames", Estimate, "of wires, with the fast path; what comes then is lost", ""},

		{"Cage", bpsCage, "bit/s", Derived, "10GBASE-R of the two cages, each way", ""},
		{"Gap", gapBytes, "bytes", Derived, "preamble 8 and inter-frame gap 12 (IEEE 802.3)", ""},
		{"FCS", fcsBytes, "bytes", Derived, "IEEE 802.3", ""},
		{"Uplink", bpsUplink, "bit/s", Derived, "switch port 0 runs at 10G (switch.md, register 0x0f4d), towards the coprocessor", ""},
		{"DSA", dsaBytes, "bytes", Derived, "DSA tag on the uplink (switch.md)", ""},
		{"SwitchTotal", bpsSwitchTotal, "bit/s", Fit, "all switch ports together, host to wire, frame and FCS: the middle of 1,013 to 1,023 Mbit/s (datapath.md 6.2)", "switch-egress"},
		{"SwitchPort", bpsSwitchPort, "bit/s", Derived, "1000BASE-T and 1000BASE-X of the ten, wire to host", ""},
		{"Switch", nsSwitch, "ns", Estimate, "through the switch, a frame that it has whole", ""},
		{"Cable", nsCable, "ns", Estimate, "along the cable of a front port, each way: some metres, 5 ns each", ""},
		{"EgressCage", depthEgressCage, "frames", Estimate, "waiting for a 10G cage", ""},
		{"EgressSwitch", depthEgressSwitch, "frames", Estimate, "waiting for the switch, each tag", ""},
		{"Wire", depthWire, "frames", Estimate, "waiting on a wire to arrive; a measure of this model's callers, not of the card", ""},

		{"MDIO", nsMDIO, "ns", Estimate, "a transaction on the coprocessor's MDIO bus: 64 bits at 2.5 MHz, the most that the standard allows, and a gap", ""},
		{"FreeAhead", nsFreeAhead, "ns", Estimate, "free mode: how far the data path runs ahead of the wall clock; a property of this model", ""},
	}, timelineConstants()...)
}

// Latencies are the times of the endpoint and of the data path. A zero field takes
// the constant of its name; a negative one is no time at all.
type Latencies struct {
	Link       time.Duration // one way over the PCIe link; negative: the link takes no time and carries everything at once
	HostMemory time.Duration // a read request at the host to its first data
	Load       time.Duration // a register read inside the block, stepped mode only; negative: nor does it take time on the link
	Store      time.Duration // what a posted register write costs the driver, stepped mode only
	Fetch      time.Duration // interval of the fetch engine, which all input rings share
	Read       time.Duration // an instruction's words to the request for its data
	Count      time.Duration // a packet's last byte on the link to its count
	Worker     time.Duration // time of one of the fast path's workers for a frame
	ToWire     time.Duration // fast path, host to wire
	ToHost     time.Duration // fast path, wire to host
	Switch     time.Duration // through the switch, a frame that it has whole
	Cable      time.Duration // along the cable of a front port, each way; Wire.Loop lays two
	MDIO       time.Duration // a transaction on the coprocessor's MDIO bus, stepped mode only
	FreeAhead  time.Duration // free mode: how far steps of the data path may run ahead of the wall clock
}

// NoTime is a card whose endpoint and data path take no time: what a store starts
// has happened when it returns. Bandwidths of wires hold.
func NoTime() Latencies {
	return Latencies{
		Link: -1, HostMemory: -1, Load: -1, Store: -1, Fetch: -1, Read: -1, Count: -1,
		Worker: -1, ToWire: -1, ToHost: -1, Switch: -1, Cable: -1, MDIO: -1, FreeAhead: -1,
	}
}

// cycleLatencies are Latencies in cycles.
type cycleLatencies struct {
	link, hostMemory, load, store, fetch, read, count uint64
	worker, toWire, toHost, sw, cable, mdio, ahead    uint64
	lead                                              uint64 // a sleeping free card wakes so long before the next step, then does all until ahead
}

func (l *Latencies) cycles() cycleLatencies {
	c := cycleLatencies{
		link:       cyclesFor(l.Link, nsLink),
		hostMemory: cyclesFor(l.HostMemory, nsHostMemory),
		load:       cyclesFor(l.Load, nsLoad),
		store:      cyclesFor(l.Store, nsStore),
		fetch:      cyclesFor(l.Fetch, nsFetch),
		read:       cyclesFor(l.Read, nsRead),
		count:      cyclesFor(l.Count, nsCount),
		worker:     cyclesFor(l.Worker, nsWorker),
		toWire:     cyclesFor(l.ToWire, nsToWire),
		toHost:     cyclesFor(l.ToHost, nsToHost),
		sw:         cyclesFor(l.Switch, nsSwitch),
		cable:      cyclesFor(l.Cable, nsCable),
		mdio:       cyclesFor(l.MDIO, nsMDIO),
		ahead:      cyclesFor(l.FreeAhead, nsFreeAhead),
	}
	c.lead = c.ahead / 2
	return c
}

// cyclesFor is a latency in cycles: the option, or the constant in nanoseconds.
func cyclesFor(d time.Duration, ns float64) uint64 {
	if d == 0 {
		return uint64(ns * csr.ClocksPerUS / 1000)
	}
	return cyclesOf(d)
}

// Rates are the bandwidths of the board in bit/s. A zero field takes the constant
// of its name.
type Rates struct {
	LinkRate    uint64 // the PCIe link, each way
	Cage        uint64 // PortF1, PortF2, each way, with 20 bytes of preamble and gap
	Uplink      uint64 // switch to coprocessor, with preamble, gap and DSA tag
	SwitchTotal uint64 // all switch ports together, host to wire, frame and FCS
	SwitchPort  uint64 // one switch port, wire to host, with preamble and gap
}

func (r *Rates) defaults() {
	set := func(v *uint64, def float64) {
		if *v == 0 {
			*v = uint64(def)
		}
	}
	set(&r.LinkRate, bpsLink)
	set(&r.Cage, bpsCage)
	set(&r.Uplink, bpsUplink)
	set(&r.SwitchTotal, bpsSwitchTotal)
	set(&r.SwitchPort, bpsSwitchPort)
}

// Queues are the depths of the data path. A zero field takes the constant of its
// name. No depth is on record.
type Queues struct {
	InFlight     int // instructions of a ring in the block and not finished
	LinkQueue    int // bytes that wait in front of the PCIe link, above which a ring does not begin a packet
	OutRing      int // packets admitted to an output ring and not written
	FastPath     int // frames of wires with the fast path
	EgressCage   int // frames waiting for a 10G cage
	EgressSwitch int // frames waiting for the switch, each tag
	Wire         int // frames waiting on a wire to arrive
}

func (q *Queues) defaults() {
	set := func(v *int, def int) {
		if *v <= 0 {
			*v = def
		}
	}
	set(&q.InFlight, depthInFlight)
	set(&q.LinkQueue, depthLink)
	set(&q.OutRing, depthOutRing)
	set(&q.FastPath, depthFastPath)
	set(&q.EgressCage, depthEgressCage)
	set(&q.EgressSwitch, depthEgressSwitch)
	set(&q.Wire, depthWire)
}
