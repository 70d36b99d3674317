package calibrate

import (
	"context"
	"fmt"
	"math"

	"oxpd/hwsim"
	"oxpd/ring"
	"oxpd/ring/wire"
)

// stormRate and absentRate are the loads under which rings were left alone, in
// frames a second (datapath.md 3.7 and 7).
const (
	stormRate  = 119_000
	absentRate = 120_000
)

// bell is what a host sees of a ring that nobody services.
type bell struct {
	credit  int32
	fetched int // list entries, since the grant
	count   int // OUT_CNTS
}

// left arms the rings with a first credit, sends frames of one flow that nobody
// takes, and reads the flow's ring.
func left(ctx context.Context, grant, frames int, then func(*rig, int, bell) (float64, error)) (float64, error) {
	s := setup{}
	if most := wire.Grant(wire.OQEntries, wire.Watermark); grant > most {
		// A driver that takes the watermark for larger than it is grants too much.
		s.ring.Watermark = grant - wire.OQEntries + wire.FetchBatch
		s.reports = []string{hwsim.ReportCreditAbove}
	} else {
		s.first = grant
	}
	return withRig(ctx, s, func(r *rig) (float64, error) {
		r.arrive(port("F1"), absentRate, frames, 1, 60)
		r.pass(seconds(float64(frames)/absentRate + 1e-3))
		q := r.fullest()
		credit, _ := r.credit(q)
		return then(r, q, bell{credit: credit, fetched: grant - int(credit), count: r.count(q)})
	})
}

// fullest is the ring with the most packets waiting: that of a flow alone.
func (r *rig) fullest() (ring int) {
	most := -1
	for q := range wire.OQs {
		if n := r.count(q); n > most {
			ring, most = q, n
		}
	}
	return ring
}

func creditOf(_ *rig, _ int, b bell) (float64, error) { return float64(b.credit), nil }
func countOf(_ *rig, _ int, b bell) (float64, error)  { return float64(b.count), nil }
func unwritten(_ *rig, _ int, b bell) (float64, error) {
	return math.Abs(float64(b.fetched - b.count)), nil
}

// strays visits the ring and returns how many of the waiting frames were not found
// in the order in which they were sent.
func strays(r *rig, q int, b bell) (float64, error) {
	took, err := r.rings.OQ(q).Visit(ring.VisitBound)
	if err == nil && took != b.count {
		err = fmt.Errorf("%d packets taken of %d counted", took, b.count)
	}
	return float64(r.sink.strays), err
}

// lost is how many frames that the card had taken a driver never finds.
func lost(r *rig, q int, b bell) (float64, error) {
	err := r.empty(q)
	return float64(b.count - r.sink.frames), err
}

// furthest is how far behind the newest the oldest frame is that it finds after it.
func furthest(r *rig, q int, _ bell) (float64, error) {
	err := r.empty(q)
	return float64(r.sink.behind), err
}

// empty visits a ring until nothing comes any more, a driver's repairs included.
func (r *rig) empty(q int) error {
	for range 100 {
		if _, err := r.rings.OQ(q).Visit(ring.VisitBound); err != nil {
			return err
		}
		r.pass(seconds(1e-3))
	}
	return nil
}

