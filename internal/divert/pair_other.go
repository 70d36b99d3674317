//go:build !linux

package divert

import (
	"context"
	"errors"
)

// Run returns errors.ErrUnsupported: TAPs are Linux's here.
func (p *Pair) Run(context.Context) error { return errors.ErrUnsupported }
