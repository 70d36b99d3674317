// Package board is the one table of the appliance's front ports.
//
// It is the only place that knows how an interface name, a panel label, a
// data-path tag, an interface id, a LIF index and a switch port belong
// together (hardware/endpoint.md 10, hardware/rpc-lif.md 5.1). Everything
// else looks ports up here. The board is the Sophos XGS 3300, assembly
// AMDA0202-0004.
package board

import (
	"fmt"
	"strings"
)

// Identity of the board and of its coprocessor (endpoint.md 1, rpc-lif.md 4.2).
const (
	Vendor   = 0x177d // Cavium
	DevicePF = 0xa300
	DeviceVF = 0xa303

	Platform = "XGS_1US"
	Assembly = "AMDA0202-0004"
)

// Tags that are not front ports (endpoint.md 10).
const (
	TagUplink  Tag = 0x8000 // switch uplink; also NetAgent's port 0
	TagControl Tag = 0x00fe // in-band control and statistics messages
)

// Ports is the number of front ports.
const Ports = 12

// MTU limits of a port in bytes of layer 3 (datapath.md 5.3).
const (
	MinMTU     = 72
	MaxMTU     = 9000
	DefaultMTU = 1500
)

// Tag is the two-byte word that names a front port in a data frame (big-endian
// there), in PPORT_UPDATE (little-endian there) and in NetAgent requests.
type Tag uint16

// String prints the tag as the hardware pages do.
func (t Tag) String() string { return fmt.Sprintf("0x%04x", uint16(t)) }

// LIF is an index into the coprocessor's table of logical interfaces:
// interface id << 12 | VLAN.
type LIF uint32

// Port is one front port. Index is its place in the table, 0 to 11, which is
// also the number in the interface name less one.
type Port struct {
	Index      int
	Name       string // host interface: oxp1 to oxp12
	Label      string // panel: Port1 to Port8, PortF1 to PortF4
	Tag        Tag
	Iface      uint8 // interface id of the fast path
	SwitchPort int   // port of the 88E6193X, 0 when the port does not pass the switch
	SpeedMbps  int   // nominal
	FastPath   int   // the fast path's own port: 0 switch uplink, 1 PortF1, 2 PortF2
}

// LIF returns the index of the port's untagged logical interface.
func (p Port) LIF() LIF { return LIF(p.Iface) << 12 }

// BehindSwitch tells whether frames of the port pass the switch.
func (p Port) BehindSwitch() bool { return p.SwitchPort != 0 }

// String is "oxp9 (PortF1)".
func (p Port) String() string { return p.Name + " (" + p.Label + ")" }

var table = [Ports]Port{
	{0, "oxp1", "Port1", 0x8100, 0, 1, 1000, 0},
	{1, "oxp2", "Port2", 0x8200, 1, 2, 1000, 0},
	{2, "oxp3", "Port3", 0x8300, 2, 3, 1000, 0},
	{3, "oxp4", "Port4", 0x8400, 3, 4, 1000, 0},
	{4, "oxp5", "Port5", 0x8500, 4, 5, 1000, 0},
	{5, "oxp6", "Port6", 0x8600, 5, 6, 1000, 0},
	{6, "oxp7", "Port7", 0x8700, 6, 7, 1000, 0},
	{7, "oxp8", "Port8", 0x8800, 7, 8, 1000, 0},
	{8, "oxp9", "PortF1", 0x0001, 10, 0, 10000, 1},
	{9, "oxp10", "PortF2", 0x0002, 11, 0, 10000, 2},
	{10, "oxp11", "PortF3", 0x8900, 8, 9, 1000, 0},
	{11, "oxp12", "PortF4", 0x8a00, 9, 10, 1000, 0},
}

// All returns the table in the order of the interface names. The array is a copy.
func All() [Ports]Port { return table }

// ByIndex returns port i; it panics outside 0 to Ports-1.
func ByIndex(i int) Port { return table[i] }

// ByTag returns the port that a data-path tag names.
func ByTag(t Tag) (Port, bool) {
	for i := range table {
		if table[i].Tag == t {
			return table[i], true
		}
	}
	return Port{}, false
}

// Parse finds a port by interface name (oxp9), label (PortF1) or short label
// (F1), without regard to case. The error names what is accepted.
func Parse(s string) (Port, error) {
	for i := range table {
		p := &table[i]
		if strings.EqualFold(s, p.Name) || strings.EqualFold(s, p.Label) {
			return *p, nil
		}
		if short := strings.TrimPrefix(p.Label, "Port"); short[0] == 'F' && strings.EqualFold(s, short) {
			return *p, nil
		}
	}
	return Port{}, &UnknownPortError{Name: s}
}

// UnknownPortError says that a name is none of the board's ports.
type UnknownPortError struct{ Name string }

func (e *UnknownPortError) Error() string {
	return fmt.Sprintf("unknown port %q: want oxp1 to oxp12, Port1 to Port8, PortF1 to PortF4, or F1 to F4", e.Name)
}

// CheckMTU refuses a port MTU outside MinMTU to MaxMTU.
func CheckMTU(mtu int) error {
	if mtu < MinMTU || mtu > MaxMTU {
		return &MTURangeError{MTU: mtu}
	}
	return nil
}

// MTURangeError says that an MTU is outside what a LIF accepts.
type MTURangeError struct{ MTU int }

func (e *MTURangeError) Error() string {
	return fmt.Sprintf("mtu %d is out of range: want %d to %d", e.MTU, MinMTU, MaxMTU)
}