func creditRows() []Row {
	const source = "endpoint.md 5.5, datapath.md 3.7"
	// A burst that no ring holds, sent to a ring that nobody services.
	burst := func(grant, frames int, ask func(*rig, int, bell) (float64, error)) func(context.Context) (float64, error) {
		return func(ctx context.Context) (float64, error) { return left(ctx, grant, frames, ask) }
	}
	return []Row{
		{Name: "grant-2", Source: "datapath.md 3.7", Asks: "doorbell after a first grant of 2 to an enabled ring", Low: -14, High: -14, Unit: "credit", Tag: Derived, Within: exact,
			run: burst(2, 0, creditOf)},
		{Name: "credit-256", Source: source, Asks: "OUT_CNTS after a first grant of 256 and 4,000 frames", Low: 0, High: wire.FetchBatch, Unit: "packets", Tag: Derived, Within: exact,
			Note: "starves; the record has one packet, of a ring of 256, and choice 1 of the errata says what a host may meet", run: burst(256, 4000, countOf)},
		{Name: "credit-1008", Source: source, Asks: "OUT_CNTS after a first grant of 1,008 and 4,000 frames", Low: 0, High: wire.FetchBatch, Unit: "packets", Tag: Derived, Within: exact,
			Note: "starves; the record has none, of a ring of 512, and choice 1 of the errata says what a host may meet", run: burst(1008, 4000, countOf)},
		{Name: "credit-1024", Source: source, Asks: "doorbell after a grant of 1,024 and 4,000 frames", Low: 1008, High: 1008, Unit: "credit", Tag: Derived, Within: exact, run: burst(1024, 4000, creditOf)},
		{Name: "credit-1040", Source: source, Asks: "doorbell after a grant of 1,040 and 4,000 frames", Low: 1008, High: 1008, Unit: "credit", Tag: Derived, Within: exact, run: burst(1040, 4000, creditOf)},
		{Name: "credit-2032-rest", Source: source, Asks: "doorbell after a grant of 2,032 and 4,000 frames", Low: 1008, High: 1023, Unit: "credit", Tag: Derived, Within: exact,
			Note: "1,016 was read by hand", run: burst(2032, 4000, creditOf)},
		{Name: "credit-2032-unwritten", Source: source, Asks: "the same: entries fetched less packets counted", Low: 0, High: wire.FetchBatch, Unit: "packets", Tag: Derived, Within: exact,
			run: burst(2032, 4000, unwritten)},
		{Name: "credit-2032-order", Source: source, Asks: "the same: waiting frames that are overwritten or out of order", Low: 0, High: 0, Unit: "frames", Tag: Derived, Within: exact,
			run: burst(2032, 4000, strays)},
		{Name: "credit-2048", Source: source, Asks: "OUT_CNTS after a grant of 2,048 and 4,000 frames: above 1,024 the ring was lapped", Low: 1028, High: 1028, Unit: "packets", Tag: Derived, Within: 0.02,
			Note: "read by hand, within a batch of what was fetched", run: burst(2048, 4000, countOf)},
		{Name: "credit-2048-rest", Source: source, Asks: "the same: doorbell", Low: 1008, High: 1023, Unit: "credit", Tag: Derived, Within: exact, run: burst(2048, 4000, creditOf)},
		{Name: "credit-4096", Source: source, Asks: "OUT_CNTS after a grant of 4,096 and 6,000 frames", Low: 3086, High: 3086, Unit: "packets", Tag: Derived, Within: close1, run: burst(4096, 6000, countOf)},
		{Name: "credit-4096-rest", Source: source, Asks: "the same: doorbell", Low: 1008, High: 1023, Unit: "credit", Tag: Derived, Within: exact, run: burst(4096, 6000, creditOf)},
		{Name: "credit-16384", Source: source, Asks: "doorbell after a grant of 16,384 and 12,910 frames", Low: 3472, High: 3472, Unit: "credit", Tag: Derived, Within: close1, run: burst(16384, 12910, creditOf)},
		{Name: "credit-16384-lost", Source: "datapath.md 3.7", Asks: "the same: frames that a driver never finds when it comes back", Low: 11950, High: 11950, Unit: "frames", Tag: Predicted, Within: within,
			run: burst(16384, 12910, lost)},
		{Name: "credit-16384-furthest", Source: "datapath.md 3.7", Asks: "the same: how far behind a newer one a frame comes at most", Low: 1023, High: 1023, Unit: "frames", Tag: Predicted, Within: within,
			run: burst(16384, 12910, furthest)},
		{Name: "lowered-ceiling", Source: "datapath.md 3.7 and 7 (13)", Asks: "frames in the half second after a ring's credit fell below the watermark, its ceiling lowered to 1,008 under 119,000 frames/s", Low: 0, High: wire.FetchBatch,
			Unit: "frames", Tag: Derived, Within: exact, Note: "12 in the record, of a batch of at most 16", run: loweredCeiling},
	}
}

// loweredCeiling lowers the ceiling of a ring that is serviced under load. What the
// doorbell held above the ceiling is used up first; the half second begins when a host
// reads it below the watermark.
func loweredCeiling(ctx context.Context) (float64, error) {
	return withRig(ctx, setup{}, func(r *rig) (float64, error) {
		s, err := r.serve()
		if err != nil {
			return 0, err
		}
		r.arrive(port("F1"), stormRate, 0, 1, 60)
		r.pass(seconds(2e-3))
		const flow = 1
		if r.sink.frames == 0 {
			return 0, fmt.Errorf("a serviced ring delivers nothing")
		}
		q := r.sink.ring[flow]
		r.rings.SetCeiling(q, wire.OQEntries-wire.FetchBatch)
		for waited := 0; ; waited++ {
			if c, _ := r.credit(q); c < wire.Watermark {
				break
			}
			if waited == 1000 {
				return 0, fmt.Errorf("ring %d does not starve", q)
			}
			r.pass(seconds(50e-6))
		}
		before := r.sink.frames
		r.pass(seconds(0.5))
		return float64(r.sink.frames - before), s.err
	})
}
