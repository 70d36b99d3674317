package switchcfg

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/switchcfg/reg"
)

func TestSMI(t *testing.T) {
	ctx := context.Background()
	b := newBus()
	s := b.smi()
	v, err := s.Read(ctx, 10, reg.Identifier)
	require.NoError(t, err)
	assert.Equal(t, uint16(0x1930), v)
	require.NoError(t, s.Write(ctx, 1, reg.PortControl2, 0x2080))
	assert.Equal(t, []string{"sw1 0x08 0x2080"}, b.writes)
	v, err = s.Read(ctx, 1, reg.PortControl2)
	require.NoError(t, err)
	assert.Equal(t, uint16(0x2080), v)
}

func TestSMIRefusesNumbersThatDoNotFit(t *testing.T) {
	ctx := context.Background()
	b := newBus()
	for _, at := range []Register{{-1, 0}, {32, 0}, {0, -1}, {0, 32}} {
		var e *RangeError
		_, err := b.smi().Read(ctx, at.Dev, at.Reg)
		require.ErrorAs(t, err, &e)
		require.ErrorAs(t, b.smi().Write(ctx, at.Dev, at.Reg, 0), &e)
	}
	assert.Zero(t, b.accesses)
}

// TestNothingAnswers is SW-3: 0xffff looks busy.
func TestNothingAnswers(t *testing.T) {
	b := newBus()
	b.dead = true
	_, err := New(b.smi()).Jumbo(context.Background(), Plan{Mode: reg.Jumbo10240, Ports: PanelPorts()}, nil)
	var e *NoAnswerError
	require.ErrorAs(t, err, &e)
	assert.ErrorContains(t, err, "nothing answers at MDIO bus 0 address 2")
	assert.NotEmpty(t, e.Hint())
	assert.Less(t, b.clock.now, 2*busyLimit, "bounded, and not tried again")
	assert.Empty(t, b.writes)
}

// TestBusy is SW-4.
func TestBusy(t *testing.T) {
	ctx := context.Background()
	t.Run("clears while the poller is stopped past its deadline", func(t *testing.T) {
		b := newBus()
		b.busyUntil = 5 * time.Millisecond
		b.clock.slept = func() { b.clock.now += 200 * time.Millisecond; b.clock.slept = nil }
		v, err := b.smi().Read(ctx, 1, reg.Identifier)
		require.NoError(t, err)
		assert.Equal(t, uint16(0x1930), v, "a command while it was busy is lost")
	})
	t.Run("clears while the poller is stopped inside its look", func(t *testing.T) {
		b := newBus()
		b.busyUntil = 5 * time.Millisecond
		b.looked = func() { b.clock.now += 200 * time.Millisecond; b.looked = nil }
		_, err := b.smi().Read(ctx, 1, reg.Identifier)
		require.NoError(t, err)
	})
	t.Run("never clears: one look past the deadline", func(t *testing.T) {
		b := newBus()
		b.busyUntil = time.Hour
		b.clock.slept = func() {
			if b.clock.now < busyLimit {
				b.clock.now = busyLimit + time.Second
			}
		}
		err := b.smi().Write(ctx, 1, reg.PortControl2, 0x2080)
		var e *BusyError
		require.ErrorAs(t, err, &e)
		assert.ErrorContains(t, err, "write register 0x08 of oxp1 (Port1, sw1): switch command register stayed busy")
		assert.Equal(t, 2, b.looks)
		assert.Empty(t, b.writes)
	})
	t.Run("after the command", func(t *testing.T) {
		b := newBus()
		b.busyFor = time.Hour
		_, err := b.smi().Read(ctx, 1, reg.Identifier)
		var e *BusyError
		require.ErrorAs(t, err, &e)
	})
	t.Run("the context ends the wait", func(t *testing.T) {
		b := newBus()
		b.busyUntil = time.Hour
		ctx, cancel := context.WithCancel(ctx)
		b.clock.slept = cancel
		_, err := b.smi().Read(ctx, 1, reg.Identifier)
		require.ErrorIs(t, err, context.Canceled)
		_, err = b.smi().Read(ctx, 1, reg.Identifier)
		require.ErrorIs(t, err, context.Canceled)
	})
}

func TestBusErrorsAreSaidWhere(t *testing.T) {
	b := newBus()
	b.err = errors.New("EIO")
	_, err := b.smi().Read(context.Background(), reg.Global2, reg.PHYData)
	require.ErrorIs(t, err, b.err)
	assert.EqualError(t, err, "read register 0x19 of global2: EIO")
}
