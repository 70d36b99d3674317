//go:build !linux

package replay

import (
	"context"
	"errors"
	"fmt"
)

func run(context.Context, Options, []*Report) error {
	return fmt.Errorf("network namespaces and TAP interfaces: %w", errors.ErrUnsupported)
}
