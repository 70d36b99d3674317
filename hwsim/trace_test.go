package hwsim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/rpc/msg"
)

// traced is a card with rings whose steps are kept.
func traced(t *testing.T, change ...func(*Options)) (*ringHost, *[]Step) {
	h := newRingHost(t, 1024, change...).program(2032)
	var steps []Step
	h.c.SetTracer(func(s Step) { steps = append(steps, s) })
	return h, &steps
}

// bothWays sends a frame of six buffers in and a small one out.
func bothWays(h *ringHost) {
	setMTU(h.t, h.c, tagF1, 9000)
	h.wire(tagF1).Send(ipFrame(h.c, tagF1, 9014, ringOf(h, 0), 1))
	h.send(tagF2, ipFrame(h.c, tagF2, 60, 1, 2))
	h.settled()
	h.take(0, 1)
}

func TestEveryUnitTells(t *testing.T) {
	h, steps := traced(t)
	fired := 0
	h.c.OnIRQ(16, func() { fired++ })
	h.st(0, rOutLevels, 10<<32|2) // ten ticks, as the count stays under the level
	bothWays(h)
	h.settled()
	h.advance(time.Millisecond)
	require.Equal(t, 1, fired)

	type key struct {
		u    Unit
		lane int
		what string
	}
	bytes, n, packet := map[key]int{}, map[key]int{}, map[key]uint64{}
	var order []string
	for _, s := range *steps {
		require.LessOrEqual(t, s.Start, s.End, "%+v", s)
		k := key{s.Unit, s.Lane, s.What}
		bytes[k] += s.Bytes
		n[k]++
		packet[k] = s.Packet
		if s.Packet == 1 {
			order = append(order, s.Unit.String()+", "+s.What)
		}
	}
	assert.Equal(t, 60, bytes[key{UnitMACOut, 9, "frame"}], "out by PortF2")
	assert.Equal(t, 9014, bytes[key{UnitMACIn, 8, "frame"}], "in by PortF1")
	assert.Equal(t, 64, bytes[key{UnitFetch, 0, "instruction"}])
	assert.Equal(t, 28+66+60, bytes[key{UnitRead, 0, "data"}])
	assert.Equal(t, 6, n[key{UnitWrite, 0, "buffer"}], "the buffers of a jumbo frame")
	assert.Equal(t, 74+9014, bytes[key{UnitWrite, 0, "buffer"}], "what the length word says")
	assert.Equal(t, 8, bytes[key{UnitWrite, 0, "length word"}])
	assert.Equal(t, 1, n[key{UnitTimer, 0, "armed"}])
	assert.Equal(t, 1, n[key{UnitTimer, 0, "fired"}])
	assert.Equal(t, 1, n[key{UnitMessage, 16, "message"}])
	assert.Equal(t, 2, n[key{UnitCount, 0, "count"}], "up, and down by the driver")
	assert.Equal(t, 1, n[key{UnitStore, 0, "IN_INSTR_DBELL"}])
	assert.Positive(t, n[key{UnitLoad, 0, "OUT_CNTS"}])
	assert.Positive(t, n[key{UnitDescriptor, 0, "credit"}])
	assert.EqualValues(t, 2, packet[key{UnitMACOut, 9, "frame"}], "one number from end to end")
	assert.EqualValues(t, 2, packet[key{UnitFetch, 0, "instruction"}])
	assert.Equal(t, []string{"MAC in, frame", "fast path to host, frame",
		"buffer write, buffer", "buffer write, buffer", "buffer write, buffer", "buffer write, buffer", "buffer write, buffer", "buffer write, buffer",
		"buffer write, length word"}, order, "the length word last")
	h.clean()
}

func TestDropsAreTold(t *testing.T) {
	h, steps := traced(t)
	h.wire(tagF1).Send(ipFrame(h.c, tagF1, 1600, 1, 1))
	h.wire(tag1).Send(ipFrame(h.c, tag1, 3000, 1, 1))
	h.send(tagNobody, ipFrame(h.c, tagF1, 60, 1, 1))
	h.settled()
	got := map[string]Unit{}
	for _, s := range *steps {
		got[s.What] = s.Unit
	}
	assert.Equal(t, UnitToHost, got[msg.CounterNames[msg.CntDropMTUExceeded]])
	assert.Equal(t, UnitSwitch, got["too long"])
	assert.Equal(t, UnitToWire, got[msg.CounterNames[msg.CntTXWireErr]])
}

// tagNobody is no port's.
const tagNobody = 0x0077

func TestSameSeedSameSteps(t *testing.T) {
	run := func() []Step {
		h, steps := traced(t)
		bothWays(h)
		return *steps
	}
	first := run()
	require.Greater(t, len(first), 20)
	assert.Equal(t, first, run())
}

func TestNobodyIsTold(t *testing.T) {
	h, steps := traced(t)
	h.c.SetTracer(nil)
	bothWays(h)
	assert.Empty(t, *steps)
}

func TestUnitNames(t *testing.T) {
	seen := map[string]bool{}
	for u := range Units {
		require.NotEmpty(t, u.String())
		require.False(t, seen[u.String()], u)
		seen[u.String()] = true
	}
	assert.Equal(t, "unit 200", Unit(200).String())
}
