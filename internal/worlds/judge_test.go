package worlds

import (
	"fmt"
	"slices"
	"time"

	"oxpd/internal/board"
	"oxpd/octep/csr"
	"oxpd/ring/wire"
	"oxpd/rpc/msg"
)

// cause is a set of reasons for a frame not to come out.
type cause uint16

const (
	noLink    cause = 1 << iota // the cable was out
	tooLong                     // for the switch
	notMine                     // the port's address filter, or the LIF's
	aboveMTU                    // the LIF's
	ringFull                    // a host ring without credit for it
	queueFull                   // an egress queue
	byFault                     // a fault that says so, EgressFull
	noLIF                       // the LIF table was empty
	causes    = iota
)

var causeNames = [causes]string{"no link", "too long for the switch", "a foreign address", "above the MTU", "a host ring is full", "an egress queue is full", "a fault", "no LIF"}

func (c cause) String() string {
	s := ""
	for i := range causes {
		if c>>i&1 != 0 {
			if s != "" {
				s += ", "
			}
			s += causeNames[i]
		}
	}
	if s == "" {
		return "nothing"
	}
	return s
}

// losses are frames that did not come out, by what can have been the reason.
type losses map[cause]uint64

// explained tells whether each of the frames can be given one of its reasons so that
// the reasons are used as often as was counted: by Hall's theorem, when no set of
// reasons has more frames that have none but these, and the sums agree.
func (l losses) explained(counted map[cause]uint64) error {
	var lost, all uint64
	for _, n := range l {
		lost += n
	}
	for c := range cause(1 << causes) {
		var need, have uint64
		for m, n := range l {
			if m&^c == 0 {
				need += n
			}
		}
		for m, n := range counted {
			if m&^c == 0 {
				have += n
			}
		}
		if need > have {
			return fmt.Errorf("%d frames can only have been lost by %s, which counted %d", need, c, have)
		}
		all = have
	}
	if lost != all {
		return fmt.Errorf("%d frames were lost, %d are counted as lost: %v", lost, all, counted)
	}
	return nil
}

// equal checks one sum.
func (w *world) equal(what string, got, want uint64) {
	if got != want {
		w.broke("sum", "%s: %d, want %d", what, got, want)
	}
}

// tides of what fills up.
type tides struct {
	rings   [wire.OQs]tide    // buffers that the card may have written and the host not given back
	waiting [board.Ports]tide // frames that may wait to leave by a port
	shared  tide              // or by any port of the switch
}

// bounds are how many frames can be in a counter.
type bounds struct{ least, most uint64 }

// direction is the frames of a port that go one way.
type direction struct {
	frames []*record
	shapes []*flow
	reason func(f *flow, r *record, until time.Duration, t *tides) (c cause, may bool)
	begun  string         // what was done with each
	lost   losses         // of all ports
	by     [causes]bounds // of this one
}

// note adds a loss by its causes.
func (d *direction) note(c cause) {
	d.lost[c]++
	for i := range causes {
		if c>>i&1 != 0 {
			d.by[i].most++
			if c == 1<<i {
				d.by[i].least++
			}
		}
	}
}

// judgeFrames finds what can have stopped each frame that did not come out, and whether
// something must have stopped one that did.
func (w *world) judgeFrames(d *direction, t *tides) {
	w.backwards(d.frames, func(i int, until time.Duration) {
		r, f := d.frames[i], d.shapes[i]
		if r.fate == turnedOff {
			return
		}
		c, may := d.reason(f, r, until, t)
		switch {
		case r.fate == underWay:
			if c == 0 {
				w.broke("a loss has a cause", "%s: a frame of %d bytes, %s at %v, came nowhere", f, r.size, d.begun, r.at-w.born)
			}
			d.note(c)
		case !may:
			w.broke("what must stop a frame does", "%s: a frame of %d bytes, %s at %v, came through %s", f, r.size, d.begun, r.at-w.born, c)
		}
	})
}

