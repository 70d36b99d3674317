package rpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
	"oxpd/internal/dma"
	"oxpd/internal/mmio"
	"oxpd/rpc/msg"
)

var bg = context.Background()

func opened(t *testing.T, cfg Config) (*target, *Channel) {
	t.Helper()
	g := newTarget(t)
	c := g.channel(cfg)
	require.NoError(t, c.Configure(bg))
	return g, c
}

//oxpd:fault R15 behaviour
func TestConfigureDeclaresOneLowRingAndTheWordLast(t *testing.T) {
	g := newTarget(t)
	var order []uint32
	g.onStore = func(off uint32, width int, v uint64) {
		order = append(order, off)
		if off == msg.StateMagic {
			require.Equal(t, 8, width, "the config word is one 64-bit store")
			require.Equal(t, uint64(0x00000001D7D3AB00), v)
		}
	}
	for i := msg.StateLowRing; i < msg.StateSize; i++ {
		g.win[i] = 0x77 // left by somebody
	}
	c := g.channel(Config{})
	require.NoError(t, c.Configure(bg))

	require.Equal(t, uint32(msg.StateMagic), order[len(order)-1])
	low := g.win[msg.StateLowRing:]
	require.Zero(t, le.Uint64(low[msg.RingPosted:]))
	require.Zero(t, le.Uint64(low[msg.RingDone:]))
	require.Zero(t, le.Uint32(low[msg.RingOffset:]))
	require.Equal(t, uint32(0x1000), le.Uint32(low[msg.RingDescOffset:]))
	require.Equal(t, uint32(8), le.Uint32(low[msg.RingDescCount:]))
	require.Equal(t, []byte{0, 0, 0, 0}, low[msg.RingNum:msg.RingSize])
	require.Equal(t, make([]byte, 4*msg.RingSize), g.win[msg.StateHiRing:msg.StateSize])
	require.Equal(t, uint64(0x01000001D7D3AB00), g.Load64(0), "as measured")
	require.Equal(t, []int{0}, g.rings)
	require.Equal(t, uint64(1), c.Stats().Configurations)
}

func TestConfigureCountsTheRevisionUp(t *testing.T) {
	g, c := opened(t, Config{})
	require.NoError(t, c.Configure(bg))
	require.Equal(t, uint64(0x01000002D7D3AB00), g.Load64(0))

	t.Run("above another process's", func(t *testing.T) {
		require.NoError(t, g.channel(Config{}).Configure(bg))
		require.Equal(t, uint64(0x01000003D7D3AB00), g.Load64(0))
	})
	t.Run("past the vendor's 9211", func(t *testing.T) {
		g := newTarget(t)
		g.win[7], g.cached = 1, msg.ConfigWord{Magic: msg.ConfigMagic, Revision: 9211, HiRings: 1, Done: 1}.Word()
		le.PutUint64(g.win, g.cached)
		require.NoError(t, g.channel(Config{}).Configure(bg))
		require.Equal(t, msg.ConfigWord{Magic: msg.ConfigMagic, Revision: 9212, Done: 1}, msg.UnpackConfig(g.Load64(0)))
	})
	t.Run("never 0", func(t *testing.T) {
		c.revision = math.MaxUint16
		require.NoError(t, c.Configure(bg))
		require.Equal(t, uint16(1), c.revision)
	})
}

func TestConfigureRefuses(t *testing.T) {
	for _, tc := range []struct {
		name string
		cfg  Config
		prep func(*target, *Channel)
		want error
	}{
		{"a facility with one doorbell", Config{Doorbells: 1}, nil, ErrOneDoorbell},
		{"a card that is gone", Config{}, func(g *target, _ *Channel) { g.gone() }, mmio.ErrGone},
		{"a blank window", Config{}, func(g *target, _ *Channel) { clear(g.win); g.noConfig = true }, ErrNotReady},
		{"a word that reads back otherwise", Config{}, func(g *target, _ *Channel) {
			g.ackWord = func(w uint64) uint64 { return w ^ 1<<48 }
		}, ErrMalformed},
		{"no acknowledgement", Config{}, func(g *target, _ *Channel) { g.noConfig = true }, ErrTimeout},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := newTarget(t)
			c := g.channel(tc.cfg)
			if tc.prep != nil {
				tc.prep(g, c)
			}
			require.ErrorIs(t, c.Configure(bg), tc.want)
			_, err := c.Call(bg, msg.CmdPlatformRead, nil, nil)
			require.ErrorIs(t, err, ErrNotConfigured)
			require.Empty(t, g.requests())
			require.LessOrEqual(t, g.clock.Now(), 3*time.Second)
		})
	}
	t.Run("a buffer that is too small", func(t *testing.T) {
		g := newTarget(t)
		c := New(g, g, dma.NewRegion("small", make([]byte, 2048), firstBus), g.clock, nil, Config{})
		require.ErrorContains(t, c.Configure(bg), "want 4160 aligned to 4096")
	})
	t.Run("a buffer that is not aligned", func(t *testing.T) {
		g := newTarget(t)
		c := New(g, g, dma.NewRegion("odd", make([]byte, BufferBytes), firstBus+64), g.clock, nil, Config{})
		require.ErrorContains(t, c.Configure(bg), "want 4160 aligned to 4096")
	})
}

