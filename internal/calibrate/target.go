package calibrate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"oxpd/hwsim"
	"oxpd/internal/board"
	"oxpd/internal/mmio"
	"oxpd/internal/nwa"
	"oxpd/internal/simdev"
	"oxpd/octep"
	"oxpd/octep/csr"
	"oxpd/rpc"
	"oxpd/rpc/msg"
)

func targetRows() []Row {
	row := func(name, source, asks string, low, high float64, unit string, ask func(context.Context, *boot) (float64, error)) Row {
		return Row{Name: name, Source: source, Asks: asks, Low: low, High: high, Unit: unit, Tag: Fit, Within: within,
			run: func(ctx context.Context) (float64, error) { return withBoot(ctx, ask) }}
	}
	rows := []Row{
		row("boot-kernel", "endpoint.md 13", "from the reset to the magic in SDP_SCRATCH, as octep waits for it", 20, 40, "s",
			func(_ context.Context, b *boot) (float64, error) { return b.ready.Seconds(), nil }),
		row("handshake", "endpoint.md 13", "octep's handshake, from the offer to the register's 0", 0, 2, "s",
			func(_ context.Context, b *boot) (float64, error) { return b.handshake.Seconds(), nil }),
		row("fast-path", "endpoint.md 13", "from the handshake to the started port and rpc", 60, 240, "s",
			func(_ context.Context, b *boot) (float64, error) { return b.fastPath.Seconds(), nil }),
		row("rpc-ack", "rpc-lif.md 3 and 11", "acknowledgement of rpc's first configuration", 7, 7, "ms", rpcAck),
		row("agent-up", "endpoint.md 13", "from the fast path to NetAgent's first answer", 10, 10, "s", agentUp),
		row("agent-answer", "rpc-lif.md 7", "NetAgent's answer to one request", 12, 12, "ms",
			func(ctx context.Context, b *boot) (float64, error) { return b.mailbox(ctx, 1000, (*spy).answer) }),
		row("agent-settle", "rpc-lif.md 7 and 11", "from an acknowledged answer to STATUS 0: 980 of 1,000 are not longer", 18, 67, "us",
			func(ctx context.Context, b *boot) (float64, error) { return b.mailbox(ctx, 1000, (*spy).settle) }),
		row("agent-tick-share", "rpc-lif.md 7 and 11", "acknowledgements that wait for a tick, of 10,000", 1, 1, "%",
			func(ctx context.Context, b *boot) (float64, error) { return b.mailbox(ctx, 10_000, (*spy).tickShare) }),
		row("agent-settle-most", "rpc-lif.md 7", "the longest wait for STATUS 0, of 10,000", 11, 11, "ms",
			func(ctx context.Context, b *boot) (float64, error) { return b.mailbox(ctx, 10_000, (*spy).longest) }),
		row("link", "endpoint.md 13, rpc-lif.md 7", "from a port raised by NetAgent to its link", 1, 2, "s", link),
	}
	for i := range rows {
		switch r := &rows[i]; r.Name {
		case "handshake":
			r.Tag, r.Note = Derived, "one look a second is the vendor's source"
		case "agent-tick-share":
			r.Within = 0.2 // of what is drawn: about a hundred
		case "agent-settle-most":
			r.Tag, r.Note = Predicted, "a tick of 10 ms is on record apart from it"
		}
	}
	return rows
}

// boot is a card that was brought up from its reset by the driver, at the recorded
// pace, with how long that took.
type boot struct {
	card *hwsim.Card
	dev  octep.Device
	ep   *octep.Endpoint

	ready, handshake, fastPath time.Duration
}

func withBoot(ctx context.Context, ask func(context.Context, *boot) (float64, error)) (float64, error) {
	b := &boot{card: hwsim.New(hwsim.Options{Seed: 1, Timeline: hwsim.Real()})}
	b.dev = simdev.New(b.card)
	defer b.card.Close()
	if err := b.up(ctx); err != nil {
		return 0, errors.Join(err, b.dev.Close())
	}
	v, err := ask(ctx, b)
	if reports := b.card.Reports(); err == nil && len(reports) > 0 {
		err = fmt.Errorf("the card reports %s", reports[0])
	}
	return v, errors.Join(err, b.dev.Close())
}

func (b *boot) up(ctx context.Context) error {
	clock := b.card.Clock()
	var err error
	if b.ep, err = octep.Open(ctx, b.dev, octep.Config{Clock: clock}); err != nil {
		return err
	}
	if err := octep.SetBusMaster(b.dev, true); err != nil {
		return err
	}
	if err := b.ep.WaitReady(ctx); err != nil {
		return err
	}
	b.ready = clock.Now()
	if _, err := b.ep.NewHandshake(nil).Run(ctx); err != nil {
		return err
	}
	if err := b.until(ctx, time.Millisecond, 5*time.Second, func() bool { return b.scratch() == 0 }); err != nil {
		return fmt.Errorf("wait for the handshake register's 0: %w", err)
	}
	b.handshake = clock.Now() - b.ready
	from := clock.Now()
	if err := b.until(ctx, 100*time.Millisecond, 10*time.Minute, func() bool { return b.scratch() == 1 }); err != nil {
		return fmt.Errorf("wait for the started port: %w", err)
	}
	b.fastPath = clock.Now() - from
	return nil
}

