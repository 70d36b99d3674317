package ring

import (
	"bytes"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/ring/wire"
)

// prefixOf is the 82 bytes that h.write puts in front of a frame of n bytes.
func prefixOf(n int, tag uint16) []byte {
	b := make([]byte, wire.PrefixSize)
	wire.PutPrefix(b, tag, 0)
	l := n + wire.LenOverhead
	b[6], b[7] = byte(l>>8), byte(l)
	return b
}

func TestInstrumentsKeepHowPacketsBegan(t *testing.T) {
	const unowned = 14 // the length of frames that the verdict knows nobody for
	h := newHand(t, func(c *Config) {
		c.Judge = JudgeFunc(func(_ []byte, n int, _ uint16) Verdict {
			if n == unowned {
				return Unowned
			}
			return Pass
		})
	})
	of := func(frame []byte) Snapshot {
		return Snapshot{Prefix: prefixOf(len(frame), handTag), Head: frame[:min(len(frame), HeadBytes)]}
	}
	var last, untagged, span Snapshot
	small, foreign, jumbo, tiny := h.bytes(60), h.bytes(unowned), h.bytes(9014), h.bytes(3)
	for _, tc := range []struct {
		name                 string
		frames               [][]byte
		seq                  uint64
		last, untagged, span []byte // nil: as before
	}{
		{"no packet", nil, 0, nil, nil, nil},
		{"one frame", [][]byte{small}, 1, small, nil, nil},
		{"two in a pass: the last, and one snapshot", [][]byte{tiny, small}, 2, small, nil, nil},
		{"a frame shorter than what is kept: nothing of who was in the buffer before", [][]byte{tiny}, 3, tiny, nil, nil},
		{"one that nobody owns, before another", [][]byte{foreign, small}, 4, small, foreign, nil},
		{"a span of six buffers, before another", [][]byte{jumbo, small}, 5, small, nil, jumbo},
		{"a span at the end", [][]byte{small, jumbo}, 6, jumbo, nil, jumbo},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, f := range tc.frames {
				h.send(f)
			}
			require.Equal(t, len(tc.frames), h.visit())
			for _, x := range []struct {
				to    *Snapshot
				frame []byte
			}{{&last, tc.last}, {&untagged, tc.untagged}, {&span, tc.span}} {
				if x.frame != nil {
					*x.to = of(x.frame)
				}
			}
			got := h.rings.Instruments()
			require.Len(t, got, wire.OQs)
			assert.Equal(t, Instruments{Ring: 0, PrefixSeq: tc.seq, Last: last, Untagged: untagged, Span: span}, got[0])
			assert.Equal(t, Instruments{Ring: 1}, got[1], "another ring")
			s := h.rings.Stats()
			assert.Equal(t, []uint64{tc.seq, tc.seq}, []uint64{s.PrefixSeq, s.Queues[0].PrefixSeq}, "rx_prefix_seq")
		})
	}
	t.Run("a length that cannot be", func(t *testing.T) {
		at := h.at
		h.at++
		h.length(at, wire.MaxLength+1)
		h.regs.outCnts++
		h.regs.credit--
		require.Equal(t, 1, h.visit())
		assert.Equal(t, last, h.rings.Instruments()[0].Last, "nothing is read from it")
	})
	h.check()
}

// Readers and passes do not wait for each other, and what is read is whole and never
// older than what was read before.
func TestExchangeUnderTraffic(t *testing.T) {
	const packets = 20_000
	x := newExchange()
	var wg sync.WaitGroup
	for range 2 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for before := uint64(0); before < packets; {
				s, seq := x.get()
				if seq < before || seq > 0 && !assert.Equal(t, bytes.Repeat([]byte{byte(seq)}, wire.PrefixSize), s.Prefix) {
					assert.GreaterOrEqual(t, seq, before)
					return
				}
				before = seq
			}
		}()
	}
	for i := range packets {
		x.put(bytes.Repeat([]byte{byte(i + 1)}, snapshotBytes))
	}
	wg.Wait()
	x.mu.Lock() // a reader inside
	x.put([]byte{1, 2, 3})
	x.put([]byte{4, 5})
	x.mu.Unlock()
	s, seq := x.get()
	assert.Equal(t, Snapshot{Prefix: []byte{4, 5}, Head: []byte{}}, s, "the newest")
	assert.EqualValues(t, packets+2, seq)
	assert.Zero(t, testing.AllocsPerRun(100, func() { x.put([]byte{1}) }))
}
