package port

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/board"
	"oxpd/internal/frame"
)

// TestReceiveDelivers: each frame reaches Linux byte for byte, whole or in pieces.
func TestReceiveDelivers(t *testing.T) {
	ns := newNS(t)
	p := open(t, ns)
	linux := listen(t, ns, p.Index())
	p.SetLimit(board.MaxMTU)

	span := []int{1520, 1520 + 1602, 1520 + 2*1602, 1520 + 3*1602, 1520 + 4*1602} // datapath.md 3.6
	for _, tc := range []struct {
		name   string
		pieces func(b []byte) [][]byte
		bytes  int
		vlans  int
	}{
		{"header alone", one, 14, 0},
		{"header and one byte", one, 15, 0},
		{"60 bytes", one, 60, 0},
		{"1,514 bytes", one, 1514, 0},
		{"9,014 bytes in one piece", one, 9014, 0},
		{"9,014 bytes in the six buffers of a span", func(b []byte) [][]byte { return cut(b, span...) }, 9014, 0},
		{"9,018 bytes with a tag in six buffers", func(b []byte) [][]byte { return cut(b, span...) }, 9018, 1},
		{"9,022 bytes with two tags", one, 9022, 2},
		{"header cut in the middle", func(b []byte) [][]byte { return cut(b, 1, 13) }, 60, 0},
		{"an empty piece in the middle", func(b []byte) [][]byte { return cut(b, 20, 20) }, 60, 0},
		{"twelve pieces", func(b []byte) [][]byte { return cut(b, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110) }, 120, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := p.Stats()
			want := ether(tc.bytes, tc.vlans, 3)
			require.Equal(t, Delivered, p.Receive(2, tc.pieces(want), 0))
			got := linux.next()
			if tc.vlans > 0 { // Linux takes the outer tag off before a packet socket sees it
				want = append(want[:12:12], want[16:]...)
			}
			assert.True(t, bytes.Equal(want, got), "sent %d bytes, arrived %d", len(want), len(got))
			after := p.Stats()
			assert.EqualValues(t, 1, after.RxPackets-before.RxPackets)
			assert.EqualValues(t, tc.bytes, after.RxBytes-before.RxBytes, "bytes are counted once")
			assert.EqualValues(t, 1, after.RxFrames()-before.RxFrames())
		})
	}
}

// TestReceiveRefuses: every reason to drop moves its own counter, by one, and no
// other (DM-2), and nothing reaches Linux.
func TestReceiveRefuses(t *testing.T) {
	ns := newNS(t)
	p := open(t, ns)
	linux := listen(t, ns, p.Index())

	for _, tc := range []struct {
		name  string
		mtu   int
		bytes int
		vlans int
		want  Disposition
	}{
		{"empty", 1500, 0, 0, Malformed},
		{"one byte", 1500, 1, 0, Malformed},
		{"13 bytes", 1500, 13, 0, Malformed},
		{"14 bytes", 1500, 14, 0, Delivered},
		{"MTU and header", 1500, 1514, 0, Delivered},
		{"one byte more", 1500, 1515, 0, TooLong},
		{"four more without a tag", 1500, 1518, 0, TooLong},
		{"four more with a tag", 1500, 1518, 1, Delivered},
		{"five more with a tag", 1500, 1519, 1, TooLong},
		{"eight more with two tags", 1500, 1522, 2, Delivered},
		{"nine more with two tags", 1500, 1523, 2, TooLong},
		{"twelve more with three tags", 1500, 1526, 3, TooLong},
		{"smallest MTU", board.MinMTU, board.MinMTU + 15, 0, TooLong},
		{"largest MTU", board.MaxMTU, 9014, 0, Delivered},
		{"largest MTU, one byte more", board.MaxMTU, 9015, 0, TooLong},
		{"longer than any buffer", board.MaxMTU, 16310, 0, TooLong},
	} {
		whole := ether(tc.bytes, tc.vlans, 0)
		for how, b := range map[string][][]byte{
			"whole":            one(whole),
			"three pieces":     cut(whole, tc.bytes/3, tc.bytes/2),
			"header in pieces": cut(whole, min(5, tc.bytes), min(13, tc.bytes), min(17, tc.bytes)),
		} {
			t.Run(tc.name+"/"+how, func(t *testing.T) {
				p.SetLimit(tc.mtu)
				assertOne(t, p, tc.want, func() Disposition { return p.Receive(5, b, 0) })
				if tc.want == Delivered {
					linux.next()
				}
				assert.True(t, linux.empty())
			})
		}
	}
	p.SetLimit(1500)
	t.Run("no pieces", func(t *testing.T) {
		assertOne(t, p, Malformed, func() Disposition { return p.Receive(0, nil, 0) })
	})
	t.Run("interface down", func(t *testing.T) {
		require.NoError(t, p.SetUp(context.Background(), false))
		assertOne(t, p, TapDown, func() Disposition { return p.Receive(0, one(ether(60, 0, 0)), 0) })
		require.NoError(t, p.SetUp(context.Background(), true))
		assertOne(t, p, Delivered, func() Disposition { return p.Receive(0, one(ether(60, 0, 0)), 0) })
	})
	t.Run("interface deleted by somebody", func(t *testing.T) {
		ip(t, ns, "link delete oxp9")
		assertOne(t, p, TapDown, func() Disposition { return p.Receive(0, one(ether(60, 0, 0)), 0) })
	})
	t.Run("closed", func(t *testing.T) {
		require.NoError(t, p.Close())
		assertOne(t, p, TapDown, func() Disposition { return p.Receive(0, one(ether(60, 0, 0)), 0) })
	})
}

