package ring

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"oxpd/internal/dma"
	"oxpd/internal/mmio"
	"oxpd/octep/csr"
	"oxpd/ring/wire"
)

// Adoption is what a process found that took live rings over.
type Adoption struct {
	ClocksPerUS uint64 // of the coprocessor, as the handshake said; 0: it has not
	// Handshake is what was noted of one that is not over (NoteHandshake), 0 before it and
	// after SetClocks.
	Handshake uint8
	Watermark int // that the rings were armed with, whatever the configuration says

	// TxLost is how many frames the earlier process had committed to slots and not
	// announced: they are dropped. TxUnfinished is how many announced ones the card
	// has not finished; their slots stay its own until it has.
	TxLost       int
	TxUnfinished int

	Queues [wire.OQs]AdoptedQueue
}

// AdoptedQueue is what was found of one output queue.
type AdoptedQueue struct {
	Waiting  int // packets that the card has written and nobody has taken
	Repeated int // of those, handed on once more: at most so many had been before
	Returned int // buffers whose credit the earlier process had not returned
	Settled  int // packets that it had taken and not acknowledged
}

// Repeated is the sum of the queues'.
func (a *Adoption) Repeated() (n int) {
	for i := range a.Queues {
		n += a.Queues[i].Repeated
	}
	return n
}

// ErrNotLive says that no ring is enabled: there is nothing to adopt. It does not say
// that the card has forgotten the memory of rings that were torn down.
var ErrNotLive = errors.New("ring: no ring is enabled since the coprocessor booted")

// AdoptError says why live rings cannot be taken over. Nothing was written, neither
// to a register nor to memory.
type AdoptError struct {
	Ring  int    // -1: all of them
	Where string // the register, or the memory
	Got   string // what it says
	Want  string // what must be so, by the rest of registers, records and memory
	Err   error  // around ErrRecord: there is no such record, and no Got and Want
}

func (e *AdoptError) Error() string {
	ring := ""
	if e.Ring >= 0 {
		ring = fmt.Sprintf("ring %d: ", e.Ring)
	}
	if e.Err != nil {
		return fmt.Sprintf("ring: adopt: %s%s: %v", ring, e.Where, e.Err)
	}
	return fmt.Sprintf("ring: adopt: %s%s is %s, want %s", ring, e.Where, e.Got, e.Want)
}

// Unwrap returns what an error of another kind led to this one.
func (e *AdoptError) Unwrap() error { return e.Err }

// Hint is what an operator can do.
func (e *AdoptError) Hint() string {
	return "reboot the coprocessor (power cycle the appliance, or reboot the host), then start oxpd; " +
		"until then the card may write to the memory of the earlier run"
}

func mismatch(ring int, reg csr.Reg64, got uint64, want string, args ...any) error {
	return &AdoptError{Ring: ring, Where: reg.String(), Got: fmt.Sprintf("0x%016x", got), Want: fmt.Sprintf(want, args...)}
}

func noRecord(ring int, where string, err error) error {
	return &AdoptError{Ring: ring, Where: where, Err: err}
}

// Bounds of the looks at rings that are being adopted.
const (
	adoptPause = tick / 5
	// adoptCounts is how long counts and packets may disagree: a ring that nobody
	// empties has filled up by then, unless so little comes that most looks find it
	// at rest.
	adoptCounts = 2 * SweepPeriod
	// adoptSlots is how long the card may take to finish what was posted.
	adoptSlots = time.Second
)

