package daemon

import (
	"fmt"
	"io"

	"oxpd/internal/board"
	"oxpd/internal/capture"
	"oxpd/internal/pfil"
)

// writeSamples writes frames that sample rules have kept as pcapng: an interface for
// each port of the board, and with each frame its way and the rule that it met.
func writeSamples(w io.Writer, kept []pfil.Sampled) error {
	names := make([]string, board.Ports)
	for i := range names {
		names[i] = board.ByIndex(i).Name
	}
	out, err := capture.NewWriter(w, names...)
	for i := 0; i < len(kept) && err == nil; i++ {
		s := &kept[i]
		p := capture.Packet{
			Iface: s.Port.Index, Time: s.Time, Frame: s.Bytes, WireBytes: s.FrameBytes, Dir: capture.Inbound,
			Comment: sampleComment(s),
		}
		if s.Dir == pfil.Out {
			p.Dir = capture.Outbound
		}
		err = out.WritePacket(&p)
	}
	if err == nil {
		err = out.Flush()
	}
	if err != nil {
		return fmt.Errorf("write samples: %w", err)
	}
	return nil
}

// sampleComment is "filter bad, line 3: sample 100 icmp from any to any", cut where a
// comment ends: a list of ports may be longer.
func sampleComment(s *pfil.Sampled) string {
	c := fmt.Sprintf("filter %s, line %d: %s", s.Filter, s.Line, s.Rule)
	return c[:min(len(c), capture.MaxComment)]
}
