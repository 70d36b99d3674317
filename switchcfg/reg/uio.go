package reg

import "encoding/binary"

// Request is the struct that read() and write() of /dev/mvmdio-uio take and fill
// in: little-endian, 16 bytes (switch.md 3).
type Request struct {
	Bus     int32 // 0 to 7
	Phy     int32 // SMI address
	Reg     int32 // with Clause45 where the device is one of clause 45
	Data    uint16
	Padding uint16
}

const (
	reqBus     = 0  // s32 le
	reqPhy     = 4  // s32 le
	reqReg     = 8  // s32 le
	reqData    = 12 // u16 le
	reqPadding = 14 // 2 bytes

	// RequestSize is the length of a Request. A read may return it, or 0, for success.
	RequestSize = 16

	// Clause45 in a register number says that it is one of clause 45.
	Clause45 = 1 << 30

	// Buses is how many bus numbers the device takes.
	Buses = 8

	// Device is the name of the device on the coprocessor.
	Device = "/dev/mvmdio-uio"
)

// Decode takes the first RequestSize bytes of b. It reports whether there were as
// many.
func (r *Request) Decode(b []byte) bool {
	if len(b) < RequestSize {
		return false
	}
	r.Bus = int32(binary.LittleEndian.Uint32(b[reqBus:]))
	r.Phy = int32(binary.LittleEndian.Uint32(b[reqPhy:]))
	r.Reg = int32(binary.LittleEndian.Uint32(b[reqReg:]))
	r.Data = binary.LittleEndian.Uint16(b[reqData:])
	r.Padding = binary.LittleEndian.Uint16(b[reqPadding:])
	return true
}

// Append adds the RequestSize bytes of r to b.
func (r *Request) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(r.Bus))
	b = binary.LittleEndian.AppendUint32(b, uint32(r.Phy))
	b = binary.LittleEndian.AppendUint32(b, uint32(r.Reg))
	b = binary.LittleEndian.AppendUint16(b, r.Data)
	return binary.LittleEndian.AppendUint16(b, r.Padding)
}
