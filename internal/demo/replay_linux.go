package demo

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"oxpd/internal/board"
	"oxpd/internal/replay"
	"oxpd/testdata/captures"
)

// replays puts captures on a wire of another card (internal/replay: its host says
// nothing of its own accord), and checks that each frame is on the interface, byte for byte.
func replays(ctx context.Context, l *lab, r *reporter, p board.Port) error {
	names, err := captures.Names()
	if err != nil {
		return fmt.Errorf("list the captures: %w", err)
	}
	r.begin("replay", "Captures replayed into %s of a second card, MTU 9,000, compared with what its interface got", p.Label)
	paths := make([]string, 0, len(names))
	for _, name := range names {
		b, err := captures.Read(name)
		if err != nil {
			return fmt.Errorf("read a capture: %w", err)
		}
		path := l.scratch.Path(name)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			return fmt.Errorf("write a capture: %w", err)
		}
		paths = append(paths, path)
	}
	reports, err := replay.RunEach(ctx, replay.Options{Port: p, MTU: board.MaxMTU, RewriteMAC: true}, paths)
	if err != nil {
		return err
	}
	for _, c := range reports {
		r.replayed(c)
	}
	return nil
}

// replayed checks that all frames of a capture came as they were sent.
func (r *reporter) replayed(c *replay.Report) {
	got := sameFrames(c.Unaltered, uint64(c.Packets))
	if c.Altered+c.Unseen > 0 || c.Difference != 0 {
		got += fmt.Sprintf(", %d altered, %d not seen, %d in no counter", c.Altered, c.Unseen, c.Difference)
	}
	r.check(filepath.Base(c.File)+": longest frame "+group(uint64(c.Longest)), got, sameFrames(uint64(c.Packets), uint64(c.Packets)))
}

func sameFrames(n, total uint64) string {
	return fmt.Sprintf("%s of %s frames byte for byte", group(n), group(total))
}
