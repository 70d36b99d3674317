package mvsw

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// ErrUpload says that the program could not be put on the coprocessor. What was
// there before is still there.
var ErrUpload = errors.New("the program cannot be put on the coprocessor")

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
	// pieceBytes of the program are sent with one command, 512 characters of base64: a
	// shell that edits its lines takes 1,024.
	pieceBytes = 384
	// tries that a piece, or a question, has to come through.
	tries = 3
)

// Check asks what stands where the program belongs. Size and SHA-256 decide; where the
// coprocessor has no sha256sum, the file is read back.
func (h *Helper) Check(ctx context.Context) (State, error) { return h.check(ctx, h.path) }

func (h *Helper) check(ctx context.Context, name string) (State, error) {
	f, err := h.look(ctx, name, "true")
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
	sum        string   // SHA-256, hexadecimal; empty when there is no sha256sum
	lines      []string // all that was answered
}

// look runs a command that makes the file $f, and looks at the file.
func (h *Helper) look(ctx context.Context, name, command string) (file, error) {
	question := "f=" + name + "; " + command + "; if [ -f $f ]; then [ -x $f ] && x=yes || x=no; echo size $(wc -c <$f) executable $x sum $(sha256sum <$f); else echo no file; fi"
	answer := regexp.MustCompile(`^(?:no file|size ([0-9]{1,9}) executable (yes|no) sum(?: ([0-9a-f]{64}) +-)?)$`)
	lines, m, err := h.answer(ctx, question, answer)
	if err != nil || m[0] == "no file" {
		return file{lines: lines}, err
	}
	n, err := strconv.Atoi(m[1])
	return file{true, m[2] == "yes", n, m[3], lines}, err
}

// answer runs a command that may be run again until one line of its output
// matches, a few times, and returns the output and the groups of the match.
func (h *Helper) answer(ctx context.Context, line string, pattern *regexp.Regexp) ([]string, []string, error) {
	for try := 1; ; try++ {
		lines, status, err := h.run.Run(ctx, line)
		var m []string
		if err == nil {
			if m, err = one(lines, pattern); err == nil {
				return lines, m, nil
			}
			err = &CommandError{"look at a file of the coprocessor", status, lines, err}
		} else if !temporary(err) {
			try = tries
		}
		if try == tries {
			return nil, nil, fmt.Errorf("mvsw: look at a file of the coprocessor: %w", err)
		}
	}
}

// temporary says whether another try may help.
func temporary(err error) bool {
	var t interface{ Temporary() bool }
	return errors.As(err, &t) && t.Temporary()
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
// checked, moved.
func (h *Helper) upload(ctx context.Context) error {
	folder := h.path + ".new"
	if err := h.order(ctx, fmt.Sprintf("rm -rf %s && mkdir -p %[1]s", folder)); err != nil {
		return err
	}
	i := 0
	for piece := range slices.Chunk(program, pieceBytes) {
		if err := h.piece(ctx, fmt.Sprintf("%s/p%02d", folder, i), piece); err != nil {
			return fmt.Errorf("piece %d of %d: %w", i+1, (len(program)+pieceBytes-1)/pieceBytes, err)
		}
		i++
	}
	whole := folder + "/mvsw"
	if err := h.order(ctx, fmt.Sprintf("cat %s/p?? >%s && chmod 755 %[2]s", folder, whole)); err != nil {
		return err
	}
	if err := h.expect(ctx, whole); err != nil {
		return err
	}
	if err := h.order(ctx, fmt.Sprintf("if [ -f %s ]; then mv -f %[1]s %s; fi && rm -rf %s", whole, h.path, folder)); err != nil {
		return err
	}
	return h.expect(ctx, h.path)
}

// piece sends one until it is there as it was sent.
func (h *Helper) piece(ctx context.Context, name string, piece []byte) error {
	command := "echo " + base64.StdEncoding.EncodeToString(piece) + " | base64 -d >$f"
	var f file
	for range tries {
		var err error
		if f, err = h.look(ctx, name, command); err != nil {
			return fmt.Errorf("%w: %w", ErrUpload, err)
		}
		if f.bytes == len(piece) && (f.sum == "" || f.sum == sum(piece)) {
			return nil
		}
	}
	return fmt.Errorf("mvsw: it did not arrive as it was sent, %d times, output %.200q: %w", tries, f.lines, ErrUpload)
}

// expect wants the program at a place.
func (h *Helper) expect(ctx context.Context, name string) error {
	state, err := h.check(ctx, name)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUpload, err)
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
			return fmt.Errorf("mvsw: %q: exit status %d, output %.200q: %w", line, status, lines, ErrUpload)
		case try == tries || !temporary(err):
			return fmt.Errorf("mvsw: %q: %w: %w", line, ErrUpload, err)
		}
	}
}
