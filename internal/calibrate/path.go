package calibrate

import (
	"context"
	"time"

	"oxpd/internal/board"
	"oxpd/ring/wire"
	"oxpd/rpc/msg"
)

// Sizes of frames without FCS.
const (
	smallFrame = 60   // 64 bytes on the wire
	fullFrame  = 1514 // 1,472 bytes of UDP payload
)

func pathRows() []Row {
	const (
		transmit = "datapath.md 6.2"
		lineRate = "datapath.md 6.4"
	)
	return []Row{
		{Name: "one-sender", Source: transmit, Asks: "frames of 1,514 bytes that the input ring takes from one sender", Low: 525_722, High: 525_722, Unit: "frames/s", Tag: Fit, Within: close1,
			Note: "the sender's own time",
			run:  accepted(fullFrame, senderTakes, "F1")},
		{Name: "one-sender-small", Source: transmit, Asks: "frames of 60 bytes that the input ring takes from one sender", Low: 607_232, High: 607_232, Unit: "frames/s", Tag: Fit, Within: close1,
			Note: "the sender's own time",
			run:  accepted(smallFrame, smallTakes, "F1")},
		{Name: "two-senders", Source: transmit + ", endpoint.md 15", Asks: "frames of 60 bytes that the input ring takes from two senders to two ports", Low: 1_053_385, High: 1_053_385, Unit: "frames/s", Tag: Fit, Within: close1,
			Note: "two senders offer 1,214,000: what they lack is taken for the card's",
			run:  accepted(smallFrame, smallTakes, "F1", "F2")},
		{Name: "pcie-accepted", Source: transmit, Asks: "what one sender of 1,514 bytes brings across PCIe", Low: 6.5, High: 6.5, Unit: "Gbit/s", Tag: Derived, Within: 0.03,
			run: func(ctx context.Context) (float64, error) {
				v, err := accepted(fullFrame, senderTakes, "Port1")(ctx)
				return v * fullFrame * 8 / 1e9, err
			}},
		{Name: "switch-egress", Source: transmit + ", endpoint.md 15", Asks: "frames of 1,514 bytes that leave through Port1, one sender", Low: 83_400, High: 84_070, Unit: "frames/s", Tag: Fit, Within: exact,
			run: left1514("Port1")},
		{Name: "switch-egress-bits", Source: transmit + ", endpoint.md 15", Asks: "the same with FCS, in bits", Low: 1013, High: 1023, Unit: "Mbit/s", Tag: Derived, Within: exact,
			run: func(ctx context.Context) (float64, error) {
				v, err := left1514("Port1")(ctx)
				return v * (fullFrame + 4) * 8 / 1e6, err
			}},
		{Name: "switch-egress-two", Source: transmit + ", endpoint.md 15", Asks: "frames of 1,514 bytes that leave through Port1 and Port2 together, two senders", Low: 83_400, High: 84_070, Unit: "frames/s", Tag: Derived, Within: exact,
			run: left1514("Port1", "Port2")},
		{Name: "other-port-loss", Source: transmit, Asks: "of 10,000 frames/s to Port2, how many are lost while Port1 is flooded", Low: 0, High: 0, Unit: "%", Tag: Derived, Within: exact,
			Note: "choice 24 of the errata: a queue a port", run: otherPort},
		{Name: "shared-slot", Source: "datapath.md 2.2", Asks: "of pings to Port2, how many are lost while 50,000 frames/s go to Port1 by the same buffer", Low: 29, High: 29, Unit: "%", Tag: Fit, Within: 0.03,
			Note: "says how long after its doorbell a frame is read", run: sharedSlot},
		{Name: "line-out-1514", Source: lineRate, Asks: "frames of 1,514 bytes that leave through PortF1, two senders", Low: 812_700, High: 812_700, Unit: "frames/s", Tag: Derived, Within: close1,
			run: lineOut(fullFrame, senderTakes)},
		{Name: "line-out-9014", Source: lineRate, Asks: "frames of 9,014 bytes that leave through PortF1, two senders of 8.2 us", Low: 138_300, High: 138_300, Unit: "frames/s", Tag: Derived, Within: close1,
			run: lineOut(jumboFrame, jumboTakes)},
		{Name: "line-in-1514", Source: lineRate, Asks: "frames of 1,514 bytes that reach the driver's sink from a full wire at PortF1, in eight flows", Low: 812_700, High: 812_700, Unit: "frames/s", Tag: Derived, Within: close1,
			run: lineIn(fullFrame)},
		{Name: "line-in-9014", Source: lineRate, Asks: "frames of 9,014 bytes that reach the driver's sink from a full wire at PortF1, in eight flows", Low: 138_300, High: 138_300, Unit: "frames/s", Tag: Derived, Within: close1,
			run: lineIn(jumboFrame)},
		{Name: "in-doorbell-38", Source: "endpoint.md 5.1", Asks: "high half of the input doorbell after 38 instructions", Low: 0x980, High: 0x980, Unit: "bytes", Tag: Derived, Within: exact, run: inDoorbell},
	}
}

