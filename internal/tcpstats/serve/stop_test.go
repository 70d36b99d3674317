package serve

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/tcpstats"
)

// The end of the service does not wait for a client that takes nothing, whatever time its
// read has.
func TestEndUnderAClientThatTakesNothing(t *testing.T) {
	s := New(Config{Sources: func(tcpstats.SourceKind) tcpstats.Source { return &fake{n: 10_000 * tcpstats.Stretch} }, Clock: new(hand), Limits: Limits{MaxOpen: 2, MaxReaders: 2}})
	path := filepath.Join(t.TempDir(), "s")
	l, err := Listen(s, ListenConfig{Path: path})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	c, err := net.Dial("unix", path)
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Write([]byte("READ 1\nREAD 2\n"))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return s.Stats().Reading == 2 }, writeStall, time.Millisecond)
	time.Sleep(50 * time.Millisecond) // until the socket is full, most times
	cancel()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(writeStall / 2):
		t.Fatal("it waits for the client")
	}
	st := s.Stats()
	assert.Zero(t, st.Open)
	assert.Zero(t, st.Reading)
	assert.EqualValues(t, 2, st.Reads)
	assert.Equal(t, st.Visited, st.Emitted+st.Aborted, "the books")
}
