package octep

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/octep/csr"
)

// What an earlier process on the same rings wrote down, and what the register shows.
func TestHandshakeOfAnEarlierProcess(t *testing.T) {
	none := Progress{}
	offering, answering := Progress{State: HandshakeOffering}, Progress{State: HandshakeAnswering}
	completing := Progress{HandshakeCompleting, 750}
	for _, tc := range []struct {
		name  string
		from  Progress
		value uint64
		phase int // of the target, which waits when it is 1 or 2
		want  uint64
		err   error
		words []uint64
	}{
		{"nothing begun: offers", none, 0, 0, 800, nil, []uint64{hostLoaded, infoWord, completed}},
		{"nothing begun, and somebody is asked: in flight", none, getInfo, 1, 0, ErrHandshakeInFlight, nil},
		{"nothing begun, and somebody has a reply: in flight", none, reply800, 2, 0, ErrHandshakeInFlight, nil},
		{"nothing begun, and there was one: done", none, 1, 3, 0, ErrHandshakeDone, nil},
		{"about to offer, or withdrawn: offers", offering, 0, 0, 800, nil, []uint64{hostLoaded, infoWord, completed}},
		{"offered: waits on", offering, hostLoaded, 0, 800, nil, []uint64{infoWord, completed}},
		{"offered, asked: answers", offering, getInfo, 1, 800, nil, []uint64{infoWord, completed}},
		{"offered, and the withdrawal was taken for an answer", offering, reply800, 2, 0, ErrHandshakeSpoiled, []uint64{completed}},
		{"offered, and somebody else completed", offering, 1, 3, 0, ErrHandshakeDone, nil},
		{"about to answer", answering, getInfo, 1, 800, nil, []uint64{infoWord, completed}},
		{"answered, and not yet taken", answering, infoWord, 1, 800, nil, []uint64{completed}},
		{"answered, and there is a reply", answering, reply800, 2, 800, nil, []uint64{completed}},
		{"answered, and given up: the clocks are not known", answering, 0, 3, 0, ErrHandshakeStuck, nil},
		{"answered, and released: the same", answering, completed, 2, 0, ErrHandshakeDone, nil},
		{"answered, and the ports are started", answering, 1, 3, 0, ErrHandshakeDone, nil},
		{"about to complete", completing, reply800, 2, 750, nil, []uint64{completed}},
		{"completed, and not yet taken", completing, completed, 2, 750, nil, nil},
		{"over", completing, 0, 3, 750, nil, nil},
		{"over, and the ports are started", completing, 1, 3, 750, nil, nil},
		{"over, and somebody offers", completing, hostLoaded, 0, 0, ErrHandshakeStuck, nil},
		{"over, and somebody is asked", completing, getInfo, 1, 0, ErrHandshakeInFlight, nil},
		{"over, and another driver has the register", completing, 0x11223344, 3, 0, ErrHandshakeForeign, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, 0)
			b.d.setHandshakeWord(tc.value)
			b.target.phase = tc.phase
			b.target.wake() // it may not have seen what was written last
			var noted []Progress
			b.hs.Resume(tc.from, func(p Progress) {
				noted = append(noted, p)
				next := map[HandshakeState]uint64{HandshakeOffering: hostLoaded, HandshakeAnswering: infoWord, HandshakeCompleting: completed}[p.State]
				assert.NotContains(t, b.words(), next, "it is written down first")
			})
			clocks, err := b.hs.Run(context.Background())
			assert.Equal(t, tc.words, b.words())
			if tc.err != nil {
				require.ErrorIs(t, err, tc.err)
				assert.Empty(t, noted)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, tc.want, clocks)
			assert.False(t, b.target.spinning())
			if tc.from != completing {
				assert.Equal(t, Progress{HandshakeCompleting, tc.want}, noted[len(noted)-1])
			}
		})
	}
	t.Run("no rate is told: the board's is written down", func(t *testing.T) {
		b := newBench(t, 0)
		b.target.reply = csr.HostInfoReceived << csr.HostInfoShift
		var last Progress
		b.hs.Resume(Progress{}, func(p Progress) { last = p })
		clocks, err := b.hs.Run(context.Background())
		require.NoError(t, err)
		assert.EqualValues(t, csr.ClocksPerUS, clocks)
		assert.Equal(t, Progress{HandshakeCompleting, csr.ClocksPerUS}, last)
	})
}
