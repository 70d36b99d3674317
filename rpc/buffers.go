package rpc

import (
	"context"
	"fmt"

	"oxpd/internal/dma"
	"oxpd/internal/mmio"
	"oxpd/rpc/msg"
)

// BufferBytes is the memory of a command buffer: msg.BufferSize bytes that the card is
// told about, and behind them the mark of their use, which it is not.
const (
	BufferBytes = msg.BufferSize + markBytes
	markBytes   = 64
)

// mark says, to a process after this one too, whether the card may still use a buffer.
// It is one word, so that it is never torn:
//
//	 0..31  the command, by the count of commands posted before it
//	32..47  revision of the configuration under which it was posted
//	48..63  use
//
// It is written before the command is posted, and taken away after its reply was read.
type mark uint64

// Uses of a buffer.
const (
	useFree = 0 // also of memory that is new
	useLent = 1 // the command is on the ring of that configuration, or about to be
	useLost = 2 // it had no end while that configuration was in force; a reply may come
)

const (
	markRevision = 32
	markUse      = 48
)

func lentMark(revision uint16, number uint64) mark {
	return useLent<<markUse | mark(revision)<<markRevision | mark(uint32(number))
}

func (m mark) use() int         { return int(m >> markUse) }
func (m mark) revision() uint16 { return uint16(m >> markRevision) }
func (m mark) number() uint32   { return uint32(m) }

func markOf(b *dma.Region) mark {
	at, _ := b.At(msg.BufferSize, 8)
	return mark(dma.Load64(at))
}

func setMark(b *dma.Region, m mark) {
	at, _ := b.At(msg.BufferSize, 8)
	dma.Store64(at, uint64(m))
}

// answered tells whether the target has written a reply into a buffer: it does not come
// back to it after that. A request has a zero there.
func answered(b *dma.Region) bool {
	var r msg.Response
	mem, _ := b.At(0, msg.HeaderSize)
	return r.Decode(append([]byte(nil), mem...)) == nil && r.Done != 0
}

// checkBuffer refuses a buffer that the card, or the mark, does not fit.
func checkBuffer(b *dma.Region) error {
	if b.Size() < BufferBytes || b.Bus()%msg.BufferAlign != 0 {
		return fmt.Errorf("buffer %s of %d bytes at %#x: want %d aligned to %d", b.Name(), b.Size(), uint64(b.Bus()), BufferBytes, msg.BufferAlign)
	}
	return nil
}

// inherit judges the buffers of earlier processes and makes sure that there is one to
// use. It comes before the ring is declared anew: what is on the old one is then lost.
func (c *Channel) inherit(ctx context.Context) error {
	for len(c.left) > 0 {
		b := c.left[0]
		if err := checkBuffer(b); err != nil {
			return err
		}
		free, err := c.isFree(ctx, b)
		if err != nil {
			return fmt.Errorf("look at the buffer %s of an earlier process: %w", b.Name(), err)
		}
		c.left = c.left[1:]
		if free {
			setMark(b, useFree)
			c.spare = append(c.spare, b)
		} else {
			c.keep(b)
		}
	}
	if c.buf != nil {
		return nil
	}
	buf, err := c.take()
	if err == nil {
		c.buf = buf
	}
	return err
}

// isFree tells whether the card is done with a buffer of an earlier process. A command
// that this left on the ring is given the time that it would have had.
func (c *Channel) isFree(ctx context.Context, b *dma.Region) (bool, error) {
	m := markOf(b)
	switch m.use() {
	case useFree:
		return true, nil
	case useLent:
		posted, err := c.awaitEnd(ctx, m)
		if err != nil || !posted {
			return !posted, err
		}
	}
	return answered(b), nil
}

// awaitEnd waits until the command of a mark is done, 2 s at most. posted is false when
// it never came to the ring: its process was killed on the way there.
func (c *Channel) awaitEnd(ctx context.Context, m mark) (posted bool, err error) {
	word := c.window.Load64(msg.StateMagic)
	if word == ^uint64(0) {
		return true, mmio.ErrGone
	}
	if got := msg.UnpackConfig(word); got.Magic != msg.ConfigMagic || got.Revision != m.revision() {
		return true, nil // another configuration is in force
	}
	if uint32(c.window.Load64(msg.StateLowRing+msg.RingPosted)) == m.number() {
		return false, nil
	}
	// The doorbell may be what it was killed before.
	if err := c.bell.Ring(doorbell); err != nil {
		return true, fmt.Errorf("ring doorbell %d: %w", doorbell, err)
	}
	for start := c.clock.Now(); ; {
		waited := c.clock.Now() - start
		done := c.window.Load64(msg.StateLowRing + msg.RingDone)
		switch {
		case done == ^uint64(0):
			return true, mmio.ErrGone
		case int32(uint32(done)-m.number()) > 0 || waited >= commandLimit:
			return true, nil
		}
		if err := c.clock.Sleep(ctx, min(slowPoll, commandLimit-waited)); err != nil {
			return true, err
		}
	}
}

// keep leaves a buffer with the card, for later processes too.
func (c *Channel) keep(b *dma.Region) {
	setMark(b, useLost<<markUse)
	c.keptMu.Lock()
	c.kept = append(c.kept, b)
	c.keptMu.Unlock()
	c.log.Warn("rpc buffer left with the card", "region", b.Name())
}

// take returns a buffer that the card does not use: one that nobody needed, one that was
// left with the card and has got its late reply, or a new one. It is written to after
// the next configuration was acknowledged, when nothing is under way on the old one.
func (c *Channel) take() (*dma.Region, error) {
	if n := len(c.spare); n > 0 {
		b := c.spare[n-1]
		c.spare = c.spare[:n-1]
		return b, nil
	}
	c.keptMu.Lock()
	defer c.keptMu.Unlock()
	for i, b := range c.kept {
		if answered(b) {
			c.kept = append(c.kept[:i:i], c.kept[i+1:]...)
			setMark(b, useFree)
			return b, nil
		}
	}
	if c.cfg.Alloc == nil {
		return nil, errNoAlloc
	}
	b, err := c.cfg.Alloc()
	if err != nil {
		return nil, fmt.Errorf("allocate another buffer: %w", err)
	}
	return b, nil
}
