package ring

import (
	"sync"

	"oxpd/internal/dma"
	"oxpd/internal/frame"
	"oxpd/internal/mmio"
	"oxpd/octep/csr"
	"oxpd/ring/wire"
)

// IQ is the input queue (TX) of ring 0: 256 instructions, each with a slot of
// its own, 32 slots in a region. A slot belongs to the device from Flush until IN_CNTS
// counts its instruction as finished; the doorbell going down only says that
// the instruction was fetched, not that the frame was read (datapath.md 2.5).
//
// A burst is Lock, any number of Reserve and Commit, Flush, Unlock. Indices run
// free and are masked on use.
type IQ struct {
	sync.Mutex

	regs  mmio.Space
	bell  csr.Reg32
	cnts  csr.Reg64
	instr *dma.Region
	slots [wire.IQSlots / slotsPerRegion]*dma.Region

	posted   uint32 // committed and announced
	pending  uint32 // committed, not announced
	finished uint32
	last     uint32 // low half of IN_CNTS at the last look
	closed   bool

	total uint64 // instructions announced, for the record
	done  uint64
	rec   recorder

	inherited uint32 // of those outstanding, posted by an earlier process

	cnt *iqCounters
}

const (
	iqMask = wire.IQSlots - 1
	// iqRoom keeps one slot empty: at 256 the ring would look like 0.
	iqRoom = wire.IQSlots - 1
	// reapAbove is how many outstanding instructions make a look worth its read.
	reapAbove = wire.IQSlots / 4
	// slotsPerRegion is how many slots lie in one piece. All 256 of them take 2.3 MiB:
	// more than a hugepage, and slot 224 would lie across two of them, which are no
	// neighbours on the bus. 32 fit beside the buffers of an output queue.
	slotsPerRegion = 32
	// cntsFold is the count above which IN_CNTS is written back, by this much and never
	// by more: modulo cntsFold the count stays what was finished since the rings were
	// programmed, for whoever did not see it written back.
	cntsFold = 1 << 31
)

// slot returns TX slot i twice: the bytes for the CPU and the address for the
// device, from one stride.
func (q *IQ) slot(i uint32) ([]byte, dma.BusAddr) {
	i &= iqMask
	return q.slots[i/slotsPerRegion].At(int(i%slotsPerRegion)*wire.SlotStride, wire.SlotStride)
}

// Reserve returns the frame area of the next free slot, wire.MaxTxFrame bytes
// that belong to the caller until Commit or the next Reserve. It returns nil
// when 255 instructions are outstanding, after one look at IN_CNTS, and after
// Stop. The caller then leaves frames where they are; nothing is counted.
func (q *IQ) Reserve() []byte {
	if q.closed {
		return nil
	}
	if q.outstanding() >= iqRoom {
		if q.reap(); q.outstanding() >= iqRoom {
			return nil
		}
	}
	b, _ := q.slot(q.posted + q.pending)
	return b[wire.PrivSize:]
}

func (q *IQ) outstanding() uint32 { return q.posted + q.pending - q.finished }

// Commit turns the reserved slot into an instruction for the frame of
// frameBytes bytes that the caller wrote into it: pads it to 60 bytes, writes
// the private header and the instruction. The device learns of it by Flush.
// It panics when frameBytes is outside 1 to wire.MaxTxFrame.
func (q *IQ) Commit(tag uint16, frameBytes int) {
	q.rec.pending(q.pending + 1) // the frame exists nowhere else any more
	i := q.posted + q.pending
	b, bus := q.slot(i)
	n := max(frameBytes, frame.MinSize)
	clear(b[wire.PrivSize+frameBytes : wire.PrivSize+n])
	wire.PutPrivate(b, tag)
	in, _ := q.instr.At(int(i&iqMask)*wire.InstrSize, wire.InstrSize)
	wire.PutInstruction(in, uint64(bus), n)
	q.pending++
	q.cnt.bytes.Add(uint64(n))
}

// Flush announces everything committed with one doorbell.
func (q *IQ) Flush() {
	n := q.pending
	if n == 0 {
		return
	}
	q.pending = 0
	q.posted += n
	q.total += uint64(n)
	q.cnt.posted.Add(uint64(n))
	mmio.Barrier() // slot and instruction before the doorbell
	mmio.Store32(q.regs, q.bell, n)
	q.record()
}

func (q *IQ) record() {
	q.rec.put(&Record{Kind: KindIQ, Posted: q.total, Finished: q.done, Last: q.last})
}

// Reap looks at IN_CNTS and frees the slots that the device has finished with,
// once a quarter of the ring is outstanding: before that nobody waits for a
// slot, and the look would be a register read a burst. The caller holds the
// lock.
func (q *IQ) Reap() {
	if q.outstanding() >= reapAbove {
		q.reap()
	}
}

// Settle looks at IN_CNTS in any case and returns how many instructions the
// device has not finished. It takes the lock.
func (q *IQ) Settle() int {
	q.Lock()
	defer q.Unlock()
	if q.posted != q.finished {
		q.reap()
	}
	return int(q.posted - q.finished)
}

func (q *IQ) reap() {
	v := mmio.Load64(q.regs, q.cnts)
	if v == csr.AllOnes {
		return // the card is gone; whoever services its queues says so
	}
	now := uint32(csr.CntsCount.Get(v))
	n := now - q.last
	if n > q.posted-q.finished {
		// More finished than was posted: another machine's word that cannot be
		// true. The slots stay the device's.
		q.cnt.badCount.Add(1)
		return
	}
	q.last = now
	q.finished += n
	q.done += uint64(n)
	others := min(n, q.inherited)
	q.inherited -= others
	q.cnt.finished.Add(uint64(n - others))
	if now >= cntsFold {
		mmio.Store32(q.regs, q.cnts.Low(), cntsFold)
		q.last = now - cntsFold
	}
}

// Post copies one frame into the next slot and announces it, for callers that
// have a frame in hand and cannot leave it where it is. It returns false when
// there is no slot: tx_iq_full counts the frame.
func (q *IQ) Post(tag uint16, pieces ...[]byte) bool {
	q.Lock()
	defer q.Unlock()
	b := q.Reserve()
	if b == nil {
		q.cnt.full.Add(1)
		return false
	}
	n := 0
	for _, p := range pieces {
		n += copy(b[n:], p)
	}
	q.Commit(tag, n)
	q.Flush()
	return true
}

// abandon is stop for a card that has gone. It returns how many frames were posted
// that it had not finished, as far as anybody looked; those of an earlier process were
// never in the counters.
func (q *IQ) abandon() int {
	q.Lock()
	defer q.Unlock()
	if q.closed {
		return 0
	}
	q.closed = true
	n := q.posted - q.finished - q.inherited
	q.cnt.unknown.Add(uint64(n))
	return int(n)
}

// stop makes Reserve return nil from now on.
func (q *IQ) stop() {
	q.Lock()
	defer q.Unlock()
	q.closed = true
}