// Adopt takes over the rings that an earlier process programmed in this coprocessor
// boot, in the memory that it left: cfg.DMA is a dma.Holder. Nobody else may be using
// them. There is no handshake and no arming: the positions come from the records in
// that memory, are held against the registers and against the packets that lie there,
// and where the sources do not agree it refuses. It takes two milliseconds at least.
//
// What the earlier process had begun is then ended as it would have: buffers that it
// had emptied are poisoned, their credit goes back, their packets are acknowledged.
// The rings go on from there; SetClocks need not be called again once the handshake was
// over. The watermark is the
// one that they were armed with.
//
// Every step may be the last one of this process, too: the next one adopts again.
//
// Errors: ErrNotLive; dma.ErrNotHeld; *AdoptError, around ErrRecord where a record is
// missing or of another version; mmio.ErrGone; the context's. Of each of them the
// memory stays with its provider.
func Adopt(ctx context.Context, cfg Config) (*Rings, Adoption, error) {
	var found Adoption
	r, err := prepare(cfg)
	if err != nil {
		return nil, found, err
	}
	if err := r.checkEnabled(); err != nil {
		return nil, found, err
	}
	held, ok := r.cfg.DMA.(dma.Holder)
	if !ok {
		return nil, found, fmt.Errorf("ring: adopt: %w", dma.ErrNotHeld)
	}
	if err := r.place(held.Held); err != nil {
		return nil, found, fmt.Errorf("ring: adopt %w", err)
	}
	h, err := r.readHeader()
	if err != nil {
		return nil, found, err
	}
	if err := r.checkRegisters(); err != nil {
		return nil, found, err
	}
	a := adopter{r: r, tx: adoptedIQ{q: r.iq}}
	if err := a.locate(); err != nil {
		return nil, found, err
	}
	if err := a.settle(ctx); err != nil {
		return nil, found, err
	}
	found = a.take()
	found.ClocksPerUS, found.Handshake, found.Watermark = uint64(h.Clocks), h.Handshake, int(h.Watermark)
	r.state = stateProgrammed
	r.log.Info("rings adopted", "iq", 1, "oq", wire.OQs, "lost", found.TxLost, "repeated", found.Repeated())
	return r, found, nil
}

func (r *Rings) read(q int, reg csr.RingReg) (uint64, error) {
	v, err := mmio.Checked64(r.cfg.BAR0, reg.Queue(q))
	if err != nil {
		return 0, fmt.Errorf("ring: adopt: read %s: %w", reg.Queue(q), err)
	}
	return v, nil
}

// checkEnabled looks whether the rings run that Program starts.
func (r *Rings) checkEnabled() error {
	var off error
	live := false
	look := func(q int, reg csr.RingReg) error {
		v, err := r.read(q, reg)
		if err != nil {
			return err
		}
		if v&1 != 0 {
			live = true
		} else if off == nil {
			off = mismatch(q, reg.Queue(q), v, "1 as in the other rings: it was never started, or torn down")
		}
		return nil
	}
	if err := look(0, csr.InEnable); err != nil {
		return err
	}
	for q := range wire.OQs {
		if err := look(q, csr.OutEnable); err != nil {
			return err
		}
	}
	if !live {
		return ErrNotLive
	}
	return off
}

// readHeader takes what the earlier process wrote down for all rings.
func (r *Rings) readHeader() (h Header, err error) {
	b, err := newest(r.header.mem)
	if err == nil {
		err = h.decode(b)
	}
	if err != nil {
		return h, noRecord(-1, "header of the records", err)
	}
	r.header.seq = binary.LittleEndian.Uint64(b[recSeq:])
	differs := func(what string, got, want any) error {
		return &AdoptError{Ring: -1, Where: what, Got: fmt.Sprintf("%+v", got), Want: fmt.Sprintf("%+v", want)}
	}
	switch g := geometry(); {
	case h.Geometry != g:
		return h, differs("geometry of the earlier process", h.Geometry, g)
	case !validWatermark(int(h.Watermark)):
		return h, differs("watermark of the earlier process", h.Watermark, "a multiple of 16")
	case h.Regions != r.regionSum():
		return h, differs("checksum of the earlier process's bus addresses", h.Regions, r.regionSum())
	}
	if int(h.Watermark) != r.cfg.Watermark {
		r.log.Warn("rings keep the watermark that they were armed with", "watermark", h.Watermark, "configured", r.cfg.Watermark)
	}
	r.setWatermark(int(h.Watermark))
	return h, nil
}

