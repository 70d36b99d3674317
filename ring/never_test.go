package ring

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/ring/wire"
)

// What must never happen, whatever the moment.

// arrivals are the ways in which the pieces of a packet become visible.
var arrivals = map[string]func(o *hwsim.Options, f *hwsim.Faults){
	"all at once":                        func(*hwsim.Options, *hwsim.Faults) {},
	"count late":                         func(_ *hwsim.Options, f *hwsim.Faults) { f.LateCount = hwsim.AllRings },
	"count first":                        func(_ *hwsim.Options, f *hwsim.Faults) { f.LateData = hwsim.AllRings },
	"length word late":                   func(_ *hwsim.Options, f *hwsim.Faults) { f.LateLength = hwsim.AllRings },
	"tail after the length word":         func(_ *hwsim.Options, f *hwsim.Faults) { f.LateTail = hwsim.AllRings },
	"tail a microsecond after it":        func(o *hwsim.Options, _ *hwsim.Faults) { o.Choices.LengthFirst = true },
	"one packet below the watermark":     func(o *hwsim.Options, _ *hwsim.Faults) { o.Choices.UnderWatermark = hwsim.DeliverOne },
	"descriptors fetched for the packet": func(o *hwsim.Options, _ *hwsim.Faults) { o.Choices.LazyFetch = true },
}

// lookAt has packets of these sizes arrive, with the host's look a given time after
// the first was sent, then more looks until all are there. They arrive once, in
// order, byte for byte, at every moment of the look up to the last one's arrival.
func lookAt(t *testing.T, how func(*hwsim.Options, *hwsim.Faults), sizes ...int) {
	t.Helper()
	const (
		step = 150 * time.Nanosecond
		span = 75 * time.Microsecond
		late = 20 * time.Microsecond
	)
	sink, faults := &keep{}, hwsim.Faults{LateBy: late}
	b := newBench(t, sink, func(o *hwsim.Options, _ *Config) { how(o, &faults) })
	b.mtu(portF1, 9000)
	b.card.Faults(func(f *hwsim.Faults) { *f = faults })
	w, mac, seq := b.card.Wire(uint16(portF1.Tag)), b.mac(portF1), 0
	for at := time.Duration(0); at < span; at += step {
		var sent [][]byte
		for _, n := range sizes {
			f := udp(mac, 1, seq, n)
			sent = append(sent, f)
			w.Send(f)
			seq++
		}
		sink.frames, sink.tags = nil, nil
		b.card.Advance(at)
		b.visitAll()
		for i := 0; len(sink.frames) < len(sent); i++ {
			require.Less(t, i, 100, "looked after %v: %d of %d frames", at, len(sink.frames), len(sent))
			b.card.Advance(10 * time.Microsecond)
			b.visitAll()
		}
		for i := range sent {
			require.Equal(t, sent[i], sink.frames[i], "looked after %v: frame %d", at, i)
		}
		b.card.Advance(late)
		b.visitAll()
	}
	b.drain()
	s := b.rings.Stats()
	spans := 0
	for _, n := range sizes {
		if n > wire.BufSize-wire.PrefixSize {
			spans++
		}
	}
	assert.EqualValues(t, spans*(seq/len(sizes)), s.Spans)
	assert.Zero(t, s.Short+s.Long+s.Resync)
}

// Never possible: a span taken as one buffer. Frames of one buffer and of several
// follow each other, sizes at each edge of a buffer among them, and the host looks at
// every moment of their arrival.
//
//oxpd:fault F20 behaviour
func TestNeverASpanTakenAsOneBuffer(t *testing.T) {
	for name, how := range arrivals {
		t.Run(name, func(t *testing.T) {
			lookAt(t, how, 60, 9014, 60, 1520, 1521, 3122, 3123, 60)
		})
	}
}