func (b *boot) scratch() uint64 { return mmio.Load64(b.dev.BAR0(), csr.SLIScratch) }

// until looks once a period until something is so.
func (b *boot) until(ctx context.Context, period, limit time.Duration, so func() bool) error {
	clock := b.card.Clock()
	for end := clock.Now() + limit; !so(); {
		if clock.Now() >= end {
			return fmt.Errorf("not within %v", limit)
		}
		if err := clock.Sleep(ctx, period); err != nil {
			return err
		}
	}
	return nil
}

func rpcAck(ctx context.Context, b *boot) (float64, error) {
	f, err := b.ep.WaitFacility(ctx, csr.FacRPC)
	if err != nil {
		return 0, err
	}
	buf, err := b.dev.DMA().Alloc("rpc buffer", rpc.BufferBytes, msg.BufferAlign)
	if err != nil {
		return 0, err
	}
	from := b.card.Clock().Now()
	err = rpc.New(f, f, buf, b.card.Clock(), nil, rpc.Config{}).Configure(ctx)
	took := b.card.Clock().Now() - from
	return took.Seconds() * 1e3, errors.Join(err, octep.SetBusMaster(b.dev, false), b.dev.DMA().Free(buf))
}

func (b *boot) agent(ctx context.Context, window func(mmio.Space) mmio.Space) (*nwa.Agent, error) {
	f, err := b.ep.WaitFacility(ctx, csr.FacNWA)
	if err != nil {
		return nil, err
	}
	a := nwa.New(window(f), f, b.card.Clock(), nil)
	return a, a.WaitReady(ctx)
}

func agentUp(ctx context.Context, b *boot) (float64, error) {
	from := b.card.Clock().Now()
	_, err := b.agent(ctx, func(s mmio.Space) mmio.Space { return s })
	return (b.card.Clock().Now() - from).Seconds(), err
}

func link(ctx context.Context, b *boot) (float64, error) {
	a, err := b.agent(ctx, func(s mmio.Space) mmio.Space { return s })
	if err != nil {
		return 0, err
	}
	tag := port("F1").Tag
	if err := a.SetState(ctx, board.TagUplink, true); err != nil {
		return 0, err
	}
	if err := a.SetState(ctx, tag, true); err != nil {
		return 0, err
	}
	from := b.card.Clock().Now()
	var asked error
	err = b.until(ctx, 10*time.Millisecond, 10*time.Second, func() bool {
		up, err := a.LinkUp(ctx, tag)
		asked = err
		return up || err != nil
	})
	return (b.card.Clock().Now() - from).Seconds(), errors.Join(err, asked)
}

// mailbox asks NetAgent so often and then what was seen of it.
func (b *boot) mailbox(ctx context.Context, count int, ask func(*spy) float64) (float64, error) {
	s := &spy{clock: b.card.Clock()}
	a, err := b.agent(ctx, func(w mmio.Space) mmio.Space { s.Space = w; return s })
	if err != nil {
		return 0, err
	}
	s.answers, s.settles = nil, nil // those of a mailbox that was not published yet
	for range count {
		if _, err := a.LinkUp(ctx, port("F1").Tag); err != nil {
			return 0, err
		}
		if err := b.card.Clock().Sleep(ctx, 1700*time.Microsecond); err != nil {
			return 0, err
		}
	}
	if len(s.answers) != count || len(s.settles) != count {
		return 0, fmt.Errorf("%d answers and %d acknowledgements seen of %d", len(s.answers), len(s.settles), count)
	}
	return ask(s), nil
}

// spy is NetAgent's window with the times at which the driver sees its state change.
type spy struct {
	mmio.Space
	clock            *hwsim.Clock
	turn             uint32 // as last written
	since            time.Duration
	answers, settles []time.Duration
}

// Store32 implements mmio.Space.
func (s *spy) Store32(off, v uint32) {
	s.Space.Store32(off, v)
	if off == msg.NWATurn {
		s.turn, s.since = v, s.clock.Now()
	}
}

// Load32 implements mmio.Space.
func (s *spy) Load32(off uint32) uint32 {
	v := s.Space.Load32(off)
	if off != msg.NWAStatus {
		return v
	}
	switch {
	case s.turn == msg.TurnRequest && v == msg.StatusReply:
		s.answers = append(s.answers, s.clock.Now()-s.since)
		s.turn = 0
	case s.turn == msg.TurnAck && v == msg.StatusIdle:
		s.settles = append(s.settles, s.clock.Now()-s.since)
		s.turn = 0
	}
	return v
}

// slow tells the waits for a tick from the others, but for one in ten.
const slow = time.Millisecond

// answer is the median in ms.
func (s *spy) answer() float64 {
	slices.Sort(s.answers)
	return s.answers[len(s.answers)/2].Seconds() * 1e3
}

// settle is in us: what is longer than that of 98 in 100 waits for a tick.
func (s *spy) settle() float64 {
	slices.Sort(s.settles)
	return s.settles[len(s.settles)*98/100].Seconds() * 1e6
}

func (s *spy) tickShare() float64 {
	n := 0
	for _, d := range s.settles {
		if d >= slow {
			n++
		}
	}
	return 100 * float64(n) / float64(len(s.settles))
}

// longest is in ms.
func (s *spy) longest() float64 { return slices.Max(s.settles).Seconds() * 1e3 }
