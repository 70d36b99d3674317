package client

import (
	"encoding/hex"
	"fmt"
)

// Schema is the number in each document.
const Schema = 1

// DefaultSocket is where the daemon listens unless told otherwise.
const DefaultSocket = "/run/oxpd/oxpd.sock"

// State is what the daemon as a whole is doing.
type State string

// States of the daemon.
const (
	StateBringUp  State = "bring-up"
	StateRunning  State = "running"
	StateStopping State = "stopping"
	StateGone     State = "gone"   // the card was lost and is waited for; bring-up follows
	StateFailed   State = "failed" // the bring-up met something that waiting does not cure, or a part of oxpd has ended
)

// StageState is how far one stage of the bring-up is.
type StageState string

// States of a stage.
const (
	StagePending StageState = "pending"
	StageActive  StageState = "active"
	StageDone    StageState = "done"
	StageFailed  StageState = "failed"
)

// Stage is one step of the bring-up, in the order of the list that it is in.
type Stage struct {
	Name     string     `json:"name"`
	State    StageState `json:"state"`
	Awaiting string     `json:"awaiting,omitempty"` // what an active stage waits for
	Detail   string     `json:"detail,omitempty"`   // what a finished stage found; of switch: what is known of it now
	Error    string     `json:"error,omitempty"`    // last refusal of a stage that is tried again, or why it failed
	Seconds  float64    `json:"seconds"`            // time spent in it so far
}

// Device is the card.
type Device struct {
	Name      string `json:"name"` // "sim" or a PCI address
	Simulated bool   `json:"simulated"`
	Alive     bool   `json:"alive"`              // config space answers
	Lost      uint64 `json:"lost,omitempty"`     // times that it was lost since the start
	Platform  string `json:"platform,omitempty"` // texts of PLATFORM_READ, empty before it
	Assembly  string `json:"assembly,omitempty"`
	ClockMHz  uint64 `json:"clock_mhz,omitempty"` // coprocessor ticks per microsecond, from the handshake
}

// CPU is the CPU time of the daemon's process in the last whole interval.
type CPU struct {
	Percent float64 `json:"percent"` // of one core
	Seconds float64 `json:"seconds"` // length of the interval
}

// WorkerBusy is how busy a worker was in the last whole interval: the share of the time
// that it was not asleep. It then looked at rings, handed frames on, or waited for a core.
type WorkerBusy struct {
	Rings   []int   `json:"rings"`   // output queues that it serves
	Percent float64 `json:"percent"` // of the time
	Seconds float64 `json:"seconds"` // length of the interval
}

// Status is the daemon's state.
type Status struct {
	Schema  int     `json:"schema"`
	Version string  `json:"version"`
	PID     int     `json:"pid"`
	Uptime  float64 `json:"uptime"` // seconds
	State   State   `json:"state"`
	Device  Device  `json:"device"`
	Rings   int     `json:"rings"`         // output queues
	Workers int     `json:"workers"`       // goroutines that service them
	CPU     *CPU    `json:"cpu,omitempty"` // none in the first seconds
	// Busy has each worker; none in the first seconds.
	Busy       []WorkerBusy `json:"busy,omitempty"`
	PortsUp    int          `json:"ports_up"`          // provisioned and shown to the kernel
	PortsTotal int          `json:"ports_total"`       // of the board
	Filters    []string     `json:"filters,omitempty"` // names of those that are linked somewhere
	// Engines has the queues of inspection that frames may come to.
	Engines  []DivertEngine `json:"engines,omitempty"`
	Restart  Restart        `json:"restart"` // what one would cost here and now
	Stages   []Stage        `json:"stages"`
	Warnings []string       `json:"warnings"`
}

// Restart is what the end of the daemon by a signal, by force or by an upgrade, and its
// next start, would cost. oxpd stop is another thing: it takes the interfaces away.
type Restart struct {
	Seamless bool     `json:"seamless"` // nobody notices
	Costs    []string `json:"costs"`    // each with its reason; none when it is seamless
}

