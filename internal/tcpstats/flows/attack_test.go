package flows

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/frame"
	"oxpd/internal/tcpstats"
)

// peer is the i-th of many clients.
func peer(i int) netip.AddrPort {
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], 0x0a000000|uint32(i>>8)&0xffffff)
	return netip.AddrPortFrom(netip.AddrFrom4(a), uint16(1024+i&255))
}

// TestFloods: frames with made-up addresses push out others of their kind, and nothing else.
func TestFloods(t *testing.T) {
	const kept, made = 300, 20_000
	for name, flood := range map[string]func(table *Table, i int, rng *rand.Rand){
		"SYN": func(table *Table, i int, rng *rand.Rand) {
			see(table, time.Second, 1, false, tcp{src: peer(1e6 + i), dst: server, seq: rng.Uint32(), flags: frame.TCPSYN, wscale: -1})
		},
		"SYN that is answered": func(table *Table, i int, rng *rand.Rand) {
			seq := rng.Uint32()
			see(table, time.Second, 1, false, tcp{src: peer(1e6 + i), dst: server, seq: seq, flags: frame.TCPSYN, wscale: -1})
			see(table, time.Second, 1, true, tcp{src: server, dst: peer(1e6 + i), seq: rng.Uint32(), ack: seq + 1, flags: frame.TCPSYN | frame.TCPACK, wscale: -1})
		},
		"SYN, answered, and an ACK that guesses": func(table *Table, i int, rng *rand.Rand) {
			seq := rng.Uint32()
			see(table, time.Second, 1, false, tcp{src: peer(1e6 + i), dst: server, seq: seq, flags: frame.TCPSYN, wscale: -1})
			see(table, time.Second, 1, true, tcp{src: server, dst: peer(1e6 + i), seq: rng.Uint32(), ack: seq + 1, flags: frame.TCPSYN | frame.TCPACK, wscale: -1})
			see(table, time.Second, 1, false, tcp{src: peer(1e6 + i), dst: server, seq: seq + 1, ack: rng.Uint32(), flags: frame.TCPACK})
		},
		"ACK": func(table *Table, i int, rng *rand.Rand) {
			see(table, time.Second, 1, false, tcp{src: peer(1e6 + i), dst: server, seq: rng.Uint32(), ack: rng.Uint32(), flags: frame.TCPACK, bytes: 100})
		},
		"ACK that is answered by a reset": func(table *Table, i int, rng *rand.Rand) {
			ack := rng.Uint32()
			see(table, time.Second, 1, false, tcp{src: peer(1e6 + i), dst: server, seq: rng.Uint32(), ack: ack, flags: frame.TCPACK})
			see(table, time.Second, 1, true, tcp{src: server, dst: peer(1e6 + i), seq: ack, flags: frame.TCPRST})
		},
		"SYN and ACK with the addresses of a server of ours": func(table *Table, i int, rng *rand.Rand) {
			see(table, time.Second, 1, false, tcp{src: server, dst: peer(1e6 + i), seq: rng.Uint32(), ack: rng.Uint32(), flags: frame.TCPSYN | frame.TCPACK, wscale: -1})
		},
		"SYN that is refused": func(table *Table, i int, rng *rand.Rand) {
			seq := rng.Uint32()
			see(table, time.Second, 1, false, tcp{src: peer(1e6 + i), dst: server, seq: seq, flags: frame.TCPSYN, wscale: -1})
			see(table, time.Second, 1, true, tcp{src: server, dst: peer(1e6 + i), ack: seq + 1, flags: frame.TCPRST | frame.TCPACK})
		},
	} {
		t.Run(name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 2))
			table := New(Config{MaxFlows: LeastFlows})
			for i := range kept {
				shake(table, 1, peer(i), server)
			}
			before, _ := all(t, table, "fields=all")
			require.Len(t, before, kept)
			for i := range made {
				flood(table, i, rng)
			}
			s := table.Stats()
			assert.Equal(t, kept, s.Flows)
			assert.LessOrEqual(t, s.HalfOpen, s.HalfLimit)
			assert.Equal(t, s.HalfLimit, LeastFlows/4) // openLeast in each part
			assert.EqualValues(t, kept+made, s.Seen)
			assert.EqualValues(t, made-s.HalfOpen, s.Pushed)
			got, _ := all(t, table, "fields=all")
			assert.Len(t, got, kept+s.HalfOpen)
			same := 0
			for _, r := range got {
				if slices.Contains(before, r) {
					same++
				}
			}
			assert.Equal(t, kept, same, "flows that were established and are as they were")
			table.Sweep(1e18 + int64(time.Second+openIdle) + 1)
			assert.Zero(t, table.Stats().HalfOpen)
			assert.Equal(t, kept, table.Stats().Flows)
		})
	}
}

