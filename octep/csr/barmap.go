package csr

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Geometry of BAR2 (endpoint.md 1).
const (
	BAR2Size       = 64 << 20
	BAR2Entry      = 4 << 20    // one of 16 index entries
	BAR2Facilities = 0x02000000 // entry 8: the four facility windows
	BAR2FacEnd     = 0x02400000
	BAR2Interrupt  = 0x03c00000 // entry 15: write one register, never read
)

// Barmap layout, little-endian 32-bit words from BAR2 + (SDPScratch >> 32)
// (endpoint.md 3.1).
const (
	BarmapVersion    = 0x00
	BarmapFacility   = 0x04 // five records of 16 bytes
	BarmapFacSize    = 16
	BarmapFacilities = 5
	BarmapGICD       = 0x54
	BarmapPEM        = 0x58 // 8 bits
	BarmapSize       = 0x5c

	FacOffset    = 0
	FacSize      = 4
	FacDoorbell  = 8  // first SPI number
	FacDoorbells = 12 // count

	BarmapVersion02 = 0x00000002 // the only version known: major 0, minor 2
)

// Facilities of the barmap.
const (
	FacControl = 0
	FacMgmt    = 1
	FacNWA     = 2
	FacRPC     = 3
	FacUnused  = 4
)

// FacilityNames are the names for logs and output.
var FacilityNames = [BarmapFacilities]string{"control", "mgmt_netdev", "nw_agent", "rpc", "unused"}

// Facility is one record of the barmap; Size 0 means absent.
type Facility struct {
	Offset    uint32 // in BAR2
	Size      uint32
	Doorbell  uint32 // first SPI number
	Doorbells uint32
}

// Barmap is the decoded table. Decode does not judge it.
type Barmap struct {
	Version  uint32
	Facility [BarmapFacilities]Facility
	GICD     uint32
	PEM      uint8
}

// ErrShort says that there are fewer bytes than the fixed part needs.
var ErrShort = errors.New("csr: too few bytes")

// Decode reads the table.
func (m *Barmap) Decode(b []byte) error {
	if len(b) < BarmapSize {
		return fmt.Errorf("%w: barmap of %d", ErrShort, len(b))
	}
	le := binary.LittleEndian
	m.Version = le.Uint32(b[BarmapVersion:])
	for i := range m.Facility {
		r := b[BarmapFacility+i*BarmapFacSize:]
		m.Facility[i] = Facility{le.Uint32(r[FacOffset:]), le.Uint32(r[FacSize:]), le.Uint32(r[FacDoorbell:]), le.Uint32(r[FacDoorbells:])}
	}
	m.GICD = le.Uint32(b[BarmapGICD:])
	m.PEM = b[BarmapPEM]
	return nil
}

// Append writes the table behind b.
func (m *Barmap) Append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint32(b, m.Version)
	for _, f := range m.Facility {
		b = le.AppendUint32(b, f.Offset)
		b = le.AppendUint32(b, f.Size)
		b = le.AppendUint32(b, f.Doorbell)
		b = le.AppendUint32(b, f.Doorbells)
	}
	b = le.AppendUint32(b, m.GICD)
	return append(b, m.PEM, 0, 0, 0)
}
