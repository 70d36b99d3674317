//go:build race

package traps

// raceEnabled: the race detector looks at a byte of each word before an atomic access of it.
const raceEnabled = true
