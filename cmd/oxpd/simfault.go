package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"oxpd/hwsim"
	"oxpd/internal/daemon/client"
)

// faultCommand has the simulated card of a daemon misbehave, and says how it does.
func (a *app) faultCommand() *cobra.Command {
	var clear string
	cmd := a.jsonFlag(&cobra.Command{
		Use: "fault [NAME[=ARGUMENT][@WHEN][%P]...]", Short: "faults of the simulated card of a daemon that runs", Args: cobra.ArbitraryArgs,
		Long: "Has the simulated card of oxpd run --sim misbehave while it runs, and lists what is on, what waits and how often each has acted, those that are over in a last line; without a\n" +
			"name it only lists. NAME is a row or name of oxpd sim faults, a field of docs/simulator/faults.md or an action. @WHEN is a time since the card\n" +
			"was made (@10ms) or a cycle (@8000000), with a + behind the @ from now. %P is a probability for each opportunity (%0.01). Of several names\n" +
			"all are taken, or none. --clear ends a fault; what an action has done to the card stays.\n\n" +
			"  oxpd sim fault LoseMessages=3%0.01 kill@+5s\n" +
			"  oxpd sim fault --clear LoseMessages",
		RunE: func(cmd *cobra.Command, args []string) error {
			do, err := faultRequest(a, args, cmd.Flags().Changed("clear"), clear)
			if err != nil {
				return &usageError{err, cmd.UseLine()}
			}
			ctx, cancel := ask(cmd, readLimit)
			defer cancel()
			doc, err := do(ctx)
			if err != nil {
				return err
			}
			return show(a, doc, printFault)
		},
	})
	cmd.Flags().StringVar(&clear, "clear", "", "end the fault of this name, or all")
	return cmd
}

// faultRequest is what the arguments ask of the daemon.
func faultRequest(a *app, faults []string, clears bool, clear string) (func(context.Context) (*client.Faults, error), error) {
	switch {
	case clears && len(faults) > 0:
		return nil, fmt.Errorf("--clear %s ends a fault and %s begins one: do one after the other", clear, faults[0])
	case clears && clear == "":
		return nil, errors.New("--clear: which fault? want a name or all")
	case clears:
		return func(ctx context.Context) (*client.Faults, error) { return a.client().ClearFault(ctx, clear) }, nil
	case len(faults) == 0:
		return func(ctx context.Context) (*client.Faults, error) { return a.client().Faults(ctx) }, nil
	}
	for _, text := range faults {
		i, err := hwsim.ParseInjection(text)
		if err == nil {
			err = i.Check()
		}
		if err != nil {
			return nil, err
		}
	}
	return func(ctx context.Context) (*client.Faults, error) { return a.client().SetFaults(ctx, faults...) }, nil
}

func printFault(w io.Writer, d *client.Faults) {
	fmt.Fprintf(w, "cycle %d, %.6f s since the card was made\n", d.Cycle, d.Now)
	var live []client.Fault
	var over []string
	for _, f := range d.Faults {
		if f.State != hwsim.FaultOver {
			live = append(live, f)
		} else {
			over = append(over, fmt.Sprintf("%s %d", f.Name, f.Acted))
		}
	}
	if len(over) > 0 {
		defer fmt.Fprintf(w, "over, and how often each acted: %s\n", strings.Join(over, ", "))
	}
	if len(live) == 0 {
		fmt.Fprintln(w, "no faults")
		return
	}
	table(w, func(row func(...any)) {
		row("FAULT", "STATE", "ACTED", "AT")
		for _, f := range live {
			name, state, at := f.Name, f.State, f.Opportunity
			if f.Argument != "" {
				name += "=" + f.Argument
			}
			if f.At != 0 {
				state = fmt.Sprintf("at %v", seconds(f.At))
			}
			if f.Probability != 0 {
				at = fmt.Sprintf("%v of: %s", f.Probability, at)
			}
			row(name, state, f.Acted, at)
		}
	})
}
