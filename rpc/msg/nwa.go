package msg

import "fmt"

// NetAgent mailbox (rpc-lif.md 7). All fields are u32, little-endian.
const (
	NWACookie    = 0x00 // target
	NWABody      = 0x04 // target: body offset, also the version gate
	NWAMaxReq    = 0x08 // target
	NWAEventOff  = 0x0c // target, unused
	NWAEventLen  = 0x10 // target, unused
	NWATurn      = 0x18 // host only
	NWAReqLen    = 0x1c // host
	NWAStatus    = 0x20 // target only
	NWAReplyLen  = 0x24 // target: includes the 8-byte reply header
	NWARequest   = 0x34 // host
	NWAReqSize   = 32
	NWAReply     = NWARequest + NWAReqSize // 0x54 for 32-byte requests
	NWAReplyHdr  = 8
	NWAHeadBytes = NWARequest

	NWAMagic      = 0xCAFEBABE
	NWABodyOffset = 0x34
	NWAMaxReqLen  = 0x7fcc
	NWAEvent      = 0x8000

	TurnRequest = 1
	TurnAck     = 2
	StatusIdle  = 0
	StatusReply = 1

	ReplyMarker = 0x14 // first word of every well-formed reply
	ReplyOK     = 0
	ReplyNoSuch = 1 // no handler, not implemented, refused
)

// NetAgent operations.
const (
	OpDiscover   = 0x01
	OpSet        = 0x03
	OpGet        = 0x04
	OpAllPorts   = 0x45
	DiscoverSize = 2020 // reply length, header included
	DiscoverMTU  = 9182
	DiscoverWord = 5 // words of a record
)

// Attr is a port attribute (rpc-lif.md 7.2).
type Attr uint32

// Attributes that are used, and the one that must never be.
const (
	AttrState     Attr = 0x00 // SET: admin state; GET: the link
	AttrMAC       Attr = 0x03
	AttrSpeed     Attr = 0x04 // nominal
	AttrMedia     Attr = 0x0a
	AttrFEC       Attr = 0x0b // kills NetAgent until the coprocessor restarts
	AttrAutoneg   Attr = 0x0c
	AttrDuplex    Attr = 0x0d
	AttrPromisc   Attr = 0x45
	AttrAllMulti  Attr = 0x46
	AttrOperState Attr = 0x01
	AttrMTU       Attr = 0x02
)

// String names the attribute and its number, as the pages do.
func (a Attr) String() string {
	if n, ok := attrName(a); ok {
		return fmt.Sprintf("%s (0x%02x)", n, uint32(a))
	}
	return fmt.Sprintf("attribute 0x%02x", uint32(a))
}

func attrName(a Attr) (string, bool) {
	switch a {
	case AttrState:
		return "state", true
	case AttrOperState:
		return "oper state", true
	case AttrMTU:
		return "MTU", true
	case AttrMAC:
		return "MAC", true
	case AttrSpeed:
		return "speed", true
	case AttrMedia:
		return "media", true
	case AttrFEC:
		return "FEC", true
	case AttrAutoneg:
		return "autoneg", true
	case AttrDuplex:
		return "duplex", true
	case AttrPromisc:
		return "promiscuous", true
	case AttrAllMulti:
		return "all-multicast", true
	}
	return "", false
}

// NWARequestMsg is a request body: op, sub, port, 0, payload0, payload1, 0, 0.
type NWARequestMsg struct {
	Op      uint32
	Sub     uint32
	Port    uint32
	Payload [2]uint32
}

// Append writes the 32 bytes behind b.
func (r NWARequestMsg) Append(b []byte) []byte {
	for _, w := range [...]uint32{r.Op, r.Sub, r.Port, 0, r.Payload[0], r.Payload[1], 0, 0} {
		b = le.AppendUint32(b, w)
	}
	return b
}

// Decode reads the 32 bytes.
func (r *NWARequestMsg) Decode(b []byte) error {
	if len(b) < NWAReqSize {
		return short("NetAgent request", len(b))
	}
	*r = NWARequestMsg{le.Uint32(b), le.Uint32(b[4:]), le.Uint32(b[8:]), [2]uint32{le.Uint32(b[16:]), le.Uint32(b[20:])}}
	return nil
}

// NWAPort is a record of the discover reply.
type NWAPort struct {
	Tag        uint16
	Manageable bool
	MaxUnicast uint16 // address filters
	MTU        uint16 // the MAC's limit, not the LIF's
}

// AppendDiscover writes the payload of a discover reply (without the 8-byte
// header) behind b, padded to its fixed size.
func AppendDiscover(b []byte, count uint32, ports []NWAPort) []byte {
	at := len(b)
	b = le.AppendUint32(b, count)
	for _, p := range ports {
		w := uint32(p.Tag)
		if p.Manageable {
			w |= 1 << 16
		}
		b = le.AppendUint32(b, w)
		b = le.AppendUint32(b, uint32(p.MaxUnicast)<<16|uint32(p.MTU))
		b = append(b, make([]byte, 4*(DiscoverWord-2))...)
	}
	return append(b, make([]byte, DiscoverSize-NWAReplyHdr-(len(b)-at))...)
}

// DecodeDiscover reads the payload of a discover reply: the count word and the
// records that name something; flag bits other than the first are not decoded.
func DecodeDiscover(b []byte) (count uint32, ports []NWAPort, err error) {
	if len(b) < 4 {
		return 0, nil, short("discover reply", len(b))
	}
	count = le.Uint32(b)
	if uint64(count)*DiscoverWord*4+4 > uint64(len(b)) {
		return 0, nil, fmt.Errorf("msg: discover reply counts %d ports in %d bytes", count, len(b))
	}
	for i := range int(count) {
		r := b[4+i*DiscoverWord*4:]
		w0, w1 := le.Uint32(r), le.Uint32(r[4:])
		p := NWAPort{uint16(w0), w0&(1<<16) != 0, uint16(w1 >> 16), uint16(w1)}
		if p == (NWAPort{}) {
			continue // the 14th of 14 on this board
		}
		ports = append(ports, p)
	}
	return count, ports, nil
}