//oxpd:fault R14 behaviour
func TestConfigurationIsNeverOverwrittenBeforeItIsAcknowledged(t *testing.T) {
	g := newTarget(t)
	g.noConfig = true
	c := g.channel(Config{})
	words := 0
	g.onStore = func(off uint32, _ int, _ uint64) {
		if off == msg.StateMagic {
			words++
		}
	}
	require.ErrorIs(t, c.Configure(bg), ErrTimeout)
	require.Equal(t, 3*time.Second, g.clock.Now())
	for range 3 {
		require.ErrorIs(t, c.Configure(bg), ErrPending)
	}
	require.Equal(t, 1, words)
	require.Len(t, g.rings, 4, "it is rung for again")

	t.Run("nor is a dead process's", func(t *testing.T) {
		words = 0
		require.ErrorIs(t, g.channel(Config{}).Configure(bg), ErrPending)
		require.Zero(t, words)
	})

	g.noConfig = false
	require.NoError(t, c.Configure(bg), "acknowledged late, then replaced")
	require.Equal(t, uint16(2), msg.UnpackConfig(g.Load64(0)).Revision)
	_, err := c.Call(bg, msg.CmdPlatformRead, nil, nil)
	require.NoError(t, err)
}

func TestConfigureTakesALastLookAfterTheDeadline(t *testing.T) {
	g := newTarget(t)
	g.latency = configLimit // acknowledged in the very sleep that reaches the deadline
	require.NoError(t, g.channel(Config{}).Configure(bg))
	require.Equal(t, configLimit, g.clock.Now())
}

//oxpd:fault R6 behaviour
//oxpd:fault R17 behaviour
func TestCallOrder(t *testing.T) {
	g, c := opened(t, Config{})
	buf := g.mem[firstBus]
	var order []string
	g.onStore = func(off uint32, width int, v uint64) {
		order = append(order, fmt.Sprintf("%#x/%d", off, width))
		switch off {
		case 0x1000: // first word of the first descriptor: the buffer is complete
			require.Equal(t, []byte{0xf8, 0x0f, 0, 37, 0, 0, 0, 0, 1, 2, 3}, buf[:11])
			require.Equal(t, bytes.Repeat([]byte{poison}, msg.BufferSize-11), buf[11:msg.BufferSize], "the rest is poisoned")
		case msg.StateLowRing + msg.RingPosted: // the descriptor is complete
			require.Equal(t, uint64(1), v)
			require.Equal(t, msg.Descriptor{Addr: firstBus, Len: 3, Flags: 2}, firstDescriptor(t, g))
			require.Len(t, g.rings, 1, "not rung yet")
		}
	}
	reply := make([]byte, 64)
	g.answer = func(cmd msg.Command, p []byte) (msg.RC, []byte) { return 0, []byte{9, 8, 7} }
	n, err := c.Call(bg, msg.CmdLIFRead, []byte{1, 2, 3}, reply)
	require.NoError(t, err)
	require.Equal(t, []byte{9, 8, 7}, reply[:n])
	require.Equal(t, []string{"0x1000/8", "0x1008/8", "0x48/8"}, order)
	require.Equal(t, []int{0, 0}, g.rings)
}

func firstDescriptor(t *testing.T, g *target) (d msg.Descriptor) {
	g.mu.Lock()
	defer g.mu.Unlock()
	require.NoError(t, d.Decode(g.win[0x1000:]))
	return d
}

func TestCallUsesTheSlotsInTurn(t *testing.T) {
	g, c := opened(t, Config{})
	var slots []uint32
	g.onStore = func(off uint32, _ int, _ uint64) {
		if off >= 0x1000 && off%msg.DescSize == 0 {
			slots = append(slots, (off-0x1000)/msg.DescSize)
		}
	}
	for i := range 20 {
		g.answer = func(msg.Command, []byte) (msg.RC, []byte) { return 0, []byte{byte(i)} }
		var reply [1]byte
		_, err := c.Call(bg, msg.CmdLIFRead, nil, reply[:])
		require.NoError(t, err)
		require.Equal(t, byte(i), reply[0])
	}
	require.Equal(t, []uint32{0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3}, slots)
}

