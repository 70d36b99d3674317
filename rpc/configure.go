package rpc

import (
	"context"
	"errors"
	"fmt"

	"oxpd/internal/mmio"
	"oxpd/rpc/msg"
)

// Configure declares one low-priority ring of 8 descriptors and waits, 3 s at
// most, until the target has taken it over (rpc-lif.md 3). It may be called
// again until it succeeds: a configuration that is not acknowledged is rung for
// again and never overwritten, because the target could remember a second word
// as applied without having applied it.
//
// Errors: ErrNotReady, ErrPending, ErrTimeout and ErrMalformed may pass with time;
// ErrOneDoorbell does not; ErrStalled asks for Reopen; mmio.ErrGone.
func (c *Channel) Configure(ctx context.Context) error {
	if err := c.lock(ctx); err != nil {
		return fmt.Errorf("rpc: configure: wait for the channel: %w", err)
	}
	defer c.unlock()
	if c.lent {
		return fmt.Errorf("rpc: configure: %w", c.stall)
	}
	if err := c.configure(ctx); err != nil {
		return fmt.Errorf("rpc: configure: %w", err)
	}
	return nil
}

// Reopen configures the channel anew. When a command was left with the card its
// buffer stays there, is added to Abandoned, and another is taken: one that has come
// back from the card, or Config.Alloc's. Errors are those of Configure, and Alloc's.
func (c *Channel) Reopen(ctx context.Context) error {
	if err := c.lock(ctx); err != nil {
		return fmt.Errorf("rpc: reopen: wait for the channel: %w", err)
	}
	defer c.unlock()
	if c.lent {
		if err := c.replaceBuffer(); err != nil {
			return fmt.Errorf("rpc: reopen: %w", err)
		}
	}
	if err := c.configure(ctx); err != nil {
		return fmt.Errorf("rpc: reopen: %w", err)
	}
	return nil
}

// replaceBuffer leaves the buffer with the card, and takes another.
func (c *Channel) replaceBuffer() error {
	buf, err := c.take()
	if errors.Is(err, errNoAlloc) {
		return fmt.Errorf("%w: %w", err, c.stall)
	}
	if err != nil {
		return err
	}
	c.log.Warn("rpc command is lost", "command", c.stall.Command.String())
	c.keep(c.buf)
	c.buf, c.lent = buf, false
	return nil
}

func (c *Channel) configure(ctx context.Context) error {
	c.state = closed
	if c.cfg.Doorbells == 1 {
		return ErrOneDoorbell
	}
	if need := uint64(descOffset + descCount*msg.DescSize); c.window.Size() < need {
		return fmt.Errorf("window of %d bytes, want %d", c.window.Size(), need)
	}
	if err := c.inherit(ctx); err != nil {
		return err
	}
	if err := checkBuffer(c.buf); err != nil {
		return err
	}
	old, err := c.settle(ctx)
	if err != nil {
		return err
	}

	// A later word must differ, also from what another process left here.
	if old.Magic == msg.ConfigMagic && old.Revision > c.revision {
		c.revision = old.Revision
	}
	for try := 1; ; try++ {
		done, err := c.declare(ctx)
		switch {
		case err != nil:
			return err
		case done == 0:
			c.state, c.stall = open, nil
			c.log.Debug("rpc channel configured", "revision", c.revision, "try", try)
			return nil
		case try == declareTries:
			return fmt.Errorf("%w: %d commands done on a ring declared %d times and never used", ErrMalformed, done, try)
		}
		c.log.Info("rpc ring declared again: an earlier command ended on it", "done", done)
	}
}

// declare writes the rings and the next config word, waits for the
// acknowledgement, and returns how many commands the new ring says are done.
//
// That is not 0 when a command of the configuration before, given up or a dead
// process's, ended between the declaration and the target's look at the word: the
// target then wrote its count over the cleared one. Acknowledging quiesces the
// rings, so nothing old is left to do that to the next declaration.
func (c *Channel) declare(ctx context.Context) (done uint64, err error) {
	c.revision++
	if c.revision == 0 {
		c.revision = 1
	}
	c.posted = 0
	c.declareRings()
	mmio.Barrier()
	want := msg.ConfigWord{Magic: msg.ConfigMagic, Revision: c.revision}
	c.window.Store64(msg.StateMagic, want.Word())
	mmio.Barrier()
	if err := c.bell.Ring(doorbell); err != nil {
		return 0, fmt.Errorf("ring doorbell %d: %w", doorbell, err)
	}

	got, err := c.awaitDone(ctx)
	if err != nil {
		return 0, err
	}
	got.Done = 0
	if got != want {
		return 0, fmt.Errorf("%w: wrote config word 0x%016x, read back 0x%016x", ErrMalformed, want.Word(), got.Word())
	}
	c.configurations.Add(1)
	if done = c.window.Load64(msg.StateLowRing + msg.RingDone); done == ^uint64(0) {
		return 0, mmio.ErrGone
	}
	return done, nil
}

// settle waits until the window shows no configuration in progress.
func (c *Channel) settle(ctx context.Context) (msg.ConfigWord, error) {
	word := c.window.Load64(msg.StateMagic)
	if word == ^uint64(0) {
		return msg.ConfigWord{}, mmio.ErrGone
	}
	got := msg.UnpackConfig(word)
	if got.Done != 0 {
		return got, nil
	}
	if got.Magic == msg.ConfigMagic {
		// Written by us before, or by a process that is gone, and not seen yet.
		if err := c.bell.Ring(doorbell); err != nil {
			return got, fmt.Errorf("ring doorbell %d: %w", doorbell, err)
		}
	}
	got, err := c.awaitDone(ctx)
	switch {
	case !errors.Is(err, ErrTimeout):
		return got, err
	case got == (msg.ConfigWord{}):
		return got, fmt.Errorf("%w (%w)", ErrNotReady, err)
	default:
		return got, fmt.Errorf("%w (%w)", ErrPending, err)
	}
}

// awaitDone polls reconfig_done every millisecond for 3 s, with one look after
// the deadline, and returns the word as last read.
func (c *Channel) awaitDone(ctx context.Context) (msg.ConfigWord, error) {
	start := c.clock.Now()
	for {
		waited := c.clock.Now() - start
		word := c.window.Load64(msg.StateMagic)
		if word == ^uint64(0) {
			return msg.ConfigWord{}, mmio.ErrGone
		}
		got := msg.UnpackConfig(word)
		if got.Done != 0 {
			return got, nil
		}
		if waited >= configLimit {
			c.timeouts.Add(1)
			return got, &TimeoutError{What: "configuration", Waited: waited, Config: word}
		}
		if err := c.clock.Sleep(ctx, min(slowPoll, configLimit-waited)); err != nil {
			return got, err
		}
	}
}

// declareRings fills the low ring and zeroes the high ones.
func (c *Channel) declareRings() {
	const low = msg.StateLowRing
	c.window.Store64(low+msg.RingPosted, 0)
	c.window.Store64(low+msg.RingDone, 0)
	c.window.Store32(low+msg.RingOffset, 0)
	c.window.Store32(low+msg.RingDescOffset, descOffset)
	c.window.Store32(low+msg.RingDescCount, descCount)
	// ring number 0, facility 0, doorbell index 0, not shared: one word of bytes.
	c.window.Store32(low+msg.RingNum, doorbell<<(8*(msg.RingDoorbell-msg.RingNum)))
	for off := uint32(msg.StateHiRing); off < msg.StateSize; off += 8 {
		c.window.Store64(off, 0)
	}
}
