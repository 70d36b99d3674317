package ring

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"sync"
	"time"

	"oxpd/internal/dma"
	"oxpd/internal/mmio"
	"oxpd/octep/csr"
	"oxpd/ring/wire"
)

// Clock is the time that rings live in.
type Clock interface {
	Now() time.Duration
	Sleep(ctx context.Context, d time.Duration) error
}

// Config is what the rings need. BAR0, DMA, Clock and Sink are required.
type Config struct {
	BAR0  mmio.Space
	DMA   dma.Provider
	Clock Clock
	Sink  Sink
	Judge Judge        // nil passes everything
	Log   *slog.Logger // nil discards
	// Counters go on from those of earlier rings, which are not served any more;
	// nil counts from 0.
	Counters *Counters

	// Watermark is the firmware's credit watermark, which the host cannot read;
	// 0 means wire.Watermark.
	Watermark int
	// GatherFrames and GatherLarge bound the gather pool, in buffers of 9,216 and
	// of 16,384 bytes; 0 means 512 and 64.
	GatherFrames int
	GatherLarge  int
	// PacketLevel and LevelTime are the interrupt levels; 0 means 1 packet and
	// 50 us.
	PacketLevel int
	LevelTime   time.Duration
}

// Rings are the input queue and the eight output queues of the PF.
type Rings struct {
	cfg     Config
	log     *slog.Logger
	iq      *IQ
	oqs     []*OQ
	pool    *pool
	regions []*dma.Region
	state   state
	header  recorder // of Header; no marks

	memory sync.Mutex // held while a reader of counters is in the memory of the rings
	freed  bool       // by Free: there is none any more
}

type state uint8

const (
	stateNew state = iota
	stateProgrammed
	stateStopped
	stateDown
)

const regionAlign = 4096 // rings: measured to suffice (endpoint.md 9)

// New allocates and fills all ring memory; no register is touched. The memory
// stays allocated until Free.
func New(cfg Config) (*Rings, error) {
	r, err := prepare(cfg)
	if err != nil {
		return nil, err
	}
	if err := r.place(r.cfg.DMA.Alloc); err != nil {
		return nil, errors.Join(fmt.Errorf("ring: allocate %w", err), r.Free())
	}
	for _, o := range r.oqs {
		o.fill()
	}
	return r, nil
}

// prepare checks a configuration, fills in what it leaves out, and returns rings
// without memory.
func prepare(cfg Config) (*Rings, error) {
	if cfg.BAR0 == nil || cfg.DMA == nil || cfg.Clock == nil || cfg.Sink == nil {
		return nil, errors.New("ring: config lacks BAR0, DMA, Clock or Sink")
	}
	if cfg.Watermark == 0 {
		cfg.Watermark = wire.Watermark
	}
	if !validWatermark(cfg.Watermark) {
		return nil, fmt.Errorf("ring: watermark %d: want a multiple of %d up to %d", cfg.Watermark, wire.FetchBatch, maxWatermark)
	}
	cfg.GatherFrames = orDefault(cfg.GatherFrames, 512)
	cfg.GatherLarge = orDefault(cfg.GatherLarge, 64)
	cfg.PacketLevel = orDefault(cfg.PacketLevel, 1)
	if cfg.LevelTime == 0 {
		cfg.LevelTime = 50 * time.Microsecond
	}
	if cfg.Judge == nil {
		cfg.Judge = JudgeFunc(func([]byte, int, uint16) Verdict { return Pass })
	}
	if cfg.Counters == nil {
		cfg.Counters = NewCounters()
	}
	cfg.Counters.restart()
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	return &Rings{cfg: cfg, log: cfg.Log, pool: newPool(cfg.GatherFrames, cfg.GatherLarge)}, nil
}

const maxWatermark = 1 << 20

func validWatermark(w int) bool {
	return w >= wire.FetchBatch && w%wire.FetchBatch == 0 && w <= maxWatermark
}

func orDefault(v, d int) int {
	if v == 0 {
		return d
	}
	return v
}