func TestAllowList(t *testing.T) {
	g, c := opened(t, Config{})
	stores := 0
	g.onStore = func(uint32, int, uint64) { stores++ }
	allowed := map[msg.Command]bool{2: true, 3: true, 5: true}
	for n := msg.Command(36); n <= 46; n++ {
		allowed[n] = true
	}
	for n := range 256 {
		cmd := msg.Command(n)
		stores = 0
		_, err := c.Call(bg, cmd, nil, nil)
		if allowed[cmd] {
			require.NoError(t, err, "%s", cmd)
			continue
		}
		require.ErrorIs(t, err, ErrNotAllowed, "command %d", n)
		require.Zero(t, stores, "command %d is refused before anything is written", n)
	}
	require.Len(t, g.requests(), len(allowed))
	require.Equal(t, uint64(len(allowed)), c.Stats().Commands)
}

func TestCallRefusesALongPayload(t *testing.T) {
	g, c := opened(t, Config{})
	_, err := c.Call(bg, msg.CmdLIFRead, make([]byte, msg.MaxRequest+1), nil)
	require.ErrorContains(t, err, "payload of 4065 bytes")
	_, err = c.Call(bg, msg.CmdLIFRead, make([]byte, msg.MaxRequest), nil)
	require.NoError(t, err)
	require.Len(t, g.requests(), 1)
}

func TestAnswersThatAreNone(t *testing.T) {
	for _, tc := range []struct {
		name string
		prep func(*target)
		want error
		text string
	}{
		{"rc 1", func(g *target) { rc(g, 1) }, nil, "rc 1: refused"},
		{"rc 2", func(g *target) { rc(g, 2) }, nil, "rc 2: refused by the fast path"},
		{"handler errno", func(g *target) { rc(g, 20+msg.RC(syscall.EPERM)) }, syscall.EPERM, "rc 21"},
		{"transport errno", func(g *target) { rc(g, 0x8000|msg.RC(syscall.EINVAL)) }, syscall.EINVAL, "transport"},
		{"transport EAGAIN is not a handler's", func(g *target) { rc(g, 0x8000|msg.RC(syscall.EAGAIN)) }, syscall.EAGAIN, "transport"},
		{"length one past the room", func(g *target) { replyLen(g, 33) }, ErrMalformed, "reply of 33 bytes, room for 32"},
		{"length 65,535", func(g *target) { replyLen(g, 65535) }, ErrMalformed, "reply of 65535 bytes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g, c := opened(t, Config{})
			tc.prep(g)
			reply := make([]byte, 32)
			n, err := c.Call(bg, msg.CmdLIFRead, nil, reply)
			require.ErrorContains(t, err, tc.text)
			require.Zero(t, n)
			require.Equal(t, make([]byte, 32), reply, "nothing of the buffer gets out")
			if tc.want != nil {
				require.ErrorIs(t, err, tc.want)
			}
			require.Len(t, g.requests(), 1, "not tried again")

			g.mangle, g.answer = nil, func(msg.Command, []byte) (msg.RC, []byte) { return 0, []byte{1} }
			_, err = c.Call(bg, msg.CmdLIFRead, nil, reply)
			require.NoError(t, err, "the channel goes on")
			s := c.Stats()
			require.Equal(t, uint64(1), s.Refused+s.Failed+s.Malformed)
		})
	}
}

func rc(g *target, rc msg.RC) {
	g.answer = func(msg.Command, []byte) (msg.RC, []byte) { return rc, []byte{1, 2, 3} }
}

func replyLen(g *target, n uint16) {
	g.mangle = func(b []byte) { le.PutUint16(b[msg.RespLen:], n) }
}

//oxpd:fault R5 behaviour
func TestReplyLengthIsBoundedByTheBufferAlsoWhenItIsDropped(t *testing.T) {
	g, c := opened(t, Config{})
	replyLen(g, msg.RespRoom)
	_, err := c.Call(bg, msg.CmdLIFAddUpdate, nil, nil)
	require.NoError(t, err)
	replyLen(g, msg.RespRoom+1)
	_, err = c.Call(bg, msg.CmdLIFAddUpdate, nil, nil)
	require.ErrorIs(t, err, ErrMalformed)
}

func TestDoneMagicIsNotVerified(t *testing.T) {
	for _, magic := range [][]byte{{0, 0, 0, 0}, {poison, poison, poison, poison}, {1, 2, 3, 4}} {
		g, c := opened(t, Config{})
		g.mangle = func(b []byte) { copy(b[msg.RespPayload:], magic) }
		_, err := c.Call(bg, msg.CmdLIFRead, nil, nil)
		require.NoError(t, err)
	}
}

