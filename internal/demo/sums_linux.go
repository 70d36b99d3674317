package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sort"
	"time"

	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/internal/netlab"
	"oxpd/rpc/msg"
)

// calm is how long nothing may have moved for the counters to be at rest.
const calm = 200 * time.Millisecond

// books is every counter between the two kernels, read at rest. All began at 0
// with the card and with its interfaces.
type books struct {
	stats *client.Stats
	card  *client.Counters
	host  map[string]netlab.Link
	far   map[string]netlab.Link
}

// sums checks that each frame sent on each wire and each interface is in exactly
// one counter of what became of it.
func sums(ctx context.Context, l *lab, r *reporter, _ board.Port) error {
	r.begin("sums", "Each frame in exactly one counter, all ports, since the card was switched on")
	if err := l.foreign(ctx); err != nil {
		return err
	}
	b, err := l.books(ctx)
	if err != nil {
		return err
	}
	b.toHost(r)
	b.toWire(r)
	return nil
}

// foreign sends frames to a MAC that no port has: their place in the sums is the
// port's own address filter.
func (l *lab) foreign(ctx context.Context) error {
	p := board.ByIndex(1)
	mac := net.HardwareAddr{0x02, 0, 0, 0, 0, 0x77}
	if err := l.farOf(p).AddNeighbour(wireName(p), nobody(p), mac); err != nil {
		return err
	}
	for range foreignSent {
		if _, err := l.farOf(p).Ping(ctx, nobody(p), smallPing, time.Millisecond); !errors.Is(err, netlab.ErrNoReply) {
			return fmt.Errorf("ping an address that nobody has: %w", err)
		}
	}
	return nil
}

