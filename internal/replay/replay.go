package replay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"oxpd/internal/board"
	"oxpd/internal/capture"
)

// Options of Run. In and Port are required.
type Options struct {
	In         string
	Port       board.Port
	MTU        int    // 0: as the bring-up leaves it, board.DefaultMTU
	Out        string // capture that is made of what reaches the interface; empty: none
	RewriteMAC bool   // unicast frames get the port's address as their destination
	Pace       Pace   // empty: PaceHost
	Logger     *slog.Logger
}

// ErrOverwrite says that a recording would destroy what is replayed.
var ErrOverwrite = errors.New("it would be overwritten while it is read: name another file")

// errNothing says that a capture has nothing that could be sent.
var errNothing = errors.New("no whole packet in it")

// Run replays a capture and returns where its frames ended, also when a sum does
// not close. Errors: *capture.FormatError before anything was done;
// *board.MTURangeError; ErrOverwrite; EPERM without the right to make a network namespace; the
// context's; whatever kept the card from coming up.
func Run(ctx context.Context, o Options) (*Report, error) {
	reports, err := RunEach(ctx, o, []string{o.In})
	if err != nil {
		return nil, err
	}
	return reports[0], nil
}

// RunEach replays captures one after another into one port of one card, and
// returns a report of each. In is theirs, and o.Out is for one capture alone: it
// has the last one's frames. Errors are those of Run.
func RunEach(ctx context.Context, o Options, in []string) ([]*Report, error) {
	if o.MTU != 0 {
		if err := board.CheckMTU(o.MTU); err != nil {
			return nil, err
		}
	}
	if o.Pace == "" {
		o.Pace = PaceHost
	}
	reports := make([]*Report, 0, len(in))
	for _, path := range in {
		o.In = path
		r, err := begin(o)
		if err != nil {
			return nil, err
		}
		reports = append(reports, r)
	}
	if err := run(ctx, o, reports); err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	return reports, nil
}

// begin checks a capture, whole, and opens its report.
func begin(o Options) (*Report, error) {
	s, err := capture.Check(o.In)
	if err != nil {
		return nil, err
	}
	if s.Packets == s.Cut {
		return nil, fmt.Errorf("replay %s: %w: %d packets, %d of them cut short by a snap length", o.In, errNothing, s.Packets, s.Cut)
	}
	if o.Out != "" && capture.Same(o.In, o.Out) {
		return nil, fmt.Errorf("record to %s: %w", o.Out, ErrOverwrite)
	}
	r := &Report{Schema: Schema, File: o.In, IfName: o.Port.Name, Label: o.Port.Label, Pace: o.Pace, Out: o.Out, Ends: []End{}}
	r.about(s)
	return r, nil
}
