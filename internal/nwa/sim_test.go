package nwa_test

import (
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/board"
	"oxpd/internal/mmio"
	"oxpd/internal/nwa"
	"oxpd/internal/simdev"
	"oxpd/internal/simdev/simtest"
	"oxpd/octep"
	"oxpd/octep/csr"
	"oxpd/rpc/msg"
)

var (
	bg      = context.Background()
	discard = slog.New(slog.NewTextHandler(io.Discard, nil))
)

// newSim returns a card in stepped time whose handshake is done, and an agent
// over its NetAgent window, which is still blank.
func newSim(t *testing.T) (*hwsim.Card, *octep.Facility, *nwa.Agent) {
	t.Helper()
	times := hwsim.Compressed()
	times.AgentUp = 5 * time.Second // long after the window
	card := hwsim.New(hwsim.Options{Timeline: times})
	dev := simdev.New(card)
	simtest.Guard(t, card)
	t.Cleanup(func() {
		require.NoError(t, dev.Close())
		card.Close()
	})
	ep, err := octep.Open(bg, dev, octep.Config{Clock: card.Clock()})
	require.NoError(t, err)
	require.NoError(t, octep.SetBusMaster(dev, true))
	require.NoError(t, ep.WaitReady(bg))
	_, err = ep.NewHandshake(nil).Run(bg)
	require.NoError(t, err)
	fac, err := ep.WaitFacility(bg, csr.FacNWA)
	require.NoError(t, err)
	return card, fac, nwa.New(fac, fac, card.Clock(), discard)
}

func ready(t *testing.T) (*hwsim.Card, *nwa.Agent) {
	t.Helper()
	card, _, a := newSim(t)
	require.NoError(t, a.WaitReady(bg))
	return card, a
}

func sleep(t *testing.T, card *hwsim.Card, d time.Duration) {
	t.Helper()
	require.NoError(t, card.Clock().Sleep(bg, d))
}

//oxpd:fault R35 behaviour
func TestSimBlankThenReady(t *testing.T) {
	card, _, a := newSim(t)
	_, err := a.LinkUp(bg, 1)
	require.ErrorIs(t, err, nwa.ErrNotReady)
	require.NoError(t, a.WaitReady(bg))
	require.Empty(t, card.Reports())
}

func TestSimDiscover(t *testing.T) {
	card, a := ready(t)
	ports, err := a.Discover(bg)
	require.NoError(t, err)
	require.Len(t, ports, board.Ports+1)
	for _, p := range ports {
		require.Equal(t, uint16(msg.DiscoverMTU), p.MTU)
		require.Equal(t, board.Tag(p.Tag) != board.TagUplink, p.Manageable)
	}
	require.Empty(t, card.Reports())
}

//oxpd:fault R48 behaviour
//oxpd:fault R51 behaviour
//oxpd:fault S21 behaviour
//oxpd:fault S22 behaviour
func TestSimTwelvePortsComeUp(t *testing.T) {
	card, a := ready(t)
	require.NoError(t, a.SetState(bg, board.TagUplink, true))
	seen := map[[6]byte]board.Port{}
	for _, p := range board.All() {
		if _, err := a.MAC(bg, p.Tag); err != nil {
			require.ErrorIs(t, err, nwa.ErrNoMAC, "%s", p)
		}
		require.NoError(t, a.SetState(bg, p.Tag, true))
		mac, err := a.MAC(bg, p.Tag)
		require.NoError(t, err)
		require.NotContains(t, seen, mac)
		seen[mac] = p
		require.NoError(t, a.SetMAC(bg, p.Tag, mac))
	}
	sleep(t, card, 100*time.Millisecond) // links train
	for mac, p := range seen {
		up, err := a.LinkUp(bg, p.Tag)
		require.NoError(t, err)
		require.True(t, up, "%s", p)
		mbps, err := a.Speed(bg, p.Tag)
		require.NoError(t, err)
		require.Equal(t, p.SpeedMbps, mbps)
		again, err := a.MAC(bg, p.Tag)
		require.NoError(t, err)
		require.Equal(t, mac, again)
	}
	f1 := board.ByIndex(8)
	card.Wire(uint16(f1.Tag)).SetLink(false)
	up, err := a.LinkUp(bg, f1.Tag)
	require.NoError(t, err)
	require.False(t, up)
	require.NoError(t, a.SetPromisc(bg, f1.Tag, true))
	require.NoError(t, a.SetAllMulti(bg, f1.Tag, true))
	require.Equal(t, map[uint32]uint64{154: 2 * a.Stats().Requests}, card.Doorbells(), "a nudge for each request and each acknowledgement")
	require.Empty(t, card.Reports())
}

