package calibrate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"oxpd/hwsim"
)

// Tag says what it means that a row agrees.
type Tag string

// Tags of rows.
const (
	Fit       Tag = "fit"       // a constant was chosen so that the row comes out
	Derived   Tag = "derived"   // the figure, or its rule, was put into the model
	Predicted Tag = "predicted" // nothing was chosen by it
)

// Row is one published figure and the scenario that asks the model for it.
type Row struct {
	Name   string
	Source string  // page and section of the figure
	Asks   string  // what is run
	Low    float64 // published figure: from
	High   float64 // to
	Unit   string
	Tag    Tag
	Within float64 // how far outside Low to High the model may be, as a fraction of the nearer one
	Note   string  // what a reader should know about an agreement, or about the lack of one

	run func(context.Context) (float64, error)
}

// Result is a row with the model's figure.
type Result struct {
	Row      string   `json:"row"`
	Source   string   `json:"source"`
	Asks     string   `json:"asks"`
	Model    float64  `json:"model"`
	Low      float64  `json:"measured_from"`
	High     float64  `json:"measured_to"`
	Unit     string   `json:"unit"`
	Error    float64  `json:"error_percent"` // from the nearer end of the measured range; 0 inside it
	Allowed  float64  `json:"allowed_percent"`
	Tag      Tag      `json:"tag"`
	FittedOn []string `json:"fitted_constants,omitempty"` // constants that were fitted on this row
	Note     string   `json:"note,omitempty"`
	OK       bool     `json:"ok"`
}

// Report is what a run found.
type Report struct {
	Schema    int      `json:"schema"`
	Results   []Result `json:"rows"`
	Missed    []string `json:"missed"`              // rows outside their tolerance
	Predicted int      `json:"predicted_within_10"` // predicted rows whose error is 10 % or less
	OK        bool     `json:"ok"`
}

// ErrUnknownRow is what Run returns for a name that no row has.
var ErrUnknownRow = errors.New("no such row")

// Run checks the table, asks the model for the rows with these names, or for all of
// them, and compares. A row that misses is in the report and no error. Errors: those
// of Check, ErrUnknownRow, and that of a scenario that could not be run to its end.
func Run(ctx context.Context, names ...string) (*Report, error) {
	rows, constants := Rows(), Constants()
	if err := Check(rows, constants); err != nil {
		return nil, err
	}
	for _, n := range names {
		if !slices.ContainsFunc(rows, func(r Row) bool { return r.Name == n }) {
			return nil, fmt.Errorf("calibrate: %q: %w", n, ErrUnknownRow)
		}
	}
	report := &Report{Schema: 1, Missed: []string{}}
	for i := range rows {
		if len(names) > 0 && !slices.Contains(names, rows[i].Name) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		model, err := rows[i].run(ctx)
		if err != nil {
			return nil, fmt.Errorf("calibrate: row %s: %w", rows[i].Name, err)
		}
		report.add(rows[i].result(model, constants))
	}
	report.OK = len(report.Missed) == 0
	return report, nil
}

func (p *Report) add(r Result) {
	p.Results = append(p.Results, r)
	if !r.OK {
		p.Missed = append(p.Missed, r.Row)
	}
	if r.Tag == Predicted && math.Abs(r.Error) <= 10 {
		p.Predicted++
	}
}

// result compares.
func (r *Row) result(model float64, constants []hwsim.Constant) Result {
	e := deviation(model, r.Low, r.High)
	out := Result{
		Row: r.Name, Source: r.Source, Asks: r.Asks, Model: model, Low: r.Low, High: r.High, Unit: r.Unit,
		Error: 100 * e, Allowed: 100 * r.Within, Tag: r.Tag, Note: r.Note, OK: math.Abs(e) <= r.Within,
	}
	for _, c := range constants {
		if c.Row == r.Name {
			out.FittedOn = append(out.FittedOn, c.Name)
		}
	}
	return out
}

// deviation is how far a value is outside a range, as a fraction of the nearer end.
func deviation(v, low, high float64) float64 {
	end := min(max(v, low), high)
	switch {
	case v == end:
		return 0
	case end == 0:
		return math.Copysign(1, v)
	}
	return (v - end) / math.Abs(end)
}

// Check refuses a table that claims more than it may: a predicted row on which a
// constant was fitted, a fit row on which none was, and a constant that was fitted on
// a row that does not exist or says nothing of where it is from.
func Check(rows []Row, constants []hwsim.Constant) error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("calibrate: "+format, args...)) }
	byName := map[string]*Row{}
	for i := range rows {
		r := &rows[i]
		if byName[r.Name] != nil {
			bad("two rows are called %s", r.Name)
		}
		byName[r.Name] = r
		switch {
		case r.Tag != Fit && r.Tag != Derived && r.Tag != Predicted:
			bad("row %s is tagged %q: want %s, %s or %s", r.Name, r.Tag, Fit, Derived, Predicted)
		case r.Low > r.High || r.Within < 0 || r.Source == "" || r.Asks == "":
			bad("row %s lacks a range, a tolerance, a source or what it asks", r.Name)
		}
	}
	fitted := map[string]bool{}
	for _, c := range constants {
		switch {
		case c.Row == "":
			if c.Tag == hwsim.Fit {
				bad("constant %s is tagged %s and names no row", c.Name, Fit)
			}
			continue
		case c.Tag != hwsim.Fit:
			bad("constant %s is tagged %s and names row %s: only a %s has a row", c.Name, c.Tag, c.Row, Fit)
		case byName[c.Row] == nil:
			bad("constant %s was fitted on row %s, which does not exist", c.Name, c.Row)
		case byName[c.Row].Tag == Predicted:
			bad("row %s is tagged %s, but constant %s was fitted on it", c.Row, Predicted, c.Name)
		}
		fitted[c.Row] = true
	}
	for i := range rows {
		if rows[i].Tag == Fit && !fitted[rows[i].Name] {
			bad("row %s is tagged %s and no constant was fitted on it", rows[i].Name, Fit)
		}
	}
	return errors.Join(errs...)
}
