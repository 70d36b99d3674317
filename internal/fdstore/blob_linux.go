package fdstore

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// NewBlob makes an empty file in memory, and a Blob in it. The descriptor, which is
// the caller's, is for Store.Put; both are open until the process ends.
func NewBlob() (*Blob, int, error) {
	fd, err := unix.MemfdCreate("oxpd-state", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, -1, fmt.Errorf("fdstore: make the state: %w", err)
	}
	if err := unix.Ftruncate(fd, blobCopies*blobCopy); err != nil {
		return nil, -1, fmt.Errorf("fdstore: make the state: %w", errors.Join(err, unix.Close(fd)))
	}
	return &Blob{f: os.NewFile(uintptr(fd), "state")}, fd, nil
}

// OpenBlob is the Blob behind a descriptor that came from a store. It is the blob's
// from then on.
func OpenBlob(fd int) (*Blob, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("fdstore: open the state: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size != blobCopies*blobCopy {
		return nil, fmt.Errorf("fdstore: open the state: a file of %d bytes: %w", st.Size, ErrBlob)
	}
	return &Blob{f: os.NewFile(uintptr(fd), "state")}, nil
}
