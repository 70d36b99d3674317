package port

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"oxpd/internal/board"
	"oxpd/internal/frame"
)

const (
	// burst is the most frames under one doorbell, and the most that a port is
	// read of before the next one has its turn.
	burst = 32

	// While the card's queue is full it is looked at after fullWait, then twice
	// that, up to fullWaitMax. 255 frames of 60 bytes last 0.4 ms at the highest
	// rate on record (datapath.md 6.2), of 9,014 bytes 2 ms.
	fullWait    = 50 * time.Microsecond
	fullWaitMax = time.Millisecond

	// sendPatience is how long the queue may have been full before frames that Send has
	// are dropped: they cannot be left where they are. It empties in 18 ms at the lowest
	// rate on record (datapath.md 6.2).
	sendPatience = 20 * time.Millisecond
)

// Slots is the card's transmit queue.
type Slots interface {
	Lock()   // around a burst of the calls below
	Unlock() //
	// Reserve is the frame area of the next free slot, the same one until Commit;
	// nil when the queue is full.
	Reserve() []byte
	Commit(tag uint16, frameBytes int) // the slot holds a frame; not yet visible
	Flush()                            // everything committed becomes visible
	Reap()                             // free what the card has finished with
}

// Outcome is what a Filter does with a frame.
type Outcome uint8

// Outcomes.
const (
	Pass Outcome = iota // it goes on to the card
	Drop                // it ends here, and the port counts it
	Take                // the filter has a copy of it, or has dropped and counted it; what goes on later comes by Send
)

// Filter decides about frames on their way to the card, where they were read, before
// a slot is taken for them. Leave is called after each port's turn.
type Filter interface {
	Judge(p board.Port, frame []byte) Outcome // keeps nothing of frame
	Leave()
}

// passAll is the filter of a transmitter that was given none.
type passAll struct{}

func (passAll) Judge(board.Port, []byte) Outcome { return Pass }
func (passAll) Leave()                           {}

// Clock is the time that waits for a full queue take.
type Clock interface {
	Sleep(ctx context.Context, d time.Duration) error
}

// poller waits for readable TAPs.
type poller interface {
	add(fd int, id int32) error
	remove(fd int) error
	// wait fills ids and returns how many; it waits until there is one. The
	// error is os.ErrDeadlineExceeded after interrupt.
	wait(ids []int32) (int, error)
	interrupt() error
	resume() error
	close() error
}

// Transmitter moves frames from the ports' TAPs to the card's queue. Add and
// Remove may be called while it runs.
type Transmitter struct {
	slots  Slots
	filter Filter
	clock  Clock
	log    *slog.Logger
	poll   poller

	mu    sync.Mutex
	ports map[int32]*Port
	next  int32

	pending   int           // committed, not flushed
	waited    time.Duration // by Send, since it last found a free slot; with the slots' lock
	bursts    atomic.Uint64
	fullWaits atomic.Uint64
}

// TransmitterStats counts events of a Transmitter.
type TransmitterStats struct {
	Bursts    uint64 // doorbells
	FullWaits uint64 // times that reading stopped because the queue was full
}

// NewTransmitter makes a transmitter for ports. A nil filter passes everything, a nil
// logger discards. The caller closes it after Run has returned.
func NewTransmitter(ports []*Port, slots Slots, filter Filter, clock Clock, logger *slog.Logger) (*Transmitter, error) {
	poll, err := newPoller()
	if err != nil {
		return nil, fmt.Errorf("port: make transmitter: %w", err)
	}
	if logger == nil {
		logger = slog.New(slog.NewTextHandler(discard{}, nil))
	}
	if filter == nil {
		filter = passAll{}
	}
	t := &Transmitter{slots: slots, filter: filter, clock: clock, log: logger, poll: poll, ports: make(map[int32]*Port)}
	for _, p := range ports {
		if err := t.Add(p); err != nil {
			poll.close()
			return nil, err
		}
	}
	return t, nil
}

type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }

