package flows

import (
	"context"
	"io"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/frame"
	"oxpd/internal/tcpstats"
)

// TestReadDuringChanges: what was there when a read began and still is when it ends is in
// it, once, also what was half-open and became established meanwhile; what came later is
// not.
func TestReadDuringChanges(t *testing.T) {
	for seed := range uint64(8) {
		rng := rand.New(rand.NewPCG(seed, 3))
		table := New(Config{MaxFlows: 4 * LeastFlows})
		there := make(map[netip.AddrPort]bool) // value: established
		const begun = 2000
		for i := range begun {
			from := peer(i)
			see(table, 0, 1, false, tcp{src: from, dst: server, seq: 999, flags: frame.TCPSYN, wscale: -1})
			see(table, 0, 1, true, tcp{src: server, dst: from, seq: 4999, ack: 1000, flags: frame.TCPSYN | frame.TCPACK, wscale: -1})
			if i < begun-400 { // the ring has room for 512
				see(table, 0, 1, false, tcp{src: from, dst: server, seq: 1000, ack: 5000, flags: frame.TCPACK})
			}
			there[from] = i < begun-400
		}
		records, _ := all(t, table, "")
		present := make(map[uint64]bool)
		for i := range records {
			present[cookie(&records[i])] = true
		}
		require.Len(t, present, len(records))
		require.Greater(t, len(records), begun-100)

		f, err := tcpstats.Parse("")
		require.NoError(t, err)
		c, err := table.Open(context.Background(), &tcpstats.Query{Filter: f})
		require.NoError(t, err)
		var got []tcpstats.Record
		for made := begun; ; {
			b, n, err := c.Next(context.Background(), make([]byte, 0, tcpstats.ChunkBytes))
			if err == io.EOF {
				break
			}
			require.NoError(t, err)
			require.LessOrEqual(t, n, tcpstats.Stretch)
			for range n {
				var r tcpstats.Record
				size, err := r.Decode(b)
				require.NoError(t, err)
				b, got = b[size:], append(got, r)
			}
			for range 60 {
				i := rng.IntN(begun)
				switch from := peer(i); rng.IntN(3) {
				case 0: // becomes established
					if !there[from] {
						see(table, 1, 1, false, tcp{src: from, dst: server, seq: 1000, ack: 5000, flags: frame.TCPACK})
					}
				case 1: // ends, and is replaced by another between the same ends
					if there[from] {
						see(table, 1, 1, false, tcp{src: from, dst: server, seq: 1000, flags: frame.TCPRST})
						see(table, 1, 1, false, tcp{src: from, dst: server, seq: 70_000, flags: frame.TCPSYN, wscale: -1})
					}
				case 2:
					shake(table, 1, peer(made), server)
					made++
				}
			}
		}
		times := make(map[uint64]int)
		for i := range got {
			id := cookie(&got[i])
			times[id]++
			require.True(t, present[id], "seed %d: %#x came later", seed, id)
			require.Equal(t, 1, times[id], "seed %d: %#x", seed, id)
		}
		after, _ := all(t, table, "")
		stayed := 0
		for i := range after {
			if id := cookie(&after[i]); present[id] {
				stayed++
				require.Equal(t, 1, times[id], "seed %d: %#x is missing", seed, id)
			}
		}
		require.Greater(t, stayed, begun/2)
		require.Less(t, stayed, len(after))
		w := c.Walked()
		require.EqualValues(t, len(got), w.Appended)
		require.Equal(t, w.Visited, w.Appended)
		require.NoError(t, c.Close())
		_, _, err = c.Next(context.Background(), nil)
		require.Error(t, err)
	}
}

func cookie(r *tcpstats.Record) uint64 {
	v, _ := r.Uint(tcpstats.FieldCookie)
	return v
}

// TestManyAtOnce: frames, reads and sweeps at once. Each record is one that a flow had, and
// the books of each read are closed.
func TestManyAtOnce(t *testing.T) {
	table := New(Config{MaxFlows: LeastFlows})
	var work, readers sync.WaitGroup
	stop := make(chan struct{})
	for shard := range 3 {
		work.Add(1)
		go func() {
			defer work.Done()
			rng := rand.New(rand.NewPCG(1, uint64(shard)))
			for i := range 4000 {
				from := peer(rng.IntN(3000))
				shake(table, shard, from, server)
				n := 1 + rng.IntN(1000)
				see(table, dur(int64(i)*1e6), shard, true, tcp{src: server, dst: from, seq: 5000, ack: 1000, flags: frame.TCPACK, bytes: n})
				if rng.IntN(3) == 0 {
					see(table, dur(int64(i)*1e6), shard, false, tcp{src: from, dst: server, seq: 1000, flags: frame.TCPRST})
				}
			}
		}()
	}
	for range 3 {
		readers.Add(1)
		go func() {
			defer readers.Done()
			for {
				select {
				case <-stop:
					return
				default:
				}
				got, _ := all(t, table, "exclude=closed fields=all")
				for i := range got {
					sent, _ := got[i].Uint(tcpstats.FieldBytesSent)
					segs, _ := got[i].Uint(tcpstats.FieldDataSegsOut)
					largest, _ := got[i].Uint(tcpstats.FieldMaxSegOut)
					if sent > segs*largest || sent < segs {
						t.Errorf("%d segments of up to %d bytes, %d bytes in all: half a record", segs, largest, sent)
						return
					}
				}
				table.Sweep(1e18 + int64(time.Second))
			}
		}()
	}
	work.Wait()
	close(stop)
	readers.Wait()
	s := table.Stats()
	got, _ := all(t, table, "")
	assert.Len(t, got, s.Flows+s.HalfOpen)
	assert.LessOrEqual(t, s.Flows, LeastFlows)
	assert.LessOrEqual(t, s.HalfOpen, s.HalfLimit)
	table.Sweep(1e18 + int64(time.Hour))
	after := table.Stats()
	assert.Zero(t, after.Flows+after.HalfOpen)
	assert.Equal(t, s.Expired+uint64(s.Flows+s.HalfOpen), after.Expired)
	got, _ = all(t, table, "")
	assert.Empty(t, got)
}

