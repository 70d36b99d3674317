package nwa

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
	"oxpd/internal/mmio"
	"oxpd/rpc/msg"
)

var bg = context.Background()

const port1, f4 = board.Tag(0x8100), board.Tag(0x8a00)

func mac(last byte) [6]byte { return [6]byte{2, 0, 0, 0, 0, last} }

// macs answers GET MAC with an address whose last byte is the port's number.
func macs(r msg.NWARequestMsg) (uint32, []byte) {
	return msg.ReplyOK, []byte{2, 0, 0, 0, 0, byte(r.Port >> 8), 0, 0}
}

func TestTransactionOrder(t *testing.T) {
	g := newTarget(t)
	g.answer = macs
	a := g.agent()
	got, err := a.MAC(bg, f4)
	require.NoError(t, err)
	require.Equal(t, mac(0x8a), got)
	require.Equal(t, []string{
		"0x34=0x4", "0x38=0x3", "0x3c=0x8a00", "0x40=0x0", "0x44=0x0", "0x48=0x0", "0x4c=0x0", "0x50=0x0",
		"0x1c=0x20", "0x18=0x1", "ring 0", // TURN last, then the nudge
		"0x18=0x2", "ring 0",
	}, g.takeTrace())
	require.Zero(t, g.Load32(msg.NWAStatus), "the mailbox is free again")
	require.Equal(t, Stats{Requests: 1}, a.Stats())
	require.Equal(t, LastReply{Request: msg.NWARequestMsg{Op: 4, Sub: 3, Port: 0x8a00}, Bytes: 16, Marker: 0x14, At: 12 * time.Millisecond}, a.Last())
}

func TestHold(t *testing.T) {
	g := newTarget(t)
	g.answer = macs
	a := g.agent()
	release, err := a.Hold(bg)
	require.NoError(t, err)
	g.takeTrace()
	ended, cancel := context.WithCancel(bg)
	cancel()
	_, err = a.Hold(ended)
	require.ErrorIs(t, err, context.Canceled)
	short, cancel := context.WithTimeout(bg, 20*time.Millisecond)
	defer cancel()
	_, err = a.MAC(short, f4)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Empty(t, g.takeTrace(), "nothing is asked while somebody holds it")
	asked := make(chan error, 1)
	go func() { _, err := a.MAC(bg, f4); asked <- err }()
	release()
	require.NoError(t, <-asked)
}

//oxpd:fault F15 behaviour
//oxpd:fault R47 behaviour
func TestRefusedByNumber(t *testing.T) {
	g := newTarget(t)
	a := g.agent()
	for op := range uint32(0x100) {
		if op == 1 || op == 3 || op == 4 || op == 0x45 {
			continue
		}
		_, err := a.transact(bg, msg.NWARequestMsg{Op: op}, nil)
		require.ErrorIs(t, err, ErrNotAllowed, "operation %#x", op)
	}
	for _, op := range []uint32{msg.OpSet, msg.OpGet} {
		_, err := a.transact(bg, msg.NWARequestMsg{Op: op, Sub: 0x0b, Port: uint32(port1)}, nil)
		require.ErrorIs(t, err, ErrNotAllowed)
		require.ErrorContains(t, err, "FEC (0x0b) kills NetAgent")
	}
	require.Empty(t, g.takeTrace(), "nothing is written")
	for _, op := range []uint32{msg.OpDiscover, msg.OpAllPorts} {
		_, err := a.transact(bg, msg.NWARequestMsg{Op: op, Sub: 0x0b}, nil)
		require.NoError(t, err, "there the word is a count and no attribute")
	}
}

//oxpd:fault R43 behaviour
func TestReplyLengthIsRoundedUpAndMasked(t *testing.T) {
	for n := range 14 {
		g := newTarget(t)
		want := []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}[:n]
		g.answer = func(msg.NWARequestMsg) (uint32, []byte) { return 0, want }
		reply := slices.Repeat([]byte{0xee}, 16)
		got, err := g.agent().transact(bg, msg.NWARequestMsg{Op: msg.OpDiscover}, reply)
		require.NoError(t, err)
		require.Equal(t, n, got)
		require.Equal(t, want, reply[:n])
		require.Equal(t, slices.Repeat([]byte{0xee}, 16-n), reply[n:], "no byte past the end gets out")
	}
}

