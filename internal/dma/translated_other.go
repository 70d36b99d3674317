//go:build !linux

package dma

import "errors"

func sharedPages(string, int) ([]byte, error) { return nil, errors.ErrUnsupported }
