package main

import (
	"io"

	"github.com/spf13/cobra"

	"oxpd/hwsim"
	"oxpd/internal/daemon/client"
)

// faultRow is a failure mode in the document of oxpd sim faults.
type faultRow struct {
	ID       string `json:"id"`
	Name     string `json:"name"`
	Effect   string `json:"effect"`
	Source   string `json:"source"`
	How      string `json:"how"`
	By       string `json:"by"`
	Switched bool   `json:"switched"` // --fault and oxpd sim fault take the name
}

// faultList is the document of oxpd sim faults.
type faultList struct {
	Schema  int           `json:"schema"`
	Faults  []faultRow    `json:"faults"`
	Fields  []string      `json:"fields"`  // further names that --fault takes
	Actions []faultAction `json:"actions"` // and what it does at a moment
}

// faultAction is something done to the card at a moment.
type faultAction struct {
	Name   string `json:"name"`
	Arg    string `json:"arg"` // "": it takes none
	Effect string `json:"effect"`
}

func listFaults() *faultList {
	d := &faultList{Schema: client.Schema, Fields: hwsim.FaultNames()}
	for _, r := range hwsim.FaultRows() {
		d.Faults = append(d.Faults, faultRow{r.ID, r.Name, r.Effect, r.Source, string(r.How), r.By, r.Switched()})
	}
	for _, v := range hwsim.FaultActions() {
		d.Actions = append(d.Actions, faultAction{v.Name, v.Arg, v.Effect})
	}
	return d
}

func (a *app) faultsCommand() *cobra.Command {
	return a.jsonFlag(&cobra.Command{
		Use: "faults", Short: "the failure modes of the hardware pages, by name", Args: args(0, 0),
		Long: "Lists each failure mode that the hardware pages state: its row, its name, what a host sees, where that is written, and how it comes\n" +
			"about: a switch of the simulated card, a misuse by the host that the model punishes on its own, a choice between two readings,\n" +
			"an event (traffic, time), or nothing in the model (outside). --fault takes the names and rows marked with *, and the actions and fields listed at the end.\n" +
			"--json says more of how.",
		RunE: func(*cobra.Command, []string) error { return show(a, listFaults(), printFaults) },
	})
}

func printFaults(w io.Writer, d *faultList) {
	table(w, func(row func(...any)) {
		row("ROW", "NAME", "HOW", "SOURCE", "EFFECT")
		for _, f := range d.Faults {
			star := ""
			if f.Switched {
				star = "*"
			}
			row(f.ID, f.Name+star, f.How, f.Source, f.Effect)
		}
	})
	table(w, func(row func(...any)) {
		row()
		row("ACTION", "EFFECT")
		for _, v := range d.Actions {
			name := v.Name
			if v.Arg != "" {
				name += "=" + v.Arg
			}
			row(name, v.Effect)
		}
	})
	table(w, func(row func(...any)) {
		row()
		row("FIELDS", "docs/simulator/faults.md")
		for _, n := range d.Fields {
			row("  " + n)
		}
	})
}
