package daemon

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestGate(t *testing.T) {
	ctx := context.Background()
	t.Run("nobody inside: closes at once, twice", func(t *testing.T) {
		g := newGate()
		_, leave, ok := g.enter(ctx)
		require.True(t, ok)
		leave()
		assert.True(t, g.close(hang))
		assert.True(t, g.close(hang))
		_, _, ok = g.enter(ctx)
		assert.False(t, ok, "closed to newcomers")
	})
	t.Run("waits for whoever is inside, and tells him", func(t *testing.T) {
		g := newGate()
		visit, leave, ok := g.enter(ctx)
		require.True(t, ok)
		closed := make(chan bool)
		go func() { closed <- g.close(hang) }()
		<-visit.Done()
		_, _, ok = g.enter(ctx)
		assert.False(t, ok)
		select {
		case <-closed:
			t.Error("closed with somebody inside")
		case <-time.After(20 * time.Millisecond):
		}
		leave()
		assert.True(t, <-closed)
	})
	t.Run("not for ever", func(t *testing.T) {
		g := newGate()
		_, leave, _ := g.enter(ctx)
		assert.False(t, g.close(time.Millisecond))
		leave()
		assert.True(t, g.close(hang), "he has come back")
	})
	t.Run("a visit ends with its own context too", func(t *testing.T) {
		g := newGate()
		own, cancel := context.WithCancel(ctx)
		visit, leave, _ := g.enter(own)
		defer leave()
		cancel()
		<-visit.Done()
		assert.NoError(t, g.ending.Err())
	})
	t.Run("many", func(t *testing.T) {
		g := newGate()
		var inside sync.WaitGroup
		var after, mu = 0, sync.Mutex{}
		for range 50 {
			inside.Add(1)
			go func() {
				defer inside.Done()
				for {
					_, leave, ok := g.enter(ctx)
					if !ok {
						return
					}
					mu.Lock()
					after++
					mu.Unlock()
					leave()
				}
			}()
		}
		time.Sleep(5 * time.Millisecond)
		require.True(t, g.close(hang))
		mu.Lock()
		n := after
		mu.Unlock()
		inside.Wait()
		assert.Equal(t, n, after, "nobody was inside once it was closed")
	})
}
