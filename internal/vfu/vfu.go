package vfu

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
)

// ErrMalformed is what Decode returns for a payload that is not such a message.
var ErrMalformed = errors.New("malformed vfio-user message")

// Command is what a message asks for.
type Command uint16

// Commands of a client. The ones between and above are not used here.
const (
	Version    Command = 1
	MapDMA     Command = 2
	UnmapDMA   Command = 3
	GetInfo    Command = 4
	RegionInfo Command = 5
	IRQInfo    Command = 7
	SetIRQs    Command = 8
	ReadAt     Command = 9
	WriteAt    Command = 10
	Reset      Command = 13
)

func (c Command) String() string {
	switch c {
	case Version:
		return "VERSION"
	case MapDMA:
		return "DMA_MAP"
	case UnmapDMA:
		return "DMA_UNMAP"
	case GetInfo:
		return "DEVICE_GET_INFO"
	case RegionInfo:
		return "DEVICE_GET_REGION_INFO"
	case IRQInfo:
		return "DEVICE_GET_IRQ_INFO"
	case SetIRQs:
		return "DEVICE_SET_IRQS"
	case ReadAt:
		return "REGION_READ"
	case WriteAt:
		return "REGION_WRITE"
	case Reset:
		return "DEVICE_RESET"
	}
	return fmt.Sprintf("command %d", uint16(c))
}

// Sizes of payloads in bytes. Version, IRQSet and Access are followed by data,
// Region by a capability where part of the region can be mapped.
const (
	HeaderSize  = 16
	VersionSize = 4
	MapSize     = 32
	UnmapSize   = 24
	DeviceSize  = 16
	RegionSize  = 32
	IRQSize     = 16
	IRQSetSize  = 20
	AccessSize  = 16
)

// Flags of a header.
const (
	FlagReply    = 1 << 0
	FlagTypeMask = 0xf // of which 0 is a command and 1 a reply
	FlagNoReply  = 1 << 4
	FlagError    = 1 << 5
)

// Header is the first 16 bytes of a message.
type Header struct {
	ID      uint16
	Command Command
	Size    uint32 // of the message, header included
	Flags   uint32
	Errno   uint32 // of a reply with FlagError
}

var le = binary.LittleEndian

// Decode reads a header.
func (h *Header) Decode(b []byte) error {
	if err := exactly("header", b, HeaderSize); err != nil {
		return err
	}
	*h = Header{le.Uint16(b), Command(le.Uint16(b[2:])), le.Uint32(b[4:]), le.Uint32(b[8:]), le.Uint32(b[12:])}
	return nil
}

// Append writes a header.
func (h Header) Append(b []byte) []byte {
	b = le.AppendUint16(b, h.ID)
	b = le.AppendUint16(b, uint16(h.Command))
	return words32(b, h.Size, h.Flags, h.Errno)
}

func exactly(what string, b []byte, size int) error {
	if len(b) != size {
		return fmt.Errorf("vfu: %s of %d bytes, want %d: %w", what, len(b), size, ErrMalformed)
	}
	return nil
}

func atLeast(what string, b []byte, size int) error {
	if len(b) < size {
		return fmt.Errorf("vfu: %s of %d bytes, want at least %d: %w", what, len(b), size, ErrMalformed)
	}
	return nil
}

func words32(b []byte, words ...uint32) []byte {
	for _, w := range words {
		b = le.AppendUint32(b, w)
	}
	return b
}

func words64(b []byte, words ...uint64) []byte {
	for _, w := range words {
		b = le.AppendUint64(b, w)
	}
	return b
}

// Capabilities are what one end can take. In a decoded message a number that the
// sender left out has the value that the protocol gives it.
type Capabilities struct {
	MaxFDs      uint64 // descriptors in one message
	MaxTransfer uint64 // bytes of a region in one message
	MaxMaps     uint64 // DMA maps at a time
	PageSizes   uint64 // of DMA maps, or'ed together
}

// DefaultCapabilities are those of an end that says nothing.
func DefaultCapabilities() Capabilities {
	return Capabilities{MaxFDs: 1, MaxTransfer: 1 << 20, MaxMaps: 1<<16 - 1, PageSizes: 4096}
}

// Hello is the payload of Version, of both ends.
type Hello struct {
	Major, Minor uint16
	Capabilities
}

// helloJSON is the text behind the numbers.
type helloJSON struct {
	Capabilities struct {
		MaxFDs      *uint64 `json:"max_msg_fds,omitempty"`
		MaxTransfer *uint64 `json:"max_data_xfer_size,omitempty"`
		MaxMaps     *uint64 `json:"max_dma_maps,omitempty"`
		PageSizes   *uint64 `json:"pgsizes,omitempty"`
	} `json:"capabilities"`
}