// accepted is the rate at which the input ring takes frames of n bytes from one
// sender a port.
func accepted(n int, takes time.Duration, labels ...string) func(context.Context) (float64, error) {
	return func(ctx context.Context) (float64, error) {
		return withRig(ctx, setup{}, func(r *rig) (float64, error) {
			for i, l := range labels {
				r.sender(port(l), i, n, takes)
			}
			return r.rate(seconds(2e-3), seconds(20e-3), func() uint64 { return r.counter(msg.CntRXKN) }), nil
		})
	}
}

// left1514 is the rate at which frames leave through some ports together, with a
// sender that floods each.
func left1514(labels ...string) func(context.Context) (float64, error) {
	return func(ctx context.Context) (float64, error) {
		return withRig(ctx, setup{}, func(r *rig) (float64, error) {
			var out []*uint64
			for i, l := range labels {
				out = append(out, r.leaves(port(l)))
				r.sender(port(l), i, fullFrame, senderTakes)
			}
			return r.rate(seconds(5e-3), seconds(100e-3), func() (sum uint64) {
				for _, n := range out {
					sum += *n
				}
				return sum
			}), nil
		})
	}
}

func otherPort(ctx context.Context) (float64, error) {
	return withRig(ctx, setup{}, func(r *rig) (float64, error) {
		flooded, other := port("Port1"), port("Port2")
		r.sender(flooded, 0, fullFrame, senderTakes)
		out := r.leaves(other)
		const frames = 500
		f := frame([6]byte{2, 2, 2, 2, 2, 2}, 1, 0, 98)
		r.every(10_000, frames, func(int) { r.rings.IQ().Post(uint16(other.Tag), f) })
		r.pass(seconds(60e-3))
		return 100 * float64(frames-*out) / frames, nil
	})
}

// lineOut is the rate at which frames of n bytes leave through a cage that is
// offered more than it carries.
func lineOut(n int, takes time.Duration) func(context.Context) (float64, error) {
	return func(ctx context.Context) (float64, error) {
		return withRig(ctx, setup{mtu: 9000}, func(r *rig) (float64, error) {
			cage := port("F1")
			out := r.leaves(cage)
			r.sender(cage, 0, n, takes)
			r.sender(cage, 1, n, takes)
			return r.rate(seconds(2e-3), seconds(20e-3), func() uint64 { return *out }), nil
		})
	}
}

// lineIn is the rate at which frames of n bytes that fill a cage's wire reach the
// driver.
func lineIn(n int) func(context.Context) (float64, error) {
	return func(ctx context.Context) (float64, error) {
		return withRig(ctx, setup{mtu: 9000}, func(r *rig) (float64, error) {
			s, err := r.serve()
			if err != nil {
				return 0, err
			}
			cage := port("F1")
			r.fill(cage, wire.OQs, n)
			return r.rate(seconds(2e-3), seconds(20e-3), func() uint64 { return uint64(r.sink.frames) }), s.err
		})
	}
}

// fill keeps a wire full: it is never without frames that wait.
func (r *rig) fill(p board.Port, flows, n int) {
	w, dst, i := r.wire(p), r.mac(p), 0
	r.add(0, func() time.Duration {
		for w.Backlog() < 64 {
			w.Send(frame(dst, 1+i%flows, i/flows, n))
			i++
		}
		return r.now() + 5*time.Microsecond
	})
}

func inDoorbell(ctx context.Context) (float64, error) {
	return withRig(ctx, setup{}, func(r *rig) (float64, error) {
		r.sender(port("F1"), 0, smallFrame, senderTakes)
		for r.rings.Stats().TxPosted < 38 {
			r.pass(time.Microsecond)
		}
		r.actors = nil
		r.pass(seconds(1e-3))
		return float64(r.inPosition()), nil
	})
}
