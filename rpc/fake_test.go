package rpc

import (
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"oxpd/internal/dma"
	"oxpd/internal/mmio"
	"oxpd/rpc/msg"
)

var le = binary.LittleEndian

// stepClock moves only when somebody sleeps, and runs what is due on the way.
type stepClock struct {
	mu     sync.Mutex
	now    time.Duration
	events []event
	naps   []time.Duration
}

type event struct {
	at time.Duration
	do func()
}

func (c *stepClock) Now() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *stepClock) after(d time.Duration, do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = append(c.events, event{c.now + d, do})
}

func (c *stepClock) Sleep(ctx context.Context, d time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c.mu.Lock()
	c.now += d
	c.naps = append(c.naps, d)
	var due []func()
	c.events = slices.DeleteFunc(c.events, func(e event) bool {
		if e.at <= c.now {
			due = append(due, e.do)
		}
		return e.at <= c.now
	})
	c.mu.Unlock()
	for _, do := range due {
		do()
	}
	return nil
}

// target is the far end over plain memory: it serves a doorbell after its
// latency, one command a ring, the way rpc-lif.md 2 and 3 describe.
type target struct {
	t     testing.TB
	clock *stepClock

	mu     sync.Mutex
	win    []byte
	mem    map[uint64][]byte // by bus address
	cached uint64
	rings  []int
	seen   [][]byte // requests, header and payload
	descs  []msg.Descriptor
	seed   uint16

	latency   time.Duration
	deaf      bool // does not see commands
	noConfig  bool // does not see configurations
	ackWord   func(word uint64) uint64
	ringErr   error
	answer    func(cmd msg.Command, payload []byte) (msg.RC, []byte)
	mangle    func(buf []byte) // the written reply, before done moves
	doneExtra uint64           // added to done beside the 1
	onStore   func(off uint32, width int, v uint64)
}

const windowSize = 0x10000

func newTarget(t testing.TB) *target {
	c := &stepClock{}
	g := &target{t: t, clock: c, win: make([]byte, windowSize), mem: map[uint64][]byte{}, seed: 1, latency: 50 * time.Microsecond}
	g.cached = msg.ConfigIdle
	le.PutUint64(g.win, msg.ConfigIdle)
	g.answer = func(msg.Command, []byte) (msg.RC, []byte) { return msg.RCOK, nil }
	return g
}

// region returns a command buffer that the target reaches.
func (g *target) region(name string, bus uint64) *dma.Region {
	mem := make([]byte, BufferBytes)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mem[bus] = mem
	return dma.NewRegion(name, mem, dma.BusAddr(bus))
}

func (g *target) Size() uint64 { return windowSize }

func (g *target) Load32(off uint32) uint32 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return le.Uint32(g.win[off:])
}

func (g *target) Load64(off uint32) uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return le.Uint64(g.win[off:])
}

func (g *target) Store32(off uint32, v uint32) { g.store(off, 4, uint64(v)) }
func (g *target) Store64(off uint32, v uint64) { g.store(off, 8, v) }

func (g *target) store(off uint32, width int, v uint64) {
	if off%uint32(width) != 0 {
		g.t.Errorf("store of %d bytes at %#x", width, off)
	}
	if g.onStore != nil {
		g.onStore(off, width, v)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if width == 4 {
		le.PutUint32(g.win[off:], uint32(v))
	} else {
		le.PutUint64(g.win[off:], v)
	}
}

func (g *target) Ring(index int) error {
	g.mu.Lock()
	g.rings = append(g.rings, index)
	err := g.ringErr
	g.mu.Unlock()
	if err == nil {
		g.clock.after(g.latency, g.serve)
	}
	return err
}

// serve is what a doorbell does.
func (g *target) serve() {
	g.mu.Lock()
	defer g.mu.Unlock()
	word := le.Uint64(g.win)
	if word == ^uint64(0) {
		return
	}
	if word != g.cached {
		if g.noConfig {
			return
		}
		word |= 1 << 56
		if g.ackWord != nil {
			word = g.ackWord(word)
		}
		le.PutUint64(g.win, word)
		g.cached = word
		return
	}
	if g.deaf {
		return
	}
	low := g.win[msg.StateLowRing:]
	for le.Uint64(low[msg.RingDone:]) < le.Uint64(low[msg.RingPosted:]) {
		done := le.Uint64(low[msg.RingDone:])
		slot := uint32(done) & (le.Uint32(low[msg.RingDescCount:]) - 1)
		var d msg.Descriptor
		if err := d.Decode(g.win[le.Uint32(low[msg.RingDescOffset:])+slot*msg.DescSize:]); err != nil {
			g.t.Error(err)
		}
		buf, ok := g.mem[d.Addr]
		if !ok {
			g.t.Errorf("descriptor %d with address %#x: no memory there", slot, d.Addr)
			return
		}
		g.descs = append(g.descs, d)
		g.seen = append(g.seen, slices.Clone(buf[:msg.HeaderSize+int(d.Len)]))
		rc, payload := g.answer(msg.Command(buf[msg.ReqCommand]), slices.Clone(buf[msg.ReqPayload:][:d.Len]))
		g.seed++
		if d.Flags&msg.FlagPost == 0 {
			out := msg.Response{RC: rc, Done: 1, Seed: g.seed, Len: uint16(len(payload))}.Append(nil)
			copy(buf, append(append(out, payload...), 0x11, 0x22, 0x33, 0x44))
			if g.mangle != nil {
				g.mangle(buf)
			}
		}
		le.PutUint64(low[msg.RingDone:], done+1+g.doneExtra)
	}
}

// gone turns the window into all ones.
func (g *target) gone() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.win {
		g.win[i] = 0xff
	}
}

func (g *target) requests() [][]byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.seen)
}

var (
	_ mmio.Space = (*target)(nil)
	_ Bell       = (*target)(nil)
)

const firstBus = 0x1_8000_0000

func (g *target) channel(cfg Config) *Channel {
	buf := g.region("rpc buffer", firstBus+uint64(len(g.mem))<<30)
	return New(g, g, buf, g.clock, slog.New(slog.NewTextHandler(io.Discard, nil)), cfg)
}
