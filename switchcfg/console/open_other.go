//go:build !linux

package console

import (
	"context"
	"errors"
	"fmt"
)

// Open returns errors.ErrUnsupported.
func Open(_ context.Context, path string, _ Options) (*Console, error) {
	return nil, fmt.Errorf("console %s: %w", path, errors.ErrUnsupported)
}
