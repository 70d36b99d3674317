package calibrate

import (
	"context"
	"encoding/binary"
	"fmt"

	"oxpd/internal/board"
	"oxpd/internal/dma"
	"oxpd/ring/wire"
)

// sharedRate is the flood under which the pings of another port were lost while all
// frames went through one buffer (datapath.md 2.2).
const sharedRate = 50_000

// memory is the device's, with the input ring's instructions at hand.
type memory struct {
	dma.Provider
	instructions *dma.Region
}

// Alloc implements dma.Provider.
func (m *memory) Alloc(name string, size, align int) (*dma.Region, error) {
	r, err := m.Provider.Alloc(name, size, align)
	if name == "iq0 instructions" {
		m.instructions = r
	}
	return r, err
}

// oneBuffer is the mistake of datapath.md 2.2: every instruction points at the same
// buffer, which the next frame overwrites.
type oneBuffer struct {
	r      *rig
	mem    *memory
	buffer *dma.Region
	posted int
}

func (o *oneBuffer) post(p board.Port, f []byte) {
	q := o.r.rings.IQ()
	q.Lock()
	defer q.Unlock()
	if q.Reserve() == nil {
		return
	}
	q.Commit(uint16(p.Tag), len(f))
	in, _ := o.mem.instructions.At(o.posted%wire.IQSlots*wire.InstrSize, wire.InstrSize)
	b, bus := o.buffer.At(0, o.buffer.Size())
	binary.LittleEndian.PutUint64(in[wire.InstrDptr:], uint64(bus))
	wire.PutPrivate(b, uint16(p.Tag))
	copy(b[wire.PrivSize:], f)
	o.posted++
	q.Flush()
}

// sharedSlot is the share in percent of pings to one port that are lost while another
// is flooded through the same buffer. How often depends on one thing: how long after
// its doorbell a frame's data is read.
func sharedSlot(ctx context.Context) (float64, error) {
	m := &memory{}
	s := setup{memory: func(p dma.Provider) dma.Provider { m.Provider = p; return m }}
	return withRig(ctx, s, func(r *rig) (float64, error) {
		buffer, err := r.dev.DMA().Alloc("one buffer for all", wire.SlotStride, 4096)
		if err != nil {
			return 0, err
		}
		o := &oneBuffer{r: r, mem: m, buffer: buffer}
		flooded, other := port("Port1"), port("Port2")
		const pings = 2000
		seen := map[uint32]bool{}
		r.wire(other).SetReceiver(func(f []byte) { seen[binary.BigEndian.Uint32(f[atSeq:])] = true })
		flood, ping := frame([6]byte{2, 2, 2, 2, 2, 2}, 0, 0, 98), frame([6]byte{2, 2, 2, 2, 2, 3}, 1, 0, 98)
		r.every(sharedRate, 0, func(int) { o.post(flooded, flood) })
		// Their rates have no common measure: a ping comes at any moment between two
		// frames of the flood.
		r.every(9973, pings, func(n int) {
			binary.BigEndian.PutUint32(ping[atSeq:], uint32(n))
			o.post(other, ping)
		})
		r.pass(seconds(pings/9973.0 + 1e-3))
		if o.posted < pings {
			return 0, fmt.Errorf("%d frames posted", o.posted)
		}
		r.actors = nil
		r.pass(seconds(1e-3))
		return 100 * float64(pings-len(seen)) / pings, nil
	})
}
