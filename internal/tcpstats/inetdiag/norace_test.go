//go:build !race

package inetdiag

const raceEnabled = false