// checkRegisters holds what Program wrote against what is there, and the lists
// against the buffers.
func (r *Rings) checkRegisters() error {
	const in, out = csr.InControlRDSize3 | csr.InControlIs64B | csr.InControlESR, csr.OutControlESP | wire.BufSize
	inMask := csr.InControlRDSize.Mask() | csr.InControlIs64B | csr.InControlESR
	if err := r.checkRegister(0, csr.InControl, inMask, in); err != nil {
		return err
	}
	if err := r.checkRegister(0, csr.InInstrBaddr, csr.AllOnes, uint64(r.iq.instr.Bus())); err != nil {
		return err
	}
	if err := r.checkRegister(0, csr.InInstrRsize, csr.AllOnes, wire.IQSlots); err != nil {
		return err
	}
	for q, o := range r.oqs {
		outMask := uint64(csr.OutControlSizes | csr.OutControlIMode | csr.OutControlAttrs)
		if err := r.checkRegister(q, csr.OutControl, outMask, out); err != nil {
			return err
		}
		if err := r.checkRegister(q, csr.OutSlistBaddr, csr.AllOnes, uint64(o.list.Bus())); err != nil {
			return err
		}
		if err := r.checkRegister(q, csr.OutSlistRsize, csr.AllOnes, wire.OQEntries); err != nil {
			return err
		}
		for i := range uint32(wire.OQEntries) {
			e, _ := o.list.At(int(i)*wire.ListEntry, wire.ListEntry)
			_, bus := o.buffer(i)
			if got, _ := wire.DecodeListEntry(e); got != uint64(bus) {
				return &AdoptError{Ring: q, Where: fmt.Sprintf("entry %d of the buffer list", i), Got: fmt.Sprintf("%#x", got), Want: fmt.Sprintf("%#x", uint64(bus))}
			}
		}
	}
	return nil
}

func (r *Rings) checkRegister(q int, reg csr.RingReg, mask, want uint64) error {
	v, err := r.read(q, reg)
	if err != nil {
		return err
	}
	if v&mask != want {
		return mismatch(q, reg.Queue(q), v, "%#x in the bits %#x", want, mask)
	}
	return nil
}

// adopter is an adoption under way: it reads until everything is decided, and writes
// only then.
type adopter struct {
	r  *Rings
	tx adoptedIQ
	rx [wire.OQs]adoptedOQ
}

// locate finds the positions of all queues.
func (a *adopter) locate() error {
	if err := a.tx.locate(a.r); err != nil {
		return err
	}
	for q, o := range a.r.oqs {
		a.rx[q].o = o
		if err := a.rx[q].locate(a.r); err != nil {
			return err
		}
	}
	return nil
}

// settle looks until the counts of each queue are decided.
func (a *adopter) settle(ctx context.Context) error {
	start := a.r.cfg.Clock.Now()
	for {
		now := a.r.cfg.Clock.Now()
		late := now-start >= adoptCounts
		undecided := error(nil)
		for q := range a.rx {
			why, err := a.rx[q].look(a.r, now)
			if err != nil {
				return err
			}
			if undecided == nil {
				undecided = why
			}
		}
		busy, err := a.tx.look(a.r, now-start >= adoptSlots)
		switch {
		case err != nil:
			return err
		case undecided == nil && !busy:
			return nil
		case undecided != nil && late:
			return undecided
		}
		if err := a.r.cfg.Clock.Sleep(ctx, adoptPause); err != nil {
			return fmt.Errorf("ring: adopt: wait for the counts: %w", err)
		}
	}
}

// take ends what the earlier process had begun, and says what that was.
func (a *adopter) take() (found Adoption) {
	found.TxLost, found.TxUnfinished = a.tx.take()
	for q := range a.rx {
		found.Queues[q] = a.rx[q].take(a.r.cfg.Clock.Now())
	}
	return found
}

