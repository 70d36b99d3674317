//go:build !race

package traps

const raceEnabled = false
