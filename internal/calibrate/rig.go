package calibrate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"oxpd/hwsim"
	"oxpd/internal/board"
	"oxpd/internal/dma"
	"oxpd/internal/simdev"
	"oxpd/octep"
	"oxpd/octep/csr"
	"oxpd/ring"
	"oxpd/ring/wire"
)

// setup is what a scenario wants of its rig. The zero value is the appliance's
// card with oxpd's rings.
type setup struct {
	card    hwsim.Options
	ring    ring.Config
	first   int                             // credit that each ring is given at first; 0: the grant
	mtu     int                             // of every LIF; 0: as provisioned
	memory  func(dma.Provider) dma.Provider // of the rings; nil: the device's
	reports []string                        // misuse that the scenario commits on purpose
}

// rig is a provisioned card in stepped time, the driver's rings on it, and who else
// is around. One goroutine does everything.
type rig struct {
	card  *hwsim.Card
	dev   octep.Device
	rings *ring.Rings
	sink  *arrivals

	actors []*actor
}

// never is the moment of an actor that has nothing to do.
const never = time.Duration(math.MaxInt64)

// slice bounds how far time moves at once, so that a message that comes meanwhile is
// seen. It is below every time that an actor takes to react.
const slice = hostWake / 2

// cycle is more than one of the card's cycles: time cannot be moved by less.
const cycle = 2 * time.Nanosecond

// actor is somebody beside the card. act is called at its moment and returns the next.
type actor struct {
	at   time.Duration
	act  func() time.Duration
	busy bool // in act: others go on, it does not
}

// withRig makes a rig, runs a scenario on it and takes it away. What the scenario
// did wrong to the card, and a frame that the card lost count of, is its error.
func withRig(ctx context.Context, s setup, scenario func(*rig) (float64, error)) (float64, error) {
	r, err := newRig(ctx, s)
	if err != nil {
		return 0, errors.Join(err, r.close())
	}
	v, err := scenario(r)
	if err == nil {
		err = r.clean(s.reports)
	}
	return v, errors.Join(err, r.close())
}

func newRig(ctx context.Context, s setup) (*rig, error) {
	s.card.Seed = 1
	r := &rig{card: hwsim.New(s.card)}
	r.sink = &arrivals{r: r, next: map[uint32]uint32{}, ring: map[uint32]int{}, highest: map[uint32]uint32{}}
	r.dev = simdev.New(r.card)
	clock := r.card.Clock()
	if _, err := octep.Open(ctx, r.dev, octep.Config{Clock: clock}); err != nil {
		return r, err
	}
	if err := octep.SetBusMaster(r.dev, true); err != nil {
		return r, err
	}
	s.ring.BAR0, s.ring.DMA, s.ring.Clock, s.ring.Sink = r.dev.BAR0(), r.dev.DMA(), clock, r.sink
	if s.memory != nil {
		s.ring.DMA = s.memory(s.ring.DMA)
	}
	var err error
	if r.rings, err = ring.New(s.ring); err != nil {
		return r, err
	}
	if s.first > 0 {
		for q := range wire.OQs {
			r.rings.SetCeiling(q, s.first)
		}
	}
	if err := r.rings.Program(ctx); err != nil {
		return r, err
	}
	if err := r.rings.SetClocks(csr.ClocksPerUS); err != nil {
		return r, err
	}
	r.card.Provision()
	if s.mtu > 0 {
		for _, p := range board.All() {
			l, _ := r.card.LIF(uint32(p.LIF()))
			l.MTU = uint16(s.mtu)
			r.card.SetLIF(uint32(p.LIF()), &l)
		}
	}
	return r, nil
}

// clean tells what the scenario left behind that it should not have.
func (r *rig) clean(allowed []string) error {
	for _, report := range r.card.Reports() {
		if !slices.Contains(allowed, report.Name) {
			return fmt.Errorf("the card reports %s", report)
		}
	}
	return r.card.CheckConservation()
}