// Decode reads a Version payload; the text may be missing, and then so may its end.
func (h *Hello) Decode(b []byte) error {
	if err := atLeast("version", b, VersionSize); err != nil {
		return err
	}
	*h = Hello{le.Uint16(b), le.Uint16(b[2:]), DefaultCapabilities()}
	text, terminated := bytes.CutSuffix(b[VersionSize:], []byte{0})
	if len(text) == 0 {
		return nil
	}
	if !terminated {
		return fmt.Errorf("vfu: version: text without an end: %w", ErrMalformed)
	}
	var j helloJSON
	if err := json.Unmarshal(text, &j); err != nil {
		return fmt.Errorf("vfu: version: %w: %w", err, ErrMalformed)
	}
	c := &j.Capabilities
	for _, f := range []struct {
		to   *uint64
		from *uint64
	}{{&h.MaxFDs, c.MaxFDs}, {&h.MaxTransfer, c.MaxTransfer}, {&h.MaxMaps, c.MaxMaps}, {&h.PageSizes, c.PageSizes}} {
		if f.from != nil {
			*f.to = *f.from
		}
	}
	return nil
}

// Append writes a Version payload with all of the capabilities.
func (h Hello) Append(b []byte) []byte {
	b = le.AppendUint16(b, h.Major)
	b = le.AppendUint16(b, h.Minor)
	return append(fmt.Appendf(b, `{"capabilities":{"max_msg_fds":%d,"max_data_xfer_size":%d,"max_dma_maps":%d,"pgsizes":%d}}`,
		h.MaxFDs, h.MaxTransfer, h.MaxMaps, h.PageSizes), 0)
}

// Flags of Map.
const (
	MapRead  = 1 << 0 // the device may read
	MapWrite = 1 << 1
)

// Map is the payload of MapDMA: memory that the device may reach from now on. With
// a descriptor beside it the memory is that file's from Offset on.
type Map struct {
	ArgSize, Flags        uint32
	Offset, Address, Size uint64
}

// Decode reads a Map.
func (m *Map) Decode(b []byte) error {
	if err := exactly("DMA map", b, MapSize); err != nil {
		return err
	}
	*m = Map{le.Uint32(b), le.Uint32(b[4:]), le.Uint64(b[8:]), le.Uint64(b[16:]), le.Uint64(b[24:])}
	return nil
}

// Append writes a Map.
func (m Map) Append(b []byte) []byte {
	return words64(words32(b, m.ArgSize, m.Flags), m.Offset, m.Address, m.Size)
}

// Flags of Unmap.
const (
	UnmapDirty = 1 << 0 // and say which pages were written
	UnmapAll   = 1 << 1 // every map; address and size are 0
)

// Unmap is the payload of UnmapDMA, of the command and of its reply.
type Unmap struct {
	ArgSize, Flags uint32
	Address, Size  uint64
}

// Decode reads an Unmap.
func (m *Unmap) Decode(b []byte) error {
	if err := exactly("DMA unmap", b, UnmapSize); err != nil {
		return err
	}
	*m = Unmap{le.Uint32(b), le.Uint32(b[4:]), le.Uint64(b[8:]), le.Uint64(b[16:])}
	return nil
}

// Append writes an Unmap.
func (m Unmap) Append(b []byte) []byte {
	return words64(words32(b, m.ArgSize, m.Flags), m.Address, m.Size)
}

// Flags of Device.
const (
	DeviceReset = 1 << 0 // Reset works
	DevicePCI   = 1 << 1
)

// Device is the payload of GetInfo.
type Device struct {
	ArgSize, Flags, Regions, IRQs uint32
}

// Decode reads a Device.
func (d *Device) Decode(b []byte) error {
	if err := exactly("device info", b, DeviceSize); err != nil {
		return err
	}
	*d = Device{le.Uint32(b), le.Uint32(b[4:]), le.Uint32(b[8:]), le.Uint32(b[12:])}
	return nil
}

// Append writes a Device.
func (d Device) Append(b []byte) []byte { return words32(b, d.ArgSize, d.Flags, d.Regions, d.IRQs) }

// Regions of a PCI device.
const (
	RegionBAR0   = 0 // BAR n is region n
	RegionROM    = 6
	RegionConfig = 7
	RegionVGA    = 8
	Regions      = 9
)

// Flags of Region.
const (
	RegionRead  = 1 << 0
	RegionWrite = 1 << 1
	RegionMap   = 1 << 2 // a descriptor to map comes with the reply
	RegionCaps  = 1 << 3 // capabilities follow, where CapOffset says
)

// Region is the payload of RegionInfo.
type Region struct {
	ArgSize      uint32 // of a reply: what the whole of it needs
	Flags, Index uint32
	CapOffset    uint32 // from the start of the payload
	Size, Offset uint64 // Offset is that of the region in the descriptor's file
}

// Decode reads the fixed part of a Region; what may follow it is in
// DecodeAreas.
func (r *Region) Decode(b []byte) error {
	if err := atLeast("region info", b, RegionSize); err != nil {
		return err
	}
	*r = Region{le.Uint32(b), le.Uint32(b[4:]), le.Uint32(b[8:]), le.Uint32(b[12:]), le.Uint64(b[16:]), le.Uint64(b[24:])}
	return nil
}

