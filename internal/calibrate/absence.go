package calibrate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"oxpd/ring"
	"oxpd/ring/wire"
	"oxpd/rpc/msg"
)

// seconds is a duration of that many.
func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// absent lets a host that services its rings stay away for 100 ms at 120,000
// frames/s of one flow, and asks when it is back.
func absent(ctx context.Context, ask func(r *rig, waiting int) float64) (float64, error) {
	return withRig(ctx, setup{}, func(r *rig) (float64, error) {
		s, err := r.serve()
		if err != nil {
			return 0, err
		}
		r.arrive(port("F1"), absentRate, 0, 1, 60)
		r.pass(seconds(5e-3))
		s.leave()
		r.pass(seconds(0.1))
		v := ask(r, r.count(r.fullest()))
		s.comeBack()
		r.pass(seconds(5e-3))
		if r.sink.behind > 0 {
			return v, fmt.Errorf("a frame came %d after a later one", r.sink.behind)
		}
		return v, s.err
	})
}

func absenceRows() []Row {
	const source = "datapath.md 7 (14)"
	const asks = "a host that is away for 100 ms at 120,000 frames/s of one flow: "
	return []Row{
		{Name: "absence-waiting", Source: source, Asks: asks + "frames waiting", Low: 1009, High: 1009, Unit: "frames", Tag: Predicted, Within: within,
			run: func(ctx context.Context) (float64, error) {
				return absent(ctx, func(_ *rig, waiting int) float64 { return float64(waiting) })
			}},
		{Name: "absence-dropped", Source: source, Asks: asks + "TX_DROP_QUEUE_FULL", Low: 12000 - 1009, High: 12000 - 1009, Unit: "frames", Tag: Predicted, Within: within,
			Note: "the rest of 12,000 frames; the page rounds it to 10,000",
			run: func(ctx context.Context) (float64, error) {
				return absent(ctx, func(r *rig, _ int) float64 { return float64(r.counter(msg.CntTXDropQueueFull)) })
			}},
		{Name: "loss-point", Source: "datapath.md 6.4", Asks: "how long a ring is left alone at 124,000 frames/s of 9,014 bytes until the first is dropped", Low: 1.37, High: 1.37, Unit: "ms",
			Tag: Derived, Within: 0.02, Note: "170 frames of six buffers in 1,024", run: lossPoint},
		{Name: "gathered", Source: "datapath.md 6.1 and 6.4", Asks: "frames of 9,014 bytes that reach the driver's sink, of 124,000/s in four flows", Low: 124_000, High: 124_000, Unit: "frames/s",
			Tag: Predicted, Within: close1, Note: "the card carries what was measured; the limit of the record was the host", run: gathered},
	}
}

// recordRate is the largest rate of gathered frames on record (datapath.md 6.1).
const recordRate = 124_000

const jumboFrame = 9014

func lossPoint(ctx context.Context) (float64, error) {
	return withRig(ctx, setup{mtu: 9000}, func(r *rig) (float64, error) {
		r.arrive(port("F1"), recordRate, 0, 1, jumboFrame)
		r.pass(seconds(0.5e-3))
		// From the end of a visit that leaves the ring empty to the first refusal.
		if _, err := r.rings.OQ(r.fullest()).Visit(ring.VisitBound); err != nil {
			return 0, err
		}
		from, limit := r.now(), r.now()+seconds(5e-3)
		for r.counter(msg.CntTXDropQueueFull) == 0 {
			if r.now() > limit {
				return 0, errors.New("nothing is ever dropped")
			}
			r.pass(time.Microsecond)
		}
		return (r.now() - from).Seconds() * 1e3, nil
	})
}

func gathered(ctx context.Context) (float64, error) {
	return withRig(ctx, setup{mtu: 9000}, func(r *rig) (float64, error) {
		s, err := r.serve()
		if err != nil {
			return 0, err
		}
		r.arrive(port("F1"), recordRate, 0, 4, jumboFrame)
		v := r.rate(seconds(5e-3), seconds(50e-3), func() uint64 { return uint64(r.sink.frames) })
		if full := r.counter(msg.CntTXDropQueueFull); full > 0 {
			return v, fmt.Errorf("%d frames found a full ring of %d entries", full, wire.OQEntries)
		}
		return v, s.err
	})
}
