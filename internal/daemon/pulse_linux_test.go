package daemon

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPulse(t *testing.T) {
	p := &pulse{}
	assert.True(t, p.all(), "no worker, as in a bring-up")
	a, b := p.join(), p.join()
	assert.True(t, p.all(), "they have just begun")
	assert.False(t, p.all(), "nobody has beaten since")
	a()
	assert.False(t, p.all(), "the second stands still")
	b()
	assert.False(t, p.all(), "the first stands still")
	a()
	b()
	assert.True(t, p.all())
}

func TestWatchdog(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	told, asked, answer := make(chan string), make(chan struct{}), make(chan bool)
	w := &watchdog{limit: 3 * time.Millisecond, log: noLog(), tell: func(s string) error {
		select {
		case told <- s:
		case <-ctx.Done():
		}
		return errors.New("nobody listens")
	}, alive: func() bool {
		select {
		case asked <- struct{}{}:
			return <-answer
		case <-ctx.Done():
			return true
		}
	}}
	done := make(chan struct{})
	began := time.Now()
	go func() { defer close(done); w.run(ctx) }()
	pings := 0
	judgedAs := func(alive bool) {
		for {
			select {
			case s := <-told:
				assert.Equal(t, "WATCHDOG=1", s)
				pings++
				continue
			case <-asked:
			}
			answer <- alive
			return
		}
	}
	judgedAs(true)
	assert.GreaterOrEqual(t, time.Since(began), judgeOver)
	assert.Greater(t, pings, 1, "it was told meanwhile")
	judgedAs(false)
	pings = 0
	judgedAs(true)
	assert.Zero(t, pings, "nothing was told")
	assert.Equal(t, "WATCHDOG=1", <-told, "it moves again")
	cancel()
	<-done
}

func TestAlive(t *testing.T) {
	store, _ := openStore(t, 4)
	k, err := newKeeper(store, noLog())
	require.NoError(t, err)
	d := New(Options{})
	beat := d.life.pulse.join()
	d.alive()
	assert.True(t, d.alive(), "no store: it would cost too much")
	d.keep = k
	assert.False(t, d.alive())
	beat()
	assert.True(t, d.alive())
	assert.False(t, d.alive())
	d.life.end(nil)
	assert.True(t, d.alive(), "workers of a life that has ended")
}