// newestOf reads the newest record of a queue and the mark that goes with it; an old
// mark is none.
func newestOf(rec *recorder, kind uint8, ring int) (Record, mark, error) {
	where := fmt.Sprintf("record of output queue %d", ring)
	if kind == KindIQ {
		where = "record of the input queue"
	}
	got, err := NewestRecord(rec.mem)
	if err != nil {
		return got, mark{}, noRecord(ring, where, err)
	}
	if got.Kind != kind || int(got.Ring) != ring {
		return got, mark{}, &AdoptError{Ring: ring, Where: where, Got: fmt.Sprintf("of kind %d, ring %d", got.Kind, got.Ring), Want: fmt.Sprintf("kind %d, ring %d", kind, ring)}
	}
	rec.seq = got.Seq
	m, seq := decodeMark(binary.LittleEndian.Uint64(rec.at[:]))
	switch ahead := int32(seq - uint32(got.Seq)); {
	case ahead > 0:
		return got, m, &AdoptError{Ring: ring, Where: where, Got: fmt.Sprintf("number %d", uint32(got.Seq)), Want: fmt.Sprintf("%d, which the mark goes with", seq)}
	case ahead < 0:
		m = mark{}
	}
	return got, m, nil
}

// adoptedIQ is the input queue being adopted. Doorbell and IN_CNTS alone say what the
// card was told and what it has done, modulo the ring: a burst is never as long.
type adoptedIQ struct {
	q         *IQ
	rec       Record
	mark      mark
	announced uint64
	finished  uint64
	last      uint32
}

func (t *adoptedIQ) locate(r *Rings) (err error) {
	if t.rec, t.mark, err = newestOf(&t.q.rec, KindIQ, 0); err != nil {
		return err
	}
	if out := t.rec.Posted - t.rec.Finished; out > iqRoom || t.mark.packets > iqRoom {
		return &AdoptError{Ring: 0, Where: "record of the input queue", Got: fmt.Sprintf("%d posted, %d finished, %d to be posted", t.rec.Posted, t.rec.Finished, t.mark.packets),
			Want: fmt.Sprintf("at most %d outstanding", iqRoom)}
	}
	_, err = t.look(r, false)
	return err
}

// look reads the registers. busy says that instructions are outstanding, and that
// time is left to wait for them.
func (t *adoptedIQ) look(r *Rings, late bool) (busy bool, err error) {
	cnts, err := r.read(0, csr.InCnts) // before the doorbell: finished is never ahead of fetched
	if err != nil {
		return false, err
	}
	bell, err := r.read(0, csr.InInstrDBell)
	if err != nil {
		return false, err
	}
	waiting, at := csr.DBellCount.Get(bell), csr.DBellPosition.Get(bell)
	burst := (at/wire.InstrSize + waiting - t.rec.Posted) & iqMask
	if at%wire.InstrSize != 0 || at >= wire.IQSlots*wire.InstrSize || burst != 0 && burst != uint64(t.mark.packets) || waiting > t.rec.Posted+burst-t.rec.Finished {
		return false, mismatch(0, csr.InInstrDBell.Queue(0), bell, "position and count that make %d instructions modulo %d, as recorded, or %d more", t.rec.Posted&iqMask, wire.IQSlots, t.mark.packets)
	}
	t.announced = t.rec.Posted + burst
	t.last = uint32(csr.CntsCount.Get(cnts))
	t.finished = t.rec.Finished + uint64((t.last-t.rec.Last)&(cntsFold-1))
	if t.finished > t.announced-waiting || t.announced-t.finished > iqRoom {
		return false, mismatch(0, csr.InCnts.Queue(0), cnts, "a count that makes %d to %d instructions finished, modulo 2^31; %d were at %#x", t.announced-min(t.announced, iqRoom), t.announced-waiting, t.rec.Finished, t.rec.Last)
	}
	switch {
	case t.finished == t.announced || late && waiting > 0:
		return false, nil
	case late:
		return false, mismatch(0, csr.InCnts.Queue(0), cnts, "%d instructions finished, as the doorbell says that all are fetched; it makes %d for %v", t.announced, t.finished, adoptSlots)
	}
	return true, nil
}

