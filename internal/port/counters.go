package port

import (
	"sync"
	"sync/atomic"
	"time"

	"oxpd/internal/frame"
)

// Callers of Receive count without sharing a cache line: each output queue, and behind
// them engines that let frames go on.
const (
	QueueShards  = 8
	EngineShards = 8
	Shards       = QueueShards + EngineShards
)

// Disposition is what became of a received frame. Each frame has exactly one.
type Disposition uint8

// The dispositions of Receive; the names in quotes are the counters'.
const (
	Delivered Disposition = iota // "rx_packets": the frame reached the interface
	Malformed                    // "rx_malformed": shorter than an Ethernet header
	TooLong                      // "rx_toolong": above the limit and its VLAN tags
	TapDown                      // "tap_down": the interface is down, closed or gone
	NoBuf                        // "rx_nobuf": the kernel had no memory for the frame, or no room
	TapErr                       // "tap_err": the kernel refused the frame otherwise

	dispositions
)

var dispositionNames = [dispositions]string{"rx_packets", "rx_malformed", "rx_toolong", "tap_down", "rx_nobuf", "tap_err"}

// String is the name of the counter.
func (d Disposition) String() string {
	if d >= dispositions {
		return "unknown"
	}
	return dispositionNames[d]
}

// Counters are a port's numbers. They outlive the interface: hand the same
// Counters to the next Open and they go on. Safe for concurrent use, by one
// open port at a time.
type Counters struct {
	rx     [Shards]rxShard
	tx     txCounters
	kernel kernelDrops
	waits  quiesce
}

// rxShard is one caller's share. The lock is uncontended as long as each caller
// keeps to its shard; it also lets Close wait for the frame in flight.
type rxShard struct {
	mu    sync.Mutex
	n     [dispositions]uint64
	bytes uint64
	_     [72]byte // to 128: adjacent cache lines are fetched in pairs
}

// txCounters belong to the Transmitter; it holds the lock for the length of a
// port's turn.
type txCounters struct {
	mu                 sync.Mutex
	packets, bytes     uint64
	malformed, toolong uint64
	filtered           uint64
	filteredBytes      uint64
	closed, gone, full uint64
	errors             uint64
}

// lose adds frames to one of the counters.
func (tx *txCounters) lose(counter *uint64, frames int) {
	tx.mu.Lock()
	*counter += uint64(frames)
	tx.mu.Unlock()
}

// Strand counts frames that were to be sent while there is no card: tx_gone.
func (c *Counters) Strand(frames int) { c.tx.lose(&c.tx.gone, frames) }

// Refuse counts a frame for an interface that has never been: tap_down. shard is as
// Receive has it.
func (c *Counters) Refuse(shard int) {
	s := &c.rx[shard%Shards]
	s.mu.Lock()
	s.n[TapDown]++
	s.mu.Unlock()
}

// measure tells whether a frame may be sent from a slot of so many bytes, by an MTU, and
// counts one that may not. A frame that fills the slot may have been cut. known is the
// length of its Ethernet header with VLAN tags, 0 when nobody has read it.
func (tx *txCounters) measure(b []byte, slotBytes, mtu, known int) bool {
	n := len(b)
	if n < frame.HeaderSize {
		tx.malformed++
		return false
	}
	if n >= slotBytes || n > mtu+frame.HeaderSize && n > mtu+header(b, known) {
		tx.toolong++
		return false
	}
	return true
}

// kernelDrops follows a number that starts at 0 with each new interface.
type kernelDrops struct {
	mu   sync.Mutex
	base uint64 // of the interfaces before, less what this one had when it was adopted
	last uint64 // of this one, when it was last read
}

// update takes a number that was read. Two readers may come in the wrong order: it
// never falls.
func (k *kernelDrops) update(now kernelCount) {
	if !now.known {
		return
	}
	k.mu.Lock()
	k.last = max(k.last, now.frames)
	k.mu.Unlock()
}

// begin leaves out what an interface counted before it was this process's.
func (k *kernelDrops) begin(now kernelCount) {
	k.mu.Lock()
	k.base -= now.frames // below 0, until last is added
	k.mu.Unlock()
	k.update(now)
}

// retire adds the interface's number to those of its predecessors.
func (k *kernelDrops) retire() {
	k.mu.Lock()
	k.base, k.last = k.base+k.last, 0
	k.mu.Unlock()
}

func (k *kernelDrops) total() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.base + k.last
}

// quiesce counts the times that a port was taken out of use while somebody was
// inside: a worker with a frame of its ring, the transmitter in the port's turn, a
// reader of the counters.
type quiesce struct {
	waits   atomic.Uint64
	longest atomic.Int64 // nanoseconds
}

// lock takes all locks, in order. It counts one wait if any of them was taken, and
// the time from there until it has all. That is the machine's own time: a
// simulated card's clock does not know how long a system call took.
func (q *quiesce) lock(locks ...*sync.Mutex) {
	var begin time.Time
	for _, mu := range locks {
		if mu.TryLock() {
			continue
		}
		if begin.IsZero() {
			begin = time.Now()
		}
		mu.Lock()
	}
	if begin.IsZero() {
		return
	}
	q.waits.Add(1)
	waited := int64(time.Since(begin))
	for {
		longest := q.longest.Load()
		if waited <= longest || q.longest.CompareAndSwap(longest, waited) {
			return
		}
	}
}

