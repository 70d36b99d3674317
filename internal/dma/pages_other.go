//go:build !linux && !freebsd

package dma

import "errors"

func mapPages(int) ([]byte, error) { return nil, errors.ErrUnsupported }

func unmapPages([]byte) error { return errors.ErrUnsupported }
