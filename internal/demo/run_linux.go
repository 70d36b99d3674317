package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/internal/netlab"
)

// Times of the parts.
const (
	pingLimit   = 2 * time.Second        // for an answer that must come
	silence     = 300 * time.Millisecond // in which none may come
	streamTime  = 1500 * time.Millisecond
	survivorRun = time.Second // a third of it before the MTU changes, one while it does and one afterwards
)

// Repetitions.
const (
	pingsEach   = 2 // as in the published record
	foreignSent = 3 // frames to a MAC that is nobody's
	survivorEnd = 8 << 20
)

// Device counters of oxpd that the demo checks by name (hardware/datapath.md 4).
const (
	rxSpans    = "rx_spans"
	rxSpanBufs = "rx_span_bufs"
	rxSpanMax  = "rx_span_max"
)

// mtuExceeded is the coprocessor's counter of frames that the LIF refused.
const mtuExceeded = "FROM_WIRE_DROP_MTU_EXCEEDED"

// sizes are the ping data of the published record and how many buffers after
// the first each takes; largest is the length word of the last
// (hardware/datapath.md 3.6).
var sizes = [...]struct {
	data  int
	extra uint64
}{{1480, 1}, {2000, 1}, {2500, 1}, {3000, 1}, {6000, 3}, {8972, 5}}

const largest = 9088

// smallPing is ping's own default of data bytes.
const smallPing = 56

// Ping data on either edge of the LIF's limit: MTU less 28 bytes of headers.
const (
	fits9000 = 8972
	over9000 = 8973
	fits1500 = 1472
	over1500 = 1480
)

// published are the card's own rates in Mbit/s, one TCP stream
// (hardware/datapath.md 6.1).
var published = map[int]map[string]float64{
	board.DefaultMTU: {up: 1853.3, down: 2323.5},
	board.MaxMTU:     {up: 7386.6, down: 7178.4},
}

var errInterrupted = errors.New("interrupted; nothing is left behind")

// run makes the lab and goes through the parts.
func run(ctx context.Context, o Options, r *reporter) (err error) {
	jumbo, err := board.Parse("PortF1")
	if err != nil {
		return err
	}
	r.say("oxpd demo: a daemon on the simulated card between two network namespaces, host and far side")
	l, err := openLab(o)
	if err != nil {
		return err
	}
	defer func() {
		if ctx.Err() != nil {
			err = errInterrupted // whatever broke by it
		}
		err = errors.Join(err, l.close())
	}()
	for _, part := range []func(context.Context, *lab, *reporter, board.Port) error{ports, frames, switchCap, switchRaised, bridged, filtered, inspected, streams, connections, replays, sums} {
		if err := part(ctx, l, r, jumbo); err != nil {
			return err
		}
	}
	return nil
}

