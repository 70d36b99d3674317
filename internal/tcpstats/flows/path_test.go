package flows

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"oxpd/internal/frame"
	"oxpd/internal/tcpstats"
)

// plainSide is what an end sent, byte by byte: slow, and plainly right.
type plainSide struct {
	there []bool  // byte was seen
	since []int64 // when a later one was seen first, of one that is missing
	high  int     // behind the last byte that was seen

	segs, data, again, late uint64
	bytes, againBytes, acks uint64
	largest                 int

	una, ack, window int // what the other end acknowledged of it; what it said itself
	closed           bool
}

// missing is how many gaps there are.
func (p *plainSide) missing() (gaps int) {
	for i := range p.high {
		if !p.there[i] && (i == 0 || p.there[i-1]) {
			gaps++
		}
	}
	return gaps
}

// plain is a flow of which every byte is kept.
type plain struct {
	side                [2]plainSide
	rtt, least          int64 // ns, us
	timed               int
	timedAt             int64
	dupAcks, zeroWindow uint64
}

// segment takes in what an end says. from and n count from the first byte behind its SYN.
func (m *plain) segment(now int64, d, from, n, ack, window int) {
	p, o := &m.side[d], &m.side[1-d]
	p.segs++
	if n > 0 {
		p.data++
		p.bytes += uint64(n)
		p.largest = max(p.largest, n)
		fresh, since, end := 0, int64(1<<62), from+n
		for i := from; i < end; i++ {
			if !p.there[i] {
				fresh++
				if i < p.high {
					since = min(since, p.since[i])
				}
				p.there[i] = true
			}
		}
		for i := p.high; i < from; i++ {
			p.since[i] = now
		}
		limit := int64(3e6)
		if m.rtt != 0 {
			limit = min(limit, m.rtt)
		}
		asks := n == 1 && end == p.high && p.una == p.high // a keep-alive
		switch {
		case asks:
		case end <= p.high && fresh > 0 && now-since <= limit:
			p.late++
		case end <= p.high:
			p.again++
			p.againBytes += uint64(n)
			m.forget(d)
		case from < p.high:
			p.again++
			p.againBytes += uint64(p.high - from)
			m.forget(d)
		}
		if end > p.high {
			p.high = end
			if d == local && m.timedAt == 0 {
				m.timed, m.timedAt = end, now
			}
		}
	}
	if d == remote && n == 0 && ack == p.ack && window == p.window && ack < o.high {
		m.dupAcks++
	}
	if ack > p.ack {
		p.acks += uint64(ack - p.ack)
		if d == remote {
			if m.timedAt != 0 && ack >= m.timed {
				m.sample(now - m.timedAt)
				m.timedAt = 0
			}
		}
		p.ack, o.una = ack, ack
	}
	if d == remote && window == 0 && !p.closed {
		m.zeroWindow++
	}
	p.closed, p.window = window == 0, window
}

func (m *plain) forget(d int) {
	if d == local {
		m.timedAt = 0
	}
}

func (m *plain) sample(ns int64) {
	m.rtt += (ns - m.rtt) / 8
	m.least = min(m.least, ns/1000)
}

