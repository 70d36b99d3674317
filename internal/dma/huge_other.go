//go:build !linux

package dma

import (
	"errors"
	"os"
)

// Reclaim has nothing to give back here.
func (h *Huge) Reclaim() error { return nil }

func (h *Huge) open() error                { return errors.ErrUnsupported }
func (h *Huge) reopen() error              { return errors.ErrUnsupported }
func (h *Huge) addPage() (hugePage, error) { return hugePage{}, errors.ErrUnsupported }
func (h *Huge) endIfUnused() error         { return nil }
func unlock(*os.File) error                { return nil }

func physical([]byte) (BusAddr, error) { return 0, errors.ErrUnsupported }
