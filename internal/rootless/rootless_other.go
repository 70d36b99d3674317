//go:build !linux

package rootless

import (
	"context"
	"errors"
	"fmt"
)

func privileged() bool { return true } // whatever is missing will be said where it is

func run(context.Context, Options) (int, error) {
	return 0, fmt.Errorf("make a user namespace: %w", errors.ErrUnsupported)
}
