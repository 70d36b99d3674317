package rpc

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"oxpd/internal/dma"
	"oxpd/internal/mmio"
	"oxpd/rpc/msg"
)

// Geometry of the ring that Configure declares. 8 descriptors at +0x1000 is one
// of the two that have worked (rpc-lif.md 3, step 2).
const (
	descOffset = 0x1000
	descCount  = 8
	// doorbell is the index inside the facility, SPI 155. The other four belong
	// to high rings and are never rung.
	doorbell = 0
	// declareTries bounds the declarations of one configuration. The second one
	// meets a target that has nothing old to finish.
	declareTries = 3
)

// Waits (rpc-lif.md 2.5, 3, 3.2).
const (
	commandLimit = 2000 * time.Millisecond
	fastPoll     = 20 * time.Microsecond
	fastPollFor  = 2 * time.Millisecond
	slowPoll     = time.Millisecond
	configLimit  = 3000 * time.Millisecond
	againPause   = 2 * time.Millisecond
	againTries   = 50 // 100 ms in all; only SA_ADD is known to send EAGAIN
)

// poison fills the buffer behind a request. Neither a zero (command 0, "no
// answer") nor a plausible done-magic.
const poison = 0xa5

// Bell rings a doorbell of the facility by its index inside it.
type Bell interface {
	Ring(index int) error
}

// Clock is the time that waits are measured in.
type Clock interface {
	Now() time.Duration
	Sleep(ctx context.Context, d time.Duration) error
}

// Config is the channel's optional settings; the zero value is valid.
type Config struct {
	// Doorbells is how many doorbells the facility publishes; 0 means the
	// board's five. Configure refuses 1 with ErrOneDoorbell.
	Doorbells int
	// Alloc returns a buffer as New wants it, for Reopen after a time-out. Without
	// it a stalled channel stays stalled, unless there is another buffer.
	Alloc func() (*dma.Region, error)
	// Left are the buffers of earlier processes, all that are known to the provider of
	// the memory. Each is used again once the card is done with it.
	Left []*dma.Region
}

// Stats counts what a channel did since New.
type Stats struct {
	Commands       uint64 // posted, retries included
	Refused        uint64 // answered with rc 1
	Failed         uint64 // answered with another rc than 0 and 1, EAGAIN included
	Again          uint64 // posted again after EAGAIN
	Timeouts       uint64
	Malformed      uint64 // answers that contradict themselves
	Configurations uint64 // acknowledged
	Abandoned      uint64 // buffers that are left with the card now
}

type state uint8

const (
	closed  state = iota // no configuration of ours is in force
	open                 // commands may be posted
	stalled              // a command is lost; the buffer is the card's
)

// Channel is the command channel. All methods are safe for concurrent use; one
// command is in flight at a time, and waiting for one's turn ends with the
// context.
type Channel struct {
	window mmio.Space
	bell   Bell
	clock  Clock
	log    *slog.Logger
	cfg    Config

	turn chan struct{} // holds one token: the right to use everything below

	state    state
	stall    *StalledError // why, when stalled
	buf      *dma.Region   // nil before the first configuration, unless New was given it
	left     []*dma.Region // Config.Left that nobody has looked at
	spare    []*dma.Region // not the card's
	lent     bool          // a descriptor with buf's address is on the ring and not done
	posted   uint64        // own copy, starts at 0 with each configuration
	revision uint16

	keptMu sync.Mutex
	kept   []*dma.Region // the card may still write there

	commands, refused, failed, again, timeouts, malformed, configurations atomic.Uint64
}