// Needs are the regions that New allocates, in its order. No region is larger than a
// hugepage of 2 MiB: nothing that the card is told about crosses from one into another.
func Needs() []dma.Need {
	needs := []dma.Need{{Size: recordsSize, Align: regionAlign}}
	for range wire.OQs {
		needs = append(needs, dma.Need{Size: wire.OQEntries * wire.ListEntry, Align: regionAlign}, dma.Need{Size: wire.OQEntries * wire.BufStride, Align: regionAlign})
	}
	needs = append(needs, dma.Need{Size: wire.IQSlots * wire.InstrSize, Align: regionAlign})
	for range wire.IQSlots / slotsPerRegion {
		needs = append(needs, dma.Need{Size: slotsPerRegion * wire.SlotStride, Align: regionAlign})
	}
	return needs
}

// place makes the queues out of the regions that get returns, asked by name in the
// order of Needs. What lies in them is not touched.
func (r *Rings) place(get func(name string, size, align int) (*dma.Region, error)) error {
	var errs []error // a region that cannot be had ends it: no further one is asked for
	region := func(name string, size int) *dma.Region {
		if len(errs) > 0 {
			return nil
		}
		reg, err := get(name, size, regionAlign)
		if err == nil && reg.Size() != size {
			err = fmt.Errorf("%d bytes, want %d", reg.Size(), size)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
			return nil
		}
		r.regions = append(r.regions, reg)
		return reg
	}
	records := region("records", recordsSize)
	for q := range wire.OQs {
		o := &OQ{
			n: q, regs: r.cfg.BAR0, judge: r.cfg.Judge, sink: r.cfg.Sink, pool: r.pool, clock: r.cfg.Clock,
			cnts: csr.OutCnts.Queue(q), status: csr.OutIntStatus.Queue(q), bell: csr.OutSlistDBell.Queue(q),
			cnt: &r.cfg.Counters.oqs[q].oqCounters, inst: r.cfg.Counters.oqs[q].inst,
		}
		o.list = region(fmt.Sprintf("oq%d list", q), wire.OQEntries*wire.ListEntry)
		o.bufs = region(fmt.Sprintf("oq%d buffers", q), wire.OQEntries*wire.BufStride)
		r.oqs = append(r.oqs, o)
	}
	r.setWatermark(r.cfg.Watermark)
	// After the output queues, whose buffers leave room in their pages.
	r.iq = &IQ{
		regs: r.cfg.BAR0, cnt: &r.cfg.Counters.iq,
		bell: csr.InInstrDBell.Queue(0).Low(), cnts: csr.InCnts.Queue(0),
	}
	r.iq.instr = region("iq0 instructions", wire.IQSlots*wire.InstrSize)
	for i := range r.iq.slots {
		r.iq.slots[i] = region(fmt.Sprintf("iq0 slots from %d", i*slotsPerRegion), slotsPerRegion*wire.SlotStride)
	}
	if len(errs) > 0 {
		return errs[0]
	}
	r.header, r.iq.rec = recorderAt(records, recordHeader), recorderAt(records, recordIQ)
	for q, o := range r.oqs {
		o.rec = recorderAt(records, recordOQ+q)
	}
	return nil
}

// setWatermark sets what the output queues may be granted.
func (r *Rings) setWatermark(w int) {
	r.cfg.Watermark = w
	for _, o := range r.oqs {
		o.grant = int32(wire.Grant(wire.OQEntries, w))
		o.ceiling.Store(o.grant)
	}
}

// recorderAt is the i-th of the region of records.
func recorderAt(records *dma.Region, i int) recorder {
	mem, _ := records.At(i*2*RecordSize, 2*RecordSize)
	at, _ := records.At(recordMarks+i*markStride, 8)
	return recorder{mem: mem, at: (*[8]byte)(at)}
}

// fill writes the buffer list, which never changes again, and poisons every buffer.
func (o *OQ) fill() {
	for i := range uint32(wire.OQEntries) {
		_, bus := o.buffer(i)
		e, _ := o.list.At(int(i)*wire.ListEntry, wire.ListEntry)
		wire.PutListEntry(e, uint64(bus))
		o.poison(i)
	}
}