// judge holds what was lost against the counters, and every counter against the books.
func (w *world) judge() {
	in, out := losses{}, losses{}
	t := w.tides()
	var perPort [board.Ports]struct{ in, out direction }
	for p := range w.byPort {
		x, y := &w.byPort[p], &perPort[p]
		y.in = direction{frames: x.in, shapes: x.shapes, reason: w.inward, begun: "sent", lost: in}
		y.out = direction{frames: x.out, shapes: x.outs, reason: w.outward, begun: "posted", lost: out}
		w.judgeFrames(&y.in, t)
		w.judgeFrames(&y.out, t)
	}
	w.counters(in, out)
	for p := range w.byPort {
		s := w.card.Wire(uint16(board.ByIndex(p).Tag)).Stats()
		within := func(what string, got uint64, b bounds) {
			if got < b.least || got > b.most {
				w.broke("a counter has a cause", "%s: %s is %d, and %d to %d frames can be in it", board.ByIndex(p).Label, what, got, b.least, b.most)
			}
		}
		within("LinkDown", s.LinkDown, perPort[p].in.by[0])
		within("SwitchDropped", s.SwitchDropped, perPort[p].in.by[1])
		if !w.plan.card.Choices.ForeignMACToLIF {
			within("Filtered", s.Filtered, perPort[p].in.by[2])
		}
		within("OutLinkDown", s.OutLinkDown, perPort[p].out.by[0])
		within("OutSwitchDropped", s.OutSwitchDropped, perPort[p].out.by[1])
		for what, n := range map[string]uint64{"Runt": s.Runt, "Oversize": s.Oversize, "Overrun": s.Overrun, "NoFastPath": s.NoFastPath, "OutRefused": s.OutRefused} {
			if n > 0 {
				w.broke("a counter has a cause", "%s: %s is %d", board.ByIndex(p).Label, what, n)
			}
		}
	}
	w.ofDriver()
	w.gate.check()
	w.inspect.end()
	w.credit()
	w.empty()
	if rs := w.card.Reports(); len(rs) > 0 {
		w.broke("no report", "%d, the first: %s", len(rs), rs[0])
	}
	if err := w.card.CheckConservation(); err != nil {
		w.broke("the card's own sums", "%v", err)
	}
}

// overtaking is how much earlier than one before it a frame of another flow can have
// passed what they both have to pass: the fast path has many workers.
const overtaking = time.Millisecond

// backwards calls fn for the frames of one wire from the last to the first, with the
// time before which each had passed the gate: that at which a later one came out.
func (w *world) backwards(all []*record, fn func(i int, until time.Duration)) {
	until := w.drained
	for i := range slices.Backward(all) {
		fn(i, until)
		if s := all[i].seen; s >= 0 {
			until = min(until, s+overtaking)
		}
	}
}

// buffers is how many receive buffers a frame takes (datapath.md 3.6).
func buffers(size int) int { return (size + 82 + 1601) / 1602 }

// tides sums up what can have been where.
func (w *world) tides() *tides {
	t := new(tides)
	for p := range w.byPort {
		x := &w.byPort[p]
		for i, r := range x.in {
			if r.seen < 0 {
				continue
			}
			for q := range t.rings {
				if f := x.shapes[i]; f.ring == q || f.ring < 0 {
					t.rings[q].add(r.ready, r.freed, buffers(r.size))
				}
			}
		}
		w.backwards(x.out, func(i int, until time.Duration) {
			r := x.out[i]
			if r.fate == turnedOff {
				return
			}
			if r.seen >= 0 {
				until = r.seen
			}
			t.waiting[p].add(r.at, until, 1)
			if board.ByIndex(p).BehindSwitch() {
				t.shared.add(r.at, until, 1)
			}
		})
	}
	for _, m := range w.messages {
		t.rings[0].add(m.at, m.freed, buffers(m.size))
	}
	for q := range t.rings {
		t.rings[q].settle()
	}
	for p := range t.waiting {
		t.waiting[p].settle()
	}
	t.shared.settle()
	return t
}

// switchLimits are the frame limits of a panel port and of the uplink, FCS included.
func (w *world) switchLimits() (panel, uplink int) {
	uplink = 10240
	if !w.plan.card.Choices.DSAUncounted {
		uplink -= 4
	}
	return w.plan.card.SwitchFrame, uplink
}

// cutIn tells whether the switch keeps a frame from coming in at a port.
func (w *world) cutIn(p board.Port, size int) bool {
	panel, uplink := w.switchLimits()
	n := size + fcsBytes
	return p.BehindSwitch() && (n > panel || !w.plan.card.Choices.IngressLimitOnly && n > uplink)
}

// cutOut is the same of one that is to leave.
func (w *world) cutOut(p board.Port, size int) bool {
	panel, uplink := w.switchLimits()
	n := size + fcsBytes
	return p.BehindSwitch() && (n > uplink || !w.plan.card.Choices.IngressLimitOnly && n > panel)
}