// New returns a closed channel over an rpc facility's window. buf is BufferBytes
// bytes of zeros, aligned to msg.BufferAlign on the bus; it belongs to the channel, and
// after a time-out to the card. nil: Configure takes one of Config.Left, or Config.Alloc
// gives it. A nil logger logs nothing.
func New(window mmio.Space, bell Bell, buf *dma.Region, clock Clock, logger *slog.Logger, cfg Config) *Channel {
	if logger == nil {
		logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	c := &Channel{window: window, bell: bell, buf: buf, left: cfg.Left, clock: clock, log: logger, cfg: cfg, turn: make(chan struct{}, 1)}
	c.turn <- struct{}{}
	return c
}

// Allowed tells whether oxpd sends a command: the reads 36 to 46, and
// FW_CFG_PARAMS_SET, LIF_ADD_UPDATE and PPORT_UPDATE (rpc-lif.md 4).
func Allowed(cmd msg.Command) bool {
	switch cmd {
	case msg.CmdFWCfgParamsSet, msg.CmdLIFAddUpdate, msg.CmdPPortUpdate:
		return true
	}
	return msg.CmdPlatformRead <= cmd && cmd <= msg.CmdDFCntRead
}

// lock waits for the channel or for the end of ctx.
func (c *Channel) lock(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-c.turn:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *Channel) unlock() { c.turn <- struct{}{} }

// Call sends one command, copies the reply's payload to reply and returns its
// length; with a nil reply the payload is dropped. Handler errno EAGAIN is retried for 100 ms.
//
// The context ends the wait for the channel, not a command that is posted: one
// that is left on the ring would stall the channel for everybody, so its end,
// 2 s at most, is waited for.
//
// Errors: ErrNotAllowed before anything is written; ErrNotConfigured; ErrTimeout
// for the command that stalls the channel and ErrStalled for those after it;
// *msg.RCError for a refusal; ErrMalformed, also for a reply longer than reply,
// and for a command that is counted as done and has no reply, which stalls the
// channel too; mmio.ErrGone.
func (c *Channel) Call(ctx context.Context, cmd msg.Command, payload, reply []byte) (int, error) {
	if !Allowed(cmd) {
		return 0, fmt.Errorf("rpc: %s (%d): %w", cmd, uint8(cmd), ErrNotAllowed)
	}
	if len(payload) > msg.MaxRequest {
		return 0, fmt.Errorf("rpc: %s: payload of %d bytes, the target takes %d", cmd, len(payload), msg.MaxRequest)
	}
	if err := c.lock(ctx); err != nil {
		return 0, fmt.Errorf("rpc: %s: wait for the channel: %w", cmd, err)
	}
	defer c.unlock()
	for try := 1; ; try++ {
		n, err := c.exchange(ctx, cmd, payload, reply)
		c.log.Debug("rpc command", "command", cmd.String(), "bytes", n, "err", err)
		if err == nil {
			return n, nil
		}
		if !isAgain(err) || try == againTries {
			return 0, fmt.Errorf("rpc: %s: %w", cmd, err)
		}
		c.again.Add(1)
		if err := c.clock.Sleep(ctx, againPause); err != nil {
			return 0, fmt.Errorf("rpc: %s: wait to try again: %w", cmd, err)
		}
	}
}

// isAgain tells whether a handler asked for another try. A transport errno is
// something else: there the command was not run.
func isAgain(err error) bool {
	var rc *msg.RCError
	return errors.As(err, &rc) && rc.RC == msg.RCErrnoBase+msg.RC(syscall.EAGAIN)
}

// exchange posts one command and waits for its end.
func (c *Channel) exchange(ctx context.Context, cmd msg.Command, payload, reply []byte) (int, error) {
	switch c.state {
	case closed:
		return 0, ErrNotConfigured
	case stalled:
		return 0, c.stall
	}
	if err := c.post(cmd, payload); err != nil {
		return 0, c.abandon(cmd, err)
	}
	if err := c.await(context.WithoutCancel(ctx), cmd); err != nil {
		return 0, c.abandon(cmd, err)
	}
	r := c.head()
	if r.Done == 0 {
		// The count is not about this command: the target may still be to read the
		// buffer. Nothing in it may change, least of all by the next command.
		return 0, c.abandon(cmd, fmt.Errorf("%w: %d commands done of %d posted, but no reply was written", ErrMalformed, c.posted, c.posted))
	}
	n, err := c.answer(r, reply)
	c.lent = false
	setMark(c.buf, useFree)
	switch rc := (*msg.RCError)(nil); {
	case errors.As(err, &rc) && rc.RC == msg.RCRefused:
		c.refused.Add(1)
	case errors.As(err, &rc):
		c.failed.Add(1)
	case err != nil:
		c.malformed.Add(1)
	}
	return n, err
}

// post makes the command visible: buffer, then descriptor, then posted, then
// the doorbell.
func (c *Channel) post(cmd msg.Command, payload []byte) error {
	mem, bus := c.buf.At(0, msg.BufferSize)
	used := len(msg.AppendRequest(mem[:0], cmd, payload))
	for i := used; i < len(mem); i++ {
		mem[i] = poison
	}
	mmio.Barrier()

	var d [msg.DescSize]byte
	msg.Descriptor{Addr: uint64(bus), Len: uint16(len(payload)), Flags: msg.FlagNoAggDMA}.Append(d[:0])
	slot := descOffset + uint32(c.posted&(descCount-1))*msg.DescSize
	c.lent = true
	setMark(c.buf, lentMark(c.revision, c.posted))
	for i := uint32(0); i < msg.DescSize; i += 8 {
		c.window.Store64(slot+i, binary.LittleEndian.Uint64(d[i:]))
	}
	mmio.Barrier()

	c.posted++
	c.commands.Add(1)
	c.window.Store64(msg.StateLowRing+msg.RingPosted, c.posted)
	mmio.Barrier()

	if err := c.bell.Ring(doorbell); err != nil {
		return fmt.Errorf("ring doorbell %d: %w", doorbell, err)
	}
	return nil
}

// await polls done: every 20 us for 2 ms, then every millisecond, for 2 s, with
// one look after the deadline however late that is.
func (c *Channel) await(ctx context.Context, cmd msg.Command) error {
	start := c.clock.Now()
	for {
		waited := c.clock.Now() - start
		done := c.window.Load64(msg.StateLowRing + msg.RingDone)
		switch {
		case done == ^uint64(0):
			return mmio.ErrGone
		case done == c.posted:
			return nil
		case done > c.posted:
			return fmt.Errorf("%w: %d commands done of %d posted", ErrMalformed, done, c.posted)
		case waited >= commandLimit:
			c.timeouts.Add(1)
			return &TimeoutError{What: cmd.String(), Waited: waited, Posted: c.posted, Done: done, Config: c.window.Load64(msg.StateMagic)}
		}
		step := slowPoll
		if waited < fastPollFor {
			step = fastPoll
		}
		if err := c.clock.Sleep(ctx, min(step, commandLimit-waited)); err != nil {
			return err
		}
	}
}

// abandon leaves the buffer with the card and stalls the channel.
func (c *Channel) abandon(cmd msg.Command, cause error) error {
	c.state = stalled
	c.stall = &StalledError{Command: cmd, Since: c.clock.Now(), Cause: cause}
	if errors.Is(cause, ErrMalformed) {
		c.malformed.Add(1)
	}
	return cause
}

// head reads the reply's head, once.
func (c *Channel) head() (r msg.Response) {
	mem, _ := c.buf.At(0, msg.HeaderSize)
	var head [msg.HeaderSize]byte
	copy(head[:], mem)
	_ = r.Decode(head[:]) // it is long enough
	return r
}

// answer checks a reply's head and copies the payload.
func (c *Channel) answer(r msg.Response, reply []byte) (int, error) {
	mem, _ := c.buf.At(0, msg.BufferSize)
	if err := r.RC.Err(); err != nil {
		return 0, err
	}
	n, room := int(r.Len), msg.RespRoom
	if reply != nil {
		room = min(room, len(reply))
	}
	if n > room {
		return 0, fmt.Errorf("%w: reply of %d bytes, room for %d", ErrMalformed, n, room)
	}
	return copy(reply, mem[msg.RespPayload:msg.RespPayload+n]), nil
}

// Stats returns the counters. It never waits and never touches the card.
func (c *Channel) Stats() Stats {
	c.keptMu.Lock()
	kept := len(c.kept)
	c.keptMu.Unlock()
	return Stats{
		Commands: c.commands.Load(), Refused: c.refused.Load(), Failed: c.failed.Load(), Again: c.again.Load(),
		Timeouts: c.timeouts.Load(), Malformed: c.malformed.Load(), Configurations: c.configurations.Load(), Abandoned: uint64(kept),
	}
}

// Abandoned returns the buffers, of earlier processes too, that the card may still
// write to. They are freed only when it can no longer: bus mastering off, or the
// coprocessor restarted. One that gets its late reply may be used again by Reopen.
func (c *Channel) Abandoned() []*dma.Region {
	c.keptMu.Lock()
	defer c.keptMu.Unlock()
	return append([]*dma.Region(nil), c.kept...)
}
