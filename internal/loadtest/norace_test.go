//go:build !race

package loadtest

const raceEnabled = false

// kills is how often the daemon is killed under load.
const kills = 100
