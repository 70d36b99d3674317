package daemon

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"oxpd/internal/daemon/client"
)

// fakeFaults is a simulated card of which only its faults are asked.
type fakeFaults struct{ on []string }

func (f *fakeFaults) Faults() client.Faults {
	doc := client.Faults{Schema: client.Schema, Cycle: 800, Now: 1e-6}
	for _, name := range f.on {
		doc.Faults = append(doc.Faults, client.Fault{Name: name, State: "on"})
	}
	return doc
}

func (f *fakeFaults) SetFaults(texts []string) error {
	for _, t := range texts {
		if t == "Fire" {
			return errors.New("no fault Fire")
		}
	}
	f.on = append(f.on, texts...)
	return nil
}

func (f *fakeFaults) ClearFault(name string) error {
	if len(f.on) == 0 {
		return errors.New(name + " is not on")
	}
	f.on = nil
	return nil
}

func TestFaultsOverTheSocket(t *testing.T) {
	ctx := context.Background()
	code := func(err error) client.Code {
		var e *client.Error
		require.ErrorAs(t, err, &e)
		return e.Code
	}
	f := &fakeControl{}
	c := client.New(serveFake(t, f))

	t.Run("no simulated card", func(t *testing.T) {
		_, err := c.Faults(ctx)
		assert.Equal(t, client.CodeRefused, code(err))
		_, err = c.SetFaults(ctx, "Gone")
		assert.Equal(t, client.CodeRefused, code(err))
		_, err = c.ClearFault(ctx, "all")
		assert.Equal(t, client.CodeRefused, code(err))
	})
	f.sim = &fakeFaults{}
	t.Run("set, listed, cleared", func(t *testing.T) {
		doc, err := c.SetFaults(ctx, "Gone@+1s%0.5", "D1=3")
		require.NoError(t, err)
		require.Len(t, doc.Faults, 2)
		assert.Equal(t, "Gone@+1s%0.5", doc.Faults[0].Name, "as it was written, escapes and all")
		doc, err = c.Faults(ctx)
		require.NoError(t, err)
		assert.Equal(t, uint64(800), doc.Cycle)
		assert.Len(t, doc.Faults, 2)
		doc, err = c.ClearFault(ctx, "Gone/%2")
		require.NoError(t, err)
		assert.Empty(t, doc.Faults)
	})
	t.Run("refused", func(t *testing.T) {
		_, err := c.ClearFault(ctx, "all")
		assert.Equal(t, client.CodeRefused, code(err))
		_, err = c.SetFaults(ctx, "Gone", "Fire")
		assert.Equal(t, client.CodeUsage, code(err))
		_, err = c.SetFaults(ctx)
		assert.Equal(t, client.CodeUsage, code(err))
		assert.Empty(t, f.sim.on)
	})
}

func TestFaultsOfTheDaemonsCard(t *testing.T) {
	d := New(Options{Device: "0000:01:00.0"})
	_, err := d.faulty()
	assert.Equal(t, client.CodeNotReady, describe(err).Code)
	d.dev = polled{}
	_, err = d.faulty()
	e := describe(err)
	assert.Equal(t, client.CodeRefused, e.Code)
	assert.Equal(t, "0000:01:00.0 is no simulated card of this daemon, and cannot be told to misbehave", e.Message)
	assert.Contains(t, e.Hint, "oxpd run --sim")
}