// open plays the handshake of shake without scaled windows.
func open(table *Table) {
	see(table, 0, 3, false, tcp{src: client, dst: server, seq: 999, flags: frame.TCPSYN, window: 64000, wscale: -1})
	see(table, 5*ms, 3, true, tcp{src: server, dst: client, seq: 4999, ack: 1000, flags: frame.TCPSYN | frame.TCPACK, window: 65000, wscale: 7})
	see(table, 25*ms, 3, false, tcp{src: client, dst: server, seq: 1000, ack: 5000, flags: frame.TCPACK, window: 500})
}

// TestStrays: a segment between the ends of a flow with numbers that are not of it changes
// nothing; with numbers of it, it does.
func TestStrays(t *testing.T) {
	in := func(s tcp) tcp { s.src, s.dst = client, server; return s }
	ack, syn, rst, fin := uint8(frame.TCPACK), uint8(frame.TCPSYN), uint8(frame.TCPRST), uint8(frame.TCPFIN)
	for name, c := range map[string]struct{ stray, fits tcp }{
		"data":                        {tcp{seq: 1000 + fitBytes + 70_000, ack: 5000, flags: ack, bytes: 10}, tcp{seq: 1000, ack: 5000, flags: ack, bytes: 10}},
		"data from long ago":          {tcp{seq: 1<<32 - fitBytes - 70_000, ack: 5000, flags: ack, bytes: 10}, tcp{seq: 990, ack: 5000, flags: ack, bytes: 10}},
		"acknowledgement":             {tcp{seq: 1000, ack: 5000 + fitBytes + 1, flags: ack}, tcp{seq: 1000, ack: 5000, flags: ack}},
		"FIN":                         {tcp{seq: 1 << 31, ack: 5000, flags: ack | fin}, tcp{seq: 1000, ack: 5000, flags: ack | fin}},
		"reset":                       {tcp{seq: 1000 + resetBytes + 1, flags: rst}, tcp{seq: 1000 + resetBytes, flags: rst}},
		"reset from behind":           {tcp{seq: 1<<32 + 1000 - resetBytes - 1, flags: rst}, tcp{seq: 1000, flags: rst}},
		"reset with ACK":              {tcp{seq: 0xf0000000, ack: 5000, flags: rst | ack}, tcp{seq: 1000, ack: 5000, flags: rst | ack}},
		"SYN":                         {tcp{seq: 998, flags: syn, wscale: -1}, tcp{seq: 999, flags: syn, wscale: -1}},
		"SYN with ACK":                {tcp{seq: 998, ack: 5000, flags: syn | ack, wscale: -1}, tcp{seq: 999, ack: 5000, flags: syn | ack, wscale: -1}},
		"SYN with ACK of another SYN": {tcp{seq: 999, ack: 5001, flags: syn | ack, wscale: -1}, tcp{seq: 999, ack: 5000, flags: syn | ack, wscale: -1}},
	} {
		t.Run(name, func(t *testing.T) {
			table := New(Config{MaxFlows: LeastFlows})
			open(table)
			before, _ := all(t, table, "fields=all")
			require.Len(t, before, 1)
			see(table, 50*ms, 3, false, in(c.stray))
			after, _ := all(t, table, "fields=all")
			assert.True(t, len(after) == 1 && before[0] == after[0], "the record is not as it was")
			assert.EqualValues(t, 1, table.Stats().Strays)
			see(table, 50*ms, 3, false, in(c.fits))
			after, _ = all(t, table, "fields=all")
			assert.False(t, len(after) == 1 && before[0] == after[0], "the record is as it was")
			assert.EqualValues(t, 1, table.Stats().Strays)
			assert.Len(t, after, 1)
		})
	}
}

