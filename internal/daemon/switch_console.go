package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"oxpd/switchcfg/console"
	"oxpd/switchcfg/mvsw"
)

// ConsoleWay is the way to the switch of a card that is not simulated, for
// Options.OpenSwitch: a shell at the coprocessor's console, and oxpd's program there. The
// shell has answered when it is opened.
func ConsoleWay(log *slog.Logger) func(ctx context.Context, path string, booted func() error) (SwitchWay, error) {
	return consoleWith(console.Options{Log: log})
}

// consoleWith is ConsoleWay with other bounds than the console's own.
func consoleWith(o console.Options) func(ctx context.Context, path string, booted func() error) (SwitchWay, error) {
	return func(ctx context.Context, path string, booted func() error) (SwitchWay, error) {
		o := o
		o.Ready = func(context.Context) error { return booted() }
		c, err := console.Open(ctx, path, o)
		if err != nil {
			return nil, err
		}
		h, err := mvsw.New(c, mvsw.Options{Log: o.Log})
		if err == nil {
			_, _, err = c.Run(ctx, "true")
		}
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		return &consoleWay{Helper: h, console: c}, nil
	}
}

// consoleWay is the program's registers.
type consoleWay struct {
	*mvsw.Helper
	console *console.Console
}

// Close implements SwitchWay. The shell stays as it is.
func (w *consoleWay) Close() error {
	if err := w.console.Close(); err != nil {
		return fmt.Errorf("close the console: %w", err)
	}
	return nil
}
