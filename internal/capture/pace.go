package capture

import "time"

// Pacer gives the frames of a capture the time between them that they were
// captured with. The zero value begins with the first frame that it is asked
// about.
type Pacer struct {
	first time.Time // of the capture
	begin time.Time // when that frame was sent
}

// Wait is how long to wait at now before a frame with a time of the capture is
// sent; 0 or less: it is due. A frame without a time, or with one before its
// predecessor's, is due at once.
func (p *Pacer) Wait(at, now time.Time) time.Duration {
	switch {
	case at.IsZero():
		return 0
	case p.begin.IsZero():
		p.first, p.begin = at, now
	}
	return at.Sub(p.first) - now.Sub(p.begin)
}