func TestPollIntervals(t *testing.T) {
	g, c := opened(t, Config{})
	g.deaf = true
	g.clock.naps = nil
	_, err := c.Call(bg, msg.CmdPlatformRead, nil, nil)
	require.ErrorIs(t, err, ErrTimeout)
	var sum time.Duration
	for i, nap := range g.clock.naps {
		if i < 100 {
			require.Equal(t, 20*time.Microsecond, nap)
		} else {
			require.Equal(t, time.Millisecond, nap)
		}
		sum += nap
	}
	require.Equal(t, 2*time.Second, sum)
}

// Row CTL-1: a point in time handed over where a duration was wanted.
func TestTimeoutDoesNotDependOnTheClocksStart(t *testing.T) {
	for name, start := range map[string]time.Duration{
		"clock at 0":         0,
		"clock at 2^31-1 ms": math.MaxInt32 * time.Millisecond,
		"clock at 400 days":  400 * 24 * time.Hour,
	} {
		t.Run(name, func(t *testing.T) {
			g := newTarget(t)
			g.clock.now = start
			c := g.channel(Config{})
			require.NoError(t, c.Configure(bg))
			g.deaf = true
			from := g.clock.Now()
			_, err := c.Call(bg, msg.CmdLIFAddUpdate, nil, nil)
			require.ErrorIs(t, err, ErrTimeout)
			require.Equal(t, 2*time.Second, g.clock.Now()-from)
			var e *TimeoutError
			require.ErrorAs(t, err, &e)
			require.Equal(t, TimeoutError{What: "LIF_ADD_UPDATE", Waited: 2 * time.Second, Posted: 1, Config: 0x01000001D7D3AB00}, *e)
		})
	}
}

func TestCallTakesALastLookAfterTheDeadline(t *testing.T) {
	g, c := opened(t, Config{})
	g.latency = commandLimit
	_, err := c.Call(bg, msg.CmdPlatformRead, nil, nil)
	require.NoError(t, err)

	// The process was not run for a minute: the answer is there, though late.
	g.latency = time.Millisecond
	g.onStore = func(off uint32, _ int, _ uint64) {
		if off == msg.StateLowRing+msg.RingPosted {
			g.clock.after(0, func() { g.clock.now += time.Minute; g.serve() })
		}
	}
	_, err = c.Call(bg, msg.CmdPlatformRead, nil, nil)
	require.NoError(t, err)
}

func TestTimeoutStallsUntilReopen(t *testing.T) {
	var g *target
	allocs := 0
	alloc := func() (*dma.Region, error) {
		allocs++
		return g.region(fmt.Sprintf("buffer %d", allocs), firstBus+uint64(allocs)<<20), nil
	}
	g, c := opened(t, Config{Alloc: alloc})
	g.deaf = true
	_, err := c.Call(bg, msg.CmdLIFRead, msg.TableRead{Start: 7}.Append(nil), nil)
	require.ErrorIs(t, err, ErrTimeout)
	require.NotErrorIs(t, err, ErrStalled)

	left := bytes.Clone(g.mem[firstBus][:msg.BufferSize])
	require.Equal(t, byte(37), left[msg.ReqCommand], "the request is still in the buffer")
	stores := 0
	g.onStore = func(uint32, int, uint64) { stores++ }
	for range 3 {
		_, err = c.Call(bg, msg.CmdPlatformRead, nil, nil)
		require.ErrorIs(t, err, ErrStalled)
		require.ErrorIs(t, err, ErrTimeout, "the cause is shown")
		require.ErrorContains(t, err, "stays with the card until the channel is reopened")
		var e *StalledError
		require.ErrorAs(t, err, &e)
		require.Equal(t, msg.CmdLIFRead, e.Command)
	}
	require.ErrorIs(t, c.Configure(bg), ErrStalled)
	require.Zero(t, stores)
	require.Equal(t, left, g.mem[firstBus][:msg.BufferSize], "nobody touches the card's buffer")

	require.NoError(t, c.Reopen(bg))
	require.Equal(t, 1, allocs)
	require.Len(t, c.Abandoned(), 1)
	require.Equal(t, dma.BusAddr(firstBus), c.Abandoned()[0].Bus())
	g.deaf = false
	_, err = c.Call(bg, msg.CmdPlatformRead, nil, nil)
	require.NoError(t, err)
	require.Equal(t, uint64(firstBus+1<<20), g.descs[len(g.descs)-1].Addr)
	require.Equal(t, left, g.mem[firstBus][:msg.BufferSize])
	require.Equal(t, Stats{Commands: 2, Timeouts: 1, Configurations: 2, Abandoned: 1}, c.Stats())

	t.Run("without a lost command the buffer is kept", func(t *testing.T) {
		require.NoError(t, c.Reopen(bg))
		require.Equal(t, 1, allocs)
	})
}

