package mvsw

import (
	"context"
	"encoding/base64"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// State is what stands where the program belongs.
type State int

// States.
const (
	Missing   State = iota // no file
	Different              // a file, and not the program, or not executable
	Present                // the program, to the byte
)

// String implements fmt.Stringer.
func (s State) String() string { return [...]string{"missing", "different", "present"}[s] }

const (
	// pieceBytes of the program are sent with one command, 256 characters of base64.
	pieceBytes = 192
	// tries that a question, or an order that may be repeated, has to come through.
	tries = 3
)

// Check asks what stands where the program belongs. Size and SHA-256 decide; where the
// coprocessor has no sha256sum, the file is read back.
func (h *Helper) Check(ctx context.Context) (State, error) { return h.check(ctx, h.path) }

func (h *Helper) check(ctx context.Context, name string) (State, error) {
	f, err := h.look(ctx, name)
	switch {
	case err != nil:
		return Missing, err
	case !f.there:
		return Missing, nil
	case f.bytes != len(program) || !f.executable:
		return Different, nil
	case f.sum == "":
		return h.compare(ctx, name)
	case f.sum != sum(program):
		return Different, nil
	}
	return Present, nil
}

// file is what the coprocessor says of a file.
type file struct {
	there      bool
	executable bool
	bytes      int
	sum        string // SHA-256, hexadecimal; empty when there is no sha256sum
}

// look looks at a file.
func (h *Helper) look(ctx context.Context, name string) (file, error) {
	question := "f=" + name + "; if [ -f $f ]; then [ -x $f ] && x=yes || x=no; echo size $(wc -c <$f) executable $x sum $(sha256sum <$f); else echo no file; fi"
	answer := regexp.MustCompile(`^(?:no file|size ([0-9]{1,9}) executable (yes|no) sum(?: ([0-9a-f]{64}) +-)?)$`)
	m, err := h.answer(ctx, question, answer)
	if err != nil || m[0] == "no file" {
		return file{}, err
	}
	n, err := strconv.Atoi(m[1])
	return file{true, m[2] == "yes", n, m[3]}, err
}

// answer runs a command that may be run again until one line of its output
// matches, a few times, and returns the groups of the match.
func (h *Helper) answer(ctx context.Context, line string, pattern *regexp.Regexp) ([]string, error) {
	for try := 1; ; try++ {
		lines, status, err := h.run.Run(ctx, line)
		var m []string
		if err == nil {
			if m, err = one(lines, pattern); err == nil {
				return m, nil
			}
			err = &CommandError{"look at a file of the coprocessor", status, lines, err}
		} else if final(err) {
			try = tries
		}
		if try == tries {
			return nil, fmt.Errorf("mvsw: look at a file of the coprocessor: %w", err)
		}
	}
}

// compare reads the file back. Anything else between the lines makes it different.
func (h *Helper) compare(ctx context.Context, name string) (State, error) {
	lines, _, err := h.run.Run(ctx, "base64 "+name)
	if err != nil {
		return Missing, fmt.Errorf("mvsw: read the program back: %w", err)
	}
	if strings.Join(lines, "") != base64.StdEncoding.EncodeToString(program) {
		return Different, nil
	}
	return Present, nil
}

// upload puts the program in its place: in pieces into a folder beside it, together,
// checked, moved. Nothing but what it made is removed.
func (h *Helper) upload(ctx context.Context) error {
	set := "p=" + h.path + "; n=$p.new; "
	if err := h.order(ctx, set+"mkdir -p $n && rm -f $n/p??"); err != nil {
		return err
	}
	i := 0
	for piece := range slices.Chunk(program, pieceBytes) {
		if err := h.order(ctx, fmt.Sprintf("echo %s | base64 -d >%s.new/p%02d", base64.StdEncoding.EncodeToString(piece), h.path, i)); err != nil {
			return fmt.Errorf("piece %d of %d: %w", i+1, (len(program)+pieceBytes-1)/pieceBytes, err)
		}
		i++
	}
	if err := h.order(ctx, set+"cat $n/p?? >$n/mvsw && chmod 755 $n/mvsw"); err != nil {
		return err
	}
	if err := h.expect(ctx, h.path+".new/mvsw"); err != nil {
		return err
	}
	if err := h.order(ctx, set+"if [ -f $n/mvsw ]; then mv -f $n/mvsw $p && { rm -f $n/p??; rmdir $n; true; }; fi"); err != nil {
		return err
	}
	return h.expect(ctx, h.path)
}

// expect wants the program at a place.
func (h *Helper) expect(ctx context.Context, name string) error {
	state, err := h.check(ctx, name)
	if err != nil {
		return &givenUp{err}
	}
	if state != Present {
		return fmt.Errorf("mvsw: %s is %s after it was written: %w", name, state, ErrUpload)
	}
	return nil
}

// order runs a command that must succeed and may be run again.
func (h *Helper) order(ctx context.Context, line string) error {
	for try := 1; ; try++ {
		lines, status, err := h.run.Run(ctx, line)
		switch {
		case err == nil && status == 0:
			return nil
		case err == nil:
			return fmt.Errorf("mvsw: %.60q: exit status %d, output %.200q: %w", line, status, lines, ErrUpload)
		case try == tries || final(err):
			return &givenUp{fmt.Errorf("mvsw: put the program on the coprocessor: %w", err)}
		}
	}
}

// givenUp is an error of the way to the coprocessor, met in some tries of an upload: it
// says what happened, and that the whole of it is not to be tried at once again.
type givenUp struct{ error }

// Final says that another try at once is of no use.
func (e *givenUp) Final() bool { return true }

// Unwrap returns what happened.
func (e *givenUp) Unwrap() error { return e.error }
