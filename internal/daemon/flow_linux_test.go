package daemon

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/board"
	"oxpd/rpc/msg"
)

func TestFlow(t *testing.T) {
	// Looks come flowPause apart, with every port up unless part is set.
	type look struct {
		fromKN, posted, unbound uint64
		part                    bool
	}
	long := make([]look, 62) // each finds one more frame dropped, but for the first
	for i := range long {
		long[i].unbound = uint64(i)
	}
	const deaf, lost = "no frame leaves", "frames from the ports are lost"
	for _, tc := range []struct {
		name   string
		looks  []look
		warns  string
		doubts int
	}{
		{"nothing was seen", nil, "", 0},
		{"at rest", []look{{}, {}, {}, {}}, "", 0},
		{"at rest after traffic", []look{{fromKN: 9, posted: 9}, {fromKN: 9, posted: 9}, {fromKN: 9, posted: 9}}, "", 0},
		{"frames, each counted", []look{{}, {fromKN: 50, posted: 60}, {fromKN: 110, posted: 120}}, "", 0},
		{"given since the last look only", []look{{}, {posted: 500}}, "", 0},
		{"given a look ago, and none counted", []look{{}, {posted: 4}, {posted: 4}}, deaf, 0},
		{"one frame too few", []look{{}, {posted: 3}, {posted: 3}}, "", 0},
		{"few at a time", []look{{}, {posted: 2}, {posted: 4}, {posted: 4}}, deaf, 0},
		{"given before the first look", []look{{posted: 100}, {posted: 100}, {posted: 100}}, "", 0},
		{"it stays so", []look{{fromKN: 7}, {fromKN: 7, posted: 4}, {fromKN: 7, posted: 4}, {fromKN: 7, posted: 4}}, deaf, 0},
		{"and goes by", []look{{fromKN: 7}, {fromKN: 7, posted: 4}, {fromKN: 7, posted: 4}, {fromKN: 8, posted: 5}}, "", 0},
		{"the card's counters begin anew", []look{{fromKN: 7}, {fromKN: 7, posted: 4}, {posted: 4}, {posted: 4}}, "", 0},
		{"a frame without a binding", []look{{}, {unbound: 1}}, "", 1},
		{"and none after the tags were bound anew", []look{{}, {unbound: 1}, {unbound: 1}}, "", 1},
		{"and more in spite of that", []look{{}, {unbound: 1}, {unbound: 2}}, lost, 2},
		{"for long", long, lost, 4},
		{"dropped before the first look", []look{{unbound: 100}, {unbound: 100}}, "", 0},
		{"a port waits, and its tag is not bound", []look{{part: true}, {unbound: 9, part: true}, {unbound: 12}}, "", 0},
		{"both", []look{{}, {posted: 9, unbound: 1}, {posted: 9, unbound: 2}}, deaf + lost, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var f flow
			doubts := 0
			for i, l := range tc.looks {
				if f.look(flowLook{time.Duration(i) * flowPause, l.fromKN, l.unbound, l.posted, !l.part}) {
					doubts++
				}
			}
			all := strings.Join(f.warnings(), "\n")
			assert.Equal(t, strings.Contains(tc.warns, deaf), strings.Contains(all, deaf), all)
			assert.Equal(t, strings.Contains(tc.warns, lost), strings.Contains(all, lost), all)
			assert.Equal(t, tc.doubts, doubts)
		})
	}
}

// A fast path that stands still answers every command: what a host sees is that it
// counts none of the frames that it was given.
//
//oxpd:fault F28 behaviour
func TestFastPathThatStandsStillIsNamed(t *testing.T) {
	t.Parallel()
	r := start(t, rigOptions{}).running()
	r.wait("every port", func() bool { return r.status().PortsUp == board.Ports })
	r.mustIP("link", "set", "oxp9", "up")
	r.carrier("oxp9", true)
	warned := func() bool {
		return strings.Contains(strings.Join(r.status().Warnings, "\n"), "no frame leaves by any port")
	}
	sends := func() bool { r.send("oxp9", frameOf(60)); return warned() }

	r.card.Faults(func(f *hwsim.Faults) { f.FastPathDead = true })
	r.wait("a warning", sends)
	assert.Equal(t, board.Ports, r.status().PortsUp, "the card says so")
	r.card.Faults(func(f *hwsim.Faults) { f.FastPathDead = false })
	r.wait("and none once it moves", func() bool { return !sends() })
}

// A tag that was unbound cannot be read back, and drops its port's frames. They are
// counted, and the tags bound anew.
func TestUnboundTagsAreBoundAgain(t *testing.T) {
	t.Parallel()
	r := start(t, rigOptions{}).running()
	r.wait("every port", func() bool { return r.status().PortsUp == board.Ports })
	r.mustIP("link", "set", "oxp9", "up")
	r.carrier("oxp9", true)
	r.wait("a look at the card's counters", func() bool {
		r.d.mu.Lock()
		defer r.d.mu.Unlock()
		return r.d.flow.last.whole
	})
	r.inject("unbind-tags")
	r.wait("the tags to be gone", func() bool { _, bound := r.card.PPort(uint16(board.ByIndex(8).Tag)); return !bound })
	frame := between(1, 9, 60)
	mac := r.lif("oxp9").MAC
	copy(frame, mac[:])
	r.wait("frames to pass again", func() bool {
		r.wire("oxp9").Send(frame)
		return r.rxPackets("oxp9") > 0
	})
	r.wait("every tag", func() bool {
		for _, p := range board.All() {
			if iface, bound := r.card.PPort(uint16(p.Tag)); !bound || iface != p.Iface {
				return false
			}
		}
		return true
	})
	assert.NotZero(t, r.card.Counter(msg.CntDropLIFIndexInvalid))
	r.wait("no warning to be left", func() bool { return len(r.status().Warnings) == 0 })
}

// inject has the card do something at once.
func (r *rig) inject(text string) {
	r.t.Helper()
	i, err := hwsim.ParseInjection(text)
	require.NoError(r.t, err)
	require.NoError(r.t, r.card.Inject(i))
}
