//go:build !linux

package divert

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const helloLimit = 5 * time.Second

// Listen returns errors.ErrUnsupported: SOCK_SEQPACKET and its buffers are Linux's here.
func Listen(cfg ListenerConfig) (*Listener, error) {
	return nil, fmt.Errorf("divert: listen on %s: %w", cfg.Path, errors.ErrUnsupported)
}

// Run returns errors.ErrUnsupported.
func (l *Listener) Run(context.Context) error { return errors.ErrUnsupported }

func setSendBuffer(int, int, int) error { return errors.ErrUnsupported }