// LIF is the coprocessor's logical interface behind a port, as last read back.
type LIF struct {
	Index         uint32 `json:"index"`
	Present       bool   `json:"present"`
	Address       string `json:"address,omitempty"`
	MTU           int    `json:"mtu,omitempty"`
	Mode          string `json:"mode,omitempty"` // L2, L3, both
	AdminDisabled bool   `json:"admin_disabled,omitempty"`
	Error         string `json:"error,omitempty"` // last refusal, empty when the entry is as wanted
}

// Port is one front port.
type Port struct {
	IfName  string `json:"ifname"`
	IfIndex int    `json:"ifindex,omitempty"` // 0 while the interface does not exist
	Label   string `json:"label"`
	// KernelName is the interface's where somebody has given it another than IfName,
	// by which oxpd goes on. KernelAddress is another address than the card has now:
	// it is on the way there, or could not be put back.
	KernelName    string `json:"kernel_ifname,omitempty"`
	KernelAddress string `json:"kernel_address,omitempty"`
	CardAddress   string `json:"card_address,omitempty"` // the card's own, while Address is another

	Tag       string `json:"tag"`       // 0x8100
	Address   string `json:"address"`   // empty until the card has named it; then as the interface has it
	MTU       int    `json:"mtu"`       // of the interface; 0 while it does not exist
	OperState string `json:"operstate"` // UP, DOWN, as the kernel's carrier
	Admin     string `json:"admin"`     // UP, DOWN: the interface's administrative state
	Link      string `json:"link"`      // up, down, unknown: what the card says
	SpeedMbps int    `json:"speed"`     // nominal
	State     string `json:"state"`     // up or waiting
	Awaiting  string `json:"awaiting,omitempty"`
	LIF       LIF    `json:"lif"`
}

// States of a port.
const (
	PortUp      = "up"      // provisioned, interface exists
	PortWaiting = "waiting" // something has been refused and is tried again
)

// Words for Port.Link and the operational states.
const (
	LinkUp      = "up"
	LinkDown    = "down"
	LinkUnknown = "unknown"
	OperUp      = "UP"
	OperDown    = "DOWN"
)

// Ports lists the front ports in the order of their interface names.
type Ports struct {
	Schema int    `json:"schema"`
	Ports  []Port `json:"ports"`
}

// Find returns the port with an interface name or label.
func (p *Ports) Find(name string) (Port, bool) {
	for _, q := range p.Ports {
		if q.IfName == name || q.Label == name {
			return q, true
		}
	}
	return Port{}, false
}

// PortView is one port: what it shall be, and what each place has that knows of it.
type PortView struct {
	Schema      int    `json:"schema"`
	IfName      string `json:"ifname"`
	Label       string `json:"label"`
	KernelName  string `json:"kernel_ifname,omitempty"` // as in Port
	CardAddress string `json:"card_address,omitempty"`  // the card's own; empty until the card has named it
	State       string `json:"state"`                   // up or waiting
	Awaiting    string `json:"awaiting,omitempty"`
	Bridge      string `json:"bridge,omitempty"` // the one that the interface is a member of
	BridgeMTU   int    `json:"bridge_mtu,omitempty"`

	Want      PortValues `json:"want"`
	Interface PortValues `json:"interface"` // the kernel's, read now
	LIF       PortValues `json:"lif"`       // as last read back
	NetAgent  PortValues `json:"netagent"`  // address and link as last read; the rest cannot be read, and is what it was told

	Filters []FilterOrder `json:"filters,omitempty"` // that judge its frames, by direction

	Divert *DivertMode `json:"divert,omitempty"` // absent: only what filters divert, by sockets

	PutBack  uint64   `json:"put_back"` // changes of the interface that were taken back
	Repaired uint64   `json:"repaired"` // times that the card was found to have something else, or to have forgotten it
	Warnings []string `json:"warnings"`
}

// PortValues are the settings of a port in one place. What the place does not have,
// or what is not known, is left out.
type PortValues struct {
	Admin    string `json:"admin,omitempty"` // UP, DOWN
	Link     string `json:"link,omitempty"`  // up, down
	Address  string `json:"address,omitempty"`
	MTU      int    `json:"mtu,omitempty"`
	Mode     string `json:"mode,omitempty"` // L2, L3, both
	Promisc  *bool  `json:"promisc,omitempty"`
	AllMulti *bool  `json:"allmulti,omitempty"`
}

