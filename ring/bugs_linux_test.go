package ring

import (
	"context"
	"encoding/binary"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
	"oxpd/internal/dma"
	"oxpd/internal/netlab"
	"oxpd/internal/port"
	"oxpd/octep/csr"
	"oxpd/ring/wire"
)

// eightRegs are the registers of eight output queues, each touched by one
// goroutine. They judge nothing.
type eightRegs struct {
	loopback // while rings are programmed
	queues   [wire.OQs]struct {
		count, credit uint64
		_             [48]byte
	}
}

func (r *eightRegs) Load64(off uint32) uint64 {
	for q := range r.queues {
		switch csr.Reg64(off) {
		case csr.OutCnts.Queue(q):
			return r.queues[q].count
		case csr.OutSlistDBell.Queue(q):
			return r.queues[q].credit & 0xffffffff
		case csr.OutIntStatus.Queue(q):
			return 0
		}
	}
	return r.loopback.Load64(off)
}

func (r *eightRegs) Store32(off uint32, v uint32) {
	for q := range r.queues {
		switch csr.Reg64(off) {
		case csr.OutCnts.Queue(q):
			r.queues[q].count -= uint64(v)
			return
		case csr.OutSlistDBell.Queue(q):
			if v == csr.DBellDrain {
				v = 0
			}
			r.queues[q].credit += uint64(v)
			return
		}
	}
	r.loopback.Store32(off, v)
}

// toPorts hands frames to ports by their tag.
type toPorts map[uint16]*port.Port

func (p toPorts) Deliver(oq int, frames []Frame) {
	for i := range frames {
		p[frames[i].Tag].Receive(oq, frames[i].Pieces, 0)
	}
}

// DM-1: eight queues, each served by a goroutine of its own, a million packets
// each, with every end that a packet can come to.
func TestEightGoroutinesLoseNoCount(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes TAP interfaces")
	}
	each := 1_000_000
	if testing.Short() || raceEnabled {
		each /= 20
	}
	const (
		burst    = 50
		unowned  = 0x7777
		filtered = 13 // of so many one
	)
	ns, err := netlab.New()
	require.NoError(t, err)
	defer ns.Close()
	ports := toPorts{}
	for _, p := range board.All() {
		q, err := port.Open(port.Config{Port: p, NetNS: netlab.FDPath(int(ns.File().Fd()))})
		require.NoError(t, err)
		defer q.Close()
		ports[uint16(p.Tag)] = q
	}
	regs := &eightRegs{loopback: loopback{other: map[uint32]uint64{}}}
	r, err := New(Config{
		BAR0: regs, DMA: dma.NewInProcess(nowhere{}, 0), Clock: realClock{time.Now()}, Sink: ports,
		Judge: JudgeFunc(func(_ []byte, frameBytes int, tag uint16) Verdict {
			switch {
			case tag == unowned:
				return Unowned
			case frameBytes == filtered:
				return Drop
			}
			return Pass
		}),
	})
	require.NoError(t, err)
	defer func() { assert.NoError(t, r.Free()) }()
	require.NoError(t, r.Program(context.Background()))

	var wg sync.WaitGroup
	for q := range wire.OQs {
		wg.Add(1)
		go func() {
			defer wg.Done()
			o, at := r.OQ(q), uint32(0)
			for n := 0; n < each; {
				for range burst {
					// Too short, too long, for nobody, filtered; and now and then one that
					// costs a system call: the interface is down.
					length, tag := 10, uint16(board.ByIndex(n%board.Ports).Tag)
					switch {
					case n%7 == 1:
						length = 1519
					case n%7 == 2:
						tag = unowned
					case n%7 == 3:
						length = filtered
					case n%200 == 4:
						length = 60
					}
					b, _ := o.buffer(at)
					wire.PutPrefix(b, tag, 0)
					binary.BigEndian.PutUint64(b, uint64(length+wire.LenOverhead))
					at++
					n++
				}
				regs.queues[q].count += burst
				regs.queues[q].credit -= burst
				for got := 0; got < burst; {
					took, err := o.Visit(VisitBound)
					if !assert.NoError(t, err) || !assert.NotZero(t, took) {
						return
					}
					got += took
				}
			}
		}()
	}
	wg.Wait()
	s := r.Stats()
	var queues uint64
	for _, q := range s.Queues {
		assert.EqualValues(t, each, q.Done, "ring %d", q.Ring)
		queues += q.Done
	}
	var all port.Stats
	for _, p := range ports {
		c := p.Stats()
		all.RxPackets, all.RxMalformed, all.RxTooLong = all.RxPackets+c.RxPackets, all.RxMalformed+c.RxMalformed, all.RxTooLong+c.RxTooLong
		all.TapDown, all.TapErr = all.TapDown+c.TapDown, all.TapErr+c.TapErr
	}
	assert.EqualValues(t, wire.OQs*each, s.Done)
	assert.Equal(t, queues, s.Done)
	assert.Equal(t, s.Done, all.RxFrames()+s.Untagged+s.Dropped, "%+v", all)
	for name, n := range map[string]uint64{
		"rx_malformed": all.RxMalformed, "rx_toolong": all.RxTooLong, "tap_down": all.TapDown, "rx_untagged": s.Untagged, "pfil_dropped": s.Dropped,
	} {
		assert.Positive(t, n, name)
	}
}
