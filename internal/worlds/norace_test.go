//go:build !race

package worlds

const raceDetector = false
