package loadtest

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/internal/netlab"
	"oxpd/internal/simdev/simtest"
)

// TestCardLostUnderLoad: connections that were open when the card was lost, twice, go
// on when it is back, byte for byte, and no frame of the host is out of the books.
func TestCardLostUnderLoad(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	f1, p1 := board.ByIndex(8), board.ByIndex(0)
	l.setMTU(f1, board.MaxMTU)
	const losses, chunk = 2, 256 << 10
	var streams []*netlab.Stream
	for _, p := range []board.Port{f1, p1} {
		for _, reverse := range []bool{false, true} {
			s, err := netlab.Connect(l.ctx, l.host, l.far, farAddr(p), reverse)
			require.NoError(t, err)
			defer s.Close()
			streams = append(streams, s)
		}
	}
	var wg sync.WaitGroup
	var moved atomic.Int64
	var enough atomic.Bool
	sending, giveUp := context.WithCancel(l.ctx)
	defer func() { giveUp(); wg.Wait() }()
	for _, s := range streams {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for !enough.Load() {
				m, err := s.Send(sending, chunk)
				moved.Add(m.Bytes)
				if !assert.NoError(t, err) {
					return
				}
			}
		}()
	}
	state := func() client.State {
		s, err := l.client.Status(l.ctx)
		require.NoError(t, err)
		return s.State
	}
	carried := func() uint64 {
		s := l.stats()
		return s.Device["rx_done"] + s.Device["tx_posted"]
	}
	for i := range losses {
		before := carried()
		l.wait("load", func() bool { return carried() > before+500 })
		l.card.Kill()
		l.wait("the loss to be noticed", func() bool { return state() == client.StateGone })
		l.card.Reboot()
		l.wait("running", func() bool { return state() == client.StateRunning })
		s, err := l.client.Status(l.ctx)
		require.NoError(t, err)
		assert.EqualValues(t, i+1, s.Device.Lost)
	}
	before := carried()
	l.wait("the connections to go on", func() bool { return carried() > before+500 })
	enough.Store(true)
	defer time.AfterFunc(hang, giveUp).Stop() // of a kernel in a long pause
	wg.Wait()
	assert.Positive(t, moved.Load())
	r := l.rest()
	l.hostBooks(&r)
	for name, ns := range map[string]*netlab.NS{"host": l.host, "far": l.far} {
		assert.Zero(t, checksumErrors(t, ns), "checksum errors of the %s kernel", name)
	}
	simtest.Clean(t, l.card)
	assert.Equal(t, losses, strings.Count(l.log.String(), "card is lost and waited for"), "said once each time")
	m, err := l.client.MTU(l.ctx, f1.Name)
	require.NoError(t, err)
	assert.Equal(t, board.MaxMTU, m.Effective)
	assert.NoError(t, l.stop()) // the card's own books began anew with it
	t.Logf("%d MB of TCP, %d frames unknown", moved.Load()>>20, r.stats.Device["tx_unknown"])
}
