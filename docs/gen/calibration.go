package main

import (
	"context"
	"fmt"
	"strings"

	"oxpd/internal/calibrate"
)

// calibration is what `make calibrate` prints. Stepped time makes it the same on
// every machine.
func calibration(string) (string, error) {
	r, err := calibrate.Run(context.Background())
	if err != nil {
		return "", err
	}
	d := head("Calibration")
	d.text("What the hardware pages publish, and what the simulated card gives when it is asked for the same: `make calibrate`, or `oxpd sim calibrate ROW` for single rows. " +
		"The scenarios run in stepped time with the driver's own code (`octep`, `ring`, `rpc`, `nwa`), so every run on every machine gives this page.")
	d.table([]string{"tag", "means"}, [][]string{
		{"fit", "a constant was chosen so that the row comes out: that it agrees says nothing"},
		{"derived", "the figure, or the rule behind it, was put into the model: that it agrees says that the rule was followed"},
		{"predicted", "measured on the appliance, and nothing was chosen by it. The program refuses a table in which a constant was fitted on such a row"},
	})
	d.text("The error is from the nearer end of what was measured, and 0 inside it.")
	d.section("Rows")
	var rows, notes [][]string
	for i := range r.Results {
		x := &r.Results[i]
		tag := string(x.Tag)
		if !x.OK {
			tag += ", **missed**"
		}
		rows = append(rows, []string{quote(x.Row), x.Asks, x.Measured(), x.Figure(), x.Deviation(), tag})
		notes = append(notes, []string{quote(x.Row), x.Source, fmt.Sprintf("%g %%", x.Allowed), strings.Join(x.FittedOn, ", "), x.Note})
	}
	d.table([]string{"row", "what is asked", "measured", "model", "error", "tag"}, rows)
	d.text(fmt.Sprintf("%d of %d rows are within their tolerance; %d are predicted within 10 %%.", len(r.Results)-len(r.Missed), len(r.Results), r.Predicted))
	d.section("Where they are from")
	d.table([]string{"row", "source", "allowed error", "fitted constants", "note"}, notes)
	d.section("Not asked")
	d.table([]string{"on record", "why not"}, [][]string{
		{"TCP throughput, processor load, the tunnel, visits and quiesces (datapath.md 6.1, 6.3)", "the host's, not the card's"},
		{"0.091 ms at least and 0.508 ms at most in a flood of pings (datapath.md 6.1)", "a card without load has no spread here: all pings take the same time"},
		{"73 % of another port's pings lost through a shared buffer (datapath.md 6.2)", "at which rate is not on record; `Read` says 126,000 evenly spaced frames/s"},
		{"363 of the first 1,024 frames behind a newer one after a lap (datapath.md 3.7)", "depends on where in the ring the block stood"},
		{"a credit of 0x100000000f1 after 0xffffffff was granted (endpoint.md 5.5)", "unexplained on the page; choice 4 of the errata"},
		{"the serial console", "runs at wall time"},
	})
	d.section("Constants of the scenarios")
	d.text("What was around the card when the figures were taken.")
	var constants [][]string
	for _, c := range calibrate.Host() {
		constants = append(constants, []string{quote(c.Name), fmt.Sprintf("%g %s", c.Value, c.Unit), string(c.Tag), quote(c.Row), c.Source})
	}
	d.table([]string{"constant", "value", "tag", "fitted on", "source"}, constants)
	return d.String(), nil
}