// A 1-byte answer is a 9-byte reply; truncating to whole words once hid the
// link of ten ports.
func TestLinkUp(t *testing.T) {
	for _, tc := range []struct {
		name    string
		payload []byte
		up      bool
		want    error
	}{
		{"up", []byte{1}, true, nil},
		{"down", []byte{0}, false, nil},
		{"neither", []byte{2}, false, ErrMalformed},
		{"no byte", nil, false, ErrMalformed},
		{"a word", []byte{1, 0, 0, 0}, false, ErrMalformed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := newTarget(t)
			g.answer = func(msg.NWARequestMsg) (uint32, []byte) { return 0, tc.payload }
			up, err := g.agent().LinkUp(bg, port1)
			require.ErrorIs(t, err, tc.want)
			require.Equal(t, tc.up, up)
		})
	}
}

func TestMAC(t *testing.T) {
	for _, tc := range []struct {
		name    string
		status  uint32
		payload []byte
		want    error
	}{
		{"zeros before the port is raised", 0, make([]byte, 8), ErrNoMAC},
		{"status 1", 1, []byte{2, 0, 0, 0, 0, 9, 0, 0}, ErrRefused},
		{"status 7", 7, nil, ErrRefused},
		{"six bytes", 0, []byte{2, 0, 0, 0, 0, 9}, ErrMalformed},
		{"nine bytes", 0, make([]byte, 9), ErrMalformed},
		{"a group address", 0, []byte{3, 0, 0, 0, 0, 9, 0, 0}, ErrMalformed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := newTarget(t)
			g.answer = func(msg.NWARequestMsg) (uint32, []byte) { return tc.status, tc.payload }
			got, err := g.agent().MAC(bg, port1)
			require.ErrorIs(t, err, tc.want)
			require.Equal(t, [6]byte{}, got)
			require.Zero(t, g.Load32(msg.NWAStatus), "acknowledged all the same")
		})
	}
	t.Run("wire order", func(t *testing.T) {
		g := newTarget(t)
		g.answer = func(msg.NWARequestMsg) (uint32, []byte) { return 0, []byte{0x7c, 0x5a, 0x1c, 0xd0, 0xff, 0x8a, 0, 0} }
		got, err := g.agent().MAC(bg, f4)
		require.NoError(t, err)
		require.Equal(t, [6]byte{0x7c, 0x5a, 0x1c, 0xd0, 0xff, 0x8a}, got)
	})
}

// Row CTL-6: the answer of one port was read as the answer of the next.
func TestRefusalAfterAnAnswerGivesNoAddress(t *testing.T) {
	g := newTarget(t)
	g.answer = func(r msg.NWARequestMsg) (uint32, []byte) {
		if r.Port == 0x8300 {
			// The refusing handler leaves the payload of before in the window.
			return msg.ReplyNoSuch, []byte{2, 0, 0, 0, 0, 0x82, 0, 0}
		}
		return macs(r)
	}
	a := g.agent()
	got, err := a.MAC(bg, 0x8200)
	require.NoError(t, err)
	require.Equal(t, mac(0x82), got)
	got, err = a.MAC(bg, 0x8300)
	require.ErrorIs(t, err, ErrRefused)
	require.EqualError(t, err, "nwa: get MAC (0x03) of 0x8300: refused (status 1: no handler, or not now)")
	require.Equal(t, [6]byte{}, got)
	require.Equal(t, uint64(1), a.Stats().Refused)
}

func TestSets(t *testing.T) {
	g := newTarget(t)
	a := g.agent()
	require.NoError(t, a.SetState(bg, port1, true))
	require.NoError(t, a.SetState(bg, port1, false))
	require.NoError(t, a.SetMAC(bg, f4, [6]byte{0x7c, 0x5a, 0x1c, 0xd0, 0xff, 0x8a}))
	require.NoError(t, a.SetPromisc(bg, f4, true))
	require.NoError(t, a.SetAllMulti(bg, f4, true))
	require.Equal(t, []msg.NWARequestMsg{
		{Op: 3, Sub: 0x00, Port: 0x8100, Payload: [2]uint32{1}},
		{Op: 3, Sub: 0x00, Port: 0x8100},
		{Op: 3, Sub: 0x03, Port: 0x8a00, Payload: [2]uint32{0xd01c5a7c, 0x8aff}},
		{Op: 3, Sub: 0x45, Port: 0x8a00, Payload: [2]uint32{1}},
		{Op: 3, Sub: 0x46, Port: 0x8a00, Payload: [2]uint32{1}},
	}, g.requests())

	g.answer = func(msg.NWARequestMsg) (uint32, []byte) { return msg.ReplyNoSuch, nil }
	require.ErrorIs(t, a.SetState(bg, port1, true), ErrRefused)
}

