package nwa

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"oxpd/internal/mmio"
	"oxpd/rpc/msg"
)

// Waits (rpc-lif.md 1, 7).
const (
	idleLimit   = time.Second
	replyLimit  = 3 * time.Second
	replyPoll   = time.Millisecond // typical answer: 12 ms
	settleSpin  = 500 * time.Microsecond
	settleStep  = 2 * time.Microsecond
	settlePoll  = time.Millisecond // 1 in 100 takes a 10 ms tick
	settleLimit = time.Second
	doubtLimit  = 30 * time.Second // the vendor's wait for a reply
	readyLimit  = 40 * time.Second
	readyPoll   = 500 * time.Millisecond
	doorbell    = 0 // the facility's only one, SPI 154
	maxReply    = msg.NWAEvent - msg.NWAReply
	replyStatus = 4 // offset of the status word in a reply
)

// allOnes is a mailbox word of a card that is gone.
const allOnes = ^uint32(0)

// Bell rings a doorbell of the facility by its index inside it.
type Bell interface {
	Ring(index int) error
}

// Clock is the time that waits are measured in.
type Clock interface {
	Now() time.Duration
	Sleep(ctx context.Context, d time.Duration) error
}

// Stats counts what an agent did since New.
type Stats struct {
	Requests   uint64 // written to the mailbox
	Refused    uint64 // answered with a status other than 0
	Timeouts   uint64 // without an answer
	Malformed  uint64
	Stranded   uint64 // replies of somebody else that were acknowledged unread
	SlowSettle uint64 // acknowledgements that the target had not taken after 500 us
}

// LastReply is the most recent reply, for diagnostics.
type LastReply struct {
	Request msg.NWARequestMsg
	Bytes   uint32 // as the target states it, header included
	Marker  uint32
	Status  uint32
	At      time.Duration // by the injected clock
}

// Agent is the mailbox. All methods are safe for concurrent use; one transaction
// runs at a time.
type Agent struct {
	window mmio.Space
	bell   Bell
	clock  Clock
	log    *slog.Logger

	turn    chan struct{} // holds one token: the right to a transaction
	met     bool          // the mailbox was looked at before
	doubt   bool          // a request got no answer; its reply may still come
	doubtAt time.Duration // when it was sent, or found

	lastMu sync.Mutex
	last   LastReply

	requests, refused, timeouts, malformed, stranded, slowSettle atomic.Uint64
}

