package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"oxpd/internal/calibrate"
)

func (a *app) calibrateCommand() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use: "calibrate [ROW...]", Short: "ask the simulated card for the published measurements and compare",
		Long: "Runs the scenario of each ROW, or of all, on a simulated card in stepped time, with the driver's own code, and prints the published\n" +
			"figure beside the model's. A row is fit when a constant of the model was chosen so that it comes out, which then says nothing;\n" +
			"derived when the figure or its rule was put into the model; predicted when nothing was chosen by it. Exit status 1 when a row is\n" +
			"outside its tolerance. Takes seconds, touches nothing of this machine.",
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := calibrate.Run(cmd.Context(), args...)
			if errors.Is(err, calibrate.ErrUnknownRow) {
				return &usageError{err, cmd.UseLine()}
			}
			if err != nil {
				return err
			}
			if err := show(a, r, printCalibration); err != nil {
				return err
			}
			if !r.OK {
				return exitCode(exitFailed)
			}
			return nil
		},
	})
}

func printCalibration(w io.Writer, r *calibrate.Report) {
	table(w, func(row func(cells ...any)) {
		row("row", "measured", "model", "error", "tag")
		for i := range r.Results {
			x := &r.Results[i]
			row(x.Row, x.Measured(), x.Figure(), x.Deviation(), x.Tag)
		}
	})
	for i := range r.Results {
		if x := &r.Results[i]; !x.OK {
			fmt.Fprintf(w, "%-4s  %s\n", verdict(false), x.Miss())
		}
	}
	fmt.Fprintf(w, "%-4s  %d of %d rows within their tolerance; %d predicted within 10 %%\n",
		verdict(r.OK), len(r.Results)-len(r.Missed), len(r.Results), r.Predicted)
}
