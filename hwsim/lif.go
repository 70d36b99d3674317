package hwsim

import (
	"oxpd/internal/board"
	"oxpd/internal/frame"
	"oxpd/rpc/msg"
)

// Size of the fast path's interface tables (rpc-lif.md 4.2, 5).
const (
	lifIfaces   = 128                      // interfaces, 7 bits of a LIF index
	lifVLANBits = 12                       // low bits of a LIF index
	lifIndices  = lifIfaces << lifVLANBits // 524,288 entries
	ifaceNone   = 0xff                     // a tag that PPORT_UPDATE has not bound
)

// lifEntry is one slot that was written since the table was last cleared. A
// slot with forwarding mode FwdFree counts as empty for commands, and as
// invalid (not as missing) for a frame.
type lifEntry struct{ msg.LIF }

func (e *lifEntry) live() bool { return e != nil && e.Fwd != msg.FwdFree }

// lifTable is the fast path's two maps: port tag to interface, and LIF index
// to logical interface (rpc-lif.md 5).
type lifTable struct {
	iface    [1 << 16]uint8
	tag      [lifIfaces]uint16
	untagged [lifIfaces]*lifEntry // entries with VLAN 0, the usual ones
	tagged   map[uint32]*lifEntry // all others

	gateOpen   bool // FW_CFG_PARAMS_SET bit 0: flows are offloaded
	strictVLAN bool // choice 21, alternative: MTU + 14 whatever the tags
}

func newLIFTable(strictVLAN bool) *lifTable {
	t := &lifTable{strictVLAN: strictVLAN}
	t.reset()
	return t
}

// reset is a coprocessor start: both maps empty.
func (t *lifTable) reset() {
	t.unbind()
	t.gateOpen = false
	t.clear()
}

// clear empties the LIF table and leaves the tag maps, as the fast path's start
// does on the sister board (rpc-lif.md 5.6).
func (t *lifTable) clear() {
	t.untagged = [lifIfaces]*lifEntry{}
	t.tagged = make(map[uint32]*lifEntry)
}

// unbind empties the tag map and leaves the LIFs.
func (t *lifTable) unbind() {
	for i := range t.iface {
		t.iface[i] = ifaceNone
	}
	t.tag = [lifIfaces]uint16{}
}

// each calls fn for every live entry.
func (t *lifTable) each(fn func(e *lifEntry)) {
	for _, e := range t.untagged {
		if e.live() {
			fn(e)
		}
	}
	for _, e := range t.tagged {
		if e.live() {
			fn(e)
		}
	}
}

// entry returns the slot of an index below lifIndices, nil when nothing was
// ever written to it.
func (t *lifTable) entry(index uint32) *lifEntry {
	if index&(1<<lifVLANBits-1) == 0 {
		return t.untagged[index>>lifVLANBits]
	}
	return t.tagged[index]
}

// set replaces a slot; nil empties it.
func (t *lifTable) set(index uint32, e *lifEntry) {
	switch {
	case index&(1<<lifVLANBits-1) == 0:
		t.untagged[index>>lifVLANBits] = e
	case e == nil:
		delete(t.tagged, index)
	default:
		t.tagged[index] = e
	}
}

// update is LIF_ADD_UPDATE by the rules of rpc-lif.md 5.2: the mask 0xff, and no
// other, creates; it is refused for a live slot, where any partial mask is
// accepted. The MTU is not range-checked. The DF bit has no bit in the mask; it
// is taken when the private mask calls it valid. store false answers without
// storing.
func (t *lifTable) update(r msg.LIFUpdateReq, dfValid, store bool) msg.RC {
	if r.Index >= lifIndices {
		return msg.RCRefused
	}
	e := t.entry(r.Index)
	if e.live() == (r.Mask == msg.MaskCreate) {
		return msg.RCRefused
	}
	if !store {
		return msg.RCOK
	}
	if !e.live() {
		t.set(r.Index, &lifEntry{r.LIF})
		return msg.RCOK
	}
	if r.Mask&msg.MaskMAC != 0 {
		e.MAC = r.LIF.MAC
	}
	if r.Mask&msg.MaskMTU != 0 {
		e.MTU = r.LIF.MTU
	}
	if r.Mask&msg.MaskFwd != 0 {
		e.Fwd = r.LIF.Fwd
	}
	if r.Mask&msg.MaskAdmin != 0 {
		e.AdminDisabled = r.LIF.AdminDisabled
	}
	if r.Mask&msg.MaskOffload != 0 {
		e.OffloadDisabled = r.LIF.OffloadDisabled
	}
	if r.Mask&msg.MaskRepresentor != 0 {
		e.Representor = r.LIF.Representor
	}
	if dfValid {
		e.DF = r.LIF.DF
	}
	return msg.RCOK
}

