//go:build race

package calibrate

// raceEnabled: a run of all rows takes twenty times as long.
const raceEnabled = true