// take goes on behind the last instruction that the card knows of.
func (t *adoptedIQ) take() (lost, unfinished int) {
	q := t.q
	if t.announced == t.rec.Posted {
		lost = int(t.mark.packets)
	}
	unfinished = int(t.announced - t.finished)
	q.Lock()
	defer q.Unlock()
	q.total, q.done, q.last = t.announced, t.finished, t.last
	q.posted, q.finished = uint32(t.announced), uint32(t.finished)
	q.inherited = uint32(unfinished)
	q.cnt.adoptLost.Add(uint64(lost))
	q.record()
	return lost, unfinished
}

// adoptedOQ is an output queue being adopted.
//
// The doorbell tells to the buffer how much credit was returned: it shows the first
// grant + returned - fetched, and its upper half shows fetched, both modulo the ring,
// in one load. Credit comes before the acknowledgement (rule 4), so one that went back
// leaves open only whether OUT_CNTS still counts the packets of the pass. That shows
// against the packets that lie in memory behind them.
type adoptedOQ struct {
	o        *OQ
	rec      Record
	mark     mark
	end      uint64 // entries that were handed on: the queue goes on here
	returned uint64

	seen    uint32 // entries from end on that hold whole packets
	packets int    // in those
	surplus int    // OUT_CNTS less packets, at the last look
	since   time.Duration
	looked  bool
	decided bool
}

func (t *adoptedOQ) locate(r *Rings) (err error) {
	o := t.o
	if t.rec, t.mark, err = newestOf(&o.rec, KindOQ, o.n); err != nil {
		return err
	}
	t.end = t.rec.Read + uint64(t.mark.entries)
	if t.rec.Returned+uint64(t.rec.Carry) != t.rec.Read || t.end-t.rec.Returned > wire.OQEntries || t.rec.Debt > 1<<30 {
		return &AdoptError{Ring: o.n, Where: fmt.Sprintf("record of output queue %d", o.n),
			Got:  fmt.Sprintf("%d entries read, credit for %d returned and for %d owed, %d more handed on", t.rec.Read, t.rec.Returned, t.rec.Carry, t.mark.entries),
			Want: "the first to be the sum of the next two, and no more owed than the ring has"}
	}
	_, err = t.credit(r)
	return err
}

// credit reads the doorbell and finds what was returned. It returns how many entries
// the card has fetched.
func (t *adoptedOQ) credit(r *Rings) (fetched uint64, err error) {
	o := t.o
	bell, err := r.read(o.n, csr.OutSlistDBell)
	if err != nil {
		return 0, err
	}
	credit, at := int64(int32(csr.DBellCount.Get(bell))), csr.DBellPosition.Get(bell)
	// fetched = grant + returned - credit, and at is fetched modulo the ring.
	gave := (at/wire.ListEntry + uint64(credit) - uint64(o.grant) - t.rec.Returned) & oqMask
	owed := t.end - t.rec.Returned
	t.returned = t.rec.Returned + gave
	fetched = uint64(o.grant) + t.returned - uint64(credit)
	switch {
	case at%(wire.FetchBatch*wire.ListEntry) != 0 || at >= wire.OQEntries*wire.ListEntry,
		gave != 0 && gave != min(owed, oqMask) && (t.rec.Carry == 0 || gave > owed):
		return 0, mismatch(o.n, csr.OutSlistDBell.Queue(o.n), bell, "position and credit that make %d buffers returned, as recorded, or %d more; they make %d more, modulo %d", t.rec.Returned, owed, gave, wire.OQEntries)
	case fetched < t.end || fetched > t.returned+wire.OQEntries || credit > int64(o.grant):
		return 0, mismatch(o.n, csr.OutSlistDBell.Queue(o.n), bell, "credit that leaves %d to %d entries fetched", t.end, t.returned+wire.OQEntries)
	}
	return fetched, nil
}