// cableIsOut tells whether a cable may have been out between two times.
func (w *world) cableIsOut(p board.Port, from, to time.Duration) bool {
	return anyMeets(w.byPort[p.Index].cable, from, to)
}

// cableIsSurelyOut tells whether a cable was out all the time between two times.
func (w *world) cableIsSurelyOut(p board.Port, from, to time.Duration) bool {
	return slices.ContainsFunc(w.byPort[p.Index].surely, func(s spell) bool { return s.from+onTheWay <= from && to < s.to })
}

// onTheWay is how long a frame that has left may take to its receiver.
const onTheWay = 20 * time.Microsecond

func anyMeets(all []spell, from, to time.Duration) bool {
	return slices.ContainsFunc(all, func(s spell) bool { return s.meets(from, to) })
}

// inward returns what may have kept a frame from coming in, and whether it may have
// come in.
func (w *world) inward(f *flow, r *record, until time.Duration, t *tides) (c cause, may bool) {
	p := f.port
	may = true
	if w.cableIsOut(p, r.at, until) {
		c |= noLink
	}
	if w.cableIsSurelyOut(p, r.at, r.ready) {
		return c, false
	}
	if w.cutIn(p, r.size) {
		return c | tooLong, false
	}
	if f.foreign && !w.plan.card.Choices.ForeignMACToLIF {
		return c | notMine, false
	}
	if anyMeets(w.lifless, r.at, until) {
		c |= noLIF
	}
	if f.foreign {
		return c | notMine, false
	}
	low, high := w.mtuBetween(p, r.at, until)
	head := etherBytes
	if !w.plan.card.Choices.StrictVLAN {
		head += f.shape.vlans() * vlanBytes
	}
	if r.size-head > low {
		c |= aboveMTU
	}
	if r.size-head > high {
		return c, false
	}
	if w.ringMayBeFull(f, r, until, t) {
		c |= ringFull
	}
	return c, may
}

// ringMayBeFull tells whether a frame's ring can have been without credit for it. With
// credit exact, a ring takes a packet of N buffers while at most 1,008 - N others are
// with the host: 1,024 less one batch of 16 (datapath.md 3.7, 3.10).
func (w *world) ringMayBeFull(f *flow, r *record, until time.Duration, t *tides) bool {
	c := &w.plan.card.Choices
	if c.StatusStops || c.CutMidway {
		return true // refused for another reason, or over the rest of one that was
	}
	n := buffers(r.size)
	if w.plan.faults.WaitForCredit > 0 {
		n = buffers(longestFrame) // what waits in front of it
	}
	n += w.mostSkipped // entries that were left out and not found yet
	for q := range wire.OQs {
		if f.ring >= 0 && f.ring != q {
			continue
		}
		if t.rings[q].high(r.ready, until)+n > wire.OQEntries-wire.FetchBatch {
			return true
		}
		if anyMeets(w.shortage[q], r.ready, until) {
			return true
		}
	}
	return false
}

// outward is inward for a frame that was posted.
func (w *world) outward(f *flow, r *record, until time.Duration, t *tides) (c cause, may bool) {
	p := f.port
	may = true
	depth, tide := w.plan.card.Queues.EgressCage, &t.waiting[p.Index]
	if depth == 0 {
		depth = 512
	}
	if p.BehindSwitch() {
		if depth = w.plan.card.Queues.EgressSwitch; depth == 0 {
			depth = 128
		}
		if w.plan.card.Choices.SharedEgress {
			tide = &t.shared
		}
	}
	if tide.high(r.at, until) > depth {
		c |= queueFull
	}
	if anyMeets(w.egress, r.at, until) {
		c |= byFault
	}
	if w.cableIsOut(p, r.at, until) {
		c |= noLink
	}
	if r.seen >= 0 && w.cableIsSurelyOut(p, r.seen, r.seen) {
		return c, false
	}
	if w.cutOut(p, r.size) {
		return c | tooLong, false
	}
	return c, may
}