// IQ returns the input queue.
func (r *Rings) IQ() *IQ { return r.iq }

// OQ returns output queue q.
func (r *Rings) OQ(q int) *OQ { return r.oqs[q] }

// SetCeiling changes the credit that output queue q's doorbell may show, for
// tests of a starved ring. It never raises it above the grant.
func (r *Rings) SetCeiling(q, ceiling int) {
	o := r.oqs[q]
	o.ceiling.Store(min(int32(ceiling), o.grant))
}

// ErrLive says that the card's rings are enabled already: somebody programmed
// them since the coprocessor booted. They are never moved (rule 6).
var ErrLive = errors.New("ring: rings are live since the coprocessor booted; adopt them or reboot the coprocessor")

// RegisterError says that a register did not do what was asked of it.
type RegisterError struct {
	Ring int
	Reg  csr.Reg64
	Want string
	Got  uint64
}

func (e *RegisterError) Error() string {
	return fmt.Sprintf("ring: ring %d: %s=0x%016x, want %s", e.Ring, e.Reg, e.Got, e.Want)
}

// Bounds of the waits while programming (endpoint.md 7.1).
const (
	idlePoll      = 10 * time.Microsecond
	idleMain      = 10 * time.Millisecond
	idleOther     = time.Second
	baseTries     = 8
	basePause     = time.Millisecond
	drainDeadline = 10 * time.Millisecond
)

// Program sets all rings up in the order of endpoint.md 7.1, steps 3 to 8: once
// per coprocessor boot, before the handshake. No ring is enabled before every
// one has taken its addresses, and no register is written when memory does not lie
// where it did when it was allocated. Errors: ErrLive, dma.ErrMoved, mmio.ErrGone,
// *RegisterError, the context's.
func (r *Rings) Program(ctx context.Context) error {
	if r.state != stateNew {
		return errors.New("ring: programmed before")
	}
	for q := range wire.OQs {
		for _, reg := range []csr.RingReg{csr.InEnable, csr.OutEnable} {
			v, err := mmio.Checked64(r.cfg.BAR0, reg.Queue(q))
			if err != nil {
				return fmt.Errorf("ring: look at ring %d: %w", q, err)
			}
			if v&1 != 0 {
				return fmt.Errorf("%w (%s=%#x)", ErrLive, reg.Queue(q), v)
			}
		}
	}
	for _, reg := range r.regions {
		if err := reg.Check(); err != nil {
			return fmt.Errorf("ring: program: %w", err)
		}
	}
	for q := range wire.OQs {
		if err := r.clear(ctx, q); err != nil {
			return err
		}
	}
	for q := range wire.OQs {
		if err := r.address(ctx, q); err != nil {
			return err
		}
	}
	r.writeHeader(0, 0)
	if err := r.enableIn(ctx); err != nil {
		return err
	}
	for q := range wire.OQs {
		r.enableOut(q)
	}
	r.state = stateProgrammed
	r.log.Info("rings programmed", "iq", 1, "oq", wire.OQs, "grant", wire.Grant(wire.OQEntries, r.cfg.Watermark))
	return nil
}

func (r *Rings) store(reg csr.RingReg, q int, v uint64) { mmio.Store64(r.cfg.BAR0, reg.Queue(q), v) }

func (r *Rings) update(reg csr.RingReg, q int, clearBits, setBits uint64) error {
	v, err := mmio.Checked64(r.cfg.BAR0, reg.Queue(q))
	if err != nil {
		return fmt.Errorf("ring: read %s: %w", reg.Queue(q), err)
	}
	r.store(reg, q, v&^clearBits|setBits)
	return nil
}

