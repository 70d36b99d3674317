package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"oxpd/internal/daemon/client"
)

// Times of `oxpd status --wait`.
const (
	waitDefault = time.Minute // a simulated card needs seconds
	waitMost    = 24 * time.Hour
	waitPoll    = 100 * time.Millisecond
)

func (a *app) statusCommand() *cobra.Command {
	wait := time.Duration(0)
	cmd := a.jsonFlag(&cobra.Command{
		Use: "status", Short: "what the daemon does and what it waits for",
		Long: "Shows the state of the daemon and the stages of its bring-up.\n" +
			"With --wait it shows them once the daemon runs; until then it says on standard error what is awaited. A daemon that is not\n" +
			"there yet is waited for too. Exit status 1 when the time is over, or when the bring-up has failed.",
		Args: func(cmd *cobra.Command, words []string) error {
			if !cmd.Flags().Changed("wait") || len(words) == 0 {
				return args(0, 0)(cmd, words)
			}
			// --wait takes its value with or without =; pflag knows only the first.
			d, err := time.ParseDuration(words[0])
			switch {
			case len(words) > 1:
				return args(0, 1)(cmd, words)
			case err != nil:
				return &usageError{fmt.Errorf("--wait %q: want a duration up to %v, such as 30s", words[0], waitMost), cmd.UseLine()}
			}
			wait = d
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("wait") {
				ctx, cancel := ask(cmd, readLimit)
				defer cancel()
				s, err := a.client().Status(ctx)
				if err != nil {
					return err
				}
				return show(a, s, printStatus)
			}
			if wait <= 0 || wait > waitMost {
				return &usageError{fmt.Errorf("--wait %v: want a duration up to %v, such as 30s", wait, waitMost), cmd.UseLine()}
			}
			s, err := awaitRunning(cmd.Context(), a.client(), wait, a.err)
			if err != nil {
				return err
			}
			return show(a, s, printStatus)
		},
	})
	f := cmd.Flags()
	f.DurationVar(&wait, "wait", 0, "wait until the daemon runs, so long at most (without a value 1m)")
	f.Lookup("wait").NoOptDefVal = waitDefault.String()
	f.Lookup("wait").DefValue = "0" // none, and not printed as a default
	return cmd
}

// awaitRunning asks until the daemon runs, and says on talk what is awaited,
// each thing once.
//
// Errors: the last answer's when the time is over; that of a daemon that will
// not run any more; the client's when asking again cannot help.
func awaitRunning(ctx context.Context, c *client.Client, limit time.Duration, talk io.Writer) (*client.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	said := ""
	var last error
	for {
		one, done := context.WithTimeout(ctx, readLimit)
		s, err := c.Status(one)
		done()
		awaited := ""
		switch {
		case err == nil && s.State == client.StateRunning:
			return s, nil
		case err == nil && (s.State == client.StateBringUp || s.State == client.StateGone):
			awaited = awaiting(s)
			last = fmt.Errorf("the daemon does not run after %v: %s", limit, awaited)
		case err == nil:
			return nil, fmt.Errorf("the daemon will not run: it is %s%s", s.State, failure(s))
		case ctx.Err() != nil:
		case errors.Is(err, client.ErrNoDaemon):
			awaited, last = "a daemon on "+c.Socket(), err
		case errors.Is(err, context.DeadlineExceeded):
			awaited, last = "an answer of the daemon on "+c.Socket(), err
		default:
			return nil, err
		}
		if awaited != "" && awaited != said {
			fmt.Fprintf(talk, "waiting: %s\n", awaited)
			said = awaited
		}
		select {
		case <-time.After(waitPoll):
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.Canceled) {
				return nil, errors.New("interrupted")
			}
			if last == nil {
				last = err
			}
			return nil, last
		}
	}
}

// awaiting is what a bring-up waits for.
func awaiting(s *client.Status) string {
	for _, g := range s.Stages {
		if g.State == client.StageActive {
			return fmt.Sprintf("stage %s, for %s", g.Name, g.Awaiting)
		}
	}
	return "the next stage"
}

// failure is why a bring-up ended.
func failure(s *client.Status) string {
	for _, g := range s.Stages {
		if g.State == client.StageFailed {
			return fmt.Sprintf(": stage %s: %s", g.Name, g.Error)
		}
	}
	return ""
}
