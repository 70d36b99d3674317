//go:build !linux

package dma

import "errors"

func mapShared(string, int) ([]byte, int, error) { return nil, -1, errors.ErrUnsupported }
func closeFD(int)                                {}
