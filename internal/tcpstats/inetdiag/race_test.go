//go:build race

package inetdiag

// raceEnabled: the race detector makes everything ten times as long.
const raceEnabled = true
