package clock

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRealNeverDecreases(t *testing.T) {
	c := NewReal()
	last := c.Now()
	for range 1000 {
		now := c.Now()
		require.GreaterOrEqual(t, now, last)
		last = now
	}
}

func TestRealSleep(t *testing.T) {
	c := NewReal()
	before := c.Now()
	require.NoError(t, c.Sleep(context.Background(), 5*time.Millisecond))
	assert.GreaterOrEqual(t, c.Now()-before, 5*time.Millisecond)
	assert.NoError(t, c.Sleep(context.Background(), 0))
	assert.NoError(t, c.Sleep(context.Background(), -time.Hour))
}

func TestRealSleepEndsWithContext(t *testing.T) {
	c := NewReal()
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(5*time.Millisecond, cancel)
	require.ErrorIs(t, c.Sleep(ctx, time.Hour), context.Canceled)
	for _, d := range []time.Duration{time.Hour, 0, -1} {
		assert.ErrorIs(t, c.Sleep(ctx, d), context.Canceled, "an ended context is always reported")
	}
}