// clear puts both halves of ring q into their reset state by hand, once they are
// idle (F26); the hardware has no reset per ring.
func (r *Rings) clear(ctx context.Context, q int) error {
	b := r.cfg.BAR0
	r.store(csr.InEnable, q, 0)
	r.store(csr.OutEnable, q, 0)
	if err := r.waitBits(ctx, q, csr.InControl, csr.InControlIdle, idleBound(q)); err != nil {
		return err
	}
	if err := r.waitBits(ctx, q, csr.OutControl, csr.OutControlIdle, idleBound(q)); err != nil {
		return err
	}
	for _, reg := range []csr.RingReg{csr.InInstrBaddr, csr.InInstrRsize, csr.OutSlistBaddr, csr.OutSlistRsize} {
		r.store(reg, q, 0)
	}
	mmio.Store32(b, csr.InInstrDBell.Queue(q).Low(), csr.DBellDrain)
	mmio.Store32(b, csr.OutSlistDBell.Queue(q).Low(), csr.DBellDrain)
	for _, reg := range []csr.RingReg{csr.InCnts, csr.OutCnts} {
		v, err := mmio.Checked64(b, reg.Queue(q))
		if err != nil {
			return fmt.Errorf("ring: read %s: %w", reg.Queue(q), err)
		}
		mmio.Store32(b, reg.Queue(q).Low(), uint32(csr.CntsCount.Get(v))) // subtracts itself
	}
	for _, reg := range []csr.RingReg{csr.InIntLevels, csr.OutIntLevels, csr.InPktCnt, csr.InByteCnt, csr.OutPktCnt, csr.OutByteCnt} {
		r.store(reg, q, 0)
	}
	if err := r.update(csr.InControl, q, csr.InControlRDSize.Mask(), csr.InControlRDSize3|csr.InControlIs64B|csr.InControlESR); err != nil {
		return err
	}
	return r.update(csr.OutControl, q, csr.OutControlIMode|csr.OutControlAttrs, csr.OutControlESP)
}

// address gives both halves of ring q their addresses, sizes and levels. Only
// ring 0 transmits.
func (r *Rings) address(ctx context.Context, q int) error {
	if q == 0 {
		if err := r.waitBits(ctx, q, csr.InControl, csr.InControlIdle, idleBound(q)); err != nil {
			return err
		}
		if err := r.sticky(ctx, q, csr.InInstrBaddr, uint64(r.iq.instr.Bus())); err != nil {
			return err
		}
		if err := r.sticky(ctx, q, csr.InInstrRsize, wire.IQSlots); err != nil {
			return err
		}
	}
	r.store(csr.InIntLevels, q, csr.IntLevelNever)
	if err := r.waitBits(ctx, q, csr.OutControl, csr.OutControlIdle, idleBound(q)); err != nil {
		return err
	}
	if err := r.sticky(ctx, q, csr.OutSlistBaddr, uint64(r.oqs[q].list.Bus())); err != nil {
		return err
	}
	if err := r.sticky(ctx, q, csr.OutSlistRsize, wire.OQEntries); err != nil {
		return err
	}
	if err := r.update(csr.OutControl, q, csr.OutControlSizes, csr.OutControlBSize.Put(0, wire.BufSize)); err != nil {
		return err
	}
	r.store(csr.OutIntLevels, q, csr.OutIntLevelPkts.Put(0, uint64(r.cfg.PacketLevel)))
	return nil
}

// idleBound is how long ring q gets to become idle.
func idleBound(q int) time.Duration {
	if q == 0 {
		return idleMain
	}
	return idleOther
}

// waitBits waits until all of bits are set in a register.
func (r *Rings) waitBits(ctx context.Context, q int, reg csr.RingReg, bits uint64, bound time.Duration) error {
	deadline := r.cfg.Clock.Now() + bound
	for {
		late := r.cfg.Clock.Now() >= deadline // before the look, so that there is one past the deadline
		v, err := mmio.Checked64(r.cfg.BAR0, reg.Queue(q))
		switch {
		case err != nil:
			return fmt.Errorf("ring: wait for %s: %w", reg.Queue(q), err)
		case v&bits == bits:
			return nil
		case late:
			return &RegisterError{q, reg.Queue(q), fmt.Sprintf("bits %#x set within %v", bits, bound), v}
		}
		if err := r.cfg.Clock.Sleep(ctx, idlePoll); err != nil {
			return fmt.Errorf("ring: wait for %s: %w", reg.Queue(q), err)
		}
	}
}

