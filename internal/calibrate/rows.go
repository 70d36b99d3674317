package calibrate

import "slices"

// Tolerances, as fractions.
const (
	exact  = 0
	within = 0.10 // of a prediction
	close1 = 0.01 // of what was fitted or follows by arithmetic
)

// Rows is the table, in the order of the pages.
func Rows() []Row {
	return slices.Concat(creditRows(), absenceRows(), pathRows(), timeRows(), targetRows())
}
