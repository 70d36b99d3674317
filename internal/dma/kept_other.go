//go:build !linux

package dma

import "errors"

func newKeptFile() (int, []byte, error)            { return -1, nil, errors.ErrUnsupported }
func openKeptFile(int) ([]byte, int64, error)      { return nil, 0, errors.ErrUnsupported }
func growKeptFile(int, int64, int) ([]byte, error) { return nil, errors.ErrUnsupported }
func mapKeptFile(int, int64, int) ([]byte, error)  { return nil, errors.ErrUnsupported }
func emptyKeptFile(int, int64, int64) error        { return errors.ErrUnsupported }
func closeKeptFile(int) error                      { return errors.ErrUnsupported }
