// Package frame reads the headers of Ethernet frames: where layer 3 begins and
// how many VLAN tags are in front of it. No allocation, no logic.
package frame

import "encoding/binary"

// EtherTypes.
const (
	TypeIPv4 = 0x0800
	TypeARP  = 0x0806
	TypeIPv6 = 0x86dd
	TypeVLAN = 0x8100
	TypeQinQ = 0x88a8
)

// Sizes in bytes, without FCS.
const (
	HeaderSize = 14
	VLANSize   = 4
	MaxVLANs   = 2  // tags that a port MTU allows on top
	MinSize    = 60 // shorter frames are padded

	// MaxHeader is an Ethernet header with all of its tags.
	MaxHeader = HeaderSize + MaxVLANs*VLANSize
)

// Header is the outermost headers of a frame.
type Header struct {
	EtherType uint16 // behind the VLAN tags
	VLANs     int    // tags found, at most MaxVLANs
	L3        int    // offset of layer 3
}

// L3Of is the length of a frame's Ethernet header with its VLAN tags: what a port allows
// above its MTU. A header that is not whole counts as one without tags.
func L3Of(b []byte) int {
	h, ok := Parse(b)
	if !ok {
		return HeaderSize
	}
	return h.L3
}

// Parse reads a frame's Ethernet header and up to MaxVLANs tags. ok is false
// when the frame is shorter than what its headers promise.
func Parse(b []byte) (h Header, ok bool) {
	if len(b) < HeaderSize {
		return Header{}, false
	}
	h = Header{EtherType: binary.BigEndian.Uint16(b[12:]), L3: HeaderSize}
	for h.VLANs < MaxVLANs && (h.EtherType == TypeVLAN || h.EtherType == TypeQinQ) {
		if len(b) < h.L3+VLANSize {
			return Header{}, false
		}
		h.EtherType = binary.BigEndian.Uint16(b[h.L3+2:])
		h.L3 += VLANSize
		h.VLANs++
	}
	return h, true
}