func TestSpeed(t *testing.T) {
	g := newTarget(t)
	g.answer = func(msg.NWARequestMsg) (uint32, []byte) { return 0, []byte{0x10, 0x27, 0, 0} }
	mbps, err := g.agent().Speed(bg, 1)
	require.NoError(t, err)
	require.Equal(t, 10000, mbps)
}

func TestDiscover(t *testing.T) {
	want := []msg.NWAPort{{Tag: 1, Manageable: true, MaxUnicast: 65535, MTU: 9182}, {Tag: 0x8000, MTU: 9182}}
	g := newTarget(t)
	g.answer = func(msg.NWARequestMsg) (uint32, []byte) { return 0, msg.AppendDiscover(nil, 14, want) }
	ports, err := g.agent().Discover(bg)
	require.NoError(t, err)
	require.Equal(t, want, ports)
	require.Equal(t, []msg.NWARequestMsg{{Op: 1}}, g.requests())

	g.answer = func(msg.NWARequestMsg) (uint32, []byte) { return 0, []byte{14, 0, 0, 0} }
	_, err = g.agent().Discover(bg)
	require.ErrorIs(t, err, ErrMalformed)
}

func TestMalformedRepliesAreAcknowledged(t *testing.T) {
	for _, tc := range []struct {
		name string
		off  int
		v    uint32
		text string
	}{
		{"first word is no ACK", msg.NWAReply, 0x15, "first word 0x15, want 0x14"},
		{"length below the header", msg.NWAReplyLen, 7, "length 7, want 8 to"},
		{"length 0", msg.NWAReplyLen, 0, "length 0"},
		{"length past the event area", msg.NWAReplyLen, 0x8000, "length 32768"},
		{"length 2^31", msg.NWAReplyLen, 1 << 31, "length 2147483648"},
		{"payload one past the room", msg.NWAReplyLen, 17, "payload of 9 bytes, want at most 8"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := newTarget(t)
			g.answer = macs
			g.mangle = func(win []byte) { le.PutUint32(win[tc.off:], tc.v) }
			a := g.agent()
			_, err := a.MAC(bg, port1)
			require.ErrorIs(t, err, ErrMalformed)
			require.ErrorContains(t, err, tc.text)
			require.Equal(t, uint64(1), a.Stats().Malformed)
			require.Zero(t, g.Load32(msg.NWAStatus))
			g.mangle = nil
			_, err = a.MAC(bg, port1)
			require.NoError(t, err)
		})
	}
}

func TestStrandedReplyIsThrownAway(t *testing.T) {
	g := newTarget(t)
	g.mu.Lock()
	g.reply(msg.ReplyOK, []byte{2, 0, 0, 0, 0, 0x99, 0, 0}) // for a host that is gone
	g.mu.Unlock()
	g.answer = macs
	a := g.agent()
	got, err := a.MAC(bg, port1)
	require.NoError(t, err)
	require.Equal(t, mac(0x81), got, "not the stranded one")
	trace := g.takeTrace()
	require.Equal(t, []string{"0x18=0x2", "ring 0"}, trace[:2], "acknowledged before the request")
	require.Equal(t, Stats{Requests: 1, Stranded: 1}, a.Stats())

	t.Run("or the mailbox is wedged", func(t *testing.T) {
		g.mu.Lock()
		g.reply(msg.ReplyOK, nil)
		g.mu.Unlock()
		g.wedged = true
		from := g.clock.Now()
		_, err := a.MAC(bg, port1)
		require.ErrorIs(t, err, ErrTimeout)
		require.ErrorContains(t, err, "clear a stranded reply")
		require.Len(t, g.requests(), 1, "no request over somebody's reply")
		require.LessOrEqual(t, g.clock.Now()-from, 1100*time.Millisecond)
	})
}

func TestSilence(t *testing.T) {
	for name, start := range map[string]time.Duration{
		"clock at 0":         0,
		"clock at 2^31-1 ms": math.MaxInt32 * time.Millisecond,
		"clock at 400 days":  400 * 24 * time.Hour,
	} {
		t.Run(name, func(t *testing.T) {
			g := newTarget(t)
			g.clock.now = start
			g.silent = true
			a := g.agent()
			_, err := a.MAC(bg, port1)
			require.ErrorIs(t, err, ErrTimeout)
			require.Equal(t, 3*time.Second, g.clock.Now()-start)
			require.Equal(t, Stats{Requests: 1, Timeouts: 1}, a.Stats())
		})
	}
}

