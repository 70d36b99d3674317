package loadtest

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"oxpd/hwsim"
	"oxpd/hwsim/vfiouser"
	"oxpd/internal/daemon/client"
	"oxpd/internal/simdev/simtest"
	"oxpd/internal/sys"
	"oxpd/octep"
	"oxpd/octep/csr"
)

// showCard shows a card of this process at the service's socket.
func (s *service) showCard(timeline hwsim.Timeline) *hwsim.Card {
	s.t.Helper()
	mem, err := vfiouser.NewMemory()
	require.NoError(s.t, err)
	card := hwsim.New(hwsim.Options{Timeline: timeline, HostVectors: true, Windows: mem.Windows()})
	ln, err := sys.ListenUnix("unix", s.card)
	require.NoError(s.t, err)
	srv := vfiouser.New(ln, card, mem, slog.New(slog.NewTextHandler(io.Discard, nil)))
	served := make(chan error, 1)
	go func() { served <- srv.Serve() }()
	card.Start()
	s.t.Cleanup(func() {
		assert.NoError(s.t, srv.Close())
		assert.NoError(s.t, <-served)
		card.Close()
		assert.NoError(s.t, mem.Close())
	})
	return card
}

// The daemon is killed in the middle of the handshake, where a core of the coprocessor
// waits for it. The next one ends it, and everything comes up.
func TestKilledInTheHandshake(t *testing.T) {
	tl := hwsim.Compressed()
	tl.Poll, tl.Spin = 500*time.Millisecond, 500*time.Millisecond
	for _, tc := range []struct {
		name   string
		stores int    // of the first process to the register
		until  uint64 // what the register shows when the next one comes; 0: at once
	}{
		{"offered, and asked when it is dead", 1, csr.GetHostInfo},
		{"answered, and there is a reply when it is dead", 2, csr.HostInfoReceived<<csr.HostInfoShift | csr.ClocksPerUS},
		{"completed", 3, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := prepareService(t)
			card := s.showCard(tl)
			s.start()
			s.wait("the handshake", func() bool { return len(card.HandshakeWrites()) >= tc.stores })
			require.Error(t, s.end(unix.SIGKILL))
			// On a busy machine it may have come further, which is as well.
			if tc.until != 0 && len(card.HandshakeWrites()) == tc.stores {
				s.wait("the target", func() bool { return card.Load(0, uint64(csr.SLIScratch), 8) == tc.until })
			}
			s.start()
			s.awaitRunning()
			answers := 0
			for _, w := range card.HandshakeWrites() {
				if w.Value == octep.InfoWord() {
					answers++
				}
			}
			assert.Equal(t, 1, answers)
			simtest.Clean(t, card)
		})
	}
}

// Never possible: a handshake abandoned on SIGTERM. The process is ended after each of
// its stores to the register. Either the exchange was withdrawn before the target saw it
// or it is finished: no core of the coprocessor is left waiting.
//
//oxpd:fault F3 behaviour
func TestNeverAHandshakeAbandonedOnSIGTERM(t *testing.T) {
	tl := hwsim.Compressed()
	tl.Poll, tl.Spin = 300*time.Millisecond, 300*time.Millisecond
	for _, stores := range []int{1, 2, 3} {
		t.Run(fmt.Sprintf("after store %d", stores), func(t *testing.T) {
			s := prepareService(t)
			card := s.showCard(tl)
			s.start()
			s.wait("the handshake", func() bool { return len(card.HandshakeWrites()) >= stores })
			require.NoError(t, s.end(unix.SIGTERM))
			w := card.HandshakeWrites()
			if last := w[len(w)-1].Value; last != 0 {
				assert.EqualValues(t, csr.HandshakeCompleted, last, "finished, or withdrawn")
			}
			s.wait("the target", func() bool { return card.Load(0, uint64(csr.SLIScratch), 8) <= 1 })
			simtest.Clean(t, card)
		})
	}
}

// An interface that is set down, or up, while no oxpd runs: the next one finds another
// state than the last one saw, and that is the request that it would have been.
func TestInterfaceIsSetWhileNobodyWatches(t *testing.T) {
	s := prepareService(t)
	card := s.showCard(hwsim.Compressed())
	p := killPorts()[1]
	raised := func(want bool) func() bool {
		return func() bool { return card.AgentPort(p.Tag).Up == want }
	}
	s.start()
	s.awaitRunning()
	require.NoError(t, s.host.SetUp(p.Name, true))
	s.wait("the interface is seen to be up", func() bool {
		st, err := s.client.Ports(context.Background())
		return err == nil && st.Ports[p.Index].OperState == client.OperUp
	})
	for _, up := range []bool{false, true, false} {
		require.Error(t, s.end(unix.SIGKILL))
		require.True(t, raised(!up)(), "the card has it as it was")
		require.NoError(t, s.host.SetUp(p.Name, up))
		s.start()
		s.awaitRunning()
		s.wait(fmt.Sprintf("the port follows its interface: up %v", up), raised(up))
		s.wait("it is written down", func() bool {
			st, err := s.client.Ports(context.Background())
			return err == nil && st.Ports[p.Index].Admin == map[bool]string{true: "UP", false: "DOWN"}[up]
		})
	}
	simtest.Clean(t, card)
}
