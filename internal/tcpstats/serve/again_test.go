package serve

import (
	"context"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/tcpstats"
)

// TestIDIsFreeWithItsEnd: nothing of another read of an id comes before the end of the one
// that had it, and after the end the id is free at once.
func TestIDIsFreeWithItsEnd(t *testing.T) {
	g := newGate(1)
	s := New(Config{Sources: func(tcpstats.SourceKind) tcpstats.Source { return &g.fake }, Clock: new(hand)})
	o, err := s.Open()
	require.NoError(t, err)
	defer o.Close()
	require.NoError(t, o.SetFilter("local_port=2")) // no records
	ours, theirs := pair(t)
	c := newConn(ours, o)
	ctx := context.Background()
	require.True(t, c.line(ctx, "READ 1"))
	g.wait(t, 1)

	c.write.Lock() // another message is on its way
	close(g.open)
	for deadline := time.Now().Add(hang); s.Stats().Reads == 0; time.Sleep(time.Millisecond) {
		require.True(t, time.Now().Before(deadline), "the read does not end")
	}
	time.Sleep(100 * time.Millisecond) // until its end waits, most times
	c.mu.Lock()
	_, there := c.reads[1]
	c.mu.Unlock()
	c.write.Unlock()
	assert.True(t, there, "it is free before its end was sent")

	next := func() (m tcpstats.Message) {
		head := make([]byte, tcpstats.MessageHeader)
		_, err := io.ReadFull(theirs, head)
		require.NoError(t, err)
		require.NoError(t, m.Decode(head))
		_, err = io.ReadFull(theirs, make([]byte, m.Bytes))
		require.NoError(t, err)
		return m
	}
	assert.EqualValues(t, tcpstats.MessageReply, next().Kind)
	for n := range uint64(100) {
		assert.EqualValues(t, tcpstats.MessageEnd, next().Kind)
		require.True(t, c.line(ctx, "READ 1"))
		assert.EqualValues(t, tcpstats.MessageReply, next().Kind)
		for deadline := time.Now().Add(hang); s.Stats().Reads < n+2; time.Sleep(10 * time.Microsecond) {
			require.True(t, time.Now().Before(deadline), "read %d was refused after the end of the one before", n)
		}
	}
	c.under.Wait()
}

// steps is a clock of which no two looks are equal. Every other one keeps its goroutine from
// going on, so that the next overtakes it.
type steps struct{ n atomic.Int64 }

func (s *steps) Now() time.Duration {
	n := s.n.Add(1)
	if n%2 == 1 {
		for range 4 {
			runtime.Gosched()
		}
	}
	return time.Duration(n)
}

// TestReadsBeginAtOnce: without an interval none of several that begin at once is too soon.
func TestReadsBeginAtOnce(t *testing.T) {
	s := New(Config{Sources: func(tcpstats.SourceKind) tcpstats.Source { return &fake{n: 1} }, Clock: new(steps), Limits: Limits{MaxOpen: 1, MaxReaders: 8}})
	o, err := s.Open()
	require.NoError(t, err)
	defer o.Close()
	var all sync.WaitGroup
	for range 8 {
		all.Add(1)
		go func() {
			defer all.Done()
			buf := make([]byte, 0, tcpstats.ChunkBytes)
			for range 500 {
				r, err := o.Begin()
				if !assert.NoError(t, err) {
					return
				}
				r.Run(context.Background(), buf, func([]byte, int) error { return nil })
			}
		}()
	}
	all.Wait()
	assert.Zero(t, s.Stats().RefusedRead)
	assert.Zero(t, s.Stats().Reading)
}
