//go:build !linux

package vfiouser

import (
	"errors"
	"fmt"
)

func newMemory(int) (*Memory, error) {
	return nil, fmt.Errorf("vfiouser: make memory of BAR2: %w", errors.ErrUnsupported)
}