// A count that says done without a reply is not about this command: the target
// may still be to read its buffer.
func TestDoneWithoutAReplyStalls(t *testing.T) {
	var g *target
	alloc := func() (*dma.Region, error) { return g.region("fresh", firstBus+1<<20), nil }
	g, c := opened(t, Config{Alloc: alloc})
	g.deaf = true // the target has not looked yet,
	g.onStore = func(off uint32, _ int, v uint64) {
		if off == msg.StateLowRing+msg.RingPosted {
			le.PutUint64(g.win[msg.StateLowRing+msg.RingDone:], v) // and its count has moved
		}
	}
	_, err := c.Call(bg, msg.CmdLIFRead, []byte{1, 2, 3}, nil)
	require.ErrorIs(t, err, ErrMalformed)
	require.ErrorContains(t, err, "no reply was written")
	left := bytes.Clone(g.mem[firstBus][:msg.BufferSize])
	_, err = c.Call(bg, msg.CmdPlatformRead, nil, nil)
	require.ErrorIs(t, err, ErrStalled)
	require.ErrorIs(t, err, ErrMalformed, "the cause is shown")
	require.Equal(t, left, g.mem[firstBus][:msg.BufferSize], "the request is still what the target will read")
	require.Equal(t, Stats{Commands: 1, Malformed: 1, Configurations: 1}, c.Stats())

	g.onStore, g.deaf = nil, false
	require.NoError(t, c.Reopen(bg))
	_, err = c.Call(bg, msg.CmdPlatformRead, nil, nil)
	require.NoError(t, err)
	require.Equal(t, left, g.mem[firstBus][:msg.BufferSize])
	require.Equal(t, uint64(1), c.Stats().Abandoned)
}

// An earlier command ends while the ring is declared anew and leaves its count.
func TestConfigureRepeatsUntilNothingIsDone(t *testing.T) {
	for _, tc := range []struct {
		name  string
		leave int // declarations on which a count is left
		want  error
	}{
		{"once", 1, nil},
		{"twice", 2, nil},
		{"each time", 3, ErrMalformed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := newTarget(t)
			words := []uint64{}
			g.ackWord = func(w uint64) uint64 {
				if words = append(words, w); len(words) <= tc.leave {
					le.PutUint64(g.win[msg.StateLowRing+msg.RingDone:], 7)
				}
				return w
			}
			c := g.channel(Config{})
			require.ErrorIs(t, c.Configure(bg), tc.want)
			require.Len(t, words, min(tc.leave+1, 3))
			for i, w := range words {
				require.Equal(t, uint16(i+1), msg.UnpackConfig(w).Revision)
			}
			_, err := c.Call(bg, msg.CmdPlatformRead, nil, nil)
			if tc.want != nil {
				require.ErrorIs(t, err, ErrNotConfigured)
				require.NoError(t, c.Configure(bg), "it may be tried again")
				return
			}
			require.NoError(t, err)
		})
	}
}

func TestReopenThatIsNotAcknowledgedKeepsTheFreshBuffer(t *testing.T) {
	var g *target
	allocs := 0
	alloc := func() (*dma.Region, error) {
		allocs++
		return g.region("fresh", firstBus+uint64(allocs)<<20), nil
	}
	g, c := opened(t, Config{Alloc: alloc})
	g.deaf, g.noConfig = true, true
	_, err := c.Call(bg, msg.CmdPlatformRead, nil, nil)
	require.ErrorIs(t, err, ErrTimeout)
	require.ErrorIs(t, c.Reopen(bg), ErrTimeout)
	require.ErrorIs(t, c.Reopen(bg), ErrPending)
	require.ErrorIs(t, c.Reopen(bg), ErrPending)
	require.Equal(t, 1, allocs)
	g.deaf, g.noConfig = false, false
	require.NoError(t, c.Reopen(bg))
	_, err = c.Call(bg, msg.CmdPlatformRead, nil, nil)
	require.NoError(t, err)
	require.Equal(t, 1, allocs)
}