// TestAgainBetweenTheSameEnds: another flow of the same addresses and ports gets a record
// of its own when the old one has ended, or when both ends say that they have forgotten it.
func TestAgainBetweenTheSameEnds(t *testing.T) {
	again := tcp{src: client, dst: server, seq: 77_000_000, flags: frame.TCPSYN, mss: 1200, wscale: 3, window: 100}
	answer := tcp{src: server, dst: client, seq: 88_000_000, ack: 77_000_001, flags: frame.TCPSYN | frame.TCPACK, mss: 1460, wscale: 4, window: 100}
	for name, c := range map[string]struct {
		first func(table *Table)
		fresh bool // after the SYN; after its answer it always is
	}{
		"under way": {func(*Table) {}, false},
		"reset": {func(table *Table) {
			see(table, 30*ms, 3, true, tcp{src: server, dst: client, seq: 5000, flags: frame.TCPRST})
		}, true},
		"closed": {func(table *Table) {
			see(table, 30*ms, 3, true, tcp{src: server, dst: client, seq: 5000, ack: 1000, flags: frame.TCPFIN | frame.TCPACK})
			see(table, 30*ms, 3, false, tcp{src: client, dst: server, seq: 1000, ack: 5001, flags: frame.TCPFIN | frame.TCPACK})
		}, true},
		"half closed": {func(table *Table) {
			see(table, 30*ms, 3, true, tcp{src: server, dst: client, seq: 5000, ack: 1000, flags: frame.TCPFIN | frame.TCPACK})
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			table := New(Config{MaxFlows: LeastFlows})
			shake(table, 3, client, server)
			c.first(table)
			see(table, 100*ms, 3, false, again)
			got, _ := all(t, table, "")
			require.Len(t, got, 1)
			want := uint64(1406)
			if c.fresh {
				want = 1200
			}
			assert.Equal(t, want, value(t, &got[0], tcpstats.FieldPeerMSS))
			// What the server would say of a flow that it knows.
			see(table, 104*ms, 3, true, tcp{src: server, dst: client, seq: 5000, ack: 1000, flags: frame.TCPACK})
			see(table, 105*ms, 3, true, answer)
			see(table, 125*ms, 3, false, tcp{src: client, dst: server, seq: 77_000_001, ack: 88_000_001, flags: frame.TCPACK, window: 100})
			got, _ = all(t, table, "fields=all")
			require.Len(t, got, 1)
			for f, v := range map[tcpstats.Field]uint64{
				tcpstats.FieldPeerMSS: 1200, tcpstats.FieldAdvMSS: 1460, tcpstats.FieldState: uint64(tcpstats.Established), tcpstats.FieldSegsIn: 2,
				tcpstats.FieldHandshakeRTT: 20_000, tcpstats.FieldHandshakeLocal: 5000, tcpstats.FieldFirstSeen: 1e18 + 100e6, tcpstats.FieldSndWScale: 3,
				tcpstats.FieldDirection: tcpstats.DirectionIn,
			} {
				assert.Equal(t, v, value(t, &got[0], f), "%#x", f)
			}
			s := table.Stats()
			assert.Equal(t, 1, s.Flows)
			assert.Equal(t, 0, s.HalfOpen)
			assert.EqualValues(t, 2, s.Seen)
		})
	}
}

// TestStrayThatWasNone: when more went by unseen than a stray is told by, the flow goes on
// as soon as the other end acknowledges what came after.
func TestStrayThatWasNone(t *testing.T) {
	for name, acked := range map[string]bool{"acknowledged": true, "not": false} {
		t.Run(name, func(t *testing.T) {
			table := New(Config{MaxFlows: LeastFlows})
			open(table)
			const far = 1000 + 8*fitBytes
			see(table, 50*ms, 3, false, tcp{src: client, dst: server, seq: far, ack: 5000, flags: frame.TCPACK, bytes: 100})
			if acked {
				see(table, 55*ms, 3, true, tcp{src: server, dst: client, seq: 5000, ack: far + 100, flags: frame.TCPACK})
			}
			see(table, 60*ms, 3, false, tcp{src: client, dst: server, seq: far + 100, ack: 5000, flags: frame.TCPACK, bytes: 100})
			got, _ := all(t, table, "fields=all")
			require.Len(t, got, 1)
			if acked {
				assert.EqualValues(t, far+200, value(t, &got[0], tcpstats.FieldRcvNxt))
				assert.EqualValues(t, 1, table.Stats().Strays)
			} else {
				assert.EqualValues(t, 2, table.Stats().Strays)
			}
			assert.Zero(t, value(t, &got[0], tcpstats.FieldOutOfOrder))
		})
	}
}

// TestBothEndsAtOnePort: what comes in and goes out again by the same port is two flows,
// one of each end.
func TestBothEndsAtOnePort(t *testing.T) {
	table := New(Config{MaxFlows: LeastFlows})
	for _, out := range []bool{false, true} {
		see(table, 0, 3, out, tcp{src: client, dst: server, seq: 999, flags: frame.TCPSYN, mss: 1406, wscale: -1})
	}
	for _, out := range []bool{false, true} {
		see(table, 5*ms, 3, out, tcp{src: server, dst: client, seq: 4999, ack: 1000, flags: frame.TCPSYN | frame.TCPACK, mss: 8960, wscale: -1})
	}
	for _, out := range []bool{false, true} {
		see(table, 25*ms, 3, out, tcp{src: client, dst: server, seq: 1000, ack: 5000, flags: frame.TCPACK})
	}
	got, _ := all(t, table, "remote_addr=10.0.0.1 fields=all")
	require.Len(t, got, 1)
	assert.EqualValues(t, 2, value(t, &got[0], tcpstats.FieldSegsIn))
	assert.EqualValues(t, 20_000, value(t, &got[0], tcpstats.FieldHandshakeRTT))
	assert.EqualValues(t, tcpstats.DirectionIn, value(t, &got[0], tcpstats.FieldDirection))
	got, _ = all(t, table, "remote_addr=192.0.2.9 fields=all")
	require.Len(t, got, 1)
	assert.EqualValues(t, 1, value(t, &got[0], tcpstats.FieldSegsIn))
	assert.EqualValues(t, 5_000, value(t, &got[0], tcpstats.FieldHandshakeRTT))
	assert.EqualValues(t, tcpstats.DirectionOut, value(t, &got[0], tcpstats.FieldDirection))
	assert.Equal(t, 2, table.Stats().Flows)
}
