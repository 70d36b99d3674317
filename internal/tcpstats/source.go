package tcpstats

import "context"

// Source gives what there is: sockets, or flows. Safe for concurrent use.
type Source interface {
	// Open begins to go through all of it, once. The caller closes the cursor.
	Open(ctx context.Context, q *Query) (Cursor, error)
}

// Query is what a read asks for.
type Query struct {
	Filter Filter
	// NoPushDown has every test made here, and none by the kernel. Tests use it.
	NoPushDown bool
}

// Stretch is the most that a call of Next looks at: after that many records whoever reads
// looks at its deadline and lets others have the core.
const Stretch = 256

// ChunkBytes is the room that a call of Next needs: Stretch records at most, and what one
// datagram of the kernel has.
const ChunkBytes = Stretch * FullSize

// Cursor goes through a source. It is one goroutine's.
type Cursor interface {
	// Next appends what matches among the next records, up to Stretch of them, to b, whose
	// room for ChunkBytes is the caller's, and tells how many it appended. io.EOF says
	// that all were looked at; then there is nothing in out. Other errors end the read.
	Next(ctx context.Context, b []byte) (out []byte, records int, err error)
	// Close ends the read, wherever it is. Records that the kernel had ready and nobody
	// looked at are taken from it and count as visited.
	Close() error
	// Walked is what has been counted so far, Close included.
	Walked() Walked
}

// Walked counts what a cursor did. What was visited and neither skipped nor appended was
// aborted.
type Walked struct {
	Visited  uint64            // records that were there to be looked at
	Appended uint64            // by Next
	Skipped  [skipCount]uint64 // by reason; nothing at Match

	PushedDown   Pushed // what the kernel was asked to leave out
	Inconsistent bool   // sockets came and went meanwhile: some may be twice in it, or missing
	Truncated    uint64 // datagrams that the kernel cut
}

// Pushed is the set of tests that the kernel made.
type Pushed uint8

// Tests.
const (
	PushedFamily Pushed = 1 << iota
	PushedState
	PushedPort
	PushedAddr
)

// pushedNames are the words of tests.
var pushedNames = [...]string{"family", "state", "port", "addr"}

// Names are the words of the tests, in the order in which they are made; empty and not nil
// for none.
func (p Pushed) Names() []string {
	out := []string{}
	for i, name := range pushedNames {
		if p>>i&1 != 0 {
			out = append(out, name)
		}
	}
	return out
}

// SkippedAll is how many were skipped, for whatever reason.
func (w *Walked) SkippedAll() (n uint64) {
	for _, k := range w.Skipped {
		n += k
	}
	return n
}

// Reasons are the skips by the word for the reason, those that are 0 too.
func (w *Walked) Reasons() map[string]uint64 {
	out := make(map[string]uint64, skipCount-1)
	for why := SkipFamily; why < skipCount; why++ {
		out[why.String()] = w.Skipped[why]
	}
	return out
}