// SetState asks for a port to be raised or lowered.
type SetState struct {
	State string `json:"state"` // up or down
}

// MTU is what limits the frames of one port, each in bytes of layer 3.
type MTU struct {
	Schema    int    `json:"schema"`
	IfName    string `json:"ifname"`
	Label     string `json:"label"`
	LIF       int    `json:"lif"` // as read back; 0 when the LIF is absent
	Interface int    `json:"mtu"` // of the host's interface; 0 while it does not exist
	// Switch is where the limit of the switch comes from: "none", the port does not
	// pass the switch; "unknown", nobody has said; "config", the configuration; "read",
	// the switch itself, as it was last read.
	Switch      string `json:"switch"`
	SwitchMTU   int    `json:"switch_mtu,omitempty"`   // the largest whose frames the switch passes; 0 when unknown, or none
	SwitchFrame int    `json:"switch_frame,omitempty"` // the longest frame with FCS at the port
	UplinkFrame int    `json:"uplink_frame,omitempty"` // the same at the switch's uplink, where it has 4 bytes more; 0 when unknown
	Effective   int    `json:"effective"`              // the smallest of those that are known
	Note        string `json:"note,omitempty"`         // what the switch does, or may do, to longer frames
	// Warnings are what a change that was made does to others. They do not stay.
	Warnings []string `json:"warnings,omitempty"`
}

// Words for MTU.Switch.
const (
	SwitchNone    = "none"
	SwitchUnknown = "unknown"
	SwitchConfig  = "config"
	SwitchRead    = "read"
)

// SetMTU asks for another MTU.
type SetMTU struct {
	MTU   int  `json:"mtu"`
	Force bool `json:"force,omitempty"` // also when the switch is known to drop such frames
	// Switch raises the frame size of the switch first, at this port and its uplink, when
	// it is not known to pass such frames.
	Switch bool `json:"raise_switch,omitempty"`
}

// LinkStats are one direction of `ip -j -s link`.
type LinkStats struct {
	Bytes   uint64 `json:"bytes"`
	Packets uint64 `json:"packets"`
	Errors  uint64 `json:"errors"`
	Dropped uint64 `json:"dropped"`
}

// Stats64 are a port's counters in the names of `ip -j -s link`. RX is what
// came from the card, TX what went to it.
type Stats64 struct {
	RX LinkStats `json:"rx"`
	TX LinkStats `json:"tx"`
}

// PortStats are the counters of one port. Counters has them under oxpd's own
// names: rx_packets, rx_bytes, rx_malformed, rx_toolong, rx_nobuf, tap_down, tap_err,
// tx_packets, tx_bytes, tx_drops (the sum of the drops before the card),
// tap_read_errors, tap_kernel_dropped, quiesce_waits, quiesce_longest_us, pfil_dropped, and
// what became of frames that were to be inspected: divert_seen and its addends, in both
// directions together (Divert has them apart), and of them rx_divert_lost,
// rx_divert_queued, tx_divert_lost (part of tx_drops) and tx_divert_queued.
type PortStats struct {
	IfName   string            `json:"ifname"`
	Label    string            `json:"label"`
	Stats64  Stats64           `json:"stats64"`
	Counters map[string]uint64 `json:"counters"`
}

// Sums checks that each packet taken from the rings is in exactly one
// disposition counter (datapath.md 4, invariant 4).
type Sums struct {
	Accounted  bool              `json:"accounted"`
	Quiet      bool              `json:"quiet"` // no packet was being taken while the counters were read; only then a difference means something
	Taken      uint64            `json:"rx_done"`
	Injected   uint64            `json:"divert_injected,omitempty"` // made by engines, which come to the same ends
	Addends    map[string]uint64 `json:"addends"`
	Difference int64             `json:"difference"` // rx_done and divert_injected less the sum of the addends
}