// Add begins to read a port.
func (t *Transmitter) Add(p *Port) error {
	return p.control("transmit from", func() error {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.next++
		if err := t.poll.add(p.tap.FD(), t.next); err != nil {
			return err
		}
		t.ports[t.next] = p
		return nil
	})
}

// Remove stops reading a port. When it returns, no frame of the port is between
// read and commit. Unknown and closed ports are no error.
func (t *Transmitter) Remove(p *Port) {
	t.mu.Lock()
	for id, q := range t.ports {
		if q == p {
			delete(t.ports, id)
		}
	}
	t.mu.Unlock()
	p.counters.waits.lock(&p.counters.tx.mu) // a turn that had begun is over
	defer p.counters.tx.mu.Unlock()
	if !p.closed.Load() {
		// The error is that of a TAP without its interface; closing ends its watch.
		_ = t.poll.remove(p.tap.FD())
	}
}

// Stats counts the transmitter's events.
func (t *Transmitter) Stats() TransmitterStats {
	return TransmitterStats{Bursts: t.bursts.Load(), FullWaits: t.fullWaits.Load()}
}

// Close releases the transmitter. The ports stay open.
func (t *Transmitter) Close() error { return t.poll.close() }

// Run moves frames until ctx ends and returns its error. Every frame read is
// posted when it returns. It costs nothing while there are no frames.
func (t *Transmitter) Run(ctx context.Context) error {
	if err := t.poll.resume(); err != nil {
		return fmt.Errorf("port: transmit: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { t.poll.interrupt() })
	defer stop()
	var ids [64]int32
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := t.poll.wait(ids[:])
		if errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("port: transmit: %w", err)
		}
		if err := t.round(ctx, ids[:n]); err != nil {
			return err
		}
	}
}

// round gives each readable port a turn and makes everything visible.
func (t *Transmitter) round(ctx context.Context, ids []int32) error {
	t.slots.Lock()
	t.slots.Reap()
	t.slots.Unlock()
	for _, id := range ids {
		t.mu.Lock()
		p := t.ports[id]
		t.mu.Unlock()
		if p == nil {
			continue // removed since
		}
		for budget := burst; budget > 0; {
			var full bool
			if budget, full = t.turn(p, budget); !full {
				break
			}
			if err := t.room(ctx); err != nil {
				return err
			}
		}
	}
	t.slots.Lock()
	t.flush()
	t.slots.Unlock()
	return nil
}

// turn reads up to budget frames of a port. It returns what is left of the
// budget, and whether the queue is full; then everything has been flushed.
func (t *Transmitter) turn(p *Port, budget int) (left int, full bool) {
	tx := &p.counters.tx
	tx.mu.Lock()
	defer tx.mu.Unlock()
	if p.closed.Load() {
		return 0, false
	}
	t.slots.Lock()
	defer t.slots.Unlock()
	defer t.filter.Leave()
	for budget > 0 {
		buf := t.slots.Reserve()
		if buf == nil {
			t.flush()
			return budget, true
		}
		n, err := p.tap.Read(buf)
		if err != nil {
			switch {
			case again(err):
			case interrupted(err):
				continue
			default:
				tx.errors++
				t.lost(p, err)
			}
			return 0, false
		}
		budget--
		if !tx.measure(buf[:n], len(buf), p.Limit(), 0) {
			continue
		}
		//exhaustive:enforce
		switch t.filter.Judge(p.port, buf[:n]) {
		case Drop:
			tx.filtered++
			tx.filteredBytes += uint64(n)
		case Pass:
			t.commit(p, n)
		case Take:
		}
	}
	return budget, false
}

// commit makes the reserved slot, with a frame of n bytes in it, the next to be sent.
// Called in the port's turn.
func (t *Transmitter) commit(p *Port, n int) {
	t.slots.Commit(uint16(p.port.Tag), n)
	p.counters.tx.packets++
	p.counters.tx.bytes += uint64(n)
	if t.pending++; t.pending == burst {
		t.flush()
		t.slots.Reap()
	}
}