// Never possible: torn jumbo bytes when the tail comes after the length word. Each
// frame overwrites the bytes of another, so that a piece of the old one would show.
func TestNeverTornJumboBytes(t *testing.T) {
	for _, name := range []string{"tail after the length word", "tail a microsecond after it"} {
		t.Run(name, func(t *testing.T) {
			lookAt(t, arrivals[name], 9014, 9014, 9014)
		})
	}
}

// Never possible: credit above the grant. At each access of a turn to a register a
// burst arrives; the credit is looked at after every one, on every ring, under each
// fault that makes books and doorbell differ.
func TestNeverCreditAboveTheGrant(t *testing.T) {
	for name, tc := range map[string]struct {
		option func(o *hwsim.Options)
		fault  func(f *hwsim.Faults)
		mend   func(f *hwsim.Faults)
	}{
		"none":                          {},
		"credit held, then let go":      {nil, func(f *hwsim.Faults) { f.HoldCredit = hwsim.AllRings }, func(f *hwsim.Faults) { f.HoldCredit = 0 }},
		"resume stuck":                  {nil, func(f *hwsim.Faults) { f.StuckResume = hwsim.AllRings }, nil},
		"entries skipped":               {nil, func(f *hwsim.Faults) { f.SkipEntries[0], f.SkipEntries[1], f.SkipEntries[2] = 5, 17, 1 }, nil},
		"counts lost":                   {nil, func(f *hwsim.Faults) { f.LoseCounts[0], f.LoseCounts[1], f.LoseCounts[2] = 5, 17, 1 }, nil},
		"counts late":                   {nil, func(f *hwsim.Faults) { f.LateCount, f.LateBy = hwsim.AllRings, 70*time.Microsecond }, nil},
		"data late":                     {nil, func(f *hwsim.Faults) { f.LateData, f.LateBy = hwsim.AllRings, 70*time.Microsecond }, nil},
		"fetched for the packet":        {func(o *hwsim.Options) { o.Choices.LazyFetch = true }, nil, nil},
		"the card's watermark is lower": {func(o *hwsim.Options) { o.Watermark = 1024 - 16 }, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s, grant := &spy{}, int64(wire.Grant(wire.OQEntries, wire.Watermark))
			b := newBench(t, &keep{}, spied(s), func(o *hwsim.Options, _ *Config) {
				if tc.option != nil {
					tc.option(o)
				}
			})
			b.mtu(portF1, 9000)
			if tc.option != nil && b.card.ReportCount(hwsim.ReportCreditAbove) > 0 {
				b.want = append(b.want, hwsim.ReportCreditAbove) // of the card's own, lower grant
			}
			w, mac, work := b.card.Wire(uint16(portF1.Tag)), b.mac(portF1), b.rings.Workers(1)[0]
			burst := func() {
				for i, n := range []int{60, 9014, 1514, 60, 3123, 60, 60, 9014} {
					w.Send(udp(mac, i, i, n))
				}
				b.card.Advance(60 * time.Microsecond)
			}
			accesses, at := 0, 0
			s.after = func() {
				if accesses++; accesses == at {
					s.after = nil // what happens in between is the card's
					burst()
				}
				for q := range wire.OQs {
					require.LessOrEqual(t, b.card.RingState(q).Credit, grant, "ring %d, a burst at access %d", q, at)
				}
			}
			after := s.after
			for at = 1; at < 120; at++ {
				if tc.fault != nil {
					b.card.Faults(tc.fault)
				}
				accesses, s.after = 0, after
				burst()
				_, _, err := work.Step(WakeSweep)
				require.NoError(t, err)
				if tc.mend != nil {
					b.card.Faults(tc.mend)
				}
				b.card.Advance(time.Duration(at%5) * time.Millisecond)
				_, _, err = work.Step(WakeSweep)
				require.NoError(t, err)
				for q := range wire.OQs {
					require.LessOrEqual(t, b.card.RingState(q).Credit, grant, "ring %d", q)
				}
			}
			require.Positive(t, b.rings.Stats().Done)
		})
	}
}