// TestCounters shows a flow whose segments are lost, late, sent again and cut otherwise, and
// compares every number with a model that keeps every byte.
func TestCounters(t *testing.T) {
	const room = 1 << 13
	happened := make([]uint64, 7)
	for seed := range uint64(25) {
		rng := rand.New(rand.NewPCG(seed, 9))
		base := [2]uint32{local: -uint32(rng.IntN(2000)), remote: -uint32(rng.IntN(2000))} // so that they wrap
		table := New(Config{MaxFlows: LeastFlows})
		ends := [2]tcp{local: {src: server, dst: client}, remote: {src: client, dst: server}}
		show := func(now int64, d int, s tcp) {
			s.src, s.dst, s.wscale = ends[d].src, ends[d].dst, -1
			see(table, dur(now), 2, d == local, s)
		}
		trip := []int64{20e6, 1e6}[seed%2] // longer and shorter than what a late segment may be late
		show(0, remote, tcp{seq: base[remote] - 1, flags: frame.TCPSYN, window: 1})
		show(5e6, local, tcp{seq: base[local] - 1, ack: base[remote], flags: frame.TCPSYN | frame.TCPACK, window: 1})
		show(5e6+trip, remote, tcp{seq: base[remote], ack: base[local], flags: frame.TCPACK, window: 100})
		var m plain
		for i := range m.side {
			m.side[i].there, m.side[i].since = make([]bool, room), make([]int64, room)
		}
		m.rtt, m.least = trip, trip/1000
		m.side[local].segs, m.side[remote].segs = 1, 2
		m.side[remote].window = 100
		now := int64(30e6)
		for range 400 {
			now += int64(rng.IntN(4)) * int64(rng.IntN([]int{4e5, 2e6}[rng.IntN(2)]))
			d := rng.IntN(2)
			p, o := &m.side[d], &m.side[1-d]
			from, n := p.high, 0
			switch k := rng.IntN(10); {
			case k < 4: // the next one
				n = 1 + rng.IntN(60)
			case k < 5 && p.missing() < holes: // one is lost
				from += 1 + rng.IntN(40)
				n = 1 + rng.IntN(60)
			case k < 7 && p.high > 0: // an old one, as it was or cut otherwise
				from = rng.IntN(p.high)
				if k == 6 {
					from = max(0, p.high-1-rng.IntN(60))
				}
				n = 1 + rng.IntN(60)
				if from > 0 && from+n < p.high && p.missing() >= holes {
					n = p.high - from // it leaves no gap in two
				}
			case k == 7 && p.high > 0 && p.una == p.high: // a keep-alive
				from, n = p.high-1, 1
			}
			if from+n >= room {
				break
			}
			ack := p.ack
			if rng.IntN(3) == 0 {
				ack = p.ack + rng.IntN(o.high-p.ack+1)
			}
			window := rng.IntN(3) * 100
			m.segment(now, d, from, n, ack, window)
			show(now, d, tcp{seq: base[d] + uint32(from), bytes: n, ack: base[1-d] + uint32(ack), flags: frame.TCPACK, window: uint16(window)})

			got, _ := all(t, table, "fields=all")
			require.Len(t, got, 1)
			l, r := &m.side[local], &m.side[remote]
			for f, want := range map[tcpstats.Field]uint64{
				tcpstats.FieldSegsOut: l.segs, tcpstats.FieldSegsIn: r.segs, tcpstats.FieldDataSegsOut: l.data, tcpstats.FieldDataSegsIn: r.data,
				tcpstats.FieldRetrans: l.again, tcpstats.FieldRetransIn: r.again, tcpstats.FieldOutOfOrderL: l.late, tcpstats.FieldOutOfOrder: r.late,
				tcpstats.FieldBytesSent: l.bytes, tcpstats.FieldBytesRetrans: l.againBytes, tcpstats.FieldBytesReceived: l.acks,
				tcpstats.FieldBytesAcked: r.acks, tcpstats.FieldMaxSegOut: uint64(l.largest), tcpstats.FieldMaxSegIn: uint64(r.largest),
				tcpstats.FieldDupAcks: m.dupAcks, tcpstats.FieldZeroWindows: m.zeroWindow,
				tcpstats.FieldRTT: uint64(m.rtt / 1000), tcpstats.FieldMinRTT: uint64(m.least),
				tcpstats.FieldSndUna: uint64(base[local] + uint32(r.ack)), tcpstats.FieldSndNxt: uint64(base[local] + uint32(l.high)),
				tcpstats.FieldRcvNxt:   uint64(base[remote] + uint32(r.high)),
				tcpstats.FieldLastSeen: uint64(now) + 1e18,
			} {
				if v, ok := got[0].Uint(f); !ok || v != want {
					t.Fatalf("seed %d: %s is %d (%v), want %d", seed, nameOf(f), v, ok, want)
				}
			}
		}
		require.Zero(t, table.Stats().Strays)
		for i, n := range []uint64{m.side[local].again, m.side[remote].again, m.side[local].late, m.side[remote].late, m.dupAcks, m.zeroWindow, m.side[local].acks} {
			happened[i] += n
		}
	}
	require.NotContains(t, happened, uint64(0), "a model in which nothing happens")
}

func nameOf(f tcpstats.Field) string {
	for _, i := range tcpstats.Fields() {
		if i.Field == f {
			return i.Name
		}
	}
	return "?"
}