// Passed is a frame that the Filter had taken and that goes on.
type Passed struct {
	Frame  []byte // the caller's
	Header int    // length of its Ethernet header with VLAN tags, 0 when nobody has read it
}

// Send puts frames of a port into the card's queue, in order, and returns when the card
// knows of them. Each is measured against the limit that holds now; those of a closed
// port are counted as tx_closed. While the queue is full Send waits, and once it has
// been full for 20 ms the rest is dropped, as is what comes while it stays so:
// tx_ring_full. Safe for concurrent use, whether Run runs or not.
func (t *Transmitter) Send(ctx context.Context, p *Port, frames []Passed) {
	for {
		frames = frames[t.send(p, frames):]
		if len(frames) == 0 {
			return
		}
		if !t.patient(ctx) {
			p.counters.tx.lose(&p.counters.tx.full, len(frames))
			return
		}
	}
}

// send posts frames until the queue is full and returns how many have met their end.
func (t *Transmitter) send(p *Port, frames []Passed) int {
	tx := &p.counters.tx
	tx.mu.Lock()
	defer tx.mu.Unlock()
	if p.closed.Load() {
		tx.closed += uint64(len(frames))
		return len(frames)
	}
	t.slots.Lock()
	defer t.slots.Unlock()
	defer t.flush()
	for i := range frames {
		f := &frames[i]
		buf := t.slots.Reserve()
		if buf == nil {
			return i
		}
		t.waited = 0
		if tx.measure(f.Frame, len(buf), p.Limit(), f.Header) {
			t.commit(p, copy(buf, f.Frame))
		}
	}
	return len(frames)
}

// patient waits for a free slot and tells whether there is one. How long it waits is
// counted over all callers: none of them waits for a queue that stands still.
func (t *Transmitter) patient(ctx context.Context) bool {
	t.fullWaits.Add(1)
	for wait := fullWait; ; wait = min(2*wait, fullWaitMax) {
		free, waited := t.free(wait)
		if free {
			return true
		}
		if waited >= sendPatience || t.clock.Sleep(ctx, wait) != nil {
			return false
		}
	}
}

// free looks for a free slot. When there is none it returns how long Send has waited
// for one, before the wait that comes.
func (t *Transmitter) free(wait time.Duration) (free bool, waited time.Duration) {
	t.slots.Lock()
	defer t.slots.Unlock()
	t.slots.Reap()
	if t.slots.Reserve() != nil {
		return true, 0
	}
	waited = t.waited
	t.waited = min(waited+wait, sendPatience)
	return false, waited
}

// flush rings the doorbell if there is a reason. Called with the slots locked.
func (t *Transmitter) flush() {
	if t.pending > 0 {
		t.slots.Flush()
		t.pending = 0
		t.bursts.Add(1)
	}
}

// room waits until the queue has a free slot.
func (t *Transmitter) room(ctx context.Context) error {
	t.fullWaits.Add(1)
	for wait := fullWait; ; wait = min(2*wait, fullWaitMax) {
		t.slots.Lock()
		t.slots.Reap()
		free := t.slots.Reserve() != nil
		t.slots.Unlock()
		if free {
			return nil
		}
		if err := t.clock.Sleep(ctx, wait); err != nil {
			return err
		}
	}
}

// lost stops reading a port whose TAP fails: its descriptor would be readable
// for ever. Called during the port's turn.
func (t *Transmitter) lost(p *Port, err error) {
	t.mu.Lock()
	for id, q := range t.ports {
		if q == p {
			delete(t.ports, id)
		}
	}
	t.mu.Unlock()
	_ = t.poll.remove(p.tap.FD()) // an error changes nothing: the port is not read any more
	t.log.Warn("tap has gone", "port", p.port.Name, "err", err)
}

// header is headerBytes of a frame in one piece.
func header(b []byte, known int) int {
	if known > 0 {
		return known
	}
	return frame.L3Of(b)
}