// counters holds the fast path's 182, as the host reads them, against the books.
func (w *world) counters(in, out losses) {
	var c [msg.CountersSys]uint64
	w.must("read counters", w.channel.SysCounters(bg, &c))
	var ports [msg.CountersPort][msg.CountersPortStride]uint64
	w.must("read port counters", w.channel.PortCounters(bg, &ports))
	var linkIn, tooLongIn, filtered, linkOut, tooLongOut uint64
	for _, p := range board.All() {
		s := w.card.Wire(uint16(p.Tag)).Stats()
		linkIn, tooLongIn, filtered = linkIn+s.LinkDown, tooLongIn+s.SwitchDropped, filtered+s.Filtered
		linkOut, tooLongOut = linkOut+s.OutLinkDown, tooLongOut+s.OutSwitchDropped
	}
	var egress uint64
	for fp := range 3 {
		egress += ports[msg.CounterPortTXQueueFull][fp]
	}
	var byFaults uint64
	for _, s := range w.card.FaultStates() {
		if s.Name == "EgressFull" {
			byFaults = s.Acted
		}
	}
	lifless := c[msg.CntDropLIFIndexInvalid] + c[msg.CntDropLIFLookupNull] + c[msg.CntDropLIFInvalid]
	refused := c[msg.CntTXDropQueueFull] - egress - uint64(w.messagesRefused)
	if err := in.explained(map[cause]uint64{noLink: linkIn, tooLong: tooLongIn, notMine: filtered + c[msg.CntDropLIFNotMyMAC], aboveMTU: c[msg.CntDropMTUExceeded], ringFull: refused, noLIF: lifless}); err != nil {
		w.broke("a counter has a cause", "into the host: %v", err)
	}
	if err := out.explained(map[cause]uint64{noLink: linkOut, tooLong: tooLongOut, queueFull: egress - byFaults, byFault: byFaults}); err != nil {
		w.broke("a counter has a cause", "out of the host: %v", err)
	}

	w.lostBy = [causes]uint64{linkIn + linkOut, tooLongIn + tooLongOut, filtered + c[msg.CntDropLIFNotMyMAC], c[msg.CntDropMTUExceeded], refused, egress - byFaults, byFaults, lifless}

	var sentIn, cameIn, tagged uint64
	for p := range w.byPort {
		for i, r := range w.byPort[p].in {
			sentIn++
			if r.seen >= 0 {
				cameIn++
			}
			if w.byPort[p].shapes[i].shape.vlans() > 0 {
				tagged++
			}
		}
	}
	posts := uint64(w.posts)
	rx := sentIn - linkIn - tooLongIn - filtered
	tx := rx - c[msg.CntDropMTUExceeded] - c[msg.CntDropLIFNotMyMAC] - lifless
	want := map[int]uint64{
		msg.CntRXWire: rx, msg.CntTXKN: tx, msg.CntRXKN: posts, msg.CntFromKNToWire: posts, msg.CntTXWire: posts - egress,
		msg.CntTXDrop: c[msg.CntTXDropQueueFull],
	}
	free := map[int]bool{
		msg.CntTXDropQueueFull: true, msg.CntDropLIFIndexInvalid: true, msg.CntDropLIFLookupNull: true, msg.CntDropLIFInvalid: true,
		msg.CntDropMTUExceeded: true, msg.CntDropLIFNotMyMAC: true, msg.CntToKNForced: true, msg.CntToKNUnknownVLAN: true,
	}
	for i, n := range c {
		if !free[i] && n != want[i] {
			w.broke("sum", "%s is %d, want %d", msg.CounterNames[i], n, want[i])
		}
	}
	w.equal("the reasons for TX_KN", c[msg.CntToKNForced]+c[msg.CntToKNUnknownVLAN], tx)
	if c[msg.CntToKNUnknownVLAN] > tagged {
		w.broke("a counter has a cause", "TO_KN_UNKNOWN_VLAN is %d with %d tagged frames", c[msg.CntToKNUnknownVLAN], tagged)
	}
	w.equal("TX_KN less what rings refused", tx-refused, cameIn)
}

