package port

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/internal/board"
	"oxpd/internal/clock"
)

// frameSizes without FCS: smallest, full at 1,500, full at 9,000.
var frameSizes = []int{60, 1514, 9014}

// BenchmarkReceive is one frame to the kernel, beside the bare system call with
// the same bytes. Rates count neither preamble nor gap.
func BenchmarkReceive(b *testing.B) {
	ns := newNS(b)
	p := open(b, ns)
	require.NoError(b, p.SetMTU(context.Background(), board.MaxMTU))
	fd := p.tap.FD()
	for _, n := range frameSizes {
		buf := ether(n, 0, 0)
		b.Run(fmt.Sprintf("frame=%d/way=bare", n), func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				if _, err := unix.Write(fd, buf); err != nil {
					b.Fatal(err)
				}
			}
			rate(b, b.N)
		})
		b.Run(fmt.Sprintf("frame=%d/way=port", n), func(b *testing.B) {
			b.ReportAllocs()
			pieces := one(buf)
			for range b.N {
				if p.Receive(0, pieces, 0) != Delivered {
					b.Fatal("not delivered")
				}
			}
			rate(b, b.N)
		})
	}
	buf := cut(ether(9014, 0, 0), 1520, 3122, 4724, 6326, 7928)
	b.Run("frame=9014/way=port6pieces", func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			if p.Receive(0, buf, 0) != Delivered {
				b.Fatal("not delivered")
			}
		}
		rate(b, b.N)
	})
}

// BenchmarkTransmit is one frame from the kernel's queue into a slot, in bursts
// of 32, beside the bare system call into the same memory. The frames are put
// there while the clock stands. A slot is 9,344 bytes of a ring of 256.
func BenchmarkTransmit(b *testing.B) {
	const round = 512
	ns := newNS(b)
	p := open(b, ns)
	require.NoError(b, p.SetMTU(context.Background(), board.MaxMTU))
	ip(b, ns, fmt.Sprintf("link set oxp9 txqueuelen %d", 2*round))
	linux := listen(b, ns, p.Index())
	fd := p.tap.FD()
	fill := func(buf []byte, n int) {
		for range n {
			if _, err := unix.Write(linux.fd, buf); err != nil {
				b.Fatal(err)
			}
		}
	}
	for _, n := range frameSizes {
		buf := ether(n, 0, 0)
		b.Run(fmt.Sprintf("frame=%d/way=bare", n), func(b *testing.B) {
			slots := &ringSlots{}
			b.ReportAllocs()
			for left := b.N; left > 0; left -= round {
				b.StopTimer()
				k := min(round, left)
				fill(buf, k)
				b.StartTimer()
				for range k {
					if _, err := unix.Read(fd, slots.Reserve()); err != nil {
						b.Fatal(err)
					}
					slots.Commit(0, n)
				}
			}
			rate(b, b.N)
		})
		b.Run(fmt.Sprintf("frame=%d/way=port", n), func(b *testing.B) {
			slots := &ringSlots{}
			tr, err := NewTransmitter([]*Port{p}, slots, nil, clock.NewReal(), nil)
			require.NoError(b, err)
			defer tr.Close()
			defer tr.Remove(p)
			ids := make([]int32, 64)
			ctx := context.Background()
			b.ReportAllocs()
			b.ResetTimer()
			for left := b.N; left > 0; left -= round {
				b.StopTimer()
				k := min(round, left)
				fill(buf, k)
				b.StartTimer()
				for want := slots.n + k; slots.n < want; {
					m, err := tr.poll.wait(ids)
					if err != nil || tr.round(ctx, ids[:m]) != nil {
						b.Fatal(err)
					}
				}
			}
			rate(b, b.N)
		})
	}
}

func rate(b *testing.B, frames int) {
	b.ReportMetric(float64(frames)/b.Elapsed().Seconds(), "pkts/s")
}

// ringSlots is a queue that is never full, with the memory of a real one.
type ringSlots struct {
	mem [256][slotSize]byte
	n   int
}

func (s *ringSlots) Lock()              {}
func (s *ringSlots) Unlock()            {}
func (s *ringSlots) Reserve() []byte    { return s.mem[s.n&255][:] }
func (s *ringSlots) Commit(uint16, int) { s.n++ }
func (s *ringSlots) Flush()             {}
func (s *ringSlots) Reap()              {}
