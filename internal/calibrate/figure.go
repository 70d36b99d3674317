package calibrate

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Measured is the published figure with its unit, for people.
func (r *Result) Measured() string {
	s := figure(r.Low)
	if r.High != r.Low {
		s += " to " + figure(r.High)
	}
	return strings.TrimSpace(s + " " + r.Unit)
}

// Figure is the model's, in the same unit.
func (r *Result) Figure() string { return figure(r.Model) }

// Deviation is Error in percent, as people write it.
func (r *Result) Deviation() string {
	if r.Error == 0 {
		return "0"
	}
	return fmt.Sprintf("%+.1f %%", r.Error)
}

// Miss says what is wrong with a row outside its tolerance.
func (r *Result) Miss() string {
	return fmt.Sprintf("%s: the model gives %s where %s was measured (%s): %s off, %g %% are allowed", r.Row, r.Figure(), r.Measured(), r.Source, r.Deviation(), r.Allowed)
}

// figure is a number with as many digits as mean something: whole ones, with commas, from
// 1,000 on, and four otherwise.
func figure(v float64) string {
	if math.Abs(v) < 1000 {
		return strconv.FormatFloat(v, 'g', 4, 64)
	}
	s := strconv.FormatFloat(math.Abs(v), 'f', 0, 64)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	if v < 0 {
		return "-" + s
	}
	return s
}
