package ring

import "time"

// Without interrupts a worker looks by a timer. Under load it is pollPeriod. At rest,
// that is when nothing came for loadLasts, it grows to restPeriod, and a machine that
// forwards nothing wakes 200 times a second instead of 1,000. The price is paid by the
// first frames after a silence: they wait up to restPeriod, and of a burst that is
// longer than a ring (1,024 frames, or 1.6 MB) within that time the card drops the
// rest, as it counts (TX_DROP_QUEUE_FULL).
const (
	loadLasts  = 100 * time.Millisecond
	restPeriod = 5 * time.Millisecond
)

// pacer chooses how long a worker without interrupts stays away. The zero value is at
// rest.
type pacer struct {
	loaded time.Duration // load ends
	last   time.Duration // pause
}

// pause returns how long to stay away after a turn at now that took so many packets
// and that may sleep so long at most.
func (p *pacer) pause(now time.Duration, took int, sleep time.Duration) time.Duration {
	if took > 0 {
		p.loaded = now + loadLasts
	}
	if p.last = min(2*p.last, restPeriod); now < p.loaded || p.last == 0 {
		p.last = pollPeriod
	}
	return min(sleep, p.last)
}
