package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"oxpd/hwsim"
)

// constants are the numbers of the simulator's timing.
func constants(string) (string, error) {
	d := head("Constants of the simulator")
	d.text("Every latency, width and depth of the simulated card's timing, once, with its source. The clock is the coprocessor's; what is given in nanoseconds is rounded down to its cycles of 1.25 ns.")
	d.table([]string{"tag", "means"}, [][]string{
		{"fit", "chosen so that the model gives a measured [row](calibration.md): that row then says nothing"},
		{"derived", "on record, or calculated from what is: the arithmetic is given"},
		{"estimate", "nobody has measured it"},
	})
	d.text("Only what is fit or derived is called cycle-accurate. Most can be replaced: [Options](options.md) has fields of the same names.")
	count := map[hwsim.Tag]int{}
	var rows [][]string
	for _, c := range hwsim.Constants() {
		count[c.Tag]++
		rows = append(rows, []string{quote(c.Name), strings.TrimSpace(amount(c.Value) + " " + c.Unit), string(c.Tag), quote(c.Row), c.Source})
	}
	d.table([]string{"constant", "value", "tag", "fitted on", "source"}, rows)
	d.text(fmt.Sprintf("%d are fit, %d derived, %d estimates.", count[hwsim.Fit], count[hwsim.Derived], count[hwsim.Estimate]))
	return d.String(), nil
}

// amount is a number as people write it: with commas, and up to a million with the
// digits that it has after the point, four at most.
func amount(v float64) string {
	if v >= 1e6 {
		v = math.Round(v)
	}
	whole, fraction, _ := strings.Cut(strconv.FormatFloat(v, 'f', 4, 64), ".")
	n, err := strconv.Atoi(whole)
	if err != nil {
		return strconv.FormatFloat(v, 'g', -1, 64)
	}
	if fraction = strings.TrimRight(fraction, "0"); fraction != "" {
		return number(n) + "." + fraction
	}
	return number(n)
}
