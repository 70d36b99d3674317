package ring

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/ring/wire"
)

// diverting is a judge that diverts frames of odd length.
var diverting = JudgeFunc(func(_ []byte, frameBytes int, _ uint16) Verdict {
	if frameBytes%2 == 1 {
		return Divert
	}
	return Pass
})

// A frame that is to be diverted takes no gather buffer, however long it is: its pieces
// are the receive buffers themselves, each but the last one to its end.
func TestDivertedFrameIsHandedOnWhereItLies(t *testing.T) {
	for _, n := range []int{1, 13, 61, 1519, 1521, 3121, 3123, 9013, 9015, 16383, 16385, 65461} {
		t.Run(fmt.Sprintf("%d bytes", n), func(t *testing.T) {
			h := newHand(t, func(c *Config) { c.Judge = diverting })
			h.start(1<<32 - 3) // over the ring's end, and where the index wraps
			at := h.at
			h.sink.each = func(f Frame) {
				require.Equal(t, Divert, f.Verdict)
				require.Len(t, f.Pieces, wire.Buffers(n+wire.LenOverhead))
				for i, p := range f.Pieces {
					b, _ := h.o.buffer(at + uint32(i))
					if i == 0 {
						b = b[wire.PrefixSize:]
					}
					require.Same(t, &b[0], &p[0], "piece %d is the device's buffer", i)
					if i < len(f.Pieces)-1 {
						require.Len(t, p, len(b), "piece %d", i)
					}
				}
				at = h.at
			}
			var want [][]byte
			for range 3 {
				want = append(want, h.bytes(n))
				h.send(want[len(want)-1])
				h.visit()
			}
			h.arrived(want)
			h.rings.Census()
			assert.Zero(t, h.rings.Stats().GatherHigh, "no gather buffer was taken")
			h.o.entries -= 1<<32 - 3
			h.check()
		})
	}
}

// Between frames that are gathered, with deliveries in the middle of the walk, each
// diverted frame keeps its own pieces. The walk is as long as a walk can be.
func TestDivertedFramesBetweenGatheredOnes(t *testing.T) {
	for _, gather := range []int{1, 2, 7, 16} {
		t.Run(fmt.Sprintf("%d gather buffers", gather), func(t *testing.T) {
			h := newHand(t, func(c *Config) { c.Judge, c.GatherFrames = diverting, gather })
			h.start(1000)
			var want [][]byte
			for _, n := range []int{9013, 9014, 61, 60, 3123, 3122, 9015, 1521, 1522} {
				for range 8 {
					want = append(want, h.bytes(n))
					h.send(want[len(want)-1])
				}
			}
			for h.visit() > 0 {
			}
			h.arrived(want)
			h.o.entries -= 1000
			h.check()
		})
	}
	t.Run("the longest walk", func(t *testing.T) {
		h := newHand(t, func(c *Config) { c.Judge = diverting })
		var want [][]byte
		for left := passBuffers - 1; left > 0; {
			n := min(left, wire.MaxBuffers-1)
			want = append(want, h.bytes(n*wire.BufSize-wire.PrefixSize-1))
			left -= wire.Buffers(len(want[len(want)-1]) + wire.LenOverhead)
		}
		want = append(want, h.bytes(wire.MaxLength-wire.LenOverhead))
		for _, f := range want {
			h.send(f)
		}
		n, err := h.o.pass(VisitBound, thorough)
		require.NoError(t, err)
		assert.Equal(t, len(want), n, "in one walk")
		h.arrived(want)
		h.check()
	})
}

func TestDivertingAllocatesNothing(t *testing.T) {
	h := newHand(t, func(c *Config) { c.Judge, c.Sink = diverting, nothing{} })
	small, large := h.bytes(61), h.bytes(9013)
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		for range 8 {
			h.send(small)
			h.send(large)
		}
		if n, err := h.o.Visit(VisitBound); n != 16 || err != nil {
			panic("not taken")
		}
	}))
	h.check()
}

// nothing is a sink that looks at nothing.
type nothing struct{}

func (nothing) Deliver(int, []Frame) {}

// arrived tells which frame differs without printing all of them.
func (h *hand) arrived(want [][]byte) {
	h.t.Helper()
	require.Len(h.t, h.sink.frames, len(want))
	for i := range want {
		require.True(h.t, bytes.Equal(want[i], h.sink.frames[i]), "frame %d of %d bytes", i, len(want[i]))
	}
}