// Row CTL-6 against the card.
//
//oxpd:fault R45 behaviour
func TestSimRefusedMACIsNobodyElses(t *testing.T) {
	card, a := ready(t)
	port2, port3 := board.ByIndex(1), board.ByIndex(2)
	for _, p := range []board.Port{port2, port3} {
		require.NoError(t, a.SetState(bg, p.Tag, true))
	}
	mac := msg.AttrMAC
	card.Faults(func(f *hwsim.Faults) {
		f.AgentRefuse = []hwsim.AgentRefusal{{Op: msg.OpGet, Sub: &mac, Port: &port3.Tag}}
	})
	two, err := a.MAC(bg, port2.Tag)
	require.NoError(t, err)
	got, err := a.MAC(bg, port3.Tag)
	require.ErrorIs(t, err, nwa.ErrRefused)
	require.Equal(t, [6]byte{}, got)
	card.Faults(func(f *hwsim.Faults) { f.AgentRefuse = nil })
	three, err := a.MAC(bg, port3.Tag)
	require.NoError(t, err)
	require.NotEqual(t, two, three)
}

func TestSimUnknownPortIsRefused(t *testing.T) {
	_, a := ready(t)
	_, err := a.MAC(bg, 0x8b00)
	require.ErrorIs(t, err, nwa.ErrRefused)
}

//oxpd:fault R40 behaviour
func TestSimSilenceEnds(t *testing.T) {
	card, a := ready(t)
	card.Faults(func(f *hwsim.Faults) { f.AgentSilent = true })
	from := card.Clock().Now()
	_, err := a.LinkUp(bg, 1)
	require.ErrorIs(t, err, nwa.ErrTimeout)
	waited := card.Clock().Now() - from
	require.GreaterOrEqual(t, waited, 3*time.Second)
	require.LessOrEqual(t, waited, 3100*time.Millisecond)
	_, err = a.LinkUp(bg, 2)
	require.ErrorIs(t, err, nwa.ErrUnanswered)

	// The agent wakes up and answers what still stands in the window.
	card.Faults(func(f *hwsim.Faults) { f.AgentSilent = false })
	sleep(t, card, 20*time.Millisecond)
	_, err = a.LinkUp(bg, 2)
	require.NoError(t, err)
	require.Equal(t, uint64(1), a.Stats().Stranded)
	require.Empty(t, card.Reports())
}

// onSleep is a clock that does something when somebody first waits on it.
type onSleep struct {
	nwa.Clock
	do *func()
}

func (c onSleep) Sleep(ctx context.Context, d time.Duration) error {
	if do := *c.do; do != nil {
		*c.do = nil
		do()
	}
	return c.Clock.Sleep(ctx, d)
}

// NetAgent starts anew while it has a request: the next is answered as soon as it serves
// again.
func TestSimRestartUnderARequest(t *testing.T) {
	card, fac, a := newSim(t)
	require.NoError(t, a.WaitReady(bg))
	for _, tc := range []struct {
		name  string
		delay time.Duration // of the answer
	}{{"before it looks", 0}, {"when it has taken it", 2 * time.Second}} {
		t.Run(tc.name, func(t *testing.T) {
			card.Faults(func(f *hwsim.Faults) { f.AgentDelay = tc.delay })
			restart := func() {
				if tc.delay > 0 {
					sleep(t, card, time.Second)
				}
				card.RestartAgent()
			}
			a := nwa.New(fac, fac, onSleep{card.Clock(), &restart}, discard)
			_, err := a.LinkUp(bg, 1)
			require.ErrorIs(t, err, nwa.ErrRestarted)
			card.Faults(func(f *hwsim.Faults) { f.AgentDelay = 0 })
			from := card.Clock().Now()
			require.NoError(t, a.WaitReady(bg))
			require.InDelta(t, 5, (card.Clock().Now() - from).Seconds(), 0.6, "the mailbox is blank for five seconds")
			_, err = a.LinkUp(bg, 1)
			require.NoError(t, err)
			require.Empty(t, card.Reports())
		})
	}
}

// ask is a process that sends a request and dies.
func ask(t *testing.T, fac *octep.Facility, r msg.NWARequestMsg) {
	t.Helper()
	req := r.Append(nil)
	for i := 0; i < len(req); i += 4 {
		fac.Store32(msg.NWARequest+uint32(i), binary.LittleEndian.Uint32(req[i:]))
	}
	fac.Store32(msg.NWAReqLen, msg.NWAReqSize)
	fac.Store32(msg.NWATurn, msg.TurnRequest)
	require.NoError(t, fac.Ring(0))
}

