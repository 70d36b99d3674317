package mvsw

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path"
	"regexp"

	"oxpd/switchcfg/reg"
)

// Runner runs one command line on the coprocessor, as root, in a shell: as it
// was given, or not at all, whatever the way there does to it. Lines have up to 400
// characters. It returns the lines of its output, without line ends, and the exit status; an error
// when it is not known how the command ended. An error with a method Final() bool that
// returns true says that another try is of no use.
type Runner interface {
	Run(ctx context.Context, line string) (lines []string, status int, err error)
}

// DefaultPath is where on the coprocessor the program is put.
const DefaultPath = "/tmp/oxpd-mvsw"

// ErrPath says that a path is none that the program could be put at.
var ErrPath = errors.New("not an absolute path of letters, digits, dots, dashes and underscores")

// Options of a Helper. The zero value is that of the card.
type Options struct {
	Path string       // of the program on the coprocessor; DefaultPath
	Log  *slog.Logger // nil for none
}

// Helper is the switch's registers by way of the program. Not safe for
// concurrent use.
type Helper struct {
	run  Runner
	path string
	log  *slog.Logger
	use  string // what is called; empty until Prepare has found or put it
}

// New returns a Helper that has asked nothing yet.
//
// Errors: ErrPath.
func New(run Runner, o Options) (*Helper, error) {
	h := &Helper{run: run, path: o.Path, log: o.Log}
	if h.path == "" {
		h.path = DefaultPath
	}
	if h.log == nil {
		h.log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	if !regexp.MustCompile(`^(/[A-Za-z0-9._-]+)+$`).MatchString(h.path) || path.Clean(h.path) != h.path || len(h.path) > 100 {
		return nil, fmt.Errorf("mvsw: path %q of the program: %w", o.Path, ErrPath)
	}
	return h, nil
}

// installed is the name of a program in the coprocessor's PATH.
const installed = "mvsw"

// Prepare sees to a program that can be called: the one that an earlier run left,
// if it is the one that oxpd carries, or one that is installed and answers, or
// the one that oxpd carries, uploaded. It looks each time that it is called; Read,
// Write and ID call it when nothing has been found yet.
//
// Errors: ErrUpload, and those of the Runner.
func (h *Helper) Prepare(ctx context.Context) error {
	h.use = ""
	state, err := h.Check(ctx)
	if err != nil {
		return err
	}
	if state != Present {
		_, err := call(ctx, h.run, installed, "id", parseID)
		if err == nil {
			h.log.Debug("an installed program is used", "program", installed)
			h.use = installed
			return nil
		}
		if ctx.Err() != nil || !isAnswer(err) && final(err) {
			return err
		}
		if err := h.upload(ctx); err != nil {
			return err
		}
		h.log.Info("program put on the coprocessor", "path", h.path, "bytes", len(program), "found", state.String())
	}
	h.use = h.path
	return nil
}

// isAnswer says whether an error is what a program answered, and not what kept the
// question from it.
func isAnswer(err error) bool {
	var c *CommandError
	return errors.As(err, &c)
}

// Read reads a register of a device inside the switch: a port, reg.Global1,
// reg.Global2.
//
// Errors: those of output.go, in a CommandError, and those of Prepare.
func (h *Helper) Read(ctx context.Context, dev, register int) (uint16, error) {
	if err := address(dev, register); err != nil {
		return 0, err
	}
	return ask(ctx, h, fmt.Sprintf("read %d %d", dev, register), parseValue)
}

// Write writes one. Success says that the command was given to the switch; whether the
// value stuck, only Read tells. After ErrOutput, or an error of the Runner, it may
// have been written or not.
//
// Errors: as of Read.
func (h *Helper) Write(ctx context.Context, dev, register int, v uint16) error {
	if err := address(dev, register); err != nil {
		return err
	}
	_, err := ask(ctx, h, fmt.Sprintf("write %d %d %#04x", dev, register, v), func(lines []string, status int) (struct{}, error) {
		return struct{}{}, parseSilence(lines, status)
	})
	return err
}

// ID reads what the switch is.
//
// Errors: as of Read.
func (h *Helper) ID(ctx context.Context) (ID, error) { return ask(ctx, h, "id", parseID) }

// fieldMax is the largest number of a device or register inside the switch.
const fieldMax = 0x1f

// address refuses what the command word has no room for.
func address(dev, register int) error {
	if dev < 0 || dev > fieldMax || register < 0 || register > fieldMax {
		return fmt.Errorf("mvsw: device %d, register %d: both are 0 to %d: %w", dev, register, fieldMax, ErrRefused)
	}
	return nil
}

// ask gives the program a command. One that is not there any more, after a restart
// of the coprocessor, is put there again, and asked once more.
func ask[T any](ctx context.Context, h *Helper, command string, parse func([]string, int) (T, error)) (T, error) {
	for again := false; ; again = true {
		if h.use == "" {
			if err := h.Prepare(ctx); err != nil {
				var none T
				return none, err
			}
		}
		v, err := call(ctx, h.run, h.use, command, parse)
		if !errors.Is(err, ErrMissing) {
			return v, err
		}
		h.use = ""
		if again {
			return v, err
		}
	}
}

// call runs the program once.
func call[T any](ctx context.Context, run Runner, program, command string, parse func([]string, int) (T, error)) (T, error) {
	lines, status, err := run.Run(ctx, fmt.Sprintf("%s %d %d %s", program, reg.Bus, reg.Address, command))
	if err != nil {
		var none T
		return none, fmt.Errorf("mvsw: %s: %w", command, err)
	}
	v, err := parse(lines, status)
	if err != nil {
		return v, &CommandError{command, status, lines, err}
	}
	return v, nil
}
