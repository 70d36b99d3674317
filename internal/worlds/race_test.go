//go:build race

package worlds

const raceDetector = true