// TestExpiry: a flow is forgotten one nanosecond after its time, by what it is.
func TestExpiry(t *testing.T) {
	for name, c := range map[string]struct {
		idle, limit time.Duration
		show        func(table *Table)
	}{
		"established":                {0, DefaultIdle, open},
		"established, as configured": {time.Minute, time.Minute, open},
		"half-open": {0, openIdle, func(table *Table) {
			see(table, 25*ms, 3, false, tcp{src: client, dst: server, seq: 1, flags: frame.TCPSYN, wscale: -1})
		}},
		"half-open, configured shorter": {time.Second, time.Second, func(table *Table) {
			see(table, 25*ms, 3, false, tcp{src: client, dst: server, seq: 1, flags: frame.TCPSYN, wscale: -1})
		}},
		"one direction": {0, openIdle, func(table *Table) {
			for range 3 {
				see(table, 25*ms, 3, true, tcp{src: server, dst: client, seq: 1, ack: 9, flags: frame.TCPACK, bytes: 5})
			}
		}},
		"reset": {0, closedIdle, func(table *Table) {
			open(table)
			see(table, 25*ms, 3, true, tcp{src: server, dst: client, seq: 5000, flags: frame.TCPRST})
		}},
		"closed": {0, closedIdle, func(table *Table) {
			open(table)
			see(table, 25*ms, 3, true, tcp{src: server, dst: client, seq: 5000, ack: 1000, flags: frame.TCPFIN | frame.TCPACK})
			see(table, 25*ms, 3, false, tcp{src: client, dst: server, seq: 1000, ack: 5001, flags: frame.TCPFIN | frame.TCPACK})
		}},
		"half closed": {0, DefaultIdle, func(table *Table) {
			open(table)
			see(table, 25*ms, 3, true, tcp{src: server, dst: client, seq: 5000, ack: 1000, flags: frame.TCPFIN | frame.TCPACK})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			table := New(Config{MaxFlows: LeastFlows, Idle: c.idle})
			c.show(table)
			at := int64(1e18) + int64(25*ms+c.limit)
			table.Sweep(at)
			got, _ := all(t, table, "")
			assert.Len(t, got, 1)
			assert.Zero(t, table.Stats().Expired)
			table.Sweep(at + 1)
			got, _ = all(t, table, "")
			assert.Empty(t, got)
			assert.EqualValues(t, 1, table.Stats().Expired)
		})
	}
}

// TestFull: a full table keeps what it has. What is ready waits in the ring, and takes the
// room of what ends.
func TestFull(t *testing.T) {
	table := New(Config{MaxFlows: LeastFlows})
	for i := range LeastFlows {
		shake(table, 1, peer(i), server)
	}
	before, _ := all(t, table, "fields=all")
	require.Len(t, before, LeastFlows)
	shake(table, 1, client, server)
	for range 5 { // counted once
		see(table, 30*ms, 1, false, tcp{src: client, dst: server, seq: 1000, ack: 5000, flags: frame.TCPACK})
	}
	s := table.Stats()
	assert.Equal(t, LeastFlows, s.Flows)
	assert.Equal(t, 1, s.HalfOpen)
	assert.EqualValues(t, 1, s.Refused)
	got, _ := all(t, table, "remote_addr=10.0.0.1 remote_port=40000")
	require.Len(t, got, 1, "it is read all the same")
	assert.EqualValues(t, tcpstats.Established, value(t, &got[0], tcpstats.FieldState))

	for i := range LeastFlows {
		see(table, 40*ms, 1, false, tcp{src: peer(i), dst: server, seq: 1000, flags: frame.TCPRST})
	}
	for i := range 20 {
		see(table, 50*ms, 1, false, tcp{src: client, dst: server, seq: 1000, ack: 5000, flags: frame.TCPACK, bytes: i})
	}
	s = table.Stats()
	assert.Zero(t, s.HalfOpen)
	assert.Equal(t, LeastFlows, s.Flows)
	assert.EqualValues(t, 1, s.Expired)
}