// sticky writes a register until it reads back as written: a base address
// written while the block is not ready is ignored.
func (r *Rings) sticky(ctx context.Context, q int, reg csr.RingReg, want uint64) error {
	var got uint64
	for try := range baseTries {
		if try > 0 {
			if err := r.cfg.Clock.Sleep(ctx, basePause); err != nil {
				return fmt.Errorf("ring: write %s: %w", reg.Queue(q), err)
			}
		}
		r.store(reg, q, want)
		var err error
		if got, err = mmio.Checked64(r.cfg.BAR0, reg.Queue(q)); err != nil {
			return fmt.Errorf("ring: write %s: %w", reg.Queue(q), err)
		}
		if got == want {
			return nil
		}
	}
	return &RegisterError{q, reg.Queue(q), fmt.Sprintf("%#x, written %d times", want, baseTries), got}
}

func (r *Rings) enableIn(ctx context.Context) error {
	bell := csr.InInstrDBell.Queue(0)
	mmio.Store32(r.cfg.BAR0, bell.Low(), csr.DBellDrain)
	deadline := r.cfg.Clock.Now() + drainDeadline
	for {
		late := r.cfg.Clock.Now() >= deadline
		v, err := mmio.Checked64(r.cfg.BAR0, bell)
		if err != nil {
			return fmt.Errorf("ring: drain %s: %w", bell, err)
		}
		if csr.DBellCount.Get(v) == 0 { // the high half keeps the fetch position
			break
		}
		if late {
			return &RegisterError{0, bell, "low half 0 after a drain", v}
		}
		if err := r.cfg.Clock.Sleep(ctx, idlePoll); err != nil {
			return fmt.Errorf("ring: drain %s: %w", bell, err)
		}
	}
	v, err := mmio.Checked64(r.cfg.BAR0, csr.InCnts.Queue(0))
	if err != nil {
		return fmt.Errorf("ring: read %s: %w", csr.InCnts.Queue(0), err)
	}
	r.iq.last = uint32(csr.CntsCount.Get(v))
	r.iq.record()
	r.store(csr.InEnable, 0, 1)
	return nil
}

// enableOut drains, enables, and only then grants: a drain value written after
// the enable is a grant of four billion buffers.
func (r *Rings) enableOut(q int) {
	bell := csr.OutSlistDBell.Queue(q).Low()
	mmio.Store32(r.cfg.BAR0, bell, csr.DBellDrain)
	r.oqs[q].record()
	r.store(csr.OutEnable, q, 1)
	mmio.Barrier() // list and poison before the grant
	mmio.Store32(r.cfg.BAR0, bell, uint32(r.oqs[q].ceiling.Load()))
}

// SetClocks writes the interrupt levels anew with the time part, once the
// handshake has told the coprocessor's clocks per microsecond, and keeps those for a
// process that takes the rings over. It is safe on live rings.
func (r *Rings) SetClocks(clocksPerUS uint64) error {
	ticks := csr.TimeTicks(clocksPerUS, uint64(r.cfg.LevelTime/time.Microsecond))
	if ticks >= 1<<csr.OutIntLevelTicks.Width {
		return fmt.Errorf("ring: %d clocks per microsecond give a time level of %d ticks", clocksPerUS, ticks)
	}
	v := csr.OutIntLevelTicks.Put(csr.OutIntLevelPkts.Put(0, uint64(r.cfg.PacketLevel)), ticks)
	for q := range wire.OQs {
		r.store(csr.OutIntLevels, q, v)
	}
	r.writeHeader(uint32(clocksPerUS), 0) // the handshake says it in 16 bits
	return nil
}

// NoteHandshake writes down, for a process that takes the rings over, how far the
// handshake has come: a step of whoever makes it, not 0, and the clocks once they are
// known. SetClocks ends it.
func (r *Rings) NoteHandshake(step uint8, clocksPerUS uint64) {
	r.writeHeader(uint32(clocksPerUS), step)
}