// A host died between a reply and its acknowledgement.
//
//oxpd:fault F16 behaviour
//oxpd:fault R39 behaviour
//oxpd:fault R41 behaviour
func TestSimStrandedReply(t *testing.T) {
	card, fac, a := newSim(t)
	require.NoError(t, a.WaitReady(bg))
	ask(t, fac, msg.NWARequestMsg{Op: msg.OpGet, Sub: uint32(msg.AttrSpeed), Port: 1})
	sleep(t, card, 50*time.Millisecond)
	require.Equal(t, uint32(msg.StatusReply), fac.Load32(msg.NWAStatus))

	next := nwa.New(fac, fac, card.Clock(), discard)
	_, err := next.LinkUp(bg, 2)
	require.NoError(t, err)
	require.Equal(t, uint64(1), next.Stats().Stranded)
	require.Equal(t, uint32(msg.StatusIdle), fac.Load32(msg.NWAStatus))
	require.Empty(t, card.Reports())
}

// A host died between a request and its reply, and the next one is there before
// the reply: that one answers another question.
func TestSimRequestOfADeadProcess(t *testing.T) {
	card, fac, a := newSim(t)
	require.NoError(t, a.WaitReady(bg))
	one, two := board.ByIndex(0), board.ByIndex(1)
	for _, p := range []board.Port{one, two} {
		require.NoError(t, a.SetState(bg, p.Tag, true))
	}
	want, err := a.MAC(bg, two.Tag)
	require.NoError(t, err)
	ask(t, fac, msg.NWARequestMsg{Op: msg.OpGet, Sub: uint32(msg.AttrMAC), Port: uint32(one.Tag)})

	next := nwa.New(fac, fac, card.Clock(), discard)
	got, err := next.MAC(bg, two.Tag)
	require.ErrorIs(t, err, nwa.ErrUnanswered, "got %x", got)
	require.NoError(t, next.WaitReady(bg), "the late reply is waited for and thrown away")
	require.Equal(t, uint64(1), next.Stats().Stranded)
	got, err = next.MAC(bg, two.Tag)
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.Empty(t, card.Reports())
}

// With one acknowledgement in a hundred taken at the next tick, nobody finds the
// mailbox held.
//
//oxpd:fault R42 behaviour
func TestSimManyTransactions(t *testing.T) {
	card, a := ready(t)
	for i := range 500 {
		_, err := a.LinkUp(bg, board.ByIndex(i%board.Ports).Tag)
		require.NoError(t, err)
	}
	s := a.Stats()
	require.NotZero(t, s.SlowSettle)
	require.Zero(t, s.Stranded)
	require.Zero(t, s.Timeouts)
	require.Empty(t, card.Reports())
}

//oxpd:fault R36 behaviour
func TestSimCardGone(t *testing.T) {
	card, a := ready(t)
	card.Kill()
	_, err := a.LinkUp(bg, 1)
	require.ErrorIs(t, err, mmio.ErrGone)
}

// A mailbox of another version is refused, and nothing is asked of it; a reply that
// begins with another word is no answer, and is acknowledged all the same.
//
//oxpd:fault R37 behaviour
//oxpd:fault R38 behaviour
func TestSimOtherMailbox(t *testing.T) {
	card, a := ready(t)
	card.Faults(func(f *hwsim.Faults) { f.AgentBody = 0x38 })
	card.RestartAgent()
	sleep(t, card, 6*time.Second)
	card.ResetAccesses()
	_, err := a.LinkUp(bg, 1)
	require.ErrorIs(t, err, nwa.ErrVersion)
	require.Empty(t, card.Doorbells())
	card.Faults(func(f *hwsim.Faults) { f.AgentBody, f.AgentMarker = 0, 0x15 })
	card.RestartAgent()
	sleep(t, card, 6*time.Second)
	_, err = a.LinkUp(bg, 1)
	require.ErrorIs(t, err, nwa.ErrMalformed)
	card.Faults(func(f *hwsim.Faults) { f.AgentMarker = 0 })
	_, err = a.LinkUp(bg, 1)
	require.NoError(t, err)
	require.Empty(t, card.Reports())
}

// A tag that answers is no port: ports are those of the board, and the table that
// NetAgent gives has no other.
//
//oxpd:fault R46 behaviour
func TestSimPhantomPortIsNone(t *testing.T) {
	card, a := ready(t)
	_, err := a.LinkUp(bg, 0x0003)
	require.NoError(t, err, "it answers")
	_, ok := board.ByTag(0x0003)
	require.False(t, ok)
	ports, err := a.Discover(bg)
	require.NoError(t, err)
	for _, p := range ports {
		require.NotEqual(t, uint16(0x0003), p.Tag)
	}
	require.Empty(t, card.Reports())
}
