//go:build !linux

package fdstore

import (
	"errors"
	"fmt"
)

// NewBlob makes an empty file in memory, and a Blob in it.
func NewBlob() (*Blob, int, error) {
	return nil, -1, fmt.Errorf("fdstore: make the state: %w", errors.ErrUnsupported)
}

// OpenBlob is the Blob behind a descriptor that came from a store.
func OpenBlob(int) (*Blob, error) {
	return nil, fmt.Errorf("fdstore: open the state: %w", errors.ErrUnsupported)
}
