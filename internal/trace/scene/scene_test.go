package scene

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/board"
)

var bg = context.Background()

// play runs a scene and keeps its steps.
func play(t *testing.T, name string, seed int64) ([]hwsim.Step, Result) {
	t.Helper()
	s, err := Find(name)
	require.NoError(t, err)
	var steps []hwsim.Step
	r, err := s.Run(bg, seed, func(s hwsim.Step) { steps = append(steps, s) })
	require.NoError(t, err)
	require.EqualValues(t, len(steps), r.Steps)
	return steps, r
}

func file(t *testing.T, name string, seed int64) []byte {
	t.Helper()
	s, err := Find(name)
	require.NoError(t, err)
	var b bytes.Buffer
	_, err = s.Trace(bg, &b, seed)
	require.NoError(t, err)
	return b.Bytes()
}

// pick returns the steps of a unit that did something.
func pick(steps []hwsim.Step, u hwsim.Unit, what string) (found []hwsim.Step) {
	for _, s := range steps {
		if s.Unit == u && s.What == what {
			found = append(found, s)
		}
	}
	return found
}

// The golden trace is written by `make generate`, as every page that follows from
// the source is. A difference says that a unit takes another time than before:
// look whether that was meant.
func TestGoldenTrace(t *testing.T) {
	want, err := os.ReadFile("testdata/" + Golden + ".json")
	require.NoError(t, err)
	is, was := strings.Split(string(file(t, Golden, GoldenSeed)), "\n"), strings.Split(string(want), "\n")
	for i := range min(len(is), len(was)) {
		require.Equal(t, was[i], is[i], "line %d: if that was meant to change, make generate", i+1)
	}
	require.Len(t, is, len(was), "if that was meant to change, make generate")
}

func TestSameSeedSameBytes(t *testing.T) {
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			first := file(t, name, 7)
			require.Greater(t, len(first), 3000)
			assert.True(t, bytes.Equal(first, file(t, name, 7)))
		})
	}
}

func TestAnotherSeedIsAnotherTrace(t *testing.T) {
	steps, _ := play(t, "ports", 1)
	other, _ := play(t, "ports", 2)
	assert.NotEqual(t, steps, other)
}

func TestJumboTakesSixBuffers(t *testing.T) {
	steps, r := play(t, "jumbo", 1)
	require.Len(t, r.Received, 1)
	buffers := pick(steps, hwsim.UnitWrite, hwsim.WhatBuffer)
	length := pick(steps, hwsim.UnitWrite, hwsim.WhatLength)
	count := pick(steps, hwsim.UnitCount, hwsim.WhatCount)
	require.Len(t, buffers, 6)
	require.Len(t, length, 1)
	require.Len(t, count, 2, "up, and down by the driver")
	for i, b := range buffers {
		assert.LessOrEqual(t, b.End, length[0].End, "buffer %d is written before the length word", i)
		if i > 0 {
			assert.LessOrEqual(t, buffers[i-1].Start, b.Start, "in order")
		}
	}
	assert.Equal(t, buffers[0].Addr, length[0].Addr+8, "in front of the first buffer")
	assert.LessOrEqual(t, length[0].End, count[0].Start)
	assert.EqualValues(t, 1, count[0].Value, "a packet is not a buffer")
	message := pick(steps, hwsim.UnitMessage, "message")
	require.Len(t, message, 1)
	assert.LessOrEqual(t, count[0].Start, message[0].End)
}

func TestBurstRunsOutOfCredit(t *testing.T) {
	steps, r := play(t, "burst", 1)
	assert.Len(t, r.Received, 1024)
	low := int64(1 << 30)
	for _, s := range pick(steps, hwsim.UnitDescriptor, hwsim.WhatCredit) {
		low = min(low, s.Value)
	}
	assert.GreaterOrEqual(t, low, int64(1008), "where the doorbell rests")
	assert.LessOrEqual(t, low, int64(1023))
	credit := pick(steps, hwsim.UnitDescriptor, hwsim.WhatCredit)
	assert.Greater(t, credit[len(credit)-1].Value, int64(2000), "and comes back")
}

func TestPortsAreAllSeen(t *testing.T) {
	steps, r := play(t, "ports", 3)
	assert.Len(t, r.Received, 36)
	assert.Len(t, r.Left, 36)
	in, out := map[int]int{}, map[int]int{}
	for _, s := range steps {
		switch s.Unit {
		case hwsim.UnitMACIn:
			in[s.Lane]++
		case hwsim.UnitMACOut:
			out[s.Lane]++
		}
	}
	assert.Len(t, in, board.Ports)
	assert.Len(t, out, board.Ports)
}

func TestTimerFiresBelowTheLevel(t *testing.T) {
	steps, _ := play(t, "timer", 1)
	assert.NotEmpty(t, pick(steps, hwsim.UnitTimer, "armed"))
	assert.Len(t, pick(steps, hwsim.UnitTimer, "fired"), 1)
	assert.Len(t, pick(steps, hwsim.UnitMessage, "message"), 2)
}

func TestLateTailIsWaitedFor(t *testing.T) {
	steps, r := play(t, "tail", 1)
	require.Len(t, r.Received, 1)
	length, count := pick(steps, hwsim.UnitWrite, hwsim.WhatLength), pick(steps, hwsim.UnitCount, hwsim.WhatCount)
	require.Len(t, length, 1)
	require.Len(t, count, 2)
	assert.Greater(t, count[0].Start, length[0].End+15*800, "what the fault does")
	looked := 0
	for _, s := range pick(steps, hwsim.UnitLoad, "OUT_CNTS") {
		if s.Start > length[0].End && s.End < count[0].Start {
			looked++
		}
	}
	assert.Positive(t, looked, "the driver has looked, and taken nothing")
}

func TestMTUIsTheDropsName(t *testing.T) {
	steps, r := play(t, "mtu", 1)
	assert.Len(t, r.Received, 1)
	assert.Len(t, pick(steps, hwsim.UnitToHost, "FROM_WIRE_DROP_MTU_EXCEEDED"), 1)
	assert.Len(t, pick(steps, hwsim.UnitSwitch, "too long"), 1)
}

func TestStepsCountFromTheScenesBegin(t *testing.T) {
	steps, r := play(t, "small", 1)
	assert.Less(t, steps[0].Start, uint64(800))
	for _, s := range steps {
		require.LessOrEqual(t, s.Start, s.End)
		require.LessOrEqual(t, s.Start, uint64(r.Elapsed.Microseconds()+1)*800)
	}
}

func TestUnknownSceneNamesTheKnown(t *testing.T) {
	_, err := Find("jumb")
	var unknown *UnknownError
	require.ErrorAs(t, err, &unknown)
	for _, n := range Names() {
		assert.ErrorContains(t, err, n)
	}
}

func TestCancelledSceneEnds(t *testing.T) {
	s, err := Find("small")
	require.NoError(t, err)
	for name, after := range map[string]int{"before the first step": 0, "after a step": 1} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(bg)
			defer cancel()
			if after == 0 {
				cancel()
			}
			_, err := s.Run(ctx, 1, func(hwsim.Step) { cancel() })
			require.ErrorIs(t, err, context.Canceled)
		})
	}
}

func TestDeafWriterIsTold(t *testing.T) {
	s, err := Find("small")
	require.NoError(t, err)
	_, err = s.Trace(bg, deaf{}, 1)
	require.ErrorIs(t, err, os.ErrClosed)
}

type deaf struct{}

func (deaf) Write([]byte) (int, error) { return 0, os.ErrClosed }