// ports shows the twelve ports and that each carries frames.
func ports(ctx context.Context, l *lab, r *reporter, _ board.Port) error {
	s, err := l.awaitRunning(ctx)
	if err != nil {
		return err
	}
	if err := l.plug(); err != nil {
		return err
	}
	r.begin("ports", "%d ports of the simulated card, up after %.1f s", board.Ports, s.Uptime)
	var list *client.Ports
	err = await(ctx, settleLimit, func() (bool, error) {
		if list, err = l.client.Ports(ctx); err != nil {
			return false, err
		}
		for _, p := range list.Ports {
			if p.Link != client.LinkUp || p.OperState != client.OperUp {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		return err
	}
	r.say("  %-*s  %-6s %-7s %-17s  %-5s %s", wordWidth, "", "port", "label", "MAC", "link", "MTU")
	seen := map[string]bool{}
	good := 0
	for _, p := range board.All() {
		got, known := list.Find(p.Name)
		link, err := l.host.Link(p.Name)
		if err != nil {
			return err
		}
		mac, macErr := net.ParseMAC(got.Address)
		row := Port{
			IfName: p.Name, Label: got.Label, Address: got.Address, Link: got.Link, MTU: got.MTU,
			OK: known && got.Label == p.Label && macErr == nil && !seen[got.Address] && link.MAC.String() == mac.String() &&
				got.Link == client.LinkUp && link.Carrier && got.MTU == board.DefaultMTU && got.LIF.MTU == board.DefaultMTU && link.MTU == board.DefaultMTU,
		}
		r.port(row)
		if row.OK {
			good++
		}
		seen[got.Address] = true
	}
	r.check("link, MAC of its own, MTU 1,500 at every port", fmt.Sprintf("%d of %d", good, board.Ports), fmt.Sprintf("%d of %d", board.Ports, board.Ports))
	answered := 0
	for _, p := range board.All() {
		// The kernel starts an interface's queue a moment after its carrier:
		// the first request may be lost before it is a frame.
		ok := false
		err := await(ctx, pingLimit, func() (bool, error) {
			_, err := l.farOf(p).Ping(ctx, hostAddr(p), smallPing, silence)
			if ok = err == nil; errors.Is(err, netlab.ErrNoReply) {
				err = nil
			}
			return ok, err
		})
		if err != nil {
			return err
		}
		if ok {
			answered++
		}
	}
	r.check("ping through every port", of(answered, board.Ports), of(board.Ports, board.Ports))
	return l.pin()
}

// frames is the main job: frames over several buffers, and the edge of the MTU.
func frames(ctx context.Context, l *lab, r *reporter, p board.Port) error {
	r.begin("jumbo", "Jumbo frames on %s, pings from the far side with DF, %d of each size", p.Label, pingsEach)
	if err := l.byCommand(ctx, p, board.MaxMTU, r); err != nil {
		return err
	}
	before, err := l.client.Stats(ctx, "")
	if err != nil {
		return err
	}
	var wantBufs uint64
	for _, s := range sizes {
		if err := l.pings(ctx, r, p, s.data, pingsEach); err != nil {
			return err
		}
		wantBufs += s.extra * pingsEach
	}
	wantSpans := uint64(len(sizes) * pingsEach)
	var after *client.Stats
	err = await(ctx, pingLimit, func() (bool, error) { // the count follows the frame
		after, err = l.client.Stats(ctx, "")
		return err == nil && after.Device[rxSpans]-before.Device[rxSpans] >= wantSpans, err
	})
	if err != nil {
		return err
	}
	r.grown("rx_spans: frames over several buffers", before.Device[rxSpans], after.Device[rxSpans], wantSpans)
	r.grown("rx_span_bufs: their buffers after the first", before.Device[rxSpanBufs], after.Device[rxSpanBufs], wantBufs)
	r.count("rx_span_max: largest length word", after.Device[rxSpanMax], largest)
	if err := l.refused(ctx, r, p, over9000); err != nil {
		return err
	}
	if err := l.byNetlink(ctx, p, board.DefaultMTU, r); err != nil {
		return err
	}
	if err := l.pings(ctx, r, p, fits1500, pingsEach); err != nil {
		return err
	}
	return l.refused(ctx, r, p, over1500)
}

// streams is TCP each way at both MTUs, and a connection that lives through the
// change.
func streams(ctx context.Context, l *lab, r *reporter, p board.Port) error {
	r.begin("tcp", "TCP on %s, one stream, every byte verified; the rates are this machine's, beside the card's", p.Label)
	if err := l.rates(ctx, r, p, board.DefaultMTU); err != nil {
		return err
	}
	s, err := netlab.Connect(ctx, l.host, l.farOf(p), farAddr(p), false)
	if err != nil {
		return err
	}
	defer s.Close()
	first, err := s.Send(ctx, survivorEnd)
	if err != nil {
		return err
	}
	raised, err := l.changeUnder(ctx, s, func() error { return l.byNetlink(ctx, p, board.MaxMTU, r) })
	if err != nil {
		return err
	}
	if err := l.rates(ctx, r, p, board.MaxMTU); err != nil {
		return err
	}
	lowered, err := l.changeUnder(ctx, s, func() error { return l.byCommand(ctx, p, board.DefaultMTU, r) })
	if err != nil {
		return err
	}
	last, err := s.Send(ctx, survivorEnd)
	if err != nil {
		return err
	}
	moved := first.Bytes + raised.Bytes + lowered.Bytes + last.Bytes
	r.say("  %-*s  a connection opened at 1,500 lives through both changes: %s bytes, %d retransmits", wordWidth, "", group(uint64(moved)), last.Retransmits)
	path := func(a, b, c int) string {
		return fmt.Sprintf("%s, %s, %s", group(uint64(a)), group(uint64(b)), group(uint64(c)))
	}
	const headers = 20 + 20 + 12 // IPv4, TCP, timestamps
	r.check("its segments before, between and after", path(first.MSS, raised.MSS, last.MSS),
		path(board.DefaultMTU-headers, board.MaxMTU-headers, board.DefaultMTU-headers))
	return nil
}

// rates measures one stream each way.
func (l *lab) rates(ctx context.Context, r *reporter, p board.Port, mtu int) error {
	for _, way := range []string{up, down} {
		s, err := netlab.Connect(ctx, l.host, l.farOf(p), farAddr(p), way == down)
		if err != nil {
			return err
		}
		t, err := s.SendFor(ctx, streamTime)
		if err = errors.Join(err, s.Close()); err != nil {
			return err
		}
		r.rate(Rate{MTU: mtu, Direction: way, Mbps: t.Mbps(), Published: published[mtu][way], MSS: t.MSS, Retrans: t.Retransmits})
	}
	return nil
}

// changeUnder runs a change while a stream is sending, which it does before, during and
// after it, however long the change takes. MSS and Retransmits are those at the end.
func (l *lab) changeUnder(ctx context.Context, s *netlab.Stream, change func() error) (netlab.Transfer, error) {
	changed := make(chan error, 1)
	var moved netlab.Transfer
	send := func() error {
		t, err := s.SendFor(ctx, survivorRun/3)
		t.Bytes += moved.Bytes
		t.Elapsed += moved.Elapsed
		moved = t
		return err
	}
	if err := send(); err != nil {
		return moved, err
	}
	go func() { changed <- change() }()
	for {
		if err := send(); err != nil {
			return moved, errors.Join(err, <-changed)
		}
		select {
		case err := <-changed:
			err = errors.Join(err, send())
			return moved, err
		default:
		}
	}
}

// pings sends requests that must all be answered.
func (l *lab) pings(ctx context.Context, r *reporter, p board.Port, data, times int) error {
	answered, err := answers(ctx, l.farOf(p), hostAddr(p), data, times, pingLimit)
	if err != nil {
		return err
	}
	r.check(fmt.Sprintf("ping with %s bytes", group(uint64(data))), of(answered, times), of(times, times))
	return nil
}

// answers sends requests, one after another, and counts the answers.
func answers(ctx context.Context, from *netlab.NS, to netip.Addr, data, times int, limit time.Duration) (n int, err error) {
	for range times {
		_, err := from.Ping(ctx, to, data, limit)
		if err == nil {
			n++
		} else if !errors.Is(err, netlab.ErrNoReply) {
			return n, err
		}
	}
	return n, nil
}

// refused sends requests that the LIF must drop and count, each.
func (l *lab) refused(ctx context.Context, r *reporter, p board.Port, data int) error {
	before, err := l.client.Counters(ctx)
	if err != nil {
		return err
	}
	if err := l.unanswered(ctx, r, p, data); err != nil {
		return err
	}
	after, err := l.client.Counters(ctx)
	if err != nil {
		return err
	}
	r.grown("MTU_EXCEEDED: frames that the LIF refused", before.Get(mtuExceeded), after.Get(mtuExceeded), pingsEach)
	return nil
}

// unanswered sends requests that must be lost.
func (l *lab) unanswered(ctx context.Context, r *reporter, p board.Port, data int) error {
	answered, err := answers(ctx, l.farOf(p), hostAddr(p), data, pingsEach, silence)
	if err != nil {
		return err
	}
	r.check(fmt.Sprintf("ping with %s bytes", group(uint64(data))), of(answered, pingsEach), of(0, pingsEach))
	return nil
}

func of(n, total int) string { return fmt.Sprintf("%d of %d answered", n, total) }

// byCommand changes the MTU with `oxpd mtu`.
func (l *lab) byCommand(ctx context.Context, p board.Port, mtu int, r *reporter, flags ...string) error {
	args := append([]string{"mtu", p.Name, fmt.Sprint(mtu)}, flags...)
	if err := l.oxpd(ctx, args...); err != nil {
		return err
	}
	return l.inForce(ctx, p, mtu, r, "oxpd "+strings.Join(args, " "))
}

// byNetlink changes the MTU as `ip link set` does.
func (l *lab) byNetlink(ctx context.Context, p board.Port, mtu int, r *reporter) error {
	if err := l.host.SetMTU(p.Name, mtu); err != nil {
		return err
	}
	return l.inForce(ctx, p, mtu, r, fmt.Sprintf("ip link set %s mtu %d", p.Name, mtu))
}

// inForce checks that an MTU holds for the LIF, as read back, and for the
// kernel's interface.
func (l *lab) inForce(ctx context.Context, p board.Port, mtu int, r *reporter, what string) error {
	var m *client.MTU
	var link netlab.Link
	err := await(ctx, changeLimit, func() (ok bool, err error) {
		if m, err = l.client.MTU(ctx, p.Name); err != nil {
			return false, err
		}
		link, err = l.host.Link(p.Name)
		return m.LIF == mtu && link.MTU == mtu, err
	})
	if err != nil {
		return err
	}
	show := func(lif, iface int) string {
		return fmt.Sprintf("LIF %s, interface %s", group(uint64(lif)), group(uint64(iface)))
	}
	r.check(what, show(m.LIF, link.MTU), show(mtu, mtu))
	return nil
}

// await asks until the answer is yes, an error comes, or limit is over; the last
// is no error, for a check will say what was found.
func await(ctx context.Context, limit time.Duration, ask func() (bool, error)) error {
	for end := time.Now().Add(limit); ; {
		ok, err := ask()
		if ok || err != nil || time.Now().After(end) {
			return err
		}
		select {
		case <-time.After(poll):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
