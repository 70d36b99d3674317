package discover

import (
	"encoding/binary"
	"errors"
	"fmt"

	"oxpd/octep/csr"
)

// Sizes of what the config file shows, in bytes.
const (
	headerSize   = 64   // to a process that is not root
	confSize     = 256  // PCI
	extendedSize = 4096 // PCI Express
)

// Offsets and bits of PCI config space (PCI 3.0, chapter 6; PCI Express Base, 7.5)
// that octep/csr has no use for.
const (
	cfgHeaderType   = 0x0e // u8, bits 6:0
	cfgCapabilities = 0x34 // u8, offset of the first
	cfgExtended     = 0x100

	statusCapabilities = 1 << 4

	capPower   = 0x01
	capExpress = 0x10
	capMSIX    = 0x11

	powerControl   = 4 // u16 from the capability's start
	msixControl    = 2
	expressLinkCap = 0x0c // u32
	expressLink    = 0x12 // u16
)

// names of capabilities. What is not here is shown by its number.
var capabilityNames = map[uint8]string{
	capPower: "power management", 0x03: "vital product data", 0x05: "MSI", 0x09: "vendor specific", 0x0d: "subsystem", capExpress: "PCI Express",
	capMSIX: "MSI-X", 0x14: "enhanced allocation",
}

var extendedNames = map[uint16]string{
	0x0001: "advanced error reporting", 0x0003: "serial number", 0x0004: "power budgeting", 0x000b: "vendor specific", 0x000d: "access control",
	0x000e: "alternative routing id", 0x000f: "address translation", 0x0010: "SR-IOV", 0x0015: "resizable BAR", 0x0018: "latency tolerance",
	0x0019: "secondary PCI Express", 0x001e: "L1 substates",
}

// Capability is one entry of the lists in config space.
type Capability struct {
	Offset   string `json:"offset"`
	ID       string `json:"id"`
	Name     string `json:"name,omitempty"`
	Extended bool   `json:"extended"`
}

// Link is the PCI Express link as both ends agreed on it, and as the card could.
type Link struct {
	GTps     float64 `json:"gt_per_s"` // 0: no link
	Width    int     `json:"width"`
	MaxGTps  float64 `json:"max_gt_per_s"`
	MaxWidth int     `json:"max_width"`
}

// MSIX is the interrupt capability.
type MSIX struct {
	Vectors int  `json:"vectors"`
	Enabled bool `json:"enabled"`
}

// Config is what config space says.
type Config struct {
	Vendor, Device uint16
	Command        uint16
	Class          uint32 // 24 bits
	Revision       uint8
	Gone           bool   // reads all ones: held in reset, or the link is down
	Partial        bool   // only the header was shown: the reader is not root
	Power          string // D0 to D3hot, empty: no such capability
	Link           *Link
	MSIX           *MSIX
	Capabilities   []Capability
}

// ErrConfig says that bytes are no config space of a function with three BARs.
var ErrConfig = errors.New("not the config space of a PCI function")

// gtps are the speeds of a PCI Express link in GT/s by their number.
var gtps = [...]float64{0, 2.5, 5, 8, 16, 32, 64}

func speed(n uint32) float64 {
	if int(n) < len(gtps) {
		return gtps[n]
	}
	return 0
}

// DecodeConfig takes config space apart, as far as b goes: 64, 256 or 4,096 bytes.
// Lists that do not end are cut where they come round. Error: ErrConfig.
func DecodeConfig(b []byte) (*Config, error) {
	if len(b) < headerSize {
		return nil, fmt.Errorf("%w: %d bytes", ErrConfig, len(b))
	}
	le := binary.LittleEndian
	c := &Config{
		Vendor: le.Uint16(b[csr.CfgVendor:]), Device: le.Uint16(b[csr.CfgDevice:]), Command: le.Uint16(b[csr.CfgCommand:]),
		Class: le.Uint32(b[csr.CfgRevision:]) >> 8, Revision: b[csr.CfgRevision], Partial: len(b) < confSize, Capabilities: []Capability{},
	}
	if c.Vendor == csr.CfgVendorNone {
		c.Gone = true
		return c, nil
	}
	if t := b[cfgHeaderType] & 0x7f; t != 0 {
		return nil, fmt.Errorf("%w: header type %d", ErrConfig, t)
	}
	if le.Uint16(b[csr.CfgStatus:])&statusCapabilities != 0 && !c.Partial {
		c.list(b)
	}
	if len(b) >= extendedSize {
		c.extended(b[:extendedSize])
	}
	return c, nil
}

// list walks the list of capabilities in the first 256 bytes.
func (c *Config) list(b []byte) {
	var seen [confSize / 4]bool
	for at := int(b[cfgCapabilities]) &^ 3; at >= headerSize && at < confSize && !seen[at/4]; at = int(b[at+1]) &^ 3 {
		seen[at/4] = true
		id := b[at]
		c.Capabilities = append(c.Capabilities, Capability{Offset: fmt.Sprintf("%#02x", at), ID: fmt.Sprintf("%#02x", id), Name: capabilityNames[id]})
		switch id {
		case capPower:
			c.power(b[at:confSize])
		case capMSIX:
			c.msix(b[at:confSize])
		case capExpress:
			c.express(b[at:confSize])
		}
	}
}

func (c *Config) power(b []byte) {
	if len(b) >= powerControl+2 {
		c.Power = [...]string{"D0", "D1", "D2", "D3hot"}[b[powerControl]&3]
	}
}

func (c *Config) msix(b []byte) {
	if len(b) >= msixControl+2 {
		v := binary.LittleEndian.Uint16(b[msixControl:])
		c.MSIX = &MSIX{Vectors: int(v&0x7ff) + 1, Enabled: v&0x8000 != 0}
	}
}

func (c *Config) express(b []byte) {
	if len(b) >= expressLink+2 {
		most, now := binary.LittleEndian.Uint32(b[expressLinkCap:]), uint32(binary.LittleEndian.Uint16(b[expressLink:]))
		c.Link = &Link{speed(now & 0xf), int(now >> 4 & 0x3f), speed(most & 0xf), int(most >> 4 & 0x3f)}
	}
}

// extended walks the list behind the first 256 bytes.
func (c *Config) extended(b []byte) {
	var seen [extendedSize / 4]bool
	for at := cfgExtended; at >= cfgExtended && !seen[at/4]; {
		seen[at/4] = true
		h := binary.LittleEndian.Uint32(b[at:])
		if h == 0 || h == 0xffffffff {
			return
		}
		id := uint16(h)
		c.Capabilities = append(c.Capabilities, Capability{fmt.Sprintf("%#03x", at), fmt.Sprintf("%#04x", id), extendedNames[id], true})
		at = int(h>>20) &^ 3
	}
}