// TestIgnored: what is no whole segment, or of a flow that nobody knows, begins none.
func TestIgnored(t *testing.T) {
	syn := tcp{src: client, dst: server, seq: 1, flags: frame.TCPSYN, mss: 1000, wscale: -1}.frame()
	edit := func(at int, v ...byte) []byte {
		b := append([]byte(nil), syn...)
		copy(b[at:], v)
		return b
	}
	const ip, l4 = frame.HeaderSize, frame.HeaderSize + 20
	for name, c := range map[string]struct {
		b       []byte
		flows   int
		ignored uint64
	}{
		"as it should be":                        {syn, 1, 0},
		"padded":                                 {append(append([]byte(nil), syn...), 0, 0, 0, 0), 1, 0},
		"cut in the TCP header":                  {syn[:l4+19], 0, 1},
		"cut in front of the flags":              {syn[:l4+13], 0, 0},
		"shorter than it says":                   {syn[:len(syn)-1], 0, 1},
		"datagram ends in the TCP header":        {edit(ip+2, 0, 39), 0, 1},
		"data begins in the TCP header":          {edit(l4+tcpOffset, 4<<4), 0, 1},
		"data begins behind the datagram":        {edit(l4+tcpOffset, 7<<4), 0, 1},
		"UDP":                                    {edit(ip+9, frame.ProtoUDP), 0, 0},
		"first fragment":                         {edit(ip+6, 0x20), 0, 0},
		"reset":                                  {edit(l4+13, frame.TCPRST), 0, 1},
		"reset with ACK":                         {edit(l4+13, frame.TCPRST|frame.TCPACK), 0, 1},
		"neither SYN nor ACK":                    {edit(l4+13, frame.TCPPSH), 0, 1},
		"SYN with reset":                         {edit(l4+13, frame.TCPSYN|frame.TCPRST), 0, 1},
		"options that say they have no length":   {edit(l4+tcpSize, optMSS, 0), 1, 0},
		"options that say they are longer":       {edit(l4+tcpSize, optMSS, 5), 1, 0},
		"an option that is cut after its number": {edit(l4+tcpSize, optNop, optNop, optNop, optMSS), 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			table := New(Config{MaxFlows: LeastFlows})
			var head frame.Packet
			table.Observe(1, 0, false, &head, c.b, len(c.b))
			got, _ := all(t, table, "fields=all")
			assert.Len(t, got, c.flows)
			assert.Equal(t, c.ignored, table.Stats().Ignored)
			if len(got) == 1 {
				mss, ok := got[0].Uint(tcpstats.FieldPeerMSS)
				assert.Equal(t, name == "as it should be" || name == "padded", ok)
				if ok {
					assert.EqualValues(t, 1000, mss)
				}
			}
		})
	}
}

// FuzzObserve: no frame does harm, whatever it says, and no sequence of them; what is read
// afterwards are whole records, and the books are closed.
func FuzzObserve(f *testing.F) {
	var play []byte
	for _, s := range []tcp{
		{src: client, dst: server, seq: 999, flags: frame.TCPSYN, window: 64000, mss: 1406, wscale: 7},
		{src: server, dst: client, seq: 4999, ack: 1000, flags: frame.TCPSYN | frame.TCPACK, mss: 8960, wscale: 9},
		{src: client, dst: server, seq: 1000, ack: 5000, flags: frame.TCPACK},
		{src: server, dst: client, seq: 5000, ack: 1000, flags: frame.TCPFIN | frame.TCPACK, bytes: 3},
		{src: client, dst: server, seq: 1000, ack: 5000, flags: frame.TCPRST},
	} {
		b := s.frame()
		out := byte(0)
		if s.src == server {
			out = 1
		}
		play = append(append(play, byte(len(b)), out), b...)
		f.Add(append([]byte(nil), play...))
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, play []byte) {
		table := New(Config{MaxFlows: LeastFlows})
		now := int64(1)
		for len(play) > 2 {
			n, how := int(play[0]), play[1]
			b := play[2:min(2+n, len(play))]
			play = play[2+len(b):]
			var head frame.Packet
			table.Observe(now, int(how>>1&15), how&1 != 0, &head, b, len(b)+int(how>>5))
			now += int64(how) << 20
			if how == 0xff {
				table.Sweep(now)
			}
		}
		s := table.Stats()
		got, w := all(t, table, "fields=all")
		require.Len(t, got, s.Flows+s.HalfOpen)
		require.EqualValues(t, len(got), w.Visited)
		for i := range got {
			family, _ := got[i].Uint(tcpstats.FieldFamily)
			require.Contains(t, []uint64{4, 6}, family)
			require.Equal(t, family == 6, got[i].Addr(tcpstats.FieldLocalAddr).Is6())
			for _, f := range []tcpstats.Field{tcpstats.FieldRTT, tcpstats.FieldHandshakeRTT} {
				if us, ok := got[i].Uint(f); ok {
					require.LessOrEqual(t, us, uint64(now/1000), "longer than it is old")
				}
			}
		}
	})
}
