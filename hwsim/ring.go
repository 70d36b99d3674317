package hwsim

import (
	"oxpd/octep/csr"
	"oxpd/ring/wire"
)

// ring is one of the 64 rings: an input half (host to card) and an output half.
// Indices and credit are the block's own; nothing of a driver's arithmetic is
// used here.
type ring struct {
	q     int
	in    inHalf
	out   outHalf
	plain [4]uint64 // mailbox and owner registers, storage only
}

// latch is where a half finds its ring in host memory.
type latch struct {
	base uint64
	size uint64 // entries
}

type inHalf struct {
	control uint64
	enabled bool
	reg     latch // as programmed
	use     latch // as latched when the host port opened
	posted  uint32
	at      uint64 // index of the next instruction to fetch
	count   uint32 // finished and not acknowledged
	levels  uint64
	status  uint64
	packets uint64
	bytes   uint64

	total    uint64 // instructions posted since power-on
	finished uint64
	asked    uint32 // of posted: being fetched
	flying   int    // fetched and not finished
}

type outHalf struct {
	control uint64
	enabled bool
	reg     latch
	use     latch
	credit  int64  // signed; the register shows its low 32 bits
	at      uint64 // index of the next list entry to fetch
	list    uint64 // bus address of the batch that was asked for last
	coming  int    // its entries, until they have come
	came    uint64 // cycle of that
	listEv  *event
	held    [wire.FetchBatch]uint64
	heldN   int   // entries of the batch not used yet: the last heldN of held
	granted bool  // the first positive credit after the enable has come
	lean    int   // buffers that may still be used of a batch fetched under the watermark, -1: no limit
	stuck   bool  // fault StuckResume
	owed    int64 // fault HoldCredit: credit not yet given
	count   uint32
	levels  uint64
	status  uint64
	packets uint64
	bytes   uint64

	waiting    fifo[*packet] // fault WaitForCredit
	queue      fifo[*packet] // admitted, not written yet
	reserved   int           // entries that the packets in queue have not taken yet
	writeEv    *event        // the link has room again
	onLink     int           // packets that are on the link, or written and not counted
	late       int           // writes and counts that a fault has put off
	lateCounts int           // of them, counts that are to come
	lateUntil  uint64        // cycle at which the last of these comes
	timer      *event
}

func (r *ring) powerOn(q int) {
	o := r.out
	o.waiting.reset()
	o.queue.reset()
	*r = ring{q: q}
	r.in.control = csr.InControlReset &^ csr.InControlIdle
	r.out.reg.size = csr.OutSlistRsizeMin
	r.out.control = csr.OutControlReset &^ csr.OutControlIdle
	r.out.lean = -1
	r.out.timer, r.out.listEv, r.out.writeEv = o.timer, o.listEv, o.writeEv
	r.out.waiting, r.out.queue = o.waiting, o.queue
}

// where returns the ring in host memory: what was latched, once it was.
func (c *Card) inWhere(r *ring) latch {
	if c.latched {
		return r.in.use
	}
	return r.in.reg
}

func (c *Card) outWhere(r *ring) latch {
	if c.latched {
		return r.out.use
	}
	return r.out.reg
}

// latchRings is the host port being opened: from now on the block uses the
// addresses that the rings have at this moment, whatever is programmed later
// (F6).
func (c *Card) latchRings() {
	for q := range c.rings {
		r := &c.rings[q]
		r.in.use, r.out.use = r.in.reg, r.out.reg
	}
	c.latched = true
	c.kickRings()
}

func (c *Card) inIdle(r *ring) bool {
	return r.in.flying == 0 && r.in.asked == 0 && (r.in.posted == 0 || !r.in.enabled) && !c.acts(fltNeverIdle, c.faults.NeverIdle.has(r.q))
}

func (c *Card) outIdle(r *ring) bool {
	return r.out.coming == 0 && !r.out.carries() && !c.acts(fltNeverIdle, c.faults.NeverIdle.has(r.q))
}

// carries tells whether the half has packets that it has not finished.
func (o *outHalf) carries() bool { return o.queue.len() > 0 || o.onLink > 0 || o.late > 0 }

// flags are the upper bits of the count registers. Bit 61 reads 1 on an idle
// ring (datapath.md 1).
func (r *ring) flags() uint64 {
	f := uint64(csr.OutCntsInInt)
	if r.out.status != 0 {
		f |= csr.OutCntsOutInt
	}
	return f
}

