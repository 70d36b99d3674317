package rootless

import (
	"context"
	"io"
	"time"
)

// Options of Run.
type Options struct {
	Exe      string // the program
	Args     []string
	Out, Err io.Writer
}

// endLimit is how long the program has for its end once it was asked to, before it is killed.
const endLimit = 20 * time.Second

// Error says why there is no user namespace.
type Error struct {
	Missing string
	Do      string // what its reader can do
}

// Error is one line.
func (e *Error) Error() string { return "without root: " + e.Missing + "; " + e.Do }

// Run runs the program and returns its exit status. When the context ends, the
// program gets SIGTERM and is waited for. Errors: *Error when there can be no user
// namespace or no interface in it; errors.ErrUnsupported (errors.Is) on systems
// without them; the end of a program that was killed.
func Run(ctx context.Context, o Options) (status int, err error) { return run(ctx, o) }

// Privileged tells whether this process can make network namespaces, interfaces
// in them and mounts: it is root, or in a user namespace already.
func Privileged() bool { return privileged() }
