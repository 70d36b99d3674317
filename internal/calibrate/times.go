package calibrate

import (
	"context"
	"errors"
	"time"

	"oxpd/octep/csr"
	"oxpd/ring"
	"oxpd/ring/wire"
)

func timeRows() []Row {
	return []Row{
		{Name: "round-trip", Source: "endpoint.md 15", Asks: "a ping of 98 bytes through Port1 and its answer, interrupts at one packet", Low: 0.17, High: 0.19, Unit: "ms", Tag: Fit, Within: exact,
			Note: "most of it is outside the card: see host.echo", run: func(ctx context.Context) (float64, error) { return pings(ctx, 98) }},
		{Name: "ping-flood", Source: "datapath.md 6.1", Asks: "the same with 1,514 bytes, one after the other: mean", Low: 0.193, High: 0.193, Unit: "ms", Tag: Predicted, Within: within,
			Note: "the record has 0.091 as the least and 0.508 as the most", run: func(ctx context.Context) (float64, error) { return pings(ctx, fullFrame) }},
		{Name: "interrupt-timer", Source: "datapath.md 3.9", Asks: "from a packet below the level to its message, level 32 packets or 50 us", Low: 39 * 1.28, High: 39 * 1.28, Unit: "us", Tag: Derived, Within: close1,
			Note: "39 ticks of 1,024 clocks", run: timer},
	}
}

// inPosition is the fetch position of input ring 0 in bytes.
func (r *rig) inPosition() uint64 {
	return csr.DBellPosition.Get(r.dev.BAR0().Load64(uint32(csr.InInstrDBell.Queue(0))))
}

// pings is the mean round trip in ms of pings of n bytes, each sent when the one
// before has been answered.
func pings(ctx context.Context, n int) (float64, error) {
	const count = 100
	return withRig(ctx, setup{}, func(r *rig) (float64, error) {
		s, err := r.serve()
		if err != nil {
			return 0, err
		}
		p := port("Port1")
		w, dst := r.wire(p), r.mac(p)
		answer := func(seq int) {
			sent := false
			r.add(echoTakes, func() time.Duration {
				if !sent {
					sent = true
					w.Send(frame(dst, 1, seq, n))
				}
				return never
			})
		}
		answers := 0
		w.SetReceiver(func([]byte) { answer(answers); answers++ })
		f := frame([6]byte{2, 2, 2, 2, 2, 2}, 1, 0, n)
		var sum time.Duration
		for i := range count {
			from := r.now()
			r.pass(senderTakes)
			r.rings.IQ().Post(uint16(p.Tag), f)
			for r.sink.frames == i {
				if r.now()-from > seconds(10e-3) {
					return 0, errors.New("a ping is not answered")
				}
				r.pass(time.Microsecond)
			}
			sum += r.sink.last - from
			r.actors = r.actors[:1] // the answer is given
			r.pass(seconds(37e-6))
		}
		return sum.Seconds() * 1e3 / count, s.err
	})
}

// timer is the time in us by which a timer's message comes after that of a packet
// level of 1, on cards that are alike otherwise.
func timer(ctx context.Context) (float64, error) {
	message := func(level int) (float64, error) {
		return withRig(ctx, setup{ring: ring.Config{PacketLevel: level}}, func(r *rig) (float64, error) {
			at := never
			for q := range wire.OQs {
				if err := r.dev.BindIRQ(csr.MSIXRingVector+q, func() { at = r.now() }); err != nil {
					return 0, err
				}
			}
			from := r.now()
			r.arrive(port("F1"), 1, 1, 1, smallFrame)
			r.pass(seconds(1e-3))
			if at == never {
				return 0, errors.New("no message")
			}
			return (at - from).Seconds() * 1e6, nil
		})
	}
	late, err := message(32)
	if err != nil {
		return 0, err
	}
	at, err := message(1)
	return late - at, err
}