// load reads a register of the ring.
func (r *ring) load(c *Card, reg csr.RingReg) uint64 {
	switch reg {
	case csr.InControl:
		v := csr.InControlRPVF.Put(r.in.control, uint64(c.o.VFRings))
		if c.inIdle(r) {
			v |= csr.InControlIdle
		}
		return v
	case csr.InEnable:
		return b2u(r.in.enabled)
	case csr.InInstrBaddr:
		return r.in.reg.base
	case csr.InInstrRsize:
		return r.in.reg.size
	case csr.InInstrDBell:
		return uint64(r.in.posted) | uint64(uint32(r.in.at)*c.instrBytes(r))<<32
	case csr.InCnts:
		return uint64(r.in.count) | r.flags()
	case csr.InIntLevels:
		return r.in.levels
	case csr.InIntStatus:
		return r.in.status
	case csr.InPktCnt:
		return r.in.packets
	case csr.InByteCnt:
		return r.in.bytes
	case csr.OutCnts:
		return uint64(r.out.count) | r.flags()
	case csr.OutIntLevels:
		return r.out.levels
	case csr.OutSlistBaddr:
		return r.out.reg.base
	case csr.OutSlistRsize:
		return r.out.reg.size
	case csr.OutSlistDBell:
		return uint64(uint32(r.out.credit)) | r.out.at*wire.ListEntry<<32
	case csr.OutControl:
		v := r.out.control
		if c.outIdle(r) {
			v |= csr.OutControlIdle
		}
		return v
	case csr.OutEnable:
		return b2u(r.out.enabled)
	case csr.OutIntStatus:
		return r.out.status
	case csr.OutPktCnt:
		return r.out.packets & (1<<36 - 1)
	case csr.OutByteCnt:
		return r.out.bytes
	case csr.AllInStatus:
		return c.signalling()
	}
	if p := r.storage(reg); p != nil {
		return *p
	}
	return 0 // ERR_TYPE, MBOX_PF_VF_INT: nothing sets them
}

// signalling has a bit for each ring whose interrupt is latched.
func (c *Card) signalling() (v uint64) {
	for q := range c.rings {
		if c.rings[q].out.status != 0 {
			v |= 1 << q
		}
	}
	return v
}

func (r *ring) storage(reg csr.RingReg) *uint64 {
	switch reg {
	case csr.MboxRintStatus:
		return &r.plain[0]
	case csr.MboxPFVFData:
		return &r.plain[1]
	case csr.MboxVFPFData:
		return &r.plain[2]
	case csr.VFNum:
		return &r.plain[3]
	}
	return nil
}

