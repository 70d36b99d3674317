package nwa

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"oxpd/internal/mmio"
	"oxpd/rpc/msg"
)

var le = binary.LittleEndian

// stepClock moves only when somebody sleeps, and runs what is due on the way.
type stepClock struct {
	mu     sync.Mutex
	now    time.Duration
	events []event
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

// target is NetAgent over plain memory: it answers a request after its latency
// and takes an acknowledgement after another, the way rpc-lif.md 7 describes.
type target struct {
	t     testing.TB
	clock *stepClock

	mu     sync.Mutex
	win    []byte
	trace  []string // stores by offset and value, and "ring N"
	seen   []msg.NWARequestMsg
	served bool // the request in the window was taken

	latency time.Duration // of a reply
	settle  time.Duration // of an acknowledgement
	silent  bool          // takes requests and answers none
	wedged  bool          // takes no acknowledgement
	ringErr error
	answer  func(r msg.NWARequestMsg) (status uint32, payload []byte)
	mangle  func(win []byte) // the written reply, before STATUS moves
}

const windowSize = 0x10000

func newTarget(t testing.TB) *target {
	g := &target{t: t, clock: &stepClock{}, win: make([]byte, windowSize), latency: 12 * time.Millisecond, settle: 40 * time.Microsecond}
	g.publish()
	g.answer = func(msg.NWARequestMsg) (uint32, []byte) { return msg.ReplyOK, nil }
	return g
}

func (g *target) publish() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for off, v := range map[int]uint32{
		msg.NWACookie: msg.NWAMagic, msg.NWABody: msg.NWABodyOffset, msg.NWAMaxReq: msg.NWAMaxReqLen,
		msg.NWAEventOff: msg.NWAEvent, msg.NWAEventLen: msg.NWAEvent,
	} {
		le.PutUint32(g.win[off:], v)
	}
}

// restart ends NetAgent and starts it again: the mailbox is blank meanwhile, and knows
// no request afterwards.
func (g *target) restart(blank time.Duration) {
	g.fill(0)
	g.mu.Lock()
	g.served = true
	g.mu.Unlock()
	if blank == 0 {
		g.publish()
		return
	}
	g.clock.after(blank, g.publish)
}

func (g *target) fill(b byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.win {
		g.win[i] = b
	}
}

func (g *target) Size() uint64 { return windowSize }
func (g *target) Load64(off uint32) uint64 {
	g.t.Errorf("64-bit load at %#x", off)
	return 0
}
func (g *target) Store64(off uint32, _ uint64) { g.t.Errorf("64-bit store at %#x", off) }

func (g *target) Load32(off uint32) uint32 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return le.Uint32(g.win[off:])
}

func (g *target) Store32(off uint32, v uint32) {
	switch {
	case off == msg.NWATurn, off == msg.NWAReqLen, msg.NWARequest <= off && off < msg.NWAReply:
	default:
		g.t.Errorf("store to the target's word at %#x", off)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	le.PutUint32(g.win[off:], v)
	g.trace = append(g.trace, fmt.Sprintf("%#x=%#x", off, v))
	if off != msg.NWATurn {
		return
	}
	switch v {
	case msg.TurnRequest:
		g.served = false
		g.clock.after(g.latency, g.serve)
	case msg.TurnAck:
		g.clock.after(g.settle, g.idle)
	}
}

func (g *target) Ring(index int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.trace = append(g.trace, fmt.Sprintf("ring %d", index))
	return g.ringErr
}

// serve answers the request that is in the window now.
func (g *target) serve() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.served || g.silent || le.Uint32(g.win[msg.NWACookie:]) != msg.NWAMagic {
		return
	}
	g.served = true
	var r msg.NWARequestMsg
	if err := r.Decode(g.win[msg.NWARequest:]); err != nil {
		g.t.Error(err)
	}
	g.seen = append(g.seen, r)
	g.reply(g.answer(r))
}

func (g *target) reply(status uint32, payload []byte) {
	for i := msg.NWAReply; i < msg.NWAReply+64; i++ {
		g.win[i] = 0xa7 // of an earlier, longer reply
	}
	le.PutUint32(g.win[msg.NWAReply:], msg.ReplyMarker)
	le.PutUint32(g.win[msg.NWAReply+4:], status)
	copy(g.win[msg.NWAReply+8:], payload)
	le.PutUint32(g.win[msg.NWAReplyLen:], uint32(8+len(payload)))
	if g.mangle != nil {
		g.mangle(g.win)
	}
	le.PutUint32(g.win[msg.NWAStatus:], msg.StatusReply)
}

func (g *target) idle() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.wedged {
		le.PutUint32(g.win[msg.NWAStatus:], msg.StatusIdle)
	}
}

func (g *target) requests() []msg.NWARequestMsg {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.seen)
}

func (g *target) takeTrace() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := g.trace
	g.trace = nil
	return t
}

var (
	_ mmio.Space = (*target)(nil)
	_ Bell       = (*target)(nil)
)

func (g *target) agent() *Agent {
	return New(g, g, g.clock, slog.New(slog.NewTextHandler(io.Discard, nil)))
}
