package divert

import (
	"math/bits"
	"time"
)

const (
	delaySteps  = 8 // buckets of each power of two
	delayBits   = 3
	delayOctave = 40 // 2^40 ns is 18 minutes
	delayWindow = 10 * time.Second
)

// delays is how long frames waited for their verdicts, of the window before and the one
// that is under way. A bucket is an eighth of a power of two wide.
type delays struct {
	now, before [delayOctave * delaySteps]uint32
	began       time.Duration
	max         time.Duration // ever
}

func delayBucket(d time.Duration) int {
	n := uint64(max(d, 0))
	if n < delaySteps {
		return int(n)
	}
	octave := bits.Len64(n) - 1 - delayBits
	return min(octave*delaySteps+int(n>>octave), delayOctave*delaySteps-1)
}

// bucketEnd is the longest delay of a bucket.
func bucketEnd(i int) time.Duration {
	if i < 2*delaySteps {
		return time.Duration(i)
	}
	octave := i/delaySteps - 1
	return time.Duration((uint64(i%delaySteps)+delaySteps+1)<<octave - 1)
}

func (h *delays) add(d time.Duration) {
	h.now[delayBucket(d)]++
	h.max = max(h.max, d)
}

// turn begins another window when this one is over.
func (h *delays) turn(now time.Duration) {
	if now-h.began < delayWindow {
		return
	}
	h.before, h.began = h.now, now
	clear(h.now[:])
}

// quantile is the delay that part of the frames did not exceed, 0 without frames.
func (h *delays) quantile(part float64) time.Duration {
	var all uint64
	for i := range h.now {
		all += uint64(h.now[i]) + uint64(h.before[i])
	}
	want, have := uint64(part*float64(all)), uint64(0)
	for i := range h.now {
		have += uint64(h.now[i]) + uint64(h.before[i])
		if all > 0 && have > want || have == all && all > 0 {
			return min(bucketEnd(i), h.max)
		}
	}
	return 0
}