// Revisions come round again, and what is on the ring of one that is in force says
// nothing about a command of its namesake.
func TestLostBufferAndARevisionThatComesRoundAgain(t *testing.T) {
	var g *target
	g, c := opened(t, Config{Alloc: func() (*dma.Region, error) { return g.region("fresh", firstBus+1<<20), nil }})
	g.deaf = true
	_, err := c.Call(bg, msg.CmdPlatformRead, nil, nil)
	require.ErrorIs(t, err, ErrTimeout)
	lost := c.buf
	c.revision = 1<<16 - 1
	require.NoError(t, c.Reopen(bg))
	require.Equal(t, uint16(1), c.revision)
	next := New(g, g, nil, g.clock, nil, Config{Left: []*dma.Region{lost, c.buf}})
	require.NoError(t, next.Configure(bg))
	require.Equal(t, []*dma.Region{lost}, next.Abandoned())
}

func TestReopenWithoutMemory(t *testing.T) {
	t.Run("no allocator", func(t *testing.T) {
		g, c := opened(t, Config{})
		g.deaf = true
		_, err := c.Call(bg, msg.CmdPlatformRead, nil, nil)
		require.ErrorIs(t, err, ErrTimeout)
		require.ErrorIs(t, c.Reopen(bg), ErrStalled)
	})
	t.Run("the allocator fails", func(t *testing.T) {
		boom := errors.New("no huge pages")
		g, c := opened(t, Config{Alloc: func() (*dma.Region, error) { return nil, boom }})
		g.deaf = true
		_, err := c.Call(bg, msg.CmdPlatformRead, nil, nil)
		require.ErrorIs(t, err, ErrTimeout)
		require.ErrorIs(t, c.Reopen(bg), boom)
		_, err = c.Call(bg, msg.CmdPlatformRead, nil, nil)
		require.ErrorIs(t, err, ErrStalled, "still")
	})
}

//oxpd:fault R10 behaviour
func TestEAGAINIsRetriedAfterTwoMilliseconds(t *testing.T) {
	again := 20 + msg.RC(syscall.EAGAIN)
	t.Run("until it passes", func(t *testing.T) {
		g, c := opened(t, Config{})
		tries := 0
		g.answer = func(msg.Command, []byte) (msg.RC, []byte) {
			if tries++; tries < 4 {
				return again, nil
			}
			return 0, []byte{5}
		}
		g.clock.naps = nil
		var reply [1]byte
		_, err := c.Call(bg, msg.CmdLIFRead, nil, reply[:])
		require.NoError(t, err)
		require.Equal(t, byte(5), reply[0])
		pauses := 0
		for _, nap := range g.clock.naps {
			if nap == 2*time.Millisecond {
				pauses++
			}
		}
		require.Equal(t, 3, pauses)
		require.Equal(t, uint64(3), c.Stats().Again)
	})
	t.Run("not for ever", func(t *testing.T) {
		g, c := opened(t, Config{})
		rc(g, again)
		_, err := c.Call(bg, msg.CmdLIFRead, nil, nil)
		require.ErrorIs(t, err, syscall.EAGAIN)
		require.Len(t, g.requests(), againTries)
	})
	t.Run("not after the context's end", func(t *testing.T) {
		g, c := opened(t, Config{})
		ctx, cancel := context.WithCancel(bg)
		g.answer = func(msg.Command, []byte) (msg.RC, []byte) { cancel(); return again, nil }
		_, err := c.Call(ctx, msg.CmdLIFRead, nil, nil)
		require.ErrorIs(t, err, context.Canceled)
		require.Len(t, g.requests(), 1)
	})
}

func TestCardGoneWhileWaiting(t *testing.T) {
	g, c := opened(t, Config{})
	g.deaf = true
	g.clock.after(5*time.Millisecond, g.gone)
	_, err := c.Call(bg, msg.CmdPlatformRead, nil, nil)
	require.ErrorIs(t, err, mmio.ErrGone)
	require.Less(t, g.clock.Now(), 10*time.Millisecond, "seen at once")
	_, err = c.Call(bg, msg.CmdPlatformRead, nil, nil)
	require.ErrorIs(t, err, mmio.ErrGone, "and remembered")
	require.ErrorIs(t, err, ErrStalled)
}

func TestDoneBeyondPostedStalls(t *testing.T) {
	g, c := opened(t, Config{})
	g.doneExtra = 1
	_, err := c.Call(bg, msg.CmdPlatformRead, nil, nil)
	require.ErrorIs(t, err, ErrMalformed)
	require.ErrorContains(t, err, "2 commands done of 1 posted")
	_, err = c.Call(bg, msg.CmdPlatformRead, nil, nil)
	require.ErrorIs(t, err, ErrStalled)
}

