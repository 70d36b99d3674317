//go:build !race

package pfil

const raceEnabled = false
