package replay

import (
	"oxpd/internal/capture"
	"oxpd/internal/daemon/config"
)

// Schema is the number in the document.
const Schema = 1

// Pace is how fast the capture is sent.
type Pace string

// Paces. The first is of this package; the others are those of a pcap wire.
const (
	// PaceHost sends as fast as the frames before are accounted for: what is lost
	// is lost for a reason in the frame, whatever machine this is.
	PaceHost    Pace = "host"
	PaceCapture      = Pace(config.PaceCapture)
	PaceWire         = Pace(config.PaceWire)
)

// Place is a step of a frame's way.
type Place string

// Places, in the order of the way.
const (
	InCapture   Place = "capture"
	OnWire      Place = "wire"
	InFastPath  Place = "fast path"
	AtRing      Place = "ring"
	InOxpd      Place = "oxpd"
	AtInterface Place = "interface"
)

// End is a counter that frames of the capture ended in.
type End struct {
	Place   Place  `json:"place"`
	Counter string `json:"counter"` // its name where oxpd or the card shows it
	Frames  uint64 `json:"frames"`
	Why     string `json:"why"`
}

// Report is the document. Counts are of this replay alone.
type Report struct {
	Schema int    `json:"schema"`
	OK     bool   `json:"ok"` // Difference, Altered and Unseen are 0
	File   string `json:"file"`
	IfName string `json:"ifname"`
	Label  string `json:"label"`
	MTU    int    `json:"mtu"`
	Pace   Pace   `json:"pace"`

	Packets int     `json:"packets"` // in the capture
	Bytes   int64   `json:"bytes"`   // of those, as they were on the wire
	Longest int     `json:"longest"` // of those
	Sent    uint64  `json:"sent"`    // put on the port's wire
	Seconds float64 `json:"seconds"` // from the first frame to the last one's end

	Ends       []End `json:"ends"`       // those that are not 0, in the order of the way
	Difference int64 `json:"difference"` // Packets less the sum of Ends

	Reached   uint64 `json:"reached"`   // the interface, as oxpd counts them
	Unaltered uint64 `json:"unaltered"` // seen there, each the same bytes as a frame that was sent
	Altered   uint64 `json:"altered"`   // seen there and never sent
	Unseen    uint64 `json:"unseen"`    // reached and not seen there
	Out       string `json:"out,omitempty"`
}

// End returns how many frames ended in a counter.
func (r *Report) End(counter string) uint64 {
	for _, e := range r.Ends {
		if e.Counter == counter {
			return e.Frames
		}
	}
	return 0
}

// close adds up.
func (r *Report) close() {
	var sum uint64
	for _, e := range r.Ends {
		sum += e.Frames
	}
	r.Difference = int64(r.Packets) - int64(sum)
	if got := r.Unaltered + r.Altered; got < r.Reached {
		r.Unseen = r.Reached - got
	}
	r.OK = r.Difference == 0 && r.Altered == 0 && r.Unseen == 0
}

// about fills in what the capture is.
func (r *Report) about(s capture.Summary) {
	r.Packets, r.Bytes, r.Longest = s.Packets, s.Bytes, s.Longest
}
