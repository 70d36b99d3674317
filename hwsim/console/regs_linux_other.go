//go:build linux && !amd64 && !arm64

package console

import "errors"

// setArguments returns errors.ErrUnsupported: this package does not know the registers here.
func setArguments(int, uint64, uint64) error { return errors.ErrUnsupported }