// A reply does not say what it answers, so no request follows one that may
// still be answered.
func TestLateReplyIsNotTheNextRequestsAnswer(t *testing.T) {
	g := newTarget(t)
	g.answer = macs
	g.latency = 5 * time.Second
	a := g.agent()
	_, err := a.MAC(bg, 0x8200)
	require.ErrorIs(t, err, ErrTimeout)
	g.takeTrace()

	from := g.clock.Now()
	for range 10 {
		_, err = a.MAC(bg, 0x8300)
		require.ErrorIs(t, err, ErrUnanswered)
	}
	require.Equal(t, from, g.clock.Now(), "told at once")
	require.Empty(t, g.takeTrace())

	require.NoError(t, g.clock.Sleep(bg, 2*time.Second)) // the late reply comes
	g.latency = 12 * time.Millisecond
	got, err := a.MAC(bg, 0x8300)
	require.NoError(t, err)
	require.Equal(t, mac(0x83), got)
	require.Equal(t, uint64(1), a.Stats().Stranded)

	t.Run("after 30 s none is expected any more", func(t *testing.T) {
		g.silent = true
		_, err := a.MAC(bg, 0x8200)
		require.ErrorIs(t, err, ErrTimeout)
		g.silent = false
		require.NoError(t, g.clock.Sleep(bg, 26*time.Second))
		_, err = a.MAC(bg, 0x8300)
		require.ErrorIs(t, err, ErrUnanswered)
		require.NoError(t, g.clock.Sleep(bg, time.Second))
		got, err := a.MAC(bg, 0x8300)
		require.NoError(t, err)
		require.Equal(t, mac(0x83), got)
	})
	t.Run("nor from before a restart", func(t *testing.T) {
		g.silent = true
		_, err := a.MAC(bg, 0x8200)
		require.ErrorIs(t, err, ErrTimeout)
		g.silent = false
		g.fill(0)
		_, err = a.MAC(bg, 0x8300)
		require.ErrorIs(t, err, ErrNotReady)
		g.publish()
		_, err = a.MAC(bg, 0x8300)
		require.NoError(t, err)
	})
}

// NetAgent starts anew under a request: nothing answers that any more, and the next one
// waits for the mailbox alone.
func TestNetAgentRestartsUnderARequest(t *testing.T) {
	for _, tc := range []struct {
		name  string
		at    time.Duration // after the request
		blank time.Duration // until the mailbox is there again
	}{
		{"and is there again before anybody looks", 5 * time.Millisecond, 0},
		{"and is there again after a while", 5 * time.Millisecond, 700 * time.Millisecond},
		{"and takes its ten seconds", 0, 10 * time.Second},
		{"after the request was given up", replyLimit + time.Second, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := newTarget(t)
			g.answer, g.silent = macs, true
			a := g.agent()
			g.clock.after(tc.at, func() { g.restart(tc.blank) })
			_, err := a.MAC(bg, 0x8200)
			if tc.at > replyLimit {
				require.ErrorIs(t, err, ErrTimeout)
				require.NoError(t, g.clock.Sleep(bg, 2*time.Second))
			} else {
				require.ErrorIs(t, err, ErrRestarted)
				require.LessOrEqual(t, g.clock.Now(), tc.at+2*replyPoll)
			}
			g.silent = false
			for ; tc.blank > 0; tc.blank = 0 {
				_, err = a.MAC(bg, 0x8300)
				require.ErrorIs(t, err, ErrNotReady)
				require.NoError(t, g.clock.Sleep(bg, tc.blank))
			}
			from := g.clock.Now()
			got, err := a.MAC(bg, 0x8300)
			require.NoError(t, err)
			require.Equal(t, mac(0x83), got)
			require.LessOrEqual(t, g.clock.Now()-from, 20*time.Millisecond)
			require.Zero(t, a.Stats().Stranded)
		})
	}
}