// assertOne checks that fn returned the disposition and that exactly its counter moved.
func assertOne(t *testing.T, p *Port, want Disposition, fn func() Disposition) {
	t.Helper()
	before, after := map[string]uint64{}, map[string]uint64{}
	p.Stats().Each(func(name string, v uint64) { before[name] = v })
	got := fn()
	p.Stats().Each(func(name string, v uint64) {
		if v != before[name] && name != "rx_bytes" {
			after[name] = v - before[name]
		}
	})
	assert.Equal(t, want, got)
	assert.Equal(t, map[string]uint64{want.String(): 1}, after)
}

// failing is a tap whose nth write fails.
type failing struct {
	tap
	at     int // which write fails; 0: none
	err    error
	short  bool // writes one byte less instead
	writes int
}

func (f *failing) fail(n int) (int, error) {
	if f.writes++; f.writes == f.at {
		if f.short {
			return n - 1, nil
		}
		return -1, f.err
	}
	return n, nil
}

func (f *failing) Write(b []byte) (int, error) { return f.fail(len(b)) }
func (f *failing) Writev(pieces [][]byte) (int, error) {
	n := 0
	for _, b := range pieces {
		n += len(b)
	}
	return f.fail(n)
}

// TestReceiveWriteFails: TAP-9. One write of a burst fails; every frame has one
// disposition and the others are not disturbed.
func TestReceiveWriteFails(t *testing.T) {
	for _, tc := range []struct {
		name string
		err  error
		want Disposition
	}{
		{"EAGAIN", unix.EAGAIN, NoBuf},
		{"ENOBUFS", unix.ENOBUFS, NoBuf},
		{"ENOMEM", unix.ENOMEM, NoBuf},
		{"EINVAL", unix.EINVAL, TapErr},
		{"EFAULT", unix.EFAULT, TapErr},
		{"EIO", unix.EIO, TapDown},
		{"EBADFD", unix.EBADFD, TapDown},
		{"ENODEV", unix.ENODEV, TapDown},
		{"EINTR is tried again", unix.EINTR, Delivered},
		{"cut short", nil, TapErr},
	} {
		for _, pieces := range []int{1, 6} {
			t.Run(fmt.Sprintf("%s/pieces=%d", tc.name, pieces), func(t *testing.T) {
				p := newPort(Config{Port: board.ByIndex(8)}, &failing{at: 5, err: tc.err, short: tc.err == nil}, nil)
				p.SetLimit(board.MaxMTU)
				b := one(ether(9014, 0, 0))
				if pieces == 6 {
					b = cut(b[0], 1520, 3000, 5000, 7000, 9000)
				}
				got := map[Disposition]int{}
				for range burst {
					got[p.Receive(0, b, 0)]++
				}
				want := map[Disposition]int{Delivered: burst - 1}
				want[tc.want]++
				assert.Equal(t, want, got)
				s := p.counters.Stats()
				assert.EqualValues(t, burst, s.RxFrames())
				assert.EqualValues(t, want[Delivered], s.RxPackets)
				assert.EqualValues(t, want[Delivered]*9014, s.RxBytes)
				assert.EqualValues(t, []int{want[NoBuf], want[TapDown], want[TapErr]}, []int{int(s.RxNoBuf), int(s.TapDown), int(s.TapErr)})
			})
		}
	}
}

