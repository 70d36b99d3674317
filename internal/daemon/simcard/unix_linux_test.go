package simcard_test

import (
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/board"
	"oxpd/internal/daemon/config"
	"oxpd/internal/daemon/simcard"
)

// TestUnixWire: a process at the end of a wire; the link follows it.
func TestUnixWire(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f1.sock")
	b, err := simcard.NewBoard(config.Sim{Timeline: config.TimelineCompressed, Wires: map[string]string{"F1": "unix:" + path}}, nil)
	require.NoError(t, err)
	b.Card.Start()
	b.Card.Provision()
	f1, err := board.Parse("F1")
	require.NoError(t, err)
	wire := b.Card.Wire(uint16(f1.Tag))
	assert.False(t, wire.Carries(), "nobody is connected")
	wait := func(what string, cond func() bool) {
		t.Helper()
		for deadline := time.Now().Add(hang); !cond(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("never: %s", what)
			}
		}
	}
	dial := func() net.Conn {
		t.Helper()
		c, err := net.Dial("unixpacket", path)
		require.NoError(t, err)
		require.NoError(t, c.SetDeadline(time.Now().Add(hang)))
		return c
	}
	for range 3 {
		c := dial()
		wait("link up", wire.Carries)
		before := wire.Stats().In
		for _, n := range []int{60, 9014} {
			_, err = c.Write(make([]byte, n))
			require.NoError(t, err)
		}
		wait("both frames", func() bool { return wire.Stats().In == before+2 })
		second := dial()
		require.NoError(t, c.Close())
		wait("the second to be connected", func() bool {
			_, _ = second.Write(make([]byte, 60))
			return wire.Stats().In > before+2
		})
		wait("link up again", wire.Carries)
		require.NoError(t, second.Close())
		wait("link down", func() bool { return !wire.Carries() })
	}
	require.NoError(t, b.Close())
	assert.NoFileExists(t, path)
}