// New returns an agent over the nw_agent facility's window. A nil logger
// logs nothing.
func New(window mmio.Space, bell Bell, clock Clock, logger *slog.Logger) *Agent {
	if logger == nil {
		logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	a := &Agent{window: window, bell: bell, clock: clock, log: logger, turn: make(chan struct{}, 1)}
	a.turn <- struct{}{}
	return a
}

// Stats returns the counters. It never waits and never touches the card.
func (a *Agent) Stats() Stats {
	return Stats{
		Requests: a.requests.Load(), Refused: a.refused.Load(), Timeouts: a.timeouts.Load(),
		Malformed: a.malformed.Load(), Stranded: a.stranded.Load(), SlowSettle: a.slowSettle.Load(),
	}
}

// Last returns the most recent reply's head, for diagnostics only.
func (a *Agent) Last() LastReply {
	a.lastMu.Lock()
	defer a.lastMu.Unlock()
	return a.last
}

func (a *Agent) load(off uint32) uint32     { return a.window.Load32(off) }
func (a *Agent) store(off uint32, v uint32) { a.window.Store32(off, v) }

// allowed refuses by number what must never be sent.
func allowed(r msg.NWARequestMsg) error {
	switch r.Op {
	case msg.OpDiscover, msg.OpAllPorts:
		return nil
	case msg.OpSet, msg.OpGet:
		if msg.Attr(r.Sub) == msg.AttrFEC {
			return fmt.Errorf("%v kills NetAgent until the coprocessor restarts: %w", msg.AttrFEC, ErrNotAllowed)
		}
		return nil
	}
	return fmt.Errorf("operation 0x%02x: %w", r.Op, ErrNotAllowed)
}

// Hold keeps NetAgent from being asked anything until release is called, once: its
// programs use what the holder is about to use (switch.md 2). Requests wait meanwhile,
// each as long as its own context allows. The error is the context's.
func (a *Agent) Hold(ctx context.Context) (release func(), err error) {
	select {
	case <-a.turn:
		return func() { a.turn <- struct{}{} }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the mailbox: %w", ctx.Err())
	}
}

// transact sends one request, copies the reply's payload to reply and returns
// its length.
func (a *Agent) transact(ctx context.Context, req msg.NWARequestMsg, reply []byte) (int, error) {
	if err := allowed(req); err != nil {
		return 0, err
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	release, err := a.Hold(ctx)
	if err != nil {
		return 0, err
	}
	defer release()

	n, err := a.locked(ctx, req, reply)
	a.log.Debug("nwa request", "op", req.Op, "sub", req.Sub, "tag", req.Port, "bytes", n, "err", err)
	return n, err
}

// locked runs steps 1 to 7 of rpc-lif.md 7.
func (a *Agent) locked(ctx context.Context, req msg.NWARequestMsg, reply []byte) (int, error) {
	if err := a.check(); err != nil {
		return 0, err
	}
	if err := a.idle(ctx); err != nil {
		return 0, err
	}

	var body [msg.NWAReqSize]byte
	req.Append(body[:0])
	for i := uint32(0); i < msg.NWAReqSize; i += 4 {
		a.store(msg.NWARequest+i, binary.LittleEndian.Uint32(body[i:]))
	}
	a.store(msg.NWAReqLen, msg.NWAReqSize)
	mmio.Barrier()
	a.store(msg.NWATurn, msg.TurnRequest)
	mmio.Barrier()
	a.requests.Add(1)
	a.doubt, a.doubtAt = true, a.clock.Now()

	// From here on there may be a reply to acknowledge, whatever happens to ctx.
	ctx = context.WithoutCancel(ctx)
	if err := a.bell.Ring(doorbell); err != nil {
		return 0, fmt.Errorf("ring doorbell %d: %w", doorbell, err)
	}
	if err := a.awaitReply(ctx); err != nil {
		return 0, err
	}
	a.doubt = false
	n, err := a.read(req, reply)
	if errors.Is(err, mmio.ErrGone) {
		return 0, err
	}
	if ackErr := a.acknowledge(ctx); ackErr != nil {
		// The reply is good, and the next transaction starts by clearing the mailbox.
		a.log.Warn("nwa mailbox is not free after a reply", "err", ackErr)
	}
	return n, err
}

// check looks at the mailbox's head.
func (a *Agent) check() error {
	switch cookie := a.load(msg.NWACookie); cookie {
	case msg.NWAMagic:
	case allOnes:
		return mmio.ErrGone
	case 0:
		a.doubt = false // a new life of the target: nothing old can come any more
		return ErrNotReady
	default:
		return fmt.Errorf("%w: cookie 0x%08x, want 0x%08x", ErrVersion, cookie, uint32(msg.NWAMagic))
	}
	if off := a.load(msg.NWABody); off != msg.NWABodyOffset {
		if off == allOnes {
			return mmio.ErrGone
		}
		return fmt.Errorf("%w: body offset 0x%x, want 0x%x", ErrVersion, off, msg.NWABodyOffset)
	}
	return nil
}

// idle makes sure that no reply is in the mailbox and none can come.
func (a *Agent) idle(ctx context.Context) error {
	status := a.load(msg.NWAStatus)
	if status == allOnes {
		return mmio.ErrGone
	}
	if status != msg.StatusIdle {
		a.stranded.Add(1)
		a.log.Info("nwa reply of an earlier request thrown away", "status", status)
		if err := a.acknowledge(ctx); err != nil {
			return fmt.Errorf("clear a stranded reply: %w", err)
		}
		a.doubt = false
	}
	if err := a.meet(status); err != nil {
		return err
	}
	if a.doubt {
		if err := a.pending(); err != nil && !errors.Is(err, ErrRestarted) {
			return err
		}
	}
	if a.doubt {
		if age := a.clock.Now() - a.doubtAt; age < doubtLimit {
			return fmt.Errorf("%w: since %v, given up after %v", ErrUnanswered, age, doubtLimit)
		}
		a.doubt = false
	}
	return a.wait(ctx, msg.StatusIdle, idleLimit)
}

// pending looks whether the request of before is still in the mailbox. TURN is the
// host's alone: when it does not ask any more, the mailbox was made anew, and a NetAgent
// that has just started knows no request.
func (a *Agent) pending() error {
	switch turn := a.load(msg.NWATurn); turn {
	case msg.TurnRequest:
		return nil
	case allOnes:
		return mmio.ErrGone
	}
	a.doubt = false
	a.log.Info("nwa request is lost: NetAgent has started anew")
	return ErrRestarted
}

// meet looks, before the first transaction, for the request of a process that was
// killed: TURN still asks and STATUS, read before it, did not answer.
func (a *Agent) meet(status uint32) error {
	if a.met {
		return nil
	}
	switch turn := a.load(msg.NWATurn); {
	case turn == allOnes:
		return mmio.ErrGone
	case turn == msg.TurnRequest && status == msg.StatusIdle:
		a.log.Info("nwa request of another process is unanswered")
		a.doubt, a.doubtAt = true, a.clock.Now()
	}
	a.met = true
	return nil
}

// acknowledge hands the mailbox back and waits until the target has taken it.
func (a *Agent) acknowledge(ctx context.Context) error {
	mmio.Barrier()
	a.store(msg.NWATurn, msg.TurnAck)
	mmio.Barrier()
	if err := a.bell.Ring(doorbell); err != nil {
		return fmt.Errorf("ring doorbell %d: %w", doorbell, err)
	}
	start := a.clock.Now()
	for a.clock.Now()-start < settleSpin {
		switch a.load(msg.NWAStatus) {
		case msg.StatusIdle:
			return nil
		case allOnes:
			return mmio.ErrGone
		}
		if err := a.clock.Sleep(ctx, settleStep); err != nil {
			return err
		}
	}
	a.slowSettle.Add(1)
	return a.wait(ctx, msg.StatusIdle, settleLimit)
}

// awaitReply waits for the reply to the request that was written.
func (a *Agent) awaitReply(ctx context.Context) error {
	return a.poll(ctx, msg.StatusReply, replyLimit, a.pending)
}

// wait waits for a value of STATUS.
func (a *Agent) wait(ctx context.Context, want uint32, limit time.Duration) error {
	return a.poll(ctx, want, limit, func() error { return nil })
}

// poll reads STATUS every millisecond, with one look after the deadline, and asks each
// time whether it is worth while.
func (a *Agent) poll(ctx context.Context, want uint32, limit time.Duration, worth func() error) error {
	start := a.clock.Now()
	for {
		waited := a.clock.Now() - start
		switch got := a.load(msg.NWAStatus); {
		case got == want:
			return nil
		case got == allOnes:
			return mmio.ErrGone
		case waited >= limit:
			a.timeouts.Add(1)
			return fmt.Errorf("%w: STATUS is %d after %v, want %d", ErrTimeout, got, waited, want)
		}
		if err := worth(); err != nil {
			return err
		}
		if err := a.clock.Sleep(ctx, min(replyPoll, limit-waited)); err != nil {
			return err
		}
	}
}

// read takes the reply out of the window: each word once, the length checked
// before it is used, the last word's bytes past the end dropped.
func (a *Agent) read(req msg.NWARequestMsg, reply []byte) (int, error) {
	bytes := a.load(msg.NWAReplyLen)
	marker, status := a.load(msg.NWAReply), a.load(msg.NWAReply+replyStatus)
	if bytes == allOnes || marker == allOnes {
		return 0, mmio.ErrGone
	}
	a.lastMu.Lock()
	a.last = LastReply{Request: req, Bytes: bytes, Marker: marker, Status: status, At: a.clock.Now()}
	a.lastMu.Unlock()

	switch {
	case marker != msg.ReplyMarker:
		return 0, a.bad("first word 0x%x, want 0x%x", marker, msg.ReplyMarker)
	case bytes < msg.NWAReplyHdr || bytes > maxReply:
		return 0, a.bad("length %d, want %d to %d", bytes, msg.NWAReplyHdr, maxReply)
	case status != msg.ReplyOK:
		a.refused.Add(1)
		return 0, &StatusError{Status: status}
	}
	n := int(bytes - msg.NWAReplyHdr)
	if n > len(reply) {
		return 0, a.bad("payload of %d bytes, want at most %d", n, len(reply))
	}
	for i := 0; i < n; i += 4 {
		var word [4]byte
		binary.LittleEndian.PutUint32(word[:], a.load(msg.NWAReply+msg.NWAReplyHdr+uint32(i)))
		copy(reply[i:n], word[:])
	}
	return n, nil
}

func (a *Agent) bad(format string, args ...any) error {
	a.malformed.Add(1)
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
}
