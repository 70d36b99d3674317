package flows

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/frame"
	"oxpd/internal/tcpstats"
)

// hashed is the key of a frame, and its hash.
func hashed(t *testing.T, table *Table, out bool, s tcp) (key, uint64) {
	t.Helper()
	b := s.frame()
	var head frame.Packet
	head.Parse(b, len(b))
	conn, ok := head.Conn()
	require.True(t, ok)
	return table.keyOf(&conn, 1, out, &head)
}

// TestNeighbouringPorts: ST-7. Connections with consecutive ports spread over the buckets,
// whatever the seed, and both directions of each are one flow.
func TestNeighbouringPorts(t *testing.T) {
	const n = 4096
	table, seeds := New(Config{MaxFlows: LeastFlows}), rand.New(rand.NewPCG(7, 7))
	for range 16 {
		table.seed = seeds.Uint64()
		var buckets [n]int
		most := 0
		for i := range n {
			from := netip.AddrPortFrom(client.Addr(), uint16(20000+i))
			k, h := hashed(t, table, false, tcp{src: from, dst: server})
			back, hb := hashed(t, table, true, tcp{src: server, dst: from})
			require.Equal(t, k, back)
			require.Equal(t, h, hb)
			buckets[h%n]++
			most = max(most, buckets[h%n])
		}
		assert.LessOrEqual(t, most, 8)
	}
	all4096 := New(Config{MaxFlows: n})
	for i := range n {
		shake(all4096, 1, netip.AddrPortFrom(client.Addr(), uint16(20000+i)), server)
	}
	s := all4096.Stats()
	assert.Equal(t, n, s.Flows)
	assert.EqualValues(t, n, s.Seen)
	assert.Zero(t, s.HalfOpen)
	got, _ := all(t, all4096, "fields=all")
	require.Len(t, got, n)
	for i := range got {
		require.EqualValues(t, 2, value(t, &got[i], tcpstats.FieldSegsIn))
		require.EqualValues(t, 1, value(t, &got[i], tcpstats.FieldSegsOut))
	}
}

// TestEndsThatMirror: ST-7. Connections that a sum, or an exclusive or, of their ends takes
// for the same, and those whose ends differ in nothing but the port, are flows of their own.
func TestEndsThatMirror(t *testing.T) {
	table := New(Config{MaxFlows: LeastFlows})
	seen := 0
	for i := range 64 {
		a, b := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), netip.AddrFrom4([4]byte{10, 0, 1, byte(i)})
		p, q := uint16(1000+i), uint16(2000+i)
		for _, ends := range [][2]netip.AddrPort{
			{netip.AddrPortFrom(a, p), netip.AddrPortFrom(b, q)}, {netip.AddrPortFrom(a, q), netip.AddrPortFrom(b, p)},
			{netip.AddrPortFrom(a, p), netip.AddrPortFrom(a, q)}, {netip.AddrPortFrom(b, p), netip.AddrPortFrom(b, q)},
		} {
			shake(table, 1, ends[0], ends[1])
			seen++
		}
	}
	s := table.Stats()
	assert.Equal(t, seen, s.Flows)
	assert.EqualValues(t, seen, s.Seen)
	assert.EqualValues(t, 3*seen, s.Segments)
	assert.Zero(t, s.Strays)
	got, _ := all(t, table, "include_state=established")
	assert.Len(t, got, seen)
}

// TestGauges: ST-8. Whatever ends a flow, or never begins one, the flows that are counted are
// those that a read finds, what was begun less what went, and no count goes below 0.
func TestGauges(t *testing.T) {
	const ack = frame.TCPACK
	in := func(seq, a uint32, flags uint8) func(*Table) {
		return func(table *Table) {
			see(table, 30*ms, 3, false, tcp{src: client, dst: server, seq: seq, ack: a, flags: flags, wscale: -1})
		}
	}
	out := func(seq, a uint32, flags uint8) func(*Table) {
		return func(table *Table) {
			see(table, 31*ms, 3, true, tcp{src: server, dst: client, seq: seq, ack: a, flags: flags, wscale: -1})
		}
	}
	after := func(d time.Duration) func(*Table) {
		return func(table *Table) { table.Sweep(int64(1e18) + int64(40*ms+d)) }
	}
	syn, answer, fin, finBack := in(999, 0, frame.TCPSYN), out(4999, 1000, frame.TCPSYN|ack), in(1000, 5000, frame.TCPFIN|ack), out(5000, 1001, frame.TCPFIN|ack)
	for name, steps := range map[string][]func(*Table){
		"SYN, then a reset":             {syn, out(0, 1000, frame.TCPRST|ack), after(closedIdle)},
		"SYN that nobody answers":       {syn, syn, after(openIdle), syn, after(2 * openIdle)},
		"an answer that is lost":        {syn, answer, answer, after(openIdle)},
		"FIN of a flow nobody knows":    {fin, finBack, after(DefaultIdle)},
		"reset of one nobody knows":     {in(1, 1, frame.TCPRST), out(1, 1, frame.TCPRST|ack)},
		"closed, and reset again":       {open, fin, finBack, in(1001, 5001, ack), in(1001, 0, frame.TCPRST), out(5001, 0, frame.TCPRST), after(closedIdle), after(closedIdle)},
		"forgotten while it closes":     {open, fin, after(DefaultIdle), finBack, in(1001, 5001, ack), after(2 * DefaultIdle)},
		"opened again after its end":    {open, fin, finBack, in(1001, 5001, ack), in(900_000, 0, frame.TCPSYN), out(800_000, 900_001, frame.TCPSYN|ack), in(900_001, 800_001, ack), after(DefaultIdle)},
		"reset, and what comes then":    {open, out(5000, 0, frame.TCPRST), in(1000, 5000, ack), fin, after(DefaultIdle)},
		"swept when there is no flow":   {after(0), after(time.Hour)},
		"an answer that nobody had for": {answer, in(1000, 5000, ack), after(openIdle), after(DefaultIdle)},
	} {
		t.Run(name, func(t *testing.T) {
			table := New(Config{MaxFlows: LeastFlows})
			for i, step := range steps {
				step(table)
				s := table.Stats()
				got, _ := all(t, table, "")
				require.GreaterOrEqual(t, s.Flows, 0, "step %d", i)
				require.GreaterOrEqual(t, s.HalfOpen, 0, "step %d", i)
				require.Len(t, got, s.Flows+s.HalfOpen, "step %d", i)
				require.Equal(t, int64(s.Flows), table.flows.Load(), "step %d", i)
			}
			after(time.Hour)(table)
			s := table.Stats()
			assert.Zero(t, s.Flows+s.HalfOpen)
			assert.Zero(t, table.flows.Load())
			assert.LessOrEqual(t, s.Expired+s.Pushed, s.Seen)
		})
	}
}