// close ends the card before the memory goes.
func (r *rig) close() error {
	err := errors.Join(octep.SetBusMaster(r.dev, false), r.dev.Close())
	r.card.Close()
	if r.rings != nil {
		err = errors.Join(err, r.rings.Free())
	}
	return err
}

func (r *rig) now() time.Duration { return r.card.Clock().Now() }

// add puts somebody beside the card, whose first moment is after the time.
func (r *rig) add(after time.Duration, act func() time.Duration) *actor {
	a := &actor{at: r.now() + after, act: act}
	r.actors = append(r.actors, a)
	return a
}

// pass lets time go by, with everybody acting at their moments.
func (r *rig) pass(d time.Duration) {
	end := r.now() + d
	for {
		a, now := r.next(), r.now()
		at := end
		if a != nil {
			at = min(a.at, end)
		}
		switch {
		case at-now >= cycle:
			r.card.Advance(min(at-now, slice))
		case a == nil || a.at > end:
			return
		default:
			a.busy, a.at = true, never
			next := a.act()
			a.at = min(next, a.at) // a message may have come meanwhile
			a.busy = false
		}
	}
}

// next is who acts next.
func (r *rig) next() *actor {
	var first *actor
	for _, a := range r.actors {
		if !a.busy && a.at != never && (first == nil || a.at < first.at) {
			first = a
		}
	}
	return first
}

// every is an actor that does something at a rate, count times or, with 0, for ever.
// Its moments do not drift.
func (r *rig) every(perSecond float64, count int, do func(n int)) {
	start, n := r.now(), 0
	r.add(0, func() time.Duration {
		do(n)
		if n++; n == count {
			return never
		}
		return start + time.Duration(float64(n)*float64(time.Second)/perSecond)
	})
}

// server is a host's interrupt thread and watchdog over all output queues.
type server struct {
	r     *rig
	self  *actor
	asked [wire.OQs]bool
	away  bool
	sweep time.Duration
	err   error
}

// serve starts a server that looks at a ring hostWake after its message, and at all
// of them once a sweep's period.
func (r *rig) serve() (*server, error) {
	s := &server{r: r, sweep: r.now() + ring.SweepPeriod}
	s.self = r.add(ring.SweepPeriod, s.act)
	for q := range wire.OQs {
		if err := r.dev.BindIRQ(csr.MSIXRingVector+q, func() {
			s.asked[q] = true
			s.self.at = min(s.self.at, r.now()+hostWake)
		}); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *server) act() time.Duration {
	if s.away {
		return never
	}
	now := s.r.now()
	all := now >= s.sweep
	if all {
		s.sweep = now + ring.SweepPeriod
	}
	for q := range s.asked {
		if all || s.asked[q] {
			s.asked[q] = false
			s.visit(q)
		}
	}
	return s.sweep
}

func (s *server) visit(q int) {
	if _, err := s.r.rings.OQ(q).Visit(ring.VisitBound); err != nil && s.err == nil {
		s.err = err
	}
}

// leave lets the rings be until comeBack.
func (s *server) leave() { s.away = true }

// comeBack visits every ring, as one that returns must: messages that came meanwhile
// are spent.
func (s *server) comeBack() {
	s.away, s.sweep = false, s.r.now()
	s.self.at = s.r.now()
}

// credit reads the doorbell of an output queue: credit and fetch position in bytes.
func (r *rig) credit(q int) (credit int32, position uint64) {
	v := r.dev.BAR0().Load64(uint32(csr.OutSlistDBell.Queue(q)))
	return int32(uint32(csr.DBellCount.Get(v))), csr.DBellPosition.Get(v)
}

// count reads how many packets of an output queue are written and not acknowledged.
func (r *rig) count(q int) int {
	return int(csr.CntsCount.Get(r.dev.BAR0().Load64(uint32(csr.OutCnts.Queue(q)))))
}

// counter is one of the coprocessor's 182.
func (r *rig) counter(i int) uint64 { return r.card.Counter(i) }