// Append writes the fixed part of a Region.
func (r Region) Append(b []byte) []byte {
	return words64(words32(b, r.ArgSize, r.Flags, r.Index, r.CapOffset), r.Size, r.Offset)
}

// Area is a part of a region that can be mapped.
type Area struct{ Offset, Size uint64 }

const (
	capHeader = 8 // id u16, version u16, offset of the next u32
	capSparse = 1 // id of the list of areas: count u32, reserved u32, areas
	areaSize  = 16
)

// AreasSize is the length of a list of n areas.
func AreasSize(n int) int { return capHeader + 8 + n*areaSize }

// AppendAreas writes the areas as the last capability of a Region.
func AppendAreas(b []byte, areas ...Area) []byte {
	b = le.AppendUint16(b, capSparse)
	b = le.AppendUint16(b, 1)
	b = words32(b, 0, uint32(len(areas)), 0)
	for _, a := range areas {
		b = words64(b, a.Offset, a.Size)
	}
	return b
}

// DecodeAreas finds the areas among the capabilities of a whole payload. None
// with ok false: there is no such capability, and the whole region can be mapped.
func (r *Region) DecodeAreas(b []byte) (areas []Area, ok bool, err error) {
	if r.Flags&RegionCaps == 0 {
		return nil, false, nil
	}
	bad := func(what string) ([]Area, bool, error) {
		return nil, false, fmt.Errorf("vfu: capabilities of region %d: %s: %w", r.Index, what, ErrMalformed)
	}
	for at, last := uint64(r.CapOffset), uint64(0); at != 0; {
		// Each lies behind the one before it: a circle has an end.
		if at <= last || at < RegionSize || at+capHeader > uint64(len(b)) {
			return bad("outside of the message")
		}
		c := b[at:]
		if le.Uint16(c) != capSparse {
			last, at = at, uint64(le.Uint32(c[4:]))
			continue
		}
		if len(c) < AreasSize(0) || uint64(le.Uint32(c[8:])) > uint64(len(c)-AreasSize(0))/areaSize {
			return bad("areas outside of the message")
		}
		for i := range int(le.Uint32(c[8:])) {
			a := c[AreasSize(i):]
			areas = append(areas, Area{le.Uint64(a), le.Uint64(a[8:])})
		}
		return areas, true, nil
	}
	return nil, false, nil
}

// Interrupt types of a PCI device.
const (
	IRQMSIX = 2
	IRQs    = 5
)

// IRQEventFD is the flag of IRQ that such interrupts may be told by eventfd.
const IRQEventFD = 1 << 0

// IRQ is the payload of IRQInfo.
type IRQ struct {
	ArgSize, Flags, Index, Count uint32
}

// Decode reads an IRQ.
func (i *IRQ) Decode(b []byte) error {
	if err := exactly("irq info", b, IRQSize); err != nil {
		return err
	}
	*i = IRQ{le.Uint32(b), le.Uint32(b[4:]), le.Uint32(b[8:]), le.Uint32(b[12:])}
	return nil
}

// Append writes an IRQ.
func (i IRQ) Append(b []byte) []byte { return words32(b, i.ArgSize, i.Flags, i.Index, i.Count) }

// Flags of IRQSet: one of the first three with one of the others.
const (
	IRQNone    = 1 << 0 // no data: for each
	IRQBool    = 1 << 1 // a byte for each, 0 or 1
	IRQFD      = 1 << 2 // a descriptor for each, or none at all
	IRQMask    = 1 << 3
	IRQUnmask  = 1 << 4
	IRQTrigger = 1 << 5
)

// IRQSet is the payload of SetIRQs.
type IRQSet struct {
	ArgSize, Flags, Index, Start, Count uint32
	Data                                []byte // of IRQBool; part of what was decoded
}

// Decode reads an IRQSet.
func (s *IRQSet) Decode(b []byte) error {
	if err := atLeast("irq set", b, IRQSetSize); err != nil {
		return err
	}
	*s = IRQSet{le.Uint32(b), le.Uint32(b[4:]), le.Uint32(b[8:]), le.Uint32(b[12:]), le.Uint32(b[16:]), b[IRQSetSize:]}
	return nil
}

// Append writes an IRQSet.
func (s IRQSet) Append(b []byte) []byte {
	return append(words32(b, s.ArgSize, s.Flags, s.Index, s.Start, s.Count), s.Data...)
}

// Access is the payload of ReadAt and WriteAt, of the command and of its reply.
type Access struct {
	Offset        uint64
	Region, Count uint32
	Data          []byte // of a command to write and a reply to read, Count bytes; part of what was decoded
}

// Decode reads an Access. That Data has Count bytes where it must is not checked.
func (a *Access) Decode(b []byte) error {
	if err := atLeast("region access", b, AccessSize); err != nil {
		return err
	}
	*a = Access{le.Uint64(b), le.Uint32(b[8:]), le.Uint32(b[12:]), b[AccessSize:]}
	return nil
}

// Append writes an Access.
func (a Access) Append(b []byte) []byte {
	return append(words32(le.AppendUint64(b, a.Offset), a.Region, a.Count), a.Data...)
}