// Stats is a port's numbers at one moment, in frames unless named bytes. Bytes
// are of the unpadded frame without FCS.
type Stats struct {
	RxPackets, RxBytes uint64
	RxMalformed        uint64
	RxTooLong          uint64
	RxNoBuf            uint64
	TapDown, TapErr    uint64

	TxPackets, TxBytes uint64
	TxDrops            uint64 // the sum of the next six
	TxPfilDropped      uint64 // by the Filter
	TxMalformed        uint64 // shorter than an Ethernet header
	TxTooLong          uint64 // above the limit and its VLAN tags
	TxClosed           uint64 // in the TAP's queue when the port was closed
	TxGone             uint64 // in the TAP's queue when the card was lost, or came back; or sent on by an engine without a card
	TxRingFull         uint64 // sent on by an engine while the card's queue had been full for 20 ms

	TxPfilDroppedBytes uint64 // of the frames in TxPfilDropped

	// TapReadErrors counts events, not frames: reads of the TAP that failed.
	TapReadErrors uint64
	// TapKernelDropped is the kernel's TX-dropped of the interface: frames that
	// the TAP's queue had no room for, or that were sent without carrier.
	TapKernelDropped uint64

	// QuiesceWaits counts the times that the port was taken out of the transmitter,
	// or closed, and had to wait for whoever was inside; QuiesceLongest is the worst
	// wait, rounded up to microseconds.
	QuiesceWaits, QuiesceLongest uint64
}

// Stats adds the shards up. TapKernelDropped is as last read; Port.Stats reads
// it anew.
func (c *Counters) Stats() Stats {
	var s Stats
	var n [dispositions]uint64
	for i := range c.rx {
		sh := &c.rx[i]
		sh.mu.Lock()
		for d := range n {
			n[d] += sh.n[d]
		}
		s.RxBytes += sh.bytes
		sh.mu.Unlock()
	}
	s.RxPackets, s.RxMalformed, s.RxTooLong = n[Delivered], n[Malformed], n[TooLong]
	s.RxNoBuf, s.TapDown, s.TapErr = n[NoBuf], n[TapDown], n[TapErr]

	c.tx.mu.Lock()
	s.TxPackets, s.TxBytes = c.tx.packets, c.tx.bytes
	s.TxMalformed, s.TxTooLong, s.TxClosed, s.TxGone = c.tx.malformed, c.tx.toolong, c.tx.closed, c.tx.gone
	s.TxRingFull = c.tx.full
	s.TxPfilDropped, s.TxPfilDroppedBytes = c.tx.filtered, c.tx.filteredBytes
	s.TapReadErrors = c.tx.errors
	c.tx.mu.Unlock()
	s.TxDrops = s.TxPfilDropped + s.TxMalformed + s.TxTooLong + s.TxClosed + s.TxGone + s.TxRingFull
	s.TapKernelDropped = c.kernel.total()
	s.QuiesceWaits = c.waits.waits.Load()
	s.QuiesceLongest = uint64(time.Duration(c.waits.longest.Load())+time.Microsecond-1) / uint64(time.Microsecond)
	return s
}

// RxFrames is every frame that was handed to Receive: the sum of the
// dispositions.
func (s Stats) RxFrames() uint64 {
	return s.RxPackets + s.RxMalformed + s.RxTooLong + s.RxNoBuf + s.TapDown + s.TapErr
}

// TxFrames is every frame that was read from the interface, but for those that the Filter
// has taken and that have not come back by Send.
func (s Stats) TxFrames() uint64 { return s.TxPackets + s.TxDrops }

// Each calls fn with each counter and its name, in a fixed order.
func (s Stats) Each(fn func(name string, value uint64)) {
	fn("rx_packets", s.RxPackets)
	fn("rx_bytes", s.RxBytes)
	fn("rx_malformed", s.RxMalformed)
	fn("rx_toolong", s.RxTooLong)
	fn("rx_nobuf", s.RxNoBuf)
	fn("tap_down", s.TapDown)
	fn("tap_err", s.TapErr)
	fn("tx_packets", s.TxPackets)
	fn("tx_bytes", s.TxBytes)
	fn("tx_drops", s.TxDrops)
	fn("tx_pfil_dropped", s.TxPfilDropped)
	fn("tx_malformed", s.TxMalformed)
	fn("tx_toolong", s.TxTooLong)
	fn("tx_closed", s.TxClosed)
	fn("tx_gone", s.TxGone)
	fn("tx_ring_full", s.TxRingFull)
	fn("tx_pfil_dropped_bytes", s.TxPfilDroppedBytes)
	fn("tap_read_errors", s.TapReadErrors)
	fn("tap_kernel_dropped", s.TapKernelDropped)
	fn("quiesce_waits", s.QuiesceWaits)
	fn("quiesce_longest_us", s.QuiesceLongest)
}
