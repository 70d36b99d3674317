//go:build !linux

package demo

import (
	"context"
	"errors"
)

func run(context.Context, Options, *reporter) error {
	return errors.New("needs Linux: network namespaces and TAP interfaces")
}
