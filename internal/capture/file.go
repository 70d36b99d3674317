package capture

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"
)

// File is a capture on disk, or one that comes through a pipe.
type File struct {
	*Reader
	f    *os.File
	ctx  context.Context
	stop func() bool
}

// Open opens a capture. A read that waits for the other end of a pipe ends with ctx.
// Errors: *FormatError, ctx's, the system's.
func Open(ctx context.Context, path string) (*File, error) {
	// Not blocking: a pipe that nobody writes to would be waited for, deaf to signals. Of
	// one that somebody writes to, reads wait as ever.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("read capture: %w", err)
	}
	// The error is that of a file whose reads do not wait.
	stop := context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })
	r, err := NewReader(f, path)
	if err != nil {
		stop()
		return nil, errors.Join(ended(ctx, err), f.Close())
	}
	return &File{Reader: r, f: f, ctx: ctx, stop: stop}, nil
}

// Next is Reader.Next, which ends with the context of Open.
func (f *File) Next() (Record, error) {
	r, err := f.Reader.Next()
	return r, ended(f.ctx, err)
}

// ended is ctx's error in place of one that came of its end.
func ended(ctx context.Context, err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("read capture: %w", ctx.Err())
	}
	return err
}

// Close closes the file.
func (f *File) Close() error {
	f.stop()
	return f.f.Close()
}

// Summary is what a capture holds.
type Summary struct {
	Packets  int
	Cut      int // of those, kept only in part
	Bytes    int64
	Shortest int // whole packet, in bytes
	Longest  int
	Duration time.Duration // from the first to the latest; a capture may go back in time
}

// Check reads a capture to its end, so that nothing of a damaged one is used.
// Errors: *FormatError, the system's.
func Check(path string) (Summary, error) {
	if fi, err := os.Stat(path); err == nil && !fi.Mode().IsRegular() && !fi.IsDir() {
		return Summary{}, fmt.Errorf("read capture: %s is not a regular file, and it is read twice", path)
	}
	f, err := Open(context.Background(), path)
	if err != nil {
		return Summary{}, err
	}
	defer f.Close()
	var s Summary
	var first time.Time
	for {
		r, err := f.Next()
		if err == io.EOF {
			return s, nil
		}
		if err != nil {
			return s, err
		}
		if s.Packets == 0 {
			first, s.Shortest = r.Time, r.WireBytes
		}
		s.Packets++
		if r.Cut() {
			s.Cut++
		}
		s.Bytes += int64(r.WireBytes)
		s.Shortest, s.Longest = min(s.Shortest, r.WireBytes), max(s.Longest, r.WireBytes)
		s.Duration = max(s.Duration, r.Time.Sub(first))
	}
}

// Same tells whether two paths name one file, existing or about to be.
func Same(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return a == b
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}

// macSize is the size of an Ethernet address.
const macSize = 6

// Readdress gives a unicast frame another destination and leaves a multicast or
// broadcast one, and one too short to have an address.
func Readdress(frame []byte, mac [6]byte) {
	if len(frame) >= macSize && frame[0]&1 == 0 {
		copy(frame, mac[:])
	}
}