// A process was killed after TURN = 1 and before the reply.
func TestRequestOfAnotherProcessIsInDoubt(t *testing.T) {
	for _, tc := range []struct {
		name    string
		latency time.Duration // of the answer to the dead process
		wait    time.Duration // until the mailbox is free
	}{
		{"answered", 12 * time.Millisecond, 12 * time.Millisecond},
		{"answered late", 20 * time.Second, 20 * time.Second},
		{"never answered", time.Hour, 30 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := newTarget(t)
			g.answer, g.latency = macs, tc.latency
			g.Store32(msg.NWATurn, msg.TurnRequest)
			g.takeTrace()
			a := g.agent()
			for range 3 {
				_, err := a.MAC(bg, 0x8300)
				require.ErrorIs(t, err, ErrUnanswered)
			}
			require.NoError(t, g.clock.Sleep(bg, tc.wait-time.Millisecond))
			_, err := a.MAC(bg, 0x8300)
			require.ErrorIs(t, err, ErrUnanswered)
			require.Empty(t, g.takeTrace(), "nothing is written meanwhile")
			require.NoError(t, g.clock.Sleep(bg, time.Millisecond))
			g.latency = 12 * time.Millisecond
			got, err := a.MAC(bg, 0x8300)
			require.NoError(t, err)
			require.Equal(t, mac(0x83), got)
		})
	}
}

func TestReplyAtTheDeadlineIsTaken(t *testing.T) {
	g := newTarget(t)
	g.answer = macs
	g.latency = replyLimit
	_, err := g.agent().MAC(bg, port1)
	require.NoError(t, err)
}

func TestAcknowledgementSettles(t *testing.T) {
	for _, tc := range []struct {
		name   string
		settle time.Duration
		slow   uint64
	}{
		{"in 18 us", 18 * time.Microsecond, 0},
		{"in 67 us", 67 * time.Microsecond, 0},
		{"in one tick", 10 * time.Millisecond, 1},
		{"in 11 ms", 11 * time.Millisecond, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := newTarget(t)
			g.answer, g.settle = macs, tc.settle
			a := g.agent()
			for i := range 3 {
				_, err := a.MAC(bg, port1)
				require.NoError(t, err)
				require.Zero(t, g.Load32(msg.NWAStatus), "waited for, call %d", i)
			}
			require.Equal(t, Stats{Requests: 3, SlowSettle: 3 * tc.slow}, a.Stats())
		})
	}
	t.Run("never: the reply is good, the next call says so", func(t *testing.T) {
		g := newTarget(t)
		g.answer, g.wedged = macs, true
		a := g.agent()
		got, err := a.MAC(bg, port1)
		require.NoError(t, err)
		require.Equal(t, mac(0x81), got)
		_, err = a.MAC(bg, port1)
		require.ErrorIs(t, err, ErrTimeout)
	})
}

func TestWindowHead(t *testing.T) {
	for _, tc := range []struct {
		name string
		prep func(*target)
		want error
	}{
		{"blank", func(g *target) { g.fill(0) }, ErrNotReady},
		{"all ones", func(g *target) { g.fill(0xff) }, mmio.ErrGone},
		{"other cookie", func(g *target) { g.win[0] ^= 1 }, ErrVersion},
		{"other body offset", func(g *target) { g.win[msg.NWABody] = 0x38 }, ErrVersion},
		{"cookie before the body offset", func(g *target) { g.win[msg.NWABody] = 0 }, ErrVersion},
		{"status all ones", func(g *target) { le.PutUint32(g.win[msg.NWAStatus:], allOnes) }, mmio.ErrGone},
		{"turn all ones", func(g *target) { le.PutUint32(g.win[msg.NWATurn:], allOnes) }, mmio.ErrGone},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := newTarget(t)
			tc.prep(g)
			_, err := g.agent().MAC(bg, port1)
			require.ErrorIs(t, err, tc.want)
			require.Empty(t, g.takeTrace())
			require.Zero(t, g.clock.Now())
		})
	}
}

func TestCardGoneWhileWaiting(t *testing.T) {
	g := newTarget(t)
	g.clock.after(5*time.Millisecond, func() { g.fill(0xff) })
	_, err := g.agent().MAC(bg, port1)
	require.ErrorIs(t, err, mmio.ErrGone)
	require.Less(t, g.clock.Now(), 10*time.Millisecond)
}

func TestDoorbellErrorLeavesTheRequestInDoubt(t *testing.T) {
	g := newTarget(t)
	g.ringErr = errors.New("SPI 154 is not advertised")
	a := g.agent()
	_, err := a.MAC(bg, port1)
	require.ErrorIs(t, err, g.ringErr)
	_, err = a.MAC(bg, port1)
	require.ErrorIs(t, err, ErrUnanswered)
}

