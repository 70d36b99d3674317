package mvsw

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"oxpd/switchcfg/reg"
)

// fault is a sentinel that knows what its reader can do.
type fault struct {
	text  string
	final bool
	hint  string
	kind  error // the sentinel that it is one of
}

// Error implements error.
func (f *fault) Error() string { return f.text }

// Final says that another try at once is of no use.
func (f *fault) Final() bool { return f.final }

// Hint says what the operator can do.
func (f *fault) Hint() string { return f.hint }

// Unwrap returns the more general sentinel, nil for none.
func (f *fault) Unwrap() error { return f.kind }

const hintBusy = "another program on the coprocessor may use the switch without pause: repeat the command; when it stays, reboot the appliance"

// What the program can answer, besides a value (switch.md 8.1).
var (
	// ErrRead and ErrWrite say that the coprocessor's MDIO bus failed a transaction.
	ErrRead  error = &fault{text: "mdio read failed", hint: "the coprocessor's MDIO bus failed: repeat the command; its kernel log may say more"}
	ErrWrite error = &fault{text: "mdio write failed", hint: "the coprocessor's MDIO bus failed: repeat the command; its kernel log may say more"}
	// ErrBusy and ErrPHYBusy say that a busy bit of the switch did not clear: that of
	// its two registers, or that of the PHY unit.
	ErrBusy    error = &fault{text: "switch command register stayed busy", final: true, hint: hintBusy}
	ErrPHYBusy error = &fault{text: "SMI PHY command register stayed busy", final: true, hint: hintBusy}
	// ErrNothingAnswers is an ErrBusy: every read is all-ones.
	ErrNothingAnswers error = &fault{text: fmt.Sprintf("nothing answers at MDIO bus %d address %d: every read is all-ones", reg.Bus, reg.Address), final: true, kind: ErrBusy,
		hint: "nothing was written; this is not the board that oxpd knows, or the switch is held in reset"}
	// ErrDevice says that the MDIO device of the coprocessor cannot be opened.
	ErrDevice error = &fault{text: "cannot open /dev/mvmdio-uio", final: true, hint: "the coprocessor's kernel lacks the module mvmdio_uio, or the shell there is not root's"}
	// ErrRefused says that the program took the command for a wrong one.
	ErrRefused error = &fault{text: "the program refused the command", final: true, hint: "nothing was done; a mvsw that is installed on the coprocessor may be of another kind: remove it, and oxpd brings its own"}
	// ErrMissing says that there is no program that could be started. Nothing was done.
	ErrMissing error = &fault{text: "the program cannot be started", final: true, hint: "nothing was done; the file system there may not allow programs (noexec)"}
	// ErrOutput says that what came back is no answer, or two. What was done is not known.
	ErrOutput error = &fault{text: "output that is not understood", hint: "something else writes to the coprocessor's console, or reads it: repeat the command when it is quiet"}
	// ErrUpload says that the program could not be put on the coprocessor. What was
	// there before is still there.
	ErrUpload error = &fault{text: "the program cannot be put on the coprocessor", final: true, hint: "its file system there must be one that can be written, has 20 KB of room and allows programs; mount and df on the coprocessor say"}
)

// final says whether another try is of no use.
func final(err error) bool {
	var f interface{ Final() bool }
	return errors.As(err, &f) && f.Final()
}

// A shell's exit statuses for a command that it could not start.
const (
	statusNotExecutable = 126
	statusNotFound      = 127
)

// complaints are the program's error lines. A line may go on after a colon.
func complaints() []struct {
	line string
	err  error
} {
	return []struct {
		line string
		err  error
	}{
		{"switch command register stayed busy: nothing answers", ErrNothingAnswers},
		{"mdio read failed", ErrRead},
		{"mdio write failed", ErrWrite},
		{"switch command register stayed busy", ErrBusy},
		{"SMI PHY command register stayed busy", ErrPHYBusy},
		{"cannot open /dev/mvmdio-uio", ErrDevice},
		{"usage: mvsw", ErrRefused},
	}
}

// CommandError is a command that did not do what it was for.
type CommandError struct {
	Command string   // without the name of the program
	Status  int      // exit status
	Lines   []string // what it said
	Err     error    // one of the sentinels
}

// Error names the command, the reason and, when nothing explains it, the output.
func (e *CommandError) Error() string {
	s := fmt.Sprintf("mvsw: %s: %v (exit status %d", e.Command, e.Err, e.Status)
	if errors.Is(e.Err, ErrOutput) || errors.Is(e.Err, ErrMissing) {
		s += fmt.Sprintf(", output %.200q", e.Lines)
	}
	return s + ")"
}

// Unwrap returns the sentinel.
func (e *CommandError) Unwrap() error { return e.Err }

// failure is the error that lines and status tell of, nil for success.
func failure(lines []string, status int) error {
	for _, l := range lines {
		for _, c := range complaints() {
			if rest, ok := strings.CutPrefix(l, c.line); ok && (rest == "" || rest[0] == ':' || rest[0] == ' ') {
				return c.err
			}
		}
	}
	switch status {
	case 0:
		return nil
	case statusNotExecutable, statusNotFound:
		return ErrMissing
	}
	return ErrOutput
}

// one returns the groups of the only line that matches.
func one(lines []string, pattern *regexp.Regexp) ([]string, error) {
	var found []string
	for _, l := range lines {
		m := pattern.FindStringSubmatch(l)
		if m != nil && found != nil {
			return nil, fmt.Errorf("two answers: %w", ErrOutput)
		}
		if m != nil {
			found = m
		}
	}
	if found == nil {
		return nil, fmt.Errorf("no answer: %w", ErrOutput)
	}
	return found, nil
}

// parseValue takes the answer to a read.
func parseValue(lines []string, status int) (uint16, error) {
	if err := failure(lines, status); err != nil {
		return 0, err
	}
	m, err := one(lines, regexp.MustCompile(`^0x([0-9a-f]{4})$`))
	if err != nil {
		return 0, err
	}
	return word(m[1])
}

// parseSilence takes the answer to a write.
func parseSilence(lines []string, status int) error {
	if err := failure(lines, status); err != nil {
		return err
	}
	for _, l := range lines {
		if strings.HasPrefix(l, "0x") {
			return fmt.Errorf("a value as the answer to a write: %w", ErrOutput)
		}
	}
	return nil
}

// ID is what the switch says that it is.
type ID struct {
	Register uint16 // register 3 of port 0
	Product  uint16 // 0x193 is the 88E6193X
	Revision int
}

// parseID takes the answer to id.
func parseID(lines []string, status int) (ID, error) {
	if err := failure(lines, status); err != nil {
		return ID{}, err
	}
	m, err := one(lines, regexp.MustCompile(`^switch id 0x([0-9a-f]{4}) - device 0x([0-9a-f]{4}) revision ([0-9]{1,2})$`))
	if err != nil {
		return ID{}, err
	}
	register, err := word(m[1])
	if err != nil {
		return ID{}, err
	}
	id := ID{register, register >> 4, int(register & 15)}
	if m[2] != fmt.Sprintf("%04x", id.Product) || m[3] != strconv.Itoa(id.Revision) {
		return ID{}, fmt.Errorf("device and revision are not those of the register: %w", ErrOutput)
	}
	return id, nil
}

// word is four hexadecimal digits.
func word(digits string) (uint16, error) {
	v, err := strconv.ParseUint(digits, 16, 16)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", err, ErrOutput)
	}
	return uint16(v), nil
}