// TestReceiveSums: DM-1. Eight callers at once lose no count.
func TestReceiveSums(t *testing.T) {
	const each = 100_000
	p := newPort(Config{Port: board.ByIndex(8)}, &counting{}, nil)
	good, long, short := one(ether(60, 0, 0)), one(ether(1515, 0, 0)), one(ether(13, 0, 0))
	var wg sync.WaitGroup
	for shard := range Shards {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range each {
				switch i % 4 {
				case 0:
					p.Receive(shard, long, 0)
				case 1:
					p.Receive(shard, short, 0)
				default:
					p.Receive(shard, good, 0)
				}
				if i%1000 == 0 {
					p.counters.Stats()
				}
			}
		}()
	}
	wg.Wait()
	s := p.counters.Stats()
	assert.EqualValues(t, Shards*each/2, s.RxPackets)
	assert.EqualValues(t, Shards*each/2*60, s.RxBytes)
	assert.EqualValues(t, Shards*each/4, s.RxTooLong)
	assert.EqualValues(t, Shards*each/4, s.RxMalformed)
	assert.EqualValues(t, Shards*each, s.RxFrames())
}

// counting is a tap that takes everything, from several callers.
type counting struct{ tap }

func (*counting) Write(b []byte) (int, error) { return len(b), nil }

// TestCloseWhileReceiving: TAP-7. No frame is written to a descriptor that may
// belong to somebody else by then, and every frame is counted.
func TestCloseWhileReceiving(t *testing.T) {
	ns := newNS(t)
	for range 20 {
		p := open(t, ns)
		var wg sync.WaitGroup
		begin := make(chan struct{})
		const each = 200
		for shard := range Shards {
			wg.Add(1)
			go func() {
				defer wg.Done()
				<-begin
				for range each {
					p.Receive(shard, one(ether(60, 0, 0)), 0)
				}
			}()
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			<-begin
			for mtu := range 50 {
				if p.SetMTU(context.Background(), 1400+mtu) != nil {
					return
				}
				p.Stats()
			}
		}()
		close(begin)
		require.NoError(t, p.Close())
		wg.Wait()
		s := p.Stats()
		assert.EqualValues(t, Shards*each, s.RxFrames())
		assert.Zero(t, s.TapErr)
	}
}

// TestCountersOutliveThePort: DM-3.
func TestCountersOutliveThePort(t *testing.T) {
	ns := newNS(t)
	var c Counters
	for life := 1; life <= 3; life++ {
		p, err := Open(Config{Port: board.ByIndex(8), NetNS: ns.Path(), Counters: &c})
		require.NoError(t, err)
		assert.Same(t, &c, p.Counters())
		require.NoError(t, p.SetCarrier(true))
		require.NoError(t, p.SetUp(context.Background(), true))
		ip(t, ns, "link set oxp9 txqueuelen 2")
		linux := listen(t, ns, p.Index())
		for range 7 { // nobody reads: two stay, five are dropped
			linux.send(ether(60, 0, 0))
		}
		require.Equal(t, Delivered, p.Receive(life, one(ether(100, 0, 0)), 0))
		require.NoError(t, p.SetUp(context.Background(), false))
		require.Equal(t, TapDown, p.Receive(life, one(ether(100, 0, 0)), 0))
		require.NoError(t, p.Close())

		s := c.Stats()
		assert.EqualValues(t, life, s.RxPackets)
		assert.EqualValues(t, life*100, s.RxBytes)
		assert.EqualValues(t, life, s.TapDown)
		assert.EqualValues(t, life*5, s.TapKernelDropped)
		assert.Equal(t, s, p.Stats(), "also asked of a closed port")
	}
}

func TestReceiveAllocatesNothing(t *testing.T) {
	ns := newNS(t)
	p := open(t, ns)
	p.SetLimit(board.MaxMTU)
	span := cut(ether(9018, 1, 0), 1520, 3122, 4724, 6326, 7928)
	whole := one(ether(1514, 0, 0))
	short := one(ether(13, 0, 0))
	for name, pieces := range map[string][][]byte{"one piece": whole, "six pieces and a tag": span, "malformed": short} {
		t.Run(name, func(t *testing.T) {
			assert.Zero(t, testing.AllocsPerRun(1000, func() { p.Receive(0, pieces, 0) }))
		})
	}
	require.NoError(t, p.SetUp(context.Background(), false))
	assert.Zero(t, testing.AllocsPerRun(1000, func() { p.Receive(0, whole, 0) }), "interface down")
}

func TestDispositionNames(t *testing.T) {
	names := map[string]bool{}
	Stats{}.Each(func(name string, _ uint64) { names[name] = true })
	for d := range dispositions {
		assert.True(t, names[d.String()], "%v is a counter", d)
	}
	assert.Equal(t, "unknown", dispositions.String())
	assert.Equal(t, frame.HeaderSize, headerBytes(nil, 0))
}