// Check returns nil when every packet is accounted for, and otherwise an error
// with the sum. A difference while packets are taken (not Quiet) says nothing.
func (s *Sums) Check() error {
	if s.Accounted {
		return nil
	}
	return fmt.Errorf("rx_done %d, with %d made by engines, is not the sum of %v: difference %d, quiet %v", s.Taken, s.Injected, s.Addends, s.Difference, s.Quiet)
}

// divertAddends are what becomes of a frame that was offered to an inspection queue.
var divertAddends = []string{
	"divert_accepted", "divert_dropped", "divert_replaced", "divert_flow_passed", "divert_pass_full", "divert_pass_absent", "divert_pass_stall",
	"divert_drop_full", "divert_drop_absent", "divert_drop_stall", "divert_oversize", "divert_shortened", "divert_queued",
}

// CheckInspected returns nil when each frame that was offered to an inspection queue is in
// one of its counters, at every port; otherwise an error with the first sum that does not
// close. It closes at any moment.
func (s *Stats) CheckInspected() error {
	for i := range s.Ports {
		p := &s.Ports[i]
		var sum uint64
		for _, name := range divertAddends {
			sum += p.Counters[name]
		}
		if seen := p.Counters["divert_seen"]; seen != sum {
			return fmt.Errorf("%s: divert_seen %d is not the sum of its ends, %d: %v", p.IfName, seen, sum, p.Counters)
		}
	}
	return nil
}

// Stats are oxpd's own counters. Reading them asks nothing of the card.
// Device has those of datapath.md 4 under their names there.
type Stats struct {
	Schema int               `json:"schema"`
	Device map[string]uint64 `json:"device"`
	Rings  []RingStats       `json:"rings,omitempty"` // of Device, what each output queue has a part in
	Ports  []PortStats       `json:"ports"`
	Sums   Sums              `json:"sums"`
	Wires  []WireStats       `json:"wires,omitempty"` // of a simulated card only
}

// RingStats are the counters of one output queue. Device has their sums, of
// rx_span_max the largest.
type RingStats struct {
	Ring     int               `json:"ring"`
	Counters map[string]uint64 `json:"counters"`
}

// Instruments are how the last packets began in memory, by output queue.
type Instruments struct {
	Schema    int               `json:"schema"`
	PrefixSeq uint64            `json:"rx_prefix_seq"` // of all rings
	Rings     []RingInstruments `json:"rings"`         // empty before the rings are programmed
}

// RingInstruments are those of one output queue; each is empty while there was no
// such packet. A prefix is 82 bytes, the length word first (datapath.md 3.3), a head
// the first 22 bytes of the frame: Ethernet header and two VLAN tags, or eight bytes
// of layer 3, or all of a shorter frame.
type RingInstruments struct {
	Ring               int    `json:"ring"`
	PrefixSeq          uint64 `json:"rx_prefix_seq"` // snapshots of the last packet, one a pass
	LastPrefix         Hex    `json:"last_prefix"`
	LastFrameHead      Hex    `json:"last_frame_head"`      // of the same packet
	LastUntaggedPrefix Hex    `json:"last_untagged_prefix"` // of a packet that no interface owned
	LastUntaggedHead   Hex    `json:"last_untagged_head"`
	LastSpanPrefix     Hex    `json:"last_span_prefix"` // of a packet of more than one buffer
	LastSpanHead       Hex    `json:"last_span_head"`
}

// Hex is bytes that are written as hexadecimal digits.
type Hex []byte

// MarshalText implements encoding.TextMarshaler.
func (h Hex) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, h), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (h *Hex) UnmarshalText(text []byte) error {
	b, err := hex.AppendDecode(nil, text)
	if err != nil {
		return fmt.Errorf("decode hexadecimal digits: %w", err)
	}
	*h = b
	return nil
}

