//go:build race

package ring

// raceEnabled: the race detector makes everything ten times as long.
const raceEnabled = true
