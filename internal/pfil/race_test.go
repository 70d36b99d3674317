//go:build race

package pfil

const raceEnabled = true