// books reads all counters until nothing moves any more.
func (l *lab) books(ctx context.Context) (*books, error) {
	last := ""
	for end := time.Now().Add(settleLimit); ; {
		b, err := l.read(ctx)
		if err != nil {
			return nil, err
		}
		now := b.moving()
		if now == last || time.Now().After(end) {
			return b, nil
		}
		last = now
		select {
		case <-time.After(calm):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (l *lab) read(ctx context.Context) (*books, error) {
	b := &books{host: map[string]netlab.Link{}, far: map[string]netlab.Link{}}
	for _, side := range []struct {
		ns *netlab.NS
		to map[string]netlab.Link
	}{{l.host, b.host}, {l.far, b.far}, {l.apart, b.far}} {
		links, err := side.ns.Links()
		if err != nil {
			return nil, err
		}
		for _, link := range links {
			side.to[link.Name] = link
		}
	}
	var err error
	if b.stats, err = l.client.Stats(ctx, ""); err != nil {
		return nil, err
	}
	if b.card, err = l.client.Counters(ctx); err != nil {
		return nil, err
	}
	return b, nil
}

// moving is the counters that a frame under way will still move.
func (b *books) moving() string {
	return fmt.Sprint(b.stats.Ports, b.stats.Wires, b.card.Counters, b.host, b.far)
}

// wire, port: counters of one port, zeros when there are none.
func (b *books) wire(p board.Port) map[string]uint64 {
	w, _ := b.stats.Wire(p.Name)
	return w.Counters
}

func (b *books) port(p board.Port) map[string]uint64 {
	s, _ := b.stats.Port(p.Name)
	return s.Counters
}

// named are the terms of a map of counters, in order of name, but for some.
func named(counters map[string]uint64, names ...string) []term {
	terms := make([]term, 0, len(names))
	for _, n := range names {
		terms = append(terms, term{n, counters[n]})
	}
	return terms
}

// between are the coprocessor's counters first to last.
func (b *books) between(first, last int) []term {
	var terms []term
	for _, c := range b.card.Counters {
		if c.Index >= first && c.Index <= last {
			terms = append(terms, term{c.Name, c.Value})
		}
	}
	return terms
}

func total(terms []term) (n uint64) {
	for _, t := range terms {
		n += t.n
	}
	return n
}

// queueFull splits the coprocessor's TX_DROP_QUEUE_FULL, one number with two
// meanings: what it counted at the ports that face a wire, and the rest, which
// found a full ring of the host (hardware/datapath.md 5.2).
func (b *books) queueFull() (egress, ring uint64) {
	for _, p := range b.card.Ports {
		if p.Port <= lastWirePort {
			egress += p.TXDropQueueFull
		}
	}
	return egress, b.card.Get("TX_DROP_QUEUE_FULL") - egress
}

// lastWirePort is the last of the fast path's ports that faces a wire
// (hardware/rpc-lif.md 6.2).
const lastWirePort = 2

// Groups of the coprocessor's counters, first and last
// (hardware/rpc-lif.md 6.1).
const (
	wireDropFirst, wireDropLast = msg.CntDropLIFIndexInvalid, msg.CntDropIGErr
	toHostFirst, toHostLast     = msg.CntToKNOffloadDisabled, 65
	hostDropFirst, hostDropLast = msg.CntFromKNDropPrepErr, msg.CntFromKNDropNoMetadata + 1
)

// toHost follows frames from the far interfaces to the host's.
func (b *books) toHost(r *reporter) {
	r.each("far side sends", func(p board.Port) (uint64, []term) {
		s := b.far[wireName(p)].Stats
		return s.TXPackets + s.TXDropped, []term{{"into the card", b.wire(p)["in"]}, {"dropped by its kernel", s.TXDropped}}
	})
	r.each("into the card", func(p board.Port) (uint64, []term) {
		w := b.wire(p)
		return w["in"], named(w, "passed", "filtered", "link_down", "runt", "oversize", "switch_dropped", "overrun", "no_fast_path")
	})
	r.count("filtered: foreign MACs", b.wire(board.ByIndex(1))["filtered"], foreignSent)
	var passed uint64
	for _, p := range board.All() {
		passed += b.wire(p)["passed"]
	}
	rxWire := b.card.Get("RX_WIRE")
	r.sum("passed by the ports", passed, term{"RX_WIRE", rxWire})
	toHost := b.between(toHostFirst, toHostLast)
	r.sum("RX_WIRE", rxWire, append(b.between(wireDropFirst, wireDropLast), toHost...)...)
	r.sum("handed to the host", total(toHost), term{"TX_KN", b.card.Get("TX_KN")})
	_, full := b.queueFull()
	r.sum("TX_KN", b.card.Get("TX_KN"), term{"rx_done", b.stats.Device["rx_done"]}, term{"TX_DROP_QUEUE_FULL, a full ring", full})

	names := make([]string, 0, len(b.stats.Sums.Addends))
	for n := range b.stats.Sums.Addends {
		names = append(names, n)
	}
	sort.Strings(names)
	r.sum("rx_done", b.stats.Device["rx_done"], named(b.stats.Sums.Addends, names...)...)
	r.each("rx_packets", func(p board.Port) (uint64, []term) {
		return b.port(p)["rx_packets"], []term{{"received by the host's kernel", b.host[p.Name].Stats.RXPackets}}
	})
}

// toWire follows frames from the host's interfaces to the far ones.
func (b *books) toWire(r *reporter) {
	r.each("host sends", func(p board.Port) (uint64, []term) {
		s := b.host[p.Name].Stats
		return s.TXPackets + s.TXDropped, named(b.port(p), "tx_packets", "tx_drops", "tx_divert_queued", "tap_kernel_dropped")
	})
	var posted uint64
	for _, p := range board.All() {
		posted += b.port(p)["tx_packets"]
	}
	rxKN := b.card.Get("RX_KN")
	r.sum("tx_packets", posted, term{"tx_posted", b.stats.Device["tx_posted"]}, term{"tx_iq_full", b.stats.Device["tx_iq_full"]})
	r.sum("tx_posted", b.stats.Device["tx_posted"], term{"RX_KN", rxKN})
	r.sum("RX_KN", rxKN, append(b.between(hostDropFirst, hostDropLast), b.between(msg.CntFromKNToWire, msg.CntFromKNToIPsecEncr)...)...)
	full, _ := b.queueFull()
	r.sum("FROM_KN_TO_WIRE", b.card.Get("FROM_KN_TO_WIRE"), term{"TX_WIRE", b.card.Get("TX_WIRE")},
		term{"TX_WIRE_ERR", b.card.Get("TX_WIRE_ERR")}, term{"TX_DROP_QUEUE_FULL, a full egress queue", full})
	var out, lost uint64
	for _, p := range board.All() {
		w := b.wire(p)
		out += w["out"]
		lost += w["out_link_down"] + w["out_switch_dropped"]
	}
	r.sum("TX_WIRE", b.card.Get("TX_WIRE"), term{"out of the card", out}, term{"lost at a port", lost})
	r.each("out of the card", func(p board.Port) (uint64, []term) {
		return b.wire(p)["out"], []term{{"received by the far side's kernel", b.far[wireName(p)].Stats.RXPackets}}
	})
}
