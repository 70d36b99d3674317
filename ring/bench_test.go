package ring

import (
	"context"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"oxpd/internal/dma"
	"oxpd/octep/csr"
	"oxpd/ring/wire"
)

// loopback is the cheapest far end that the driver can be measured against:
// registers are plain fields, and the benchmark itself plays the device. It
// judges nothing; hwsim does.
type loopback struct {
	outCnts, credit uint64
	inCnts          uint64
	other           map[uint32]uint64
}

func (l *loopback) Size() uint64 { return csr.BAR0Size }
func (l *loopback) Load32(off uint32) uint32 {
	return uint32(l.Load64(off))
}
func (l *loopback) Load64(off uint32) uint64 {
	switch csr.Reg64(off) {
	case csr.OutCnts.Queue(0):
		return l.outCnts
	case csr.OutSlistDBell.Queue(0):
		return l.credit & 0xffffffff
	case csr.InCnts.Queue(0):
		return l.inCnts
	case csr.OutIntStatus.Queue(0), csr.InInstrDBell.Queue(0):
		return 0
	}
	v := l.other[off]
	switch info, _, _ := csr.Lookup(off); info.Name {
	case "OUT_CONTROL":
		v |= csr.OutControlIdle
	case "IN_CONTROL":
		v |= csr.InControlIdle
	}
	return v
}
func (l *loopback) Store32(off uint32, v uint32) { l.Store64(off, uint64(v)) }
func (l *loopback) Store64(off uint32, v uint64) {
	switch csr.Reg64(off) {
	case csr.OutCnts.Queue(0):
		l.outCnts -= v
	case csr.OutSlistDBell.Queue(0):
		if v == csr.DBellDrain {
			l.credit = 0
		} else {
			l.credit += v
		}
	case csr.InInstrDBell.Queue(0):
		if v != csr.DBellDrain {
			l.inCnts += v // finished at once
		}
	case csr.InCnts.Queue(0):
		l.inCnts -= v
	default:
		l.other[off] = v
	}
}

type nowhere struct{}

func (nowhere) MapDMA(uint64, []byte) error { return nil }
func (nowhere) UnmapDMA(uint64, int) error  { return nil }

type discard struct{ frames, bytes uint64 }

func (d *discard) Deliver(_ int, frames []Frame) {
	for i := range frames {
		d.frames++
		d.bytes += uint64(frames[i].Bytes)
	}
}

type realClock struct{ start time.Time }

func (c realClock) Now() time.Duration { return time.Since(c.start) }
func (c realClock) Sleep(context.Context, time.Duration) error {
	return nil
}

func benchRings(b *testing.B, sink Sink) (*Rings, *loopback) {
	b.Helper()
	regs := &loopback{other: map[uint32]uint64{}}
	r, err := New(Config{BAR0: regs, DMA: dma.NewInProcess(nowhere{}, 0), Clock: realClock{time.Now()}, Sink: sink})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := r.Free(); err != nil {
			b.Error(err)
		}
	})
	if err := r.Program(context.Background()); err != nil {
		b.Fatal(err)
	}
	return r, regs
}

var benchFrames = []int{60, 1514, 9014}

// copyRate is the yardstick of the same run: a bare copy of the same bytes out
// of memory of the same size.
func copyRate(b *testing.B, frame int) {
	src := make([]byte, wire.OQEntries*wire.BufStride)
	dst := make([]byte, 16384)
	step := (frame + 63) &^ 63
	b.SetBytes(int64(frame))
	b.ReportAllocs()
	at := 0
	for i := 0; i < b.N; i++ {
		if at+frame > len(src) {
			at = 0
		}
		copy(dst, src[at:at+frame])
		at += step
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pkts/s")
}

// BenchmarkOQVisit measures receiving: length word, verdict, gather of spans,
// delivery to a sink that counts, poison, credit and acknowledge. The device's
// part, writing length words, is inside the loop and costs one store a packet.
func BenchmarkOQVisit(b *testing.B) {
	for _, frame := range benchFrames {
		b.Run(fmt.Sprintf("copy/frame=%d", frame), func(b *testing.B) { copyRate(b, frame) })
		for _, burst := range []int{1, 32, 64} {
			b.Run(fmt.Sprintf("frame=%d/burst=%d", frame, burst), func(b *testing.B) {
				sink := &discard{}
				r, regs := benchRings(b, sink)
				o := r.OQ(0)
				l := frame + wire.LenOverhead
				n := wire.Buffers(l)
				var word [8]byte
				binary.BigEndian.PutUint64(word[:], uint64(l))
				le := binary.LittleEndian.Uint64(word[:])
				at := uint32(0)
				b.SetBytes(int64(frame))
				b.ReportAllocs()
				b.ResetTimer()
				for done := 0; done < b.N; done += burst {
					for range burst {
						buf, _ := o.buffer(at)
						dma.Store64(buf, le)
						at += uint32(n)
					}
					regs.outCnts += uint64(burst)
					regs.credit -= uint64(burst * n)
					for got := 0; got < burst; {
						took, err := o.Visit(VisitBound)
						if err != nil || took == 0 {
							b.Fatal("nothing taken", err)
						}
						got += took
					}
				}
				b.ReportMetric(float64(sink.frames)/b.Elapsed().Seconds(), "pkts/s")
			})
		}
	}
}

// BenchmarkIQPost measures sending: the frame is copied into its slot, as read(2)
// would, then header, instruction and one doorbell a burst.
func BenchmarkIQPost(b *testing.B) {
	for _, frame := range benchFrames {
		b.Run(fmt.Sprintf("copy/frame=%d", frame), func(b *testing.B) { copyRate(b, frame) })
		for _, burst := range []int{1, 32, 64} {
			b.Run(fmt.Sprintf("frame=%d/burst=%d", frame, burst), func(b *testing.B) {
				r, _ := benchRings(b, &discard{})
				q := r.IQ()
				src := make([]byte, frame)
				b.SetBytes(int64(frame))
				b.ReportAllocs()
				b.ResetTimer()
				for done := 0; done < b.N; done += burst {
					q.Lock()
					for range burst {
						copy(q.Reserve(), src)
						q.Commit(1, frame)
					}
					q.Flush()
					q.Unlock()
				}
				b.ReportMetric(float64(q.cnt.posted.Load())/b.Elapsed().Seconds(), "pkts/s")
			})
		}
	}
}