// remove is LIF_DELETE with a bare index, the natural guess of rpc-lif.md 5.3.
func (t *lifTable) remove(index uint32) msg.RC {
	if index >= lifIndices || !t.entry(index).live() {
		return msg.RCRefused
	}
	t.entry(index).Fwd = msg.FwdFree
	return msg.RCOK
}

// bind is PPORT_UPDATE: it fills both directions of the tag map.
func (t *lifTable) bind(p msg.PPort) msg.RC {
	if p.Iface >= lifIfaces {
		return msg.RCRefused
	}
	t.iface[p.Tag], t.tag[p.Iface] = p.Iface, p.Tag
	return msg.RCOK
}

// gate passes one frame from a wire by the order of rpc-lif.md 6.1. counter is
// the one counter of the 182 that the frame moves; ok says that it is one of
// those that hand the frame to the host. lif is nil when the frame got no
// further than the look-up. The caller counts RX_WIRE and TX_KN.
//
// A frame with a VLAN tag uses the LIF of that VLAN, or the untagged one when
// there is none; in L3 mode the latter is FROM_WIRE_TO_KN_LIF_UNKNOWN_VLAN_L3_MODE,
// by the name of that counter (not measured).
func (t *lifTable) gate(tag uint16, b []byte) (iface uint8, lif *lifEntry, counter int, ok bool) {
	if len(b) < frame.HeaderSize {
		return ifaceNone, nil, msg.CntDropIGErr, false
	}
	iface = t.iface[tag]
	if iface == ifaceNone {
		return iface, nil, msg.CntDropLIFIndexInvalid, false
	}
	h, whole := frame.Parse(b)
	if !whole {
		h = frame.Header{L3: frame.HeaderSize}
	}
	lif = t.untagged[iface]
	foreignVLAN := false
	if h.VLANs > 0 {
		// The outer tag's 12 bits of VLAN id; 0 is a priority tag only.
		if vlan := uint32(b[14]&0x0f)<<8 | uint32(b[15]); vlan != 0 {
			if e := t.tagged[uint32(iface)<<lifVLANBits|vlan]; e != nil {
				lif = e
			} else {
				foreignVLAN = true
			}
		}
	}
	if lif == nil {
		return iface, nil, msg.CntDropLIFLookupNull, false
	}
	if lif.Fwd == msg.FwdFree {
		return iface, lif, msg.CntDropLIFInvalid, false
	}
	if lif.AdminDisabled {
		return iface, lif, msg.CntDropLIFAdminDisabled, false
	}
	if lif.Fwd == msg.FwdL3 && b[0]&1 == 0 && [6]byte(b[:6]) != lif.MAC {
		return iface, lif, msg.CntDropLIFNotMyMAC, false
	}
	head := h.L3
	if t.strictVLAN {
		head = frame.HeaderSize
	}
	if len(b)-head > int(lif.MTU) {
		return iface, lif, msg.CntDropMTUExceeded, false
	}
	switch {
	case lif.OffloadDisabled:
		return iface, lif, msg.CntToKNOffloadDisabled, true
	case foreignVLAN && lif.Fwd == msg.FwdL3:
		return iface, lif, msg.CntToKNUnknownVLAN, true
	case t.gateOpen:
		// No flow is ever installed, so none is found.
		return iface, lif, msg.CntToKNNonAccel, true
	default:
		return iface, lif, msg.CntToKNForced, true
	}
}

// LIF returns slot index and whether it is live. Functional: takes no time.
func (c *Card) LIF(index uint32) (msg.LIF, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if index >= lifIndices {
		return msg.LIF{}, false
	}
	e := c.lifs.entry(index)
	if !e.live() {
		return msg.LIF{}, false
	}
	return e.LIF, true
}

// SetLIF writes slot index past all rules of the command, nil empties it.
// Functional: takes no time.
func (c *Card) SetLIF(index uint32, l *msg.LIF) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if index >= lifIndices {
		return
	}
	if l == nil {
		c.lifs.set(index, nil)
		return
	}
	c.lifs.set(index, &lifEntry{*l})
}

// WipeLIFs empties the LIF table and leaves the tag maps: what a fast path that
// restarts does behind the host's back (rpc-lif.md 5.6). Functional.
func (c *Card) WipeLIFs() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lifs.clear()
}

// PPort returns the interface that a tag is bound to. Functional.
func (c *Card) PPort(tag uint16) (iface uint8, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	iface = c.lifs.iface[tag]
	return iface, iface != ifaceNone
}

// portOfLIF is the front port whose untagged or tagged LIF an index is.
func portOfLIF(index uint32) (board.Port, bool) {
	for _, p := range board.All() {
		if uint32(p.LIF()) == index&^(1<<lifVLANBits-1) {
			return p, true
		}
	}
	return board.Port{}, false
}