// ofDriver holds the driver's counters against the books.
func (w *world) ofDriver() {
	s := w.rings.Stats()
	var came, whole, dropped, droppedBytes, recycled, untagged, spans, spanBufs, spanMax, bytes uint64
	packet := func(size int) {
		came++
		if n := buffers(size); n > 1 {
			spans++
			spanBufs += uint64(n - 1)
			spanMax = max(spanMax, uint64(size+74))
		}
	}
	for i := range w.flows {
		f := &w.flows[i]
		for j := range f.frames {
			r := &f.frames[j]
			if f.out {
				if r.fate != turnedOff {
					bytes += uint64(max(r.size, leastFrame))
				}
				continue
			}
			if r.seen < 0 {
				continue
			}
			packet(r.size)
			switch r.fate {
			case filtered:
				dropped++
				droppedBytes += uint64(r.size)
				recycled += uint64(buffers(r.size))
			case unowned:
				untagged++
			default:
				whole++
			}
		}
	}
	for _, m := range w.messages {
		if m.seen < 0 {
			w.broke("once", "a statistics message of %d bytes is on ring 0, and nobody took it", m.size)
		}
		packet(m.size)
		untagged++
	}
	w.equal("rx_long", s.Long, uint64(w.longs))
	w.equal("rx_short", s.Short, uint64(w.tooShort))
	came += uint64(w.longs)
	w.equal("rx_done", s.Done, came)
	w.equal("rx_delivered", s.Delivered, whole)
	w.equal("pfil_dropped", s.Dropped, dropped)
	w.equal("pfil_dropped_bytes", s.DroppedBytes, droppedBytes)
	w.equal("pfil_recycled_bufs", s.Recycled, recycled)
	w.equal("rx_untagged", s.Untagged, untagged)
	w.equal("rx_spans", s.Spans, spans)
	w.equal("rx_span_bufs", s.SpanBufs, spanBufs)
	w.equal("rx_span_max", s.SpanMax, spanMax)
	w.equal("credit_returned", s.Returned, came+spanBufs+s.Skipped)
	w.equal("tx_posted", s.TxPosted, uint64(w.posts))
	w.equal("tx_finished", s.TxFinished, uint64(w.posts))
	w.equal("tx_iq_full", s.TxFull, uint64(w.refusals))
	w.equal("tx_posted_bytes", s.TxBytes, bytes)
	w.equal("gather buffers that are free", uint64(s.GatherFree+s.LargeFree), uint64(s.GatherSize+s.LargeSize))

	// What moves for a reason only.
	ch := &w.plan.card.Choices
	gaps := w.was(fSkipEntries) || ch.CutMidway
	if most := uint64(w.tooShort + w.mostSkipped); s.Skipped < uint64(w.tooShort) || s.Skipped > most && !ch.CutMidway {
		w.broke("a counter has a cause", "rx_skipped is %d: %d shorts, and at most %d entries left out", s.Skipped, w.tooShort, w.mostSkipped)
	}
	gaps = gaps || w.tooShort > 0
	unordered := w.plan.late() || w.plan.has("LateData") || w.plan.has("LateLength") || w.plan.has("LateCount")
	short := slices.ContainsFunc(w.shortage[:], func(s []spell) bool { return len(s) > 0 })
	for _, x := range []struct {
		name string
		n    uint64
		may  bool
	}{
		{"rx_span_nobuf", s.SpanNoBuf, false}, {"rx_ghosts", s.Ghosts, gaps},
		{"oq_lapped", s.Lapped, false}, {"tx_bad_count", s.TxBadCount, false}, {"tx_unknown", s.TxUnknown, false},
		{"credit_carry", s.Carry, false}, {"adopt_lost", s.AdoptLost, false}, {"adopt_dup", s.AdoptDup, false},
		{"rx_resync", s.Resync, gaps}, {"rx_skipped", s.Skipped, gaps},
		{"oq_unseen", s.Unseen, gaps || unordered || w.was(fLoseCounts)},
		{"oq_behind", s.Behind, gaps || unordered || w.was(fLoseCounts)},
		{"credit_capped", s.Capped, short || gaps},
	} {
		if x.n > 0 && !x.may {
			w.broke("a counter has a cause", "%s is %d in a world that gives no reason", x.name, x.n)
		}
	}
}

// credit checks what the registers say of rings at rest: every unit of credit is
// back, but for the batch that the card holds.
func (w *world) credit() {
	grant := wire.OQEntries + w.plan.conf.watermark - 16
	bar := w.dev.BAR0()
	for q := range wire.OQs {
		bell := bar.Load64(uint32(csr.OutSlistDBell.Queue(q)))
		have := int(int32(uint32(bell)))
		if have > grant || have < grant-16 && !w.plan.card.Choices.CutMidway { // the rest of a packet that was cut is owed when one comes behind it
			w.broke("credit", "ring %d rests at %d, the grant is %d", q, have, grant)
		}
		if n := uint32(bar.Load64(uint32(csr.OutCnts.Queue(q)))); n != 0 {
			w.broke("rest", "ring %d counts %d packets while nothing is under way", q, n)
		}
		if s := bar.Load64(uint32(csr.OutIntStatus.Queue(q))); s != 0 {
			w.broke("rest", "ring %d: the status is latched, %#x, while nothing is under way", q, s)
		}
	}
}
