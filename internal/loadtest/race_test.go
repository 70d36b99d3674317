//go:build race

package loadtest

// raceEnabled: the race detector makes everything ten times as long.
const raceEnabled = true