// look compares count and packets once. why says what they are undecided about, nil
// when nothing; err is what waiting does not mend.
func (t *adoptedOQ) look(r *Rings, now time.Duration) (why, err error) {
	if t.decided {
		return nil, nil
	}
	o := t.o
	before, err := r.read(o.n, csr.OutCnts)
	if err != nil {
		return nil, err
	}
	t.scan()
	after, err := r.read(o.n, csr.OutCnts)
	if err != nil {
		return nil, err
	}
	returned := t.returned
	fetched, err := t.credit(r)
	switch {
	case err != nil:
		return nil, err
	case t.returned != returned:
		return nil, mismatch(o.n, csr.OutSlistDBell.Queue(o.n), t.returned, "%d returned as a moment ago: somebody else uses the rings", returned)
	case t.end+uint64(t.seen) > fetched:
		return nil, &AdoptError{Ring: o.n, Where: "memory", Got: fmt.Sprintf("written up to entry %d", t.end+uint64(t.seen)), Want: fmt.Sprintf("at most %d, as fetched by %s", fetched, csr.OutSlistDBell.Queue(o.n))}
	}
	count := int(csr.CntsCount.Get(after))
	surplus := count - t.packets
	why = mismatch(o.n, csr.OutCnts.Queue(o.n), after, "%d packets that lie in memory from entry %d on, and %s", t.packets, t.end&oqMask, t.unacknowledged())
	switch {
	case csr.CntsCount.Get(before) != uint64(count): // the packets may be those of either
	case !t.looked || surplus != t.surplus:
		t.looked, t.surplus, t.since = true, surplus, now
	case now-t.since >= twoTicks && t.allows(surplus):
		t.decided, why = true, nil
	}
	return why, nil
}

// scan walks by packets on from where the last look ended, over entries that are not
// the driver's.
func (t *adoptedOQ) scan() {
	for limit := uint32(t.returned + wire.OQEntries - t.end); t.seen < limit; t.packets++ {
		n, ok := packet(t.o.word(uint32(t.end) + t.seen))
		if !ok || uint32(n) > limit-t.seen {
			return
		}
		t.seen += uint32(n)
	}
}

// allows tells whether the count may be ahead of the packets by so many: those that
// were handed on and not acknowledged.
func (t *adoptedOQ) allows(surplus int) bool {
	pass, owed := int(t.mark.packets), t.end-t.rec.Returned
	switch {
	case surplus < 0:
		return false
	case t.mark.loose || t.rec.Debt > 0:
		return surplus <= pass+int(t.rec.Debt)
	case t.returned == t.rec.Returned && owed > 0 && t.rec.Carry == 0:
		return surplus == pass // no credit yet, so no acknowledgement either
	}
	return surplus == 0 || surplus == pass
}

func (t *adoptedOQ) unacknowledged() string {
	pass, debt := int(t.mark.packets), int(t.rec.Debt)
	switch {
	case t.mark.loose || debt > 0:
		return fmt.Sprintf("up to %d more", pass+debt)
	case pass > 0:
		return fmt.Sprintf("%d more unless they are acknowledged", pass)
	}
	return "no more"
}

// take ends the earlier pass: poison, credit, acknowledge, record.
func (t *adoptedOQ) take(now time.Duration) AdoptedQueue {
	o := t.o
	owed := uint32(t.end - t.returned)
	for i := range owed {
		o.poison(uint32(t.returned) + i)
	}
	o.read, o.entries = uint32(t.end), t.end
	o.taken = t.rec.Taken + uint64(t.mark.packets)
	o.returned = t.returned
	if owed > 0 {
		mmio.Barrier() // poison before credit
		mmio.Store32(o.regs, o.bell.Low(), owed)
		o.returned += uint64(owed)
	}
	if t.surplus > 0 {
		mmio.Store32(o.regs, o.cnts.Low(), uint32(t.surplus))
	}
	if t.mark.loose || t.rec.Debt > 0 {
		if due := int(t.mark.packets) + int(t.rec.Debt) - t.surplus; due > 0 {
			o.debt.add(due, now)
		}
	}
	o.doubt = true
	o.cnt.adoptDup.Add(uint64(t.mark.frames))
	o.record()
	return AdoptedQueue{Waiting: t.packets, Repeated: int(t.mark.frames), Returned: int(owed), Settled: t.surplus}
}
