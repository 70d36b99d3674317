package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"oxpd/divert/client"
	"oxpd/divert/proto"
	daemonclient "oxpd/internal/daemon/client"
	"oxpd/internal/daemon/config"
	"oxpd/internal/inspect"
)

// inspected is `oxpd inspect --json`: what was done, when it ends.
type inspected struct {
	Schema int `json:"schema"`
	inspect.Totals
}

func (a *app) inspectCommand() *cobra.Command {
	var sockets []string
	var rules string
	var ports []uint
	var cfg inspect.Config
	var every time.Duration
	cmd := a.jsonFlag(&cobra.Command{
		Use: "inspect --rules FILE", Short: "an inspection engine: decide by the rules of a file about frames that oxpd diverts", Args: args(0, 0),
		Long: "Connects to the inspection sockets of a daemon and decides about each frame by the rules of a file, in the language of filters: drop\n" +
			"drops, pass, count and sample accept, and a frame that no rule matches is accepted. It ends with SIGINT or SIGTERM, or when the\n" +
			"daemon has gone, and says then what it has done. It is the example of an engine: docs/guides/divert-protocol.md and the Go package\n" +
			"divert/client are for writing others.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if rules == "" {
				return &usageError{errors.New("--rules: want the file with the rules"), cmd.UseLine()}
			}
			if cfg.FlowAfter < 0 || cfg.Delay < 0 || every < 0 {
				return &usageError{errors.New("--accept-flow-after, --delay and --every: want 0 or more"), cmd.UseLine()}
			}
			for _, p := range ports {
				if p == 0 || p > 65535 {
					return &usageError{fmt.Errorf("--accept-flow-ports %d: want 1 to 65535", p), cmd.UseLine()}
				}
				cfg.FlowPorts = append(cfg.FlowPorts, uint16(p))
			}
			if len(cfg.FlowPorts) > 0 && cfg.FlowAfter == 0 {
				return &usageError{errors.New("--accept-flow-ports is for --accept-flow-after N"), cmd.UseLine()}
			}
			src, err := readRules(cmd.Context(), rules)
			if err != nil {
				return err
			}
			list, program, err := compileRules(src)
			if err != nil {
				return err
			}
			for _, w := range list.Warnings {
				fmt.Fprintf(a.err, "warning: %s\n", w)
			}
			cfg.Program, cfg.Rules = program, program.Rules()
			e, err := inspect.New(cfg)
			if err != nil {
				return fmt.Errorf("%s: %w", rules, err)
			}
			if len(sockets) == 0 {
				sockets = config.Config{Socket: cmp.Or(a.socket, daemonclient.DefaultSocket)}.Listeners()
			}
			return a.inspect(cmd.Context(), e, sockets, every)
		},
	})
	f := cmd.Flags()
	f.StringVar(&rules, "rules", "", "the rules, as for oxpd filter load")
	f.StringArrayVar(&sockets, "at", nil, "inspection socket of the daemon; again for each listener (default inspect.sock beside the control socket)")
	f.StringVar(&cfg.Name, "name", "oxpd inspect", "name that the daemon shows")
	f.IntVar(&cfg.FlowAfter, "accept-flow-after", 0, "accept the rest of a connection unseen after so many frames of it; 0: never")
	f.UintSliceVar(&ports, "accept-flow-ports", nil, "only connections from or to these ports")
	f.DurationVar(&cfg.Delay, "delay", 0, "wait before each verdict, to try what a slow engine does")
	f.DurationVar(&every, "every", 0, "say on standard error how many frames there were, with this period; 0: at the end only")
	return cmd
}

// inspect runs an engine and prints its totals.
func (a *app) inspect(ctx context.Context, e *inspect.Engine, sockets []string, every time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- e.ServeAll(ctx, sockets) }()
	var tick <-chan time.Time
	if every > 0 {
		t := time.NewTicker(every)
		defer t.Stop()
		tick = t.C
	}
	for {
		select {
		case <-tick:
			printInspected(a.err, &inspected{Totals: e.Totals()})
		case err := <-done:
			if !e.Connected() {
				return ended(err)
			}
			if shown := show(a, &inspected{Schema: daemonclient.Schema, Totals: e.Totals()}, printInspected); shown != nil {
				return shown
			}
			return ended(err)
		}
	}
}

// ended is nil for an engine that was told to end.
func ended(err error) error {
	var refused *client.RefusedError
	switch {
	case errors.Is(err, context.Canceled):
		return nil
	case errors.Is(err, io.EOF), errors.As(err, &refused) && refused.Reason == proto.ReasonShutdown:
		return fmt.Errorf("%w; frames without a verdict go by on-absent", err)
	}
	return err
}

func printInspected(w io.Writer, d *inspected) {
	fmt.Fprintf(w, "%d frames, %d bytes: %d accepted (%d with the rest of their connection), %d dropped\n", d.Frames, d.Bytes, d.Accepted, d.Flows, d.Dropped)
}