func TestDoorbellErrorStalls(t *testing.T) {
	g, c := opened(t, Config{})
	g.ringErr = errors.New("SPI 155 is not advertised")
	_, err := c.Call(bg, msg.CmdPlatformRead, nil, nil)
	require.ErrorIs(t, err, g.ringErr)
	_, err = c.Call(bg, msg.CmdPlatformRead, nil, nil)
	require.ErrorIs(t, err, ErrStalled)
	require.ErrorIs(t, c.Configure(bg), ErrStalled)
}

func TestContext(t *testing.T) {
	t.Run("ends the wait for the channel", func(t *testing.T) {
		_, c := opened(t, Config{})
		require.NoError(t, c.lock(bg))
		ctx, cancel := context.WithCancel(bg)
		errs := make(chan error)
		go func() { _, err := c.Call(ctx, msg.CmdPlatformRead, nil, nil); errs <- err }()
		cancel()
		require.ErrorIs(t, <-errs, context.Canceled)
		require.ErrorIs(t, c.Configure(ctx), context.Canceled)
		require.ErrorIs(t, c.Reopen(ctx), context.Canceled)
		c.unlock()
	})
	t.Run("does not end a command that is posted", func(t *testing.T) {
		g, c := opened(t, Config{})
		ctx, cancel := context.WithCancel(bg)
		g.clock.after(10*time.Microsecond, cancel)
		_, err := c.Call(ctx, msg.CmdPlatformRead, nil, nil)
		require.NoError(t, err)
		require.Error(t, ctx.Err())
	})
	t.Run("ends a configuration, which is not overwritten later", func(t *testing.T) {
		g := newTarget(t)
		g.latency = 100 * time.Millisecond
		c := g.channel(Config{})
		ctx, cancel := context.WithCancel(bg)
		g.clock.after(10*time.Millisecond, cancel)
		require.ErrorIs(t, c.Configure(ctx), context.Canceled)
		require.NoError(t, c.Configure(bg))
		require.Equal(t, uint16(2), msg.UnpackConfig(g.Load64(0)).Revision)
	})
}

func TestOneCommandAtATime(t *testing.T) {
	g, c := opened(t, Config{})
	inFlight := 0
	g.onStore = func(off uint32, _ int, v uint64) {
		if off != msg.StateLowRing+msg.RingPosted {
			return
		}
		if inFlight++; inFlight != 1 {
			t.Error("a second command in flight")
		}
	}
	g.answer = func(cmd msg.Command, p []byte) (msg.RC, []byte) { inFlight--; return 0, p }
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range 20 {
				want := bytes.Repeat([]byte{byte(i)}, 16+i)
				reply := make([]byte, 64)
				n, err := c.Call(bg, msg.CmdLIFRead, want, reply)
				if err != nil || !bytes.Equal(want, reply[:n]) {
					t.Errorf("got %x, %v", reply[:n], err)
				}
				c.Stats()
			}
		}()
	}
	wg.Wait()
	require.Len(t, g.requests(), 320)
}

func TestTypedCommands(t *testing.T) {
	g, c := opened(t, Config{})
	requests := func() []byte { r := g.requests(); return r[len(r)-1] }
	answer := func(b []byte) {
		g.answer = func(msg.Command, []byte) (msg.RC, []byte) { return 0, b }
	}

	platform := msg.Platform{Platform: board.Platform, Assembly: board.Assembly, MaxIfaces: 128, Cores: 20}
	answer(platform.Append(nil))
	got, err := c.Platform(bg)
	require.NoError(t, err)
	require.Equal(t, platform, got)
	require.Equal(t, "f80f002400000000"+"000000000100000000000000", fmt.Sprintf("%x", requests()))
	require.NoError(t, CheckBoard(got))

	f1 := msg.LIF{MAC: [6]byte{2, 0, 0, 0, 0, 10}, MTU: 1500, Fwd: msg.FwdL3}
	answer(f1.AppendEntry(nil))
	lif, present, err := c.LIFRead(bg, 40960)
	require.NoError(t, err)
	require.True(t, present)
	require.Equal(t, f1, lif)
	require.Equal(t, "f80f002500000000"+"00a000000100000000a00000", fmt.Sprintf("%x", requests()))

	f1.MTU = 9000
	answer(nil)
	require.NoError(t, c.LIFUpdate(bg, msg.LIFUpdateReq{Index: 40960, LIF: f1, Mask: msg.MaskMTU}))
	require.Equal(t, "f80f000300000000"+"00a0000002000000000a2823020001000200", fmt.Sprintf("%x", requests()))
	require.Equal(t, uint16(18), g.descs[len(g.descs)-1].Len)

	require.NoError(t, c.PPort(bg, msg.PPort{Iface: 9, Tag: 0x8a00}))
	require.Equal(t, "f80f000500000000"+"0900008a", fmt.Sprintf("%x", requests()))

	table := make([]byte, 768*8)
	for i := range 768 {
		le.PutUint64(table[8*i:], uint64(i)<<40|uint64(i))
	}
	g.answer = func(cmd msg.Command, p []byte) (msg.RC, []byte) {
		var r msg.TableRead
		if err := r.Decode(p); err != nil || r.Flags != 0 || r.End != r.Start+uint32(r.Num)-1 {
			t.Errorf("bad table read %x", p)
		}
		return 0, table[8*r.Start:][:8*uint32(r.Num)]
	}
	var sys [msg.CountersSys]uint64
	require.NoError(t, c.SysCounters(bg, &sys))
	require.Equal(t, uint64(181)<<40|181, sys[181])
	require.Equal(t, "f80f002c00000000"+"00000000b6000000b5000000", fmt.Sprintf("%x", requests()))
	var ports [msg.CountersPort][msg.CountersPortStride]uint64
	require.NoError(t, c.PortCounters(bg, &ports))
	require.Equal(t, uint64(514)<<40|514, ports[msg.CounterPortTXQueueFull][2])
}