// writeHeader writes down what a later process must agree with.
func (r *Rings) writeHeader(clocks uint32, handshake uint8) {
	r.header.seq++
	h := Header{Watermark: uint32(r.cfg.Watermark), Clocks: clocks, Handshake: handshake, Regions: r.regionSum(), Geometry: geometry()}
	h.put(r.header.next(), r.header.seq)
}

// geometry is this program's.
func geometry() Geometry {
	return Geometry{
		IQSlots: wire.IQSlots, SlotStride: wire.SlotStride, OQs: wire.OQs,
		OQEntries: wire.OQEntries, BufSize: wire.BufSize, BufStride: wire.BufStride,
	}
}

// regionSum sums up where the card finds the rings. The registers and the lists say
// most of it once more; where the slots lie is in no place of the card.
func (r *Rings) regionSum() uint32 {
	var b []byte
	for _, reg := range r.regions[1:] {
		b = binary.LittleEndian.AppendUint64(b, uint64(reg.Bus()))
	}
	return crc32.Checksum(b, castagnoli)
}

// Stop ends posting. The rings stay enabled and their memory stays with the
// card; workers are stopped by their contexts.
func (r *Rings) Stop() {
	if r.state == stateProgrammed {
		r.state = stateStopped
	}
	r.iq.stop()
}

// Abandon is Stop for rings whose card has gone, after their workers have ended: no
// register is touched any more. It returns how many frames were posted that the card
// was not seen to finish; whether they left nobody knows, and tx_unknown counts them.
func (r *Rings) Abandon() (unknown int) {
	r.state = stateDown
	return r.iq.abandon()
}

// Teardown disables the rings (endpoint.md 7.3). The card may go on writing to
// addresses that it has latched: the memory stays, and the coprocessor must be
// rebooted before its ports work again.
func (r *Rings) Teardown() error {
	r.Stop()
	if r.state == stateNew || r.state == stateDown {
		return nil
	}
	r.state = stateDown
	for q := range wire.OQs {
		r.store(csr.OutEnable, q, 0)
		r.store(csr.InEnable, q, 0)
	}
	if _, err := mmio.Checked64(r.cfg.BAR0, csr.OutEnable.Queue(0)); err != nil {
		return fmt.Errorf("ring: disable: %w", err)
	}
	for q := range wire.OQs {
		for _, reg := range []csr.RingReg{csr.InInstrBaddr, csr.InInstrRsize, csr.OutSlistBaddr, csr.OutSlistRsize} {
			r.store(reg, q, 0)
		}
		mmio.Store32(r.cfg.BAR0, csr.InInstrDBell.Queue(q).Low(), csr.DBellDrain)
		mmio.Store32(r.cfg.BAR0, csr.OutSlistDBell.Queue(q).Low(), csr.DBellDrain)
	}
	return nil
}

// Left reads from the registers what is under way: instructions that the card
// has not finished, and packets in host memory that nobody has taken. For the
// books of a stop, after the workers have ended.
func (r *Rings) Left() (tx, rx int, err error) {
	if r.state == stateNew {
		return 0, 0, nil
	}
	tx = r.iq.Settle()
	for q, o := range r.oqs {
		v, err := mmio.Checked64(r.cfg.BAR0, o.cnts)
		if err != nil {
			return tx, rx, fmt.Errorf("ring: read %s: %w", csr.OutCnts.Queue(q), err)
		}
		rx += int(csr.CntsCount.Get(v))
	}
	return tx, rx, nil
}

// Free releases all memory. The caller has made sure that the card can no
// longer reach it: bus mastering is off, or the rings were never programmed.
//
// It waits for a Census under way.
func (r *Rings) Free() error {
	r.memory.Lock()
	defer r.memory.Unlock()
	r.freed = true
	var errs []error
	for _, reg := range r.regions {
		if err := r.cfg.DMA.Free(reg); err != nil {
			errs = append(errs, fmt.Errorf("ring: free %s: %w", reg.Name(), err))
		}
	}
	r.regions = nil
	return errors.Join(errs...)
}
