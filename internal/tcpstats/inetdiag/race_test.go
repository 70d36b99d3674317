//go:build race

package inetdiag

// raceEnabled: the race detector makes everything ten times as long.
const raceEnabled = true

// kills is how often the daemon is killed under load: the hundred are the other
// build's, and each of these takes as long as several.
const kills = 25
