//go:build !race

package inetdiag

const raceEnabled = false

// kills is how often the daemon is killed under load.
const kills = 100
