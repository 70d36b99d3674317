// Package clock is the time that drivers are given, so that a simulated card
// can own it. Time is a monotonic duration since an arbitrary start: no wall
// clock, no time zone, no jump.
package clock

import (
	"context"
	"time"
)

// Clock is a source of monotonic time. Packages that need less declare less.
type Clock interface {
	// Now is the time since an arbitrary start. Never decreases.
	Now() time.Duration
	// Sleep returns nil after d, or the context's error as soon as it ends.
	Sleep(ctx context.Context, d time.Duration) error
}

// Real is the machine's monotonic clock.
type Real struct{ start time.Time }

// NewReal returns a clock that starts at 0 now.
func NewReal() *Real { return &Real{start: time.Now()} }

// Now implements Clock.
func (c *Real) Now() time.Duration { return time.Since(c.start) }

// Sleep implements Clock.
func (c *Real) Sleep(ctx context.Context, d time.Duration) error {
	if err := ctx.Err(); err != nil || d <= 0 {
		return err
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
