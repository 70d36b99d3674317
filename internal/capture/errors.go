package capture

import "fmt"

// FormatError says what a file has that a capture cannot have, or that cannot be
// replayed. When the file ends in the middle of something it wraps
// io.ErrUnexpectedEOF.
type FormatError struct {
	File   string
	Offset int64 // of the header, record or block that is wrong, in bytes
	Record int   // packets read before it
	Why    string
	ToDo   string // what its reader can do; may be empty
	err    error
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("%s: at byte %d, after %d packets: %s", e.File, e.Offset, e.Record, e.Why)
}

// Unwrap is io.ErrUnexpectedEOF or nil.
func (e *FormatError) Unwrap() error { return e.err }

// Hint is what to do.
func (e *FormatError) Hint() string { return e.ToDo }
