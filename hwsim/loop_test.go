package hwsim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A cable between two front ports has a link while both are up.
func TestLoopLink(t *testing.T) {
	h := newMiniHost(t).agent()
	a, b := h.c.Wire(tagF1), h.c.Wire(tagF2)
	unplug := a.Loop(b)
	carry := func() [2]bool {
		h.advance(3 * time.Second) // longer than any training
		return [2]bool{a.Carries(), b.Carries()}
	}
	const set, admin = 3, 0
	assert.Equal(t, [2]bool{false, false}, carry(), "both down")
	h.ask(set, admin, tagF1, 1)
	assert.Equal(t, [2]bool{false, false}, carry(), "nobody up at the other end")
	h.ask(set, admin, tagF2, 1)
	assert.Equal(t, [2]bool{true, true}, carry(), "both up")
	h.ask(set, admin, tagF1, 0)
	assert.False(t, b.Carries(), "at once")
	assert.Equal(t, [2]bool{false, false}, carry(), "one down")
	h.ask(set, admin, tagF1, 1)
	assert.Equal(t, [2]bool{true, true}, carry(), "up again")

	h.ask(set, admin, tagF2, 0)
	unplug()
	assert.Equal(t, [2]bool{true, false}, carry(), "unplugged: as a wire that nothing hangs at")
	h.ask(set, admin, tagF1, 0)
	h.ask(set, admin, tagF1, 1)
	h.ask(set, admin, tagF2, 1)
	assert.Equal(t, [2]bool{true, true}, carry())
}

// A reboot of the coprocessor takes both ports down and leaves the cable.
func TestLoopAfterReboot(t *testing.T) {
	h := newRingHost(t, 1024).program(2032)
	a, b := h.wire(tagF1), h.wire(tag1)
	a.Loop(b)
	h.advance(3 * time.Second)
	require.True(t, a.Carries())
	require.True(t, b.Carries())
	h.c.Reboot()
	h.c.mu.Lock()
	p, q := &h.c.ports[a.port.Index], &h.c.ports[b.port.Index]
	assert.False(t, p.cable || q.cable, "nobody is up at the other end")
	assert.Same(t, q, p.peer)
	assert.Same(t, p, q.peer)
	h.c.mu.Unlock()
	h.c.Kill()
	assert.False(t, a.Carries(), "a card that is gone")
}

// What leaves one port enters the other, whole and in order.
func TestLoopCarriesFrames(t *testing.T) {
	for _, mode := range []string{"stepped", "free"} {
		t.Run(mode, func(t *testing.T) {
			h := newRingHost(t, 1024).program(2032)
			defer h.wire(tagF1).Loop(h.wire(tagF2))()
			if mode == "free" {
				h.c.Start()
			}
			waitLink := func(ok func() bool) {
				if mode == "free" {
					waitFor(t, "a link", ok)
				} else {
					h.advance(3 * time.Second)
					require.True(t, ok())
				}
			}
			waitLink(func() bool { return h.wire(tagF1).Carries() && h.wire(tagF2).Carries() })
			const n = 100
			want := map[uint16][][]byte{}
			for i := range n {
				from, to := uint16(tagF1), uint16(tagF2)
				if i%2 == 1 {
					from, to = to, from
				}
				f := ipFrame(h.c, to, 60+i*14, 1, uint32(i))
				want[to] = append(want[to], f)
				h.send(from, f)
			}
			got := map[uint16][][]byte{}
			taken := 0
			take := func() bool {
				for q := range h.lists {
					for _, p := range h.take(q, n) {
						got[p.tag] = append(got[p.tag], p.frame)
						taken++
					}
				}
				return taken == n
			}
			if mode == "free" {
				waitFor(t, "every frame", take)
				waitFor(t, "quiet", h.c.Quiesced)
			} else {
				h.settled()
				take()
			}
			assert.Equal(t, want, got)
			assert.EqualValues(t, n/2, h.wire(tagF1).Stats().Passed)
			assert.EqualValues(t, n/2, h.wire(tagF2).Stats().Out)
			require.NoError(t, h.c.CheckConservation())
			h.clean()
		})
	}
}

// Without its cable a frame goes nowhere.
func TestLoopUnplugged(t *testing.T) {
	h := newRingHost(t, 1024).program(2032)
	h.wire(tagF1).Loop(h.wire(tagF2))()
	for _, c := range []struct{ from, to uint16 }{{tagF1, tagF2}, {tagF2, tagF1}} {
		h.send(c.from, ipFrame(h.c, c.to, 60, 1, 1))
		h.settled()
		assert.EqualValues(t, 1, h.wire(c.from).Stats().Out)
		assert.Zero(t, h.wire(c.to).Stats().In)
	}
}
