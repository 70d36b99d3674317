package demo

import (
	"context"
	"fmt"
	"os"

	"oxpd/internal/board"
	"oxpd/internal/daemon/client"
	"oxpd/internal/netlab"
)

// filterName is a filter and, in the scratch folder, its rule file.
const filterName = "demo"

// filtered drops the pings of a port on the ring, says which rule it was, and takes that
// back. The sums at the end have the dropped frames.
func filtered(ctx context.Context, l *lab, r *reporter, p board.Port) error {
	r.begin("filter", "A filter on %s drops pings where the card wrote them, %d of them", p.Label, pingsEach)
	rules := fmt.Sprintf("drop icmp from %v to any icmp-type 8\n", farAddr(p))
	if err := os.WriteFile(l.scratch.Path(filterName), []byte(rules), 0o600); err != nil {
		return fmt.Errorf("write the rules: %w", err)
	}
	if err := l.oxpd(ctx, "filter", "load", filterName, netlab.ChildFDPath(extraScratch)+"/"+filterName); err != nil {
		return err
	}
	before, err := l.client.Stats(ctx, p.Name)
	if err != nil {
		return err
	}
	if err := l.oxpd(ctx, "filter", "link", filterName, p.Label, client.DirectionIn); err != nil {
		return err
	}
	if err := l.unanswered(ctx, r, p, smallPing); err != nil {
		return err
	}
	after, err := l.client.Stats(ctx, p.Name)
	if err != nil {
		return err
	}
	counter := func(s *client.Stats, name string) uint64 {
		c, _ := s.Port(p.Name)
		return c.Counters[name]
	}
	const dropped, taken = "pfil_dropped", "rx_packets"
	r.grown(dropped+": frames that ended on the ring", counter(before, dropped), counter(after, dropped), pingsEach)
	r.grown(taken+": frames that the interface got", counter(before, taken), counter(after, taken), 0)
	v, err := l.client.Filter(ctx, filterName)
	if err != nil {
		return err
	}
	r.count("hits of the rule: "+v.List[0].Rule, v.List[0].Hits, pingsEach)
	r.count("frames that the filter judged", v.Judged.Frames, pingsEach)
	if err := l.oxpd(ctx, "filter", "unlink", filterName, p.Label, client.DirectionIn); err != nil {
		return err
	}
	if err := l.pings(ctx, r, p, smallPing, pingsEach); err != nil {
		return err
	}
	return l.oxpd(ctx, "filter", "unload", filterName)
}
