package worlds

import (
	"time"

	"oxpd/internal/board"
	"oxpd/ring/wire"
)

// probe is the last thing in a world: while nobody serves, a burst comes that a ring
// with all its credit just takes. Then all of it is there, in order.
func (w *world) probe() {
	f := w.probing()
	if f == nil {
		return
	}
	size := f.shape.least()
	if w.rnd.one(2) {
		low, _ := w.mtuBetween(f.port, w.now(), w.now())
		size = min(longestFrame, low+etherBytes)
		if panel, uplink := w.switchLimits(); f.port.BehindSwitch() {
			size = min(size, panel-fcsBytes, uplink-fcsBytes)
		}
		size = max(size, f.shape.least())
	}
	n := (wire.OQEntries - wire.FetchBatch) / buffers(size)
	first := len(f.frames)
	for range n {
		w.card.Wire(uint16(f.port.Tag)).Send(w.sent(f, size))
	}
	for range 1000 {
		if w.card.Quiesced() {
			break
		}
		w.card.Advance(time.Millisecond)
	}
	w.card.Advance(5 * time.Millisecond) // what is put off is written
	for _, k := range w.workers {
		for _, q := range k.w.Queues() {
			_, err := w.rings.OQ(q).Visit(wire.OQEntries)
			w.must("visit", err)
			w.served()
		}
	}
	came := 0
	for i := range f.frames[first:] {
		if f.frames[first+i].seen >= 0 {
			came++
		}
	}
	if came != n {
		w.broke("credit", "of a burst of %d frames of %d bytes, which a ring with all its credit takes, %d came: %s", n, size, came, f)
	}
}

// probing is a flow whose frames get through, nil when there is none.
func (w *world) probing() *flow {
	if c := &w.plan.card.Choices; c.StatusStops || c.CutMidway || w.plan.late() || w.plan.has("LateData") || w.plan.has("LateLength") || w.plan.has("LateCount") {
		return nil
	}
	for i := range w.flows {
		f := &w.flows[i]
		low, _ := w.mtuBetween(f.port, w.now(), w.now())
		if !f.out && !f.foreign && low >= 100 && board.CheckMTU(low) == nil {
			return f
		}
	}
	return nil
}
