//go:build !linux

package vfiouser

import "errors"

func newIRQ(func()) (*irq, int, error) { return nil, -1, errors.ErrUnsupported }