// WireStats tell where the frames of a simulated card's wire ended. Each frame
// of in (sent from outside) is in one of link_down, runt, oversize,
// switch_dropped, overrun, filtered, no_fast_path and passed (seen by the fast
// path, whose own counters say more), or still on the wire. out are the frames
// that left; out_link_down and out_switch_dropped did not, though the
// coprocessor counts them as sent, and out_refused left and found nobody to take
// them. A wire with a capture adds replay_sent, replay_cut (kept only in part by
// the capture, not sent) and recorded.
type WireStats struct {
	IfName   string            `json:"ifname"`
	Label    string            `json:"label"`
	Counters map[string]uint64 `json:"counters"`
}

// Port returns the counters of the port with an interface name or label.
func (s *Stats) Port(name string) (PortStats, bool) {
	for _, p := range s.Ports {
		if p.IfName == name || p.Label == name {
			return p, true
		}
	}
	return PortStats{}, false
}

// Wire returns the counters of the wire at the port with an interface name or label.
func (s *Stats) Wire(name string) (WireStats, bool) {
	for _, w := range s.Wires {
		if w.IfName == name || w.Label == name {
			return w, true
		}
	}
	return WireStats{}, false
}

// Counter is one of the coprocessor's 182.
type Counter struct {
	Index int    `json:"index"`
	Name  string `json:"name"` // the vendor's, without FPCNTR_
	Value uint64 `json:"value"`
}

// FastPathPort are the coprocessor's counters of one of its own ports: 0 is the
// switch uplink (all ten switch-side ports), 1 PortF1, 2 PortF2, higher ones
// face the host.
type FastPathPort struct {
	Port            int    `json:"port"`
	Name            string `json:"name"`
	RX              uint64 `json:"rx"`
	TX              uint64 `json:"tx"`
	TXDropQueueFull uint64 `json:"tx_drop_queue_full"`
}

// Counters are the coprocessor's counters, read over rpc. A restart of the
// coprocessor zeroes them.
type Counters struct {
	Schema   int            `json:"schema"`
	Counters []Counter      `json:"counters"`
	Ports    []FastPathPort `json:"ports"`
	Warnings []string       `json:"warnings,omitempty"` // what the counters say that is wrong
}

// Get returns the counter with a name, 0 for a name that is not there.
func (c *Counters) Get(name string) uint64 {
	for i := range c.Counters {
		if c.Counters[i].Name == name {
			return c.Counters[i].Value
		}
	}
	return 0
}

// StopRequest asks the daemon to end. Teardown also disables the rings, after
// which the coprocessor must be rebooted before its ports work again.
type StopRequest struct {
	Teardown bool `json:"teardown"`
}

// StopResult tells in what state the card was left.
type StopResult struct {
	Schema       int      `json:"schema"`
	RingsEnabled bool     `json:"rings_enabled"`
	MemoryKept   bool     `json:"memory_kept"`
	RebootNeeded bool     `json:"reboot_needed"`
	TXUnfinished int      `json:"tx_unfinished"` // frames posted that the card has not finished: whether they left is not known
	RXLeft       int      `json:"rx_left"`       // packets in the output rings that no interface got
	Warnings     []string `json:"warnings"`
}

// Code says what kind of refusal an Error is.
type Code string

// Codes of refusals.
const (
	CodeUsage       Code = "usage"        // can never work as asked
	CodeUnknownPort Code = "unknown-port" // no such port
	CodeNotFound    Code = "not-found"    // no such filter
	CodeNotReady    Code = "not-ready"    // the bring-up has not come so far
	CodeRefused     Code = "refused"      // the card or the kernel refused; the old state stands
	CodeTimeout     Code = "timeout"      // the card did not answer in time
	CodeGone        Code = "gone"         // the card reads all ones
	CodeFailed      Code = "failed"       // anything else
)

// Error is the document of a refusal.
type Error struct {
	Schema  int    `json:"schema"`
	Code    Code   `json:"code"`
	Message string `json:"error"`
	Hint    string `json:"hint,omitempty"`
	// At is what is wrong in what was sent, when it is rules.
	At []Place `json:"at,omitempty"`
}

// Error implements error.
func (e *Error) Error() string { return e.Message }

// Usage tells whether trying again can never help.
func (e *Error) Usage() bool { return e.Code == CodeUsage || e.Code == CodeUnknownPort }