func TestTypedCommandsCheckLengths(t *testing.T) {
	for _, tc := range []struct {
		name  string
		reply []byte
		call  func(*Channel) error
		want  error
	}{
		{"short platform", make([]byte, 231), func(c *Channel) error { _, err := c.Platform(bg); return err }, msg.ErrShort},
		{"one counter short", make([]byte, 1448), func(c *Channel) error {
			return c.SysCounters(bg, new([msg.CountersSys]uint64))
		}, ErrMalformed},
		{"padded counters", make([]byte, 1600), func(c *Channel) error {
			return c.SysCounters(bg, new([msg.CountersSys]uint64))
		}, ErrMalformed},
		{"no counters of a port", nil, func(c *Channel) error {
			return c.PortCounters(bg, new([msg.CountersPort][msg.CountersPortStride]uint64))
		}, ErrMalformed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g, c := opened(t, Config{})
			g.answer = func(msg.Command, []byte) (msg.RC, []byte) { return 0, tc.reply }
			require.ErrorIs(t, tc.call(c), tc.want)
		})
	}
}

func TestEmptyLIFReadsAsAbsent(t *testing.T) {
	for name, reply := range map[string][]byte{
		"payload_len 0":     nil,
		"14 zero bytes":     make([]byte, 14),
		"one byte short":    {2, 0, 0, 0, 0, 10, 220, 5, 2, 0, 0, 0, 0},
		"mode 0 with a MAC": msg.LIF{MAC: [6]byte{2}, MTU: 1500}.AppendEntry(nil),
		"padded zero entry": make([]byte, 28),
		"12 bytes":          {2, 0, 0, 0, 0, 10, 220, 5, 2, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			g, c := opened(t, Config{})
			g.answer = func(msg.Command, []byte) (msg.RC, []byte) { return 0, reply }
			lif, present, err := c.LIFRead(bg, 0)
			require.NoError(t, err)
			require.False(t, present)
			require.Equal(t, msg.LIF{}, lif)
		})
	}
}

func TestCheckBoard(t *testing.T) {
	good := msg.Platform{Assembly: board.Assembly, MaxIfaces: 12}
	require.NoError(t, CheckBoard(good))
	other := good
	other.Assembly = "AMDA0200-0001"
	var e *BoardError
	require.ErrorAs(t, CheckBoard(other), &e)
	require.Equal(t, `assembly is "AMDA0200-0001", want "AMDA0202-0004": not the board that oxpd drives`, e.Error())
	few := good
	few.MaxIfaces = 11
	require.ErrorAs(t, CheckBoard(few), &e)
}

// What the target writes is judged and never believed.
func FuzzReply(f *testing.F) {
	f.Add([]byte{0, 0, 1, 0, 2, 0, 14, 0, 1, 2, 3}, 14)
	f.Add([]byte{0, 0, 1, 0, 2, 0, 0xff, 0xff}, 4088)
	f.Fuzz(func(t *testing.T, b []byte, room int) {
		if room < 0 || room > 8192 {
			return
		}
		g, c := newTarget(t), (*Channel)(nil)
		c = g.channel(Config{})
		mem, _ := c.buf.At(0, msg.BufferSize)
		copy(mem, b)
		reply := make([]byte, room)
		n, err := c.answer(c.head(), reply)
		if err != nil {
			require.Zero(t, n)
			return
		}
		require.LessOrEqual(t, n, room)
		require.Equal(t, mem[msg.RespPayload:][:n], reply[:n])
	})
}
