package daemon

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"oxpd/rpc"
	"oxpd/rpc/msg"
)

// reopener is the table of LIFs over the rpc channel: it notices that a command
// was lost, so that the channel is opened anew.
type reopener struct {
	mu      sync.Mutex
	channel *rpc.Channel // nil before the rpc stage
	stalled atomic.Bool
}

func (r *reopener) use(c *rpc.Channel) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.channel = c
}

func (r *reopener) get() (*rpc.Channel, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.channel == nil {
		return nil, rpc.ErrNotConfigured
	}
	return r.channel, nil
}

// saw notes an error that only a new configuration of the channel cures.
func (r *reopener) saw(err error) error {
	if errors.Is(err, rpc.ErrTimeout) || errors.Is(err, rpc.ErrStalled) || errors.Is(err, rpc.ErrNotConfigured) || errors.Is(err, rpc.ErrMalformed) {
		r.stalled.Store(true)
	}
	return err
}

// heal opens the channel anew when a command was lost, and tells whether it did.
func (r *reopener) heal(ctx context.Context) (opened bool, err error) {
	c, err := r.get()
	if err != nil || !r.stalled.Load() {
		return false, nil
	}
	if err := c.Reopen(ctx); err != nil {
		return false, err
	}
	r.stalled.Store(false)
	return true, nil
}

// LIFRead implements lif.Table.
func (r *reopener) LIFRead(ctx context.Context, index uint32) (msg.LIF, bool, error) {
	c, err := r.get()
	if err != nil {
		return msg.LIF{}, false, err
	}
	l, present, err := c.LIFRead(ctx, index)
	return l, present, r.saw(err)
}

// LIFUpdate implements lif.Table.
func (r *reopener) LIFUpdate(ctx context.Context, u msg.LIFUpdateReq) error {
	c, err := r.get()
	if err != nil {
		return err
	}
	return r.saw(c.LIFUpdate(ctx, u))
}

// PPort implements lif.Table.
func (r *reopener) PPort(ctx context.Context, p msg.PPort) error {
	c, err := r.get()
	if err != nil {
		return err
	}
	return r.saw(c.PPort(ctx, p))
}

// sysCounters reads the fast path's counters.
func (r *reopener) sysCounters(ctx context.Context, sys *[msg.CountersSys]uint64) error {
	c, err := r.get()
	if err != nil {
		return err
	}
	return r.saw(c.SysCounters(ctx, sys))
}

// counters reads the fast path's counters, and those of its ports.
func (r *reopener) counters(ctx context.Context, sys *[msg.CountersSys]uint64, ports *[msg.CountersPort][msg.CountersPortStride]uint64) error {
	c, err := r.get()
	if err != nil {
		return err
	}
	if err := r.sysCounters(ctx, sys); err != nil {
		return err
	}
	return r.saw(c.PortCounters(ctx, ports))
}
