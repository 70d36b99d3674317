package daemon

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/hwsim"
	"oxpd/internal/daemon/client"
	"oxpd/octep"
	"oxpd/octep/csr"
)

// sharedCard is a card that outlives the daemons on it.
func sharedCard(t *testing.T, tl hwsim.Timeline) *hwsim.Card {
	t.Helper()
	c := hwsim.New(hwsim.Options{Timeline: tl})
	c.Start()
	t.Cleanup(c.Close)
	return c
}

// pour sends frames into a front port until the test ends, slowly: the credit that
// a stopped daemon leaves behind lasts for a second.
func pour(t *testing.T, c *hwsim.Card, tag uint16) {
	t.Helper()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		w, f := c.Wire(tag), frameOf(1514)
		for {
			select {
			case <-stop:
				return
			default:
				w.Send(f)
				time.Sleep(500 * time.Microsecond)
			}
		}
	}()
	t.Cleanup(func() { close(stop); wg.Wait() })
}

// refused starts a daemon and expects it to end because of an earlier run, with
// nothing written to the card.
func refused(t *testing.T, card *hwsim.Card) {
	t.Helper()
	command := card.ConfigRead(csr.CfgCommand, 2)
	card.ResetReports()
	card.ResetAccesses()
	r := start(t, rigOptions{shared: card})
	r.faulty = true // what the card tried before
	err := r.end()
	assert.ErrorIs(t, err, octep.ErrEarlierRun)
	assert.ErrorContains(t, err, "stage bus-master: ")
	assert.Equal(t, command, card.ConfigRead(csr.CfgCommand, 2), "the command register is as it was found")
	for name, n := range card.Accesses() {
		assert.Zero(t, n.Writes, name)
	}
	for _, x := range card.Reports() {
		assert.Equal(t, hwsim.ReportBusMasterOff, x.Name, "%+v", x)
	}
	var h interface{ Hint() string }
	require.ErrorAs(t, err, &h)
	assert.Contains(t, h.Hint(), "reboot the coprocessor")
}

func TestSecondStartOnOneCoprocessorBoot(t *testing.T) {
	t.Parallel()
	slow := hwsim.Compressed()
	slow.FastPath = time.Hour
	for _, tc := range []struct {
		name     string
		timeline hwsim.Timeline
		until    stage // stop when it begins; stages: when it runs
		teardown bool
	}{
		{name: "after SIGTERM", timeline: hwsim.Compressed(), until: stages},
		{name: "after a teardown", timeline: hwsim.Compressed(), until: stages, teardown: true},
		{name: "before the handshake", timeline: slow, until: stageHandshake},
		{name: "before the handshake, after a teardown", timeline: slow, until: stageHandshake, teardown: true},
		{name: "before the fast path is up", timeline: slow, until: stageRPC},
		{name: "before the fast path is up, after a teardown", timeline: slow, until: stageRPC, teardown: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			card := sharedCard(t, tc.timeline)
			pour(t, card, 1)
			first := start(t, rigOptions{shared: card, stage: func(s stage, r *rig) {
				if s == tc.until {
					r.d.teardown.Store(tc.teardown)
					r.cancel()
				}
			}})
			first.faulty = true // frames still arrive when bus mastering is off
			if tc.until == stages {
				first.running().mustIP("link", "set", "oxp9", "up")
				first.wait("traffic", func() bool {
					s, err := first.client.Stats(context.Background(), "oxp9")
					return err == nil && s.Ports[0].Counters["rx_packets"] > 100
				})
				first.d.teardown.Store(tc.teardown)
				first.cancel()
			}
			require.NoError(t, first.end())
			for _, x := range card.Reports() {
				require.Equal(t, hwsim.ReportBusMasterOff, x.Name, "%+v", x)
			}
			refused(t, card)
			card.ConfigWrite(csr.CfgCommand, 2, card.ConfigRead(csr.CfgCommand, 2)&^csr.CfgCommandMemory) // as after a start of the host
			refused(t, card)
			if tc.timeline == slow {
				return
			}
			card.Reboot()
			card.ResetReports()
			r := start(t, rigOptions{shared: card}).running()
			r.faulty = true
			r.mustIP("link", "set", "oxp9", "up")
			r.wait("traffic", func() bool {
				s, err := r.client.Stats(context.Background(), "oxp9")
				return err == nil && s.Ports[0].Counters["rx_packets"] > 100
			})
			assert.Empty(t, card.Reports())
		})
	}
}

// Somebody finished a handshake while this daemon programmed its rings.
func TestHandshakeOfSomebodyElse(t *testing.T) {
	t.Parallel()
	r := start(t, rigOptions{stage: func(s stage, r *rig) {
		if s == stageHandshake {
			r.card.Provision()
		}
	}})
	err := r.end()
	require.ErrorIs(t, err, octep.ErrEarlierRun)
	assert.ErrorContains(t, err, "stage handshake: ")
	assert.Empty(t, r.card.HandshakeWrites(), "the register is left alone")
	assert.Equal(t, client.StageFailed, r.d.track.snapshot()[stageHandshake].State)
}