func TestWaitReady(t *testing.T) {
	t.Run("published late, answering later", func(t *testing.T) {
		g := newTarget(t)
		g.fill(0)
		status := uint32(msg.ReplyNoSuch)
		g.answer = func(r msg.NWARequestMsg) (uint32, []byte) { return status, make([]byte, 8) }
		g.clock.after(9*time.Second, g.publish)
		g.clock.after(20*time.Second, func() { status = msg.ReplyOK })
		require.NoError(t, g.agent().WaitReady(bg))
		require.Equal(t, 20, int(g.clock.Now()/time.Second))
		require.Equal(t, uint32(2), g.requests()[0].Port, "port 2 is asked")
	})
	t.Run("never published", func(t *testing.T) {
		g := newTarget(t)
		g.fill(0)
		err := g.agent().WaitReady(bg)
		require.ErrorIs(t, err, ErrTimeout)
		require.ErrorIs(t, err, ErrNotReady)
		require.Equal(t, 40*time.Second, g.clock.Now())
	})
	for name, tc := range map[string]struct {
		prep func(*target)
		want error
	}{
		"gone":         {func(g *target) { g.fill(0xff) }, mmio.ErrGone},
		"other layout": {func(g *target) { g.win[msg.NWABody] = 1 }, ErrVersion},
	} {
		t.Run(name, func(t *testing.T) {
			g := newTarget(t)
			tc.prep(g)
			require.ErrorIs(t, g.agent().WaitReady(bg), tc.want)
			require.Zero(t, g.clock.Now(), "not waited for")
		})
	}
	t.Run("cancelled", func(t *testing.T) {
		g := newTarget(t)
		g.fill(0)
		ctx, cancel := context.WithCancel(bg)
		g.clock.after(time.Second, cancel)
		require.ErrorIs(t, g.agent().WaitReady(ctx), context.Canceled)
	})
}

func TestContext(t *testing.T) {
	t.Run("ends the wait for the mailbox", func(t *testing.T) {
		g := newTarget(t)
		a := g.agent()
		<-a.turn // held by somebody
		ctx, cancel := context.WithCancel(bg)
		errs := make(chan error)
		go func() { errs <- a.SetState(ctx, port1, true) }()
		cancel()
		require.ErrorIs(t, <-errs, context.Canceled)
		require.Empty(t, g.takeTrace())
	})
	t.Run("does not leave a reply behind", func(t *testing.T) {
		g := newTarget(t)
		ctx, cancel := context.WithCancel(bg)
		g.clock.after(5*time.Millisecond, cancel)
		require.NoError(t, g.agent().SetState(ctx, port1, true))
		require.Zero(t, g.Load32(msg.NWAStatus))
	})
}

// Each caller gets the answer to its own question.
//
//oxpd:fault R44 behaviour
func TestConcurrentCallers(t *testing.T) {
	g := newTarget(t)
	g.answer = macs
	a := g.agent()
	var wg sync.WaitGroup
	for _, p := range board.All() {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range 10 {
				got, err := a.MAC(bg, p.Tag)
				if err != nil || got != mac(byte(p.Tag>>8)) {
					t.Errorf("%s: %x, %v", p, got, err)
				}
				a.Last()
				a.Stats()
			}
		}()
	}
	wg.Wait()
	require.Len(t, g.requests(), 120)
}

// Whatever the target writes: no panic, nothing past the caller's room.
func FuzzReply(f *testing.F) {
	f.Add([]byte{9, 0, 0, 0, 0x14, 0, 0, 0, 0, 0, 0, 0, 1}, 8)
	f.Add([]byte{0xe4, 7, 0, 0, 0x14, 0, 0, 0, 0, 0, 0, 0, 14}, 2012)
	f.Fuzz(func(t *testing.T, b []byte, room int) {
		if len(b) < 12 || room < 0 || room > 0x9000 {
			return
		}
		g := newTarget(t)
		copy(g.win[msg.NWAReplyLen:], b[:4])
		copy(g.win[msg.NWAReply:], b[4:])
		reply := make([]byte, room)
		n, err := g.agent().read(msg.NWARequestMsg{}, reply)
		if err != nil {
			require.Zero(t, n)
			return
		}
		require.Equal(t, int(le.Uint32(b))-8, n)
		require.Equal(t, g.win[msg.NWAReply+8:][:n], reply[:n])
	})
}