func b2u(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// storeRing writes a register of ring q. high says that a 32-bit store goes to
// the upper half.
func (c *Card) storeRing(q int, reg csr.RingReg, high bool, width int, v uint64) {
	r := &c.rings[q]
	name := func() string { return reg.Queue(q).String() }
	bits := merge(0, v, width, high)
	narrow := width == 4
	switch reg {
	case csr.InControl:
		r.in.control = merge(r.in.control, v, width, high) &^ (csr.InControlIdle | csr.InControlRPVF.Mask())
	case csr.InEnable:
		r.in.enabled = merge(b2u(r.in.enabled), v, width, high)&1 != 0
		c.kickIn(r, c.storeAt())
	case csr.InInstrBaddr:
		if c.baddr(r, name, v, c.inIdle(r), r.in.enabled) {
			r.in.reg.base = merge(r.in.reg.base, v, width, high)
			if !c.latched {
				r.in.at = 0
			}
		}
	case csr.InInstrRsize:
		r.in.reg.size = c.rsize(name, r.in.enabled, merge(r.in.reg.size, v, width, high))
		if !c.latched {
			r.in.at = 0
		}
	case csr.InInstrDBell:
		narrow = false
		c.inDoorbell(r, uint32(bits))
	case csr.InCnts:
		narrow = false
		r.in.count = c.subtract(r.in.count, uint32(bits), c.o.Choices.InCntsWraps)
	case csr.InIntLevels:
		narrow = false
		r.in.levels = merge(r.in.levels, v, width, high)
	case csr.InIntStatus:
		narrow = false
		r.in.status &^= bits
	case csr.InPktCnt:
		narrow = false
		if bits == 0 {
			r.in.packets = 0
		}
	case csr.InByteCnt:
		narrow = false
		if bits == 0 {
			r.in.bytes = 0
		}
	case csr.OutCnts:
		narrow = false
		c.outAck(r, bits)
	case csr.OutIntLevels:
		narrow = false
		r.out.levels = merge(r.out.levels, v, width, high)
		if r.out.count > 0 {
			c.outLevel(r, r.out.count, c.storeAt())
		}
	case csr.OutSlistBaddr:
		if c.baddr(r, name, v, c.outIdle(r), r.out.enabled) {
			r.out.reg.base = merge(r.out.reg.base, v, width, high)
			c.outRewind(r)
		}
	case csr.OutSlistRsize:
		n := c.rsize(name, r.out.enabled, merge(r.out.reg.size, v, width, high))
		if n%wire.FetchBatch != 0 {
			c.report(ReportRsize, "%s = %d", name(), n)
			n &^= wire.FetchBatch - 1
		}
		r.out.reg.size = max(n, csr.OutSlistRsizeMin)
		c.outRewind(r)
	case csr.OutSlistDBell:
		narrow = false
		if !high {
			c.outDoorbell(r, uint32(bits))
		}
	case csr.OutControl:
		r.out.control = merge(r.out.control, v, width, high) &^ csr.OutControlIdle
	case csr.OutEnable:
		r.out.enabled = merge(b2u(r.out.enabled), v, width, high)&1 != 0
		if !r.out.enabled {
			r.out.granted = false
		}
		c.kickOut(r)
	case csr.OutIntStatus:
		narrow = false
		r.out.status &^= bits
		c.kickOut(r)
	case csr.OutPktCnt:
		narrow = false
		if bits == 0 {
			r.out.packets = 0
		}
	case csr.OutByteCnt:
		narrow = false
		if bits == 0 {
			r.out.bytes = 0
		}
	case csr.AllInStatus:
		c.report(ReportReadOnly, "%s = %#x", name(), v)
	case csr.ErrType, csr.MboxPFVFInt:
		// W1C, and nothing ever sets them.
	default:
		if p := r.storage(reg); p != nil {
			*p = merge(*p, v, width, high)
		}
	}
	if narrow {
		c.report(ReportNarrowStore, "%s = %#x", name(), v)
	}
}

// baddr decides whether a base address may be written now.
func (c *Card) baddr(r *ring, name func() string, v uint64, idle, enabled bool) bool {
	if n := c.faults.IgnoreBaddr[r.q]; c.acts(fltIgnoreBaddr, n != 0) {
		if n > 0 {
			c.faults.IgnoreBaddr[r.q]--
		}
		return false
	}
	switch {
	case !idle:
		c.report(ReportBaddrBusy, "%s = %#x", name(), v)
		return false
	case enabled:
		c.report(ReportBaddrEnabled, "%s = %#x", name(), v)
	case c.latched && v != 0:
		c.report(ReportBaddrLatched, "%s = %#x", name(), v)
	}
	return true
}

// rsize is a size that is written to a ring. The page lists what may change on a live
// one, and this is not on it (endpoint.md 7.2); the block takes it all the same.
func (c *Card) rsize(name func() string, enabled bool, v uint64) uint64 {
	if enabled {
		c.report(ReportRsizeEnabled, "%s = %d", name(), v)
	}
	return v & 0xffffffff
}

// subtract is the acknowledgement of a count.
func (c *Card) subtract(count, n uint32, wraps bool) uint32 {
	if n > count && !wraps {
		return 0
	}
	return count - n
}

// kickRings looks at every ring again after something that they depend on changed.
func (c *Card) kickRings() {
	for q := range c.rings {
		c.kickIn(&c.rings[q], c.now)
		c.kickOut(&c.rings[q])
	}
}

// faultsChanged lets what a fault has held back go on. Held: c.mu.
func (c *Card) faultsChanged() {
	for q := range c.rings {
		r := &c.rings[q]
		if r.out.owed != 0 && !c.faults.HoldCredit.has(q) {
			r.out.credit += r.out.owed
			r.out.owed = 0
		}
		if !c.faults.StuckResume.has(q) {
			r.out.stuck = false
		}
	}
	c.cfg.softReset(c.faults.WakeResets)
	c.stalled.Broadcast()
	c.faultWatermark()
	c.target.faultsChanged()
	if !c.gone() {
		c.ins.resume()
		c.outs.resume(c)
	}
	c.kickRings()
}
